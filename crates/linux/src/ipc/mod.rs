//! System V IPC and POSIX message queues: Linux's calls over the objects of `quire_ipc`.
//!
//! [`segments`] has shared memory, [`arrays`] has semaphores, and [`queues`] has message queues. [`posix_queues`] has
//! POSIX message queues, and [`queue_tree`] has their files. [`permission`] translates owners and modes.

mod arrays;
mod permission;
mod posix_queues;
mod queue_tree;
mod queues;
mod segments;

pub(crate) use arrays::{leave_undos, revert_undos, undos_of_new};
pub use arrays::{sys_semctl, sys_semget, sys_semop, sys_semtimedop};
pub use posix_queues::{
    sys_mq_getsetattr, sys_mq_notify, sys_mq_open, sys_mq_timedreceive, sys_mq_timedsend, sys_mq_unlink,
};
pub use queue_tree::queue_root;
pub use queues::{sys_msgctl, sys_msgget, sys_msgrcv, sys_msgsnd};
pub use segments::{sys_shmat, sys_shmctl, sys_shmdt, sys_shmget};

/// The commands that all kinds of objects support.
mod command {
    pub const RMID: i32 = 0;
    pub const SET: i32 = 1;
    pub const STAT: i32 = 2;
    pub const INFO: i32 = 3;
}
