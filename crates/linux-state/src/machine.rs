//! The kernel's interface to this crate: access to user memory, threads' contexts, the FPU, clocks, entropy, power.
//!
//! Memory and page tables come with [`quire_vm::Machine`], threads with [`quire_task::Machine`]; this trait adds what
//! only an operating system's personality needs. All methods are called from thread context with interrupts on.

use crate::process::thread::Thread;
use crate::regs::UserRegs;
use crate::system::log::LogLine;
use core::fmt;
use quire_vm::OutOfMemory;

/// A user access failed before its end: nothing is mapped there, or not with that right.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadAddress {
    /// Bytes at the end that were not copied.
    pub left: usize,
}

/// The source of a new thread's floating-point state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fpu {
    /// As after reset.
    Fresh,
    /// A copy of the calling thread's.
    Copy,
}

/// How the machine ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// Process 1 returned this status.
    Exit(u8),
    /// This signal killed process 1.
    Signal(u8),
    /// A program requested it (`reboot`).
    PowerOff,
}

/// The rule by which programs compute the clocks from the time-stamp counter, without a system call. The kernel
/// computes its own clocks by the same rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UserClock {
    /// The counter's value at boot.
    pub start: u64,
    /// Nanoseconds a tick, times 2^32; rounded down when applied.
    pub ns_per_tick: u64,
    /// Nanoseconds from 1970 to boot.
    pub epoch: u64,
}

/// The reasons of interrupts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum Interrupt {
    /// A device.
    Device,
    /// The CPU's own timer.
    Timer,
    /// Another CPU has a thread for this one.
    Reschedule,
    /// Another CPU requests a TLB flush. Counts each served request, with or without an interrupt.
    Shootdown,
}

impl Interrupt {
    /// Every kind, in the order of their numbers.
    pub const ALL: &'static [Interrupt] =
        &[Interrupt::Device, Interrupt::Timer, Interrupt::Reschedule, Interrupt::Shootdown];

    /// The row of `/proc/interrupts`, with Linux's names where it has them, and its description.
    pub fn row(self) -> (&'static str, &'static str) {
        match self {
            Interrupt::Device => ("DEV", "Device interrupts"),
            Interrupt::Timer => ("LOC", "Local timer interrupts"),
            Interrupt::Reschedule => ("RES", "Rescheduling interrupts"),
            Interrupt::Shootdown => ("TLB", "TLB shootdowns"),
        }
    }
}

/// Settings of the kernel's watch over CPUs and threads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum WatchSetting {
    /// Whether CPUs and spin locks are watched at all: 0 or 1.
    On,
    /// The most seconds without an interrupt, or on a spin lock; twice as many may pass without scheduling.
    Seconds,
    /// Whether a CPU that is stuck is a panic: 0 or 1.
    LockupPanics,
    /// The most seconds of uninterruptible sleep; 0: no limit.
    HungSeconds,
    /// Whether a thread that sleeps too long is a panic: 0 or 1.
    HungPanics,
}

impl WatchSetting {
    /// Every setting, in the order of their numbers.
    pub const ALL: &'static [WatchSetting] = &[
        WatchSetting::On,
        WatchSetting::Seconds,
        WatchSetting::LockupPanics,
        WatchSetting::HungSeconds,
        WatchSetting::HungPanics,
    ];

    /// Linux's name, in `/proc/sys/kernel`.
    pub const fn name(self) -> &'static str {
        match self {
            WatchSetting::On => "watchdog",
            WatchSetting::Seconds => "watchdog_thresh",
            WatchSetting::LockupPanics => "softlockup_panic",
            WatchSetting::HungSeconds => "hung_task_timeout_secs",
            WatchSetting::HungPanics => "hung_task_panic",
        }
    }

    /// The value before anything sets it: Linux's.
    pub const fn usual(self) -> u32 {
        match self {
            WatchSetting::On => 1,
            WatchSetting::Seconds => 10,
            WatchSetting::HungSeconds => 120,
            WatchSetting::LockupPanics | WatchSetting::HungPanics => 0,
        }
    }

    /// The largest value.
    pub const fn largest(self) -> u32 {
        match self {
            WatchSetting::Seconds => 60,
            WatchSetting::HungSeconds => 9_223_372, // Linux's, where a second has a thousand ticks
            WatchSetting::On | WatchSetting::LockupPanics | WatchSetting::HungPanics => 1,
        }
    }
}

/// User memory of the space that is active on this CPU.
///
/// # Safety
/// The methods access only the given user range and the given kernel range, whatever the user address is. An address
/// outside user space, or with a fault beyond repair, ends in [`BadAddress`], never in a panic.
pub unsafe trait UserAccess {
    /// Copies `len` bytes from user address `from`. May sleep: the access may fault.
    ///
    /// # Safety
    /// `to` is valid for writes of `len` bytes.
    unsafe fn copy_from_user(&self, to: *mut u8, from: u64, len: usize) -> Result<(), BadAddress>;

    /// Copies `len` bytes to user address `to`. May sleep.
    ///
    /// # Safety
    /// `from` is valid for reads of `len` bytes.
    unsafe fn copy_to_user(&self, to: u64, from: *const u8, len: usize) -> Result<(), BadAddress>;

    /// Stores `len` zeroes at user address `to`. May sleep.
    fn clear_user(&self, to: u64, len: usize) -> Result<(), BadAddress>;

    /// Copies bytes from user address `from` up to and with the first zero byte, at most `len`. Returns how many were
    /// copied before the zero byte, `len` if there was none. May sleep.
    ///
    /// # Safety
    /// `to` is valid for writes of `len` bytes.
    unsafe fn string_from_user(&self, to: *mut u8, from: u64, len: usize) -> Result<usize, BadAddress>;

    /// Loads the aligned word at user address `at`, atomically. May sleep.
    fn load_user_u32(&self, at: u64) -> Result<u32, BadAddress>;

    /// As [`load_user_u32`](UserAccess::load_user_u32), but never sleeps: an absent page is an error at once. Called
    /// with a spin lock held (a futex compares its word under its bucket's lock).
    fn peek_user_u32(&self, at: u64) -> Result<u32, BadAddress>;

    /// Stores `new` at the aligned user address `at` if `old` is there, atomically. Returns what was there. May sleep.
    fn compare_exchange_user_u32(&self, at: u64, old: u32, new: u32) -> Result<u32, BadAddress>;

    /// Whether the calling thread must end, so that it moves no more bytes.
    fn killed(&self) -> bool {
        false
    }

    /// As [`compare_exchange_user_u32`](UserAccess::compare_exchange_user_u32), but never sleeps: a page that is absent
    /// or not writable is an error at once. Called with a spin lock held.
    fn try_exchange_user_u32(&self, at: u64, old: u32, new: u32) -> Result<u32, BadAddress>;
}

/// The kernel beneath the Linux layer.
///
/// A `quire_task` thread's payload is `Some` for Linux threads, `None` for the kernel's own (each CPU's idle thread).
pub trait Machine: UserAccess + quire_vm::Machine + quire_task::Machine<Payload = Option<Thread<Self>>> {
    /// A context that, when first switched to, calls `first_return` of the system calls with `regs` on
    /// its own kernel stack and goes to user mode with the resulting registers. `fs_base` and `gs_base` are the new
    /// thread's.
    fn new_context(
        &self,
        regs: &UserRegs,
        fs_base: u64,
        gs_base: u64,
        fpu: Fpu,
    ) -> Result<<Self as quire_task::Machine>::Context, OutOfMemory>;

    /// Makes `pmap` the calling thread's address space on this CPU, at once. `None`: only the kernel's half. Later
    /// switches to this thread load [`Thread::pmap`].
    fn activate(&self, pmap: Option<&<Self as quire_vm::Machine>::Pmap>);

    /// The calling thread's FS base.
    fn fs_base(&self) -> u64;
    /// Sets the calling thread's FS base; `base` is a user address (the caller checked).
    fn set_fs_base(&self, base: u64);
    /// The calling thread's user GS base.
    fn gs_base(&self) -> u64;
    /// Sets the calling thread's user GS base; `base` is a user address (the caller checked).
    fn set_gs_base(&self, base: u64);

    /// Whether the calling thread's program may not read the time-stamp counter. Threads that it makes inherit it
    /// ([`new_context`](Machine::new_context)).
    fn is_counter_forbidden(&self) -> bool;
    /// Changes that: a forbidden read is a general protection fault.
    fn forbid_counter(&self, forbid: bool);

    /// Bytes of the kernel stack that `thread` has at this moment; 0 if it sleeps without one.
    fn stack_len(&self, thread: &quire_task::Thread<Self>) -> usize;
    /// Bytes of the floating-point state in the standard (not compacted) XSAVE format, as in a signal frame. At least
    /// 576 (legacy area and header), at most 8192, a multiple of 64.
    fn fpu_len(&self) -> usize;
    /// The state components that the state has (XCR0).
    fn fpu_features(&self) -> u64;
    /// MXCSR bits that may be set without a fault.
    fn mxcsr_mask(&self) -> u32;
    /// Saves the calling thread's state to `area`: [`fpu_len`](Machine::fpu_len) bytes, aligned to 64.
    fn fpu_save(&self, area: &mut [u8]);
    /// Loads the calling thread's state from `area`, whose header and MXCSR the caller has checked.
    fn fpu_restore(&self, area: &[u8]);
    /// Resets the calling thread's state to its value after reset.
    fn fpu_reset(&self);

    /// Nanoseconds since 1970. Also the machine's clock of stores
    /// ([`store_time`](quire_vm::Machine::store_time)), because files show those times.
    fn realtime(&self) -> u64;
    /// Sets the wall clock to `ns` since 1970.
    fn set_realtime(&self, ns: u64);
    /// The smallest step of the clocks in nanoseconds.
    fn clock_resolution(&self) -> u64 {
        1
    }
    /// The rule that makes `now` and [`realtime`](Machine::realtime) of a counter that programs can read. `None`: they
    /// make system calls.
    fn user_clock(&self) -> Option<UserClock> {
        None
    }
    /// The selector of a segment whose limit, read in user mode, is the number of the CPU; 0: there is none.
    fn cpu_selector(&self) -> u16 {
        0
    }
    /// Entropy for seeding, 32 bytes: from the CPU's generator where there is one, mixed with clock jitter.
    fn entropy(&self) -> [u8; 32];
    /// EDX of CPUID leaf 1 (`AT_HWCAP`).
    fn hwcap(&self) -> u64;
    /// The lines of `/proc/cpuinfo` for `cpu` behind the first, which numbers it: model, family, flags, place.
    fn describe_cpu(&self, cpu: usize, out: &mut dyn fmt::Write) -> fmt::Result;

    /// How many interrupts of `kind` `cpu` has taken.
    fn interrupts(&self, cpu: usize, kind: Interrupt) -> u64;

    /// The value of a setting of the watch over CPUs and threads.
    fn watch_setting(&self, of: WatchSetting) -> u32 {
        of.usual()
    }
    /// Changes a setting; false if the value is too large, and nothing changes.
    fn set_watch(&self, _of: WatchSetting, _value: u32) -> bool {
        false
    }

    /// One line for the kernel's log.
    fn log(&self, line: fmt::Arguments<'_>);
    /// The first line of the kernel's log with the number `at` or a higher one, if there is one.
    fn log_line(&self, _at: u64) -> Option<LogLine> {
        None
    }
    /// Whether to log events that are no errors (unknown system calls, deaths by signal).
    fn verbose(&self) -> bool;
    /// Sends the host a piece of the archive of results. Waits until the host takes it.
    fn send_result(&self, _bytes: &[u8]) {}
    /// Flushes the ports, reports `end` to the host and powers off. Does not return.
    fn power_off(&self, end: End) -> !;
}
