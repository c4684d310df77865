//! The hooks by which the primitives call the kernel or the host, bound at link time.
//!
//! The final binary implements [`Cpu`] and [`Wait`] on one type and names that type with [`provide!`](crate::provide).
//! With the `std` feature (tests, the hosted machine) this crate implements the hooks itself, with threads.

use crate::held::{MutexesHeld, SpinsHeld};
use core::fmt;

/// The number of a CPU. CPUs are numbered from zero without gaps.
pub type CpuId = usize;

/// The handle of a thread that sleeps or may sleep. Opaque to this crate; valid as long as that thread lives.
///
/// Only [`current_thread`] and [`ThreadHandle::from_number`] make handles, so safe code has handles of real threads
/// only.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ThreadHandle(usize);

impl ThreadHandle {
    /// The handle of no thread, for places that are filled later.
    pub(crate) const NONE: ThreadHandle = ThreadHandle(0);

    /// The handle with the number `number`.
    ///
    /// # Safety
    /// The number is that of a thread of the program's [`Wait`], by [`number`](Self::number) or by the implementation of
    /// `Wait` itself. The thread lives as long as the handle is used.
    #[inline(always)]
    pub const unsafe fn from_number(number: usize) -> ThreadHandle {
        ThreadHandle(number)
    }

    /// The handle's number, whose meaning the implementation of [`Wait`] chooses.
    #[inline(always)]
    pub const fn number(self) -> usize {
        self.0
    }
}

/// Hooks that return the number of this CPU, and keep a thread on its CPU.
///
/// # Safety
/// `preempt_disable` must keep the calling thread on its CPU until the matching `preempt_enable`; the two nest.
/// `current` must be below the number of CPUs that the machine was built with.
pub unsafe trait Cpu {
    /// Keeps the caller on this CPU. Calls nest.
    fn preempt_disable();
    /// Undoes one `preempt_disable`; at the outermost level this call may do a pending reschedule.
    fn preempt_enable();
    /// The CPU that runs the caller. Stable only with preemption disabled.
    fn current() -> CpuId;
    /// Called in each iteration of a spin loop: executes a pause instruction. On machines without interrupts it also
    /// serves this CPU's inbox (the requests of other CPUs). So two CPUs that wait for each other both continue.
    fn relax();
    /// Reports that this CPU spins on a lock; called once in [`SPUN`](crate::spin::SPUN) iterations. The arguments are
    /// the lock's address and rank, and the iterations so far. 0 iterations mean that the lock was seen free. Called
    /// with preemption off, and with interrupts masked for locks that interrupt handlers take. Must take no lock.
    fn spun(_lock: usize, _rank: u8, _turns: u32) {}

    /// Calls `f` with interrupts masked, so that no other code on this CPU takes locks while `f` runs. This hook and
    /// the following ones are for debug builds only.
    fn uninterrupted(f: &mut dyn FnMut()) {
        f();
    }
    /// The list of this CPU's held spin locks, valid as long as the CPU runs. If it is null, the order of locks is not
    /// checked. Called with preemption off or interrupts masked.
    fn held() -> *mut SpinsHeld {
        core::ptr::null_mut()
    }
    /// Stores the return addresses of the calls that led to this call into `_into`, innermost first. Returns their
    /// number.
    fn backtrace(_into: &mut [usize]) -> usize {
        0
    }
    /// Prints the name of the function that contains the return address `address`.
    fn describe(address: usize, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{address:#x}")
    }
}

/// Hooks for sleeping and waking, with a token: an `unpark` before the `park` makes that `park` return at once.
///
/// # Safety
/// `park` may return early, but an `unpark` must never be lost: the next `park` after it returns.
pub unsafe trait Wait {
    /// The calling thread's handle.
    fn current() -> ThreadHandle;
    /// Sleeps until unparked, or until `deadline` (in nanoseconds of the clock [`Wait::now`]).
    fn park(deadline: Option<u64>);
    /// As [`park`](Wait::park), for a wait that neither a signal nor a deadline ends.
    fn park_uninterruptibly() {
        Self::park(None);
    }
    /// Gives `thread` its token, and wakes it if it sleeps. May be called with spin locks held, with preemption off, and
    /// in interrupt handlers. So it must acquire no lock that is held with interrupts on.
    fn unpark(thread: ThreadHandle);
    /// A monotonic clock in nanoseconds.
    fn now() -> u64;

    /// The list of the calling thread's held sleeping locks, valid as long as the thread lives; for debug builds only.
    /// If it is null, the order of these locks is not checked. Called with interrupts masked.
    fn held() -> *mut MutexesHeld {
        core::ptr::null_mut()
    }
}

/// Names the type that implements [`Cpu`] and [`Wait`] for this binary. Used once in a program, like
/// `#[global_allocator]`.
#[macro_export]
macro_rules! provide {
    ($t:ty) => {
        const _: () = {
            #[unsafe(no_mangle)]
            fn __quire_preempt_disable() {
                <$t as $crate::Cpu>::preempt_disable()
            }
            #[unsafe(no_mangle)]
            fn __quire_preempt_enable() {
                <$t as $crate::Cpu>::preempt_enable()
            }
            #[unsafe(no_mangle)]
            fn __quire_cpu() -> usize {
                <$t as $crate::Cpu>::current()
            }
            #[unsafe(no_mangle)]
            fn __quire_relax() {
                <$t as $crate::Cpu>::relax()
            }
            #[unsafe(no_mangle)]
            fn __quire_spun(lock: usize, rank: u8, turns: u32) {
                <$t as $crate::Cpu>::spun(lock, rank, turns)
            }
            #[unsafe(no_mangle)]
            fn __quire_thread() -> usize {
                <$t as $crate::Wait>::current().number()
            }
            #[unsafe(no_mangle)]
            fn __quire_park(deadline: Option<u64>) {
                <$t as $crate::Wait>::park(deadline)
            }
            #[unsafe(no_mangle)]
            fn __quire_park_uninterruptibly() {
                <$t as $crate::Wait>::park_uninterruptibly()
            }
            #[unsafe(no_mangle)]
            fn __quire_unpark(thread: usize) {
                // SAFETY: this crate calls the function only with the number of a `ThreadHandle`.
                <$t as $crate::Wait>::unpark(unsafe { $crate::ThreadHandle::from_number(thread) })
            }
            #[unsafe(no_mangle)]
            fn __quire_now() -> u64 {
                <$t as $crate::Wait>::now()
            }
            #[unsafe(no_mangle)]
            fn __quire_uninterrupted(f: &mut dyn FnMut()) {
                <$t as $crate::Cpu>::uninterrupted(f)
            }
            #[unsafe(no_mangle)]
            fn __quire_spins_held() -> *mut $crate::held::SpinsHeld {
                <$t as $crate::Cpu>::held()
            }
            #[unsafe(no_mangle)]
            fn __quire_mutexes_held() -> *mut $crate::held::MutexesHeld {
                <$t as $crate::Wait>::held()
            }
            #[unsafe(no_mangle)]
            fn __quire_backtrace(into: &mut [usize]) -> usize {
                <$t as $crate::Cpu>::backtrace(into)
            }
            #[unsafe(no_mangle)]
            fn __quire_describe(address: usize, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                <$t as $crate::Cpu>::describe(address, f)
            }
        };
    };
}

#[cfg(not(any(test, loom, shuttle, feature = "std")))]
mod bound {
    unsafe extern "Rust" {
        pub safe fn __quire_preempt_disable();
        pub safe fn __quire_preempt_enable();
        pub safe fn __quire_cpu() -> usize;
        pub safe fn __quire_relax();
        pub safe fn __quire_spun(lock: usize, rank: u8, turns: u32);
        pub safe fn __quire_thread() -> usize;
        pub safe fn __quire_park(deadline: Option<u64>);
        pub safe fn __quire_park_uninterruptibly();
        pub safe fn __quire_unpark(thread: usize);
        pub safe fn __quire_now() -> u64;
        #[cfg(debug_assertions)]
        pub safe fn __quire_uninterrupted(f: &mut dyn FnMut());
        #[cfg(debug_assertions)]
        pub safe fn __quire_spins_held() -> *mut crate::held::SpinsHeld;
        #[cfg(debug_assertions)]
        pub safe fn __quire_mutexes_held() -> *mut crate::held::MutexesHeld;
        #[cfg(debug_assertions)]
        pub safe fn __quire_backtrace(into: &mut [usize]) -> usize;
        #[cfg(debug_assertions)]
        pub safe fn __quire_describe(address: usize, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result;
    }
}

#[cfg(any(test, loom, shuttle, feature = "std"))]
#[path = "hooks_std.rs"]
pub mod threads;
#[cfg(any(test, loom, shuttle, feature = "std"))]
use threads as bound;

/// Proof that the holder stays on one CPU. [`preempt_off`] makes it, and its drop ends it. Not `Send`.
pub struct PreemptOff(core::marker::PhantomData<*mut ()>);

/// Keeps the caller on its CPU until the returned guard is dropped.
#[inline(always)]
pub fn preempt_off() -> PreemptOff {
    bound::__quire_preempt_disable();
    PreemptOff(core::marker::PhantomData)
}

impl PreemptOff {
    /// The number of the CPU that the holder is on.
    #[inline(always)]
    pub fn cpu(&self) -> CpuId {
        bound::__quire_cpu()
    }
}

impl Drop for PreemptOff {
    #[inline(always)]
    fn drop(&mut self) {
        bound::__quire_preempt_enable();
    }
}

/// The CPU that runs the caller. Unless preemption is off, the number may be stale at once.
#[inline(always)]
pub fn current_cpu() -> CpuId {
    bound::__quire_cpu()
}

/// Executes one iteration of a spin loop; see [`Cpu::relax`].
#[inline(always)]
pub fn relax() {
    bound::__quire_relax();
}

/// Reports how long the caller has spun; see [`Cpu::spun`].
#[cold]
pub(crate) fn spun(lock: usize, rank: u8, turns: u32) {
    bound::__quire_spun(lock, rank, turns);
}

/// The calling thread's handle; see [`Wait::current`].
pub fn current_thread() -> ThreadHandle {
    ThreadHandle(bound::__quire_thread())
}

/// Sleeps until unparked or until `deadline`; see [`Wait::park`].
pub fn park(deadline: Option<u64>) {
    crate::rank::assert_may_sleep();
    bound::__quire_park(deadline);
}

/// Sleeps until unparked; see [`Wait::park_uninterruptibly`].
pub fn park_uninterruptibly() {
    crate::rank::assert_may_sleep();
    bound::__quire_park_uninterruptibly();
}

/// Wakes a thread; see [`Wait::unpark`].
pub fn unpark(thread: ThreadHandle) {
    bound::__quire_unpark(thread.0);
}

/// The monotonic clock, in nanoseconds.
pub fn now() -> u64 {
    bound::__quire_now()
}

#[cfg(all(debug_assertions, not(any(test, feature = "std", loom, shuttle))))]
mod checks {
    use super::bound;
    pub(crate) use bound::{
        __quire_backtrace as backtrace, __quire_describe as describe, __quire_mutexes_held as mutexes_held,
        __quire_spins_held as spins_held,
    };

    /// Calls `f` while no other code on this CPU takes locks; see [`Cpu::uninterrupted`](super::Cpu::uninterrupted).
    pub(crate) fn uninterrupted<R>(f: impl FnOnce() -> R) -> R {
        let (mut f, mut out) = (Some(f), None);
        bound::__quire_uninterrupted(&mut || out = f.take().map(|f| f()));
        out.expect("the hook calls its argument")
    }
}
#[cfg(all(debug_assertions, any(test, feature = "std"), not(any(loom, shuttle))))]
mod checks {
    /// Threads of the host have no interrupts.
    pub(crate) fn uninterrupted<R>(f: impl FnOnce() -> R) -> R {
        f()
    }
}
#[cfg(all(debug_assertions, not(any(loom, shuttle))))]
pub(crate) use checks::*;

/// Whether the calling thread unwinds from a panic, and may leave operations half done. Always false in the kernel,
/// where threads do not unwind.
#[inline(always)]
pub fn is_panicking() -> bool {
    #[cfg(any(test, loom, shuttle, feature = "std"))]
    return std::thread::panicking();
    #[cfg(not(any(test, loom, shuttle, feature = "std")))]
    false
}

/// Whether [`thread_tag`] distinguishes threads: in builds with checks where threads of the host stand for CPUs.
pub(crate) const TAGS: bool =
    cfg!(any(debug_assertions, recording)) && cfg!(all(any(test, feature = "std"), not(any(loom, shuttle))));

/// A number of the calling thread, or 0 in builds without checks that use it. Under the model checkers it is 0, because
/// all threads of a model are one thread of the host.
#[inline(always)]
pub(crate) fn thread_tag() -> u64 {
    #[cfg(all(any(debug_assertions, recording), any(test, feature = "std"), not(any(loom, shuttle))))]
    return threads::tag();
    #[cfg(not(all(any(debug_assertions, recording), any(test, feature = "std"), not(any(loom, shuttle)))))]
    0
}
