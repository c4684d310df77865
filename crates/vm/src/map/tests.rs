//! Tests of map operations on the test machine: their results, and that a failed operation changes nothing.

use super::*;
use crate::error::{FaultError, MapError};
use crate::machine::Phys;
use crate::object::ObjectRef;
use crate::testing::{BASE, Boot, TestMachine, boot, page};
use crate::types::{Access, PAGE_SIZE, Prot, VirtRange};

type Sp = SpaceRef<TestMachine>;
const RW: Prot = Prot::READ.union(Prot::WRITE);

struct System {
    space: Option<Sp>,
    /// Dropped last, because the space lives in this machine's memory.
    m: Boot,
}

impl System {
    fn new() -> System {
        quire_sync::hooks::threads::set_cpu(0);
        let m = boot(2048, 2);
        let space = Space::new(m.vm).unwrap();
        space.set_limits(Limits { base: BASE, ..Limits::DEFAULT });
        System { space: Some(space), m }
    }
}

impl core::ops::Deref for System {
    type Target = Sp;
    fn deref(&self) -> &Sp {
        self.space.as_ref().unwrap()
    }
}

impl Drop for System {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.check(true).unwrap();
        }
        self.space = None;
        self.m.vm.epoch().drain();
    }
}

fn range(first: u64, pages: u64) -> VirtRange {
    VirtRange { start: page(first), end: page(first + pages) }
}

fn request<'o>(first: u64, pages: u64) -> MapRequest<'o, TestMachine> {
    MapRequest::private(Placement::Fixed(page(first)), pages * PAGE_SIZE)
}

fn map(s: &Space<TestMachine>, first: u64, pages: u64) {
    assert_eq!(s.map(&request(first, pages)), Ok(page(first)));
}

fn reach<R>(s: &Space<TestMachine>, va: u64, access: Access, f: impl Fn(*mut u8) -> R) -> Result<R, FaultError> {
    loop {
        let at = |pfn| f(s.vm().machine().frame_ptr(pfn).wrapping_add((va % PAGE_SIZE) as usize));
        if let Some(done) = s.pmap().access(va, access, at) {
            return Ok(done);
        }
        s.fault(va, access)?;
    }
}

fn store(s: &Space<TestMachine>, n: u64, value: u8) {
    // SAFETY: `access` calls this with a byte of a frame that a leaf maps for stores, in RAM that outlives the test's
    // space.
    reach(s, page(n), Access::Write, |p| unsafe { p.write_volatile(value) }).unwrap()
}

fn load(s: &Space<TestMachine>, n: u64) -> Result<u8, FaultError> {
    // SAFETY: `access` calls this with a byte of a frame that a leaf maps for reads, in RAM that outlives the test's
    // space.
    reach(s, page(n), Access::Read, |p| unsafe { p.read_volatile() })
}

/// All entries: first page, end page (both counted from the base) and rights.
fn entries(s: &Space<TestMachine>) -> Vec<(u64, u64, Prot)> {
    let mut all = Vec::new();
    s.entries(0, &mut |e| {
        let n = |va| (va - BASE) / PAGE_SIZE;
        all.push((n(e.range.start), n(e.range.end), e.attributes.prot));
        true
    });
    all
}

fn resident(s: &Space<TestMachine>, r: VirtRange) -> Vec<u64> {
    let mut there = Vec::new();
    s.resident(r, &mut |n, yes| {
        if yes {
            there.push(n)
        }
    })
    .unwrap();
    there
}

/// Number of pages that faults have zero-filled or copied.
fn pages_made(s: &System) -> u64 {
    use crate::FaultKind;
    [FaultKind::ZeroFill, FaultKind::Copy].iter().map(|kind| s.m.vm.stats().faults_of(*kind)).sum()
}

#[test]
fn protecting_a_whole_entry_allocates_only_that_entry() {
    let m = crate::tests::system();
    let space = Space::new(m.vm).unwrap();
    (0..200).for_each(|n| crate::tests::anonymous(&space, 3 * n, 1));
    (0..200).for_each(|n| crate::tests::store(&space, crate::testing::page(3 * n), n as u8));
    let mut frames = 0;
    for n in 0..200 {
        m.vm.fail_allocation(1);
        assert_eq!(space.protect(crate::tests::range(3 * n, 1), Prot::READ), Err(MapError::OutOfMemory));
        m.vm.fail_allocation(2);
        if space.protect(crate::tests::range(3 * n, 1), Prot::READ).is_err() {
            // Sometimes the failed allocation was that of a frame for a slab of entries.
            frames += 1;
            assert_eq!(space.protect(crate::tests::range(3 * n, 1), Prot::READ), Ok(()));
        }
        m.vm.fail_allocation(0);
        let refused = Err(crate::FaultError::Protection);
        assert_eq!(space.fault(crate::testing::page(3 * n), crate::Access::Write), refused);
    }
    assert!(frames <= 20, "{frames} protections of 200 allocated more than an entry");
    space.check(true).unwrap();
    assert_eq!(space.stats().entries, 200);
    (0..200).for_each(|n| assert_eq!(crate::tests::load(&space, crate::testing::page(3 * n)), n as u8));
}

#[test]
fn a_heap_that_grows_by_pages_stays_one_entry_with_its_content() {
    let s = System::new();
    for n in 0..200 {
        map(&s, n, 1);
        store(&s, n, n as u8);
    }
    assert_eq!(entries(&s), [(0, 200, RW)]);
    assert!((0..200).all(|n| load(&s, n) == Ok(n as u8)));
}

#[test]
fn a_heap_that_shrinks_and_grows_again_begins_with_zeroes() {
    let s = System::new();
    map(&s, 0, 16);
    (0..16).for_each(|n| store(&s, n, 7));
    s.unmap(range(8, 8)).unwrap();
    map(&s, 8, 8);
    assert_eq!(entries(&s), [(0, 16, RW)]);
    assert!((0..8).all(|n| load(&s, n) == Ok(7)));
    assert!((8..16).all(|n| load(&s, n) == Ok(0)));
}

#[test]
fn a_mapping_over_the_tail_of_another_hides_its_old_content() {
    let s = System::new();
    map(&s, 0, 16);
    (0..16).for_each(|n| store(&s, n, 7));
    map(&s, 8, 8);
    assert!((8..16).all(|n| load(&s, n) == Ok(0)));
}

#[test]
fn a_hole_between_two_mappings_is_filled_without_a_new_entry() {
    let s = System::new();
    map(&s, 0, 4);
    map(&s, 6, 4);
    store(&s, 1, 1);
    map(&s, 4, 2);
    assert_eq!(entries(&s), [(0, 10, RW)]);
    assert_eq!(load(&s, 1), Ok(1));
}

#[test]
fn protecting_the_middle_and_back_gives_one_entry_again() {
    let s = System::new();
    map(&s, 0, 12);
    (0..12).for_each(|n| store(&s, n, n as u8));
    s.protect(range(4, 4), Prot::READ).unwrap();
    assert_eq!(entries(&s), [(0, 4, RW), (4, 8, Prot::READ), (8, 12, RW)]);
    assert_eq!(reach(&s, page(5), Access::Write, |_| ()), Err(FaultError::Protection));
    s.check(true).unwrap();
    s.protect(range(4, 4), RW).unwrap();
    assert_eq!(entries(&s), [(0, 12, RW)]);
    (0..12).for_each(|n| store(&s, n, n as u8 + 1));
    assert!((0..12).all(|n| load(&s, n) == Ok(n as u8 + 1)));
}

#[test]
fn a_reservation_opened_in_pieces_takes_two_entries() {
    let s = System::new();
    s.map(&MapRequest { prot: Prot::empty(), ..request(0, 100) }).unwrap();
    for n in 0..100 {
        s.protect(range(n, 1), RW).unwrap();
        store(&s, n, 3);
        assert!(entries(&s).len() <= 2, "{:?}", entries(&s));
    }
}

#[test]
fn protect_changes_pages_before_a_hole_and_returns_an_error() {
    let s = System::new();
    map(&s, 0, 2);
    map(&s, 4, 2);
    assert_eq!(s.protect(range(0, 6), Prot::READ), Err(MapError::NotMapped));
    assert_eq!(entries(&s), [(0, 2, Prot::READ), (4, 6, RW)]);
    let fixed = MapRequest { max_prot: RW, ..request(2, 2) };
    s.map(&fixed).unwrap();
    assert_eq!(s.protect(range(0, 6), Prot::EXEC), Err(MapError::Protection));
    assert_eq!(s.protect(range(9, 1), RW), Err(MapError::NotMapped));
}

#[test]
fn unmapping_the_middle_frees_just_its_pages() {
    let s = System::new();
    map(&s, 0, 12);
    (0..12).for_each(|n| store(&s, n, 9));
    s.unmap(range(3, 5)).unwrap();
    assert_eq!(s.stats().resident_pages, 7);
    assert_eq!((s.stats().mapped_bytes, s.stats().peak_bytes), (7 * PAGE_SIZE, 12 * PAGE_SIZE));
    assert_eq!(load(&s, 4), Err(FaultError::NotMapped));
    assert_eq!(load(&s, 2), Ok(9));
    assert_eq!(load(&s, 8), Ok(9));
    s.unmap(range(100, 50)).unwrap();
}

#[test]
fn nonsense_from_outside_is_an_error() {
    let s = System::new();
    let one = PAGE_SIZE;
    for (at, len) in [(1, one), (USER.end, one), (u64::MAX - 4095, one), (page(0), 0), (page(0), 5)] {
        assert_eq!(s.map(&MapRequest::private(Placement::Fixed(at), len)), Err(MapError::Invalid), "{at:x} {len:x}");
        let end = at.wrapping_add(len);
        assert_eq!(s.unmap(VirtRange { start: at, end }), Err(MapError::Invalid));
        assert_eq!(s.protect(VirtRange { start: at, end }, RW), Err(MapError::Invalid));
    }
    let any = Placement::Any { hint: 0 };
    assert_eq!(s.map(&MapRequest::private(any, 1 << 62)), Err(MapError::NoSpace));
    assert_eq!(s.map(&MapRequest { max_prot: Prot::READ, ..request(0, 1) }), Err(MapError::Protection));
    assert_eq!(s.map(&request(3, 1)), Ok(page(3)));
    let taken = MapRequest { at: Placement::FixedNoReplace(page(2)), ..request(2, 3) };
    assert_eq!(s.map(&taken), Err(MapError::Exists));
    assert_eq!(s.remap(range(3, 1), 0, Move::May, false), Err(MapError::Invalid));
    assert_eq!(s.remap(range(3, 1), one, Move::To(page(3)), false), Err(MapError::Invalid));
    s.set_limits(Limits { bytes: 2 * one, ..s.limits() });
    assert_eq!(s.map(&request(10, 2)), Err(MapError::NoSpace));
    assert_eq!(s.map(&request(3, 2)), Ok(page(3)), "the replaced mapping does not count");
    s.set_limits(Limits { bytes: 1 << 40, entries: 1, ..s.limits() });
    assert_eq!(s.map(&request(10, 2)), Err(MapError::TooMany));
    assert_eq!(entries(&s).len(), 1);
}

#[test]
fn free_placement_takes_the_lowest_hole_outside_a_stack_guard() {
    let s = System::new();
    let any = |hint: u64| MapRequest::private(Placement::Any { hint }, 2 * PAGE_SIZE);
    map(&s, 3, 2);
    assert_eq!(s.map(&any(0)), Ok(page(0)));
    assert_eq!(s.map(&any(0)), Ok(page(5)));
    assert_eq!(s.map(&any(page(20) + 5)), Ok(page(20)));
    assert_eq!(s.map(&any(page(20))), Ok(page(7)), "a hint that is taken counts for nothing");
    s.map(&MapRequest { grows_down: true, ..request(300, 2) }).unwrap();
    let wide = MapRequest::private(Placement::Any { hint: 0 }, 100 * PAGE_SIZE);
    assert_eq!(s.map(&wide), Ok(page(302)), "the hole below the stack is wide enough, but the guard is not left");
}

#[test]
fn a_mapping_that_fills_whole_tables_takes_no_other() {
    const TABLE: u64 = crate::testing::SPAN;
    let s = System::new();
    let any = |pages| s.map(&MapRequest::private(Placement::Any { hint: 0 }, pages * PAGE_SIZE)).unwrap();
    map(&s, 0, 1);
    let first = any(2 * TABLE);
    assert_eq!((first % (TABLE * PAGE_SIZE), first > page(0)), (0, true));
    assert_eq!(any(TABLE - 1), page(1), "a range that fills no tables takes the lowest hole");
    assert_eq!(any(TABLE), first + 2 * TABLE * PAGE_SIZE);
    // The only hole that is large enough allows no aligned range.
    let s = System::new();
    for (start, end) in [(USER.start, page(1)), (page(1 + TABLE), USER.end)] {
        s.map(&MapRequest::private(Placement::Fixed(start), end - start)).unwrap();
    }
    assert_eq!(s.map(&MapRequest::private(Placement::Any { hint: 0 }, TABLE * PAGE_SIZE)), Ok(page(1)));
}

#[test]
fn whole_table_mappings_reuse_whole_table_holes() {
    const TABLE: u64 = crate::testing::SPAN;
    let s = System::new();
    let any = |n: u64| {
        // Neighbours get different rights, so that their entries are not joined.
        let prot = if n.is_multiple_of(2) { Prot::READ } else { Prot::READ | Prot::WRITE };
        s.map(&MapRequest { prot, ..MapRequest::private(Placement::Any { hint: 0 }, TABLE * PAGE_SIZE) }).unwrap()
    };
    let at: Vec<u64> = (0..60).map(any).collect();
    assert!(at.windows(2).all(|w| w[1] == w[0] + TABLE * PAGE_SIZE), "{at:x?}");
    for n in [7, 23, 41] {
        s.unmap(VirtRange { start: at[n], end: at[n] + TABLE * PAGE_SIZE }).unwrap();
    }
    // A hole that is large enough, but in which no aligned range fits.
    s.unmap(VirtRange { start: at[30] + PAGE_SIZE, end: at[31] + (TABLE - 1) * PAGE_SIZE }).unwrap();
    for n in [7, 23, 41] {
        assert_eq!(any(n as u64), at[n]);
    }
    assert_eq!(any(60), at[59] + TABLE * PAGE_SIZE);
}

#[test]
fn whole_tables_stay_above_the_base_while_there_is_room() {
    const TABLE: u64 = crate::testing::SPAN;
    let s = System::new();
    let base = page(TABLE + 1);
    s.set_limits(Limits { base, ..s.limits() });
    let end = base + TABLE * PAGE_SIZE;
    s.map(&MapRequest::private(Placement::Fixed(end), USER.end - end)).unwrap();
    let any = || s.map(&MapRequest::private(Placement::Any { hint: 0 }, TABLE * PAGE_SIZE)).unwrap();
    assert_eq!(any(), base);
    let below = any();
    assert!(below < base && below % (TABLE * PAGE_SIZE) == 0, "{below:x}");
}

#[test]
fn whole_tables_leave_a_stack_the_room_below_it() {
    const TABLE: u64 = crate::testing::SPAN;
    let s = System::new();
    // The hole below the stack consists of the stack's guard and of one whole table below that.
    let stack = USER.start.next_multiple_of(TABLE * PAGE_SIZE) + STACK_GUARD + 3 * TABLE * PAGE_SIZE;
    let hole = stack - STACK_GUARD - TABLE * PAGE_SIZE;
    s.map(&MapRequest::private(Placement::Fixed(USER.start), hole - USER.start)).unwrap();
    s.map(&MapRequest { grows_down: true, ..MapRequest::private(Placement::Fixed(stack), PAGE_SIZE) }).unwrap();
    s.set_limits(Limits { base: USER.start, ..s.limits() });
    let any = |tables| s.map(&MapRequest::private(Placement::Any { hint: 0 }, tables * TABLE * PAGE_SIZE)).unwrap();
    assert!(any(2) > stack);
    assert_eq!(any(1), hole);
    assert!(any(1) > stack);
}

#[test]
fn a_stack_grows_down_to_its_limit_and_keeps_its_content() {
    let s = System::new();
    s.set_limits(Limits { stack: 300 * PAGE_SIZE, ..s.limits() });
    s.map(&MapRequest { grows_down: true, tag: Tag::Stack, ..request(600, 4) }).unwrap();
    for n in (304..604).rev() {
        if load(&s, n) == Err(FaultError::NotMapped) {
            s.grow_stack(page(n) + 123).unwrap();
        }
        store(&s, n, n as u8);
    }
    assert_eq!(s.grow_stack(page(303)), Err(MapError::NotMapped));
    assert!((304..604).all(|n| load(&s, n) == Ok(n as u8)));
    assert!(entries(&s).len() <= 4, "{:?}", entries(&s));
    assert_eq!(s.grow_stack(page(700)), Err(MapError::NotMapped));
    assert_eq!(s.grow_stack(u64::MAX), Err(MapError::NotMapped));
}

#[test]
fn a_stack_does_not_grow_into_the_guard_of_a_mapping_below() {
    let s = System::new();
    s.map(&MapRequest { grows_down: true, ..request(600, 4) }).unwrap();
    map(&s, 340, 1);
    assert_eq!(s.grow_stack(page(597)), Ok(()));
    assert_eq!(s.grow_stack(page(596)), Err(MapError::NotMapped));
}

#[test]
fn a_stack_grows_towards_a_guard_of_the_programs_own() {
    let s = System::new();
    s.map(&MapRequest { grows_down: true, ..request(600, 4) }).unwrap();
    s.map(&MapRequest { prot: Prot::empty(), ..request(500, 1) }).unwrap();
    assert_eq!(s.grow_stack(page(596)), Ok(()));
    assert_eq!(s.grow_stack(page(501)), Ok(()));
    assert_eq!(entries(&s).iter().map(|e| (e.0, e.1)).collect::<Vec<_>>(), [(500, 501), (501, 596), (596, 604)]);
    assert_eq!(s.grow_stack(page(499)), Err(MapError::NotMapped));
}

#[test]
fn making_one_page_resident_does_not_mistake_another_for_it() {
    let s = System::new();
    let file = ObjectRef::anonymous(s.vm(), 16).unwrap();
    file.write(9 * PAGE_SIZE, 1, &mut |b| -> Result<_, ()> { Ok(b.len()) }).unwrap();
    s.map(&MapRequest { shared: true, object: Some((&file, 0)), ..request(0, 16) }).unwrap();
    s.make_resident(range(0, 1)).unwrap();
    assert_eq!(resident(&s, range(0, 1)).len(), 1, "the page that was asked for");
}

#[test]
fn moving_a_mapping_moves_its_content_without_touching_a_page() {
    let s = System::new();
    map(&s, 0, 8);
    (0..8).for_each(|n| store(&s, n, n as u8 + 1));
    let made = pages_made(&s);
    assert_eq!(s.remap(range(2, 4), 4 * PAGE_SIZE, Move::To(page(100)), false), Ok(page(100)));
    assert_eq!(entries(&s), [(0, 2, RW), (6, 8, RW), (100, 104, RW)]);
    assert!((0..4).all(|n| load(&s, 100 + n) == Ok(n as u8 + 3)));
    assert_eq!(pages_made(&s), made);
    assert_eq!(load(&s, 3), Err(FaultError::NotMapped));
    s.check(true).unwrap();
    // A new mapping at the old place extends the neighbour's entry. It reads as zeroes, although the neighbour's front
    // (the object of its copies) also has the pages that moved away.
    map(&s, 2, 4);
    assert!((2..6).all(|n| load(&s, n) == Ok(0)));
    assert_eq!(load(&s, 100), Ok(3));
}

#[test]
fn a_mapping_grows_in_place_or_moves_for_want_of_room() {
    let s = System::new();
    map(&s, 0, 4);
    store(&s, 3, 5);
    assert_eq!(s.remap(range(0, 4), 8 * PAGE_SIZE, Move::No, false), Ok(page(0)));
    assert_eq!(load(&s, 7), Ok(0));
    s.map(&MapRequest { prot: Prot::READ, ..request(8, 1) }).unwrap();
    assert_eq!(s.remap(range(0, 8), 16 * PAGE_SIZE, Move::No, false), Err(MapError::NoSpace));
    assert_eq!(s.remap(range(0, 8), 16 * PAGE_SIZE, Move::May, false), Ok(page(9)));
    assert_eq!(load(&s, 12), Ok(5));
    assert_eq!(load(&s, 24), Ok(0));
    assert_eq!(s.remap(range(9, 16), PAGE_SIZE, Move::No, false), Ok(page(9)));
    assert_eq!(entries(&s), [(8, 9, Prot::READ), (9, 10, RW)]);
}

#[test]
fn a_move_may_leave_empty_memory_or_a_second_view_behind() {
    let s = System::new();
    map(&s, 0, 4);
    store(&s, 1, 5);
    assert_eq!(s.remap(range(0, 4), 4 * PAGE_SIZE, Move::To(page(50)), true), Ok(page(50)));
    assert_eq!((load(&s, 1), load(&s, 51)), (Ok(0), Ok(5)));
    s.map(&MapRequest { shared: true, ..request(10, 4) }).unwrap();
    let empty = VirtRange { start: page(10), end: page(10) };
    assert_eq!(s.remap(empty, 4 * PAGE_SIZE, Move::To(page(70)), false), Ok(page(70)));
    store(&s, 11, 8);
    assert_eq!(load(&s, 71), Ok(8));
    let empty = VirtRange { start: page(0), end: page(0) };
    assert_eq!(s.remap(empty, PAGE_SIZE, Move::May, false), Err(MapError::Invalid));
}

#[test]
fn discarded_memory_is_zero_on_both_sides_of_a_fork() {
    let s = System::new();
    map(&s, 0, 8);
    (0..8).for_each(|n| store(&s, n, 4));
    let child = s.fork().unwrap();
    // The parent's pages are in a layer that both chains share, so a zero marker in the child's front hides them from
    // the child only.
    child.advise(range(2, 3), Advice::DontNeed).unwrap();
    assert_eq!((0..8).map(|n| load(&child, n).unwrap()).collect::<Vec<_>>(), [4, 4, 0, 0, 0, 4, 4, 4]);
    assert!((0..8).all(|n| load(&s, n) == Ok(4)));
    store(&child, 3, 1);
    child.advise(range(3, 1), Advice::DontNeed).unwrap();
    assert_eq!(load(&child, 3), Ok(0), "a page over a zero marker leaves the zero marker");
    child.check(true).unwrap();
    drop(child);
    s.advise(range(0, 8), Advice::DontNeed).unwrap();
    assert_eq!(s.stats().resident_pages, 0);
    assert!((0..8).all(|n| load(&s, n) == Ok(0)));
    assert_eq!(entries(&s).len(), 1);
}

#[test]
fn advice_for_shared_memory_keeps_or_punches_its_pages() {
    let s = System::new();
    let object = ObjectRef::anonymous(s.m.vm, 8).unwrap();
    let shared = MapRequest { shared: true, object: Some((&object, 0)), ..request(0, 8) };
    s.map(&shared).unwrap();
    let private = MapRequest { object: Some((&object, 0)), ..request(20, 8) };
    s.map(&private).unwrap();
    store(&s, 1, 6);
    store(&s, 22, 7);
    s.advise(range(0, 8), Advice::DontNeed).unwrap();
    assert_eq!(load(&s, 1), Ok(6));
    s.advise(range(20, 8), Advice::DontNeed).unwrap();
    assert_eq!((load(&s, 21), load(&s, 22)), (Ok(6), Ok(0)));
    assert_eq!(s.advise(range(20, 8), Advice::Free), Err(MapError::Invalid));
    assert_eq!(s.advise(range(20, 8), Advice::Remove), Err(MapError::Protection));
    s.advise(range(1, 1), Advice::Remove).unwrap();
    assert_eq!((load(&s, 1), load(&s, 21)), (Ok(0), Ok(0)));
    assert_eq!(s.advise(range(0, 20), Advice::DontNeed), Err(MapError::NotMapped));
}

#[test]
fn a_fork_leaves_out_or_wipes_ranges_by_their_rule() {
    let s = System::new();
    map(&s, 0, 6);
    (0..6).for_each(|n| store(&s, n, 2));
    s.inherit(range(0, 2), Inherit::NONE).unwrap();
    s.inherit(range(2, 2), Inherit::ZERO).unwrap();
    let child = s.fork().unwrap();
    assert_eq!(load(&child, 0), Err(FaultError::NotMapped));
    assert_eq!((load(&child, 2), load(&child, 4)), (Ok(0), Ok(2)));
    child.check(true).unwrap();
    drop(child);
    map(&s, 20, 6);
    s.inherit(range(20, 2), Inherit::NONE).unwrap();
    s.inherit(range(22, 2), Inherit::ZERO).unwrap();
    assert_eq!(entries(&s)[3..], [(20, 22, RW), (22, 24, RW), (24, 26, RW)]);
    let again = Inherit { included: Some(true), content: None };
    s.inherit(range(20, 6), again).unwrap();
    assert_eq!(
        entries(&s)[3..],
        [(20, 22, RW), (22, 24, RW), (24, 26, RW)],
        "a range that is included again keeps its wiping"
    );
    s.inherit(range(20, 6), Inherit::COPY).unwrap();
    assert_eq!(entries(&s)[3..], [(20, 26, RW)]);
    assert_eq!(s.inherit(range(5, 2), Inherit::NONE), Err(MapError::NotMapped));
    // A range that forks leave out keeps its other setting: the content that a child gets.
    s.inherit(range(20, 2), Inherit::ZERO).unwrap();
    s.inherit(range(20, 2), Inherit::NONE).unwrap();
    s.inherit(range(20, 2), again).unwrap();
    store(&s, 20, 7);
    assert_eq!(load(&s.fork().unwrap(), 20), Ok(0));
    // `SHARE` is allowed for shared memory only.
    s.map(&MapRequest { shared: true, ..request(30, 4) }).unwrap();
    s.inherit(range(30, 4), Inherit::SHARE).unwrap();
    assert_eq!(s.inherit(range(30, 4), Inherit::ZERO), Err(MapError::Invalid));
    assert_eq!(s.inherit(range(24, 10), Inherit::SHARE), Err(MapError::Invalid));
    let child = s.fork().unwrap();
    store(&child, 30, 9);
    assert_eq!(load(&s, 30), Ok(9));
}

#[test]
fn a_fork_shares_frozen_memory_until_a_side_opens_it() {
    let s = System::new();
    map(&s, 0, 4);
    (0..4).for_each(|n| store(&s, n, 3));
    s.protect(range(0, 4), Prot::READ).unwrap();
    let child = s.fork().unwrap();
    let made = pages_made(&s);
    assert!((0..4).all(|n| load(&child, n) == Ok(3) && load(&s, n) == Ok(3)));
    assert_eq!(pages_made(&s), made);
    child.protect(range(1, 2), RW).unwrap();
    store(&child, 1, 9);
    s.protect(range(0, 4), RW).unwrap();
    store(&s, 2, 8);
    assert_eq!((0..4).map(|n| load(&child, n).unwrap()).collect::<Vec<_>>(), [3, 9, 3, 3]);
    assert_eq!((0..4).map(|n| load(&s, n).unwrap()).collect::<Vec<_>>(), [3, 3, 8, 3]);
    child.check(true).unwrap();
}

#[test]
fn entries_know_in_which_of_them_no_fault_came_since_a_fork() {
    let s = System::new();
    map(&s, 0, 4);
    map(&s, 8, 4);
    let known = || [0, 8].map(|n| s.keep_writers_out(page(n)).get(page(n)).unwrap().has_no_stores());
    for (first, last) in [(0, 8), (0, 8)] {
        store(&s, first, 1);
        store(&s, last, 2);
        assert_eq!(known(), [false; 2]);
        let child = s.fork().unwrap();
        assert_eq!(known(), [true; 2]);
        // A load from a mapped page does not fault. A store faults, and clears its own entry's mark that no leaf allows
        // stores.
        assert_eq!(load(&s, first), Ok(1));
        assert_eq!(known(), [true; 2]);
        store(&s, last, 3);
        assert_eq!(known(), [true, false]);
        let second = s.fork().unwrap();
        assert_eq!(known(), [true; 2]);
        // After the children are dropped, stores change the pages in place, in the layers behind the fronts (the
        // chains' first layers).
        drop((child, second));
        store(&s, first, 4);
        assert_eq!(known(), [false, true]);
        let third = s.fork().unwrap();
        store(&s, first, 5);
        assert_eq!([load(&third, first), load(&third, last)], [Ok(4), Ok(3)]);
    }
    // A new entry is not marked as having no writable leaf.
    drop(s.fork().unwrap());
    assert_eq!(known(), [true; 2]);
    s.protect(range(0, 4), Prot::READ).unwrap();
    s.protect(range(0, 4), RW).unwrap();
    assert_eq!(known(), [false, true]);
}

#[test]
fn a_child_that_discards_frozen_memory_hides_only_its_own() {
    let s = System::new();
    map(&s, 0, 4);
    (0..4).for_each(|n| store(&s, n, 3));
    s.protect(range(0, 4), Prot::READ).unwrap();
    let child = s.fork().unwrap();
    child.advise(range(1, 2), Advice::DontNeed).unwrap();
    assert_eq!((0..4).map(|n| load(&child, n).unwrap()).collect::<Vec<_>>(), [3, 0, 0, 3]);
    assert!((0..4).all(|n| load(&s, n) == Ok(3)));
    child.check(true).unwrap();
}

#[test]
fn futex_keys_are_equal_where_the_word_is_and_nowhere_else() {
    let s = System::new();
    let object = ObjectRef::anonymous(s.m.vm, 4).unwrap();
    for first in [0, 10] {
        let shared = MapRequest { shared: true, object: Some((&object, 0)), ..request(first, 4) };
        s.map(&shared).unwrap();
    }
    map(&s, 20, 1);
    let child = s.fork().unwrap();
    assert_eq!(s.futex_key(page(1) + 8), child.futex_key(page(11) + 8));
    assert_ne!(s.futex_key(page(1) + 8), s.futex_key(page(1) + 12));
    assert_ne!(s.futex_key(page(20)), child.futex_key(page(20)));
    assert_eq!(s.futex_key(page(30)), Err(FaultError::NotMapped));
}

fn bytes_of(s: &Space<TestMachine>, va: u64, len: usize) -> Result<Vec<u8>, FaultError> {
    let mut to = vec![0xee; len];
    let n = s.read(va, &mut to)?;
    to.truncate(n);
    Ok(to)
}

/// A foreign read of new, copied and swapped pages, of a file's pages and of holes returns the bytes that a load would return. It
/// enters no leaf and makes no page.
#[test]
fn another_spaces_bytes_are_read_as_it_would_load_them() {
    let s = System::new();
    let object = ObjectRef::anonymous(s.m.vm, 4).unwrap();
    map(&s, 0, 4);
    s.map(&MapRequest { shared: true, object: Some((&object, 0)), ..request(4, 2) }).unwrap();
    (0..5).for_each(|n| store(&s, n, 10 + n as u8));
    let child = s.fork().unwrap();
    store(&child, 1, 77);
    let (leaves, made) = (child.stats().resident_pages, pages_made(&s));
    let first = |s: &Space<TestMachine>, n| bytes_of(s, page(n), 1).unwrap()[0];
    assert_eq!((0..6).map(|n| first(&child, n)).collect::<Vec<_>>(), [10, 77, 12, 13, 14, 0]);
    assert_eq!((0..6).map(|n| first(&s, n)).collect::<Vec<_>>(), [10, 11, 12, 13, 14, 0]);
    // Reads across page borders succeed, and end at the last mapped byte.
    assert_eq!(bytes_of(&s, page(1) - 1, 3).unwrap(), [0, 11, 0]);
    assert_eq!(bytes_of(&s, page(5), 3 * PAGE_SIZE as usize).unwrap().len(), PAGE_SIZE as usize);
    assert_eq!((child.stats().resident_pages, pages_made(&s)), (leaves, made));
}

#[test]
fn holes_and_forbidden_pages_of_another_space_are_not_read() {
    let s = System::new();
    map(&s, 0, 2);
    store(&s, 0, 1);
    s.protect(range(0, 1), Prot::empty()).unwrap();
    assert_eq!(bytes_of(&s, page(0), 8), Err(FaultError::Protection));
    assert_eq!(bytes_of(&s, page(2), 8), Err(FaultError::NotMapped));
    for outside in [USER.end, USER.end - 1 + PAGE_SIZE, u64::MAX - 3, u64::MAX] {
        assert_eq!(bytes_of(&s, outside, 8), Err(FaultError::NotMapped), "{outside:#x}");
    }
    assert_eq!(bytes_of(&s, page(1), 0), Ok(vec![]));
}

#[test]
fn residency_is_reported_page_by_page() {
    let s = System::new();
    map(&s, 0, 6);
    store(&s, 1, 1);
    store(&s, 4, 1);
    assert_eq!(resident(&s, range(0, 6)), [1, 4]);
    assert_eq!(s.resident(range(0, 7), &mut |_, _| {}), Err(MapError::NotMapped));
    assert_eq!(s.sync(range(0, 6)), Ok(()));
    assert_eq!(s.sync(range(0, 7)), Err(MapError::NotMapped));
}

/// The n-th allocation of each operation fails. The map and its content must be as before the operation or as after it.
#[test]
fn a_failed_allocation_anywhere_changes_nothing() {
    type Op = fn(&Sp) -> Result<(), MapError>;
    let ops: [(&str, Op); 9] = [
        ("map over", |s| s.map(&MapRequest { prot: Prot::READ, ..request(2, 5) }).map(|_| ())),
        ("map shared", |s| s.map(&MapRequest { shared: true, ..request(60, 5) }).map(|_| ())),
        ("unmap", |s| s.unmap(range(3, 6))),
        ("protect", |s| s.protect(range(1, 12), Prot::READ)),
        ("move", |s| s.remap(range(3, 2), 6 * PAGE_SIZE, Move::To(page(200)), false).map(|_| ())),
        ("keep", |s| s.remap(range(3, 2), 2 * PAGE_SIZE, Move::To(page(200)), true).map(|_| ())),
        ("grow", |s| s.remap(range(8, 6), 12 * PAGE_SIZE, Move::May, false).map(|_| ())),
        ("flags", |s| s.inherit(range(2, 9), Inherit::NONE)),
        ("fork", |s| s.fork().map(|_| ())),
    ];
    for (name, op) in ops {
        for n in 1..200 {
            let s = System::new();
            map(&s, 0, 7);
            s.map(&MapRequest { prot: Prot::all(), ..request(7, 7) }).unwrap();
            (0..14).for_each(|n| store(&s, n, n as u8 + 1));
            // There are many entries, so that the tree has several levels.
            (0..60).for_each(|n| map(&s, 300 + 2 * n, 1));
            let before = (entries(&s), (0..14).map(|n| load(&s, n)).collect::<Vec<_>>());
            s.m.vm.epoch().drain();
            s.m.vm.fail_allocation(n);
            let done = op(&s);
            let failed = done.is_err();
            s.m.vm.fail_allocation(0);
            if failed {
                assert_eq!(done, Err(MapError::OutOfMemory), "{name}, allocation {n}");
                let after = (entries(&s), (0..14).map(|n| load(&s, n)).collect::<Vec<_>>());
                assert_eq!(before, after, "{name}, allocation {n}");
                // A failed fork may leave marks that an entry has no writable leaf. Such marks must not make the next
                // fork skip the write-protection, or its child would see a later store of the parent.
                store(&s, 1, 98);
                let child = s.fork().unwrap();
                store(&s, 1, 99);
                assert_eq!(load(&child, 1), Ok(98), "{name}, allocation {n}");
            }
            s.check(true).unwrap();
            if !failed {
                assert!(n > 2, "{name} allocates");
                break;
            }
        }
    }
}

/// One thread replaces a mapping repeatedly. Another thread always finds a mapping at that address, and makes progress.
#[test]
fn replacing_a_mapping_never_shows_nothing_in_between() {
    let s = System::new();
    map(&s, 0, 4);
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            quire_sync::hooks::threads::set_cpu(1);
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                assert!(matches!(load(&s, 1), Ok(0 | 1)));
                assert!(reach(&s, page(2), Access::Write, |_| ()).is_ok());
            }
        });
        for n in 0..2_000 {
            match n % 4 {
                0 => map(&s, 0, 4),
                1 => map(&s, 1, 2),
                2 => store(&s, 1, 1),
                _ => s.advise(range(0, 4), Advice::DontNeed).unwrap(),
            }
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

#[test]
fn after_populating_no_access_faults_even_on_copied_pages() {
    const PAGES: u64 = 150;
    let s = System::new();
    let object = ObjectRef::anonymous(s.m.vm, PAGES).unwrap();
    for n in 0..PAGES {
        let done = object.write(n * PAGE_SIZE, 1, &mut |b| -> Result<_, ()> { Ok(b.len()) });
        assert!(done.is_ok());
    }
    let cases = [(true, RW, Access::Write), (false, RW, Access::Write), (true, Prot::READ, Access::Read)];
    for (at, (shared, prot, access)) in (0..).step_by(200).zip(cases) {
        let all = MapRequest { shared, prot, populate: true, object: Some((&object, 0)), ..request(at, PAGES) };
        s.map(&all).unwrap();
        for n in at..at + PAGES {
            let kind = s.fault(page(n), access);
            assert_eq!(kind, Ok(crate::FaultKind::Spurious), "page {n} of {shared} {prot:?}");
        }
    }
}

#[test]
fn a_page_is_shown_where_it_is() {
    let s = System::new();
    map(&s, 0, 4);
    assert_eq!((s.page_at(page(1)), s.next_leaf(range(0, 4))), (None, None));
    s.fault(page(1), Access::Write).unwrap();
    assert_eq!((s.next_leaf(range(0, 4)), s.next_leaf(range(2, 2))), (Some(page(1)), None));
    let shown = s.page_at(page(1) + 5).unwrap();
    assert!(shown.mapped && shown.alone && shown.dirty && !shown.shared && matches!(shown.place, PagePlace::Frame(_)));
    // After a fork the child has no leaf yet, and the page belongs to neither space alone.
    let child = s.fork().unwrap();
    let (mine, theirs) = (s.page_at(page(1)).unwrap(), child.page_at(page(1)).unwrap());
    assert!(!mine.alone && !theirs.alone && !theirs.mapped && mine.place == theirs.place);
    assert_eq!((s.page_at(page(9)), s.page_at(u64::MAX)), (None, None));
    drop(child);
}

#[test]
fn leaves_are_counted_in_whole_table_pages_and_in_parts() {
    let s = System::new();
    let span = crate::testing::SPAN;
    map(&s, 0, 2 * span);
    assert_eq!(s.leaves_in(range(0, 2 * span)), 0);
    for n in [0, 3, span - 1, span, 2 * span - 1] {
        s.fault(page(n), Access::Write).unwrap();
    }
    let in_part = |first, pages| s.leaves_in(range(first, pages));
    assert_eq!([in_part(0, 2 * span), in_part(0, span), in_part(span, span)], [5, 3, 2]);
    assert_eq!([in_part(1, span), in_part(4, span - 5), in_part(3, 0), in_part(3, 1)], [3, 0, 0, 1]);
}

#[test]
fn a_store_from_outside_reaches_one_space_only() {
    let s = System::new();
    map(&s, 0, 3);
    s.protect(range(2, 1), Prot::READ).unwrap();
    assert_eq!(s.store(page(0) + 4000, &[7; 200]), Ok(200));
    let child = s.fork().unwrap();
    assert_eq!(child.store(page(0) + 4090, b"0123456789"), Ok(10));
    let mut bytes = [0; 10];
    assert_eq!((s.read(page(0) + 4090, &mut bytes), bytes), (Ok(10), [7; 10]));
    assert_eq!((child.read(page(0) + 4090, &mut bytes), &bytes), (Ok(10), b"0123456789"));
    // A foreign store ends at a page that allows no store, and at an unmapped page.
    assert_eq!(s.store(page(2) - 8, &[1; 16]), Ok(8));
    assert_eq!(s.store(page(2), &[1]), Err(FaultError::Protection));
    assert_eq!(s.store(page(3), &[1]), Err(FaultError::NotMapped));
    assert_eq!(s.store(u64::MAX - 4, &[1; 16]), Err(FaultError::NotMapped));
    drop(child);
}

/// The expected commit charge of all spaces, in bytes.
fn committed(spaces: &[&Sp]) -> u64 {
    spaces.iter().map(|s| s.stats().covered).map(|c| c.data() + c.stack()).sum()
}

#[test]
fn the_commit_charge_follows_each_change_of_private_memory_that_can_be_stored_into() {
    let s = System::new();
    let commit_charge = s.vm().map_memory().commit_charge();
    let agrees = |want: u64, spaces: &[&Sp]| {
        assert_eq!((commit_charge.bytes() / PAGE_SIZE, commit_charge.bytes()), (want, committed(spaces)));
    };
    agrees(0, &[&s]);
    map(&s, 0, 8);
    agrees(8, &[&s]);
    s.protect(range(2, 2), Prot::READ).unwrap();
    agrees(6, &[&s]);
    s.protect(range(0, 8), RW).unwrap();
    agrees(8, &[&s]);
    let object = ObjectRef::anonymous(s.m.vm, 4).unwrap();
    s.map(&MapRequest { shared: true, object: Some((&object, 0)), ..request(20, 4) }).unwrap();
    agrees(8, &[&s]);
    s.map(&MapRequest { object: Some((&object, 0)), ..request(30, 4) }).unwrap();
    agrees(12, &[&s]);
    s.unmap(range(0, 4)).unwrap();
    agrees(8, &[&s]);
    let child = s.fork().unwrap();
    agrees(16, &[&s, &child]);
    child.clear();
    agrees(8, &[&s, &child]);
    drop(child);
    agrees(8, &[&s]);
    drop(s.fork().unwrap());
    agrees(8, &[&s]);
}

#[test]
fn the_commit_limit_refuses_memory_above_it_and_nothing_else() {
    let s = System::new();
    let commit_charge = s.vm().map_memory().commit_charge();
    let small = Prot::READ;
    map(&s, 0, 8);
    commit_charge.set_limit(10 * PAGE_SIZE);
    let wanted = |first, pages| s.map(&request(first, pages));
    assert_eq!(wanted(10, 3), Err(MapError::NoSpace));
    assert_eq!(commit_charge.bytes(), 8 * PAGE_SIZE);
    wanted(10, 2).unwrap();
    assert_eq!(wanted(20, 1), Err(MapError::NoSpace));
    // The new mapping replaces the same number of charged bytes.
    s.map(&MapRequest { at: Placement::Fixed(page(0)), ..request(0, 8) }).unwrap();
    // Inaccessible memory was not charged. To replace it by writable memory needs a charge, and the limit is reached.
    s.map(&MapRequest { prot: Prot::empty(), ..request(40, 4) }).unwrap();
    assert_eq!(s.map(&request(40, 4)), Err(MapError::NoSpace));
    s.unmap(range(40, 4)).unwrap();
    // Memory without the right to store is charged only when it gets that right.
    s.map(&MapRequest { prot: small, ..request(30, 4) }).unwrap();
    assert_eq!(s.protect(range(30, 4), RW), Err(MapError::NoSpace));
    assert_eq!(s.protect(range(0, 4), small), Ok(()));
    assert_eq!(s.protect(range(30, 4), RW), Ok(()));
    assert_eq!(s.fork().err(), Some(MapError::NoSpace));
    assert_eq!(commit_charge.bytes(), committed(&[&s]));
    assert_eq!(s.remap(range(10, 2), 3 * PAGE_SIZE, Move::No, false).err(), Some(MapError::NoSpace));
    commit_charge.set_limit(20 * PAGE_SIZE);
    let child = s.fork().unwrap();
    assert_eq!(commit_charge.bytes(), 20 * PAGE_SIZE);
    assert_eq!(child.map(&request(50, 1)), Err(MapError::NoSpace));
    commit_charge.set_limit(0);
    s.unmap(range(0, 8)).unwrap();
    assert_eq!(s.map(&request(0, 1)), Err(MapError::NoSpace));
    commit_charge.set_limit(CommitCharge::UNLIMITED);
    s.map(&request(0, 1)).unwrap();
    drop(child);
    assert_eq!(commit_charge.bytes(), committed(&[&s]));
}

#[test]
fn memory_of_another_arena_stays_charged_while_the_arenas_join() {
    let s = System::new();
    let commit_charge = s.vm().map_memory().commit_charge();
    map(&s, 0, 2);
    s.open_arena(1);
    quire_sync::hooks::threads::set_cpu(1);
    let anywhere = MapRequest::private(Placement::Any { hint: 0 }, 8 * PAGE_SIZE);
    s.map(&anywhere).unwrap();
    quire_sync::hooks::threads::set_cpu(0);
    assert_eq!(commit_charge.bytes(), 10 * PAGE_SIZE);
    commit_charge.set_limit(19 * PAGE_SIZE);
    assert_eq!(s.fork().err(), Some(MapError::NoSpace));
    assert_eq!((commit_charge.bytes(), committed(&[&s])), (10 * PAGE_SIZE, 10 * PAGE_SIZE));
    s.open_arena(1);
    commit_charge.set_limit(20 * PAGE_SIZE);
    let child = s.fork().unwrap();
    assert_eq!((commit_charge.bytes(), committed(&[&s, &child])), (20 * PAGE_SIZE, 20 * PAGE_SIZE));
}
