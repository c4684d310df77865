//! System V IPC (shared memory segments, semaphore arrays, message queues) and POSIX message queues.
//!
//! # Principles
//! - **An object is found without a lock.** A [registry] finds an object by its id, as a descriptor table finds a file.
//!   Each object has its own lock. Only creation, removal and lookups by key acquire the lock of a registry.
//! - **A waker completes the call of a sleeper.** A call that changes a semaphore array tries the operations of the
//!   array's sleepers, oldest first. A sender passes its message directly to a waiting receiver. So a woken thread only
//!   reads its result.
//! - **A sleeper leaves with the lock of its object held.** A signal or a timeout may come while a waker completes the
//!   call. Both sides hold the lock, so the first to acquire it decides the result of the call.
//! - **Every allocation may fail**, and a failed call changes nothing. Kernel memory for a user's objects and messages
//!   is charged to that user ([`Host::charge`]).
//! - **No errno, no user memory, no Linux constant.** Calls return an [`Error`], which the Linux layer translates.
//!
//! # Where to start reading
//! [`registry`] has ids and keys, [`owner`] the permissions. [`shm`], [`sem`] and [`msg`] are the three kinds of System
//! V IPC. [`posix`] has the POSIX message queues.
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
