//! The records of a traced kernel, and their layout in memory.
//!
//! `trace=SIZE` on the command line reserves memory for the records. The host reads that memory after the machine has
//! ended, also after a crash. So the kernel does not send records. Each CPU writes only its own part. When the part is
//! full, later events are only counted.
//!
//! | offset | content |
//! |---|---|
//! | 0 | [`Header`] |
//! | [`CPUS_AT`] | each CPU's [`Written`] |
//! | [`TEXT_AT`] | lines: `kind NUMBER NAME`, `outcome NUMBER NAME` (of faults), `call NUMBER NAME` |
//! | [`RECORDS_AT`] | each CPU's records, with space for `room` records for each CPU |
//!
//! `xtask/src/trace/memory.rs` reads this layout. All numbers are little-endian.

use crate::cpu::{self, clock};
use crate::machine::Machine;
use crate::memory::layout::direct;
use crate::memory::paging;
use crate::report::backtrace;
use core::fmt::{self, Write};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use quire_kernel::loader::command_line::{self, Unusable};
use quire_kernel::loader::memory_map::Ram;
use quire_linux_state::UserRegs as Regs;
use quire_sync::cpuset::CpuMask;
use quire_sync::trace::{Event, EventKind, Span, Trace, note};
use quire_task::Thread;

/// The offset of the CPUs' counts.
const CPUS_AT: usize = 4096;
/// The offset of the text.
const TEXT_AT: usize = 16 << 10;
/// The offset of the records.
const RECORDS_AT: usize = 64 << 10;
/// The number of return addresses in a record.
const SITES: usize = 5;

const _: () = assert!(CPUS_AT + cpu::MAX * size_of::<Written>() <= TEXT_AT);

/// The header. The magic number is written last, so the header is complete if it is there.
#[repr(C)]
struct Header {
    magic: AtomicU64,
    version: u32,
    cpus: u32,
    /// The clock's ticks per second.
    hz: u64,
    /// The time at which the first program began, in ticks.
    start: u64,
    /// The number of records for which each CPU has space.
    room: u64,
    /// The length of the text in bytes.
    text: u64,
}

const MAGIC: u64 = u64::from_le_bytes(*b"QUIRETRC");
const VERSION: u32 = 1;

/// A CPU's counts, on separate cache lines.
#[repr(C, align(128))]
struct Written {
    /// The number of complete records.
    kept: AtomicU64,
    /// The number of events for which there was no space.
    lost: AtomicU64,
}

/// The record of an event. Times are in ticks.
#[repr(C)]
struct Record {
    start: u64,
    length: u64,
    kind: u32,
    detail: u32,
    /// The number of the thread.
    thread: u32,
    /// Padding.
    zero: u32,
    a: u64,
    b: u64,
    /// Return addresses, innermost first. If a program requested the event, the address of its instruction instead.
    sites: [u64; SITES],
}

const _: () = assert!(size_of::<Record>() == 88);

/// The memory for the records; null without the word `trace`. `SIZE` is its size in bytes.
static MEMORY: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());
static SIZE: AtomicU64 = AtomicU64::new(0);
/// The number of records for which each CPU has space.
static ROOM: AtomicU64 = AtomicU64::new(0);
/// Events are recorded.
static ON: AtomicBool = AtomicBool::new(false);

/// Takes the memory that the word `trace` of the command line requests out of `free`, and logs its address. `files` is
/// the size of the initial files in bytes.
pub fn set_aside<'a>(line: &'a [u8], free: &mut Ram, files: u64) -> Result<(), Unusable<'a>> {
    let most = free.spare(1 << 32, files);
    let Some(size) = command_line::set_aside(line, "trace", RECORDS_AT as u64 + 1, most)? else { return Ok(()) };
    if let Some(at) = paging::take_low(free, size) {
        MEMORY.store(direct(at), Ordering::Relaxed);
        SIZE.store(size, Ordering::Relaxed);
        log!("trace: {size} bytes at {at:#x}");
    }
    Ok(())
}

/// Starts the recording. Called before the first program runs.
pub fn begin() {
    let memory = MEMORY.load(Ordering::Relaxed);
    if memory.is_null() {
        return;
    }
    let cpus = cpu::count();
    let room = (SIZE.load(Ordering::Relaxed) - RECORDS_AT as u64) / (cpus * size_of::<Record>()) as u64;
    let mut text = Text { at: TEXT_AT, memory };
    let _cut = names(&mut text);
    // SAFETY: the memory was reserved for the trace. It is aligned to a page, and large enough for all parts before the
    // records.
    let header = unsafe {
        for n in 0..cpus {
            let written = Written { kept: AtomicU64::new(0), lost: AtomicU64::new(0) };
            memory.add(CPUS_AT).cast::<Written>().add(n).write(written);
        }
        let header = Header {
            magic: AtomicU64::new(0),
            version: VERSION,
            cpus: cpus as u32,
            hz: clock::hz(),
            start: clock::ticks(),
            room,
            text: (text.at - TEXT_AT) as u64,
        };
        memory.cast::<Header>().write(header);
        &*memory.cast::<Header>()
    };
    ROOM.store(room, Ordering::Relaxed);
    header.magic.store(MAGIC, Ordering::Release);
    ON.store(true, Ordering::Release);
    if let Some(thread) = current() {
        let interrupts = cpu::interrupts_off();
        switch(thread);
        cpu::interrupts_restore(interrupts);
    }
}

/// Writes the names of the numbers that records contain.
fn names(to: &mut Text) -> fmt::Result {
    for (number, kind) in EventKind::ALL.iter().enumerate() {
        writeln!(to, "kind {number} {}", kind.name())?;
    }
    for (number, name) in quire_vm::fault::OUTCOMES.iter().enumerate() {
        writeln!(to, "outcome {number} {name}")?;
    }
    for call in quire_linux::syscall::SUPPORTED {
        writeln!(to, "call {} {}", call.number, call.name)?;
    }
    Ok(())
}

/// A writer of the text part. It fails when the part is full.
struct Text {
    at: usize,
    memory: *mut u8,
}

impl Write for Text {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        if self.at + s.len() > RECORDS_AT {
            return Err(fmt::Error);
        }
        // SAFETY: the bytes are in the reserved memory, before the records.
        unsafe { self.memory.add(self.at).copy_from_nonoverlapping(s.as_ptr(), s.len()) };
        self.at += s.len();
        Ok(())
    }
}

/// The running thread; `None` on a CPU that has no thread yet.
fn current() -> Option<&'static Thread<Machine>> {
    // SAFETY: the pointer is null, or the running thread, which is alive while it runs. The reference does not outlive
    // the event.
    unsafe { (cpu::current_thread() as *const Thread<Machine>).as_ref() }
}

fn number_of(thread: &Thread<Machine>) -> u32 {
    match thread.payload() {
        Some(program) => program.tid(),
        // SAFETY: the context lives as long as the thread, and the number never changes.
        None => unsafe { (*thread.context()).known.number },
    }
}

/// Records that this CPU switches to `next`.
///
/// # Requires
/// Interrupts are masked.
pub fn switch(next: &Thread<Machine>) {
    if !ON.load(Ordering::Relaxed) {
        return;
    }
    // SAFETY: this CPU owns the context during the switch.
    let recorded = unsafe { &mut (*next.context()).known.recorded };
    if !*recorded {
        *recorded = record_name(next);
    }
    note(EventKind::Switch, 0, number_of(next).into(), 0);
}

/// Records that the thread has exited and left its stack.
pub fn ended(thread: &Thread<Machine>) {
    note(EventKind::End, 0, number_of(thread).into(), 0);
}

/// Records the name of a thread, which is the caller or the next thread of a switch. Returns false, and records
/// nothing, if another thread changes the name at this moment.
fn record_name(thread: &Thread<Machine>) -> bool {
    let mut bytes = [0; 16];
    let (detail, process) = match thread.payload() {
        Some(program) => {
            let Some(name) = program.name.try_lock() else { return false };
            bytes = name.0;
            (0, program.process.pid)
        }
        None => {
            // SAFETY: the context lives as long as the thread, and the name never changes.
            let name = unsafe { (*thread.context()).known.name };
            let n = name.len().min(bytes.len());
            bytes[..n].copy_from_slice(&name.as_bytes()[..n]);
            (if name == IDLE { 2 } else { 1 }, 0)
        }
    };
    let (a, b) = (u128::from_le_bytes(bytes) as u64, (u128::from_le_bytes(bytes) >> 64) as u64);
    let event = Event { start: clock::ticks(), length: 0, kind: EventKind::Name, detail, a, b };
    keep(&event, number_of(thread), [process.into(), 0, 0, 0, 0]);
    true
}

/// The name of idle threads.
const IDLE: &str = "idle";

/// Records the beginning of a shootdown.
pub fn shootdown(targets: &CpuMask, me: usize) -> Span {
    Span::begin(EventKind::Shootdown, targets.iter().filter(|t| *t != me).count() as u64, 0)
}

/// The numbers of the system calls that may change a thread's name: `execve`, `prctl`, `execveat`.
const RENAMING: [u64; 3] = [59, 157, 322];

/// Records the call of `serve`, which serves a system call or its part up to a sleep without a stack.
pub fn call<R>(regs: &mut Regs, serve: impl FnOnce(&mut Regs) -> R) -> R {
    let (number, first, site) = (regs.orig_rax, regs.rdi, regs.rip);
    let served = at(site, || {
        let mut span = Span::begin(EventKind::Call, first, 0);
        let served = serve(regs);
        span.set(number as u32, regs.rax);
        served
    });
    if RENAMING.contains(&number)
        && let Some(thread) = current()
    {
        // SAFETY: this is the running thread's own context, and only the thread itself changes it while it runs.
        unsafe { (*thread.context()).known.recorded = record_name(thread) };
    }
    served
}

/// Calls `f`. The events that `f` records get the address `site` of the instruction that caused the kernel entry.
pub fn at<R>(site: u64, f: impl FnOnce() -> R) -> R {
    let Some(thread) = current() else { return f() };
    // SAFETY: this is the calling thread's own context.
    let known = unsafe { &raw mut (*thread.context()).known };
    // SAFETY: only the calling thread uses its `known`, and no reference to it is held here.
    let before = unsafe { core::mem::replace(&mut (*known).site, site) };
    let r = f();
    // SAFETY: only the calling thread uses its `known`, and `f` has returned.
    unsafe { (*known).site = before };
    r
}

/// The implementation of `quire_sync`'s `Trace` on this machine.
struct Tracer;

impl Trace for Tracer {
    #[inline(always)]
    fn ticks() -> u64 {
        clock::ticks()
    }
    #[inline(never)]
    fn record(event: &Event) {
        if !ON.load(Ordering::Relaxed) {
            return;
        }
        let thread = current();
        let mut sites = [0; SITES];
        if let Some(thread) = thread.filter(|_| is_asked(event.kind)) {
            // SAFETY: this is the calling thread's own context.
            sites[0] = unsafe { (*thread.context()).known.site };
        }
        // An event of a kind that programs request may also come from the kernel itself. An example is the exit of a
        // killed process.
        if sites[0] == 0 && !matches!(event.kind, EventKind::Switch | EventKind::End | EventKind::Answer) {
            let mut slots = sites.iter_mut();
            backtrace::each_call(&mut |address| slots.next().map(|slot| *slot = address).is_some());
        }
        keep(event, thread.map_or(0, number_of), sites);
    }
}

quire_sync::provide_trace!(Tracer);

/// Whether programs request events of this kind, by a system call or a fault.
fn is_asked(kind: EventKind) -> bool {
    (EventKind::Call as u8..=EventKind::TakeApart as u8).contains(&(kind as u8))
}

/// Writes a record to this CPU's part.
fn keep(event: &Event, thread: u32, sites: [u64; SITES]) {
    if !ON.load(Ordering::Acquire) {
        return;
    }
    let Event { start, length, kind, detail, a, b } = *event;
    let record = Record { start, length, kind: kind as u32, detail, thread, zero: 0, a, b, sites };
    // Interrupts are masked, because interrupt handlers record events too.
    let interrupts = cpu::interrupts_off();
    let (memory, room, me) = (MEMORY.load(Ordering::Relaxed), ROOM.load(Ordering::Relaxed), cpu::id());
    // SAFETY: `begin` has initialised the memory before the first record, and `me` is below the number of CPUs. Only
    // this CPU writes its part, and interrupts are masked.
    unsafe {
        let written = &*memory.add(CPUS_AT).cast::<Written>().add(me);
        let n = written.kept.load(Ordering::Relaxed);
        if n < room {
            let slot = memory.add(RECORDS_AT).cast::<Record>().add(me * room as usize + n as usize);
            slot.write(record);
            written.kept.store(n + 1, Ordering::Release);
        } else {
            written.lost.store(written.lost.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
    }
    cpu::interrupts_restore(interrupts);
}
