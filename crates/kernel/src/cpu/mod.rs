//! The state of one CPU: its block (CPU-local storage, addressed through GS in kernel mode), registers, tables,
//! features, FPU, clock and interrupts.
//!
//! This module uses the processor and the local APIC, and no other part of the kernel. Boot passes the addresses of the
//! trap entries to it.
//!
//! Invariants:
//! - Only the CPU itself changes its block.
//! - The preemption word changes in one instruction, because an interrupt may come between two.
//! - The set of features only becomes smaller, and only before other CPUs start.

pub mod clock;
pub mod entropy;
pub mod features;
pub mod fpu;
pub mod interrupt;
pub mod registers;
pub mod tables;

use core::arch::asm;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use features::{Feature, has};
use quire_pmap_x86_64::registers::{PAT, PAT_MSR};
use registers::*;
use tables::{Segments, TaskState};

/// The largest number of CPUs.
pub const MAX: usize = 64;

/// The offsets of the block's fields, for assembly.
pub mod offset {
    use super::Block;
    pub const KERNEL_STACK: usize = core::mem::offset_of!(Block, kernel_stack);
    pub const USER_STACK: usize = core::mem::offset_of!(Block, user_stack);
    pub const PREEMPT: usize = core::mem::offset_of!(Block, preempt);
    pub const ID: usize = core::mem::offset_of!(Block, id);
    pub const CURRENT: usize = core::mem::offset_of!(Block, current);
    pub const THIS: usize = core::mem::offset_of!(Block, this);
}

/// The top bit of the preemption word, which is *clear* while a reschedule is pending. So the decrement in
/// [`preempt_enable`] gives zero exactly if the count is zero and a reschedule is pending.
pub const NOT_PENDING: u32 = 1 << 31;

/// A CPU's block of CPU-local storage. The fields that assembly reads come first, on one cache line.
#[repr(C, align(128))]
pub struct Block {
    /// The top of the running thread's kernel stack, to which the SYSCALL entry switches.
    pub kernel_stack: u64,
    /// The user's stack pointer while the SYSCALL entry switches stacks.
    pub user_stack: u64,
    /// The preemption word: the preemption count and [`NOT_PENDING`].
    pub preempt: u32,
    /// The number of this CPU.
    pub id: u32,
    /// The address of the running thread (a `quire_task::Thread`); 0 before there is one.
    pub current: usize,
    /// The address of this block.
    pub this: *mut Block,
    /// The FS and user GS bases that were loaded last.
    pub fs_base: u64,
    pub gs_base: u64,
    /// The running program may not read the time-stamp counter (CR4.TSD is set).
    pub no_counter: bool,
    /// The address of the `thread::context::Context` of the thread that gives up its stack at the present switch, or 0.
    pub departed: usize,
    /// A switch has changed the number of this CPU's idle kernel stacks, so the reserve must be checked.
    pub restock: bool,
    pub task: TaskState,
    pub segments: Segments,
    /// The spin locks that this CPU holds.
    #[cfg(debug_assertions)]
    pub held: quire_sync::held::SpinsHeld,
}

impl Block {
    pub const fn new(id: u32) -> Block {
        Block {
            kernel_stack: 0,
            user_stack: 0,
            preempt: NOT_PENDING,
            id,
            current: 0,
            this: core::ptr::null_mut(),
            fs_base: 0,
            gs_base: 0,
            no_counter: false,
            departed: 0,
            restock: false,
            task: TaskState::new(),
            segments: Segments::new(),
            #[cfg(debug_assertions)]
            held: quire_sync::held::SpinsHeld::new(),
        }
    }
}

struct BootBlock(core::cell::UnsafeCell<Block>);
// SAFETY: only CPU 0 accesses the block, through GS.
unsafe impl Sync for BootBlock {}
static BOOT_BLOCK: BootBlock = BootBlock(core::cell::UnsafeCell::new(Block::new(0)));

static BLOCKS: [AtomicPtr<Block>; MAX] = [const { AtomicPtr::new(core::ptr::null_mut()) }; MAX];
static APIC_IDS: [AtomicU32; MAX] = [const { AtomicU32::new(0) }; MAX];
static COUNT: AtomicUsize = AtomicUsize::new(1);

/// The boot CPU's block.
pub fn boot_block() -> *mut Block {
    BOOT_BLOCK.0.get()
}

/// The local APIC identifier of a CPU that has not started yet.
pub const NOT_ARRIVED: u32 = u32::MAX;

/// Stores the block and the local APIC identifier of CPU `id`.
pub fn register(id: usize, block: *mut Block, apic: u32) {
    BLOCKS[id].store(block, Ordering::Release);
    APIC_IDS[id].store(apic, Ordering::Release);
}

/// Sets the number of CPUs. Called once, at boot.
pub fn set_count(n: usize) {
    COUNT.store(n, Ordering::Release);
}

/// The number of CPUs.
#[inline(always)]
pub fn count() -> usize {
    COUNT.load(Ordering::Relaxed)
}

/// The local APIC identifier of CPU `id`.
#[inline(always)]
pub fn apic_id(id: usize) -> u32 {
    APIC_IDS[id].load(Ordering::Relaxed)
}

/// The block of CPU `id`; null before [`register`] was called for it.
pub fn block_of(id: usize) -> *mut Block {
    BLOCKS[id].load(Ordering::Acquire)
}

/// The number of the CPU that runs the caller.
#[inline(always)]
pub fn id() -> usize {
    let id: u32;
    // SAFETY: GS points to this CPU's block from the CPU's first Rust instructions on.
    unsafe { asm!("mov {:e}, gs:[{}]", out(reg) id, const offset::ID, options(nostack, preserves_flags, readonly)) }
    id as usize
}

/// Disables preemption, which keeps the caller on this CPU.
#[inline(always)]
pub fn preempt_disable() {
    // SAFETY: one instruction increments the count in this CPU's block.
    unsafe { asm!("inc dword ptr gs:[{}]", const offset::PREEMPT, options(nostack)) }
}

/// Undoes one [`preempt_disable`]. If the count becomes zero and a reschedule is pending, calls `preempt_stub`, which
/// `thread::hooks` defines and the linker resolves.
///
/// Every unlock calls this, so it costs only two instructions, and the stub preserves the caller's registers.
#[inline(always)]
pub fn preempt_enable() {
    // SAFETY: one instruction decrements the count in this CPU's block. The stub preserves all registers but the flags.
    unsafe {
        asm!(
            "dec dword ptr gs:[{}]",
            "jz 3f",
            "2:",
            ".pushsection .text.preempt, \"ax\"",
            "3: call preempt_stub",
            "jmp 2b",
            ".popsection",
            const offset::PREEMPT,
        );
    }
}

/// Whether preemption is enabled on this CPU and a reschedule is pending.
#[inline(always)]
pub fn preempt_due() -> bool {
    preempt_word() == 0
}

/// The preemption count and [`NOT_PENDING`].
#[inline(always)]
pub fn preempt_word() -> u32 {
    let word: u32;
    // SAFETY: in the kernel GS points to this CPU's block, and the offset is that of a `u32` in it.
    unsafe {
        asm!("mov {:e}, gs:[{}]", out(reg) word, const offset::PREEMPT, options(nostack, preserves_flags, readonly))
    }
    word
}

/// The preemption count of this CPU.
#[inline(always)]
pub fn preempt_count() -> u32 {
    preempt_word() & !NOT_PENDING
}

/// Whether the caller may sleep: it holds no spin lock and no epoch pin, and is not an interrupt handler.
pub fn may_sleep() -> bool {
    preempt_count() == 0 && current_thread() != 0 && interrupts_are_on()
}

/// Sets or clears this CPU's flag that a reschedule is pending.
#[inline(always)]
pub fn set_pending(pending: bool) {
    // SAFETY: one instruction changes one bit in this CPU's block.
    unsafe {
        if pending {
            asm!("and dword ptr gs:[{}], {}", const offset::PREEMPT, const !NOT_PENDING as i32, options(nostack))
        } else {
            asm!("or dword ptr gs:[{}], {}", const offset::PREEMPT, const NOT_PENDING as i32, options(nostack))
        }
    }
}

/// The address of the running thread, as stored by [`set_current_thread`]; 0 before the first call.
#[inline(always)]
pub fn current_thread() -> usize {
    let at: usize;
    // SAFETY: in the kernel GS points to this CPU's block, and the offset is that of a word in it.
    unsafe { asm!("mov {}, gs:[{}]", out(reg) at, const offset::CURRENT, options(nostack, preserves_flags, readonly)) }
    at
}

/// Stores the address of the running thread.
///
/// # Safety
/// The caller switches to that thread, with interrupts masked.
#[inline(always)]
pub unsafe fn set_current_thread(at: usize) {
    // SAFETY: in the kernel GS points to this CPU's block, and the caller is switching to the thread.
    unsafe { asm!("mov gs:[{}], {}", const offset::CURRENT, in(reg) at, options(nostack, preserves_flags)) }
}

/// This CPU's block.
///
/// # Safety
/// The pointer is used only on this CPU, so preemption is disabled while it is used.
#[inline(always)]
pub unsafe fn block() -> *mut Block {
    let at: *mut Block;
    // SAFETY: in the kernel GS points to this CPU's block, which has its own address at that offset.
    unsafe { asm!("mov {}, gs:[{}]", out(reg) at, const offset::THIS, options(nostack, preserves_flags, readonly)) }
    at
}

/// Masks interrupts on this CPU. Returns whether they were on.
#[inline(always)]
pub fn interrupts_off() -> bool {
    let flags: u64;
    // SAFETY: masking interrupts is always allowed in the kernel.
    unsafe { asm!("pushfq", "pop {}", "cli", out(reg) flags) }
    flags & 0x200 != 0
}

/// Masks interrupts.
#[inline(always)]
pub fn interrupts_disable() {
    // SAFETY: masking interrupts is always allowed in the kernel.
    unsafe { asm!("cli", options(nostack, preserves_flags)) }
}

/// Unmasks interrupts if `on`.
#[inline(always)]
pub fn interrupts_restore(on: bool) {
    if on {
        interrupts_on();
    }
}

/// Unmasks interrupts.
#[inline(always)]
pub fn interrupts_on() {
    // SAFETY: unmasking interrupts is allowed, because the caller runs in thread context.
    unsafe { asm!("sti", options(nostack)) }
}

/// Whether interrupts are on.
#[inline(always)]
pub fn interrupts_are_on() -> bool {
    let flags: u64;
    // SAFETY: the pushed flags are popped at once. Without the option `nostack` the compiler has no data below the
    // stack pointer.
    unsafe { asm!("pushfq", "pop {}", out(reg) flags, options(nomem, preserves_flags)) }
    flags & 0x200 != 0
}

/// Unmasks interrupts and halts, atomically. Returns after any interrupt.
#[inline(always)]
pub fn halt() {
    // SAFETY: STI takes effect after the next instruction, so no interrupt is lost between the two.
    unsafe { asm!("sti", "hlt", options(nostack)) }
}

/// Halts this CPU for ever.
pub fn stop() -> ! {
    loop {
        // SAFETY: interrupts stay masked: only an NMI ends a HLT, and the loop halts again.
        unsafe { asm!("cli", "hlt", options(nomem, nostack)) }
    }
}

const CR0_WRITE_PROTECT: u64 = 1 << 16;
const CR0_NUMERIC_ERROR: u64 = 1 << 5;
const CR0_MONITOR: u64 = 1 << 1;
const CR0_EMULATION: u64 = 1 << 2;
const CR0_TASK_SWITCHED: u64 = 1 << 3;
const CR4_NO_COUNTER: u64 = 1 << 2;
const CR4_MACHINE_CHECK: u64 = 1 << 6;
const CR4_GLOBAL_PAGES: u64 = 1 << 7;
const CR4_FXSAVE: u64 = 1 << 9;
const CR4_SIMD_EXCEPTIONS: u64 = 1 << 10;
const CR4_UMIP: u64 = 1 << 11;
const CR4_PCID: u64 = 1 << 17;
const CR4_XSAVE: u64 = 1 << 18;
const CR4_SMEP: u64 = 1 << 20;
const CR4_SMAP: u64 = 1 << 21;
const EFER_SYSCALL: u64 = 1;
/// The flags that SYSCALL clears: trap, interrupt, direction, I/O privilege, nested task, alignment check.
const SYSCALL_MASK: u64 = 0x4_7700;

/// Forbids or allows that programs on this CPU read the time-stamp counter. Called with interrupts masked.
#[cold]
pub fn forbid_counter(forbid: bool) {
    // SAFETY: the bit concerns user mode only, and every processor of x86-64 has it.
    unsafe { set_cr4(if forbid { cr4() | CR4_NO_COUNTER } else { cr4() & !CR4_NO_COUNTER }) };
}

/// Sets this CPU's registers that never change: the registers for protection, FPU and memory types.
///
/// # Safety
/// Interrupts are masked, the kernel's own page tables are loaded (with PCID zero), and `features::detect` has run.
pub unsafe fn set_registers() {
    let when = |feature: Feature, bit: u64| if has(feature) { bit } else { 0 };
    // SAFETY: each bit is set only if the CPU has the feature.
    unsafe {
        set_cr0((cr0() | CR0_WRITE_PROTECT | CR0_NUMERIC_ERROR | CR0_MONITOR) & !(CR0_EMULATION | CR0_TASK_SWITCHED));
        set_cr4(
            (cr4() & !CR4_XSAVE)
                | CR4_MACHINE_CHECK
                | CR4_GLOBAL_PAGES
                | CR4_FXSAVE
                | CR4_SIMD_EXCEPTIONS
                | when(Feature::Umip, CR4_UMIP)
                | when(Feature::Pcid, CR4_PCID)
                | when(Feature::Xsave, CR4_XSAVE)
                | when(Feature::Smep, CR4_SMEP)
                | when(Feature::Smap, CR4_SMAP),
        );
        wrmsr(PAT_MSR, PAT);
    }
}

/// Makes the SYSCALL instruction of this CPU enter the kernel at `entry`.
///
/// # Safety
/// `entry` is the entry for system calls, and the descriptor tables are loaded.
pub unsafe fn set_system_calls(entry: u64) {
    // SAFETY: `boot::required` has checked that the CPUs have SYSCALL, and the caller vouches for the entry.
    unsafe {
        wrmsr(EFER, rdmsr(EFER) | EFER_SYSCALL);
        wrmsr(STAR, (tables::SYSRET_BASE as u64) << 48 | (tables::KERNEL_CS as u64) << 32);
        wrmsr(LSTAR, entry);
        // CSTAR is the entry from compatibility mode, which no program can use: `Segments` has no descriptor for it.
        wrmsr(CSTAR, 0);
        wrmsr(SFMASK, SYSCALL_MASK);
    }
}
