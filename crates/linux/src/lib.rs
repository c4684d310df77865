//! Linux's system call interface over Quire's memory core, scheduler and file layer.
//!
//! # Principles
//! - **This crate translates; it decides no policy.** Only this crate uses errnos and Linux constants. The layers below
//!   decide what an address space is, when a thread runs and what a file holds.
//! - **Everything that a program passes is checked once, at the edge** ([`user`], [`syscall::Arg`]), and bounded before
//!   anything is allocated for it. A bad argument is an error (C10).
//! - **Every handler is an ordinary function**
//!   `fn sys_x<M: Machine>(ctx: &mut Ctx<'_, M>, ...) -> Result<usize, Errno>`, found through one table
//!   ([`syscall::table`]), from which the page of supported calls is generated.
//! - **The crate is generic over its machine.** [`Machine`] is all that it needs from the kernel, so it also runs
//!   hosted.
//!
//! # Where to start reading
//! A system call: [`entry`], [`syscall::table`], then the handler's module. A new program: [`exec`]. A new process:
//! [`process::fork`]. A signal: [`signal`].
//!
//! # Entry points for the kernel
//! [`Linux::new`], [`Linux::start`] make process 1. [`Linux::syscall`], [`Linux::page_fault`], [`Linux::exception`]
//! serve traps. The kernel calls [`Linux::return_to_user`] before every return to user mode, with interrupts on. For a
//! new thread it calls [`Linux::first_return`] instead.
#![cfg_attr(not(any(test, loom, shuttle, feature = "test-host")), no_std)]

pub(crate) mod core_file;
pub mod ctx;
mod ending;
pub mod entry;
pub mod errno;
pub mod exec;
pub mod file;
pub mod futex;
pub mod host_name;
pub mod ipc;
mod line;
mod linux;
pub(crate) mod load;
pub mod log;
pub mod machine;
pub mod memory;
pub mod mount;
mod mutant;
pub mod owned;
mod pid;
pub mod plain;
pub mod proc;
pub mod process;
pub mod random;
#[cfg(debug_assertions)]
pub(crate) mod refusal;
pub mod regs;
pub mod rseq;
pub mod settings;
pub mod shortage;
pub mod signal;
pub mod socket;
pub mod start;
pub mod syscall;
pub mod syslog;
pub mod system;
pub mod tables;
#[cfg(all(any(test, feature = "test-host"), not(any(loom, shuttle))))]
pub mod test_host;
pub mod time;
pub mod unknown;
pub mod user;
pub mod vdso;

#[cfg(all(test, any(loom, shuttle)))]
mod models;

pub use ctx::Ctx;
pub use errno::Errno;
pub use linux::Linux;
pub use machine::{BadAddress, End, Fpu, Interrupt, Machine, UserAccess, UserClock, WatchSetting};
pub use pid::Pid;
pub use process::Process;
pub use process::sleep::Served;
pub use process::thread::Thread;
pub use regs::UserRegs;
