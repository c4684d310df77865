//! The memory core of Quire: maps, backings, objects, pages, queues, faults.
//!
//! # Principles
//! - **A fault takes no contended lock.** It reads published, immutable entries and lock-free page indexes, and writes
//!   only under the lock of one page-table page of its own address space.
//! - **No record per mapped page.** The only reverse map is the list of [backings](object::backing) of an [`object`]:
//!   one per mmap operation and address space. A [`machine::Pmap`] is only ever a cache of the map.
//! - **No architecture, no errno, no heap, no statics.** Everything is allocated from typed per-CPU slabs over frames,
//!   so every allocation can fail, is counted, and has a label. A [`Vm`] is a value; it lives in the memory it manages.
//! - **Every removal owes a flush.** Weakening a translation returns a [`tlb::flush::Obligation`]; only its discharge
//!   yields the [`tlb::flush::Flushed`] proof that later steps need.
//!
//! # The contracts
//! C1 identity, C2 enter versus remove, C3 stale entries, C4 frames after flush, C5 no sleep under a guard. C6 one lock
//! order, C7 nothing proportional to pages, C8 no memory of processes times CPUs, C9 the map fans out. C10 bad input is
//! an error. Each has one home, under the heading `Contract Cn`; ARCHITECTURE.md lists them in full.
//!
//! # Where to start reading
//! A fault: [`fault`], then [`map`] (which entry), [`object::backing`] (which objects, front to back), [`object`] and
//! its [`index`](object::index) (which page). Then [`phys::page`] (is it busy), [`machine::Pmap`] (install),
//! [`phys::queues`].
//!
//! # The rooms
//! From the top to the bottom; a room uses those below it (`./quire test layers` checks that, and draws it with
//! `--graph`).
//!
//! | room | contents |
//! |---|---|
//! | [`Vm`] | the whole: making it, and the census of frames |
//! | `map::ops` | map, unmap, protect, remap, fork, advise, wire, grow a stack, exit |
//! | [`fault`] | the fault, and the ways to a page |
//! | [`reclaim`] | pageout, eviction, migration, the daemons |
//! | [`map`] | address spaces: entries, trees, arenas, how a change happens |
//! | [`content`] | bytes, sizes, holes and writing back of objects |
//! | [`paging`] | reads and writes of pages, swap, waits for memory |
//! | [`cow`] | collapse of chains, other sharers of a page, the reaper |
//! | `rmap` | passes over the mappings of a page or a range, dirty bits |
//! | [`object`] | objects, backings, their index of pages, their list of mappings, the life of a page |
//! | [`tlb`] | translations that are owed, and proofs of flushes |
//! | [`phys`] | frames, page descriptors, slabs, page queues |
//! | [`machine`] | the core's requirements of the hardware: frames' memory, page tables, CPUs |
//! | [`check`] | the errors of the checker of all structures, and when it runs |
//!
//! # One system, five storeys
//! A [`Vm`] is a tower. Page tables, queues and slabs are given its lowest storey, [`phys::Physical`]; objects and
//! their content [`object::Objects`]; maps and faults [`map::Maps`]; pageout [`reclaim::Reclaimer`]. Each storey leads
//! to those below it, so that a method of any of them is called on a `Vm`. So no room sees what stands above it.
#![cfg_attr(not(any(test, loom, shuttle)), no_std)]
#![deny(missing_docs)]

pub mod check;
pub mod content;
pub mod cow;
pub mod error;
pub mod fault;
pub mod machine;
pub mod map;
#[cfg(all(test, any(loom, shuttle)))]
mod models;
pub mod mutant;
pub mod object;
pub mod paging;
pub mod phys;
pub mod reclaim;
mod rmap;
pub mod sleep;
pub mod stats;
#[cfg(any(test, loom, shuttle))]
#[cfg_attr(not(test), allow(dead_code))]
mod testing;
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
pub mod tlb;
pub mod types;
mod vm;

pub use error::{FaultError, MapError, OutOfMemory};
pub use machine::{Machine, Phys, Pmap, Table};
pub use map::{Space, SpaceRef};
pub use object::ObjectRef;
pub use phys::Config;
pub use stats::FaultKind;
pub use types::{Access, MemoryType, PAGE_SHIFT, PAGE_SIZE, Pfn, PhysRange, Prot, VirtRange};
pub use vm::{BootError, Vm};
pub use vm::{frame_census, frame_info};
