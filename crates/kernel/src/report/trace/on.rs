//! The records of a traced kernel, and their layout in memory.
//!
//! `trace=SIZE` on the command line sets memory aside. The host reads it after the machine has ended, however it ended.
//! So the kernel sends no records and does not wait. Each CPU writes only its own part; when that is full, later events
//! are counted and not kept.
//!
//! | offset | content |
//! |---|---|
//! | 0 | [`Header`] |
//! | [`CPUS_AT`] | each CPU's [`Written`] |
//! | [`TEXT_AT`] | lines: `kind NUMBER NAME`, `outcome NUMBER NAME` (of faults), `call NUMBER NAME` |
//! | [`RECORDS_AT`] | each CPU's records, in the number of the header |
//!
//! `xtask/src/trace/memory.rs` reads that; all numbers are little-endian.

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
/// Return addresses that are kept with an event.
const SITES: usize = 5;

const _: () = assert!(CPUS_AT + cpu::MAX * size_of::<Written>() <= TEXT_AT);

/// The header. It is complete when the magic number is written.
#[repr(C)]
struct Header {
    magic: AtomicU64,
    version: u32,
    cpus: u32,
    /// Ticks a second.
    hz: u64,
    /// The time at which the first program began.
    start: u64,
    /// Records that each CPU has room for.
    room: u64,
    /// Bytes of text.
    text: u64,
}

const MAGIC: u64 = u64::from_le_bytes(*b"QUIRETRC");
const VERSION: u32 = 1;

/// A CPU's counts, on separate cache lines.
#[repr(C, align(128))]
struct Written {
    /// Complete records.
    kept: AtomicU64,
    /// Events for which there was no room.
    lost: AtomicU64,
}

/// An event.
#[repr(C)]
struct Record {
    start: u64,
    length: u64,
    kind: u32,
    detail: u32,
    /// The thread.
    thread: u32,
    /// Not used.
    zero: u32,
    a: u64,
    b: u64,
    /// Return addresses, innermost first; for a program's own requests: the address of its instruction.
    sites: [u64; SITES],
}

const _: () = assert!(size_of::<Record>() == 88);

/// The memory, and its size.
static MEMORY: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());
static SIZE: AtomicU64 = AtomicU64::new(0);
/// Records that each CPU has room for.
static ROOM: AtomicU64 = AtomicU64::new(0);
/// Events are kept.
static ON: AtomicBool = AtomicBool::new(false);

/// Takes the memory for the command line's word out of `free`, and logs its address.
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

/// Called before the first program runs: later events are kept.
pub fn begin() {
    let memory = MEMORY.load(Ordering::Relaxed);
    if memory.is_null() {
        return;
    }
    let cpus = cpu::count();
    let room = (SIZE.load(Ordering::Relaxed) - RECORDS_AT as u64) / (cpus * size_of::<Record>()) as u64;
    let mut text = Text { at: TEXT_AT, memory };
    let _cut = names(&mut text);
    // SAFETY: the memory was set aside for this, is aligned to a page and large enough for all parts before the
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

/// Writes the meaning of numbers in records.
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

/// The text, up to the room for it.
struct Text {
    at: usize,
    memory: *mut u8,
}

impl Write for Text {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        if self.at + s.len() > RECORDS_AT {
            return Err(fmt::Error);
        }
        // SAFETY: within the memory that was set aside, before the records.
        unsafe { self.memory.add(self.at).copy_from_nonoverlapping(s.as_ptr(), s.len()) };
        self.at += s.len();
        Ok(())
    }
}

/// The running thread; `None` while a CPU has none yet.
fn current() -> Option<&'static Thread<Machine>> {
    // SAFETY: null, or the running thread, which lives while it runs; the reference does not outlive the event.
    unsafe { (cpu::current_thread() as *const Thread<Machine>).as_ref() }
}

fn number_of(thread: &Thread<Machine>) -> u32 {
    match thread.payload() {
        Some(program) => program.tid(),
        // SAFETY: the number does not change.
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

/// Records that the thread has left its stack for good.
pub fn ended(thread: &Thread<Machine>) {
    note(EventKind::End, 0, number_of(thread).into(), 0);
}

/// Records the name of a thread: the caller, or the next thread of a switch. Returns false while the name changes.
fn record_name(thread: &Thread<Machine>) -> bool {
    let mut bytes = [0; 16];
    let (detail, process) = match thread.payload() {
        Some(program) => {
            let Some(name) = program.name.try_lock() else { return false };
            bytes = name.0;
            (0, program.process.pid)
        }
        None => {
            // SAFETY: the name does not change.
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

/// `execve`, `prctl`, `execveat`: calls that may change a thread's name.
const RENAMING: [u64; 3] = [59, 157, 322];

/// Serves a system call, or the part of it up to a sleep without a stack.
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
        // SAFETY: the thread itself runs this.
        unsafe { (*thread.context()).known.recorded = record_name(thread) };
    }
    served
}

/// Runs `f` for the instruction at `site`.
pub fn at<R>(site: u64, f: impl FnOnce() -> R) -> R {
    let Some(thread) = current() else { return f() };
    // SAFETY: the calling thread's own.
    let known = unsafe { &raw mut (*thread.context()).known };
    // SAFETY: only the calling thread uses its `known`, and no reference to it is held here.
    let before = unsafe { core::mem::replace(&mut (*known).site, site) };
    let r = f();
    // SAFETY: only the calling thread uses its `known`, and `f` has returned.
    unsafe { (*known).site = before };
    r
}

/// Binds `quire_sync`'s events to this machine.
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
            // SAFETY: the calling thread's own.
            sites[0] = unsafe { (*thread.context()).known.site };
        }
        // Also requests of the kernel itself: the end of a process that a signal has killed.
        if sites[0] == 0 && !matches!(event.kind, EventKind::Switch | EventKind::End | EventKind::Answer) {
            let mut slots = sites.iter_mut();
            backtrace::each_call(&mut |address| slots.next().map(|slot| *slot = address).is_some());
        }
        keep(event, thread.map_or(0, number_of), sites);
    }
}

quire_sync::provide_trace!(Tracer);

/// Whether programs request such an event, directly or by a system call.
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
    // Interrupt handlers also record events.
    let interrupts = cpu::interrupts_off();
    let (memory, room, me) = (MEMORY.load(Ordering::Relaxed), ROOM.load(Ordering::Relaxed), cpu::id());
    // SAFETY: laid out by `begin` before the first record; `me` is below the number of CPUs. Only this CPU writes its
    // part, and interrupts are off.
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
