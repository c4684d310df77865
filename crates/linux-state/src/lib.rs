//! The state behind Linux's system calls: processes, threads, credentials, signals, users, timers, descriptors.
//!
//! # Principles
//! - **No system call is here.** The crate `quire-linux` has the calls, in one file for each subject. A subject has the
//!   same file name in both crates. This crate has each subject's state, its invariants, and the operations on it.
//! - **The crate is generic over its machine.** [`Machine`] is all that the Linux layer needs from a kernel. So the
//!   layer also runs in a process of a host.
//! - **Only this crate and the crates above it know errnos.** The crates below have their own error types.
//!
//! # Where to start reading
//! [`Linux`] is the state that all processes share. [`Process`] is the state that a process's threads share. [`Thread`]
//! is the state of one thread. [`Ctx`] is a system call's view of all three.
#![cfg_attr(not(any(test, loom, shuttle)), no_std)]

pub mod base;
pub mod ctx;
pub mod ending;
pub mod errno;
pub mod file;
pub mod futex;
pub mod ipc;
mod linux;
pub mod machine;
pub mod memory;
pub mod mutant;
pub mod process;
pub mod regs;
pub mod shortage;
pub mod signal;
pub mod socket;
pub mod system;
pub mod time;
pub mod user;
pub mod vdso;

#[cfg(all(test, any(loom, shuttle)))]
mod models;

pub use base::pid::Pid;
pub use ctx::Ctx;
pub use errno::Errno;
pub use linux::{FirstProgram, Linux};
pub use machine::{BadAddress, End, Fpu, Interrupt, Machine, UserAccess, UserClock, WatchSetting};
pub use process::Process;
pub use process::sleep::Served;
pub use process::thread::Thread;
pub use regs::UserRegs;
