//! A simulated machine in a process. Threads stand for CPUs, and a memory mapping of the host stands for RAM. A
//! simulated MMU walks the page tables that the memory core builds there.
//!
//! # Principles
//! - **The real code.** This machine has no pmap of its own. `quire-pmap` builds its tables in the simulated RAM, in
//!   the format of x86-64 ([`Hosted`]) or of RISC-V ([`HostedSv39`]); [`Simulated`] is generic over both.
//! - **As hostile as the manuals allow.** Translations and cached upper levels stay until an instruction drops them.
//!   CPUs translate addresses speculatively. Atomic writes set accessed and dirty bits at any time.
//! - **Every access is checked.** A translation records how often its frame was freed. If it is used after the frame
//!   was freed again, the run ends. The run also ends if a store goes through a translation whose page is not marked
//!   dirty.
//!
//! # How it runs
//! A thread becomes a CPU with [`Cpu::attach`]. An access ([`Cpu::read`], [`Cpu::write`]) is one uninterruptible step:
//! translate, check, access memory. A CPU serves interrupts (the flush requests of other CPUs) between such steps, and
//! wherever the core spins or sleeps. [`Cpu::disturb`] makes a CPU yield before it acquires a lock, so that two cores
//! of the host show races of many CPUs. [`model`] computes which contents memory must have. `tests/random` combines all
//! these.
#![deny(missing_docs)]

mod account;
mod arena;
mod cpu;
mod machine;
pub mod model;
#[cfg(doctest)]
mod refused;
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

/// Makes tests from functions `fn name<F: Simulate>()` that are generic over an architecture. Each test runs for x86-64
/// and for RISC-V. Builds for sanitizers compile slowly, so they run only x86-64.
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

/// Compiles and runs the example of docs/embedding.md with the tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/embedding.md")]
struct Embedding;
