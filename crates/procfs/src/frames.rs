//! The frames of the machine: `kpagecount`, `kpageflags`, `kpagecgroup`, `buddyinfo` and `zoneinfo`.
//!
//! The first three files have 8 bytes for each frame, and only root may read them. Frames have the same numbers as in
//! `pagemap`. A word of `kpageflags` combines two reads, of the page and of its mappings. Only the flags that Quire has
//! are shown:
//!
//! | bit | set for frames |
//! |---|---|
//! | `LOCKED` | whose page may be changing its content or its owner |
//! | `REFERENCED` | whose page descriptor is marked as used; access bits in page tables are not read |
//! | `UPTODATE`, `DIRTY`, `WRITEBACK` | as on Linux; the store of a page without a file is swap |
//! | `LRU`, `ACTIVE` | on a page queue; on the active queue or on the way to it |
//! | `SLAB`, `PGTABLE`, `ZERO_PAGE` | of the kernel's heap; of page tables; the frame of zeroes |
//! | `BUDDY` | that are free, including free frames in the caches of CPUs |
//! | `MMAP` | that some page table maps; not set for the frame of zeroes, as on Linux |
//! | `ANON`, `SWAPBACKED`, `SWAPCACHE` | of private memory; whose page goes to swap; whose page has a swap slot |
//! | `UNEVICTABLE`, `MLOCKED` | of locked mappings, and of locked shared memory |
//! | `RESERVED`, `NOPAGE` | taken before the memory core started; without a descriptor |

use crate::about::System;
use crate::node::put;
use quire_fs::generated::{GeneratedFile, Text};
use quire_fs::{FsError, Sink};
use quire_heap::{Arc, unsize};
use quire_linux_state::Linux;
use quire_linux_state::machine::Machine;
use quire_vm::Pfn;
use quire_vm::frame_info::{FrameInfo, PageMarks};
use quire_vm::types::Queue;

/// The bytes of an entry.
const WORD: u64 = 8;

/// Passes the values of `word` to `sink`, from byte `offset` on, up to the first `None`. As on Linux, the offset and
/// the length must be multiples of 8.
pub(super) fn words(
    offset: u64,
    sink: &mut dyn Sink,
    mut word: impl FnMut(u64) -> Option<u64>,
) -> Result<usize, FsError> {
    if !offset.is_multiple_of(WORD) || !(sink.room() as u64).is_multiple_of(WORD) {
        return Err(FsError::Invalid);
    }
    let mut done = 0;
    while sink.room() > 0 {
        let Some(value) = word(offset / WORD + done as u64 / WORD) else { break };
        match sink.put(&value.to_le_bytes()) {
            Ok(n) => {
                done += n;
                if n < WORD as usize {
                    break;
                }
            }
            Err(e) if done == 0 => return Err(e),
            Err(_) => break,
        }
    }
    Ok(done)
}

/// The bit numbers of `kpageflags`, as on Linux.
mod bit {
    pub const LOCKED: u32 = 0;
    pub const REFERENCED: u32 = 2;
    pub const UPTODATE: u32 = 3;
    pub const DIRTY: u32 = 4;
    pub const LRU: u32 = 5;
    pub const ACTIVE: u32 = 6;
    pub const SLAB: u32 = 7;
    pub const WRITEBACK: u32 = 8;
    pub const BUDDY: u32 = 10;
    pub const MMAP: u32 = 11;
    pub const ANON: u32 = 12;
    pub const SWAPCACHE: u32 = 13;
    pub const SWAPBACKED: u32 = 14;
    pub const UNEVICTABLE: u32 = 18;
    pub const NOPAGE: u32 = 20;
    pub const ZERO_PAGE: u32 = 24;
    pub const PGTABLE: u32 = 26;
    pub const RESERVED: u32 = 32;
    pub const MLOCKED: u32 = 33;
}

/// A file with a 64-bit word for each frame.
struct Frames<M: Machine>(&'static Linux<M>, fn(&'static Linux<M>, Pfn) -> u64);

impl<M: Machine> GeneratedFile for Frames<M> {
    fn text(&self, _out: &mut Text) -> Result<(), FsError> {
        Err(FsError::Invalid)
    }

    fn read_at(&self, offset: u64, sink: &mut dyn Sink) -> Option<Result<usize, FsError>> {
        let frames = self.0.vm.page_count();
        Some(words(offset, sink, |n| (n < frames).then(|| self.1(self.0, Pfn(n)))))
    }
}

fn flags<M: Machine>(linux: &'static Linux<M>, pfn: Pfn) -> u64 {
    match linux.vm.frame_info(pfn) {
        FrameInfo::Unknown => 1 << bit::NOPAGE,
        FrameInfo::Free => 1 << bit::BUDDY,
        FrameInfo::Zeroes => 1 << bit::ZERO_PAGE,
        FrameInfo::Reserved => 1 << bit::RESERVED,
        FrameInfo::Table => 1 << bit::PGTABLE,
        FrameInfo::Slab => 1 << bit::SLAB,
        FrameInfo::Kernel => 0,
        FrameInfo::Page(marks) => {
            let mapped = linux.vm.mappings_of(pfn);
            flags_of_page(&marks, mapped.leaves > 0, mapped.wired)
        }
    }
}

fn flags_of_page(marks: &PageMarks, mapped: bool, wired: bool) -> u64 {
    let all = [
        (bit::LOCKED, marks.busy),
        (bit::REFERENCED, marks.referenced),
        (bit::UPTODATE, marks.valid),
        (bit::DIRTY, marks.dirty),
        (bit::LRU, marks.queued),
        (bit::ACTIVE, marks.queue == Some(Queue::Active)),
        (bit::WRITEBACK, marks.being_written),
        (bit::MMAP, mapped),
        (bit::ANON, marks.private),
        (bit::SWAPCACHE, marks.has_slot),
        (bit::SWAPBACKED, marks.in_memory),
        (bit::UNEVICTABLE, wired || marks.kept_resident),
        (bit::MLOCKED, wired),
    ];
    all.into_iter().filter(|(_, is)| *is).fold(0, |flags, (bit, _)| flags | 1 << bit)
}

fn open<M: Machine>(
    about: &System<M>,
    word: fn(&'static Linux<M>, Pfn) -> u64,
) -> Result<Arc<dyn GeneratedFile>, FsError> {
    Ok(unsize!(Arc::try_new(Frames(about.0, word))?))
}

/// `kpagecount`: the number of PTEs that map each frame.
pub(super) fn counts<M: Machine>(about: &System<M>) -> Result<Arc<dyn GeneratedFile>, FsError> {
    open(about, |linux, pfn| linux.vm.mappings_of(pfn).leaves)
}

/// `kpageflags`: the flags of each frame.
pub(super) fn all_flags<M: Machine>(about: &System<M>) -> Result<Arc<dyn GeneratedFile>, FsError> {
    open(about, flags)
}

/// `kpagecgroup`: 0 for each frame, because there are no cgroups.
pub(super) fn groups<M: Machine>(about: &System<M>) -> Result<Arc<dyn GeneratedFile>, FsError> {
    open(about, |_, _| 0)
}

/// `buddyinfo`: a line for each memory domain, with the numbers of its free blocks of 1, 2, 4 frames and so on.
pub(super) fn blocks<M: Machine>(about: &System<M>, out: &mut Text) -> Result<(), FsError> {
    let frames = about.0.vm.frames();
    for domain in 0..frames.domains() {
        put!(out, "Node {domain}, zone   Normal ")?;
        for blocks in frames.domain_info(domain).blocks {
            put!(out, "{blocks:6} ")?;
        }
        put!(out, "\n")?;
    }
    Ok(())
}

/// `zoneinfo`: the frames of each memory domain, which is one zone, and the free frames that its CPUs keep in their
/// magazines. Counts that the kernel has only for the whole machine are in `vmstat`.
pub(super) fn zones<M: Machine>(about: &System<M>, out: &mut Text) -> Result<(), FsError> {
    let frames = about.0.vm.frames();
    for domain in 0..frames.domains() {
        let info = frames.domain_info(domain);
        put!(out, "Node {domain}, zone   Normal\n  pages free     {}\n        boost    0\n", info.free)?;
        let rows = [
            ("min", info.marks.min),
            ("low", info.marks.low),
            ("high", info.marks.high),
            ("spanned", info.span.end - info.span.start),
            ("present", info.total),
            ("managed", info.total),
            ("cma", 0),
        ];
        for (name, value) in rows {
            put!(out, "        {name:<8} {value}\n")?;
        }
        put!(out, "        protection: (0)\n      nr_free_pages {}\n  pagesets\n", info.free)?;
        for cpu in 0..about.0.scheduler.cpus() {
            let kept = frames.cpu_frames(cpu);
            if kept.domain == domain {
                put!(out, "    cpu: {cpu}\n              count:    {}\n", kept.kept)?;
                put!(out, "              batch:    {}\n", kept.batch)?;
            }
        }
        put!(out, "  node_unreclaimable:  0\n  start_pfn:           {}\n", info.span.start)?;
    }
    Ok(())
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use quire_fs::SliceSink;

    #[test]
    fn words_are_read_whole_from_their_multiples_on() {
        let read = |offset, len: usize| {
            let mut bytes = [0xff; 32];
            let n = words(offset, &mut SliceSink::new(&mut bytes[..len]), |n| (n < 5).then_some(n * 3))?;
            let (all, _) = bytes[..n].as_chunks::<8>();
            Ok(all.iter().map(|word| u64::from_le_bytes(*word)).collect::<Vec<_>>())
        };
        assert_eq!(read(0, 32), Ok(vec![0, 3, 6, 9]));
        assert_eq!((read(24, 32), read(32, 8)), (Ok(vec![9, 12]), Ok(vec![12])));
        assert_eq!((read(40, 8), read(u64::MAX - 7, 8)), (Ok(vec![]), Ok(vec![])));
        assert_eq!((read(4, 8), read(8, 7)), (Err(FsError::Invalid), Err(FsError::Invalid)));
    }
}
