//! A machine in a process: threads stand for CPUs, one mapping of the host for RAM, and the page tables that the memory core
//! builds there are walked by a simulated MMU.
//!
//! # Principles
//! - **The real code.** There is no pmap of this machine's own: `quire-pmap` keeps its tables in the arena, as x86-64's or as
//!   RISC-V's ([`Simulated`]; [`Hosted`] is the former, [`HostedSv39`] the latter).
//! - **As hostile as the manuals allow.** Translations and cached upper levels stay until an instruction takes them away;
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

mod account;
mod arena;
mod cpu;
mod machine;
pub mod model;
mod simulate;
mod tlb;

pub use account::Account;
pub use arena::Arena;
pub use cpu::{Cpu, ForeignSpace, PageFault};
pub use machine::{AttachError, Hosted, HostedSv39, NoMachine, Settings, Simulated};
pub use quire_pmap_sv39::Sv39;
pub use quire_pmap_x86_64::X86_64;
pub use simulate::{Seen, Simulate};
pub use tlb::Tlb;

/// Makes tests of functions that are generic over an architecture: `fn name<F: Simulate>()`, each run for x86-64 and for
/// RISC-V.
#[macro_export]
macro_rules! of_each_architecture {
    ($($name:ident),* $(,)?) => {
        mod x86_64 {
            $(#[test] fn $name() { super::$name::<$crate::X86_64>() })*
        }
        mod sv39 {
            $(#[test] fn $name() { super::$name::<$crate::Sv39>() })*
        }
    };
}

/// The README's example, compiled and run with the tests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
