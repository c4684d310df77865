//! Starts the other CPUs: INIT, then start-up interrupts, all at once; each finds its number, block and stack by arrival.

use crate::cpu::{self, Block, tables};
use crate::interrupt;
use crate::layout::{STACKS, direct};
use crate::paging;
use core::arch::global_asm;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use quire_drivers::acpi::Topology;
use quire_drivers::local_apic;
use quire_kernel::memory_map::Ram;

/// Where CPUs begin in real mode: a page below 1 MiB that is RAM on every PC and kept out of the memory that is given away.
const TRAMPOLINE: u64 = 0x8000;
/// Bytes of a kernel stack.
pub const STACK: u64 = 16 * 1024;
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
    // Arrived in the kernel's half: a number by arrival, the stack that goes with it, and away from the low half.
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
/// CPUs that have arrived and work, this one included.
static ONLINE: AtomicUsize = AtomicUsize::new(1);
/// What `local_apic::init` needs, for the CPUs that arrive.
static APIC_REGISTERS: AtomicUsize = AtomicUsize::new(0);
/// The next unused address for a boot-time stack, guard included.
static NEXT_STACK: AtomicU64 = AtomicU64::new(STACKS);

/// A stack of `len` bytes with an unmapped page below it; returns its top.
fn boot_stack(free: &mut Ram, len: u64) -> u64 {
    let bottom = NEXT_STACK.fetch_add(len + 4096, Ordering::Relaxed) + 4096;
    for va in (bottom..bottom + len).step_by(4096) {
        let Some(frame) = paging::take_low(free, 4096) else { panic!("not enough memory for the CPUs' stacks") };
        // SAFETY: at boot, one caller; a fresh address and a fresh frame.
        if unsafe { paging::map_stack_frame(va, frame, &mut || paging::take_low(free, 4096)) }.is_err() {
            panic!("not enough memory for the CPUs' stacks");
        }
    }
    bottom + len
}

/// Gives `block` its stacks for double faults, NMIs and machine checks.
///
/// # Safety
/// The block is not in use on another CPU.
unsafe fn add_interrupt_stacks(block: *mut Block, free: &mut Ram) {
    for ist in [tables::IST_DOUBLE_FAULT, tables::IST_NMI, tables::IST_MACHINE_CHECK] {
        let top = boot_stack(free, IST_STACK);
        // SAFETY: by this function's contract; the field is not aligned, so it is written through a raw pointer.
        unsafe { (&raw mut (*block).task.interrupt_stacks[ist - 1]).write_unaligned(top) };
    }
}

/// Starts every CPU of `topology` up to the limit, and returns when all that answer are online.
pub fn start(topology: &Topology, free: &mut Ram, registers: Option<usize>) {
    // SAFETY: the boot CPU's block, on the boot CPU.
    unsafe { add_interrupt_stacks(cpu::boot_block(), free) };
    let me = local_apic::id();
    // Identifiers above 254 need x2APIC.
    let reachable = |id: &u32| *id != me && (registers.is_none() || *id < 255);
    let wanted = topology.cpus().iter().copied().filter(reachable).count().min(cpu::MAX - 1);
    if wanted == 0 {
        return;
    }
    for id in 1..=wanted {
        let Some(at) = paging::take_low(free, size_of::<Block>() as u64) else { panic!("not enough memory for the CPUs") };
        let block = direct(at).cast::<Block>();
        // SAFETY: fresh memory, large enough, page-aligned.
        unsafe {
            block.write(Block::new(id as u32));
            add_interrupt_stacks(block, free);
        }
        cpu::register(id, block, u32::MAX);
        STACK_TOPS[id].store(boot_stack(free, STACK), Ordering::Relaxed);
    }
    KERNEL_ROOT.store(paging::root(), Ordering::Relaxed);
    APIC_REGISTERS.store(registers.unwrap_or(0), Ordering::Relaxed);
    let from = &raw const __trampoline_start;
    let len = &raw const __trampoline_end as usize - from as usize;
    // SAFETY: the page is RAM below 1 MiB that nobody uses.
    unsafe { core::ptr::copy_nonoverlapping(from, direct(TRAMPOLINE), len) };

    let targets = || topology.cpus().iter().copied().filter(reachable).take(wanted);
    targets().for_each(local_apic::send_init);
    wait_until(50_000, || false);
    targets().for_each(|id| local_apic::send_startup(id, (TRAMPOLINE >> 12) as u8));
    // The manual asks for a second start-up interrupt; a CPU that runs already ignores it.
    if !wait_until(20_000_000, || ONLINE.load(Ordering::Acquire) == wanted + 1) {
        targets().for_each(|id| local_apic::send_startup(id, (TRAMPOLINE >> 12) as u8));
        wait_until(1_000_000_000, || ONLINE.load(Ordering::Acquire) == wanted + 1);
    }
    let online = ONLINE.load(Ordering::Acquire);
    if online < wanted + 1 {
        panic!("{} of {} CPUs did not start", wanted + 1 - online, wanted + 1);
    }
    cpu::set_count(online);
}

/// Waits up to about `ns` nanoseconds (the clock is not calibrated yet) for `done`.
fn wait_until(ns: u64, done: impl Fn() -> bool) -> bool {
    let end = crate::clock::now() + ns;
    while crate::clock::now() < end {
        if done() {
            return true;
        }
        core::hint::spin_loop();
    }
    done()
}

/// A CPU has arrived: on its own stack, under the kernel's tables.
extern "C" fn arrived(id: usize) -> ! {
    let block = cpu::block_of(id);
    // SAFETY: the block is this CPU's own, the tables and features are ready, interrupts are masked.
    unsafe {
        tables::load(block);
        cpu::set_registers();
        let registers = APIC_REGISTERS.load(Ordering::Relaxed);
        local_apic::init((registers != 0).then_some(registers), interrupt::SPURIOUS);
    }
    cpu::register(id, block, local_apic::id());
    ONLINE.fetch_add(1, Ordering::AcqRel);
    loop {
        cpu::halt();
    }
}
