//! Sleeping without a kernel stack: the state of the calls that sleep so.
//!
//! A system call that has to sleep in a known place returns: all its frames and guards are gone. It has stored a
//! [`Sleep`] and its deadline in its thread, and listed the thread where wakers look for it. The kernel then gives the
//! thread's stack up. When the thread is woken, `go_on` of the system calls executes the same code again on another
//! stack. It ends the call, or sleeps on.
//!
//! Calls that do not sleep so use `quire_sync`'s parking, and keep their stack.

use crate::Pid;
use crate::file::host::File;
use crate::machine::Machine;
use crate::signal::SigSet;
use crate::user::transfer::{MessageHeader, Vectors};
use quire_fs::readiness::Poller;
use quire_fs::{FsError, Listener};
use quire_heap::{Arc, Vec, unsize};

/// The state of a call that sleeps.
pub enum Sleep<M: Machine> {
    /// A futex wait. The thread's waiter is listed in the table.
    Futex(FutexSleep),
    /// A sleep for a time.
    Time(TimeSleep),
    /// A wait for a child. The thread's waiter is on its process's queue.
    Child(ChildWait),
    /// A call on a stream that waits. The thread's waiter is on the stream's queue.
    Stream(StreamWait<M>),
    /// A poll. The thread listens to the files.
    Poll(PollWait<M>),
    /// A wait for files of an array of bits. The thread listens to them.
    Select(SelectWait<M>),
    /// A wait for events of a set of files. The thread's waiter is on the set's queue.
    Epoll(EpollWait<M>),
    /// A wait for a signal that interrupts it.
    Signal,
    /// A wait that takes a signal.
    Awaited(SignalWait),
}

/// How a system call left its thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Served {
    /// The result is in the registers.
    Done,
    /// The thread has to sleep until it is unparked, or until the deadline of `sleeps_until`. Then
    /// `go_on` goes on.
    Asleep,
}

/// The arguments of a futex wait.
#[derive(Clone, Copy, Debug)]
pub struct FutexSleep {
    /// User address of the word.
    pub at: u64,
    /// The value that it must hold.
    pub value: u32,
    /// The wakers that may wake it.
    pub bitset: u32,
    /// Whether the key is private to the process.
    pub private: bool,
    /// Monotonic, in nanoseconds.
    pub deadline: Option<u64>,
}

/// The arguments of a sleep for a time.
#[derive(Clone, Copy, Debug)]
pub struct TimeSleep {
    /// Its end, in nanoseconds since boot.
    pub deadline: u64,
    /// For a relative sleep: the clock of its deadline, and the user address of a `timespec` for the rest, or 0.
    pub relative: Option<(i32, u64)>,
}

/// The children to wait for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Which {
    Any,
    Process(Pid),
    Group(Pid),
}

/// The arguments of a wait for a child.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    pub which: Which,
    pub options: u32,
}

/// User addresses of the results of a wait; 0 where a result is not asked for.
#[derive(Clone, Copy, Debug)]
pub enum Answer {
    Wait4 { status: u64, usage: u64 },
    Waitid { info: u64, usage: u64 },
}

/// A wait for a child: the children, and where the answer goes.
#[derive(Clone, Copy, Debug)]
pub struct ChildWait {
    pub wanted: Wanted,
    pub answer: Answer,
}

/// A call on a stream that waits. It is made again when the thread is woken.
pub struct StreamWait<M: Machine> {
    pub file: Arc<File<M>>,
    pub call: StreamCall,
}

/// The calls on streams that sleep without a stack, with their arguments as they were at first.
pub enum StreamCall {
    Read(Vectors),
    Write(Vectors),
    /// `sendto` without an address, and `sendmsg` without control data.
    Send {
        from: Vectors,
        flags: u32,
    },
    /// `recvfrom`. `name` and `name_len` are where the sender's address and its length go.
    Receive {
        to: Vectors,
        flags: u32,
        name: u64,
        name_len: u64,
    },
    ReceiveMessage {
        header: MessageHeader,
        flags: u32,
    },
    Accept(Accept),
    Connect,
}

/// The arguments of `accept4`.
#[derive(Clone, Copy, Debug)]
pub struct Accept {
    /// User addresses of the peer's address and of its length.
    pub name: u64,
    pub name_len: u64,
    pub flags: u32,
}

/// A `poll` or `ppoll` that waits. It looks again when the thread is woken.
pub struct PollWait<M: Machine> {
    pub call: PollCall,
    /// The array of `struct pollfd`, as it was when the call was made.
    pub asked: Vec<u64>,
    pub listening: Listening<M>,
}

/// The calls that wait for an array of files.
#[derive(Clone, Copy)]
pub enum PollCall {
    Poll {
        fds: u64,
        count: u64,
    },
    /// `time` is where the remaining time goes, or 0.
    Ppoll {
        fds: u64,
        time: u64,
    },
}

/// A `select` or `pselect6` that waits. It looks again when the thread is woken.
pub struct SelectWait<M: Machine> {
    pub call: SelectCall,
    /// The sets, one after the other, as they were when the call was made.
    pub asked: Vec<u64>,
    pub listening: Listening<M>,
}

/// User addresses of a `select` or `pselect6`; 0 where an argument is missing.
#[derive(Clone, Copy)]
pub struct SelectCall {
    pub sets: [u64; 3],
    /// Where the remaining time goes.
    pub time: u64,
}

/// An `epoll_wait` that waits.
pub struct EpollWait<M: Machine> {
    /// The set.
    pub file: Arc<File<M>>,
    /// User address of the events.
    pub to: u64,
    /// Events at most.
    pub most: i32,
    /// Monotonic, in nanoseconds.
    pub deadline: Option<u64>,
}

/// An `rt_sigtimedwait` that waits.
#[derive(Clone, Copy, Debug)]
pub struct SignalWait {
    pub wanted: SigSet,
    /// User address of a `siginfo_t`, or 0.
    pub info: u64,
    /// Monotonic, in nanoseconds.
    pub deadline: Option<u64>,
}

/// The calling thread listens to files, until this is dropped.
pub struct Listening<M: Machine> {
    files: Vec<Arc<File<M>>>,
    pub poller: Arc<Poller>,
}

impl<M: Machine> Listening<M> {
    /// Lets the calling thread listen to `files`. If one refuses, it listens to none.
    pub fn to(files: Vec<Arc<File<M>>>) -> Result<Self, FsError> {
        let listening = Listening { files, poller: Poller::new()? };
        let listener = listening.listener();
        listening.files.iter().filter_map(|f| f.readiness()).try_for_each(|r| r.listen(&listener))?;
        Ok(listening)
    }

    fn listener(&self) -> Arc<dyn Listener> {
        unsize!(self.poller.clone())
    }
}

impl<M: Machine> Drop for Listening<M> {
    fn drop(&mut self) {
        self.poller.end();
        let listener = self.listener();
        for readiness in self.files.iter().filter_map(|f| f.readiness()) {
            readiness.unlisten(&listener);
        }
    }
}
