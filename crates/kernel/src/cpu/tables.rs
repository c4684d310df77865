//! Segment descriptors (GDT), task state segments (TSS) and the interrupt descriptor table (IDT).
//!
//! Every CPU has its own GDT and TSS. All CPUs share one IDT. Double faults, NMIs and machine checks run on separate
//! stacks, because they may come while the current stack is unusable.

use super::Block;
use core::arch::asm;
use core::cell::UnsafeCell;

/// The selector of 64-bit kernel code.
pub const KERNEL_CS: u16 = 0x10;
/// The selector of kernel data.
pub const KERNEL_SS: u16 = 0x18;
/// The base of SYSRET's selectors. SYSRET adds 8 for user data and 16 for 64-bit user code, and sets the privilege
/// bits.
pub const SYSRET_BASE: u16 = 0x20 | 3;
/// The selector of a segment whose limit is the CPU's number, which programs read by LSL (as for `getcpu`).
pub const CPU_NUMBER: u16 = 0x38 | 3;
const TASK: u16 = 0x40;

/// The numbers of the separate stacks in the TSS's interrupt stack table (IST), which begin at 1.
pub const IST_DOUBLE_FAULT: usize = 1;
pub const IST_NMI: usize = 2;
pub const IST_MACHINE_CHECK: usize = 3;

/// A CPU's segment descriptors: null, unused, kernel code, kernel data, empty, user data, user code, the CPU's number,
/// and two words for the task state. The empty descriptor is in the place of 32-bit user code.
///
/// It is empty so that no program can leave 64-bit mode. In 32-bit code SYSCALL would enter the kernel at CSTAR, for
/// which the kernel has no entry.
#[repr(C, align(16))]
pub struct Segments([u64; 10]);

/// The hardware's task state segment (TSS), of which only the stack pointers are used.
#[repr(C, packed(4))]
pub struct TaskState {
    _reserved: u32,
    /// The stacks of privilege levels 0 to 2.
    pub stacks: [u64; 3],
    _reserved_1: u64,
    /// The interrupt stack table; element 0 is IST 1.
    pub interrupt_stacks: [u64; 7],
    _reserved_2: u64,
    _reserved_3: u16,
    io_map: u16,
}

impl Segments {
    pub const fn new() -> Self {
        Segments([
            0,
            0,
            0x00af_9b00_0000_ffff,
            0x00cf_9300_0000_ffff,
            0,
            0x00cf_f300_0000_ffff,
            0x00af_fb00_0000_ffff,
            0,
            0,
            0,
        ])
    }
}

impl TaskState {
    pub const fn new() -> Self {
        TaskState {
            _reserved: 0,
            stacks: [0; 3],
            _reserved_1: 0,
            interrupt_stacks: [0; 7],
            _reserved_2: 0,
            _reserved_3: 0,
            // The I/O map is beyond the segment's limit, so user mode can access no ports.
            io_map: size_of::<TaskState>() as u16,
        }
    }
}

#[repr(C, align(4096))]
struct InterruptTable(UnsafeCell<[[u64; 2]; 256]>);
// SAFETY: only the boot CPU writes the table, before any other CPU runs and before interrupts are on.
unsafe impl Sync for InterruptTable {}
static INTERRUPTS: InterruptTable = InterruptTable(UnsafeCell::new([[0; 2]; 256]));

#[repr(C, packed)]
struct Pointer {
    limit: u16,
    base: u64,
}

/// Fills the interrupt descriptor table. `stub` returns the address of each vector's entry.
///
/// # Safety
/// Called once, by the boot CPU, before any interrupt can come. Each address is an entry for its vector.
pub unsafe fn fill_interrupts(stub: impl Fn(u8) -> u64) {
    // SAFETY: no other code reads or writes the table yet.
    let table = unsafe { &mut *INTERRUPTS.0.get() };
    for (vector, gate) in table.iter_mut().enumerate() {
        let at = stub(vector as u8);
        let (stack, level) = match vector {
            2 => (IST_NMI, 0),
            8 => (IST_DOUBLE_FAULT, 0),
            18 => (IST_MACHINE_CHECK, 0),
            // User mode may raise these two by the instructions INT3 and INTO.
            3 | 4 => (0, 3),
            _ => (0, 0),
        };
        // An interrupt gate: present, privilege level, type 0xe.
        let flags = 0x8e00u64 | level << 13 | stack as u64;
        *gate = [(at & 0xffff) | (KERNEL_CS as u64) << 16 | flags << 32 | (at >> 16 & 0xffff) << 48, at >> 32];
    }
}

/// Loads this CPU's descriptor tables from `block`, and GS with the block itself.
///
/// # Safety
/// `block` belongs to this CPU for ever, interrupts are masked, and the interrupt descriptor table is filled.
pub unsafe fn load(block: *mut Block) {
    // SAFETY: the block belongs to this CPU, so no other CPU accesses its tables. The selectors name descriptors that
    // are valid.
    unsafe {
        (*block).this = block;
        let task = &raw mut (*block).task as u64;
        let limit = size_of::<TaskState>() as u64 - 1;
        (*block).segments.0[8] = limit | (task & 0xff_ffff) << 16 | 0x89 << 40 | (task >> 24 & 0xff) << 56;
        (*block).segments.0[9] = task >> 32;
        // A present, read-only data segment for user mode. It is marked as accessed already, so that the CPU does not
        // write to the descriptor when a program loads it.
        (*block).segments.0[CPU_NUMBER as usize / 8] = 0xf1 << 40 | (*block).id as u64;
        let gdt = Pointer { limit: size_of::<Segments>() as u16 - 1, base: &raw const (*block).segments as u64 };
        let idt = Pointer { limit: 4095, base: INTERRUPTS.0.get() as u64 };
        asm!(
            "lgdt [{gdt}]",
            "lidt [{idt}]",
            "push {cs}",
            "lea {tmp}, [rip + 2f]",
            "push {tmp}",
            "retfq",
            "2:",
            "mov ds, {ss:e}",
            "mov es, {ss:e}",
            "mov ss, {ss:e}",
            "mov fs, {zero:e}",
            "mov gs, {zero:e}",
            "ltr {task:x}",
            gdt = in(reg) &gdt,
            idt = in(reg) &idt,
            cs = in(reg) KERNEL_CS as u64,
            ss = in(reg) KERNEL_SS as u64,
            zero = in(reg) 0u64,
            task = in(reg) TASK as u64,
            tmp = out(reg) _,
        );
        super::registers::wrmsr(super::registers::GS_BASE, block as u64);
        super::registers::wrmsr(super::registers::KERNEL_GS_BASE, 0);
    }
}
