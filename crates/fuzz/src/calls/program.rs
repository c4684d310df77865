//! The programs of the machine: process 1, which makes a process for each input, and the processes that make the
//! input's calls.

use crate::Input;
use quire_linux::test_host::steps;
use quire_linux::test_host::steps::{poke, touch};
use quire_linux::test_host::{One, Programs, files, lock};
use quire_linux_state::user::USER_END;
use quire_linux_state::{UserAccess, UserRegs};
use quire_vm::PAGE_SIZE;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::{Condvar, Mutex};
use std::time::Duration;

/// The address of the program's memory, and its number of pages. The first page holds the initial data.
pub const DATA: u64 = 0x40_0000;
const PAGES: u64 = 4;
/// The paths in the first page. Each has [`PATH`] bytes.
pub const PATHS: [&str; 16] = [
    "/tmp/a",
    "/tmp/b",
    "/tmp/d",
    "/tmp/d/a",
    "a",
    "..",
    "/init",
    "/proc/self/maps",
    "/proc/self/status",
    "/proc/self/fd",
    "/dev/null",
    "/dev/zero",
    "/tmp/none/x",
    "",
    "/proc/1/maps",
    "/dev",
];
pub const PATH: u64 = 32;
/// The addresses of the path `..`, and of `/tmp`, which lies after another path.
const PARENT: u64 = DATA + 5 * PATH;
const TMP: u64 = DATA + 13 * PATH - 8;
/// The offset in the first page at which the paths end. A program may use the page from this offset on.
const SCRATCH: u64 = PATHS.len() as u64 * PATH;

/// How often the CPU may halt for one input.
const HALTS: u32 = 5_000;
/// How often the CPU may halt if no thread will be woken.
const STUCK: u32 = 100;
/// The most simulated time that an input may take, in nanoseconds: about four years.
pub const TIME: u64 = 1 << 57;
/// The most sockets that must close before all garbage sockets are freed.
const CLOSES: usize = 64;
/// The most host time that an input may take. An input that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(120);

mod number {
    pub const READ: u64 = 0;
    pub const OPEN: u64 = 2;
    pub const CLOSE: u64 = 3;
    pub const GETDENTS64: u64 = 217;
    pub const SOCKET: u64 = 41;
    pub const SHMCTL: u64 = 31;
    pub const SEMCTL: u64 = 66;
    pub const MSGCTL: u64 = 71;
    pub const MQ_UNLINK: u64 = 241;
    pub const FORK: u64 = 57;
    pub const WAIT4: u64 = 61;
    pub const EXIT_GROUP: u64 = 231;
    pub const CHDIR: u64 = 80;
    pub const RMDIR: u64 = 84;
    pub const UNLINK: u64 = 87;
    pub const SETSID: u64 = 112;
    pub const SETRESUID: u64 = 117;
    pub const SETRESGID: u64 = 119;
    pub const SETRLIMIT: u64 = 160;
}
/// All call numbers lie below this.
pub const MOST_CALLS: usize = 460;
/// How many allocations of one call an input may refuse: the first, the second, and so on.
const REFUSALS: usize = 64;
/// How many IPC objects a call may name: the object that was made last, the object before it, and so on.
const OBJECTS: usize = 4;
/// The step number that stands for the first of these objects.
pub const OBJECTS_FIRST: usize = MOST_CALLS + REFUSALS;
/// Limits of the process that makes the calls: `RLIMIT_FSIZE`, `RLIMIT_NPROC`, `RLIMIT_NOFILE`, `RLIMIT_AS`.
const LIMITS: [(u64, u64); 4] = [(1, 1 << 20), (6, 16), (7, 64), (9, 32 << 20)];
const ECHILD: u64 = 10;
const NOBODY: u64 = 65534;

/// The progress of an input.
#[derive(Default)]
struct Job {
    bytes: Vec<u8>,
    at: usize,
    /// The input waits for process 1, or is running.
    open: bool,
    /// The input's process is ready to make calls.
    ready: bool,
    /// The numbers of the calls that have returned, with their results.
    done: Vec<(u64, u64)>,
    failed: Option<String>,
}

/// The state of the programs, shared by all their threads.
#[derive(Default)]
pub struct Program {
    job: Mutex<Job>,
    changed: Condvar,
    halts: AtomicU32,
    stuck: AtomicU32,
    /// The end of the input's simulated time. No sleep goes beyond it.
    until: AtomicU64,
    /// The calls are over, so sleepers are killed.
    over: AtomicBool,
}

/// One step of an input.
enum Op {
    /// Puts bytes into memory.
    Poke(u64, Vec<u8>),
    Call(u64, [u64; 6]),
    /// Refuses the allocation of that number in the thread's next call.
    Refuse(u64),
    /// The thread's next call gets the id of an IPC object of the right kind. 0 is the last object that was made or
    /// found, 1 the object before it, and so on.
    Name(usize),
    /// Accesses a word of memory, which faults if nothing is mapped there. `true`: a store.
    Touch(u64, bool),
}

/// Decodes an argument. The ranges of the first byte stand for likely uses of a value.
fn value(input: &mut Input<'_>, stack: u64) -> u64 {
    let choice = u64::from(input.byte());
    match choice {
        0..64 => choice,
        64..72 => (choice - 63).wrapping_neg(),
        72..104 => DATA + SCRATCH + 64 * (choice - 72),
        104..120 => DATA + PAGE_SIZE * (choice - 104),
        120..128 => stack.wrapping_sub(128 * (choice - 120)),
        128..160 => 1 << (choice - 128),
        160..176 => 1 << (32 + 2 * (choice - 160)),
        176..192 => (PAGE_SIZE << (choice - 176)) - 1,
        192..208 => DATA + PATH * (choice - 192),
        208..212 => USER_END.wrapping_sub(PAGE_SIZE * (choice - 208)),
        212..224 => 0x7000_0000 + PAGE_SIZE * (choice - 212),
        224..240 => u64::from(input.short()),
        _ => input.long(),
    }
}

fn op(input: &mut Input<'_>, stack: u64) -> Op {
    match input.below(8) {
        0 => {
            let len = input.below(65);
            Op::Poke(value(input, stack), input.take(len).to_vec())
        }
        1 => Op::Touch(value(input, stack), input.byte() & 1 != 0),
        _ => {
            let number = input.below(MOST_CALLS + REFUSALS + OBJECTS);
            match number.checked_sub(MOST_CALLS) {
                Some(other) if other >= REFUSALS => Op::Name(other - REFUSALS),
                Some(refused) => Op::Refuse(refused as u64 + 1),
                None => Op::Call(number as u64, std::array::from_fn(|_| value(input, stack))),
            }
        }
    }
}

/// Returns the number of the call that makes or finds the object that System V call `number` uses.
fn maker(number: u64) -> Option<u64> {
    Some(match number {
        30 | 31 => 29,
        65 | 66 | 220 => 64,
        69..=71 => 68,
        _ => return None,
    })
}

/// Whether a call is left out, because it would end more than the input's own process.
fn is_left_out(number: u64) -> bool {
    const REBOOT: u64 = 169;
    number == REBOOT
}

impl Programs for Program {
    fn failed(&self, text: String) {
        lock(&self.job).failed.get_or_insert(text);
        self.changed.notify_all();
    }

    fn until(&self) -> u64 {
        self.until.load(SeqCst)
    }

    fn halted(&self, never: bool) -> bool {
        let halts = self.halts.fetch_add(1, SeqCst);
        if !never && halts < HALTS {
            return false;
        }
        self.over.store(true, SeqCst);
        let stuck = self.stuck.fetch_add(1, SeqCst);
        assert!(stuck < STUCK, "a killed process still sleeps");
        true
    }

    fn thread(&'static self, machine: &'static One, mut regs: UserRegs) {
        machine.started();
        let linux = machine.linux();
        quire_linux::entry::first_return(linux, &mut regs);
        if linux.current().process.pid == 1 { self.first(machine, regs) } else { self.caller(machine, regs) }
    }
}

impl Program {
    /// Runs an input until it is done. Returns the finished calls with their results.
    ///
    /// # Panics
    /// If the machine failed while it ran this input.
    pub fn run(&self, bytes: &[u8]) -> Vec<(u64, u64)> {
        let mut job = lock(&self.job);
        *job = Job { bytes: bytes.to_vec(), open: true, failed: job.failed.take(), ..Job::default() };
        self.changed.notify_all();
        while job.open && job.failed.is_none() {
            let (next, timeout) = self.changed.wait_timeout(job, LIMIT).unwrap_or_else(|e| e.into_inner());
            job = next;
            assert!(!timeout.timed_out(), "an input takes more than {} s", LIMIT.as_secs());
        }
        let (failed, done) = (job.failed.clone(), std::mem::take(&mut job.done));
        drop(job);
        if let Some(text) = failed {
            panic!("on the machine: {text}");
        }
        done
    }

    /// The program of process 1.
    fn first(&self, machine: &'static One, regs: UserRegs) {
        let call = |number: u64, arguments: [u64; 3]| {
            let ([a, b, c], mut regs) = (arguments, regs);
            call(machine, &mut regs, number, [a, b, c, 0, 0, 0])
        };
        loop {
            {
                let mut job = lock(&self.job);
                while !job.open {
                    job = self.changed.wait(job).unwrap_or_else(|e| e.into_inner());
                }
            }
            self.until.store(machine.clock().saturating_add(TIME), SeqCst);
            self.halts.store(0, SeqCst);
            self.stuck.store(0, SeqCst);
            self.over.store(false, SeqCst);
            let made = call(number::FORK, [0; 3]);
            assert!((2..1 << 22).contains(&made), "process 1 cannot fork: {made:#x}");
            while call(number::WAIT4, [u64::MAX, 0, 0]) != ECHILD.wrapping_neg() {}
            // Removes the files that the input has left.
            assert_eq!(call(number::CHDIR, [TMP, 0, 0]), 0);
            clear(machine, &call);
            clear_ipc(machine, &call);
            check_sockets(machine, &call);
            assert_eq!(machine.linux().vm.frames().check(), Ok(()), "a frame is lost");
            lock(&self.job).open = false;
            self.changed.notify_all();
        }
    }

    /// The program of a process that makes calls, or of a thread of it.
    fn caller(&self, machine: &'static One, mut regs: UserRegs) {
        if !std::mem::replace(&mut lock(&self.job).ready, true) {
            self.prepare(machine, &mut regs);
        }
        let mut named = None;
        loop {
            let next = {
                let mut job = lock(&self.job);
                let mut input = Input::new(&job.bytes[job.at..]);
                let next = (!input.is_over() && !self.over.load(SeqCst)).then(|| op(&mut input, regs.rsp));
                let left = input.rest().len();
                job.at = job.bytes.len() - left;
                next
            };
            match next {
                Some(Op::Call(number, mut arguments)) if !is_left_out(number) => {
                    if let Some(id) = named.take().and_then(|n| self.object(number, n)) {
                        arguments[0] = id;
                    }
                    let result = call(machine, &mut regs, number, arguments);
                    lock(&self.job).done.push((number, result));
                }
                Some(Op::Call(..)) => {}
                #[cfg(debug_assertions)]
                Some(Op::Refuse(number)) => machine.linux().current().refuse_allocation(number),
                #[cfg(not(debug_assertions))]
                Some(Op::Refuse(_)) => {}
                Some(Op::Name(object)) => named = Some(object),
                Some(Op::Poke(at, bytes)) => poke(machine, at, &bytes),
                Some(Op::Touch(at, write)) => touch(machine, &mut regs, at, write),
                None => _ = call(machine, &mut regs, number::EXIT_GROUP, [0; 6]),
            }
        }
    }

    /// Returns an id of an object for call `number`: the `n`-th last id that a call has made or found.
    fn object(&self, number: u64, n: usize) -> Option<u64> {
        let maker = maker(number)?;
        let job = lock(&self.job);
        let made = job.done.iter().rev().filter(|(call, id)| *call == maker && *id < 1 << 31);
        made.map(|(_, id)| *id).nth(n)
    }

    /// Prepares a process: its own session, its own directory, limits, and an unprivileged user.
    fn prepare(&self, machine: &'static One, regs: &mut UserRegs) {
        let mut call = |number, arguments: [u64; 3]| {
            let [a, b, c] = arguments;
            let result = call(machine, regs, number, [a, b, c, 0, 0, 0]);
            assert!(result < 1 << 32, "call {number} gives {result:#x}");
        };
        call(number::SETSID, [0; 3]);
        call(number::CHDIR, [TMP, 0, 0]);
        for (limit, most) in LIMITS {
            poke(machine, DATA + SCRATCH, &[most.to_le_bytes(), most.to_le_bytes()].concat());
            call(number::SETRLIMIT, [limit, DATA + SCRATCH, 0]);
        }
        call(number::SETRESGID, [NOBODY; 3]);
        call(number::SETRESUID, [NOBODY; 3]);
    }
}

/// Removes all files in process 1's working directory.
fn clear(machine: &'static One, call: &dyn Fn(u64, [u64; 3]) -> u64) {
    const DIRECTORY: u64 = 0o200_000;
    const NAME: u64 = DATA + PAGE_SIZE;
    const ENTRIES: u64 = DATA + 2 * PAGE_SIZE;
    let named = |name: &[u8]| poke(machine, NAME, &[name, &[0]].concat());
    loop {
        named(b".");
        let directory = call(number::OPEN, [NAME, DIRECTORY, 0]);
        let len = call(number::GETDENTS64, [directory, ENTRIES, PAGE_SIZE]);
        call(number::CLOSE, [directory, 0, 0]);
        assert!(len <= PAGE_SIZE, "process 1 cannot read a directory: {len:#x}");
        let mut entries = vec![0; len as usize];
        // SAFETY: the vector has that many bytes.
        let read = unsafe { machine.copy_from_user(entries.as_mut_ptr(), ENTRIES, entries.len()) };
        assert_eq!(read, Ok(()));
        let Some(name) = names(&entries).find(|name| !matches!(**name, [b'.'] | [b'.', b'.'])) else { return };
        named(name);
        if call(number::UNLINK, [NAME, 0, 0]) == 0 || call(number::RMDIR, [NAME, 0, 0]) == 0 {
            continue;
        }
        assert_eq!(call(number::CHDIR, [NAME, 0, 0]), 0, "{name:?} can be neither removed nor looked into");
        clear(machine, call);
        assert_eq!(call(number::CHDIR, [PARENT, 0, 0]), 0);
        named(name);
        assert_eq!(call(number::RMDIR, [NAME, 0, 0]), 0, "{name:?} is empty and cannot be removed");
    }
}

/// Returns the text of a file, as process 1 reads it.
fn text(machine: &'static One, call: &dyn Fn(u64, [u64; 3]) -> u64, path: &str) -> String {
    const NAME: u64 = DATA + PAGE_SIZE;
    const TEXT: u64 = DATA + 2 * PAGE_SIZE;
    poke(machine, NAME, format!("{path}\0").as_bytes());
    let file = call(number::OPEN, [NAME, 0, 0]);
    let mut all = Vec::new();
    loop {
        let len = call(number::READ, [file, TEXT, PAGE_SIZE]);
        assert!(len <= PAGE_SIZE, "process 1 cannot read {path}: {len:#x}");
        let mut part = vec![0; len as usize];
        // SAFETY: the vector has that many bytes.
        assert_eq!(unsafe { machine.copy_from_user(part.as_mut_ptr(), TEXT, part.len()) }, Ok(()));
        all.extend(part);
        if len == 0 {
            call(number::CLOSE, [file, 0, 0]);
            return String::from_utf8(all).expect("text");
        }
    }
}

/// Removes the System V objects and the message queues that an input has left.
fn clear_ipc(machine: &'static One, call: &dyn Fn(u64, [u64; 3]) -> u64) {
    // The command to remove is 0. For a semaphore array, it follows the number of a semaphore.
    for (list, remove) in [("shm", number::SHMCTL), ("sem", number::SEMCTL), ("msg", number::MSGCTL)] {
        let path = format!("/proc/sysvipc/{list}");
        for line in text(machine, call, &path).lines().skip(1) {
            let id = line.split_whitespace().nth(1).and_then(|id| id.parse().ok()).expect("an id");
            assert_eq!(call(remove, [id, 0, 0]), 0, "process 1 cannot remove {line}");
        }
        assert_eq!(text(machine, call, &path).lines().count(), 1, "an object stays in {path}");
    }
    for name in ["a", "b"] {
        poke(machine, DATA + PAGE_SIZE, format!("{name}\0").as_bytes());
        call(number::MQ_UNLINK, [DATA + PAGE_SIZE, 0, 0]);
    }
}

/// Checks that no socket outlives its processes. A socket to which only a queued message refers is freed when another
/// socket is closed. So this function opens and closes further sockets.
fn check_sockets(machine: &'static One, call: &dyn Fn(u64, [u64; 3]) -> u64) {
    for _ in 0..CLOSES {
        if text(machine, call, "/proc/net/unix").lines().count() == 1 {
            break;
        }
        let other = call(number::SOCKET, [1, 1, 0]);
        assert_eq!(call(number::CLOSE, [other, 0, 0]), 0);
    }
    for list in ["unix", "tcp", "tcp6", "udp", "udp6"] {
        let left = text(machine, call, &format!("/proc/net/{list}"));
        assert_eq!(left.lines().count(), 1, "sockets without a process:\n{left}");
    }
}

/// Returns the names in a result of `getdents64`. Each entry has inode, offset, length of the entry, type, name.
fn names(mut entries: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let len = u16::from_le_bytes(entries.get(16..18)?.try_into().ok()?);
        let (entry, rest) = entries.split_at_checked(len.into())?;
        entries = rest;
        entry.get(19..)?.split(|b| *b == 0).next()
    })
}

/// Makes a system call. Fails the test if the call returns an error that programs may not see.
fn call(machine: &'static One, regs: &mut UserRegs, number: u64, arguments: [u64; 6]) -> u64 {
    // `rip` points behind the instruction, which has two bytes. The whole instruction must lie in user space.
    let rip = regs.rip.saturating_add(2).min(USER_END - 1);
    *regs = UserRegs { rip, ..*regs };
    steps::call(machine, regs, number, arguments)
}

/// The program's file: one segment, and the page that it begins with.
pub fn elf() -> Vec<u8> {
    let mut page = Vec::new();
    for path in PATHS {
        let end = page.len() + PATH as usize;
        page.extend(path.bytes());
        // The path `/tmp` of the processes' directory is put behind this path, in the same slot.
        if path == "/tmp/none/x" {
            page.resize(end - 8, 0);
            page.extend(b"/tmp");
        }
        page.resize(end, 0);
    }
    files::elf(DATA, DATA, PAGES, &page)
}
