//! The list of an object's backings: interval trees, fanned out into parts where many CPUs link and unlink.
//!
//! A backing records its part, chosen when it is first mapped; every backing that replaces it is in the same part, and is
//! linked before the old one is unlinked. So a scan of a part that holds its lock meets the one or the other; one that let go
//! meanwhile begins the part again where something was unlinked (mutant [`Mutant::ScanGoesOn`]).
//!
//! # Growing and shrinking
//! The list fans out where its first part is contended (CPUs wait for it, or take turns) and there are 64 backings, and a quarter more,
//! for each of sixteen parts ([`FAN_OUT_AT`]), or where they have taken turns there often ([`TURNS`]), however short it is: a few
//! programs that are run again and again by all CPUs. Where CPUs still take turns in one of those parts, or empty and fill one
//! (which writes the object's count), they and their neighbours get parts of their own ([`OWN_AT`]): those follow the CPUs that contend,
//! not the backings.
//!
//! Parts are paid for by scans, which lock each. So a scan of a list with one part takes back what turns have said for more
//! ([`SCAN`]), and parts go where the list is short and is scanned: who unlinks looks now and then ([`Parts::is_too_wide`]), and
//! who scans without anybody unlinking does at last ([`Parts::scanned`]); and where CPUs' own are all that keeps the object
//! ([`references`](super::references)). Each part is closed, and its backings go back to the first, one by one, under both locks
//! ([`Parts::shrink`]). Whoever needs the parts closed helps, and waits for nobody. A scan that has passed the first part would miss
//! what goes there: so everything that changes its part raises a count first, and a scan that sees it change looks at everything again
//! (mutant [`Mutant::ShrinkUnseen`]). It asks for the other parts once it is through with the first:
//! they may open meanwhile, and one that is in the first part by then be replaced by one that is not. What is linked into a part that is closed by then goes to the first part, and counts too: the
//! one that it replaces may have been in a part that the scan has not come to. The parts' memory stays with the object; an empty
//! part costs a scan a lock.

use crate::check::{Broken, Due, Level};
use crate::machine::Machine;
use crate::mutant::{Mutant, mutant};
use crate::object::Objects;
use crate::object::backing::Backing;
use crate::object::interval::{Interval, Tree};
use crate::object::{Object, References};
use core::ops::ControlFlow;
use core::ptr::{self, NonNull};
use quire_sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU16, AtomicU32, AtomicU64, Ordering, fence_after_rmw, fence_full,
};
use quire_sync::{CachePadded, Rank, SpinLock};

/// Parts beyond the first, where there are any.
#[cfg(not(any(loom, shuttle)))]
const MORE: usize = 15;
#[cfg(any(loom, shuttle))]
const MORE: usize = 1;
/// CPUs whose own parts are made together.
const GROUP: usize = if cfg!(any(loom, shuttle)) { 2 } else { 16 };
/// Groups of them; CPUs beyond share.
const GROUPS: usize = if cfg!(any(loom, shuttle)) { 1 } else { 16 };
/// How often CPUs have taken turns in a part before its CPUs get parts of their own: so often that what a part costs each scan
/// from then on is paid for.
const OWN_AT: u16 = if cfg!(any(test, loom, shuttle)) { 2 } else { 32 };
/// So few backings in all, and the parts go: of those that all CPUs have, at most one for 64.
#[cfg(not(any(test, loom, shuttle)))]
const SHRINK_BELOW: u32 = 64 * (MORE as u32 + 1);
#[cfg(any(test, loom, shuttle))]
const SHRINK_BELOW: u32 = 6;
/// Backings in the first part before it may fan out: a quarter more, so that it does not go back and forth.
const FAN_OUT_AT: u32 = SHRINK_BELOW / 4 * 5 + SHRINK_BELOW % 4;
/// Turns that CPUs have taken in the first part before a short list fans out: so many lines have gone to and fro.
const TURNS: u16 = if cfg!(any(loom, shuttle)) { u16::MAX } else { 64 };
/// Turns that a scan weighs as much as: it locks each part that there would be.
const SCAN: u16 = 16;
/// Scans of parts of a short list, with nobody unlinking, before they close.
const SCANS: u32 = 64;
/// How many backings leave a part between two looks at how many there are in all, for each sixteen parts that there are: a look reads a
/// line of each part, so there are so few that mapping and unmapping share next to nothing. Until the next one, a short list is
/// scanned part by part, most of them empty.
const LOOK_EVERY: u64 = if SHRINK_BELOW > 16 { 256 } else { 1 };
/// Scans between two such looks that are worth closing the parts for.
const LOOK_SCANS: u32 = match () {
    _ if cfg!(any(loom, shuttle)) => 0,
    _ if cfg!(test) => 1,
    _ => 256 / SCAN as u32,
};
/// No CPU.
const NOBODY: u16 = u16::MAX;
/// Backings that a scan visits before it lets go of a part, so that others get in.
#[cfg(not(any(loom, shuttle)))]
const VISITS: u32 = 16;
#[cfg(any(loom, shuttle))]
const VISITS: u32 = 2;
/// Times that a scan begins a part again because something was unlinked meanwhile, before it holds the part to the end.
const RESTARTS: u32 = 4;

struct Listed<M: Machine> {
    tree: Tree<Backing<M>>,
    /// When the tree is checked next.
    due: Due,
}

/// One part of the list.
pub struct Part<M: Machine> {
    list: SpinLock<Listed<M>>,
    /// Backings in the tree. Written under the lock.
    count: AtomicU32,
    /// Rises with every unlinking, under the lock: a scan that let go may have missed a replacement that stands before its
    /// place.
    unlinked: AtomicU64,
    /// How often somebody met the lock held, or linked after another CPU had: a line that goes to and fro costs as much as a
    /// lock that is met held. It may wrap round.
    contended: AtomicU16,
    /// The CPU that linked last. Written under the lock.
    last: AtomicU16,
}

#[cfg(test)]
quire_sync::assert_layout!(Part<crate::testing::TestMachine> { size: 48, align: 8 });

/// Parts 1 and up.
pub struct MoreParts<M: Machine> {
    parts: [CachePadded<Part<M>>; MORE],
    /// Which time it is that the parts are open, times [`STATES`], and [`OPEN`], [`CLOSING`] or [`CLOSED`]. They are not closed while
    /// somebody has the lock of a part that was open when the lock was taken.
    state: AtomicU32,
    /// Rises before a backing goes to the first part that would have been in another, or was.
    moved: AtomicU64,
    /// Scans since somebody looked whether the list is too short for its parts. Apart from what everybody reads who links.
    scans: CachePadded<AtomicU32>,
    /// Parts of CPUs' own, behind those. Null until one of the group's CPUs contends. Set once.
    own: [AtomicPtr<OwnParts<M>>; GROUPS],
}

/// Parts of some neighbouring CPUs' own.
pub struct OwnParts<M: Machine>([CachePadded<OwnPart<M>>; GROUP]);

struct OwnPart<M: Machine> {
    part: Part<M>,
    /// It has a reference to the object. Guarded by the part's lock.
    counts: AtomicBool,
}

impl<M: Machine> MoreParts<M> {
    fn is(&self, state: u32) -> bool {
        self.state.load(Ordering::Acquire) % STATES == state
    }

    /// Part `i` of the whole list, which is not the first; `None`: no CPU has had that yet.
    fn part(&self, i: u16) -> Option<&Part<M>> {
        let i = i as usize - 1;
        match i.checked_sub(MORE) {
            None => Some(&self.parts[i].0),
            Some(_) => self.own_part(i as u16 + 1).map(|own| &own.part),
        }
    }

    /// As [`part`](Self::part), where that is a CPU's own.
    fn own_part(&self, i: u16) -> Option<&OwnPart<M>> {
        let cpu = (i as usize).checked_sub(1 + MORE)?;
        self.group(cpu).map(|own| &own.0[cpu % GROUP].0)
    }

    /// The own parts that `cpu`, which is below [`OWN`], has with its neighbours.
    fn group(&self, cpu: usize) -> Option<&OwnParts<M>> {
        // SAFETY: a slot is set once, and own parts are freed with the object, which the caller keeps.
        unsafe { self.own[cpu / GROUP].load(Ordering::Acquire).as_ref() }
    }

    /// All CPUs' own parts that there are.
    fn all_own(&self) -> impl Iterator<Item = &OwnPart<M>> {
        (0..GROUPS).filter_map(|n| self.group(n * GROUP)).flat_map(|own| own.0.iter().map(|p| &p.0))
    }

    /// All parts that there are.
    fn iter(&self) -> impl Iterator<Item = &Part<M>> {
        let own = || self.all_own().filter(|_| !mutant(Mutant::OwnPartsUnscanned)).map(|own| &own.part);
        self.parts.iter().map(|p| &p.0).chain(own())
    }

    /// Makes own parts for `cpu` and its neighbours.
    // Kept out of its caller's stack frame: the parts are built on the stack.
    #[cold]
    #[inline(never)]
    fn make_own(&self, vm: &Objects<M>, cpu: usize) {
        let part = |_| OwnPart { part: Part::new(ptr::null_mut()), counts: AtomicBool::new(false) };
        let parts = OwnParts(core::array::from_fn(|n| CachePadded(part(n))));
        // No memory: they go on sharing.
        if let Ok(fresh) = vm.object_memory().own_parts.alloc(vm, parts)
            && self.own[cpu / GROUP]
                .compare_exchange(ptr::null_mut(), fresh.as_ptr(), Ordering::AcqRel, Ordering::Acquire)
                .is_err()
        {
            // SAFETY: the exchange failed, so no slot of `own` leads to `fresh`; it came from this slab.
            unsafe { vm.object_memory().own_parts.free(vm, fresh) };
        }
    }
}

/// CPUs that can have a part of their own.
const OWN: usize = GROUP * GROUPS;

/// New backings go to all parts but the first.
const OPEN: u32 = 0;
/// They go to the first; what is elsewhere is on its way there.
const CLOSING: u32 = 1;
/// There is nothing elsewhere.
const CLOSED: u32 = 2;
const STATES: u32 = 4;

/// The whole list.
pub(crate) struct Parts<M: Machine> {
    first: Part<M>,
    /// Null until the first part is contended and full for the first time. Set once.
    more: AtomicPtr<MoreParts<M>>,
}

impl<M: Machine> Part<M> {
    fn new(only: *mut Backing<M>) -> Self {
        Part {
            list: SpinLock::new(Rank::BACKINGS, Listed { tree: Tree::new(only), due: Due::new() }),
            count: AtomicU32::new(!only.is_null() as u32),
            unlinked: AtomicU64::new(0),
            contended: AtomicU16::new(0),
            last: AtomicU16::new(NOBODY),
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

impl<M: Machine> Part<M> {
    /// One backing was linked or unlinked, and the lock is about to be given up.
    #[inline]
    fn release(&self, vm: &Objects<M>, list: &mut Listed<M>) {
        list.due.note(1);
        let level = vm.check_level();
        if level != Level::Never && list.due.is_due(level) {
            let result = self.check(list, &mut |_| Ok(()));
            vm.checked(&mut list.due, result);
        }
    }

    /// As [`Parts::search`], of this part.
    fn search<T>(&self, start: u64, end: u64, visit: &mut impl FnMut(&Backing<M>) -> ControlFlow<T>) -> Option<T> {
        let mut restarts = 0;
        'part: loop {
            let mut after = None;
            let mut seen = None;
            loop {
                let list = self.lock();
                let unlinked = self.unlinked.load(Ordering::Relaxed);
                if *seen.get_or_insert(unlinked) != unlinked && !mutant(Mutant::ScanGoesOn) {
                    restarts += 1;
                    continue 'part;
                }
                let mut visits = 0;
                let mut next = list.tree.next_overlap(start, end, after);
                while let Some(b) = next {
                    after = Some(Tree::place(b));
                    if let ControlFlow::Break(found) = visit(b) {
                        return Some(found);
                    }
                    visits += 1;
                    if visits == VISITS && restarts < RESTARTS {
                        break;
                    }
                    // SAFETY: `b` was found in this tree, and its lock was not let go of since.
                    next = unsafe { list.tree.next_overlap_from(b, start, end) };
                }
                if visits < VISITS || restarts >= RESTARTS {
                    return None;
                }
            }
        }
    }

    fn check(&self, list: &Listed<M>, each: &mut dyn FnMut(&Backing<M>) -> Result<(), Broken>) -> Result<u64, Broken> {
        let says = u64::from(self.count.load(Ordering::Relaxed));
        let has = list.tree.check(each)?;
        if has == says { Ok(has) } else { Err(Broken::ListCount(says)) }
    }
}

impl<M: Machine> Parts<M> {
    /// Empty, or holding `only`, whose links say that it is alone.
    pub fn new(only: *mut Backing<M>) -> Self {
        Parts { first: Part::new(only), more: AtomicPtr::new(ptr::null_mut()) }
    }

    fn more(&self) -> Option<&MoreParts<M>> {
        // SAFETY: the word is set once, and the parts are freed with the object, which the caller keeps.
        unsafe { self.more.load(Ordering::Acquire).as_ref() }
    }

    fn part(&self, i: u16) -> &Part<M> {
        match i {
            0 => &self.first,
            i => {
                let part = self.more().and_then(|more| more.part(i));
                debug_assert!(part.is_some(), "a backing names part {i}, which is not there");
                part.unwrap_or(&self.first)
            }
        }
    }

    /// The parts that may hold something; the first one first, and which others there are is seen after that.
    fn iter(&self) -> impl Iterator<Item = &Part<M>> {
        let others = || self.more().filter(|m| !m.is(CLOSED));
        core::iter::once(&self.first).chain(core::iter::once_with(others).flatten().flat_map(MoreParts::iter))
    }

    fn own_part(&self, i: u16) -> Option<&OwnPart<M>> {
        self.more().and_then(|more| more.own_part(i))
    }

    fn is_open(&self) -> bool {
        self.more().is_some_and(|m| m.is(OPEN))
    }

    /// How often a backing has changed its part.
    fn moved(&self) -> u64 {
        self.more().map_or(0, |m| m.moved.load(Ordering::Acquire))
    }

    /// The part that `b`, which is linked, is in, locked.
    fn lock_part_of(&self, b: &Backing<M>) -> (&Part<M>, quire_sync::SpinGuard<'_, Listed<M>>) {
        loop {
            let n = b.part();
            let part = self.part(n);
            let list = part.lock();
            // It may have gone to the first part while the lock was waited for.
            if b.part() == n {
                return (part, list);
            }
        }
    }

    /// Whether there is one backing in all, now.
    #[inline(always)]
    pub fn is_single(&self) -> bool {
        self.first.count.load(Ordering::Acquire) == 1 && self.more.load(Ordering::Acquire).is_null()
    }

    /// The part for a new backing: by CPU, once the list has fanned out, which it does where it is long and contended.
    pub fn choose(&self, vm: &Objects<M>) -> u16 {
        if !self.is_open() {
            let turns = self.first.contended.load(Ordering::Relaxed);
            if turns >= TURNS || turns != 0 && self.first.count.load(Ordering::Relaxed) >= FAN_OUT_AT {
                self.fan_out(vm);
            }
        }
        let Some(more) = self.more().filter(|m| m.is(OPEN)) else { return 0 };
        // Not the first, beside which stands what everybody reads.
        let cpu = quire_sync::current_cpu();
        let (own, shared) = (cpu % OWN, cpu % MORE);
        if more.group(own).is_none() && more.parts[shared].0.contended.load(Ordering::Relaxed) >= OWN_AT {
            more.make_own(vm, own);
        }
        (1 + if more.group(own).is_some() { MORE + own } else { shared }) as u16
    }

    // Kept out of its caller's stack frame: the parts are built on the stack.
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
        let parts = MoreParts {
            parts: core::array::from_fn(|_| CachePadded(Part::new(ptr::null_mut()))),
            state: AtomicU32::new(OPEN),
            moved: AtomicU64::new(0),
            scans: CachePadded(AtomicU32::new(0)),
            own: core::array::from_fn(|_| AtomicPtr::new(ptr::null_mut())),
        };
        // No memory: the list stays as it is, which is slower and right.
        if let Ok(fresh) = vm.object_memory().parts.alloc(vm, parts)
            && self.more.compare_exchange(ptr::null_mut(), fresh.as_ptr(), Ordering::AcqRel, Ordering::Acquire).is_err()
        {
            // SAFETY: the exchange failed, so `more` never led to `fresh`; it came from this slab.
            unsafe { vm.object_memory().parts.free(vm, fresh) };
        }
    }

    /// Links `b` into its part, or into the first where that is closed by now. `refs`: the object's, one of which is the part's from
    /// now on where it did not have one. The caller keeps the object.
    pub fn insert(&self, vm: &Objects<M>, b: NonNull<Backing<M>>, refs: &References) {
        // SAFETY: the caller made the backing and has linked it nowhere, so no other thread retires it.
        let backing = unsafe { b.as_ref() };
        let mut part = self.part(backing.part());
        let mut list = part.lock();
        // Who makes a part and then finds the parts open, and who closes them and then looks which there are: one sees the other.
        if !mutant(Mutant::NoFenceAfterOwn) {
            fence_after_rmw();
        }
        if let Some(more) = self.more()
            && backing.part() != 0
            && !more.is(OPEN)
        {
            drop(list);
            backing.set_part(0);
            part = &self.first;
            list = part.lock();
            // In the same hold as the linking: a scan that reads the count after this finds the backing here.
            more.moved.fetch_add(1, Ordering::AcqRel);
        }
        // SAFETY: the backing is in no tree, and it is unlinked before it is retired.
        unsafe { list.tree.insert(b.as_ptr()) };
        let n = part.count.load(Ordering::Relaxed);
        part.count.store(n + 1, Ordering::Release);
        let here = quire_sync::current_cpu() as u16;
        let last = part.last.load(Ordering::Relaxed);
        if last != here {
            part.last.store(here, Ordering::Relaxed);
            if last != NOBODY {
                part.contended.fetch_add(1, Ordering::Relaxed);
            }
        }
        match self.own_part(backing.part()) {
            Some(own) if own.counts.load(Ordering::Relaxed) => {}
            Some(own) => {
                own.counts.store(true, Ordering::Relaxed);
                refs.add_own();
            }
            None if n == 0 => {
                refs.add();
                if backing.part() != 0 {
                    // The count is a line of everybody's, too.
                    part.contended.fetch_add(1, Ordering::Relaxed);
                }
            }
            None => {}
        }
        part.release(vm, &mut list);
    }

    /// Unlinks `b`; true where its part is empty now, and its reference to the object the caller's to give up. Nothing of the part is
    /// used once its lock is let go: where it is a CPU's own, the object may go with the next one that is given up.
    ///
    /// # Safety
    /// It is linked here.
    pub unsafe fn remove(&self, b: NonNull<Backing<M>>) -> bool {
        // SAFETY: `b` is linked here, by this function's contract, and a backing is retired only after it was unlinked.
        let (part, mut list) = self.lock_part_of(unsafe { b.as_ref() });
        // SAFETY: by this function's contract.
        unsafe { list.tree.remove(b.as_ptr()) };
        let unlinked = part.unlinked.load(Ordering::Relaxed);
        part.unlinked.store(unlinked + 1, Ordering::Release);
        let n = part.count.load(Ordering::Relaxed);
        part.count.store(n - 1, Ordering::Release);
        // SAFETY: the backing left the tree, but its memory stays until the caller retires it.
        let b = unsafe { b.as_ref() };
        let emptied = n == 1 && self.own_part(b.part()).is_none();
        part.release(b.vm(), &mut list);
        emptied
    }

    /// Whether the list is too short for its parts, seen how often it is scanned; `b`, which is linked, is about to leave it.
    #[inline]
    pub fn is_too_wide(&self, b: &Backing<M>) -> bool {
        let unlinked = self.part(b.part()).unlinked.load(Ordering::Relaxed) + 1;
        let Some(more) = self.more().filter(|m| m.is(OPEN)) else { return false };
        if !unlinked.is_multiple_of(LOOK_EVERY)
            || !unlinked.is_multiple_of(LOOK_EVERY * self.iter().count().div_ceil(MORE + 1) as u64)
        {
            return false;
        }
        let scans = more.scans.0.load(Ordering::Relaxed);
        if scans != 0 {
            more.scans.0.store(0, Ordering::Relaxed);
        }
        // Scans first: to see how long the list is takes a line of each part.
        scans >= LOOK_SCANS && self.is_short()
    }

    /// Whether there are fewer backings than parts are worth.
    fn is_short(&self) -> bool {
        self.iter().map(|p| p.count.load(Ordering::Relaxed)).sum::<u32>() <= SHRINK_BELOW
    }

    /// Notes a scan; whether the list is too short for its parts, seen how often that has happened.
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

    /// Takes all backings back into the first part, or helps whoever is at it. `refs`: the object's references, of which each part
    /// has its one. The caller keeps the object.
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
        for part in more.parts.iter().map(|p| &p.0) {
            // A few at a time, so that others get in. Nothing is linked into the part from here on.
            while self.bring_home(part, more, closing, refs, false) {}
            part.contended.store(0, Ordering::Relaxed);
        }
        for own in more.all_own() {
            while self.bring_home(&own.part, more, closing, refs, true) {}
            let _held = own.part.lock();
            // Another one may be through with all of this, and the parts open again: then it counts for what was linked since.
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

    /// Moves some backings of `from` into the first part, while `more` is `closing`; whether there may be more. `own`: it counts
    /// until it is closed.
    fn bring_home(&self, from: &Part<M>, more: &MoreParts<M>, closing: u32, refs: &References, own: bool) -> bool {
        // The first part before the others.
        let mut home = self.first.lock();
        let mut list = from.list.lock_nested();
        if more.state.load(Ordering::Acquire) != closing {
            return false;
        }
        for _ in 0..VISITS {
            let Some(b) = list.tree.next_overlap(0, u64::MAX, None).map(NonNull::from) else { return false };
            if !mutant(Mutant::ShrinkUnseen) {
                // Before it is gone from where a scan has not been yet.
                more.moved.fetch_add(1, Ordering::AcqRel);
            }
            // SAFETY: in this tree, hence alive; and in no tree when it goes into the other. Both locks are held.
            unsafe {
                list.tree.remove(b.as_ptr());
                b.as_ref().set_part(0);
                home.tree.insert(b.as_ptr());
            }
            let (here, there) = (self.first.count.load(Ordering::Relaxed), from.count.load(Ordering::Relaxed));
            self.first.count.store(here + 1, Ordering::Release);
            if here == 0 {
                refs.add();
            }
            from.count.store(there - 1, Ordering::Release);
            if there == 1 && !own {
                // Not the last one: the first part's is there.
                refs.subtract();
            }
            home.due.note(1);
            list.due.note(1);
        }
        true
    }

    /// How often a backing was unlinked.
    pub fn unlinked(&self) -> u64 {
        // Of closed parts too: the sum never falls.
        let more = self.more().into_iter().flat_map(MoreParts::iter);
        core::iter::once(&self.first).chain(more).map(|p| p.unlinked.load(Ordering::Acquire)).fold(0, u64::wrapping_add)
    }

    /// Calls `visit` with every backing that shows a page of `start..end`, under the lock of its part: each at least once,
    /// and whatever replaces one meanwhile too. Lets go of a part now and then.
    /// `refs`: as in [`shrink`](Self::shrink). The caller keeps the object.
    pub fn scan(&self, start: u64, end: u64, refs: &References, mut visit: impl FnMut(&Backing<M>)) {
        let _all = self.search(start, end, refs, |b| {
            visit(b);
            ControlFlow::<()>::Continue(())
        });
    }

    /// As [`scan`](Self::scan), up to the first backing at which `visit` breaks; what it breaks with.
    pub fn search<T>(
        &self,
        start: u64,
        end: u64,
        refs: &References,
        mut visit: impl FnMut(&Backing<M>) -> ControlFlow<T>,
    ) -> Option<T> {
        loop {
            let moved = self.moved();
            let found = self.iter().find_map(|part| part.search(start, end, &mut visit));
            if found.is_some() || self.moved() == moved {
                return found;
            }
            // Else what is linked while somebody is slow to close the parts would be seen to move again and again.
            if self.more().is_some_and(|m| m.is(CLOSING)) {
                self.shrink(refs);
            }
        }
    }

    /// As [`search`](Self::search) for one page, only among those that stand behind `b` in its part, and with no promise to
    /// meet them all. `b` is linked.
    pub fn search_after<T>(
        &self,
        b: &Backing<M>,
        key: u64,
        mut visit: impl FnMut(&Backing<M>) -> ControlFlow<T>,
    ) -> Option<T> {
        let part = self.part(b.part());
        // Where it changes its part meanwhile, its place says nothing; see the promise.
        let mut after = Tree::place(b);
        loop {
            let list = part.lock();
            let mut next = list.tree.next_overlap(key, key + 1, Some(after));
            for _ in 0..VISITS {
                let b = next?;
                after = Tree::place(b);
                if let ControlFlow::Break(found) = visit(b) {
                    return Some(found);
                }
                // SAFETY: `b` was found in this tree, and its lock was not let go of since.
                next = unsafe { list.tree.next_overlap_from(b, key, key + 1) };
            }
        }
    }

    /// The end of the run of pages from `key` that some backing shows, or a page beyond `end`; `key` itself where none does.
    /// Work for the backings that begin below `end`.
    ///
    /// # Requires
    /// A private object's list.
    pub fn covered(&self, mut key: u64, end: u64) -> u64 {
        while key < end {
            match self.only_part().lock().tree.next_overlap(key, key + 1, None).map(Interval::end) {
                Some(e) => key = e,
                None => break,
            }
        }
        key
    }

    /// The first page after `key` that a backing begins with.
    ///
    /// # Requires
    /// A private object's list.
    pub fn next_start(&self, key: u64) -> Option<u64> {
        self.only_part().lock().tree.next_start(key)
    }

    /// All of a private object's list: it begins with one backing in the first part, and every other one replaces or replicates
    /// one that is there. Where parts could come and go, to look at one after the other would miss what moves between them.
    fn only_part(&self) -> &Part<M> {
        debug_assert!(self.more().is_none(), "a private object's list has fanned out");
        &self.first
    }

    /// Whether `b` is linked in the part that it names.
    pub fn lists(&self, b: &Backing<M>) -> bool {
        self.lock_part_of(b).1.tree.contains(b)
    }

    /// Checks every part of the list of `object`, whose parts these are; returns the number of backings and of parts that are
    /// not empty.
    pub fn check(&self, object: &Object<M>) -> Result<(u64, u32), Broken> {
        let (mut backings, mut parts) = (0, 0);
        for part in self.iter() {
            let list = part.lock();
            let n = part.check(&list, &mut |b| {
                let shown = b.object().is_some_and(|o| ptr::eq(o, object));
                // A private object has its first backing on its list before that shows it.
                let touched = object.is_private() && b.object().is_none();
                let here = ptr::eq(self.part(b.part()), part);
                if (shown || touched) && here { Ok(()) } else { Err(Broken::Stranger(b.range().start)) }
            })?;
            backings += n;
            parts += u32::from(n != 0);
        }
        for own in self.more().into_iter().flat_map(MoreParts::all_own) {
            let list = own.part.lock();
            if !list.tree.is_empty() && !own.counts.load(Ordering::Relaxed) {
                return Err(Broken::References(0));
            }
        }
        Ok((backings, parts))
    }

    /// CPUs' own parts that count; none where the parts are closed.
    pub fn counting(&self) -> u32 {
        let open = self.more().filter(|m| !m.is(CLOSED));
        open.into_iter().flat_map(MoreParts::all_own).filter(|own| own.counts.load(Ordering::Relaxed)).count() as u32
    }

    /// Frees the further parts.
    pub fn free(&self, vm: &Objects<M>) {
        if let Some(more) = NonNull::new(self.more.load(Ordering::Acquire)) {
            debug_assert!(self.iter().all(|p| p.list.lock().tree.is_empty()), "an object goes while backings show it");
            // SAFETY: the object is dead and no backing shows it; only scans came here, and they keep the object.
            unsafe {
                let own = more.as_ref().own.iter().filter_map(|own| NonNull::new(own.load(Ordering::Acquire)));
                own.for_each(|own| vm.object_memory().own_parts.free(vm, own));
                vm.object_memory().parts.free(vm, more);
            }
        }
    }
}

/// Doors for tests and models.
#[cfg(test)]
impl<M: Machine> Parts<M> {
    /// Fans out, or opens the parts again.
    pub fn widen(&self, vm: &Objects<M>) {
        self.fan_out(vm);
    }
    /// Whether CPUs have parts of their own.
    pub fn has_own(&self) -> bool {
        self.more().is_some_and(|m| m.group(0).is_some())
    }
    /// Whether there is more than one part, for scans. Models of one checker do not ask.
    #[cfg_attr(loom, allow(dead_code))]
    pub fn is_wide(&self) -> bool {
        self.iter().count() > 1
    }
}

/// Doors for tests of the checker.
#[cfg(all(test, not(any(loom, shuttle))))]
impl<M: Machine> Parts<M> {
    pub fn corrupt_max(&self, b: NonNull<Backing<M>>) {
        // SAFETY: the tests pass backings that are linked into the first part.
        unsafe { self.first.list.lock().tree.corrupt_max(b.as_ptr()) };
    }
    pub fn corrupt_count(&self) {
        self.first.count.fetch_add(1, Ordering::Relaxed);
    }
}
