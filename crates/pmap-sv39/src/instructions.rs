//! The instructions of supervisor mode that [`Hardware`](quire_pmap::Hardware) needs, for a kernel on RISC-V.

use crate::satp;
use core::arch::asm;
use quire_vm::Pfn;

/// The bit of `sstatus` that lets supervisor mode be interrupted.
const SIE: usize = 1 << 1;

/// [`Hardware::load_root`](quire_pmap::Hardware::load_root).
///
/// # Safety
/// The root maps the running kernel.
pub unsafe fn load_root(root: Pfn, asid: u16, keep: bool) {
    // SAFETY: by this function's contract, the kernel stays mapped.
    unsafe { asm!("csrw satp, {}", in(reg) satp(root, asid), options(nostack)) };
    if !keep {
        fence_space(asid);
    }
}

/// [`Hardware::drop_page`](quire_pmap::Hardware::drop_page).
#[inline]
pub fn fence_page(va: u64) {
    // SAFETY: the fence drops translations, which the tables still have.
    unsafe { asm!("sfence.vma {}", in(reg) va, options(nostack)) };
}

/// [`Hardware::drop_loaded`](quire_pmap::Hardware::drop_loaded). Identifier 0 means that identifiers are not used.
#[inline]
pub fn fence_space(asid: u16) {
    match asid {
        0 => fence_all(),
        // SAFETY: the fence drops translations, which the tables still have.
        _ => unsafe { asm!("sfence.vma x0, {}", in(reg) usize::from(asid), options(nostack)) },
    }
}

/// [`Hardware::drop_all`](quire_pmap::Hardware::drop_all).
#[inline]
pub fn fence_all() {
    // SAFETY: the fence drops translations, which the tables still have.
    unsafe { asm!("sfence.vma", options(nostack)) };
}

/// Masks interrupts on this CPU. Returns whether they were on.
#[inline]
pub fn interrupts_off() -> bool {
    let before: usize;
    // SAFETY: code without interrupts breaks no rule of Rust.
    unsafe { asm!("csrrci {}, sstatus, 2", out(reg) before, options(nostack)) };
    before & SIE != 0
}

/// Lets interrupts in on this CPU.
///
/// # Safety
/// The trap vector is set, and no caller relies on masked interrupts.
#[inline]
pub unsafe fn interrupts_on() {
    // SAFETY: by this function's contract.
    unsafe { asm!("csrsi sstatus, 2", options(nostack)) };
}

/// [`Hardware::masked`](quire_pmap::Hardware::masked).
#[inline]
pub fn masked<R>(f: impl FnOnce() -> R) -> R {
    let on = interrupts_off();
    let result = f();
    if on {
        // SAFETY: interrupts were on when this function was called, so its caller handles them. `f` has returned, and
        // nothing else relies on the mask.
        unsafe { interrupts_on() };
    }
    result
}
