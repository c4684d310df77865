//! One change of a map, from its plan to its publication (relies on C3).
//!
//! # The two phases
//! 1. *Plan.* The writer marks the entries that the change may replace stale, and issues one fence after the marks.
//!    From then on no fault enters a leaf in them: each fault finds the mark under its table page's lock, and waits for
//!    this writer. So the chains that the plan reads do not change. Then the writer allocates everything: entries,
//!    backings and tree nodes. After a failure it clears the marks, and nothing has changed.
//! 2. *Do.* This phase cannot fail. The writer clears or weakens leaves and flushes. It links new chains and publishes
//!    the new entries by one store. It unlinks the old entries' chains with the proof of the flush, and retires the old
//!    entries.
//!
//! A stale entry stays in the tree until the new entries are published. So no thread sees its range as a hole, and a
//! fault that finds it waits for this writer. No state between the old and the new one is ever visible.
//!
//! # Merging
//! The plan is a row of *pieces* in ascending order. Two adjoining pieces are joined if they have the same attributes,
//! and each layer of one continues where the same layer of the other ends. Neighbours outside the changed range are
//! joined too. So `brk`, and programs that map or protect piece by piece, do not add an entry at each call.

pub(crate) mod pte_update;

use super::arena::{EntryChange, Writer};
use super::entry::{Attributes, Entry, Flags, How, NewEntries, Notes};
use super::space::Space;
use crate::error::{MapError, OutOfMemory};
use crate::machine::{Machine, Pmap};
use crate::map::arena::covered::Class;
use crate::map::entry::piece::{ChainSource, Piece, STACK_ROOM, continues, grows, layers, with_room};
use crate::map::entry::wired::mark_chain;
use crate::map::update::pte_update::{Sweep, Work};
use crate::mutant::{Mutant, mutant};
use crate::object::ObjectRef;
use crate::object::backing::{self, SpareBackings};
use crate::types::VirtRange;
use core::ptr::{self, NonNull};
use quire_sync::atomic::fence_full;

/// The pieces of one range, and the memory that was allocated for them.
pub(super) struct Row<'s, M: Machine> {
    space: &'s Space<M>,
    /// The replaced range: whole entries, and the holes between them.
    range: VirtRange,
    pending: Option<Piece<'s, M>>,
    new: NewEntries<M>,
    spare: SpareBackings<M>,
    /// The object that pieces may map, and the number of the object's page at which the pieces begin.
    object: Option<(&'s ObjectRef<M>, u64)>,
    /// The distance of a move, in bytes. An address of a piece plus `moved` is the address in its old entry. 0 if
    /// nothing moves.
    moved: u64,
    /// The least number of bytes that a stack's front (the first layer of its chain) covers.
    stack_room: u64,
}

/// The most entries that one part of an operation changes, if its range may be changed in parts. One part takes less
/// than a millisecond.
pub(in crate::map) const PART: usize = if cfg!(test) { 8 } else { 256 };

/// A change that is being planned; see the module. A drop before [`Update::apply`] undoes the plan.
pub(super) struct Update<'s, M: Machine> {
    space: &'s Space<M>,
    writer: Option<Writer<'s, M>>,
    /// The first of the entries that this change has marked stale. `Entry::link` leads to the next one.
    marked: *const Entry<M>,
    /// `first` and `last` are the first and the last entry that overlap the range. `following` is the entry after
    /// `last`.
    first: Option<&'s Entry<M>>,
    last: Option<&'s Entry<M>>,
    following: Option<&'s Entry<M>>,
    /// The entry before `first`, if both are in one leaf of the tree.
    previous: Option<&'s Entry<M>>,
    /// Where the entry after a part begins ([`Update::of_part`]).
    next: Option<u64>,
    row: Row<'s, M>,
}

impl<'s, M: Machine> Row<'s, M> {
    /// An empty row for `range`.
    #[inline(always)]
    pub fn new(space: &'s Space<M>, range: VirtRange) -> Self {
        Row {
            space,
            range,
            pending: None,
            new: NewEntries::new(space.vm()),
            spare: SpareBackings::empty(space.vm()),
            object: None,
            moved: 0,
            stack_room: STACK_ROOM,
        }
    }

    /// Sets the distance of a move: pieces map the pages that their entries map `by` bytes above.
    pub fn moving(mut self, by: u64) -> Self {
        self.moved = by;
        self
    }

    /// Appends the next piece, or joins it to the pending one.
    pub fn push(&mut self, piece: Piece<'s, M>) -> Result<(), MapError> {
        if self.join(&piece) {
            return Ok(());
        }
        self.settle()?;
        self.pending = Some(piece);
        Ok(())
    }

    /// Joins `next` to the pending piece if one entry can cover both. Returns whether it did.
    fn join(&mut self, next: &Piece<'s, M>) -> bool {
        let Some(p) = &mut self.pending else { return false };
        if p.range.end != next.range.start || p.attributes != next.attributes || p.add_front != next.add_front {
            return false;
        }
        let grows = grows(p, next, self.moved);
        if !grows && !continues(p, next) {
            return false;
        }
        self.range.start = self.range.start.min(p.range.start);
        p.range.end = next.range.end;
        p.grown |= grows;
        true
    }

    /// Allocates the entry and the backings of the pending piece.
    fn settle(&mut self) -> Result<(), MapError> {
        let Some(p) = self.pending.take() else { return Ok(()) };
        let (how, origin, backings) = match p.from {
            ChainSource::Empty => (How::Empty, ptr::null(), 1),
            ChainSource::Object => (How::Object, ptr::null(), 1),
            ChainSource::Tail(entry) => (How::Tail, ptr::from_ref(entry), 1),
            ChainSource::Entry(entry) => {
                let gives_way = self.range.contains(entry.range().start);
                if !gives_way && p.is_all_of(entry) {
                    // The piece is an unchanged neighbour, to which no other piece was joined. So its entry stays.
                    return Ok(());
                }
                let contains = |outer: VirtRange| outer.start <= p.range.start && outer.end >= p.range.end;
                let all = p.range.start <= entry.range().start && p.range.end >= entry.range().end;
                // A chain is taken over only as a whole and without a move, and only if its front covers the new range.
                if gives_way && self.moved == 0 && all && contains(entry.front().range()) {
                    (How::Taken, ptr::from_ref(entry), 0)
                } else {
                    let how = if p.grown { How::Grown } else { How::Copied };
                    (how, ptr::from_ref(entry), backing::depth(entry.front()))
                }
            }
        };
        self.spare.reserve_more(backings + usize::from(p.add_front))?;
        let entry = self.new.push(p.range, p.attributes, how, origin)?;
        // SAFETY: `push` has just made the entry, and the row publishes it later, in `publish`.
        let entry = unsafe { entry.as_ref() };
        if p.add_front {
            entry.note(Notes::ADD_FRONT);
        }
        Ok(())
    }

    /// Makes the chain of a new entry from the reserved backings.
    fn furnish(&mut self, entry: &Entry<M>) {
        let (range, flags, pmap) = (entry.range(), entry.flags(), self.space.pmap());
        let spare = &mut self.spare;
        let chain = match entry.how.get() {
            How::Empty => backing::private(spare, pmap, with_room(range, flags, self.stack_room), 0, None),
            How::Object => {
                let (object, page) = self.object.expect("a piece shows the update's object");
                backing::showing(spare, pmap, range, object, page, entry.attributes().may_store())
            }
            How::Tail => {
                // SAFETY: entries with this `how` have an origin, and no chain yet.
                let origin = unsafe { entry.origin() };
                let file = layers(origin.front()).last().unwrap_or(origin.front());
                let from = range.start.wrapping_add(self.moved);
                let shown = VirtRange { start: from, end: from + range.bytes() };
                // SAFETY: the writer is held; the space outlives its chains.
                unsafe { backing::replicate(spare, file, shown, range.start, pmap) }
            }
            how @ (How::Taken | How::Copied | How::Grown) => {
                // SAFETY: entries with this `how` have an origin, and no chain yet.
                let origin = unsafe { entry.origin() };
                if how == How::Taken {
                    origin.note(Notes::CHAIN_TAKEN);
                    origin.front_ptr()
                } else {
                    let up = how == How::Grown && !flags.contains(Flags::GROWS_DOWN);
                    let window = if up { with_room(range, flags, self.stack_room) } else { range };
                    let from = window.start.wrapping_add(self.moved);
                    let shown = VirtRange { start: from, end: from + window.bytes() };
                    // SAFETY: the writer is held; the space outlives its chains.
                    unsafe { backing::replicate(spare, origin.front(), shown, window.start, pmap) }
                }
            }
        };
        let front =
            if entry.noted(Notes::ADD_FRONT) { backing::private(spare, pmap, range, 0, Some(chain)) } else { chain };
        entry.set_front(front);
        mark_chain(entry.front(), flags);
    }

    fn prepare(&self, writer: &mut Writer<'s, M>) -> Result<EntryChange<M>, OutOfMemory> {
        writer.prepare(self.range.start, self.range.end, self.new.len(), self.new.iter())
    }

    /// Gives the new entries their chains and publishes the entries.
    fn publish(&mut self, writer: &mut Writer<'s, M>, change: EntryChange<M>) {
        for entry in self.new.iter() {
            // SAFETY: the row made its entries, and they are not published before the `commit` below.
            let entry = unsafe { entry.as_ref() };
            self.furnish(entry);
            writer.arena().counts().come(entry);
        }
        writer.commit(change);
        self.new.published();
    }
}

impl<'s, M: Machine> Update<'s, M> {
    /// A change that replaces the entries in `range`. Marks every entry that overlaps `range` stale, so that its
    /// attributes and chain do not change. The caller must push the parts of those entries outside `range` as pieces.
    #[inline(always)] // inlined so that the value is built in place, without a copy
    pub fn new(space: &'s Space<M>, writer: Writer<'s, M>, range: VirtRange) -> Self {
        Self::of_part(space, writer, range, usize::MAX)
    }

    /// A change like [`new`](Self::new), but of the first `most` entries of `range` only. If more entries are left, the
    /// change ends where the next one begins ([`next`](Self::next)).
    #[inline(always)] // as `new`
    pub fn of_part(space: &'s Space<M>, writer: Writer<'s, M>, range: VirtRange, most: usize) -> Self {
        let mut update = Update {
            space,
            writer: None,
            marked: ptr::null(),
            first: None,
            last: None,
            following: None,
            previous: None,
            next: None,
            row: Row::new(space, range),
        };
        update.mark_all(writer, range, most);
        update
    }

    /// Where the next entry begins, if the change covers only a part of its range.
    pub fn next(&self) -> Option<u64> {
        self.next
    }

    /// Marks the entries that overlap `range`, at most `most`. If more entries are left, ends the replaced range at the
    /// next one.
    fn mark_all(&mut self, writer: Writer<'s, M>, range: VirtRange, most: usize) {
        let mut left = most;
        // One descent in the tree finds all these entries.
        let (previous, mut entries) = writer.around(range.start);
        self.previous = previous;
        loop {
            match entries.next() {
                Some(entry) if entry.range().start < range.end && left == 0 => {
                    self.next = Some(entry.range().start);
                    self.row.range.end = entry.range().start;
                    self.following = Some(entry);
                    break;
                }
                Some(entry) if entry.range().start < range.end => {
                    left -= 1;
                    self.include(entry);
                    self.first.get_or_insert(entry);
                    self.last = Some(entry);
                }
                following => {
                    self.following = following;
                    break;
                }
            }
        }
        self.writer = Some(writer);
        if self.first.is_some() && !mutant(Mutant::NoFenceAfterMark) {
            fence_full();
        }
    }

    /// Pushes the part before `range` of an entry that overlaps the start of `range`.
    pub fn outside_before(&mut self, range: VirtRange) -> Result<(), MapError> {
        match self.first {
            Some(e) if e.range().start < range.start => {
                self.push(Piece::part(e, VirtRange { start: e.range().start, end: range.start }))
            }
            _ => Ok(()),
        }
    }

    /// Pushes the part after `range` of an entry that overlaps the end of `range`.
    pub fn outside_after(&mut self, range: VirtRange) -> Result<(), MapError> {
        match self.last {
            Some(e) if e.range().end > range.end => {
                self.push(Piece::part(e, VirtRange { start: range.end, end: e.range().end }))
            }
            _ => Ok(()),
        }
    }

    /// Gives each part of `range` the attributes that `changed` returns, and joins equal neighbours. `range` must be
    /// the range that was passed to [`Update::new`]. A part whose flag `NEEDS_FRONT` is cleared gets a new front.
    pub fn change(&mut self, range: VirtRange, changed: impl Fn(&Entry<M>) -> Attributes) -> Result<(), MapError> {
        let (first, last) = (self.first, self.last);
        self.outside_before(range)?;
        if let Some(e) = first.filter(|e| e.range().start >= range.start) {
            self.lean_on_previous(changed(e));
        }
        for e in self.writer().overlapping(range.start, range.end) {
            let mut piece = Piece::part(e, e.range().intersect(&range).unwrap_or(e.range()));
            piece.attributes = changed(e);
            piece.add_front = (e.flags() - piece.attributes.flags).contains(Flags::NEEDS_FRONT);
            self.push(piece)?;
        }
        self.outside_after(range)?;
        if let Some(e) = last.filter(|e| e.range().end <= range.end) {
            self.lean_on_next(changed(e));
        }
        Ok(())
    }

    /// Replaces each entry's part of `range`, which the update was made for, by the piece that `piece` makes of it.
    pub fn replace_each(
        &mut self,
        range: VirtRange,
        piece: impl Fn(&'s Entry<M>, VirtRange) -> Piece<'s, M>,
    ) -> Result<(), MapError> {
        for e in self.writer().overlapping(range.start, range.end) {
            self.push(piece(e, e.range().intersect(&range).unwrap_or(e.range())))?;
        }
        Ok(())
    }

    /// Bytes of `range` that are mapped, for an operation that unmaps them. [`MapError::Sealed`]: it must not.
    pub fn unmapped_in(&self, range: VirtRange) -> Result<u64, MapError> {
        if self.first.is_none() {
            return Ok(0);
        }
        self.marked().try_fold(0, |sum, e| match e.flags().contains(Flags::SEALED) {
            true => Err(MapError::Sealed),
            false => Ok(sum + e.range().intersect(&range).map_or(0, |part| part.len())),
        })
    }

    /// Sets the object that pieces may map, and the number of the object's page at which the pieces begin.
    pub fn show(&mut self, object: Option<(&'s ObjectRef<M>, u64)>) {
        self.row.object = object;
    }

    /// Sets the least number of bytes that the front (the first layer of the chain) of a new stack covers.
    pub fn with_stack_room(mut self, room: u64) -> Self {
        self.row.stack_room = room;
        self
    }

    /// Appends the next piece of the row.
    pub fn push(&mut self, piece: Piece<'s, M>) -> Result<(), MapError> {
        self.row.push(piece)
    }

    /// Charges a mapping of all of `range` with [`Writer::charge_commit`], less the charged memory that it replaces.
    /// Returns false if the limit of the commit charge would be exceeded.
    pub fn charge_commit(&mut self, range: VirtRange, a: &Attributes) -> bool {
        if !self.space.vm().map_memory().commit_charge().is_limited() {
            return true;
        }
        // Replaced memory of other classes, for example inaccessible memory, was not charged.
        let committed = |e: &&Entry<M>| Class::of(&e.attributes()).is_committed();
        let less = match self.first {
            None => 0,
            Some(_) => {
                self.marked().filter(committed).filter_map(|e| e.range().intersect(&range)).map(|r| r.len()).sum()
            }
        };
        let writer = self.writer.as_mut().expect("the writer is held until the change is applied");
        writer.charge_commit(range.len(), less, a)
    }

    pub fn writer(&self) -> &Writer<'s, M> {
        self.writer.as_ref().expect("the writer is held until the change is applied")
    }

    fn mark(&mut self, entry: &'s Entry<M>) {
        if !entry.is_stale() {
            entry.mark_stale();
            entry.link.set(self.marked);
            self.marked = entry;
        }
    }

    /// Marks `entry` stale, and extends the replaced range to all of it.
    pub fn include(&mut self, entry: &'s Entry<M>) {
        self.mark(entry);
        self.row.range.start = self.row.range.start.min(entry.range().start);
        self.row.range.end = self.row.range.end.max(entry.range().end);
    }

    /// Makes the neighbour before the change the first piece, if it has the attributes `a`. If no other piece is joined
    /// to it, its entry stays.
    pub fn lean_on_previous(&mut self, a: Attributes) {
        let start = self.row.range.start;
        if let Some(previous) = self.previous.or_else(|| self.writer().before(start))
            && previous.range().end == start
            && previous.attributes() == a
        {
            self.mark(previous);
            fence_full();
            self.row.pending = Some(Piece::part(previous, previous.range()));
        }
    }

    /// Joins the neighbour after the change to the last piece, if it has the attributes `a` and continues that piece.
    pub fn lean_on_next(&mut self, a: Attributes) {
        if let Some(next) = self.following
            && next.range().start == self.row.range.end
            && next.attributes() == a
        {
            self.mark(next);
            fence_full();
            if self.row.join(&Piece::part(next, next.range())) {
                self.include(next);
            }
        }
    }

    /// Ends the plan and applies the change: `work` on the leaves, then the publication, then the retirement of the old
    /// entries. After an error nothing has changed.
    ///
    /// Called once, as the last use. It borrows the update, because a call by value would copy the large structure.
    #[inline]
    pub fn apply(&mut self, work: Work) -> Result<(), MapError> {
        self.perform(None, work)
    }

    /// Applies the change like [`Update::apply`], and publishes a second row of pieces, `elsewhere`. That row fills a
    /// hole at other addresses with pages of entries that this change replaces. It is published first, so that the
    /// pages are always mapped at one of the two places.
    pub fn apply_with(&mut self, elsewhere: &mut Row<'s, M>, work: Work) -> Result<(), MapError> {
        self.perform(Some(elsewhere), work)
    }

    /// Applies the change, and the second row if there is one. Called once; afterwards a drop of the update does
    /// nothing.
    fn perform(&mut self, mut elsewhere: Option<&mut Row<'s, M>>, work: Work) -> Result<(), MapError> {
        self.row.settle()?;
        if let Some(row) = &mut elsewhere {
            row.settle()?;
        }
        let other = elsewhere.as_ref().map_or(0, |r| r.new.len());
        let mut gone = 0;
        for entry in self.marked() {
            if self.row.range.contains(entry.range().start) {
                gone += 1;
            }
        }
        let come = self.row.new.len() + other;
        if come > gone && self.space.too_many(self.writer(), come - gone) {
            return Err(MapError::TooMany);
        }
        let writer = self.writer.as_mut().expect("the writer is held until the change is applied");
        // With two rows, the second tree change can be prepared only after the first is published. So its nodes are
        // allocated now, and set aside.
        let mut first = None;
        let mut change = None;
        match &elsewhere {
            None => change = Some(self.row.prepare(writer)?),
            Some(row) => {
                first = Some(row.prepare(writer)?);
                writer.set_nodes_aside()?;
            }
        }

        // Phase 2: nothing from here on can fail.
        let (mut proof, mut emptied) = (None, None);
        if work != Work::None {
            let mut sweep = Sweep::new(self.space);
            sweep.perform(work);
            emptied = sweep.emptied;
            let cleared = sweep.cleared;
            proof = Some(sweep.finish());
            if let Some(writer) = &mut self.writer {
                writer.note_updates(cleared);
            }
        }
        let mut writer = self.writer.take().expect("the writer is held until the change is applied");
        if let (Some(row), Some(first)) = (elsewhere, first) {
            row.publish(&mut writer, first);
        }
        let change = change.unwrap_or_else(|| {
            self.row.prepare(&mut writer).unwrap_or_else(|_| panic!("the nodes of the second change were set aside"))
        });
        let range = self.row.range;
        for entry in self.marked().filter(|entry| range.contains(entry.range().start)) {
            writer.arena().counts().go(entry);
        }
        self.row.publish(&mut writer, change);

        let mut replaced: *const Entry<M> = ptr::null();
        let mut at = core::mem::replace(&mut self.marked, ptr::null());
        // SAFETY: marked entries are in the tree, or were until now and are retired below.
        while let Some(entry) = unsafe { at.as_ref() } {
            at = entry.link.get();
            if range.contains(entry.range().start) {
                entry.link.set(replaced);
                replaced = entry;
            } else {
                entry.unmark_stale();
            }
        }
        let prune = writer.idle_tables(emptied, self.space);

        // The old entries are unreachable now. Their chains are unlinked while the writer is still held. Otherwise a
        // mapping could grow over the old range of a private object, and find pages there that are still to be freed.
        // SAFETY: entries on this list left the tree by `publish`, and this loop alone retires them, once each.
        while let Some(entry) = unsafe { replaced.as_ref() } {
            replaced = entry.link.get();
            // SAFETY: the entry is unreachable for new readers, and is retired once. A chain that no new entry took
            // over belongs to this entry alone.
            unsafe {
                if !entry.noted(Notes::CHAIN_TAKEN) {
                    // If the change has no work on leaves, it owes no flush, because the present leaves stay valid.
                    let proof = proof.get_or_insert_with(|| Sweep::new(self.space).finish());
                    backing::dispose(self.space.vm(), entry.front_ptr(), proof);
                }
                Entry::retire(NonNull::from(entry));
            }
        }
        drop(writer);
        if let Some(prune) = prune {
            self.space.pmap().prune(self.space.vm(), prune);
        }
        Ok(())
    }

    fn marked(&self) -> impl Iterator<Item = &'s Entry<M>> + use<'s, M> {
        let mut at = self.marked;
        core::iter::from_fn(move || {
            // SAFETY: marked entries are in the tree while the writer is held.
            let entry = unsafe { at.as_ref() }?;
            at = entry.link.get();
            Some(entry)
        })
    }
}

impl<M: Machine> Drop for Update<'_, M> {
    /// Clears the stale marks of a change that was not applied.
    fn drop(&mut self) {
        for entry in self.marked() {
            entry.unmark_stale();
        }
    }
}
