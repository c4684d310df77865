//! Models of the fault path's protocols, on the production functions, under loom and shuttle.
//!
//! Run them with `RUSTFLAGS="--cfg loom" cargo test --release -p quire-vm --lib`, and again with `shuttle` in place of
//! `loom`. Each model must pass. Then it must fail with each of its mutants ([`Mutant`](crate::mutant::Mutant)), which
//! leave out one step. Only loom finds a missing fence, because shuttle executes all threads in one total order. So
//! tests of fences run under loom only. The machine of the models has one table page, absent at first, and TLBs that
//! keep translations until an invalidation drops them. Assertions are made where no pin or lock is held.

mod ahead;
mod asking;
mod busy;
mod chains;
mod commit;
mod frames;
mod lists;
mod maps;
mod paging;
mod passes;
mod reaping;
mod shards;
mod store_protection;
mod store_times;

use crate::Phys;
use crate::cow::collapse::collapse;
use crate::map::kernel::KernelMap;
use crate::map::{MapRequest, Placement, Space, SpaceRef};
use crate::object::ObjectRef;
use crate::object::index::Slot;
use crate::testing::{Boot, KERNEL, TestMachine, boot, page};
use crate::types::{Access, PAGE_SIZE, Pfn, Prot, VirtRange};
use quire_sync::explore::{Arc, thread};
use quire_sync::hooks::threads::set_cpu;
use quire_sync::protocol;
use std::ptr::NonNull;

/// The fewest frames with which a system starts. More would slow the checkers: they track each atomic, and each
/// descriptor of a frame has a dozen.
const FRAMES: u64 = 160;
const ONE: VirtRange = VirtRange { start: crate::testing::BASE, end: crate::testing::BASE + PAGE_SIZE };

/// A system with one space, and a file of four pages. The file's first page is resident and filled with the byte 7.
struct World {
    space: SpaceRef<TestMachine>,
    file: ObjectRef<TestMachine>,
    // Dropped last, because the other fields live in its memory.
    boot: Boot,
}

impl World {
    fn new() -> Self {
        set_cpu(0);
        let boot = boot(FRAMES, 2);
        let space = Space::new(boot.vm).unwrap();
        let file = ObjectRef::anonymous(boot.vm, 4).unwrap();
        file.write(0, 1, &mut |b| -> Result<_, ()> {
            b.fill(7);
            Ok(b.len())
        })
        .unwrap();
        World { space, file, boot }
    }

    /// A world in which the space maps the file's first page at the first address.
    fn showing(shared: bool) -> Self {
        let w = World::new();
        let object = Some((&w.file, 0));
        let r = MapRequest { object, shared, ..MapRequest::private(Placement::Fixed(page(0)), PAGE_SIZE) };
        w.space.map(&r).unwrap();
        w
    }

    /// A world in which the space has private memory of `pages` pages from the first address on.
    fn private(pages: u64) -> Self {
        let w = World::new();
        w.space.map(&MapRequest::private(Placement::Fixed(page(0)), pages * PAGE_SIZE)).unwrap();
        w
    }

    /// Maps the file's page `key` at the `n`th address, shared.
    fn show(&self, n: u64, key: u64, prot: Prot) {
        let object = Some((&self.file, key * PAGE_SIZE));
        let r = MapRequest { object, shared: true, prot, ..MapRequest::private(Placement::Fixed(page(n)), PAGE_SIZE) };
        self.space.map(&r).unwrap();
    }

    /// The frames of all translations of the first address, in the page tables and in the TLBs.
    fn translations(&self) -> Vec<Pfn> {
        let pmap = self.space.pmap();
        pmap.peek(page(0)).into_iter().chain(pmap.cached(page(0))).map(|l| l.pfn).collect()
    }

    /// The frame of the file's first page, if it is resident.
    fn frame(&self) -> Option<Pfn> {
        self.frame_of(0)
    }

    /// The frame of the file's page `key`, if it is resident.
    fn frame_of(&self, key: u64) -> Option<Pfn> {
        let pin = self.boot.vm.epoch().pin();
        match self.file.index().get(key, &pin) {
            Slot::Page(pfn) => Some(pfn),
            _ => None,
        }
    }
}

/// The memory that a program reaches at `va`, after faults if needed. `None` if it gets a signal.
fn reach(space: &Space<TestMachine>, va: u64, access: Access) -> Option<*mut u8> {
    loop {
        if let Some(pfn) = space.pmap().translate(va, access) {
            return Some(space.vm().machine().frame_ptr(pfn));
        }
        space.fault(va, access).ok()?;
    }
}

fn load(space: &Space<TestMachine>, n: u64) -> Option<u8> {
    // SAFETY: `reach` returned a frame of the machine's RAM, and the checkers run one thread at a time.
    reach(space, page(n), Access::Read).map(|at| unsafe { at.read() })
}

fn store(space: &Space<TestMachine>, n: u64, value: u8) {
    if let Some(at) = reach(space, page(n), Access::Write) {
        // SAFETY: `reach` returned a frame of the machine's RAM, and the checkers run one thread at a time.
        unsafe { at.write(value) }
    }
}

/// Runs `theirs` on CPU 1 beside `mine` on CPU 0, then `after` on CPU 0 alone.
fn beside<A: Send + 'static, B>(
    world: World,
    theirs: impl FnOnce(&World) -> A + Send + 'static,
    mine: impl FnOnce(&World) -> B,
    after: impl FnOnce(&World, A, B),
) {
    let world = Arc::new(world);
    let other = world.clone();
    let t = thread::spawn(move || {
        set_cpu(1);
        theirs(&other)
    });
    set_cpu(0);
    let b = mine(&world);
    let a = t.join().unwrap();
    set_cpu(0);
    after(&world, a, b);
}

/// C2, enter versus remove: a fault enters a leaf of a file's page while the page is removed.
fn enter_against_remove() {
    beside(
        World::showing(true),
        |w| {
            let _any = load(&w.space, 0);
        },
        |w| w.file.discard(0..1),
        |w, _, _| {
            let (there, translations) = (w.frame(), w.translations());
            assert!(translations.iter().all(|t| Some(*t) == there), "a removed page is mapped");
        },
    );
}

protocol! {
    a_removed_page_has_no_mapping = enter_against_remove, Some(4);
    NoBusyCheck: "a removed page is mapped";
    #[cfg(loom)]
    NoFenceAfterLock: "a removed page is mapped";
    #[cfg(loom)]
    NoFenceBeforeScan: "a removed page is mapped";
}

/// C2, unflushed removals: a remover finds a leaf cleared that another remover has not flushed yet.
fn remove_against_unmap() {
    let w = World::showing(true);
    load(&w.space, 0);
    let frame = w.frame().unwrap();
    beside(
        w,
        move |w| {
            w.file.discard(0..1);
            // The frame is free now.
            w.space.pmap().cached(page(0)).any(|l| l.pfn == frame)
        },
        |w| w.space.unmap(ONE).unwrap(),
        |_, still_reached, _| assert!(!still_reached, "a free frame is reached through a TLB"),
    );
}

protocol! {
    a_removal_that_is_not_flushed_yet_is_seen_by_other_removers = remove_against_unmap, Some(2);
    NoUnflushedCheck: "a free frame is reached";
}

/// C3: a fault enters a leaf while its mapping is removed.
fn enter_against_unmap() {
    beside(
        World::showing(true),
        |w| {
            let _any = load(&w.space, 0);
        },
        |w| w.space.unmap(ONE).unwrap(),
        |w, _, _| {
            let translations = w.translations();
            assert!(translations.is_empty(), "an unmapped address is translated");
        },
    );
}

protocol! {
    an_unmapped_address_has_no_translation = enter_against_unmap, Some(2);
    NoStaleCheck: "an unmapped address is translated";
    #[cfg(loom)]
    NoFenceAfterMark: "an unmapped address is translated";
}

/// C2, copy-on-write: another CPU of the space reads the source through its TLB.
fn copy_against_load() {
    let w = World::showing(false);
    set_cpu(1);
    load(&w.space, 0);
    set_cpu(0);
    let source = w.frame().unwrap();
    beside(
        w,
        move |w| {
            // Once the copy is mapped, another thread may have stored into it, so a read of the source would be
            // outdated.
            let mapped = w.space.pmap().peek(page(0)).is_some_and(|l| l.pfn != source);
            let reads = w.space.pmap().translate(page(0), Access::Read);
            mapped && reads == Some(source)
        },
        |w| store(&w.space, 0, 9),
        |w, backwards, _| {
            assert!(!backwards, "a load reads an older value");
            assert_eq!(load(&w.space, 0), Some(9));
        },
    );
}

protocol! {
    memory_does_not_go_backwards_when_a_page_is_copied = copy_against_load, Some(3);
    FlushAfterInstall: "a load reads an older value";
}

/// C2, copy-on-write: the source is removed while it is copied, and its frame is overwritten.
fn copy_against_remove() {
    beside(
        World::showing(false),
        |w| {
            if let Some(at) = reach(&w.space, page(0), Access::Write) {
                // SAFETY: `reach` returned the first byte of a frame of the machine's RAM, so the second lies in it
                // too.
                unsafe { at.add(1).write(9) };
            }
        },
        |w| w.file.discard(0..1),
        |w, _, _| {
            let seen = load(&w.space, 0);
            assert!(matches!(seen, Some(7 | 0)), "a freed frame was copied: {seen:?}");
        },
    );
}

protocol! {
    a_copy_never_reads_a_freed_frame = copy_against_remove, Some(3);
    NoSourceCheck: "a freed frame was copied";
}

/// C2, two faults: one copies the file's page into the front, the other maps the file's page for a load.
fn copy_against_enter() {
    beside(
        World::showing(false),
        |w| {
            let _any = load(&w.space, 0);
        },
        |w| {
            store(&w.space, 0, 9);
            // The copy's leaf is dropped, because the other fault must not find it.
            w.space.pmap().forget(w.boot.vm, page(0));
        },
        |w, _, _| assert_eq!(load(&w.space, 0), Some(9), "the page behind a copy is mapped"),
    );
}

protocol! {
    a_page_behind_another_has_no_mapping = copy_against_enter, Some(3);
    NoFrontCheck: "the page behind a copy is mapped";
}

/// C2, insert: a hole is filled while the file is truncated.
fn insert_against_truncate() {
    let w = World::showing(true);
    w.file.discard(0..1);
    beside(
        w,
        |w| {
            let _any = w.space.fault(page(0), Access::Write);
        },
        |w| w.file.set_size(0),
        |w, _, _| {
            let (resident, translations) = (w.file.resident(), w.translations());
            assert!(resident == 0 && translations.is_empty(), "a page is left beyond the end");
        },
    );
}

protocol! {
    no_page_is_left_beyond_the_end = insert_against_truncate, Some(4);
    NoEndCheck: "a page is left beyond the end";
    #[cfg(loom)]
    NoFenceAfterInsert: "a page is left beyond the end";
}

/// Two faults fill the same empty address.
fn fill_against_fill() {
    beside(
        World::private(1),
        |w| reach(&w.space, page(0), Access::Write).map(|p| p.addr()),
        |w| reach(&w.space, page(0), Access::Write).map(|p| p.addr()),
        |w, a, b| {
            assert!(a.is_some() && a == b, "two pages at one address");
            assert_eq!(w.space.stats().resident_pages, 1);
        },
    );
}

protocol! {
    an_address_has_one_page = fill_against_fill, Some(3);
    FillNotAtomic: "two pages at one address";
}

/// C3, fork: the child has the memory of one moment, whatever the parent's other thread stores.
fn fork_against_store() {
    let w = World::private(1);
    store(&w.space, 0, 1);
    fork_beside_store(w, None);
}

/// Forks the space while another CPU stores into it. `sibling` is an older child, which must keep the page's first
/// content.
fn fork_beside_store(w: World, sibling: Option<SpaceRef<TestMachine>>) {
    beside(
        w,
        |w| store(&w.space, 0, 2),
        |w| {
            let child = w.space.fork().unwrap();
            let first = load(&child, 0);
            (first, child)
        },
        |w, _, (first, child)| {
            let then = load(&child, 0);
            assert_eq!(load(&w.space, 0), Some(2));
            store(&w.space, 0, 3);
            assert!([then, load(&child, 0)] == [first; 2], "the parent's store reaches the child");
            assert!(matches!(then, Some(1 | 2)));
            assert!(sibling.is_none_or(|s| load(&s, 0) == Some(1)), "the parent's store reaches the child");
        },
    );
}

protocol! {
    a_childs_memory_is_one_moments = fork_against_store, Some(2);
    NoStaleCheck: "the parent's store reaches the child";
}

/// C3, fork: as `fork_against_store`, but no leaf allows stores at the beginning, and a store needs no copy.
fn second_fork_against_store() {
    let w = World::private(1);
    store(&w.space, 0, 1);
    drop(w.space.fork().unwrap());
    fork_beside_store(w, None);
}

protocol! {
    a_second_childs_memory_is_one_moments = second_fork_against_store, Some(3);
    StoresUnnoted: "the parent's store reaches the child";
    #[cfg(shuttle)]
    NotedUnlooked: "the parent's store reaches the child";
}

/// C3, fork: as `second_fork_against_store`, but a store copies the page, because the first child still exists.
fn second_fork_against_copy() {
    let w = World::private(1);
    store(&w.space, 0, 1);
    let sibling = w.space.fork().unwrap();
    fork_beside_store(w, Some(sibling));
}

protocol! {
    a_childs_memory_is_one_moments_though_a_sibling_has_it_too = second_fork_against_copy, Some(2);
    StoresUnnoted: "the parent's store reaches the child";
}

/// C3, fork: as `second_fork_against_store`, but the store puts the first page into the front while the fork reads the
/// front. The fork merges the front with the layers behind it, or puts new fronts before it.
fn second_fork_against_fill() {
    let w = World::private(2);
    store(&w.space, 0, 1);
    drop(w.space.fork().unwrap());
    beside(
        w,
        |w| store(&w.space, 1, 2),
        |w| {
            let child = w.space.fork().unwrap();
            let first = [0, 1].map(|n| load(&child, n));
            (first, child)
        },
        |w, _, (first, child)| {
            assert_eq!([0, 1].map(|n| load(&w.space, n)), [Some(1), Some(2)]);
            (0..2).for_each(|n| store(&w.space, n, 3));
            assert_eq!([0, 1].map(|n| load(&child, n)), first, "the parent's store reaches the child");
            assert!(matches!(first, [Some(1), Some(0 | 2)]));
        },
    );
}

protocol! {
    the_memory_of_a_child_is_of_one_moment_as_the_front_fills = second_fork_against_fill, Some(2);
    StoresUnnoted: "the parent's store reaches the child";
}

/// C9: the arenas (parts of the map with their own locks) are merged into the first one while a fault looks its entry
/// up.
fn join_against_load() {
    let w = World::private(1);
    set_cpu(1);
    w.space.open_arena(1);
    let at = w.space.map(&MapRequest::private(Placement::Any { hint: 0 }, PAGE_SIZE)).unwrap();
    assert_eq!(at, page(2), "the other CPU's stretch");
    store(&w.space, 2, 5);
    w.space.pmap().forget(w.boot.vm, page(2));
    set_cpu(0);
    beside(
        w,
        |w| load(&w.space, 2),
        |w| w.space.join_arenas().unwrap(),
        |w, seen, ()| {
            assert_eq!(seen, Some(5), "an entry is missed while arenas join");
            assert_eq!(load(&w.space, 2), Some(5), "an entry is lost while arenas join");
        },
    );
}

protocol! {
    an_entry_is_found_while_arenas_join = join_against_load, Some(3);
    MissInClosedArena: "an entry is missed while arenas join";
}

/// C9: the arenas are merged into the first one while a walk from an unmapped address reaches an entry of another one.
fn join_against_walk() {
    let w = World::private(1);
    set_cpu(1);
    w.space.open_arena(1);
    let at = w.space.map(&MapRequest::private(Placement::Any { hint: 0 }, PAGE_SIZE)).unwrap();
    assert_eq!(at, page(2), "the other CPU's stretch");
    set_cpu(0);
    beside(
        w,
        |w| w.space.is_mapped(VirtRange { start: page(1), end: page(4) }),
        |w| w.space.join_arenas().unwrap(),
        |_, seen, ()| assert!(seen, "a walk misses an entry while arenas join"),
    );
}

protocol! {
    a_walk_meets_the_entries_while_arenas_join = join_against_walk, Some(2);
    HomeArenaFirst: "a walk misses an entry";
}

/// Private memory after a fork whose child has exited. Page 0 is in the layer behind the front, pages 1 and 2 are in
/// the front.
fn layered() -> World {
    let w = World::private(3);
    store(&w.space, 0, 1);
    let child = w.space.fork().unwrap();
    store(&w.space, 1, 2);
    store(&w.space, 2, 3);
    drop(child);
    w
}

/// Merges the layers of the space's first mapping, as a fork does, but without a stale mark, so that faults run during
/// the merge.
fn merge(w: &World) {
    let vm = w.boot.vm;
    let _writer = w.space.keep_writers_out(page(0));
    let front = {
        let pin = vm.epoch().pin();
        w.space.lookup(page(0), &pin).map(|e| NonNull::from(e.front()))
    };
    // SAFETY: the writer of the space is held, and the pin that found the front is gone.
    unsafe { collapse(vm, front.unwrap()) };
}

/// A page moves to a layer nearer to the front while a fault looks for it.
fn move_against_load() {
    let w = layered();
    // The leaf is dropped, so that the load faults.
    w.space.pmap().forget(w.boot.vm, page(0));
    beside(
        w,
        |w| load(&w.space, 0),
        merge,
        |w, seen, _| {
            assert_eq!(seen, Some(1), "a page is missed while it moves");
            assert_eq!(load(&w.space, 0), Some(1), "a page is lost by moving");
        },
    );
}

protocol! {
    a_page_that_moves_is_never_missed = move_against_load, Some(1);
    // Under shuttle only, like the next two: loom takes more than a minute, and the mutant only changes the order of
    // steps.
    #[cfg(shuttle)]
    EmptyBeforeFill: "a page is missed while it moves";
}

/// A fault copies a page, because a child still shows the page. At the same time the child exits, and the page moves to
/// another layer.
#[cfg(shuttle)]
fn move_against_copy() {
    let w = World::private(3);
    store(&w.space, 0, 1);
    let child = w.space.fork().unwrap();
    store(&w.space, 1, 2);
    store(&w.space, 2, 3);
    beside(
        w,
        |w| {
            if let Some(at) = reach(&w.space, page(0), Access::Write) {
                // SAFETY: `reach` returned the first byte of a frame of the machine's RAM, so the second lies in it
                // too.
                unsafe { at.add(1).write(9) };
            }
        },
        |w| {
            drop(child);
            merge(w);
        },
        |w, _, _| assert_eq!(load(&w.space, 0), Some(1), "a page is lost by moving"),
    );
}

protocol! {
    #[cfg(shuttle)]
    a_page_that_is_being_copied_is_not_lost_by_moving = move_against_copy, Some(1);
    BusyHides: "a page is lost by moving";
}

/// A page of a layer that a child shows is being copied while a fork may remove the layer from the parent's chain.
fn take_out_against_copy() {
    let w = World::private(1);
    store(&w.space, 0, 1);
    let first = w.space.fork().unwrap();
    beside(
        w,
        |w| {
            if let Some(at) = reach(&w.space, page(0), Access::Write) {
                // SAFETY: `reach` returned the first byte of a frame of the machine's RAM, so the second lies in it
                // too.
                unsafe { at.add(1).write(9) };
            }
        },
        |w| w.space.fork().unwrap(),
        move |w, _, second| {
            assert_eq!([&first, &second, &w.space].map(|s| load(s, 0)), [Some(1); 3], "a page is lost with its layer");
            merge(w);
            let pin = w.boot.vm.epoch().pin();
            let behind =
                core::iter::successors(w.space.lookup(page(0), &pin).unwrap().front().behind(), |b| b.behind());
            assert!(behind.count() < 2, "a hidden layer stays");
        },
    );
}

protocol! {
    a_layer_stays_while_its_page_is_being_copied = take_out_against_copy, Some(2);
    BusyHides: "a page is lost with its layer";
}

/// Another process reads a page of the parent while the parent forks. The fork removes the page's layer from the
/// parent's chain, so an earlier child alone has the page, and stores into it.
fn foreign_read_against_fork() {
    let w = World::private(1);
    store(&w.space, 0, 1);
    let first = w.space.fork().unwrap();
    beside(
        w,
        |w| {
            let mut byte = [0];
            w.space.read(page(0), &mut byte).map(|_| byte[0])
        },
        move |w| {
            store(&w.space, 0, 2);
            let second = w.space.fork().unwrap();
            store(&first, 0, 9);
            (first, second)
        },
        |_, seen, _| assert!(matches!(seen, Ok(1 | 2)), "a reader sees another space's byte: {seen:?}"),
    );
}

protocol! {
    a_page_that_is_read_from_outside_is_of_that_space = foreign_read_against_fork, Some(2);
    OneForeignLook: "a reader sees another space's byte";
}

/// Idle page tables are dropped while a page that they map is removed. The remover finds an empty leaf, which may not
/// be flushed yet.
fn drop_tables_against_remove() {
    let w = World::showing(true);
    load(&w.space, 0);
    let frame = w.frame().unwrap();
    beside(
        w,
        move |w| {
            w.file.discard(0..1);
            // The frame is free now.
            w.space.pmap().cached(page(0)).any(|l| l.pfn == frame)
        },
        |w| w.space.drop_tables(),
        |_, still_reached, _| assert!(!still_reached, "a free frame is reached through a TLB"),
    );
}

protocol! {
    a_remover_sees_that_dropped_tables_are_not_flushed_yet = drop_tables_against_remove, Some(2);
    NoUnflushedCheck: "a free frame is reached";
}

/// Idle page tables are dropped while a thread of the space stores. In any order the store must not be lost.
fn drop_tables_against_store() {
    let w = World::private(1);
    store(&w.space, 0, 1);
    beside(
        w,
        |w| store(&w.space, 0, 2),
        |w| w.space.drop_tables(),
        |w, _, _| {
            assert_eq!(load(&w.space, 0), Some(2), "a store is lost");
            assert_eq!(w.space.stats().resident_pages, 1, "an address has two pages");
        },
    );
}

protocol! {
    a_store_is_there_whenever_tables_are_dropped = drop_tables_against_store, Some(2);
}

/// The first fault after a drop of page tables maps all resident pages while one of them is unmapped.
fn refill_against_unmap() {
    let w = World::private(2);
    store(&w.space, 0, 1);
    store(&w.space, 1, 2);
    w.space.drop_tables();
    beside(
        w,
        |w| load(&w.space, 1),
        |w| w.space.unmap(ONE).unwrap(),
        |w, seen, _| {
            assert_eq!(seen, Some(2));
            assert!(w.translations().is_empty(), "an unmapped address is translated");
        },
    );
}

protocol! {
    a_fault_that_maps_all_residents_maps_none_that_is_unmapped = refill_against_unmap, Some(2);
    NoStaleCheck: "an unmapped address is translated";
}

/// The first fault after a drop of page tables maps all resident pages of a file while one of them is removed.
fn refill_against_remove() {
    let w = World::new();
    let object = Some((&w.file, 0));
    let r = MapRequest { object, shared: true, ..MapRequest::private(Placement::Fixed(page(0)), 2 * PAGE_SIZE) };
    w.space.map(&r).unwrap();
    // The request has a reference to the file, which must be dropped before the system.
    drop(r);
    w.file.write(PAGE_SIZE, 1, &mut |b| -> Result<_, ()> { Ok(b.len()) }).unwrap();
    load(&w.space, 0);
    w.space.drop_tables();
    beside(
        w,
        |w| load(&w.space, 1),
        |w| w.file.discard(0..1),
        |w, _, _| {
            let (there, translations) = (w.frame(), w.translations());
            assert!(translations.iter().all(|t| Some(*t) == there), "a removed page is mapped");
        },
    );
}

protocol! {
    a_fault_that_maps_all_residents_maps_none_that_is_removed = refill_against_remove, Some(2);
}

/// A page is unmapped whose leaf a drop of idle page tables has removed and not flushed yet.
fn unmap_against_drop_tables() {
    let w = World::showing(true);
    load(&w.space, 0);
    beside(
        w,
        |w| w.space.drop_tables(),
        |w| {
            w.space.unmap(ONE).unwrap();
            w.space.pmap().cached(page(0)).next().is_some()
        },
        |_, _, still_reached| assert!(!still_reached, "an unmapped address is still reached through a TLB"),
    );
}

protocol! {
    an_unmap_flushes_dropped_tables_that_are_not_flushed_yet = unmap_against_drop_tables, Some(2);
    // Under loom only, because shuttle's random schedules hardly ever stop a thread at the needed place.
    #[cfg(loom)]
    NoUnflushedSweep: "an unmapped address is still reached";
}

/// Two CPUs release and reuse kernel addresses at the same time.
fn kernel_addresses_are_reused() {
    set_cpu(0);
    let boot = Arc::new(boot(FRAMES, 2));
    let vm = boot.vm;
    // The map is leaked, because its ranges need a `'static` reference. Its structures lie in the system's memory.
    // SAFETY: this is the machine's only kernel map, and nothing else is mapped at `KERNEL`.
    let map: &'static KernelMap<TestMachine> =
        Box::leak(Box::new(unsafe { KernelMap::new(vm, KERNEL, PAGE_SIZE) }.unwrap()));
    // The map has addresses for one range of each CPU, without room for more, so that addresses are exhausted and
    // reused.
    let use_some = move |cpu: usize| {
        set_cpu(cpu);
        let mut stale = false;
        for _ in 0..2 {
            if let Ok(range) = map.buffer(0x1) {
                let va = range.range().start;
                // Every CPU's translation of the address must be that of the current mapping.
                let now = vm.machine().kernel_leaf(va);
                stale |= vm.machine().kernel_translate(va) != now;
                set_cpu(1 - cpu);
                stale |= vm.machine().kernel_translate(va) != now;
                set_cpu(cpu);
            }
        }
        stale
    };
    let keep = boot.clone();
    let t = thread::spawn(move || {
        let _keep = keep;
        use_some(1)
    });
    let mine = use_some(0);
    let theirs = t.join().unwrap();
    set_cpu(0);
    assert!(!mine && !theirs, "a kernel address is reached by an old translation");
    map.settle();
}

protocol! {
    a_kernel_address_is_reused_after_all_cpus_flushed_it = kernel_addresses_are_reused, Some(2);
    ReuseBeforeFlush: "reached by an old translation";
}
