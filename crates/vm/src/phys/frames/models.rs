//! Models of the frame allocator's protocols, on the production functions: magazines, depots, blocks and the stock.

use super::*;
use crate::testing::{Boot, boot_in_domains};
use crate::vm::Vm;
use quire_sync::explore::{Arc, thread};
use quire_sync::hooks::threads::set_cpu;
use quire_sync::protocol;

fn system(domains: usize) -> Arc<Boot> {
    set_cpu(0);
    let config = Config { reserve: Some(4), zero_stock: 2, poison: false, ..Config::default() };
    Arc::new(boot_in_domains(160, 2, domains, config))
}

/// Runs `theirs` on CPU 1 beside `mine` on CPU 0. Then checks that each frame is accounted for, and that the number of
/// free frames is as before.
fn beside(
    world: Arc<Boot>,
    theirs: impl FnOnce(&'static Vm<crate::testing::TestMachine>) + Send + 'static,
    mine: impl FnOnce(&'static Vm<crate::testing::TestMachine>),
    free: u64,
) {
    let other = world.clone();
    let t = thread::spawn(move || {
        set_cpu(1);
        theirs(other.vm);
    });
    set_cpu(0);
    mine(world.vm);
    t.join().unwrap();
    set_cpu(0);
    assert_eq!(world.vm.frames().check(), Ok(()), "a frame is on two lists or on none");
    assert_eq!(world.vm.frames().free(), free, "frames are lost");
}

/// A block is allocated while its buddy is freed.
fn take_against_put() {
    let world = system(1);
    let vm = world.vm;
    let all = vm.frames().free();
    let pair = vm.alloc_run(1, For::Kernel).unwrap().into_pfn();
    // SAFETY: this test owns the run of order 1, which consists of these two frames.
    let (low, high) = unsafe { (Frame::from_pfn(pair), Frame::from_pfn(Pfn(pair.0 + 1))) };
    vm.return_run(low, 0);
    beside(
        world,
        move |vm| vm.return_run(high, 0),
        |vm| {
            let frame = vm.alloc_run(0, For::Kernel).unwrap();
            vm.return_run(frame, 0);
        },
        all,
    );
}

/// A CPU allocates and frees more than a chain while another CPU drains all magazines.
fn use_against_drain() {
    let world = system(1);
    let all = world.vm.frames().free();
    beside(
        world,
        |vm| {
            let taken: Vec<Frame> = (0..3).map(|_| vm.alloc_frame(Fill::Any, For::User).unwrap()).collect();
            taken.into_iter().for_each(|f| vm.return_frame(f));
        },
        |vm| vm.drain_magazines(),
        all,
    );
}

/// A CPU of the other domain frees frames while a CPU of their own domain allocates some.
fn frees_go_home() {
    let world = system(2);
    let all = world.vm.frames().free();
    let taken: Vec<Frame> = (0..3).map(|_| world.vm.alloc_frame(Fill::Any, For::User).unwrap()).collect();
    beside(
        world,
        |vm| taken.into_iter().for_each(|f| vm.return_frame(f)),
        |vm| {
            let frame = vm.alloc_frame(Fill::Any, For::Kernel).unwrap();
            vm.return_frame(frame);
        },
        all,
    );
}

/// An idle CPU zeroes frames for its stock while another CPU drains the stock.
fn stock_against_drain() {
    let world = system(1);
    let all = world.vm.frames().free();
    beside(
        world,
        |vm| {
            vm.idle_zero(1);
            let frame = vm.alloc_frame(Fill::Zeroed, For::User).unwrap();
            vm.return_frame(frame);
        },
        |vm| vm.drain_caches(),
        all,
    );
}

protocol! {
    a_block_that_is_being_taken_is_not_joined_with_its_buddy = take_against_put, Some(2);
    TakenStaysFree: "a frame is on two lists or on none";
}
protocol! {
    no_frame_is_lost_between_a_magazine_and_a_drain = use_against_drain, Some(2);
    DrainInTwoHolds: "a frame is on two lists or on none";
}
protocol! {
    frames_freed_far_away_come_home = frees_go_home, Some(2);
}
protocol! {
    no_frame_is_lost_between_the_stock_and_a_drain = stock_against_drain, Some(2);
    DrainInTwoHolds: "a frame is on two lists or on none";
}
