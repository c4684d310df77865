//! Scopes, and the accesses that are recorded in them.

use super::labels::{self, LabelledAddress};
use super::marks::Outside;
use super::report::Record;
use crate::hooks::{CpuId, current_cpu};
use crate::rank::Rank;
use std::cell::RefCell;
use std::panic::Location;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The kind of an access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AccessKind {
    /// Memory was read.
    Read,
    /// Memory was written.
    Write,
    /// Memory was read and written in one atomic step. A failed step counts too, because the hardware acquires the line
    /// for it.
    ReadModifyWrite,
    /// A fence between accesses; it touches no memory.
    Fence,
    /// The lock at the address was acquired. (The accesses that acquired it are recorded too.) `None` means a sleeping
    /// lock.
    Take(Option<Rank>),
    /// The lock at the address was released.
    Release(Option<Rank>),
}

impl AccessKind {
    /// Whether the access changes memory, or acquires the line as if it changed memory.
    pub fn writes(self) -> bool {
        matches!(self, AccessKind::Write | AccessKind::ReadModifyWrite)
    }
    /// Whether the access touches memory at all.
    pub fn touches(self) -> bool {
        matches!(self, AccessKind::Read | AccessKind::Write | AccessKind::ReadModifyWrite)
    }
}

/// One access.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    /// The CPU that the thread was at that moment.
    pub cpu: CpuId,
    /// The kind of access.
    pub kind: AccessKind,
    /// The address of the memory or the lock; 0 for a fence.
    pub address: usize,
    /// The size in bytes; 0 if no memory is touched.
    pub size: usize,
    /// The source line of the access.
    pub site: &'static Location<'static>,
    /// The object that owned the memory at that moment, if the memory was labelled.
    pub place: Option<LabelledAddress>,
}

/// A record in progress. Threads write into the recorder that they have entered.
#[derive(Clone, Default)]
pub struct Recorder {
    accesses: Arc<Mutex<Vec<Access>>>,
}

std::thread_local! {
    static CURRENT: RefCell<Option<Recorder>> = const { RefCell::new(None) };
}

/// Restores the thread's former recorder, also where the recorded code panics.
struct Entered(Option<Recorder>);

impl Drop for Entered {
    fn drop(&mut self) {
        let former = self.0.take();
        CURRENT.with(|c| c.replace(former));
    }
}

impl Recorder {
    fn lock(&self) -> MutexGuard<'_, Vec<Access>> {
        self.accesses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the calling thread's accesses in `f` too. Accesses of several threads are in the order in which they
    /// were recorded.
    pub fn enter<R>(&self, f: impl FnOnce() -> R) -> R {
        let _entered = Entered(CURRENT.with(|c| c.replace(Some(self.clone()))));
        f()
    }
}

/// Records the calling thread's accesses in `f`. Scopes nest: the outer record also has the accesses of the inner
/// scope.
pub fn scope<R>(f: impl FnOnce() -> R) -> (R, Record) {
    let recorder = Recorder::default();
    let value = recorder.enter(f);
    let accesses = std::mem::take(&mut *recorder.lock());
    if let Some(outer) = current() {
        outer.lock().extend_from_slice(&accesses);
    }
    (value, Record::new(accesses))
}

/// The recorder that the calling thread writes into, or `None`. The thread passes it to threads that it starts.
pub fn current() -> Option<Recorder> {
    CURRENT.with(|c| c.borrow().clone())
}

/// Runs `f` without recording. For preparations and checks inside a scope.
pub fn unrecorded<R>(f: impl FnOnce() -> R) -> R {
    let _outside = Outside::new();
    let _entered = Entered(CURRENT.with(RefCell::take));
    f()
}

/// Records an access.
#[track_caller]
pub(super) fn note(kind: AccessKind, address: usize, size: usize) {
    let site = Location::caller();
    CURRENT.with(|c| {
        if let Some(recorder) = &*c.borrow() {
            let _outside = Outside::new();
            let place = if address == 0 { None } else { labels::find(address) };
            recorder.lock().push(Access { cpu: current_cpu(), kind, address, size, site, place });
        }
    });
}
