//! Run queues: the production design, and a list in the order of priority. In the design *before*, the list is searched
//! from its head. In the design *after*, its tail is checked first.

use crate::timers::Still;
use quire_task::{Scheduler, Thread, ThreadRef};
use std::ptr::NonNull;

const NONE: u32 = u32::MAX;

/// A list of runnable threads by priority. Threads of equal priority are in the order of their arrival.
pub struct Sorted {
    nodes: Vec<QueueNode>,
    head: u32,
    tail: u32,
    /// Whether the tail is checked first, because most threads belong behind it.
    both_ends: bool,
}

#[derive(Clone)]
#[repr(align(64))]
struct QueueNode {
    priority: u8,
    next: u32,
    prev: u32,
}

impl Sorted {
    /// Makes an empty list for threads with numbers below `threads`.
    pub fn new(threads: usize, both_ends: bool) -> Sorted {
        let node = QueueNode { priority: 0, next: NONE, prev: NONE };
        Sorted { nodes: vec![node; threads], head: NONE, tail: NONE, both_ends }
    }

    /// Queues a thread behind all threads of the same or a higher priority. A smaller number is a higher priority.
    pub fn push(&mut self, thread: u32, priority: u8) {
        let behind_all = |tail: u32| tail == NONE || self.nodes[tail as usize].priority <= priority;
        let before = if self.both_ends && behind_all(self.tail) {
            self.tail
        } else {
            let (mut before, mut at) = (NONE, self.head);
            while at != NONE && self.nodes[at as usize].priority <= priority {
                (before, at) = (at, self.nodes[at as usize].next);
            }
            before
        };
        let next = if before == NONE { self.head } else { self.nodes[before as usize].next };
        self.nodes[thread as usize] = QueueNode { priority, next, prev: before };
        match next {
            NONE => self.tail = thread,
            next => self.nodes[next as usize].prev = thread,
        }
        if before == NONE {
            self.head = thread;
        } else {
            self.nodes[before as usize].next = thread;
        }
    }

    /// Removes the thread of the highest priority and returns its number.
    pub fn pop(&mut self) -> Option<u32> {
        let first = Some(self.head).filter(|h| *h != NONE)?;
        self.head = self.nodes[first as usize].next;
        match self.head {
            NONE => self.tail = NONE,
            head => self.nodes[head as usize].prev = NONE,
        }
        Some(first)
    }
}

unsafe fn never(_: NonNull<Thread<Still>>) {}

/// Allocates threads next to each other, as in a slab. They are never freed.
fn threads(count: usize) -> impl Iterator<Item = ThreadRef<Still>> {
    let threads: &'static [_] = (0..count).map(|_| Thread::new((), (), never)).collect::<Vec<_>>().leak();
    // SAFETY: the thread is leaked, so it is never moved. Dropping its one reference, which is adopted here, does
    // nothing.
    threads.iter().map(|thread| unsafe { ThreadRef::adopt(NonNull::from(thread)) })
}

/// The production run queue of one CPU, with threads that never run.
pub struct Production {
    scheduler: &'static Scheduler<Still>,
    ready: std::vec::IntoIter<ThreadRef<Still>>,
    /// The number of threads that the scheduler counts as runnable although they are not in the queue.
    others: usize,
}

impl Production {
    /// Makes an empty queue, and `count` threads that can be queued.
    pub fn new(count: usize) -> Production {
        let scheduler = Still::scheduler().1;
        // The idle thread is the current thread of the CPU, because no other thread runs.
        threads(1).for_each(|idle| scheduler.start_cpu(idle));
        Production { scheduler, ready: threads(count).collect::<Vec<_>>().into_iter(), others: scheduler.runnable() }
    }

    /// Queues the next of the threads.
    pub fn push(&mut self) {
        if let Some(thread) = self.ready.next() {
            self.scheduler.spawn_on(thread, 0);
        }
    }

    /// The number of threads that wait in the queue.
    pub fn len(&self) -> usize {
        self.scheduler.runnable() - self.others
    }

    /// Whether no thread waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::workload::Random;

    #[test]
    fn either_list_is_in_the_order_of_priority_and_of_coming() {
        for both_ends in [false, true] {
            let (mut list, mut random) = (Sorted::new(1000, both_ends), Random(5));
            let mut model: Vec<(u8, u32)> = Vec::new();
            for thread in 0..1000 {
                let priority = random.below(8) as u8;
                list.push(thread, priority);
                model.push((priority, thread));
                if random.below(3) == 0 {
                    model.sort();
                    assert_eq!(list.pop(), Some(model.remove(0).1));
                }
            }
            model.sort();
            let left: Vec<u32> = std::iter::from_fn(|| list.pop()).collect();
            assert_eq!(left, model.into_iter().map(|(_, t)| t).collect::<Vec<_>>());
        }
    }

    #[test]
    fn production_has_all_queued_threads() {
        let mut queue = Production::new(100);
        (0..100).for_each(|_| queue.push());
        assert_eq!(queue.len(), 100);
    }
}
