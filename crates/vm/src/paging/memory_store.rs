//! A store in memory that takes the place of a disk, for swap or behind a file.
//!
//! By default the store completes each request at once. A [`FaultPlan`] makes it behave like a bad disk: late, out of
//! order, failing. A failed request still has an effect: a write has overwritten part of its pages, and a read has left
//! garbage. A block device replaces only this store.
//!
//! Bytes are copied when a request is completed, not when it is started. So tests find code that releases a frame too
//! early, or that expects a write to have read the frame already.

use crate::machine::bytes;
use crate::paging::io::{CLUSTER, Direction, Polled, Request, Requests};
use crate::paging::pager::{Pager, PagerError, SwapStore};
use crate::types::PAGE_SIZE;
use core::fmt;
use core::ptr::NonNull;
use quire_sync::hooks::now;
use quire_sync::{Rank, SpinLock};

/// The faults of the store. With all fields zero it has none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FaultPlan {
    /// The average number of polls for which a request waits.
    pub delay: u32,
    /// The least time between two completions, in nanoseconds.
    pub pause: u64,
    /// One in this number of reads fails; 0: none.
    pub fail_reads: u32,
    /// One in this number of writes fails; 0: none.
    pub fail_writes: u32,
    /// The next completed request is any of this number of the oldest ones; 0 and 1: in order.
    pub window: u32,
    /// The seed of the random decisions.
    pub seed: u64,
}

impl FaultPlan {
    fn is_late(&self) -> bool {
        self.delay != 0 || self.pause != 0 || self.window > 1
    }
}

struct State {
    plan: FaultPlan,
    random: u64,
    waiting: Requests,
    /// The time of the last completion, in nanoseconds.
    last: u64,
    reads: u64,
    writes: u64,
    failed: u64,
}

impl State {
    fn random(&mut self, below: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 20) % below.max(1)
    }

    fn one_in(&mut self, n: u32) -> bool {
        n != 0 && self.random(n as u64) == 0
    }

    /// The next request to complete, or `None` if none is due yet.
    fn due(&mut self) -> Option<Request> {
        let plan = self.plan;
        if self.waiting.is_empty() || plan.delay != 0 && self.random(plan.delay as u64 + 1) != 0 {
            return None;
        }
        if plan.pause != 0 {
            let time = now();
            if time < self.last.saturating_add(plan.pause) {
                return None;
            }
            self.last = time;
        }
        let window = (plan.window.max(1) as u64).min(self.waiting.len() as u64);
        let n = self.random(window) as usize;
        self.waiting.take(n)
    }
}

/// The counts of a store's requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StoreCounts {
    /// The number of reads that were started.
    pub reads: u64,
    /// The number of writes that were started.
    pub writes: u64,
    /// The number of reads and writes that failed.
    pub failed: u64,
}

/// A store of pages in memory.
pub struct MemoryStore {
    bytes: NonNull<u8>,
    pages: u64,
    state: SpinLock<State>,
}

// SAFETY: the store owns the memory. Only the request that names a page reads or writes it, and the core never has two
// requests for one slot. (For a store behind a file, programs determine the reads and writes.)
unsafe impl Send for MemoryStore {}
// SAFETY: `state` has a lock. Only the one request in progress that names a page uses the page's bytes.
unsafe impl Sync for MemoryStore {}

impl MemoryStore {
    /// Makes a store of `pages` pages at `bytes`. The memory keeps its present content.
    ///
    /// # Safety
    /// The memory is valid for reads and writes of `pages` pages as long as the store lives. Only the store uses it.
    pub unsafe fn new(bytes: NonNull<u8>, pages: u64, plan: FaultPlan) -> MemoryStore {
        let random = plan.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let state = State { plan, random, waiting: Requests::new(), last: 0, reads: 0, writes: 0, failed: 0 };
        MemoryStore { bytes, pages, state: SpinLock::new(Rank::DEVICE, state) }
    }

    /// Behaves by `plan` from now on.
    #[cfg(all(test, not(any(loom, shuttle))))]
    pub(crate) fn set_plan(&self, plan: FaultPlan) {
        let mut state = self.state.lock();
        state.plan = plan;
        state.random = plan.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    }

    /// The store's counts so far.
    pub fn counts(&self) -> StoreCounts {
        let state = self.state.lock();
        StoreCounts { reads: state.reads, writes: state.writes, failed: state.failed }
    }

    fn page(&self, n: u64) -> Option<*mut u8> {
        // SAFETY: page `n` is a page of the store, whose memory is one block that is valid for all its pages.
        (n < self.pages).then(|| unsafe { self.bytes.as_ptr().add((n * PAGE_SIZE) as usize) })
    }

    /// Carries out a request, or half of it if it `fails`.
    fn serve(&self, request: Request, fails: bool) {
        let pages = if fails { request.len() / 2 } else { request.len() };
        let mut result = if fails { Err(PagerError::Failed) } else { Ok(()) };
        for i in 0..request.len() {
            let (Some(at), frame) = (self.page(request.first() + i as u64), request.frame(i)) else {
                result = Err(PagerError::Failed);
                break;
            };
            // SAFETY: both are valid for a page: a page of the store and a frame. Programs may store into a frame that
            // is being written. Then its page is dirty again, and this copy is not used.
            unsafe {
                match request.direction() {
                    Direction::Read if i < pages => bytes::copy(at, frame, PAGE_SIZE as usize),
                    Direction::Read => bytes::fill(frame, 0xbd, PAGE_SIZE as usize),
                    Direction::Write if i < pages => bytes::copy(frame, at, PAGE_SIZE as usize),
                    Direction::Write => bytes::fill(at, 0xbd, PAGE_SIZE as usize),
                }
            }
        }
        request.complete(result);
    }

    fn begin(&self, request: Request) {
        let mut state = self.state.lock();
        match request.direction() {
            Direction::Read => state.reads += 1,
            Direction::Write => state.writes += 1,
        }
        if state.plan.is_late() {
            state.waiting.push(request);
            return;
        }
        let fails = Self::fails(&mut state, &request);
        drop(state);
        self.serve(request, fails);
    }

    fn fails(state: &mut State, request: &Request) -> bool {
        let fails = match request.direction() {
            Direction::Read => state.one_in(state.plan.fail_reads),
            Direction::Write => state.one_in(state.plan.fail_writes),
        };
        state.failed += fails as u64;
        fails
    }
}

impl Polled for MemoryStore {
    fn poll(&self) -> bool {
        loop {
            let mut state = self.state.lock();
            let Some(request) = state.due() else { return !state.waiting.is_empty() };
            let fails = Self::fails(&mut state, &request);
            drop(state);
            self.serve(request, fails);
        }
    }
}

impl SwapStore for MemoryStore {
    fn slots(&self) -> u64 {
        self.pages
    }
    fn start(&self, request: Request) {
        self.begin(request);
    }
}

/// Behind an object, the store is a file with the store's pages.
impl Pager for MemoryStore {
    fn name(&self, to: &mut dyn fmt::Write) -> fmt::Result {
        to.write_str("memory store")
    }
    fn ident(&self) -> (u64, u64) {
        (0, self.bytes.addr().get() as u64)
    }
    fn in_memory(&self) -> bool {
        false
    }
    fn cluster(&self) -> usize {
        CLUSTER
    }
    fn takes_writes(&self) -> bool {
        true
    }
    fn start(&self, request: Request) {
        self.begin(request);
    }
}
