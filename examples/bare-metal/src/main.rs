//! The smallest kernel with Quire's memory core. It boots by PVH in QEMU and builds a memory system over the RAM that
//! it finds. Then it runs a small program's memory accesses in several address spaces, with page faults. `./quire test`
//! boots it.
#![no_std]
#![no_main]

mod boot;

use core::arch::asm;
use core::fmt::{self, Write};
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicPtr, Ordering};
use quire_pmap::{Hardware, KernelTables, Mmu, Request, Rights};
use quire_pmap_x86_64::X86_64;
use quire_pmap_x86_64::registers::cr3;
use quire_sync::cpuset::CpuMask;
use quire_sync::{CpuId, ThreadHandle};
use quire_vm::map::{MapRequest, Placement, Space};
use quire_vm::{Access, Config, Machine, MemoryType, PAGE_SIZE, Pfn, Phys, PhysRange, VirtRange, Vm};

/// The addresses of the direct map and of the image.
const DIRECT: u64 = 0xffff_8000_0000_0000;
const IMAGE: u64 = 0xffff_ffff_8000_0000;
/// Bytes mapped at each of them.
const GIB: u64 = 1 << 30;

unsafe extern "C" {
    static text_start: u8;
    static text_end: u8;
    static image_end: u8;
}

/// The serial port.
struct Serial;

impl Write for Serial {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        // SAFETY: the first serial port's transmit register; QEMU takes bytes at any time.
        s.bytes().for_each(|b| unsafe { asm!("out dx, al", in("dx") 0x3f8u16, in("al") b, options(nomem, nostack)) });
        Ok(())
    }
}

macro_rules! say {
    ($($arg:tt)*) => { { let _ = writeln!(Serial, $($arg)*); } };
}

/// Ends QEMU with status 2 n + 1, by its debug exit device.
fn exit(n: u32) -> ! {
    // SAFETY: a port that only that device serves.
    unsafe { asm!("out dx, eax", in("dx") 0xf4u16, in("eax") n, options(nomem, nostack)) };
    loop {
        // SAFETY: interrupts are off: the CPU stops.
        unsafe { asm!("hlt", options(nomem, nostack)) };
    }
}

#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    say!("{info}");
    exit(1)
}

/// RAM, reached through the direct map.
struct Ram;

// SAFETY: all of RAM below 1 GiB is mapped there, in order, in the boot tables and in the kernel's own.
unsafe impl Phys for Ram {
    fn frame_ptr(&self, pfn: Pfn) -> *mut u8 {
        ptr::with_exposed_provenance_mut((DIRECT + pfn.address()) as usize)
    }
    fn pfn_of(&self, at: *const u8) -> Pfn {
        Pfn::containing(at.addr() as u64 - DIRECT)
    }
}

/// One CPU.
struct Board {
    mmu: Mmu<X86_64>,
}

// SAFETY: `Ram` keeps this contract, and each call goes to it.
unsafe impl Phys for Board {
    fn frame_ptr(&self, pfn: Pfn) -> *mut u8 {
        Ram.frame_ptr(pfn)
    }
    fn pfn_of(&self, at: *const u8) -> Pfn {
        Ram.pfn_of(at)
    }
}

impl Machine for Board {
    type Pmap = quire_pmap::Tables<X86_64>;
    fn cpus(&self) -> usize {
        1
    }
}

fn load_cr3(value: u64) {
    // SAFETY: every root that is loaded maps the kernel's half.
    unsafe { asm!("mov cr3, {}", in(reg) value, options(nostack)) };
}

// SAFETY: the CPU's own instructions; there is no other CPU to interrupt, and no PCID in use.
unsafe impl Hardware for Board {
    type Format = X86_64;
    fn mmu(&self) -> &Mmu<X86_64> {
        &self.mmu
    }
    unsafe fn load_root(&self, root: Pfn, tag: u16, keep: bool) {
        load_cr3(cr3(root, tag, keep));
    }
    fn drop_page(&self, va: u64) {
        // SAFETY: drops a translation, which the tables still have.
        unsafe { asm!("invlpg [{}]", in(reg) va, options(nostack)) };
    }
    fn drop_loaded(&self, root: Pfn, _tag: u16) {
        load_cr3(cr3(root, 0, false));
    }
    fn drop_all(&self) {
        let now: u64;
        // SAFETY: reads a register. No translation of this kernel is global.
        unsafe { asm!("mov {}, cr3", out(reg) now, options(nomem, nostack)) };
        load_cr3(now);
    }
    fn masked<R>(&self, f: impl FnOnce() -> R) -> R {
        f()
    }
    fn shoot(&self, targets: &CpuMask, request: &Request<'_, X86_64>) {
        if targets.contains(0) {
            request.serve(self);
        }
    }
}

/// The hooks of `quire-sync`: one CPU, one thread, no interrupts.
struct Hooks;

// SAFETY: with one thread and no interrupts, nothing ever moves.
unsafe impl quire_sync::Cpu for Hooks {
    fn preempt_disable() {}
    fn preempt_enable() {}
    fn current() -> CpuId {
        0
    }
    fn relax() {
        core::hint::spin_loop();
    }
}

// SAFETY: no thread is ever parked: the only thread has nothing to wait for.
unsafe impl quire_sync::Wait for Hooks {
    fn current() -> ThreadHandle {
        // SAFETY: there is one thread, and `unpark` uses no number.
        unsafe { ThreadHandle::from_number(1) }
    }
    fn park(_deadline: Option<u64>) {
        core::hint::spin_loop();
    }
    fn unpark(_thread: ThreadHandle) {}
    fn now() -> u64 {
        // SAFETY: `rdtsc` reads a counter that every x86-64 CPU has.
        unsafe { core::arch::x86_64::_rdtsc() }
    }
}

quire_sync::provide!(Hooks);

/// The space whose tables are loaded.
static CURRENT: AtomicPtr<Space<Board>> = AtomicPtr::new(ptr::null_mut());

/// A page fault at `va`: the core serves it, or the kernel ends.
pub extern "C" fn page_fault(va: u64, error: u64) {
    let access = if error & 2 != 0 { Access::Write } else { Access::Read };
    // SAFETY: set by `enter`, to a space that lives while it is loaded.
    let space = unsafe { CURRENT.load(Ordering::Relaxed).as_ref() };
    match space.filter(|_| va < DIRECT).map(|s| s.fault(va, access)) {
        Some(Ok(kind)) => say!("  page fault at {va:#x}: {kind:?}"),
        other => panic!("page fault at {va:#x}, error {error:#x}: {other:?}"),
    }
}

/// An interrupt gate of the descriptor table.
#[repr(C, align(16))]
#[derive(Clone, Copy)]
struct Gate([u64; 2]);

/// Points the page fault's gate (14) at its entry and loads the table, which must stay.
fn load_gates(gates: &mut [Gate; 32]) {
    let entry = boot::page_fault_entry as *const () as u64;
    let low = entry & 0xffff | 8 << 16 | 0x8e00 << 32 | (entry >> 16 & 0xffff) << 48;
    gates[14] = Gate([low, entry >> 32]);
    let pointer: [u16; 5] = {
        let at = gates.as_ptr().addr();
        [(size_of::<[Gate; 32]>() - 1) as u16, at as u16, (at >> 16) as u16, (at >> 32) as u16, (at >> 48) as u16]
    };
    // SAFETY: the table lives on the stack of `start`, which never returns.
    unsafe { asm!("lidt [{}]", in(reg) &pointer, options(nostack)) };
}

/// The usable RAM behind the image and below 1 GiB, from the loader's memory map (Xen's `hvm_start_info`, version 1).
fn ram(info: u64) -> PhysRange {
    // SAFETY: the loader put both structures into RAM that is mapped.
    let read = |at: u64| unsafe { ptr::with_exposed_provenance::<u64>((DIRECT + at) as usize).read_unaligned() };
    let (map, entries) = (read(info + 40), read(info + 48) as u32 as u64);
    let image = (&raw const image_end).addr() as u64 - IMAGE;
    let usable = (0..entries).map(|i| map + 24 * i).filter(|e| read(e + 16) as u32 == 1);
    let clip = usable.map(|e| (read(e).max(image), (read(e) + read(e + 8)).min(GIB)));
    let (start, end) = clip.filter(|(s, e)| s < e).max_by_key(|(s, e)| e - s).expect("there is RAM");
    PhysRange { start: Pfn(start.div_ceil(PAGE_SIZE)), end: Pfn(end / PAGE_SIZE) }
}

/// Builds the kernel's own tables, loads them, and hands the rest of RAM to the core.
fn memory(mut ram: PhysRange) -> &'static Vm<Board> {
    let mut take = || {
        ram.start = Pfn(ram.start.0 + 1);
        Some(Pfn(ram.start.0 - 1))
    };
    let root = take().expect("RAM is not empty");
    // SAFETY: the core never gets the frames that `take` has counted.
    let mut kernel = unsafe { KernelTables::<X86_64>::new(&Ram, root) };
    let at = |symbol: *const u8| symbol.addr() as u64;
    let (text, data, end) = (at(&raw const text_start), at(&raw const text_end), at(&raw const image_end));
    for (start, end, rights) in
        [(DIRECT, DIRECT + GIB, Rights::Write), (text, data, Rights::Execute), (data, end, Rights::Write)]
    {
        let (range, base) = (VirtRange { start, end }, if start == DIRECT { DIRECT } else { IMAGE });
        // SAFETY: as for the root. The program maps RAM and its own image, with the rights that it needs there.
        unsafe {
            kernel.reserve(&Ram, range, &mut take).expect("the kernel's half");
            let memory = MemoryType::WriteBack;
            kernel.map(&Ram, range, start - base, rights, memory, &mut take).expect("nothing is mapped yet");
        }
    }
    load_cr3(root.address());
    let mmu = take().expect("RAM is not empty");
    assert!(Mmu::<X86_64>::bytes(1) <= PAGE_SIZE as usize);
    let at = NonNull::new(Ram.frame_ptr(mmu)).expect("the direct map is not at zero");
    // SAFETY: a frame of RAM with no other user, aligned and large enough.
    let mmu = unsafe { Mmu::new(at, 1, kernel, false) };
    // SAFETY: the rest of RAM has no other user, and stays mapped.
    unsafe { Vm::new(Board { mmu }, &[ram], Config::default()) }.expect("enough RAM")
}

/// Loads a space.
fn enter(space: &Space<Board>) {
    CURRENT.store(ptr::from_ref(space).cast_mut(), Ordering::Relaxed);
    // SAFETY: the one CPU, interrupts off; another space is loaded before this one goes.
    unsafe { space.page_tables().switch_in(space.vm().machine(), 0) };
}

/// A program's accesses, by the CPU itself.
fn load(at: u64) -> u64 {
    // SAFETY: user memory of the loaded space; where nothing is mapped, the page fault's handler serves it or ends the
    // program.
    unsafe { ptr::with_exposed_provenance::<u64>(at as usize).read_volatile() }
}
fn store(at: u64, value: u64) {
    // SAFETY: user memory of the loaded space; where nothing is mapped, the page fault's handler serves it or ends the
    // program.
    unsafe { ptr::with_exposed_provenance_mut::<u64>(at as usize).write_volatile(value) };
}

pub extern "C" fn start(info: u64) -> ! {
    let mut gates = [Gate([0; 2]); 32];
    load_gates(&mut gates);
    let ram = ram(info);
    say!("RAM: frames {:#x} to {:#x}", ram.start.0, ram.end.0);
    let vm = memory(ram);
    let free = vm.frames().free();
    let parent = Space::new(vm).expect("memory for a space");
    enter(&parent);
    let at = parent.map(&MapRequest::private(Placement::Any { hint: 0 }, 1 << 20)).expect("1 MiB of addresses");
    say!("mapped 1 MiB at {at:#x}");
    store(at, 7);
    let child = parent.fork().expect("memory for a fork");
    say!("forked");
    store(at, 8);
    let parent_sees = load(at);
    enter(&child);
    let child_sees = load(at);
    say!("the parent sees {parent_sees}, the child {child_sees}");
    parent.unmap(VirtRange { start: at, end: at + (1 << 20) }).expect("it is mapped");
    say!("{free} frames were free, {} are now", vm.frames().free());
    exit(if [parent_sees, child_sees] == [8, 7] { 16 } else { 2 })
}
