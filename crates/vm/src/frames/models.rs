//! Models of the frame allocator's protocols, on the production functions: magazines, depots, blocks and the stock.

use super::*;
use crate::testing::{Boot, boot_in_domains};
use quire_sync::explore::{Arc, thread};
use quire_sync::hooks::threads::set_cpu;
use quire_sync::protocol;

fn system(domains: usize) -> Arc<Boot> {
    set_cpu(0);
    let config = Config { reserve: Some(4), zero_stock: 2, poison: false, ..Config::default() };
    Arc::new(boot_in_domains(160, 2, domains, config))
}

/// Runs `theirs` on CPU 1 beside `mine` on CPU 0; then every frame is accounted for, and as many are free as before.
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

/// A block is taken while its buddy is freed.
fn take_against_put() {
    let world = system(1);
    let vm = world.vm;
    let all = vm.frames().free();
    let pair = vm.alloc_run(1, For::Kernel).unwrap().into_pfn();
    // SAFETY: the two frames of the run just taken.
    let (low, high) = unsafe { (Frame::from_pfn(pair), Frame::from_pfn(Pfn(pair.0 + 1))) };
    vm.free_run(low, 0);
    beside(
        world,
        move |vm| vm.free_run(high, 0),
        |vm| {
            let frame = vm.alloc_run(0, For::Kernel).unwrap();
            vm.free_run(frame, 0);
        },
        all,
    );
}

/// A CPU takes and frees, more than a chain, while another brings everything home.
fn use_against_drain() {
    let world = system(1);
    let all = world.vm.frames().free();
    beside(
        world,
        |vm| {
            let taken: Vec<Frame> = (0..3).map(|_| vm.alloc_frame(Fill::Any, For::User).unwrap()).collect();
            taken.into_iter().for_each(|f| vm.free_frame(f));
        },
        |vm| vm.drain_magazines(),
        all,
    );
}

/// Frames of one domain are freed by the other's CPU while their own takes some.
fn frees_go_home() {
    let world = system(2);
    let all = world.vm.frames().free();
    let taken: Vec<Frame> = (0..3).map(|_| world.vm.alloc_frame(Fill::Any, For::User).unwrap()).collect();
    beside(
        world,
        |vm| taken.into_iter().for_each(|f| vm.free_frame(f)),
        |vm| {
            let frame = vm.alloc_frame(Fill::Any, For::Kernel).unwrap();
            vm.free_frame(frame);
        },
        all,
    );
}

/// An idle CPU zeroes for its stock while another drains it.
fn stock_against_drain() {
    let world = system(1);
    let all = world.vm.frames().free();
    beside(
        world,
        |vm| {
            vm.idle_zero(1);
            let frame = vm.alloc_frame(Fill::Zeroed, For::User).unwrap();
            vm.free_frame(frame);
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

/// A CPU with promises that it made, and what it finds promised while it has so many.
fn promise(frames: &Frames, live: &mut u64) -> bool {
    let made = frames.promise();
    *live += u64::from(made);
    assert!(frames.promised() >= *live, "a promise is not counted");
    made
}

/// Two CPUs make promises and take them back.
fn promise_against_promise() {
    let world = system(1);
    let mine = |frames: &Frames, first: u64| {
        let mut live = 0;
        (0..first).for_each(|_| assert!(promise(frames, &mut live)));
        (1..first).for_each(|_| frames.unpromise());
        1
    };
    let other = world.clone();
    let t = thread::spawn(move || {
        set_cpu(1);
        mine(other.vm.frames(), 3)
    });
    set_cpu(0);
    let live = mine(world.vm.frames(), 5);
    let live = live + t.join().unwrap();
    set_cpu(0);
    let frames = world.vm.frames();
    assert_eq!(frames.promised(), live + frames.credits(), "a promise is lost");
}

protocol! {
    promises_are_those_of_threads_and_those_that_lie_ready = promise_against_promise, Some(3);
    PromisesNotAtomic: "a promise is";
    CreditsStay: "a promise is";
}

/// Takes frames, until `left` more than the floor are left.
fn leave(vm: &'static Vm<crate::testing::TestMachine>, left: u64) {
    let f = vm.frames();
    while f.outside() > f.floor() + left {
        let _kept = vm.alloc_run(0, For::Kernel).unwrap().into_pfn();
    }
    assert_eq!(f.outside(), f.floor() + left);
}

/// Two CPUs want the last promise that can be kept.
fn last_promise() {
    let world = system(1);
    leave(world.vm, 1);
    let other = world.clone();
    let t = thread::spawn(move || {
        set_cpu(1);
        other.vm.frames().promise()
    });
    set_cpu(0);
    let mine = world.vm.frames().promise();
    let theirs = t.join().unwrap();
    set_cpu(0);
    assert!(!mine || !theirs, "more is promised than there is");
    assert!(mine || theirs, "the last promise is refused");
    assert!(!world.vm.frames().promise(), "more is promised than there is");
}

protocol! {
    the_last_promise_is_made_once = last_promise, Some(3);
    PromiseUnlooked: "more is promised than there is";
    PromiseUnlocked: "the last promise is refused";
}

/// A CPU takes the last frame above the floor for the kernel, another one promises it.
fn promise_against_take() {
    let world = system(1);
    leave(world.vm, 1);
    let other = world.clone();
    let t = thread::spawn(move || {
        set_cpu(1);
        other.vm.take_run(0, For::Kernel).map(Frame::into_pfn)
    });
    set_cpu(0);
    let promised = world.vm.frames().promise();
    let taken = t.join().unwrap();
    set_cpu(0);
    let f = world.vm.frames();
    assert!(f.outside() >= f.floor(), "more is promised than there is");
    assert!(promised || taken.is_some(), "what is left goes to none");
}

protocol! {
    what_is_promised_is_taken_by_none = promise_against_take, Some(3);
    PromiseUnlocked: "more is promised than there is";
}
