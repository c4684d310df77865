//! System V IPC, and POSIX message queues: the calls of Linux over the objects of `quire_ipc`.
//!
//! [`segments`] has shared memory, [`arrays`] semaphores, [`queues`] messages, [`posix_queues`] POSIX message queues, and
//! [`queue_tree`] their files. [`permission`] translates owners and modes. [`memory`] makes the objects of the memory core that segments show.

mod arrays;
mod beneath;
pub mod host;
pub(crate) mod memory;
mod permission;
mod posix_queues;
mod queue_tree;
mod queues;
mod segments;

pub use arrays::{sys_semctl, sys_semget, sys_semop, sys_semtimedop};
pub use posix_queues::{
    sys_mq_getsetattr, sys_mq_notify, sys_mq_open, sys_mq_timedreceive, sys_mq_timedsend, sys_mq_unlink,
};
pub use queue_tree::queue_root;
pub use queues::{sys_msgctl, sys_msgget, sys_msgrcv, sys_msgsnd};
pub use segments::{sys_shmat, sys_shmctl, sys_shmdt, sys_shmget};

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

/// The commands that all kinds have.
mod command {
    pub const RMID: i32 = 0;
    pub const SET: i32 = 1;
    pub const STAT: i32 = 2;
    pub const INFO: i32 = 3;
}
