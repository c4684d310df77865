//! The arenas of a space: one at first, more where CPUs contend.
//!
//! # Contract C9: the map fans out
//! Operations in different arenas share no lock, no tree, no sequence and no flush.
//!
//! # Contract C8: no memory of processes times CPUs
//! A space has memory only for the CPUs on which it really contended.
//!
//! # How arenas open
//! A space starts with its *home* arena, which has all addresses. Two things give a CPU an arena of its own. Mappings
//! without an address may meet another writer there again and again. Or CPUs that run the space at the same time take
//! turns as its writers. The CPU that is about to map then gets a stretch of [`SPAN`] bytes, with a tree, a lock and a
//! sequence of its own. The stretch is half a slot of the root table on x86-64. Up to 125 CPUs have a slot each, so
//! that their arenas share no table page but the root; then two share one. From then on that CPU's mappings without an
//! address go there. Any thread that unmaps or changes them takes that arena's lock. So memory follows the CPUs on
//! which a process really contended.
//!
//! # Rules
//! - An address belongs to the open arena whose stretch covers it, else to the home arena. Reading that takes two loads
//!   of words that hardly ever change.
//! - Arenas open and close under the home arena's lock; one closes under its own lock too. So the holder of either lock
//!   knows the arena's addresses. A thread that has just taken an arena's lock checks again that the address is still
//!   the arena's.
//! - A stretch is opened only where the home arena has nothing in it. Once there are stretches, the home arena places
//!   nothing in them.
//! - No entry crosses from one arena to another. Some operations would cross, or need all of the space at one moment
//!   (fork). They *join*: under the home arena's lock the others' entries go to the home tree, and the stretches close.
//!   Entries do not change by that, so no fault is disturbed: it finds the entry in one tree or the other. A miss
//!   counts only if the address still belongs to the searched arena (mutant [`Mutant::MissInClosedArena`]).
//! - A closed arena's memory stays until the space goes, and is used when that CPU contends again.

use crate::error::OutOfMemory;
use crate::machine::{Machine, Pmap};
use crate::map::arena::covered::Covered;
use crate::map::arena::{Arena, Writer};
use crate::map::entry::Entry;
use crate::map::maps::Maps;
use crate::map::space::Space;
use crate::mutant::{Mutant, mutant};
use crate::types::VirtRange;
use core::ptr::{self, NonNull};
use quire_sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use quire_sync::epoch::Pinned;
use quire_sync::{CpuId, current_cpu, record};

/// log2 of [`SPAN`].
#[cfg(not(any(test, loom, shuttle)))]
const SPAN_SHIFT: u32 = 38;
/// log2 of [`SPAN`]: what a table page of the test machine covers, and half of that under the checkers.
#[cfg(any(test, loom, shuttle))]
const SPAN_SHIFT: u32 = if cfg!(any(loom, shuttle)) { 13 } else { 18 };
/// Bytes of an arena other than the home arena: half of what one entry of a four-level root table covers.
pub const SPAN: u64 = 1 << SPAN_SHIFT;

/// Arenas that a space can have beside its home arena: one for each CPU that a machine can have.
#[cfg(not(any(test, loom, shuttle)))]
const ARENAS: usize = 256;
/// As many as fit into what the test machine can map.
#[cfg(any(test, loom, shuttle))]
const ARENAS: usize = 2;

/// The first stretch begins here. All of them end where the stack and the mappings of a program begin. So they lie
/// where sanitizers allow no mapping of a program, and which they therefore reserve before a second thread runs. A
/// reserved stretch is not opened. Programs with fixed addresses below these (a shadow of memory) meet no stretch.
#[cfg(not(any(test, loom, shuttle)))]
const FIRST: u64 = 0x7e80_0000_0000 - ARENAS as u64 * SPAN;
#[cfg(any(test, loom, shuttle))]
const FIRST: u64 = crate::testing::BASE + if cfg!(any(loom, shuttle)) { 0 } else { 8 * SPAN };
/// All stretches.
pub(in crate::map) const STRETCHES: VirtRange = VirtRange { start: FIRST, end: FIRST + ARENAS as u64 * SPAN };

/// Waits for the home arena's writers, by any CPU, after which a CPU gets an arena of its own.
#[cfg(not(any(test, loom, shuttle)))]
const CROWD: u32 = 16;
#[cfg(any(test, loom, shuttle))]
const CROWD: u32 = 1;

/// The place and the time of a lookup, by which a miss is checked (relies on C3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Moment<M: Machine> {
    arena: *const Arena<M>,
    sequence: u64,
}

/// The map changed around a look that found nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Changed;

/// Pointers to the arenas, in the order of their stretches.
pub(in crate::map) struct Fan<M: Machine> {
    /// Which of them have their stretches, one bit each. Apart from the arenas, because writers write an arena's lines.
    open: [AtomicU64; ARENAS.div_ceil(64)],
    slots: [AtomicPtr<Arena<M>>; ARENAS],
    /// The most bytes that the space's entries can have covered before arenas were joined last. Written under the home
    /// arena's lock.
    peak: AtomicU64,
}

impl<M: Machine> Fan<M> {
    /// A fan without arenas; made in its place, because it is too long for a kernel's stack.
    fn make(vm: &Maps<M>) -> Result<NonNull<Fan<M>>, OutOfMemory> {
        let fan = vm.map_memory().fans.cache().alloc(vm)?.cast::<Fan<M>>();
        record::wrote(fan.as_ptr());
        // SAFETY: the memory is a fan's, from its slab, and every field is written below.
        unsafe {
            for n in 0..ARENAS.div_ceil(64) {
                (&raw mut (*fan.as_ptr()).open[n]).write(AtomicU64::new(0));
            }
            (&raw mut (*fan.as_ptr()).peak).write(AtomicU64::new(0));
            for n in 0..ARENAS {
                (&raw mut (*fan.as_ptr()).slots[n]).write(AtomicPtr::new(ptr::null_mut()));
            }
        }
        Ok(fan)
    }

    /// The arena of slot `n`, open or closed.
    fn at(&self, n: usize) -> Option<&Arena<M>> {
        // SAFETY: a slot's arena is freed with the space only, which owns this fan.
        unsafe { self.slots[n].load(Ordering::Acquire).as_ref() }
    }

    /// The arena of slot `n`, if it has its stretch.
    #[inline]
    fn open_at(&self, n: usize) -> Option<&Arena<M>> {
        if self.open[n / 64].load(Ordering::Acquire) & 1 << (n % 64) == 0 { None } else { self.at(n) }
    }

    /// # Requires
    /// The caller holds the home arena's lock, and where it closes, `n`'s.
    fn set_open(&self, n: usize, open: bool) {
        let bit = 1 << (n % 64);
        match open {
            true => self.open[n / 64].fetch_or(bit, Ordering::AcqRel),
            false => self.open[n / 64].fetch_and(!bit, Ordering::AcqRel),
        };
    }

    /// The stretches that are open. No arena is looked at: their lines are their writers'.
    fn open(&self) -> impl Iterator<Item = usize> {
        self.open.iter().enumerate().flat_map(|(i, word)| {
            let mut left = word.load(Ordering::Acquire);
            core::iter::from_fn(move || {
                let bit = (left != 0).then(|| left.trailing_zeros() as usize)?;
                left &= left - 1;
                Some(i * 64 + bit)
            })
        })
    }
}

/// All arenas of a space; see the module.
#[repr(C)]
pub(in crate::map) struct Arenas<M: Machine> {
    home: Arena<M>,
    // Faults read the line that begins here.
    /// Null until a CPU gets an arena of its own.
    fan: AtomicPtr<Fan<M>>,
    /// Waits for the home arena's writers, by CPUs without an arena of their own.
    crowd: AtomicU32,
}

/// Where position-independent programs lie, with their heaps, which grow in the home arena. No stretch opens here.
#[cfg(not(any(test, loom, shuttle)))]
const PROGRAMS: VirtRange = VirtRange { start: 0x5500_0000_0000, end: 0x5680_0000_0000 };
#[cfg(any(test, loom, shuttle))]
const PROGRAMS: VirtRange = VirtRange { start: 0, end: 0 };

/// The slot of `cpu`'s stretch, from the highest down: every second one first, so that few CPUs share no slot of a root
/// table.
fn slot_of(cpu: CpuId) -> usize {
    let down = match cpu % ARENAS {
        n if n < ARENAS / 2 => 2 * n,
        n => 2 * n + 1 - ARENAS,
    };
    if cfg!(any(test, loom, shuttle)) { down } else { ARENAS - 1 - down }
}

/// The slot of the stretch that covers `va`.
#[inline]
fn slot(va: u64) -> Option<usize> {
    STRETCHES.contains(va).then(|| ((va - FIRST) >> SPAN_SHIFT) as usize)
}

fn stretch(n: usize) -> VirtRange {
    let start = FIRST + n as u64 * SPAN;
    VirtRange { start, end: start + SPAN }
}

impl<M: Machine> Arenas<M> {
    pub fn new(vm: &'static Maps<M>) -> Self {
        Arenas { home: Arena::new(vm, M::Pmap::USER), fan: AtomicPtr::new(ptr::null_mut()), crowd: AtomicU32::new(0) }
    }

    #[inline(always)]
    fn fan(&self) -> Option<&Fan<M>> {
        // SAFETY: the fan is made once, and freed with the space, which owns it.
        unsafe { self.fan.load(Ordering::Acquire).as_ref() }
    }

    /// The arena that has `va` now.
    #[inline(always)]
    pub fn of(&self, va: u64) -> &Arena<M> {
        match self.fan() {
            None => &self.home,
            Some(fan) => slot(va).and_then(|n| fan.open_at(n)).unwrap_or(&self.home),
        }
    }

    pub fn home(&self) -> &Arena<M> {
        &self.home
    }

    /// The home arena of a space that no other thread can reach.
    pub fn home_mut(&mut self) -> &mut Arena<M> {
        &mut self.home
    }

    /// All arenas that were ever opened, and the home arena.
    pub fn all(&self) -> impl Iterator<Item = &Arena<M>> {
        let others = self.fan().into_iter().flat_map(|f| (0..ARENAS).filter_map(|n| f.at(n)));
        core::iter::once(&self.home).chain(others)
    }

    /// The most bytes that entries ever covered. Arenas may have had their peaks at different times; then the sum of
    /// the peaks.
    pub fn peak(&self) -> u64 {
        let before = self.fan().map_or(0, |f| f.peak.load(Ordering::Relaxed));
        before.max(self.all().map(|a| a.peak()).sum())
    }

    /// Whether any stretch is open.
    pub fn fanned_out(&self) -> bool {
        self.fan().is_some_and(|f| f.open.iter().any(|w| w.load(Ordering::Acquire) != 0))
    }

    /// The end of the addresses that belong to `arena` from `va` on.
    ///
    /// # Requires
    /// `arena`'s lock or the home arena's is held, and it has `va`.
    fn end_of(&self, arena: &Arena<M>, va: u64) -> u64 {
        if !ptr::eq(arena, &self.home) {
            return slot(va).map_or(u64::MAX, |n| stretch(n).end);
        }
        let open = self.fan().into_iter().flat_map(|f| f.open());
        open.map(|n| stretch(n).start).find(|start| *start > va).unwrap_or(u64::MAX)
    }

    /// The first entry that ends after `from`, in any arena.
    pub fn next<'p>(&self, from: u64, pin: &'p Pinned<'_>) -> Option<&'p Entry<M>> {
        self.next_in(VirtRange { start: from, end: u64::MAX }, pin)
    }

    /// The first entry that has a part of `range`. Only arenas that can have one are searched, so it reads no lines
    /// that other arenas' writers write.
    pub fn next_in<'p>(&self, range: VirtRange, pin: &'p Pinned<'_>) -> Option<&'p Entry<M>> {
        let from = range.start;
        // If the first arena has an entry there, no other arena is searched.
        let here = self.of(from);
        let first = here.next(from, pin).filter(|e| e.range().start < range.end);
        let all_here = !ptr::eq(here, &self.home) && slot(from).is_some_and(|n| stretch(n).end >= range.end);
        if first.is_some_and(|e| e.range().start <= from) {
            return first;
        }
        if all_here {
            // Unless it was closed meanwhile, and the home arena has its entries.
            return if ptr::eq(self.of(from), here) { first } else { self.next_in(range, pin) };
        }
        let has = |n: usize| stretch(n).end > from && stretch(n).start < range.end;
        let others = self.fan().into_iter().flat_map(|f| f.open().filter(|n| has(*n)).filter_map(|n| f.at(n)));
        // The home arena last: it has the entries of arenas that join meanwhile.
        let early = mutant(Mutant::HomeArenaFirst).then_some(&self.home);
        let late = core::iter::once(&self.home).filter(|_| early.is_none());
        let all = early.into_iter().chain(others).chain(late).filter_map(|a| a.next(from, pin));
        all.filter(|e| e.range().start < range.end).min_by_key(|e| e.range().start)
    }

    /// Opens the stretch of `cpu`. Does nothing if something is mapped there, if the machine's addresses end before it,
    /// or if there is no memory.
    pub fn open(&self, space: &Space<M>, cpu: CpuId) {
        let vm = space.vm();
        let n = slot_of(cpu);
        let home = self.home.write(space);
        let bounds = stretch(n);
        if bounds.start < PROGRAMS.end && PROGRAMS.start < bounds.end {
            return;
        }
        if bounds.end > M::Pmap::USER.end || home.next(bounds.start).is_some_and(|e| e.range().start < bounds.end) {
            return;
        }
        if self.fan().is_none() {
            let Ok(fan) = Fan::make(vm) else { return };
            self.fan.store(fan.as_ptr(), Ordering::Release);
        }
        let Some(fan) = self.fan() else { return };
        if fan.at(n).is_none() {
            let Ok(arena) = vm.map_memory().arenas.alloc(vm, Arena::new(vm, bounds)) else { return };
            fan.slots[n].store(arena.as_ptr(), Ordering::Release);
        }
        fan.set_open(n, true);
        space.pmap().fan_out(vm);
    }

    /// Joins: everything belongs to the home arena while the result is held. An error closes some stretches or none,
    /// and loses nothing.
    fn join<'a>(&'a self, space: &'a Space<M>) -> Result<Writer<'a, M>, OutOfMemory> {
        let mut home = self.home.write(space);
        let Some(fan) = self.fan() else { return Ok(home) };
        // A process that joins again and again, as by forks, has nothing new to write.
        let peak = self.peak();
        if peak > fan.peak.load(Ordering::Relaxed) {
            fan.peak.store(peak, Ordering::Relaxed);
        }
        for (n, arena) in (0..ARENAS).filter_map(|n| Some((n, fan.open_at(n)?))) {
            let mut theirs = arena.write(space);
            let bounds = arena.bounds();
            let covered = arena.covered();
            if arena.len() == 0 {
                fan.set_open(n, false);
                continue;
            }
            let come =
                home.prepare(bounds.start, bounds.end, arena.len(), theirs.items().map(|(_, e)| NonNull::from(e)))?;
            let go = theirs.prepare(bounds.start, bounds.end, 0, core::iter::empty())?;
            // A lookup that misses an entry in the old tree sees that the stretch is closed, because it closed before
            // the entry went.
            home.arena().counts().change(&covered);
            home.take_over(&mut theirs);
            home.commit(come);
            fan.set_open(n, false);
            arena.counts().change(&Covered::default().less(&covered));
            theirs.commit(go);
            // Otherwise its bytes would count in both arenas.
            arena.forget_peak();
        }
        space.pmap().fan_in(space.vm());
        Ok(home)
    }

    /// Frees the arenas and their nodes.
    ///
    /// # Safety
    /// The caller alone can reach the space, and frees its arenas once.
    pub unsafe fn free(&mut self, vm: &'static Maps<M>) {
        // SAFETY: by this function's contract; arenas and fan were made from these slabs, and are freed once.
        unsafe {
            self.home.drop_commit(vm);
            self.home.free_nodes();
            let Some(fan) = NonNull::new(self.fan.load(Ordering::Acquire)) else { return };
            for arena in &fan.as_ref().slots {
                if let Some(mut arena) = NonNull::new(arena.load(Ordering::Acquire)) {
                    arena.as_mut().drop_commit(vm);
                    arena.as_mut().free_nodes();
                    vm.map_memory().arenas.free(vm, arena);
                }
            }
            vm.map_memory().fans.free(vm, fan);
        }
    }
}

impl<M: Machine> Space<M> {
    /// The writer of the arena that has `va`, and the end of that arena's addresses from there on.
    pub(in crate::map) fn write_at(&self, va: u64) -> (Writer<'_, M>, u64) {
        loop {
            let arena = self.arenas.of(va);
            let writer = arena.write(self);
            if ptr::eq(self.arenas.of(va), arena) || mutant(Mutant::ArenaBeforeLock) {
                let end = self.arenas.end_of(arena, va);
                return (writer, end);
            }
        }
    }

    /// Whether `writer` has all of `range`, which is in order.
    pub(in crate::map) fn has(&self, writer: &Writer<'_, M>, range: VirtRange) -> bool {
        let arena = self.arenas.of(range.start);
        ptr::eq(arena, writer.arena()) && self.arenas.end_of(arena, range.start) >= range.end
    }

    /// The writer that has all of `range`, which is in order; joins arenas where several have parts of it.
    pub(in crate::map) fn write(&self, range: VirtRange) -> Result<Writer<'_, M>, OutOfMemory> {
        let (writer, end) = self.write_at(range.start);
        if end >= range.end {
            return Ok(writer);
        }
        drop(writer);
        self.write_all()
    }

    /// The writer of everything: joins all arenas.
    pub(in crate::map) fn write_all(&self) -> Result<Writer<'_, M>, OutOfMemory> {
        self.arenas.join(self)
    }

    /// The writer for a mapping without an address: of the calling CPU's own arena, if it has one.
    pub(in crate::map) fn write_somewhere(&self) -> Writer<'_, M> {
        let arenas = &self.arenas;
        let cpu = current_cpu();
        let n = slot_of(cpu);
        let own = || arenas.fan().and_then(|f| f.open_at(n));
        if let Some(arena) = own() {
            let writer = arena.write(self);
            if own().is_some() || mutant(Mutant::OwnArenaBeforeLock) {
                // Fan out again, if the page tables were dropped meanwhile. A thread that closes the stretch waits for
                // this lock before the fan-in.
                self.pmap().fan_out(self.vm());
                return writer;
            }
        }
        let crowded = match arenas.home.try_write(self) {
            // A thread that goes from CPU to CPU takes turns with no other thread.
            Some(mut writer) => {
                if !writer.take_turns() || !self.pmap().is_running_elsewhere(cpu) {
                    return writer;
                }
                true
            }
            None => arenas.crowd.fetch_add(1, Ordering::Relaxed) + 1 >= CROWD,
        };
        if crowded {
            arenas.open(self, cpu);
            if let Some(arena) = own() {
                let writer = arena.write(self);
                if own().is_some() {
                    return writer;
                }
            }
        }
        arenas.home.write(self)
    }

    /// The entry that covers `va`, or a miss that counts (relies on C3), because nothing changed around it. The
    /// sequence, which each change writes, is read only after a first miss.
    #[inline]
    pub(crate) fn look<'p>(&self, va: u64, pin: &'p Pinned<'_>) -> Result<Option<&'p Entry<M>>, Changed> {
        match self.lookup(va, pin) {
            None if !mutant(Mutant::MissInClosedArena) => self.look_again(va, pin),
            found => Ok(found),
        }
    }

    #[cold]
    fn look_again<'p>(&self, va: u64, pin: &'p Pinned<'_>) -> Result<Option<&'p Entry<M>>, Changed> {
        let moment = self.moment(va);
        match self.lookup(va, pin) {
            None if !self.unchanged_since(va, moment) => Err(Changed),
            found => Ok(found),
        }
    }

    /// The place and the time of a lookup at `va`, taken before a lookup whose miss shall count.
    #[inline]
    pub(crate) fn moment(&self, va: u64) -> Moment<M> {
        let arena = self.arenas.of(va);
        Moment { arena, sequence: arena.sequence() }
    }

    /// Whether a miss at `va` since `moment` counts: nothing changed in the arena, and `va` still belongs to it.
    #[inline]
    pub(crate) fn unchanged_since(&self, va: u64, moment: Moment<M>) -> bool {
        let arena = self.arenas.of(va);
        if mutant(Mutant::MissInClosedArena) {
            return true;
        }
        ptr::eq(arena, moment.arena) && arena.unchanged_since(moment.sequence)
    }

    /// Sleeps until no writer changes the arena of `va`, and keeps writers out while the result is held: no entry is or
    /// becomes stale. For a fault that failed too often (progress), and to wait for a stale entry to be replaced.
    pub(crate) fn keep_writers_out(&self, va: u64) -> Writer<'_, M> {
        self.write_at(va).0
    }
}

impl<M: Machine> Space<M> {
    /// Gives `cpu` an arena of its own for mappings without an address, as enough waits for other writers would. For a
    /// caller that knows that a program's threads will map and unmap at once. Does nothing if there is no memory for
    /// it, or if something is mapped in the CPU's stretch already.
    pub fn open_arena(&self, cpu: CpuId) {
        self.arenas.open(self, cpu);
    }
}

#[cfg(test)]
impl<M: Machine> Space<M> {
    /// Joins all arenas, as a fork does.
    pub(crate) fn join_arenas(&self) -> Result<(), OutOfMemory> {
        self.write_all().map(drop)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::error::MapError;
    use crate::map::{Limits, MapRequest, Move, Placement, SpaceRef};
    use crate::testing::{BASE, Boot, TestMachine, boot, page};
    use crate::types::{Access, PAGE_SIZE, Prot};
    use quire_sync::hooks::threads::set_cpu;

    struct World {
        space: SpaceRef<TestMachine>,
        // Last: the space lives in it.
        _boot: Boot,
    }

    /// CPU 1 has an arena of its own, CPU 0 has not.
    fn fanned_out() -> World {
        set_cpu(0);
        let boot = boot(2048, 2);
        let space = Space::new(boot.vm).unwrap();
        space.set_limits(Limits { base: BASE, ..Limits::DEFAULT });
        space.open_arena(1);
        World { space, _boot: boot }
    }

    fn map(s: &Space<TestMachine>, cpu: usize, at: Placement, pages: u64) -> Result<u64, MapError> {
        set_cpu(cpu);
        s.map(&MapRequest::private(at, pages * PAGE_SIZE))
    }

    fn anywhere(s: &Space<TestMachine>, cpu: usize, pages: u64) -> u64 {
        map(s, cpu, Placement::Any { hint: 0 }, pages).unwrap()
    }

    fn rows(s: &Space<TestMachine>) -> Vec<(u64, u64)> {
        let mut all = Vec::new();
        s.entries(0, &mut |e| {
            all.push((e.range.start, e.range.len() / PAGE_SIZE));
            true
        });
        all
    }

    #[test]
    fn a_cpu_with_an_arena_maps_there_and_the_others_at_home() {
        let w = fanned_out();
        let s = &w.space;
        let (a, b) = (anywhere(s, 0, 2), anywhere(s, 1, 3));
        assert_eq!((a, b), (page(0), stretch(1).start));
        assert_eq!(rows(s), [(a, 2), (b, 3)]);
        assert_eq!(s.stats().mapped_bytes, 5 * PAGE_SIZE);
        assert_eq!(s.fault(b, Access::Write), Ok(crate::FaultKind::ZeroFill));
        // The same memory is unmapped, on whatever CPU.
        set_cpu(0);
        s.unmap(VirtRange { start: b, end: b + PAGE_SIZE }).unwrap();
        assert_eq!(rows(s), [(a, 2), (b + PAGE_SIZE, 2)]);
        assert_eq!(s.fault(b, Access::Read), Err(crate::FaultError::NotMapped));
        s.check(true).unwrap();
        let peak = || s.stats().peak_bytes;
        assert_eq!(peak(), 5 * PAGE_SIZE);
        s.clear();
        assert_eq!(s.stats().entries, 0);
        assert_eq!(peak(), 5 * PAGE_SIZE);
        s.check(true).unwrap();
    }

    #[test]
    fn a_cpu_that_waits_for_writers_gets_an_arena() {
        set_cpu(0);
        let boot = boot(2048, 2);
        let space = Space::new(boot.vm).unwrap();
        space.set_limits(Limits { base: BASE, ..Limits::DEFAULT });
        let s: &Space<TestMachine> = &space;
        let held = s.keep_writers_out(page(0));
        let at = std::thread::scope(|scope| {
            let other = scope.spawn(|| anywhere(s, 1, 1));
            while s.arenas.crowd.load(Ordering::Relaxed) < CROWD {
                std::thread::yield_now();
            }
            drop(held);
            other.join().unwrap()
        });
        assert_eq!(at, stretch(1).start);
    }

    #[test]
    fn a_cpu_that_alternates_with_another_gets_an_arena() {
        set_cpu(0);
        let boot = boot(2048, 2);
        let space = Space::new(boot.vm).unwrap();
        space.set_limits(Limits { base: BASE, ..Limits::DEFAULT });
        let s: &Space<TestMachine> = &space;
        let turns = |n: usize| (0..n).map(|i| anywhere(s, i % 2, 1)).filter(|at| STRETCHES.contains(*at)).count();
        // One thread that goes from CPU to CPU.
        assert_eq!(turns(40), 0);
        (0..20).for_each(|_| _ = anywhere(s, 0, 1));
        s.pmap().run_by_several();
        // Now and then does not count.
        for i in 0..100 {
            assert!(!STRETCHES.contains(anywhere(s, i / 5 % 2, 1)));
        }
        assert!(turns(40) > 10);
        assert_eq!(s.arenas.fan().unwrap().open().count(), 1);
        // The other one follows where it meets writers at home.
        for _ in 0..20 {
            map(s, 1, Placement::Fixed(page(100)), 1).unwrap();
            anywhere(s, 0, 1);
        }
        assert_eq!(s.arenas.fan().unwrap().open().count(), 2);
        s.check(true).unwrap();
    }

    #[test]
    fn a_mapping_across_an_edge_joins_arenas_and_keeps_mappings() {
        let w = fanned_out();
        let s = &w.space;
        let edge = stretch(1).start;
        let b = anywhere(s, 1, 2);
        assert_eq!(b, edge);
        s.fault(b, Access::Write).unwrap();
        // A fixed mapping over the edge replaces the first page.
        let at = map(s, 0, Placement::Fixed(edge - PAGE_SIZE), 2).unwrap();
        assert!(!s.arenas.fanned_out());
        assert_eq!(rows(s), [(at, 2), (edge + PAGE_SIZE, 1)]);
        s.check(true).unwrap();
        // The mapping that is there now keeps the stretch closed.
        s.open_arena(1);
        assert!(!s.arenas.fanned_out());
    }

    #[test]
    fn the_next_entry_of_a_range_is_found_in_any_arena() {
        let w = fanned_out();
        let s = &w.space;
        let (a, b) = (anywhere(s, 0, 1), anywhere(s, 1, 2));
        let pin = s.vm().epoch().pin();
        let next = |start, end| s.arenas.next_in(VirtRange { start, end }, &pin).map(|e| e.range().start);
        let end = b + 2 * PAGE_SIZE;
        assert_eq!([next(a, end), next(a + PAGE_SIZE, end), next(b + PAGE_SIZE, end)], [Some(a), Some(b), Some(b)]);
        assert_eq!([next(a + PAGE_SIZE, b), next(end, end + PAGE_SIZE), next(end, u64::MAX)], [None; 3]);
        assert_eq!(next(b - PAGE_SIZE, b + 1), Some(b));
    }

    #[test]
    fn a_fork_shows_the_entries_of_every_arena() {
        let w = fanned_out();
        let s = &w.space;
        let (a, b) = (anywhere(s, 0, 1), anywhere(s, 1, 1));
        let child = s.fork().unwrap();
        assert_eq!(rows(&child), [(a, 1), (b, 1)]);
        child.check(true).unwrap();
        s.check(true).unwrap();
    }

    #[test]
    fn a_mapping_moves_from_one_arena_to_another() {
        let w = fanned_out();
        let s = &w.space;
        let b = anywhere(s, 1, 2);
        s.fault(b, Access::Write).unwrap();
        let to =
            s.remap(VirtRange { start: b, end: b + 2 * PAGE_SIZE }, 2 * PAGE_SIZE, Move::To(page(4)), false).unwrap();
        assert_eq!(rows(s), [(to, 2)]);
        assert_eq!(s.fault(to, Access::Read), Ok(crate::FaultKind::Resident));
        s.check(true).unwrap();
    }

    #[test]
    fn operations_over_several_arenas_serve_all_of_them() {
        let w = fanned_out();
        let s = &w.space;
        let (a, b) = (anywhere(s, 0, 1), anywhere(s, 1, 1));
        s.unmap(VirtRange { start: a, end: b + PAGE_SIZE }).unwrap();
        assert_eq!(rows(s), []);
        s.open_arena(1);
        let b = anywhere(s, 1, 2);
        let a = map(s, 0, Placement::Fixed(b - 2 * PAGE_SIZE), 2).unwrap();
        s.protect(VirtRange { start: a, end: b + 2 * PAGE_SIZE }, Prot::READ).unwrap();
        assert_eq!(s.fault(b, Access::Write), Err(crate::FaultError::Protection));
        assert_eq!(s.fault(a, Access::Write), Err(crate::FaultError::Protection));
        s.check(true).unwrap();
    }

    #[test]
    fn a_full_arena_sends_its_cpu_elsewhere() {
        let w = fanned_out();
        let s = &w.space;
        let all = SPAN / PAGE_SIZE;
        assert_eq!(anywhere(s, 1, all), stretch(1).start);
        let next = anywhere(s, 1, 1);
        assert!(!stretch(1).contains(next));
        s.check(true).unwrap();
    }

    #[test]
    fn a_join_without_memory_loses_nothing() {
        let w = fanned_out();
        let s = &w.space;
        let (a, b) = (anywhere(s, 0, 1), anywhere(s, 1, 1));
        let mut n = 0;
        loop {
            n += 1;
            s.vm().fail_allocation(n);
            let done = s.join_arenas();
            s.vm().fail_allocation(0);
            s.check(true).unwrap();
            assert_eq!(rows(s), [(a, 1), (b, 1)]);
            if done.is_ok() {
                break;
            }
        }
        assert!(n > 1, "a join allocates");
    }
}
