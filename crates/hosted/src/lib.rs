//! A machine in a process. Threads stand for CPUs, and one mapping of the host for RAM. A simulated MMU walks the page
//! tables that the memory core builds there.
//!
//! # Principles
//! - **The real code.** This machine has no pmap of its own. `quire-pmap` keeps its tables in the arena, as x86-64's or
//!   as RISC-V's ([`Simulated`]; [`Hosted`] is the former, [`HostedSv39`] the latter).
//! - **As hostile as the manuals allow.** Translations and cached upper levels stay until an instruction drops them.
//!   CPUs translate addresses speculatively. Atomic writes set accessed and dirty bits at any time.
//! - **Every access is checked.** A translation records the life of its frame. Using it after the frame was freed ends
//!   the run. So does a store through which no page was marked dirty.
//!
//! # How it runs
//! A thread becomes a CPU with [`Cpu::attach`]. An access ([`Cpu::read`], [`Cpu::write`]) is one uninterruptible step:
//! translate, check, touch memory. A CPU serves interrupts (the flush requests of other CPUs) between such steps and
//! wherever the core spins or sleeps. [`Cpu::disturb`] makes a CPU yield before it takes a lock, so that two cores of
//! the host show races of many. [`model`] says which contents memory must have; `tests/random` puts it all together.
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

/// Makes tests of functions that are generic over an architecture: `fn name<F: Simulate>()`, each run for x86-64 and
/// for RISC-V. The sanitizers take long to compile, and run the former.
#[macro_export]
macro_rules! of_each_architecture {
    ($($name:ident),* $(,)?) => {
        mod x86_64 {
            $(#[test] fn $name() { super::$name::<$crate::X86_64>() })*
        }
        #[cfg(not(sanitized))]
        mod sv39 {
            $(#[test] fn $name() { super::$name::<$crate::Sv39>() })*
        }
    };
}

/// The documents' example, compiled and run with the tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/embedding.md")]
struct Embedding;
