//! The fork of a space. The cost is proportional to the entries, and to the resident writable pages of private memory
//! (relies on C7).
//!
//! The child starts with empty page tables. Memory that it may share with the parent is mapped through backings of the
//! child's own. Private memory that has content gets a new, empty front (the first backing of a chain) in the parent
//! and in the child.
//!
//! # Order
//! 1. Mark all private entries stale, then issue one fence. No fault enters a leaf in any of them until the fork ends,
//!    so the child gets the memory of one moment.
//! 2. Write-protect the leaves of private memory, and flush. (If the fork fails later, faults make them writable
//!    again.) Entries without stores since the last fork have a mark, and are skipped.
//! 3. Merge layers that only this space has ([`collapse`](crate::cow::collapse)), so that a process that forks
//!    repeatedly keeps short chains.
//! 4. Allocate everything: the child, entries for both spaces, backings, and tree nodes. This is the last step that can
//!    fail.
//! 5. Make, link and publish the chains of both spaces. No CPU runs the child before this returns.

use crate::check::Level;
use crate::cow::collapse::collapse;
use crate::error::MapError;
use crate::machine::Machine;
use crate::map::arena::covered::Class;
use crate::map::arena::{EntryChange, Writer};
use crate::map::entry::piece::layers;
use crate::map::entry::wired::mark_chain;
use crate::map::entry::{Attributes, Entry, Flags, How, NewEntries, Notes};
use crate::map::maps::Maps;
use crate::map::space::{NewSpace, Space, SpaceRef, USER};
use crate::map::update::pte_update::{Sweep, UNWRITABLE};
use crate::mutant::{Mutant, mutant};
use crate::object::backing::{self, SpareBackings};
use crate::stats::Event;
use crate::tlb::flush::Flushed;
use crate::types::{PAGE_SHIFT, Prot, VirtRange};
use core::ptr::{self, NonNull};
use quire_sync::atomic::fence_full;
use quire_sync::current_cpu;
use quire_sync::trace::{EventKind, Span};

/// The action of a fork on one entry of the parent.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// The child does not get the range.
    Leave,
    /// The child gets new, zero-filled memory.
    Wipe,
    /// Both spaces map the same object: shared memory, a file, or anonymous memory that allows no stores.
    Share,
    /// Both spaces map the parent's front (the first layer of its chain), which allows no stores. It belonged to the
    /// parent alone until now. So both entries get the flag `NEEDS_FRONT`: a change that allows stores must first add a
    /// front.
    Freeze,
    /// Private memory with an empty front: the parent keeps its front. The child gets a front of its own, over the same
    /// older layers.
    Keep,
    /// Private memory with a front that has pages: parent and child get new, empty fronts, and share the old front as a
    /// layer behind them.
    Split,
}

fn is_private(a: &Attributes) -> bool {
    !a.flags.intersects(Flags::SHARED | Flags::NEEDS_FRONT)
}

/// The list of entries that a fork marked stale. A drop clears the marks of a fork that failed.
struct MarkedEntries<M: Machine> {
    list: *const Entry<M>,
}

impl<M: Machine> MarkedEntries<M> {
    /// Marks all private entries stale.
    fn mark(writer: &Writer<'_, M>) -> Self {
        let mut marks = MarkedEntries { list: ptr::null() };
        for e in writer.overlapping(USER.start, USER.end).filter(|e| is_private(&e.attributes())) {
            e.mark_stale_for_fork();
            e.link.set(marks.list);
            marks.list = e;
        }
        marks
    }

    /// Called after the commit: clears the marks of entries that stay, and retires entries that were replaced.
    fn end(mut self) {
        let mut at = core::mem::replace(&mut self.list, ptr::null());
        // SAFETY: marked entries are in the tree, or were until now and are retired here, once.
        while let Some(e) = unsafe { at.as_ref() } {
            at = e.link.get();
            if e.noted(Notes::CHAIN_TAKEN) {
                // SAFETY: the commit removed the entry from the tree, the list has it once, and its chain belongs to
                // the new entry now.
                unsafe { Entry::retire(NonNull::from(e)) };
            } else {
                e.unmark_stale();
            }
        }
    }
}

impl<M: Machine> Drop for MarkedEntries<M> {
    fn drop(&mut self) {
        // SAFETY: marked entries are in the tree while the writer is held, which outlives this.
        while let Some(e) = unsafe { self.list.as_ref() } {
            self.list = e.link.get();
            e.unmark_stale();
        }
    }
}

impl<M: Machine> Space<M> {
    /// Makes a copy of the space, with the content of one moment during the call. From then on the child has its own
    /// copy of private memory. Shared memory and files are shared. After an error there is no child, and the parent is
    /// unchanged.
    pub fn fork(&self) -> Result<SpaceRef<M>, MapError> {
        let _span = Span::begin(EventKind::Fork, 0, 0);
        if self.vm().frames().is_scarce() {
            self.vm().drop_early(current_cpu());
        }
        self.with_memory(|| self.fork_once())
    }

    fn fork_once(&self) -> Result<SpaceRef<M>, MapError> {
        let vm = self.vm();
        let mut child = NewSpace::new(vm, self.limits())?;
        let early = mutant(Mutant::ForkLooksEarly).then(|| self.is_condemned());
        // Merge all arenas (parts of the map with their own locks) into one. Its lock keeps all writers out, so that
        // the child gets the memory of one moment.
        let mut writer = self.write_all()?;
        // This check comes after the arenas' locks were acquired, which `Space::reap` also acquires. A reap that
        // acquires them after this fork sees that the layers are shared, and leaves the layers.
        if early.unwrap_or_else(|| self.is_condemned()) {
            return Err(MapError::OutOfMemory);
        }
        self.note_merge();
        let marks = MarkedEntries::mark(&writer);
        if !mutant(Mutant::NoFenceAfterMark) {
            fence_full();
        }
        let proof = self.take_stores_away(&writer);
        let mut copies = Copies::plan(vm, &writer)?;
        if !child.home().charge_commit_first(vm, copies.committed) {
            return Err(MapError::NoSpace);
        }
        let born = child.home().prepare_first(copies.theirs.len(), copies.theirs.iter())?;
        let change = copies.prepare_ours(&mut writer)?;

        // Nothing from here on can fail.
        // SAFETY: the writer of all arenas is held, private entries are stale, and their leaves were weakened and
        // flushed. The child's page tables outlive its chains.
        unsafe { copies.make_chains(child.pmap()) };
        for entry in copies.theirs.iter() {
            // SAFETY: entries of `theirs` are published after this loop, so they are alive.
            child.home().counts().come(unsafe { entry.as_ref() });
        }
        child.home().commit_first(born);
        copies.theirs.published();
        child.inherit(self, copies.committed >> PAGE_SHIFT);
        // The child may run now, because no CPU has a writable translation of the parent's private memory any more
        // (relies on C4).
        let child = child.born(&proof);
        if vm.check_level() != Level::Never {
            drop(child.arenas.home().write(&child));
        }
        if let Some(change) = change {
            // The parent's new entries differ from the old ones only in their fronts and in `NEEDS_FRONT`. So the
            // counts of bytes do not change.
            writer.commit(change);
            copies.ours.published();
        }
        marks.end();
        drop(writer);
        vm.stats().count(Event::Fork);
        Ok(child)
    }

    /// Write-protects the leaves of private memory, and flushes. Returns the proof of the flush.
    fn take_stores_away(&self, writer: &Writer<'_, M>) -> Flushed {
        let mut sweep = Sweep::new(self);
        let stored = writer
            .overlapping(USER.start, USER.end)
            .filter(|e| is_private(&e.attributes()) && e.prot().contains(Prot::WRITE))
            .filter(|e| !e.has_no_stores() && has_content(e))
            .inspect(|e| e.note_no_stores());
        sweep.weaken_all(stored.map(|e| (e.range(), UNWRITABLE)));
        sweep.finish()
    }
}

/// The new entries of both sides, and the memory for their chains.
struct Copies<M: Machine> {
    spare: SpareBackings<M>,
    /// The parent's new entries, for private memory with content.
    ours: NewEntries<M>,
    /// The child's entries.
    theirs: NewEntries<M>,
    /// The range from the first to the last entry that `ours` replaces.
    replaced: VirtRange,
    /// The commit charge of the child's entries, in bytes.
    committed: u64,
}

impl<M: Machine> Copies<M> {
    /// Decides each entry's treatment, and makes the new entries without their chains. Until its chain is made, the
    /// field for the chain points to the old entry.
    fn plan(vm: &'static Maps<M>, writer: &Writer<'_, M>) -> Result<Self, MapError> {
        let mut copies = Copies {
            spare: SpareBackings::empty(vm),
            ours: NewEntries::new(vm),
            theirs: NewEntries::new(vm),
            replaced: VirtRange { start: u64::MAX, end: 0 },
            committed: 0,
        };
        let Copies { spare, ours, theirs, replaced, committed } = &mut copies;
        for e in writer.overlapping(USER.start, USER.end) {
            let mut a = e.attributes();
            let fate = collapse_and_decide(e);
            match fate {
                Fate::Leave => continue,
                Fate::Wipe => {
                    spare.reserve_more(1)?;
                    a.flags -= Flags::NEEDS_FRONT;
                }
                Fate::Share => spare.reserve_more(backing::depth(e.front()))?,
                Fate::Freeze => {
                    spare.reserve_more(backing::depth(e.front()))?;
                    a.flags |= Flags::NEEDS_FRONT;
                }
                Fate::Keep | Fate::Split => spare.reserve_more(backing::fork_needs(e.front(), fate == Fate::Keep))?,
            }
            theirs.push(e.range(), a.inherited(), How::Copied, e)?;
            *committed += if Class::of(&a).is_committed() { e.range().len() } else { 0 };
            if matches!(fate, Fate::Freeze | Fate::Split) {
                let own = ours.push(e.range(), a, How::Taken, e)?;
                if e.has_no_stores() {
                    // SAFETY: `push` has just made the entry, and `ours` publishes it at the end of the fork.
                    unsafe { own.as_ref() }.note_no_stores();
                }
                replaced.start = replaced.start.min(e.range().start);
                replaced.end = e.range().end;
            }
        }
        Ok(copies)
    }

    /// Prepares the change of the parent's tree. `None` if the tree does not change.
    fn prepare_ours(&self, writer: &mut Writer<'_, M>) -> Result<Option<EntryChange<M>>, MapError> {
        if self.ours.len() == 0 {
            return Ok(None);
        }
        let VirtRange { start, end } = self.replaced;
        let count = writer.overlapping(start, end).count();
        let mut new = self.ours.iter().peekable();
        let row = writer.overlapping(start, end).map(|e| {
            // SAFETY: entries of `ours` are freed by its `drop` only, which comes after the change is prepared.
            match new.next_if(|n| unsafe { n.as_ref() }.range().start == e.range().start) {
                Some(n) => n,
                None => NonNull::from(e),
            }
        });
        Ok(Some(writer.prepare(start, end, count, row)?))
    }

    /// Makes the chains of all new entries. `pmap` is the child's page tables, for the backings of the child.
    ///
    /// # Safety
    /// The writer of all arenas is held, and no entry is published yet. Private entries are stale, and their leaves
    /// were weakened and flushed. `pmap` outlives the child's chains.
    unsafe fn make_chains(&mut self, pmap: &M::Pmap) {
        let spare = &mut self.spare;
        let mut new = self.ours.iter().peekable();
        for entry in self.theirs.iter() {
            // SAFETY: the entries are not published yet, and their origins stay in the parent's tree until its commit.
            let (entry, e) = unsafe { (entry.as_ref(), entry.as_ref().origin()) };
            // SAFETY: entries of `ours` are not published before this loop ends, so they are alive.
            let own = new.next_if(|n| unsafe { n.as_ref() }.range().start == e.range().start);
            let range = e.range();
            let split = own.is_some() && !entry.flags().contains(Flags::NEEDS_FRONT);
            let front = if entry.flags().contains(Flags::WIPE_ON_FORK) {
                backing::private(spare, pmap, range, 0, None)
            } else if is_private(&entry.attributes()) {
                // SAFETY: by this function's contract.
                let f = unsafe { backing::fork(spare, e.front_ptr(), !split, pmap) };
                if let Some(own) = own {
                    // SAFETY: entries of `ours` are not published before this loop ends, so they are alive.
                    let own = unsafe { own.as_ref() };
                    own.set_front(f.parent);
                    mark_chain(own.front(), own.flags());
                    e.note(Notes::CHAIN_TAKEN);
                }
                f.child
            } else {
                if let Some(own) = own {
                    // SAFETY: entries of `ours` are not published before this loop ends, so they are alive.
                    unsafe { own.as_ref() }.set_front(e.front_ptr());
                    e.note(Notes::CHAIN_TAKEN);
                }
                // SAFETY: by this function's contract; a shared front has an object.
                unsafe { backing::replicate(spare, e.front(), range, range.start, pmap) }
            };
            entry.set_front(front);
        }
    }
}

/// Whether the entry's chain may have anonymous pages.
fn has_content<M: Machine>(e: &Entry<M>) -> bool {
    layers(e.front()).any(|b| b.object().is_some_and(|o| o.is_private()))
}

/// Collapses the chain of an entry, and decides its treatment.
///
/// # Requires
/// The writer is held. If the entry is private, it is stale, and its leaves allow no stores any more.
fn collapse_and_decide<M: Machine>(e: &Entry<M>) -> Fate {
    let a = e.attributes();
    if a.flags.contains(Flags::DONT_FORK) {
        return Fate::Leave;
    }
    if a.flags.contains(Flags::WIPE_ON_FORK) {
        return Fate::Wipe;
    }
    if !is_private(&a) {
        return Fate::Share;
    }
    debug_assert!(e.is_stale(), "a chain is collapsed beside faults");
    let Some(object) = e.front().object() else { return Fate::Keep };
    let vm = object.vm();
    // `collapse` may move pages while other CPUs fault. A fault's walk may miss a page that moves to a layer nearer to
    // the front. But the fault walks again under the table page's lock. No fault installs the page of an outdated walk,
    // for two reasons. First, a fault that found the entry not stale under that lock had cleared `NO_STORES`. So this
    // fork has write-protected its table page, and has acquired the lock after that fault released it. Second, any
    // later fault finds the stale mark.
    if a.prot.contains(Prot::WRITE) {
        // SAFETY: the writer is held, nothing is pinned.
        unsafe { collapse(vm, e.front_ptr()) };
    }
    let pin = vm.epoch().pin();
    if e.front().is_empty(&pin) {
        Fate::Keep
    } else if a.prot.contains(Prot::WRITE) {
        Fate::Split
    } else {
        Fate::Freeze
    }
}
