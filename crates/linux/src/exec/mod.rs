//! Execution of programs: `execve`, and process 1.
//!
//! All steps that can fail with an error to the caller come first. They open and read files, collect arguments, and map
//! segments in a new address space that no thread uses yet. Then the caller ends the other threads and leaves the old
//! address space. Text and data are mapped from the file's object, so no page is copied. The rest of the last data
//! page, after the file's bytes, is zeroed by an ordinary private write.

pub mod elf;
pub mod load;
pub mod script;
pub mod strings;

use crate::file;
use load::Program;
use quire_heap::{Arc, Vec};
use quire_linux_state::FirstProgram;
use quire_linux_state::errno::Errno;
use quire_linux_state::file::executable::Executable;
use quire_linux_state::machine::Machine;
use quire_linux_state::memory::AddressSpace;
use quire_linux_state::memory::image::Image;
use quire_linux_state::process::Process;
use quire_linux_state::process::credentials::Credentials;
use quire_linux_state::process::credentials::capabilities::{SetIds, Transformed};
use quire_linux_state::process::limits::which;
use quire_linux_state::process::thread::{AltStack, Name, Rseq, Thread};
use quire_linux_state::regs::UserRegs;
use quire_linux_state::signal::Actions;
use quire_linux_state::system::settings::Setting;
use quire_linux_state::user::UserMemory;
use quire_linux_state::{Ctx, Linux};
use quire_sync::atomic::Ordering;
use strings::{Stack, Strings};

/// Linux's default limit of a stack, in bytes.
const USUAL_STACK: u64 = 8 << 20;

/// The most scripts in a chain of `#!` lines, as on Linux.
const MOST_SCRIPTS: usize = 5;

/// A program that is ready to run.
pub struct Prepared<M: Machine> {
    /// The program's address space.
    pub space: Arc<AddressSpace<M>>,
    /// The initial registers.
    pub regs: UserRegs,
    /// The program's name.
    pub name: Name,
    /// The contents of the stack. They are written after the address space has become active.
    stack: Stack,
    /// Ranges that must be zeroed, because their pages map a file.
    tails: [Option<(u64, usize)>; 2],
}

/// The ids of a new program for its auxiliary vector, and its rights and layout.
#[derive(Clone, Copy, Default)]
pub(crate) struct Identity {
    pub user: u32,
    pub effective_user: u32,
    pub group: u32,
    pub effective_group: u32,
    /// The program must not trust the program that started it (`AT_SECURE`).
    pub secure: bool,
    /// Other processes of the same user may read the program's memory.
    pub dumpable: bool,
    /// The process has disabled random addresses by its personality.
    pub fixed: bool,
}

impl Identity {
    /// The identity of a program whose thread had the credentials `old` and gets `new`.
    fn of(old: &Credentials, new: &Transformed) -> Identity {
        let c = &new.credentials;
        let plain = old.effective_user == old.real_user && old.effective_group == old.real_group;
        Identity {
            user: c.real_user,
            effective_user: c.effective_user,
            group: c.real_group,
            effective_group: c.effective_group,
            secure: new.secure,
            dumpable: plain && !old.powers_differ(c),
            fixed: false,
        }
    }
}

/// The size limits of an address space.
#[derive(Clone, Copy)]
pub(crate) struct Limits {
    /// The limit of the stack in bytes.
    pub stack: u64,
    /// The limit of the address space in bytes.
    pub bytes: u64,
    /// The limit of data in bytes.
    pub data: u64,
}

/// Finds the program for `path`. For a script, its `#!` line is followed, and the line's arguments are added to
/// `strings`.
fn resolve<M: Machine>(
    mut open: impl FnMut(&[u8], bool) -> Result<Executable<M>, Errno>,
    path: &[u8],
    strings: &mut Strings,
) -> Result<(Executable<M>, Vec<u8>), Errno> {
    let mut name = Vec::try_copy(path)?;
    for depth in 0..=MOST_SCRIPTS {
        let file = open(&name, depth == 0)?;
        let mut head = [0u8; script::HEAD_LEN];
        let len = quire_linux_state::file::read_kernel(file.object()?, 0, &mut head)?;
        let Some(line) = script::parse(&head[..len])? else {
            return Ok((file, Vec::try_copy(&head[..len])?));
        };
        let argument = line.argument;
        match &argument {
            Some(argument) => strings.prepend(&[&line.interpreter, argument], &name)?,
            None => strings.prepend(&[&line.interpreter], &name)?,
        }
        name = line.interpreter;
    }
    Err(Errno::ELOOP)
}

/// Prepares the program at `path`. The second argument of `open` says whether the path is the caller's own argument.
pub(crate) fn prepare<M: Machine>(
    linux: &'static Linux<M>,
    mut open: impl FnMut(&[u8], bool) -> Result<Executable<M>, Errno>,
    path: &[u8],
    mut strings: Strings,
    mut limits: Limits,
    identity: impl FnOnce(&Executable<M>) -> Identity,
) -> Result<Prepared<M>, Errno> {
    let (file, head) = resolve(&mut open, path, &mut strings)?;
    let identity = identity(&file);
    if identity.secure {
        // The stack limit decides the layout of the new address space. The caller sets the limit, so for a secure
        // program it is reduced to the default.
        limits.stack = limits.stack.min(USUAL_STACK);
    }
    if strings.argument_count() == 0 {
        // As on Linux since 5.18, an empty name is added, because programs may rely on having an argument.
        strings.prepend(&[], b"")?;
    }
    let program = Program::read(file.object()?, &head)?;
    let interpreter = match program.interpreter_path(file.object()?)? {
        None => None,
        Some(path) => {
            let file = open(&path, false)?;
            let mut head = [0u8; elf::HEADER_LEN];
            let len = quire_linux_state::file::read_kernel(file.object()?, 0, &mut head)?;
            let program = Program::read(file.object()?, &head[..len]).map_err(|_| Errno::ELIBBAD)?;
            if program.layout.interpreter.is_some() {
                return Err(Errno::ELIBBAD);
            }
            Some((file, program))
        }
    };

    let dumpable = identity.dumpable && file.readable && interpreter.as_ref().is_none_or(|(file, _)| file.readable);
    let chosen = linux.settings.get(Setting::Randomize) != 0 && (identity.secure || !identity.fixed);
    let places = load::Places::random(linux, &program, interpreter.is_some(), limits.stack, chosen);
    let loaded = load::load(
        linux,
        &places,
        file.object()?,
        &program,
        interpreter.as_ref().map(|(f, p)| f.object().map(|o| (o, p))).transpose()?,
        limits,
    )?;
    let mut vector = loaded.vector(linux, &program, identity)?;
    let mut random = [0u8; 16];
    linux.random.fill(&mut random);
    let stack = strings::lay_out(&strings, places.stack_top, path, &random, &mut vector)?;
    load::map_stack(&loaded.space, &places, &stack, limits.stack, program.layout.executable_stack)?;

    let start = path.iter().rposition(|b| *b == b'/').map_or(0, |at| at + 1);
    let name = Name::new(&path[start..]);
    let image = Arc::try_new(Image {
        file,
        arguments: stack.arguments,
        environment: stack.environment,
        vector,
        code: loaded.code,
        stack: stack.pointer,
    })?;
    let regs = UserRegs::at_entry(loaded.entry, stack.pointer);
    let space = Arc::try_new(AddressSpace::new(loaded.space, loaded.heap, image, dumpable))?;
    Ok(Prepared { space, regs, name, stack, tails: loaded.tails })
}

impl<M: Machine> FirstProgram<M> for Prepared<M> {
    /// Writes the stack, and zeroes the ranges in `tails`. The address space must be active.
    fn fill(&self, machine: &M) -> Result<(), Errno> {
        let memory = UserMemory(machine);
        for (at, len) in self.tails.iter().flatten() {
            memory.clear(*at, *len)?;
        }
        memory.write_bytes(self.stack.pointer, &self.stack.bytes)?;
        Ok(())
    }
}

/// Ends the other threads of the caller's process, and makes the caller its first thread. Returns whether the caller
/// was the only thread. Fails if the process is ending, or if another thread executes a program.
fn end_other_threads<M: Machine>(ctx: &Ctx<'_, M>) -> Result<bool, Errno> {
    let process = ctx.process();
    let me = ctx.thread;
    {
        let mut threads = process.threads.lock();
        if threads.closed {
            return Err(Errno::EAGAIN);
        }
        if threads.len() == 1 && me.tid() == process.pid {
            return Ok(true);
        }
        threads.closed = true;
    }
    process.kill_threads(Some(me));
    let alone =
        process.thread_events.wait_until(None, || me.killed(), || (process.threads.lock().len() == 1).then_some(()));
    if alone.is_err() {
        return Err(Errno::EINTR);
    }
    let mut threads = process.threads.lock();
    let tid = me.tid();
    if tid != process.pid {
        // The first thread has ended. The caller gets its id, which is the process's id.
        if let Some(task) = threads.remove(tid) {
            me.tid.store(process.pid, Ordering::Relaxed);
            threads.begin(task);
        }
        drop(threads);
        me.show_credentials();
        let user_charge =
            core::mem::replace(&mut *process.user_charge.lock(), quire_linux_state::process::users::UserCharge::root());
        drop(user_charge);
        ctx.linux.ids.forget_process(tid);
        ctx.linux.ids.release(tid);
        threads = process.threads.lock();
    }
    threads.closed = process.is_exiting();
    Ok(false)
}

/// Private copies of resources that the process shares with others, for its new program. They are made before the old
/// program is left.
struct Unshared<M: Machine> {
    files: Option<Arc<quire_linux_state::file::Files<M>>>,
    actions: Option<Arc<Actions>>,
    fs: Option<Arc<quire_linux_state::file::FsState<M>>>,
}

/// Copies resources that are shared with other processes. With `sets_ids`, the working and root directories are copied
/// too, because another process must not change them.
///
/// # Requires
/// The caller is the only thread of its process.
fn unshare<M: Machine>(ctx: &Ctx<'_, M>, sets_ids: bool) -> Result<Unshared<M>, Errno> {
    let (files, fs) = (ctx.files()?, ctx.fs()?);
    // SAFETY: the only thread of the process runs this, and the view in `actions` ends before the thread replaces the
    // actions.
    let actions = unsafe { ctx.process().actions.get() };
    Ok(Unshared {
        files: if Arc::strong_count(files) > 1 { Some(files.fork()?) } else { None },
        // A reader in another process may raise the count for a moment. Then an unnecessary copy is made, which is
        // harmless.
        actions: if actions.is_frozen() || Arc::strong_count(actions) > 1 {
            Some(Arc::try_new(actions.try_clone()?)?)
        } else {
            None
        },
        // `shares_directories` has checked for sharing before the other threads ended. Since then, one of these threads
        // may have made a process that shares the directories. So the reference count is read again.
        fs: if sets_ids && Arc::strong_count(fs) > 1 { Some(fs.fork()?) } else { None },
    })
}

/// Replaces the old program by `prepared`. A failure from here on ends the process. Only accesses to the new program's
/// own memory can fail.
fn become_program<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    prepared: Prepared<M>,
    new: Transformed,
    unshared: Unshared<M>,
) -> Result<(), Errno> {
    let linux = ctx.linux;
    let me = ctx.thread;
    let process: &Arc<Process<M>> = ctx.process();
    crate::process::exit::notify_memory_waiters(linux, me, false);
    note_peak(process, me);
    if let Ok(old) = ctx.space() {
        prepared.space.core_filter.store(old.core_filter.load(Ordering::Relaxed), Ordering::Relaxed);
    }
    // SAFETY: the thread itself runs this. `ctx` is borrowed exclusively, so no view of the old address space exists.
    let old = unsafe { me.space.enter(linux.machine, Some(prepared.space.clone())) };
    crate::process::exit::release_parent(me);
    drop(old);

    if let Some(own) = unshared.actions {
        // SAFETY: the caller is the only thread of its process, and holds no view of the actions.
        drop(unsafe { process.actions.replace(own) });
    }
    // SAFETY: the caller is the only thread of its process, so no thread replaces the actions during the call.
    unsafe { process.actions.get() }.reset_handlers();
    // SAFETY: the thread itself runs this, and holds no view of its alternate stack or its restart state.
    unsafe {
        me.alt_stack.replace(AltStack::default());
        me.restart.replace(None);
    }
    *me.name.lock() = prepared.name;
    if let Some(timers) = process.posix_timers.get() {
        timers.delete_all();
        process.pending.discard_of_timers();
        me.pending.discard_of_timers();
    }
    me.rseq.set(Rseq::NONE);
    take_credentials(me, new);
    process.execed.store(true, Ordering::Release);
    // As on Linux, the new program's exit signal is SIGCHLD, because the signal passed to `clone` was for the old
    // program.
    process.exit_signal.store(quire_linux_state::signal::Signal::CHLD.number(), Ordering::Relaxed);
    if let Some(own) = unshared.fs {
        ctx.replace_fs(own);
    }
    if let Some(own) = unshared.files {
        ctx.replace_files(own);
    }
    ctx.files()?.close_on_exec();
    linux.machine.fpu_reset();
    linux.machine.set_fs_base(0);
    linux.machine.set_gs_base(0);
    prepared.fill(linux.machine)?;
    *ctx.regs = prepared.regs;
    ctx.regs_replaced = true;
    Ok(())
}

/// Gives the thread the credentials in `new`. If the thread's rights change, the caller has already made the new
/// address space not dumpable, so other processes cannot access it.
fn take_credentials<M: Machine>(me: &Thread<M>, new: Transformed) {
    /// Flags of `personality` that make a program easier to attack (Linux's PER_CLEAR_ON_SETID).
    const WEAKENING: u32 = 0x0040_0000 | 0x0004_0000 | 0x0020_0000 | 0x0010_0000;
    /// The flag that makes readable memory executable. No program inherits it.
    const READ_IMPLIES_EXEC: u32 = 0x0040_0000;
    let process = &me.process;
    let cleared = if new.sets_ids { WEAKENING } else { READ_IMPLIES_EXEC };
    process.personality.fetch_and(!cleared, Ordering::Relaxed);
    if new.secure {
        process.parent_death_signal.store(0, Ordering::Relaxed);
    }
    // SAFETY: the value belongs to the calling thread, which does not replace it during the access.
    let same = *unsafe { me.credentials.get() } == new.credentials;
    if !same {
        me.become_user(new.credentials);
    }
}

/// Whether another process shares the caller's working and root directories. Such a process could change them while a
/// program with more rights runs. Readers in other threads raise the reference count for a moment. So a count above the
/// number of references that this process's threads hold is read again, up to `LOOKS` times.
fn shares_directories<M: Machine>(ctx: &Ctx<'_, M>) -> Result<bool, Errno> {
    const LOOKS: u32 = 64;
    let fs = ctx.fs()?;
    for _ in 0..LOOKS {
        let own = {
            let threads = ctx.process().threads.lock();
            let same =
                |t: &Thread<M>| t.fs.look(|theirs| theirs.as_ref().is_some_and(|theirs| Arc::ptr_eq(theirs, fs)));
            threads.iter().filter(|task| task.payload().as_ref().is_some_and(same)).count()
        };
        if Arc::strong_count(fs) <= own {
            return Ok(false);
        }
        quire_sync::hooks::relax();
    }
    Ok(true)
}

/// Adds the peak memory of the old address space to the process's accounts.
fn note_peak<M: Machine>(process: &Process<M>, me: &Thread<M>) {
    // SAFETY: the value belongs to the calling thread.
    let peak = unsafe { me.space.get() }.map_or(0, |s| s.peak_resident());
    let mut accounts = process.accounts.lock();
    accounts.ended_threads.peak_pages = accounts.ended_threads.peak_pages.max(peak);
}

fn exec<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    directory: i32,
    path: &[u8],
    arguments: u64,
    environment: u64,
    flags: u32,
) -> Result<usize, Errno> {
    let linux = ctx.linux;
    let process = ctx.process();
    // `setuid` may have moved the thread to a user with too many processes. As on Linux, exec then fails until the user
    // has fewer.
    if ctx.thread.over_limit.load(Ordering::Relaxed) {
        // SAFETY: the value belongs to the calling thread, which does not replace it during the access.
        if unsafe { ctx.thread.user_charge.get() }.exceeds(process.soft_limit(which::NPROC)) {
            return Err(Errno::EAGAIN);
        }
        ctx.thread.over_limit.store(false, Ordering::Relaxed);
    }
    let (stack, bytes) = (process.soft_limit(which::STACK), process.soft_limit(which::AS));
    let limits = Limits { stack, bytes, data: process.data_limit() };
    let mut strings = Strings::new(limits.stack);
    let memory = ctx.user();
    strings.collect(&memory, arguments)?;
    strings.arguments_end();
    strings.collect(&memory, environment)?;
    let old = ctx.credentials();
    let confined = process.no_new_privileges.load(Ordering::Relaxed);
    let mut new = None;
    let prepared = prepare(
        linux,
        |name, first| {
            let (directory, flags) = if first { (directory, flags) } else { (file::AT_FDCWD, 0) };
            file::open_executable(ctx, directory, name, flags)
        },
        path,
        strings,
        limits,
        |file| {
            let set = file.set_ids();
            // If the file sets no ids, the program gains no rights. Then shared directories are harmless, and the check
            // is skipped.
            let shared = set != SetIds::default() && shares_directories(ctx).unwrap_or(true);
            let transformed = old.transform(set, confined, shared);
            /// The flag of `personality` that disables random addresses.
            const NO_RANDOM_ADDRESSES: u32 = 0x4_0000;
            let fixed = ctx.process().personality.load(Ordering::Relaxed) & NO_RANDOM_ADDRESSES != 0;
            let identity = Identity { fixed, ..Identity::of(old, &transformed) };
            new = Some(transformed);
            identity
        },
    )?;
    let new = new.ok_or(Errno::ENOEXEC)?;
    // After exec has ended other threads, it cannot return an error, because these threads cannot come back. Then a
    // failure ends the process. Resources that are shared with other processes are copied after that point, because
    // the other threads may change them until then.
    let alone = end_other_threads(ctx)?;
    let unshared = match unshare(ctx, new.sets_ids) {
        Err(error) if alone => return Err(error),
        unshared => unshared,
    };
    if unshared.and_then(|unshared| become_program(ctx, prepared, new, unshared)).is_err() {
        if linux.machine.verbose() {
            linux.machine.log(format_args!("process {} ran out of memory during exec", ctx.pid()));
        }
        linux.kill_process(ctx.process(), quire_linux_state::signal::Signal::KILL);
        ctx.regs_replaced = true;
    }
    Ok(0)
}

/// `execve`
pub fn sys_execve<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    path: u64,
    arguments: u64,
    environment: u64,
) -> Result<usize, Errno> {
    let path = ctx.path(path)?;
    exec(ctx, file::AT_FDCWD, &path, arguments, environment, 0)
}

/// `execveat`
pub fn sys_execveat<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    directory: i32,
    path: u64,
    arguments: u64,
    environment: u64,
    flags: u32,
) -> Result<usize, Errno> {
    let path = ctx.path(path)?;
    exec(ctx, directory, &path, arguments, environment, flags)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
