//! The watchdog: a CPU becomes busy while its watcher, another CPU, turns its own watchdog tick off.

use crate::watch::{Watch, Watching};
use quire_sync::explore::{Arc, thread};
use quire_sync::protocol;

const HOW: Watching = Watching { period: 100, soft: 4, hard: 4 };

/// The watcher is idle, and turns its tick off while its ward (the CPU that it watches) becomes busy.
fn busy_against_standing_down() {
    let [ward, watcher] = [(); 2].map(|()| Arc::new(Watch::new()));
    watcher.start(100);
    let (cpu, other) = (ward.clone(), watcher.clone());
    let busy = thread::spawn(move || cpu.becomes_busy(200, Some(&other)));
    watcher.tick(&HOW, 100, 1, true, Some(&ward));
    let interrupts = busy.join().unwrap();
    assert!(interrupts || watcher.due() != u64::MAX, "a busy CPU has no watcher");
}

protocol! {
    a_cpu_that_becomes_busy_has_a_watcher = busy_against_standing_down, Some(3);
    StandDownNoLook: "a busy CPU has no watcher";
    #[cfg(loom)]
    BusyNoFence: "a busy CPU has no watcher";
}
