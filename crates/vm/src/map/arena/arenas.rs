//! The arenas of a space: one at first, more where CPUs contend.
//!
//! # Contract C9: the map fans out
//! Operations in different arenas share no lock, no tree, no sequence and no flush.
//!
//! # Contract C8: no memory of processes times CPUs
//! A space has memory only for the CPUs on which its writers contended.
//!
//! # How arenas open
//! A space starts with its *home* arena, which has all addresses. A CPU gets an arena of its own in two cases. Mappings
//! without a fixed address found the home arena's lock held again and again. Or CPUs that run the space at the same
//! time alternate as its writers. Then the CPU that is about to map gets a *stretch* of [`SPAN`] bytes of addresses.
//! The stretch has a tree, a lock and a sequence of its own. On x86-64 a stretch is half of the addresses that one root
//! table entry covers. Up to 125 CPUs get a root table entry each, so that their arenas share no table page but the
//! root. With more CPUs, two share an entry. From then on that CPU's mappings without a fixed address are placed in its
//! stretch. A thread on any CPU that unmaps or changes them acquires that arena's lock. So a space has arenas only for
//! the CPUs on which its writers contended.
//!
//! # Rules
//! - An address belongs to the open arena whose stretch covers it, else to the home arena. A lookup of the arena loads
//!   two words that hardly ever change.
//! - An arena opens under the home arena's lock. An arena closes under the home arena's lock and its own. So an arena's
//!   addresses do not change while a thread holds its lock or the home arena's. A thread that has just acquired an
//!   arena's lock checks again that the address still belongs to the arena.
//! - A stretch is opened only if the home arena has no entry in it. While a stretch is open, the home arena places no
//!   mapping in any stretch.
//! - No entry lies in two arenas. An operation whose range crosses arenas, or which needs the whole space at one moment
//!   (fork), *joins* them. Under the home arena's lock, the join moves all entries to the home tree and closes the
//!   stretches. The entries themselves do not change, so a concurrent fault finds the entry in one tree or the other. A
//!   miss (a lookup that finds no entry) is valid only if the address still belongs to the searched arena (mutant
//!   [`Mutant::MissInClosedArena`]).
//! - A closed arena's memory is freed with the space. Until then it is used again if that CPU contends again.

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
/// log2 of [`SPAN`]: the bytes that a table page of the test machine covers, and fewer under loom and shuttle.
#[cfg(any(test, loom, shuttle))]
const SPAN_SHIFT: u32 = if cfg!(any(loom, shuttle)) { 13 } else { 18 };
/// Size in bytes of an arena other than the home arena: half of the bytes that one entry of a four-level root table
/// covers.
pub const SPAN: u64 = 1 << SPAN_SHIFT;

/// Arenas that a space can have beside its home arena: one for each CPU that a machine can have.
#[cfg(not(any(test, loom, shuttle)))]
const ARENAS: usize = 256;
/// Arenas that fit into the addresses of the test machine.
#[cfg(any(test, loom, shuttle))]
const ARENAS: usize = 2;

/// The first stretch begins here. All of them end where the stack and the mappings of a program begin. So they lie
/// where sanitizers allow no mapping of a program, and which they therefore reserve before a second thread runs. A
/// reserved stretch is not opened. Programs with fixed addresses below these (a shadow of memory) meet no stretch.
#[cfg(not(any(test, loom, shuttle)))]
const FIRST: u64 = 0x7e80_0000_0000 - ARENAS as u64 * SPAN;
#[cfg(any(test, loom, shuttle))]
const FIRST: u64 = crate::testing::BASE + if cfg!(any(loom, shuttle)) { 0 } else { 8 * SPAN };
/// The addresses of the stretches of all arenas.
pub(in crate::map) const STRETCHES: VirtRange = VirtRange { start: FIRST, end: FIRST + ARENAS as u64 * SPAN };

/// The number of times that the home arena's lock must be found held, counted over all CPUs. From then on, each CPU
/// that finds the lock held gets an arena of its own.
#[cfg(not(any(test, loom, shuttle)))]
const CROWD: u32 = 16;
#[cfg(any(test, loom, shuttle))]
const CROWD: u32 = 1;

/// The arena that a lookup searched, and the arena's sequence before the lookup. The answer that no entry covers an
/// address is valid only if the sequence is unchanged afterwards (relies on C3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Moment<M: Machine> {
    arena: *const Arena<M>,
    sequence: u64,
}

/// The map changed during a lookup that found no entry, so that this answer may be wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Changed;

/// Pointers to the arenas other than the home arena, in the order of their addresses.
pub(in crate::map) struct Fan<M: Machine> {
    /// The arenas that are open, one bit each. The bits are here, so that lookups need not read the arenas' cache
    /// lines, which writers write.
    open: [AtomicU64; ARENAS.div_ceil(64)],
    slots: [AtomicPtr<Arena<M>>; ARENAS],
    /// The most bytes that the space's entries covered before the arenas were last merged into the home arena (the
    /// space's first). It is an upper bound. Written under the home arena's lock.
    peak: AtomicU64,
}

impl<M: Machine> Fan<M> {
    /// Makes a fan (a table of arena pointers) whose pointers are all null. It is initialised in place, because it is
    /// too large for a kernel stack.
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
        // SAFETY: the arena of a slot is freed only together with the space, which owns this fan.
        unsafe { self.slots[n].load(Ordering::Acquire).as_ref() }
    }

    /// The arena of slot `n`, if it is open.
    #[inline]
    fn open_at(&self, n: usize) -> Option<&Arena<M>> {
        if self.open[n / 64].load(Ordering::Acquire) & 1 << (n % 64) == 0 { None } else { self.at(n) }
    }

    /// # Requires
    /// The caller holds the home arena's lock. If `open` is false, the caller also holds the lock of the arena of slot
    /// `n`.
    fn set_open(&self, n: usize, open: bool) {
        let bit = 1 << (n % 64);
        match open {
            true => self.open[n / 64].fetch_or(bit, Ordering::AcqRel),
            false => self.open[n / 64].fetch_and(!bit, Ordering::AcqRel),
        };
    }

    /// The slots of the open arenas. This reads only `open`, and not the arenas, because writers often write an arena's
    /// cache lines.
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
    // Faults read the cache line that begins here.
    /// Null until a CPU gets an arena of its own.
    fan: AtomicPtr<Fan<M>>,
    /// How often a CPU without an arena of its own found the home arena's lock held.
    crowd: AtomicU32,
}

/// Where position-independent programs lie, with their heaps, which grow in the home arena. No stretch opens here.
#[cfg(not(any(test, loom, shuttle)))]
const PROGRAMS: VirtRange = VirtRange { start: 0x5500_0000_0000, end: 0x5680_0000_0000 };
#[cfg(any(test, loom, shuttle))]
const PROGRAMS: VirtRange = VirtRange { start: 0, end: 0 };

/// The slot of `cpu`'s stretch, from the highest down. The first half of the CPUs get every second stretch, so that no
/// two of them share a root table entry.
fn slot_of(cpu: CpuId) -> usize {
    let down = match cpu % ARENAS {
        n if n < ARENAS / 2 => 2 * n,
        n => 2 * n + 1 - ARENAS,
    };
    if cfg!(any(test, loom, shuttle)) { down } else { ARENAS - 1 - down }
}

/// The slot of the arena whose stretch of addresses covers `va`. `None` if `va` lies in no stretch.
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
        // SAFETY: the fan is made once. The space owns it, and frees it at its end.
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

    /// The most bytes that entries ever covered. If arenas had their peaks at different times, the result is the sum of
    /// the arenas' peaks, an upper bound.
    pub fn peak(&self) -> u64 {
        let before = self.fan().map_or(0, |f| f.peak.load(Ordering::Relaxed));
        before.max(self.all().map(|a| a.peak()).sum())
    }

    /// Whether an arena other than the home arena is open.
    pub fn fanned_out(&self) -> bool {
        self.fan().is_some_and(|f| f.open.iter().any(|w| w.load(Ordering::Acquire) != 0))
    }

    /// The end of the addresses from `va` on that belong to `arena`.
    ///
    /// # Requires
    /// The caller holds the lock of `arena` or of the home arena, and `va` belongs to `arena`.
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

    /// The first entry that overlaps `range`. Only arenas whose addresses overlap `range`, and the home arena, are
    /// searched. So no cache line is read that the writers of other arenas write.
    pub fn next_in<'p>(&self, range: VirtRange, pin: &'p Pinned<'_>) -> Option<&'p Entry<M>> {
        let from = range.start;
        // If the arena of `from` has an entry that covers `from`, no other arena is searched.
        let here = self.of(from);
        let first = here.next(from, pin).filter(|e| e.range().start < range.end);
        let all_here = !ptr::eq(here, &self.home) && slot(from).is_some_and(|n| stretch(n).end >= range.end);
        if first.is_some_and(|e| e.range().start <= from) {
            return first;
        }
        if all_here {
            // If another thread closed the arena during the search, the home arena has its entries now. Then the search
            // begins again.
            return if ptr::eq(self.of(from), here) { first } else { self.next_in(range, pin) };
        }
        let has = |n: usize| stretch(n).end > from && stretch(n).start < range.end;
        let others = self.fan().into_iter().flat_map(|f| f.open().filter(|n| has(*n)).filter_map(|n| f.at(n)));
        // The home arena is searched last, because a concurrent join moves entries to it.
        let early = mutant(Mutant::HomeArenaFirst).then_some(&self.home);
        let late = core::iter::once(&self.home).filter(|_| early.is_none());
        let all = early.into_iter().chain(others).chain(late).filter_map(|a| a.next(from, pin));
        all.filter(|e| e.range().start < range.end).min_by_key(|e| e.range().start)
    }

    /// Opens the arena of `cpu`. Does nothing if something is mapped at the arena's addresses, if the machine's
    /// addresses end before it, or if no memory is free.
    pub fn open(&self, space: &Space<M>, cpu: CpuId) {
        let vm = space.vm();
        let n = slot_of(cpu);
        let home = self.home.write(space);
        let bounds = stretch(n);
        if bounds.intersect(&PROGRAMS).is_some() {
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

    /// Moves the entries of all arenas to the home arena. All addresses belong to the home arena while the returned
    /// writer is held. After an error some of the other arenas may be closed, but no entry is lost.
    fn join<'a>(&'a self, space: &'a Space<M>) -> Result<Writer<'a, M>, OutOfMemory> {
        let mut home = self.home.write(space);
        let Some(fan) = self.fan() else { return Ok(home) };
        // The peak is written only if it grew, because a process may join again and again, for example by forks.
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
            // The arena closes before its entries leave its tree. So a lookup that misses an entry in that tree sees
            // that the arena is closed.
            home.arena().counts().change(&covered);
            home.take_over(&mut theirs);
            home.commit(come);
            fan.set_open(n, false);
            arena.counts().change(&Covered::default().less(&covered));
            theirs.commit(go);
            // Forget the arena's peak, because the bytes of the moved entries would count in the peaks of both arenas.
            arena.forget_peak();
        }
        space.pmap().fan_in(space.vm());
        Ok(home)
    }

    /// Frees the arenas and the nodes of their trees.
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
    /// Acquires the writer of the arena that has `va`. Returns it with the end of that arena's addresses from `va` on.
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

    /// Whether all of `range` belongs to the arena of `writer`. `range.start` is not above `range.end`.
    pub(in crate::map) fn has(&self, writer: &Writer<'_, M>, range: VirtRange) -> bool {
        let arena = self.arenas.of(range.start);
        ptr::eq(arena, writer.arena()) && self.arenas.end_of(arena, range.start) >= range.end
    }

    /// Acquires the writer of the arena that has all of `range`. If several arenas have parts of `range`, joins all
    /// arenas. `range.start` is not above `range.end`.
    pub(in crate::map) fn write(&self, range: VirtRange) -> Result<Writer<'_, M>, OutOfMemory> {
        let (writer, end) = self.write_at(range.start);
        if end >= range.end {
            return Ok(writer);
        }
        drop(writer);
        self.write_all()
    }

    /// Acquires the writer of all addresses: joins all arenas.
    pub(in crate::map) fn write_all(&self) -> Result<Writer<'_, M>, OutOfMemory> {
        self.arenas.join(self)
    }

    /// Acquires the writer for a mapping without a fixed address. It is the writer of the calling CPU's own arena if
    /// that is open, else of the home arena. Opens an arena for the CPU if writers contend.
    pub(in crate::map) fn write_somewhere(&self) -> Writer<'_, M> {
        let arenas = &self.arenas;
        let cpu = current_cpu();
        let n = slot_of(cpu);
        let own = || arenas.fan().and_then(|f| f.open_at(n));
        if let Some(arena) = own() {
            let writer = arena.write(self);
            if own().is_some() || mutant(Mutant::OwnArenaBeforeLock) {
                // Pageout may have dropped the page tables since the arena opened, so the new tables are fanned out
                // again: CPUs may copy the root. A thread that closes this arena waits for this lock before it calls
                // `fan_in`.
                self.pmap().fan_out(self.vm());
                return writer;
            }
        }
        let crowded = match arenas.home.try_write(self) {
            // An arena opens only if a second CPU runs the space now, because one thread that migrates between CPUs
            // contends with no other thread.
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

    /// The entry that covers `va`. `Ok(None)` says that no entry covers `va`, and that nothing changed during the
    /// lookup (relies on C3). The arena's sequence, which each change writes, is read only after a first lookup has
    /// found no entry.
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

    /// The present arena and sequence for `va`. The caller reads them before a lookup. If the lookup finds no entry,
    /// the caller checks this answer with [`Space::unchanged_since`].
    #[inline]
    pub(crate) fn moment(&self, va: u64) -> Moment<M> {
        let arena = self.arenas.of(va);
        Moment { arena, sequence: arena.sequence() }
    }

    /// Whether a lookup at `va` since `moment` that found no entry was right: the arena did not change, and `va` still
    /// belongs to it.
    #[inline]
    pub(crate) fn unchanged_since(&self, va: u64, moment: Moment<M>) -> bool {
        let arena = self.arenas.of(va);
        if mutant(Mutant::MissInClosedArena) {
            return true;
        }
        ptr::eq(arena, moment.arena) && arena.unchanged_since(moment.sequence)
    }

    /// Sleeps until no writer changes the arena of `va`, and keeps writers out while the returned writer is held. So no
    /// entry of the arena is stale (about to be replaced) during that time. A fault calls this to wait until a stale
    /// entry is replaced, and to make progress after too many failed attempts.
    pub(crate) fn keep_writers_out(&self, va: u64) -> Writer<'_, M> {
        self.write_at(va).0
    }
}

impl<M: Machine> Space<M> {
    /// Opens an arena for `cpu` at once, without waiting for contention. A caller uses this if it knows that a
    /// program's threads will map and unmap at the same time. Does nothing if no memory is free for the arena, or if
    /// the CPU's stretch already has a mapping.
    pub fn open_arena(&self, cpu: CpuId) {
        self.arenas.open(self, cpu);
    }
}

#[cfg(test)]
impl<M: Machine> Space<M> {
    /// Moves the entries of all arenas to the home arena, as a fork does.
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
        // Dropped last, because the space lives in its memory.
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
        // Any CPU can unmap memory of that arena.
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
        // One thread that migrates between CPUs opens no arena.
        assert_eq!(turns(40), 0);
        (0..20).for_each(|_| _ = anywhere(s, 0, 1));
        s.pmap().run_by_several();
        // CPUs that alternate only now and then open no arena.
        for i in 0..100 {
            assert!(!STRETCHES.contains(anywhere(s, i / 5 % 2, 1)));
        }
        assert!(turns(40) > 10);
        assert_eq!(s.arenas.fan().unwrap().open().count(), 1);
        // The other CPU gets an arena too, because it alternates with a writer of the home arena.
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
        // A fixed mapping across the edge of the stretch replaces its first page.
        let at = map(s, 0, Placement::Fixed(edge - PAGE_SIZE), 2).unwrap();
        assert!(!s.arenas.fanned_out());
        assert_eq!(rows(s), [(at, 2), (edge + PAGE_SIZE, 1)]);
        s.check(true).unwrap();
        // That mapping now lies in the stretch, so the stretch cannot be opened.
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
