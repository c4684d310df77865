//! The machine trait of page tables, beyond [`quire_vm::Machine`]: the instructions that load and drop translations,
//! and running a flush on other CPUs.

use crate::format::Format;
use crate::mmu::{CpuMmu, Mmu};
use crate::pmap::tables::Tables;
use crate::shootdown::request::Request;
use quire_sync::cpuset::CpuMask;
use quire_vm::{Machine, Pfn};

/// A machine whose page tables are [`Tables`]: real (a kernel) or simulated (the hosted machine).
///
/// A *tag* names an address space to a CPU's translation caches: a PCID on x86-64, an ASID on RISC-V. Each CPU gives
/// out its own. Where tags are off ([`Mmu::tags`]) every tag is zero and loading a root drops all cached translations.
///
/// # Safety
/// The instructions must have the effects described here, on the calling CPU. `shoot` must return only when the request
/// was served on every target, because frames are freed then.
pub unsafe trait Hardware: Machine<Pmap = Tables<Self::Format>> {
    /// The encoding of page-table entries.
    type Format: Format;

    /// The per-CPU translation state and the kernel's tables: one value a machine, made at boot.
    fn mmu(&self) -> &Mmu<Self::Format>;

    /// Translates through `root` from now on, under `tag`. Keeps the translations cached for the tag where `keep` says
    /// so, else drops them (global translations stay).
    ///
    /// # Safety
    /// The root maps the running kernel. Preemption and interrupts (shootdowns) are off on this CPU.
    unsafe fn load_root(&self, root: Pfn, tag: u16, keep: bool);

    /// Drops this CPU's translation of `va` under the loaded tag, a global one too; see [`Format::PAGE_DROPS_UPPER`].
    fn drop_page(&self, va: u64);

    /// Drops all that this CPU has cached under `tag`, upper levels included; global translations stay. `root` and
    /// `tag` are loaded.
    fn drop_loaded(&self, root: Pfn, tag: u16);

    /// Drops everything, global translations included.
    fn drop_all(&self);

    /// Runs `f` with interrupts masked on this CPU.
    fn masked<R>(&self, f: impl FnOnce() -> R) -> R;

    /// Makes every CPU in `targets` call [`Request::serve`], and returns when all of them have. The caller's own CPU
    /// may be among them: it serves the request itself, after it has interrupted the others and before it waits for
    /// them.
    ///
    /// Called with preemption off, interrupts on, and possibly with spin locks held that no interrupt handler takes.
    /// While it waits it serves requests of other CPUs, so that two shooters never wait for each other. The request
    /// lives on the caller's stack: no target may touch it after its last acknowledgement.
    fn shoot(&self, targets: &CpuMask, request: &Request<'_, Self::Format>);
}

/// The drop operations of a flush on its CPU.
pub(crate) trait Drops {
    /// See [`Format::PAGE_DROPS_UPPER`].
    const PAGE_DROPS_UPPER: bool;

    /// The translation of one page, in the loaded space.
    fn drop_page(&self, va: u64);

    /// All translations cached for the loaded space; global ones stay.
    fn drop_loaded(&self, state: &CpuMmu);
}

impl<M: Hardware> Drops for M {
    const PAGE_DROPS_UPPER: bool = M::Format::PAGE_DROPS_UPPER;

    fn drop_page(&self, va: u64) {
        Hardware::drop_page(self, va);
    }

    fn drop_loaded(&self, state: &CpuMmu) {
        // Masked: without tags the root is loaded again. It must not be a root that a handler has just left and that is
        // about to be freed.
        self.masked(|| {
            let (root, tag) = state.root();
            Hardware::drop_loaded(self, root, tag);
        });
    }
}
