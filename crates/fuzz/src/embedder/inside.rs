//! Reads structures that only `unsafe` functions return: entries, indexes, descriptors of frames, and the shards of
//! queues (lists with their own locks). The structures also have safe functions, and this module calls those.

use super::world::V;
use quire_hosted::Hosted;
use quire_vm::map::Space;
use quire_vm::object::index::{Cursor, Slot};
use quire_vm::object::{ObjectRef, SlotFilter};
use quire_vm::phys::frames::Frame;
use quire_vm::phys::page::Page;
use quire_vm::tlb::flush::{FlushSet, Obligation};
use quire_vm::types::{Pfn, Queue};
use quire_vm::{DirectMap, Machine, PAGE_SIZE, Pmap, Table, VirtRange};
use std::ops::Range;

type Tables = <Hosted as Machine>::Pmap;

/// Reads the entry that covers `va`, as a fault finds it.
pub fn entry(space: &Space<Hosted>, va: u64) {
    let pin = space.vm().epoch().pin();
    // SAFETY: the pin is of the space's system.
    let Some(entry) = (unsafe { space.entry_at(va, &pin) }) else { return };
    let front = entry.front();
    let (key, object) = (front.key(va & !(PAGE_SIZE - 1)), front.object());
    assert!(object.is_none_or(|object| object.is_of(space.vm())), "page {key} is of another system");
}

/// Reads the pages `keys` of an object.
pub fn pages(object: &ObjectRef<Hosted>, keys: Range<u64>) {
    let vm = object.vm();
    let pin = vm.epoch().pin();
    // SAFETY: this call only reads, under a pin of the object's system.
    let index = unsafe { object.page_index() };
    let _racing = (index.get(keys.start, &pin), index.is_empty(&pin));
    let _racing = (index.first(keys.start, keys.end, &pin), index.count(keys.clone(), &pin));
    let mut cursor = Cursor::over(keys.clone());
    for (key, slot) in cursor.resume(index, &pin).take(4) {
        assert!(keys.contains(&key), "{slot:?} at {key} lies outside of {keys:?}");
    }
    let mut range = object.range(keys.clone(), SlotFilter::BOTH);
    // SAFETY: the pin is of the object's system.
    for found in unsafe { range.walk_under(&pin) }.take(4) {
        assert!(keys.contains(&found.key()), "{} lies outside of {keys:?}", found.key());
        if let Slot::Page(pfn) = found.slot() {
            // SAFETY: an index names the frame, so it is RAM in use. This call only reads.
            let page = unsafe { vm.descriptor(pfn) };
            assert_eq!(vm.pfn_of_page(page), pfn);
            describe(page);
        }
    }
}

fn describe(page: &Page) {
    let state = page.state();
    let _racing = (page.kind(), page.next(), page.words().len(), page.spare(), state.busy(), state.dirty());
}

/// Reads the page tables of a space, from `range` on. `spare` is a frame of the space's system.
pub fn tables(space: &Space<Hosted>, range: VirtRange, spare: Option<Frame>) {
    let (vm, user) = (space.vm(), <Tables as Pmap<Hosted>>::USER);
    let pages = VirtRange { start: range.start & !(PAGE_SIZE - 1), end: range.end & !(PAGE_SIZE - 1) };
    let Some(range) = pages.intersect(&user).filter(|range| !range.is_empty()) else {
        return spare.into_iter().for_each(|frame| vm.free_frame(frame).expect("the frame is the system's"));
    };
    // SAFETY: this function enters and removes no leaf, and the handle outlives the call.
    let tables = unsafe { space.page_tables() };
    let _racing = (Pmap::<Hosted>::is_running(tables), Pmap::<Hosted>::is_running_elsewhere(tables, 0));
    tables.restart_peak(vm);
    Pmap::<Hosted>::inherit(tables, vm, tables, range.len());
    let _racing = (tables.counted_pages(vm), tables.pages(vm));
    tables.recount(vm, range.len());
    Pmap::<Hosted>::disinherit(tables);
    let _racing = (tables.peak_pages(vm), tables.table_pages(vm), tables.resident_pages(vm));
    let _racing = (tables.unflushed_above(vm, range.start), Pmap::<Hosted>::take_ran(tables));
    let _root_goes_where_nothing_is_left = tables.drop_root(vm);
    tables.check(vm, false).map(drop).unwrap_or_else(|broken| panic!("{broken}"));
    if let Some(mut table) = tables.next_table(vm, VirtRange { end: user.end, ..range }) {
        let span = table.span();
        let _racing = (table.live(), table.unflushed(), table.is_store_protected());
        if table.shows_zeroes() {
            table.note_zeroes();
        }
        if let Some(va) = table.next_present(span.start, span.end) {
            assert!(table.get(va).is_some(), "{va:#x} is present, and has no leaf");
            assert!(table.count_in(VirtRange { start: va, end: va + PAGE_SIZE }, Pfn(u64::MAX)) <= 1);
            let _racing = table.take_accessed(va);
        }
    }
    {
        let pin = vm.epoch().pin();
        if let Ok(table) = tables.table(vm, range.start, &pin) {
            assert!(table.span().contains(range.start));
        }
    }
    let mut owed = Obligation::new(vm, tables).pruning();
    assert!(owed.is_empty());
    owed.owe_range(range);
    spare.into_iter().for_each(|frame| owed.own(frame));
    let _flushed = owed.discharge();
    let mut all = FlushSet::new();
    all.add_all();
    tables.flush(vm, &all);
    tables.prune(vm, range);
    <Tables as Pmap<Hosted>>::reclaim_tables(vm);
}

/// Removes some pages from a shard of a queue, as pageout does, and puts them into another queue.
pub fn requeue(vm: V, from: Queue, to: Queue, n: usize) {
    let mut taken = Vec::new();
    // SAFETY: each page that is removed is put into a queue below. Nothing else is done with it.
    if let Some(part) = unsafe { vm.queues().parts_of(from) }.next() {
        part.take(n, &mut |page| taken.push(page));
    }
    taken.into_iter().for_each(|page| vm.put_in_queue(page, to));
}

/// Frees a frame by its number.
pub fn free_by_number(vm: V, frame: Frame) {
    // SAFETY: the caller owns the frame of this system, and does not use it any more.
    unsafe { vm.free_pfn(frame.into_pfn()) }
}

/// A map of RAM at any address, of which nothing is read.
pub fn direct_map(start: u64) -> DirectMap {
    // SAFETY: the caller only computes addresses.
    unsafe { DirectMap::new(start) }
}
