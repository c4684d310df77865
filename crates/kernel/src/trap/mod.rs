//! Traps: faults, exceptions, interrupts and system calls, from the entry in assembly to the layer that serves them.
//!
//! This module uses the Linux layer, the scheduler, shootdowns and the watchdog. Only boot and `personality::start` use
//! it.
//!
//! Every entry from user mode first accounts the time since the last exit as user time. Every exit to user mode ends in
//! [`leave`], which delivers signals, handles preemption, and accounts the time in the kernel.

pub mod entry;

use crate::cpu::interrupt::{self, Interrupt, RESCHEDULE, SHOOTDOWN, SPURIOUS, TIMER};
use crate::cpu::{self, clock, registers};
use crate::machine::{Machine, scheduler};
use crate::memory::{shootdown, user};
use crate::personality::{linux, try_linux};
use crate::report::{trace, watchdog};
use crate::thread::context::{depart, depart_preempted};
use quire_drivers::local_apic;
use quire_linux_state::Served;
use quire_linux_state::UserRegs as Regs;
use quire_task::Thread;
use quire_vm::Access;

/// Bits of a page fault's error code: the access was a store, a reserved bit was set, or an instruction fetch.
const STORE: u64 = 1 << 1;
const RESERVED: u64 = 1 << 3;
const FETCH: u64 = 1 << 4;

/// The vector of the invalid-opcode exception.
const INVALID_OPCODE: u64 = 6;

/// The interrupt flag (IF) of RFLAGS.
const INTERRUPTS: u64 = 1 << 9;

#[inline(always)]
fn from_user(regs: &Regs) -> bool {
    regs.cs & 3 != 0
}

/// The thread that was interrupted in user mode, or made a system call.
#[inline(always)]
fn thread() -> &'static Thread<Machine> {
    // SAFETY: a trap from user mode belongs to the running thread, which is alive while it runs. The reference does not
    // outlive the trap.
    unsafe { &*(cpu::current_thread() as *const Thread<Machine>) }
}

#[inline(always)]
fn enter() {
    thread().enter_kernel(clock::ticks());
}

/// Does all work before a return to user mode, and returns with interrupts masked. Interrupts are on while a signal is
/// delivered, because the delivery may fault on the user's stack and sleep. They stay masked from the check for a
/// preemption until the preemption. Otherwise an interrupt could preempt the thread there, without giving up its stack.
#[inline(always)]
pub fn leave(regs: &mut Regs) {
    let linux = linux();
    let thread = thread();
    loop {
        // Interrupts stay masked after the last check, so the next interrupt arrives in user mode.
        cpu::interrupts_disable();
        if cpu::preempt_due() {
            preempt(regs);
            continue;
        }
        if thread.payload().as_ref().is_some_and(quire_linux::entry::has_work) {
            cpu::interrupts_on();
            quire_linux::entry::return_to_user(linux, regs);
            continue;
        }
        // IRET to a non-canonical address would fault in the kernel, so raise the program's exception here.
        if !is_canonical(regs.rip) {
            cpu::interrupts_on();
            quire_linux::entry::exception(linux, regs, 13, 0);
            continue;
        }
        break;
    }
    thread.leave_kernel(clock::ticks());
}

/// Lets other threads run. The thread gives up its stack, and continues in [`preempted`].
#[cold]
fn preempt(regs: &Regs) {
    // SAFETY: the caller is a program's thread. The stack frames up to its kernel entry hold no value that is used or
    // dropped later.
    unsafe { depart_preempted(regs, preempted) };
}

/// Continues a thread that was preempted on the return to user mode, on its new stack.
extern "C" fn preempted(regs: &mut Regs) {
    leave(regs);
}

fn is_canonical(address: u64) -> bool {
    ((address << 16) as i64 >> 16) as u64 == address
}

/// Serves a system call. Interrupts are masked; the number is in `rax` and `orig_rax`.
pub extern "C" fn syscall(regs: &mut Regs) {
    enter();
    cpu::interrupts_on();
    if trace::call(regs, |regs| quire_linux::entry::syscall(linux(), regs)) == Served::Asleep {
        sleep(regs);
    }
    leave(regs);
}

/// Sleeps in the calling thread's system call, without a stack. Returns if the call ended without a sleep. After a
/// sleep, the thread continues in [`woken`].
#[cold]
fn sleep(regs: &mut Regs) {
    loop {
        // SAFETY: the caller is a program's thread. The stack frames up to its kernel entry hold no value that is used
        // or dropped later.
        unsafe { depart(regs, woken, quire_linux::entry::sleeps_until(linux())) };
        if trace::call(regs, |regs| quire_linux::entry::go_on(linux(), regs)) == Served::Done {
            return;
        }
    }
}

/// Continues the system call of a thread that slept without a stack, on its new stack.
extern "C" fn woken(regs: &mut Regs) {
    if trace::call(regs, |regs| quire_linux::entry::go_on(linux(), regs)) == Served::Asleep {
        sleep(regs);
    }
    leave(regs);
}

pub extern "C" fn page_fault(regs: &mut Regs, error: u64) {
    // CR2 is read first, because the next page fault overwrites it.
    let address = registers::cr2();
    let access = match error {
        e if e & FETCH != 0 => Access::Exec,
        e if e & STORE != 0 => Access::Write,
        _ => Access::Read,
    };
    if error & RESERVED != 0 {
        die(regs, "page fault on a reserved bit", error, Some(address));
    }
    if from_user(regs) {
        enter();
        cpu::interrupts_on();
        trace::at(regs.rip, || quire_linux::entry::page_fault(linux(), regs, address, access, true));
        leave(regs);
    } else {
        kernel_fault(regs, error, address, access);
    }
}

/// Handles a page fault in kernel mode. Only an instruction of `memory::user` on a user address may fault; any other
/// fault is a bug.
fn kernel_fault(regs: &mut Regs, error: u64, address: u64, access: Access) {
    let fixup = if address < crate::memory::layout::USER_END { user::fixup(regs.rip) } else { None };
    let Some(fixup) = fixup else { die(regs, "page fault", error, Some(address)) };
    // If sleeping is not allowed (preemption or interrupts are off), the fault is not repaired: the fix-up reports it.
    if regs.rflags & INTERRUPTS != 0 && cpu::preempt_count() == 0 {
        cpu::interrupts_on();
        let repaired = trace::at(regs.rip, || quire_linux::entry::kernel_fault(linux(), address, access));
        cpu::interrupts_disable();
        if repaired {
            return;
        }
    }
    regs.rip = fixup;
}

pub extern "C" fn exception(regs: &mut Regs, vector: u64, error: u64) {
    if !from_user(regs) {
        // The kernel may execute an instruction to test whether the CPU supports it (`cpu::fpu`).
        if vector == INVALID_OPCODE
            && let Some(fixup) = user::fixup(regs.rip)
        {
            regs.rip = fixup;
            return;
        }
        die(regs, name(vector), error, None);
    }
    enter();
    cpu::interrupts_on();
    quire_linux::entry::exception(linux(), regs, vector as u8, error);
    leave(regs);
}

/// Handles an interrupt. Interrupts are masked throughout, except while a signal is delivered.
pub extern "C" fn interrupt(regs: &mut Regs, vector: u64) {
    if from_user(regs) {
        enter();
        serve(regs, vector as u8);
        leave(regs);
    } else {
        serve(regs, vector as u8);
        if cpu::preempt_due() {
            scheduler().preempt();
        }
    }
}

#[inline(always)]
fn serve(regs: &Regs, vector: u8) {
    match vector {
        TIMER => {
            interrupt::count(Interrupt::Timer, 1);
            watchdog::interrupted_by_timer(regs);
            local_apic::end_of_interrupt();
            scheduler().timer_interrupt();
        }
        RESCHEDULE => {
            interrupt::count(Interrupt::Reschedule, 1);
            local_apic::end_of_interrupt();
            // A CPU that is starting has no thread yet.
            if cpu::current_thread() != 0 {
                scheduler().kicked();
            }
        }
        SHOOTDOWN => {
            local_apic::end_of_interrupt();
            shootdown::serve();
        }
        SPURIOUS => {}
        other => interrupt::device(other),
    }
}

/// Handles an NMI, a double fault or a machine check, on a separate stack.
pub extern "C" fn paranoid(regs: &mut Regs, vector: u64, error: u64) {
    if vector == 2 {
        if crate::report::panic::in_progress() {
            cpu::stop();
        }
        if watchdog::nmi(regs) {
            return;
        }
        log!("NMI on CPU {} at {:#x}", cpu::id(), regs.rip);
        return;
    }
    let address = (vector == 8).then(registers::cr2);
    die(regs, name(vector), error, address)
}

fn name(vector: u64) -> &'static str {
    match vector {
        0 => "divide error",
        1 => "debug exception",
        3 => "breakpoint",
        4 => "overflow",
        5 => "bound range exceeded",
        6 => "invalid opcode",
        7 => "device not available",
        8 => "double fault",
        10 => "invalid TSS",
        11 => "segment not present",
        12 => "stack fault",
        13 => "general protection",
        14 => "page fault",
        16 => "x87 exception",
        17 => "alignment check",
        18 => "machine check",
        19 => "SIMD exception",
        21 => "control protection",
        _ => "unknown exception",
    }
}

/// Handles an exception of the kernel itself, which is a bug.
#[cold]
fn die(regs: &Regs, exception: &str, error: u64, address: Option<u64>) -> ! {
    let on_guard = address.is_some_and(crate::memory::stack::is_guard);
    log!("{exception} in the kernel, error {error:#x}{}", if on_guard { ", kernel stack overflow" } else { "" });
    log!("rip {:#018x} rsp {:#018x} flags {:#x} cr3 {:#x}", regs.rip, regs.rsp, regs.rflags, registers::cr3());
    log!("rax {:#018x} rbx {:#018x} rcx {:#018x} rdx {:#018x}", regs.rax, regs.rbx, regs.rcx, regs.rdx);
    log!("rsi {:#018x} rdi {:#018x} rbp {:#018x} r8  {:#018x}", regs.rsi, regs.rdi, regs.rbp, regs.r8);
    log!("r9  {:#018x} r10 {:#018x} r11 {:#018x} r12 {:#018x}", regs.r9, regs.r10, regs.r11, regs.r12);
    log!("r13 {:#018x} r14 {:#018x} r15 {:#018x} cr2 {:#018x}", regs.r13, regs.r14, regs.r15, registers::cr2());
    log!("{}", if try_linux().is_some() { "programs were running" } else { "during boot" });
    crate::report::backtrace::log_address(regs.rip);
    crate::report::backtrace::backtrace(regs.rbp);
    panic!("{exception} in the kernel at {:#x}", regs.rip)
}
