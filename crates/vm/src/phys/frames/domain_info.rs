//! The free frames of a domain, by where they are and in what blocks, for tools.

use super::buddy::MAX_ORDER;
use super::{Frames, Watermarks};
use crate::phys::descriptors::SECTION;
use core::ops::Range;
use quire_sync::atomic::Ordering;

/// The frames of a domain.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DomainInfo {
    /// From the first frame of its RAM to one past the last; other domains and holes may lie between.
    pub span: Range<u64>,
    /// Frames that the core manages.
    pub total: u64,
    /// Where pageout begins and ends.
    pub marks: Watermarks,
    /// Free frames, without those that CPUs keep for themselves.
    pub free: u64,
    /// The blocks that those are in: at n, the number of blocks of 2^n frames. A depot's chains are single frames, and
    /// memory that was never used is in blocks of the largest size.
    pub blocks: [u64; MAX_ORDER as usize + 1],
}

/// The free frames that a CPU keeps for itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CpuFrames {
    /// The CPU's domain.
    pub domain: usize,
    /// How many they are; some may be of another domain, on their way back.
    pub kept: u64,
    /// How many the CPU takes from its domain at once, or gives back.
    pub batch: u64,
}

impl Frames {
    /// The frames of `domain`. The blocks and their sum are those of one moment. Takes the lock of the domain's depot
    /// for a few steps.
    ///
    /// # Panics
    /// Where there is no such domain.
    pub fn domain_info(&self, domain: usize) -> DomainInfo {
        let depot = &self.domains[domain];
        let (free, blocks) = {
            let held = depot.held.lock();
            let mut blocks = *held.buddy.blocks();
            let (free, whole) = (depot.uncached.load(Ordering::Relaxed), held.buddy.free() + held.buddy.fresh());
            // Chains that are just being broken up are counted, and on no list.
            blocks[0] += free.saturating_sub(whole);
            blocks[MAX_ORDER as usize] += held.buddy.fresh() / SECTION;
            (free, blocks)
        };
        let own = || self.pages.runs().iter().filter(|run| usize::from(run.domain) == domain);
        let start = own().map(|run| run.start).min().unwrap_or(0);
        let end = own().map(|run| run.end).max().unwrap_or(0);
        DomainInfo { span: start..end, total: self.total_in(domain), marks: self.marks(domain), free, blocks }
    }

    /// The free frames that `cpu` keeps for itself.
    ///
    /// # Panics
    /// Where there is no such CPU.
    pub fn cpu_frames(&self, cpu: usize) -> CpuFrames {
        let magazine = self.magazines.of(cpu);
        let kept = magazine.local.lock().chains().map(|chain| u64::from(chain.len)).sum();
        CpuFrames { domain: magazine.domain.into(), kept, batch: self.chain.into() }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use crate::phys::frames::{Fill, For};
    use crate::testing::boot_in_domains;
    use crate::types::Pfn;

    #[test]
    fn blocks_and_magazines_have_all_free_frames() {
        let config = crate::Config { reserve: Some(4), describe_at_boot: 0, ..crate::Config::default() };
        let m = boot_in_domains(1 << 14, 2, 2, config);
        let frames = m.vm.frames();
        let check = || {
            let mut all = 0;
            for domain in 0..frames.domains() {
                let info = frames.domain_info(domain);
                let in_blocks: u64 = info.blocks.iter().enumerate().map(|(order, blocks)| blocks << order).sum();
                assert_eq!(in_blocks, info.free, "domain {domain}: {info:?}");
                assert!(info.free <= info.total && info.total <= info.span.end - info.span.start);
                assert!(info.marks.min <= info.marks.low && info.marks.low <= info.marks.high);
                all += info.free;
            }
            all += (0..2).map(|cpu| frames.cpu_frames(cpu).kept).sum::<u64>();
            assert_eq!(all, frames.free());
            frames.check().unwrap();
        };
        check();
        assert_eq!((frames.cpu_frames(0).domain, frames.cpu_frames(1).domain), (0, 1));
        let taken: Vec<Pfn> = (0..3000).map(|_| m.vm.alloc_frame(Fill::Any, For::User).unwrap().into_pfn()).collect();
        check();
        let run = m.vm.alloc_run(3, For::Kernel).unwrap();
        check();
        for pfn in taken.into_iter().rev() {
            // SAFETY: `into_pfn` gave the number just now, and this gives the frame up.
            m.vm.return_frame(unsafe { crate::phys::frames::Frame::from_pfn(pfn) });
        }
        check();
        // SAFETY: `alloc_run` gave the block, of this order, and nothing uses it.
        unsafe { m.vm.free_run(run, 3) };
        check();
        m.vm.drain_magazines();
        check();
        assert_eq!(frames.cpu_frames(0).kept + frames.cpu_frames(1).kept, 0);
    }
}
