//! One free list with one lock, which is held to allocate and to free each frame.

use super::FrameSource;
use quire_sync::{Rank, SpinLock, record};

const NONE: u32 = u32::MAX;

/// The descriptor of a frame, which takes a cache line. It contains the link of the free list, as in kernels with one
/// list.
#[derive(Clone)]
#[repr(align(64))]
struct Descriptor {
    next: u32,
}

struct FrameList {
    frames: Vec<Descriptor>,
    head: u32,
}

/// A stack of free frames.
pub struct GlobalList {
    list: SpinLock<FrameList>,
}

impl GlobalList {
    /// Makes a list with the frames from 0 to below `frames`, all free.
    pub fn new(frames: u32) -> GlobalList {
        let next = |i| if i + 1 < frames { i + 1 } else { NONE };
        let all = (0..frames).map(|i| Descriptor { next: next(i) }).collect();
        GlobalList { list: SpinLock::new(Rank::FRAMES, FrameList { frames: all, head: 0 }) }
    }
}

impl FrameSource for GlobalList {
    fn take(&self, _kernel: bool) -> Option<u32> {
        let mut list = self.list.lock();
        let frame = list.head;
        if frame == NONE {
            return None;
        }
        record::read(&list.frames[frame as usize]);
        list.head = list.frames[frame as usize].next;
        record::wrote(&list.head);
        Some(frame)
    }
    fn give(&self, frame: u32) {
        let mut list = self.list.lock();
        list.frames[frame as usize].next = list.head;
        list.head = frame;
        record::wrote(&list.frames[frame as usize]);
        record::wrote(&list.head);
    }
    fn large(&self) -> u64 {
        let list = self.list.lock();
        let next = |f: &u32| Some(list.frames[*f as usize].next).filter(|n| *n != NONE);
        let mut free: Vec<u32> = std::iter::successors(Some(list.head).filter(|h| *h != NONE), next).collect();
        free.sort_unstable();
        free.chunk_by(|a, b| a / 512 == b / 512).filter(|block| block.len() == 512).count() as u64
    }
}
