//! The machine trait of page tables, beyond [`quire_vm::Machine`]. It has the instructions that load and drop
//! translations, and runs a flush on other CPUs.

use crate::format::Format;
use crate::mmu::{CpuMmu, Mmu};
use crate::pmap::tables::Tables;
use crate::shootdown::request::Request;
use quire_sync::cpuset::CpuMask;
use quire_vm::{Machine, Pfn};

/// A machine whose page tables are [`Tables`]: real (a kernel) or simulated (the hosted machine).
///
/// A *tag* names an address space to a CPU's translation caches: a PCID on x86-64, an ASID on RISC-V. Each CPU gives
/// out its own tags. If tags are off ([`Mmu::tags`]), every tag is zero and loading a root drops all cached
/// translations.
///
/// # Safety
/// The instructions must have the effects described here, on the calling CPU. `shoot` must return only after every
/// target has served the request, because the caller then frees frames.
pub unsafe trait Hardware: Machine<Pmap = Tables<Self::Format>> {
    /// The encoding of page-table entries.
    type Format: Format;

    /// The per-CPU translation state and the kernel's tables. Each machine has one such value, made at boot.
    fn mmu(&self) -> &Mmu<Self::Format>;

    /// Makes this CPU translate through `root` from now on, under `tag`. Keeps the translations that are cached for the
    /// tag if `keep` is true. Otherwise drops them, except global translations.
    ///
    /// # Safety
    /// The root maps the running kernel. Preemption and interrupts (shootdowns) are off on this CPU.
    unsafe fn load_root(&self, root: Pfn, tag: u16, keep: bool);

    /// Drops this CPU's translation of `va` under the loaded tag, a global one too; see [`Format::PAGE_DROPS_UPPER`].
    fn drop_page(&self, va: u64);

    /// Drops all translations that this CPU has cached under `tag`, upper levels included; global translations stay.
    /// `root` and `tag` are the loaded ones.
    fn drop_loaded(&self, root: Pfn, tag: u16);

    /// Drops all translations of this CPU, global ones included.
    fn drop_all(&self);

    /// Runs `f` with interrupts masked on this CPU.
    fn masked<R>(&self, f: impl FnOnce() -> R) -> R;

    /// Makes every CPU in `targets` call [`Request::serve`], and returns when all of them have done so. The caller's
    /// own CPU may be among them. It serves the request itself, after it has interrupted the others and before it waits
    /// for them.
    ///
    /// The caller has preemption off and interrupts on. It may hold spin locks that no interrupt handler acquires.
    /// While it waits it serves requests of other CPUs, so that two shooters never wait for each other. The request
    /// lives on the caller's stack: no target may access it after its last acknowledgement.
    fn shoot(&self, targets: &CpuMask, request: &Request<'_, Self::Format>);
}

/// The operations by which a flush drops translations on its own CPU. The models implement them too.
pub(crate) trait Drops {
    /// See [`Format::PAGE_DROPS_UPPER`].
    const PAGE_DROPS_UPPER: bool;

    /// Drops the translation of one page of the loaded space.
    fn drop_page(&self, va: u64);

    /// Drops all translations cached for the loaded space; global ones stay.
    fn drop_loaded(&self, state: &CpuMmu);
}

impl<M: Hardware> Drops for M {
    const PAGE_DROPS_UPPER: bool = M::Format::PAGE_DROPS_UPPER;

    fn drop_page(&self, va: u64) {
        Hardware::drop_page(self, va);
    }

    fn drop_loaded(&self, state: &CpuMmu) {
        // Interrupts are masked, because without tags `drop_loaded` loads the root again. Otherwise a handler could
        // make this CPU leave the root first, and another CPU could free the root before this CPU loads it again.
        self.masked(|| {
            let (root, tag) = state.root();
            Hardware::drop_loaded(self, root, tag);
        });
    }
}
