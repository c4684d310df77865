//! Threads and time: run queues, timers, futexes, process ids.
//!
//! # Principles
//! - **Every CPU is on its own.** A run queue, a timer wheel, a current thread a CPU; another CPU's are touched only to
//!   give it a thread, to steal one when there is nothing else to do, or to take a timer back.
//! - **Everything is O(1)**: queueing at both ends, arming and cancelling, waking one of a hundred thousand sleepers,
//!   allocating and finding an id. Nothing is sized by a limit on processes. Only users who have runnable threads on one CPU are
//!   compared, in as many steps as the logarithm of their number.
//! - **No heap, no statics, no architecture.** Threads, timers, waiters and group members are placed by their owners and
//!   only linked here; tables live in memory that the caller hands over. What the hardware must do is the
//!   [`Machine`] trait.
//! - **No wake-up is lost.** [`Scheduler::unpark`] leaves a token where its thread has not parked yet, and a futex waiter
//!   is queued before its word is compared. Both protocols have a model beside them (`models`).
//!
//! # Where to start reading
//! [`Scheduler::park`], then `switch_from` in the same file (how a CPU changes threads), `scheduler/share` (whose thread is next),
//! `scheduler/place` (where a woken thread goes), [`thread`] (what a thread is), [`timer`] and [`futex`]. `tests/simulated` is a whole machine in two hundred lines.
#![cfg_attr(not(any(test, loom, shuttle)), no_std)]
#![deny(missing_docs)]

pub mod account;
pub mod futex;
pub mod group;
pub mod ids;
pub mod irq;
pub mod list;
mod machine;
#[cfg(all(test, any(loom, shuttle)))]
mod models;
mod mutant;
pub mod powers;
pub mod roll_call;
mod scheduler;
pub mod thread;
pub mod timer;
mod token;
mod watch;
mod weight;

pub use account::Times;
pub use futex::{FutexTable, FutexWait, Key};
pub use group::Group;
pub use ids::{IdError, IdTable};
pub use irq::{IrqLock, Masked};
pub use machine::{Irq, Machine};
pub use powers::Openness;
pub use roll_call::{Quiet, RollCall};
pub use scheduler::{CpuTimes, Scheduler, User};
pub use thread::{Current, Thread, ThreadRef};
pub use timer::Timer;
pub use watch::{Lockup, Watching};
