//! The memory of the baseline cores: frames, their descriptors, and the shards of the free list and of the page queue.

use crate::Failure;
use quire_sync::atomic::{AtomicU32, AtomicU64, Ordering};
use quire_sync::hooks::{current_cpu, relax};
use quire_sync::{CachePadded, Rank, SpinGuard, SpinLock, record};
use quire_vm::PAGE_SIZE;
use std::alloc::Layout;
use std::ptr::{self, NonNull};
use std::time::Instant;

/// The number of a frame.
pub type Frame = u32;
const NONE: Frame = u32::MAX;
/// A bit of the busy word: one CPU holds the page exclusively, to fill or to remove it.
const ALONE: u32 = 1 << 31;

/// The descriptor of a frame: one cache line, as in the kernels whose designs the baselines follow.
#[repr(align(64))]
struct Page<P> {
    /// The data that the design keeps for each page.
    of: P,
    /// The number of CPUs that hold the page shared while they map it, or [`ALONE`].
    busy: AtomicU32,
    /// The neighbours in a shard's list of free frames or of queued pages. The shard's lock guards them.
    next: AtomicU32,
    prev: AtomicU32,
}

/// A list of frames, linked through their descriptors.
struct FrameList {
    head: Frame,
    tail: Frame,
}

const EMPTY: FrameList = FrameList { head: NONE, tail: NONE };

struct Part {
    free: SpinLock<FrameList>,
    queue: SpinLock<FrameList>,
}

/// The machine's memory, with a value of type `P` for each page.
pub struct Core<P: 'static> {
    memory: NonNull<u8>,
    pages: Vec<Page<P>>,
    parts: Vec<CachePadded<Part>>,
    /// The number of CPUs that allocate frames. Each has shards of its own, if there are enough shards.
    cpus: usize,
    /// For each CPU, how often it found a shard's lock held.
    waits: Vec<CachePadded<AtomicU64>>,
}

// SAFETY: the memory consists of frames, and the locks of this core determine the owner of a frame's content.
unsafe impl<P: Send> Send for Core<P> {}
// SAFETY: the locks of a shared core determine the owners of its frames, and `P` is shared only if it is `Sync`.
unsafe impl<P: Sync> Sync for Core<P> {}

/// Allocated frames that are freed when the value is dropped.
pub struct Taken<P: 'static>(&'static Core<P>, Vec<Frame>);

impl<P> Drop for Taken<P> {
    fn drop(&mut self) {
        self.1.drain(..).for_each(|f| self.0.free(f));
    }
}

impl<P: Default> Core<P> {
    /// Boots a core for `cpus` CPUs, with `mib` MiB of memory and `parts` shards of the free list and of the page
    /// queue.
    pub fn boot(cpus: usize, mib: u64, parts: usize) -> Result<&'static Core<P>, Failure> {
        // 256 more frames stand for the kernel's own memory, which in the lab is memory of the process.
        Self::new(cpus, mib as usize * 256 + 256, parts)
    }

    /// Makes a core of `frames` frames, free in random order, in `parts` shards, for `cpus` CPUs.
    fn new(cpus: usize, frames: usize, parts: usize) -> Result<&'static Core<P>, Failure> {
        let size = frames * PAGE_SIZE as usize;
        let layout = Layout::from_size_align(size, PAGE_SIZE as usize).map_err(|_| Failure::OutOfMemory)?;
        // SAFETY: the layout's size is not zero.
        let memory = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) }).ok_or(Failure::OutOfMemory)?;
        let page = |_| Page {
            of: P::default(),
            busy: AtomicU32::new(0),
            next: AtomicU32::new(NONE),
            prev: AtomicU32::new(NONE),
        };
        let part = |_| {
            CachePadded(Part { free: SpinLock::new(Rank::FRAMES, EMPTY), queue: SpinLock::new(Rank::QUEUE, EMPTY) })
        };
        let pages = (0..frames).map(page).collect();
        let parts = (0..parts.max(1)).map(part).collect();
        let waits = (0..cpus).map(|_| CachePadded(AtomicU64::new(0))).collect();
        let core = Core { memory, pages, parts, cpus, waits };
        let mut random = crate::map::workload::Random(1);
        random.shuffled(frames).into_iter().for_each(|f| core.free(f));
        // The core is never freed, like a hosted machine.
        Ok(Box::leak(Box::new(core)))
    }
}

impl<P> Core<P> {
    /// The address of a frame's bytes.
    pub(super) fn bytes(&self, frame: Frame) -> *mut u8 {
        assert!((frame as usize) < self.pages.len(), "frame {frame} is not memory");
        // SAFETY: the frame's number is asserted to be in the allocation.
        unsafe { self.memory.as_ptr().add(frame as usize * PAGE_SIZE as usize) }
    }

    /// Zeroes the bytes of a frame.
    ///
    /// # Safety
    /// Only the caller uses the frame.
    pub unsafe fn zero(&self, frame: Frame) {
        // SAFETY: these are the bytes of one frame, which nothing else uses.
        unsafe { ptr::write_bytes(self.bytes(frame), 0, PAGE_SIZE as usize) }
    }

    /// Copies one frame to another.
    ///
    /// # Safety
    /// Only the caller uses `to`.
    pub(super) unsafe fn copy(&self, from: Frame, to: Frame) {
        // SAFETY: the two frames differ; programs may store into `from` during the copy, as they may on any machine.
        unsafe { ptr::copy_nonoverlapping(self.bytes(from), self.bytes(to), PAGE_SIZE as usize) }
    }

    /// Acquires the lock of a shard. If another CPU holds the lock, counts a wait of this CPU.
    fn lock<'l>(&self, list: &'l SpinLock<FrameList>) -> SpinGuard<'l, FrameList> {
        list.try_lock().unwrap_or_else(|| {
            self.waits[current_cpu() % self.cpus].fetch_add(1, Ordering::Relaxed);
            list.lock()
        })
    }

    /// How often a CPU found a shard's lock held by another CPU.
    pub fn waits(&self) -> u64 {
        self.waits.iter().map(|w| w.load(Ordering::Relaxed)).sum()
    }

    /// The seconds for which a fault holds a shard's lock without contention: the larger of the times to allocate a
    /// frame and to queue it. Allocates at most half of the free frames, so that every shard still has some.
    pub fn seconds_under_locks(&self, pages: u64) -> Result<f64, Failure> {
        let pages = pages.min(self.free_frames() as u64 / 2);
        let mut taken = Vec::with_capacity(pages as usize);
        let start = Instant::now();
        for n in 0..pages {
            taken.push(self.take(n)?);
        }
        let take = start.elapsed().as_secs_f64();
        let start = Instant::now();
        taken.iter().for_each(|frame| self.enqueue(*frame));
        let time = take.max(start.elapsed().as_secs_f64());
        for frame in taken {
            self.dequeue(frame);
            self.free(frame);
        }
        Ok(time / pages as f64)
    }

    fn part_of(&self, frame: Frame) -> &Part {
        &self.parts[frame as usize % self.parts.len()]
    }

    fn pop(&self, list: &mut FrameList) -> Option<Frame> {
        let frame = list.head;
        if frame == NONE {
            return None;
        }
        self.unlink(list, frame);
        Some(frame)
    }

    fn unlink(&self, list: &mut FrameList, frame: Frame) {
        let page = &self.pages[frame as usize];
        let (next, prev) = (page.next.load(Ordering::Relaxed), page.prev.load(Ordering::Relaxed));
        match prev {
            NONE => list.head = next,
            prev => self.pages[prev as usize].next.store(next, Ordering::Relaxed),
        }
        match next {
            NONE => list.tail = prev,
            next => self.pages[next as usize].prev.store(prev, Ordering::Relaxed),
        }
        record::wrote(list);
    }

    /// Adds a frame at the head of a list. The frame freed last is then allocated first, while caches still hold it.
    fn push_front(&self, list: &mut FrameList, frame: Frame) {
        let page = &self.pages[frame as usize];
        page.prev.store(NONE, Ordering::Relaxed);
        page.next.store(list.head, Ordering::Relaxed);
        match list.head {
            NONE => list.tail = frame,
            head => self.pages[head as usize].prev.store(frame, Ordering::Relaxed),
        }
        list.head = frame;
        record::wrote(list);
    }

    fn push(&self, list: &mut FrameList, frame: Frame) {
        let page = &self.pages[frame as usize];
        page.next.store(NONE, Ordering::Relaxed);
        page.prev.store(list.tail, Ordering::Relaxed);
        match list.tail {
            NONE => list.head = frame,
            tail => self.pages[tail as usize].next.store(frame, Ordering::Relaxed),
        }
        list.tail = frame;
        record::wrote(list);
    }

    /// Allocates a free frame. The search begins with the CPU's own shard for `color`, then tries all others.
    pub fn take(&self, color: u64) -> Result<Frame, Failure> {
        let (parts, cpu) = (self.parts.len(), current_cpu() % self.cpus);
        let (first, end) = (cpu * parts / self.cpus, ((cpu + 1) * parts / self.cpus).max(cpu * parts / self.cpus + 1));
        let own = first + (color % (end - first) as u64) as usize;
        let any = (0..parts).map(|n| (own + n) % parts);
        any.into_iter().find_map(|n| self.pop(&mut self.lock(&self.parts[n].free))).ok_or(Failure::OutOfMemory)
    }

    /// Frees a frame. The frame must be unused, unmapped and in no queue.
    pub fn free(&self, frame: Frame) {
        self.push_front(&mut self.lock(&self.part_of(frame).free), frame);
    }

    /// Puts a page into the queue of its shard.
    pub(super) fn enqueue(&self, frame: Frame) {
        self.push(&mut self.lock(&self.part_of(frame).queue), frame);
    }

    /// Takes a page out of the queue of its shard.
    pub(super) fn dequeue(&self, frame: Frame) {
        self.unlink(&mut self.lock(&self.part_of(frame).queue), frame);
    }

    /// The data that the design keeps for the page.
    pub(super) fn of(&self, frame: Frame) -> &P {
        &self.pages[frame as usize].of
    }

    /// Tries to hold the page exclusively. Returns false if a CPU holds it.
    pub(super) fn try_busy(&self, frame: Frame) -> bool {
        self.pages[frame as usize].busy.compare_exchange(0, ALONE, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    pub(super) fn unbusy(&self, frame: Frame) {
        self.pages[frame as usize].busy.store(0, Ordering::Release);
    }

    /// Tries to hold the page shared, so that it stays until [`Core::unshare`]. Returns false if a CPU holds it
    /// exclusively.
    pub(super) fn try_share(&self, frame: Frame) -> bool {
        let busy = &self.pages[frame as usize].busy;
        let more = |n: u32| (n & ALONE == 0).then_some(n + 1);
        busy.fetch_update(Ordering::Acquire, Ordering::Relaxed, more).is_ok()
    }

    pub(super) fn unshare(&self, frame: Frame) {
        self.pages[frame as usize].busy.fetch_sub(1, Ordering::Release);
    }

    /// Waits until no CPU holds the page.
    pub(super) fn wait_unbusy(&self, frame: Frame) {
        while self.pages[frame as usize].busy.load(Ordering::Relaxed) != 0 {
            relax();
        }
    }

    /// Waits until no CPU holds the page exclusively.
    pub(super) fn wait_shareable(&self, frame: Frame) {
        while self.pages[frame as usize].busy.load(Ordering::Relaxed) & ALONE != 0 {
            relax();
        }
    }

    /// Allocates `frames` frames one by one and zeroes them.
    pub(super) fn take_zeroed(&'static self, frames: u64) -> Result<Taken<P>, Failure> {
        let mut taken = Taken(self, Vec::with_capacity(frames as usize));
        for n in 0..frames {
            let frame = self.take(n)?;
            // SAFETY: the frame was just allocated, so only the caller uses it.
            unsafe { self.zero(frame) };
            taken.1.push(frame);
        }
        Ok(taken)
    }

    /// The address of the word at `va` in the frame that is mapped there.
    pub(super) fn word(&self, frame: Frame, va: u64) -> *mut u64 {
        // SAFETY: the address is rounded down to a word, and lies within the frame's page.
        unsafe { self.bytes(frame).add((va % PAGE_SIZE) as usize & !7).cast() }
    }

    /// The number of frames that are not free.
    pub(super) fn held(&self) -> u64 {
        (self.frames() - self.free_frames()) as u64
    }

    /// The number of all frames.
    pub fn frames(&self) -> usize {
        self.pages.len()
    }

    /// The number of frames that are free.
    pub fn free_frames(&self) -> usize {
        let length = |part: &CachePadded<Part>| {
            let list = part.free.lock();
            let next = |f: &Frame| Some(self.pages[*f as usize].next.load(Ordering::Relaxed)).filter(|n| *n != NONE);
            std::iter::successors(Some(list.head).filter(|h| *h != NONE), next).count()
        };
        self.parts.iter().map(length).sum()
    }
}
