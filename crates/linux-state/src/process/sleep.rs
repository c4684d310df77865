//! The state of system calls that sleep without a kernel stack.
//!
//! Most system calls that sleep for long first return from all their functions, so no stack frame and no lock guard is
//! left. Such a call stores a [`Sleep`] and its deadline in its thread, and adds the thread to the list where wakers
//! look for it. The kernel then frees the thread's stack. When the thread is woken, the function `go_on` of the call
//! (in `quire-linux`) runs on another stack. It executes the same code again, and ends the call or sleeps again.
//!
//! Other calls park their thread through `quire_sync`, and keep their stack.

use crate::Pid;
use crate::file::host::File;
use crate::machine::Machine;
use crate::signal::SigSet;
use crate::user::transfer::{MessageHeader, Vectors};
use quire_fs::readiness::Poller;
use quire_fs::{FsError, Listener};
use quire_heap::{Arc, Vec, unsize};

/// The state of a call that sleeps without a stack.
pub enum Sleep<M: Machine> {
    /// A futex wait. The thread's waiter is listed in the futex table.
    Futex(FutexSleep),
    /// A sleep for a time.
    Time(TimeSleep),
    /// A wait for a child. The thread's waiter is on the queue of its process.
    Child(ChildWait),
    /// A call that waits for a stream. The thread's waiter is on the stream's queue.
    Stream(StreamWait<M>),
    /// A `poll` or `ppoll`. The thread listens to the files.
    Poll(PollWait<M>),
    /// A `select` or `pselect6`. The thread listens to the files.
    Select(SelectWait<M>),
    /// An `epoll_wait`. The thread's waiter is on the queue of the epoll file.
    Epoll(EpollWait<M>),
    /// A wait until a signal interrupts it, such as `pause`.
    Signal,
    /// An `rt_sigtimedwait`, which receives a signal.
    Awaited(SignalWait),
    /// A `fork` of a user whose processes end for want of memory. The call is made again after the sleep.
    Fork,
}

/// The state in which a system call left its thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Served {
    /// The result is in the registers.
    Done,
    /// The thread must sleep until it is unparked, or until the deadline that `sleeps_until` returns. Then `go_on`
    /// continues the call.
    Asleep,
}

/// The arguments of a futex wait.
#[derive(Clone, Copy, Debug)]
pub struct FutexSleep {
    /// User address of the word.
    pub at: u64,
    /// The value that the word must have for the thread to sleep.
    pub value: u32,
    /// The wait is woken only by wakers whose bitset has a bit in common with this one.
    pub bitset: u32,
    /// Whether the futex is private to the process.
    pub private: bool,
    /// The deadline on the monotonic clock, in nanoseconds. `None`: no limit.
    pub deadline: Option<u64>,
}

/// The arguments of a sleep for a time.
#[derive(Clone, Copy, Debug)]
pub struct TimeSleep {
    /// The end of the sleep, in nanoseconds since boot.
    pub deadline: u64,
    /// For a relative sleep: the deadline's clock, and the user address of a `timespec` for the remaining time, or 0.
    pub relative: Option<(i32, u64)>,
}

/// Which children a wait is for.
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

/// User addresses for the results of a wait; 0 where the caller wants no result.
#[derive(Clone, Copy, Debug)]
pub enum Answer {
    Wait4 { status: u64, usage: u64 },
    Waitid { info: u64, usage: u64 },
}

/// A wait for a child: the wanted children, and the addresses for the results.
#[derive(Clone, Copy, Debug)]
pub struct ChildWait {
    pub wanted: Wanted,
    pub answer: Answer,
}

/// A waiting call on a stream. The call is repeated when the thread is woken.
pub struct StreamWait<M: Machine> {
    pub file: Arc<File<M>>,
    pub call: StreamCall,
}

/// The calls on streams that sleep without a stack, with their original arguments.
pub enum StreamCall {
    Read(Vectors),
    Write(Vectors),
    /// `sendto` without an address, and `sendmsg` without control data.
    Send {
        from: Vectors,
        flags: u32,
    },
    /// `recvfrom`. `name` and `name_len` are the user addresses for the sender's address and its length.
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
    /// User addresses for the peer's address and for its length.
    pub name: u64,
    pub name_len: u64,
    pub flags: u32,
}

/// A `poll` or `ppoll` that waits. The files are checked again when the thread is woken.
pub struct PollWait<M: Machine> {
    pub call: PollCall,
    /// A copy of the program's array of `struct pollfd`, made at the start of the call.
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
    /// `time` is the user address for the remaining time, or 0.
    Ppoll {
        fds: u64,
        time: u64,
    },
}

/// A `select` or `pselect6` that waits. The files are checked again when the thread is woken.
pub struct SelectWait<M: Machine> {
    pub call: SelectCall,
    /// A copy of the program's three sets, made at the begin of the call: one set after the other.
    pub asked: Vec<u64>,
    pub listening: Listening<M>,
}

/// The user addresses of a `select` or `pselect6`; 0 where an argument is missing.
#[derive(Clone, Copy)]
pub struct SelectCall {
    pub sets: [u64; 3],
    /// For the remaining time.
    pub time: u64,
}

/// An `epoll_wait` that waits.
pub struct EpollWait<M: Machine> {
    /// The epoll file.
    pub file: Arc<File<M>>,
    /// User address for the events.
    pub to: u64,
    /// The highest number of events to return.
    pub most: i32,
    /// The deadline on the monotonic clock, in nanoseconds. `None`: no limit.
    pub deadline: Option<u64>,
}

/// An `rt_sigtimedwait` that waits.
#[derive(Clone, Copy, Debug)]
pub struct SignalWait {
    pub wanted: SigSet,
    /// User address for a `siginfo_t`, or 0.
    pub info: u64,
    /// The deadline on the monotonic clock, in nanoseconds. `None`: no limit.
    pub deadline: Option<u64>,
}

/// The calling thread listens to a list of files until this value is dropped.
pub struct Listening<M: Machine> {
    files: Vec<Arc<File<M>>>,
    pub poller: Arc<Poller>,
}

impl<M: Machine> Listening<M> {
    /// Makes the calling thread listen to `files`. If a file refuses the listener, the thread listens to no file.
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
