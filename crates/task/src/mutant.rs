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
static CHOSEN: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);

#[cfg(any(loom, shuttle))]
pub(crate) fn on(which: u32) -> bool {
    CHOSEN.load(std::sync::atomic::Ordering::Relaxed) == which
}

/// Leaves out the step `which` from now on; 0 for none.
#[cfg(any(loom, shuttle))]
pub fn choose(which: u32) {
    CHOSEN.store(which, std::sync::atomic::Ordering::Relaxed);
}
