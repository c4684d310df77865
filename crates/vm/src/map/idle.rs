//! Page tables of spaces that nobody runs: dropped whole when memory is short, and filled again by one fault.
//!
//! Page tables are a cache of the map, so taking leaves away needs nobody's leave: each goes under its table page's lock, by
//! an exchange that keeps what hardware says in it, and what it says of stores and references is credited to its page before
//! the lock is let go. The flush reaches no CPU, for none runs the space; one that begins to meanwhile is asked like any
//! other.
//!
//! | | fault | reverse scan | map operation | exit |
//! |---|---|---|---|---|
//! | **drop** | table page's lock: it goes, or comes after; a table page with a leaf is not pruned | its leaf, or the unflushed count | its leaf, or the unflushed count | the caller holds a handle |
//! | **refill** | table page's lock, checks as a fault's | busy and generation, as a fault | stale mark, as a fault | as above |

use super::entry::Entry;
use super::piece::layers;
use super::space::Space;
use crate::fault::{At, Stop};
use crate::machine::{Machine, Pmap, Removed, Table};
use crate::object::backing::Backing;
use crate::object::index::{Cursor, Slot};
use crate::phys::page::State;
use crate::rmap::dirty::credit;
use crate::sleep::MaySleep;
use crate::stats::Event;
use crate::tlb::flush::Obligation;
use crate::types::{Access, PAGE_SHIFT, PAGE_SIZE, Prot, VirtRange};
use core::ops::Range;
use core::ptr;
use quire_sync::epoch::Pinned;

/// A space with at most so many resident pages is small: the first fault after its tables were dropped maps all of them.
/// Mapping a page that is there costs a twentieth of a fault; beyond this, programs touch too small a part of what they have
/// for that to pay.
pub const SMALL: u64 = 512;

/// Leaves that are entered under one hold of a table page's lock.
const STEP: usize = 64;

/// What [`Space::drop_tables`] took.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Dropped {
    /// Leaves.
    pub leaves: u64,
    /// Table pages that were freed, or will be when the last walker has left.
    pub tables: u64,
}

impl<M: Machine> Space<M> {
    /// Drops all page tables but the root, where no CPU runs the space (`None` where one does): nothing is lost but the time
    /// of the faults that make them again, one where the space is small ([`SMALL`]). Takes no lock but table pages', one after
    /// the other.
    ///
    /// Whoever runs the space or faults in it meanwhile is served as always; tables that come back are left.
    pub fn drop_tables(&self) -> Option<Dropped> {
        let (vm, pmap) = (self.vm(), self.pmap());
        if pmap.is_running() {
            return None;
        }
        let user = M::Pmap::USER;
        let before = pmap.table_pages(vm);
        let mut owed = Obligation::new(vm, pmap);
        let (mut leaves, mut at) = (0, user.start);
        while at < user.end {
            if owed.is_full() {
                let _part = core::mem::replace(&mut owed, Obligation::new(vm, pmap)).discharge();
            }
            let Some(mut table) = pmap.next_table(vm, VirtRange { start: at, end: user.end }) else { break };
            let span = table.span();
            let mut va = span.start;
            while let Some(present) = table.next_present(va, span.end) {
                let old = table.remove(present, &mut owed);
                credit(vm, old);
                self.credit_reference(old);
                leaves += 1;
                va = present + PAGE_SIZE;
            }
            at = span.end;
        }
        let _flushed = owed.discharge();
        pmap.fan_in(vm);
        pmap.prune(vm, user);
        if leaves != 0 {
            self.note_dropped(leaves);
        }
        let tables = before.saturating_sub(pmap.table_pages(vm));
        vm.stats().add(Event::TablesDropped, tables);
        Some(Dropped { leaves, tables })
    }

    /// What a leaf says of references goes to its page, where the queues' second chance finds it.
    fn credit_reference(&self, old: Option<Removed>) {
        if let Some(leaf) = old
            && leaf.accessed
            && let Some(page) = self.vm().page_of_leaf(leaf.pfn)
            && page.state().0 & State::REFERENCED == 0
        {
            page.set(State::REFERENCED);
        }
    }
}

/// Maps what is resident in a small space whose tables were dropped: anonymous memory first, then files, up to [`SMALL`] pages.
/// What stands in the way, or memory that is short, ends it: faults serve the rest.
#[cold]
pub(crate) fn refill<M: Machine>(space: &Space<M>, may: &mut MaySleep) {
    let vm = space.vm();
    if space.take_dropped() > SMALL {
        return;
    }
    let mut tally = Tally::of(SMALL as u32);
    'all: for private in [true, false] {
        let mut at = 0;
        while tally.left != 0 {
            let pin = may.pin(vm.epoch());
            let Some(entry) = space.arenas.next(at, &pin) else { break };
            let rest = VirtRange { start: at.max(entry.range().start), end: entry.range().end };
            match refill_some(space, entry, rest, private, STEP, &mut tally, &pin) {
                Ok(next) => at = next,
                Err(_) => break 'all,
            }
        }
    }
    vm.stats().add(Event::FaultAll, SMALL - tally.left as u64);
}

/// Pages that [`refill_some`] may still enter, and what all that it has entered allow.
pub(super) struct Tally {
    pub left: u32,
    pub prot: Prot,
}

impl Tally {
    pub fn of(pages: u32) -> Tally {
        Tally { left: pages, prot: Prot::all() }
    }
}

/// One step of [`refill`], under one pin: enters up to `step` pages of each layer, all below one table page, in `rest` of `entry`.
/// Returns where to go on.
pub(super) fn refill_some<M: Machine>(
    space: &Space<M>,
    entry: &Entry<M>,
    rest: VirtRange,
    private: bool,
    step: usize,
    tally: &mut Tally,
    pin: &Pinned<'_>,
) -> Result<u64, Stop<M>> {
    let Some(rest) = rest.intersect(&entry.range()).filter(|_| entry.prot().allows(Access::Read)) else {
        return Ok(rest.end);
    };
    let of_kind = || layers(entry.front()).filter_map(|b| Some((b, b.object().filter(|o| o.is_private() == private)?)));
    let first = of_kind()
        .filter_map(|(b, object)| {
            let mut cursor = Cursor::over(keys(b, rest)?);
            let page = cursor.resume(object.index(), pin).find(|(_, slot)| matches!(slot, Slot::Page(_)));
            page.map(|(key, _)| b.va(key))
        })
        .min();
    let Some(first) = first else { return Ok(rest.end) };
    let on =
        |va| At { vm: space.vm(), pmap: space.pmap(), entry, condemned: space.condemned(), va, access: Access::Read };
    let mut table = on(first).table(pin)?;
    let mut next = table.span().end.min(rest.end);
    for (b, object) in of_kind() {
        let Some(keys) = keys(b, VirtRange { start: first, end: next }) else { continue };
        let mut cursor = Cursor::over(keys);
        for (n, (key, slot)) in cursor.resume(object.index(), pin).enumerate() {
            if n == step || tally.left == 0 {
                next = b.va(key);
                break;
            }
            if matches!(slot, Slot::Page(_))
                && let Some(prot) = on(b.va(key)).map_if_resident(&mut table, |o| ptr::eq(o, object), pin)?
            {
                tally.left -= 1;
                tally.prot &= prot;
            }
        }
    }
    Ok(next)
}

/// The pages of its object that a layer shows in `window`.
fn keys<M: Machine>(b: &Backing<M>, window: VirtRange) -> Option<Range<u64>> {
    let shown = b.range().intersect(&window)?;
    let start = b.key(shown.start);
    Some(start..start + (shown.len() >> PAGE_SHIFT))
}
