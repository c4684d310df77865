//! Production's timer wheel, on a machine whose CPUs run nothing but timer interrupts.

use super::Timers;
use quire_task::{Irq, Machine, Scheduler, Thread, ThreadRef, Timer};
use std::alloc::{Layout, alloc_zeroed};
use std::cell::Cell;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering::Relaxed};

/// The machine: a clock that is set, one CPU whose interrupts are masked or not, no threads that run.
#[derive(Default)]
pub struct Still {
    clock: AtomicU64,
    /// The deadline of the CPU's timer; `u64::MAX`: none.
    armed: AtomicU64,
    masked: AtomicBool,
    /// The thread that counts as running, if any.
    current: AtomicPtr<Thread<Still>>,
}

impl Still {
    /// A scheduler on such a machine. It lives until the process ends.
    pub fn scheduler() -> (&'static Still, &'static Scheduler<Still>) {
        // One thread acts as the machine: it is the one CPU.
        quire_sync::hooks::threads::set_cpu(0);
        let machine: &'static Still = Box::leak(Box::default());
        let layout = Layout::from_size_align(Scheduler::<Still>::bytes(1), 128).expect("a CPU has a size");
        // SAFETY: not a layout of no bytes.
        let memory = NonNull::new(unsafe { alloc_zeroed(layout) }).expect("the host has memory for a CPU");
        // SAFETY: fresh, of the required size and alignment, never freed; boxed before anything is spawned.
        let scheduler = unsafe { Scheduler::new(machine, memory, 1) };
        (machine, Box::leak(Box::new(scheduler)))
    }
}

// SAFETY: nothing interrupts and nothing runs: handlers are called where the caller wants them, and no thread is
// switched to.
unsafe impl Machine for Still {
    type Context = ();
    type Payload = ();

    fn now(&self) -> u64 {
        self.clock.load(Relaxed)
    }
    fn arm(&self, deadline: Option<u64>) {
        self.armed.store(deadline.unwrap_or(u64::MAX), Relaxed);
    }
    fn kick(&self, _cpu: usize) {}
    fn halt(&self) {}
    fn mask(&self) -> Irq {
        // A CPU's own flag: no other CPU reads or sets it.
        let was = self.masked.load(Relaxed);
        self.masked.store(true, Relaxed);
        if was { Irq::Off } else { Irq::On }
    }
    fn restore(&self, was: Irq) {
        self.masked.store(was == Irq::Off, Relaxed);
    }
    fn current(&self) -> *const Thread<Self> {
        self.current.load(Relaxed)
    }
    unsafe fn set_current(&self, thread: *const Thread<Self>) {
        self.current.store(thread.cast_mut(), Relaxed);
    }
    fn set_pending(&self, _pending: bool) {}
    unsafe fn switch(&self, _prev: &Thread<Self>, _next: &Thread<Self>) {
        unreachable!("no thread runs on this machine");
    }
    fn reap(&self, thread: ThreadRef<Self>) {
        drop(thread);
    }
}

/// A timer with its number.
#[repr(C)]
struct Numbered {
    timer: Timer,
    number: u32,
}

/// Called with the number of a timer; returns its next deadline.
type Fired = dyn FnMut(u32) -> Option<u64>;

std::thread_local! {
    /// The function that is called for each expired timer while time is advanced.
    static FIRED: Cell<Option<NonNull<Fired>>> = const { Cell::new(None) };
}

unsafe fn expire(timer: NonNull<Timer>, _now: u64) -> Option<u64> {
    // SAFETY: every timer of a wheel is the first field of a `Numbered`, which lives on.
    let number = unsafe { timer.cast::<Numbered>().as_ref() }.number;
    // SAFETY: set by `advance` alone, for as long as its target is borrowed there.
    FIRED.get().and_then(|mut fired| unsafe { fired.as_mut()(number) })
}

/// Production's wheel of one CPU.
pub struct Wheel {
    machine: &'static Still,
    scheduler: &'static Scheduler<Still>,
    timers: &'static [Numbered],
}

impl Wheel {
    /// With so many timers.
    pub fn new(timers: usize) -> Wheel {
        let (machine, scheduler) = Still::scheduler();
        let timers = (0..timers as u32).map(|number| Numbered { timer: Timer::new(expire), number });
        Wheel { machine, scheduler, timers: timers.collect::<Vec<_>>().leak() }
    }
}

impl Timers for Wheel {
    fn arm(&mut self, timer: u32, deadline: u64) {
        // SAFETY: leaked: it stays in place and alive.
        unsafe { self.scheduler.arm(&self.timers[timer as usize].timer, deadline) }
    }

    fn cancel(&mut self, timer: u32) {
        self.scheduler.cancel(&self.timers[timer as usize].timer);
    }

    fn advance(&mut self, now: u64, fired: &mut dyn FnMut(u32) -> Option<u64>) {
        let fired = NonNull::from(fired);
        // SAFETY: only the lifetime is changed; the pointer is removed below, before its target's borrow ends.
        let fired = unsafe {
            std::mem::transmute::<NonNull<dyn FnMut(u32) -> Option<u64> + '_>, NonNull<dyn FnMut(u32) -> Option<u64>>>(
                fired,
            )
        };
        FIRED.set(Some(fired));
        loop {
            // As the hardware does: the interrupt comes at the programmed time, or late.
            let due = self.machine.armed.load(Relaxed);
            if due > now {
                break;
            }
            self.machine.clock.store(due.max(self.machine.clock.load(Relaxed)), Relaxed);
            self.scheduler.timer_interrupt();
        }
        self.machine.clock.store(now, Relaxed);
        FIRED.set(None);
    }
}
