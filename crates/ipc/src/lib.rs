//! System V IPC: shared memory segments, semaphore arrays and message queues. Beside them, POSIX message queues.
//!
//! # Principles
//! - **An object is found without a lock.** A [registry] finds an id as a table of descriptors finds a file, and each
//!   object has its own lock. Only creation, removal and lookups by key take the lock of a registry.
//! - **Wakers complete the calls of sleepers.** A changed semaphore array tries the operations of its sleepers in their
//!   order. A sender hands its message to a receiver that waits for it. So a woken thread only reads its result.
//! - **A sleeper leaves under the lock of its object.** A signal or a timeout may come while a waker completes the
//!   call. The lock decides which of the two came first.
//! - **Every allocation may fail**, and a failed call changes nothing. Kernel memory that users keep here is charged to
//!   them ([`Host::charge`]).
//! - **No errno, no user memory, no Linux constant.** Errors are [`Error`]; the Linux layer translates.
//!
//! # Where to start reading
//! [`registry`] has ids and keys, [`owner`] the permissions. [`shm`], [`sem`] and [`msg`] are the three kinds.
//! [`posix`] has the queues with names.
#![cfg_attr(not(any(test, loom, shuttle)), no_std)]
#![deny(unsafe_code)]
#![deny(missing_docs)]

mod error;
mod host;
pub mod msg;
mod mutant;
pub mod owner;
pub mod posix;
pub mod registry;
pub mod sem;
pub mod shm;

#[cfg(all(test, any(loom, shuttle)))]
mod models;
#[cfg(all(test, not(any(loom, shuttle))))]
mod test_host;
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;

pub use error::Error;
pub use host::Host;
pub use owner::{Caller, Owner};
pub use registry::{Name, Open};
