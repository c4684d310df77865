//! Semaphore arrays.
//!
//! A call changes several semaphores of an array at once, or none. A call that has to wait leaves its operations in
//! the array. Each change of a semaphore tries the operations that wait for it, oldest first.
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

/// The largest value of a semaphore, and of an adjustment.
pub const VALUE_MAX: i32 = 32767;

/// An operation on one semaphore.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Operation {
    /// Its number in the array.
    pub number: u16,
    /// Added to its value, which may not become negative; 0 waits until the value is 0.
    pub change: i16,
    /// The call fails where it would have to wait.
    pub no_wait: bool,
    /// The change is reverted when the process ends.
    pub undo: bool,
}

/// Limits on arrays.
pub struct Limits {
    /// Semaphores of an array.
    pub of_array: AtomicUsize,
    /// Semaphores of all arrays.
    pub of_all: AtomicUsize,
    /// Operations of a call.
    pub operations: AtomicUsize,
    /// Arrays.
    pub count: AtomicUsize,
}

/// Semaphores that an array takes from the limit on all.
pub(crate) struct Taken {
    all: Arc<AtomicUsize>,
    n: usize,
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.all.fetch_sub(self.n, Ordering::Relaxed);
    }
}

/// All arrays.
pub struct Arrays<H: Host> {
    host: H,
    registry: Registry<Array<H>>,
    limits: Limits,
    semaphores: Arc<AtomicUsize>,
    /// Numbers lists of undos.
    lists: AtomicU64,
}

impl<H: Host> Arrays<H> {
    /// None.
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

    /// The limits.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The ids.
    pub fn registry(&self) -> &Registry<Array<H>> {
        &self.registry
    }

    /// Semaphores of all arrays.
    pub fn semaphores(&self) -> usize {
        self.semaphores.load(Ordering::Relaxed)
    }

    /// Opens the array with `key`, of at least `n` semaphores, and returns its id.
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

    /// The array `id`.
    pub fn find(&self, id: i32) -> Result<Arc<Array<H>>, Error> {
        self.registry.find(id, self.host.epoch())
    }

    /// The array with the index of `id`.
    pub fn at(&self, id: i32) -> Result<Arc<Array<H>>, Error> {
        self.registry.at(id, self.host.epoch())
    }

    /// Removes an array. Its sleepers are woken.
    pub fn remove(&self, caller: &Caller<'_>, id: i32) -> Result<(), Error> {
        let array = self.find(id)?;
        array.remove(caller)?;
        self.registry.forget_key(&array);
        self.registry.forget_id(&array, self.host.epoch());
        Ok(())
    }

    /// A list for the undos of a process, with one thread.
    pub fn undos(&self) -> Result<Undos<H>, Error> {
        Undos::new(self.lists.fetch_add(1, Ordering::Relaxed) + 1)
    }
}
