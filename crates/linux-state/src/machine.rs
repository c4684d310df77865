//! The interface that a kernel implements for this crate: user memory, thread contexts, the FPU, clocks, entropy,
//! power.
//!
//! [`quire_vm::Machine`] has memory and page tables, and [`quire_task::Machine`] has threads. This trait adds what only
//! an operating system needs. All methods are called from thread context with interrupts enabled.

use crate::process::thread::Thread;
use crate::regs::UserRegs;
use crate::system::log::LogLine;
use core::fmt;
use quire_vm::OutOfMemory;

/// An access to user memory that failed before its end, because an address is not mapped or does not allow the access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadAddress {
    /// The number of bytes at the end that were not copied.
    pub left: usize,
}

/// The source of a new thread's floating-point state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fpu {
    /// The state after a reset.
    Fresh,
    /// A copy of the calling thread's state.
    Copy,
}

/// The reason why the machine ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// Process 1 returned this status.
    Exit(u8),
    /// This signal killed process 1.
    Signal(u8),
    /// A program requested it (`reboot`).
    PowerOff,
}

/// The parameters with which programs compute the clocks from the time-stamp counter (TSC), without a system call. The
/// kernel computes its own clocks with the same parameters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UserClock {
    /// The value of the TSC at boot.
    pub start: u64,
    /// Nanoseconds for each TSC tick, times 2^32. The product with the ticks is rounded down.
    pub ns_per_tick: u64,
    /// Nanoseconds from 1970 to boot.
    pub epoch: u64,
}

/// The kinds of interrupts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum Interrupt {
    /// An interrupt from a device.
    Device,
    /// An interrupt from the CPU's own timer.
    Timer,
    /// Another CPU has added a thread to this CPU's run queue.
    Reschedule,
    /// Another CPU requests a TLB flush. The count has each request that the CPU has executed, with or without an
    /// interrupt.
    Shootdown,
}

impl Interrupt {
    /// All kinds, in the order of their numbers.
    pub const ALL: &'static [Interrupt] =
        &[Interrupt::Device, Interrupt::Timer, Interrupt::Reschedule, Interrupt::Shootdown];

    /// The name and the description in `/proc/interrupts`. The names are Linux's if Linux has the kind.
    pub fn row(self) -> (&'static str, &'static str) {
        match self {
            Interrupt::Device => ("DEV", "Device interrupts"),
            Interrupt::Timer => ("LOC", "Local timer interrupts"),
            Interrupt::Reschedule => ("RES", "Rescheduling interrupts"),
            Interrupt::Shootdown => ("TLB", "TLB shootdowns"),
        }
    }
}

/// The settings of the watchdog for CPUs and threads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum WatchSetting {
    /// Whether the watchdog is on: 0 or 1.
    On,
    /// The most seconds that a CPU may run without an interrupt, or wait for a spin lock. A CPU may run twice this time
    /// without a call of the scheduler.
    Seconds,
    /// Whether the kernel panics if a CPU is stuck: 0 or 1.
    LockupPanics,
    /// The most seconds of uninterruptible sleep that are not reported; 0: no limit.
    HungSeconds,
    /// Whether the kernel panics if a thread sleeps too long: 0 or 1.
    HungPanics,
}

impl WatchSetting {
    /// All settings, in the order of their numbers.
    pub const ALL: &'static [WatchSetting] = &[
        WatchSetting::On,
        WatchSetting::Seconds,
        WatchSetting::LockupPanics,
        WatchSetting::HungSeconds,
        WatchSetting::HungPanics,
    ];

    /// The setting's name in `/proc/sys/kernel`, as on Linux.
    pub const fn name(self) -> &'static str {
        match self {
            WatchSetting::On => "watchdog",
            WatchSetting::Seconds => "watchdog_thresh",
            WatchSetting::LockupPanics => "softlockup_panic",
            WatchSetting::HungSeconds => "hung_task_timeout_secs",
            WatchSetting::HungPanics => "hung_task_panic",
        }
    }

    /// The initial value, as on Linux.
    pub const fn usual(self) -> u32 {
        match self {
            WatchSetting::On => 1,
            WatchSetting::Seconds => 10,
            WatchSetting::HungSeconds => 120,
            WatchSetting::LockupPanics | WatchSetting::HungPanics => 0,
        }
    }

    /// The largest allowed value.
    pub const fn largest(self) -> u32 {
        match self {
            WatchSetting::Seconds => 60,
            WatchSetting::HungSeconds => 9_223_372, // Linux's, where a second has a thousand ticks
            WatchSetting::On | WatchSetting::LockupPanics | WatchSetting::HungPanics => 1,
        }
    }
}

/// Access to the user memory of the space that is active on this CPU.
///
/// # Safety
/// The methods access only the given user range and the given kernel range, for any user address. If an address is
/// outside user space or a fault cannot be resolved, they return [`BadAddress`] and do not panic.
pub unsafe trait UserAccess {
    /// Copies `len` bytes from user address `from`. May sleep, because the access may fault.
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

    /// Copies bytes from user address `from` up to and including the first zero byte, at most `len`. Returns the number
    /// of bytes before the zero byte, or `len` if there was none. May sleep.
    ///
    /// # Safety
    /// `to` is valid for writes of `len` bytes.
    unsafe fn string_from_user(&self, to: *mut u8, from: u64, len: usize) -> Result<usize, BadAddress>;

    /// Atomically loads the aligned word at user address `at`. May sleep.
    fn load_user_u32(&self, at: u64) -> Result<u32, BadAddress>;

    /// Atomically loads the aligned word at user address `at`, and never sleeps. Unlike in
    /// [`load_user_u32`](UserAccess::load_user_u32), an absent page is an error at once. The caller may hold a spin
    /// lock, because a futex operation compares the word under its bucket's lock.
    fn peek_user_u32(&self, at: u64) -> Result<u32, BadAddress>;

    /// Atomically stores `new` at the aligned user address `at` if the word there is `old`. Returns the word from
    /// before. May sleep.
    fn compare_exchange_user_u32(&self, at: u64, old: u32, new: u32) -> Result<u32, BadAddress>;

    /// Whether the calling thread must end. A long copy from or to user memory then stops.
    fn killed(&self) -> bool {
        false
    }

    /// Does the exchange of [`compare_exchange_user_u32`](UserAccess::compare_exchange_user_u32), but never sleeps. A
    /// page that is absent or not writable is an error at once. The caller may hold a spin lock.
    fn try_exchange_user_u32(&self, at: u64, old: u32, new: u32) -> Result<u32, BadAddress>;
}

/// The kernel below the Linux layer.
///
/// The payload of a `quire_task` thread is `Some` for Linux threads. It is `None` for the kernel's own threads, such as
/// each CPU's idle thread.
pub trait Machine: UserAccess + quire_vm::Machine + quire_task::Machine<Payload = Option<Thread<Self>>> {
    /// Creates the context of a new thread. The first switch to it calls the function `first_return` of `quire-linux`
    /// with `regs`, on the thread's own kernel stack. It then enters user mode with the resulting registers. `fs_base`
    /// and `gs_base` are the segment bases of the new thread.
    fn new_context(
        &self,
        regs: &UserRegs,
        fs_base: u64,
        gs_base: u64,
        fpu: Fpu,
    ) -> Result<<Self as quire_task::Machine>::Context, OutOfMemory>;

    /// Makes `pmap` the calling thread's address space on this CPU, immediately. With `None`, only the kernel's half of
    /// the address space is mapped. Later context switches to this thread load [`Thread::pmap`].
    fn activate(&self, pmap: Option<&<Self as quire_vm::Machine>::Pmap>);

    /// The calling thread's FS base.
    fn fs_base(&self) -> u64;
    /// Sets the calling thread's FS base. The caller has checked that `base` is a user address.
    fn set_fs_base(&self, base: u64);
    /// The calling thread's user GS base.
    fn gs_base(&self) -> u64;
    /// Sets the calling thread's user GS base. The caller has checked that `base` is a user address.
    fn set_gs_base(&self, base: u64);

    /// Whether the calling thread's program is forbidden to read the TSC. Threads that it creates inherit this setting
    /// ([`new_context`](Machine::new_context)).
    fn is_counter_forbidden(&self) -> bool;
    /// Forbids or allows programs to read the TSC. A forbidden read raises a general protection fault.
    fn forbid_counter(&self, forbid: bool);

    /// The present size of the kernel stack of `thread` in bytes; 0 if the thread sleeps without a stack.
    fn stack_len(&self, thread: &quire_task::Thread<Self>) -> usize;
    /// The size of the floating-point state in bytes, in the standard (not compacted) XSAVE format that signal frames
    /// have. It is a multiple of 64, at least 576 (legacy area and header), and at most 8192.
    fn fpu_len(&self) -> usize;
    /// The components of the floating-point state (XCR0).
    fn fpu_features(&self) -> u64;
    /// The MXCSR bits that may be set without a fault.
    fn mxcsr_mask(&self) -> u32;
    /// Saves the calling thread's floating-point state to `area`, which has [`fpu_len`](Machine::fpu_len) bytes and is
    /// aligned to 64.
    fn fpu_save(&self, area: &mut [u8]);
    /// Loads the calling thread's floating-point state from `area`. The caller has checked the header and MXCSR in it.
    fn fpu_restore(&self, area: &[u8]);
    /// Resets the calling thread's floating-point state.
    fn fpu_reset(&self);

    /// Nanoseconds since 1970. [`store_time`](quire_vm::Machine::store_time) uses this clock too, because files show
    /// the times of stores to their mappings.
    fn realtime(&self) -> u64;
    /// Sets the wall clock to `ns`, nanoseconds since 1970.
    fn set_realtime(&self, ns: u64);
    /// The smallest step of the clocks, in nanoseconds.
    fn clock_resolution(&self) -> u64 {
        1
    }
    /// The parameters that relate `now` and [`realtime`](Machine::realtime) to the TSC, if programs can read it.
    /// `None`: programs make system calls.
    fn user_clock(&self) -> Option<UserClock> {
        None
    }
    /// The selector of a segment whose limit is the number of the CPU, which user mode can read; 0: there is none.
    fn cpu_selector(&self) -> u16 {
        0
    }
    /// 32 bytes of entropy for seeds: from the CPU's random number generator if it has one, mixed with clock jitter.
    fn entropy(&self) -> [u8; 32];
    /// The EDX value of CPUID leaf 1 (`AT_HWCAP`).
    fn hwcap(&self) -> u64;
    /// Writes the lines of `/proc/cpuinfo` for `cpu`, except the first line with its number: model, family, flags,
    /// topology.
    fn describe_cpu(&self, cpu: usize, out: &mut dyn fmt::Write) -> fmt::Result;

    /// The number of interrupts of `kind` on `cpu` since boot.
    fn interrupts(&self, cpu: usize, kind: Interrupt) -> u64;

    /// The present value of a watchdog setting.
    fn watch_setting(&self, of: WatchSetting) -> u32 {
        of.usual()
    }
    /// Changes a watchdog setting. Returns false and changes nothing if the value is too large.
    fn set_watch(&self, _of: WatchSetting, _value: u32) -> bool {
        false
    }

    /// Adds one line to the kernel's log.
    fn log(&self, line: fmt::Arguments<'_>);
    /// The first line of the kernel's log whose number is at least `at`; `None` if there is none.
    fn log_line(&self, _at: u64) -> Option<LogLine> {
        None
    }
    /// Whether events that are no errors are logged, such as unknown system calls and deaths by signal.
    fn verbose(&self) -> bool;
    /// Sends a piece of the archive of results to the host. Waits until the host accepts it.
    fn send_result(&self, _bytes: &[u8]) {}
    /// Flushes the ports, reports `end` to the host and powers off.
    fn power_off(&self, end: End) -> !;
}
