//! The notes of a core file: the thread's registers and ids, the process's name and arguments, the signal, the
//! auxiliary vector, and the mapped files.

use crate::signal::core_file::parts::Files;
use crate::signal::frame::FloatArea;
use quire_heap::{Arc, Vec};
use quire_linux_state::process::Process;
use quire_linux_state::signal::SigInfo;
use quire_linux_state::{Ctx, Errno, Machine};
use quire_vm::PAGE_SIZE;

const STATUS: u32 = 1;
const FLOATS: u32 = 2;
const PROCESS: u32 = 3;
const VECTOR: u32 = 6;
const EXTENDED: u32 = 0x202;
const SIGNAL: u32 = 0x5349_4749;
const FILES: u32 = 0x4649_4c45;

/// The size of the legacy part of the floating-point state, in bytes.
const LEGACY: usize = 512;
/// The offset in the legacy part at which the feature bits of the whole floating-point state are stored.
const FEATURES_AT: usize = 464;
/// The most bytes of the arguments that a note shows.
const ARGUMENTS: usize = 80;

/// All notes of the calling thread.
pub(super) fn of<M: Machine>(ctx: &Ctx<'_, M>, info: &SigInfo, files: &Files) -> Result<Vec<u8>, Errno> {
    let mut out = Vec::new();
    note(&mut out, b"CORE\0", STATUS, &status(ctx, info))?;
    note(&mut out, b"CORE\0", PROCESS, &process(ctx)?)?;
    note(&mut out, b"CORE\0", SIGNAL, &info.encode())?;
    let mut vector = Vec::new();
    for (kind, value) in &ctx.space()?.image.vector {
        vector.try_extend_from_slice(&kind.to_le_bytes())?;
        vector.try_extend_from_slice(&value.to_le_bytes())?;
    }
    note(&mut out, b"CORE\0", VECTOR, &vector)?;
    let mut mapped = Vec::new();
    for word in [files.words.len() as u64 / 3, PAGE_SIZE].iter().chain(&files.words) {
        mapped.try_extend_from_slice(&word.to_le_bytes())?;
    }
    mapped.try_extend_from_slice(&files.names)?;
    note(&mut out, b"CORE\0", FILES, &mapped)?;
    let machine = ctx.linux.machine;
    let mut area = FloatArea::new(machine.fpu_len())?;
    let floats = area.bytes();
    machine.fpu_save(floats);
    if let Some(legacy) = floats.get(..LEGACY) {
        note(&mut out, b"CORE\0", FLOATS, legacy)?;
    }
    if floats.len() > LEGACY {
        floats[FEATURES_AT..FEATURES_AT + 8].copy_from_slice(&machine.fpu_features().to_le_bytes());
        note(&mut out, b"LINUX\0", EXTENDED, floats)?;
    }
    Ok(out)
}

/// Adds a note. Its name and its content are padded to four bytes.
fn note(out: &mut Vec<u8>, name: &[u8], kind: u32, content: &[u8]) -> Result<(), Errno> {
    let len = u32::try_from(content.len()).map_err(|_| Errno::EFBIG)?;
    for word in [name.len() as u32, len, kind] {
        out.try_extend_from_slice(&word.to_le_bytes())?;
    }
    for part in [name, content] {
        out.try_extend_from_slice(part)?;
        out.try_resize(out.len().next_multiple_of(4), 0)?;
    }
    Ok(())
}

/// The ids of a process: its own (`own`), its parent's, its group's and its session's.
fn ids<M: Machine>(process: &Arc<Process<M>>, own: u32) -> [u32; 4] {
    let group = process.group();
    [own, process.parent().map_or(0, |parent| parent.pid), group.id, group.session.id]
}

/// Makes Linux's `struct elf_prstatus`.
fn status<M: Machine>(ctx: &Ctx<'_, M>, info: &SigInfo) -> [u8; 336] {
    const IDS_AT: usize = 32;
    const TIMES_AT: usize = 48;
    const REGISTERS_AT: usize = 112;
    const HAS_FLOATS_AT: usize = 328;
    let mut out = [0; 336];
    let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
    let number = i32::from(info.signal.number());
    put(0, &number.to_le_bytes());
    put(4, &info.code.to_le_bytes());
    put(8, &info.errno.to_le_bytes());
    put(12, &(number as u16).to_le_bytes());
    put(16, &ctx.thread.pending.set().0.to_le_bytes());
    put(24, &ctx.thread.blocked().0.to_le_bytes());
    for (n, id) in ids(ctx.process(), ctx.thread.tid()).into_iter().enumerate() {
        put(IDS_AT + 4 * n, &id.to_le_bytes());
    }
    let (own, children) = (ctx.process().usage(), ctx.process().accounts.lock().children);
    for (n, time) in [own.user, own.system, children.user, children.system].into_iter().enumerate() {
        put(TIMES_AT + 16 * n, &(time / 1_000_000_000).to_le_bytes());
        put(TIMES_AT + 16 * n + 8, &(time % 1_000_000_000 / 1000).to_le_bytes());
    }
    let (r, machine) = (&*ctx.regs, ctx.linux.machine);
    let registers = [
        r.r15, r.r14, r.r13, r.r12, r.rbp, r.rbx, r.r11, r.r10, r.r9, r.r8, r.rax, r.rcx, r.rdx, r.rsi, r.rdi,
        r.orig_rax, r.rip, r.cs, r.rflags, r.rsp, r.ss,
    ];
    // The selectors of the data segments stay zero.
    let bases = [machine.fs_base(), machine.gs_base()];
    for (n, register) in registers.into_iter().chain(bases).enumerate() {
        put(REGISTERS_AT + 8 * n, &register.to_le_bytes());
    }
    put(HAS_FLOATS_AT, &1u32.to_le_bytes());
    out
}

/// Makes Linux's `struct elf_prpsinfo`.
fn process<M: Machine>(ctx: &Ctx<'_, M>) -> Result<[u8; 136], Errno> {
    const USER_AT: usize = 16;
    const IDS_AT: usize = 24;
    const NAME_AT: usize = 40;
    const ARGUMENTS_AT: usize = 56;
    let mut out = [0; 136];
    let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
    put(1, b"R");
    let credentials = ctx.credentials();
    put(USER_AT, &credentials.real_user.to_le_bytes());
    put(USER_AT + 4, &credentials.real_group.to_le_bytes());
    for (n, id) in ids(ctx.process(), ctx.process().pid).into_iter().enumerate() {
        put(IDS_AT + 4 * n, &id.to_le_bytes());
    }
    let name = *ctx.thread.name.lock();
    put(NAME_AT, &name.0);
    let space = ctx.space()?;
    let (start, end) = space.image.arguments;
    let mut arguments = [0; ARGUMENTS - 1];
    let len = arguments.len().min(end.saturating_sub(start) as usize);
    let read = space.read(start, &mut arguments[..len]).unwrap_or(0);
    for byte in arguments[..read].iter_mut().filter(|byte| **byte == 0) {
        *byte = b' ';
    }
    put(ARGUMENTS_AT, &arguments);
    Ok(out)
}
