//! Quire's kernel for x86-64: boot, traps, SMP, and the composition of the layers below it; nothing else.
//!
//! # Where to start reading
//! Boot: [`boot::pvh`] (the first instructions), then [`boot::start`]. A page fault or system call: [`trap::entry`], then
//! [`trap`]. What a CPU has of its own: [`cpu`].
//!
//! # Unsafe code
//! This crate is where hardware is touched. What can be tested without it is in the library `quire_kernel`.
#![cfg_attr(target_os = "none", no_std, no_main)]
#![cfg_attr(target_os = "none", deny(clippy::undocumented_unsafe_blocks))]

#[cfg(target_os = "none")]
#[macro_use]
mod log;
#[cfg(target_os = "none")]
mod boot;
#[cfg(target_os = "none")]
mod bytes;
#[cfg(target_os = "none")]
mod clock;
#[cfg(target_os = "none")]
mod context;
#[cfg(target_os = "none")]
mod cpu;
#[cfg(target_os = "none")]
mod entropy;
#[cfg(target_os = "none")]
mod fpu;
#[cfg(target_os = "none")]
mod frame;
#[cfg(target_os = "none")]
mod heap;
#[cfg(target_os = "none")]
mod interrupt;
#[cfg(all(target_os = "none", debug_assertions))]
mod inversion;
#[cfg(target_os = "none")]
mod layout;
#[cfg(target_os = "none")]
mod machine;
#[cfg(target_os = "none")]
mod memtest;
#[cfg(target_os = "none")]
mod own;
#[cfg(target_os = "none")]
mod paging;
#[cfg(target_os = "none")]
mod panic;
#[cfg(target_os = "none")]
mod personality;
#[cfg(target_os = "none")]
mod ports;
#[cfg(target_os = "none")]
mod power;
#[cfg(target_os = "none")]
mod shootdown;
#[cfg(target_os = "none")]
mod stack;
#[cfg(target_os = "none")]
mod swap;
#[cfg(target_os = "none")]
mod trace;
#[cfg(target_os = "none")]
mod trap;
#[cfg(target_os = "none")]
mod user;
#[cfg(target_os = "none")]
mod watchdog;

#[cfg(not(target_os = "none"))]
fn main() {
    eprintln!("quire-kernel runs on bare hardware: build it with --target x86_64-unknown-none, or use ./quire run");
    std::process::exit(2);
}
