//! The start of the first process: the root file system, the file that names the program (the *order*), and exec.

use crate::exec;
use crate::exec::Identity;
use crate::exec::strings::Strings;
use crate::file;
use crate::process::fork::{NewThread, place};
use core::fmt;
use quire_fs::cpio::Archive;
use quire_fs::terminal::Size;
use quire_fs::{Limits, Port};
use quire_heap::{Arc, OutOfMemory, Vec, unsize};
use quire_linux_state::errno::Errno;
use quire_linux_state::file::{Files, FsState};
use quire_linux_state::machine::Fpu;
use quire_linux_state::machine::Machine;
use quire_linux_state::process::credentials::Credentials;
use quire_linux_state::process::group::{Group, Session};
use quire_linux_state::process::limits;
use quire_linux_state::process::thread::{AltStack, Rseq};
use quire_linux_state::process::timer_slack::Slack;
use quire_linux_state::process::users::UserCharge;
use quire_linux_state::process::{NewProcess, Process};
use quire_linux_state::signal::{Actions, SigSet};
use quire_linux_state::{FirstProgram, Linux};
use quire_task::ThreadRef;

/// The parts of the machine that the kernel passes at boot.
pub struct Boot<'a> {
    /// The initial file system: a cpio archive.
    pub initramfs: &'a mut dyn Archive,
    /// The program's standard input and output.
    pub io: Arc<dyn Port>,
    /// The program's standard error.
    pub error: Arc<dyn Port>,
    /// The terminal's size, if the program gets a terminal.
    pub size: Size,
    /// The limits of the in-memory file systems. Files from the archive do not count towards the limits. Limits may be
    /// unset.
    pub limits: Limits,
}

/// The reason that no program could be started, for the kernel's log.
#[derive(Debug)]
pub enum StartError {
    /// The initial file system is damaged.
    Initramfs(quire_fs::cpio::CpioError),
    /// `/.quire/run` is missing or invalid.
    Order,
    /// The program could not be started.
    Program(Vec<u8>, Errno),
    /// Another step, described in words, failed.
    Step(&'static str, Errno),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::Initramfs(e) => write!(f, "the initial file system is damaged: {e}"),
            StartError::Order => write!(f, "{ORDER} in the initial file system is missing or names no program"),
            StartError::Program(path, e) => {
                write!(f, "{} cannot be run: {e:?}", core::str::from_utf8(path).unwrap_or("the program"))
            }
            StartError::Step(step, e) => write!(f, "{step}: {e:?}"),
        }
    }
}

impl StartError {
    /// The exit status that a shell reports for this error: 127 if the program is missing, 126 if it cannot be run, 125
    /// otherwise.
    pub fn status(&self) -> u8 {
        match self {
            StartError::Program(_, Errno::ENOENT | Errno::ENOTDIR) => 127,
            StartError::Program(..) => 126,
            _ => 125,
        }
    }
}

/// The path of the order file.
const ORDER: &str = "/.quire/run";
/// The search path of programs without a slash in their name if the environment has no PATH.
const DEFAULT_PATH: &[u8] = b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// The most bytes of an order. The command that boots the kernel writes it, so a longer order is damaged.
const LONGEST_ORDER: u64 = 16 << 20;

/// The program to run: lines `arg HEX`, `env HEX`, `cwd HEX`, `out HEX`, `tty 0` or `tty 1`, `size ROWS COLUMNS`; other
/// lines are skipped.
#[derive(Default, PartialEq, Eq, Debug)]
struct Order {
    arguments: Vec<Vec<u8>>,
    environment: Vec<Vec<u8>>,
    directory: Vec<u8>,
    /// Paths of the files and directories that the host receives at the end.
    results: Vec<Vec<u8>>,
    terminal: bool,
    size: Option<Size>,
}

fn hex(text: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::try_with_capacity(text.len() / 2).ok()?;
    let digit = |b: u8| char::from(b).to_digit(16).map(|d| d as u8);
    if !text.len().is_multiple_of(2) {
        return None;
    }
    for pair in text.chunks_exact(2) {
        out.push_reserved(digit(pair[0])? << 4 | digit(pair[1])?);
    }
    Some(out)
}

/// A terminal's rows and columns.
fn size(text: &[u8]) -> Option<Size> {
    let mut numbers = core::str::from_utf8(text).ok()?.split(' ').map(|n| n.parse().ok());
    Some(Size { rows: numbers.next()??, columns: numbers.next()??, ..Size::default() })
}

impl Order {
    fn parse(text: &[u8]) -> Option<Order> {
        let mut order = Order { directory: Vec::try_copy(b"/").ok()?, ..Order::default() };
        for line in text.split(|b| *b == b'\n') {
            let (word, value) = match line.iter().position(|b| *b == b' ') {
                Some(at) => (&line[..at], &line[at + 1..]),
                None => (line, &b""[..]),
            };
            match word {
                b"arg" => order.arguments.try_push(hex(value)?).ok()?,
                b"env" => order.environment.try_push(hex(value)?).ok()?,
                b"cwd" => order.directory = hex(value)?,
                b"out" => order.results.try_push(hex(value)?).ok()?,
                b"tty" => order.terminal = value == b"1",
                b"size" => order.size = size(value),
                _ => {}
            }
        }
        (!order.arguments.is_empty()).then_some(order)
    }

    /// The program's possible paths, in order.
    fn candidates(&self) -> Result<Vec<Vec<u8>>, OutOfMemory> {
        let name = &self.arguments[0];
        let mut all = Vec::new();
        if name.contains(&b'/') {
            all.try_push(Vec::try_copy(name)?)?;
            return Ok(all);
        }
        let path = self.environment.iter().find_map(|e| e.strip_prefix(b"PATH=")).unwrap_or(DEFAULT_PATH);
        for directory in path.split(|b| *b == b':') {
            let mut candidate = Vec::try_copy(if directory.is_empty() { b"." } else { directory })?;
            candidate.try_extend_from_slice(b"/")?;
            candidate.try_extend_from_slice(name)?;
            all.try_push(candidate)?;
        }
        Ok(all)
    }
}

/// Unpacks the initial file system and starts the program of its order as process 1. Returns when the scheduler has
/// spawned process 1.
pub fn start<M: Machine>(linux: &'static Linux<M>, boot: Boot<'_>) -> Result<(), StartError> {
    let vfs = linux.files.vfs();
    vfs.unpack(boot.initramfs).map_err(StartError::Initramfs)?;
    file::start::start(linux).map_err(|e| StartError::Step("mounting", e))?;
    let mut order = read_order(linux).ok_or(StartError::Order)?;
    let results = core::mem::take(&mut order.results);
    if !results.is_empty() {
        let no_memory = |_| StartError::Step("noting the results' names", Errno::ENOMEM);
        linux.results.get_or_make(|| results).map_err(no_memory)?;
    }

    let fs = linux.files.first_fs(&order.directory).map_err(|e| StartError::Step("the working directory", e))?;
    let no_memory = |_| StartError::Step("naming the program", Errno::ENOMEM);
    let name = Vec::try_copy(&order.arguments[0]).map_err(no_memory)?;
    let mut failure = StartError::Program(name, Errno::ENOENT);
    let mut found = None;
    for path in order.candidates().map_err(no_memory)? {
        match prepare_first(linux, &fs, &order, &path) {
            Ok(program) => {
                found = Some(program);
                break;
            }
            Err(Errno::ENOENT | Errno::ENOTDIR) => {}
            Err(e) => failure = StartError::Program(path, e),
        }
    }
    let program = found.ok_or(failure)?;
    let files = Files::new(linux.vm).map_err(|e| StartError::Step("making the first process", e))?;
    let task = first_process(linux, program, files, fs).map_err(|e| StartError::Step("making the first process", e))?;
    // The terminal needs process 1's session, so the files are made after the process and before its first
    // instruction.
    let files = file::start::standard_files(
        &linux.files,
        linux,
        order.terminal,
        boot.io,
        boot.error,
        order.size.unwrap_or(boot.size),
    )
    .map_err(|e| StartError::Step("opening the standard files", e))?;
    linux.files.set_limits(linux.vm, boot.limits);
    if let Some(thread) = task.payload() {
        // SAFETY: the thread does not run yet, so the thread that made it may access the value as its owner.
        drop(unsafe { thread.files.replace(Some(files)) });
    }
    linux.scheduler.spawn(task);
    linux.load.start();
    Ok(())
}

/// Makes process 1 with one thread, which the caller spawns.
fn first_process<M: Machine>(
    linux: &'static Linux<M>,
    program: exec::Prepared<M>,
    files: Arc<Files<M>>,
    fs: Arc<FsState<M>>,
) -> Result<ThreadRef<M>, Errno> {
    let pid = linux.ids.allocate()?;
    let session = Arc::try_new(Session::new(pid))?;
    let group = Group::new(linux, pid, session)?;
    let new = NewProcess {
        pid,
        parent: None,
        group: group.clone(),
        actions: Arc::try_new(Actions::new())?,
        exit_signal: 0,
        credentials: Credentials::root(),
        limits: Arc::try_new(limits::Limits::initial(linux.pid_max()))?,
        priority: 20,
        personality: 0,
        no_new_privileges: false,
        oom_adjust: (0, 0),
    };
    let process = Arc::try_new(Process::new(linux, new)?)?;
    let joined = group.join(process.clone(), 0);
    debug_assert!(joined);
    Group::begin(&group);
    let context = linux.machine.new_context(&program.regs, 0, 0, Fpu::Fresh)?;
    let new = NewThread {
        process: process.clone(),
        tid: pid,
        space: program.space.clone(),
        files,
        fs,
        undos: None,
        credentials: Credentials::root(),
        user_charge: UserCharge::root(),
        blocked: SigSet::EMPTY,
        alt_stack: AltStack::default(),
        rseq: Rseq::NONE,
        name: program.name,
        io_priority: 0,
        slack: Slack::first(),
        clear_tid: 0,
        set_tid: 0,
    };
    let task = place(linux, context, new)?;
    let first: Arc<dyn FirstProgram<M>> = unsize!(Arc::try_new(program)?);
    linux.ids.name_process(pid, &process);
    process.threads.lock().begin(task.clone());
    *linux.first.lock() = Some(process);
    *linux.first_program.lock() = Some(first);
    Ok(task)
}

fn read_order<M: Machine>(linux: &Linux<M>) -> Option<Order> {
    let vfs = linux.files.vfs();
    let dentry = vfs.find(&vfs.view(), vfs.root(), ORDER.as_bytes(), true).ok()?;
    let object = &dentry.inode.file()?.object.0;
    let len = object.size();
    if len > LONGEST_ORDER {
        return None;
    }
    let mut text = Vec::new();
    text.try_resize(len as usize, 0).ok()?;
    let got = quire_linux_state::file::read_kernel(object, 0, &mut text).ok()?;
    Order::parse(&text[..got])
}

fn prepare_first<M: Machine>(
    linux: &'static Linux<M>,
    fs: &Arc<FsState<M>>,
    order: &Order,
    path: &[u8],
) -> Result<exec::Prepared<M>, Errno> {
    /// Linux's default soft limit.
    const STACK: u64 = 8 << 20;
    let mut strings = Strings::new(STACK);
    for argument in &order.arguments {
        strings.push(argument)?;
    }
    strings.arguments_end();
    for variable in &order.environment {
        strings.push(variable)?;
    }
    let open = |name: &[u8], _: bool| file::first_executable(linux, fs, name);
    exec::prepare(linux, open, path, strings, exec::Limits { stack: STACK, bytes: u64::MAX, data: u64::MAX }, |_| {
        Identity { dumpable: true, ..Identity::default() }
    })
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_order_is_read_line_by_line() {
        let order =
            Order::parse(b"arg 6c73\narg 2d6c\nenv 413d31\ncwd 2f746d70\ntty 1\ntimeout 5\n").expect("an order");
        assert!(order.arguments.iter().eq([&b"ls"[..], b"-l"]));
        assert!(order.environment.iter().eq([b"A=1"]));
        assert_eq!((&order.directory[..], order.terminal), (&b"/tmp"[..], true));
        assert_eq!(order.candidates().expect("memory")[0], b"/usr/local/sbin/ls");
        assert_eq!(Order::parse(b"env 41\n"), None);
        assert_eq!(Order::parse(b"arg 4\n"), None);
        assert_eq!(Order::parse(b"arg zz\n"), None);
    }

    #[test]
    fn a_name_with_a_slash_is_not_searched_for() {
        let order = Order::parse(b"arg 2e2f78\n").expect("an order");
        assert!(order.candidates().expect("memory").iter().eq([b"./x"]));
    }

    proptest! {
        #[test]
        fn no_text_makes_the_reader_panic(text in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _parsed = Order::parse(&text);
        }
    }
}
