//! Page queues behind one trait: the production queues, and the design that they replaced, one queue with one lock.

mod one_lock;

pub use one_lock::OneLock;
use quire_hosted::Hosted;
use quire_vm::phys::queues::Queue;
use quire_vm::{Pfn, Vm};

/// The operations of a page queue that pageout uses. A page is a number below the queue's size.
pub trait PageQueue: Sync {
    /// Puts a page at the tail.
    fn put(&self, page: u32);
    /// Removes up to `n` pages from the head and calls `f` on each. Their order is first in, first out, as far as the
    /// design guarantees that.
    fn take(&self, n: usize, f: &mut dyn FnMut(u32));
    /// The number of pages in the queue.
    fn len(&self) -> u64;
    /// Whether the queue is empty.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The production inactive queue. It consists of shards, each with its own lock. Each CPU collects pages in a batch
/// before it adds them to a shard. The pages belong to an object. At first they are in no queue.
pub struct Parts(pub &'static Vm<Hosted>);

impl PageQueue for Parts {
    fn put(&self, page: u32) {
        // SAFETY: the workload has taken the page out of the queue, and puts it back here.
        self.0.put_in_queue(unsafe { self.0.descriptor(Pfn(page as u64)) }, Queue::Inactive);
    }
    fn take(&self, n: usize, f: &mut dyn FnMut(u32)) {
        self.0.drain_own_queue_batch();
        let mut left = n;
        // SAFETY: the workload puts back the pages that it takes, and their object is not freed.
        for part in unsafe { self.0.queues().parts_of(Queue::Inactive) } {
            left -= part.take(left, &mut |page| f(self.0.pfn_of_page(page).0 as u32));
            if left == 0 {
                return;
            }
        }
    }
    fn len(&self) -> u64 {
        self.0.drain_queue_batches();
        self.0.queues().len(Queue::Inactive)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::queues::isolated;
    use quire_hosted::Cpu;

    fn keeps_pages(queue: &dyn PageQueue, pages: &[u32]) {
        let mut state = 1u64;
        let mut random = |n: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
            (state >> 33) % n
        };
        let mut mine = pages.to_vec();
        for _ in 0..2000 {
            if random(2) == 0 && !mine.is_empty() {
                let page = mine.swap_remove(random(mine.len() as u64) as usize);
                queue.put(page);
            } else {
                queue.take(random(5) as usize + 1, &mut |p| mine.push(p));
            }
            assert_eq!(queue.len() as usize + mine.len(), pages.len());
        }
        queue.take(usize::MAX, &mut |p| mine.push(p));
        let mut all = pages.to_vec();
        mine.sort_unstable();
        all.sort_unstable();
        assert_eq!(mine, all, "each page comes out once");
    }

    #[test]
    fn no_queue_loses_or_doubles_a_page() {
        let vm = crate::machine::boot(1, 16);
        let _cpu = Cpu::attach(vm, 0).expect("no other thread is this CPU");
        let (_space, pages) = isolated(vm, 500).unwrap();
        keeps_pages(&Parts(vm), &pages);
        keeps_pages(&OneLock::new(vm.page_count() as usize), &pages);
    }

    #[test]
    fn one_queue_is_first_in_first_out() {
        let queue = OneLock::new(10);
        [3, 1, 4].into_iter().for_each(|p| queue.put(p));
        let mut out = Vec::new();
        queue.take(2, &mut |p| out.push(p));
        queue.put(9);
        queue.take(9, &mut |p| out.push(p));
        assert_eq!(out, [3, 1, 4, 9]);
    }

    #[test]
    fn under_one_hold_pages_go_from_anywhere() {
        let queue = OneLock::new(10);
        (0..6).for_each(|p| queue.put(p));
        let mut held = queue.hold();
        [3, 0, 5].into_iter().for_each(|p| held.remove(p));
        drop(held);
        let mut out = Vec::new();
        queue.take(9, &mut |p| out.push(p));
        assert_eq!((out, queue.len()), (vec![1, 2, 4], 0));
    }
}
