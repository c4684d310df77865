//! Paging out and in: swap slots against faults, the cleaner against stores, the end of a write against whoever frees the page.

use super::*;
use crate::memory_store::FaultPlan;
use crate::sleep::MaySleep;

pub(super) const PROMPT: FaultPlan =
    FaultPlan { delay: 0, pause: 0, fail_reads: 0, fail_writes: 0, window: 0, seed: 1 };
/// A request waits until somebody polls.
const LATE: FaultPlan = FaultPlan { window: 2, ..PROMPT };
pub(super) const SLOTS: u64 = 4;

/// The file's first page at the first address, shared, and somewhere for it to go.
fn with_swap(plan: FaultPlan) -> World {
    let w = World::showing(true);
    w.boot.swap(SLOTS, plan);
    w
}

fn finish(w: &World) {
    w.boot.vm.finish_io(&mut MaySleep::here());
}

/// Page to Swap and back: a fault reads the page while another CPU takes it away.
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

#[test]
fn a_swap_slot_is_freed_once_whoever_gets_there_first() {
    holds(2, page_in_against_discard);
}

/// Two CPUs want the same page, which is in swap.
fn page_in_against_page_in() {
    let w = with_swap(PROMPT);
    w.file.page_out(0..1);
    beside(
        w,
        |w| load(&w.space, 0),
        |w| load(&w.space, 0),
        |w, a, b| {
            assert_eq!((a, b), (Some(7), Some(7)));
            assert_eq!(w.translations().iter().find(|t| Some(**t) != w.frame()), None, "two pages of one");
        },
    );
}

#[test]
fn a_page_in_swap_is_read_once() {
    holds(2, page_in_against_page_in);
}

/// The cleaner: a CPU that has a writable translation stores while the page is written out and taken.
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

#[test]
fn a_store_is_never_lost_to_the_cleaner() {
    holds(2, clean_against_store);
}
#[test]
#[should_panic(expected = "a store is lost")]
fn a_cleaner_that_reads_before_the_flush_is_found_out() {
    fails(2, Mutant::ReadBeforeProtect, clean_against_store);
}

/// The cleaner against a copy from a program, which stores through the frame.
fn clean_against_write() {
    let w = with_swap(PROMPT);
    beside(
        w,
        |w| {
            w.file
                .write(0, 1, &mut |b| -> Result<_, ()> {
                    // Where the source is slow to give its bytes.
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

#[test]
fn a_write_through_the_frame_is_never_lost_to_the_cleaner() {
    holds(2, clean_against_write);
}
#[test]
#[should_panic(expected = "a write is lost")]
fn a_cleaner_that_does_not_look_at_holds_is_found_out() {
    fails(2, Mutant::NoHoldCheck, clean_against_write);
}

/// A write is under way when the page goes.
fn completion_against_discard() {
    let w = with_swap(LATE);
    crate::steal::write_out(&w.file, 0..1, &mut MaySleep::here());
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

#[test]
fn the_slot_of_a_write_whose_page_has_gone_is_freed() {
    holds(2, completion_against_discard);
}
#[test]
#[should_panic(expected = "a swap slot is lost")]
fn a_completion_that_does_not_see_the_page_go_is_found_out() {
    fails(2, Mutant::NoGoneCheck, completion_against_discard);
}
