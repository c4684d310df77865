//! The tests corrupt page tables in every way that the checker knows. The checker must detect and name each corruption.
//! (The tests of `quire-vm` corrupt slabs, because only they can access them.)

use quire_hosted::{Cpu, Settings, Simulate, Simulated};
use quire_vm::check::{Broken, Level};
use quire_vm::machine::Enter;
use quire_vm::map::{MapRequest, Placement, Space, SpaceRef};
use quire_vm::phys::page::FrameKind;
use quire_vm::{Access, PAGE_SIZE, Pfn, Phys, Prot, Vm};
use std::sync::atomic::{AtomicU64, Ordering};

quire_hosted::of_each_architecture!(
    a_wrong_count_of_present_entries_is_noticed_at_every_level,
    the_check_finds_a_wrong_count_of_unflushed_removals,
    a_dead_mark_on_a_table_page_that_is_linked_is_noticed,
    an_entry_that_leads_to_no_table_page_is_noticed,
    a_group_of_entries_that_scans_would_skip_is_noticed,
    a_leaf_that_a_fork_would_leave_writable_is_noticed,
    an_entry_above_that_allows_other_than_is_known_is_noticed,
    an_entry_that_is_neither_empty_nor_present_is_noticed,
    a_lost_leaf_and_a_doubled_one_are_noticed,
    the_check_of_a_busy_map_finds_a_leaf_of_a_free_frame,
);

/// The middle of user addresses, where table pages of every level begin.
const fn middle<F: Simulate>() -> u64 {
    (F::USER.end + PAGE_SIZE) / 2
}

/// The number of entries of a table page.
const FANOUT: usize = 512;

/// Returns the index of the entry that covers the middle address in a table page at `level`.
fn index<F: Simulate>(level: u32) -> usize {
    (middle::<F>() >> (12 + 9 * level)) as usize % FANOUT
}

struct World<F: Simulate> {
    vm: &'static Vm<Simulated<F>>,
    space: SpaceRef<Simulated<F>>,
}

impl<F: Simulate> World<F> {
    /// A space with 40 resident pages, all under one last-level table page.
    fn new() -> World<F> {
        let settings = Settings { cpus: 1, frames: 4096, check: Level::Never, zero_window: 0, ..Settings::default() };
        let vm = Simulated::<F>::boot(settings).unwrap();
        let _cpu = Cpu::attach(vm, 0).unwrap();
        let space = Space::new(vm).unwrap();
        let r = MapRequest::private(Placement::Fixed(middle::<F>()), 64 * PAGE_SIZE);
        space.map(&r).unwrap();
        (0..40).for_each(|n| assert!(space.fault(middle::<F>() + n * PAGE_SIZE, Access::Write).is_ok()));
        assert_eq!(space.check(true), Ok(()));
        World { vm, space }
    }

    /// Returns the table page at `level` that covers the middle address.
    fn table(&self, level: u32) -> Pfn {
        (level + 1..F::LEVELS)
            .rev()
            // SAFETY: only the root of the page tables is read, and nothing is changed.
            .fold(unsafe { self.space.page_tables() }.root().expect("it has tables"), |t, l| {
                F::frame(self.slot(t, index::<F>(l)).load(Ordering::Relaxed))
            })
    }

    fn slot(&self, t: Pfn, i: usize) -> &AtomicU64 {
        assert!(i < FANOUT);
        // SAFETY: `t` is a table page, which all code accesses only as atomics.
        unsafe { &*self.vm.machine().frame_ptr(t).cast::<AtomicU64>().add(i) }
    }

    /// The descriptor of a table page, which holds a lock, the live count and the count of unflushed removals.
    fn state(&self, t: Pfn) -> &AtomicU64 {
        // SAFETY: the test owns the system that it corrupts, and no other thread uses it.
        &unsafe { self.vm.descriptor(t) }.words()[0]
    }

    /// Returns the bit of the descriptor's word at which the live count begins. The live count of the table page over
    /// the middle is 40.
    fn live_at(&self) -> u32 {
        let state = self.state(self.table(0)).load(Ordering::Relaxed);
        (0..64).step_by(16).find(|bit| state >> bit & 0xffff == 40).expect("a count of 40")
    }

    /// Returns the result of the checker. The corrupted space is leaked.
    fn verdict(self) -> Result<(), Broken> {
        let _cpu = Cpu::attach(self.vm, 0).unwrap();
        let result = self.space.check(true);
        std::mem::forget(self.space);
        result
    }
}

fn a_wrong_count_of_present_entries_is_noticed_at_every_level<F: Simulate>() {
    for level in 0..F::LEVELS {
        let w = World::<F>::new();
        w.state(w.table(level)).fetch_add(1 << w.live_at(), Ordering::Relaxed);
        assert!(matches!(w.verdict(), Err(Broken::TableLive(_))), "level {level}");
    }
}

fn the_check_finds_a_wrong_count_of_unflushed_removals<F: Simulate>() {
    let w = World::<F>::new();
    // The count of unflushed removals is the other half of the word.
    w.state(w.table(0)).fetch_add(1 << ((w.live_at() / 32 * 32) ^ 32), Ordering::Relaxed);
    assert_eq!(w.verdict(), Err(Broken::TableUnflushed(middle::<F>())));
}

fn a_dead_mark_on_a_table_page_that_is_linked_is_noticed<F: Simulate>() {
    for level in 0..F::LEVELS - 1 {
        let w = World::<F>::new();
        w.state(w.table(level)).fetch_or(0xffff << w.live_at(), Ordering::Relaxed);
        assert_eq!(w.verdict(), Err(Broken::TableDead(middle::<F>())), "level {level}");
    }
}

fn an_entry_that_leads_to_no_table_page_is_noticed<F: Simulate>() {
    let w = World::<F>::new();
    let leaf = w.slot(w.table(0), index::<F>(0)).load(Ordering::Relaxed);
    w.slot(w.table(1), index::<F>(1)).store(F::user_table(F::frame(leaf)), Ordering::Relaxed);
    assert_eq!(w.verdict(), Err(Broken::TableDead(middle::<F>())));
    let w = World::<F>::new();
    w.slot(w.table(2), index::<F>(2)).store(F::user_table(Pfn(0xffff_ffff)), Ordering::Relaxed);
    assert_eq!(w.verdict(), Err(Broken::TableDead(middle::<F>())));
}

fn a_group_of_entries_that_scans_would_skip_is_noticed<F: Simulate>() {
    let w = World::<F>::new();
    // SAFETY: the test owns the system that it corrupts, and no other thread uses it.
    unsafe { w.vm.descriptor(w.table(0)) }.spare().store(0, Ordering::Relaxed);
    assert_eq!(w.verdict(), Err(Broken::TableOccupied(middle::<F>())));
}

fn a_leaf_that_a_fork_would_leave_writable_is_noticed<F: Simulate>() {
    let w = World::<F>::new();
    // SAFETY: the test owns the system that it corrupts, and no other thread uses it.
    unsafe { w.vm.descriptor(w.table(0)) }.words()[1].store(0, Ordering::Relaxed);
    assert_eq!(w.verdict(), Err(Broken::TableWritable(middle::<F>())));
}

fn an_entry_above_that_allows_other_than_is_known_is_noticed<F: Simulate>() {
    let w = World::<F>::new();
    w.slot(w.table(1), index::<F>(1)).fetch_and(!F::STORES_BELOW, Ordering::Relaxed);
    // If the format has no such bit, nothing was changed.
    let expected = if F::STORES_BELOW != 0 { Err(Broken::TableStoreProtection(middle::<F>())) } else { Ok(()) };
    assert_eq!(w.verdict(), expected);
}

/// In both formats bit 0 says that an entry is present.
fn an_entry_that_is_neither_empty_nor_present_is_noticed<F: Simulate>() {
    let w = World::<F>::new();
    w.slot(w.table(0), 63).store(1 << 1, Ordering::Relaxed);
    assert_eq!(w.verdict(), Err(Broken::TableWord(middle::<F>() + 63 * PAGE_SIZE)));
}

fn a_lost_leaf_and_a_doubled_one_are_noticed<F: Simulate>() {
    let w = World::<F>::new();
    w.slot(w.table(0), 3).store(0, Ordering::Relaxed);
    assert_eq!(w.verdict(), Err(Broken::TableLive(middle::<F>())));
    let w = World::<F>::new();
    let t = w.table(0);
    w.slot(t, 4).store(w.slot(t, 3).load(Ordering::Relaxed), Ordering::Relaxed);
    assert_eq!(w.verdict(), Err(Broken::LeafFrame(middle::<F>() + 4 * PAGE_SIZE)));
}

fn the_check_of_a_busy_map_finds_a_leaf_of_a_free_frame<F: Simulate>() {
    let w = World::<F>::new();
    let _cpu = Cpu::attach(w.vm, 0).unwrap();
    let t = w.table(0);
    // SAFETY: the descriptors are only read, as `descriptors_in_use` requires.
    let other = unsafe { w.vm.descriptors_in_use() }
        .skip(1)
        .find(|page| page.kind() == FrameKind::Cached)
        .map(|page| w.vm.pfn_of_page(page))
        .unwrap();
    let slot = w.slot(t, 7);
    slot.store(F::user_leaf(Enter::new(other, Prot::READ | Prot::WRITE)), Ordering::Relaxed);
    assert!(matches!(w.space.check(false), Err(Broken::LeafFrame(_) | Broken::LeafClean(_))));
    std::mem::forget(w.space);
}
