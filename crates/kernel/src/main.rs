//! Quire's kernel for x86-64: boot, traps and SMP. It combines the crates for memory, scheduling, files and Linux
//! programs.
//!
//! # Where to start reading
//! Boot: [`boot::pvh`] (the first instructions), then [`boot::start`]. A page fault or system call: [`trap::entry`],
//! then [`trap`]. A CPU's own state: [`cpu`].
//!
//! # Folders, from the bottom
//! `loader` (in the library), [`cpu`], [`machine`], [`memory`], [`report`], [`thread`], [`personality`], [`trap`],
//! [`host`], [`boot`]. The module documentation of each describes it. Some folders have files at several levels. For
//! example, the log is below `machine`, and the watchdog is above `thread`. `./quire test layers` checks the exact
//! order.
//!
//! # Unsafe code
//! This crate accesses the hardware. Code that can be tested without hardware is in the library `quire_kernel`.
#![cfg_attr(target_os = "none", no_std, no_main)]
#![cfg_attr(target_os = "none", deny(clippy::undocumented_unsafe_blocks))]

#[cfg(target_os = "none")]
#[macro_use]
mod report;
#[cfg(target_os = "none")]
mod boot;
#[cfg(target_os = "none")]
mod cpu;
#[cfg(target_os = "none")]
mod host;
#[cfg(target_os = "none")]
mod machine;
#[cfg(target_os = "none")]
mod memory;
#[cfg(target_os = "none")]
mod personality;
#[cfg(target_os = "none")]
mod thread;
#[cfg(target_os = "none")]
mod trap;

#[cfg(not(target_os = "none"))]
fn main() {
    eprintln!("quire-kernel runs on bare hardware: build it with --target x86_64-unknown-none, or use ./quire run");
    std::process::exit(2);
}
