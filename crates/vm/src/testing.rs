//! A machine for this crate's own tests and models. It has some RAM, small page tables, and TLBs that keep translations
//! until an invalidation drops them. (The hosted machine tests the real page tables. This machine is small enough for a
//! model checker.)

use crate::check::Broken;
use crate::error::OutOfMemory;
use crate::machine::{Enter, KernelPages, Leaf, Machine, Phys, Pmap, Removed, Standing, Table};
use crate::mutant::{Mutant, mutant};
use crate::paging::memory_store::{FaultPlan, MemoryStore};
use crate::paging::pager::Pager;
use crate::phys::{Config, Physical};
use crate::tlb::flush::{FlushSet, Obligation};
use crate::types::{Access, MemoryType, PAGE_SHIFT, PAGE_SIZE, Pfn, PhysRange, Prot, VirtRange};
use crate::vm::Vm;
use core::ptr::NonNull;
use quire_sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence_after_rmw};
use quire_sync::epoch::Pinned;
use quire_sync::rank::assert_may_await_cpus;
use quire_sync::{CpuId, Rank, SpinGuard, SpinLock, current_cpu};

/// The number of pages that one table page covers.
#[cfg(not(any(loom, shuttle)))]
pub const SPAN: u64 = 64;
#[cfg(any(loom, shuttle))]
pub const SPAN: u64 = 4;
/// The number of table pages of a space.
const TABLES: usize = if cfg!(any(loom, shuttle)) { 1 } else { 16 };
/// The lowest address that a space can map.
pub const BASE: u64 = 0x1000_0000;

/// The address of the page with number `n` among the addresses that a space can map.
pub fn page(n: u64) -> u64 {
    BASE + n * PAGE_SIZE
}

/// The addresses of the kernel's own map.
pub const KERNEL: VirtRange =
    VirtRange { start: 0x8000_0000, end: 0x8000_0000 + if cfg!(any(loom, shuttle)) { 2 } else { 4096 } * PAGE_SIZE };
const KERNEL_PAGES: usize = ((KERNEL.end - KERNEL.start) >> PAGE_SHIFT) as usize;

/// The mappings of kernel addresses (a frame number plus one), and the TLBs of two CPUs for them.
struct KernelTable {
    leaves: Vec<AtomicU64>,
    cached: [SpinLock<Vec<u64>>; 2],
}

impl KernelTable {
    fn new() -> KernelTable {
        KernelTable {
            leaves: (0..KERNEL_PAGES).map(|_| AtomicU64::new(0)).collect(),
            cached: core::array::from_fn(|_| SpinLock::new(Rank::DEVICE, vec![0; KERNEL_PAGES])),
        }
    }
    fn index(va: u64) -> usize {
        assert!(KERNEL.contains(va), "{va:#x} is no address of the kernel's map");
        ((va - KERNEL.start) >> PAGE_SHIFT) as usize
    }
}

impl TestMachine {
    #[cfg(any(loom, shuttle))]
    /// The frame that the kernel on this CPU reaches at `va`. It comes from the TLB, or from the tables, which fill the
    /// TLB.
    pub fn kernel_translate(&self, va: u64) -> Option<Pfn> {
        let n = KernelTable::index(va);
        let mut cached = self.kernel.cached[current_cpu()].lock();
        if cached[n] == 0 {
            cached[n] = self.kernel.leaves[n].load(Ordering::Acquire);
        }
        cached[n].checked_sub(1).map(Pfn)
    }

    /// The frame that the tables map at kernel address `va`, if any.
    pub fn kernel_leaf(&self, va: u64) -> Option<Pfn> {
        self.kernel.leaves[KernelTable::index(va)].load(Ordering::Acquire).checked_sub(1).map(Pfn)
    }
}

// SAFETY: the TLBs of all CPUs are cleared before `flush_kernel` returns.
unsafe impl KernelPages for TestMachine {
    unsafe fn map_kernel(
        &self,
        _vm: &'static Physical<Self>,
        va: u64,
        pfn: Pfn,
        _memory: MemoryType,
    ) -> Result<(), OutOfMemory> {
        let old = self.kernel.leaves[KernelTable::index(va)].swap(pfn.0 + 1, Ordering::AcqRel);
        assert_eq!(old, 0, "kernel address {va:#x} is mapped twice");
        Ok(())
    }
    unsafe fn unmap_kernel(&self, va: u64) -> Option<Pfn> {
        self.kernel.leaves[KernelTable::index(va)].swap(0, Ordering::AcqRel).checked_sub(1).map(Pfn)
    }
    fn flush_kernel(&self, set: &FlushSet) {
        for cached in &self.kernel.cached {
            let mut cached = cached.lock();
            match set.ranges() {
                None => cached.fill(0),
                Some(ranges) => ranges
                    .iter()
                    .flat_map(|r| (r.start..r.end).step_by(PAGE_SIZE as usize))
                    .for_each(|va| cached[KernelTable::index(va)] = 0),
            }
        }
    }
}

/// A test machine with RAM and CPUs.
pub struct TestMachine {
    kernel: KernelTable,
    ram: NonNull<u8>,
    cpus: usize,
    /// The frames of RAM, and any holes between them.
    span: PhysRange,
    domains: usize,
    /// The time that the machine reports for stores. Tests set it.
    pub store_time: core::sync::atomic::AtomicU64,
    /// The standing of all threads (program, administrator or system), and the result of `Machine::ends_something`.
    /// Tests set both.
    pub standing: std::sync::Mutex<(Standing, bool)>,
    /// How often a thread still finds that it need not end ([`Machine::is_ending`]).
    pub looks_left: core::sync::atomic::AtomicU64,
}
// SAFETY: the RAM has no owning thread, and the kernel's table is made of atomics and locks.
unsafe impl Send for TestMachine {}
// SAFETY: shared references read fixed fields, or change the kernel's table, which consists of atomics and locks.
unsafe impl Sync for TestMachine {}

// SAFETY: `ram` is one page-aligned allocation of all frames. It is freed only when the machine is not used any more.
unsafe impl Phys for TestMachine {
    fn frame_ptr(&self, pfn: Pfn) -> *mut u8 {
        self.ram.as_ptr().wrapping_add((pfn.0 - self.span.start.0) as usize * PAGE_SIZE as usize)
    }
    fn pfn_of(&self, at: *const u8) -> Pfn {
        Pfn(self.span.start.0 + (at as usize - self.ram.as_ptr() as usize) as u64 / PAGE_SIZE)
    }
}

impl Machine for TestMachine {
    type Pmap = TestPmap;
    fn cpus(&self) -> usize {
        self.cpus
    }
    fn store_time(&self) -> u64 {
        self.store_time.load(core::sync::atomic::Ordering::Relaxed)
    }
    fn standing(&self) -> Standing {
        self.standing.lock().unwrap().0
    }
    fn ends_something(&self) -> bool {
        self.standing.lock().unwrap().1
    }
    fn is_ending(&self) -> bool {
        use core::sync::atomic::Ordering::Relaxed;
        let left = self.looks_left.load(Relaxed);
        self.looks_left.store(left.saturating_sub(1), Relaxed);
        left == 0
    }
    fn domains(&self) -> usize {
        self.domains
    }
    fn domain_of_cpu(&self, cpu: usize) -> usize {
        cpu % self.domains
    }
    // The domains are equal parts of RAM, one after the other.
    fn domain_of_frame(&self, pfn: Pfn) -> (usize, Pfn) {
        let (start, frames) = (self.span.start.0, self.span.end.0 - self.span.start.0);
        let domain = (pfn.0 - start) * self.domains as u64 / frames;
        (domain as usize, Pfn(start + ((domain + 1) * frames).div_ceil(self.domains as u64)))
    }
}

/// A memory system with `frames` frames. Under the checkers, dropping [`Boot`] frees the RAM.
pub fn boot(frames: u64, cpus: usize) -> Boot {
    boot_with(frames, cpus, Config { poison: true, reserve: Some(4), describe_at_boot: 0, ..Config::default() })
}

/// As [`boot`], with the settings `config`.
pub fn boot_with(frames: u64, cpus: usize, config: Config) -> Boot {
    boot_in_domains(frames, cpus, 1, config)
}

/// Makes a memory system like [`boot_with`], on a machine of several memory domains.
pub fn boot_in_domains(frames: u64, cpus: usize, domains: usize, config: Config) -> Boot {
    boot_over(&[PhysRange { start: Pfn(0), end: Pfn(frames) }], cpus, domains, config)
}

/// Makes a memory system like [`boot_in_domains`], over the ranges `ram`.
pub fn boot_over(ram: &[PhysRange], cpus: usize, domains: usize, config: Config) -> Boot {
    // The thread that boots is the first CPU, as on any machine, unless it has already chosen a CPU.
    #[cfg(not(any(loom, shuttle)))]
    if current_cpu() == quire_sync::hooks::threads::NO_CPU {
        quire_sync::hooks::threads::set_cpu(0);
    }
    let span = PhysRange { start: ram[0].start, end: ram[ram.len() - 1].end };
    let bytes = (span.end.0 - span.start.0) * PAGE_SIZE;
    let layout = std::alloc::Layout::from_size_align(bytes as usize, PAGE_SIZE as usize).unwrap();
    // SAFETY: a machine has RAM, so the layout is not of size zero.
    let memory = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) }).unwrap();
    let store_time = core::sync::atomic::AtomicU64::new(0);
    let standing = std::sync::Mutex::new((Standing::System, true));
    let looks_left = core::sync::atomic::AtomicU64::new(u64::MAX);
    let machine =
        TestMachine { kernel: KernelTable::new(), ram: memory, cpus, span, domains, store_time, standing, looks_left };
    // SAFETY: the allocation has all frames of `ram`. Tests drop `Boot`, which frees it, after all values that use
    // the system.
    let vm = unsafe { Vm::new(machine, ram, config) }.unwrap();
    Boot { vm, ram: memory, layout }
}

/// A memory system that is freed at the end of a test.
pub struct Boot {
    /// The system.
    pub vm: &'static Vm<TestMachine>,
    ram: NonNull<u8>,
    layout: std::alloc::Layout,
}
// SAFETY: only `drop` uses `ram`, and any thread may free it. The system is `Sync`.
unsafe impl Send for Boot {}
// SAFETY: a shared reference gives access to the system, which is `Sync`. Only `drop` uses `ram`.
unsafe impl Sync for Boot {}

impl Boot {
    /// Gives the system a swap store of `slots` slots.
    pub fn swap(&self, slots: u64, plan: FaultPlan) -> &'static MemoryStore {
        let store = memory_store(slots, plan);
        self.vm.add_polled_swap(store).unwrap();
        store
    }
}

/// A store of `pages` pages in leaked memory.
pub fn memory_store(pages: u64, plan: FaultPlan) -> &'static MemoryStore {
    let bytes = std::vec![0u8; (pages * PAGE_SIZE) as usize].leak();
    // SAFETY: the bytes are leaked, and this store alone has their address.
    Box::leak(Box::new(unsafe { MemoryStore::new(NonNull::from(bytes).cast(), pages, plan) }))
}

impl Drop for Boot {
    fn drop(&mut self) {
        // SAFETY: tests drop their system last, and `ram` was allocated with this layout.
        unsafe { std::alloc::dealloc(self.ram.as_ptr(), self.layout) }
    }
}

// The format of a leaf: the frame number above bit 12, and the bits below.
const PRESENT: u64 = 1;
const WRITE: u64 = 2;
const EXEC: u64 = 4;
const ACCESSED: u64 = 8;
const DIRTY: u64 = 16;

fn encode(new: Enter) -> u64 {
    let mut w = PRESENT | ACCESSED | new.pfn.address();
    if new.prot.contains(Prot::WRITE) {
        w |= WRITE | DIRTY;
    }
    if new.prot.contains(Prot::EXEC) {
        w |= EXEC;
    }
    w
}

fn decode(w: u64) -> Option<Leaf> {
    (w & PRESENT != 0).then(|| {
        let mut prot = Prot::READ;
        prot.set(Prot::WRITE, w & WRITE != 0);
        prot.set(Prot::EXEC, w & EXEC != 0);
        Leaf { pfn: Pfn::containing(w), prot, accessed: w & ACCESSED != 0, dirty: w & DIRTY != 0 }
    })
}

struct TestTable {
    /// Whether the table page exists. An absent table page is skipped without its lock.
    linked: AtomicBool,
    lock: SpinLock<()>,
    unflushed: AtomicU32,
    store_protected: AtomicBool,
    leaves: [AtomicU64; SPAN as usize],
}

/// A TLB with room for all pages. Its lock makes a fill and an invalidation exclude each other, as in hardware.
struct Tlb(SpinLock<[u64; SPAN as usize * TABLES]>);

/// The page tables of a space, and the TLBs of two CPUs.
pub struct TestPmap {
    tables: [TestTable; TABLES],
    tlbs: [Tlb; 2],
    /// Whether CPUs other than the calling one run the space. Tests set it by `run_by_several`.
    running_elsewhere: core::sync::atomic::AtomicBool,
    /// Whether a table page is store-protected when all its leaves lose the right to store.
    protects_tables: core::sync::atomic::AtomicBool,
    /// Whether the frame of zeroes was mapped in any table page. Written under a table page's lock.
    shows_zeroes: core::sync::atomic::AtomicBool,
    /// Whether the page tables were freed.
    freed: core::sync::atomic::AtomicBool,
}

impl TestPmap {
    fn index(va: u64) -> Option<usize> {
        let n = va.checked_sub(BASE)? >> PAGE_SHIFT;
        (n < SPAN * TABLES as u64).then_some(n as usize)
    }
    fn locked(&self, n: usize) -> TestGuard<'_> {
        let guard = self.tables[n].lock.lock();
        if !mutant(Mutant::NoFenceAfterLock) {
            fence_after_rmw();
        }
        TestGuard { pmap: self, n, _guard: guard }
    }
    fn leaf(&self, n: usize) -> &AtomicU64 {
        &self.tables[n / SPAN as usize].leaves[n % SPAN as usize]
    }

    /// The frame that an instruction on this CPU reaches at `va`. It comes from the TLB, or from the tables, which fill
    /// the TLB.
    #[cfg(any(loom, shuttle))]
    pub fn translate(&self, va: u64, access: Access) -> Option<Pfn> {
        self.access(va, access, |pfn| pfn)
    }

    /// Acts like an instruction: translates `va`, and calls `f` with the frame. The access ends before an invalidation
    /// can end.
    pub fn access<R>(&self, va: u64, access: Access, f: impl FnOnce(Pfn) -> R) -> Option<R> {
        let n = Self::index(va)?;
        let mut tlb = self.tlbs[current_cpu()].0.lock();
        if tlb[n] & PRESENT == 0 {
            // The walk reads the upper level first, as hardware does.
            let store_protected =
                self.protects_tables() && self.tables[n / SPAN as usize].store_protected.load(Ordering::Acquire);
            tlb[n] = self.leaf(n).load(Ordering::Acquire) & if store_protected { !WRITE } else { !0 };
            #[cfg(not(any(loom, shuttle)))]
            if tlb[n] & PRESENT != 0 {
                self.leaf(n).fetch_or(ACCESSED, Ordering::AcqRel);
            }
        }
        let leaf = decode(tlb[n])?;
        leaf.prot.contains(access.needs()).then(|| f(leaf.pfn))
    }

    /// Drops the leaf at `va`. Page tables may do this at any time, because they are a cache of the map.
    #[cfg(any(loom, shuttle))]
    pub fn forget(&self, vm: &'static Vm<TestMachine>, va: u64) {
        let mut owed = Obligation::new(vm, self);
        if let Some(mut table) = self.next_table(vm, VirtRange { start: va, end: va + PAGE_SIZE }) {
            let _gone = table.remove(va, &mut owed);
        }
        let _flushed = owed.discharge();
    }

    /// Asserts that the page tables were not freed yet.
    fn assert_kept(&self) {
        // A failed model drops its obligations while it unwinds.
        let kept = !self.freed.load(core::sync::atomic::Ordering::Relaxed) || std::thread::panicking();
        assert!(kept, "page tables are used after they were freed");
    }

    /// Notes that several CPUs run the space.
    #[cfg(not(any(loom, shuttle)))]
    pub fn run_by_several(&self) {
        self.running_elsewhere.store(true, core::sync::atomic::Ordering::Relaxed);
    }

    /// From now on, a table page is store-protected when all its leaves lose the right to store
    /// ([`Table::is_store_protected`]).
    #[cfg(any(loom, shuttle))]
    pub fn protect_tables(&self) {
        self.protects_tables.store(true, core::sync::atomic::Ordering::Relaxed);
    }

    fn protects_tables(&self) -> bool {
        self.protects_tables.load(core::sync::atomic::Ordering::Relaxed)
    }

    /// The leaf that the tables have at `va`.
    pub fn peek(&self, va: u64) -> Option<Leaf> {
        decode(self.leaf(Self::index(va)?).load(Ordering::Acquire))
    }

    /// All translations of `va` that some TLB still holds.
    pub fn cached(&self, va: u64) -> impl Iterator<Item = Leaf> + '_ {
        let n = Self::index(va).unwrap();
        self.tlbs.iter().filter_map(move |t| decode(t.0.lock()[n]))
    }
}

// SAFETY: table pages are part of the pmap, so none of them is ever freed or dead.
unsafe impl Pmap<TestMachine> for TestPmap {
    const USER: VirtRange = crate::map::USER;
    const TABLE_SPAN: u64 = SPAN * PAGE_SIZE;

    type Table<'a> = TestGuard<'a>;

    unsafe fn new(_vm: &'static Physical<TestMachine>) -> Result<Self, OutOfMemory> {
        Ok(TestPmap {
            tables: core::array::from_fn(|_| TestTable {
                linked: AtomicBool::new(false),
                lock: SpinLock::new(Rank::TABLE, ()),
                unflushed: AtomicU32::new(0),
                store_protected: AtomicBool::new(false),
                leaves: core::array::from_fn(|_| AtomicU64::new(0)),
            }),
            tlbs: core::array::from_fn(|_| Tlb(SpinLock::new(Rank::DEVICE, [0; SPAN as usize * TABLES]))),
            running_elsewhere: core::sync::atomic::AtomicBool::new(false),
            protects_tables: core::sync::atomic::AtomicBool::new(false),
            shows_zeroes: core::sync::atomic::AtomicBool::new(false),
            freed: core::sync::atomic::AtomicBool::new(false),
        })
    }

    fn table(
        &self,
        _vm: &'static Physical<TestMachine>,
        va: u64,
        _pin: &Pinned<'_>,
    ) -> Result<TestGuard<'_>, OutOfMemory> {
        let n = Self::index(va).ok_or(OutOfMemory)? / SPAN as usize;
        if !self.tables[n].linked.load(Ordering::Acquire) {
            self.tables[n].linked.swap(true, Ordering::AcqRel);
        }
        Ok(self.locked(n))
    }

    fn next_table(&self, _vm: &'static Physical<TestMachine>, range: VirtRange) -> Option<TestGuard<'_>> {
        let first = Self::index(range.start.max(BASE)).filter(|_| range.end > range.start.max(BASE))?;
        let last = Self::index(range.end - 1).unwrap_or(SPAN as usize * TABLES - 1);
        (first / SPAN as usize..=last / SPAN as usize)
            .find(|n| self.tables[*n].linked.load(Ordering::Acquire))
            .map(|n| self.locked(n))
    }

    fn unflushed_above(&self, _vm: &'static Physical<TestMachine>, _va: u64) -> bool {
        false
    }

    fn flush(&self, _vm: &'static Physical<TestMachine>, set: &FlushSet) {
        // A real flush may wait for other CPUs.
        assert_may_await_cpus();
        self.assert_kept();
        for tlb in &self.tlbs {
            let mut t = tlb.0.lock();
            match set.ranges() {
                None => t.fill(0),
                Some(ranges) => {
                    for va in ranges.iter().flat_map(|r| (r.start..r.end).step_by(PAGE_SIZE as usize)) {
                        t[Self::index(va).unwrap()] = 0;
                    }
                }
            }
        }
    }

    fn settle(&self, _vm: &'static Physical<TestMachine>, table: Pfn) -> bool {
        self.assert_kept();
        self.tables[table.0 as usize].unflushed.fetch_sub(1, Ordering::AcqRel);
        false
    }

    fn is_running(&self) -> bool {
        false
    }
    fn is_running_elsewhere(&self, _cpu: CpuId) -> bool {
        self.running_elsewhere.load(core::sync::atomic::Ordering::Relaxed)
    }
    fn prune(&self, _vm: &'static Physical<TestMachine>, _range: VirtRange) {}
    fn clear(&self, _vm: &'static Physical<TestMachine>) {
        self.freed.store(true, core::sync::atomic::Ordering::Relaxed);
    }
    unsafe fn destroy(&mut self, _vm: &'static Physical<TestMachine>) {}

    fn check(&self, _vm: &'static Physical<TestMachine>, quiet: bool) -> Result<u64, Broken> {
        for (n, table) in self.tables.iter().enumerate() {
            let _held = table.lock.lock();
            if quiet && table.unflushed.load(Ordering::Acquire) != 0 {
                return Err(Broken::TableUnflushed(BASE + n as u64 * SPAN * PAGE_SIZE));
            }
        }
        Ok(TABLES as u64)
    }
    fn peak_pages(&self, vm: &'static Physical<TestMachine>) -> u64 {
        self.resident_pages(vm)
    }
    fn restart_peak(&self, _vm: &'static Physical<TestMachine>) {}
    fn resident_pages(&self, vm: &'static Physical<TestMachine>) -> u64 {
        let leaves = (0..SPAN as usize * TABLES).filter_map(|n| decode(self.leaf(n).load(Ordering::Acquire)));
        leaves.filter(|leaf| leaf.pfn != vm.zero_frame()).count() as u64
    }
    fn table_pages(&self, _vm: &'static Physical<TestMachine>) -> u64 {
        TABLES as u64
    }
}

/// A locked table page.
pub struct TestGuard<'a> {
    pmap: &'a TestPmap,
    n: usize,
    _guard: SpinGuard<'a, ()>,
}

impl TestGuard<'_> {
    fn leaf(&self, va: u64) -> &AtomicU64 {
        let n = TestPmap::index(va).unwrap();
        assert_eq!(n / SPAN as usize, self.n, "an address outside the locked table page");
        self.pmap.leaf(n)
    }
    fn raise(&self) {
        self.pmap.tables[self.n].unflushed.fetch_add(1, Ordering::AcqRel);
    }
}

impl Table<TestMachine> for TestGuard<'_> {
    fn span(&self) -> VirtRange {
        let start = BASE + self.n as u64 * SPAN * PAGE_SIZE;
        VirtRange { start, end: start + SPAN * PAGE_SIZE }
    }
    fn get(&self, va: u64) -> Option<Leaf> {
        decode(self.leaf(va).load(Ordering::Acquire))
    }
    fn enter(&mut self, va: u64, new: Enter) {
        let old = self.leaf(va).swap(encode(new), Ordering::AcqRel);
        assert!(decode(old).is_none_or(|l| l.pfn == new.pfn), "a leaf is replaced by another page's");
        let n = TestPmap::index(va).unwrap();
        self.pmap.tlbs[current_cpu()].0.lock()[n] = 0;
    }
    fn remove(&mut self, va: u64, owed: &mut Obligation<'_, TestMachine>) -> Option<Removed> {
        if self.leaf(va).load(Ordering::Acquire) & PRESENT == 0 {
            return None;
        }
        owed.owe(va, Pfn(self.n as u64), self.span(), || self.raise());
        decode(self.leaf(va).swap(0, Ordering::AcqRel))
    }
    fn weaken(&mut self, va: u64, keep: Prot, owed: &mut Obligation<'_, TestMachine>) -> Option<Removed> {
        let old = decode(self.leaf(va).load(Ordering::Acquire))?;
        if keep.contains(old.prot) {
            return Some(old);
        }
        owed.owe(va, Pfn(self.n as u64), self.span(), || self.raise());
        let new = Enter::new(old.pfn, old.prot & keep);
        decode(self.leaf(va).swap(encode(new), Ordering::AcqRel))
    }
    fn sweep(
        &mut self,
        range: VirtRange,
        keep: Option<Prot>,
        owed: &mut Obligation<'_, TestMachine>,
        each: impl FnMut(Removed),
    ) -> u64 {
        let unwritable = Prot::all() - Prot::WRITE;
        if keep == Some(unwritable) && self.pmap.protects_tables() && range == self.span() {
            owed.owe_table(Pfn(self.n as u64), range, || self.raise());
            owed.owe_range(range);
            self.pmap.tables[self.n].store_protected.swap(true, Ordering::AcqRel);
            return 1;
        }
        self.sweep_leaves(range, keep, owed, each)
    }
    fn is_store_protected(&self) -> bool {
        self.pmap.protects_tables() && self.pmap.tables[self.n].store_protected.load(Ordering::Acquire)
    }
    fn restore_stores(&mut self, keep: bool, mut each: impl FnMut(Removed)) {
        for leaf in self.pmap.tables[self.n].leaves.iter().filter(|_| !keep) {
            let Some(was) = decode(leaf.load(Ordering::Acquire)).filter(|l| l.prot.contains(Prot::WRITE)) else {
                continue;
            };
            leaf.swap(encode(Enter::new(was.pfn, was.prot - Prot::WRITE)), Ordering::AcqRel);
            each(was);
        }
        self.pmap.tables[self.n].store_protected.swap(false, Ordering::AcqRel);
    }
    fn take_accessed(&mut self, va: u64) -> bool {
        self.leaf(va).fetch_and(!ACCESSED, Ordering::AcqRel) & ACCESSED != 0
    }
    fn next_present(&self, from: u64, to: u64) -> Option<u64> {
        (from.max(BASE)..to).step_by(PAGE_SIZE as usize).find(|va| self.get(*va).is_some())
    }
    fn unflushed(&self) -> bool {
        self.pmap.tables[self.n].unflushed.load(Ordering::Acquire) != 0
    }
    fn live(&self) -> u32 {
        self.pmap.tables[self.n].leaves.iter().filter(|l| l.load(Ordering::Acquire) & PRESENT != 0).count() as u32
    }
    fn note_zeroes(&mut self) {
        self.pmap.shows_zeroes.store(true, core::sync::atomic::Ordering::Relaxed);
    }
    fn shows_zeroes(&self) -> bool {
        self.pmap.shows_zeroes.load(core::sync::atomic::Ordering::Relaxed)
    }
}

/// The pager of a file in memory.
pub struct MemoryFile {
    /// Whether stores into the file are timed.
    pub timed: bool,
}

impl Pager for MemoryFile {
    fn name(&self, _: &mut dyn core::fmt::Write) -> core::fmt::Result {
        Ok(())
    }
    fn ident(&self) -> (u64, u64) {
        (1, 1)
    }
    fn in_memory(&self) -> bool {
        true
    }
    fn takes_writes(&self) -> bool {
        false
    }
    fn times_stores(&self) -> bool {
        self.timed
    }
}
