//! Threads' saved contexts, and the switch between them.

use crate::cpu::{self, fpu, registers};
use crate::machine::Machine;
use crate::memory::stack::Stack;
use crate::report::trace::known::Known;
use core::arch::global_asm;
use quire_pmap_x86_64::X86Pmap;
use quire_sync::CpuId;
use quire_task::Thread;
use quire_vm::OutOfMemory;

/// The saved registers of a thread that does not run, and its stack. Callee-saved registers lie on the stack.
pub struct Context {
    stack_pointer: u64,
    /// One past the highest byte of the kernel stack, on which system calls and traps from user mode begin.
    stack_top: u64,
    /// User FS and GS bases.
    pub fs_base: u64,
    pub gs_base: u64,
    /// `None` for kernel threads, which use no floating point.
    fpu: Option<fpu::Area>,
    _stack: Option<Stack>,
    /// The tracer's record of it.
    #[cfg_attr(not(feature = "trace"), expect(dead_code, reason = "only the tracer reads it"))]
    pub known: Known,
    /// The sleeping locks that the thread holds.
    #[cfg(debug_assertions)]
    pub held: quire_sync::held::MutexesHeld,
}

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
            fpu: None,
            _stack: stack,
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

    /// A thread that goes to user mode. It calls `main` with a pointer to a copy of `regs` at the top of its stack.
    /// When `main` returns, it loads the registers from there.
    pub fn user<R: Copy>(
        regs: &R,
        main: extern "C" fn(&mut R),
        fs_base: u64,
        gs_base: u64,
        fpu: fpu::Area,
    ) -> Result<Context, OutOfMemory> {
        let stack = Stack::new()?;
        let top = stack.top();
        let at = top - size_of::<R>() as u64;
        // SAFETY: the stack is this function's own.
        let stack_pointer = unsafe {
            (at as *mut R).write(*regs);
            first_frame(at, user_thread_start as *const () as u64, main as *const () as u64, at)
        };
        Ok(Context {
            fs_base,
            gs_base,
            fpu: Some(fpu),
            ..Context::new(stack_pointer, top, Some(stack), Known::program())
        })
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

    .global user_thread_start
    user_thread_start:
        call {started}
        mov rdi, r12
        xor ebp, ebp
        call rbx
        jmp trap_first_return
    .text
    "#,
    started = sym started,
);

unsafe extern "C" {
    fn switch_stacks(old: *mut u64, new: u64);
    fn kernel_thread_start();
    fn user_thread_start();
}

extern "C" fn started() {
    crate::machine::scheduler().started();
}

/// Saves the caller in `prev` and continues `next`.
///
/// # Safety
/// `prev` is the calling thread, `next` a complete context that runs nowhere; interrupts are masked.
pub unsafe fn switch(machine: &Machine, prev: &Thread<Machine>, next: &Thread<Machine>) {
    // SAFETY: by this function's contract this CPU owns both contexts during the switch.
    unsafe {
        let (from, to) = (prev.context(), next.context());
        if let Some(area) = &(*from).fpu {
            fpu::save(area.as_ptr());
        }
        if let Some(area) = &(*to).fpu {
            let block = cpu::block();
            (*block).kernel_stack = (*to).stack_top;
            (&raw mut (*block).task.stacks[0]).write_unaligned((*to).stack_top);
            fpu::restore(area.as_ptr());
            load_bases(block, (*to).fs_base, (*to).gs_base);
        }
        switch_space(machine, prev, next);
        switch_stacks(&raw mut (*from).stack_pointer, (*to).stack_pointer);
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
/// As [`quire_linux::Thread::pmap`]: the switch to or from that thread.
#[inline(always)]
unsafe fn pmap(thread: &Thread<Machine>) -> Option<&X86Pmap> {
    // SAFETY: the caller is in the switch to or from that thread, during which its space stays.
    thread.payload().as_ref().and_then(|t| unsafe { t.pmap() })
}
