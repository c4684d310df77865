//! Queries of one frame, for tools that look frames up by number (`kpageflags` and `kpagecount` of Linux).
//!
//! A query of a frame's marks acquires no lock. A query of its mappings acquires the locks of a reverse scan. Another
//! CPU may free the frame during the query, and use it for another page. Then the page's generation has changed, and
//! the query is repeated, up to `ATTEMPTS` times. So the answer is that of one moment.

use crate::machine::Machine;
use crate::object::kept::KeptObject;
use crate::phys::descriptors::Closed;
use crate::phys::page::{FrameKind, Page, State};
use crate::phys::queues::{Queue, QueuePlace};
use crate::rmap;
pub use crate::rmap::Mappings;
use crate::sleep::MaySleep;
use crate::types::Pfn;
use crate::vm::Vm;

/// The most attempts of a query, if the page is busy or changes its identity.
const ATTEMPTS: u32 = 8;

/// The use of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FrameInfo {
    /// The frame has no descriptor, because it is no RAM of the allocator.
    Unknown,
    /// A free frame: on the buddy lists, in a depot or a magazine, or never used.
    Free,
    /// The frame of zeroes.
    Zeroes,
    /// Used before the core started, or a frame of a device.
    Reserved,
    /// A page-table page.
    Table,
    /// A frame of a slab.
    Slab,
    /// Other memory of the kernel's.
    Kernel,
    /// A page of an object.
    Page(PageMarks),
}

/// The marks of an object's page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageMarks {
    /// The page's identity or content may be changing.
    pub busy: bool,
    /// The page's content is complete.
    pub valid: bool,
    /// The page has stores that the pager has not written.
    pub dirty: bool,
    /// The page's own mark of a reference since the last look of pageout. The access bits of leaves are not read.
    pub referenced: bool,
    /// The page's content is being written out.
    pub being_written: bool,
    /// The page's queue, if the page is on a queue, or waits in a CPU's batch to be put on one.
    pub queue: Option<Queue>,
    /// The page is on `queue` already, and not only in a CPU's batch.
    pub queued: bool,
    /// The page belongs to private memory.
    pub private: bool,
    /// The page can only be written to swap: it belongs to private memory, to shared memory or to a file in memory.
    pub in_memory: bool,
    /// The page has a swap slot with the same content.
    pub has_slot: bool,
    /// The pages of the object stay resident.
    pub kept_resident: bool,
}

impl<M: Machine> Vm<M> {
    /// The use of frame `pfn`, and its marks if it is a page.
    pub fn frame_info(&self, pfn: Pfn) -> FrameInfo {
        let Some(page) = self.descriptors().find(pfn) else {
            let fresh =
                self.frame_span().contains(&pfn.0) && matches!(self.descriptors().closed(pfn), Closed::Fresh(_));
            return if fresh { FrameInfo::Free } else { FrameInfo::Unknown };
        };
        match page.kind() {
            _ if pfn == self.zero_frame() => FrameInfo::Zeroes,
            FrameKind::Reserved => FrameInfo::Reserved,
            FrameKind::Free | FrameKind::Cached => FrameInfo::Free,
            FrameKind::Unowned => FrameInfo::Kernel,
            FrameKind::Table => FrameInfo::Table,
            FrameKind::Slab => FrameInfo::Slab,
            FrameKind::Object => self.marks(page),
        }
    }

    fn marks(&self, page: &Page) -> FrameInfo {
        let mut left = ATTEMPTS;
        loop {
            left -= 1;
            let state = page.state();
            let has_slot = page.swap_slot().is_some();
            let pin = self.epoch().pin();
            let object = self.object_of(page, &pin);
            let (in_memory, kept_resident) =
                object.map_or((false, false), |object| (object.holes_are_zero(), object.is_kept_resident()));
            let known = object.is_some() && page.state().generation() == state.generation();
            if !known && left > 0 {
                drop(pin);
                quire_sync::hooks::relax();
                continue;
            }
            if state.0 & State::IDENTITY == 0 {
                // The page was freed during this call.
                return FrameInfo::Kernel;
            }
            let private = !state.shared();
            let (queue, queued) = match QueuePlace::of(state) {
                QueuePlace::Nowhere | QueuePlace::Isolated => (None, false),
                QueuePlace::Batched(queue) => (Some(queue), false),
                QueuePlace::Listed(queue, _) => (Some(queue), true),
            };
            return FrameInfo::Page(PageMarks {
                busy: state.busy(),
                valid: state.valid(),
                dirty: state.dirty(),
                referenced: state.0 & State::REFERENCED != 0,
                being_written: state.laundering(),
                queue,
                queued,
                private,
                in_memory: private || (known && in_memory),
                has_slot: known && has_slot,
                kept_resident: known && kept_resident,
            });
        }
    }

    /// The number of leaves that map frame `pfn`, and whether it is wired. A leaf that is entered or removed during the
    /// call may count or not. It may count twice only while mappings of its object are constantly made and replaced. A
    /// page that stays busy counts as unmapped, because it is being read, moved or removed. The frame of zeroes and
    /// devices' frames have no reverse map, and count as unmapped.
    ///
    /// The cost follows the mappings that show the page. No lock is held for more than a few mappings. May sleep.
    pub fn mappings_of(&self, pfn: Pfn) -> Mappings {
        let may = MaySleep::here();
        let Some(page) = self.descriptors().find(pfn) else { return Mappings::default() };
        for _ in 0..ATTEMPTS {
            if page.kind() != FrameKind::Object {
                break;
            }
            let found = {
                let pin = may.pin(self.epoch());
                let generation = page.state().generation();
                let object = self.object_of(page, &pin);
                let key = page.index();
                // Without this check the object and the key could belong to different identities, because a page gets a
                // new identity while it is busy.
                let now = page.state();
                let one = now.generation() == generation && !now.busy();
                object
                    .filter(|_| one)
                    .and_then(|object| KeptObject::new(object, &pin))
                    .map(|kept| (kept, key, generation))
            };
            if let Some((kept, key, generation)) = found {
                let mappings = rmap::count(kept.object(), key, pfn);
                // If a merge of layers has moved the page, its leaves stay, but the scan may have missed them.
                if page.state().generation() == generation {
                    return mappings;
                }
            }
            quire_sync::hooks::relax();
        }
        Mappings::default()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::map::{Space, Wire};
    use crate::object::ObjectRef;
    use crate::testing::page;
    use crate::tests::{anonymous, load, page_out, range, show, store, system};
    use crate::types::Prot;

    fn marks(vm: &Vm<crate::testing::TestMachine>, pfn: Pfn) -> PageMarks {
        match vm.frame_info(pfn) {
            FrameInfo::Page(marks) => marks,
            other => panic!("frame {pfn:?} is {other:?}"),
        }
    }

    #[test]
    fn mappings_of_all_spaces_are_counted() {
        let m = system();
        let file = ObjectRef::anonymous(m.vm, 4).unwrap();
        let spaces: Vec<_> = (0..40).map(|_| Space::new(m.vm).unwrap()).collect();
        spaces.iter().for_each(|space| show(space, 0, 4, &file, true));
        // A space may show the page twice.
        show(&spaces[0], 8, 4, &file, true);
        store(&spaces[0], page(1), 5);
        let pfn = spaces[0].pmap().peek(page(1)).unwrap().pfn;
        assert_eq!(m.vm.mappings_of(pfn), Mappings { leaves: 1, wired: false });
        spaces.iter().for_each(|space| assert_eq!(load(space, page(1)), 5));
        load(&spaces[0], page(9));
        assert_eq!(m.vm.mappings_of(pfn), Mappings { leaves: 41, wired: false });
        spaces[3].wire(range(0, 4), Wire::Now).unwrap();
        assert_eq!(m.vm.mappings_of(pfn), Mappings { leaves: 41, wired: true });
        spaces[3].unmap(range(0, 4)).unwrap();
        assert_eq!(m.vm.mappings_of(pfn), Mappings { leaves: 40, wired: false });
        let seen = marks(m.vm, pfn);
        assert!(seen.dirty && seen.valid && !seen.busy && !seen.private && seen.in_memory && !seen.has_slot);
        spaces.iter().for_each(|space| space.clear());
        assert_eq!(m.vm.mappings_of(pfn), Mappings::default());
    }

    #[test]
    fn a_page_of_relatives_counts_for_each_that_maps_it() {
        let m = system();
        let space = Space::new(m.vm).unwrap();
        anonymous(&space, 0, 2);
        store(&space, page(0), 7);
        let pfn = space.pmap().peek(page(0)).unwrap().pfn;
        let children: Vec<_> = (0..3).map(|_| space.fork().unwrap()).collect();
        let mapped = m.vm.mappings_of(pfn).leaves;
        children.iter().for_each(|child| assert_eq!(load(child, page(0)), 7));
        assert_eq!((m.vm.mappings_of(pfn).leaves, mapped), (4, 1));
        // A store gives a child a copy of its own.
        store(&children[0], page(0), 8);
        assert_eq!(m.vm.mappings_of(pfn).leaves, 3);
        let copy = children[0].pmap().peek(page(0)).unwrap().pfn;
        assert_eq!(m.vm.mappings_of(copy).leaves, 1);
        assert!(marks(m.vm, copy).private && marks(m.vm, pfn).in_memory);
    }

    #[test]
    fn frames_of_all_uses_are_distinguished() {
        let m = system();
        let space = Space::new(m.vm).unwrap();
        anonymous(&space, 0, 4);
        assert_eq!(m.vm.frame_info(m.vm.zero_frame()), FrameInfo::Zeroes);
        for beyond in [m.vm.page_count(), u64::MAX] {
            assert_eq!(m.vm.frame_info(Pfn(beyond)), FrameInfo::Unknown);
            assert_eq!(m.vm.mappings_of(Pfn(beyond)), Mappings::default());
        }
        let all = || m.vm.frame_span().map(|n| m.vm.frame_info(Pfn(n)));
        let free = || all().filter(|info| *info == FrameInfo::Free).count() as u64;
        assert_eq!(free(), m.vm.frames().free());
        assert!(all().any(|info| info == FrameInfo::Slab));
        store(&space, page(0), 1);
        let pfn = space.pmap().peek(page(0)).unwrap().pfn;
        assert!(matches!(marks(m.vm, pfn).queue, Some(Queue::Active)));
        assert_eq!(free(), m.vm.frames().free());
        space.clear();
        assert!(!matches!(m.vm.frame_info(pfn), FrameInfo::Page(_)));
    }

    #[test]
    fn counts_race_with_the_end_of_pages() {
        let m = system();
        let _store = m.swap(512, crate::paging::memory_store::FaultPlan::default());
        let space = Space::new(m.vm).unwrap();
        anonymous(&space, 0, 32);
        let over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|s| {
            s.spawn(|| {
                quire_sync::hooks::threads::set_cpu(1);
                while !over.load(std::sync::atomic::Ordering::Relaxed) {
                    for n in m.vm.frame_span() {
                        let (mapped, info) = (m.vm.mappings_of(Pfn(n)), m.vm.frame_info(Pfn(n)));
                        assert!(mapped.leaves <= 8 && info != FrameInfo::Unknown, "{mapped:?} {info:?}");
                    }
                }
            });
            for round in 0..50 {
                (0..32).for_each(|n| store(&space, page(n), round));
                let child = space.fork().unwrap();
                (0..32).for_each(|n| assert_eq!(load(&child, page(n)), round));
                page_out(&space);
                space.protect(range(3, 5), Prot::READ).unwrap();
                space.unmap(range(0, 32)).unwrap();
                anonymous(&space, 0, 32);
            }
            over.store(true, std::sync::atomic::Ordering::Relaxed);
        });
    }
}
