//! Entry points for the kernel: system calls, page faults, exceptions, and the return to user mode.

use crate::file::{epoll, io, poll, select};
use crate::process::wait;
use crate::rseq;
use crate::syscall;
use crate::syscall::Repeat;
use crate::{futex, signal, socket, time};
use quire_linux_state::errno::{Errno, encode};
use quire_linux_state::machine::Machine;
use quire_linux_state::process::sleep::{Served, Sleep, StreamCall, StreamWait};
use quire_linux_state::process::thread::{Again, Thread, Trap, work};
use quire_linux_state::regs::UserRegs;
use quire_linux_state::shortage::ATTEMPTS;
use quire_linux_state::signal::info::code;
use quire_linux_state::signal::{SigInfo, Signal};
use quire_linux_state::{Ctx, Linux};
use quire_sync::atomic::Ordering;
use quire_sync::hooks::{current_thread, unpark};
use quire_vm::{Access, FaultError, FaultKind};

/// How often a fault is repeated after an OOM victim has freed memory. A fault fails this often only if the freed
/// memory does not help it.
const DEFEATS: u32 = 64;

/// The return value of a call that failed with ENOMEM.
const NO_MEMORY: u64 = (-(Errno::ENOMEM.0 as i64)) as u64;

/// Serves the system call in `regs`. Afterwards `regs.rax` has the result, unless the thread must sleep. The kernel has
/// put the call's number in both `rax` and `orig_rax`.
#[inline(never)]
pub fn syscall<M: Machine>(linux: &'static Linux<M>, regs: &mut UserRegs) -> Served {
    let thread = linux.current();
    // As on Linux, the upper half counts for nothing. The 32-bit load clears it without a further instruction.
    let number = u64::from(regs.orig_rax as u32);
    #[cfg(debug_assertions)]
    thread.refusals.begin();
    // SAFETY: `thread` is the running thread, and this is its only context, because it has just entered the kernel.
    let mut ctx = unsafe { Ctx::new(linux, thread, regs) };
    let result = match syscall::dispatch(&mut ctx, number) {
        Some(result) => result,
        None => encode(unknown_call(linux, number)),
    };
    // `rt_sigreturn` and exec have replaced all registers, so `rax` is not overwritten.
    let (replaced, asleep) = (ctx.regs_replaced, ctx.asleep);
    if !replaced && !asleep {
        regs.rax = result;
    }
    if asleep {
        return falls_asleep(thread);
    }
    #[cfg(debug_assertions)]
    if thread.refusals.end() {
        linux.vm.forget_injected();
        return Served::Done;
    }
    if !replaced && result == NO_MEMORY {
        return syscall_again(linux, regs);
    }
    Served::Done
}

/// The deadline of the calling thread's sleep, in nanoseconds since boot. `None`: no deadline.
pub fn sleeps_until<M: Machine>(linux: &Linux<M>) -> Option<u64> {
    linux.current().park.deadline()
}

/// Continues the call in which the calling thread slept. `regs` are the thread's registers.
pub fn go_on<M: Machine>(linux: &'static Linux<M>, regs: &mut UserRegs) -> Served {
    let thread = linux.current();
    // SAFETY: the thread itself runs this, and nothing borrows the value.
    let how = unsafe { thread.sleep.replace(None) };
    let of_stream = matches!(how, Some(Sleep::Stream(_)));
    // SAFETY: `thread` is the running thread, and this is its only context, because it has just entered the kernel.
    let mut ctx = unsafe { Ctx::new(linux, thread, regs) };
    let result = match how {
        Some(Sleep::Futex(wait)) => futex::go_on(&mut ctx, wait),
        Some(Sleep::Time(sleep)) => time::sleep::go_on(&mut ctx, sleep),
        Some(Sleep::Child(child)) => thread.ending(|| wait::go_on(&mut ctx, child)),
        Some(Sleep::Stream(wait)) => again(&mut ctx, wait),
        Some(Sleep::Poll(wait)) => poll::go_on(&mut ctx, wait),
        Some(Sleep::Select(wait)) => select::go_on(&mut ctx, wait),
        Some(Sleep::Epoll(wait)) => epoll::go_on(&mut ctx, wait),
        Some(Sleep::Signal) => signal::wait::sys_pause(&mut ctx),
        Some(Sleep::Awaited(wait)) => signal::wait::go_on(&mut ctx, wait),
        Some(Sleep::Fork) if ctx.interrupted() => Err(Errno::ERESTARTNOINTR),
        Some(Sleep::Fork) => return syscall(linux, regs),
        None => return Served::Done,
    };
    if ctx.asleep {
        return falls_asleep(thread);
    }
    regs.rax = encode(result);
    #[cfg(debug_assertions)]
    if thread.refusals.end() {
        linux.vm.forget_injected();
        return Served::Done;
    }
    // A stream call that failed with ENOMEM is repeated from its start, like a call whose thread slept with a kernel
    // stack.
    if of_stream && regs.rax == NO_MEMORY {
        return syscall_again(linux, regs);
    }
    Served::Done
}

/// Repeats a call on a stream after its thread was woken.
fn again<M: Machine>(ctx: &mut Ctx<'_, M>, wait: StreamWait<M>) -> Result<usize, Errno> {
    let StreamWait { file, call } = wait;
    ctx.thread.park.again(|| match call {
        StreamCall::Read(to) => io::read(ctx, file, to),
        StreamCall::Write(from) => io::write(ctx, file, from),
        StreamCall::Send { from, flags } => socket::send_bytes(ctx, file, from, flags),
        StreamCall::Receive { to, flags, name, name_len } => {
            socket::receive_from(ctx, file, to, flags, socket::From { name, name_len })
        }
        StreamCall::ReceiveMessage { header, flags } => socket::receive_message(ctx, file, header, flags),
        StreamCall::Accept(call) => socket::accept(ctx, file, call),
        StreamCall::Connect => socket::go_on_connecting(ctx, file),
    })
}

/// Ends a call whose thread must sleep. The thread is already listed as a waiter, so a wake-up or signal may have given
/// it an unpark token. If the call then slept on a lock, that sleep may have consumed the token. So this function
/// renews the token.
#[cold]
fn falls_asleep<M: Machine>(thread: &Thread<M>) -> Served {
    let listing = thread.park.listing();
    if !listing.queue().is_null() {
        // The check for signals may itself sleep on a lock and consume a token.
        if thread.interrupted() {
            unpark(current_thread());
        }
        // The token is renewed last, because from here the thread acquires no lock until it sleeps, so nothing consumes
        // the token.
        listing.renew_token();
    }
    Served::Asleep
}

/// Repeats a call that failed with ENOMEM, as long as memory is low and pageout frees some. A call is not repeated if
/// effects of the failed attempt could disturb the next one ([`Repeat`]), or if its thread must end.
#[cold]
fn syscall_again<M: Machine>(linux: &'static Linux<M>, regs: &mut UserRegs) -> Served {
    let thread = linux.current();
    let again = &thread.again;
    if again.load(Ordering::Relaxed) != Again::NO {
        // This failure is one of the attempts of the loop below, which must not begin another loop.
        again.store(Again::FAILED, Ordering::Relaxed);
        return Served::Done;
    }
    if !Repeat::of(regs.orig_rax).is_some_and(|repeat| repeat != Repeat::Never) {
        return Served::Done;
    }
    let mut served = Served::Done;
    for _ in 0..ATTEMPTS {
        // A thread that must end needs no result, and must not wait for memory.
        if thread.killed() || !linux.has_made_room() {
            break;
        }
        again.store(Again::TRIES, Ordering::Relaxed);
        served = syscall(linux, regs);
        if again.load(Ordering::Relaxed) != Again::FAILED {
            break;
        }
    }
    again.store(Again::NO, Ordering::Relaxed);
    served
}

#[cold]
fn unknown_call<M: Machine>(linux: &Linux<M>, number: u64) -> Result<usize, Errno> {
    if linux.machine.verbose() && linux.unknown.first_time(number) {
        match syscall::names::name(number) {
            Some(name) => linux.machine.log(format_args!("system call {name} ({number}) is not supported")),
            None => linux.machine.log(format_args!("there is no system call {number}")),
        }
    }
    Err(Errno::ENOSYS)
}

/// Serves a page fault at `address`. If `from_user` is set, the program faulted in user mode. A fault that cannot be
/// served then sends the program a signal. If `from_user` is not set, the kernel faulted on a user address. If this
/// function returns `false`, the kernel continues at its fix-up address.
pub fn page_fault<M: Machine>(
    linux: &'static Linux<M>,
    regs: &mut UserRegs,
    address: u64,
    access: Access,
    from_user: bool,
) -> bool {
    if !from_user {
        return kernel_fault(linux, address, access);
    }
    match repair(linux, address, access) {
        Ok(()) => true,
        Err(error) => {
            fault_signal(linux, regs, address, access, error);
            false
        }
    }
}

/// Serves a fault of the kernel on user memory, like [`page_fault`]. Returns whether the fault was served.
pub fn kernel_fault<M: Machine>(linux: &'static Linux<M>, address: u64, access: Access) -> bool {
    repair(linux, address, access).is_ok()
}

/// Serves a fault. If memory is exhausted, the fault is repeated after an OOM victim has ended.
/// [`FaultError::OutOfMemory`] means that the calling thread must end.
fn repair<M: Machine>(linux: &'static Linux<M>, address: u64, access: Access) -> Result<(), FaultError> {
    #[cfg(debug_assertions)]
    if linux.current().refusals.misses(address / quire_vm::PAGE_SIZE) {
        return Err(FaultError::OutOfMemory);
    }
    match repair_once(linux, address, access) {
        Err(FaultError::OutOfMemory) => repair_again(linux, address, access),
        done => done,
    }
}

#[cold]
fn repair_again<M: Machine>(linux: &'static Linux<M>, address: u64, access: Access) -> Result<(), FaultError> {
    #[cfg(debug_assertions)]
    if linux.current().refusals.has_refused() {
        linux.current().refusals.miss(address / quire_vm::PAGE_SIZE);
        return Err(FaultError::OutOfMemory);
    }
    loop {
        for _ in 0..DEFEATS {
            if !linux.out_of_memory("a fault") {
                return Err(FaultError::OutOfMemory);
            }
            match repair_once(linux, address, access) {
                Err(FaultError::OutOfMemory) => {}
                done => return done,
            }
        }
        // Before each attempt of the loop above, memory was free, and the fault still failed.
        if !linux.end_for_defeats("a fault", DEFEATS) {
            return Err(FaultError::OutOfMemory);
        }
    }
}

#[inline(always)]
fn repair_once<M: Machine>(linux: &Linux<M>, address: u64, access: Access) -> Result<(), FaultError> {
    let thread = linux.current();
    // SAFETY: the running thread owns its space and replaces it in `exec` and `exit` only, and no fault runs inside
    // `exec` or `exit`.
    let Some(space) = (unsafe { thread.space.get() }) else { return Err(FaultError::NotMapped) };
    let kind = match space.fault(address, access) {
        // The address may be below a stack that can grow. After the stack has grown, the fault is served as usual.
        Err(FaultError::NotMapped) => {
            if !crate::memory::lock::stack_may_grow(thread, space, address) {
                return Err(FaultError::NotMapped);
            }
            space.grow_stack_at_fault(address)?;
            space.fault(address, access)?
        }
        other => other?,
    };
    let count = if kind == FaultKind::PagedIn { &thread.major_faults } else { &thread.minor_faults };
    // Only this thread writes the counter, so a load and a store are enough.
    count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    Ok(())
}

#[cold]
fn fault_signal<M: Machine>(
    linux: &'static Linux<M>,
    regs: &UserRegs,
    address: u64,
    access: Access,
    error: FaultError,
) {
    let thread = linux.current();
    // The error code of the CPU. Bits: present (1), write (2), user (4), instruction fetch (16).
    let bits = match access {
        Access::Read => 4,
        Access::Write => 6,
        Access::Exec => 0x14,
    };
    let trap = Trap { vector: 14, error: bits | u32::from(error == FaultError::Protection), address };
    // SAFETY: the value belongs to the calling thread.
    unsafe { thread.trap.replace(trap) };
    let info = match error {
        FaultError::NotMapped => SigInfo::fault(Signal::SEGV, code::SEGV_MAPERR, address),
        FaultError::Protection => SigInfo::fault(Signal::SEGV, code::SEGV_ACCERR, address),
        // The thread ends on its return to user mode.
        FaultError::OutOfMemory => return,
        // The page is beyond the file's end, or its pager failed. There is no other error at present.
        _ => SigInfo::fault(Signal::BUS, code::BUS_ADRERR, address),
    };
    // Garbage collectors and sandboxes fault on purpose, so a fault with a signal handler is not logged.
    if linux.machine.verbose() && !linux.handles(thread, info.signal) {
        let name = *thread.name.lock();
        linux.machine.log(format_args!(
            "process {} ({}): {:?} at {:#x}, instruction {:#x}, stack {:#x}",
            thread.process.pid,
            core::str::from_utf8(name.bytes()).unwrap_or("?"),
            error,
            address,
            regs.rip,
            regs.rsp
        ));
    }
    linux.force_signal(thread, info);
}

/// Serves an exception of a program other than a page fault, with its vector and error code.
pub fn exception<M: Machine>(linux: &'static Linux<M>, regs: &mut UserRegs, vector: u8, error: u64) {
    let thread = linux.current();
    // SAFETY: the value belongs to the calling thread.
    let address = unsafe { thread.trap.get() }.address;
    // The CPU's error codes have 32 bits.
    // SAFETY: the running thread owns its trap. `address` is a copy, so no view of the old trap remains.
    unsafe { thread.trap.replace(Trap { vector: u32::from(vector), error: error as u32, address }) };
    let info = quire_linux_state::signal::send::of_exception(vector, error, regs.rip, || float_state(linux));
    linux.force_signal(thread, info);
}

/// The x87 control and status words, and MXCSR, of the calling thread.
#[cold]
fn float_state<M: Machine>(linux: &Linux<M>) -> (u16, u16, u32) {
    let Ok(mut area) = crate::signal::frame::FloatArea::new(linux.machine.fpu_len()) else { return (0, 0, 0) };
    let float = area.bytes();
    linux.machine.fpu_save(float);
    let half = |at: usize| u16::from_le_bytes([float[at], float[at + 1]]);
    (half(0), half(2), u32::from(half(24)) | u32::from(half(26)) << 16)
}

/// Does the [work](has_work) that must be done before a return to user mode: signals, stops, the end of the process.
/// The caller has interrupts enabled.
pub fn return_to_user<M: Machine>(linux: &'static Linux<M>, regs: &mut UserRegs) {
    let thread = linux.current();
    let mut flags = thread.work.load(Ordering::Acquire);
    if flags & work::BY_DAY != 0 {
        flags = thread.ends_wait_by_day();
    }
    if flags & !work::RSEQ != 0 {
        work(linux, thread, regs);
    }
    // If the work above has set up a signal handler, that setup has aborted the rseq critical section already.
    if thread.work.load(Ordering::Acquire) & work::RSEQ != 0 {
        rseq::resume(linux, thread, regs);
    }
}

#[cold]
fn work<M: Machine>(linux: &'static Linux<M>, thread: &Thread<M>, regs: &mut UserRegs) {
    // The setup of a signal frame and the end of a process may allocate from the floor, the last part of the memory
    // reserve.
    thread.ending(|| crate::signal::deliver::work(linux, thread, regs));
}

/// The work of a new thread before its first instruction, in place of [`return_to_user`].
pub fn first_return<M: Machine>(linux: &'static Linux<M>, regs: &mut UserRegs) {
    let thread = linux.current();
    if thread.process.pid == 1 {
        fill_first_stack(linux, thread);
    }
    // Finds signals that other threads sent after the process id became visible, but before this thread joined its
    // process.
    thread.look_for_signals();
    if thread.process.is_exiting() {
        thread.work.fetch_or(work::KILL, Ordering::AcqRel);
    }
    if let Some(limit) = thread.process.cpu_limit.get() {
        limit.thread_begins(linux, &thread.process);
    }
    let set = thread.set_tid.load(Ordering::Relaxed);
    if set != 0 {
        // As on Linux, a bad address is ignored.
        let _ignored = quire_linux_state::user::UserMemory(linux.machine).write(set, &thread.tid());
    }
    return_to_user(linux, regs);
}

#[cold]
fn fill_first_stack<M: Machine>(linux: &'static Linux<M>, thread: &Thread<M>) {
    let Some(program) = linux.first_program.lock().take() else { return };
    if program.fill(linux.machine).is_err() {
        linux.machine.log(format_args!("out of memory: process 1 cannot start"));
        linux.kill_process(&thread.process, Signal::KILL);
    }
}

/// Whether `thread` has work to do before it may return to user mode.
#[inline(always)]
pub fn has_work<M: Machine>(thread: &Thread<M>) -> bool {
    thread.work.load(Ordering::Acquire) != 0
}
