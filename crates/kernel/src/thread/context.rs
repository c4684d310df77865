//! Threads' saved contexts, and the switch between them.
//!
//! # Threads without a kernel stack
//! A program's thread needs a kernel stack only while it runs in the kernel, or sleeps in the middle of kernel code. A
//! new thread has none. A thread whose system call sleeps in a known place gives its stack up ([`depart`]): its user
//! registers stay in its context, and the layer above has the state of the call. So does a thread that is preempted on
//! its way to user mode ([`depart_preempted`]). The CPU that switches to such a thread
//! supplies a stack. It is the stack of the previous thread if that departs too, else an idle one of the CPU. No memory
//! can be had during a switch, so each CPU sets one idle stack aside. The thread that took it replaces it before it
//! does anything else ([`begin`]). If there is no memory for that, the thread departs again, and so gives its own stack
//! to the CPU.

use crate::cpu::{self, clock, fpu, registers};
use crate::machine::{Machine, scheduler};
use crate::memory::stack::{self, Stack};
use crate::report::trace::known::Known;
use core::arch::global_asm;
use quire_linux_state::UserRegs;
use quire_pmap_x86_64::X86Pmap;
use quire_sync::CpuId;
use quire_task::Thread;
use quire_vm::OutOfMemory;

/// The saved registers of a thread that does not run, and its stack. Callee-saved registers lie on the stack.
pub struct Context {
    stack_pointer: u64,
    /// One past the highest byte of the kernel stack, on which system calls and traps from user mode begin; 0: none.
    stack_top: u64,
    /// User FS and GS bases.
    pub fs_base: u64,
    pub gs_base: u64,
    /// The program may not read the time-stamp counter.
    pub no_counter: bool,
    /// `None` for kernel threads, which use no floating point. The room after the state has the [`GoingOn`] of the
    /// program's thread.
    fpu: Option<fpu::Area>,
    /// `None`: an idle thread, which uses the CPU's start stack, or a program's thread that gave its stack up.
    stack: Option<Stack>,
    /// The tracer's record of it.
    #[cfg_attr(not(feature = "trace"), expect(dead_code, reason = "only the tracer reads it"))]
    pub known: Known,
    /// The sleeping locks that the thread holds.
    #[cfg(debug_assertions)]
    pub held: quire_sync::held::MutexesHeld,
}

/// How a program's thread without a stack goes on.
struct GoingOn {
    /// The registers that it will load at last.
    regs: UserRegs,
    /// The thread parked, so its sleep has to be finished.
    parked: bool,
    /// Called on the new stack, with a pointer to a copy of the registers at its top.
    main: extern "C" fn(&mut UserRegs),
}

// Four threads fit a page. With debug assertions, a context also records locks. A traced one has more in its record.
#[cfg(not(any(debug_assertions, feature = "trace")))]
const _: () = assert!(size_of::<Thread<Machine>>() <= 1024);
const _: () = assert!(size_of::<GoingOn>() <= fpu::ROOM && align_of::<GoingOn>() <= 64);

/// The wait before a thread asks for a stack again, in nanoseconds.
const RETRY: u64 = 10_000_000;

impl Context {
    /// The context of a running thread: a CPU's idle thread, on its start stack.
    pub fn running() -> Context {
        Context::new(0, 0, None, Known::kernel("idle"))
    }

    fn new(stack_pointer: u64, stack_top: u64, stack: Option<Stack>, known: Known) -> Context {
        Context {
            stack_pointer,
            stack_top,
            fs_base: 0,
            gs_base: 0,
            no_counter: false,
            fpu: None,
            stack,
            known,
            #[cfg(debug_assertions)]
            held: quire_sync::held::MutexesHeld::new(),
        }
    }

    /// The first frame of a thread that does not run; `None` if its stack cannot be read.
    ///
    /// # Safety
    /// `context` lives. It may be in use: then the result is useless, but harmless.
    pub unsafe fn saved_frame(context: *const Context) -> Option<u64> {
        // SAFETY: by this function's contract; the number is read in one load.
        let at = unsafe { (&raw const (*context).stack_pointer).read_volatile() };
        // `switch_stacks` pushes r15, r14, r13, r12, rbx, rbp, and the return address, which make a frame.
        let frame = at.checked_add(40)?;
        (at != 0 && crate::memory::stack::is_readable(frame)).then_some(frame)
    }

    /// Bytes of the kernel stack that a thread has at this moment; 0 if it gave its stack up.
    ///
    /// # Safety
    /// `context` lives. It may be in use: then the result is of a moment ago.
    pub unsafe fn stack_len(context: *const Context) -> usize {
        // SAFETY: by this function's contract; the number is read in one load.
        let top = unsafe { (&raw const (*context).stack_top).read_volatile() };
        if top == 0 { 0 } else { stack::SIZE as usize }
    }

    /// A kernel thread that calls `main(argument)`, which must not return.
    pub fn kernel(
        name: &'static str,
        main: extern "C" fn(usize) -> !,
        argument: usize,
    ) -> Result<Context, OutOfMemory> {
        let stack = Stack::new()?;
        let top = stack.top();
        // Two spare words align the stack as after a call, and end the chain of frames. SAFETY: the stack is this
        // function's own.
        let stack_pointer = unsafe {
            first_frame(top - 16, kernel_thread_start as *const () as u64, main as *const () as u64, argument as u64)
        };
        Ok(Context::new(stack_pointer, top, Some(stack), Known::kernel(name)))
    }

    /// A thread that goes to user mode. It calls `main` with a pointer to a copy of `regs` at the top of its stack,
    /// which it gets when it runs. When `main` returns, it loads the registers from there.
    pub fn user(
        regs: &UserRegs,
        main: extern "C" fn(&mut UserRegs),
        fs_base: u64,
        gs_base: u64,
        no_counter: bool,
        fpu: fpu::Area,
    ) -> Context {
        // SAFETY: the room is large enough, as asserted above, and the context that is made here owns it.
        unsafe { fpu.room().cast().write(GoingOn { regs: *regs, parked: false, main }) };
        Context { fs_base, gs_base, no_counter, fpu: Some(fpu), ..Context::new(0, 0, None, Known::program()) }
    }

    /// How a program's thread goes on.
    fn going_on(&mut self) -> &mut GoingOn {
        let Some(area) = &self.fpu else { unreachable!("a kernel thread gives its stack up") };
        // SAFETY: `user` wrote it, no code but this has its address, and `self` is borrowed as long as it.
        unsafe { area.room().cast().as_mut() }
    }
}

/// Lays out the frame that `switch_stacks` pops, below `at`: rbx = `main`, r12 = `argument`, and `start` as the return
/// address.
///
/// # Safety
/// The memory below `at` is an unused stack.
unsafe fn first_frame(at: u64, start: u64, main: u64, argument: u64) -> u64 {
    let frame: [u64; 7] = [0, 0, 0, argument, main, 0, start];
    let at = at - 56;
    // SAFETY: the caller vouches that the stack below `at`, where the frame lies, is used by no thread.
    unsafe { (at as *mut [u64; 7]).write(frame) };
    at
}

global_asm!(
    r#"
    .section .text.entry, "ax"
    // rdi = address for the old stack pointer, rsi = the new stack pointer
    .balign 32
    .global switch_stacks
    switch_stacks:
        push rbp
        push rbx
        push r12
        push r13
        push r14
        push r15
        mov [rdi], rsp
        mov rsp, rsi
        pop r15
        pop r14
        pop r13
        pop r12
        pop rbx
        pop rbp
        ret

    .global kernel_thread_start
    kernel_thread_start:
        call {started}
        mov rdi, r12
        xor ebp, ebp
        call rbx
        ud2

    // rdi = where the old stack pointer goes, rsi = one past the highest byte of an unused stack
    .balign 32
    .global switch_to_unused
    switch_to_unused:
        push rbp
        push rbx
        push r12
        push r13
        push r14
        push r15
        mov [rdi], rsp
    // The same without a way back to the old stack, which may be the new one.
    .global leave_to_unused
    leave_to_unused:
        mov rsp, rsi
        sub rsp, {regs}
        mov rdi, rsp
        xor ebp, ebp
        call {begin}
        jmp trap_first_return
    .text
    "#,
    started = sym started,
    begin = sym begin,
    regs = const size_of::<UserRegs>(),
);

unsafe extern "C" {
    fn switch_stacks(old: *mut u64, new: u64);
    fn switch_to_unused(old: *mut u64, top: u64);
    fn leave_to_unused(unused: *mut u64, top: u64) -> !;
    fn kernel_thread_start();
}

extern "C" fn started() {
    // SAFETY: a new thread's first call, with interrupts masked.
    unsafe { put_by_left_stack() };
    scheduler().started();
}

/// The first function on the stack of a thread that had none. `regs` is room at the top of the stack.
///
/// # Safety
/// Called by `switch_to_unused` and `leave_to_unused` only, with interrupts masked.
unsafe extern "C" fn begin(regs: *mut UserRegs) {
    // SAFETY: by this function's contract; the context is the running thread's own, and only this thread changes it
    // while it runs. The block is this CPU's, while interrupts are masked.
    let (going_on, restock) = unsafe {
        put_by_left_stack();
        let context = scheduler().current().context();
        ((&mut *context).going_on(), core::mem::replace(&mut (*cpu::block()).restock, false))
    };
    if restock {
        // The CPU's last idle stack may be gone, so no other thread may be switched to.
        cpu::preempt_disable();
    }
    if going_on.parked {
        scheduler().resumed();
    } else {
        scheduler().started();
    }
    if restock {
        restock_idle(going_on);
    }
    // SAFETY: the room is this thread's, by this function's contract. It is no part of the context.
    unsafe { core::ptr::copy_nonoverlapping(&raw const going_on.regs, regs, 1) };
    // SAFETY: written just now, and no other reference to it exists.
    (going_on.main)(unsafe { &mut *regs });
}

/// Sets idle stacks of this CPU aside anew, and enables preemption, which the caller has disabled.
#[cold]
fn restock_idle(going_on: &mut GoingOn) {
    while stack::kernel_map().stock().is_err() {
        // There is no memory: the CPU gets this thread's stack meanwhile. A wake-up ends the wait early, and is not
        // lost, because `main` looks for what it waited for.
        cpu::interrupts_disable();
        // SAFETY: this CPU's block, with interrupts masked. If this thread sleeps, the next one here restocks the list.
        unsafe { (*cpu::block()).restock = true };
        going_on.parked = true;
        cpu::preempt_enable();
        // SAFETY: `going_on` says how it goes on, with the registers that it has not loaded yet.
        unsafe { scheduler().depart(Some(clock::now() + RETRY)) };
        // It did not sleep.
        cpu::preempt_disable();
        cpu::interrupts_on();
    }
    cpu::preempt_enable();
}

/// A function that goes on with a thread on some other stack, with a copy of its registers at the stack's top. When it
/// returns, the thread loads the registers.
pub type Main = extern "C" fn(&mut UserRegs);

/// Parks the calling program's thread until it is unparked, or until `deadline`, and gives its kernel stack up. Then
/// `main` goes on with `regs`. Returns if there was a reason not to sleep.
///
/// # Safety
/// The caller is a program's thread that holds nothing on its stack but `regs`: no reference into the stack, and no
/// value that must be dropped, because this may never return.
pub unsafe fn depart(regs: &UserRegs, main: Main, deadline: Option<u64>) {
    goes_on(regs, main, true);
    // SAFETY: by this function's contract; the context says how the thread goes on.
    unsafe { scheduler().depart(deadline) };
}

/// Preempts the calling program's thread on its way to user mode, as [`depart`] does.
///
/// # Safety
/// As [`depart`].
pub unsafe fn depart_preempted(regs: &UserRegs, main: Main) {
    goes_on(regs, main, false);
    // SAFETY: by this function's contract; the context says how the thread goes on.
    unsafe { scheduler().preempt_departing() };
}

fn goes_on(regs: &UserRegs, main: Main, parked: bool) {
    // SAFETY: the calling thread's own context, which the CPU that switches reads later.
    unsafe {
        let context = scheduler().current().context();
        #[cfg(debug_assertions)]
        assert!((*context).held.is_empty(), "a thread that gives its stack up holds a lock: {:?}", (*context).held);
        let going_on = (&mut *context).going_on();
        // Said to be apart, so that the copy does not look for an overlap.
        core::ptr::copy_nonoverlapping(regs, &raw mut going_on.regs, 1);
        going_on.main = main;
        going_on.parked = parked;
    }
}

/// Gives the stack of the thread that departed here to the CPU's idle ones.
///
/// # Safety
/// Interrupts are masked. The caller runs on another stack, and has not finished the switch.
#[inline(always)]
unsafe fn put_by_left_stack() {
    // SAFETY: this CPU's block; the thread that departed is on this CPU until the switch is finished, so its context
    // is this CPU's.
    unsafe {
        let departed = core::mem::replace(&mut (*cpu::block()).departed, 0) as *mut Context;
        if let Some(context) = departed.as_mut()
            && let Some(stack) = context.stack.take()
        {
            context.stack_top = 0;
            put_by(stack);
        }
    }
}

#[cold]
fn put_by(stack: Stack) {
    // SAFETY: this CPU's block; interrupts are masked.
    unsafe { (*cpu::block()).restock = true };
    stack.put_by();
}

/// Saves the caller in `prev` and continues `next`. If `departs`, the caller's stack is given up, and this does not
/// return.
///
/// # Safety
/// `prev` is the calling thread, `next` a complete context that runs nowhere; interrupts are masked. A caller that
/// departs has set how it goes on, and no reference into its stack exists.
#[inline(always)]
pub unsafe fn switch(machine: &Machine, prev: &Thread<Machine>, next: &Thread<Machine>, departs: bool) {
    // SAFETY: by this function's contract this CPU owns both contexts during the switch.
    unsafe {
        let (from, to) = (prev.context(), next.context());
        if let Some(area) = &(*from).fpu {
            fpu::save(area.as_ptr());
        }
        let block = cpu::block();
        let mut begins = false;
        if let Some(area) = &(*to).fpu {
            if (*to).stack.is_none() {
                begins = true;
                supply(from, to, departs);
            }
            (*block).kernel_stack = (*to).stack_top;
            (&raw mut (*block).task.stacks[0]).write_unaligned((*to).stack_top);
            fpu::restore(area.as_ptr());
            load_bases(block, (*to).fs_base, (*to).gs_base);
            load_counter(block, (*to).no_counter);
        }
        switch_space(machine, prev, next);
        if departs {
            (*from).stack_pointer = 0;
            // Its stack is gone if the next thread has it.
            (*block).departed = from as usize;
        }
        match (departs, begins) {
            (false, false) => switch_stacks(&raw mut (*from).stack_pointer, (*to).stack_pointer),
            (false, true) => switch_to_unused(&raw mut (*from).stack_pointer, (*to).stack_top),
            (true, true) => leave_to_unused(core::ptr::null_mut(), (*to).stack_top),
            // The stack pointer is stored where no thread reads it.
            (true, false) => switch_stacks(&raw mut (*block).user_stack, (*to).stack_pointer),
        }
        put_by_left_stack();
    }
}

/// Gives `to` a stack: the one of `from` if that departs, else an idle one of this CPU.
///
/// # Safety
/// As [`switch`].
#[inline(always)]
unsafe fn supply(from: *mut Context, to: *mut Context, departs: bool) {
    // SAFETY: by this function's contract this CPU owns both contexts.
    unsafe {
        let stack = if departs {
            (*from).stack_top = 0;
            (*from).stack.take()
        } else {
            (*cpu::block()).restock = true;
            Stack::last()
        };
        let Some(stack) = stack else { panic!("CPU {} has no idle kernel stack for a thread without one", cpu::id()) };
        (*to).stack_top = stack.top();
        (*to).stack = Some(stack);
    }
}

/// Loads the bases. A program may have changed them by loading a selector, unnoticed by the kernel. All existing
/// selectors have a base of zero, so the last loaded value is still valid only if it was zero.
///
/// # Requires
/// This CPU's block; interrupts are masked.
#[inline(always)]
unsafe fn load_bases(block: *mut cpu::Block, fs: u64, gs: u64) {
    // SAFETY: the bases are user addresses, checked when they were set.
    unsafe {
        if (*block).fs_base | fs != 0 {
            (*block).fs_base = fs;
            registers::wrmsr(registers::FS_BASE, fs);
        }
        if (*block).gs_base | gs != 0 {
            (*block).gs_base = gs;
            registers::wrmsr(registers::KERNEL_GS_BASE, gs);
        }
    }
}

/// Sets the calling thread's bases, in its context and on this CPU. Interrupts are masked.
///
/// # Safety
/// `context` is the calling thread's; the bases are user addresses.
pub unsafe fn set_bases(context: *mut Context, fs: u64, gs: u64) {
    // SAFETY: the caller vouches that the context is its own, and that the bases are user addresses, which no
    // `wrfsbase` refuses.
    unsafe {
        (*context).fs_base = fs;
        (*context).gs_base = gs;
        load_bases(cpu::block(), fs, gs);
    }
}

/// Lets the program read the time-stamp counter, or forbids it. The kernel may read it in any case.
///
/// # Requires
/// This CPU's block; interrupts are masked.
#[inline(always)]
unsafe fn load_counter(block: *mut cpu::Block, forbid: bool) {
    // SAFETY: this CPU's block by this function's contract.
    unsafe {
        if (*block).no_counter != forbid {
            (*block).no_counter = forbid;
            cpu::forbid_counter(forbid);
        }
    }
}

/// Sets or clears faulting of RDTSC (PR_SET_TSC) for the calling thread. Interrupts are masked.
///
/// # Safety
/// `context` is the calling thread's.
pub unsafe fn forbid_counter(context: *mut Context, forbid: bool) {
    // SAFETY: the caller vouches that the context is its own, and interrupts are masked.
    unsafe {
        (*context).no_counter = forbid;
        load_counter(cpu::block(), forbid);
    }
}

/// Loads the next thread's address space; a thread without one lazily keeps the loaded space.
///
/// # Requires
/// Interrupts are masked.
#[inline(always)]
unsafe fn switch_space(machine: &Machine, prev: &Thread<Machine>, next: &Thread<Machine>) {
    let cpu: CpuId = cpu::id();
    // SAFETY: interrupts are masked, and a space outlives its threads.
    unsafe {
        match pmap(next) {
            Some(pmap) => pmap.switch_in(machine, cpu),
            None => {
                if let Some(pmap) = pmap(prev) {
                    pmap.go_lazy(machine, cpu);
                }
            }
        }
    }
}

/// The page tables that `thread` runs on.
///
/// # Safety
/// As [`quire_linux_state::Thread::pmap`]: the switch to or from that thread.
#[inline(always)]
unsafe fn pmap(thread: &Thread<Machine>) -> Option<&X86Pmap> {
    // SAFETY: the caller is in the switch to or from that thread, during which its space stays.
    thread.payload().as_ref().and_then(|t| unsafe { t.pmap() })
}
