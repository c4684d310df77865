//! The machine's byte ports: virtio-mmio consoles, announced by ACPI or on the kernel's command line.
//!
//! There are three consoles with one port each, in the order in which QEMU's command line creates them:
//!
//! - A
//!   - from the host: the program's standard input
//!   - to the host: the program's standard output
//! - B
//!   - to the host: the program's standard error
//! - C
//!   - from the host: lines: `eof BYTES`, `int`, `kill`, `winch ROWS COLUMNS`
//!   - to the host: lines: `ready NS`, `exit STATUS`, `signal NUMBER`, `data BYTES` followed by that number of bytes
//!
//! `eof BYTES` gives the length of the standard input, because a console has no end of file.
//!
//! A device's interrupt handler only acknowledges the interrupt and wakes the ports' thread, which notifies readers and
//! writers.

use crate::cpu::interrupt;
use crate::machine::{Machine, vm};
use crate::memory::layout::{DIRECT, PAGE, direct};
use crate::memory::stack::kernel_map;
use crate::personality;
use crate::thread::kthread::kernel_thread;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use quire_drivers::acpi::{self, Physical, Topology, VirtioDevice};
use quire_drivers::console::{BufferDirection, Console, ConsoleError, Hal, Line};
use quire_drivers::io_apic::{IoApic, Signal};
use quire_fs::{Port, Readiness};
use quire_heap::{Arc, OutOfMemory, unsize};
use quire_kernel::loader::command_line;
use quire_sync::Rank;
use quire_sync::hooks::{ThreadHandle, park, unpark};
use quire_task::IrqLock;
use quire_vm::map::kernel::KernelRange;
use quire_vm::phys::frames::{For, Frame};
use quire_vm::stats::Event;
use quire_vm::{MapError, MemoryType, PAGE_SIZE, Pfn, Phys, PhysRange};

/// How long a line waits for room in the device's queue, in nanoseconds.
const LINE_PATIENCE: u64 = 10_000_000_000;
/// The number of ports that boot searches for.
const PORTS: usize = 3;

/// The memory that drivers share with devices: frames of the memory system.
pub struct Dma;

// SAFETY: frames from the memory system have no other user and are zeroed here. The direct map always maps them.
unsafe impl Hal for Dma {
    fn dma_alloc(pages: usize, _direction: BufferDirection) -> (u64, NonNull<u8>) {
        let order = pages.next_power_of_two().trailing_zeros() as u8;
        let Ok(run) = vm().alloc_run(order, For::Kernel) else { return (0, NonNull::dangling()) };
        vm().stats().add(Event::BufferPage, 1 << order);
        let at = direct(run.into_pfn().address());
        // SAFETY: the run was just allocated, has at least `pages` pages, and no device uses it yet.
        unsafe { at.write_bytes(0, pages * PAGE as usize) };
        (at as u64 - DIRECT, NonNull::new(at).unwrap_or(NonNull::dangling()))
    }
    unsafe fn dma_dealloc(_physical: u64, at: NonNull<u8>, pages: usize) -> i32 {
        let order = pages.next_power_of_two().trailing_zeros() as u8;
        let pfn = vm().machine().pfn_of(at.as_ptr());
        // SAFETY: by the trait's contract the run came from `dma_alloc`, and the caller no longer uses it.
        unsafe { vm().free_run(Frame::from_pfn(pfn), order) };
        vm().stats().add(Event::BufferPageGone, 1 << order);
        0
    }
    unsafe fn mmio_phys_to_virt(_physical: u64, _size: usize) -> NonNull<u8> {
        unreachable!("only PCI devices map their registers through it")
    }
    unsafe fn share(buffer: NonNull<[u8]>, _direction: BufferDirection) -> u64 {
        // Buffers come from `dma_alloc`, so their addresses are in the direct map.
        buffer.cast::<u8>().as_ptr() as u64 - DIRECT
    }
    unsafe fn unshare(_physical: u64, _buffer: NonNull<[u8]>, _direction: BufferDirection) {}
}

/// A console, which the file layer uses as a port.
pub struct ConsolePort {
    /// Interrupts are masked while the lock is held, because locks of interrupt handlers have a rank before a device's.
    console: IrqLock<Console<Dma>>,
    readiness: Readiness,
    /// The number of bytes that were read. `total` is the length of the input, in bytes.
    taken: AtomicU64,
    total: AtomicU64,
}

impl ConsolePort {
    fn set_total(&self, total: u64) {
        self.total.store(total, Ordering::Release);
        self.readiness.notify();
    }

    /// Whether the host has read all written bytes.
    fn drained(&self) -> bool {
        self.console.lock(vm().machine()).drained()
    }
}

impl Port for &'static ConsolePort {
    fn write(&self, bytes: &[u8]) -> usize {
        self.console.lock(vm().machine()).write(bytes)
    }
    fn read(&self, into: &mut [u8]) -> usize {
        let n = self.console.lock(vm().machine()).read(into);
        self.taken.fetch_add(n as u64, Ordering::AcqRel);
        n
    }
    fn unread(&self) -> usize {
        self.console.lock(vm().machine()).unread()
    }
    fn writable(&self) -> bool {
        self.console.lock(vm().machine()).writable()
    }
    fn at_end(&self) -> bool {
        self.taken.load(Ordering::Acquire) >= self.total.load(Ordering::Acquire)
    }
    fn readiness(&self) -> &Readiness {
        &self.readiness
    }
}

/// Ports A, B and C; null for a port that the machine does not have.
static PORT: [AtomicPtr<ConsolePort>; PORTS] = [const { AtomicPtr::new(core::ptr::null_mut()) }; PORTS];
static LINES: [Line; PORTS] = [const { Line::new() }; PORTS];
/// A bitmap of the ports that have interrupted since the ports' thread last checked.
static INTERRUPTED: AtomicU32 = AtomicU32::new(0);
/// The handle of the ports' thread; 0 before it runs.
static THREAD: AtomicUsize = AtomicUsize::new(0);

fn port(i: usize) -> Option<&'static ConsolePort> {
    // SAFETY: the word is null, or a port that `init` leaked.
    unsafe { PORT[i].load(Ordering::Acquire).as_ref() }
}

/// A port for the file layer: 0 is A, 1 is B. If the machine has no such port, the result writes to the log and has no
/// input.
pub fn shared(i: usize) -> Result<Arc<dyn Port>, OutOfMemory> {
    Ok(match port(i) {
        Some(port) => unsize!(Arc::try_new(port)?),
        None => unsize!(Arc::try_new(LogPort(Readiness::new()))?),
    })
}

/// A port that writes to the serial log, for a machine without consoles.
struct LogPort(Readiness);

impl Port for LogPort {
    fn write(&self, bytes: &[u8]) -> usize {
        crate::report::log::raw(bytes);
        bytes.len()
    }
    fn read(&self, _into: &mut [u8]) -> usize {
        0
    }
    fn unread(&self) -> usize {
        0
    }
    fn writable(&self) -> bool {
        true
    }
    fn at_end(&self) -> bool {
        true
    }
    fn readiness(&self) -> &Readiness {
        &self.0
    }
}

/// The virtio devices that ACPI or the command line announces, and their number.
pub struct Announced([VirtioDevice; 64], usize);

impl Announced {
    /// Finds the devices of the command line (in Linux's syntax), else those of ACPI. Called while the firmware's
    /// tables are still mapped.
    pub fn find(line: &[u8], topology: &Topology, memory: &impl Physical, root: u64) -> Announced {
        let mut all = Announced([VirtioDevice::default(); 64], 0);
        for d in command_line::virtio_devices(line) {
            let changed = topology.overrides().iter().find(|o| o.line as u32 == d.line);
            let gsi = changed.map_or(d.line, |o| o.gsi);
            let low = changed.is_some_and(|o| o.flags & 3 == 3);
            // Interrupts are level-triggered: a device keeps its line active until the interrupt is acknowledged.
            all.add(VirtioDevice { address: d.address, len: d.len, gsi, edge: false, low });
        }
        if all.1 == 0
            && let Err(e) = acpi::virtio_devices(memory, root, |d| all.add(d))
        {
            log!("virtio devices: {e:?}");
        }
        // Sort the devices in the order of their creation. QEMU's microvm assigns register blocks from the highest
        // address down.
        let Announced(devices, len) = &mut all;
        devices[..*len].sort_unstable_by_key(|d| core::cmp::Reverse(d.address));
        all
    }

    fn add(&mut self, device: VirtioDevice) {
        if let Some(slot) = self.0.get_mut(self.1) {
            *slot = device;
            self.1 += 1;
        }
    }
}

/// Device registers, mapped uncached until dropped.
struct Registers {
    window: KernelRange<Machine>,
    /// The address of the first register.
    at: NonNull<u8>,
}

impl Registers {
    /// Maps `len` bytes of registers at physical address `pa`.
    fn map(pa: u64, len: u64) -> Result<Registers, MapError> {
        let end = pa.checked_add(len).ok_or(MapError::Invalid)?;
        let frames = PhysRange { start: Pfn::containing(pa), end: Pfn(end.div_ceil(PAGE_SIZE)) };
        // SAFETY: the firmware reports registers at this address, so it is not RAM. All mappings of it are uncached.
        let window = unsafe { kernel_map().device(frames, MemoryType::Uncached) }?;
        let at = (window.range().start + pa % PAGE_SIZE) as *mut u8;
        Ok(Registers { window, at: NonNull::new(at).ok_or(MapError::Invalid)? })
    }

    /// Makes the mapping permanent.
    fn keep(self) -> NonNull<u8> {
        self.window.keep();
        self.at
    }
}

/// Finds the consoles among the devices, and routes their interrupts to the boot CPU.
pub fn init(announced: &Announced, topology: &Topology) {
    let mut io_apics = [const { None }; 8];
    for (slot, info) in io_apics.iter_mut().zip(topology.io_apics()) {
        match Registers::map(info.address, 32) {
            // SAFETY: the firmware reports an I/O APIC at this address. It was mapped uncached just now, and only boot
            // uses it.
            Ok(registers) => *slot = Some(unsafe { IoApic::new(registers.keep().cast().as_ptr(), info.first) }),
            Err(e) => log!("I/O APIC at {:#x}: {e:?}", info.address),
        }
    }
    let mut found = 0;
    for device in &announced.0[..announced.1] {
        if found == PORTS {
            break;
        }
        let registers = match Registers::map(device.address, device.len) {
            Ok(registers) => registers,
            Err(e) => {
                log!("virtio device at {:#x}: {e:?}", device.address);
                continue;
            }
        };
        // SAFETY: the firmware reports a virtio device at this address. It was mapped uncached just now.
        let console = match unsafe { Console::<Dma>::new(registers.at, device.len as usize) } {
            Ok(console) => console,
            Err(ConsoleError::Absent | ConsoleError::Kind(_)) => continue,
            Err(e) => {
                log!("virtio console at {:#x}: {e:?}", device.address);
                continue;
            }
        };
        let registers = registers.keep();
        let port = crate::memory::heap::keep(ConsolePort {
            console: IrqLock::new(Rank::DEVICE, console),
            readiness: Readiness::new(),
            taken: AtomicU64::new(0),
            total: AtomicU64::new(u64::MAX),
        });
        PORT[found].store(port, Ordering::Release);
        // SAFETY: `keep` made the mapping permanent. Only the `Line` uses the two interrupt registers; the console does
        // not.
        unsafe { LINES[found].connect(registers) };
        if !route(&mut io_apics, device, found) {
            log!("virtio console at {:#x}: no interrupt", device.address);
        }
        found += 1;
    }
}

fn route(io_apics: &mut [Option<IoApic>], device: &VirtioDevice, index: usize) -> bool {
    let Some(vector) = interrupt::register(interrupted, index) else { return false };
    let signal = Signal { level: !device.edge, low: device.low };
    let target = crate::cpu::apic_id(0);
    io_apics.iter_mut().flatten().any(|apic| apic.route(device.gsi, vector, target, signal))
}

/// The interrupt handler of port `index`.
fn interrupted(index: usize) {
    if LINES[index].acknowledge() {
        INTERRUPTED.fetch_or(1 << index, Ordering::AcqRel);
        let thread = THREAD.load(Ordering::Acquire);
        if thread != 0 {
            // SAFETY: the number is that of the ports' thread, which never ends.
            unpark(unsafe { ThreadHandle::from_number(thread) });
        }
    }
}

/// Starts the ports' thread.
pub fn start() {
    let thread = kernel_thread("ports", serve, 0);
    THREAD.store(thread.number(), Ordering::Release);
    unpark(thread);
}

/// The main function of the ports' thread.
extern "C" fn serve(_argument: usize) -> ! {
    let mut line = LineBuffer { bytes: [0; 80], len: 0 };
    // Check all ports once, because the host may have sent input before interrupts were on.
    INTERRUPTED.fetch_or((1 << PORTS) - 1, Ordering::AcqRel);
    loop {
        let mut which = INTERRUPTED.swap(0, Ordering::AcqRel);
        if which == 0 {
            park(None);
            continue;
        }
        while which != 0 {
            let i = which.trailing_zeros() as usize;
            which &= which - 1;
            let Some(port) = port(i) else { continue };
            if i == 2 {
                line.feed(port);
            } else {
                port.readiness.notify();
            }
        }
    }
}

/// The received part of a line from the control port. A longer line is truncated, because no valid command is longer.
struct LineBuffer {
    bytes: [u8; 80],
    len: usize,
}

impl LineBuffer {
    fn feed(&mut self, port: &'static ConsolePort) {
        let mut chunk = [0; 64];
        loop {
            let n = port.read(&mut chunk);
            if n == 0 {
                return;
            }
            for &byte in &chunk[..n] {
                if byte == b'\n' {
                    obey(&self.bytes[..self.len]);
                    self.len = 0;
                } else if self.len < self.bytes.len() {
                    self.bytes[self.len] = byte;
                    self.len += 1;
                }
            }
        }
    }
}

/// Executes a command of the host. Ignores unknown commands.
fn obey(line: &[u8]) {
    let Ok(text) = core::str::from_utf8(line) else { return };
    let mut words = text.split_ascii_whitespace();
    let mut number = {
        let mut words = words.clone().skip(1);
        move || words.next().and_then(|w| w.parse::<u64>().ok())
    };
    match words.next() {
        Some("eof") => {
            if let (Some(total), Some(port)) = (number(), port(0)) {
                port.set_total(total);
            }
        }
        Some("int") => personality::host_interrupt(),
        Some("kill") => personality::host_kill(),
        Some("winch") => {
            if let (Some(rows), Some(columns)) = (number(), number()) {
                personality::host_resize(rows.min(u16::MAX as u64) as u16, columns.min(u16::MAX as u64) as u16);
            }
        }
        _ => {}
    }
}

/// Sends the host a line on the control port. The line is lost if there is no such port, or if the host does not read
/// it within `LINE_PATIENCE`.
pub fn report(message: core::fmt::Arguments<'_>) {
    use core::fmt::Write;
    struct Text([u8; 64], usize);
    impl Write for Text {
        fn write_str(&mut self, s: &str) -> core::fmt::Result {
            let room = self.0.get_mut(self.1..self.1 + s.len()).ok_or(core::fmt::Error)?;
            room.copy_from_slice(s.as_bytes());
            self.1 += s.len();
            Ok(())
        }
    }
    let mut text = Text([0; 64], 0);
    if let Some(control) = port(2)
        && writeln!(text, "{message}").is_ok()
    {
        let mut left = &text.0[..text.1];
        // Wait for room, because a truncated line would change the meaning of the next one.
        let end = crate::cpu::clock::now() + LINE_PATIENCE;
        while !left.is_empty() && crate::cpu::clock::now() < end {
            left = &left[control.write(left)..];
        }
    }
}

/// Sends result bytes on the control port, after a line with their number. Waits for room as long as necessary. The
/// bytes are lost if there is no such port. No other thread sends at the same time, because the machine is shutting
/// down.
pub fn send(mut bytes: &[u8]) {
    let Some(control) = port(2) else { return };
    report(format_args!("data {}", bytes.len()));
    while !bytes.is_empty() {
        match control.write(bytes) {
            0 => core::hint::spin_loop(),
            n => bytes = &bytes[n..],
        }
    }
}

/// Waits until the host has read all written bytes, for at most about `ns` nanoseconds.
pub fn drain(ns: u64) {
    let end = crate::cpu::clock::now() + ns;
    while crate::cpu::clock::now() < end && !(0..PORTS).filter_map(port).all(ConsolePort::drained) {
        core::hint::spin_loop();
    }
}
