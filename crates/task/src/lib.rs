//! Threads and time: run queues, timers, futexes, process ids.
//!
//! # Principles
//! - **State is per CPU.** Each CPU has a run queue, a timer wheel and a current thread. Another CPU accesses them only
//!   to queue a thread, to take a waiting thread when it is idle, or to cancel a timer.
//! - **All operations are O(1)**: queueing a thread, arming and cancelling a timer, waking one of a hundred thousand
//!   sleepers, allocating and finding an id. No table's size is a limit on processes. The one exception is the choice
//!   among users with runnable threads on one CPU. It takes steps logarithmic in the number of these users.
//! - **No heap, no statics, no architecture.** The caller allocates threads, timers, waiters and group members; this
//!   crate only links them. Tables are in memory that the caller provides. The hardware is behind the [`Machine`]
//!   trait.
//! - **No wake-up is lost.** [`Scheduler::unpark`] leaves a token if its thread has not parked yet, and a futex waiter
//!   is counted before its word is compared. Both protocols have models (`models`).
//!
//! # Where to start reading
//! Begin with [`Scheduler::park`], then `switch_from` in the same file (how a CPU switches threads). Then read
//! `scheduler/share` (which thread is next), `scheduler/place` (the CPU of a woken thread), [`thread`], [`timer`] and
//! [`futex`]. `tests/parallel` is a whole simulated machine in a few hundred lines.
#![cfg_attr(not(any(test, loom, shuttle)), no_std)]
#![deny(missing_docs)]

pub mod account;
pub mod broadcast;
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
mod scheduler;
pub mod thread;
pub mod timer;
mod token;
mod watch;
mod weight;

pub use account::Times;
pub use broadcast::{Broadcasts, Quiet};
pub use futex::{FutexTable, FutexWait, Key};
pub use group::Group;
pub use ids::{IdError, IdTable};
pub use irq::{IrqLock, Masked};
pub use machine::{Irq, Machine};
pub use powers::Openness;
pub use scheduler::{Bound, CpuTimes, Scheduler, User};
pub use thread::{Class, Current, MOST_URGENT, Thread, ThreadRef};
pub use timer::Timer;
pub use watch::{Lockup, Watching};
