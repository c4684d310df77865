//! What the page tables need of an x86-64 machine beyond [`quire_vm::Machine`]: the instructions that load and invalidate
//! translations, and running a flush on other CPUs.

use crate::mmu::Mmu;
use crate::pmap::X86Pmap;
use crate::shootdown::Request;
use quire_sync::cpuset::CpuMask;
use quire_vm::Machine;

/// What an INVPCID takes away (Intel SDM volume 3, 4.10.4.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Invpcid {
    /// All entries of one PCID except global ones: TLB and paging-structure caches.
    Single(u16),
    /// Everything, global translations included.
    All,
}

/// An x86-64 machine: real (the kernel) or simulated (the hosted machine).
///
/// # Safety
/// The instructions must do what the Intel SDM (volume 3, 4.10) says of them, on the calling CPU, and `shoot` must return
/// only when the request was served on every target: translations are trusted to be gone then, and frames are freed.
pub unsafe trait X86: Machine<Pmap = X86Pmap> {
    /// The per-CPU translation state and the kernel's tables: one value a machine, made at boot.
    fn mmu(&self) -> &Mmu;

    /// Writes CR3. Bits 51..12 name the root, bits 11..0 the PCID (zero where PCIDs are off), bit 63 keeps what the PCID has
    /// cached.
    ///
    /// # Safety
    /// The root maps the running kernel. Preemption and interrupts (shootdowns) are off on this CPU.
    unsafe fn write_cr3(&self, value: u64);

    /// INVLPG: drops this CPU's translation of `va` in the current PCID, a global one too, and all of the current PCID's
    /// cached upper levels.
    fn invlpg(&self, va: u64);

    /// INVPCID on this CPU. Called only where [`Mmu::pcid`] is true.
    fn invpcid(&self, what: Invpcid);

    /// Runs `f` with interrupts masked on this CPU.
    fn masked<R>(&self, f: impl FnOnce() -> R) -> R;

    /// Makes every CPU in `targets` call [`Request::serve`], and returns when all of them have. The caller's own CPU may be
    /// among them: it serves the request itself, after it has interrupted the others and before it waits for them.
    ///
    /// Called with preemption off, interrupts on, and possibly with spin locks held that no interrupt handler takes. While
    /// it waits it serves what other CPUs ask of this one, so that two shooters never wait for each other. The request
    /// lives on the caller's stack: no target may touch it after its last acknowledgement.
    fn shoot(&self, targets: &CpuMask, request: &Request<'_>);
}
