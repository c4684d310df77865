//! Fault-around: a read fault also maps resident neighbours of its page.
//!
//! The whole window is looked up in each layer's object at once, through the index's occupancy bitmap. So a neighbour
//! costs the read of a slot, and no walk. As in a walk, the first layer with a filled slot at an address decides. Each
//! page gets the checks of the faulting page, under the same table page's lock, but only once. That suffices, because a
//! CPU that later fills a slot in front acquires that lock to clear the leaf. A page moves between layers under that
//! lock too, or while the entry is stale, and the stale mark is read last.

use crate::fault::{FaultContext, FoundPage};
use crate::machine::{Enter, Machine, Table};
use crate::map::entry::Flags;
use crate::object::Object;
use crate::object::index::Slot;
use crate::stats::Event;
use crate::types::{PAGE_SHIFT, PAGE_SIZE, Pfn, Prot, VirtRange};
use quire_sync::epoch::Pinned;
use quire_sync::trace::{EventKind, note};

/// Number of pages of the aligned window around the faulting page. A read fault maps the resident pages of the window.
/// The number is that of Linux's `fault_around_bytes`. It applies to private memory too, because a forked child begins
/// with empty page tables, and finds pages that it only reads in shared layers.
const AROUND: usize = 16;
/// Number of pages of the window around a page that is behind many layers: one for each bit of a word. In a deep chain
/// the lookups in the layers cost more than the neighbours, and each window needs one lookup in each layer.
const AROUND_DEEP: usize = 64;
/// A page behind at least this number of layers gets the larger window.
const DEEP: usize = 8;

/// The lowest `n` bits, 1 to 64.
fn low_bits(n: u64) -> u64 {
    u64::MAX >> (64 - n)
}

impl<M: Machine> FaultContext<'_, M> {
    /// The part of `window` that the program may reach. A private mapping of a file ends at the file's end: private
    /// copies of pages beyond that end must not be mapped.
    ///
    /// # Requires
    /// The caller holds the table page's lock. A truncation clears the leaves after it has written the size.
    fn reachable(&self, window: VirtRange) -> Option<VirtRange> {
        let chain = || core::iter::successors(Some(self.entry.front()), |b| b.behind());
        // If the chain has no private layer, it shows only the file's own pages. Then the size is not read, because
        // appends write its cache line.
        let copies = || chain().any(|b| b.object().is_some_and(Object::is_private));
        if !self.entry.flags().contains(Flags::FILE) || !copies() {
            return Some(window);
        }
        let file = chain().last()?;
        let (object, first) = file.layer(window.start)?;
        let left = object.end().saturating_sub(first) << PAGE_SHIFT;
        window.intersect(&VirtRange { start: window.start, end: window.start.saturating_add(left) })
    }

    /// Maps resident neighbours of the page `found`: pages of its object and of private memory. A leaf is read-only if
    /// a store needs another fault, for example for a copy.
    ///
    /// # Requires
    /// The table page that covers the address is locked, and the entry was checked under its lock.
    #[inline(always)]
    pub fn map_around(&self, table: &mut impl Table<M>, found: &FoundPage<'_, M>, pin: &Pinned<'_>) {
        if found.depth < DEEP {
            self.map_window::<AROUND>(table, found.object, pin);
        } else {
            self.map_window::<AROUND_DEEP>(table, found.object, pin);
        }
    }

    /// Maps the resident pages of the aligned window of `PAGES` around the address.
    #[inline(never)] // so that other faults do not need its large stack frame
    fn map_window<const PAGES: usize>(&self, table: &mut impl Table<M>, file: &Object<M>, pin: &Pinned<'_>) {
        let bytes = PAGES as u64 * PAGE_SIZE;
        let start = self.va & !(bytes - 1);
        let window = VirtRange { start, end: start + bytes };
        let Some(window) = window.intersect(&self.entry.range()).and_then(|w| w.intersect(&table.span())) else {
            return;
        };
        let Some(window) = self.reachable(window) else { return };
        let place = |va: u64| (va - window.start) >> PAGE_SHIFT;
        // `open` has a bit for each page that no layer has decided yet. `there`, `writable` and `own` (private) have
        // bits for the pages to map.
        let mut open = low_bits(window.bytes() >> PAGE_SHIFT) & !(1 << place(self.va));
        let (mut there, mut writable, mut own) = (0u64, 0u64, 0u64);
        let mut frames = [Pfn(0); PAGES];
        let mut layer = Some(self.entry.front());
        let mut front = true;
        while let Some(b) = layer
            && open != 0
        {
            if let (Some(object), Some(shown)) = (b.object(), b.range().intersect(&window)) {
                let private = object.is_private();
                if !private && !core::ptr::eq(object, file) {
                    break;
                }
                let in_place = self.entry.shared() || (front && private);
                let (first, skipped) = (b.key(shown.start), place(shown.start));
                let wanted = (open >> skipped) & low_bits(shown.bytes() >> PAGE_SHIFT);
                let others = there;
                object.index().each_of(first, wanted, pin, |n, slot| {
                    let bit = 1 << (u64::from(n) + skipped);
                    open &= !bit;
                    let Slot::Page(pfn) = slot else { return };
                    let page = self.vm.page(pfn);
                    let state = page.state();
                    if !state.busy()
                        && state.valid()
                        && page.object() == object.address()
                        && page.index() == first + u64::from(n)
                    {
                        there |= bit;
                        writable |= if in_place && state.dirty() { bit } else { 0 };
                        frames[bit.trailing_zeros() as usize] = pfn;
                    }
                });
                own |= if private { there & !others } else { 0 };
            }
            front = false;
            layer = b.behind();
        }
        // The stale mark is read last (relies on C3).
        if there == 0 || self.check_entry().is_err() {
            return;
        }
        note(EventKind::Around, 0, window.start, there.count_ones().into());
        let prot = self.entry.prot();
        let mut mapped = 0;
        let mut leaf = |n: usize| {
            mapped += 1;
            (frames[n], if writable & 1 << n != 0 { prot } else { prot - Prot::WRITE })
        };
        if own != there {
            table.enter_absent(window.start, there & !own, |n| {
                let (pfn, prot) = leaf(n);
                Enter::new(pfn, prot)
            });
        }
        if own != 0 {
            table.enter_absent(window.start, own, |n| {
                let (pfn, prot) = leaf(n);
                Enter::existing(pfn, prot, true)
            });
        }
        self.vm.stats().add(Event::FaultAround, mapped);
    }
}
