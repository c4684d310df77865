//! Models of paging: swap slots against faults, the cleaner against stores, the end of a write against the removal of
//! its page.

use super::*;
use crate::machine::FrameBytesMut;
use crate::paging::memory_store::FaultPlan;
use crate::phys::page::FrameKind;
use crate::sleep::MaySleep;

pub(super) const PROMPT: FaultPlan =
    FaultPlan { delay: 0, pause: 0, fail_reads: 0, fail_writes: 0, window: 0, seed: 1 };
/// The plan of a store whose requests wait until a thread polls.
pub(super) const LATE: FaultPlan = FaultPlan { window: 2, ..PROMPT };
pub(super) const SLOTS: u64 = 4;

/// A world in which the space maps the file's first page at the first address, shared, and which has swap.
fn with_swap(plan: FaultPlan) -> World {
    let w = World::showing(true);
    w.boot.swap(SLOTS, plan);
    w
}

fn finish(w: &World) {
    w.boot.vm.finish_io(&mut MaySleep::here());
}

/// A page is paged out and read back by a fault while another CPU removes it.
fn page_in_against_discard() {
    let w = with_swap(PROMPT);
    w.file.page_out(0..1);
    beside(
        w,
        |w| {
            let _any = load(&w.space, 0);
        },
        |w| w.file.discard(0..1),
        |w, _, _| {
            finish(w);
            w.file.discard(0..1);
            assert_eq!(w.boot.vm.swap().free(), SLOTS, "a swap slot is lost");
        },
    );
}

protocol! {
    a_swap_slot_is_freed_once_by_page_in_or_discard = page_in_against_discard, Some(2);
    ReplaceNotAtomic: "freed twice";
}

/// Two CPUs fault on the same page, which is in swap.
fn page_in_against_page_in() {
    let w = with_swap(PROMPT);
    w.file.page_out(0..1);
    beside(
        w,
        |w| load(&w.space, 0),
        |w| load(&w.space, 0),
        |w, a, b| {
            assert_eq!((a, b), (Some(7), Some(7)));
            assert_eq!(
                w.translations().iter().find(|t| Some(**t) != w.frame()),
                None,
                "one page was read into two frames"
            );
            let vm = w.boot.vm;
            let pages = vm.frame_span().filter(|n| vm.page(Pfn(*n)).kind() == FrameKind::Object).count();
            assert_eq!(pages, 1, "one page was read into two frames");
        },
    );
}

protocol! {
    a_page_in_swap_is_read_once = page_in_against_page_in, Some(2);
    ReplaceNotAtomic: "one page was read into two frames";
}

/// A system call reads a missing page of a file on a disk while another call writes to it. The page is written back and
/// evicted. Under shuttle only, because loom takes minutes.
#[cfg(shuttle)]
fn read_against_written_and_evicted() {
    let w = World::new();
    let file = ObjectRef::with_pager(w.boot.vm, crate::testing::memory_store(4, PROMPT), 4 * PAGE_SIZE).unwrap();
    let (read, written) = (file.clone(), file.clone());
    let first = |file: &ObjectRef<TestMachine>| {
        let mut seen = 0;
        let n = file.read(0, 1, &mut |b| -> Result<_, ()> {
            seen = b.get(0).unwrap();
            Ok(1)
        });
        assert_eq!(n, Ok(1));
        seen
    };
    beside(
        w,
        move |_| first(&read),
        move |_| {
            let nine = &mut |b: FrameBytesMut<'_>| -> Result<_, ()> {
                b.fill(9);
                Ok(b.len())
            };
            assert_eq!(written.write(0, 1, nine), Ok(1));
            written.page_out(0..1);
        },
        |_, seen, ()| {
            assert!(matches!(seen, 0 | 9));
            assert_eq!(first(&file), 9, "a write is lost to a read");
            drop(file);
        },
    );
}

protocol! {
    #[cfg(shuttle)]
    a_call_reads_no_page_older_than_the_written_data = read_against_written_and_evicted, Some(2);
}

/// A CPU that has a writable translation stores while the page is written out and evicted.
fn clean_against_store() {
    let w = with_swap(PROMPT);
    set_cpu(1);
    store(&w.space, 0, 8);
    set_cpu(0);
    beside(
        w,
        |w| store(&w.space, 0, 9),
        |w| w.file.page_out(0..1),
        |w, _, _| {
            w.file.page_out(0..1);
            assert_eq!(load(&w.space, 0), Some(9), "a store is lost");
        },
    );
}

protocol! {
    a_store_is_never_lost_to_the_cleaner = clean_against_store, Some(2);
    ReadBeforeProtect: "a store is lost";
}

/// A dirty page is unmapped while the cleaner writes it. The leaf's dirty bit is credited to the page in the middle of
/// the cleaning.
fn clean_against_unmap() {
    let w = with_swap(PROMPT);
    // A second page, so that the index has a leaf, which has tags.
    let seven = &mut |b: FrameBytesMut<'_>| -> Result<_, ()> {
        b.fill(7);
        Ok(b.len())
    };
    w.file.write(PAGE_SIZE, 1, seven).unwrap();
    w.file.page_out(1..2);
    set_cpu(1);
    store(&w.space, 0, 8);
    set_cpu(0);
    beside(
        w,
        |w| w.space.unmap(ONE).unwrap(),
        |w| w.file.page_out(0..1),
        |w, _, _| assert_eq!(w.file.check(true).err(), None, "a dirty page has no tag"),
    );
}

protocol! {
    a_page_credited_while_it_is_cleaned_is_found_by_its_tag = clean_against_unmap, Some(2);
    CreditUntagged: "a dirty page has no tag";
}

/// The cleaner writes a page while a system call stores into it through its frame.
fn clean_against_write() {
    let w = with_swap(PROMPT);
    beside(
        w,
        |w| {
            w.file
                .write(0, 1, &mut |b| -> Result<_, ()> {
                    // The source may be slow to supply its bytes.
                    thread::yield_now();
                    b.fill(9);
                    Ok(1)
                })
                .unwrap();
        },
        |w| w.file.page_out(0..1),
        |w, _, _| {
            w.file.page_out(0..1);
            assert_eq!(load(&w.space, 0), Some(9), "a write is lost");
        },
    );
}

protocol! {
    a_write_through_the_frame_is_never_lost_to_the_cleaner = clean_against_write, Some(2);
    NoHoldCheck: "a write is lost";
}

/// A file on a disk whose first two pages are resident. With one page the index would have no leaf node, and so no
/// tags.
fn on_disk(w: &World) -> (ObjectRef<TestMachine>, &'static crate::paging::memory_store::MemoryStore) {
    let disk = crate::testing::memory_store(2, PROMPT);
    let file = ObjectRef::with_pager(w.boot.vm, disk, 2 * PAGE_SIZE).unwrap();
    [0, PAGE_SIZE].iter().for_each(|at| write(&file, *at, 8));
    file.write_back(0..2).unwrap();
    (file, disk)
}

fn write(file: &ObjectRef<TestMachine>, at: u64, value: u8) {
    let bytes = &mut |b: FrameBytesMut<'_>| -> Result<_, ()> {
        b.fill(value);
        Ok(b.len())
    };
    file.write(at, 1, bytes).unwrap();
}

/// One CPU pages a page out while another CPU, which has written to it, syncs the file to the disk.
fn clean_against_write_back() {
    let w = World::new();
    let (file, disk) = on_disk(&w);
    write(&file, 0, 9);
    let before = disk.counts().writes;
    let theirs = file.clone();
    beside(
        w,
        move |_| crate::reclaim::evict::write_out(&theirs, 0..1, &mut MaySleep::here()),
        move |_| {
            file.write_back(0..1).unwrap();
            assert!(disk.counts().writes > before, "the store is not on the disk");
            file
        },
        |_, _, _| (),
    );
}

protocol! {
    written_back_data_is_on_disk_though_the_cleaner_began = clean_against_write_back, Some(2);
    UntagEarly: "the store is not on the disk";
}

/// A CPU stores through a mapping, after a call of the file's pager. Another CPU writes to the page and syncs it to the
/// disk.
fn hook_against_write_back() {
    let w = World::new();
    let (file, disk) = on_disk(&w);
    let object = Some((&file, 0));
    let shown = MapRequest { object, shared: true, ..MapRequest::private(Placement::Fixed(page(0)), PAGE_SIZE) };
    w.space.map(&shown).unwrap();
    drop(shown);
    let before = disk.counts().writes;
    beside(
        w,
        |w| w.space.fault(page(0), Access::Write).unwrap(),
        move |_| {
            write(&file, 0, 9);
            file.write_back(0..1).unwrap();
            (file, disk.counts().writes > before)
        },
        |_, _, (_, written)| assert!(written, "the store is not on the disk"),
    );
}

protocol! {
    written_back_data_is_on_disk_though_a_hook_asked_the_pager = hook_against_write_back, Some(2);
    #[cfg(shuttle)]
    HookTagsLate: "the store is not on the disk";
}

/// A fault calls the pager of a file for a page that is removed during the call. The frame is reused for another file.
fn hook_against_another_identity() {
    let w = World::new();
    let (file, _) = on_disk(&w);
    let object = Some((&file, 0));
    let shown = MapRequest { object, shared: true, ..MapRequest::private(Placement::Fixed(page(0)), PAGE_SIZE) };
    w.space.map(&shown).unwrap();
    drop(shown);
    w.show(1, 1, Prot::READ);
    beside(
        w,
        |w| w.space.fault(page(0), Access::Write),
        move |w| {
            file.discard(0..1);
            let _zero = load(&w.space, 1);
            file
        },
        |w, _, _| assert_eq!(w.file.check(true).err(), None, "a dirty page has no tag"),
    );
}

protocol! {
    the_leave_of_a_pager_does_not_dirty_a_reused_page = hook_against_another_identity, Some(2);
    BusyAnyIdentity: "a dirty page has no tag";
}

/// Two CPUs write to one page, and one of them syncs it to the disk.
fn write_against_write_back() {
    let w = World::new();
    let (file, disk) = on_disk(&w);
    let before = disk.counts().writes;
    let theirs = file.clone();
    beside(
        w,
        move |_| write(&theirs, 1, 7),
        move |_| {
            write(&file, 0, 9);
            file.write_back(0..1).unwrap();
            assert!(disk.counts().writes > before, "the store is not on the disk");
            file
        },
        |_, _, _| (),
    );
}

protocol! {
    written_back_data_is_on_disk_though_a_write_made_it_dirty = write_against_write_back, Some(2);
    TagAfterDirty: "the store is not on the disk";
}

/// A fault for a store has found a page that is removed before the fault marks it dirty. The frame is reused for
/// another file.
fn dirty_against_another_identity() {
    let w = World::private(1);
    w.boot.swap(SLOTS, PROMPT);
    store(&w.space, 0, 8);
    w.space.advise(ONE, crate::map::Advice::PageOut).unwrap();
    finish(&w);
    assert_eq!(load(&w.space, 0), Some(8), "a page read in is clean");
    w.show(1, 1, Prot::READ);
    beside(
        w,
        |w| store(&w.space, 0, 9),
        |w| {
            w.space.advise(ONE, crate::map::Advice::DontNeed).unwrap();
            let _zero = load(&w.space, 1);
        },
        |w, _, _| assert_eq!(w.file.check(true).err(), None, "a dirty page has no tag"),
    );
}

protocol! {
    a_page_that_has_become_anothers_is_not_made_dirty = dirty_against_another_identity, Some(2);
    DirtyAnyIdentity: "a dirty page has no tag";
}

/// A page is removed while it is written out.
fn completion_against_discard() {
    let w = with_swap(LATE);
    crate::reclaim::evict::write_out(&w.file, 0..1, &mut MaySleep::here());
    beside(
        w,
        finish,
        |w| w.file.discard(0..1),
        |w, _, _| {
            finish(w);
            assert_eq!(w.boot.vm.swap().free(), SLOTS, "a swap slot is lost");
            assert_eq!(w.frame(), None);
        },
    );
}

protocol! {
    the_slot_of_a_write_is_freed_when_its_page_was_removed = completion_against_discard, Some(2);
    NoGoneCheck: "a swap slot is lost";
}

/// C2: asserts that every writable translation, in the tables or in a TLB, maps a page that is marked dirty.
fn assert_writable_is_dirty(w: &World) {
    let pmap = w.space.pmap();
    let mut leaves = pmap.peek(page(0)).into_iter().chain(pmap.cached(page(0)));
    let kept = |pfn| w.boot.vm.page(pfn).state().dirty();
    assert!(leaves.all(|l| !l.prot.contains(Prot::WRITE) || kept(l.pfn)), "a clean page is writable");
}

/// The cleaner cleans a page while a fault makes it writable. The fault found the page dirty before it was cleaned.
fn clean_against_fault() {
    let w = with_swap(PROMPT);
    beside(
        w,
        |w| w.space.fault(page(0), Access::Write),
        |w| {
            crate::reclaim::evict::write_out(&w.file, 0..1, &mut MaySleep::here());
            finish(w);
        },
        |w, _, _| assert_writable_is_dirty(w),
    );
}

protocol! {
    a_writable_page_is_dirty = clean_against_fault, Some(2);
    DirtyAsFound: "a clean page is writable";
}

/// `MADV_FREE` marks a page while a CPU that has a writable translation stores. A store after the mark must be kept.
fn free_against_store() {
    let w = World::private(1);
    w.boot.swap(SLOTS, PROMPT);
    set_cpu(1);
    store(&w.space, 0, 8);
    set_cpu(0);
    beside(
        w,
        |w| store(&w.space, 0, 9),
        |w| w.space.advise(ONE, crate::map::Advice::Free).unwrap(),
        |w, _, _| {
            assert_writable_is_dirty(w);
            set_cpu(1);
            store(&w.space, 0, 7);
            set_cpu(0);
            w.space.advise(ONE, crate::map::Advice::PageOut).unwrap();
            finish(w);
            assert_eq!(load(&w.space, 0), Some(7), "a store into a lazily freed page is lost");
        },
    );
}

protocol! {
    a_store_revives_a_freed_page = free_against_store, Some(2);
    FreeLeavesWritable: "a clean page is writable";
}
