//! A kernel with Quire's memory core on RISC-V. It boots in QEMU (`-M virt`), whose RAM begins at 2 GiB. Two CPUs run
//! the accesses of a program with faults, shootdowns, a fork and more memory than there is. A third runs the pageout
//! daemon. `./quire test` boots it.
#![no_std]
#![no_main]

mod boot;
mod firmware;
mod machine;

use core::arch::asm;
use core::fmt::{self, Write};
use core::hint::spin_loop;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use machine::{Board, CPUS, DIRECT, HARTS, cpu};
use quire_pmap::Rights;
use quire_pmap::boot::{Region, kernel_tables, mmu};
use quire_pmap_sv39::{Sv39, instructions};
use quire_vm::map::{MapRequest, Placement, Space};
use quire_vm::paging::memory_store::{FaultPlan, MemoryStore};
use quire_vm::reclaim::daemon::Daemon;
use quire_vm::sleep::MaySleep;
use quire_vm::stats::Event;
use quire_vm::{Access, Config, PAGE_SIZE, Pfn, Phys, PhysRange, Prot, VirtRange, Vm};

/// The distance of the image's addresses from where it is loaded.
const IMAGE: u64 = 0xffff_ffff_0000_0000;
/// The machine's RAM: 128 MiB.
const RAM: [u64; 2] = [0x8000_0000, 0x8800_0000];
/// Bytes at the end of RAM that serve as the swap device.
const SWAP: u64 = 40 << 20;
/// The end of the addresses of programs.
const USER_END: u64 = 1 << 38;

unsafe extern "C" {
    static text_start: u8;
    static text_end: u8;
    static image_end: u8;
}

struct Console;

impl Write for Console {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        s.bytes().for_each(firmware::put);
        Ok(())
    }
}

macro_rules! say {
    ($($arg:tt)*) => { { let _ = writeln!(Console, $($arg)*); } };
}

#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    say!("CPU {}: {info}", cpu());
    firmware::end()
}

static VM: AtomicPtr<Vm<Board>> = AtomicPtr::new(ptr::null_mut());

fn vm() -> &'static Vm<Board> {
    // SAFETY: `memory` stores the pointer before another CPU starts, and the system lives for ever.
    unsafe { &*VM.load(Ordering::Acquire) }
}

/// The state of a CPU that its trap handler uses.
struct Running {
    /// The space that is loaded.
    space: AtomicPtr<Space<Board>>,
    /// Whether the last access of the program failed.
    failed: AtomicBool,
    faults: AtomicU64,
}

static RUNNING: [Running; CPUS] = [const {
    let space = AtomicPtr::new(ptr::null_mut());
    Running { space, failed: AtomicBool::new(false), faults: AtomicU64::new(0) }
}; CPUS];

/// A trap: an interrupt, or a fault of an access to user memory. `saved` has the address of the instruction.
pub extern "C" fn trap(cause: u64, va: u64, saved: &mut [u64; 2]) {
    const INTERRUPT: u64 = 1 << 63;
    const SOFTWARE: u64 = INTERRUPT | 1;
    const TIMER: u64 = INTERRUPT | 5;
    match cause {
        SOFTWARE => {
            // SAFETY: takes the interrupt back. Requests that come later interrupt again.
            unsafe { asm!("csrci sip, 2", options(nomem, nostack)) };
            if !VM.load(Ordering::Acquire).is_null() {
                vm().machine().serve();
            }
        }
        TIMER => firmware::set_timer(u64::MAX),
        12 | 13 | 15 if va < USER_END => {
            let access = match cause {
                12 => Access::Exec,
                13 => Access::Read,
                _ => Access::Write,
            };
            let running = &RUNNING[cpu()];
            // SAFETY: `enter` stored the space, which lives until this CPU leaves it.
            let space = unsafe { running.space.load(Ordering::Relaxed).as_ref() }.expect("a program runs");
            running.faults.fetch_add(1, Ordering::Relaxed);
            // The fault may flush other CPUs and sleep, so it takes interrupts.
            // SAFETY: the trap has saved its state, and a handler may interrupt this one.
            unsafe { instructions::interrupts_on() };
            let result = space.fault(va, access);
            instructions::interrupts_off();
            if result.is_err() {
                running.failed.store(true, Ordering::Relaxed);
                saved[0] += 4;
            }
        }
        _ => panic!("trap {cause:#x} at {:#x}, address {va:#x}", saved[0]),
    }
}

/// Builds the kernel's own tables, loads them, and hands the rest of RAM to the core. Part of RAM becomes swap.
fn memory() -> &'static Vm<Board> {
    let at = |symbol: *const u8| symbol.addr() as u64;
    let (text, data, end) = (at(&raw const text_start), at(&raw const text_end), at(&raw const image_end));
    let region = |start, end, physical, rights| Region { range: VirtRange { start, end }, physical, rights };
    let regions = [
        region(DIRECT.address(RAM[0]), DIRECT.address(RAM[1]), RAM[0], Rights::Write),
        region(text, data, text - IMAGE, Rights::Execute),
        region(data, end, data - IMAGE, Rights::Write),
    ];
    let swap = Pfn((RAM[1] - SWAP) / PAGE_SIZE);
    let mut ram = PhysRange { start: Pfn((end - IMAGE).div_ceil(PAGE_SIZE)), end: swap };
    // SAFETY: RAM behind the image has no other user, and the direct map reaches it. The program maps RAM and its own
    // image, with the rights that it needs there.
    let kernel = unsafe { kernel_tables::<Sv39>(&DIRECT, &mut ram, &regions) }.expect("RAM for the kernel's tables");
    // SAFETY: the tables map the running kernel.
    unsafe { instructions::load_root(kernel.root(), 0, false) };
    // SAFETY: the frames of `ram` have no other user, and `kernel` is the table that this CPU has loaded.
    let mmu = unsafe { mmu(&DIRECT, &mut ram, CPUS, kernel, false) }.expect("RAM for the CPUs' state");
    let frames = ram.end.0 - ram.start.0;
    // SAFETY: the rest of RAM has no other user, and stays mapped.
    let vm = unsafe { Vm::new(Board { mmu }, &[ram], Config::default()) }.expect("enough RAM");
    say!("{frames} frames for the core, {} free", vm.frames().free());
    let memory = NonNull::new(DIRECT.frame_ptr(swap)).expect("the direct map is not at zero");
    // SAFETY: the end of RAM has no other user.
    let store = unsafe { MemoryStore::new(memory, SWAP / PAGE_SIZE, FaultPlan::default()) };
    vm.add_swap(vm.leak(store).expect("memory for a few words")).expect("the first swap");
    VM.store(ptr::from_ref(vm).cast_mut(), Ordering::Release);
    vm
}

/// Makes the caller CPU `me`.
fn become_cpu(me: usize) {
    // SAFETY: the kernel keeps the CPU's number in `tp`. The handler serves software and timer interrupts. Supervisor
    // mode may reach user memory, which the program's accesses need.
    unsafe {
        asm!("mv tp, {}", in(reg) me, options(nomem, nostack));
        asm!("csrw stvec, {}", in(reg) boot::trap_entry as *const () as usize, options(nostack));
        asm!("csrw sie, {}", in(reg) 0x22usize, options(nostack));
        asm!("csrs sstatus, {}", in(reg) 1usize << 18, options(nostack));
    }
}

/// Loads a space, which must live until another is loaded.
fn enter(space: &Space<Board>) {
    RUNNING[cpu()].space.store(ptr::from_ref(space).cast_mut(), Ordering::Relaxed);
    // SAFETY: this is the CPU, with interrupts masked. It leaves the space before the space goes.
    instructions::masked(|| unsafe { space.page_tables().switch_in(space.vm().machine(), cpu()) });
}

fn leave() {
    // SAFETY: this is the CPU, with interrupts masked, and no code uses user memory.
    instructions::masked(|| unsafe { vm().machine().mmu.leave(vm().machine(), cpu()) });
    RUNNING[cpu()].space.store(ptr::null_mut(), Ordering::Relaxed);
}

/// A program's load, by the CPU itself. `None` if the program may not load there.
fn load(at: u64) -> Option<u64> {
    assert!(at < USER_END);
    // SAFETY: user memory of the loaded space; the trap's handler serves a fault or steps over the instruction.
    let value = unsafe { boot::user_load(at) };
    (!RUNNING[cpu()].failed.swap(false, Ordering::Relaxed)).then_some(value)
}

/// A program's store, by the CPU itself. Returns whether the program may store there.
fn store(at: u64, value: u64) -> bool {
    assert!(at < USER_END);
    // SAFETY: user memory of the loaded space; the trap's handler serves a fault or steps over the instruction.
    unsafe { boot::user_store(at, value) };
    !RUNNING[cpu()].failed.swap(false, Ordering::Relaxed)
}

/// The stacks of the other CPUs.
static STACKS: [[AtomicU64; 4096]; CPUS] = [const { [const { AtomicU64::new(0) }; 4096] }; CPUS];
/// The number of CPUs that run.
static UP: AtomicUsize = AtomicUsize::new(1);
/// The step that CPU 0 has reached, and the step that CPU 1 has reached.
static STEP: AtomicU64 = AtomicU64::new(0);
static FOLLOWED: AtomicU64 = AtomicU64::new(0);
/// The space that CPU 1 enters, and the address that it uses.
static SHARED: AtomicPtr<Space<Board>> = AtomicPtr::new(ptr::null_mut());
static AT: AtomicU64 = AtomicU64::new(0);

/// Waits until `counter` has reached `step`.
fn wait(counter: &AtomicU64, step: u64) {
    while counter.load(Ordering::Acquire) < step {
        spin_loop();
    }
}

/// The number of pages that each of two CPUs stores into.
const PAGES: u64 = 512;
const UNMAPS: u64 = 200;
/// The last step.
const END: u64 = 1 << 32;

#[unsafe(no_mangle)]
extern "C" fn start(hart: usize) -> ! {
    become_cpu(0);
    HARTS[0].store(hart, Ordering::Relaxed);
    let vm = memory();
    // SAFETY: this CPU's trap vector and its number are set, so its handler serves any interrupt.
    unsafe { instructions::interrupts_on() };
    for n in 1..CPUS {
        let other = if n <= hart { n - 1 } else { n };
        HARTS[n].store(other, Ordering::Relaxed);
        STACKS[n][4094].store(n as u64, Ordering::Relaxed);
        let entry = boot::other_entry as *const () as usize - IMAGE as usize;
        assert!(firmware::start_hart(other, entry, (&raw const STACKS[n][4094]).addr()), "hart {other} starts");
    }
    while UP.load(Ordering::Acquire) != CPUS {
        spin_loop();
    }
    say!("{CPUS} CPUs");
    let free = vm.frames().free();
    program();
    // The program's memory is freed before the count.
    vm.settle(&mut MaySleep::here());
    let now = vm.frames().free();
    say!("{free} frames were free before the program, {now} after it");
    assert!(now + 512 >= free, "frames are lost");
    say!("all is well");
    firmware::end()
}

/// What CPU 0 does.
fn program() {
    let space = Space::new(vm()).expect("memory for a space");
    let private = |bytes| MapRequest::private(Placement::Any { hint: 0 }, bytes);
    let page = |at| VirtRange { start: at, end: at + PAGE_SIZE };
    let at = space.map(&private(2 * PAGES * PAGE_SIZE)).expect("4 MiB of addresses");
    SHARED.store(ptr::from_ref(&*space).cast_mut(), Ordering::Release);
    AT.store(at, Ordering::Release);
    enter(&space);

    // Both CPUs fault in one space, CPU 0 at even pages and CPU 1 at odd ones.
    STEP.store(1, Ordering::Release);
    for p in 0..PAGES {
        assert!(store(at + 2 * p * PAGE_SIZE, 2 * p));
    }
    wait(&FOLLOWED, 1);
    for p in 0..2 * PAGES {
        assert_eq!(load(at + p * PAGE_SIZE), Some(p));
    }
    let faults = |cpu: usize| RUNNING[cpu].faults.load(Ordering::Relaxed);
    assert!(faults(0) != 0 && faults(1) != 0);
    say!("two CPUs stored into {} pages", space.stats().resident_pages);

    // CPU 1 loads from a page until this CPU takes it away. The frame then belongs to another page.
    for n in 0..UNMAPS {
        let va = at + n % 64 * PAGE_SIZE;
        assert!(store(va, 4242));
        AT.store(va, Ordering::Release);
        STEP.store(2 + 2 * n, Ordering::Release);
        wait(&FOLLOWED, 2 + 2 * n);
        space.unmap(page(va)).expect("it is mapped");
        let other = space.map(&MapRequest::private(Placement::Any { hint: 1 << 33 }, PAGE_SIZE)).expect("a page");
        assert!(store(other, 0xbad));
        STEP.store(3 + 2 * n, Ordering::Release);
        wait(&FOLLOWED, 3 + 2 * n);
        space.unmap(page(other)).expect("it is mapped");
        space.map(&MapRequest::private(Placement::Fixed(va), PAGE_SIZE)).expect("its addresses are free");
    }
    assert!(vm().stats().total(Event::Shootdown) >= UNMAPS);
    say!("{UNMAPS} unmaps stopped another CPU's loads");
    STEP.store(END, Ordering::Release);
    wait(&FOLLOWED, END);

    assert!(store(at, 7));
    space.protect(page(at), Prot::READ).expect("it is mapped");
    assert!(!store(at, 8) && load(at) == Some(7));
    space.protect(page(at), Prot::READ | Prot::WRITE).expect("it is mapped");
    let child = space.fork().expect("memory for a fork");
    assert!(store(at, 9));
    enter(&child);
    let child_sees = load(at).expect("the page is mapped");
    enter(&space);
    say!("the parent sees {}, the child {child_sees}", load(at).expect("the page is mapped"));

    // More memory than there is.
    let big = vm().frames().total() / 16 * 17 * PAGE_SIZE;
    let at = space.map(&private(big)).expect("addresses");
    for p in 0..big / PAGE_SIZE {
        assert!(store(at + p * PAGE_SIZE, p ^ 0x5555), "page {p}; {} frames are free", vm().frames().free());
    }
    for p in 0..big / PAGE_SIZE {
        assert_eq!(load(at + p * PAGE_SIZE), Some(p ^ 0x5555));
    }
    assert!(vm().stats().total(Event::SwapOut) != 0);
    say!("{} pages were written and read, in {} frames", big / PAGE_SIZE, vm().frames().total());
    leave();
}

#[unsafe(no_mangle)]
extern "C" fn start_other(_hart: usize, stack: &AtomicU64) -> ! {
    let me = stack.load(Ordering::Relaxed) as usize;
    // SAFETY: the root maps the running kernel.
    unsafe { instructions::load_root(vm().machine().mmu.kernel().root(), 0, false) };
    become_cpu(me);
    // SAFETY: this CPU's trap vector and its number are set, so its handler serves any interrupt.
    unsafe { instructions::interrupts_on() };
    UP.fetch_add(1, Ordering::AcqRel);
    if me == 1 {
        follow();
        loop {
            quire_sync::hooks::park(None);
        }
    }
    vm().daemon_run(Daemon::Pageout);
    unreachable!("nothing stops the daemon")
}

/// What CPU 1 does.
fn follow() {
    wait(&STEP, 1);
    // SAFETY: CPU 0 keeps the space until this CPU has left it.
    enter(unsafe { &*SHARED.load(Ordering::Acquire) });
    let at = AT.load(Ordering::Acquire);
    for p in 0..PAGES {
        assert!(store(at + (2 * p + 1) * PAGE_SIZE, 2 * p + 1));
    }
    FOLLOWED.store(1, Ordering::Release);
    for n in 0..UNMAPS {
        wait(&STEP, 2 + 2 * n);
        let va = AT.load(Ordering::Acquire);
        assert_eq!(load(va), Some(4242));
        FOLLOWED.store(2 + 2 * n, Ordering::Release);
        while let Some(value) = load(va) {
            assert_eq!(value, 4242, "a translation is stale");
        }
        FOLLOWED.store(3 + 2 * n, Ordering::Release);
    }
    wait(&STEP, END);
    leave();
    FOLLOWED.store(END, Ordering::Release);
}
