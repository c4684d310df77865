//! Who touches which memory: the *recording* personality (`--cfg recording`).
//!
//! # What it is
//! The same code, built so that every access to memory that CPUs share is written down: the CPU, whether it read, wrote or
//! did both in one step, the address, the size, and the line of source that asked for it. The atomics are wrappers that are
//! nothing but what they wrap (`repr(transparent)`), and what is recorded lies outside of them, in buffers of the host: so
//! sizes, alignments and offsets of all shared types are those of the native build, and a conflict that shows here is one
//! that the native build has. `assert_layout!` holds both builds to one list of numbers.
//!
//! # How to use it
//! `scope` records what the calling thread does. One thread can play several CPUs one after the other (`as_cpu`): what a
//! line is shared by does not depend on timing, so records are exact and repeatable. Several threads can share a record
//! (`current`, `Recorder::enter`). The `Record` then answers: `Record::lock_takes`, `Record::lines`,
//! `Record::conflicts`; and `Coherence` says how many cache lines had to move.
//!
//! ```text
//! let (_, record) = record::scope(|| {
//!     record::as_cpu(0, || first_operation());
//!     record::as_cpu(1, || second_operation());
//! });
//! assert!(record.conflicts().is_empty(), "{record}");
//! ```
//!
//! # What is recorded
//! - Atomics and fences, by `crate::atomic`; locks taken and released, and accesses through their guards, by
//!   `SpinLock` and `Mutex`. A guarded value larger than a line is recorded as its first
//!   line; code that goes further says so (`read`, `wrote`).
//! - Plain memory behind a `Shared` cell, and whatever says so itself with `read` and `wrote`: fixed
//!   fields of shared objects, links of free lists.
//! - Not recorded: what programs have in their pages, stacks, and what the simulated hardware does.
//!
//! - What says nothing of itself is missed: so a run can be watched from outside, by its loads and stores, and held against its
//!   record. `Mark` tells the watcher what it needs.
//!
//! # Labels
//! Memory has an owner's name where the owner said so: `own` and `own_array`, `disown`. Without `--cfg recording` these
//! functions, `read` and `wrote` are empty and cost nothing.

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
pub use labels::{Place, Region, owned};
#[cfg(recording)]
pub use marks::{Mark, base as marks};
#[cfg(recording)]
pub use recorder::{Access, Kind, Recorder, current, scope, unrecorded};
#[cfg(recording)]
pub use report::{Conflict, LINE, Record};

#[cfg(any(test, feature = "std"))]
pub use crate::hooks::threads::as_cpu;

use crate::rank::Rank;

/// Whether this build records.
pub const ENABLED: bool = cfg!(recording);

/// Says that the `bytes` at `at` are one object called `label`. What was said before of any part of that memory is forgotten.
#[inline(always)]
pub fn own(at: *const u8, bytes: usize, label: &'static str) {
    own_array(at, bytes, bytes, label);
}

/// Says that the `bytes` at `at` are objects of `stride` bytes each, called `label`.
#[inline(always)]
pub fn own_array(at: *const u8, bytes: usize, stride: usize, label: &'static str) {
    #[cfg(recording)]
    apart(|| labels::own(at.addr(), bytes, stride, label));
    #[cfg(not(recording))]
    let _recording_only = (at, bytes, stride, label);
}

/// Forgets what was said of the memory that begins at `at`.
#[inline(always)]
pub fn disown(at: *const u8) {
    #[cfg(recording)]
    apart(|| labels::disown(at.addr()));
    #[cfg(not(recording))]
    let _recording_only = at;
}

/// Does `f`, whose loads and stores are not the system's own: those of simulated hardware, and of what checks the run. Tells it to
/// whoever watches the program from outside; what `f` says of itself is recorded all the same.
#[inline(always)]
pub fn apart<R>(f: impl FnOnce() -> R) -> R {
    #[cfg(recording)]
    let _outside = marks::Outside::new();
    f()
}

/// Says that the caller reads the plain memory at `at`.
#[inline(always)]
#[cfg_attr(recording, track_caller)]
pub fn read<T>(at: *const T) {
    #[cfg(recording)]
    recorder::note(Kind::Read, at.addr(), size_of::<T>());
    #[cfg(not(recording))]
    let _recording_only = at;
}

/// Says that the caller writes the plain memory at `at`.
#[inline(always)]
#[cfg_attr(recording, track_caller)]
pub fn wrote<T>(at: *const T) {
    #[cfg(recording)]
    recorder::note(Kind::Write, at.addr(), size_of::<T>());
    #[cfg(not(recording))]
    let _recording_only = at;
}

/// Says that the caller reads (or writes) a value through the guard of its lock: of a value larger than a line, the first.
#[inline(always)]
#[cfg_attr(recording, track_caller)]
pub(crate) fn guarded<T: ?Sized>(value: &T, write: bool) {
    #[cfg(recording)]
    {
        let (at, size) = (core::ptr::from_ref(value).addr(), size_of_val(value));
        let rest = LINE - at % LINE;
        recorder::note(if write { Kind::Write } else { Kind::Read }, at, if size > LINE { rest } else { size });
    }
    #[cfg(not(recording))]
    let _recording_only = (value, write);
}

/// Says that the lock at `lock` was taken; `None`: one that has no place in the order, such as those whose waiters sleep.
#[inline(always)]
#[cfg_attr(recording, track_caller)]
pub fn taken<T>(lock: &T, rank: Option<Rank>) {
    #[cfg(recording)]
    recorder::note(Kind::Take(rank), core::ptr::from_ref(lock).addr(), 0);
    #[cfg(not(recording))]
    let _recording_only = (lock, rank);
}

/// Says that the lock at `lock` was released.
#[inline(always)]
#[cfg_attr(recording, track_caller)]
pub fn released<T>(lock: &T, rank: Option<Rank>) {
    #[cfg(recording)]
    recorder::note(Kind::Release(rank), core::ptr::from_ref(lock).addr(), 0);
    #[cfg(not(recording))]
    let _recording_only = (lock, rank);
}

/// Holds a type to its size, alignment and field offsets, in bytes: one list of numbers for the native and the recording
/// build. The checkers' atomics are larger, so that their builds are left out.
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
        // Arrays, so that the compiler's message shows the number that it found.
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
