//! Models of a condemned space (`map/ops/reap.rs`): its memory is reaped while its threads fault, fork, unmap, page out
//! and exit.

use super::paging::{PROMPT, SLOTS};
use super::*;
use crate::map::Advice;
use crate::phys::page::FrameKind;
use crate::sleep::MaySleep;

fn reap(space: &Space<TestMachine>) {
    space.condemn();
    space.reap();
}

/// The number of pages of all objects. The file of [`World::new`] has one.
fn pages(boot: &Boot) -> usize {
    let vm = boot.vm;
    vm.finish_io(&mut MaySleep::here());
    vm.frame_span().filter(|n| vm.page(Pfn(*n)).kind() == FrameKind::Object).count()
}

/// Asserts that the reaped space has no page and no translation, and that no frame was freed twice.
fn assert_reaped(w: &World) {
    assert_eq!(pages(&w.boot), 1, "a reaped space has a page");
    assert!(w.translations().is_empty(), "a reaped space has a translation");
    assert_eq!(w.boot.vm.frames().check(), Ok(()), "a frame is on two lists or on none");
}

/// A world with one page of private memory that was stored into.
fn stored() -> World {
    let w = World::private(1);
    store(&w.space, 0, 1);
    w
}

/// A thread touches memory for the first time. No table page exists yet, so the reap skips the range.
fn reap_against_first_touch() {
    beside(World::private(1), |w| store(&w.space, 0, 2), |w| reap(&w.space), |w, (), ()| assert_reaped(w));
}

protocol! {
    a_fault_enters_no_page_into_a_condemned_reaped_space = reap_against_first_touch, Some(3);
    CondemnedUnlooked: "a reaped space has a page";
    #[cfg(loom)]
    NoFenceAfterCondemn: "a reaped space has a page";
}

/// A thread loads from a page that is reaped. It never reaches a free frame, and never reads zeroes.
fn reap_against_access() {
    let w = stored();
    w.space.pmap().forget(w.boot.vm, page(0));
    beside(
        w,
        |w| {
            let kind = |pfn| w.boot.vm.page(pfn).kind();
            let seen = load(&w.space, 0);
            (seen, w.space.pmap().access(page(0), Access::Read, kind))
        },
        |w| reap(&w.space),
        |w, (seen, kind), ()| {
            assert!(matches!(seen, None | Some(1 | 0xd5)), "a condemned space shows zeroes");
            assert!(matches!(kind, None | Some(FrameKind::Object)), "a free frame is reached through a TLB");
            assert_reaped(w);
        },
    );
}

protocol! {
    memory_that_a_condemned_space_reaches_is_not_free = reap_against_access, Some(2);
    CondemnedUnlooked;
    ReapsBeforeFlush: "a free frame is reached through a TLB";
}

/// A thread forks. The child has all of the memory, or the fork fails.
fn reap_against_fork() {
    beside(
        stored(),
        |w| w.space.fork().ok(),
        |w| reap(&w.space),
        |w, child, ()| {
            if let Some(child) = child {
                assert_eq!(load(&child, 0), Some(1), "the child of a condemned space has other memory");
                drop(child);
                // The shared layer belongs to the parent alone now, and is destroyed with the mapping.
                w.space.unmap(ONE).unwrap();
            }
            assert_reaped(w);
        },
    );
}

protocol! {
    a_child_of_a_condemned_space_has_its_memory_or_is_not_made = reap_against_fork, Some(2);
    ForkLooksEarly: "the child of a condemned space has other memory";
    ReapsShared: "the child of a condemned space has other memory";
}

/// A child of the space exits while the space is reaped. Only this child shares layers with the space. If it has
/// exited, the reap may free them.
fn reap_against_exit_of_child() {
    let w = stored();
    let child = w.space.fork().unwrap();
    beside(
        w,
        move |_| drop(child),
        |w| reap(&w.space),
        |w, (), ()| {
            w.space.unmap(ONE).unwrap();
            assert_reaped(w);
        },
    );
}

protocol! {
    memory_that_a_condemned_space_shared_goes_once = reap_against_exit_of_child, Some(2);
}

/// A thread unmaps memory while it is reaped.
fn reap_against_unmap() {
    beside(stored(), |w| w.space.unmap(ONE).unwrap(), |w| reap(&w.space), |w, (), ()| assert_reaped(w));
}

protocol! {
    a_page_unmapped_while_its_space_is_reaped_is_freed_once = reap_against_unmap, Some(2);
}

/// The last thread of the space drops its handle while the space is reaped.
fn reap_against_exit() {
    let w = stored();
    // Shared memory stays when the space is reaped, and is freed with the space.
    let shared = ObjectRef::anonymous(w.boot.vm, 1).unwrap();
    let r = MapRequest { shared: true, ..MapRequest::private(Placement::Fixed(page(1)), PAGE_SIZE) };
    w.space.map(&MapRequest { object: Some((&shared, 0)), ..r }).unwrap();
    store(&w.space, 1, 2);
    drop(shared);
    let World { space, file, boot } = w;
    let (boot, left) = (Arc::new(boot), space.clone());
    let kept = boot.clone();
    let t = thread::spawn(move || {
        set_cpu(1);
        drop(left);
        drop(kept);
    });
    set_cpu(0);
    reap(&space);
    drop(space);
    t.join().unwrap();
    set_cpu(0);
    // The file must not outlive the system, even if an assertion below fails.
    drop(file);
    assert_eq!(pages(&boot), 0, "a space that ended has a page");
    assert_eq!(boot.vm.frames().check(), Ok(()), "a frame is on two lists or on none");
}

protocol! {
    a_space_ends_once_if_its_threads_or_its_reaper_leave_last = reap_against_exit, Some(2);
    HandleNotAtomic: "a space that ended has a page";
}

/// Pageout writes the page to swap and evicts it while its space is reaped.
fn reap_against_page_out() {
    let w = stored();
    w.boot.swap(SLOTS, PROMPT);
    beside(
        w,
        |w| w.space.advise(ONE, Advice::PageOut).unwrap(),
        |w| reap(&w.space),
        |w, (), ()| {
            assert_reaped(w);
            assert_eq!(w.boot.vm.swap().free(), SLOTS, "a reaped space has a swap slot");
        },
    );
}

protocol! {
    a_page_paged_out_while_its_space_is_reaped_is_freed_once = reap_against_page_out, Some(2);
    BusyNotAtomic;
    NoGoneCheck;
}

/// A thread reads the page back from swap while its space is reaped.
fn reap_against_page_in() {
    let w = stored();
    w.boot.swap(SLOTS, PROMPT);
    w.space.advise(ONE, Advice::PageOut).unwrap();
    w.boot.vm.finish_io(&mut MaySleep::here());
    beside(
        w,
        |w| load(&w.space, 0),
        |w| reap(&w.space),
        |w, seen, ()| {
            assert!(matches!(seen, None | Some(1 | 0xd5)), "a condemned space shows zeroes");
            assert_reaped(w);
            assert_eq!(w.boot.vm.swap().free(), SLOTS, "a reaped space has a swap slot");
        },
    );
}

protocol! {
    a_page_read_in_while_its_space_is_reaped_is_freed_once = reap_against_page_in, Some(2);
    CondemnedUnlooked;
    ReplaceNotAtomic;
}
