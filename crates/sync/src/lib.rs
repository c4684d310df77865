//! Concurrency primitives of Quire: atomics, locks, epochs, per-CPU storage and waiting.
//!
//! # Principles
//! - **All shared memory goes through this crate.** Every atomic and lock that the memory core or the scheduler shares
//!   between CPUs comes from this crate. So one build switch selects the personality. It is *native*, *recording*
//!   (`--cfg recording`, see [`record`]), or *model-checked* under [loom](https://docs.rs/loom) (`--cfg loom`) and
//!   [shuttle](https://docs.rs/shuttle) (`--cfg shuttle`).
//! - **No architecture, no operating system, no heap.** The caller provides the memory for each CPU. Two small traits,
//!   [`Cpu`] and [`Wait`], return the number of the CPU, keep a thread on it, and let a thread sleep. The final binary
//!   implements them once with [`provide!`], bound at link time. The `std` feature implements them with ordinary
//!   threads.
//! - **Locks have ranks.** A debug build panics when locks are taken against the order of [`rank::Rank`], or against an
//!   order seen earlier in the same run (relies on C6). The panic prints backtraces of both places.
//! - **Short sections spin, long waits sleep.** A [`SpinLock`] keeps its holder on its CPU. A [`Mutex`] and a
//!   [`WaitQueue`] sleep, so they must not be used while a spin lock is held or an epoch is pinned.
#![cfg_attr(not(any(test, loom, shuttle, recording, feature = "std")), no_std)]
#![deny(missing_docs)]

pub mod atomic;
#[cfg(all(debug_assertions, not(any(loom, shuttle))))]
mod backtrace;
pub mod cpuset;
pub mod epoch;
#[cfg(any(loom, shuttle))]
pub mod explore;
pub mod held;
pub mod hooks;
mod limited_counter;
#[cfg(all(test, any(loom, shuttle)))]
mod models;
mod mutant;
mod mutants;
pub mod mutex;
#[cfg(all(debug_assertions, not(any(loom, shuttle))))]
mod order;
#[cfg(all(test, debug_assertions, not(any(loom, shuttle))))]
mod order_tests;
pub mod per_cpu;
mod quota;
pub mod rank;
pub mod record;
pub mod sequence;
pub mod shared;
pub mod spin;
pub mod trace;
pub mod wait_queue;

pub use cpuset::CpuSet;
pub use hooks::{Cpu, CpuId, ThreadHandle, Wait, current_cpu, preempt_off};
pub use limited_counter::{LimitedCounter, LimitedCounters};
pub use mutex::{Mutex, MutexGuard};
pub use per_cpu::{CachePadded, Own, Owned, PerCpu};
pub use quota::Quota;
pub use rank::Rank;
pub use sequence::{Sequence, Sequenced};
pub use shared::Shared;
pub use spin::{SpinGuard, SpinLock};
pub use wait_queue::{Listing, WaitOutcome, WaitQueue, Waiter};
