//! Models of the queues' protocol, on the production functions: the removal of a page against moves of the page.

use super::*;
use crate::phys::frames::{Fill, For};
use crate::testing::{Boot, TestMachine, boot};
use crate::vm::Vm;
use quire_sync::explore::{Arc, thread};
use quire_sync::hooks::threads::set_cpu;
use quire_sync::protocol;

/// A new page of an object that has no index, in CPU 0's batch.
fn page(vm: &'static Vm<TestMachine>) -> &'static Page {
    let pfn = vm.alloc_frame(Fill::Any, For::User).unwrap().into_pfn();
    let page = vm.page(pfn);
    vm.assume_page(page, 64, pfn.0, State::VALID);
    vm.enqueue_new(page);
    page
}

/// CPU 0 removes a page while CPU 1 runs `theirs` on the queues. At the end the page is nowhere.
fn goes_while(drained: bool, theirs: fn(&'static Vm<TestMachine>)) {
    goes(drained, |vm, page| vm.release_page(page), theirs);
}

/// As [`goes_while`], but the page is removed in a batch of one page.
fn goes_in_a_batch_while(drained: bool, theirs: fn(&'static Vm<TestMachine>)) {
    let together = |vm: &'static Vm<TestMachine>, page: &Page| {
        let mut batch = crate::object::batch::Batch::new();
        batch.push(page.index(), vm.pfn_of_page(page));
        vm.release_pages(&batch, crate::object::batch::Subset::of(&batch));
    };
    goes(drained, together, theirs);
}

fn goes(drained: bool, release: fn(&'static Vm<TestMachine>, &Page), theirs: fn(&'static Vm<TestMachine>)) {
    set_cpu(0);
    let world: Arc<Boot> = Arc::new(boot(160, 2));
    let vm = world.vm;
    let gone = page(vm);
    if drained {
        vm.drain_queue_batches();
    }
    let other = world.clone();
    let t = thread::spawn(move || {
        set_cpu(1);
        theirs(other.vm);
    });
    set_cpu(0);
    release(vm, gone);
    t.join().unwrap();
    set_cpu(0);
    vm.drain_queue_batches();
    assert_eq!(Queue::ALL.map(|q| vm.queues().len(q)), [0; 3], "a freed page is in a queue");
    assert_eq!(vm.queues().check(true), Ok(()), "the links are wrong");
}

fn drain_against_release() {
    goes_while(false, |vm| vm.drain_queue_batches());
}

fn drain_against_release_in_a_batch() {
    goes_in_a_batch_while(false, |vm| vm.drain_queue_batches());
}

/// Moves the pages of the active queue to the inactive queue.
fn take(vm: &'static Vm<TestMachine>) {
    let mut taken = None;
    for part in vm.queues().parts(Queue::Active) {
        part.take(1, &mut |p| taken = Some(p));
    }
    vm.queues().put_all(taken, Queue::Inactive);
}

fn take_against_release() {
    goes_while(true, take);
}

fn take_against_release_in_a_batch() {
    goes_in_a_batch_while(true, take);
}

fn move_against_release() {
    goes_while(true, |vm| {
        let first = vm.frame_span().map(Pfn).find(|p| QueuePlace::of(vm.page(*p).state()) != QueuePlace::Nowhere);
        if let Some(pfn) = first {
            vm.queues().requeue(vm.page(pfn));
            vm.queues().move_to(vm.page(pfn), Queue::Laundry);
        }
    });
}

protocol! {
    a_page_that_goes_while_its_batch_is_drained_is_in_no_queue = drain_against_release, Some(3);
    DrainTrustsBatch: "a freed page is in a queue";
}
protocol! {
    a_page_that_goes_while_it_is_taken_is_unlinked_once = take_against_release, Some(3);
    TakeUnlinksLeaving: "a freed page is in a queue";
    // Only loom finds this mutant reliably; shuttle needs luck.
    #[cfg(loom)]
    LinksAfterState: "the links are wrong";
}
protocol! {
    a_page_that_goes_while_it_moves_is_in_no_queue = move_against_release, Some(3);
    RequeueUnlooked: "the links are wrong";
}
protocol! {
    pages_removed_together_during_a_drain_are_in_no_queue = drain_against_release_in_a_batch, Some(3);
    LeavesWhereItWas: "a freed page is in a queue";
}
protocol! {
    pages_removed_together_while_taken_are_unlinked_once = take_against_release_in_a_batch, Some(3);
    LeavesWhereItWas: "a freed page is in a queue";
}
