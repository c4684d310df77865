//! Boot: from the loader's entry to the first thread, on the boot CPU and on the others.
//!
//! Boot uses all other modules of the kernel, and none uses boot. Boot passes values of upper modules to lower ones.
//! `cpu::tables` gets the addresses of the trap entries. `memory::paging` gets the address of the guard page below the
//! boot stack.
//!
//! Invariants:
//! - The order of the steps is: features, registers, the memory system, the scheduler, interrupts. Each step needs the
//!   steps before it.
//! - On a machine that cannot run Quire, boot prints one sentence with the reason and ends.

mod archive;
pub mod pvh;
pub mod required;
pub mod smp;

use crate::cpu::clock::Calibration;
use crate::cpu::features::{Feature, has};
use crate::cpu::{self, fpu, interrupt, tables};
use crate::host::ports;
use crate::machine::{self, Machine, scheduler, vm};
use crate::memory::layout::direct;
use crate::memory::{frame, paging, shootdown, stack};
use crate::thread::kthread::adopt_idle;
use crate::{personality, trap};
use archive::Archive;
use core::cell::UnsafeCell;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};
use quire_drivers::acpi::Affinity;
use quire_drivers::{acpi, local_apic, pic, rtc, uart};
use quire_fs::Limits;
use quire_kernel::loader::command_line::Unusable;
use quire_kernel::loader::memory_map::{PIECES, Ram, Span};
use quire_kernel::loader::start_info::{MAX_RANGES, StartInfo};
use quire_linux_state::Linux;
use quire_linux_state::base::tables::TableMemory;
use quire_pmap_x86_64::{KernelTables, Mmu};
use quire_task::Scheduler;
use quire_vm::Config;
use quire_vm::{Pfn, PhysRange, Vm};

/// The lowest physical address of the memory system's RAM.
const LOWEST: u64 = 1 << 20;

/// Access to physical memory through the boot page tables.
struct BootPhysical;

impl acpi::Physical for BootPhysical {
    fn bytes(&self, at: u64, len: usize) -> Option<&[u8]> {
        physical(at, len)
    }
}

fn physical(at: u64, len: usize) -> Option<&'static [u8]> {
    let end = at.checked_add(len as u64)?;
    // SAFETY: the boot page tables map the first 4 GiB. The data of the loader and the firmware there do not change.
    (end <= 1 << 32).then(|| unsafe { core::slice::from_raw_parts(direct(at), len) })
}

/// The Rust entry of the boot CPU. It runs on the boot stack, with interrupts masked, under the boot page tables.
pub extern "C" fn start(start_info: u32) -> ! {
    // SAFETY: only the boot CPU runs, and the steps are in the order that the hardware needs.
    unsafe {
        tables::fill_interrupts(trap::entry::stub);
        tables::load(cpu::boot_block());
        uart::init();
        pic::mask_all();
    }
    let mut calibration = Calibration::start();
    required::check_long_mode();
    cpu::features::detect();
    if has(Feature::Smap) {
        // SAFETY: the boot page tables map text as writable, and no other CPU runs.
        unsafe { trap::entry::patch_smap() }
    }
    let info = match StartInfo::read(start_info as u64, physical) {
        Ok(info) => info,
        Err(e) => panic!("the boot loader's start info cannot be used: {e:?}"),
    };
    let topology = match acpi::topology(&BootPhysical, info.root_pointer) {
        Ok(t) => t,
        Err(e) => panic!("the firmware's ACPI tables cannot be used: {e:?}"),
    };
    let affinity = read_affinity(info.root_pointer);
    let announced = ports::Announced::find(info.command_line, &topology, &BootPhysical, info.root_pointer);

    let all = Ram::new(info.ranges(), &[]);
    let mut free = free_memory(&info, &all);
    let command_line = keep_command_line(info.command_line);
    let total = all.bytes();
    let limits = usable(file_limits(command_line, total));
    let files = info.modules().iter().map(|m| m.len).fold(0, u64::saturating_add);
    let kernel_tables = match paging::build(&all, &mut free, pvh::stack_guard()) {
        Ok(t) => t,
        Err(e) => panic!("the kernel's page tables cannot be made from {} KiB: {e:?}", total / 1024),
    };
    load_tables(&kernel_tables);
    let registers = start_local_apic(&kernel_tables, &mut free);
    calibration.start_apic();
    cpu::register(0, cpu::boot_block(), local_apic::id());
    smp::prepare(&topology, &kernel_tables, &mut free, registers);
    smp::start(&topology, registers.is_none());
    let domains = affinity.domains();
    if domains > 1 {
        // A CPU's memory domain is looked up by its local APIC identifier, which each CPU registers when it starts.
        smp::await_all(&topology, registers.is_none());
    }

    // SAFETY: the loader's module is in RAM, which the direct map maps. It is not part of the free memory.
    let archive = unsafe { Archive::new(info.modules().first().copied().unwrap_or_default(), largest(&free)) };
    let tables = build_systems(Found {
        free: &mut free,
        archive: &archive,
        command_line,
        total,
        files,
        kernel_tables,
        affinity,
    });
    let rates = calibration.finish();
    TIMER_HZ.store(if has(Feature::TscDeadline) { 0 } else { rates.apic }, Ordering::Relaxed);
    log!(
        "Quire {}: {} CPUs, {} MiB, TSC {} MHz, {}{}, up after {} us",
        env!("CARGO_PKG_VERSION"),
        cpu::count(),
        total >> 20,
        rates.tsc / 1_000_000,
        if registers.is_some() { "xAPIC" } else { "x2APIC" },
        if has(Feature::TscDeadline) { " with TSC deadlines" } else { "" },
        crate::cpu::clock::now() / 1000,
    );
    crate::report::watchdog::configure(command_line);
    if domains > 1 {
        (0..domains).for_each(|d| log!("memory domain {d}: {} MiB free", vm().frames().free_in(d) >> 8));
    }
    if quire_kernel::loader::command_line::flag(command_line, "memtest") {
        crate::memory::memtest::run(vm(), &free);
    }
    start_clocks(command_line);
    personality::machine::set_verbose(quire_kernel::loader::command_line::flag(command_line, "verbose"));
    ports::init(&announced, &topology);
    ports::start();
    crate::report::backtrace::set_symbols(archive.symbols());
    try_reports(command_line);
    crate::thread::daemons::start();
    crate::report::watchdog::start();
    // The word `lockup` on the command line provokes an incident, to test the watchdog.
    if let Some(kind) = quire_kernel::loader::command_line::value(command_line, "lockup") {
        crate::report::watchdog::provoke::start(kind);
    }
    personality::start::start(archive, limits, total, tables);
    smp::go(&topology, registers.is_none());
    cpu::interrupts_on();
    scheduler().idle()
}

/// The unused RAM: the RAM in `info` without the kernel's image, the lowest megabyte, and the loader's modules. `all`
/// is used to check that the modules are in RAM.
fn free_memory(info: &StartInfo<'_>, all: &Ram) -> Ram {
    let mut reserved = [Span::default(); 8];
    let (image_start, image_end) = crate::memory::layout::image_physical();
    reserved[0] = Span { start: 0, end: 1 << 20 };
    reserved[1] = Span { start: image_start, end: image_end };
    for (slot, m) in reserved[2..].iter_mut().zip(info.modules()) {
        *slot = Span { start: m.start, end: m.start.saturating_add(m.len) };
        if !all.covers(*slot) {
            panic!("the boot loader's module at {:#x} is not in RAM", m.start);
        }
    }
    Ram::new(info.ranges(), &reserved)
}

/// Loads the kernel's own page tables in place of the boot tables, and enables the features of the boot CPU.
fn load_tables(kernel_tables: &KernelTables) {
    // SAFETY: the kernel's own tables map the running code, and no pages in the user half, which boot no longer needs.
    // After the first call, the requirements of `set_registers` hold: interrupts are masked and these tables are
    // loaded.
    unsafe {
        cpu::registers::set_cr3(kernel_tables.root().address());
        cpu::set_registers();
        cpu::set_system_calls(trap::entry::syscall_address());
    }
    // SAFETY: `set_registers` ran above, and no other CPU has started.
    unsafe {
        if let Err(why) = fpu::detect() {
            log!("XSAVE and AVX are not used: {why}");
        }
        enable_fpu();
    }
    frame::use_vectors(fpu::widest_is_avx());
}

/// Starts the boot CPU's local APIC. Returns the address of its mapped registers; `None` for an x2APIC, which is
/// accessed by MSRs.
fn start_local_apic(kernel_tables: &KernelTables, free: &mut Ram) -> Option<usize> {
    let registers = if has(Feature::X2apic) {
        None
    } else {
        let mut frames = || paging::take_low(free, 4096).map(Pfn::containing);
        match paging::map_device(kernel_tables, local_apic::physical_base(), 4096, &mut frames) {
            Ok(at) => Some(at as usize),
            Err(e) => panic!("the local APIC cannot be mapped: {e:?}"),
        }
    };
    // SAFETY: the registers were mapped uncached just now, or it is an x2APIC. Interrupts are masked.
    unsafe { local_apic::init(registers, interrupt::SPURIOUS) };
    registers
}

/// The parts of the machine from which `build_systems` builds the memory system and the scheduler.
struct Found<'b> {
    /// The unused RAM.
    free: &'b mut Ram,
    archive: &'b Archive,
    command_line: &'static [u8],
    /// The size of all RAM, in bytes.
    total: u64,
    /// The size of all modules of the loader, in bytes.
    files: u64,
    kernel_tables: KernelTables,
    affinity: Affinity,
}

/// Builds the memory system, swap and the scheduler. Returns the memory for the Linux layer's tables.
// Not inlined, so that its large locals are not in the frame of `start`, which stays on the stack for ever.
#[inline(never)]
fn build_systems(found: Found<'_>) -> TableMemory {
    let Found { free, archive, command_line, total, files, kernel_tables, affinity } = found;
    let cpus = cpu::count();
    // SAFETY: each range of memory is unused, aligned to a page, large enough, and never freed.
    unsafe {
        shootdown::init(boot_memory(free, shootdown::bytes(cpus)), cpus);
        let mmu = Mmu::new(boot_memory(free, Mmu::bytes(cpus)), cpus, kernel_tables, has(Feature::Pcid));
        usable(crate::report::trace::set_aside(command_line, free, files));
        let swap = usable(crate::memory::swap::set_aside(command_line, free, files));
        let schedulers_memory = boot_memory(free, Scheduler::<Machine>::bytes(cpus));
        let table_bytes = Linux::<Machine>::table_bytes(total, cpus);
        let tables = TableMemory::new(boot_memory(free, table_bytes), table_bytes);
        let ranges = &mut [PhysRange { start: Pfn(0), end: Pfn(0) }; MAX_RANGES + PIECES];
        let ranges = fill_ranges(free, archive.pieces(), ranges);
        match Vm::new(Machine::new(mmu, affinity), ranges, config(command_line)) {
            Ok(vm) => machine::set_vm(vm),
            Err(e) => panic!("the memory system cannot be built: {e:?}"),
        }
        archive.hold();
        if stack::init().is_err() {
            panic!("not enough memory for the kernel's map");
        }
        let scheduler = crate::memory::heap::keep(Scheduler::new(vm().machine(), schedulers_memory, cpus));
        machine::set_scheduler(scheduler);
        crate::memory::swap::add(swap);
        tables
    }
}

/// Starts the timer of this CPU, and sets the time of day. The boot code becomes the CPU's idle thread.
fn start_clocks(command_line: &'static [u8]) {
    if let Some(ns) = usable(quire_kernel::loader::command_line::time(command_line, "tick")) {
        crate::thread::scheduling::set_tick(ns);
    }
    start_timer();
    adopt_idle();
    // SAFETY: only the boot CPU uses the ports of the real-time clock.
    if let Some(seconds) = unsafe { rtc::read() }.and_then(|r| r.seconds_since_1970()) {
        personality::machine::set_epoch(seconds);
    }
}

/// Executes the words of the command line that test the kernel's reports: `panic` and, in debug builds, `invert`.
fn try_reports(command_line: &'static [u8]) {
    if quire_kernel::loader::command_line::flag(command_line, "panic") {
        panic!("as asked");
    }
    #[cfg(debug_assertions)]
    if let Some(kind) = quire_kernel::loader::command_line::value(command_line, "invert") {
        crate::report::inversion::show(kind);
    }
}

/// Enables, on this CPU, the FPU features that work on the boot CPU. The machine ends if they do not work on this CPU.
///
/// # Safety
/// As [`fpu::enable`].
unsafe fn enable_fpu() {
    // SAFETY: the contract of `fpu::enable` is that of this function.
    if let Err(why) = unsafe { fpu::enable() } {
        required::refuse(format_args!("vectors work on CPU 0, but not on CPU {}: {why}", cpu::id()));
    }
}

/// Reads the firmware's table of memory domains (NUMA nodes). Returns a single domain if the table is broken.
// Not inlined, so that its large locals are not in the frame of `start`, which stays on the stack for ever.
#[inline(never)]
fn read_affinity(root_pointer: u64) -> Affinity {
    acpi::affinity(&BootPhysical, root_pointer).unwrap_or_else(|e| {
        log!("the firmware's table of memory domains cannot be used: {e:?}");
        Affinity::flat()
    })
}

/// The rate of the local APIC's timer in ticks per second; 0 if the timer uses TSC deadlines.
static TIMER_HZ: AtomicU64 = AtomicU64::new(0);

fn start_timer() {
    let hz = TIMER_HZ.load(Ordering::Relaxed);
    local_apic::timer_init(interrupt::TIMER, (hz != 0).then_some(hz));
}

/// Makes a CPU other than the boot CPU run threads. Called at the end of that CPU's start.
pub fn join_scheduler() -> ! {
    start_timer();
    adopt_idle();
    cpu::interrupts_on();
    scheduler().idle()
}

/// Allocates memory that boot never frees. Ends the machine if there is not enough.
fn boot_memory(free: &mut Ram, bytes: usize) -> NonNull<u8> {
    match paging::take_large(free, bytes as u64).and_then(|at| NonNull::new(direct(at))) {
        Some(at) => at,
        None => panic!("not enough memory for the tables that boot makes"),
    }
}

/// The size in bytes of the largest range of RAM for the memory system.
fn largest(free: &Ram) -> u64 {
    free.largest(LOWEST, u64::MAX)
}

/// Fills `ranges` with the frames of the remaining RAM and of the archive, in ascending order. Returns the filled part.
fn fill_ranges<'a>(
    free: &Ram,
    archive: impl Iterator<Item = PhysRange>,
    ranges: &'a mut [PhysRange],
) -> &'a [PhysRange] {
    let spans = free.spans().iter().filter(|s| s.start >= LOWEST);
    let frames = spans.map(|s| PhysRange { start: Pfn::containing(s.start), end: Pfn::containing(s.end) });
    let mut len = 0;
    for (slot, range) in ranges.iter_mut().zip(frames.chain(archive)) {
        *slot = range;
        len += 1;
    }
    ranges[..len].sort_unstable_by_key(|range| range.start);
    &ranges[..len]
}

/// The memory core's settings: the values of the command line, and the defaults for all others.
fn config(command_line: &[u8]) -> Config {
    use quire_kernel::loader::command_line::{number, value};
    let default = Config::default();
    let given = |name| value(command_line, name).and_then(|v| number(core::str::from_utf8(v).ok()?));
    Config {
        zero_window: given("zero-window").map_or(default.zero_window, |n| n.min(u32::MAX.into()) as u32),
        layers: given("layers").map_or(default.layers, |n| n.min(u8::MAX.into()) as u8),
        ..default
    }
}

/// Returns the value of a word of the command line. If the value is unusable, prints the reason and ends the machine.
fn usable<T>(asked: Result<T, Unusable<'_>>) -> T {
    asked.unwrap_or_else(|unusable| required::refuse_word(&unusable))
}

/// The limits of the in-memory file systems, from the command line. They do not apply to the files that boot unpacks.
/// The machine has `total` bytes of RAM.
fn file_limits(command_line: &[u8], total: u64) -> Result<Limits, Unusable<'_>> {
    use quire_kernel::loader::command_line::amount_up_to;
    /// The least size of an inode, in bytes.
    const INODE: u64 = 512;
    let size = amount_up_to(command_line, "tmpfs-size", total)?;
    Ok(Limits {
        pages: size.map(|bytes| bytes.div_ceil(quire_vm::PAGE_SIZE)),
        inodes: amount_up_to(command_line, "tmpfs-inodes", total / INODE)?,
    })
}

/// Copies the command line out of the loader's memory, which is soon unmapped.
fn keep_command_line(line: &[u8]) -> &'static [u8] {
    struct Kept(UnsafeCell<[u8; 4096]>);
    // SAFETY: the value is written once, below, while only the boot CPU runs.
    unsafe impl Sync for Kept {}
    static KEPT: Kept = Kept(UnsafeCell::new([0; 4096]));
    // SAFETY: boot calls this once, while only the boot CPU runs, so this is the only reference.
    let kept = unsafe { &mut *KEPT.0.get() };
    let len = line.len().min(kept.len());
    kept[..len].copy_from_slice(&line[..len]);
    &kept[..len]
}
