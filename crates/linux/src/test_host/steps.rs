//! The CPU's steps between two instructions of a program: system calls, faults, and the return to user mode.

use crate::test_host::{One, refusal};
use linux_raw_sys::general::__NR_rt_sigreturn;
use quire_linux_state::user::USER_END;
use quire_linux_state::{Linux, Served, UserAccess, UserRegs};
use quire_vm::Access;
use std::cell::Cell;

const RT_SIGRETURN: u64 = __NR_rt_sigreturn as u64;

thread_local! {
    static SLEEPS: Cell<u32> = const { Cell::new(0) };
}

/// How often calls of the calling thread have slept without a stack.
pub fn sleeps() -> u32 {
    SLEEPS.get()
}

/// Makes a call as the kernel's entry does, up to the return to user mode, and returns the result. `rip` must be the
/// address after the `syscall` instruction.
pub fn call(machine: &'static One, regs: &mut UserRegs, number: u64, arguments: [u64; 6]) -> u64 {
    let linux = machine.linux();
    let [a, b, c, d, e, f] = arguments;
    *regs = UserRegs { rax: number, orig_rax: number, rdi: a, rsi: b, rdx: c, r10: d, r8: e, r9: f, ..*regs };
    let mut served = refusal::calling(linux.current(), || crate::entry::syscall(linux, regs));
    while served == Served::Asleep {
        SLEEPS.set(SLEEPS.get() + 1);
        // SAFETY: on this machine each thread keeps its stack.
        unsafe { machine.scheduler().depart(crate::entry::sleeps_until(linux)) };
        served = refusal::calling(linux.current(), || crate::entry::go_on(linux, regs));
    }
    go_back(machine, linux, regs);
    // After a return from a signal frame or in a new program, `rax` may have any value. So the check leaves out both.
    if number != RT_SIGRETURN && regs.orig_rax == number {
        let error = regs.rax.wrapping_neg();
        assert!(!(512..4096).contains(&error), "call {number} gives error {error}, which programs never see");
    }
    regs.rax
}

/// The kernel's return to user mode.
pub fn go_back(machine: &'static One, linux: &'static Linux<One>, regs: &mut UserRegs) {
    let canonical = |address: u64| ((address << 16) as i64 >> 16) as u64 == address;
    machine.poll();
    let mut turns = 0;
    while crate::entry::has_work(linux.current()) || !canonical(regs.rip) {
        if crate::entry::has_work(linux.current()) {
            crate::entry::return_to_user(linux, regs);
        } else {
            // The program may continue anywhere, but a return to a non-canonical address would fault in the kernel.
            crate::entry::exception(linux, regs, 13, 0);
        }
        turns += 1;
        assert!(turns < 1000, "work never ends");
    }
    // The return instruction loads segments and flags. These must have the values of user mode.
    let kept = UserRegs::USER_FLAGS | UserRegs::FIXED_FLAGS;
    assert!((regs.cs, regs.ss) == (UserRegs::USER_CS, UserRegs::USER_SS), "segments {:#x} {:#x}", regs.cs, regs.ss);
    let fixed = regs.rflags & UserRegs::FIXED_FLAGS;
    assert!(regs.rflags & !kept == 0 && fixed == UserRegs::FIXED_FLAGS, "flags {:#x}", regs.rflags);
}

/// Stores bytes as a program does, up to the first page that is not accessible.
pub fn poke(machine: &'static One, at: u64, bytes: &[u8]) {
    if at.checked_add(bytes.len() as u64).is_some_and(|end| end <= USER_END) {
        // SAFETY: `bytes` is a slice of that length, and the range ends within user space.
        let _bad = unsafe { machine.copy_to_user(at, bytes.as_ptr(), bytes.len()) };
    }
}

/// Loads or stores as a program does, and delivers the signal that a fault causes.
pub fn touch(machine: &'static One, regs: &mut UserRegs, at: u64, write: bool) {
    if at < USER_END {
        let access = if write { Access::Write } else { Access::Read };
        let linux = machine.linux();
        crate::entry::page_fault(linux, regs, at, access, true);
        go_back(machine, linux, regs);
    }
}
