//! A semaphore array, and the calls on it.

use super::sleepers::Sleeper;
use super::state::{State, Stop};
use super::undo::Undos;
use super::{Operation, Taken, VALUE_MAX};
use crate::error::Error;
use crate::host::Host;
use crate::mutant::{Mutant, mutant};
use crate::owner::{Caller, Change, Owner, READ, WRITE};
use crate::registry::{Name, Named};
use quire_heap::{Arc, Vec};
use quire_sync::atomic::{AtomicBool, Ordering};
use quire_sync::{Mutex, WaitOutcome};

/// The bytes of kernel memory of an array, in addition to its semaphores.
const OVERHEAD: u64 = 512;

/// A semaphore array.
pub struct Array<H: Host> {
    host: H,
    name: Name,
    len: usize,
    /// Whether the array was removed. A writer holds the state's lock. A reader needs no lock where an old value does
    /// no harm.
    removed: AtomicBool,
    state: Mutex<State<H::Charge>>,
    _charge: H::Charge,
}

impl<H: Host> Named for Array<H> {
    fn name(&self) -> &Name {
        &self.name
    }
}

/// The values of an array that `semctl` reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Status {
    /// The key.
    pub key: i32,
    /// The id.
    pub id: i32,
    /// The sequence number in the id.
    pub sequence: u32,
    /// The owner.
    pub owner: Owner,
    /// The time of the last operation, in seconds since 1970.
    pub operated: i64,
    /// The time of the last change by `semctl`, in seconds since 1970.
    pub changed: i64,
    /// The number of semaphores.
    pub len: usize,
}

/// The conditions under which a call waits.
#[derive(Clone, Copy)]
pub struct Wait<'a> {
    /// The deadline in nanoseconds since boot. `None`: no limit.
    pub deadline: Option<u64>,
    /// Whether a signal should end the wait.
    pub interrupted: &'a dyn Fn() -> bool,
}

impl<H: Host> Array<H> {
    pub(super) fn new(host: &H, name: Name, caller: &Caller<'_>, mode: u32, taken: Taken) -> Result<Self, Error> {
        let len = taken.n;
        let charge = |bytes| host.charge(bytes).ok_or(Error::OutOfMemory);
        let (overhead, semaphores) = (charge(OVERHEAD)?, charge(State::<H::Charge>::bytes(len))?);
        let state = Mutex::new(State::new(Owner::new(caller, mode), taken, semaphores, host.seconds())?);
        let removed = AtomicBool::new(false);
        Ok(Array { host: host.clone(), name, len, removed, state, _charge: overhead })
    }

    /// The number of semaphores.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Always false, because an array has at least one semaphore.
    pub fn is_empty(&self) -> bool {
        false
    }

    pub(super) fn is_removed(&self) -> bool {
        self.removed.load(Ordering::Relaxed)
    }

    /// Checks that `caller` has the rights in `wanted`.
    pub fn allow(&self, caller: &Caller<'_>, wanted: u32) -> Result<(), Error> {
        self.state.lock().owner.allow(caller, wanted)
    }

    /// Calls `use_it` with the state, if `caller` has the rights in `wanted` and the array was not removed.
    fn allowed<R>(
        &self,
        caller: &Caller<'_>,
        wanted: u32,
        use_it: impl FnOnce(&mut State<H::Charge>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let mut state = self.state.lock();
        state.owner.allow(caller, wanted)?;
        if state.removed { Err(Error::Removed) } else { use_it(&mut state) }
    }

    fn number(&self, number: i32) -> Result<usize, Error> {
        usize::try_from(number).ok().filter(|number| *number < self.len).ok_or(Error::Invalid)
    }

    /// The values that `semctl` reports. If there is a `caller`, its right to read is checked.
    pub fn status(&self, caller: Option<&Caller<'_>>) -> Result<Status, Error> {
        let state = self.state.lock();
        if let Some(caller) = caller {
            state.owner.allow(caller, READ)?;
        }
        if state.removed {
            return Err(Error::Removed);
        }
        let (owner, operated, changed) = (state.owner, state.operated, state.changed);
        let (key, id, sequence) = (self.name.key(), self.name.id(), self.name.sequence());
        Ok(Status { key, id, sequence, owner, operated, changed, len: self.len })
    }

    /// The value of semaphore `number`.
    pub fn value(&self, caller: &Caller<'_>, number: i32) -> Result<u32, Error> {
        self.allowed(caller, READ, |state| Ok(state.value(self.number(number)?) as u32))
    }

    /// The id of the process that changed semaphore `number` last.
    pub fn pid(&self, caller: &Caller<'_>, number: i32) -> Result<u32, Error> {
        self.allowed(caller, READ, |state| Ok(state.pid(self.number(number)?)))
    }

    /// The number of calls that wait until semaphore `number` is larger, or until it is 0 (`for_zero`).
    pub fn waiting(&self, caller: &Caller<'_>, number: i32, for_zero: bool) -> Result<usize, Error> {
        self.allowed(caller, READ, |state| Ok(state.waiting(self.number(number)?, for_zero)))
    }

    /// The values of all semaphores.
    pub fn values(&self, caller: &Caller<'_>) -> Result<Vec<u16>, Error> {
        self.allow(caller, READ)?;
        let mut values = Vec::try_with_capacity(self.len)?;
        self.allowed(caller, READ, |state| {
            (0..self.len).for_each(|number| values.push_reserved(state.value(number) as u16));
            Ok(())
        })?;
        Ok(values)
    }

    /// Sets the value of a semaphore. All undo adjustments of this semaphore are cleared, so no process reverts its
    /// earlier changes of it.
    pub fn set(&self, caller: &Caller<'_>, number: i32, value: i32) -> Result<(), Error> {
        if !(0..=VALUE_MAX).contains(&value) {
            return Err(Error::Range);
        }
        let number = self.number(number)?;
        self.allowed(caller, WRITE, |state| {
            state.set(number, value, self.host.pid());
            state.changed = self.host.seconds();
            state.run();
            Ok(())
        })
    }

    /// Sets the values of all semaphores. `values` has one value for each semaphore.
    pub fn set_all(&self, caller: &Caller<'_>, values: &[u16]) -> Result<(), Error> {
        if values.iter().any(|value| i32::from(*value) > VALUE_MAX) {
            return Err(Error::Range);
        }
        self.allowed(caller, WRITE, |state| {
            for (number, value) in values.iter().enumerate().take(self.len) {
                state.set(number, i32::from(*value), self.host.pid());
            }
            state.changed = self.host.seconds();
            state.run();
            Ok(())
        })
    }

    /// Changes the owner and the mode.
    pub fn change(&self, caller: &Caller<'_>, to: Change) -> Result<(), Error> {
        let mut state = self.state.lock();
        state.owner.allow_change(caller)?;
        if state.removed {
            return Err(Error::Removed);
        }
        state.owner.change(to)?;
        state.changed = self.host.seconds();
        Ok(())
    }

    /// Marks the array as removed, and ends all waiting calls.
    pub(super) fn remove(&self, caller: &Caller<'_>) -> Result<(), Error> {
        let mut state = self.state.lock();
        state.owner.allow_change(caller)?;
        if state.removed {
            return Err(Error::Removed);
        }
        self.removed.store(true, Ordering::Relaxed);
        let given_back = state.remove();
        drop(state);
        drop(given_back);
        Ok(())
    }

    /// Performs all operations, or none of them. Waits if an operation has to wait.
    pub fn operate(
        this: &Arc<Self>,
        caller: &Caller<'_>,
        operations: Vec<Operation>,
        undos: Option<&Undos<H>>,
        wait: &Wait<'_>,
    ) -> Result<(), Error> {
        let undos = undos.map(Undos::list).filter(|_| operations.iter().any(|o| o.undo));
        if let Some(undos) = undos {
            undos.prepare(this)?;
        }
        if operations.iter().any(|o| usize::from(o.number) >= this.len) {
            return Err(Error::TooLarge);
        }
        let wanted = if operations.iter().any(|o| o.change != 0) { WRITE } else { READ };
        let (pid, undo) = (this.host.pid(), undos.map(|undos| undos.number()));
        let begun = this.allowed(caller, wanted, |state| match state.perform(&operations, undo, pid) {
            Ok(()) => {
                state.operated = this.host.seconds();
                state.run();
                Ok(None)
            }
            Err(Stop::Range) => Err(Error::Range),
            Err(Stop::At(blocking)) if operations[blocking].no_wait => Err(Error::WouldBlock),
            Err(Stop::At(blocking)) => {
                let sleeper = Arc::try_new(Sleeper::new(operations, pid, undo))?;
                let place = state.sleep(sleeper.clone(), blocking)?;
                Ok(Some((sleeper, place)))
            }
        })?;
        let Some((sleeper, place)) = begun else { return Ok(()) };
        let waited = sleeper.queue.wait_until(wait.deadline, wait.interrupted, || sleeper.outcome());
        waited.unwrap_or_else(|why| {
            let mut state = this.state.lock();
            // A waker may have stored the result before this thread acquired the lock. The result then takes precedence
            // over the signal or the deadline.
            if !mutant(Mutant::ResultOfWakerIgnored)
                && let Some(outcome) = sleeper.outcome()
            {
                return outcome;
            }
            let left = state.take_out(place);
            drop(state);
            drop(left);
            Err(if why == WaitOutcome::Interrupted { Error::Interrupted } else { Error::WouldBlock })
        })
    }

    /// Calls `use_it` with the locked state, for undos.
    pub(super) fn with<R>(&self, use_it: impl FnOnce(&mut State<H::Charge>) -> R) -> R {
        use_it(&mut self.state.lock())
    }

    pub(super) fn host(&self) -> &H {
        &self.host
    }
}
