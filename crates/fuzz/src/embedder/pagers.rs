//! The pagers that an embedder provides for objects and swap. None accesses a frame, because that needs `unsafe`. A
//! read gets the result of [`Pager::fill`], or the frame's old contents.
#![forbid(unsafe_code)]

use quire_vm::PAGE_SIZE;
use quire_vm::paging::io::{Direction, Polled, Request};
use quire_vm::paging::pager::{Pager, PagerError, SwapStore};
use quire_vm::reclaim::scan::Reclaim;
use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// One of every `FAILS` calls of a pager fails; 0: none fails. `CALLS` counts the calls.
static FAILS: AtomicU32 = AtomicU32::new(0);
static CALLS: AtomicU32 = AtomicU32::new(0);
/// The number of shared writable mappings, from the notifications that the pager gets.
static STORES: AtomicU64 = AtomicU64::new(0);
/// Requests that wait for a poll.
static WAITING: Mutex<Vec<Request>> = Mutex::new(Vec::new());

/// Makes one of `n` calls fail from now on; 0: none.
pub fn fail(n: u32) {
    FAILS.store(n, Ordering::Relaxed);
}

/// The number of shared writable mappings, from the notifications that the pager got. It is zero when all are unmapped.
pub fn stores() -> u64 {
    STORES.load(Ordering::Relaxed)
}

/// Ends injected failures, and completes waiting requests.
pub fn calm() {
    fail(0);
    Late.poll();
}

fn outcome() -> Result<(), PagerError> {
    let n = CALLS.fetch_add(1, Ordering::Relaxed);
    match FAILS.load(Ordering::Relaxed) {
        0 => Ok(()),
        one_in if n.is_multiple_of(one_in) => Err(PagerError::Failed),
        _ => Ok(()),
    }
}

/// A file whose pages hold a pattern. It discards writes.
pub struct Disk;

impl Pager for Disk {
    fn name(&self, to: &mut dyn fmt::Write) -> fmt::Result {
        to.write_str("/disk")
    }
    fn ident(&self) -> (u64, u64) {
        (8, 1)
    }
    fn in_memory(&self) -> bool {
        false
    }
    fn cluster(&self) -> usize {
        8
    }
    fn takes_writes(&self) -> bool {
        true
    }
    fn start(&self, request: Request) {
        let asked = (request.direction(), request.first(), request.len(), request.pfn(0), request.frame(0));
        assert!(asked.2 > 0 && !asked.4.is_null(), "an empty request: {asked:?}");
        let mut waiting = WAITING.lock().expect("a push does not panic");
        waiting.push(request);
        let due = if waiting.len() > 3 || asked.0 == Direction::Read { Some(waiting.swap_remove(0)) } else { None };
        drop(waiting);
        if let Some(mut request) = due {
            assert!(request.page(0).is_some() && request.page(request.len()).is_none());
            // Only the pages of a read may be stored into.
            let reads = request.direction() == Direction::Read;
            assert_eq!(request.page_mut(0).is_some(), reads);
            let mut copy = [0; 9];
            let end = request.len() * PAGE_SIZE as usize;
            assert_eq!((request.copy_out(end - 4, &mut copy), request.copy_out(end, &mut copy)), (4, 0));
            assert_eq!(request.copy_in(end - 4, &copy), if reads { 4 } else { 0 });
            match outcome() {
                Ok(()) if reads => request.fill_by(&Pattern),
                done => request.complete(done),
            }
        }
    }
    fn fills_whole(&self) -> bool {
        false
    }
    fn share(&self) -> usize {
        // All pagers of this file share the records of one.
        8
    }
    fn make_writable(&self, _page: u64) -> Result<(), PagerError> {
        outcome()
    }
    fn counts_stores(&self) -> bool {
        true
    }
    fn stores_noted(&self, came: bool) {
        STORES.fetch_add(if came { 1 } else { u64::MAX }, Ordering::Relaxed);
    }
    fn times_stores(&self) -> bool {
        true
    }
    fn discard_begins(&self) -> bool {
        outcome().is_ok()
    }
    fn discard_ended(&self) {}
    fn released(&self) {}
}

/// Completes the disk's requests later, when it is polled.
pub struct Late;

impl Polled for Late {
    fn poll(&self) -> bool {
        loop {
            let due = WAITING.lock().expect("a pop does not panic").pop();
            let Some(request) = due else { return false };
            request.complete(outcome());
        }
    }
}

/// A file whose pages exist only in memory, and a swap store that keeps nothing.
pub struct Blank;

/// A read-only file that holds a pattern.
pub struct Pattern;

impl Pager for Pattern {
    fn name(&self, to: &mut dyn fmt::Write) -> fmt::Result {
        to.write_str("/pattern")
    }
    fn ident(&self) -> (u64, u64) {
        (8, 2)
    }
    fn in_memory(&self) -> bool {
        false
    }
    fn fill(&self, page: u64, frame: &mut [u8; PAGE_SIZE as usize]) -> Result<(), PagerError> {
        frame.fill(page as u8);
        outcome()
    }
    fn takes_writes(&self) -> bool {
        false
    }
}

impl Pager for Blank {
    fn name(&self, to: &mut dyn fmt::Write) -> fmt::Result {
        to.write_str("/memory")
    }
    fn ident(&self) -> (u64, u64) {
        (8, 3)
    }
    fn in_memory(&self) -> bool {
        true
    }
    fn takes_writes(&self) -> bool {
        false
    }
}

impl SwapStore for Blank {
    fn slots(&self) -> u64 {
        128
    }
    fn start(&self, request: Request) {
        request.complete(outcome());
    }
}

/// A cache that the core asks for memory when memory is short. It has none to free.
pub struct Keeper;

impl Reclaim for Keeper {
    fn reclaim(&self) -> bool {
        false
    }
}
