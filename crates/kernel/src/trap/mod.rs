//! What is done on traps: faults, exceptions, interrupts and system calls.

pub mod entry;

use crate::cpu::{self, registers};
use crate::interrupt::{self, RESCHEDULE, SHOOTDOWN, SPURIOUS, TIMER};
use crate::machine::scheduler;
use crate::shootdown;
use quire_drivers::local_apic;

/// The registers of whoever was interrupted, in the order in which the entry pushes them.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Regs {
    pub r15: u64,
    pub r14: u64,
    pub r13: u64,
    pub r12: u64,
    pub rbp: u64,
    pub rbx: u64,
    pub r11: u64,
    pub r10: u64,
    pub r9: u64,
    pub r8: u64,
    pub rax: u64,
    pub rcx: u64,
    pub rdx: u64,
    pub rsi: u64,
    pub rdi: u64,
    pub orig_rax: u64,
    pub rip: u64,
    pub cs: u64,
    pub rflags: u64,
    pub rsp: u64,
    pub ss: u64,
}

#[inline(always)]
fn from_user(regs: &Regs) -> bool {
    regs.cs & 3 != 0
}

pub extern "C" fn page_fault(regs: &mut Regs, error: u64) {
    let address = registers::cr2();
    die(regs, "page fault", error, Some(address))
}

pub extern "C" fn exception(regs: &mut Regs, vector: u64, error: u64) {
    die(regs, name(vector), error, None)
}

/// An interrupt, masked throughout but where the interrupted thread gives its CPU up.
pub extern "C" fn interrupt(regs: &mut Regs, vector: u64) {
    match vector as u8 {
        TIMER => {
            local_apic::end_of_interrupt();
            scheduler().timer_interrupt();
        }
        RESCHEDULE => {
            local_apic::end_of_interrupt();
            scheduler().kicked();
        }
        SHOOTDOWN => {
            local_apic::end_of_interrupt();
            shootdown::serve();
        }
        SPURIOUS => {}
        other => interrupt::device(other),
    }
    if !from_user(regs) && cpu::preempt_due() {
        scheduler().preempt();
    }
}

pub extern "C" fn paranoid(regs: &mut Regs, vector: u64, error: u64) {
    if vector == 2 && crate::panic::in_progress() {
        cpu::stop();
    }
    if vector == 2 {
        log!("NMI on CPU {}", cpu::id());
        return;
    }
    let address = (vector == 8).then(registers::cr2);
    die(regs, name(vector), error, address)
}

pub extern "C" fn syscall(regs: &mut Regs) {
    regs.rax = u64::MAX;
}

fn name(vector: u64) -> &'static str {
    match vector {
        0 => "divide error",
        1 => "debug exception",
        2 => "NMI",
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

/// The kernel itself did something that it must not do.
fn die(regs: &Regs, what: &str, error: u64, address: Option<u64>) -> ! {
    let on_guard = address.is_some_and(crate::stack::is_guard);
    log!("{what} in the kernel, error {error:#x}{}", if on_guard { ", kernel stack overflow" } else { "" });
    log!("rip {:#018x} rsp {:#018x} flags {:#x} cr3 {:#x}", regs.rip, regs.rsp, regs.rflags, registers::cr3());
    log!("rax {:#018x} rbx {:#018x} rcx {:#018x} rdx {:#018x}", regs.rax, regs.rbx, regs.rcx, regs.rdx);
    log!("rsi {:#018x} rdi {:#018x} rbp {:#018x} r8  {:#018x}", regs.rsi, regs.rdi, regs.rbp, regs.r8);
    log!("r9  {:#018x} r10 {:#018x} r11 {:#018x} r12 {:#018x}", regs.r9, regs.r10, regs.r11, regs.r12);
    log!("r13 {:#018x} r14 {:#018x} r15 {:#018x} cr2 {:#018x}", regs.r13, regs.r14, regs.r15, registers::cr2());
    crate::panic::log_address(regs.rip);
    crate::panic::backtrace(regs.rbp);
    panic!("{what} in the kernel at {:#x}", regs.rip)
}
