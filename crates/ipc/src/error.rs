//! Errors of System V IPC.

use quire_heap::OutOfMemory;

/// The reason why a call failed. It has changed nothing then.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Error {
    /// No object has the key.
    NotFound,
    /// An object has the key already.
    Exists,
    /// No object has the id, or an argument is out of range.
    Invalid,
    /// The object was removed.
    Removed,
    /// The object's mode does not allow it.
    Denied,
    /// Only the owner, the creator or a privileged caller may do it.
    NotPermitted,
    /// A limit on the number or the sum of sizes is reached.
    NoSpace,
    /// No memory, or the caller's user may not have more.
    OutOfMemory,
    /// The call would have to wait, or its deadline passed.
    WouldBlock,
    /// The deadline of a POSIX queue's call passed.
    TimedOut,
    /// Another process is registered for the notification.
    Busy,
    /// The queues of the caller's user take too much.
    TooMany,
    /// A signal came first.
    Interrupted,
    /// No message of the wanted type is there.
    NoMessage,
    /// The message is longer than the caller's buffer.
    TooLong,
    /// The number of a semaphore lies beyond the array, or a length does not fit a POSIX queue.
    TooLarge,
    /// A semaphore's value, or its adjustment, would leave its range.
    Range,
}

impl From<OutOfMemory> for Error {
    fn from(_: OutOfMemory) -> Self {
        Error::OutOfMemory
    }
}
