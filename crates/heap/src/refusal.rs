//! A test allocator that refuses chosen requests of a thread.
//!
//! [`Refusing`] is the global allocator of each test program that is built with this module. Requests outside of [`at`]
//! and [`allocations`] are never refused, unless the thread has a judge ([`set_judge`]).

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr;

/// An allocator that numbers a thread's requests, and refuses a chosen request.
pub struct Refusing;

#[global_allocator]
static ALLOCATOR: Refusing = Refusing;

std::thread_local! {
    /// The number of requests since counting began, or `None` while none are counted.
    static COUNTED: Cell<Option<u64>> = const { Cell::new(None) };
    /// The number of the request that is refused; 0 for none.
    static REFUSED: Cell<u64> = const { Cell::new(0) };
    /// A function that decides about each request too; true refuses it.
    static JUDGE: Cell<Option<fn() -> bool>> = const { Cell::new(None) };
}

/// Sets the function that decides whether a request of this thread is refused. `None` removes it.
pub fn set_judge(judge: Option<fn() -> bool>) {
    JUDGE.set(judge);
}

/// Counts a request, and returns whether it is refused.
fn is_refused() -> bool {
    let count = |counted: &Cell<Option<u64>>| {
        let n = counted.get()? + 1;
        counted.set(Some(n));
        Some(n)
    };
    // A thread that is ending has no counters any more, so none of its requests is refused.
    let number = COUNTED.try_with(count).ok().flatten();
    let judge = JUDGE.try_with(Cell::get).ok().flatten();
    number.is_some_and(|n| REFUSED.try_with(Cell::get) == Ok(n)) || judge.is_some_and(|refuses| refuses())
}

// SAFETY: all memory comes from the system allocator; a refusal is null, as the trait requires.
unsafe impl GlobalAlloc for Refusing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: by this function's contract the layout has a size; it is passed on unchanged.
        if is_refused() { ptr::null_mut() } else { unsafe { System.alloc(layout) } }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: by this function's contract `memory` came from this allocator, so from the system's.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: by this function's contract the layout has a size; it is passed on unchanged.
        if is_refused() { ptr::null_mut() } else { unsafe { System.alloc_zeroed(layout) } }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, new: usize) -> *mut u8 {
        // SAFETY: by this function's contract `memory` came from this allocator, so from the system's.
        if is_refused() { ptr::null_mut() } else { unsafe { System.realloc(memory, layout, new) } }
    }
}

/// Ends the counting when it is dropped, also if a test panics.
struct Counting;

impl Drop for Counting {
    fn drop(&mut self) {
        COUNTED.set(None);
        REFUSED.set(0);
    }
}

/// Runs `f` with this thread's `n`-th request refused. Returns the result of `f` and the number of its requests.
pub fn at<R>(n: u64, f: impl FnOnce() -> R) -> (R, u64) {
    assert_eq!(COUNTED.get(), None, "one count at a time");
    let _ends = Counting;
    REFUSED.set(n);
    COUNTED.set(Some(0));
    let result = f();
    (result, COUNTED.get().unwrap_or_default())
}

/// The number of allocation requests of `f`.
pub fn allocations(f: impl FnOnce()) -> u64 {
    at(0, f).1
}

/// Runs `f` with its first request refused, then with its second, and so on until no request is refused. `f` gets the
/// number of the refused request and returns whether it succeeded. Returns the number of runs in which a request was
/// refused.
///
/// # Panics
/// Panics if `f` succeeds although a request was refused and `may_do_without` is not set. Also panics if `f` fails
/// although no request was refused.
pub fn refused_each(may_do_without: bool, mut f: impl FnMut(u64) -> bool) -> u64 {
    for n in 1.. {
        let (through, made) = at(n, || f(n));
        if made < n {
            assert!(through, "it failed although no request was refused");
            return n - 1;
        }
        assert!(!through || may_do_without, "request {n} was refused without an error");
    }
    unreachable!("the range has no end")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_request_is_refused_once() {
        let two = |_| {
            let mut v = std::vec::Vec::<u8>::new();
            let mut w = std::vec::Vec::<u8>::new();
            v.try_reserve(1).is_ok() && w.try_reserve(1).is_ok()
        };
        assert_eq!(refused_each(false, two), 2);
        assert_eq!(refused_each(false, |_| true), 0);
    }

    #[test]
    #[should_panic(expected = "was refused without an error")]
    fn a_refusal_that_is_passed_over_is_found() {
        refused_each(false, |_| {
            let _lost = std::vec::Vec::<u8>::new().try_reserve(1);
            true
        });
    }
}
