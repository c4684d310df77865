//! Loading and leaving spaces: the machine's instructions for a switch, and the record of the loaded root.

use super::Mmu;
use crate::format::Format;
use crate::hardware::{Drops, Hardware};
use crate::root::{Entered, Root};
use crate::roots::{Fan, Own};
use crate::shootdown::residency::Residency;
use core::ptr;
use quire_sync::CpuId;
use quire_sync::atomic::Ordering;
use quire_vm::Pfn;

impl<F: Format> Mmu<F> {
    /// Loads the kernel's own root on this CPU, and leaves the space that was loaded.
    ///
    /// # Safety
    /// `cpu` is the calling CPU, with preemption and interrupts off.
    pub unsafe fn leave<M: Hardware<Format = F>>(&self, machine: &M, cpu: CpuId) {
        let state = self.cpus.of(cpu);
        let root = self.kernel.root();
        let before = state.space.swap(ptr::null_mut(), Ordering::Relaxed);
        state.loaded.store(0, Ordering::Relaxed);
        state.set_root(root, None, 0);
        // SAFETY: the kernel's root maps the kernel; tag 0 holds only kernel translations where tags are used.
        unsafe { machine.load_root(root, 0, self.tags) };
        // SAFETY: a space is destroyed only after every CPU has left it, and this one leaves it just now.
        let before = unsafe { before.as_ref() };
        state.count_anew(before);
        if let Some(before) = before {
            before.leave(cpu);
        }
    }

    /// Loads `space` on this CPU, and catches up with the flushes that the CPU missed. The loaded root is `root`, or
    /// this CPU's own root of the space if it has one. If the space has no root, the CPU runs it on the kernel's root.
    ///
    /// # Safety
    /// Preemption and interrupts are off; `space`, `root` and `fan` live until the CPU has left them.
    #[inline]
    pub(crate) unsafe fn load<M: Hardware<Format = F>>(
        &self,
        machine: &M,
        cpu: CpuId,
        space: &Residency,
        root: &Root,
        fan: &Fan,
    ) {
        let state = self.cpus.of(cpu);
        // Relies on C4: after `enter`, other CPUs send this CPU their flushes. The generations below show whether this
        // CPU missed a flush before `enter`. If it did, this load drops the space's translations.
        let Entered { generation, new, root } = root.enter(space, cpu);
        // This CPU reads the regime after `enter`, by which it joined the running CPUs: see the protocol in `roots`.
        let (regime, own, stale) = match fan.get() {
            None => (0, None, false),
            Some(roots) => {
                let found = roots.arrive(cpu, new);
                (found.regime, found.own, found.stale)
            }
        };
        let root = own.map_or_else(|| self.or_kernel(root), Own::root);
        if state.loaded() == space.id() {
            let (loaded, tag) = state.root();
            if loaded != root {
                // SAFETY: every root shares the kernel's half; interrupts are off by this function's contract.
                unsafe { machine.load_root(root, tag, false) };
                state.set_root(root, own, tag);
                state.set_fresh(generation, regime);
            } else if stale || !state.is_fresh(state.slot.load(Ordering::Relaxed), generation, regime) {
                Drops::drop_loaded(machine, state);
                state.set_fresh(generation, regime);
            }
        } else {
            let (slot, fresh) = state.choose(space.id(), generation, regime, self.tags);
            let fresh = fresh && !stale;
            let tag = if self.tags { slot as u16 + 1 } else { 0 };
            let before = state.space.swap(ptr::from_ref(space).cast_mut(), Ordering::Relaxed);
            // SAFETY: every root shares the kernel's half; interrupts are off by this function's contract.
            unsafe { machine.load_root(root, tag, fresh) };
            state.slots[slot].space.store(space.id(), Ordering::Relaxed);
            state.slot.store(slot, Ordering::Relaxed);
            state.set_fresh(generation, regime);
            state.set_root(root, own, tag);
            state.loaded.store(space.id(), Ordering::Relaxed);
            // SAFETY: a space is destroyed only after every CPU has left it, and this one leaves it just now.
            let before = unsafe { before.as_ref() };
            state.count_anew(before);
            if let Some(before) = before {
                before.leave(cpu);
            }
        }
        space.arrived(cpu);
    }

    /// Loads `own`, this CPU's new root of the loaded space, with nothing cached.
    ///
    /// # Safety
    /// `cpu` is the calling CPU, with preemption and interrupts off. The root shares the kernel's half, and lives until
    /// the CPU has left it.
    pub(crate) unsafe fn go_private<M: Hardware<Format = F>>(
        &self,
        machine: &M,
        cpu: CpuId,
        space: &Residency,
        own: &Own,
        regime: u64,
    ) {
        // SAFETY: the caller is on `cpu` with interrupts off, and `own` stays while its root is loaded, as `reload`
        // requires.
        unsafe { self.reload(machine, cpu, space, (own.root(), Some(own)), regime) }
    }

    /// Loads `root` again, the shared root of the loaded space, in place of this CPU's own root, with nothing cached.
    ///
    /// # Safety
    /// As [`go_private`](Self::go_private).
    pub(crate) unsafe fn come_home<M: Hardware<Format = F>>(
        &self,
        machine: &M,
        cpu: CpuId,
        space: &Residency,
        root: &Root,
        regime: u64,
    ) {
        let root = self.or_kernel(root.get());
        // SAFETY: the caller is on `cpu` with interrupts off, and `root` is the space's own, as `reload` requires.
        unsafe { self.reload(machine, cpu, space, (root, None), regime) }
    }

    /// Loads the present `root` of the loaded space, or the kernel's root if the space has none, with nothing cached.
    ///
    /// # Safety
    /// As [`go_private`](Self::go_private); the CPU has no root of its own loaded.
    pub(crate) unsafe fn follow<M: Hardware<Format = F>>(
        &self,
        machine: &M,
        cpu: CpuId,
        space: &Residency,
        root: &Root,
    ) {
        let root = self.or_kernel(root.get());
        let state = self.cpus.of(cpu);
        if state.root().0 != root {
            // The recorded regime stays. If another regime has begun after it was recorded, the next switch-in flushes
            // once.
            let regime = state.slots[state.slot.load(Ordering::Relaxed)].regime.load(Ordering::Relaxed);
            // SAFETY: the caller is on `cpu` with interrupts off, and `root` is the space's or the kernel's, as
            // `reload` requires.
            unsafe { self.reload(machine, cpu, space, (root, None), regime) }
        }
    }

    /// Returns the root to load: the space's `root`, or the kernel's if that is `None`.
    fn or_kernel(&self, root: Option<Pfn>) -> Pfn {
        root.unwrap_or_else(|| self.kernel.root())
    }

    unsafe fn reload<M: Hardware<Format = F>>(
        &self,
        machine: &M,
        cpu: CpuId,
        space: &Residency,
        (root, own): (Pfn, Option<&Own>),
        regime: u64,
    ) {
        let state = self.cpus.of(cpu);
        let (_, tag) = state.root();
        // This CPU reads the generation before it drops all translations, so that it does not count a later flush as
        // seen.
        let generation = space.generation();
        // SAFETY: the callers guarantee what `load_root` requires of the root and of interrupts.
        unsafe { machine.load_root(root, tag, false) };
        state.set_root(root, own, tag);
        state.set_fresh(generation, regime);
    }
}
