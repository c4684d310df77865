//! Prints the stacks of all CPUs, which it gets by non-maskable interrupts.
//!
//! An interrupted CPU writes its registers and return addresses into its own snapshot. It neither prints nor acquires a
//! lock, because it may have been interrupted while it held that lock. The CPU that sent the interrupts prints the
//! snapshots.

use crate::cpu;
use crate::machine::Machine;
use crate::report::backtrace;
use crate::thread::context::Context;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use quire_drivers::local_apic;
use quire_linux_state::UserRegs as Regs;
use quire_task::Thread;

/// The most return addresses in a snapshot.
const DEPTH: usize = 24;

/// A snapshot of a CPU's state. The CPU's NMI handler writes it after `asked` is raised and before it sets `answered`.
#[repr(align(128))]
struct Snapshot {
    /// The number of requests for a snapshot. `answered` is its value at the last answer.
    asked: AtomicU32,
    answered: AtomicU32,
    /// The watchdog has sent a probe that was not served yet.
    probed: AtomicBool,
    user: AtomicBool,
    interrupts: AtomicBool,
    /// The CPU holds the lock `WANTED`. Always false without debug assertions.
    holds: AtomicBool,
    preemption: AtomicU32,
    tid: AtomicU32,
    at: AtomicU64,
    calls: [AtomicU64; DEPTH],
    len: AtomicUsize,
    /// The registers of the code that the last timer interrupt has interrupted. Valid only during that interrupt.
    timer: AtomicPtr<Regs>,
}

static SNAPSHOTS: [Snapshot; cpu::MAX] = [const {
    Snapshot {
        asked: AtomicU32::new(0),
        answered: AtomicU32::new(0),
        probed: AtomicBool::new(false),
        user: AtomicBool::new(false),
        interrupts: AtomicBool::new(false),
        holds: AtomicBool::new(false),
        preemption: AtomicU32::new(0),
        tid: AtomicU32::new(0),
        at: AtomicU64::new(0),
        calls: [const { AtomicU64::new(0) }; DEPTH],
        len: AtomicUsize::new(0),
        timer: AtomicPtr::new(core::ptr::null_mut()),
    }
}; cpu::MAX];

/// Whether a CPU is asking the other CPUs for snapshots. Only one CPU asks at a time: a second CPU does not ask.
static ASKING: AtomicBool = AtomicBool::new(false);
/// The address of the lock whose holder is searched; 0 for none.
static WANTED: AtomicUsize = AtomicUsize::new(0);

/// The stack that is printed for the reporting CPU itself.
pub enum Mine<'a> {
    /// The stack of the code that its timer interrupt has interrupted.
    Interrupted,
    /// The caller's stack.
    Here,
    /// The caller's stack, after the stack of this sleeping thread.
    Sleeper(&'a Thread<Machine>),
}

/// Stores the address of the registers of the code that the present timer interrupt has interrupted.
#[inline(always)]
pub fn interrupted_by_timer(regs: &Regs) {
    SNAPSHOTS[cpu::id()].timer.store(core::ptr::from_ref(regs).cast_mut(), Ordering::Relaxed);
}

/// Sends `cpu` a probe.
pub fn probe(cpu: usize) {
    SNAPSHOTS[cpu].probed.store(true, Ordering::Release);
    local_apic::send_nmi(cpu::apic_id(cpu));
}

/// The interrupt flag (IF) of RFLAGS.
const INTERRUPTS: u64 = 1 << 9;

/// Serves an NMI. Returns whether a request or a probe caused it.
pub fn nmi(regs: &Regs) -> bool {
    let mine = &SNAPSHOTS[cpu::id()];
    let probed = mine.probed.swap(false, Ordering::AcqRel);
    if probed && let Some(scheduler) = crate::machine::try_scheduler() {
        scheduler.probed(regs.rflags & INTERRUPTS == 0);
    }
    let asked = mine.asked.load(Ordering::Acquire);
    let question = asked != mine.answered.load(Ordering::Relaxed);
    if question {
        mine.take(Some(regs));
        mine.answered.store(asked, Ordering::Release);
    }
    probed || question
}

impl Snapshot {
    /// Takes a snapshot of this CPU, of the code with the registers `regs`, or of the caller if `regs` is `None`.
    fn take(&self, regs: Option<&Regs>) {
        let user = regs.is_some_and(|r| r.cs & 3 != 0);
        self.user.store(user, Ordering::Relaxed);
        self.interrupts.store(regs.is_some_and(|r| r.rflags & INTERRUPTS != 0), Ordering::Relaxed);
        self.preemption.store(cpu::preempt_count(), Ordering::Relaxed);
        self.tid.store(tid(), Ordering::Relaxed);
        self.at.store(regs.map_or(0, |r| r.rip), Ordering::Relaxed);
        self.holds.store(holds(WANTED.load(Ordering::Relaxed)), Ordering::Relaxed);
        let mut len = 0;
        let mut note = |address| {
            if let Some(place) = self.calls.get(len) {
                place.store(address, Ordering::Relaxed);
                len += 1;
            }
        };
        match regs {
            Some(_) if user => {}
            Some(regs) => backtrace::each_return_address(regs.rbp, &mut note),
            None => backtrace::each_caller(&mut note),
        }
        self.len.store(len, Ordering::Relaxed);
    }

    fn print(&self, cpu: usize) {
        let at = self.at.load(Ordering::Relaxed);
        let (tid, preemption) = (self.tid.load(Ordering::Relaxed), self.preemption.load(Ordering::Relaxed));
        if self.user.load(Ordering::Relaxed) {
            log!("CPU {cpu}: thread {tid}, in user mode at {at:#x}");
            return;
        }
        let masked = if self.interrupts.load(Ordering::Relaxed) { "on" } else { "masked" };
        match tid {
            0 => {
                log!("CPU {cpu}: a thread of the kernel's own, interrupts {masked}, preemption off {preemption} times")
            }
            _ => log!("CPU {cpu}: thread {tid}, in the kernel, interrupts {masked}, preemption off {preemption} times"),
        }
        if at != 0 {
            backtrace::log_address(at);
        }
        let len = self.len.load(Ordering::Relaxed);
        self.calls.iter().take(len).for_each(|call| backtrace::log_address(call.load(Ordering::Relaxed)));
    }
}

/// The id of the program's thread that this CPU runs; 0 for a kernel thread.
fn tid() -> u32 {
    // SAFETY: the running thread is alive, and this CPU does not switch to another one during the interrupt.
    let thread = unsafe { (cpu::current_thread() as *const Thread<Machine>).as_ref() };
    thread.and_then(|thread| thread.payload().as_ref()).map_or(0, quire_linux_state::Thread::tid)
}

#[cfg(debug_assertions)]
fn holds(lock: usize) -> bool {
    // SAFETY: the list belongs to this CPU, and no other code changes it during the interrupt.
    lock != 0 && unsafe { (*cpu::block()).held.has(lock) }
}
#[cfg(not(debug_assertions))]
fn holds(_lock: usize) -> bool {
    false
}

/// The longest wait for an answer, in nanoseconds. A virtual CPU that is descheduled answers when it runs again.
const PATIENCE: u64 = 1_000_000_000;

/// The numbers of the CPUs that have started, without this one.
fn others() -> impl Iterator<Item = usize> {
    let me = cpu::id();
    (0..cpu::count()).filter(move |c| *c != me && !cpu::block_of(*c).is_null() && cpu::apic_id(*c) != cpu::NOT_ARRIVED)
}

/// Asks all other CPUs for a snapshot, and calls `f` with a bitmap of the CPUs that did not answer. `lock` is the lock
/// whose holder is searched, or 0. Returns `None` without a call if another CPU is asking.
fn ask<R>(lock: usize, f: impl FnOnce(u64) -> R) -> Option<R> {
    if ASKING.swap(true, Ordering::Acquire) {
        return None;
    }
    WANTED.store(lock, Ordering::Relaxed);
    let mut silent = 0u64;
    for other in others() {
        SNAPSHOTS[other].asked.fetch_add(1, Ordering::AcqRel);
        local_apic::send_nmi(cpu::apic_id(other));
        silent |= 1 << other;
    }
    let end = crate::cpu::clock::now() + PATIENCE;
    while silent != 0 && crate::cpu::clock::now() < end {
        for other in others() {
            let theirs = &SNAPSHOTS[other];
            if theirs.answered.load(Ordering::Acquire) == theirs.asked.load(Ordering::Relaxed) {
                silent &= !(1 << other);
            }
        }
        core::hint::spin_loop();
    }
    let r = f(silent);
    ASKING.store(false, Ordering::Release);
    Some(r)
}

/// Asks all other CPUs which of them holds `lock`. Returns `None` if a CPU does not answer, because it does not run at
/// this moment. Returns `Some(None)` if the holder is not known.
pub fn holder(lock: usize) -> Option<Option<usize>> {
    let found = |silent| (silent == 0).then(|| others().find(|c| SNAPSHOTS[*c].holds.load(Ordering::Relaxed)));
    ask(lock, found).flatten()
}

/// Logs the stack of a sleeping thread.
pub fn print_sleeper(thread: &Thread<Machine>) {
    // SAFETY: the context lives as long as the thread. If the thread wakes up at this moment, it overwrites the frame.
    // The read data is then useless, but it is still memory of the stack.
    let frame = unsafe { Context::saved_frame(thread.context()) };
    if let Some(frame) = frame.filter(|_| !thread.is_running()) {
        backtrace::backtrace(frame);
    }
}

/// Prints the stacks of all CPUs.
pub fn print_all(mine: &Mine<'_>) {
    let me = &SNAPSHOTS[cpu::id()];
    match mine {
        // SAFETY: the caller runs in the timer interrupt that has stored this pointer, so the registers are still on
        // the stack.
        Mine::Interrupted => me.take(unsafe { me.timer.load(Ordering::Relaxed).as_ref() }),
        Mine::Here | Mine::Sleeper(_) => me.take(None),
    }
    let printed = ask(0, |silent| {
        me.print(cpu::id());
        for other in others() {
            match silent & 1 << other {
                0 => SNAPSHOTS[other].print(other),
                _ => log!("CPU {other} gives no answer"),
            }
        }
    });
    if printed.is_none() {
        me.print(cpu::id());
        log!("another CPU prints the others' stacks");
        // Wait for the printing CPU to finish, because the caller may be about to panic. A panic would stop that CPU.
        let end = crate::cpu::clock::now() + 5 * PATIENCE;
        while ASKING.load(Ordering::Relaxed) && crate::cpu::clock::now() < end {
            core::hint::spin_loop();
        }
    }
}
