//! The start of the other CPUs, by INIT and start-up interrupts (SIPI), all at the same time. Each CPU takes a number,
//! and with it a block and a stack, in the order in which the CPUs arrive.

use crate::cpu::{self, Block, interrupt, tables};
use crate::machine::DirectMap;
use crate::memory::layout::direct;
use crate::memory::{paging, stack};
use crate::trap;
use core::arch::global_asm;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use quire_drivers::acpi::Topology;
use quire_drivers::local_apic;
use quire_kernel::loader::memory_map::Ram;
use quire_pmap::Rights;
use quire_pmap_x86_64::KernelTables;
use quire_vm::{MemoryType, Pfn, VirtRange};

/// The physical address at which CPUs begin in real mode. The page is RAM on every PC. It is below 1 MiB, so it is not
/// part of the free memory.
const TRAMPOLINE: u64 = 0x8000;
/// The size in bytes of a stack for double faults, NMIs or machine checks.
const IST_STACK: u64 = 8 * 1024;

global_asm!(
    r#"
    .section .trampoline, "a"
    .code16
    trampoline:
        cli
        cld
        xorw %ax, %ax
        movw %ax, %ds
        lgdtl {base} + (trampoline_gdt_pointer - trampoline)
        movl %cr0, %eax
        andl $0x9fffffff, %eax
        orl $1, %eax
        movl %eax, %cr0
        ljmpl $0x08, $({base} + (trampoline_32 - trampoline))
    .code32
    trampoline_32:
        movw $0x18, %ax
        movw %ax, %ds
        movw %ax, %ss
        movl %cr4, %eax
        orl $0x20, %eax                 // PAE
        movl %eax, %cr4
        movl {base} + (trampoline_root - trampoline), %eax
        movl %eax, %cr3
        movl $0xc0000080, %ecx
        rdmsr
        orl $0x900, %eax                // LME, NXE
        wrmsr
        movl %cr0, %eax
        orl $0x80000000, %eax
        movl %eax, %cr0
        ljmpl $0x10, $({base} + (trampoline_64 - trampoline))
    .code64
    trampoline_64:
        movl $0x18, %eax
        movl %eax, %ds
        movl %eax, %es
        movl %eax, %ss
        xorl %eax, %eax
        movl %eax, %fs
        movl %eax, %gs
        movabsq $trampoline_high, %rax
        jmpq *%rax
    .balign 8
    trampoline_gdt_pointer:
        .word 31
        .long {base} + (trampoline_gdt - trampoline)
    .balign 8
    trampoline_gdt:
        .quad 0
        .quad 0x00cf9b000000ffff
        .quad 0x00af9b000000ffff
        .quad 0x00cf93000000ffff
    trampoline_root:
        .long boot_root

    .section .text.entry, "ax"
    // In the kernel's half. The CPU takes the next number and its stack, and then leaves the low half.
    trampoline_high:
        movl $1, %edi
        lock xaddq %rdi, {next}(%rip)
        leaq {stacks}(%rip), %rax
        movq (%rax, %rdi, 8), %rsp
        movq {root}(%rip), %rax
        movq %rax, %cr3
        xorl %ebp, %ebp
        call {arrived}
        ud2
    .text
    "#,
    base = const TRAMPOLINE,
    next = sym NEXT,
    stacks = sym STACK_TOPS,
    root = sym KERNEL_ROOT,
    arrived = sym arrived,
    options(att_syntax),
);

unsafe extern "C" {
    static __trampoline_start: u8;
    static __trampoline_end: u8;
}

/// The number that the next CPU gets when it arrives.
static NEXT: AtomicUsize = AtomicUsize::new(1);
/// The tops of the stacks of the CPUs, by CPU number.
static STACK_TOPS: [AtomicU64; cpu::MAX] = [const { AtomicU64::new(0) }; cpu::MAX];
static KERNEL_ROOT: AtomicU64 = AtomicU64::new(0);
/// The scheduler and the timer are ready, so the other CPUs may run threads.
static GO: AtomicBool = AtomicBool::new(false);
/// The number of CPUs that have started, including the boot CPU.
static ONLINE: AtomicUsize = AtomicUsize::new(1);
/// The argument of `local_apic::init` for the CPUs that start.
static APIC_REGISTERS: AtomicUsize = AtomicUsize::new(0);
/// Maps a stack of `len` bytes with an unmapped guard page below it; returns its top.
fn boot_stack(tables: &KernelTables, free: &mut Ram, len: u64) -> u64 {
    let too_little = || -> ! { panic!("not enough memory for the CPUs' stacks") };
    let Some(bottom) = stack::fresh(len) else { too_little() };
    let Some(memory) = paging::take_low(free, len) else { too_little() };
    let range = VirtRange { start: bottom, end: bottom + len };
    let mut frames = || paging::take_low(free, 4096).map(Pfn::containing);
    // SAFETY: the stack's memory and the tables' frames were just taken off the free memory.
    let mapped = unsafe { tables.map(&DirectMap, range, memory, Rights::Write, MemoryType::WriteBack, &mut frames) };
    match mapped {
        Ok(()) => bottom + len,
        Err(_) => too_little(),
    }
}

/// Gives `block` its stacks for double faults, NMIs and machine checks.
///
/// # Safety
/// The block is not in use on another CPU.
unsafe fn add_interrupt_stacks(block: *mut Block, tables: &KernelTables, free: &mut Ram) {
    for ist in [tables::IST_DOUBLE_FAULT, tables::IST_NMI, tables::IST_MACHINE_CHECK] {
        let top = boot_stack(tables, free, IST_STACK);
        // SAFETY: no other CPU uses the block, by this function's contract. The field is not aligned, so it is written
        // through a raw pointer.
        unsafe { (&raw mut (*block).task.interrupt_stacks[ist - 1]).write_unaligned(top) };
    }
}

/// The local APIC identifiers of the other CPUs that will run.
fn others(topology: &Topology, x2apic: bool) -> impl Iterator<Item = u32> {
    let me = local_apic::id();
    // Identifiers above 254 need x2APIC.
    topology.cpus().iter().copied().filter(move |id| *id != me && (x2apic || *id < 255)).take(cpu::MAX - 1)
}

/// Allocates the block and the stacks of every CPU in `topology`, up to the limit, and sets the number of CPUs.
pub fn prepare(topology: &Topology, tables: &KernelTables, free: &mut Ram, registers: Option<usize>) {
    // SAFETY: this is the boot CPU, and the block is its own.
    unsafe { add_interrupt_stacks(cpu::boot_block(), tables, free) };
    let wanted = others(topology, registers.is_none()).count();
    for (id, stack_top) in STACK_TOPS.iter().enumerate().take(wanted + 1).skip(1) {
        let Some(at) = paging::take_low(free, size_of::<Block>() as u64) else {
            panic!("not enough memory for the CPUs")
        };
        let block = direct(at).cast::<Block>();
        // SAFETY: the memory is unused, large enough and aligned to a page.
        unsafe {
            block.write(Block::new(id as u32));
            add_interrupt_stacks(block, tables, free);
        }
        cpu::register(id, block, cpu::NOT_ARRIVED);
        stack_top.store(boot_stack(tables, free, stack::SIZE), Ordering::Relaxed);
    }
    KERNEL_ROOT.store(tables.root().address(), Ordering::Relaxed);
    APIC_REGISTERS.store(registers.unwrap_or(0), Ordering::Relaxed);
    cpu::set_count(wanted + 1);
}

/// Starts the other CPUs. They initialise themselves while boot continues, and then wait for [`go`].
pub fn start(topology: &Topology, x2apic: bool) {
    let from = &raw const __trampoline_start;
    let len = &raw const __trampoline_end as usize - from as usize;
    // SAFETY: the page is unused RAM below 1 MiB.
    unsafe { core::ptr::copy_nonoverlapping(from, direct(TRAMPOLINE), len) };
    others(topology, x2apic).for_each(local_apic::send_init);
    // A wait of 20 microseconds. Only very old CPUs need 10 ms between INIT and the start-up interrupt.
    wait_until(20_000, || false);
    others(topology, x2apic).for_each(|id| local_apic::send_startup(id, (TRAMPOLINE >> 12) as u8));
}

/// Waits until all CPUs that were started have arrived. Panics if some do not start.
pub fn await_all(topology: &Topology, x2apic: bool) {
    let all = || ONLINE.load(Ordering::Acquire) == cpu::count();
    // The manual requires a second start-up interrupt; a running CPU ignores it.
    if !wait_until(20_000_000, all) {
        others(topology, x2apic).for_each(|id| local_apic::send_startup(id, (TRAMPOLINE >> 12) as u8));
        if !wait_until(2_000_000_000, all) {
            panic!("{} of {} CPUs did not start", cpu::count() - ONLINE.load(Ordering::Acquire), cpu::count());
        }
    }
}

/// Waits until all started CPUs have arrived, and then makes them run threads.
pub fn go(topology: &Topology, x2apic: bool) {
    await_all(topology, x2apic);
    GO.store(true, Ordering::Release);
    for id in 1..cpu::count() {
        local_apic::send(cpu::apic_id(id), interrupt::RESCHEDULE);
    }
}

/// Waits until `done` returns true, for up to about `ns` nanoseconds (the clock is not calibrated yet). Returns whether
/// `done` was true.
fn wait_until(ns: u64, done: impl Fn() -> bool) -> bool {
    let end = crate::cpu::clock::now() + ns;
    while crate::cpu::clock::now() < end {
        if done() {
            return true;
        }
        core::hint::spin_loop();
    }
    done()
}

/// The Rust entry of a starting CPU. It runs on the CPU's own stack, under the kernel's page tables.
extern "C" fn arrived(id: usize) -> ! {
    let block = cpu::block_of(id);
    // SAFETY: the block belongs to this CPU. The boot CPU has filled the tables and detected the features. Interrupts
    // are masked.
    unsafe {
        tables::load(block);
        cpu::set_registers();
        cpu::set_system_calls(trap::entry::syscall_address());
        let registers = APIC_REGISTERS.load(Ordering::Relaxed);
        local_apic::init((registers != 0).then_some(registers), interrupt::SPURIOUS);
    }
    // SAFETY: `set_registers` ran above on this CPU, and the boot CPU ran `detect` before it started this one.
    unsafe { super::enable_fpu() };
    cpu::register(id, block, local_apic::id());
    ONLINE.fetch_add(1, Ordering::AcqRel);
    // The CPU halts instead of spinning, because the boot CPU is busy and may share a core with it. `go` ends the halt
    // by an interrupt.
    while !GO.load(Ordering::Acquire) {
        cpu::halt();
        let _was = cpu::interrupts_off();
    }
    super::join_scheduler()
}
