//! The free frames of a domain, by place and block size, for tools.

use super::buddy::MAX_ORDER;
use super::{Frames, Watermarks};
use crate::phys::descriptors::SECTION;
use core::ops::Range;
use quire_sync::atomic::Ordering;

/// The free frames of a domain, and its watermarks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DomainInfo {
    /// The range from the first frame of the domain's RAM to one past the last. Other domains and holes may lie
    /// between.
    pub span: Range<u64>,
    /// The number of frames that the core manages.
    pub total: u64,
    /// The numbers of free frames at which pageout begins and ends.
    pub marks: Watermarks,
    /// The number of free frames, without those in the magazines of CPUs.
    pub free: u64,
    /// The blocks of these free frames: element n is the number of blocks of 2^n frames. A depot's chains count as
    /// single frames. Memory that was never used counts as blocks of the largest size.
    pub blocks: [u64; MAX_ORDER as usize + 1],
}

/// The free frames in the magazine of a CPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CpuFrames {
    /// The CPU's domain.
    pub domain: usize,
    /// The number of frames. Some may be of another domain, on their way back to it.
    pub kept: u64,
    /// The number of frames that the CPU takes from its domain, or returns to it, at once.
    pub batch: u64,
}

impl Frames {
    /// The free frames of `domain`. The blocks and their sum are those of one moment. Holds the lock of the domain's
    /// depot for a few steps.
    ///
    /// # Panics
    /// Panics if the machine has no such domain.
    pub fn domain_info(&self, domain: usize) -> DomainInfo {
        let depot = &self.domains[domain];
        let (free, blocks) = {
            let held = depot.held.lock();
            let mut blocks = *held.buddy.blocks();
            let (free, whole) = (depot.uncached.load(Ordering::Relaxed), held.buddy.free() + held.buddy.fresh());
            // Chains that are just being broken up are counted, but are on no list.
            blocks[0] += free.saturating_sub(whole);
            blocks[MAX_ORDER as usize] += held.buddy.fresh() / SECTION;
            (free, blocks)
        };
        let own = || self.pages.runs().iter().filter(|run| usize::from(run.domain) == domain);
        let start = own().map(|run| run.start).min().unwrap_or(0);
        let end = own().map(|run| run.end).max().unwrap_or(0);
        DomainInfo { span: start..end, total: self.total_in(domain), marks: self.marks(domain), free, blocks }
    }

    /// The free frames in the magazine of `cpu`.
    ///
    /// # Panics
    /// Panics if the machine has no such CPU.
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
            // SAFETY: `into_pfn` has just returned the number, and this code gives the frame up.
            m.vm.return_frame(unsafe { crate::phys::frames::Frame::from_pfn(pfn) });
        }
        check();
        // SAFETY: `alloc_run` returned the block, with this order, and no code uses it any more.
        unsafe { m.vm.free_run(run, 3) };
        check();
        m.vm.drain_magazines();
        check();
        assert_eq!(frames.cpu_frames(0).kept + frames.cpu_frames(1).kept, 0);
    }
}
