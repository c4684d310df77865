//! What each CPU has in CR3, and which PCIDs stand for which spaces there.
//!
//! A CPU keeps the translations of the last few spaces that it ran: PCIDs are its own small cache of spaces, not a number
//! that a space owns, so the memory is a fixed few words a CPU (Contract C8). A space whose PCID is still there and whose
//! generation has not moved is loaded without losing a translation.

use crate::kernel_tables::KernelTables;
use crate::shootdown::{Residency, drop_loaded};
use crate::x86::X86;
use core::ptr::{self, NonNull};
use quire_sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use quire_sync::{CpuId, PerCpu, Rank, SpinLock, preempt_off};
use quire_vm::frames::Frame;
use quire_vm::{Pfn, Vm};

/// PCIDs that each CPU uses for spaces. More would only keep translations that other work has pushed out of the TLB before
/// their space runs again (Linux came to six as well).
pub const PCIDS: usize = 6;

/// CR3, bit 63: keep what the PCID has cached.
pub const CR3_KEEP: u64 = 1 << 63;

/// One PCID of one CPU: whose entries it holds, and how fresh they are.
struct Tagged {
    space: AtomicU64,
    seen: AtomicU64,
}

/// Empty table pages that a CPU keeps: enough for two small processes, few enough not to matter.
const SPARE: u32 = 16;

/// Empty table pages, linked through their descriptors.
#[derive(Default)]
struct Spare {
    head: Option<Pfn>,
    len: u32,
}

/// One CPU's translation state. Only that CPU touches it, with interrupts off or from a shootdown handler.
pub struct CpuMmu {
    /// The space in CR3; null: the kernel's own root.
    space: AtomicPtr<Residency>,
    /// Its number, 0 for the kernel's.
    loaded: AtomicU64,
    cr3: AtomicU64,
    slot: AtomicUsize,
    slots: [Tagged; PCIDS],
    /// Table pages are empty again when they are given back, so the next one needs no zeroing. Another CPU takes the lock
    /// only to drain it.
    spare: SpinLock<Spare>,
}

impl CpuMmu {
    fn new() -> Self {
        CpuMmu {
            space: AtomicPtr::new(ptr::null_mut()),
            loaded: AtomicU64::new(0),
            cr3: AtomicU64::new(0),
            slot: AtomicUsize::new(0),
            slots: core::array::from_fn(|_| Tagged { space: AtomicU64::new(0), seen: AtomicU64::new(0) }),
            spare: SpinLock::new(Rank::SLAB_LOCAL, Spare::default()),
        }
    }

    /// The number of the space in CR3, 0 for the kernel's own root.
    pub fn loaded(&self) -> u64 {
        self.loaded.load(Ordering::Relaxed)
    }

    /// CR3 without the keep bit.
    pub(crate) fn cr3(&self) -> u64 {
        self.cr3.load(Ordering::Relaxed)
    }

    pub(crate) fn pcid(&self) -> u16 {
        (self.cr3() & 0xfff) as u16
    }

    /// The generation of the loaded space that this CPU has caught up with.
    pub(crate) fn seen(&self) -> u64 {
        self.slots[self.slot.load(Ordering::Relaxed)].seen.load(Ordering::Relaxed)
    }

    pub(crate) fn set_seen(&self, generation: u64) {
        self.slots[self.slot.load(Ordering::Relaxed)].seen.store(generation, Ordering::Relaxed);
    }

    /// Which PCID slot to load `space` into, and whether what it holds is that space's as of `generation`.
    fn choose(&self, space: u64, generation: u64, pcid: bool) -> (usize, bool) {
        if !pcid {
            return (0, false);
        }
        match self.slots.iter().position(|s| s.space.load(Ordering::Relaxed) == space) {
            Some(i) => (i, self.slots[i].seen.load(Ordering::Relaxed) == generation),
            // In turn: what was loaded longest ago, if spaces come in turn as well.
            None => ((self.slot.load(Ordering::Relaxed) + 1) % PCIDS, false),
        }
    }
}

/// The translation state of all CPUs, and the kernel's half.
pub struct Mmu {
    kernel: KernelTables,
    cpus: PerCpu<CpuMmu>,
    /// The number of the next space; never reused.
    next_id: AtomicU64,
    pcid: bool,
}

impl Mmu {
    /// The size in bytes of the memory that [`Mmu::new`] needs, aligned to 128.
    pub const fn bytes(cpus: usize) -> usize {
        PerCpu::<CpuMmu>::bytes(cpus)
    }

    /// The state of `cpus` CPUs, each of which runs on the kernel's own root. `pcid`: PCIDs and INVPCID exist and are
    /// switched on everywhere.
    ///
    /// # Safety
    /// `memory` points to [`Mmu::bytes`]`(cpus)` writable bytes, aligned to 128, that nobody else uses, for ever.
    pub unsafe fn new(memory: NonNull<u8>, cpus: usize, kernel: KernelTables, pcid: bool) -> Mmu {
        let root = kernel.root().address();
        // SAFETY: as this function's.
        let cpus = unsafe { PerCpu::new(memory, cpus, |_| CpuMmu::new()) };
        cpus.iter().for_each(|c| c.cr3.store(root, Ordering::Relaxed));
        Mmu { kernel, cpus, next_id: AtomicU64::new(1), pcid }
    }

    /// Whether PCIDs are used.
    pub fn pcid(&self) -> bool {
        self.pcid
    }

    /// The kernel's half, shared by all spaces.
    pub fn kernel(&self) -> &KernelTables {
        &self.kernel
    }

    /// One CPU's state.
    pub fn cpu(&self, cpu: CpuId) -> &CpuMmu {
        self.cpus.of(cpu)
    }

    /// An empty table page from this CPU's few.
    pub(crate) fn take_spare<M: X86>(&self, vm: &Vm<M>) -> Option<Pfn> {
        let cpu = preempt_off();
        let mut spare = self.cpus.mine(&cpu).spare.lock();
        let t = spare.head?;
        *spare = Spare { head: vm.page(t).next(), len: spare.len - 1 };
        Some(t)
    }

    /// Keeps an empty table page for later, where there is room.
    pub(crate) fn keep_spare<M: X86>(&self, vm: &Vm<M>, t: Pfn) -> bool {
        let cpu = preempt_off();
        let mut spare = self.cpus.mine(&cpu).spare.lock();
        if spare.len == SPARE {
            return false;
        }
        vm.page(t).set_next(spare.head);
        *spare = Spare { head: Some(t), len: spare.len + 1 };
        true
    }

    /// Gives the empty table pages that the CPUs keep back to the system.
    pub fn drain<M: X86>(&self, vm: &Vm<M>) {
        for cpu in self.cpus.iter() {
            let mut next = core::mem::take(&mut *cpu.spare.lock()).head;
            while let Some(t) = next {
                next = vm.page(t).next();
                // SAFETY: nobody else has a page that was kept here.
                vm.free_frame(unsafe { Frame::from_pfn(t) });
            }
        }
    }

    pub(crate) fn new_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Loads the kernel's own root on this CPU, and leaves the space that was loaded.
    ///
    /// # Safety
    /// `cpu` is the calling CPU, with preemption and interrupts off.
    pub unsafe fn leave<M: X86>(&self, machine: &M, cpu: CpuId) {
        let state = self.cpus.of(cpu);
        let cr3 = self.kernel.root().address();
        let before = state.space.swap(ptr::null_mut(), Ordering::Relaxed);
        state.loaded.store(0, Ordering::Relaxed);
        state.cr3.store(cr3, Ordering::Relaxed);
        let keep = if self.pcid { CR3_KEEP } else { 0 };
        // SAFETY: the kernel's root maps the kernel; PCID 0 holds nothing but kernel translations.
        unsafe { machine.write_cr3(cr3 | keep) };
        // SAFETY: a space is destroyed only after every CPU has left it, and this one leaves it just now.
        if let Some(before) = unsafe { before.as_ref() } {
            before.leave(cpu);
        }
    }

    /// Loads `space`, whose root is `root`, on this CPU, and catches up with the flushes that it missed.
    ///
    /// # Safety
    /// Preemption and interrupts are off; `space` and `root` live until the CPU has left them.
    pub(crate) unsafe fn load<M: X86>(&self, machine: &M, cpu: CpuId, space: &Residency, root: Pfn) {
        let state = self.cpus.of(cpu);
        // Contract C4: from here on flushes ask this CPU; what it missed before, it makes up for now.
        let generation = space.arrive(cpu);
        if state.loaded() == space.id() {
            if state.seen() != generation {
                drop_loaded(machine, state);
                state.set_seen(generation);
            }
        } else {
            let (slot, fresh) = state.choose(space.id(), generation, self.pcid);
            let tag = if self.pcid { slot as u64 + 1 } else { 0 };
            let cr3 = root.address() | tag;
            let keep = if fresh { CR3_KEEP } else { 0 };
            let before = state.space.swap(ptr::from_ref(space).cast_mut(), Ordering::Relaxed);
            // SAFETY: every root shares the kernel's half; interrupts are off by this function's contract.
            unsafe { machine.write_cr3(cr3 | keep) };
            state.slots[slot].space.store(space.id(), Ordering::Relaxed);
            state.slots[slot].seen.store(generation, Ordering::Relaxed);
            state.slot.store(slot, Ordering::Relaxed);
            state.cr3.store(cr3, Ordering::Relaxed);
            state.loaded.store(space.id(), Ordering::Relaxed);
            // SAFETY: a space is destroyed only after every CPU has left it, and this one leaves it just now.
            if let Some(before) = unsafe { before.as_ref() } {
                before.leave(cpu);
            }
        }
        space.arrived(cpu);
    }
}
