//! Linux's system calls over Quire's memory core, scheduler and file layer. [`quire_linux_state`] has the state that
//! they work on, with the same folder and file names.
//!
//! # Principles
//! - **This crate translates; it decides no policy.** Only this crate, `quire_linux_state` and procfs use errnos and
//!   Linux constants. The layers below implement address spaces, the scheduler and files.
//! - **Everything that a program passes is checked once, at the edge** ([`user`](quire_linux_state::user),
//!   [`syscall::Arg`]), and bounded before anything is allocated for it. A bad argument gives an error, never a panic
//!   (relies on C10: input from outside gets a typed error).
//! - **Every handler is an ordinary function**
//!   `fn sys_x<M: Machine>(ctx: &mut Ctx<'_, M>, ...) -> Result<usize, Errno>`, found through one table
//!   ([`syscall::table`]), from which the page of supported calls is generated.
//!
//! # Where to start reading
//! A system call: [`entry`], [`syscall::table`], then the handler's module. A new program: [`exec`]. A new process:
//! [`process::fork`]. A signal: [`signal`].
//!
//! # Entry points for the kernel
//! [`Linux::new`](quire_linux_state::Linux::new) makes the layer, and [`start::start`] starts process 1.
//! [`entry::syscall`], [`entry::page_fault`] and [`entry::exception`] serve traps. The kernel calls
//! [`entry::return_to_user`] before every return to user mode, with interrupts on. For a new thread it calls
//! [`entry::first_return`] instead.
#![cfg_attr(not(any(test, loom, shuttle, feature = "test-host")), no_std)]

pub mod entry;
pub mod exec;
pub mod file;
pub mod futex;
pub mod ipc;
pub mod memory;
pub mod mount;
mod mutant;
pub mod process;
pub mod rseq;
pub mod signal;
pub mod socket;
pub mod start;
pub mod syscall;
pub mod syslog;
pub mod system;
#[cfg(all(any(test, feature = "test-host"), not(any(loom, shuttle))))]
pub mod test_host;
pub mod time;

#[cfg(all(test, loom))]
mod models;
