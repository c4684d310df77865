//! The clearing of access bits, for tools that measure how much memory a program uses in a period (`clear_refs` of
//! Linux).
//!
//! `Space::forget_accesses` acquires no lock of the map. Each leaf changes under its table page's lock, by the atomic
//! operation that pageout uses. So a concurrent fault, reverse scan, map operation or drop of the tables finds the leaf
//! with or without its access bit. None of them relies on the bit.

use crate::machine::{Machine, Pmap, Table};
use crate::map::space::Space;
use crate::phys::page::State;
use crate::types::{PAGE_SIZE, VirtRange};

impl<M: Machine> Space<M> {
    /// Clears the access bits of the leaves in `range`, and the reference marks of the pages that they map. Returns the
    /// number of leaves that had the bit.
    ///
    /// No translation is flushed. A CPU that has cached a translation does not set the bit again. So an access soon
    /// after this call may not be noticed. Pageout has the same limitation, and so has Linux.
    ///
    /// The work follows the table pages, not the addresses. Each table page is locked for at most one visit to each of
    /// its leaves.
    pub fn forget_accesses(&self, range: VirtRange) -> u64 {
        let vm = self.vm();
        let (mut at, end) = (range.start.max(M::Pmap::USER.start), range.end.min(M::Pmap::USER.end));
        let mut forgotten = 0;
        while at < end {
            let _pin = vm.epoch().pin();
            let Some(mut table) = self.pmap().next_table(vm, VirtRange { start: at, end }) else { break };
            let span = table.span();
            let (mut from, to) = (at.max(span.start), end.min(span.end));
            while let Some(present) = table.next_present(from, to) {
                from = present + PAGE_SIZE;
                forgotten += u64::from(table.take_accessed(present));
                // The leaf cannot be removed while the table page is locked, so the frame is not freed.
                if let Some(page) = table.get(present).and_then(|leaf| vm.page_of_leaf(leaf.pfn))
                    && page.state().0 & State::REFERENCED != 0
                {
                    page.clear(State::REFERENCED);
                }
            }
            at = span.end;
        }
        forgotten
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use crate::map::Space;
    use crate::testing::{SPAN, page};
    use crate::tests::{anonymous, load, range, store, system};
    use crate::types::{Access, VirtRange};
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn an_access_is_forgotten_in_the_range_and_seen_again_after_the_next() {
        let m = system();
        let space = Space::new(m.vm).unwrap();
        anonymous(&space, 0, 2 * SPAN);
        let pages = [0, 3, SPAN - 1, SPAN, SPAN + 7];
        pages.iter().for_each(|n| store(&space, page(*n), 1));
        let seen = |n: u64| space.page_at(page(n)).unwrap().accessed;
        assert!(pages.iter().all(|n| seen(*n)));
        assert_eq!(space.forget_accesses(range(1, SPAN)), 3);
        assert_eq!(pages.map(seen), [true, false, false, false, true]);
        assert_eq!(space.forget_accesses(range(0, 2 * SPAN)), 2);
        assert!(!pages.iter().any(|n| seen(*n)));
        // The content stays, and so do the leaves.
        assert_eq!((load(&space, page(SPAN)), space.leaves_in(range(0, 2 * SPAN))), (1, 5));
        space.fault(page(3), Access::Read).unwrap();
        assert_eq!(pages.map(seen), [false, true, false, false, false]);
        let everything = VirtRange { start: 0, end: u64::MAX };
        assert_eq!((space.forget_accesses(everything), space.forget_accesses(everything)), (1, 0));
        assert_eq!(space.forget_accesses(VirtRange { start: page(9), end: page(3) }), 0);
    }

    #[test]
    fn the_marks_of_pages_go_with_the_accesses() {
        let m = system();
        let space = Space::new(m.vm).unwrap();
        anonymous(&space, 0, 4);
        (0..4).for_each(|n| store(&space, page(n), 1));
        // The drop credits the access bits to the pages, and the refill makes leaves again.
        assert_eq!(space.drop_tables().unwrap().leaves, 4);
        let marked = || m.vm.described().filter(|p| p.state().0 & crate::phys::page::State::REFERENCED != 0).count();
        assert_eq!(marked(), 4);
        (0..3).for_each(|n| assert!(space.fault(page(n), Access::Read).is_ok()));
        let mapped = space.leaves_in(range(0, 4));
        assert_eq!(space.forget_accesses(range(0, 4)), mapped);
        assert_eq!(marked() as u64, 4 - mapped, "only pages that a leaf maps are unmarked");
    }

    #[test]
    fn pages_stay_while_tables_go_and_accesses_are_forgotten() {
        let m = system();
        let space = Space::new(m.vm).unwrap();
        anonymous(&space, 0, SPAN);
        (0..SPAN).for_each(|n| store(&space, page(n), n as u8));
        let over = AtomicBool::new(false);
        std::thread::scope(|s| {
            s.spawn(|| {
                quire_sync::hooks::threads::set_cpu(1);
                while !over.load(Ordering::Relaxed) {
                    space.forget_accesses(range(0, SPAN));
                    std::thread::yield_now();
                }
            });
            for round in 0..200 {
                if round % 3 == 0 {
                    space.drop_tables();
                }
                // A fork write-protects the leaves, and the next store makes a leaf writable again.
                let child = (round % 5 == 0).then(|| space.fork().unwrap());
                for n in 0..SPAN {
                    assert_eq!(load(&space, page(n)), n as u8, "round {round}");
                    store(&space, page(n), n as u8);
                }
                if let Some(child) = child {
                    child.forget_accesses(range(0, SPAN));
                    assert_eq!(load(&child, page(1)), 1);
                }
            }
            over.store(true, Ordering::Relaxed);
        });
        space.check(true).unwrap();
    }
}
