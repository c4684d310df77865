//! The errors of System V IPC and POSIX message queues.

use quire_heap::OutOfMemory;

/// The reason why a call failed. A failed call has changed nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Error {
    /// No object has this key.
    NotFound,
    /// An object already has this key.
    Exists,
    /// No object has this id, or an argument is out of range.
    Invalid,
    /// The object was removed.
    Removed,
    /// The object's mode does not allow the access.
    Denied,
    /// Only the owner, the creator or a privileged caller may make this call.
    NotPermitted,
    /// A limit on the number of objects or on the sum of their sizes is reached.
    NoSpace,
    /// There is no memory, or the caller's user is at its limit.
    OutOfMemory,
    /// The call would have to wait, or its deadline has passed.
    WouldBlock,
    /// The deadline of a call on a POSIX queue has passed.
    TimedOut,
    /// Another process is registered for the notification.
    Busy,
    /// The queues of the caller's user use too much memory.
    TooMany,
    /// A signal interrupted the wait.
    Interrupted,
    /// There is no message of the wanted type.
    NoMessage,
    /// The message is longer than the caller's buffer.
    TooLong,
    /// The number of a semaphore is beyond the end of the array, or a length does not fit a POSIX queue.
    TooLarge,
    /// A semaphore's value, or its adjustment, would leave its range.
    Range,
}

impl From<OutOfMemory> for Error {
    fn from(_: OutOfMemory) -> Self {
        Error::OutOfMemory
    }
}
