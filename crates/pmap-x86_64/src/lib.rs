//! x86-64 page tables for Quire: four levels, and the hardware's encoding. The architecture-independent code is in
//! [`quire_pmap`].
//!
//! [`word`] is one entry, bit by bit. [`X86_64`] implements the format of `quire-pmap`. [`registers`] has the values of
//! CR3 and of the PAT that the entries rely on.
#![cfg_attr(not(any(test, loom, shuttle)), no_std)]
#![deny(missing_docs)]

pub mod registers;
pub mod word;

pub use word::X86_64;

/// The page tables of one address space.
pub type X86Pmap = quire_pmap::Tables<X86_64>;
/// The kernel's half of every address space.
pub type KernelTables = quire_pmap::KernelTables<X86_64>;
/// The loaded tables of each CPU.
pub type Mmu = quire_pmap::Mmu<X86_64>;
/// A flush request from one CPU to others.
pub type Request<'a> = quire_pmap::Request<'a, X86_64>;
