//! A model of `membarrier`: one thread calls `membarrier`, which makes a barrier on another CPU. The program on that
//! CPU has no barrier of its own.

use crate::process::barrier::interrupt_all;
use quire_sync::atomic::{AtomicU64, Ordering, fence_full};
use quire_sync::explore::{Arc, Parker, thread};
use quire_sync::protocol;

/// Two words of a program, and the other CPU's interrupt.
struct Shared {
    words: [AtomicU64; 2],
    /// The number of interrupts sent (`kicked`) and handled (`taken`). Both are read by read-modify-write operations,
    /// because these see the newest value.
    kicked: AtomicU64,
    taken: AtomicU64,
    /// The other CPU idles here after its program has ended.
    parker: Parker,
}

impl Shared {
    /// Handles a pending interrupt between two instructions of the program. Handling is a full barrier on that CPU.
    fn poll(&self, taken: &mut bool) {
        if !*taken && self.kicked.fetch_add(0, Ordering::Relaxed) != 0 {
            fence_full();
            self.taken.fetch_add(1, Ordering::Relaxed);
            *taken = true;
        }
    }
}

/// Each of two threads stores into one word and then loads the other word. Only one thread calls a barrier in between.
fn store_and_load_against_barrier() {
    let zero = || AtomicU64::new(0);
    let (words, parker) = ([zero(), zero()], Parker::new());
    let shared = Arc::new(Shared { words, kicked: zero(), taken: zero(), parker });
    let theirs = shared.clone();
    let other = thread::spawn(move || {
        let mut taken = false;
        theirs.poll(&mut taken);
        theirs.words[0].store(1, Ordering::Relaxed);
        theirs.poll(&mut taken);
        let seen = theirs.words[1].load(Ordering::Relaxed);
        while !taken {
            theirs.poll(&mut taken);
            if !taken {
                theirs.parker.park();
            }
        }
        seen
    });
    shared.words[1].store(1, Ordering::Relaxed);
    let count = |_| shared.taken.fetch_add(0, Ordering::Relaxed);
    let kick = |_| {
        shared.kicked.fetch_add(1, Ordering::Relaxed);
        shared.parker.unpark();
    };
    interrupt_all(|| 1..2, count, kick);
    let seen = shared.words[0].load(Ordering::Relaxed);
    assert_eq!(other.join().unwrap() | seen, 1, "neither thread sees the other's store");
}

protocol! {
    #[cfg(loom)]
    a_barrier_orders_the_stores_and_loads_of_other_cpus = store_and_load_against_barrier, Some(3);
    BarrierNoFence: "neither thread sees the other's store";
    BarrierUnawaited: "neither thread sees the other's store";
    BarrierNoLastFence: "neither thread sees the other's store";
}
