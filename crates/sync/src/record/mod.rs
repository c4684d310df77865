//! The *recording* personality (`--cfg recording`): which CPU accesses which memory.
//!
//! # What it is
//! The recording build is the same code, built to record every access to memory that CPUs share. A record has the CPU,
//! the kind (read, write, or both in one step), the address, the size, and the source line. The atomics are transparent
//! wrappers (`repr(transparent)`), and records are stored in separate buffers of the host. So all shared types have the
//! sizes, alignments and offsets of the native build, and the native build has each conflict that a record shows.
//! `assert_layout!` holds both builds to one list of numbers.
//!
//! # How to use it
//! `scope` records the calling thread's accesses. One thread can play several CPUs one after the other (`as_cpu`). The
//! sharing of a line does not depend on timing, so records are exact and repeatable. Several threads can share a record
//! (`current`, `Recorder::enter`). The `Record` then has `Record::lock_takes`, `Record::lines` and `Record::conflicts`.
//! `Coherence` counts the cache lines that had to move.
//!
//! ```text
//! let (_, record) = record::scope(|| {
//!     record::as_cpu(0, || first_operation());
//!     record::as_cpu(1, || second_operation());
//! });
//! assert!(record.conflicts().is_empty(), "{record}");
//! ```
//!
//! # Recorded accesses
//! - Atomics and fences, by `crate::atomic`; acquired and released locks, and accesses through their guards, by
//!   `SpinLock` and `Mutex`. Of a guarded value larger than a line, only the first line is recorded; code that accesses
//!   more calls `read` and `wrote`.
//! - Plain memory behind a `Shared` cell, and memory that the code reports with `read` and `wrote`: fixed fields of
//!   shared objects, links of free lists.
//! - Not recorded: programs' pages, stacks, and accesses of the simulated hardware.
//!
//! - Missing: a plain access that no code reports. To find such accesses, a tool watches all loads and stores from
//!   outside and compares them with the record. The marks (`Mark`) give the tool the events that it needs for that.
//!
//! # Labels
//! Memory has its owner's name where the owner set one with `own` or `own_array`; `disown` removes it. Without `--cfg
//! recording`, these functions and `read` and `wrote` are empty and cost nothing.

#[cfg(recording)]
pub(crate) mod atomic;
#[cfg(recording)]
mod coherence;
#[cfg(recording)]
mod labels;
#[cfg(recording)]
mod marks;
#[cfg(recording)]
mod recorder;
#[cfg(recording)]
mod report;
#[cfg(all(test, recording))]
mod tests;

#[cfg(recording)]
pub use coherence::{Coherence, Traffic};
#[cfg(recording)]
pub use labels::{LabelledAddress, Region, owned};
#[cfg(recording)]
pub use marks::{Mark, base as marks};
#[cfg(recording)]
pub use recorder::{Access, AccessKind, Recorder, current, scope, unrecorded};
#[cfg(recording)]
pub use report::{Conflict, LINE, Record};

#[cfg(any(test, loom, shuttle, feature = "unchecked-cpus"))]
pub use crate::hooks::threads::as_cpu;

use crate::rank::Rank;

/// Whether this build records.
pub const ENABLED: bool = cfg!(recording);

/// Labels the `bytes` bytes at `at` as one object with the name `label`. Earlier labels of any part of that memory are
/// dropped.
#[inline(always)]
pub fn own(at: *const u8, bytes: usize, label: &'static str) {
    own_array(at, bytes, bytes, label);
}

/// Labels the `bytes` bytes at `at` as objects with the name `label`, of `stride` bytes each.
#[inline(always)]
pub fn own_array(at: *const u8, bytes: usize, stride: usize, label: &'static str) {
    #[cfg(recording)]
    apart(|| labels::own(at.addr(), bytes, stride, label));
    #[cfg(not(recording))]
    let _recording_only = (at, bytes, stride, label);
}

/// Drops the label of the memory that begins at `at`.
#[inline(always)]
pub fn disown(at: *const u8) {
    #[cfg(recording)]
    apart(|| labels::disown(at.addr()));
    #[cfg(not(recording))]
    let _recording_only = at;
}

/// Runs `f`, whose loads and stores belong to simulated hardware or to checks of the run, and not to the system. A tool
/// that watches the program from outside sees a mark. Accesses that `f` reports are still recorded.
#[inline(always)]
pub fn apart<R>(f: impl FnOnce() -> R) -> R {
    #[cfg(recording)]
    let _outside = marks::Outside::new();
    f()
}

/// Records that the caller reads the plain memory at `at`.
#[inline(always)]
#[cfg_attr(recording, track_caller)]
pub fn read<T>(at: *const T) {
    #[cfg(recording)]
    recorder::note(AccessKind::Read, at.addr(), size_of::<T>());
    #[cfg(not(recording))]
    let _recording_only = at;
}

/// Records that the caller writes the plain memory at `at`.
#[inline(always)]
#[cfg_attr(recording, track_caller)]
pub fn wrote<T>(at: *const T) {
    #[cfg(recording)]
    recorder::note(AccessKind::Write, at.addr(), size_of::<T>());
    #[cfg(not(recording))]
    let _recording_only = at;
}

/// Records that the caller reads (or writes) a value through the guard of its lock. If the value is larger than a line,
/// only its first line is recorded.
#[inline(always)]
#[cfg_attr(recording, track_caller)]
pub(crate) fn guarded<T: ?Sized>(value: &T, write: bool) {
    #[cfg(recording)]
    {
        let (at, size) = (core::ptr::from_ref(value).addr(), size_of_val(value));
        let rest = LINE - at % LINE;
        recorder::note(
            if write { AccessKind::Write } else { AccessKind::Read },
            at,
            if size > LINE { rest } else { size },
        );
    }
    #[cfg(not(recording))]
    let _recording_only = (value, write);
}

/// Records that the lock at `lock` was taken. `None`: a lock without a rank, such as a sleeping lock.
#[inline(always)]
#[cfg_attr(recording, track_caller)]
pub fn taken<T>(lock: &T, rank: Option<Rank>) {
    #[cfg(recording)]
    recorder::note(AccessKind::Take(rank), core::ptr::from_ref(lock).addr(), 0);
    #[cfg(not(recording))]
    let _recording_only = (lock, rank);
}

/// Records that the lock at `lock` was released.
#[inline(always)]
#[cfg_attr(recording, track_caller)]
pub fn released<T>(lock: &T, rank: Option<Rank>) {
    #[cfg(recording)]
    recorder::note(AccessKind::Release(rank), core::ptr::from_ref(lock).addr(), 0);
    #[cfg(not(recording))]
    let _recording_only = (lock, rank);
}

/// Asserts a type's size, alignment and field offsets in bytes, so that the native and the recording build have the
/// same layout. Builds for the checkers do not assert them, because the checkers' atomics are larger.
///
/// ```
/// #[repr(C)]
/// struct Pair {
///     a: u64,
///     b: quire_sync::atomic::AtomicU32,
/// }
/// quire_sync::assert_layout!(Pair { size: 16, align: 8, a: 0, b: 8 });
/// ```
#[macro_export]
macro_rules! assert_layout {
    ($t:ty { size: $size:literal, align: $align:literal $(, $field:ident: $offset:literal)* $(,)? }) => {
        // These are arrays, so that the compiler's error shows the actual number.
        #[cfg(not(any(loom, shuttle)))]
        const _: [(); $size] = [(); ::core::mem::size_of::<$t>()];
        #[cfg(not(any(loom, shuttle)))]
        const _: [(); $align] = [(); ::core::mem::align_of::<$t>()];
        $(
            #[cfg(not(any(loom, shuttle)))]
            const _: [(); $offset] = [(); ::core::mem::offset_of!($t, $field)];
        )*
    };
}
