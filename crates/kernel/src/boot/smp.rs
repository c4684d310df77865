//! Starts the other CPUs: INIT, then start-up interrupts, all at once; each gets its number, block and stack in the
//! order of arrival.

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

/// The address at which CPUs begin in real mode. The page is below 1 MiB, RAM on every PC, and left out of the free
/// memory.
const TRAMPOLINE: u64 = 0x8000;
/// Bytes of a stack for double faults, NMIs and machine checks.
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

/// The number that the next arriving CPU gets.
static NEXT: AtomicUsize = AtomicUsize::new(1);
/// Tops of the stacks that arriving CPUs take, by number.
static STACK_TOPS: [AtomicU64; cpu::MAX] = [const { AtomicU64::new(0) }; cpu::MAX];
static KERNEL_ROOT: AtomicU64 = AtomicU64::new(0);
/// The scheduler and the timer are ready.
static GO: AtomicBool = AtomicBool::new(false);
/// CPUs that run, the boot CPU included.
static ONLINE: AtomicUsize = AtomicUsize::new(1);
/// The argument of `local_apic::init`, for the arriving CPUs.
static APIC_REGISTERS: AtomicUsize = AtomicUsize::new(0);
/// A stack of `len` bytes with an unmapped page below it; returns its top.
fn boot_stack(tables: &KernelTables, free: &mut Ram, len: u64) -> u64 {
    let too_little = || -> ! { panic!("not enough memory for the CPUs' stacks") };
    let Some(bottom) = stack::fresh(len) else { too_little() };
    let Some(memory) = paging::take_low(free, len) else { too_little() };
    let range = VirtRange { start: bottom, end: bottom + len };
    let mut frames = || paging::take_low(free, 4096).map(Pfn::containing);
    match tables.map(&DirectMap, range, memory, Rights::Write, MemoryType::WriteBack, &mut frames) {
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
        // SAFETY: by this function's contract; the field is not aligned, so it is written through a raw pointer.
        unsafe { (&raw mut (*block).task.interrupt_stacks[ist - 1]).write_unaligned(top) };
    }
}

/// The CPUs that will run, this one not counted: their local APICs' identifiers.
fn others(topology: &Topology, x2apic: bool) -> impl Iterator<Item = u32> {
    let me = local_apic::id();
    // Identifiers above 254 need x2APIC.
    topology.cpus().iter().copied().filter(move |id| *id != me && (x2apic || *id < 255)).take(cpu::MAX - 1)
}

/// Gives every CPU of `topology` up to the limit its block and stacks, and fixes the number of CPUs.
pub fn prepare(topology: &Topology, tables: &KernelTables, free: &mut Ram, registers: Option<usize>) {
    // SAFETY: the boot CPU's block, on the boot CPU.
    unsafe { add_interrupt_stacks(cpu::boot_block(), tables, free) };
    let wanted = others(topology, registers.is_none()).count();
    for (id, stack_top) in STACK_TOPS.iter().enumerate().take(wanted + 1).skip(1) {
        let Some(at) = paging::take_low(free, size_of::<Block>() as u64) else {
            panic!("not enough memory for the CPUs")
        };
        let block = direct(at).cast::<Block>();
        // SAFETY: fresh memory, large enough, page-aligned.
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

/// Starts the CPUs, which come up while boot continues, and wait for [`go`].
pub fn start(topology: &Topology, x2apic: bool) {
    let from = &raw const __trampoline_start;
    let len = &raw const __trampoline_end as usize - from as usize;
    // SAFETY: the page is unused RAM below 1 MiB.
    unsafe { core::ptr::copy_nonoverlapping(from, direct(TRAMPOLINE), len) };
    others(topology, x2apic).for_each(local_apic::send_init);
    // Only very old CPUs need 10 ms here.
    wait_until(20_000, || false);
    others(topology, x2apic).for_each(|id| local_apic::send_startup(id, (TRAMPOLINE >> 12) as u8));
}

/// Waits until all CPUs that were started are there.
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

/// Waits until all started CPUs have arrived, and releases them to the scheduler.
pub fn go(topology: &Topology, x2apic: bool) {
    await_all(topology, x2apic);
    GO.store(true, Ordering::Release);
    for id in 1..cpu::count() {
        local_apic::send(cpu::apic_id(id), interrupt::RESCHEDULE);
    }
}

/// Waits up to about `ns` nanoseconds (the clock is not calibrated yet) for `done`.
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

/// The entry of an arriving CPU, on its own stack, under the kernel's tables.
extern "C" fn arrived(id: usize) -> ! {
    let block = cpu::block_of(id);
    // SAFETY: the block belongs to this CPU, the tables and features are ready, interrupts are masked.
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
    // The CPU halts and does not spin, because the boot CPU is busy and may share its core. The boot CPU sets up the
    // interrupt handlers before [`go`].
    while !GO.load(Ordering::Acquire) {
        cpu::halt();
        let _was = cpu::interrupts_off();
    }
    super::join_scheduler()
}
