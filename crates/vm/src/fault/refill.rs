//! The refill of page tables of a space after [`drop_tables`](crate::map::Space::drop_tables).

use super::{Attempt, FaultContext};
use crate::machine::{Machine, Table};
use crate::map::entry::Entry;
use crate::map::entry::piece::layers;
use crate::map::space::Space;
use crate::map::space::idle::SMALL;
use crate::object::backing::Backing;
use crate::object::index::{Cursor, Slot};
use crate::sleep::MaySleep;
use crate::stats::Event;
use crate::types::{Access, PAGE_SHIFT, Prot, VirtRange};
use core::ops::Range;
use core::ptr;
use quire_sync::epoch::Pinned;

/// The most leaves of a layer that are entered under one acquisition of a table page's lock.
const STEP: usize = 64;

/// Maps the resident pages of a small space whose tables were dropped: anonymous memory first, then files, up to
/// [`SMALL`] pages. Ends if an attempt fails, for example because memory is short. Then faults map the rest.
#[cold]
pub(crate) fn refill<M: Machine>(space: &Space<M>, may: &mut MaySleep) {
    let vm = space.vm();
    let dropped = space.take_dropped();
    if vm.frames().is_scarce() {
        vm.drop_early(space.list());
    }
    // If tables without leaves were dropped, there is nothing to map.
    if !(1..=SMALL).contains(&dropped) {
        return;
    }
    let mut tally = Tally::of(SMALL as u32);
    'all: for private in [true, false] {
        let mut at = 0;
        while tally.left != 0 {
            let pin = may.pin(vm.epoch());
            let Some(entry) = space.next_entry(at, &pin) else { break };
            let rest = VirtRange { start: at.max(entry.range().start), end: entry.range().end };
            match refill_some(space, entry, rest, private, STEP, &mut tally, &pin) {
                Ok(next) => at = next,
                Err(_) => break 'all,
            }
        }
    }
    vm.stats().add(Event::FaultAll, SMALL - tally.left as u64);
}

/// The number of pages that [`refill_some`] may still map, and the rights that all entered leaves have in common.
pub(crate) struct Tally {
    pub left: u32,
    pub prot: Prot,
}

impl Tally {
    pub fn of(pages: u32) -> Tally {
        Tally { left: pages, prot: Prot::all() }
    }
}

/// One step of [`refill`], under one pin. Maps up to `step` pages of each layer in the range `rest` of `entry`, all in
/// one table page. `private` selects anonymous layers, else files and shared memory. Returns the address at which to
/// continue.
pub(crate) fn refill_some<M: Machine>(
    space: &Space<M>,
    entry: &Entry<M>,
    rest: VirtRange,
    private: bool,
    step: usize,
    tally: &mut Tally,
    pin: &Pinned<'_>,
) -> Result<u64, Attempt<M>> {
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
    let on = |va| FaultContext {
        vm: space.vm(),
        pmap: space.pmap(),
        entry,
        condemned: space.condemned(),
        va,
        access: Access::Read,
    };
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

/// The keys of the object's pages that a layer shows in `window`.
fn keys<M: Machine>(b: &Backing<M>, window: VirtRange) -> Option<Range<u64>> {
    let shown = b.range().intersect(&window)?;
    let start = b.key(shown.start);
    Some(start..start + (shown.bytes() >> PAGE_SHIFT))
}
