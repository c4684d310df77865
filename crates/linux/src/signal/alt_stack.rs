//! The alternate signal stack: `sigaltstack`.

use quire_linux_state::Ctx;
use quire_linux_state::base::plain::Plain;
use quire_linux_state::errno::Errno;
use quire_linux_state::machine::Machine;
use quire_linux_state::process::thread::AltStack;

/// `SS_DISABLE`, `SS_ONSTACK`, `SS_AUTODISARM`.
pub(crate) const SS_DISABLE: u32 = 2;
pub(crate) const SS_ONSTACK: u32 = 1;
pub(crate) const SS_AUTODISARM: u32 = 1 << 31;

/// `stack_t`.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct RawStack {
    /// The lowest address of the stack.
    pub base: u64,
    /// `SS_*`.
    pub flags: u32,
    padding: u32,
    /// The size of the stack in bytes.
    pub size: u64,
}

impl RawStack {
    /// Makes a `stack_t`.
    pub const fn new(base: u64, flags: u32, size: u64) -> RawStack {
        RawStack { base, flags, padding: 0, size }
    }
}

// SAFETY: the fields are words, and the padding between them is a field too, so all bytes are set.
unsafe impl Plain for RawStack {}

/// `sigaltstack`
pub fn sys_sigaltstack<M: Machine>(ctx: &mut Ctx<'_, M>, new: u64, old: u64) -> Result<usize, Errno> {
    // SAFETY: only the owning thread has a context, and it does not replace the stack during this read.
    let before = *unsafe { ctx.thread.alt_stack.get() };
    if new != 0 {
        let stack: RawStack = ctx.read(new)?;
        set_alt_stack(ctx, &stack)?;
    }
    if old != 0 {
        let state = if before.size == 0 {
            SS_DISABLE
        } else if before.holds(ctx.regs.rsp) {
            SS_ONSTACK
        } else {
            0
        };
        ctx.write(old, &RawStack::new(before.base, state | before.flags, before.size))?;
    }
    Ok(0)
}

/// Makes `stack` the alternate stack. EPERM while the thread runs on its present alternate stack.
pub(super) fn set_alt_stack<M: Machine>(ctx: &mut Ctx<'_, M>, stack: &RawStack) -> Result<(), Errno> {
    // SAFETY: only the owning thread has a context, and it does not replace the stack during this read.
    let before = *unsafe { ctx.thread.alt_stack.get() };
    if before.holds(ctx.regs.rsp) && before.flags & SS_AUTODISARM == 0 {
        return Err(Errno::EPERM);
    }
    let mode = stack.flags & !SS_AUTODISARM;
    let new = match mode {
        SS_DISABLE => AltStack::default(),
        0 | SS_ONSTACK => {
            if stack.size < u64::from(linux_raw_sys::general::MINSIGSTKSZ) {
                return Err(Errno::ENOMEM);
            }
            if stack.base.checked_add(stack.size).is_none_or(|end| end > quire_linux_state::user::USER_END) {
                return Err(Errno::EFAULT);
            }
            AltStack { base: stack.base, size: stack.size, flags: stack.flags & SS_AUTODISARM }
        }
        _ => return Err(Errno::EINVAL),
    };
    // SAFETY: the owning thread runs this, and `before` is a copy, so no view of the old value remains.
    unsafe { ctx.thread.alt_stack.replace(new) };
    Ok(())
}
