//! Unit tests of system calls: programs whose instructions are closures.
//!
//! [`run`] starts a new machine, and a process whose first thread runs the closure. The thread is a [`Task`]. It makes
//! calls with numbers, registers and user memory, as a CPU would. Closures are also the code of children, threads,
//! executed programs and signal handlers. Each closure has an address, and the instruction pointer that the kernel sets
//! selects the closure. So signal frames, restarted calls and `execve` work as on a CPU.
//!
//! The test fails if a closure panics, if all threads sleep without a deadline, or if a process or a frame is left.

use crate::test_host::{One, Programs, files, lock, steps};
use linux_raw_sys::general::{self as raw, *};
use quire_linux_state::base::plain::Plain;
use quire_linux_state::file::trees::{NoTrees, Trees};
use quire_linux_state::signal::Signal;
use quire_linux_state::{Errno, UserAccess, UserRegs};
use quire_vm::PAGE_SIZE;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// The address of a program's memory (`DATA`), and its size in pages (`PAGES`).
pub const DATA: u64 = 0x40_0000;
pub const PAGES: u64 = 64;
/// The first address of code. These addresses are never mapped, because code is run by the host.
const CODE: u64 = 0x5000_0000;
/// The distance in bytes between two closures, which is more than the calls of one closure need.
const ROOM: u64 = 0x1_0000;
/// The address to which each handler returns, where `rt_sigreturn` is called.
const RESTORER: u64 = CODE - 0x1000;
/// The size of the `syscall` instruction in bytes.
const SYSCALL: u64 = 2;
/// The most times that the CPU may halt in a test.
const HALTS: u32 = 20_000;
/// The most real time of a test. A test that takes longer counts as hanging.
const LIMIT: Duration = Duration::from_secs(120);

type Body = Box<dyn FnOnce(&mut Task) + Send>;
type Handler = Arc<dyn Fn(&mut Task) + Send + Sync>;

/// The code at an address.
enum Code {
    /// The first instruction of a process, a thread or a program.
    Body(Body),
    Handler(Handler),
}

/// The code of a test.
#[derive(Default)]
struct Scripts {
    code: Mutex<BTreeMap<u64, Code>>,
    /// `coded` is the number of used code addresses, and `used` the number of used bytes of the program's memory.
    coded: AtomicU64,
    used: AtomicU64,
    halts: AtomicU32,
    /// The result of the test, when it has ended: success, or the text of a panic.
    end: Mutex<Option<Result<(), String>>>,
    ended: Condvar,
}

impl Scripts {
    fn put(&self, code: Code) -> u64 {
        let at = CODE + ROOM * self.coded.fetch_add(1, SeqCst);
        lock(&self.code).insert(at, code);
        at
    }

    fn ends(&self, how: Result<(), String>) {
        lock(&self.end).get_or_insert(how);
        self.ended.notify_all();
    }
}

impl Programs for Scripts {
    fn thread(&'static self, machine: &'static One, regs: UserRegs) {
        machine.started();
        let mut task = Task { machine, scripts: self, regs };
        crate::entry::first_return(machine.linux(), &mut task.regs);
        if machine.linux().current().process.pid == 1 {
            return task.first();
        }
        task.settle(regs.rip);
        task.begin();
    }

    fn failed(&self, text: String) {
        self.ends(Err(text));
    }

    fn until(&self) -> u64 {
        u64::MAX
    }

    fn halted(&self, never: bool) -> bool {
        assert!(!never, "all threads sleep for good");
        assert!(self.halts.fetch_add(1, SeqCst) < HALTS, "the test does not end");
        false
    }
}

/// Runs `body` as the first thread of a process. Waits until that process and all its descendants have ended.
pub fn run(body: impl FnOnce(&mut Task) + Send + 'static) {
    run_with(&NoTrees, body);
}

/// Like [`run`], on a machine with these generated trees.
pub fn run_with(trees: &'static dyn Trees<One>, body: impl FnOnce(&mut Task) + Send + 'static) {
    let scripts: &'static Scripts = Box::leak(Box::default());
    scripts.put(Code::Body(Box::new(body)));
    let init = files::elf(DATA, DATA, PAGES, b"");
    One::boot(files::archive(&[("init", 0o100_755, &init), ("tmp", 0o41_777, b"")]), scripts, trees);
    let mut end = lock(&scripts.end);
    loop {
        if let Some(end) = end.take() {
            return end.unwrap_or_else(|text| panic!("on the machine: {text}"));
        }
        let (next, timeout) = scripts.ended.wait_timeout(end, LIMIT).unwrap_or_else(|e| e.into_inner());
        end = next;
        assert!(!timeout.timed_out(), "a test takes more than {} s", LIMIT.as_secs());
    }
}

/// A thread of a program.
pub struct Task {
    pub machine: &'static One,
    /// The thread's registers.
    pub regs: UserRegs,
    scripts: &'static Scripts,
}

/// The result of a wait: the child's id, and its status.
pub type Waited = (u64, u32);

/// The status of a process that exited with `code`.
pub const fn exited(code: u32) -> u32 {
    code << 8
}

/// The status of a process that `signal` ended.
pub const fn killed(signal: Signal) -> u32 {
    signal.number() as u32
}

/// The status of a process that `signal` stopped.
pub const fn stopped(signal: Signal) -> u32 {
    (signal.number() as u32) << 8 | 0x7f
}

/// The status of a process that was continued.
pub const CONTINUED: u32 = 0xffff;

impl Task {
    /// Process 1: runs the test's process, and waits until no process is left.
    fn first(mut self) {
        let Some(Code::Body(body)) = lock(&self.scripts.code).remove(&CODE) else { unreachable!("the test's body") };
        self.fork(body).expect("the first process");
        while self.wait(-1, 0) != Err(Errno::ECHILD) {}
        assert_eq!(self.machine.linux().vm.frames().check(), Ok(()), "a frame is lost");
        self.scripts.ends(Ok(()));
        // Process 1 sleeps for ever.
        loop {
            std::thread::park();
        }
    }

    /// Runs the closure at the instruction pointer, which begins a thread or a program, and then ends the thread.
    fn begin(&mut self) {
        let at = self.regs.rip;
        let Some(Code::Body(body)) = lock(&self.scripts.code).remove(&at) else { panic!("no code at {at:#x}") };
        body(self);
        self.exit(0)
    }

    /// Continues until the instruction pointer is `next`. Until then, runs handlers, restarts calls, or begins another
    /// program.
    fn settle(&mut self, next: u64) {
        loop {
            let at = self.regs.rip;
            if at == next {
                return;
            }
            if at + SYSCALL == next {
                let UserRegs { rax, rdi, rsi, rdx, r10, r8, r9, .. } = self.regs;
                self.enter(rax, [rdi, rsi, rdx, r10, r8, r9]);
                continue;
            }
            let handler = match lock(&self.scripts.code).get(&at) {
                Some(Code::Handler(handler)) => Some(handler.clone()),
                _ => None,
            };
            let Some(handler) = handler else { return self.begin() };
            let frame = self.regs.rsp;
            handler(self);
            let back: u64 = self.get(frame);
            assert_eq!(back, RESTORER, "a handler returns to its restorer");
            (self.regs.rsp, self.regs.rip) = (frame + 8, back);
            let UserRegs { rdi, rsi, rdx, r10, r8, r9, .. } = self.regs;
            self.enter(__NR_rt_sigreturn.into(), [rdi, rsi, rdx, r10, r8, r9]);
        }
    }

    /// Makes a call at the instruction pointer.
    fn enter(&mut self, number: u64, arguments: [u64; 6]) {
        self.regs.rip += SYSCALL;
        let _result = steps::call(self.machine, &mut self.regs, number, arguments);
    }

    /// Makes a call, runs the handlers of signals that arrive during the call, and returns the call's result.
    pub fn call<const N: usize>(&mut self, number: u32, arguments: [u64; N]) -> Result<u64, Errno> {
        let mut all = [0; 6];
        all[..N].copy_from_slice(&arguments);
        let next = self.regs.rip + SYSCALL;
        self.enter(number.into(), all);
        self.settle(next);
        let result = self.regs.rax;
        let error = result.wrapping_neg();
        if (1..4096).contains(&error) { Err(Errno(error as u16)) } else { Ok(result) }
    }

    /// Makes a call that does not return.
    pub fn last_call<const N: usize>(&mut self, number: u32, arguments: [u64; N]) -> ! {
        let result = self.call(number, arguments);
        panic!("call {number} returned {result:?}")
    }

    /// Ends the thread.
    pub fn exit(&mut self, code: u32) -> ! {
        self.last_call(__NR_exit, [code.into()])
    }

    /// Ends the process.
    pub fn exit_group(&mut self, code: u32) -> ! {
        self.last_call(__NR_exit_group, [code.into()])
    }

    /// Makes a thread or a process by the call in `make`. The new thread runs `body`.
    pub fn beget(
        &mut self,
        body: impl FnOnce(&mut Task) + Send + 'static,
        make: impl FnOnce(&mut Task) -> Result<u64, Errno>,
    ) -> Result<u64, Errno> {
        let at = self.scripts.put(Code::Body(Box::new(body)));
        let here = std::mem::replace(&mut self.regs.rip, at - SYSCALL);
        let made = make(self);
        self.regs.rip = here;
        if made.is_err() {
            lock(&self.scripts.code).remove(&at);
        }
        made
    }

    /// `clone` with these flags, the child's stack, and the further arguments.
    pub fn clone(
        &mut self,
        flags: u64,
        [stack, parent_tid, child_tid, tls]: [u64; 4],
        body: impl FnOnce(&mut Task) + Send + 'static,
    ) -> Result<u64, Errno> {
        self.beget(body, |task| task.call(__NR_clone, [flags, stack, parent_tid, child_tid, tls]))
    }

    /// `fork`
    pub fn fork(&mut self, body: impl FnOnce(&mut Task) + Send + 'static) -> Result<u64, Errno> {
        self.beget(body, |task| task.call(__NR_fork, []))
    }

    /// Makes a thread of the process.
    pub fn thread(&mut self, body: impl FnOnce(&mut Task) + Send + 'static) -> Result<u64, Errno> {
        let flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM;
        let stack = self.room(4096) + 4096;
        self.clone(flags.into(), [stack, 0, 0, 0], body)
    }

    /// `wait4`. Returns the child and its status. Child 0 means that no child has an event.
    pub fn wait(&mut self, pid: i64, options: u32) -> Result<Waited, Errno> {
        let status = self.room(4);
        let child = self.call(__NR_wait4, [pid as u64, status, options.into(), 0])?;
        Ok((child, if child == 0 { 0 } else { self.get(status) }))
    }

    /// Waits for the end of `child`, and returns its status.
    pub fn status(&mut self, child: u64) -> u32 {
        let (waited, status) = self.wait(child as i64, 0).expect("a child");
        assert_eq!(waited, child);
        status
    }

    /// Sleeps on the machine's clock.
    pub fn sleep(&mut self, nanos: u64) -> Result<u64, Errno> {
        let time = self.put([nanos / 1_000_000_000, nanos % 1_000_000_000]);
        self.call(__NR_nanosleep, [time, 0])
    }

    /// Makes an executable file that runs `body`.
    pub fn program(&mut self, path: &str, body: impl FnOnce(&mut Task) + Send + 'static) {
        let entry = self.scripts.put(Code::Body(Box::new(body)));
        self.file(path, 0o755, &files::elf(entry, DATA, PAGES, b""));
    }

    /// Makes a file with these bytes.
    pub fn file(&mut self, path: &str, mode: u64, bytes: &[u8]) {
        let path = self.text(path);
        let file = self.call(__NR_open, [path, u64::from(O_WRONLY | O_CREAT | O_TRUNC), mode]).expect("a new file");
        for part in bytes.chunks(PAGE_SIZE as usize) {
            let from = self.bytes(part);
            assert_eq!(self.call(__NR_write, [file, from, part.len() as u64]), Ok(part.len() as u64));
        }
        self.call(__NR_close, [file]).expect("an open file");
    }

    /// `execve` of a path with these arguments and no environment.
    pub fn execute(&mut self, path: &str, arguments: &[&str]) -> Errno {
        let path = self.text(path);
        let mut list: Vec<u64> = arguments.iter().map(|text| self.text(text)).collect();
        list.push(0);
        let arguments = self.bytes(&list.iter().flat_map(|at| at.to_le_bytes()).collect::<Vec<_>>());
        self.call(__NR_execve, [path, arguments, 0]).expect_err("a program that runs does not return")
    }

    /// Stores a signal handler, and returns its address.
    pub fn handler(&mut self, body: impl Fn(&mut Task) + Send + Sync + 'static) -> u64 {
        self.scripts.put(Code::Handler(Arc::new(body)))
    }

    /// `rt_sigaction`: makes `handler` the action of `signal`.
    pub fn act(&mut self, signal: Signal, handler: u64, flags: u32, mask: u64) -> Result<u64, Errno> {
        let flags = u64::from(flags | SA_RESTORER);
        let action = self.put([handler, flags, RESTORER, mask]);
        self.call(__NR_rt_sigaction, [signal.number().into(), action, 0, 8])
    }

    /// `kill`
    pub fn kill(&mut self, pid: i64, signal: Signal) -> Result<u64, Errno> {
        self.call(__NR_kill, [pid as u64, signal.number().into()])
    }

    /// `rt_sigprocmask`. Makes `set` the blocked signals, and returns the old set.
    pub fn mask(&mut self, set: u64) -> u64 {
        let (new, old) = (self.put(set), self.room(8));
        self.call(__NR_rt_sigprocmask, [raw::SIG_SETMASK.into(), new, old, 8]).expect("a mask");
        self.get(old)
    }

    /// `getpid`
    pub fn pid(&mut self) -> u64 {
        self.call(__NR_getpid, []).expect("an id")
    }

    /// The machine's time, in nanoseconds.
    pub fn now(&self) -> u64 {
        self.machine.clock()
    }

    /// The kernel memory that the descriptors and timers of the process hold, in bytes.
    pub fn held(&self) -> u64 {
        self.machine.linux().current().process.held_by_files()
    }

    /// The number of mappings of the task's process.
    pub fn mappings(&self) -> u64 {
        let mut count = 0;
        let memory = self.machine.linux().current().process.memory().expect("a living process");
        memory.entries(0, &mut |_| {
            count += 1;
            true
        });
        count
    }

    /// Loads a byte, or stores a zero, and handles the signal that a fault causes.
    pub fn touch(&mut self, at: u64, write: bool) {
        let next = self.regs.rip;
        steps::touch(self.machine, &mut self.regs, at, write);
        self.settle(next);
    }

    /// Allocates unused bytes in the program's memory, and returns their address.
    pub fn room(&mut self, bytes: u64) -> u64 {
        let at = self.scripts.used.fetch_add(bytes.next_multiple_of(16), SeqCst);
        assert!(at + bytes <= PAGES * PAGE_SIZE, "the program's memory is used up");
        DATA + at
    }

    /// Stores bytes in unused memory, and returns their address.
    pub fn bytes(&mut self, bytes: &[u8]) -> u64 {
        let at = self.room(bytes.len() as u64);
        self.poke(at, bytes);
        at
    }

    /// Stores a text with a terminating zero in unused memory, and returns its address.
    pub fn text(&mut self, text: &str) -> u64 {
        self.bytes(&[text.as_bytes(), &[0]].concat())
    }

    /// Stores a value in unused memory, and returns its address.
    pub fn put<T: Plain>(&mut self, value: T) -> u64 {
        let at = self.room(size_of::<T>() as u64);
        self.set(at, value);
        at
    }

    /// Stores a value at user address `at`.
    pub fn set<T: Plain>(&mut self, at: u64, value: T) {
        // SAFETY: `value` has that many bytes, which the copy only reads.
        let done = unsafe { self.machine.copy_to_user(at, (&raw const value).cast(), size_of::<T>()) };
        done.unwrap_or_else(|e| panic!("no memory at {at:#x}: {e:?}"));
    }

    /// Loads a value from user address `at`.
    pub fn get<T: Plain>(&mut self, at: u64) -> T {
        self.peek(at).unwrap_or_else(|| panic!("no memory at {at:#x}"))
    }

    /// Loads a value from user address `at`. `None` if the memory is not accessible.
    pub fn peek<T: Plain>(&mut self, at: u64) -> Option<T> {
        let mut value = std::mem::MaybeUninit::<T>::uninit();
        // SAFETY: the copy writes all bytes of `value`, or fails.
        unsafe { self.machine.copy_from_user(value.as_mut_ptr().cast(), at, size_of::<T>()) }.ok()?;
        // SAFETY: all bytes were written, and any bytes are a value of a `Plain` type.
        Some(unsafe { value.assume_init() })
    }

    /// Stores bytes at user address `at`.
    pub fn poke(&mut self, at: u64, bytes: &[u8]) {
        // SAFETY: the slice has that many bytes.
        let done = unsafe { self.machine.copy_to_user(at, bytes.as_ptr(), bytes.len()) };
        done.unwrap_or_else(|e| panic!("no memory at {at:#x}: {e:?}"));
    }
}
