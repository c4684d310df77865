//! Embeds the memory core in an ordinary process, without the hosted machine. The example needs some memory, one CPU,
//! real x86-64 page tables, and software that walks them. Run: `cargo run -p quire-hosted --example embed`
//!
//! An embedder implements [`Phys`] (where frames lie) and [`Machine`] (how many CPUs there are, and which page tables
//! they use). This example also implements [`Hardware`] (how translations are loaded and dropped). The feature `std` of
//! `quire-sync` provides its hooks.

use quire_pmap::format::index;
use quire_pmap::{Hardware, KernelTables, Mmu, Request, Tables};
use quire_pmap_x86_64::{X86_64, word};
use quire_sync::CpuId;
use quire_sync::cpuset::CpuMask;
use quire_vm::map::{MapRequest, Placement, Space, SpaceRef};
use quire_vm::{Access, Config, FaultError, Machine, PAGE_SIZE, Pfn, Phys, PhysRange, VirtRange, Vm};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// The number of frames of RAM: 32 MiB.
const FRAMES: u64 = 8192;

/// A machine with one CPU, whose RAM is a vector. The CPU has no TLB: every access walks the tables.
struct Toy {
    ram: Ram,
    mmu: Mmu<X86_64>,
}

/// The address of page 0 in the vector. The vector is leaked, so nothing else uses it.
#[derive(Clone, Copy)]
struct Ram(NonNull<u8>);

// SAFETY: the memory is shared by design, and never freed.
unsafe impl Send for Ram {}
// SAFETY: CPUs reach shared RAM through raw pointers only, and the core's locks and busy bits guard its contents.
unsafe impl Sync for Ram {}

impl Ram {
    fn new() -> Ram {
        let bytes = vec![0u8; ((FRAMES + 1) * PAGE_SIZE) as usize].leak();
        let skip = bytes.as_ptr().align_offset(PAGE_SIZE as usize);
        Ram(NonNull::from(&mut bytes[skip]))
    }
}

// SAFETY: RAM is one aligned piece of memory that does not move, and frame n begins n pages after its start.
unsafe impl Phys for Ram {
    fn frame_ptr(&self, pfn: Pfn) -> *mut u8 {
        assert!(pfn.0 < FRAMES, "{pfn:?} is not RAM");
        self.0.as_ptr().wrapping_add(pfn.address() as usize)
    }
    fn pfn_of(&self, ptr: *const u8) -> Pfn {
        Pfn::containing((ptr.addr() - self.0.addr().get()) as u64)
    }
}

// SAFETY: the frames are those of `ram`, which keeps this contract.
unsafe impl Phys for Toy {
    fn frame_ptr(&self, pfn: Pfn) -> *mut u8 {
        self.ram.frame_ptr(pfn)
    }
    fn pfn_of(&self, ptr: *const u8) -> Pfn {
        self.ram.pfn_of(ptr)
    }
}

impl Machine for Toy {
    type Pmap = Tables<X86_64>;
    fn cpus(&self) -> usize {
        1
    }
}

// SAFETY: without a TLB there is nothing to drop; there is no other CPU to interrupt.
unsafe impl Hardware for Toy {
    type Format = X86_64;
    fn mmu(&self) -> &Mmu<X86_64> {
        &self.mmu
    }
    unsafe fn load_root(&self, _root: Pfn, _tag: u16, _keep: bool) {}
    fn drop_page(&self, _va: u64) {}
    fn drop_loaded(&self, _root: Pfn, _tag: u16) {}
    fn drop_all(&self) {}
    fn masked<R>(&self, f: impl FnOnce() -> R) -> R {
        f()
    }
    fn shoot(&self, targets: &CpuMask, request: &Request<'_, X86_64>) {
        if targets.contains(CpuId::default()) {
            request.serve(self);
        }
    }
}

/// Builds the machine, and the memory system inside its RAM.
fn boot() -> &'static Vm<Toy> {
    let ram = Ram::new();
    // Frame 0 is the kernel's root table, which a process does not need; the core gets the rest.
    // SAFETY: the core gets the frames from 1 on, so the tables own frame 0.
    let kernel = unsafe { KernelTables::<X86_64>::new(&ram, Pfn(0)) };
    let memory = vec![0u128; Mmu::<X86_64>::bytes(1).div_ceil(16) + 8].leak().as_mut_ptr().cast::<u8>();
    let memory = memory.wrapping_add(memory.align_offset(128));
    // SAFETY: the memory is leaked, aligned and large enough.
    let mmu = unsafe { Mmu::new(NonNull::new(memory).expect("not null"), 1, kernel, false) };
    let all = PhysRange { start: Pfn(1), end: Pfn(FRAMES) };
    // This thread is the only CPU from now on. Per-CPU functions refuse threads that are not a CPU.
    // SAFETY: the machine is new, so no other thread is its CPU 0.
    unsafe { quire_sync::hooks::threads::become_cpu(0) };
    // SAFETY: the frames are leaked, so nothing else uses them.
    unsafe { Vm::new(Toy { ram, mmu }, &[all], Config::default()) }.expect("32 MiB are enough")
}

/// Translates as hardware would: walks the tables, and sets accessed and dirty bits. `None` means a page fault.
fn translate(space: &Space<Toy>, va: u64, access: Access) -> Option<*mut AtomicU64> {
    let machine = space.vm().machine();
    // SAFETY: the walk below only loads and reads them, as hardware does.
    let mut table = unsafe { space.page_tables() }.root()?;
    for level in (0..4).rev() {
        // SAFETY: table pages are RAM, and all code accesses them as atomics.
        let slot = unsafe { &*machine.frame_ptr(table).cast::<AtomicU64>().add(index(va, level)) };
        let w = slot.load(Ordering::Acquire);
        if !word::present(w) || (access == Access::Write && w & word::WRITE == 0) {
            return None;
        }
        if level == 0 {
            let seen = word::ACCESSED | if access == Access::Write { word::DIRTY } else { 0 };
            slot.fetch_or(seen, Ordering::AcqRel);
        }
        table = word::frame(w);
    }
    Some(machine.frame_ptr(table).wrapping_add((va % PAGE_SIZE) as usize).cast())
}

/// Accesses an aligned word as a program does. If the access faults, the core handles the fault, and the access is
/// tried again.
fn access(space: &Space<Toy>, va: u64, store: Option<u64>) -> Result<u64, FaultError> {
    let kind = if store.is_some() { Access::Write } else { Access::Read };
    loop {
        if let Some(at) = translate(space, va, kind) {
            // SAFETY: this is the translation of a mapped page, and there is no other CPU that could unmap it.
            let word = unsafe { &*at };
            return Ok(match store {
                Some(value) => word.swap(value, Ordering::AcqRel),
                None => word.load(Ordering::Acquire),
            });
        }
        let _how = space.fault(va, kind)?;
    }
}

/// Maps, faults, forks and unmaps. Returns the values that parent and child read at the end.
fn run(vm: &'static Vm<Toy>) -> Result<[u64; 2], Box<dyn std::error::Error>> {
    let failed = |e| format!("{e:?}");
    let parent: SpaceRef<Toy> = Space::new(vm).map_err(|_| "out of memory")?;
    let at = parent.map(&MapRequest::private(Placement::Any { hint: 0 }, 1 << 20)).map_err(failed)?;
    access(&parent, at, Some(7)).map_err(|e| format!("{e:?}"))?;
    // Copy on write: the child sees the parent's page until one of them stores.
    let child = parent.fork().map_err(|_| "out of memory")?;
    access(&parent, at, Some(8)).map_err(|e| format!("{e:?}"))?;
    let seen = [access(&parent, at, None), access(&child, at, None)].map(|r| r.map_err(|e| format!("{e:?}")));
    parent.unmap(VirtRange { start: at, end: at + (1 << 20) }).map_err(failed)?;
    assert_eq!(access(&parent, at, None), Err(FaultError::NotMapped));
    let [parent_saw, child_saw] = seen;
    Ok([parent_saw?, child_saw?])
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let vm = boot();
    let free = vm.frames().free();
    let [parent, child] = run(vm)?;
    println!("the parent sees {parent}, the child {child}; {free} frames were free, {} are now", vm.frames().free());
    Ok(())
}

#[test]
fn a_child_keeps_pages_that_its_parent_overwrites() {
    assert_eq!(run(boot()).unwrap(), [8, 7]);
}
