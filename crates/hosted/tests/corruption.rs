//! Page tables made wrong on purpose, in every way that the checker knows, are noticed, and named. (What lies in slabs is made
//! wrong by the core's own tests, which can reach it.)

use quire_hosted::{Cpu, Hosted, Settings};
use quire_pmap_x86_64::word::{self, LEVELS};
use quire_vm::check::{Broken, Level};
use quire_vm::map::{MapRequest, Placement, Space, SpaceRef};
use quire_vm::page::Kind;
use quire_vm::{Access, PAGE_SIZE, Pfn, Phys, Vm};
use std::sync::atomic::{AtomicU64, Ordering};

const BASE: u64 = 0x5000_0000_0000;
/// Entries of a table page.
const FANOUT: usize = 512;

/// Which entry of a table page at `level` covers `BASE`.
fn index(level: u32) -> usize {
    (BASE >> (12 + 9 * level)) as usize % FANOUT
}

struct World {
    vm: &'static Vm<Hosted>,
    space: SpaceRef<Hosted>,
}

impl World {
    /// A space with 40 resident pages, all under one last-level table page.
    fn new() -> World {
        let vm = Hosted::boot(Settings { cpus: 1, frames: 4096, check: Level::Never, ..Settings::default() });
        let _cpu = Cpu::attach(vm, 0);
        let space = Space::new(vm).unwrap();
        let r = MapRequest::private(Placement::Fixed(BASE), 64 * PAGE_SIZE);
        space.map(&r).unwrap();
        (0..40).for_each(|n| assert!(space.fault(BASE + n * PAGE_SIZE, Access::Write).is_ok()));
        assert_eq!(space.check(true), Ok(()));
        World { vm, space }
    }

    /// The table page at `level` over `BASE`.
    fn table(&self, level: u32) -> Pfn {
        (level + 1..LEVELS)
            .rev()
            .fold(self.space.pmap().root(), |t, l| word::frame(self.slot(t, index(l)).load(Ordering::Relaxed)))
    }

    fn slot(&self, t: Pfn, i: usize) -> &AtomicU64 {
        assert!(i < FANOUT);
        // SAFETY: a table page, which is touched as atomics only.
        unsafe { &*self.vm.machine().frame_ptr(t).cast::<AtomicU64>().add(i) }
    }

    /// The descriptor of a table page, which holds a lock, the live count and the count of unflushed removals.
    fn state(&self, t: Pfn) -> &AtomicU64 {
        &self.vm.page(t).words()[0]
    }

    /// Where in the descriptor the live count begins: where the table page over `BASE` says 40.
    fn live_at(&self) -> u32 {
        let state = self.state(self.table(0)).load(Ordering::Relaxed);
        (0..64).step_by(16).find(|bit| state >> bit & 0xffff == 40).expect("a count of 40")
    }

    /// What the checker says. What is broken is not taken apart.
    fn verdict(self) -> Result<(), Broken> {
        let _cpu = Cpu::attach(self.vm, 0);
        let result = self.space.check(true);
        std::mem::forget(self.space);
        result
    }
}

#[test]
fn a_wrong_count_of_present_entries_is_noticed_at_every_level() {
    for level in 0..LEVELS {
        let w = World::new();
        w.state(w.table(level)).fetch_add(1 << w.live_at(), Ordering::Relaxed);
        assert!(matches!(w.verdict(), Err(Broken::TableLive(_))), "level {level}");
    }
}

#[test]
fn a_count_of_unflushed_removals_that_nobody_owes_is_noticed() {
    let w = World::new();
    // The other half of the word.
    w.state(w.table(0)).fetch_add(1 << ((w.live_at() / 32 * 32) ^ 32), Ordering::Relaxed);
    assert_eq!(w.verdict(), Err(Broken::TableUnflushed(BASE)));
}

#[test]
fn a_dead_mark_on_a_table_page_that_is_linked_is_noticed() {
    for level in 0..LEVELS - 1 {
        let w = World::new();
        w.state(w.table(level)).fetch_or(0xffff << w.live_at(), Ordering::Relaxed);
        assert_eq!(w.verdict(), Err(Broken::TableDead(BASE)), "level {level}");
    }
}

#[test]
fn an_entry_that_leads_to_no_table_page_is_noticed() {
    let w = World::new();
    let leaf = w.slot(w.table(0), index(0)).load(Ordering::Relaxed);
    w.slot(w.table(1), index(1)).store(word::user_table(word::frame(leaf)), Ordering::Relaxed);
    assert_eq!(w.verdict(), Err(Broken::TableDead(BASE)));
    let w = World::new();
    w.slot(w.table(2), index(2)).store(word::user_table(Pfn(0xffff_ffff)), Ordering::Relaxed);
    assert_eq!(w.verdict(), Err(Broken::TableDead(BASE)));
}

#[test]
fn a_group_of_entries_that_scans_would_skip_is_noticed() {
    let w = World::new();
    w.vm.page(w.table(0)).spare().store(0, Ordering::Relaxed);
    assert_eq!(w.verdict(), Err(Broken::TableOccupied(BASE)));
}

#[test]
fn an_entry_that_is_neither_empty_nor_present_is_noticed() {
    let w = World::new();
    w.slot(w.table(0), 63).store(word::WRITE, Ordering::Relaxed);
    assert_eq!(w.verdict(), Err(Broken::TableWord(BASE + 63 * PAGE_SIZE)));
}

#[test]
fn a_lost_leaf_and_a_doubled_one_are_noticed() {
    let w = World::new();
    w.slot(w.table(0), 3).store(0, Ordering::Relaxed);
    assert_eq!(w.verdict(), Err(Broken::TableLive(BASE)));
    let w = World::new();
    let t = w.table(0);
    w.slot(t, 4).store(w.slot(t, 3).load(Ordering::Relaxed), Ordering::Relaxed);
    assert_eq!(w.verdict(), Err(Broken::LeafFrame(BASE + 4 * PAGE_SIZE)));
}

#[test]
fn a_leaf_of_a_frame_that_is_free_is_noticed_also_while_others_are_at_work() {
    let w = World::new();
    let _cpu = Cpu::attach(w.vm, 0);
    let t = w.table(0);
    let frame = word::frame(w.slot(t, 7).load(Ordering::Relaxed));
    let other = (1..w.vm.page_count()).map(Pfn).find(|p| w.vm.page(*p).kind() == Kind::Cached).unwrap();
    let slot = w.slot(t, 7);
    let moved = slot.load(Ordering::Relaxed) & !frame.address() | other.address();
    slot.store(moved, Ordering::Relaxed);
    assert!(matches!(w.space.check(false), Err(Broken::LeafFrame(_) | Broken::LeafClean(_))));
    std::mem::forget(w.space);
}
