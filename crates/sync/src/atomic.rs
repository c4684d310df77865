//! The atomics of the selected build (native, recording, loom, shuttle), and the two fences that the protocols use.
//!
//! Some protocols need full fences. One relies on C2: a remover sets a page busy, fences, and then scans the mappings.
//! On x86 a locked read-modify-write is already a full fence, so a compiler fence after it suffices. Elsewhere, and
//! under the model checkers, a real fence follows it.

#[cfg(recording)]
pub use crate::record::atomic::{
    AtomicBool, AtomicI32, AtomicI64, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering,
    fence,
};
#[cfg(not(any(loom, shuttle, recording)))]
pub use core::sync::atomic::{
    AtomicBool, AtomicI32, AtomicI64, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering,
    fence,
};
#[cfg(loom)]
pub use loom::sync::atomic::{
    AtomicBool, AtomicI32, AtomicI64, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering,
    fence,
};
#[cfg(shuttle)]
pub use shuttle::sync::atomic::{
    AtomicBool, AtomicI32, AtomicI64, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering,
    fence,
};

/// A full fence: no later access passes an earlier one. Needed after a plain store that another CPU must see before
/// this CPU reads (store-to-load order), for example "set busy, then scan".
#[inline(always)]
#[cfg_attr(recording, track_caller)]
pub fn fence_full() {
    fence(Ordering::SeqCst);
}

/// A full fence after an atomic read-modify-write (an acquired lock, a `swap`). On x86 the locked instruction is that
/// fence, so this is only a compiler fence. Elsewhere and in the models it is [`fence_full`].
#[inline(always)]
pub fn fence_after_rmw() {
    #[cfg(all(target_arch = "x86_64", not(any(loom, shuttle))))]
    core::sync::atomic::compiler_fence(Ordering::SeqCst);
    #[cfg(not(all(target_arch = "x86_64", not(any(loom, shuttle)))))]
    fence(Ordering::SeqCst);
}
