//! Lists of waiting calls, with their places in one vector. A place can be left at any time without a search.

use super::Operation;
use crate::error::Error;
use quire_heap::{Arc, OutOfMemory, Vec};
use quire_sync::WaitQueue;
use quire_sync::atomic::{AtomicU8, Ordering};

/// No place.
const NONE: u32 = u32::MAX;

/// A call that waits.
pub(super) struct Sleeper {
    pub operations: Vec<Operation>,
    pub pid: u32,
    /// The list of its undos.
    pub undo: Option<u64>,
    outcome: AtomicU8,
    pub queue: WaitQueue,
}

/// The results that a waker gives, with their numbers in a sleeper.
const OUTCOMES: [Result<(), Error>; 3] = [Ok(()), Err(Error::Removed), Err(Error::Range)];

impl Sleeper {
    pub fn new(operations: Vec<Operation>, pid: u32, undo: Option<u64>) -> Self {
        Sleeper { operations, pid, undo, outcome: AtomicU8::new(0), queue: WaitQueue::new() }
    }

    /// The result, once a waker has given it.
    pub fn outcome(&self) -> Option<Result<(), Error>> {
        let number = usize::from(self.outcome.load(Ordering::Acquire));
        OUTCOMES.get(number.checked_sub(1)?).copied()
    }

    /// Gives the result, and wakes the caller.
    pub fn end(&self, outcome: Result<(), Error>) {
        let number = OUTCOMES.iter().position(|o| *o == outcome).map_or(0, |at| at as u8 + 1);
        debug_assert!(number > 0);
        self.outcome.store(number, Ordering::Release);
        self.queue.wake_all();
    }
}

/// Which list of an array a sleeper is on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum On {
    /// Waits until this semaphore is 0, and for nothing else.
    Zero(usize),
    /// Waits until this semaphore is larger, and for nothing else.
    More(usize),
    /// Has several operations.
    Several,
}

/// The first and the last place of a list.
#[derive(Clone, Copy, Debug)]
pub(super) struct List {
    first: u32,
    last: u32,
}

impl List {
    pub const EMPTY: List = List { first: NONE, last: NONE };

    pub fn first(&self) -> Option<usize> {
        (self.first != NONE).then_some(self.first as usize)
    }
}

/// A used place.
pub(super) struct Place {
    pub sleeper: Arc<Sleeper>,
    pub on: On,
    /// The operation that it waits for.
    pub blocking: usize,
    /// Grows with each sleeper.
    pub order: u64,
}

struct Node {
    prev: u32,
    next: u32,
    place: Option<Place>,
}

/// The places of all sleepers of an array.
pub(super) struct Places {
    nodes: Vec<Node>,
    /// Free places, linked by `next`.
    free: u32,
    used: usize,
    orders: u64,
}

impl Places {
    pub const fn new() -> Self {
        Places { nodes: Vec::new(), free: NONE, used: 0, orders: 0 }
    }

    /// Adds a sleeper to the end of `list`, and returns its place.
    pub fn add(
        &mut self,
        list: &mut List,
        sleeper: Arc<Sleeper>,
        on: On,
        blocking: usize,
    ) -> Result<usize, OutOfMemory> {
        if self.free == NONE {
            self.nodes.try_push(Node { prev: NONE, next: NONE, place: None })?;
            self.free = self.nodes.len() as u32 - 1;
        }
        let at = self.free;
        self.orders += 1;
        let node = &mut self.nodes[at as usize];
        self.free = node.next;
        *node = Node { prev: list.last, next: NONE, place: Some(Place { sleeper, on, blocking, order: self.orders }) };
        match list.last {
            NONE => list.first = at,
            last => self.nodes[last as usize].next = at,
        }
        list.last = at;
        self.used += 1;
        Ok(at as usize)
    }

    /// The sleeper at a used place.
    pub fn get(&self, at: usize) -> Option<&Place> {
        self.nodes.get(at)?.place.as_ref()
    }

    /// The sleeper there waits for another operation now.
    pub fn set_blocking(&mut self, at: usize, blocking: usize) {
        if let Some(place) = &mut self.nodes[at].place {
            place.blocking = blocking;
        }
    }

    /// The place after `at` in its list.
    pub fn next(&self, at: usize) -> Option<usize> {
        let next = self.nodes[at].next;
        (next != NONE).then_some(next as usize)
    }

    /// Takes the sleeper at `at` out of `list`, which it is on.
    pub fn remove(&mut self, list: &mut List, at: usize) -> Option<Arc<Sleeper>> {
        let node = &mut self.nodes[at];
        let (prev, next, place) = (node.prev, node.next, node.place.take());
        node.next = self.free;
        self.free = at as u32;
        match prev {
            NONE => list.first = next,
            prev => self.nodes[prev as usize].next = next,
        }
        match next {
            NONE => list.last = prev,
            next => self.nodes[next as usize].prev = prev,
        }
        self.used -= 1;
        if self.used == 0 {
            // An array without sleepers has no places.
            (self.nodes, self.free) = (Vec::new(), NONE);
        }
        place.map(|place| place.sleeper)
    }

    /// All sleepers, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &Place> {
        self.nodes.iter().filter_map(|node| node.place.as_ref())
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    fn sleeper(pid: u32) -> Arc<Sleeper> {
        Arc::try_new(Sleeper::new(Vec::new(), pid, None)).unwrap()
    }

    fn pids(places: &Places, list: &List) -> std::vec::Vec<u32> {
        let next = |at: &usize| places.next(*at);
        std::iter::successors(list.first(), next).map(|at| places.get(at).unwrap().sleeper.pid).collect()
    }

    #[test]
    fn a_sleeper_leaves_from_any_place() {
        for leaves in 0..4 {
            let (mut places, mut list, mut other) = (Places::new(), List::EMPTY, List::EMPTY);
            let at = [0, 1, 2, 3].map(|pid| places.add(&mut list, sleeper(pid), On::Several, 0).unwrap());
            let elsewhere = places.add(&mut other, sleeper(9), On::Zero(1), 0).unwrap();
            assert_eq!(places.remove(&mut list, at[leaves]).unwrap().pid, leaves as u32);
            let left: std::vec::Vec<u32> = (0..4).filter(|pid| *pid != leaves as u32).collect();
            assert_eq!(pids(&places, &list), left);
            // Its place is used again, at the end of a list.
            assert_eq!(places.add(&mut list, sleeper(7), On::Several, 0).unwrap(), at[leaves]);
            assert_eq!(pids(&places, &list)[3], 7);
            for place in at {
                places.remove(&mut list, place);
            }
            assert_eq!((pids(&places, &list).len(), pids(&places, &other)), (0, vec![9]));
            places.remove(&mut other, elsewhere);
            assert_eq!(places.nodes.capacity(), 0);
        }
    }
}
