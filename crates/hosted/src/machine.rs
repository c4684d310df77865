//! The machine: RAM, CPUs with their translation caches and inboxes, and the instructions that change them.

use crate::arena::Arena;
use crate::tlb::Tlb;
use quire_pmap_x86_64::mmu::CR3_KEEP;
use quire_pmap_x86_64::{Invpcid, KernelTables, Mmu, Request, X86, X86Pmap, word};
use quire_sync::cpuset::CpuMask;
use quire_sync::{CachePadded, CpuId, current_cpu};
use quire_vm::{Config, Machine, PAGE_SHIFT, Pfn, Phys, PhysRange, VirtRange, Vm};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

/// What to build.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Number of CPUs: threads that may attach.
    pub cpus: usize,
    /// Frames of RAM.
    pub frames: u64,
    /// Whether the CPUs have PCIDs and INVPCID.
    pub pcid: bool,
    /// Overwrite freed frames.
    pub poison: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { cpus: 4, frames: 16 * 1024, pcid: true, poison: true }
    }
}

/// A flush that another CPU asked for; it lives on the asker's stack until `pending` says that all have answered.
#[derive(Clone, Copy)]
struct Call {
    request: *const (),
    pending: *const AtomicUsize,
}
// SAFETY: what the pointers name is shared by design and outlives the call, which the asker waits for.
unsafe impl Send for Call {}

#[derive(Default)]
struct Inbox {
    /// A thread is this CPU. Else it is switched off: it runs no space, and begins with empty caches when it comes back.
    attached: bool,
    calls: Vec<Call>,
}

/// One CPU. Only the thread that is attached to it changes its caches; others only put calls into its inbox.
#[derive(Default)]
struct CpuState {
    cr3: AtomicU64,
    tlb: Mutex<Tlb>,
    inbox: Mutex<Inbox>,
    calls: AtomicUsize,
    interrupts: AtomicU64,
}

/// A machine in a process.
pub struct Hosted {
    arena: Arena,
    mmu: Mmu,
    cpus: Vec<CachePadded<CpuState>>,
    /// How often each frame was freed: a translation is stale where it was made in an earlier life.
    lives: Vec<AtomicU32>,
    /// A CPU has panicked: the run is over, and the others must not wait for it.
    failed: AtomicBool,
}

impl Hosted {
    /// Builds a machine and the memory system over its RAM. Both live until the process ends.
    ///
    /// # Panics
    /// Where the host has no memory for it, or the settings make no machine.
    pub fn boot(settings: Settings) -> &'static Vm<Hosted> {
        let arena = Arena::new(settings.frames).expect("the host gives memory for the arena");
        let range = arena.range();
        // The first frames are the kernel's tables; the core gets the rest.
        let mut taken = range.start.0;
        let boot = BootPhys(&arena);
        let mut frame = || {
            taken += 1;
            Some(Pfn(taken - 1))
        };
        let mut kernel = KernelTables::new(&boot, frame().expect("frames are counted up"));
        let half = VirtRange { start: quire_pmap_x86_64::kernel_tables::KERNEL_HALF, end: u64::MAX };
        let window = VirtRange { start: half.start, end: half.start + (1 << 39) };
        kernel.reserve(&boot, window, &mut frame).expect("the first slot of the kernel's half can be reserved");
        let memory = vec![0u128; Mmu::bytes(settings.cpus).div_ceil(16) + 8].leak();
        let at = memory.as_mut_ptr().cast::<u8>();
        let at = at.wrapping_add(at.align_offset(128));
        // SAFETY: leaked, aligned, large enough.
        let mmu = unsafe { Mmu::new(NonNull::new(at).expect("not null"), settings.cpus, kernel, settings.pcid) };
        let lives = (0..settings.frames).map(|_| AtomicU32::new(0)).collect();
        let cpus = (0..settings.cpus).map(|_| CachePadded(CpuState::default())).collect::<Vec<_>>();
        let machine = Hosted { arena, mmu, cpus, lives, failed: AtomicBool::new(false) };
        for cpu in &machine.cpus {
            cpu.cr3.store(machine.mmu.kernel().root().address(), Ordering::Relaxed);
        }
        let ram = [PhysRange { start: Pfn(taken), end: range.end }];
        let config = Config { poison: settings.poison, ..Config::default() };
        // SAFETY: the frames are the arena's, which the machine owns for ever.
        unsafe { Vm::new(machine, &ram, config) }.expect("a hosted machine has enough memory")
    }

    fn state(&self, cpu: CpuId) -> &CpuState {
        &self.cpus[cpu]
    }

    pub(crate) fn attach(&self, cpu: CpuId) {
        let was = std::mem::replace(&mut self.inbox(cpu).attached, true);
        assert!(!was, "CPU {cpu} is attached to another thread already");
        self.with_tlb(cpu, Tlb::drop_all);
    }

    fn inbox(&self, cpu: CpuId) -> MutexGuard<'_, Inbox> {
        self.state(cpu).inbox.lock().expect("inboxes are not held across panics")
    }

    /// Whether a CPU has panicked.
    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    pub(crate) fn detach(&self, cpu: CpuId) {
        if std::thread::panicking() {
            self.failed.store(true, Ordering::Relaxed);
            return;
        }
        loop {
            self.serve(cpu);
            let mut inbox = self.inbox(cpu);
            if inbox.calls.is_empty() {
                inbox.attached = false;
                return;
            }
        }
    }

    /// Root and PCID that `cpu` has loaded.
    pub(crate) fn cr3(&self, cpu: CpuId) -> (Pfn, u16) {
        let cr3 = self.state(cpu).cr3.load(Ordering::Relaxed);
        (word::frame(cr3), (cr3 & 0xfff) as u16)
    }

    pub(crate) fn with_tlb<R>(&self, cpu: CpuId, f: impl FnOnce(&mut Tlb) -> R) -> R {
        f(&mut self.state(cpu).tlb.lock().expect("no thread panics with a TLB locked"))
    }

    /// Which life frame `pfn` is in.
    pub(crate) fn life(&self, pfn: Pfn) -> u32 {
        self.lives[(pfn.0 - self.arena.range().start.0) as usize].load(Ordering::Acquire)
    }

    /// Answers what other CPUs have asked of `cpu`, which the calling thread is: a simulated interrupt.
    pub fn serve(&self, cpu: CpuId) {
        let state = self.state(cpu);
        if state.calls.load(Ordering::Acquire) == 0 {
            return;
        }
        let calls = std::mem::take(&mut self.inbox(cpu).calls);
        for call in calls {
            state.calls.fetch_sub(1, Ordering::AcqRel);
            state.interrupts.fetch_add(1, Ordering::Relaxed);
            // SAFETY: the asker waits for `pending` before it lets go of either.
            unsafe {
                (*call.request.cast::<Request<'_>>()).serve(self);
                (*call.pending).fetch_sub(1, Ordering::AcqRel);
            }
        }
    }

    /// Shootdown interrupts that `cpu` has served so far.
    pub fn interrupts(&self, cpu: CpuId) -> u64 {
        self.state(cpu).interrupts.load(Ordering::Relaxed)
    }
}

/// RAM before there is a machine.
struct BootPhys<'a>(&'a Arena);

// SAFETY: the arena does not move, and its frames are consecutive.
unsafe impl Phys for BootPhys<'_> {
    fn frame_ptr(&self, pfn: Pfn) -> *mut u8 {
        self.0.ptr(pfn)
    }
    fn pfn_of(&self, ptr: *const u8) -> Pfn {
        self.0.pfn(ptr)
    }
}

// SAFETY: as above.
unsafe impl Phys for Hosted {
    fn frame_ptr(&self, pfn: Pfn) -> *mut u8 {
        self.arena.ptr(pfn)
    }
    fn pfn_of(&self, ptr: *const u8) -> Pfn {
        self.arena.pfn(ptr)
    }
    fn frame_freed(&self, pfn: Pfn) {
        self.lives[(pfn.0 - self.arena.range().start.0) as usize].fetch_add(1, Ordering::AcqRel);
    }
}

impl Machine for Hosted {
    type Pmap = X86Pmap;
    fn cpus(&self) -> usize {
        self.cpus.len()
    }
}

// SAFETY: the instructions act on the calling CPU's caches as the SDM says; `shoot` waits for every target.
unsafe impl X86 for Hosted {
    fn mmu(&self) -> &Mmu {
        &self.mmu
    }

    unsafe fn write_cr3(&self, value: u64) {
        let cpu = current_cpu();
        let (pcid, keep) = ((value & 0xfff) as u16, value & CR3_KEEP != 0);
        assert!(self.mmu.pcid() || (pcid == 0 && !keep), "PCIDs are used on CPUs that have none");
        self.state(cpu).cr3.store(value & !CR3_KEEP, Ordering::Relaxed);
        if !keep {
            self.with_tlb(cpu, |t| t.drop_pcid(pcid));
        }
    }

    fn invlpg(&self, va: u64) {
        let cpu = current_cpu();
        let (_, pcid) = self.cr3(cpu);
        self.with_tlb(cpu, |t| t.invlpg(pcid, va >> PAGE_SHIFT));
    }

    fn invpcid(&self, what: Invpcid) {
        assert!(self.mmu.pcid(), "INVPCID on CPUs that do not have it");
        self.with_tlb(current_cpu(), |t| match what {
            Invpcid::Single(pcid) => t.drop_pcid(pcid),
            Invpcid::All => t.drop_all(),
        });
    }

    fn masked<R>(&self, f: impl FnOnce() -> R) -> R {
        // Calls are served between steps, never inside one.
        f()
    }

    fn shoot(&self, targets: &CpuMask, request: &Request<'_>) {
        let here = current_cpu();
        let others: Vec<CpuId> = targets.iter().filter(|c| *c != here).collect();
        let pending = AtomicUsize::new(others.len());
        for cpu in &others {
            let call = Call { request: std::ptr::from_ref(request).cast(), pending: &pending };
            let mut inbox = self.inbox(*cpu);
            if inbox.attached {
                self.state(*cpu).calls.fetch_add(1, Ordering::AcqRel);
                inbox.calls.push(call);
            } else {
                pending.fetch_sub(1, Ordering::AcqRel);
            }
        }
        if targets.contains(here) {
            request.serve(self);
        }
        while pending.load(Ordering::Acquire) != 0 {
            if self.has_failed() {
                // Nothing can be relied upon any more.
                if std::thread::panicking() {
                    return;
                }
                panic!("another CPU has failed");
            }
            self.serve(here);
            std::thread::yield_now();
        }
    }
}
