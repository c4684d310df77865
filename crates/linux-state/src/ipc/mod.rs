//! System V IPC and message queues: the host of `quire_ipc` in this kernel, and the memory of segments.

mod glue;
pub mod host;
pub mod memory;

use crate::Errno;
use quire_ipc::Error;

impl From<Error> for Errno {
    fn from(e: Error) -> Self {
        match e {
            Error::NotFound => Errno::ENOENT,
            Error::Exists => Errno::EEXIST,
            Error::Invalid => Errno::EINVAL,
            Error::Removed => Errno::EIDRM,
            Error::Denied => Errno::EACCES,
            Error::NotPermitted => Errno::EPERM,
            Error::NoSpace => Errno::ENOSPC,
            Error::OutOfMemory => Errno::ENOMEM,
            Error::WouldBlock => Errno::EAGAIN,
            Error::TimedOut => Errno::ETIMEDOUT,
            Error::Busy => Errno::EBUSY,
            Error::TooMany => Errno::EMFILE,
            Error::Interrupted => Errno::EINTR,
            Error::NoMessage => Errno::ENOMSG,
            Error::TooLong => Errno::E2BIG,
            Error::TooLarge => Errno::EFBIG,
            Error::Range => Errno::ERANGE,
        }
    }
}
