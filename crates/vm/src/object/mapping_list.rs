//! The mapping list of an object: its backings in interval trees. Where many CPUs link and unlink, it has several
//! shards, each with its own lock.
//!
//! A backing records its shard, which is chosen when the range is first mapped. Each backing that replaces another goes
//! to the same shard, and is linked before the old one is unlinked. So a scan that holds a shard's lock finds the old
//! or the new backing.
//!
//! A scan releases the lock from time to time. The module [`scan`](super::scan) explains why it still visits each
//! backing, and ends. A scan that flushes releases the lock before each flush ([`flushing`]).
//!
//! # Growing and shrinking
//! At first the list has one shard. It fans out to sixteen shards when CPUs contend for the first shard and that shard
//! is long ([`FAN_OUT_AT`]). CPUs contend if they wait for its lock, or take *turns*: each links a backing after
//! another CPU did. A shard is long with 80 backings for each of the sixteen shards. A short list fans out too, if CPUs
//! have often taken turns in the first shard ([`TURNS`]). An example is the file of a program that all CPUs start again
//! and again. CPUs may still take turns in one of the sixteen shards, or empty and fill one, which writes the object's
//! reference count. Then these CPUs and their neighbours get shards of their own ([`OWN_AT`]). The number of own shards
//! follows the CPUs that contend, not the backings.
//!
//! Each shard makes scans slower, because a scan locks each shard. So while there is one shard, each scan subtracts
//! [`SCAN`] from the count of turns that would open more shards. Shards close again when the list is short and is
//! scanned often. A CPU that unlinks checks this from time to time ([`Shards::is_too_wide`]). A scan checks it after
//! many scans without an unlinking ([`Shards::scanned`]). The shards are also closed when only CPUs' own shards keep
//! the object ([`references`](super::references)).
//!
//! Rules while shards open and close:
//! 1. The backings of a closing shard move to the first shard, one by one, under both locks ([`Shards::shrink`]). A CPU
//!    that needs the shards closed helps to move them, and waits for no other CPU.
//! 2. A scan that has passed the first shard would miss backings that move there. So each move first raises the count
//!    `moved`. A scan that sees the count change starts again (mutant [`Mutant::ShrinkUnseen`]).
//! 3. A scan lists the other shards only after it has finished the first shard. The other shards may open while it
//!    scans the first, and a backing of the first shard may be replaced by a backing in another shard.
//! 4. If a backing's shard is closed before the backing is linked, the backing goes to the first shard and raises
//!    `moved` too. The backing that it replaces may be in a shard that a scan has not reached.
//! 5. The memory of the shards is kept until the object is freed. An empty shard costs a scan one lock.

mod flushing;
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;

use crate::check::{Broken, Due, Level};
use crate::machine::Machine;
use crate::mutant::{Mutant, mutant};
use crate::object::Objects;
use crate::object::backing::Backing;
use crate::object::interval::{Interval, Tree, TreePlace};
use crate::object::scan::{Scan, Step, VISITS};
use crate::object::{Object, References};
use core::ops::ControlFlow;
use core::ptr::{self, NonNull};
use quire_sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU16, AtomicU32, AtomicU64, Ordering, fence_after_rmw, fence_full,
};
use quire_sync::{CachePadded, Rank, SpinLock};

/// The number of shards beyond the first, once the list has fanned out.
#[cfg(not(any(loom, shuttle)))]
const MORE: usize = 15;
#[cfg(any(loom, shuttle))]
const MORE: usize = 1;
/// The number of CPUs whose own shards are allocated together.
const GROUP: usize = if cfg!(any(loom, shuttle)) { 2 } else { 16 };
/// The number of groups that have own shards. CPUs beyond the last group share shards with others.
const GROUPS: usize = if cfg!(any(loom, shuttle)) { 1 } else { 16 };
/// How often CPUs take turns in a shard (one links a backing after another CPU did) before they get shards of their
/// own. The cache-line transfers that this saves outweigh the added cost of later scans.
const OWN_AT: u16 = if cfg!(any(test, loom, shuttle)) { 2 } else { 32 };
/// The shards close at this number of backings or fewer: 64 for each of the shards that all CPUs share.
#[cfg(not(any(test, loom, shuttle)))]
const SHRINK_BELOW: u32 = 64 * (MORE as u32 + 1);
#[cfg(any(test, loom, shuttle))]
const SHRINK_BELOW: u32 = 6;
/// The number of backings in the first shard at which it may fan out. It is a quarter above [`SHRINK_BELOW`], so that
/// the list does not alternate between open and closed.
const FAN_OUT_AT: u32 = SHRINK_BELOW / 4 * 5 + SHRINK_BELOW % 4;
/// The number of turns in the first shard (a CPU links a backing after another CPU did) before a short list fans out.
/// Each turn moves a cache line.
const TURNS: u16 = if cfg!(any(loom, shuttle)) { u16::MAX } else { 64 };
/// The number that one scan subtracts from the count of turns. A scan locks each shard, so frequent scans keep a list
/// from fanning out.
const SCAN: u16 = 16;
/// The number of scans of a short list, without an unlinking, after which its shards close.
const SCANS: u32 = 64;
/// The number of unlinkings from one shard between two checks of the list's length, for each sixteen shards of the
/// list. A check reads a cache line of each shard. With fewer checks, CPUs that map and unmap fetch fewer cache lines
/// from each other. With more checks, the shards of a short list close sooner, and scans visit fewer empty shards.
const LOOK_EVERY: u64 = if SHRINK_BELOW > 16 { 256 } else { 1 };
/// The number of scans between two checks of the list's length at which the shards may close.
const LOOK_SCANS: u32 = match () {
    _ if cfg!(any(loom, shuttle)) => 0,
    _ if cfg!(test) => 1,
    _ => 256 / SCAN as u32,
};
/// The value of `last` before the first linking.
const NO_CPU: u16 = u16::MAX;
/// The most starts that [`Shards::visit_at`] tries. It knows a backing's address, but not its start, and the tree is
/// ordered by start, then by address.
const STARTS: usize = 4;

struct Listed<M: Machine> {
    tree: Tree<Backing<M>>,
    /// When the self-check of the tree is due.
    due: Due,
}

/// One shard of a mapping list.
pub struct Shard<M: Machine> {
    list: SpinLock<Listed<M>>,
    /// The number of backings in the tree. Written under the lock.
    count: AtomicU32,
    /// The number of unlinkings. Written under the lock. `unlinked` plus `count` is the number of linkings, which gives
    /// the stamps of the tree's members.
    unlinked: AtomicU64,
    /// How often a CPU found the lock held, or linked a backing after another CPU did. Both cost the move of a cache
    /// line. The count may wrap.
    contended: AtomicU16,
    /// The CPU that linked a backing last, or [`NO_CPU`]. Written under the lock.
    last: AtomicU16,
}

#[cfg(test)]
quire_sync::assert_layout!(Shard<crate::testing::TestMachine> { size: 48, align: 8 });

/// The shards beyond the first: the shards that all CPUs share, and the own shards of CPUs.
pub struct MoreShards<M: Machine> {
    shards: [CachePadded<Shard<M>>; MORE],
    /// The state: [`OPEN`], [`CLOSING`] or [`CLOSED`], plus [`STATES`] times the number of openings. Closing waits for
    /// each CPU that locked a shard while it was open.
    state: AtomicU32,
    /// Rises before a backing is moved to the first shard from another shard, or goes there because its shard is
    /// closed.
    moved: AtomicU64,
    /// The number of scans since the last check whether the list is too short for its shards. It is on its own cache
    /// line, apart from the fields that each linking reads.
    scans: CachePadded<AtomicU32>,
    /// CPUs' own shards, whose numbers follow those of `shards`. A slot is null until a CPU of the group contends, and
    /// is set once.
    own: [AtomicPtr<OwnShards<M>>; GROUPS],
}

/// The own shards of a group of neighbouring CPUs.
pub struct OwnShards<M: Machine>([CachePadded<OwnShard<M>>; GROUP]);

struct OwnShard<M: Machine> {
    shard: Shard<M>,
    /// Whether the shard has a reference to the object. Guarded by the shard's lock.
    counts: AtomicBool,
}

impl<M: Machine> MoreShards<M> {
    fn is(&self, state: u32) -> bool {
        self.state.load(Ordering::Acquire) % STATES == state
    }

    /// Shard `i` of the whole list; `i` is not 0. `None` if the shard is not allocated yet.
    fn shard(&self, i: u16) -> Option<&Shard<M>> {
        let i = i as usize - 1;
        match i.checked_sub(MORE) {
            None => Some(&self.shards[i].0),
            Some(_) => self.own_shard(i as u16 + 1).map(|own| &own.shard),
        }
    }

    /// The own shard of a CPU, by its number `i` in the whole list. `None` if `i` is a shared shard, or the shard is
    /// not allocated yet.
    fn own_shard(&self, i: u16) -> Option<&OwnShard<M>> {
        let cpu = (i as usize).checked_sub(1 + MORE)?;
        self.group(cpu).map(|own| &own.0[cpu % GROUP].0)
    }

    /// The own shards of `cpu` and its neighbours, if they are allocated. `cpu` is below [`OWN`].
    fn group(&self, cpu: usize) -> Option<&OwnShards<M>> {
        // SAFETY: a slot is set once. Own shards are freed with the object, which the caller keeps alive.
        unsafe { self.own[cpu / GROUP].load(Ordering::Acquire).as_ref() }
    }

    /// All existing own shards of CPUs.
    fn all_own(&self) -> impl Iterator<Item = &OwnShard<M>> {
        (0..GROUPS).filter_map(|n| self.group(n * GROUP)).flat_map(|own| own.0.iter().map(|p| &p.0))
    }

    /// All existing shards after the first.
    fn iter(&self) -> impl Iterator<Item = &Shard<M>> {
        let own = || self.all_own().filter(|_| !mutant(Mutant::OwnShardsUnscanned)).map(|own| &own.shard);
        self.shards.iter().map(|p| &p.0).chain(own())
    }

    /// Allocates own shards for `cpu` and its neighbours.
    // This function is not inlined, so that the shards that it builds on the stack are not in its caller's stack frame.
    #[cold]
    #[inline(never)]
    fn make_own(&self, vm: &Objects<M>, cpu: usize) {
        let shard = |_| OwnShard { shard: Shard::new(ptr::null_mut()), counts: AtomicBool::new(false) };
        let shards = OwnShards(core::array::from_fn(|n| CachePadded(shard(n))));
        // If there is no memory, the CPUs continue to share shards.
        if let Ok(fresh) = vm.object_memory().own_shards.alloc(vm, shards)
            && self.own[cpu / GROUP]
                .compare_exchange(ptr::null_mut(), fresh.as_ptr(), Ordering::AcqRel, Ordering::Acquire)
                .is_err()
        {
            // SAFETY: the exchange failed, so no slot of `own` leads to `fresh`, which came from this slab.
            unsafe { vm.object_memory().own_shards.free(vm, fresh) };
        }
    }
}

/// The number of CPUs that can have a shard of their own.
const OWN: usize = GROUP * GROUPS;

/// State: new backings go to all shards except the first.
const OPEN: u32 = 0;
/// State: new backings go to the first shard, and backings of other shards are being moved there.
const CLOSING: u32 = 1;
/// State: all backings are in the first shard.
const CLOSED: u32 = 2;
const STATES: u32 = 4;

/// The whole mapping list of an object.
pub(crate) struct Shards<M: Machine> {
    first: Shard<M>,
    /// Null until the list fans out for the first time. Set once.
    more: AtomicPtr<MoreShards<M>>,
}

impl<M: Machine> Shard<M> {
    fn new(only: *mut Backing<M>) -> Self {
        Shard {
            list: SpinLock::new(Rank::BACKINGS, Listed { tree: Tree::new(only), due: Due::new() }),
            count: AtomicU32::new(!only.is_null() as u32),
            unlinked: AtomicU64::new(0),
            contended: AtomicU16::new(0),
            last: AtomicU16::new(NO_CPU),
        }
    }

    fn lock(&self) -> quire_sync::SpinGuard<'_, Listed<M>> {
        match self.list.try_lock() {
            Some(g) => g,
            None => {
                self.contended.fetch_add(1, Ordering::Relaxed);
                self.list.lock()
            }
        }
    }
}

impl<M: Machine> Shard<M> {
    /// The number of linkings so far. Exact only under the lock.
    fn linked(&self) -> u64 {
        self.unlinked.load(Ordering::Relaxed) + u64::from(self.count.load(Ordering::Relaxed))
    }

    /// Continues `scan`, for one hold of the lock.
    fn step<T>(&self, scan: &mut Scan, visit: &mut impl FnMut(&Backing<M>) -> ControlFlow<T>) -> Step<T> {
        let mut list = self.lock();
        #[cfg(all(test, not(any(loom, shuttle))))]
        let before = scan.visits();
        let step = scan.step(&mut list.tree, self.linked(), visit);
        #[cfg(all(test, not(any(loom, shuttle))))]
        looks::add(scan.visits() - before);
        step
    }

    /// As [`step`](Self::step), for visits with work to do without the lock ([`Scan::step_apart`]).
    fn step_apart(&self, scan: &mut Scan, visit: &mut impl FnMut(&Backing<M>) -> ControlFlow<()>) -> Step<()> {
        let mut list = self.lock();
        #[cfg(all(test, not(any(loom, shuttle))))]
        let before = scan.visits();
        let step = scan.step_apart(&mut list.tree, self.linked(), visit);
        #[cfg(all(test, not(any(loom, shuttle))))]
        looks::add(scan.visits() - before);
        step
    }

    /// Ends a scan early, before it has visited all backings.
    fn stop(&self, scan: Scan) {
        scan.stop(&mut self.lock().tree);
    }

    /// Counts one linking or unlinking just before the lock is released, and runs the self-check of the tree if it is
    /// due.
    #[inline]
    fn release(&self, vm: &Objects<M>, list: &mut Listed<M>) {
        list.due.note(1);
        let level = vm.check_level();
        if level != Level::Never && list.due.is_due(level) {
            let result = self.check(list, &mut |_| Ok(()));
            vm.checked(&mut list.due, result);
        }
    }

    /// As [`Shards::search`], for this shard alone.
    fn search<T>(&self, start: u64, end: u64, visit: &mut impl FnMut(&Backing<M>) -> ControlFlow<T>) -> Option<T> {
        let mut scan = Scan::new(start, end, None);
        loop {
            match self.step(&mut scan, visit) {
                Step::Found(found) => return Some(found),
                Step::Over => return None,
                Step::More => {}
            }
        }
    }

    fn check(&self, list: &Listed<M>, each: &mut dyn FnMut(&Backing<M>) -> Result<(), Broken>) -> Result<u64, Broken> {
        let says = u64::from(self.count.load(Ordering::Relaxed));
        let has = list.tree.check(each)?;
        if has == says { Ok(has) } else { Err(Broken::ListCount(says)) }
    }
}

impl<M: Machine> Shards<M> {
    /// A list that is empty, or that holds `only`. The links of `only` must be those of the only member of a tree.
    pub fn new(only: *mut Backing<M>) -> Self {
        Shards { first: Shard::new(only), more: AtomicPtr::new(ptr::null_mut()) }
    }

    fn more(&self) -> Option<&MoreShards<M>> {
        // SAFETY: the word is set once. The shards are freed with the object, which the caller keeps alive.
        unsafe { self.more.load(Ordering::Acquire).as_ref() }
    }

    fn shard(&self, i: u16) -> &Shard<M> {
        match i {
            0 => &self.first,
            i => {
                let shard = self.more().and_then(|more| more.shard(i));
                debug_assert!(shard.is_some(), "a backing names shard {i}, which is not there");
                shard.unwrap_or(&self.first)
            }
        }
    }

    /// The shards that may hold backings. The iterator looks for the other shards only after it has returned the first
    /// shard.
    fn iter(&self) -> impl Iterator<Item = &Shard<M>> {
        let others = || self.more().filter(|m| !m.is(CLOSED));
        core::iter::once(&self.first).chain(core::iter::once_with(others).flatten().flat_map(MoreShards::iter))
    }

    /// The number of backings. Exact only if no other CPU links or unlinks during the call.
    pub fn len(&self) -> u64 {
        self.iter().map(|shard| u64::from(shard.count.load(Ordering::Relaxed))).sum()
    }

    fn own_shard(&self, i: u16) -> Option<&OwnShard<M>> {
        self.more().and_then(|more| more.own_shard(i))
    }

    fn is_open(&self) -> bool {
        self.more().is_some_and(|m| m.is(OPEN))
    }

    /// How often a backing has moved to the first shard, or has gone there because its shard is closed.
    fn moved(&self) -> u64 {
        self.more().map_or(0, |m| m.moved.load(Ordering::Acquire))
    }

    /// Locks the shard of the linked backing `b`, and returns the shard and the guard.
    fn lock_shard_of(&self, b: &Backing<M>) -> (&Shard<M>, quire_sync::SpinGuard<'_, Listed<M>>) {
        loop {
            let n = b.shard();
            let shard = self.shard(n);
            let list = shard.lock();
            // The backing may have moved to the first shard while this CPU waited for the lock.
            if b.shard() == n {
                return (shard, list);
            }
        }
    }

    /// Whether the list has exactly one backing now, and has never fanned out.
    #[inline(always)]
    pub fn is_single(&self) -> bool {
        self.first.count.load(Ordering::Acquire) == 1 && self.more.load(Ordering::Acquire).is_null()
    }

    /// Chooses the shard of a new backing, by CPU once the list has fanned out. Fans the list out if it is long and
    /// contended.
    pub fn choose(&self, vm: &Objects<M>) -> u16 {
        if !self.is_open() {
            let turns = self.first.contended.load(Ordering::Relaxed);
            if turns >= TURNS || turns != 0 && self.first.count.load(Ordering::Relaxed) >= FAN_OUT_AT {
                self.fan_out(vm);
            }
        }
        let Some(more) = self.more().filter(|m| m.is(OPEN)) else { return 0 };
        // The first shard is not used, because its cache line also has fields that all CPUs read.
        let cpu = quire_sync::current_cpu();
        let (own, shared) = (cpu % OWN, cpu % MORE);
        if more.group(own).is_none() && more.shards[shared].0.contended.load(Ordering::Relaxed) >= OWN_AT {
            more.make_own(vm, own);
        }
        (1 + if more.group(own).is_some() { MORE + own } else { shared }) as u16
    }

    // This function is not inlined, so that the shards that it builds on the stack are not in its caller's stack frame.
    #[cold]
    #[inline(never)]
    fn fan_out(&self, vm: &Objects<M>) {
        if let Some(more) = self.more() {
            let state = more.state.load(Ordering::Acquire);
            if state % STATES == CLOSED {
                let open = (state - CLOSED + OPEN).wrapping_add(STATES);
                let _now = more.state.compare_exchange(state, open, Ordering::AcqRel, Ordering::Acquire);
            }
            return;
        }
        let shards = MoreShards {
            shards: core::array::from_fn(|_| CachePadded(Shard::new(ptr::null_mut()))),
            state: AtomicU32::new(OPEN),
            moved: AtomicU64::new(0),
            scans: CachePadded(AtomicU32::new(0)),
            own: core::array::from_fn(|_| AtomicPtr::new(ptr::null_mut())),
        };
        // If there is no memory, the list keeps one shard, which is slower but correct.
        if let Ok(fresh) = vm.object_memory().shards.alloc(vm, shards)
            && self.more.compare_exchange(ptr::null_mut(), fresh.as_ptr(), Ordering::AcqRel, Ordering::Acquire).is_err()
        {
            // SAFETY: the exchange failed, so `more` never led to `fresh`, which came from this slab.
            unsafe { vm.object_memory().shards.free(vm, fresh) };
        }
    }

    /// Links `b` into its shard, or into the first shard if its own shard was closed before this linking. `refs` is the
    /// object's references. If the shard has no reference to the object yet, it gets one. The caller keeps the object
    /// alive.
    pub fn insert(&self, vm: &Objects<M>, b: NonNull<Backing<M>>, refs: &References) {
        // SAFETY: the caller made the backing and has linked it nowhere, so no other thread retires it.
        let backing = unsafe { b.as_ref() };
        let mut shard = self.shard(backing.shard());
        let mut list = shard.lock();
        // This CPU allocates an own shard, fences, then reads whether the shards are open. A closing CPU sets the state
        // to closing, then lists the own shards. So one of the two sees the other's write.
        if !mutant(Mutant::NoFenceAfterOwn) {
            fence_after_rmw();
        }
        if let Some(more) = self.more()
            && backing.shard() != 0
            && !more.is(OPEN)
        {
            drop(list);
            backing.set_shard(0);
            shard = &self.first;
            list = shard.lock();
            // The count rises under the same hold of the lock as the linking. So a scan that reads the count later
            // finds the backing in the first shard.
            more.moved.fetch_add(1, Ordering::AcqRel);
        }
        // SAFETY: the backing is in no tree, and it is unlinked before it is retired.
        unsafe { list.tree.insert(b.as_ptr(), shard.linked()) };
        let n = shard.count.load(Ordering::Relaxed);
        shard.count.store(n + 1, Ordering::Release);
        let here = quire_sync::current_cpu() as u16;
        let last = shard.last.load(Ordering::Relaxed);
        if last != here {
            shard.last.store(here, Ordering::Relaxed);
            if last != NO_CPU {
                shard.contended.fetch_add(1, Ordering::Relaxed);
            }
        }
        match self.own_shard(backing.shard()) {
            Some(own) if own.counts.load(Ordering::Relaxed) => {}
            Some(own) => {
                own.counts.store(true, Ordering::Relaxed);
                refs.add_own();
            }
            None if n == 0 => {
                refs.add();
                if backing.shard() != 0 {
                    // This write of the shared reference count moves a cache line too, so it counts as a turn.
                    shard.contended.fetch_add(1, Ordering::Relaxed);
                }
            }
            None => {}
        }
        shard.release(vm, &mut list);
    }

    /// Unlinks `b`. Returns true if its shard is empty now; the caller then drops the shard's reference to the object.
    /// Does not use the shard after the release of its lock, because a CPU's own shard does not keep the object alive.
    /// No pass of the reverse map uses `b` when this returns ([`flushing`]).
    ///
    /// # Safety
    /// `b` is linked here.
    pub unsafe fn remove(&self, b: NonNull<Backing<M>>) -> bool {
        // SAFETY: `b` is linked here, by this function's contract, and a backing is retired only after it was unlinked.
        let (shard, mut list) = self.lock_shard_of(unsafe { b.as_ref() });
        // SAFETY: by this function's contract.
        unsafe { list.tree.remove(b.as_ptr()) };
        let unlinked = shard.unlinked.load(Ordering::Relaxed);
        shard.unlinked.store(unlinked + 1, Ordering::Release);
        let n = shard.count.load(Ordering::Relaxed);
        shard.count.store(n - 1, Ordering::Release);
        // SAFETY: the backing left the tree, but its memory stays until the caller retires it.
        let b = unsafe { b.as_ref() };
        let emptied = n == 1 && self.own_shard(b.shard()).is_none();
        shard.release(b.vm(), &mut list);
        drop(list);
        b.await_passes();
        emptied
    }

    /// Whether the list is too short for its shards, given how often it is scanned. The caller is about to unlink `b`.
    #[inline]
    pub fn is_too_wide(&self, b: &Backing<M>) -> bool {
        let Some(more) = self.more().filter(|m| m.is(OPEN)) else { return false };
        let unlinked = self.shard(b.shard()).unlinked.load(Ordering::Relaxed) + 1;
        if !unlinked.is_multiple_of(LOOK_EVERY)
            || !unlinked.is_multiple_of(LOOK_EVERY * self.iter().count().div_ceil(MORE + 1) as u64)
        {
            return false;
        }
        let scans = more.scans.0.load(Ordering::Relaxed);
        if scans != 0 {
            more.scans.0.store(0, Ordering::Relaxed);
        }
        // The number of scans is compared first, because counting the list's backings reads a line of each shard.
        scans >= LOOK_SCANS && self.is_short()
    }

    /// Whether the list has too few backings for its shards.
    fn is_short(&self) -> bool {
        self.iter().map(|p| p.count.load(Ordering::Relaxed)).sum::<u32>() <= SHRINK_BELOW
    }

    /// Counts one scan of the list. Returns whether the list is too short for its shards, given the number of scans.
    pub fn scanned(&self) -> bool {
        match self.more().filter(|m| !m.is(CLOSED)) {
            None => {
                let turns = self.first.contended.load(Ordering::Relaxed);
                if turns != 0 {
                    self.first.contended.store(turns.saturating_sub(SCAN), Ordering::Relaxed);
                }
                false
            }
            Some(more) => {
                let scans = more.scans.0.load(Ordering::Relaxed) + 1;
                more.scans.0.store(scans % SCANS, Ordering::Relaxed);
                scans == SCANS && self.is_short()
            }
        }
    }

    /// Closes the shards: moves all backings into the first shard, or helps a CPU that does so. `refs` is the object's
    /// references, of which each counted shard has one. The caller keeps the object alive.
    #[cold]
    pub fn shrink(&self, refs: &References) {
        let Some(more) = self.more() else { return };
        let closing = loop {
            let state = more.state.load(Ordering::Acquire);
            match state % STATES {
                CLOSED => return,
                CLOSING => break state,
                _ => {
                    let closing = state - OPEN + CLOSING;
                    if more.state.compare_exchange(state, closing, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                        break closing;
                    }
                }
            }
        };
        if !mutant(Mutant::NoFenceAfterClosing) {
            fence_full();
        }
        for shard in more.shards.iter().map(|p| &p.0) {
            // Each call moves a few backings and then releases the locks, so that other CPUs get them. No CPU links a
            // backing into this shard from now on.
            while self.bring_home(shard, more, closing, refs, false) {}
            shard.contended.store(0, Ordering::Relaxed);
        }
        for own in more.all_own() {
            while self.bring_home(&own.shard, more, closing, refs, true) {}
            let _held = own.shard.lock();
            // Another CPU may have finished closing, and the shards may be open again. In that case the shard keeps its
            // reference for newly linked backings.
            if (more.state.load(Ordering::Acquire) == closing || mutant(Mutant::StaleClose))
                && own.counts.load(Ordering::Relaxed)
            {
                own.counts.store(false, Ordering::Relaxed);
                refs.subtract_own();
            }
        }
        self.first.contended.store(0, Ordering::Relaxed);
        let closed = closing - CLOSING + CLOSED;
        let _ours = more.state.compare_exchange(closing, closed, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Moves some backings of `from` into the first shard, while the state of `more` is `closing`. Returns whether more
    /// backings may be left. `own`: `from` is a CPU's own shard, which keeps its reference until it is closed.
    fn bring_home(&self, from: &Shard<M>, more: &MoreShards<M>, closing: u32, refs: &References, own: bool) -> bool {
        // The lock order is: the first shard before the others.
        let mut home = self.first.lock();
        let mut list = from.list.lock_nested();
        if more.state.load(Ordering::Acquire) != closing {
            return false;
        }
        for _ in 0..VISITS {
            let Some(b) = list.tree.next_overlap(0, u64::MAX, None).map(NonNull::from) else { return false };
            if !mutant(Mutant::ShrinkUnseen) {
                // The count rises before the backing leaves `from`, because a scan may not have reached `from` yet.
                more.moved.fetch_add(1, Ordering::AcqRel);
            }
            // SAFETY: the backing is in the tree of `from`, hence alive. It is in no tree when it is inserted into the
            // tree of the first shard. Both locks are held.
            unsafe {
                list.tree.remove(b.as_ptr());
                b.as_ref().set_shard(0);
                home.tree.insert(b.as_ptr(), self.first.linked());
            }
            let (here, there) = (self.first.count.load(Ordering::Relaxed), from.count.load(Ordering::Relaxed));
            self.first.count.store(here + 1, Ordering::Release);
            if here == 0 {
                refs.add();
            }
            // `unlinked` rises as `count` falls, so the stamps of this shard never fall.
            from.unlinked.store(from.unlinked.load(Ordering::Relaxed) + 1, Ordering::Release);
            from.count.store(there - 1, Ordering::Release);
            if there == 1 && !own {
                // This is not the last reference, because the first shard has one.
                refs.subtract();
            }
            home.due.note(1);
            list.due.note(1);
        }
        true
    }

    /// The number of unlinkings in all shards.
    pub fn unlinked(&self) -> u64 {
        // Closed shards are included, so that the sum never falls.
        let more = self.more().into_iter().flat_map(MoreShards::iter);
        core::iter::once(&self.first).chain(more).map(|p| p.unlinked.load(Ordering::Acquire)).fold(0, u64::wrapping_add)
    }

    /// The number of linkings, moves between shards included. If it is equal before and after a scan, the scan has
    /// visited each backing once.
    pub fn linkings(&self) -> u64 {
        let more = self.more().into_iter().flat_map(MoreShards::iter);
        let linked = |shard: &Shard<M>| {
            let _exact = shard.lock();
            shard.linked()
        };
        core::iter::once(&self.first).chain(more).map(linked).fold(0, u64::wrapping_add)
    }

    /// Calls `visit` with every backing that shows a page of `start..end`, under the lock of its shard. Stops at the
    /// first backing at which `visit` breaks, and returns the value of that break. A backing may be visited more than
    /// once. If a backing is replaced during the search, the replacement is visited too. The lock of a shard is released
    /// from time to time. `refs` is as in [`shrink`](Self::shrink). The caller keeps the object alive.
    pub fn search<T>(
        &self,
        start: u64,
        end: u64,
        refs: &References,
        mut visit: impl FnMut(&Backing<M>) -> ControlFlow<T>,
    ) -> Option<T> {
        self.until_unmoved(refs, || self.iter().find_map(|shard| shard.search(start, end, &mut visit)))
    }

    /// Calls `scan`, which scans all shards, until it finds a value, or no backing has moved to the first shard during
    /// the call.
    #[inline]
    fn until_unmoved<T>(&self, refs: &References, mut scan: impl FnMut() -> Option<T>) -> Option<T> {
        loop {
            let moved = self.moved();
            let found = scan();
            if found.is_some() || self.moved() == moved {
                return found;
            }
            // This scan helps to close the shards. Otherwise each new linking would raise the count and restart the
            // scan, for as long as the closing CPU is slow.
            if self.more().is_some_and(|m| m.is(CLOSING)) {
                self.shrink(refs);
            }
        }
    }

    /// Continues a scan over a private object's backings. Each call holds the list's lock for a bounded time.
    pub fn step<T>(&self, scan: &mut Scan, mut visit: impl FnMut(&Backing<M>) -> ControlFlow<T>) -> Step<T> {
        self.only_shard().step(scan, &mut visit)
    }

    /// The number of unlinkings from a private object's list, and the number of its backings, at one moment.
    pub fn unlinked_and_len(&self) -> (u64, u64) {
        let shard = self.only_shard();
        let _held = shard.lock();
        (shard.unlinked.load(Ordering::Relaxed), shard.count.load(Ordering::Relaxed).into())
    }

    /// Ends a scan over a private object's backings early.
    pub fn stop(&self, scan: Scan) {
        self.only_shard().stop(scan);
    }

    /// Calls `visit` with the backing at `address`, if it shows page `key` of a private object. `address` is not
    /// dereferenced. The tree is searched for it together with each of the first few starts of intervals over the page.
    /// Also returns the place in the tree's order where a backing with this address would be.
    pub fn visit_at<T>(
        &self,
        key: u64,
        address: usize,
        visit: impl FnOnce(&Backing<M>) -> ControlFlow<T>,
    ) -> (ControlFlow<T>, Option<TreePlace>) {
        let list = self.only_shard().lock();
        let (mut after, mut place) = (None, None);
        for _ in 0..STARTS {
            let Some(first) = list.tree.next_overlap(key, key + 1, after) else { break };
            let here = (Interval::start(first), address);
            place.get_or_insert(here);
            if let Some(b) = list.tree.at(here).filter(|b| Interval::end(*b) > key) {
                #[cfg(all(test, not(any(loom, shuttle))))]
                looks::add(1);
                return (visit(b), Some(here));
            }
            after = Some((here.0, usize::MAX));
        }
        (ControlFlow::Continue(()), place)
    }

    /// The end of the run of pages from `key` that backings show, or a page beyond `end`. Returns `key` itself if no
    /// backing shows it. The work grows with the number of backings that begin below `end`.
    ///
    /// # Requires
    /// The list is that of a private object.
    pub fn covered(&self, mut key: u64, end: u64) -> u64 {
        while key < end {
            match self.only_shard().lock().tree.next_overlap(key, key + 1, None).map(Interval::end) {
                Some(e) => key = e,
                None => break,
            }
        }
        key
    }

    /// The first page after `key` at which a backing begins.
    ///
    /// # Requires
    /// The list is that of a private object.
    pub fn next_start(&self, key: u64) -> Option<u64> {
        self.only_shard().lock().tree.next_start(key)
    }

    /// The only shard of a private object's list. The list begins with one backing in the first shard, and each other
    /// backing replaces or replicates a backing of this shard. A search through several shards, one after the other,
    /// could miss backings that move between them.
    fn only_shard(&self) -> &Shard<M> {
        debug_assert!(self.more().is_none(), "a private object's list has fanned out");
        &self.first
    }

    /// Whether `b` is linked in the shard that it names.
    pub fn lists(&self, b: &Backing<M>) -> bool {
        self.lock_shard_of(b).1.tree.contains(b)
    }

    /// Checks each shard of the list of `object`. Returns the number of backings and the number of non-empty shards.
    pub fn check(&self, object: &Object<M>) -> Result<(u64, u32), Broken> {
        let (mut backings, mut shards) = (0, 0);
        for shard in self.iter() {
            let list = shard.lock();
            let n = shard.check(&list, &mut |b| {
                let shown = b.object().is_some_and(|o| ptr::eq(o, object));
                // A private object lists its first backing before that backing points to the object.
                let touched = object.is_private() && b.object().is_none();
                let here = ptr::eq(self.shard(b.shard()), shard);
                if (shown || touched) && here { Ok(()) } else { Err(Broken::Stranger(b.range().start)) }
            })?;
            backings += n;
            shards += u32::from(n != 0);
        }
        for own in self.more().into_iter().flat_map(MoreShards::all_own) {
            let list = own.shard.lock();
            if !list.tree.is_empty() && !own.counts.load(Ordering::Relaxed) {
                return Err(Broken::References(0));
            }
        }
        Ok((backings, shards))
    }

    /// The number of CPUs' own shards that have a reference to the object; 0 if the shards are closed.
    pub fn counting(&self) -> u32 {
        let open = self.more().filter(|m| !m.is(CLOSED));
        open.into_iter().flat_map(MoreShards::all_own).filter(|own| own.counts.load(Ordering::Relaxed)).count() as u32
    }

    /// Frees the memory of the shards beyond the first.
    pub fn free(&self, vm: &Objects<M>) {
        if let Some(more) = NonNull::new(self.more.load(Ordering::Acquire)) {
            debug_assert!(
                self.iter().all(|p| p.list.lock().tree.is_empty()),
                "an object is freed while backings show it"
            );
            // SAFETY: the object is being torn down and no backing shows it. Only scans could use the shards, but each
            // scan keeps its object alive, so none runs.
            unsafe {
                let own = more.as_ref().own.iter().filter_map(|own| NonNull::new(own.load(Ordering::Acquire)));
                own.for_each(|own| vm.object_memory().own_shards.free(vm, own));
                vm.object_memory().shards.free(vm, more);
            }
        }
    }
}

/// The number of backings that the calling thread has visited, for tests.
#[cfg(all(test, not(any(loom, shuttle))))]
pub mod looks {
    use std::cell::Cell;

    std::thread_local! {
        static LOOKS: Cell<u64> = const { Cell::new(0) };
    }

    pub fn add(n: u64) {
        LOOKS.set(LOOKS.get() + n);
    }
    /// Returns the number of visits since the last call.
    pub fn take() -> u64 {
        LOOKS.replace(0)
    }
}

/// Access to private parts for tests and models.
#[cfg(test)]
impl<M: Machine> Shards<M> {
    /// Fans the list out, or opens its shards again.
    pub fn widen(&self, vm: &Objects<M>) {
        self.fan_out(vm);
    }
    /// Whether CPUs have shards of their own.
    pub fn has_own(&self) -> bool {
        self.more().is_some_and(|m| m.group(0).is_some())
    }
    /// Whether scans have more than one shard to visit. Models of one checker do not use this function.
    #[cfg_attr(loom, allow(dead_code))]
    pub fn is_wide(&self) -> bool {
        self.iter().count() > 1
    }
}

/// Access to private parts for tests of the checker.
#[cfg(all(test, not(any(loom, shuttle))))]
impl<M: Machine> Shards<M> {
    pub fn corrupt_max(&self, b: NonNull<Backing<M>>) {
        // SAFETY: the tests pass backings that are linked into the first shard.
        unsafe { self.first.list.lock().tree.corrupt_max(b.as_ptr()) };
    }
    pub fn corrupt_count(&self) {
        self.first.count.fetch_add(1, Ordering::Relaxed);
    }
}
