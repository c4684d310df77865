//! Semaphore arrays.
//!
//! A call performs all its operations on an array's semaphores at once, or none of them. A call that has to wait stores
//! its operations in the array. A call that changes a semaphore tries the stored calls that wait for this semaphore,
//! oldest first.
//!
//! [`mod@array`] has an array and its calls, [`sleepers`] the lists of waiting calls. [`undo`] reverts the changes of
//! ended processes. [`Arrays`] has the ids and the limits.

mod array;
mod sleepers;
mod state;
mod undo;

pub use array::{Array, Status, Wait};
pub use undo::Undos;

use crate::error::Error;
use crate::host::Host;
use crate::owner::Caller;
use crate::registry::{Open, Registry};
use quire_heap::Arc;
use quire_sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The largest value of a semaphore, and the largest undo adjustment.
pub const VALUE_MAX: i32 = 32767;

/// An operation on one semaphore.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Operation {
    /// The number of the semaphore in its array.
    pub number: u16,
    /// The number that is added to the value, which may not become negative. 0 waits until the value is 0.
    pub change: i16,
    /// Whether the call fails if this operation would have to wait.
    pub no_wait: bool,
    /// Whether the change is reverted when the process ends (`SEM_UNDO`).
    pub undo: bool,
}

/// The limits on semaphore arrays.
pub struct Limits {
    /// The most semaphores of an array.
    pub of_array: AtomicUsize,
    /// The most semaphores of all arrays together.
    pub of_all: AtomicUsize,
    /// The most operations of a call.
    pub operations: AtomicUsize,
    /// The most arrays.
    pub count: AtomicUsize,
}

/// The semaphores of one array, counted against the limit on all arrays.
pub(crate) struct Taken {
    all: Arc<AtomicUsize>,
    n: usize,
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.all.fetch_sub(self.n, Ordering::Relaxed);
    }
}

/// All semaphore arrays of the system.
pub struct Arrays<H: Host> {
    host: H,
    registry: Registry<Array<H>>,
    limits: Limits,
    semaphores: Arc<AtomicUsize>,
    /// The number of the last list of undos.
    lists: AtomicU64,
}

impl<H: Host> Arrays<H> {
    /// A system without semaphore arrays.
    pub fn new(host: H) -> Result<Self, Error> {
        let limits = Limits {
            of_array: AtomicUsize::new(32000),
            of_all: AtomicUsize::new(32000 * 32000),
            operations: AtomicUsize::new(500),
            count: AtomicUsize::new(32000),
        };
        let semaphores = Arc::try_new(AtomicUsize::new(0))?;
        Ok(Arrays { host, registry: Registry::new()?, limits, semaphores, lists: AtomicU64::new(0) })
    }

    /// The limits, which callers may change.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The registry of ids and keys.
    pub fn registry(&self) -> &Registry<Array<H>> {
        &self.registry
    }

    /// The number of semaphores in all arrays.
    pub fn semaphores(&self) -> usize {
        self.semaphores.load(Ordering::Relaxed)
    }

    /// Opens or creates the array with `key` and at least `n` semaphores, and returns its id.
    pub fn open(&self, caller: &Caller<'_>, key: i32, n: usize, how: Open) -> Result<i32, Error> {
        if n > self.limits.of_array.load(Ordering::Relaxed) {
            return Err(Error::Invalid);
        }
        let there =
            |array: &Array<H>| if n > array.len() { Err(Error::Invalid) } else { array.allow(caller, how.mode) };
        let may = || if n == 0 { Err(Error::Invalid) } else { self.take(n) };
        let limit = self.limits.count.load(Ordering::Relaxed);
        self.registry.open(key, how, limit, self.host.epoch(), there, may, |name, taken| {
            Ok(Arc::try_new(Array::new(&self.host, name, caller, how.mode, taken)?)?)
        })
    }

    fn take(&self, n: usize) -> Result<Taken, Error> {
        let most = self.limits.of_all.load(Ordering::Relaxed);
        let more = |all: usize| all.checked_add(n).filter(|all| *all <= most);
        self.semaphores.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).map_err(|_| Error::NoSpace)?;
        Ok(Taken { all: self.semaphores.clone(), n })
    }

    /// The array with the id `id`.
    pub fn find(&self, id: i32) -> Result<Arc<Array<H>>, Error> {
        self.registry.find(id, self.host.epoch())
    }

    /// The array at the index of `id`. The sequence number in `id` is ignored.
    pub fn at(&self, id: i32) -> Result<Arc<Array<H>>, Error> {
        self.registry.at(id, self.host.epoch())
    }

    /// Removes an array, and wakes its sleepers.
    pub fn remove(&self, caller: &Caller<'_>, id: i32) -> Result<(), Error> {
        let array = self.find(id)?;
        array.remove(caller)?;
        self.registry.forget_key(&array);
        self.registry.forget_id(&array, self.host.epoch());
        Ok(())
    }

    /// A list for the undos of a process with one thread.
    pub fn undos(&self) -> Result<Undos<H>, Error> {
        Undos::new(self.lists.fetch_add(1, Ordering::Relaxed) + 1)
    }
}
