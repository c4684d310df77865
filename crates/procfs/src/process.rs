//! The directory of a process in `/proc`, and the directories of its threads.

use crate::about::{Task, numbers};
use crate::node::{Directory, Each, Item, ItemKind, Jump, Short, Table, number, parts, put};
use crate::pages::Resident;
use crate::{clear_refs, descriptors, kernel_memory, map_files, memory, mounts, net, node, pages};
use core::any::Any;
use core::fmt;
use quire_fs::NewAttr;
use quire_fs::generated::{Entry, Generated, GeneratedDirectory, Text};
use quire_fs::{FileKind, FsError, Places};
use quire_heap::{Arc, Vec};
use quire_linux::file::terminals;
use quire_linux::process::scheduling::class as scheduling_class;
use quire_linux_state::file::host::{Dentry, FileHost};
use quire_linux_state::machine::Machine;
use quire_linux_state::memory::image::Image;
use quire_linux_state::process::credentials::capabilities::cap;
use quire_linux_state::process::credentials::login::Login;
use quire_linux_state::process::limits::{INFINITY, NAMES, which};
use quire_linux_state::process::thread::Name;
use quire_linux_state::process::timer_slack;
use quire_linux_state::process::usage;
use quire_linux_state::process::users::Account;
use quire_linux_state::signal::SigSet;
use quire_linux_state::time::ticks;
use quire_linux_state::{Errno, Pid, Process};
use quire_sync::atomic::Ordering;
use quire_sync::cpuset::CpuMask;
use quire_task::Class;
use quire_vm::PAGE_SIZE;

struct Names<M>(core::marker::PhantomData<M>);

impl<M: Machine> Names<M> {
    const OF_BOTH: &'static [Item<M, Task<M>>] = &[
        Item { name: "auxv", kind: ItemKind::Bound(0o400, memory::vector) },
        Item::file("cgroup", |_, out| put!(out, "0::/\n")),
        Item { name: "clear_refs", kind: ItemKind::Bound(0o200, clear_refs::open) },
        Item::file("cmdline", memory::command_line),
        Item { name: "comm", kind: ItemKind::Writable(comm, set_comm) },
        Item { name: "cwd", kind: ItemKind::Link(working_directory, Some(jump_to_cwd)) },
        Item { name: "environ", kind: ItemKind::Bound(0o400, memory::environment) },
        Item { name: "exe", kind: ItemKind::Link(executable, Some(jump_to_executable)) },
        Item { name: "fd", kind: ItemKind::OwnDirectory(|a| descriptors::directory(a.clone())) },
        Item { name: "fdinfo", kind: ItemKind::Directory(|a| descriptors::infos(a.clone())) },
        Item::file("limits", limits),
        Item { name: "loginuid", kind: ItemKind::Writable(login_user, set_login_user) },
        Item { name: "maps", kind: ItemKind::Bound(0o444, memory::map) },
        Item { name: "mem", kind: ItemKind::Bound(0o600, pages::bytes) },
        Item { name: "mountinfo", kind: ItemKind::Bound(0o444, mounts::numbered) },
        Item { name: "mounts", kind: ItemKind::Bound(0o444, mounts::plain) },
        Item {
            name: "net",
            kind: ItemKind::Directory(|a| {
                net::of(crate::about::System(a.process.linux), numbers(a.process.pid) + 0x800)
            }),
        },
        Item { name: "numa_maps", kind: ItemKind::Bound(0o444, memory::domains) },
        Item { name: "oom_adj", kind: ItemKind::Writable(old_oom_adjust, set_old_oom_adjust) },
        Item::file("oom_score", oom_score),
        Item { name: "oom_score_adj", kind: ItemKind::Writable(oom_adjust, set_oom_adjust) },
        Item { name: "pagemap", kind: ItemKind::Bound(0o400, pages::page_map) },
        Item { name: "personality", kind: ItemKind::OwnFile(personality) },
        Item { name: "root", kind: ItemKind::Link(root_directory, Some(jump_to_root)) },
        Item::file("sessionid", |about, out| put!(out, "{}", login(about).session)),
        Item { name: "smaps", kind: ItemKind::Bound(0o444, memory::sums) },
        Item { name: "smaps_rollup", kind: ItemKind::Bound(0o444, memory::rollup) },
        Item::file("stat", stat),
        Item::file("statm", statm),
        Item::file("status", status),
        Item::file("wchan", |_, out| put!(out, "0")),
        Item { name: "coredump_filter", kind: ItemKind::Writable(core_filter, set_core_filter) },
        Item { name: "map_files", kind: ItemKind::OwnDirectory(|a| map_files::directory(a.clone())) },
        Item::own("quire_memory", kernel_memory::of_process),
        Item { name: "timerslack_ns", kind: ItemKind::Public(slack, set_slack) },
        Item { name: "task", kind: ItemKind::Directory(|a| node::directory(Tasks(a.process.clone()))) },
    ];
    /// The entries in a thread's directory: all except the last five, which are about the whole process.
    const OF_THREAD: &'static [Item<M, Task<M>>] = Self::OF_BOTH.split_at(Self::OF_BOTH.len() - 5).0;
}

/// The directory of the process `process`.
pub(super) fn directory<M: Machine>(process: Arc<Process<M>>) -> Directory<M> {
    let pid = process.pid;
    node::directory(OfProcess(table(Task { process, tid: pid }, Names::<M>::OF_BOTH, numbers(pid) + 1)))
}

/// The directory of a process. A descriptor of it also refers to the process, for `pidfd_send_signal`.
struct OfProcess<M: Machine>(Table<M, Task<M>>);

impl<M: Machine> GeneratedDirectory<FileHost<M>> for OfProcess<M> {
    fn lookup(&self, name: &[u8]) -> Result<Option<Entry<FileHost<M>>>, FsError> {
        self.0.lookup(name)
    }
    fn list(&self, after: u64, each: Each<'_>) -> Result<(), FsError> {
        self.0.list(after, each)
    }
    fn directories(&self) -> u32 {
        self.0.count_directories()
    }
    fn subject(&self) -> Option<&dyn Any> {
        Some(&self.0.about.process)
    }
    fn admits(&self) -> bool {
        GeneratedDirectory::<FileHost<M>>::admits(&self.0)
    }
}

fn table<M: Machine>(about: Task<M>, items: &'static [Item<M, Task<M>>], numbers: u64) -> Table<M, Task<M>> {
    let (owner, files_owner) = (about.owner(), about.files_owner());
    Table { about, items, numbers, owner, files_owner, takes_from_pipes: false }
}

/// `task`: a directory with a directory for each thread.
struct Tasks<M: Machine>(Arc<Process<M>>);

impl<M: Machine> GeneratedDirectory<FileHost<M>> for Tasks<M> {
    fn lookup(&self, name: &[u8]) -> Result<Option<Entry<FileHost<M>>>, FsError> {
        let Some(tid) = number(name).filter(|tid| self.0.threads.lock().get(*tid).is_some()) else { return Ok(None) };
        let about = Task { process: self.0.clone(), tid };
        let (owner, numbers) = (about.owner(), numbers(tid) + 0x1000);
        let table = table(about, Names::<M>::OF_THREAD, numbers + 1);
        let attr = NewAttr { mode: 0o555, uid: owner.0, gid: owner.1 };
        Ok(Some(Entry { number: numbers, attr, node: Generated::Directory(node::directory(table)?) }))
    }

    fn list(&self, after: u64, each: Each<'_>) -> Result<(), FsError> {
        let all = self.0.all_threads().map_err(|_| FsError::OutOfMemory)?;
        let mut ids = Vec::<Pid>::try_with_capacity(all.len())?;
        ids.try_extend(all.iter().filter_map(|t| t.payload().as_ref().map(|t| t.tid())))?;
        ids.sort_unstable();
        for tid in ids.into_iter().filter(|tid| u64::from(*tid) > after) {
            let name = Short::new(format_args!("{tid}"));
            if !each(u64::from(tid), name.bytes(), FileKind::Directory, numbers(tid) + 0x1000) {
                break;
            }
        }
        Ok(())
    }

    fn directories(&self) -> u32 {
        self.0.threads.lock().len() as u32
    }
}

fn comm<M: Machine>(about: &Task<M>, out: &mut Text) -> Result<(), FsError> {
    out.push(about.name().bytes())?;
    put!(out, "\n")
}

fn set_comm<M: Machine>(about: &Task<M>, bytes: &[u8]) -> Result<usize, FsError> {
    // Only threads of the same process may set each other's names.
    if !core::ptr::eq(&*about.process.linux.current().process, &*about.process) {
        return Err(FsError::Invalid);
    }
    let task = about.process.threads.lock().get(about.tid).cloned().ok_or(FsError::NoProcess)?;
    if let Some(thread) = task.payload() {
        *thread.name.lock() = Name::new(bytes);
    }
    Ok(bytes.len())
}

/// Writes the timer slack of the process's first thread, in nanoseconds.
fn slack<M: Machine>(about: &Task<M>, out: &mut Text) -> Result<(), FsError> {
    let task = timer_slack::reached(&about.process)?;
    put!(out, "{}\n", timer_slack::of(&task))
}

fn set_slack<M: Machine>(about: &Task<M>, bytes: &[u8]) -> Result<usize, FsError> {
    let nanos = unsigned(bytes)?;
    let task = timer_slack::reached(&about.process)?;
    timer_slack::set(&task, nanos).map_err(|_| FsError::OutOfMemory)?;
    Ok(bytes.len())
}

/// Parses a number as Linux's `kstrtoull` does: decimal digits, after an optional plus sign and before an optional
/// newline.
fn unsigned(bytes: &[u8]) -> Result<u64, FsError> {
    let line = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    let digits = line.strip_prefix(b"+").unwrap_or(line);
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return Err(FsError::Invalid);
    }
    core::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok()).ok_or(FsError::OutOfRange)
}

fn login<M: Machine>(about: &Task<M>) -> Login {
    about.process.credentials_of(about.tid).login()
}

fn login_user<M: Machine>(about: &Task<M>, out: &mut Text) -> Result<(), FsError> {
    put!(out, "{}", login(about).user)
}

fn set_login_user<M: Machine>(about: &Task<M>, bytes: &[u8]) -> Result<usize, FsError> {
    let me = about.process.linux.current();
    // As on Linux, each thread changes its own login alone.
    if me.tid() != about.tid {
        return Err(FsError::NotPermitted);
    }
    let user = u32::try_from(unsigned(bytes)?).map_err(|_| FsError::OutOfRange)?;
    me.log_in(user).map_err(|e| if e == Errno::ENOMEM { FsError::OutOfMemory } else { FsError::NotPermitted })?;
    Ok(bytes.len())
}

fn core_filter<M: Machine>(about: &Task<M>, out: &mut Text) -> Result<(), FsError> {
    let Some(memory) = about.memory() else { return Ok(()) };
    put!(out, "{:08x}\n", memory.core_filter().load(Ordering::Relaxed))
}

/// The bits that Linux defines for `coredump_filter`.
const CORE_FILTER_ALL: u32 = 0x1ff;

fn set_core_filter<M: Machine>(about: &Task<M>, bytes: &[u8]) -> Result<usize, FsError> {
    let text = core::str::from_utf8(bytes).map_err(|_| FsError::Invalid)?.trim();
    let (digits, base) = match text.strip_prefix("0x").or(text.strip_prefix("0X")) {
        Some(digits) => (digits, 16),
        None if text.len() > 1 && text.starts_with('0') => (&text[1..], 8),
        None => (text, 10),
    };
    let value = u32::from_str_radix(digits, base).map_err(|_| FsError::Invalid)?;
    let memory = about.memory().ok_or(FsError::NotFound)?;
    memory.core_filter().store(value & CORE_FILTER_ALL, Ordering::Relaxed);
    Ok(bytes.len())
}

fn executable<M: Machine>(about: &Task<M>) -> Result<Vec<u8>, FsError> {
    let granted = about.look()?;
    let memory = granted.memory.ok_or(FsError::NotFound)?;
    memory.image().file.path().map_err(|_| FsError::OutOfMemory)
}

fn jump_to_executable<M: Machine>(about: &Task<M>) -> Jump<M> {
    let granted = about.look()?;
    let memory = granted.memory.ok_or(FsError::NotFound)?;
    Ok(memory.image().file.dentry.clone())
}

/// The root and the working directory, for readers with access to the process.
fn places_of<M: Machine>(about: &Task<M>) -> Result<Places<FileHost<M>>, FsError> {
    about.taken(|_| {
        let task = about.task().ok_or(FsError::NotFound)?;
        let thread = task.payload().as_ref().ok_or(FsError::NotFound)?;
        let fs = thread.fs.look(|fs| fs.clone()).ok_or(FsError::NotFound)?;
        Ok(fs.places())
    })
}

fn jump_to_cwd<M: Machine>(about: &Task<M>) -> Jump<M> {
    Ok(Arc::clone(&places_of(about)?.cwd))
}

fn jump_to_root<M: Machine>(about: &Task<M>) -> Jump<M> {
    Ok(Arc::clone(&places_of(about)?.root))
}

fn working_directory<M: Machine>(about: &Task<M>) -> Result<Vec<u8>, FsError> {
    let places = places_of(about)?;
    Ok(Dentry::path(&places.cwd, &places.root)?.0)
}

fn root_directory<M: Machine>(about: &Task<M>) -> Result<Vec<u8>, FsError> {
    let places = places_of(about)?;
    Ok(Dentry::path(&places.root, about.process.linux.files.vfs().root())?.0)
}

/// A resource limit in the format of `limits`.
struct Limit(u64);

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == INFINITY { f.pad("unlimited") } else { fmt::Display::fmt(&self.0, f) }
    }
}

fn limits<M: Machine>(about: &Task<M>, out: &mut Text) -> Result<(), FsError> {
    put!(out, "{:<26}{:<21}{:<21}{:<10}\n", "Limit", "Soft Limit", "Hard Limit", "Units")?;
    let limits = about.process.limits();
    for ((name, unit), limit) in NAMES.iter().zip(&limits.0) {
        put!(out, "{name:<26}{:<21}{:<21}{unit:<10}\n", Limit(limit.soft), Limit(limit.hard))?;
    }
    Ok(())
}

fn oom_score<M: Machine>(about: &Task<M>, out: &mut Text) -> Result<(), FsError> {
    put!(out, "{}\n", about.process.oom_score())
}

fn oom_adjust<M: Machine>(about: &Task<M>, out: &mut Text) -> Result<(), FsError> {
    put!(out, "{}\n", about.process.oom_adjust.load(Ordering::Relaxed))
}

/// The range of `oom_adj`, the older scale. -17 exempts the process.
const OLD_LEAST: i32 = -17;
const OLD_MOST: i32 = 15;

fn old_oom_adjust<M: Machine>(about: &Task<M>, out: &mut Text) -> Result<(), FsError> {
    let value = about.process.oom_adjust.load(Ordering::Relaxed);
    put!(out, "{}\n", if value == 1000 { OLD_MOST } else { value * -OLD_LEAST / 1000 })
}

fn set_old_oom_adjust<M: Machine>(about: &Task<M>, bytes: &[u8]) -> Result<usize, FsError> {
    let value = signed(bytes)?;
    if !(OLD_LEAST..=OLD_MOST).contains(&value) {
        return Err(FsError::Invalid);
    }
    adjust(about, if value == OLD_MOST { 1000 } else { value * 1000 / -OLD_LEAST })?;
    Ok(bytes.len())
}

/// Parses a signed decimal number that was written to a file.
fn signed(bytes: &[u8]) -> Result<i32, FsError> {
    core::str::from_utf8(bytes).ok().and_then(|text| text.trim().parse().ok()).ok_or(FsError::Invalid)
}

fn set_oom_adjust<M: Machine>(about: &Task<M>, bytes: &[u8]) -> Result<usize, FsError> {
    adjust(about, signed(bytes)?)?;
    Ok(bytes.len())
}

fn adjust<M: Machine>(about: &Task<M>, value: i32) -> Result<(), FsError> {
    if !(-1000..=1000).contains(&value) {
        return Err(FsError::Invalid);
    }
    let process = &about.process;
    let me = process.linux.current();
    // SAFETY: the thread `me` itself runs this, and does not replace its credentials during the check.
    let may = unsafe { me.credentials.get() }.may(cap::SYS_RESOURCE);
    // Without the capability, a process may lower the value only down to the last value that a privileged process has
    // set.
    if value < process.oom_adjust_least.load(Ordering::Relaxed) && !may {
        return Err(FsError::Denied);
    }
    if may {
        process.oom_adjust_least.store(value, Ordering::Relaxed);
    }
    process.oom_adjust.store(value, Ordering::Relaxed);
    Ok(())
}

/// Writes `personality`. As on Linux, each reader must have access to the process.
fn personality<M: Machine>(about: &Task<M>, out: &mut Text) -> Result<(), FsError> {
    about.look().map_err(|_| FsError::NotPermitted)?;
    put!(out, "{:08x}\n", about.process.personality.load(Ordering::Relaxed))
}

/// The state of the thread, as a letter and in words.
fn state<M: Machine>(about: &Task<M>) -> (char, &'static str) {
    let Some(task) = about.task() else { return ('Z', "zombie") };
    let stopped = {
        let job = about.process.job.lock();
        job.stopping.is_some() && job.stopped_threads > 0
    };
    if stopped {
        ('T', "stopped")
    } else if task.is_runnable() {
        ('R', "running")
    } else if task.sleeps_uninterruptibly() {
        ('D', "disk sleep")
    } else {
        ('S', "sleeping")
    }
}

fn stat<M: Machine>(about: &Task<M>, out: &mut Text) -> Result<(), FsError> {
    let process = &about.process;
    let task = about.task();
    let memory = about.memory();
    let used = match &task {
        Some(task) if about.tid != process.pid => usage::of_thread(process.linux, task),
        _ => process.usage(),
    };
    let children = process.accounts.lock().children;
    let (group, threads) = (process.group(), process.threads.lock().len());
    let (terminal, foreground) = match terminals::of_session(process.linux, &group.session) {
        None => (0, -1),
        Some(terminal) => (terminals::device_of(terminal.number()), terminal.owner().0 as i32),
    };
    let nice = task.as_ref().map(|task| i32::from(task.nice()));
    let nice = nice.unwrap_or_else(|| 20 - process.priority.load(Ordering::Relaxed) as i32);
    let stats = memory.as_ref().map(|m| m.stats()).unwrap_or_default();
    // The addresses are shown only to readers with access to the memory.
    let permitted = about.look().is_ok();
    let image = memory.as_ref().filter(|_| permitted).map(|m| m.image());
    let blocked = task.as_ref().and_then(|t| t.payload().as_ref()).map_or(0, |t| t.blocked().0);
    let pending = process.pending.set().0;
    let (ignored, caught) = process.dispositions();
    out.push_decimal(about.tid.into(), 0)?;
    out.push(b" (")?;
    out.push(about.name().bytes())?;
    out.push(&[b')', b' ', state(about).0 as u8, b' '])?;
    row(out, [process.parent_pid().into(), group.id.into(), group.session.id.into()])?;
    put!(out, "{terminal} {foreground} ")?;
    row(out, [0, used.minor_faults, children.minor_faults, used.major_faults, children.major_faults])?;
    row(out, [used.user, used.system, children.user, children.system].map(ticks))?;
    let class = task.as_ref().map_or(Class::Normal, |task| task.class().0);
    let realtime = i32::from(scheduling_class::priority(class));
    let priority = if realtime > 0 { -1 - realtime } else { 20 + nice };
    put!(out, "{priority} {nice} ")?;
    row(out, [threads as u64, 0, ticks(process.started)])?;
    row(out, [stats.mapped_bytes, stats.resident_pages, process.soft_limit(which::RSS)])?;
    let hidden = u64::from(memory.is_some());
    let (code, stack) = image.map_or(((hidden, hidden), 0), |i| (i.code, i.stack));
    row(out, [code.0, code.1, stack, 0, 0])?;
    row(out, [pending, blocked, ignored.0, caught.0, 0, 0, 0])?;
    let cpu = task.as_ref().map_or(0, |t| t.home());
    let exit_signal = process.exit_signal.load(Ordering::Relaxed);
    put!(out, "{exit_signal} {cpu} {realtime} {} 0 0 0 ", scheduling_class::number(class))?;
    let heap = memory.as_ref().filter(|_| permitted).map_or(0, |m| m.heap_start());
    let (arguments, environment) = image.map_or(((0, 0), (0, 0)), |i| (i.arguments, i.environment));
    row(out, [0, 0, heap, arguments.0, arguments.1])?;
    let status = if permitted { process.status.load(Ordering::Relaxed) } else { 0 };
    put!(out, "{} {} {status}\n", environment.0, environment.1)
}

/// Writes numbers, each followed by a space.
fn row<const N: usize>(out: &mut Text, numbers: [u64; N]) -> Result<(), FsError> {
    numbers.into_iter().try_for_each(|number| {
        out.push_decimal(number, 0)?;
        out.push(b" ")
    })
}

fn statm<M: Machine>(about: &Task<M>, out: &mut Text) -> Result<(), FsError> {
    let memory = about.memory();
    let stats = memory.as_ref().map(|m| m.stats()).unwrap_or_default();
    let text = memory.as_ref().map_or(0, |m| text_bytes(m.image()) / PAGE_SIZE);
    let size = stats.mapped_bytes / PAGE_SIZE;
    let data = (stats.covered.data() + stats.covered.stack()) / PAGE_SIZE;
    let resident = memory.as_ref().map(|m| Resident::of(m, stats.resident_pages)).unwrap_or_default();
    row(out, [size, resident.all(), resident.files + resident.shared, text, 0, data])?;
    out.push(b"0\n")
}

/// The bytes of all pages from the first to the last page of the program's code.
fn text_bytes<M: Machine>(image: &Image<M>) -> u64 {
    image.code.1.next_multiple_of(PAGE_SIZE).saturating_sub(image.code.0 & !(PAGE_SIZE - 1))
}

fn status<M: Machine>(about: &Task<M>, out: &mut Text) -> Result<(), FsError> {
    let process = &about.process;
    let task = about.task();
    let thread = task.as_ref().and_then(|task| task.payload().as_ref());
    put!(out, "Name:\t")?;
    out.push(about.name().bytes())?;
    let umask = thread.and_then(|t| t.fs.look(|fs| fs.clone())).map_or(0, |fs| fs.umask());
    let (letter, word) = state(about);
    put!(out, "\nUmask:\t{umask:04o}\nState:\t{letter} ({word})\n")?;
    let (pid, tid, parent) = (process.pid.into(), about.tid.into(), process.parent_pid().into());
    parts!(out, "Tgid:\t", dec pid, "\nNgid:\t0\nPid:\t", dec tid, "\nPPid:\t", dec parent, "\nTracerPid:\t0\n")?;
    let c = process.credentials_of(about.tid);
    ids(out, b"Uid:", [c.real_user, c.effective_user, c.saved_user, c.file_user])?;
    ids(out, b"Gid:", [c.real_group, c.effective_group, c.saved_group, c.file_group])?;
    let files = thread.and_then(|t| t.files.look(|files| files.clone())).map_or(0, |files| files.size());
    parts!(out, "FDSize:\t", dec files as u64, "\nGroups:\t")?;
    for group in c.groups().into_iter().flat_map(|groups| groups.iter()) {
        row(out, [u64::from(*group)])?;
    }
    let group = process.group();
    let (process_group, session) = (group.id.into(), group.session.id.into());
    parts!(out, "\nNStgid:\t", dec pid, "\nNSpid:\t", dec tid, "\nNSpgid:\t", dec process_group)?;
    parts!(out, "\nNSsid:\t", dec session, "\n")?;
    if let Some(memory) = about.memory() {
        let stats = memory.stats();
        let kib = |bytes: u64| bytes / 1024;
        let pages = |pages: u64| pages * (PAGE_SIZE / 1024);
        parts!(out, "VmPeak:\t", kib kib(stats.peak_bytes), "VmSize:\t", kib kib(stats.mapped_bytes))?;
        parts!(out, "VmLck:\t", kib kib(stats.covered.wired), "VmPin:\t", kib 0)?;
        let resident = Resident::of(&memory, stats.resident_pages);
        let peak = stats.peak_resident.max(resident.all());
        parts!(out, "VmHWM:\t", kib pages(peak), "VmRSS:\t", kib pages(resident.all()))?;
        parts!(out, "RssAnon:\t", kib pages(resident.anonymous), "RssFile:\t", kib pages(resident.files))?;
        parts!(out, "RssShmem:\t", kib pages(resident.shared))?;
        let covered = stats.covered;
        parts!(out, "VmData:\t", kib kib(covered.data()), "VmStk:\t", kib kib(covered.stack()))?;
        let text = text_bytes(memory.image()).min(covered.code());
        parts!(out, "VmExe:\t", kib kib(text), "VmLib:\t", kib kib(covered.code() - text))?;
        parts!(out, "VmPTE:\t", kib pages(stats.table_pages), "VmSwap:\t", kib pages(memory.swapped()))?;
    }
    let threads = process.threads.lock().len() as u64;
    parts!(out, "Threads:\t", dec threads)?;
    let own = thread.map_or(SigSet::EMPTY, |t| t.pending.set());
    let blocked = thread.map_or(SigSet::EMPTY, |t| t.blocked());
    let (ignored, caught) = process.dispositions();
    let linux = process.linux;
    let queued =
        thread.map_or(0, |t| t.user_charge.look(|user_charge| linux.users.charged(user_charge, Account::Signals)));
    parts!(out, "\nSigQ:\t", dec queued, "/", dec process.soft_limit(which::SIGPENDING))?;
    parts!(out, "\nSigPnd:\t", hex 16 own.0, "\nShdPnd:\t", hex 16 process.pending.set().0)?;
    parts!(out, "\nSigBlk:\t", hex 16 blocked.0, "\nSigIgn:\t", hex 16 ignored.0, "\nSigCgt:\t", hex 16 caught.0)?;
    let k = c.capabilities;
    parts!(out, "\nCapInh:\t", hex 16 k.inheritable.0, "\nCapPrm:\t", hex 16 k.permitted.0)?;
    parts!(out, "\nCapEff:\t", hex 16 k.effective.0, "\nCapBnd:\t", hex 16 k.bounding.0)?;
    let no_new = u64::from(process.no_new_privileges.load(Ordering::Relaxed));
    parts!(out, "\nCapAmb:\t", hex 16 k.ambient.0, "\nNoNewPrivs:\t", dec no_new, "\nSeccomp:\t0\n")?;
    let machine = CpuMask::first(process.linux.scheduler.cpus());
    let allowed = task.as_ref().map_or(machine, |t| t.affinity().and(&machine));
    put!(out, "Cpus_allowed:\t{}\n", CpuWords(allowed, process.linux.scheduler.cpus()))?;
    put!(out, "Cpus_allowed_list:\t{}\n", CpuList(allowed))?;
    put!(out, "Mems_allowed:\t00000000,00000001\nMems_allowed_list:\t0\n")?;
    let (mut voluntary, mut involuntary) = (0, 0);
    if let Some(task) = &task {
        (voluntary, involuntary) = task.switches();
    }
    parts!(out, "voluntary_ctxt_switches:\t", dec voluntary, "\nnonvoluntary_ctxt_switches:\t", dec involuntary, "\n")
}

/// Writes a line with four ids.
fn ids(out: &mut Text, name: &[u8], ids: [u32; 4]) -> Result<(), FsError> {
    out.push(name)?;
    for id in ids {
        out.push(b"\t")?;
        out.push_decimal(id.into(), 0)?;
    }
    out.push(b"\n")
}

/// A set of CPUs in the format of Linux's masks. The second field is the number of CPUs. A mask consists of hexadecimal
/// words for 32 CPUs each, and the word of the last CPUs is first.
struct CpuWords(CpuMask, usize);

impl fmt::Display for CpuWords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = self.0.words();
        for half in (0..self.1.div_ceil(32)).rev() {
            let word = (words[half / 2] >> (half % 2 * 32)) as u32;
            // The first word is for the remaining CPUs, at most 32. It has one digit for each 4 CPUs.
            let first = half + 1 == self.1.div_ceil(32);
            let digits = if first { (self.1 - half * 32).div_ceil(4) } else { 8 };
            write!(f, "{word:0digits$x}{}", if half > 0 { "," } else { "" })?;
        }
        Ok(())
    }
}

/// A set of CPUs in the format of Linux's lists, such as `0-3,7`.
struct CpuList(CpuMask);

impl fmt::Display for CpuList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cpus = self.0.iter().peekable();
        let mut comma = "";
        while let Some(first) = cpus.next() {
            let mut last = first;
            while let Some(next) = cpus.next_if_eq(&(last + 1)) {
                last = next;
            }
            write!(f, "{comma}{first}")?;
            if last > first {
                write!(f, "-{last}")?;
            }
            comma = ",";
        }
        Ok(())
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn limits_stand_on_the_left_of_their_columns() {
        assert_eq!(format!("{:<10}|{:<10}|", Limit(7), Limit(INFINITY)), "7         |unlimited |");
    }

    #[test]
    fn a_number_is_digits_alone() {
        assert_eq!(unsigned(b"18446744073709551615\n"), Ok(u64::MAX));
        assert_eq!(unsigned(b"+7"), Ok(7));
        assert_eq!(unsigned(b"18446744073709551616"), Err(FsError::OutOfRange));
        for bad in [&b""[..], b"\n", b"-1", b" 7", b"7 \n", b"7\n\n", b"0x7"] {
            assert_eq!(unsigned(bad), Err(FsError::Invalid));
        }
    }

    #[test]
    fn lists_of_cpus_are_runs() {
        let list = |cpus: &[usize]| {
            let mut mask = CpuMask::default();
            cpus.iter().for_each(|cpu| mask.insert(*cpu));
            format!("{}", CpuList(mask))
        };
        assert_eq!(list(&[0]), "0");
        assert_eq!(list(&[0, 1, 2, 3, 7, 63, 64]), "0-3,7,63-64");
    }
}
