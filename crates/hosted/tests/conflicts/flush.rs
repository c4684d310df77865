//! Counts the acquisitions of the page queues' locks while a large file is written back and discarded. A walk over an
//! object must not lock them for each page.

use quire_hosted::{Cpu, Hosted, Settings};
use quire_sync::Rank;
use quire_sync::record::{Record, scope};
use quire_vm::check::Level;
use quire_vm::paging::memory_store::{FaultPlan, MemoryStore};
use quire_vm::{ObjectRef, PAGE_SIZE};
use std::ptr::NonNull;

const PAGES: u64 = 2048;
/// The number of pages in one leaf of an index. These pages leave their queue together.
const TOGETHER: usize = 64;

fn takes(record: &Record) -> usize {
    let by_rank = record.lock_takes_by_rank();
    [Rank::QUEUE, Rank::QUEUE_BATCH].iter().filter_map(|rank| by_rank.get(&Some(*rank))).sum()
}

#[test]
fn no_queue_is_locked_during_a_walk_of_mappings() {
    let vm = Hosted::boot(Settings { cpus: 1, frames: 8 * PAGES, check: Level::Never, ..Settings::default() }).unwrap();
    let _cpu = Cpu::attach(vm, 0).unwrap();
    let bytes = vec![0u8; (PAGES * PAGE_SIZE) as usize].leak();
    // SAFETY: the memory is leaked, so nothing else uses it.
    let store = unsafe { MemoryStore::new(NonNull::from(bytes).cast(), PAGES, FaultPlan::default()) };
    let store = Box::leak(Box::new(store));
    vm.poll_with(store).unwrap();
    let file = ObjectRef::with_pager(vm, store, PAGES * PAGE_SIZE).unwrap();
    for page in 0..PAGES {
        file.write(page * PAGE_SIZE, 1, &mut |b| -> Result<_, ()> { Ok(b.len()) }).unwrap();
    }
    let (written, record) = scope(|| file.write_back(0..PAGES));
    assert_eq!(written, Ok(PAGES));
    assert_eq!(takes(&record), 0, "a written page stays in its queue");
    let (_, record) = scope(|| file.discard(0..PAGES));
    assert_eq!(file.resident(), 0);
    let batches = PAGES as usize / TOGETHER;
    assert!((1..=batches).contains(&takes(&record)), "the pages of a leaf leave together: {}", takes(&record));
    let longest = record.longest_hold(Rank::QUEUE);
    assert!((1..=20 * TOGETHER).contains(&longest), "a part is held for the pages of a leaf: {longest} accesses");
}
