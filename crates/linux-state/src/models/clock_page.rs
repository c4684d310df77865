//! The clock page: reads by a program against a change. The reader of this model takes the steps of the code in
//! `image.s`, whose loads keep their order on x86.

use crate::machine::UserClock;
use crate::vdso::page::ClockPage;
use quire_sync::atomic::{AtomicU64, Ordering};
use quire_sync::explore::{Arc, thread};
use quire_sync::protocol;

/// The start and the epoch of the clock that a program computes. `None`: the program makes a system call.
fn read(page: &ClockPage) -> Option<(u64, u64)> {
    let of = Ordering::Acquire;
    let count = page.count.load(of);
    if count % 2 == 1 || page.clocks.load(of) & 1 == 0 {
        return None;
    }
    let words = (page.start.load(of), page.offsets[0].load(of));
    (page.count.load(of) == count).then_some(words)
}

fn clock(n: u64) -> Option<UserClock> {
    Some(UserClock { start: n, ns_per_tick: 1, epoch: n })
}

/// A program makes a system call for the time and then computes it, while another thread sets the time.
fn reads_against_change() {
    let shared = Arc::new((ClockPage::default(), AtomicU64::new(1)));
    shared.0.publish(clock(1));
    let theirs = shared.clone();
    let setter = thread::spawn(move || {
        let (page, system) = &*theirs;
        page.change(|| {
            system.store(2, Ordering::Relaxed);
            clock(2)
        });
    });
    let (page, system) = &*shared;
    let called = system.load(Ordering::Acquire);
    if let Some((start, epoch)) = read(page) {
        assert_eq!(start, epoch, "a program computes a clock of two settings");
        assert!(epoch >= called, "a program computes the old clock behind the new one");
    }
    setter.join().unwrap();
    assert_eq!(read(page), Some((2, 2)), "a clock that was set is not the programs'");
}

protocol! {
    a_program_computes_the_clock_of_one_setting = reads_against_change, Some(3);
    ClockUncounted: "a program computes";
    #[cfg(loom)]
    ClockWriteNoFence: "a program computes";
    #[cfg(loom)]
    ClockCountEarly: "a program computes";
}
