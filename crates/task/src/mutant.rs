//! Steps that the model checkers leave out on purpose, to show that they would find the omission. Always off elsewhere.
#![cfg_attr(not(any(loom, shuttle)), allow(dead_code))]

/// `park` does not look for a token.
pub const PARK_OVER_TOKEN: u32 = 1;
/// A woken thread is queued on another CPU although it has not left its own.
pub const PLACE_BEFORE_LEFT: u32 = 2;
/// A futex waiter compares the word before it is counted.
pub const CHECK_BEFORE_COUNT: u32 = 3;

#[cfg(not(any(loom, shuttle)))]
#[inline(always)]
pub(crate) const fn on(_which: u32) -> bool {
    false
}

#[cfg(any(loom, shuttle))]
std::thread_local! {
    // Plain memory, not an atomic of the checker: reading it is no step of the model. The checker's threads share it.
    static CHOSEN: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

#[cfg(any(loom, shuttle))]
pub(crate) fn on(which: u32) -> bool {
    CHOSEN.get() == which
}

/// Leaves out the step `which` from now on, in models that run on this thread of the system; 0 for none.
#[cfg(any(loom, shuttle))]
pub fn choose(which: u32) {
    CHOSEN.set(which);
}
