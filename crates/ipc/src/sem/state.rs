//! The values of a semaphore array, and the calls that wait for other values.

use super::sleepers::{List, On, Place, Places, Sleeper};
use super::{Operation, Taken, VALUE_MAX};
use crate::error::Error;
use crate::owner::Owner;
use quire_heap::{Arc, OutOfMemory, Vec};

/// The number of semaphores in one allocation of about a page.
const CHUNK: usize = 128;
/// The values of `changed` for the last semaphore on the list of changed semaphores (`END`), and for a semaphore off
/// the list (`UNCHANGED`).
const END: u32 = u32::MAX;
const UNCHANGED: u32 = u32::MAX - 1;

/// A semaphore of an array.
struct Semaphore {
    value: i32,
    /// The id of the process that changed the semaphore last.
    pid: u32,
    /// The next semaphore on the list of changed semaphores.
    changed: u32,
    /// The calls with one operation that wait until this semaphore is 0 (`zero`), and the calls that wait until it is
    /// larger (`more`).
    zero: List,
    more: List,
}

/// The adjustments that the end of a process adds to the values.
pub(super) struct Undo<C> {
    /// The number of the process's list of undos.
    pub list: u64,
    pub adjust: Vec<i16>,
    pub _charge: C,
}

/// The reason why operations were not performed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stop {
    /// The operation with this index has to wait.
    At(usize),
    /// A value or an adjustment would leave its range.
    Range,
}

/// The part of an array that its lock guards.
pub(super) struct State<C> {
    pub owner: Owner,
    pub removed: bool,
    /// The times of the last operation and of the last change by `semctl`, in seconds since 1970.
    pub operated: i64,
    pub changed: i64,
    chunks: Vec<Vec<Semaphore>>,
    places: Places,
    several: List,
    /// The first semaphore on the list of changed semaphores. The calls that wait for these semaphores have not been
    /// tried yet.
    first_changed: u32,
    /// The undos of all processes, sorted by the number of their list.
    pub undos: Vec<Undo<C>>,
    held: Option<(Taken, C)>,
}

/// The memory of a removed array, to be freed. The array itself cannot be freed yet, because the undo lists of
/// processes hold references to it until the processes end.
pub(super) struct GivenBack<C> {
    _undos: Vec<Undo<C>>,
    _chunks: Vec<Vec<Semaphore>>,
    _held: Option<(Taken, C)>,
}

impl<C> State<C> {
    pub fn new(owner: Owner, taken: Taken, charge: C, now: i64) -> Result<Self, OutOfMemory> {
        let len = taken.n;
        let semaphore = |_| Semaphore { value: 0, pid: 0, changed: UNCHANGED, zero: List::EMPTY, more: List::EMPTY };
        let mut chunks = Vec::try_with_capacity(len.div_ceil(CHUNK))?;
        for first in (0..len).step_by(CHUNK) {
            chunks.push_reserved(Vec::try_from_iter((first..len.min(first + CHUNK)).map(semaphore))?);
        }
        Ok(State {
            owner,
            removed: false,
            operated: 0,
            changed: now,
            chunks,
            places: Places::new(),
            several: List::EMPTY,
            first_changed: END,
            undos: Vec::new(),
            held: Some((taken, charge)),
        })
    }

    /// Marks the array as removed, and ends all waiting calls. The caller drops the result with no lock held.
    pub fn remove(&mut self) -> GivenBack<C> {
        self.removed = true;
        self.end_all(Err(Error::Removed));
        let undos = core::mem::replace(&mut self.undos, Vec::new());
        let chunks = core::mem::replace(&mut self.chunks, Vec::new());
        GivenBack { _undos: undos, _chunks: chunks, _held: self.held.take() }
    }

    /// The bytes of memory for `len` semaphores.
    pub const fn bytes(len: usize) -> u64 {
        (len * size_of::<Semaphore>()) as u64
    }

    fn at(&self, number: usize) -> &Semaphore {
        &self.chunks[number / CHUNK][number % CHUNK]
    }

    fn at_mut(&mut self, number: usize) -> &mut Semaphore {
        &mut self.chunks[number / CHUNK][number % CHUNK]
    }

    pub fn value(&self, number: usize) -> i32 {
        self.at(number).value
    }

    pub fn pid(&self, number: usize) -> u32 {
        self.at(number).pid
    }

    /// The number of calls whose blocking operation waits until this semaphore is larger, or until it is 0.
    pub fn waiting(&self, number: usize, for_zero: bool) -> usize {
        let waits = |place: &&Place| {
            let blocking = place.sleeper.operations.get(place.blocking);
            blocking.is_some_and(|o| usize::from(o.number) == number && (o.change == 0) == for_zero)
        };
        self.places.iter().filter(waits).count()
    }

    /// Sets the value of a semaphore, and clears all adjustments of it. The caller then calls [`run`](Self::run).
    pub fn set(&mut self, number: usize, value: i32, pid: u32) {
        debug_assert!((0..=VALUE_MAX).contains(&value));
        self.undos.iter_mut().for_each(|undo| undo.adjust[number] = 0);
        let semaphore = self.at_mut(number);
        (semaphore.value, semaphore.pid) = (value, pid);
        self.note_changed(number);
    }

    /// Adds the adjustment of an ended process. The value stays in its range. The caller then calls [`run`](Self::run).
    pub fn adjust(&mut self, number: usize, by: i32, pid: u32) {
        let semaphore = self.at_mut(number);
        (semaphore.value, semaphore.pid) = ((semaphore.value + by).clamp(0, VALUE_MAX), pid);
        self.note_changed(number);
    }

    fn note_changed(&mut self, number: usize) {
        let first = self.first_changed;
        let semaphore = self.at_mut(number);
        if semaphore.changed == UNCHANGED {
            semaphore.changed = first;
            self.first_changed = number as u32;
        }
    }

    /// Performs all `operations`, or none of them. Their numbers must be in the array. The caller then calls
    /// [`run`](Self::run).
    pub fn perform(&mut self, operations: &[Operation], undo: Option<u64>, pid: u32) -> Result<(), Stop> {
        let undo = undo.and_then(|list| self.undos.binary_search_by_key(&list, |undo| undo.list).ok());
        for (at, o) in operations.iter().enumerate() {
            if let Err(stop) = self.step(at, o, undo) {
                for done in operations[..at].iter().rev() {
                    self.add(done, undo, -i32::from(done.change));
                }
                return Err(stop);
            }
        }
        for o in operations {
            self.at_mut(usize::from(o.number)).pid = pid;
            if o.change != 0 {
                self.note_changed(usize::from(o.number));
            }
        }
        Ok(())
    }

    fn step(&mut self, at: usize, o: &Operation, undo: Option<usize>) -> Result<(), Stop> {
        let (change, number) = (i32::from(o.change), usize::from(o.number));
        let value = self.value(number);
        if (change == 0 && value != 0) || value + change < 0 {
            return Err(Stop::At(at));
        }
        if value + change > VALUE_MAX {
            return Err(Stop::Range);
        }
        if let Some(undo) = undo.filter(|_| o.undo) {
            let adjust = i32::from(self.undos[undo].adjust[number]) - change;
            if !(-VALUE_MAX - 1..=VALUE_MAX).contains(&adjust) {
                return Err(Stop::Range);
            }
        }
        self.add(o, undo, change);
        Ok(())
    }

    fn add(&mut self, o: &Operation, undo: Option<usize>, change: i32) {
        let number = usize::from(o.number);
        self.at_mut(number).value += change;
        if let Some(undo) = undo.filter(|_| o.undo) {
            self.undos[undo].adjust[number] -= change as i16;
        }
    }

    fn list_mut(&mut self, on: On) -> &mut List {
        match on {
            On::Zero(number) => &mut self.at_mut(number).zero,
            On::More(number) => &mut self.at_mut(number).more,
            On::Several => &mut self.several,
        }
    }

    /// Adds a call that waits for its operation `blocking`. Returns the call's index.
    pub fn sleep(&mut self, sleeper: Arc<Sleeper>, blocking: usize) -> Result<usize, OutOfMemory> {
        let on = match sleeper.operations[..] {
            [Operation { number, change: 0, .. }] => On::Zero(usize::from(number)),
            [Operation { number, .. }] => On::More(usize::from(number)),
            _ => On::Several,
        };
        let mut list = *self.list_mut(on);
        let place = self.places.add(&mut list, sleeper, on, blocking)?;
        *self.list_mut(on) = list;
        Ok(place)
    }

    /// Removes the waiting call at index `at`.
    pub fn take_out(&mut self, at: usize) -> Option<Arc<Sleeper>> {
        let on = self.places.get(at)?.on;
        let mut list = *self.list_mut(on);
        let sleeper = self.places.remove(&mut list, at);
        *self.list_mut(on) = list;
        sleeper
    }

    /// Ends all waiting calls with `outcome`.
    fn end_all(&mut self, outcome: Result<(), Error>) {
        for place in self.places.iter() {
            place.sleeper.end(outcome);
        }
        (self.places, self.several) = (Places::new(), List::EMPTY);
        for semaphore in self.chunks.iter_mut().flat_map(|chunk| chunk.iter_mut()) {
            (semaphore.zero, semaphore.more) = (List::EMPTY, List::EMPTY);
        }
    }

    /// Completes the waiting calls that can proceed with the changed values.
    pub fn run(&mut self) {
        while self.first_changed != END {
            let number = self.first_changed as usize;
            let semaphore = self.at_mut(number);
            self.first_changed = core::mem::replace(&mut semaphore.changed, UNCHANGED);
            self.run_zero(number);
            self.run_more(number);
        }
    }

    /// Tries the operations of the call at index `at`. Returns true if the call is complete and was removed.
    fn try_place(&mut self, at: usize) -> bool {
        let Some(place) = self.places.get(at) else { return false };
        let sleeper = place.sleeper.clone();
        let outcome = match self.perform(&sleeper.operations, sleeper.undo, sleeper.pid) {
            Ok(()) => Ok(()),
            Err(Stop::Range) => Err(Error::Range),
            Err(Stop::At(blocking)) => {
                self.places.set_blocking(at, blocking);
                return false;
            }
        };
        self.take_out(at);
        sleeper.end(outcome);
        true
    }

    /// Tries the calls that only wait for 0. These calls change no value.
    fn run_zero(&mut self, number: usize) {
        while self.value(number) == 0
            && let Some(at) = self.at(number).zero.first()
        {
            if !self.try_place(at) {
                debug_assert!(false, "a value of 0 is enough");
                return;
            }
        }
    }

    /// Tries two kinds of calls, the oldest first: calls with one operation that wait until this semaphore is larger,
    /// and calls with several operations. Stops when a call has changed this semaphore's value, because the semaphore
    /// is then on the list of changed semaphores again.
    fn run_more(&mut self, number: usize) {
        let (mut one, mut several) = (self.at(number).more.first(), self.several.first());
        loop {
            if self.value(number) == 0 {
                one = None;
            }
            let order = |at: usize| self.places.get(at).map_or(u64::MAX, |place| place.order);
            let from_one = match (one, several) {
                (None, None) => return,
                (Some(one), Some(several)) => order(one) < order(several),
                (one, _) => one.is_some(),
            };
            let next = if from_one { &mut one } else { &mut several };
            let Some(at) = *next else { return };
            *next = self.places.next(at);
            let uses = |o: &Operation| usize::from(o.number) == number;
            let concerned = self.places.get(at).is_some_and(|place| place.sleeper.operations.iter().any(uses));
            if concerned && self.try_place(at) && self.at(number).changed != UNCHANGED {
                return;
            }
        }
    }
}
