//! Provokes an incident, to test the watchdog, for the word `lockup=KIND` on the command line.

use crate::cpu;
use crate::thread::kthread::kernel_thread;
use core::hint::black_box;
use core::sync::atomic::{AtomicBool, Ordering};
use quire_sync::{Mutex, Rank, SpinLock, preempt_off};

static LOCK: SpinLock<()> = SpinLock::new(Rank::FILE, ());
static HELD: AtomicBool = AtomicBool::new(false);
static NEVER_FREE: Mutex<[u16; 3]> = Mutex::new([0; 3]);
/// The first program's thread must sleep for ever.
static HANGS: AtomicBool = AtomicBool::new(false);

/// Starts the incident `kind`: `soft`, `hard`, `spin`, `hung`, or `pass`, which is a soft lockup that ends.
pub fn start(kind: &[u8]) {
    let begin = |main| {
        kernel_thread("provoked", main, 0);
    };
    match kind {
        b"soft" => begin(never_schedules),
        b"pass" => begin(schedules_late),
        b"hard" => begin(takes_no_interrupts),
        b"spin" => {
            begin(holds_a_lock);
            begin(wants_the_lock);
        }
        b"hung" => HANGS.store(true, Ordering::Relaxed),
        _ => log!("the word lockup= takes soft, pass, hard, spin or hung"),
    }
}

#[inline(never)]
fn turn(turns: u64) {
    (0..turns).for_each(|n| {
        black_box(n);
    });
}

#[inline(never)]
extern "C" fn never_schedules(_: usize) -> ! {
    let _pinned = preempt_off();
    loop {
        turn(1000);
    }
}

#[inline(never)]
extern "C" fn schedules_late(_: usize) -> ! {
    let end = crate::cpu::clock::now() + 3_500_000_000;
    {
        let _pinned = preempt_off();
        while crate::cpu::clock::now() < end {
            turn(1000);
        }
    }
    log!("the provoked lockup is over");
    crate::machine::scheduler().exit()
}

#[inline(never)]
extern "C" fn takes_no_interrupts(_: usize) -> ! {
    cpu::interrupts_disable();
    loop {
        turn(1000);
    }
}

#[inline(never)]
extern "C" fn holds_a_lock(_: usize) -> ! {
    let _guard = LOCK.lock();
    HELD.store(true, Ordering::Release);
    loop {
        turn(10);
        // An emulator may run all CPUs on one host thread. The hint makes it switch to the CPU that spins on the lock.
        core::hint::spin_loop();
    }
}

#[inline(never)]
extern "C" fn wants_the_lock(_: usize) -> ! {
    while !HELD.load(Ordering::Acquire) {
        core::hint::spin_loop();
    }
    drop(LOCK.lock());
    crate::machine::scheduler().exit()
}

/// Makes the first program's thread sleep for ever if `lockup=hung` requests it. Called before its first instruction.
#[inline(never)]
pub fn sleep_where_asked() {
    if HANGS.swap(false, Ordering::Relaxed) {
        core::mem::forget(NEVER_FREE.lock());
        drop(NEVER_FREE.lock());
    }
}
