//! Lists of waiting calls. The nodes of all lists are in one vector, and each sleeper knows the index of its node. So a
//! sleeper can be removed without a search.

use super::Operation;
use crate::error::Error;
use quire_heap::{Arc, OutOfMemory, Vec};
use quire_sync::WaitQueue;
use quire_sync::atomic::{AtomicU8, Ordering};

/// The index that stands for no node.
const NONE: u32 = u32::MAX;

/// A call that waits for semaphores.
pub(super) struct Sleeper {
    pub operations: Vec<Operation>,
    pub pid: u32,
    /// The number of the list of its process's undos, if an operation of the call has `SEM_UNDO`.
    pub undo: Option<u64>,
    outcome: AtomicU8,
    pub queue: WaitQueue,
}

/// The results that a waker can store. A sleeper's `outcome` is the index in this array plus one; 0: no result yet.
const OUTCOMES: [Result<(), Error>; 3] = [Ok(()), Err(Error::Removed), Err(Error::Range)];

impl Sleeper {
    pub fn new(operations: Vec<Operation>, pid: u32, undo: Option<u64>) -> Self {
        Sleeper { operations, pid, undo, outcome: AtomicU8::new(0), queue: WaitQueue::new() }
    }

    /// The result, if a waker has stored it.
    pub fn outcome(&self) -> Option<Result<(), Error>> {
        let number = usize::from(self.outcome.load(Ordering::Acquire));
        OUTCOMES.get(number.checked_sub(1)?).copied()
    }

    /// Stores the result, and wakes the sleeping thread.
    pub fn end(&self, outcome: Result<(), Error>) {
        let number = OUTCOMES.iter().position(|o| *o == outcome).map_or(0, |at| at as u8 + 1);
        debug_assert!(number > 0);
        self.outcome.store(number, Ordering::Release);
        self.queue.wake_all();
    }
}

/// The list of an array that a sleeper is on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum On {
    /// The sleeper has one operation, which waits until this semaphore is 0.
    Zero(usize),
    /// The sleeper has one operation, which waits until this semaphore is larger.
    More(usize),
    /// The sleeper has several operations.
    Several,
}

/// The indices of the first and the last node of a list.
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

/// The content of a used node.
pub(super) struct Place {
    pub sleeper: Arc<Sleeper>,
    pub on: On,
    /// The index of the operation that has to wait.
    pub blocking: usize,
    /// A number that is higher for each later sleeper.
    pub order: u64,
}

struct Node {
    prev: u32,
    next: u32,
    place: Option<Place>,
}

/// The nodes of all sleepers of an array.
pub(super) struct Places {
    nodes: Vec<Node>,
    /// The first free node. Free nodes are linked by `next`.
    free: u32,
    used: usize,
    orders: u64,
}

impl Places {
    pub const fn new() -> Self {
        Places { nodes: Vec::new(), free: NONE, used: 0, orders: 0 }
    }

    /// Adds a sleeper at the end of `list`, and returns its index.
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

    /// The sleeper at index `at`.
    pub fn get(&self, at: usize) -> Option<&Place> {
        self.nodes.get(at)?.place.as_ref()
    }

    /// Notes that the sleeper at `at` now waits for its operation `blocking`.
    pub fn set_blocking(&mut self, at: usize, blocking: usize) {
        if let Some(place) = &mut self.nodes[at].place {
            place.blocking = blocking;
        }
    }

    /// The index of the sleeper after `at` in its list.
    pub fn next(&self, at: usize) -> Option<usize> {
        let next = self.nodes[at].next;
        (next != NONE).then_some(next as usize)
    }

    /// Removes the sleeper at index `at` from `list`, which it is on.
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
            // An array without sleepers needs no memory for nodes.
            (self.nodes, self.free) = (Vec::new(), NONE);
        }
        place.map(|place| place.sleeper)
    }

    /// All sleepers, in no particular order.
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
            // The free node is used again, now at the end of a list.
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
