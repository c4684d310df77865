//! The implementation of `quire_sync`'s hooks on this machine: preemption, waiting and the checks of locks.

use crate::cpu::{self, clock};
#[cfg(debug_assertions)]
use crate::machine::Machine;
use crate::machine::{scheduler, try_scheduler};
use crate::report::watchdog;
use core::arch::global_asm;
use quire_sync::{CpuId, ThreadHandle};
use quire_task::Thread;

/// The implementation of `quire_sync`'s hooks on this machine.
pub struct Hooks;

// SAFETY: the scheduler does not switch while the preemption count is not zero, and `cpu::id` reads this CPU's block.
unsafe impl quire_sync::Cpu for Hooks {
    #[inline(always)]
    fn preempt_disable() {
        cpu::preempt_disable();
    }
    #[inline(always)]
    fn preempt_enable() {
        cpu::preempt_enable();
    }
    #[inline(always)]
    fn current() -> CpuId {
        cpu::id()
    }
    #[inline(always)]
    fn relax() {
        core::hint::spin_loop();
    }
    fn spun(lock: usize, rank: u8, turns: u32) {
        watchdog::spun(lock, rank, turns);
    }

    #[cfg(debug_assertions)]
    fn uninterrupted(f: &mut dyn FnMut()) {
        let interrupts = cpu::interrupts_off();
        f();
        cpu::interrupts_restore(interrupts);
    }
    #[cfg(debug_assertions)]
    fn held() -> *mut quire_sync::held::SpinsHeld {
        // SAFETY: only the address is computed; the caller stays on this CPU while it uses the address.
        unsafe { &raw mut (*cpu::block()).held }
    }
    #[cfg(debug_assertions)]
    fn backtrace(into: &mut [usize]) -> usize {
        let mut n = 0;
        crate::report::backtrace::each_caller(|address| {
            if let Some(place) = into.get_mut(n) {
                *place = address as usize;
                n += 1;
            }
        });
        n
    }
    #[cfg(debug_assertions)]
    fn describe(address: usize, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        crate::report::backtrace::describe(address as u64, f)
    }
}

// SAFETY: an `unpark` before the thread's `park` is not lost, because the scheduler stores it as a token.
unsafe impl quire_sync::Wait for Hooks {
    #[inline(always)]
    fn current() -> ThreadHandle {
        // SAFETY: the number is the address of the running thread.
        unsafe { ThreadHandle::from_number(cpu::current_thread()) }
    }
    fn park(deadline: Option<u64>) {
        scheduler().park(deadline);
    }
    fn park_uninterruptibly() {
        scheduler().park_uninterruptibly();
    }
    fn unpark(thread: ThreadHandle) {
        // SAFETY: the holder of a handle keeps the thread alive until it has woken it.
        scheduler().unpark(unsafe { Thread::from_handle(thread) });
    }
    #[inline(always)]
    fn now() -> u64 {
        clock::now()
    }

    #[cfg(debug_assertions)]
    fn held() -> *mut quire_sync::held::MutexesHeld {
        match cpu::current_thread() {
            // Boot runs before there are threads.
            0 => core::ptr::null_mut(),
            // SAFETY: the running thread is alive; only its list's address is taken.
            at => unsafe { &raw mut (*Thread::<Machine>::from_handle(ThreadHandle::from_number(at)).context()).held },
        }
    }
}

quire_sync::provide!(Hooks);

// Only `cpu::preempt_enable` calls this stub, which preserves all registers but the flags.
global_asm!(
    r#"
    .pushsection .text.preempt, "ax"
    preempt_stub:
        push rbp
        mov rbp, rsp
        push rax
        push rcx
        push rdx
        push rsi
        push rdi
        push r8
        push r9
        push r10
        push r11
        sub rsp, 8
        and rsp, -16
        call {preempt_now}
        lea rsp, [rbp - 72]
        pop r11
        pop r10
        pop r9
        pop r8
        pop rdi
        pop rsi
        pop rdx
        pop rcx
        pop rax
        pop rbp
        ret
    .popsection
    "#,
    preempt_now = sym preempt_now,
);

/// Preempts the calling thread. Called when preemption is enabled again and a reschedule is pending.
#[cold]
extern "C" fn preempt_now() {
    // If interrupts are masked, the preemption happens later: the code that masked them drops a preemption guard after
    // it has unmasked them.
    if cpu::interrupts_are_on()
        && let Some(scheduler) = try_scheduler()
    {
        scheduler.preempt();
    }
}
