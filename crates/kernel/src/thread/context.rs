//! Threads' saved contexts, and the switch between them.
//!
//! # Threads without a kernel stack
//! A program's thread needs a kernel stack only while it runs in the kernel, or sleeps in the middle of kernel code. A
//! new thread has no stack. A thread *departs* if it gives up its stack at a switch. A thread departs if its system
//! call sleeps in a place that supports this ([`depart`]). Its user registers stay in its context, and the Linux layer
//! has the state of the call. A thread also departs if it is preempted on the return to user mode
//! ([`depart_preempted`]).
//!
//! The CPU that switches to a thread without a stack gives a stack to this thread. If the previous thread departs too,
//! it is the previous thread's stack, else an idle stack of the CPU. A switch cannot allocate memory, so each CPU keeps
//! an idle stack in reserve. A thread that got the reserve stack first allocates another one ([`begin`]). If there is
//! no memory, the thread departs again, and so returns its stack to the CPU.

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

/// The saved registers of a thread that does not run, and its stack. Callee-saved registers are on the stack.
pub struct Context {
    stack_pointer: u64,
    /// The address one past the highest byte of the kernel stack, where system calls and traps from user mode begin. 0
    /// if the thread has no stack.
    stack_top: u64,
    /// The bases of FS and GS in user mode.
    pub fs_base: u64,
    pub gs_base: u64,
    /// The program may not read the time-stamp counter.
    pub no_counter: bool,
    /// The memory for the FPU state; `None` for kernel threads, which use no floating point. The [`GoingOn`] of a
    /// program's thread is in the same memory, after the state.
    fpu: Option<fpu::Area>,
    /// The kernel stack. `None` for an idle thread, which uses the CPU's start stack, and for a program's thread that
    /// gave up its stack.
    stack: Option<Stack>,
    /// The tracer's record of the thread.
    #[cfg_attr(not(feature = "trace"), expect(dead_code, reason = "only the tracer reads it"))]
    pub known: Known,
    /// The sleeping locks that the thread holds.
    #[cfg(debug_assertions)]
    pub held: quire_sync::held::MutexesHeld,
}

/// How a program's thread without a stack continues when it runs again.
struct GoingOn {
    /// The registers that the thread loads when it returns to user mode.
    regs: UserRegs,
    /// The thread parked. So it must call `Scheduler::resumed`, otherwise `Scheduler::started`.
    parked: bool,
    /// The function that is called on the new stack, with a pointer to a copy of the registers at the stack's top.
    main: extern "C" fn(&mut UserRegs),
}

// Four threads fit in a page. With debug assertions a context also records locks, and in a traced build it has a larger
// record, so the limit does not apply then.
#[cfg(not(any(debug_assertions, feature = "trace")))]
const _: () = assert!(size_of::<Thread<Machine>>() <= 1024);
const _: () = assert!(size_of::<GoingOn>() <= fpu::ROOM && align_of::<GoingOn>() <= 64);

/// The wait before a thread tries to allocate an idle stack again, in nanoseconds.
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
    /// `context` is alive. If the thread runs at this moment, the result is useless, but harmless.
    pub unsafe fn saved_frame(context: *const Context) -> Option<u64> {
        // SAFETY: the context is alive by this function's contract; the word is read by one load.
        let at = unsafe { (&raw const (*context).stack_pointer).read_volatile() };
        // `switch_stacks` pushes r15, r14, r13, r12, rbx, rbp, and the return address, which make a frame.
        let frame = at.checked_add(40)?;
        (at != 0 && crate::memory::stack::is_readable(frame)).then_some(frame)
    }

    /// The size in bytes of the kernel stack that a thread has at this moment; 0 if it gave up its stack.
    ///
    /// # Safety
    /// `context` is alive. If the thread runs at this moment, the result may be old.
    pub unsafe fn stack_len(context: *const Context) -> usize {
        // SAFETY: the context is alive by this function's contract; the word is read by one load.
        let top = unsafe { (&raw const (*context).stack_top).read_volatile() };
        if top == 0 { 0 } else { stack::SIZE as usize }
    }

    /// The context of a kernel thread that calls `main(argument)`, which must not return.
    pub fn kernel(
        name: &'static str,
        main: extern "C" fn(usize) -> !,
        argument: usize,
    ) -> Result<Context, OutOfMemory> {
        let stack = Stack::new()?;
        let top = stack.top();
        // Two spare words align the stack as after a call, and end the chain of frames. SAFETY: only this function
        // uses the new stack.
        let stack_pointer = unsafe {
            first_frame(top - 16, kernel_thread_start as *const () as u64, main as *const () as u64, argument as u64)
        };
        Ok(Context::new(stack_pointer, top, Some(stack), Known::kernel(name)))
    }

    /// The context of a program's thread. The thread gets a stack when it first runs. It then calls `main` with a
    /// pointer to a copy of `regs` at the top of that stack. When `main` returns, the thread loads the registers from
    /// the copy and enters user mode.
    pub fn user(
        regs: &UserRegs,
        main: extern "C" fn(&mut UserRegs),
        fs_base: u64,
        gs_base: u64,
        no_counter: bool,
        fpu: fpu::Area,
    ) -> Context {
        // SAFETY: the room in `fpu` is large enough, as asserted above, and the new context owns it.
        unsafe { fpu.room().cast().write(GoingOn { regs: *regs, parked: false, main }) };
        Context { fs_base, gs_base, no_counter, fpu: Some(fpu), ..Context::new(0, 0, None, Known::program()) }
    }

    /// How this program's thread continues without its old stack.
    fn going_on(&mut self) -> &mut GoingOn {
        let Some(area) = &self.fpu else { unreachable!("a kernel thread gives its stack up") };
        // SAFETY: `user` wrote the value, only this function returns its address, and `self` is borrowed as long as the
        // result.
        unsafe { area.room().cast().as_mut() }
    }
}

/// Writes the frame that `switch_stacks` pops, below the address `at`: rbx = `main`, r12 = `argument`, and `start` as
/// the return address. Returns the stack pointer of that frame.
///
/// # Safety
/// The memory below `at` is an unused stack.
unsafe fn first_frame(at: u64, start: u64, main: u64, argument: u64) -> u64 {
    let frame: [u64; 7] = [0, 0, 0, argument, main, 0, start];
    let at = at - 56;
    // SAFETY: the caller vouches that no thread uses the stack below `at`.
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
    // As `switch_to_unused`, but saves nothing of the old stack, because no thread returns to it. The new stack may be
    // the old stack.
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
    // SAFETY: this is a new thread's first call, with interrupts masked, before the switch is finished.
    unsafe { put_by_left_stack() };
    scheduler().started();
}

/// The first function that a program's thread calls on a stack that it just got. `regs` points to memory at the top of
/// that stack, for a copy of the registers.
///
/// # Safety
/// Called by `switch_to_unused` and `leave_to_unused` only, with interrupts masked.
unsafe extern "C" fn begin(regs: *mut UserRegs) {
    // SAFETY: interrupts are masked by this function's contract, so the block is this CPU's. The context belongs to the
    // running thread, and only this thread changes it while it runs.
    let (going_on, restock) = unsafe {
        put_by_left_stack();
        let context = scheduler().current().context();
        ((&mut *context).going_on(), core::mem::replace(&mut (*cpu::block()).restock, false))
    };
    if restock {
        // The CPU may have no idle stack left, so it must not switch to another thread before it has one.
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
    // SAFETY: `regs` is memory of this thread's stack, by this function's contract. It does not overlap the context.
    unsafe { core::ptr::copy_nonoverlapping(&raw const going_on.regs, regs, 1) };
    // SAFETY: the registers were written just now, and no other reference to them exists.
    (going_on.main)(unsafe { &mut *regs });
}

/// Refills this CPU's reserve of idle stacks, and enables preemption, which the caller has disabled.
#[cold]
fn restock_idle(going_on: &mut GoingOn) {
    while stack::kernel_map().stock().is_err() {
        // There is no memory, so the thread sleeps and gives its stack to the CPU. The wake-up for which the thread's
        // system call waits may end this sleep early. That wake-up is not lost, because `main` checks for its event
        // again.
        cpu::interrupts_disable();
        // SAFETY: interrupts are masked, so the block is this CPU's. If this thread sleeps, the next thread that begins
        // on this CPU refills the reserve.
        unsafe { (*cpu::block()).restock = true };
        going_on.parked = true;
        cpu::preempt_enable();
        // SAFETY: `going_on` has what the thread needs to continue, with the registers that it has not loaded yet.
        unsafe { scheduler().depart(Some(clock::now() + RETRY)) };
        // `depart` returned, so the thread did not sleep.
        cpu::preempt_disable();
        cpu::interrupts_on();
    }
    cpu::preempt_enable();
}

/// A function with which a thread that gave up its stack continues on another stack. The argument is a copy of its
/// registers at the stack's top. When the function returns, the thread loads the registers and enters user mode.
pub type Main = extern "C" fn(&mut UserRegs);

/// Parks the calling program's thread until it is unparked, or until `deadline` in nanoseconds, and gives up its kernel
/// stack. After the sleep the thread continues with a call of `main`. `depart` returns only if the thread did not
/// sleep.
///
/// # Safety
/// The caller is a program's thread. Except for `regs`, its stack has no value that must be dropped and none to which a
/// reference exists, because this function may never return.
pub unsafe fn depart(regs: &UserRegs, main: Main, deadline: Option<u64>) {
    goes_on(regs, main, true);
    // SAFETY: the stack is not needed any more by this function's contract, and the context's `GoingOn` is set.
    unsafe { scheduler().depart(deadline) };
}

/// Preempts the calling program's thread on the return to user mode, and gives up its kernel stack, as [`depart`] does.
///
/// # Safety
/// As [`depart`].
pub unsafe fn depart_preempted(regs: &UserRegs, main: Main) {
    goes_on(regs, main, false);
    // SAFETY: the stack is not needed any more by this function's contract, and the context's `GoingOn` is set.
    unsafe { scheduler().preempt_departing() };
}

fn goes_on(regs: &UserRegs, main: Main, parked: bool) {
    // SAFETY: the context is the calling thread's own. Other code reads it only after the switch.
    unsafe {
        let context = scheduler().current().context();
        #[cfg(debug_assertions)]
        assert!((*context).held.is_empty(), "a thread that gives its stack up holds a lock: {:?}", (*context).held);
        let going_on = (&mut *context).going_on();
        // `copy_nonoverlapping` because the two do not overlap, and the copy then needs no check.
        core::ptr::copy_nonoverlapping(regs, &raw mut going_on.regs, 1);
        going_on.main = main;
        going_on.parked = parked;
    }
}

/// Adds a stack to this CPU's idle stacks: that of the thread that gave it up at the last switch on this CPU, if any.
///
/// # Safety
/// Interrupts are masked. The caller runs on another stack, and has not finished the switch.
#[inline(always)]
unsafe fn put_by_left_stack() {
    // SAFETY: interrupts are masked, so the block is this CPU's. No other CPU uses the context of the thread that
    // departed until the switch is finished.
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
    // SAFETY: interrupts are masked, so the block is this CPU's.
    unsafe { (*cpu::block()).restock = true };
    stack.put_by();
}

/// Saves the caller's state in `prev` and continues `next`. If `departs` is true, the caller's stack is given up, and
/// this does not return.
///
/// # Safety
/// Interrupts are masked. `prev` is the calling thread. `next` does not run on any CPU, and its context is complete. A
/// caller that departs has set its `GoingOn`, and no reference into its stack exists.
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
            // `put_by_left_stack` finds no stack in the context if `supply` gave it to the next thread.
            (*block).departed = from as usize;
        }
        match (departs, begins) {
            (false, false) => switch_stacks(&raw mut (*from).stack_pointer, (*to).stack_pointer),
            (false, true) => switch_to_unused(&raw mut (*from).stack_pointer, (*to).stack_top),
            (true, true) => leave_to_unused(core::ptr::null_mut(), (*to).stack_top),
            // The caller's stack pointer is not needed, so it is stored in a word that no thread reads.
            (true, false) => switch_stacks(&raw mut (*block).user_stack, (*to).stack_pointer),
        }
        put_by_left_stack();
    }
}

/// Gives `to` a stack: the stack of `from` if that thread gives it up (`departs`), else an idle stack of this CPU.
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

/// Loads the FS and user GS bases, unless both the last loaded value and the new value are zero. A program may have
/// changed a base by loading a selector, without an entry to the kernel. All existing selectors have a base of zero. So
/// the last loaded value is certain to be still loaded only if it was zero.
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

/// Sets the calling thread's FS and user GS bases, in its context and on this CPU. Interrupts are masked.
///
/// # Safety
/// `context` is the calling thread's; the bases are user addresses.
pub unsafe fn set_bases(context: *mut Context, fs: u64, gs: u64) {
    // SAFETY: the caller vouches that the context is its own, and that the bases are user addresses, which the CPU
    // accepts.
    unsafe {
        (*context).fs_base = fs;
        (*context).gs_base = gs;
        load_bases(cpu::block(), fs, gs);
    }
}

/// Allows or forbids that the program reads the time-stamp counter. The kernel may read it in any case.
///
/// # Requires
/// This CPU's block; interrupts are masked.
#[inline(always)]
unsafe fn load_counter(block: *mut cpu::Block, forbid: bool) {
    // SAFETY: the block is this CPU's, by this function's contract.
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

/// Loads the next thread's address space. If the next thread has none, the previous space stays loaded (lazy TLB).
///
/// # Requires
/// Interrupts are masked.
#[inline(always)]
unsafe fn switch_space(machine: &Machine, prev: &Thread<Machine>, next: &Thread<Machine>) {
    let cpu: CpuId = cpu::id();
    // SAFETY: interrupts are masked, and an address space lives longer than its threads.
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

/// The page tables with which `thread` runs; `None` for a kernel thread.
///
/// # Safety
/// As [`quire_linux_state::Thread::pmap`]: the caller switches to or from that thread.
#[inline(always)]
unsafe fn pmap(thread: &Thread<Machine>) -> Option<&X86Pmap> {
    // SAFETY: the caller switches to or from that thread. Its address space lives during the switch.
    thread.payload().as_ref().and_then(|t| unsafe { t.pmap() })
}
