//! The production timer wheel, on a machine whose CPUs do nothing but handle timer interrupts.

use super::Timers;
use quire_task::{Irq, Machine, Scheduler, Thread, ThreadRef, Timer};
use std::alloc::{Layout, alloc_zeroed};
use std::cell::Cell;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering::Relaxed};

/// A machine without threads: a clock that the test sets, and one CPU with an interrupt mask.
#[derive(Default)]
pub struct Still {
    clock: AtomicU64,
    /// The deadline of the CPU's timer; `u64::MAX` if the timer is not set.
    armed: AtomicU64,
    masked: AtomicBool,
    /// The thread that the CPU counts as its current thread, if any.
    current: AtomicPtr<Thread<Still>>,
}

impl Still {
    /// Makes a scheduler on a new machine. Both are never freed.
    pub fn scheduler() -> (&'static Still, &'static Scheduler<Still>) {
        // The calling thread acts as the machine's one CPU.
        quire_sync::hooks::threads::set_cpu(0);
        let machine: &'static Still = Box::leak(Box::default());
        let layout = Layout::from_size_align(Scheduler::<Still>::bytes(1), 128).expect("a CPU has a size");
        // SAFETY: the layout's size is not zero.
        let memory = NonNull::new(unsafe { alloc_zeroed(layout) }).expect("the host has memory for a CPU");
        // SAFETY: the memory is fresh, has the required size and alignment, and is never freed. The scheduler is boxed
        // before any thread is spawned.
        let scheduler = unsafe { Scheduler::new(machine, memory, 1) };
        (machine, Box::leak(Box::new(scheduler)))
    }
}

// SAFETY: no interrupt occurs by itself, because the caller calls the handlers. No thread runs, so none is switched to.
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
        // The mask belongs to the one CPU, so no other CPU reads or writes it.
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

/// A timer, with its number.
#[repr(C)]
struct Numbered {
    timer: Timer,
    number: u32,
}

/// A function that is called with the number of an expired timer. It returns the timer's next deadline, if any.
type Fired = dyn FnMut(u32) -> Option<u64>;

std::thread_local! {
    /// The function that is called for each expired timer while time is advanced.
    static FIRED: Cell<Option<NonNull<Fired>>> = const { Cell::new(None) };
}

unsafe fn expire(timer: NonNull<Timer>, _now: u64) -> Option<u64> {
    // SAFETY: every timer of a wheel is the first field of a `Numbered`, which is never freed.
    let number = unsafe { timer.cast::<Numbered>().as_ref() }.number;
    // SAFETY: only `advance` sets `FIRED`, and it does so only while it borrows the function.
    FIRED.get().and_then(|mut fired| unsafe { fired.as_mut()(number) })
}

/// The production timer wheel of one CPU.
pub struct Wheel {
    machine: &'static Still,
    scheduler: &'static Scheduler<Still>,
    timers: &'static [Numbered],
}

impl Wheel {
    /// Makes a wheel and this number of timers.
    pub fn new(timers: usize) -> Wheel {
        let (machine, scheduler) = Still::scheduler();
        let timers = (0..timers as u32).map(|number| Numbered { timer: Timer::new(expire), number });
        Wheel { machine, scheduler, timers: timers.collect::<Vec<_>>().leak() }
    }
}

impl Timers for Wheel {
    fn arm(&mut self, timer: u32, deadline: u64) {
        // SAFETY: the timers are leaked, so they are never moved or freed.
        unsafe { self.scheduler.arm(&self.timers[timer as usize].timer, deadline) }
    }

    fn cancel(&mut self, timer: u32) {
        self.scheduler.cancel(&self.timers[timer as usize].timer);
    }

    fn advance(&mut self, now: u64, fired: &mut dyn FnMut(u32) -> Option<u64>) {
        let fired = NonNull::from(fired);
        // SAFETY: only the lifetime is changed. The pointer is removed below, before the function's borrow ends.
        let fired = unsafe {
            std::mem::transmute::<NonNull<dyn FnMut(u32) -> Option<u64> + '_>, NonNull<dyn FnMut(u32) -> Option<u64>>>(
                fired,
            )
        };
        FIRED.set(Some(fired));
        loop {
            // The loop acts as the hardware: the interrupt occurs at the programmed time, or later.
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
