//! The models of this crate's protocols under loom and shuttle. They run the production code over tiny tables: three
//! levels of two entries.
//!
//! Run: `RUSTFLAGS="--cfg loom" cargo test --release -p quire-pmap`, and the same with `shuttle`; see
//! `quire_sync::protocol`.

use crate::format::{Format, Rights, index};
use crate::hardware::Drops;
use crate::mmu::CpuMmu;
use crate::mutant::{Mutant, mutant};
use crate::root::Root;
use crate::roots::{Fan, Own, Part, Roots};
use crate::shootdown::flush_here;
use crate::shootdown::residency::Residency;
use crate::table::{Memory, TableEntries, TableState};
use crate::tree::{Dead, Locked, Tree};
use core::marker::PhantomData;
use quire_sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence_full};
use quire_sync::cpuset::CpuMask;
use quire_sync::explore::{Arc, thread};
use quire_sync::protocol;
use quire_vm::machine::{Enter, Leaf};
use quire_vm::tlb::flush::FlushSet;
use quire_vm::{MemoryType, OutOfMemory, PAGE_SIZE, Pfn, Prot, VirtRange};

/// The leaf that the models enter; it maps frame 7.
const LEAF: u64 = 1 | 7 << 12;
const LEVELS: u32 = Tiny::LEVELS;
const EVERYTHING: VirtRange = VirtRange { start: 0, end: PAGE_SIZE << LEVELS };

/// The format of the models: three levels; an entry is a frame number and a present bit.
struct Tiny;

impl Format for Tiny {
    const LEVELS: u32 = 3;
    const USER: VirtRange = EVERYTHING;
    const KERNEL_HALF: u64 = 1 << 63;
    const PAGE_DROPS_UPPER: bool = true;
    const CACHES_ABSENT: bool = false;
    const STORES_BELOW: u64 = 0;
    const ACCESSED: u64 = 2;
    fn present(word: u64) -> bool {
        word & 1 != 0
    }
    fn frame(word: u64) -> Pfn {
        Pfn::containing(word)
    }
    fn user_table(child: Pfn) -> u64 {
        child.address() | 1
    }
    fn kernel_table(child: Pfn) -> u64 {
        child.address() | 1
    }
    fn writable(_word: u64) -> bool {
        false
    }
    fn user_leaf(new: Enter) -> u64 {
        new.pfn.address() | 1
    }
    fn read_leaf(_word: u64) -> Option<Leaf> {
        None
    }
    fn strengthen(old: u64, add: u64) -> u64 {
        old | add
    }
    fn weaken(old: u64, _keep: Prot) -> u64 {
        old
    }
    fn kernel_leaf(pa: u64, _level: u32, _rights: Rights, _memory: MemoryType) -> u64 {
        pa | 1
    }
    fn with_rights(word: u64, _rights: Rights) -> u64 {
        word
    }
    fn rights(_word: u64) -> Rights {
        Rights::Read
    }
    fn is_leaf(_word: u64, level: u32) -> bool {
        level == 0
    }
}

struct Cell {
    slots: TableEntries,
    state: TableState,
    occupied: AtomicU64,
    writable: AtomicU64,
}

/// Table pages in an array. The model never reuses a table page, because it assumes that the epoch works. If a thread
/// uses an unlinked table page, the leaf that it enters there is lost, and the model finds this.
struct Pages {
    cells: Vec<Cell>,
    next: AtomicUsize,
    root: Root,
    /// The number of the next root to make; roots are taken from the last cell down.
    next_root: AtomicUsize,
    space: Residency,
    fan: Fan,
}

impl Pages {
    fn new(n: usize) -> Pages {
        Pages::with_roots(n, 0)
    }

    /// As `new`, with cells for `roots` further roots.
    fn with_roots(n: usize, roots: usize) -> Pages {
        // The level of a cell follows from its number: the root first, then one table page a level from the top down.
        // The models allocate in that order. Further roots are the last cells.
        let level = |i: usize| if i < n { (LEVELS - 1).saturating_sub(i as u32) } else { LEVELS - 1 };
        let cell = |i| Cell {
            slots: core::array::from_fn(|_| AtomicU64::new(0)),
            state: TableState::new(level(i)),
            occupied: AtomicU64::new(0),
            writable: AtomicU64::new(0),
        };
        Pages {
            cells: (0..n + roots).map(cell).collect(),
            next: AtomicUsize::new(1),
            root: Root::new(Some(Pfn(0))),
            next_root: AtomicUsize::new(n + roots - 1),
            space: Residency::new(1),
            fan: Fan::new(),
        }
    }

    /// As `Tables::make_root`, but returns the CPUs that run the space instead of sending them the request.
    fn make_root(&self) -> Result<CpuMask, OutOfMemory> {
        let new = Pfn(self.next_root.fetch_sub(1, Ordering::Relaxed) as u64);
        Ok(self.root.put(new, &self.space).unwrap_or_else(|| CpuMask::first(0)))
    }

    /// As `Pmap::drop_root`, but returns the root and the CPUs to ask instead of sending the request.
    fn drop_root(&self) -> Option<(Pfn, CpuMask)> {
        self.root.take(self, &self.space, &self.fan)
    }
}

impl Memory for Pages {
    type Pin<'a> = ();
    fn pin(&self) {}
    fn slots(&self, t: Pfn) -> &TableEntries {
        &self.cells[t.0 as usize].slots
    }
    fn state(&self, t: Pfn) -> &TableState {
        &self.cells[t.0 as usize].state
    }
    fn occupied(&self, t: Pfn) -> &AtomicU64 {
        &self.cells[t.0 as usize].occupied
    }
    fn writable(&self, t: Pfn) -> &AtomicU64 {
        &self.cells[t.0 as usize].writable
    }
    fn allocate(&self, _level: u32) -> Result<Pfn, OutOfMemory> {
        let i = self.next.fetch_add(1, Ordering::Relaxed);
        if i < self.cells.len() { Ok(Pfn(i as u64)) } else { Err(OutOfMemory) }
    }
    fn free(&self, _t: Pfn) {}
    fn retire(&self, _t: Pfn) {}
    fn set_next(&self, _t: Pfn, _next: Option<Pfn>) {}
    fn next(&self, _t: Pfn) -> Option<Pfn> {
        None
    }
}

fn tree(memory: &Pages) -> Tree<'_, Tiny, Pages> {
    Tree { memory, root: &memory.root, fan: &memory.fan, format: PhantomData }
}

/// Locks the last-level table page over `va`, as `Pmap::table` does.
fn lock_last(memory: &Pages, va: u64) -> Locked<'_> {
    let make = || memory.make_root().map(drop);
    tree(memory).lock_last(va, &memory.pin(), make).expect("the model has table pages enough")
}

/// Prunes all empty table pages, as `Pmap::prune` does. Returns the first unlinked page.
fn prune(memory: &Pages) -> Option<Pfn> {
    let (mut dead, mut at) = (Dead::new(), 0);
    while at < EVERYTHING.end {
        at = tree(memory).prune_some(VirtRange { start: at, end: EVERYTHING.end }, &mut dead);
    }
    dead.first
}

fn enter(memory: &Pages, va: u64) {
    let t = lock_last(memory, va);
    let i = index(va, 0);
    if t.view.slots[i].load(Ordering::Relaxed) == 0 {
        t.view.put(i, LEAF);
    }
}

/// Returns the leaf that a hardware walk of `va` would find; zero if there is none.
fn walk(memory: &Pages, va: u64) -> u64 {
    let t = tree(memory).lock_next(VirtRange { start: va, end: va + PAGE_SIZE });
    t.map_or(0, |t| t.view.slots[index(va, 0)].load(Ordering::Relaxed))
}

/// Model: a fault enters a leaf while the empty table page that it would use is pruned.
fn fault_against_prune() {
    let pages = Arc::new(Pages::new(8));
    drop(lock_last(&pages, 0));
    let other = pages.clone();
    let fault = thread::spawn(move || enter(&other, 0));
    prune(&pages);
    fault.join().unwrap();
    assert_eq!(walk(&pages, 0), LEAF, "a leaf is lost in a dead table page");
}

protocol! {
    a_fault_and_the_pruner_never_lose_a_leaf = fault_against_prune, Some(3);
    TableNoDeadCheck: "dead table page";
    LinkNoDeadCheck: "dead table page";
    PruneNoChildLock: "dead table page";
}

/// Model: two faults need the same absent table page.
fn fault_against_fault() {
    let pages = Arc::new(Pages::new(8));
    let other = pages.clone();
    let fault = thread::spawn(move || enter(&other, 0));
    enter(&pages, PAGE_SIZE);
    fault.join().unwrap();
    let there = (walk(&pages, 0), walk(&pages, PAGE_SIZE));
    assert_eq!(there, (LEAF, LEAF), "a leaf is in a table page that is not linked");
}

protocol! {
    two_faults_link_one_table_page = fault_against_fault, Some(3);
    LinkUnlooked: "a leaf is in a table page that is not linked";
}

/// Model of C3: a writer marks an entry stale, fences, and skips absent table pages. A fault that links an absent table
/// page at the same time must find the mark.
fn stale_against_link() {
    let world = Arc::new((Pages::new(4), AtomicBool::new(false)));
    let other = world.clone();
    let fault = thread::spawn(move || {
        let (pages, stale) = &*other;
        let t = lock_last(pages, 0);
        if !stale.load(Ordering::Acquire) {
            t.view.put(0, LEAF);
        }
    });
    let (pages, stale) = &*world;
    stale.store(true, Ordering::Release);
    fence_full();
    if let Some(t) = tree(pages).lock_next(EVERYTHING)
        && t.view.slots[0].load(Ordering::Relaxed) != 0
    {
        t.view.owe();
        t.view.take(0);
        let _last = t.view.state.settle();
    }
    fault.join().unwrap();
    assert_eq!(walk(pages, 0), 0, "a leaf outlives its entry");
}

protocol! {
    the_fault_sees_the_stale_mark_or_the_writer_its_table_page = stale_against_link, None;
    #[cfg(loom)]
    TableNoFence: "outlives";
}

/// Model of C2: a removal that is not flushed is visible to other removers. One CPU has cleared a leaf and not flushed
/// yet, while a pruner runs. A remover that finds no leaf must still flush before it frees the frame.
fn remover_against_unflushed(prunes: bool) {
    struct World {
        pages: Pages,
        /// The user CPU's cached translation.
        cached: AtomicBool,
        ours: AtomicBool,
    }
    let world = Arc::new(World { pages: Pages::new(8), cached: AtomicBool::new(true), ours: AtomicBool::new(true) });
    enter(&world.pages, 0);
    let w = world.clone();
    let unmapper = thread::spawn(move || {
        {
            let t = lock_last(&w.pages, 0);
            t.view.owe();
            t.view.take(0);
        }
        if prunes {
            prune(&w.pages);
        }
        w.cached.swap(false, Ordering::AcqRel);
        // Does what `Pmap::settle` does, for the table page with this number.
        if !mutant(Mutant::TakeNotCounted) {
            let _last = w.pages.state(Pfn(2)).settle();
        }
    });
    // The remover has marked the page busy and fenced.
    fence_full();
    let (found, owes) = match tree(&world.pages).lock_next(VirtRange { start: 0, end: PAGE_SIZE }) {
        Some(t) if t.view.slots[0].load(Ordering::Relaxed) != 0 => {
            // The leaf is still there. The unmapper has not begun, and will flush its own removal.
            (true, false)
        }
        Some(t) => (false, t.view.state.unflushed()),
        None => (false, tree(&world.pages).unflushed(0)),
    };
    if !found {
        if owes {
            world.cached.swap(false, Ordering::AcqRel);
        }
        world.ours.store(false, Ordering::Release);
        assert!(!world.cached.load(Ordering::Acquire), "a program reaches a frame of another owner");
    }
    unmapper.join().unwrap();
}

protocol! {
    a_remover_never_trusts_an_empty_entry_that_is_not_flushed = || remover_against_unflushed(false), Some(3);
    TakeNotCounted: "a frame of another owner";
}
protocol! {
    a_table_page_with_unflushed_removals_stays = || remover_against_unflushed(true), Some(3);
    PruneUnflushed: "a frame of another owner";
}

/// Model of C2 and C4. One CPU removes a leaf, and counts it as flushed if no CPU runs the space. Another CPU begins to
/// run the space, with an old translation under its tag. A remover that finds the leaf gone gives the frame to a new
/// owner.
fn remover_against_flushed_at_once() {
    /// Bits of `World::frame`. `CACHED`: the user CPU has the translation cached. `OURS`: the frame belongs to the
    /// program. One word has both, because the CPU tests both at one moment.
    const CACHED: u64 = 1;
    const OURS: u64 = 2;
    struct World {
        pages: Pages,
        space: Residency,
        frame: AtomicU64,
    }
    impl World {
        /// Flushes the space, as `Pmap::flush` does.
        fn flush(&self) {
            if self.space.bump(false).1.contains(0) {
                self.frame.fetch_and(!CACHED, Ordering::AcqRel);
            }
        }
    }
    let frame = AtomicU64::new(CACHED | OURS);
    let world = Arc::new(World { pages: Pages::new(8), space: Residency::new(1), frame });
    enter(&world.pages, 0);
    let seen = world.space.generation();
    let w = world.clone();
    let cpu = thread::spawn(move || {
        if w.space.arrive(0).0 != seen && walk(&w.pages, 0) == 0 {
            w.frame.fetch_and(!CACHED, Ordering::AcqRel);
        }
        w.space.arrived(0);
        let now = w.frame.fetch_or(0, Ordering::AcqRel);
        assert!(now & CACHED == 0 || now & OURS != 0, "a program reaches a frame of another owner");
    });
    let w = world.clone();
    let unmapper = thread::spawn(move || {
        let mut owed = false;
        {
            let t = lock_last(&w.pages, 0);
            t.view.take_alone(0, &w.space, || {
                t.view.owe();
                owed = true;
            });
        }
        if owed {
            w.flush();
            let _last = w.pages.state(Pfn(2)).settle();
        }
    });
    // The remover has marked the page busy and fenced.
    fence_full();
    let found = match tree(&world.pages).lock_next(VirtRange { start: 0, end: PAGE_SIZE }) {
        Some(t) if t.view.slots[0].load(Ordering::Relaxed) != 0 => None,
        Some(t) => Some(t.view.state.unflushed()),
        None => Some(tree(&world.pages).unflushed(0)),
    };
    if let Some(owes) = found {
        if owes {
            world.flush();
        }
        world.frame.fetch_and(!OURS, Ordering::AcqRel);
    }
    unmapper.join().unwrap();
    cpu.join().unwrap();
}

protocol! {
    a_removal_that_asks_no_cpu_is_flushed_once_seen = remover_against_flushed_at_once, Some(2);
    TakenUnasked: "a frame of another owner";
}

/// Model of C4: a CPU switches in with stale translations under its PCID while another flushes.
fn switch_in_against_flush() {
    struct World {
        space: Residency,
        pte: AtomicBool,
        cached: AtomicBool,
    }
    let world = Arc::new(World { space: Residency::new(1), pte: AtomicBool::new(true), cached: AtomicBool::new(true) });
    let w = world.clone();
    let seen = world.space.generation();
    let cpu = thread::spawn(move || {
        if w.space.arrive(0).0 != seen {
            w.cached.store(w.pte.load(Ordering::Acquire), Ordering::Relaxed);
        }
        w.space.arrived(0);
        // From here on the CPU runs the space. It answers requests before the frame is freed.
        w.cached.load(Ordering::Relaxed)
    });
    world.pte.swap(false, Ordering::AcqRel);
    let (_, targets) = world.space.bump(false);
    let asked = targets.contains(0);
    let uses = cpu.join().unwrap();
    assert!(asked || !uses, "a CPU uses a translation that a completed flush has removed");
}

protocol! {
    a_cpu_that_switches_in_is_asked_or_catches_up = switch_in_against_flush, None;
    #[cfg(loom)]
    ArriveNoFence: "completed flush";
    #[cfg(loom)]
    BumpNoFence: "completed flush";
}

/// Model: a CPU leaves a space while another CPU destroys it and interrupts the CPUs that have it loaded. Then the
/// memory of the space becomes another space.
fn leave_against_destroy() {
    let space = Arc::new(Residency::new(1));
    let _caught_up = space.arrive(0);
    space.arrived(0);
    let leaver = {
        let space = space.clone();
        thread::spawn(move || space.leave(0))
    };
    let gone = space.loaded().is_empty();
    if gone {
        // The memory is now a new space, in which the same CPU is lazy.
        space.idle(0);
    }
    leaver.join().unwrap();
    assert!(!gone || space.loaded().contains(0), "a CPU that has left a space writes into it");
}

protocol! {
    a_cpu_that_leaves_a_space_touches_nothing_of_the_next = leave_against_destroy, None;
    #[cfg(shuttle)]
    LeaveLooksLate: "a CPU that has left a space writes into it";
}

/// A CPU with some cached translations of the space that it runs. It may walk the tables again at any time.
struct Target {
    space: Residency,
    state: CpuMmu,
    pte: [AtomicBool; 3],
    cached: [AtomicBool; 3],
    /// For each page, the generation of a flush whose interrupt has arrived at the CPU; zero if there is none.
    asked: [AtomicU64; 3],
}

impl Target {
    fn new() -> Target {
        let yes = || core::array::from_fn(|_| AtomicBool::new(true));
        let target = Target {
            space: Residency::new(1),
            state: CpuMmu::new(),
            pte: yes(),
            cached: yes(),
            asked: core::array::from_fn(|_| AtomicU64::new(0)),
        };
        target.space.arrive(0);
        target.state.set_seen(target.space.generation());
        target
    }

    /// Removes the leaf of page `i`, and raises the generation. Returns the new generation.
    fn unmap(&self, i: usize) -> u64 {
        self.pte[i].store(false, Ordering::Release);
        let (generation, targets) = self.space.bump(false);
        assert!(targets.contains(0));
        generation
    }

    fn ask(&self, i: usize, generation: u64) {
        // A swap, because with a plain store loom would let the target miss it.
        self.asked[i].swap(generation, Ordering::AcqRel);
    }

    /// Serves the arrived interrupts on the target.
    fn interrupts(&self) {
        for i in 0..self.asked.len() {
            let generation = self.asked[i].swap(0, Ordering::AcqRel);
            if generation != 0 {
                let mut set = FlushSet::new();
                set.add_for_model(VirtRange { start: i as u64 * PAGE_SIZE, end: (i as u64 + 1) * PAGE_SIZE });
                flush_here(self, &self.state, &self.space, generation, &set);
                assert!(
                    !self.cached[i].load(Ordering::Relaxed),
                    "a CPU acknowledged a flush but the translation is still cached"
                );
            }
        }
    }

    fn walk_again(&self, i: usize) {
        self.cached[i].store(self.pte[i].load(Ordering::Acquire), Ordering::Relaxed);
    }
}

impl Drops for Target {
    const PAGE_DROPS_UPPER: bool = true;

    fn drop_page(&self, va: u64) {
        self.walk_again((va / PAGE_SIZE) as usize);
        self.interrupts();
    }

    fn drop_loaded(&self, _state: &CpuMmu) {
        (0..self.pte.len()).for_each(|i| self.walk_again(i));
    }
}

/// Model of C4: three CPUs flush one page each at the same time. The CPU that runs the space is interrupted again while
/// it serves a flush, so it may serve the first flush last.
fn flush_against_flush() {
    let target = Arc::new(Target::new());
    let first = target.unmap(0);
    let askers = [1, 2].map(|i| {
        let target = target.clone();
        thread::spawn(move || target.ask(i, target.unmap(i)))
    });
    target.interrupts();
    askers.into_iter().for_each(|a| a.join().unwrap());
    target.ask(0, first);
    target.interrupts();
    assert!(
        !target.cached.iter().any(|c| c.load(Ordering::Relaxed)),
        "a flush is complete but the translation is still cached"
    );
}

protocol! {
    flushes_that_nest_leave_no_translation = flush_against_flush, Some(3);
    MissedCountAsSeen: "the translation is still cached";
    NewestAfterFlush: "the translation is still cached";
}

/// Model of C4: a table page is freed while a CPU goes lazy in the space, and runs it again if `again` is true.
fn idle_against_structure_flush(again: bool) {
    let space = Arc::new(Residency::new(1));
    let (seen, _) = space.arrive(0);
    let s = space.clone();
    let cpu = thread::spawn(move || {
        s.idle(0);
        if !again {
            return false;
        }
        let (newest, _) = s.arrive(0);
        s.arrived(0);
        newest != seen
    });
    let (_, targets) = space.bump(true);
    let asked = targets.contains(0);
    let catches_up = cpu.join().unwrap();
    assert!(asked || catches_up, "a CPU keeps a freed table page");
}

protocol! {
    a_cpu_that_goes_idle_is_asked_for_its_tables = || idle_against_structure_flush(false), None;
    LazyAfterRunning: "a freed table page";
}
protocol! {
    a_cpu_that_was_idle_is_asked_for_its_tables_or_catches_up = || idle_against_structure_flush(true), None;
    #[cfg(loom)]
    ArriveNoFence: "a freed table page";
}

/// Model of C9: one CPU copies an entry of the root and walks the tables below it. Another CPU removes a leaf below
/// this entry and flushes the entry.
fn copy_against_flush(cpus: usize) {
    struct World {
        space: Residency,
        roots: Roots,
        own: Own,
        part: Part,
        pte: AtomicBool,
    }
    let world = Arc::new(World {
        space: Residency::new(1),
        roots: Roots::new(),
        own: Own::new(Pfn(1)),
        part: Part::new(),
        pte: AtomicBool::new(true),
    });
    world.roots.part_of(0).store((&raw const world.part).cast_mut(), Ordering::Release);
    world.roots.open();
    world.space.arrive(0);
    world.roots.adopt(0, (&raw const world.own).cast_mut());
    let w = world.clone();
    let cpu = thread::spawn(move || {
        let reach = w.roots.reach(0).expect("the part is there");
        w.roots.join(0, &w.own, 0, reach);
        // This is the walk through the copied entry.
        w.pte.load(Ordering::Acquire)
    });
    world.pte.swap(false, Ordering::AcqRel);
    let (_, _, targets) = world.roots.bump(0, &world.space, false, cpus).expect("the regime is odd");
    let asked = targets.contains(0);
    let uses = cpu.join().unwrap();
    assert!(asked || !uses, "a CPU uses a translation that a completed flush has removed");
    world.roots.take(|_| ());
}

protocol! {
    a_cpu_that_copies_an_entry_is_asked_or_finds_the_leaf_gone = || copy_against_flush(2), None;
    #[cfg(loom)]
    CopyNoFence: "completed flush";
}
protocol! {
    // With one CPU in the machine, a flush does not read the set of running CPUs.
    a_sole_copier_of_an_entry_is_asked_or_finds_the_leaf_gone = || copy_against_flush(1), None;
    #[cfg(loom)]
    CopyNoFence: "completed flush";
}

/// Model of C9: the map fans out for the first time, so CPUs get roots of their own. One CPU copies an entry of the
/// root while another CPU prunes.
fn fan_out_against_prune() {
    let world = Arc::new((Pages::new(8), Roots::new()));
    drop(lock_last(&world.0, 0));
    let w = world.clone();
    let cpu = thread::spawn(move || {
        let (pages, roots) = &*w;
        assert!(pages.fan.put((&raw const *roots).cast_mut()));
        {
            let _held = roots.lock.lock();
            let _root = pages.state(Pfn(0)).lock();
            roots.open();
        }
        let t = lock_last(pages, 0);
        let copy = pages.slots(Pfn(0))[0].load(Ordering::Acquire);
        drop(t);
        copy
    });
    prune(&world.0);
    let copy = cpu.join().unwrap();
    assert_eq!(world.0.slots(Pfn(0))[0].load(Ordering::Acquire), copy, "a copied entry has disappeared");
}

protocol! {
    a_pruner_leaves_the_tables_that_a_fan_out_copies = fan_out_against_prune, Some(3);
    KeepsRootEarly: "a copied entry has disappeared";
}

/// Model: a CPU with a cached translation switches in while another CPU flushes one entry and then closes the regime.
/// To close it is to end the use of per-CPU roots. The flush or the closing must interrupt the first CPU, or it must
/// drop its translations.
fn switch_in_against_close() {
    struct World {
        space: Residency,
        roots: Roots,
        own: Own,
        part: Part,
        pte: AtomicBool,
    }
    let world = Arc::new(World {
        space: Residency::new(1),
        roots: Roots::new(),
        own: Own::new(Pfn(1)),
        part: Part::new(),
        pte: AtomicBool::new(true),
    });
    world.roots.part_of(0).store((&raw const world.part).cast_mut(), Ordering::Release);
    world.roots.open();
    world.space.arrive(0);
    world.roots.adopt(0, (&raw const world.own).cast_mut());
    world.roots.join(0, &world.own, 0, world.roots.reach(0).expect("the part is there"));
    // The CPU runs another space, and has the leaf cached under the present regime (the period since the use of per-CPU
    // roots began).
    world.space.leave(0);
    let regime = world.roots.regime();
    let w = world.clone();
    let cpu = thread::spawn(move || {
        let (_, new) = w.space.arrive(0);
        let arrival = w.roots.arrive(0, new);
        let mut cached = true;
        if arrival.regime != regime || arrival.stale {
            cached = w.pte.load(Ordering::Acquire);
        }
        w.space.arrived(0);
        (cached, arrival.own.is_some())
    });
    world.pte.swap(false, Ordering::AcqRel);
    let asked = world.roots.bump(0, &world.space, false, 2).is_some_and(|(_, _, targets)| targets.contains(0));
    let called = world.roots.close(&world.space).contains(0);
    let (uses, own) = cpu.join().unwrap();
    assert!(asked || called || !uses, "a CPU uses a translation that a completed flush has removed");
    assert!(called || !own, "a CPU keeps a freed root loaded");
    world.roots.take(|_| ());
}

protocol! {
    a_cpu_that_enters_as_a_regime_ends_is_asked_or_flushes = switch_in_against_close, Some(3);
    #[cfg(loom)]
    CloseNoFence: "a CPU keeps a freed root loaded";
}

/// Model: a CPU ends the use of per-CPU roots, and holds no lock while other CPUs leave theirs. Another CPU opens the
/// use of per-CPU roots again and adopts one. That root must not be among those that the first CPU frees.
fn open_against_close() {
    struct World {
        space: Residency,
        roots: Roots,
        own: Own,
    }
    let world = Arc::new(World { space: Residency::new(1), roots: Roots::new(), own: Own::new(Pfn(1)) });
    world.roots.open();
    world.space.arrive(0);
    let w = world.clone();
    let cpu = thread::spawn(move || {
        let _held = w.roots.lock.lock();
        if w.roots.may_open() {
            w.roots.open();
        }
        let adopts = w.roots.is_open();
        if adopts {
            w.roots.adopt(0, (&raw const w.own).cast_mut());
        }
        adopts.then(|| w.roots.regime())
    });
    let closed = {
        let _held = world.roots.lock.lock();
        let _asked = world.roots.close(&world.space);
        world.roots.regime()
    };
    let mut freed = false;
    {
        let _held = world.roots.lock.lock();
        world.roots.take(|_| freed = true);
        world.roots.keeps_root.store(false, Ordering::Release);
    }
    let adopted = cpu.join().unwrap();
    assert!(!freed || adopted.is_some_and(|regime| regime < closed), "a CPU keeps a freed root loaded");
    world.roots.take(|_| ());
}

protocol! {
    a_regime_begins_only_when_no_root_of_the_last_is_left = open_against_close, Some(2);
    OpenWhileClosing: "a CPU keeps a freed root loaded";
}

/// Model: a fault enters a leaf while the empty root that it would use is dropped.
fn fault_against_drop_root() {
    let pages = Arc::new(Pages::with_roots(4, 1));
    let other = pages.clone();
    let fault = thread::spawn(move || enter(&other, 0));
    pages.drop_root();
    fault.join().unwrap();
    assert_eq!(walk(&pages, 0), LEAF, "a leaf is lost below a dropped root");
}

protocol! {
    a_fault_and_a_drop_of_the_root_never_lose_a_leaf = fault_against_drop_root, Some(3);
    LinkNoDeadCheck: "below a dropped root";
    TakeRootNoLock: "below a dropped root";
}

/// Model: two faults need the root that a space has lost.
fn fault_against_fault_without_a_root() {
    let pages = Arc::new(Pages::with_roots(7, 2));
    pages.drop_root().expect("it is empty");
    let other = pages.clone();
    let fault = thread::spawn(move || enter(&other, 0));
    enter(&pages, PAGE_SIZE);
    fault.join().unwrap();
    let there = (walk(&pages, 0), walk(&pages, PAGE_SIZE));
    assert_eq!(there, (LEAF, LEAF), "a leaf is below a root that is not the space's");
}

protocol! {
    two_faults_make_one_root = fault_against_fault_without_a_root, Some(2);
    PutRootUnlooked: "a root that is not the space's";
}

/// Model of C3 in a space without a root: a writer marks an entry stale, fences, and skips absent table pages. A fault
/// that makes the root at the same time must find the mark.
fn stale_against_make_root() {
    let world = Arc::new((Pages::with_roots(4, 1), AtomicBool::new(false)));
    world.0.drop_root().expect("it is empty");
    let other = world.clone();
    let fault = thread::spawn(move || {
        let (pages, stale) = &*other;
        let t = lock_last(pages, 0);
        if !stale.load(Ordering::Acquire) {
            t.view.put(0, LEAF);
        }
    });
    let (pages, stale) = &*world;
    stale.store(true, Ordering::Release);
    fence_full();
    if let Some(t) = tree(pages).lock_next(EVERYTHING)
        && t.view.slots[0].load(Ordering::Relaxed) != 0
    {
        t.view.owe();
        t.view.take(0);
        let _last = t.view.state.settle();
    }
    fault.join().unwrap();
    assert_eq!(walk(pages, 0), 0, "a leaf outlives its entry");
}

protocol! {
    a_fault_that_makes_the_root_sees_the_stale_mark_or_is_seen = stale_against_make_root, Some(3);
    #[cfg(loom)]
    TableNoFence: "outlives";
}

/// Model of C2: a removal that is not flushed is visible to other removers. One CPU clears a leaf, tries to drop the
/// root, flushes, and drops the root. A remover on another CPU that finds no root must find the flush complete.
fn remover_against_drop_root() {
    let world = Arc::new((Pages::new(4), AtomicBool::new(true)));
    enter(&world.0, 0);
    let w = world.clone();
    let dropper = thread::spawn(move || {
        let (pages, cached) = &*w;
        {
            let t = lock_last(pages, 0);
            t.view.owe();
            t.view.take(0);
        }
        // Neither the table page nor the root is freed, because the table page owes a flush.
        prune(pages);
        pages.drop_root();
        cached.swap(false, Ordering::AcqRel);
        // Does what `Pmap::settle` does, for the table page with this number.
        let _last = pages.state(Pfn(2)).settle();
        prune(pages);
        pages.drop_root();
    });
    let (pages, cached) = &*world;
    // The remover has marked the page busy and fenced.
    fence_full();
    let gone = match tree(pages).lock_next(VirtRange { start: 0, end: PAGE_SIZE }) {
        Some(t) => t.view.slots[0].load(Ordering::Relaxed) == 0 && !t.view.state.unflushed(),
        None => !tree(pages).unflushed(0),
    };
    assert!(!gone || !cached.load(Ordering::Acquire), "a program reaches a frame of another owner");
    dropper.join().unwrap();
}

protocol! {
    a_remover_that_finds_no_root_finds_all_flushed = remover_against_drop_root, Some(3);
    PruneUnflushed: "a frame of another owner";
}

/// Model: a CPU switches in while another CPU drops the root. It must receive the request to leave the root, or load no
/// root.
fn switch_in_against_drop_root() {
    let pages = Arc::new(Pages::new(1));
    let w = pages.clone();
    let cpu = thread::spawn(move || {
        let entered = w.root.enter(&w.space, 0);
        w.space.arrived(0);
        entered.root
    });
    let dropped = pages.drop_root();
    let loaded = cpu.join().unwrap();
    if let Some((root, asked)) = dropped {
        assert!(loaded != Some(root) || asked.contains(0), "a CPU keeps a freed root loaded");
    }
}

protocol! {
    a_cpu_that_switches_in_is_asked_to_leave_the_root_or_has_none = switch_in_against_drop_root, None;
    RootReadEarly: "a CPU keeps a freed root loaded";
    #[cfg(loom)]
    TakeRootNoFence: "a CPU keeps a freed root loaded";
    #[cfg(loom)]
    ArriveNoFence: "a CPU keeps a freed root loaded";
}

/// Model: a CPU that runs the space goes lazy while another CPU drops the root.
fn idle_against_drop_root() {
    let pages = Arc::new(Pages::new(1));
    let root = pages.root.enter(&pages.space, 0).root;
    pages.space.arrived(0);
    let w = pages.clone();
    let cpu = thread::spawn(move || w.space.idle(0));
    let dropped = pages.drop_root();
    cpu.join().unwrap();
    if let Some((gone, asked)) = dropped {
        assert!(root != Some(gone) || asked.contains(0), "a CPU keeps a freed root loaded");
    }
}

protocol! {
    a_cpu_that_goes_idle_is_asked_to_leave_the_root = idle_against_drop_root, None;
    TakeRootAsksRunning: "a CPU keeps a freed root loaded";
    LazyAfterRunning: "a CPU keeps a freed root loaded";
}

/// Model: a CPU switches in while another CPU makes the root that the space has lost. It must receive the request to
/// load the root, or find the root.
fn switch_in_against_make_root() {
    let pages = Arc::new(Pages::with_roots(1, 1));
    pages.drop_root().expect("it is empty");
    let w = pages.clone();
    let cpu = thread::spawn(move || {
        let entered = w.root.enter(&w.space, 0);
        w.space.arrived(0);
        entered.root
    });
    let asked = pages.make_root().expect("table pages");
    let loaded = cpu.join().unwrap();
    assert!(loaded.is_some() || asked.contains(0), "a CPU runs the space without its root for ever");
}

protocol! {
    a_cpu_that_switches_in_is_asked_to_load_the_root_or_finds_it = switch_in_against_make_root, None;
    RootReadEarly: "without its root for ever";
    #[cfg(loom)]
    PutRootNoFence: "without its root for ever";
    #[cfg(loom)]
    ArriveNoFence: "without its root for ever";
}

/// Model of C9: the map fans out for the first time, so CPUs get roots of their own. One CPU copies an entry of the
/// root. Another CPU prunes and drops the root at the same time.
fn fan_out_against_drop_root() {
    let world = Arc::new((Pages::with_roots(7, 1), Roots::new()));
    let w = world.clone();
    let cpu = thread::spawn(move || {
        let (pages, roots) = &*w;
        assert!(pages.fan.put((&raw const *roots).cast_mut()));
        {
            let _held = roots.lock.lock();
            // This locks as `Tables::with_root_locked` does.
            let _word = pages.root.lock();
            let _root = pages.root.get().map(|root| pages.state(root).lock_child());
            roots.open();
        }
        pages.root.get()
    });
    let dropped = world.0.drop_root();
    let kept = cpu.join().unwrap();
    assert!(dropped.is_none() || dropped.map(|d| d.0) != kept, "a root goes while CPUs have copies of its entries");
}

protocol! {
    a_root_with_copies_stays = fan_out_against_drop_root, Some(3);
    TakeRootCopied: "while CPUs have copies of its entries";
}
