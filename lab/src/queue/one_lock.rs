//! One queue under one lock: what kernels had before they fanned out. Every page goes in and out under the lock.

use super::PageQueue;
use quire_sync::{Rank, SpinLock, record};

const NONE: u32 = u32::MAX;

/// A page's links stand in its descriptor, a line of its own, as in kernels that had this.
#[derive(Clone)]
#[repr(align(64))]
struct Descriptor {
    next: u32,
}

struct List {
    pages: Vec<Descriptor>,
    head: u32,
    tail: u32,
    len: u64,
}

/// A linked queue of pages.
pub struct OneLock {
    list: SpinLock<List>,
}

impl OneLock {
    /// A queue of pages below `pages`.
    pub fn new(pages: usize) -> OneLock {
        let list = List { pages: vec![Descriptor { next: NONE }; pages], head: NONE, tail: NONE, len: 0 };
        OneLock { list: SpinLock::new(Rank::QUEUE, list) }
    }
}

impl PageQueue for OneLock {
    fn put(&self, page: u32) {
        let mut list = self.list.lock();
        list.pages[page as usize].next = NONE;
        record::wrote(&list.pages[page as usize]);
        match list.tail {
            NONE => list.head = page,
            tail => {
                list.pages[tail as usize].next = page;
                record::wrote(&list.pages[tail as usize]);
            }
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
            list.head = list.pages[page as usize].next;
            if list.head == NONE {
                list.tail = NONE;
            }
            list.len -= 1;
            drop(list);
            f(page);
        }
    }
    fn len(&self) -> u64 {
        self.list.lock().len
    }
}
