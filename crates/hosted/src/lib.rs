//! A machine in a process: threads stand for CPUs, one mapping of the host for RAM, and the page tables that the memory core
//! builds there are walked by a simulated MMU.
//!
//! # Principles
//! - **The real code.** There is no pmap of this machine's own: `quire-pmap-x86_64` keeps its tables in the arena.
//! - **As hostile as the manual allows.** Translations and cached upper levels stay until an instruction takes them away;
//!   CPUs translate addresses that nobody asked for; accessed and dirty bits are set by atomic writes at any time.
//! - **Every access is checked.** A translation remembers which life of its frame it was made for; using one after the frame
//!   was freed ends the run. So does a store through which no page was marked dirty.
//!
//! # How it runs
//! A thread becomes a CPU with [`Cpu::attach`]. An access ([`Cpu::read`], [`Cpu::write`]) is one uninterruptible step:
//! translate, check, touch memory. Interrupts (flushes that others ask for) are served between such steps and wherever the
//! core spins or sleeps. [`Cpu::disturb`] lets others run where a lock is about to be taken, so that two cores of the host
//! show what else would take many. [`model`] says what memory must contain; `tests/random` puts it all together.
#![deny(missing_docs)]

mod arena;
mod cpu;
mod machine;
pub mod model;
mod tlb;

pub use arena::Arena;
pub use cpu::{Cpu, PageFault};
pub use machine::{Hosted, Settings};
pub use tlb::Tlb;

/// The README's example, compiled and run with the tests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
