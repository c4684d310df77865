//! The implementation of `quire_pmap`'s `Hardware`: loading and dropping the translations of this machine's CPUs.

use super::shootdown;
use crate::cpu::{self, registers};
use crate::machine::Machine;
use core::arch::asm;
use quire_pmap::Hardware;
use quire_pmap_x86_64::registers::cr3;
use quire_pmap_x86_64::{Mmu, Request, X86_64};
use quire_sync::cpuset::CpuMask;
use quire_vm::Pfn;

// SAFETY: the CPU's own instructions load and drop translations. `shootdown` returns only after every target has
// answered.
unsafe impl Hardware for Machine {
    type Format = X86_64;

    #[inline(always)]
    fn mmu(&self) -> &Mmu {
        self.mmu()
    }
    #[inline(always)]
    unsafe fn load_root(&self, root: Pfn, tag: u16, keep: bool) {
        // SAFETY: by the trait's contract the root maps the kernel.
        unsafe { registers::set_cr3(cr3(root, tag, keep)) }
    }
    #[inline(always)]
    fn drop_page(&self, va: u64) {
        // SAFETY: dropping a translation only makes the CPU read the tables again.
        unsafe { asm!("invlpg [{}]", in(reg) va, options(nostack, preserves_flags)) }
    }
    fn drop_loaded(&self, root: Pfn, tag: u16) {
        if self.mmu().tags() {
            invpcid(1, tag);
        } else {
            // SAFETY: the loaded root is loaded again. Without PCIDs that drops all translations except global ones.
            unsafe { registers::set_cr3(cr3(root, 0, false)) }
        }
    }
    fn drop_all(&self) {
        if self.mmu().tags() {
            invpcid(2, 0);
        } else {
            // SAFETY: CR4 gets back its old value. Turning global pages off and on only drops translations.
            unsafe { registers::drop_global() }
        }
    }
    fn masked<R>(&self, f: impl FnOnce() -> R) -> R {
        let interrupts = cpu::interrupts_off();
        let r = f();
        cpu::interrupts_restore(interrupts);
        r
    }
    fn shoot(&self, targets: &CpuMask, request: &Request<'_>) {
        shootdown::shoot(self, targets, request);
    }
}

/// Executes INVPCID. Kind 1 drops all translations of one PCID except global ones; kind 2 drops all translations.
fn invpcid(kind: u64, pcid: u16) {
    let descriptor = [pcid as u64, 0];
    // SAFETY: the callers have checked that the CPU has INVPCID.
    unsafe { asm!("invpcid {}, [{}]", in(reg) kind, in(reg) &descriptor, options(nostack, preserves_flags)) }
}
