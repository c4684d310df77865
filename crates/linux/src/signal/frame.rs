//! Signal frames on a handler's stack, and the return from them. The layout equals Linux's layout for x86-64
//! (arch/x86/include/uapi/asm/sigcontext.h, ucontext.h).

use crate::signal::alt_stack;
use crate::signal::alt_stack::{RawStack, SS_AUTODISARM, SS_DISABLE, SS_ONSTACK};
use core::alloc::Layout;
use core::mem::{offset_of, size_of};
use core::ptr::NonNull;
use quire_linux_state::base::plain::Plain;
use quire_linux_state::errno::Errno;
use quire_linux_state::machine::{Machine, UserAccess};
use quire_linux_state::process::thread::{AltStack, SavedMask, Thread, Trap, work};
use quire_linux_state::regs::UserRegs;
use quire_linux_state::signal::action::{Action, flag};
use quire_linux_state::signal::info::{SIGINFO_LEN, SigInfo};
use quire_linux_state::signal::set::{SigSet, Signal};
use quire_linux_state::user::UserMemory;
use quire_linux_state::{Ctx, Linux};
use quire_sync::atomic::Ordering;

/// `struct sigcontext`.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
struct Context {
    r8: u64,
    r9: u64,
    r10: u64,
    r11: u64,
    r12: u64,
    r13: u64,
    r14: u64,
    r15: u64,
    rdi: u64,
    rsi: u64,
    rbp: u64,
    rbx: u64,
    rdx: u64,
    rax: u64,
    rcx: u64,
    rsp: u64,
    rip: u64,
    rflags: u64,
    cs: u16,
    gs: u16,
    fs: u16,
    ss: u16,
    error: u64,
    trap: u64,
    old_mask: u64,
    fault_address: u64,
    float: u64,
    reserved: [u64; 8],
}

impl Context {
    /// The registers in the frame, reduced to values that a program may have.
    fn registers(&self) -> Result<UserRegs, Errno> {
        if self.rip >> 47 != 0 {
            // The address is outside user space, so the return instruction would fault in kernel mode.
            return Err(Errno::EFAULT);
        }
        Ok(UserRegs {
            r15: self.r15,
            r14: self.r14,
            r13: self.r13,
            r12: self.r12,
            rbp: self.rbp,
            rbx: self.rbx,
            r11: self.r11,
            r10: self.r10,
            r9: self.r9,
            r8: self.r8,
            rax: self.rax,
            rcx: self.rcx,
            rdx: self.rdx,
            rsi: self.rsi,
            rdi: self.rdi,
            orig_rax: UserRegs::NOT_A_SYSCALL,
            rip: self.rip,
            cs: UserRegs::USER_CS,
            rflags: (self.rflags & UserRegs::USER_FLAGS) | UserRegs::FIXED_FLAGS,
            rsp: self.rsp,
            ss: UserRegs::USER_SS,
        })
    }
}

/// `struct ucontext`.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
struct UserContext {
    flags: u64,
    link: u64,
    stack: RawStack,
    context: Context,
    mask: SigSet,
}

/// `struct rt_sigframe`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Frame {
    return_to: u64,
    user: UserContext,
    info: [u8; SIGINFO_LEN],
}

// SAFETY: the fields are words and bytes, and their order leaves no padding (asserted below).
unsafe impl Plain for Frame {}

const _: () = assert!(size_of::<Context>() == 256);
const _: () = assert!(offset_of!(Context, rip) == 128 && offset_of!(Context, cs) == 144);
const _: () = assert!(offset_of!(Context, fault_address) == 176 && offset_of!(Context, float) == 184);
const _: () = assert!(size_of::<UserContext>() == 304 && offset_of!(UserContext, context) == 40);
const _: () = assert!(offset_of!(UserContext, mask) == 296);
const _: () = assert!(size_of::<Frame>() == 440 && offset_of!(Frame, info) == 312);

/// Bytes below the stack pointer that a function may use without moving it (the red zone of the x86-64 ABI).
const RED_ZONE: u64 = 128;
/// `UC_FP_XSTATE | UC_SIGCONTEXT_SS | UC_STRICT_RESTORE_SS`.
const USER_CONTEXT_FLAGS: u64 = 7;
/// Offset of `sw_reserved` in the legacy area, and its magic numbers.
const SOFTWARE: usize = 464;
const MAGIC_1: u32 = 0x4650_5853;
const MAGIC_2: u32 = 0x4650_5845;
const MAGIC_2_LEN: usize = 4;
/// The sizes of the legacy area without and with the XSAVE header, in bytes.
const LEGACY: usize = 512;
const WITH_HEADER: usize = 576;

/// A buffer for the floating-point state, aligned for the CPU.
pub(crate) struct FloatArea {
    at: NonNull<u8>,
    layout: Layout,
}

impl FloatArea {
    pub(crate) fn new(len: usize) -> Result<FloatArea, Errno> {
        let layout = Layout::from_size_align(len, 64).map_err(|_| Errno::ENOMEM)?;
        Ok(FloatArea { at: quire_heap::allocate_zeroed(layout)?, layout })
    }
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the memory was allocated with that length and initialised, and `&mut self` makes the access
        // exclusive.
        unsafe { core::slice::from_raw_parts_mut(self.at.as_ptr(), self.layout.size()) }
    }
}

impl Drop for FloatArea {
    fn drop(&mut self) {
        // SAFETY: the memory was allocated with this layout and is freed once.
        unsafe { quire_heap::deallocate(self.at, self.layout) };
    }
}

/// The size of a frame in bytes. The floating-point state is not included.
pub const FRAME_LEN: usize = size_of::<Frame>();

/// The addresses of a frame's parts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Placement {
    /// The floating-point state.
    pub float: u64,
    /// The frame, which is also the handler's stack pointer.
    pub frame: u64,
}

/// Places a frame below `top`. If `top` is on the interrupted stack, the caller has subtracted the red zone. The
/// floating-point state is aligned to 64 bytes. The handler's stack pointer is 8 modulo 16, as after a call. `None` if
/// there is no room.
pub fn place(top: u64, float_len: usize) -> Option<Placement> {
    let float = top.checked_sub((float_len + MAGIC_2_LEN) as u64)? & !63;
    let frame = (float.checked_sub(size_of::<Frame>() as u64)? & !15).checked_sub(8)?;
    Some(Placement { float, frame })
}

/// The least size in bytes of a stack for a signal frame (`AT_MINSIGSTKSZ`).
pub fn least_stack<M: Machine>(machine: &M) -> usize {
    size_of::<Frame>() + machine.fpu_len() + MAGIC_2_LEN + 64 + 16 + RED_ZONE as usize
}

/// How often the setup of a signal frame waits until an OOM victim has ended.
const ATTEMPTS: u32 = 32;

/// Allocates a buffer for the floating-point state of a signal frame. If memory is exhausted, a victim is ended, as for
/// a page fault.
fn float_area<M: Machine>(linux: &'static Linux<M>, len: usize) -> Result<FloatArea, Errno> {
    for _ in 0..ATTEMPTS {
        match FloatArea::new(len) {
            Err(_) if linux.vm.wait_for_frames() || linux.out_of_memory("a signal's frame") => {}
            done => return done,
        }
    }
    FloatArea::new(len)
}

/// Pushes a frame for `action`, and sets `regs` to the registers of the handler's first instruction.
pub(crate) fn push<M: Machine>(
    linux: &'static Linux<M>,
    thread: &Thread<M>,
    regs: &mut UserRegs,
    action: &Action,
    info: &SigInfo,
) -> Result<(), Errno> {
    let memory = UserMemory(linux.machine);
    // SAFETY: the value belongs to the calling thread.
    let alt = *unsafe { thread.alt_stack.get() };
    let on_alt = alt.holds(regs.rsp) && alt.flags & SS_AUTODISARM == 0;
    let mut top = regs.rsp.wrapping_sub(RED_ZONE);
    if action.flags & flag::ONSTACK != 0 && alt.size != 0 && !on_alt {
        top = alt.base + alt.size;
    }
    let float_len = linux.machine.fpu_len();
    let at = place(top, float_len).ok_or(Errno::EFAULT)?;
    if on_alt && !alt.holds(at.frame) {
        // The alternate stack has overflowed.
        return Err(Errno::EFAULT);
    }
    if action.flags & flag::RESTORER == 0 {
        // On x86-64 a handler can return only through the program's restorer.
        return Err(Errno::EFAULT);
    }

    save_float(linux, &at)?;

    // SAFETY: the value belongs to the calling thread.
    let mask = unsafe { thread.saved_mask.replace(None) }.map_or(thread.blocked(), SavedMask::get);
    thread.work.fetch_and(!work::RESTORE_MASK, Ordering::AcqRel);
    let stack_flags = if alt.size == 0 {
        SS_DISABLE
    } else if on_alt {
        SS_ONSTACK
    } else {
        0
    };
    let frame = Frame {
        return_to: action.restorer,
        user: UserContext {
            flags: USER_CONTEXT_FLAGS,
            link: 0,
            stack: RawStack::new(alt.base, stack_flags | (alt.flags & SS_AUTODISARM), alt.size),
            context: context_of(regs, thread.last_trap(), mask, at.float),
            mask,
        },
        info: info.encode(),
    };
    memory.write(at.frame, &frame)?;

    if alt.flags & SS_AUTODISARM != 0 && top == alt.base + alt.size {
        // SAFETY: the thread itself runs this, and `alt` is a copy.
        unsafe { thread.alt_stack.replace(AltStack::default()) };
    }
    let mut blocked = thread.blocked().or(action.mask);
    if action.flags & flag::NODEFER == 0 {
        blocked = blocked.with(info.signal);
    }
    thread.set_blocked(blocked);

    enter(linux, regs, action.handler, at.frame, info.signal);
    Ok(())
}

/// Sets `regs` to the registers of the first instruction of `handler`. The handler's arguments are `signal` and the
/// addresses of parts of `frame`.
fn enter<M: Machine>(linux: &Linux<M>, regs: &mut UserRegs, handler: u64, frame: u64, signal: Signal) {
    // A handler starts with a fresh floating-point state: it does not inherit rounding modes, unmasked exceptions or a
    // full x87 stack.
    linux.machine.fpu_reset();
    regs.rip = handler;
    regs.rsp = frame;
    regs.rdi = u64::from(signal.number());
    regs.rsi = frame + offset_of!(Frame, info) as u64;
    regs.rdx = frame + offset_of!(Frame, user) as u64;
    regs.rax = 0;
    // A handler starts with clear direction, resume and trap flags.
    regs.rflags &= !0x1_0500;
    regs.cs = UserRegs::USER_CS;
    regs.ss = UserRegs::USER_SS;
}

/// Writes the floating-point state of the calling thread to its place near the frame.
fn save_float<M: Machine>(linux: &'static Linux<M>, at: &Placement) -> Result<(), Errno> {
    let memory = UserMemory(linux.machine);
    let len = linux.machine.fpu_len();
    let mut area = float_area(linux, len)?;
    let float = area.bytes();
    linux.machine.fpu_save(float);
    describe_float(float, linux.machine.fpu_features());
    memory.write_bytes(at.float, float)?;
    memory.write(at.float + len as u64, &MAGIC_2)?;
    Ok(())
}

/// The registers of the interrupted program, in the form of the frame.
fn context_of(regs: &UserRegs, trap: Trap, mask: SigSet, float: u64) -> Context {
    Context {
        r8: regs.r8,
        r9: regs.r9,
        r10: regs.r10,
        r11: regs.r11,
        r12: regs.r12,
        r13: regs.r13,
        r14: regs.r14,
        r15: regs.r15,
        rdi: regs.rdi,
        rsi: regs.rsi,
        rbp: regs.rbp,
        rbx: regs.rbx,
        rdx: regs.rdx,
        rax: regs.rax,
        rcx: regs.rcx,
        rsp: regs.rsp,
        rip: regs.rip,
        rflags: regs.rflags,
        cs: regs.cs as u16,
        gs: 0,
        fs: 0,
        ss: regs.ss as u16,
        error: trap.error.into(),
        trap: trap.vector.into(),
        old_mask: mask.0,
        fault_address: trap.address,
        float,
        reserved: [0; 8],
    }
}

/// Fills in the software-reserved part of the legacy area: the length and the components of the state.
fn describe_float(float: &mut [u8], features: u64) {
    let len = float.len();
    let mut put = |at: usize, bytes: &[u8]| float[at..at + bytes.len()].copy_from_slice(bytes);
    put(SOFTWARE, &[0; 48]);
    put(SOFTWARE, &MAGIC_1.to_le_bytes());
    put(SOFTWARE + 4, &((len + MAGIC_2_LEN) as u32).to_le_bytes());
    put(SOFTWARE + 8, &features.to_le_bytes());
    put(SOFTWARE + 16, &(len as u32).to_le_bytes());
}

/// Makes a program's floating-point state safe to load. It must have the standard format, only existing components, and
/// zeroes in reserved bytes. MXCSR bits that would fault are cleared. `extended` is false if the program's state has
/// only the legacy area. The buffer always has room for the XSAVE header.
pub fn check_float(float: &mut [u8], extended: bool, features: u64, mxcsr_mask: u32) -> Result<(), Errno> {
    /// x87 and SSE.
    const LEGACY_FEATURES: u64 = 3;
    if extended {
        let header = &float[LEGACY..WITH_HEADER];
        let present = u64::from_le_bytes(header[..8].try_into().map_err(|_| Errno::EFAULT)?);
        // The check reads whole words, because a check of single bytes would need eight times the steps.
        let mut reserved = header[8..].chunks_exact(8).map(|word| word.try_into().map_or(1, u64::from_le_bytes));
        if present & !features != 0 || reserved.any(|word| word != 0) {
            return Err(Errno::EFAULT);
        }
    } else {
        float[LEGACY..].fill(0);
        float[LEGACY..LEGACY + 8].copy_from_slice(&LEGACY_FEATURES.to_le_bytes());
    }
    let mxcsr = u32::from_le_bytes(float[24..28].try_into().map_err(|_| Errno::EFAULT)?);
    float[24..28].copy_from_slice(&(mxcsr & mxcsr_mask).to_le_bytes());
    Ok(())
}

fn restore_float<M: Machine>(linux: &'static Linux<M>, at: u64) -> Result<(), Errno> {
    let machine = linux.machine;
    if at == 0 {
        machine.fpu_reset();
        return Ok(());
    }
    let memory = UserMemory(machine);
    let len = machine.fpu_len();
    let mut area = float_area(linux, len)?;
    let float = area.bytes();
    memory.read_bytes(at, &mut float[..LEGACY])?;
    let word = |at: usize| u32::from_le_bytes([float[at], float[at + 1], float[at + 2], float[at + 3]]);
    let extended = word(SOFTWARE) == MAGIC_1
        && word(SOFTWARE + 16) as usize == len
        && memory.read::<u32>(at + len as u64)? == MAGIC_2;
    if extended {
        memory.read_bytes(at + LEGACY as u64, &mut float[LEGACY..])?;
    }
    check_float(float, extended, machine.fpu_features(), machine.mxcsr_mask())?;
    machine.fpu_restore(float);
    Ok(())
}

/// `rt_sigreturn`
pub fn sys_rt_sigreturn<M: Machine>(ctx: &mut Ctx<'_, M>) -> Result<usize, Errno> {
    ctx.regs_replaced = true;
    if restore(ctx).is_err() {
        let info = SigInfo::kernel(quire_linux_state::signal::Signal::SEGV);
        ctx.linux.force_signal(ctx.thread, info);
    }
    // This call is never repeated.
    ctx.regs.orig_rax = UserRegs::NOT_A_SYSCALL;
    Ok(0)
}

/// The state to which a program returns, as read from a frame.
#[derive(Clone, Copy, Debug)]
pub struct Saved {
    /// The registers, reduced to values that a program may have.
    pub regs: UserRegs,
    /// The blocked signals, unchecked.
    pub mask: SigSet,
    /// The address of the floating-point state, or 0 for none.
    pub float: u64,
    /// The alternate stack, unchecked.
    pub stack: RawStack,
}

/// Reads the frame at user address `at`. A program may have written any value there.
pub fn load<A: UserAccess>(memory: &UserMemory<'_, A>, at: u64) -> Result<Saved, Errno> {
    let frame: Frame = memory.read(at)?;
    let user = &frame.user;
    Ok(Saved { regs: user.context.registers()?, mask: user.mask, float: user.context.float, stack: user.stack })
}

fn restore<M: Machine>(ctx: &mut Ctx<'_, M>) -> Result<(), Errno> {
    // The handler's `ret` has popped the first word of the frame.
    let at = ctx.regs.rsp.wrapping_sub(8);
    let saved = load(&ctx.user(), at)?;
    ctx.thread.set_blocked(saved.mask);
    restore_float(ctx.linux, saved.float)?;
    *ctx.regs = saved.regs;
    // As on Linux, an invalid alternate stack is ignored.
    let _kept = alt_stack::set_alt_stack(ctx, &saved.stack);
    Ok(())
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
