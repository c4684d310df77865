//! A locked last-level table page: entering, removing and weakening leaves ([`quire_vm::Table`]).

use super::Tables;
use crate::format::{FANOUT, Format, index, span};
use crate::hardware::Hardware;
use crate::table::GROUP;
use crate::tree::Locked;
use quire_sync::atomic::{AtomicU64, Ordering};
use quire_vm::machine::{Count, Enter, Leaf, Removed};
use quire_vm::phys::Physical;
use quire_vm::tlb::flush::Obligation;
use quire_vm::{PAGE_SIZE, Pfn, Prot, Table, VirtRange};

/// All rights except the right to store.
const UNWRITABLE: Prot = Prot::all().difference(Prot::WRITE);

/// If at least this number of groups (cache lines of entries) have writable leaves, the table page is store-protected
/// as a whole. With fewer such groups, the leaves are write-protected one by one.
const PROTECT_TABLE_FROM: u32 = 4;

/// A locked, live, last-level table page.
pub struct LockedTable<'a, M: Hardware> {
    pub(super) vm: &'static Physical<M>,
    pub(super) tables: &'a Tables<M::Format>,
    pub(super) t: Locked<'a>,
}

impl<M: Hardware> LockedTable<'_, M> {
    #[inline]
    fn covers(&self) -> VirtRange {
        VirtRange { start: self.t.base, end: self.t.base + span(1) }
    }

    #[inline]
    fn at(&self, va: u64) -> usize {
        debug_assert!(va >= self.t.base && va - self.t.base < span(1), "an address outside the locked table page");
        index(va, 0)
    }

    /// Drops this CPU's cached absent or weaker entry for `va`, if the architecture caches such entries.
    #[inline]
    fn forget_absent(&self, va: u64) {
        if M::Format::CACHES_ABSENT {
            // The lock keeps the caller on this CPU.
            let machine = self.vm.machine();
            if machine.mmu().cpu(quire_sync::current_cpu()).loaded() == self.tables.id() {
                machine.drop_page(va);
            }
        }
    }

    /// Adds `by` to the space's count of resident pages.
    #[inline]
    fn count(&self, by: i64) {
        // The lock keeps the caller on this CPU.
        self.vm.machine().mmu().cpu(quire_sync::current_cpu()).count(self.tables.id, &self.tables.residency, by);
    }

    /// Whether a new leaf with this `count` raises the space's count of resident pages.
    #[inline(always)]
    fn raises(&self, count: Count) -> bool {
        match count {
            Count::More => true,
            Count::UnlessInherited => !self.tables.inherits.load(Ordering::Relaxed),
            Count::Zeroes => false,
        }
    }

    /// Lowers the space's count of resident pages by one for the leaf `word`, which is being removed. A leaf of the
    /// frame of zeroes does not count.
    #[inline(always)]
    fn uncount(&self, word: u64) {
        if !self.shows_zero(word) {
            self.count(-1);
        }
    }

    /// Whether the leaf `word` of this table page shows the frame of zeroes.
    #[inline(always)]
    fn shows_zero(&self, word: u64) -> bool {
        self.t.view.state.shows_zeroes() && M::Format::present(word) && M::Format::frame(word) == self.vm.zero_frame()
    }

    /// Adds the rights of `new` to the present leaf at `va`, which was `old`.
    #[inline(never)]
    fn strengthen(&self, va: u64, mut old: u64, new: Enter) {
        assert_eq!(M::Format::frame(old), new.pfn, "a leaf replaces the leaf of another frame");
        let (slot, add) = (&self.t.view.slots[self.at(va)], M::Format::user_leaf(new));
        loop {
            // The loop only adds rights. It keeps accessed and dirty bits that the hardware sets at the same time.
            let word = M::Format::strengthen(old, add);
            match slot.compare_exchange_weak(old, word, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => old = now,
            }
        }
        if new.prot.contains(Prot::WRITE) {
            self.t.view.note_writable(self.at(va));
        }
        self.forget_absent(va);
    }

    /// Makes the leaves `first` to `last` read-only. Skips groups without a writable leaf. Passes each leaf that it
    /// reads to `each`, and returns their number. If it protects the whole table page instead, it passes none and
    /// returns 1.
    ///
    /// One atomic AND changes a leaf, without a retry loop. This is safe because every writable leaf is dirty already,
    /// and only the holder of the lock changes its write permission. So a CPU that walks the tables at the same time
    /// can only set the accessed bit, which the AND preserves.
    fn take_stores(
        &self,
        first: usize,
        last: usize,
        owed: &mut Obligation<'_, M>,
        mut each: impl FnMut(Removed),
    ) -> u64 {
        let (view, covers) = (&self.t.view, self.covers());
        if Table::<M>::is_store_protected(self) {
            return 0;
        }
        let whole = first == 0 && last == FANOUT - 1;
        if whole && M::Format::STORES_BELOW != 0 && view.writable_groups(first, last).count_ones() >= PROTECT_TABLE_FROM
        {
            self.protect_stores(owed);
            return 1;
        }
        const WHOLE: u64 = !0 >> (u64::BITS as usize - GROUP);
        let stays = M::Format::weaken(!0, UNWRITABLE);
        let mut groups = view.writable_groups(first, last);
        let (mut seen, mut owed_table) = (0, false);
        let mut changed = VirtRange { start: 0, end: 0 };
        while groups != 0 {
            let g = groups.trailing_zeros() as usize;
            groups &= groups - 1;
            let (slots, inside) = view.group(g, first, last);
            let all = slots.iter().fold(!0, |all, s| all & s.load(Ordering::Relaxed));
            // Most often all leaves of the group are writable.
            let whole = inside == WHOLE && M::Format::writable(all);
            let (there, which) = match whole {
                true => (WHOLE, WHOLE),
                false => {
                    let those = |is: fn(u64) -> bool| {
                        let bit = |(n, s): (usize, &AtomicU64)| u64::from(is(s.load(Ordering::Relaxed))) << n;
                        inside & slots.iter().enumerate().map(bit).sum::<u64>()
                    };
                    (those(M::Format::present), those(M::Format::writable))
                }
            };
            seen += if whole { GROUP as u64 } else { u64::from(there.count_ones()) };
            if which != 0 && !owed_table {
                owed_table = true;
                owed.owe_table(view.pfn, covers, || view.owe());
            }
            let mut visit = |slot: &AtomicU64, writable: bool| {
                let word = slot.load(Ordering::Relaxed);
                if writable {
                    debug_assert_eq!(word & stays, M::Format::weaken(word, UNWRITABLE));
                    slot.fetch_and(stays, Ordering::AcqRel);
                }
                if let Some(leaf) = M::Format::read_leaf(word) {
                    debug_assert!(leaf.dirty || !writable, "a leaf that allows stores is not dirty");
                    each(Removed { dirty: writable, ..leaf });
                }
            };
            let start = covers.start + (g * GROUP) as u64 * PAGE_SIZE;
            if whole {
                slots.iter().for_each(|slot| visit(slot, true));
                if changed.end == start {
                    changed.end += GROUP as u64 * PAGE_SIZE;
                    continue;
                }
            } else {
                let those = slots.iter().enumerate().filter(|(n, _)| there & 1 << n != 0);
                those.for_each(|(n, slot)| visit(slot, which & 1 << n != 0));
            }
            let mut left = which;
            while left != 0 {
                let from = left.trailing_zeros();
                let len = (left >> from).trailing_ones();
                left &= left.wrapping_add(1 << from);
                let start = start + u64::from(from) * PAGE_SIZE;
                if changed.end != start {
                    if changed.end != 0 {
                        owed.owe_range(changed);
                    }
                    changed.start = start;
                }
                changed.end = start + u64::from(len) * PAGE_SIZE;
            }
        }
        if owed_table {
            owed.owe_range(changed);
        }
        view.note_unwritable(first, last, M::Format::writable);
        seen
    }

    /// Write-protects the whole table page by one bit in the entry above it. The leaves stay unchanged.
    fn protect_stores(&self, owed: &mut Obligation<'_, M>) {
        let (view, covers) = (&self.t.view, self.covers());
        owed.owe_table(view.pfn, covers, || view.owe());
        // A flush of this many pages drops all translations of the space, cached upper levels included.
        owed.owe_range(covers);
        self.above().fetch_and(!M::Format::STORES_BELOW, Ordering::AcqRel);
        view.state.set_store_protected(true);
    }

    /// Asserts that no writable leaf is entered into a store-protected table page.
    #[inline(always)]
    fn assert_open(&self, new: Enter) {
        debug_assert!(
            !new.prot.contains(Prot::WRITE) || !self.t.view.state.is_store_protected(),
            "a store-protected table page gets a leaf for stores"
        );
    }

    /// The entry that names this table page.
    fn above(&self) -> &AtomicU64 {
        self.tables.tree(self.vm).above(self.t.base)
    }

    #[inline]
    fn word(&self, va: u64) -> u64 {
        self.t.view.slots[self.at(va)].load(Ordering::Relaxed)
    }
}

impl<M: Hardware> Table<M> for LockedTable<'_, M> {
    fn span(&self) -> VirtRange {
        self.covers()
    }

    #[inline]
    fn get(&self, va: u64) -> Option<Leaf> {
        M::Format::read_leaf(self.word(va))
    }

    /// Enters a leaf, or adds rights to the present one. Other CPUs that cache the weaker leaf will fault and find the
    /// stronger one. The page fault that led here dropped this CPU's cached old or absent entry (x86-64: SDM volume 3,
    /// 4.10.4.1). If the architecture caches absent entries, this function drops the cached entry.
    #[inline(always)]
    fn enter(&mut self, va: u64, new: Enter) {
        self.assert_open(new);
        let i = self.at(va);
        let old = self.t.view.slots[i].load(Ordering::Relaxed);
        if M::Format::present(old) {
            return self.strengthen(va, old, new);
        }
        self.t.view.put(i, M::Format::user_leaf(new));
        if new.prot.contains(Prot::WRITE) {
            self.t.view.note_writable(i);
        }
        if self.raises(new.count) {
            self.count(1);
        }
        self.forget_absent(va);
    }

    #[inline]
    fn enter_absent(&mut self, from: u64, mut which: u64, mut leaf: impl FnMut(usize) -> Enter) {
        let first = self.at(from);
        let (mut entered, mut counted) = (0, 0);
        while which != 0 {
            let n = which.trailing_zeros() as usize;
            which &= which - 1;
            if self.t.view.slots[first + n].load(Ordering::Relaxed) == 0 {
                let new = leaf(n);
                self.assert_open(new);
                self.t.view.put_uncounted(first + n, M::Format::user_leaf(new));
                if new.prot.contains(Prot::WRITE) {
                    self.t.view.note_writable(first + n);
                }
                self.forget_absent(from + n as u64 * PAGE_SIZE);
                entered += 1;
                counted += i64::from(self.raises(new.count));
            }
        }
        if entered != 0 {
            self.t.view.state.change_live(entered);
        }
        if counted != 0 {
            self.count(counted);
        }
    }

    #[inline]
    fn remove(&mut self, va: u64, owed: &mut Obligation<'_, M>) -> Option<Removed> {
        let i = self.at(va);
        if !M::Format::present(self.t.view.slots[i].load(Ordering::Relaxed)) {
            return None;
        }
        owed.owe(va, self.t.view.pfn, self.covers(), || self.t.view.owe());
        let word = self.t.view.take(i);
        self.uncount(word);
        M::Format::read_leaf(word)
    }

    // This is a separate function, so that removers of many leaves do not save registers for it.
    #[inline(never)]
    fn remove_alone(&mut self, va: u64, owed: &mut Obligation<'_, M>) -> Option<Removed> {
        // Two cases use the ordinary removal. First, if CPUs have roots of their own, `flush` determines the target
        // CPUs for each root entry. Second, a CPU may run the space. That CPU would miss the generation that
        // `take_alone` raises below, and would drop all translations at its next flush instead of one page.
        // `take_alone` detects a CPU that begins to run the space after this check.
        if self.tables.roots().is_some() || !self.tables.residency.running().is_empty() {
            return Table::<M>::remove(self, va, owed);
        }
        let i = self.at(va);
        if !M::Format::present(self.t.view.slots[i].load(Ordering::Relaxed)) {
            return None;
        }
        let (view, covers) = (&self.t.view, self.covers());
        let word = view.take_alone(i, &self.tables.residency, || owed.owe(va, view.pfn, covers, || view.owe()));
        self.uncount(word);
        if view.state.live() == 0 {
            owed.empties(covers);
        }
        M::Format::read_leaf(word)
    }

    fn weaken(&mut self, va: u64, keep: Prot, owed: &mut Obligation<'_, M>) -> Option<Removed> {
        let i = self.at(va);
        let slot = &self.t.view.slots[i];
        let mut old = slot.load(Ordering::Relaxed);
        if !M::Format::present(old) {
            return None;
        }
        if keep.is_empty() {
            // A leaf without rights cannot be encoded, because a present leaf is always readable. So the leaf is
            // removed, and a fault enters it again.
            return Table::<M>::remove(self, va, owed);
        }
        if M::Format::read_leaf(old).is_some_and(|leaf| keep.contains(leaf.prot - Prot::READ)) {
            return M::Format::read_leaf(old);
        }
        owed.owe(va, self.t.view.pfn, self.covers(), || self.t.view.owe());
        loop {
            match slot.compare_exchange_weak(old, M::Format::weaken(old, keep), Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => old = now,
            }
        }
        M::Format::read_leaf(old)
    }

    fn sweep(
        &mut self,
        range: VirtRange,
        keep: Option<Prot>,
        owed: &mut Obligation<'_, M>,
        mut each: impl FnMut(Removed),
    ) -> u64 {
        let (from, to) = (range.start.max(self.t.base), range.end.min(self.t.base + span(1)));
        if from >= to {
            return 0;
        }
        // A leaf without rights cannot be encoded, because a present leaf is always readable. So such leaves are
        // removed, and faults enter them again.
        let keep = keep.filter(|k| !k.is_empty());
        let (view, covers) = (&self.t.view, self.covers());
        let mut changed = VirtRange { start: 0, end: 0 };
        let mut taken = 0;
        let (first, last) = (index(from, 0), index(to - 1, 0));
        // Leaves of the frame of zeroes are not counted.
        let zeroes = match keep {
            None if view.state.shows_zeroes() => view.count_locked(first, last, |word| self.shows_zero(word)),
            _ => 0,
        };
        if keep.is_some_and(|k| k.contains(UNWRITABLE) && !k.contains(Prot::WRITE)) {
            return self.take_stores(first, last, owed, each);
        }
        let seen = view.scan_locked(first, last, |i, slot, word| {
            let leaf = M::Format::read_leaf(word);
            if let (Some(keep), Some(leaf)) = (keep, leaf)
                && keep.contains(leaf.prot - Prot::READ)
            {
                return each(leaf);
            }
            let va = covers.start + i as u64 * PAGE_SIZE;
            if changed.end != va {
                if changed.start == changed.end {
                    owed.owe_table(view.pfn, covers, || view.owe());
                } else {
                    owed.owe_range(changed);
                }
                changed.start = va;
            }
            changed.end = va + PAGE_SIZE;
            let old = match keep {
                None => {
                    taken += 1;
                    slot.swap(0, Ordering::AcqRel)
                }
                Some(keep) => {
                    let mut old = word;
                    loop {
                        let new = M::Format::weaken(old, keep);
                        match slot.compare_exchange_weak(old, new, Ordering::AcqRel, Ordering::Relaxed) {
                            Ok(_) => break old,
                            Err(now) => old = now,
                        }
                    }
                }
            };
            if let Some(leaf) = M::Format::read_leaf(old) {
                each(leaf);
            }
        });
        if keep.is_some_and(|k| !k.contains(Prot::WRITE)) {
            view.note_unwritable(first, last, M::Format::writable);
        }
        view.state.change_live(-taken);
        if taken != 0 {
            self.count(zeroes.cast_signed() - i64::from(taken));
        }
        if changed.start != changed.end {
            owed.owe_range(changed);
        }
        seen
    }

    #[inline(always)]
    fn is_store_protected(&self) -> bool {
        M::Format::STORES_BELOW != 0 && self.t.view.state.is_store_protected()
    }

    fn restore_stores(&mut self, keep: bool, mut each: impl FnMut(Removed)) {
        let view = &self.t.view;
        if !keep {
            // While the table page is store-protected, no CPU stores through its leaves. So this loop, which takes the
            // write permission from the leaves, owes no flush.
            let stays = M::Format::weaken(!0, UNWRITABLE);
            view.scan_locked(0, FANOUT - 1, |_, slot, word| {
                if M::Format::writable(word) {
                    slot.fetch_and(stays, Ordering::AcqRel);
                    if let Some(leaf) = M::Format::read_leaf(word) {
                        each(leaf);
                    }
                }
            });
            view.note_unwritable(0, FANOUT - 1, M::Format::writable);
        }
        // This code changes the entry above after the leaves, so that a CPU that walks through the changed entry finds
        // the leaves' new rights. A CPU that caches the entry without the bit faults at most once more. That fault
        // drops the cached entry (SDM volume 3, 4.10.4.1 and 4.10.4.3).
        self.above().fetch_or(M::Format::STORES_BELOW, Ordering::AcqRel);
        view.state.set_store_protected(false);
    }

    fn take_accessed(&mut self, va: u64) -> bool {
        let slot = &self.t.view.slots[self.at(va)];
        let word = slot.load(Ordering::Relaxed);
        M::Format::present(word)
            && word & M::Format::ACCESSED != 0
            && slot.fetch_and(!M::Format::ACCESSED, Ordering::AcqRel) & M::Format::ACCESSED != 0
    }

    #[inline]
    fn next_present(&self, from: u64, to: u64) -> Option<u64> {
        let from = from.max(self.t.base);
        let to = to.min(self.t.base + span(1));
        if from >= to {
            return None;
        }
        let (i, word) = self.t.view.next_locked(index(from, 0), index(to - 1, 0))?;
        debug_assert!(M::Format::present(word), "a word that is neither empty nor present");
        let found = self.t.base + i as u64 * PAGE_SIZE;
        Some(found.max(from))
    }

    fn count_in(&self, range: VirtRange, zero: Pfn) -> u64 {
        let (from, to) = (range.start.max(self.t.base), range.end.min(self.t.base + span(1)));
        if from >= to {
            return 0;
        }
        let zeroes = self.t.view.state.shows_zeroes();
        let counts = |word: u64| word != 0 && (!zeroes || M::Format::frame(word) != zero);
        self.t.view.count_locked(index(from, 0), index(to - 1, 0), counts)
    }

    fn unflushed(&self) -> bool {
        self.t.view.state.unflushed()
    }

    fn live(&self) -> u32 {
        self.t.view.state.live()
    }

    fn note_zeroes(&mut self) {
        self.t.view.state.note_zeroes();
    }

    fn shows_zeroes(&self) -> bool {
        self.t.view.state.shows_zeroes()
    }
}
