//! The machine: RAM, CPUs with their translation caches and inboxes, and the instructions that change them.

use crate::arena::Arena;
use crate::simulate::Simulate;
use crate::tlb::Tlb;
use quire_pmap::{Hardware, KernelTables, Mmu, Request, Tables, kernel_pages};
use quire_pmap_sv39::Sv39;
use quire_pmap_x86_64::X86_64;
use quire_sync::cpuset::{CpuMask, MAX_CPUS};
use quire_sync::hooks::threads::run_as_cpu;
use quire_sync::{CachePadded, CpuId, current_cpu};
use quire_vm::check::Level;
use quire_vm::machine::KernelPages;
use quire_vm::tlb::flush::FlushSet;
use quire_vm::{BootError, Config, Machine, MemoryType, OutOfMemory, PAGE_SIZE, Pfn, Phys, PhysRange, VirtRange, Vm};
use std::cell::RefCell;
use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

std::thread_local! {
    /// The simulated CPUs that this thread runs, of one or several machines.
    static OWN: RefCell<Vec<(&'static dyn Inboxes, CpuId)>> = const { RefCell::new(Vec::new()) };
}

/// A machine without its architecture's type, because a thread may run CPUs of several machines.
trait Inboxes {
    /// The address of the machine, which identifies it.
    fn address(&self) -> usize;
    /// Serves the requests to `cpu`, as [`Simulated::serve`] does.
    fn serve(&self, cpu: CpuId);
}

impl<F: Simulate> Inboxes for Simulated<F> {
    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }
    fn serve(&self, cpu: CpuId) {
        Simulated::serve_calls(self, cpu);
    }
}

/// Serves the requests to all CPUs that the calling thread runs.
pub(crate) fn serve_own() {
    let mut n = 0;
    while let Some((machine, cpu)) = OWN.with_borrow(|own| own.get(n).copied()) {
        machine.serve(cpu);
        n += 1;
    }
}

/// The configuration of a machine.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The number of CPUs, each of which a thread may attach to.
    pub cpus: usize,
    /// The number of frames of RAM, of 4 KiB.
    pub frames: u64,
    /// The number of the first frame of RAM. It is not zero by default, so that a use of frame zero is a bug.
    pub first_frame: u64,
    /// Whether the CPUs have address-space tags (PCIDs and INVPCID; ASIDs).
    pub pcid: bool,
    /// Whether freed frames are overwritten with a pattern.
    pub poison: bool,
    /// The number of frames after the end of RAM that belong to a device. Programs reach them only through device
    /// objects.
    pub device_frames: u64,
    /// Whether the hardware sets accessed and dirty bits. If not, it faults when they are missing. RISC-V allows both.
    pub sets_accessed: bool,
    /// When the core checks its structures.
    pub check: Level,
    /// The frames that are reserved for the core's own structures. `None`: the default of [`Config`].
    pub reserve: Option<u64>,
    /// The number of zeroed frames that an idle CPU prepares ([`Cpu::idle`](crate::Cpu::idle)) and keeps for first
    /// touches. 0: none.
    pub zero_stock: u32,
    /// The most pages that one first touch makes if touches were consecutive ([`Config::zero_window`]).
    pub zero_window: u32,
    /// The number of layers that a shadow chain may have before faults copy pages of shared layers up
    /// ([`Config::layers`]).
    pub layers: u8,
}

/// Why a machine could not be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum NoMachine {
    /// The host has no memory for the RAM.
    Host,
    /// The core refuses these settings.
    Core(BootError),
}

impl From<BootError> for NoMachine {
    fn from(error: BootError) -> NoMachine {
        NoMachine::Core(error)
    }
}

impl fmt::Display for NoMachine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoMachine::Host => f.write_str("the host gives no memory for the RAM"),
            NoMachine::Core(error) => error.fmt(f),
        }
    }
}
impl std::error::Error for NoMachine {}

/// Why the calling thread cannot become a CPU. After this error the thread's state is unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum AttachError {
    /// The machine has no CPU of that number. CPUs are numbered from 0.
    NoSuchCpu {
        /// The number of CPUs of the machine.
        cpus: usize,
    },
    /// A thread is already attached to that CPU.
    Taken,
}

impl fmt::Display for AttachError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AttachError::NoSuchCpu { cpus } => write!(f, "the machine has {cpus} CPUs"),
            AttachError::Taken => f.write_str("a thread is that CPU already"),
        }
    }
}
impl std::error::Error for AttachError {}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            cpus: 4,
            frames: 16 * 1024,
            first_frame: 0x100,
            pcid: true,
            poison: true,
            device_frames: 0,
            sets_accessed: true,
            check: Level::DEFAULT,
            reserve: None,
            zero_stock: 0,
            zero_window: Config::default().zero_window,
            layers: Config::default().layers,
        }
    }
}

/// A flush request of another CPU. It lives on the requester's stack until `pending`, the number of missing answers, is
/// zero.
#[derive(Clone, Copy)]
struct Call {
    request: *const (),
    pending: *const AtomicUsize,
}
// SAFETY: the pointers' targets are shared by design and outlive the call, because the requester waits for it.
unsafe impl Send for Call {}

#[derive(Default)]
struct Inbox {
    /// Whether a thread is attached to this CPU. If not, the CPU is off: it runs no space, and its caches are empty
    /// when it is attached again.
    attached: bool,
    calls: Vec<Call>,
    /// The calls that the thread is serving now. There are several if the thread waits for a lock while it serves one
    /// call, and serves other calls during the wait.
    serving: Vec<Call>,
}

/// Marks a call as being served. Dropping this value removes the mark, even if a panic prevented the answer.
struct Serving<'a, F: Simulate> {
    machine: &'a Simulated<F>,
    cpu: CpuId,
}

impl<F: Simulate> Drop for Serving<'_, F> {
    fn drop(&mut self) {
        self.machine.inbox(self.cpu).serving.pop();
    }
}

/// One CPU. Only the attached thread changes its caches; other threads only put calls into its inbox.
#[derive(Default)]
struct CpuState {
    /// The frame number of the loaded root; `tag` is the loaded tag.
    root: AtomicU64,
    tag: AtomicU16,
    tlb: Mutex<Tlb>,
    inbox: Mutex<Inbox>,
    calls: AtomicUsize,
    interrupts: AtomicU64,
}

/// A hosted machine with the page tables of x86-64.
pub type Hosted = Simulated<X86_64>;
/// A hosted machine with the page tables of RISC-V.
pub type HostedSv39 = Simulated<Sv39>;

/// A hosted machine, with the page tables and the translation caches of one architecture.
pub struct Simulated<F: Simulate> {
    arena: Arena,
    mmu: Mmu<F>,
    devices: PhysRange,
    sets_accessed: bool,
    cpus: Vec<CachePadded<CpuState>>,
    /// How often each frame was freed: its *life*. A translation is stale if it was made in an earlier life of its
    /// frame.
    lives: Vec<AtomicU32>,
    /// Whether idle CPUs zero frames.
    zeroes: bool,
    /// Whether a CPU has panicked. Then the run is over, and the other CPUs must not wait for it.
    failed: AtomicBool,
}

impl<F: Simulate> Simulated<F> {
    /// The addresses at which the kernel may map pages: the first GiB of its half.
    pub const KERNEL_WINDOW: VirtRange = VirtRange { start: F::KERNEL_HALF, end: F::KERNEL_HALF + (1 << 30) };

    /// Builds a machine and the memory system over its RAM. Both live until the process ends. On failure nothing
    /// remains. Fails if the host has no memory for the RAM, or if the settings are impossible.
    pub fn boot(settings: Settings) -> Result<&'static Vm<Simulated<F>>, NoMachine> {
        if settings.cpus == 0 || settings.cpus > MAX_CPUS {
            return Err(BootError::BadCpus(settings.cpus).into());
        }
        let first = settings.first_frame;
        let end = first.saturating_add(settings.frames).saturating_add(settings.device_frames);
        let all = PhysRange { start: Pfn(first), end: Pfn(end) };
        if end >= u64::from(u32::MAX) {
            return Err(BootError::BadRange(all).into());
        }
        let arena = Arena::new(all).map_err(|_| NoMachine::Host)?;
        let frames = end - first;
        let range = PhysRange { start: all.start, end: Pfn(all.start.0 + settings.frames) };
        // The first frames hold the kernel's tables; the core gets the rest.
        let mut taken = range.start.0;
        let boot = BootPhys(&arena);
        let mut frame = || {
            taken += 1;
            (taken <= range.end.0).then(|| Pfn(taken - 1))
        };
        let too_little = || NoMachine::Core(BootError::TooLittleMemory(settings.frames));
        let root = frame().ok_or_else(too_little)?;
        // SAFETY: the core never gets the frames that `frame` has counted, and `boot` is the machine's memory.
        let mut kernel = unsafe { KernelTables::<F>::new(&boot, root) };
        // The window begins the kernel's half, so this can fail only for lack of frames.
        // SAFETY: the frames that `frame` has counted go to these tables alone, and `boot` is the machine's memory.
        unsafe { kernel.reserve(&boot, Self::KERNEL_WINDOW, &mut frame) }.map_err(|_| too_little())?;
        if taken >= range.end.0 {
            return Err(too_little());
        }
        let memory = vec![0u128; Mmu::<F>::bytes(settings.cpus).div_ceil(16) + 8].leak();
        let at = memory.as_mut_ptr().cast::<u8>();
        let at = at.wrapping_add(at.align_offset(128));
        // SAFETY: the memory is leaked, aligned and large enough.
        let mmu = unsafe { Mmu::new(NonNull::new(at).expect("not null"), settings.cpus, kernel, settings.pcid) };
        let lives = (0..frames).map(|_| AtomicU32::new(0)).collect();
        let cpus = (0..settings.cpus).map(|_| CachePadded(CpuState::default())).collect::<Vec<_>>();
        let machine = Simulated {
            arena,
            mmu,
            devices: PhysRange { start: range.end, end: all.end },
            sets_accessed: settings.sets_accessed,
            cpus,
            lives,
            zeroes: settings.zero_stock != 0,
            failed: AtomicBool::new(false),
        };
        for cpu in &machine.cpus {
            cpu.root.store(machine.mmu.kernel().root().0, Ordering::Relaxed);
        }
        let ram = [PhysRange { start: Pfn(taken), end: range.end }];
        let config = Config {
            poison: settings.poison,
            check: settings.check,
            reserve: settings.reserve,
            zero_stock: settings.zero_stock,
            zero_window: settings.zero_window,
            layers: settings.layers,
            ..Config::default()
        };
        // The system is built as CPU 0. No thread can be attached to it yet, because the machine is new.
        // SAFETY: the frames are the arena's, which the machine owns for ever. No other thread can be its CPU 0.
        Ok(unsafe { run_as_cpu(0, || Vm::new(machine, &ram, config)) }?)
    }

    fn state(&self, cpu: CpuId) -> &CpuState {
        &self.cpus[cpu]
    }

    pub(crate) fn attach(&'static self, cpu: CpuId) -> Result<(), AttachError> {
        if cpu >= self.cpus.len() {
            return Err(AttachError::NoSuchCpu { cpus: self.cpus.len() });
        }
        if std::mem::replace(&mut self.inbox(cpu).attached, true) {
            return Err(AttachError::Taken);
        }
        self.with_tlb(cpu, Tlb::drop_all);
        OWN.with_borrow_mut(|own| own.push((self, cpu)));
        Ok(())
    }

    fn inbox(&self, cpu: CpuId) -> MutexGuard<'_, Inbox> {
        self.state(cpu).inbox.lock().expect("inboxes are not held across panics")
    }

    pub(crate) fn zeroes_when_idle(&self) -> bool {
        self.zeroes
    }

    /// Whether a CPU has panicked.
    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    /// Detaches the thread from `cpu`. Returns another simulated CPU that the thread is attached to, if there is one.
    pub(crate) fn detach(&self, cpu: CpuId) -> Option<CpuId> {
        let none = OWN.with_borrow_mut(|own| {
            own.retain(|(machine, own)| (machine.address(), *own) != (self.address(), cpu));
            own.last().map(|(_, cpu)| *cpu)
        });
        if std::thread::panicking() {
            self.failed.store(true, Ordering::Relaxed);
            return none;
        }
        loop {
            self.serve_calls(cpu);
            let mut inbox = self.inbox(cpu);
            if inbox.calls.is_empty() {
                inbox.attached = false;
                return none;
            }
        }
    }

    /// The root and the tag that `cpu` has loaded.
    pub(crate) fn loaded(&self, cpu: CpuId) -> (Pfn, u16) {
        let state = self.state(cpu);
        (Pfn(state.root.load(Ordering::Relaxed)), state.tag.load(Ordering::Relaxed))
    }

    /// The device's frames.
    pub fn devices(&self) -> PhysRange {
        self.devices
    }

    /// Whether frame `pfn` is the device's.
    pub(crate) fn is_device(&self, pfn: Pfn) -> bool {
        self.devices.start <= pfn && pfn < self.devices.end
    }

    /// Whether the hardware sets accessed and dirty bits.
    pub(crate) fn sets_accessed(&self) -> bool {
        self.sets_accessed
    }

    pub(crate) fn with_tlb<R>(&self, cpu: CpuId, f: impl FnOnce(&mut Tlb) -> R) -> R {
        f(&mut self.state(cpu).tlb.lock().expect("no thread panics with a TLB locked"))
    }

    /// The life of frame `pfn`: how often it was freed.
    pub(crate) fn life(&self, pfn: Pfn) -> u32 {
        self.lives[(pfn.0 - self.arena.range().start.0) as usize].load(Ordering::Acquire)
    }

    /// The address of RAM in this process, and its size in bytes, the device's frames included.
    pub fn memory(&self) -> (*const u8, usize) {
        let all = self.arena.range();
        (self.arena.ptr(all.start), ((all.end.0 - all.start.0) * PAGE_SIZE) as usize)
    }

    /// Whether the calling thread is attached to `cpu`.
    pub(crate) fn is_own(&self, cpu: CpuId) -> bool {
        OWN.with_borrow(|own| own.iter().any(|(machine, own)| (machine.address(), *own) == (self.address(), cpu)))
    }

    /// Serves the requests of other CPUs to `cpu`: a simulated interrupt. Does nothing if the calling thread is not
    /// attached to the CPU.
    pub fn serve(&self, cpu: CpuId) {
        if self.is_own(cpu) {
            self.serve_calls(cpu);
        }
    }

    /// As [`serve`](Self::serve), for a thread that is attached, or is just being detached.
    fn serve_calls(&self, cpu: CpuId) {
        let state = self.state(cpu);
        if state.calls.load(Ordering::Acquire) == 0 {
            return;
        }
        loop {
            let call = {
                let mut inbox = self.inbox(cpu);
                if inbox.calls.is_empty() {
                    return;
                }
                let call = inbox.calls.remove(0);
                inbox.serving.push(call);
                call
            };
            let _serving = Serving { machine: self, cpu };
            state.calls.fetch_sub(1, Ordering::AcqRel);
            state.interrupts.fetch_add(1, Ordering::Relaxed);
            // SAFETY: both pointers are valid. The requester frees neither before `pending` is zero, or before
            // `take_back` has seen that no CPU serves the call. No other thread is this CPU while `attached` is set.
            unsafe {
                run_as_cpu(cpu, || {
                    (*call.request.cast::<Request<'_, F>>()).serve(self);
                    (*call.pending).fetch_sub(1, Ordering::AcqRel);
                });
            }
        }
    }

    /// Withdraws the calls that name `pending` after a CPU has failed, so that no CPU answers them later.
    fn take_back(&self, asked: &[CpuId], pending: &AtomicUsize) {
        let ours = |call: &Call| std::ptr::eq(call.pending, pending);
        for cpu in asked {
            let calls = &mut self.inbox(*cpu).calls;
            let before = calls.len();
            calls.retain(|call| !ours(call));
            self.state(*cpu).calls.fetch_sub(before - calls.len(), Ordering::AcqRel);
        }
        // A CPU that serves one of these calls now finishes it, or panics. Both remove it from `serving`.
        while asked.iter().any(|cpu| self.inbox(*cpu).serving.iter().any(ours)) {
            std::thread::yield_now();
        }
    }

    /// The number of shootdown interrupts that `cpu` has served.
    pub fn interrupts(&self, cpu: CpuId) -> u64 {
        self.state(cpu).interrupts.load(Ordering::Relaxed)
    }
}

/// RAM at a time when the machine is not built yet.
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

// SAFETY: the machine's arena does not move while the machine lives, and its frames are consecutive.
unsafe impl<F: Simulate> Phys for Simulated<F> {
    fn frame_ptr(&self, pfn: Pfn) -> *mut u8 {
        self.arena.ptr(pfn)
    }
    fn pfn_of(&self, ptr: *const u8) -> Pfn {
        self.arena.pfn(ptr)
    }
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn prefetch(&self, at: *const u8) {
        use core::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
        // SAFETY: a prefetch is a hint, which accesses nothing.
        unsafe { _mm_prefetch::<_MM_HINT_ET0>(at.cast()) }
    }
    unsafe fn frame_freed(&self, pfn: Pfn) {
        self.lives[(pfn.0 - self.arena.range().start.0) as usize].fetch_add(1, Ordering::AcqRel);
    }
}

impl<F: Simulate> Machine for Simulated<F> {
    type Pmap = Tables<F>;
    fn cpus(&self) -> usize {
        self.cpus.len()
    }
}

// SAFETY: `kernel_pages` keeps the contract by way of `shoot`.
unsafe impl<F: Simulate> KernelPages for Simulated<F> {
    unsafe fn map_kernel(
        &self,
        vm: &'static quire_vm::phys::Physical<Self>,
        va: u64,
        pfn: Pfn,
        memory: MemoryType,
    ) -> Result<(), OutOfMemory> {
        // SAFETY: `kernel_pages::map` requires of its caller just the contract of this function.
        unsafe { kernel_pages::map(vm, va, pfn, memory) }
    }
    unsafe fn unmap_kernel(&self, va: u64) -> Option<Pfn> {
        // SAFETY: `kernel_pages::unmap` requires of its caller just the contract of this function.
        unsafe { kernel_pages::unmap(self, va) }
    }
    fn flush_kernel(&self, set: &FlushSet) {
        kernel_pages::flush(self, set);
    }
}

// SAFETY: the instructions act on the calling CPU's caches as the manuals say; `shoot` waits for every target.
unsafe impl<F: Simulate> Hardware for Simulated<F> {
    type Format = F;

    fn mmu(&self) -> &Mmu<F> {
        &self.mmu
    }

    unsafe fn load_root(&self, root: Pfn, tag: u16, keep: bool) {
        let cpu = current_cpu();
        assert!(self.mmu.tags() || (tag == 0 && !keep), "tags are used on CPUs without tags");
        let state = self.state(cpu);
        state.root.store(root.0, Ordering::Relaxed);
        state.tag.store(tag, Ordering::Relaxed);
        if !keep {
            self.with_tlb(cpu, |t| t.drop_tag(tag));
        }
    }

    fn drop_page(&self, va: u64) {
        let cpu = current_cpu();
        let (_, tag) = self.loaded(cpu);
        self.with_tlb(cpu, |t| F::drop_page(t, tag, va));
    }

    fn drop_loaded(&self, root: Pfn, tag: u16) {
        let cpu = current_cpu();
        assert_eq!(self.loaded(cpu), (root, tag), "the dropped root is not the loaded one");
        self.with_tlb(cpu, |t| t.drop_tag(tag));
    }

    fn drop_all(&self) {
        self.with_tlb(current_cpu(), Tlb::drop_all);
    }

    fn masked<R>(&self, f: impl FnOnce() -> R) -> R {
        // Nothing to mask: calls are served only between steps, never inside one.
        f()
    }

    fn shoot(&self, targets: &CpuMask, request: &Request<'_, F>) {
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
                // The machine's state is lost. Once the calls are withdrawn, this thread's stack, where they lie, may
                // be freed.
                self.take_back(&others, &pending);
                if std::thread::panicking() {
                    return;
                }
                panic!("another CPU has failed");
            }
            serve_own();
            std::thread::yield_now();
        }
    }
}
