//! One queue with one lock, as kernels had before sharded queues. The lock is held to add and to remove every page.

use super::PageQueue;
use quire_sync::{Rank, SpinGuard, SpinLock, record};

const NONE: u32 = u32::MAX;

/// The descriptor of a page, which takes a cache line. It contains the links of the queue, as in kernels with one
/// queue.
#[derive(Clone)]
#[repr(align(64))]
struct Descriptor {
    next: u32,
    prev: u32,
}

struct PageList {
    pages: Vec<Descriptor>,
    head: u32,
    tail: u32,
    len: u64,
}

impl PageList {
    fn unlink(&mut self, page: u32) {
        let Descriptor { next, prev } = self.pages[page as usize];
        match prev {
            NONE => self.head = next,
            prev => self.page(prev).next = next,
        }
        match next {
            NONE => self.tail = prev,
            next => self.page(next).prev = prev,
        }
        self.len -= 1;
        record::wrote(&self.len);
    }

    /// The descriptor of a page, for writing. The write is recorded.
    fn page(&mut self, page: u32) -> &mut Descriptor {
        record::wrote(&self.pages[page as usize]);
        &mut self.pages[page as usize]
    }
}

/// A linked queue of pages.
pub struct OneLock {
    list: SpinLock<PageList>,
}

/// The guard of the queue's lock, which may be held for any number of pages.
pub struct QueueGuard<'a>(SpinGuard<'a, PageList>);

impl QueueGuard<'_> {
    /// Removes a page from the queue, at any position.
    pub fn remove(&mut self, page: u32) {
        self.0.unlink(page);
    }
}

impl OneLock {
    /// Makes an empty queue for pages with numbers below `pages`.
    pub fn new(pages: usize) -> OneLock {
        let list =
            PageList { pages: vec![Descriptor { next: NONE, prev: NONE }; pages], head: NONE, tail: NONE, len: 0 };
        OneLock { list: SpinLock::new(Rank::QUEUE, list) }
    }

    /// Acquires the lock, to remove more than one page.
    pub fn hold(&self) -> QueueGuard<'_> {
        QueueGuard(self.list.lock())
    }
}

impl PageQueue for OneLock {
    fn put(&self, page: u32) {
        let mut list = self.list.lock();
        let tail = list.tail;
        *list.page(page) = Descriptor { next: NONE, prev: tail };
        match tail {
            NONE => list.head = page,
            tail => list.page(tail).next = page,
        }
        list.tail = page;
        list.len += 1;
        record::wrote(&list.len);
    }
    fn take(&self, n: usize, f: &mut dyn FnMut(u32)) {
        for _ in 0..n {
            let mut list = self.list.lock();
            let page = list.head;
            if page == NONE {
                return;
            }
            list.unlink(page);
            drop(list);
            f(page);
        }
    }
    fn len(&self) -> u64 {
        self.list.lock().len
    }
}
