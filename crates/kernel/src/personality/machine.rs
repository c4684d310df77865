//! The implementation of the Linux layer's machine traits.

use super::start::user_thread;
use crate::cpu::{self, clock, fpu};
use crate::host::power;
use crate::machine::{Machine, scheduler};
use crate::memory::user;
use crate::thread::context::{self, Context};
use core::arch::x86_64::__cpuid;
use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};
use quire_linux_state::{BadAddress, End, Fpu, Interrupt, UserClock, UserRegs, WatchSetting};
use quire_pmap_x86_64::X86Pmap;
use quire_sync::preempt_off;
use quire_vm::OutOfMemory;

static VERBOSE: AtomicBool = AtomicBool::new(false);

/// Makes the log more verbose.
pub fn set_verbose(yes: bool) {
    VERBOSE.store(yes, Ordering::Relaxed);
}

/// Sets the wall clock to `seconds` since 1970, from the battery-backed clock.
pub fn set_epoch(seconds: u64) {
    clock::set_epoch(seconds.saturating_mul(1_000_000_000).saturating_sub(clock::now()));
}

fn bad(left: usize) -> BadAddress {
    BadAddress { left }
}

/// The calling thread's context.
fn my_context() -> *mut Context {
    scheduler().current().context()
}

// SAFETY: user memory is accessed only through `memory::user`. It refuses addresses outside user space, and returns an
// error after a fault.
unsafe impl quire_linux_state::UserAccess for Machine {
    fn killed(&self) -> bool {
        quire_vm::Machine::is_ending(self)
    }
    #[inline(always)]
    unsafe fn copy_from_user(&self, to: *mut u8, from: u64, len: usize) -> Result<(), BadAddress> {
        // SAFETY: the trait's caller vouches that `to` is valid for writes of `len` bytes.
        unsafe { user::copy_from(to, from, len) }.map_err(bad)
    }
    #[inline(always)]
    unsafe fn copy_to_user(&self, to: u64, from: *const u8, len: usize) -> Result<(), BadAddress> {
        // SAFETY: the trait's caller vouches that `from` is valid for reads of `len` bytes.
        unsafe { user::copy_to(to, from, len) }.map_err(bad)
    }
    fn clear_user(&self, to: u64, len: usize) -> Result<(), BadAddress> {
        user::clear(to, len).map_err(bad)
    }
    unsafe fn string_from_user(&self, to: *mut u8, from: u64, len: usize) -> Result<usize, BadAddress> {
        // SAFETY: the trait's caller vouches that `to` is valid for writes of `len` bytes.
        unsafe { user::string(to, from, len) }.map_err(bad)
    }
    fn load_user_u32(&self, at: u64) -> Result<u32, BadAddress> {
        user::load_u32(at).map_err(|()| bad(4))
    }
    fn peek_user_u32(&self, at: u64) -> Result<u32, BadAddress> {
        // With preemption disabled a page fault is not repaired, but returns an error.
        let _pinned = preempt_off();
        user::load_u32(at).map_err(|()| bad(4))
    }
    fn compare_exchange_user_u32(&self, at: u64, old: u32, new: u32) -> Result<u32, BadAddress> {
        user::compare_exchange_u32(at, old, new).map_err(|()| bad(4))
    }
    fn try_exchange_user_u32(&self, at: u64, old: u32, new: u32) -> Result<u32, BadAddress> {
        // With preemption disabled a page fault is not repaired, but returns an error.
        let _pinned = preempt_off();
        user::compare_exchange_u32(at, old, new).map_err(|()| bad(4))
    }
}

impl quire_linux_state::Machine for Machine {
    fn new_context(&self, regs: &UserRegs, fs_base: u64, gs_base: u64, fpu: Fpu) -> Result<Context, OutOfMemory> {
        let area = match fpu {
            Fpu::Fresh => fpu::Area::fresh()?,
            Fpu::Copy => fpu::Area::copy()?,
        };
        Ok(Context::user(regs, user_thread, fs_base, gs_base, self.is_counter_forbidden(), area))
    }
    fn activate(&self, pmap: Option<&X86Pmap>) {
        let interrupts = cpu::interrupts_off();
        // SAFETY: interrupts are masked, so there is no preemption. A space lives as long as a thread uses it.
        unsafe {
            match pmap {
                Some(pmap) => pmap.switch_in(self, cpu::id()),
                None => self.mmu().leave(self, cpu::id()),
            }
        }
        cpu::interrupts_restore(interrupts);
    }

    fn fs_base(&self) -> u64 {
        // SAFETY: the calling thread's own context, which only that thread changes.
        unsafe { (*my_context()).fs_base }
    }
    fn set_fs_base(&self, base: u64) {
        let interrupts = cpu::interrupts_off();
        // SAFETY: the calling thread's context; the base is a user address by the trait's contract.
        unsafe {
            let context = my_context();
            context::set_bases(context, base, (*context).gs_base);
        }
        cpu::interrupts_restore(interrupts);
    }
    fn is_counter_forbidden(&self) -> bool {
        // SAFETY: the calling thread's own context, which only that thread changes.
        unsafe { (*my_context()).no_counter }
    }
    fn forbid_counter(&self, forbid: bool) {
        let interrupts = cpu::interrupts_off();
        // SAFETY: the calling thread's context, with interrupts off.
        unsafe { context::forbid_counter(my_context(), forbid) };
        cpu::interrupts_restore(interrupts);
    }
    fn gs_base(&self) -> u64 {
        // SAFETY: the calling thread's own context, which only that thread changes.
        unsafe { (*my_context()).gs_base }
    }
    fn set_gs_base(&self, base: u64) {
        let interrupts = cpu::interrupts_off();
        // SAFETY: the calling thread's context, with interrupts off; the trait's caller vouches for a user address.
        unsafe {
            let context = my_context();
            context::set_bases(context, (*context).fs_base, base);
        }
        cpu::interrupts_restore(interrupts);
    }

    fn stack_len(&self, thread: &quire_task::Thread<Self>) -> usize {
        // SAFETY: a thread's context lives as long as the thread.
        unsafe { Context::stack_len(thread.context()) }
    }
    fn fpu_len(&self) -> usize {
        fpu::len()
    }
    fn fpu_features(&self) -> u64 {
        fpu::features()
    }
    fn mxcsr_mask(&self) -> u32 {
        fpu::mxcsr_mask()
    }
    fn fpu_save(&self, area: &mut [u8]) {
        assert!(area.len() >= fpu::len() && (area.as_ptr() as usize).is_multiple_of(64));
        // XSAVE does not write the reserved bytes of the header (bytes 512 to 575), so clear them first.
        area[512..576].fill(0);
        // SAFETY: the area is large enough and aligned, as just asserted.
        unsafe { fpu::save(area.as_mut_ptr()) }
    }
    fn fpu_restore(&self, area: &[u8]) {
        assert!(area.len() >= fpu::len() && (area.as_ptr() as usize).is_multiple_of(64));
        // SAFETY: the area is large enough and aligned. The trait's caller has checked the header and MXCSR.
        unsafe { fpu::restore(area.as_ptr()) }
    }
    fn fpu_reset(&self) {
        fpu::reset();
    }

    fn realtime(&self) -> u64 {
        clock::realtime()
    }
    fn set_realtime(&self, ns: u64) {
        clock::set_epoch(ns.wrapping_sub(clock::now()));
    }
    fn user_clock(&self) -> Option<UserClock> {
        let (start, ns_per_tick) = clock::scale();
        Some(UserClock { start, ns_per_tick, epoch: clock::epoch() })
    }
    fn cpu_selector(&self) -> u16 {
        cpu::tables::CPU_NUMBER
    }
    fn entropy(&self) -> [u8; 32] {
        crate::cpu::entropy::seed()
    }
    fn hwcap(&self) -> u64 {
        __cpuid(1).edx as u64
    }
    fn describe_cpu(&self, cpu: usize, out: &mut dyn fmt::Write) -> fmt::Result {
        crate::cpu::features::describe(cpu, out)
    }

    fn interrupts(&self, cpu: usize, kind: Interrupt) -> u64 {
        crate::cpu::interrupt::counted(cpu, kind)
    }

    fn watch_setting(&self, of: WatchSetting) -> u32 {
        crate::report::watchdog::setting(of)
    }
    fn set_watch(&self, of: WatchSetting, value: u32) -> bool {
        crate::report::watchdog::set(of, value)
    }

    fn log(&self, line: fmt::Arguments<'_>) {
        crate::report::log::line(line);
    }
    fn log_line(&self, at: u64) -> Option<quire_linux_state::system::log::LogLine> {
        crate::report::ring::line(at)
    }
    fn verbose(&self) -> bool {
        VERBOSE.load(Ordering::Relaxed)
    }
    fn send_result(&self, bytes: &[u8]) {
        crate::host::ports::send(bytes);
    }
    fn power_off(&self, end: End) -> ! {
        power::off(end)
    }
}
