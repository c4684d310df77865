//! An arena: a tree of entries, the lock of its writers, and a sequence. With the sequence, readers check a lookup that
//! finds no entry.

pub(crate) mod arenas;
pub(crate) mod covered;
pub(crate) mod find_space;

use super::entry::{Attributes, Entry};
use super::memory::{FAN_OUT, Nodes};
use super::space::Space;
use super::tree::{Change, Cursor, Item, Owner, Tree};
use crate::check::Due;
use crate::machine::{Machine, Pmap};
use crate::map::arena::covered::{Class, Counts, Covered};
use crate::map::maps::Maps;
use crate::types::{PAGE_SIZE, VirtRange};
use core::ptr::NonNull;
use quire_sync::atomic::{AtomicU64, Ordering, fence};
use quire_sync::epoch::Pinned;
use quire_sync::{CpuId, Mutex, MutexGuard, current_cpu};

pub(super) type Entries<M> = Tree<Entry<M>, Nodes<M>, FAN_OUT>;
pub(super) type EntryChange<M> = Change<Entry<M>, Nodes<M>, FAN_OUT>;

/// The amount by which `turns` grows for a writer on another CPU than the last one. A writer on the same CPU lowers it
/// by 1. So `turns` does not grow if each CPU writes five times in a row or more.
const TURN: u32 = 4;
/// CPUs count as alternating writers after about this number of recent alternations.
#[cfg(not(any(test, loom, shuttle)))]
const TURNS: u32 = 16;
#[cfg(any(test, loom, shuttle))]
const TURNS: u32 = 4;

/// A part of a map with writers of its own (relies on C9): operations reach a space's entries only through arenas.
/// [`arenas`] decides which addresses belong to it. An arena has cache lines of its own. A fault that finds an entry
/// reads only the first of these lines, which has the tree's root.
#[repr(C, align(64))]
pub struct Arena<M: Machine> {
    entries: Entries<M>,
    // Writers write the cache lines from here on, and all cache lines of `entries` except its first.
    /// Odd while the tree is being changed. A lookup that finds no entry is valid only if it reads the same even value
    /// before and after.
    sequence: AtomicU64,
    /// Bytes that entries cover, by class.
    covered: Counts,
    /// The most bytes that entries covered since the arena was made, or since [`Arena::forget_peak`]. Only the writer
    /// writes it.
    peak: AtomicU64,
    /// The addresses that the arena may have.
    bounds: VirtRange,
    writer: Mutex<WriterState>,
}

/// The part of an arena's state that only writers use.
pub(super) struct WriterState {
    pub(super) owner: Owner,
    /// The CPU of the last writer.
    last: CpuId,
    /// Grows by [`TURN`] if a writer is on another CPU than the last one, and falls by 1 otherwise.
    turns: u32,
    /// The range whose table pages were found empty last. A writer frees these table pages only when it finds others
    /// empty. So a program that maps and unmaps in one place does not free and allocate a table page each time. At most
    /// one range of empty table pages is kept.
    idle: Option<VirtRange>,
    /// The arena's bytes that were posted to the [`CommitCharge`](super::CommitCharge).
    posted: u64,
    /// When the entries and their chains are checked next. `leaves_due` says when the leaves are checked next.
    pub(super) entries_due: Due,
    pub(super) leaves_due: Due,
}

/// The exclusive right to change an arena, by its sleeping lock. The holder may sleep. A drop checks the map, if the
/// check level demands it (`map/check.rs`).
pub struct Writer<'a, M: Machine> {
    pub(super) space: &'a Space<M>,
    arena: &'a Arena<M>,
    pub(super) kept: MutexGuard<'a, WriterState>,
}

impl<M: Machine> Arena<M> {
    pub(super) fn new(vm: &'static Maps<M>, bounds: VirtRange) -> Self {
        let (entries, owner) = Tree::new(Nodes(vm));
        Arena {
            entries,
            sequence: AtomicU64::new(0),
            covered: Counts::new(),
            peak: AtomicU64::new(0),
            bounds,
            writer: Mutex::new(WriterState {
                owner,
                last: current_cpu(),
                turns: 0,
                idle: None,
                posted: 0,
                entries_due: Due::new(),
                leaves_due: Due::new(),
            }),
        }
    }

    pub(super) fn bounds(&self) -> VirtRange {
        self.bounds
    }

    /// Acquires the writer. Returns `None` if another thread holds it. `space` owns the arena. May sleep to let the
    /// epoch advance, if much memory waits for readers.
    pub(super) fn try_write<'a>(&'a self, space: &'a Space<M>) -> Option<Writer<'a, M>> {
        space.vm().epoch().push_back();
        self.writer.try_lock().map(|kept| Writer::new(space, self, kept))
    }

    /// Acquires the writer; sleeps while another thread holds it. `space` owns the arena.
    pub(super) fn write<'a>(&'a self, space: &'a Space<M>) -> Writer<'a, M> {
        space.vm().epoch().push_back();
        Writer::new(space, self, self.writer.lock())
    }

    #[inline]
    pub(super) fn lookup<'p>(&self, va: u64, _pin: &'p Pinned<'_>) -> Option<&'p Entry<M>> {
        // SAFETY: the caller is pinned, and an entry that leaves the tree is retired through the epoch.
        unsafe { self.entries.get(va).map(|item| &*item.value.as_ptr()) }
    }

    /// The first entry that ends after `from`.
    pub(super) fn next<'p>(&self, from: u64, _pin: &'p Pinned<'_>) -> Option<&'p Entry<M>> {
        // SAFETY: the caller is pinned, and an entry that leaves the tree is retired through the epoch.
        unsafe { self.entries.next(from).map(|item| &*item.value.as_ptr()) }
    }

    #[inline]
    pub(super) fn sequence(&self) -> u64 {
        self.sequence.load(Ordering::Acquire)
    }

    /// Whether no writer changed the arena between the read of `sequence` and this call. If so, a lookup in between
    /// that found no entry was right (relies on C3).
    #[inline]
    pub(super) fn unchanged_since(&self, sequence: u64) -> bool {
        fence(Ordering::Acquire);
        sequence & 1 == 0 && self.sequence.load(Ordering::Relaxed) == sequence
    }

    pub(super) fn mapped(&self) -> u64 {
        self.covered.bytes()
    }
    /// Bytes that count as data.
    pub(super) fn data(&self) -> u64 {
        self.covered.data()
    }
    /// Bytes that entries cover.
    pub(super) fn covered(&self) -> Covered {
        self.covered.read()
    }
    /// Bytes that entries cover, for the arena's writer to change.
    pub(super) fn counts(&self) -> &Counts {
        &self.covered
    }
    /// The most bytes that entries covered at a time.
    pub(super) fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }
    /// # Requires
    /// The caller holds the arena's lock, and has saved the old peak elsewhere.
    pub(super) fn forget_peak(&self) {
        self.peak.store(0, Ordering::Relaxed);
    }
    /// The numbers of leaves and of inner nodes of the arena's tree.
    pub(super) fn nodes(&self, _pin: &Pinned<'_>) -> [u64; 2] {
        // SAFETY: the caller is pinned in the epoch of the space's system.
        unsafe { self.entries.nodes() }
    }
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// All entries in ascending order, read without the writer's lock.
    ///
    /// # Safety
    /// The caller alone can reach the arena.
    pub(super) unsafe fn all_at_last(&self) -> impl Iterator<Item = &Entry<M>> {
        // SAFETY: by this function's contract no other thread changes the tree, so its nodes and entries stay alive.
        let cursor: Cursor<_, _, FAN_OUT> = unsafe { self.entries.cursor(0) };
        // SAFETY: the tree holds live entries, and by this function's contract no other thread can retire one.
        cursor.map(|item| unsafe { &*item.value.as_ptr() })
    }

    /// Prepares the first entries of an arena that no other thread can reach yet. Otherwise like [`Writer::prepare`].
    pub(super) fn prepare_first(
        &mut self,
        count: usize,
        entries: impl Iterator<Item = NonNull<Entry<M>>>,
    ) -> Result<EntryChange<M>, crate::OutOfMemory> {
        let owner = &mut self.writer.get_mut().owner;
        self.entries.prepare(owner, self.bounds.start, self.bounds.end, count, items(entries))
    }

    /// Charges `bytes` for the first entries of an arena that no other thread can reach yet. Returns false if the limit
    /// of the commit charge would be exceeded.
    pub(super) fn charge_commit_first(&mut self, vm: &Maps<M>, bytes: u64) -> bool {
        let commit_charge = vm.map_memory().commit_charge();
        if commit_charge.is_limited() {
            if !commit_charge.charge_commit(bytes, shared(vm)) {
                return false;
            }
        } else {
            commit_charge.post(bytes);
        }
        self.writer.get_mut().posted += bytes;
        true
    }

    /// Takes back the whole commit charge of the arena, when the arena is freed.
    pub(super) fn drop_commit(&mut self, vm: &Maps<M>) {
        let posted = core::mem::take(&mut self.writer.get_mut().posted);
        if posted != 0 {
            vm.map_memory().commit_charge().post(posted.wrapping_neg());
        }
    }

    /// Publishes the change that [`prepare_first`](Self::prepare_first) returned, like [`Writer::commit`].
    pub(super) fn commit_first(&mut self, change: EntryChange<M>) {
        let kept = self.writer.get_mut();
        self.entries.commit(&mut kept.owner, change);
        self.peak.store(self.covered.bytes(), Ordering::Relaxed);
        kept.note_updates(1);
    }

    /// Frees the tree's nodes at once, without the epoch.
    ///
    /// # Safety
    /// The caller alone can reach the arena.
    pub(super) unsafe fn free_nodes(&mut self) {
        // SAFETY: by this function's contract no reader and no writer can reach the nodes.
        unsafe { self.entries.free_all() }
    }
}

impl WriterState {
    #[inline]
    fn note_writer(&mut self, cpu: CpuId) {
        if self.last == cpu {
            self.turns = self.turns.saturating_sub(1);
        } else {
            self.last = cpu;
            self.turns = (self.turns + TURN).min(TURN * TURNS);
        }
    }

    fn note_updates(&mut self, n: u64) {
        self.entries_due.note(1);
        self.leaves_due.note(n);
    }
}

/// Bytes of resident pages of files and of shared memory.
fn shared<M: Machine>(vm: &Maps<M>) -> u64 {
    vm.stats().shared_pages() * PAGE_SIZE
}

/// The entries as items of the tree.
///
/// # Requires
/// The entries are not published yet, or the caller keeps them from being retired.
fn items<M: Machine>(entries: impl Iterator<Item = NonNull<Entry<M>>>) -> impl Iterator<Item = Item<Entry<M>>> {
    entries.map(|value| {
        // SAFETY: the entries are not retired, because this function requires that.
        let range = unsafe { value.as_ref() }.range();
        Item { start: range.start, end: range.end, value }
    })
}

impl<'a, M: Machine> Writer<'a, M> {
    fn new(space: &'a Space<M>, arena: &'a Arena<M>, mut kept: MutexGuard<'a, WriterState>) -> Self {
        kept.note_writer(current_cpu());
        Writer { space, arena, kept }
    }

    /// Whether CPUs alternate as writers. Then the arena's cache lines move between the CPUs, even if no writer ever
    /// waits for another. After a `true` the count begins at 0 again.
    #[inline]
    pub(super) fn take_turns(&mut self) -> bool {
        let many = self.kept.turns > TURN * (TURNS - 1);
        if many {
            self.kept.turns = 0;
        }
        many
    }

    pub(super) fn arena(&self) -> &'a Arena<M> {
        self.arena
    }

    /// The entry that covers `va`.
    pub(super) fn get(&self, va: u64) -> Option<&'a Entry<M>> {
        // SAFETY: the writer is held, so entries in the tree stay; callers drop the references to entries before they
        // replace them.
        unsafe { self.arena.entries.get(va).map(|item| &*item.value.as_ptr()) }
    }

    /// The last entry that starts before `va`.
    pub(super) fn before(&self, va: u64) -> Option<&'a Entry<M>> {
        // SAFETY: the writer is held, so entries in the tree stay; callers drop the reference to an entry before they
        // replace it.
        unsafe { self.arena.entries.before(va).map(|item| &*item.value.as_ptr()) }
    }

    /// The first entry that ends after `va`.
    pub(super) fn next(&self, va: u64) -> Option<&'a Entry<M>> {
        // SAFETY: the writer is held, so entries in the tree stay; callers drop the reference to an entry before they
        // replace it.
        unsafe { self.arena.entries.next(va).map(|item| &*item.value.as_ptr()) }
    }

    /// The entries that overlap `lo..hi`.
    pub(super) fn overlapping(&self, lo: u64, hi: u64) -> impl Iterator<Item = &'a Entry<M>> + use<'a, M> {
        // SAFETY: the writer is held, so no node is retired before it commits; callers end the walk before that.
        let cursor: Cursor<_, _, FAN_OUT> = unsafe { self.arena.entries.cursor(lo) };
        // SAFETY: the tree holds live entries, and only the writer, which is held, retires replaced entries.
        cursor.take_while(move |i| i.start < hi).map(|item| unsafe { &*item.value.as_ptr() })
    }

    /// The entries that end after `va`, ascending, and the entry before the first of them, if both are in one leaf of
    /// the tree.
    pub(super) fn around(&self, va: u64) -> (Option<&'a Entry<M>>, impl Iterator<Item = &'a Entry<M>> + use<'a, M>) {
        // SAFETY: the writer is held, so no node is retired before it commits; callers end the walk before that.
        let cursor: Cursor<_, _, FAN_OUT> = unsafe { self.arena.entries.cursor(va) };
        // SAFETY: the tree holds live entries, and only the writer, which is held, retires replaced entries.
        let before = cursor.before().map(|item| unsafe { &*item.value.as_ptr() });
        // SAFETY: the tree holds live entries, and only the writer, which is held, retires replaced entries.
        (before, cursor.map(|item| unsafe { &*item.value.as_ptr() }))
    }

    /// All entries, with the ranges that the tree stores for them.
    pub(super) fn items(&self) -> impl Iterator<Item = (VirtRange, &'a Entry<M>)> + use<'a, M> {
        // SAFETY: the writer is held, so no node is retired before it commits; callers end the walk before that.
        let cursor: Cursor<_, _, FAN_OUT> = unsafe { self.arena.entries.cursor(0) };
        // SAFETY: the tree holds live entries, and only the writer, which is held, retires replaced entries.
        cursor.map(|i| (VirtRange { start: i.start, end: i.end }, unsafe { &*i.value.as_ptr() }))
    }

    /// The start of the lowest hole that fits; see [`Tree::first_fit`].
    pub(super) fn first_fit(&self, len: u64, align: u64, lo: u64, hi: u64) -> Option<u64> {
        self.arena.entries.first_fit(&self.kept.owner, len, align, lo, hi)
    }

    pub(super) fn prepare(
        &mut self,
        lo: u64,
        hi: u64,
        count: usize,
        entries: impl Iterator<Item = NonNull<Entry<M>>>,
    ) -> Result<EntryChange<M>, crate::OutOfMemory> {
        self.arena.entries.prepare(&mut self.kept.owner, lo, hi, count, items(entries))
    }

    /// Allocates tree nodes in advance, so that a removal that follows cannot fail for lack of memory.
    pub(super) fn set_nodes_aside(&mut self) -> Result<(), crate::OutOfMemory> {
        self.arena.entries.set_aside(&mut self.kept.owner)
    }

    /// Publishes a change by one store. A concurrent lookup that finds no entry is repeated, because the sequence
    /// changes (relies on C3). The caller has updated the counts of bytes before.
    pub(super) fn commit(&mut self, change: EntryChange<M>) {
        let s = self.arena.sequence.load(Ordering::Relaxed);
        self.arena.sequence.store(s + 1, Ordering::Relaxed);
        fence(Ordering::Release);
        self.arena.entries.commit(&mut self.kept.owner, change);
        self.arena.sequence.store(s + 2, Ordering::Release);
        let total = self.arena.mapped();
        if total > self.arena.peak() {
            self.arena.peak.store(total, Ordering::Relaxed);
        }
        self.note_updates(1);
    }

    /// Replaces the entry that has the range of `entry`, and the attributes `old`, by one store. The sequence does not
    /// change, because at any time a lookup finds the old or the new entry.
    ///
    /// # Panics
    /// If no entry has the range: a bug of the map.
    pub(super) fn replace(&mut self, entry: NonNull<Entry<M>>, old: &Attributes) {
        // SAFETY: the caller made the entry and has not published it, so no other thread can retire it.
        let (range, new) = unsafe { (entry.as_ref().range(), entry.as_ref().attributes()) };
        self.arena.covered.change_class(range.bytes(), Class::of(old), Class::of(&new));
        let item = Item { start: range.start, end: range.end, value: entry };
        let old = self.arena.entries.replace(&mut self.kept.owner, item);
        assert!(old.is_some(), "a replaced entry is in the tree");
        self.note_updates(1);
    }

    /// If the commit charge has a limit, posts `more` bytes with attributes `a` before they are mapped. They replace
    /// `less` bytes that are charged already. Returns false if the limit would be exceeded.
    pub(super) fn charge_commit(&mut self, more: u64, less: u64, a: &Attributes) -> bool {
        let vm = self.space.vm();
        let commit_charge = vm.map_memory().commit_charge();
        if !commit_charge.is_limited() || !Class::of(a).is_committed() {
            return true;
        }
        // If this operation was begun again, its first attempt may have posted bytes already.
        let missing = (self.arena.covered.committed() + more).saturating_sub(self.kept.posted + less);
        if missing > 0 && !commit_charge.charge_commit(missing, shared(vm)) {
            return false;
        }
        self.kept.posted += missing;
        true
    }

    /// Adds the posted bytes of `other` to this arena's, because the entries move to this arena.
    pub(super) fn take_over(&mut self, other: &mut Writer<'_, M>) {
        self.kept.posted += core::mem::take(&mut other.kept.posted);
    }

    /// Posts the difference between the present bytes and the posted ones, when the writer is dropped.
    #[inline]
    pub(super) fn settle_commit(&mut self) {
        let now = self.arena.covered.committed();
        if now != self.kept.posted {
            self.space.vm().map_memory().commit_charge().post(now.wrapping_sub(self.kept.posted));
            self.kept.posted = now;
        }
    }

    /// Counts `n` cleared or weakened leaves, or 1 for a change of entries. The checker runs once in a number of these
    /// updates, to limit its cost.
    pub(super) fn note_updates(&mut self, n: u64) {
        self.kept.note_updates(n);
    }

    /// Notes that table pages in `emptied` have no leaf any more. Returns the range whose table pages the caller prunes
    /// now. If the space has no entry any more, that is all of user space. (A writer of an arena other than the home
    /// arena does not look at other arenas. The last empty table pages of its arena are pruned when the arenas join.)
    pub(super) fn idle_tables(&mut self, emptied: Option<VirtRange>, space: &Space<M>) -> Option<VirtRange> {
        let home = core::ptr::eq(self.arena, space.arenas.home());
        if home && self.arena.mapped() == 0 && space.mapped() == 0 {
            self.kept.idle = None;
            return Some(M::Pmap::USER);
        }
        match self.kept.idle {
            Some(idle) if Some(idle) == emptied => None,
            old => {
                self.kept.idle = Some(emptied?);
                old
            }
        }
    }

    pub(super) fn check_tree(&self) -> Result<(), super::tree::TreeError> {
        self.arena.entries.check(&self.kept.owner)
    }
}

/// Damage for tests of the checker.
#[cfg(all(test, not(any(loom, shuttle))))]
impl<M: Machine> Writer<'_, M> {
    pub(super) fn corrupt_tree(&self, damage: super::tree::TreeError) {
        self.arena.entries.corrupt(damage, &self.kept.owner);
    }
    pub(super) fn corrupt_mapped(&self) {
        self.arena.covered.change(&Covered { bytes: 1, ..Covered::default() });
    }
    pub(super) fn corrupt_classes(&self, a: &Attributes) {
        let mut more = Covered::default();
        more.come(1, a);
        more.bytes = 0;
        self.arena.covered.change(&more);
    }
    pub(super) fn pointer(&self, va: u64) -> NonNull<Entry<M>> {
        // SAFETY: the writer is held, so no node of the tree is retired during the search.
        unsafe { self.arena.entries.get(va) }.expect("an entry is there").value
    }
}
