//! Scopes, and the accesses that are written down in them.

use super::labels::{self, Place};
use super::marks::Outside;
use super::report::Record;
use crate::hooks::{CpuId, current_cpu};
use crate::rank::Rank;
use std::cell::RefCell;
use std::panic::Location;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What was done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Memory was read.
    Read,
    /// Memory was written.
    Write,
    /// Memory was read and written in one atomic step; also one that failed, since the hardware takes the line for it.
    ReadModifyWrite,
    /// A fence between accesses; it touches no memory.
    Fence,
    /// The lock at the address was taken (the accesses that took it are recorded beside). `None`: a sleeping lock.
    Take(Option<Rank>),
    /// The lock at the address was released.
    Release(Option<Rank>),
}

impl Kind {
    /// Whether it changes memory, or takes the line as if it would.
    pub fn writes(self) -> bool {
        matches!(self, Kind::Write | Kind::ReadModifyWrite)
    }
    /// Whether it touches memory at all.
    pub fn touches(self) -> bool {
        matches!(self, Kind::Read | Kind::Write | Kind::ReadModifyWrite)
    }
}

/// One access.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    /// The CPU that the thread was.
    pub cpu: CpuId,
    /// What was done.
    pub kind: Kind,
    /// Where; 0 for a fence.
    pub address: usize,
    /// Bytes; 0 where no memory is touched.
    pub size: usize,
    /// Which line of source asked for it.
    pub site: &'static Location<'static>,
    /// Whose memory it was at that moment, where somebody had said so.
    pub place: Option<Place>,
}

/// A record that is being made. Threads write into the one that they have entered.
#[derive(Clone, Default)]
pub struct Recorder {
    accesses: Arc<Mutex<Vec<Access>>>,
}

std::thread_local! {
    static CURRENT: RefCell<Option<Recorder>> = const { RefCell::new(None) };
}

/// Gives the thread its former recorder back, also where what was recorded panics.
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

    /// Records what the calling thread does in `f`, too. The order of accesses of several threads is that in which they were
    /// written down.
    pub fn enter<R>(&self, f: impl FnOnce() -> R) -> R {
        let _entered = Entered(CURRENT.with(|c| c.replace(Some(self.clone()))));
        f()
    }
}

/// Records what the calling thread does in `f`. Scopes nest: the outer one has the inner one's accesses too.
pub fn scope<R>(f: impl FnOnce() -> R) -> (R, Record) {
    let recorder = Recorder::default();
    let value = recorder.enter(f);
    let accesses = std::mem::take(&mut *recorder.lock());
    if let Some(outer) = current() {
        outer.lock().extend_from_slice(&accesses);
    }
    (value, Record::new(accesses))
}

/// The recorder that the calling thread writes into: for threads that it starts.
pub fn current() -> Option<Recorder> {
    CURRENT.with(|c| c.borrow().clone())
}

/// Does not record what `f` does: preparations and checks inside a scope.
pub fn unrecorded<R>(f: impl FnOnce() -> R) -> R {
    let _outside = Outside::new();
    let _entered = Entered(CURRENT.with(RefCell::take));
    f()
}

/// Writes an access down.
#[track_caller]
pub(super) fn note(kind: Kind, address: usize, size: usize) {
    let site = Location::caller();
    CURRENT.with(|c| {
        if let Some(recorder) = &*c.borrow() {
            let _outside = Outside::new();
            let place = if address == 0 { None } else { labels::find(address) };
            recorder.lock().push(Access { cpu: current_cpu(), kind, address, size, site, place });
        }
    });
}
