//! The memory core of Quire: maps, backings, objects, pages, queues, faults.
//!
//! # Principles
//! - **A fault takes no contended lock.** It reads published, immutable entries and lock-free page indexes, and writes
//!   only under the lock of one page-table page of its own address space.
//! - **No record per mapped page.** The only reverse map is the list of [backings](object::backing) of an [`object`]:
//!   one per mmap operation and address space. The page tables ([`machine::Pmap`]) are only a cache of the map.
//! - **No architecture, no errno, no heap, no statics.** All structures are allocated from typed per-CPU slabs over
//!   frames. So every allocation can fail, is counted, and has a label. A [`Vm`] is a value that lies in the memory
//!   that it manages.
//! - **Every removal owes a flush.** Weakening a translation returns a [`tlb::flush::Obligation`]; only its discharge
//!   yields the [`tlb::flush::Flushed`] proof that later steps need.
//!
//! # The contracts
//! C1 identity, C2 enter versus remove, C3 stale entries, C4 frames after flush, C5 no sleep under a guard. C6 one lock
//! order, C7 nothing proportional to pages, C8 no memory of processes times CPUs, C9 the map fans out. C10 bad input is
//! an error. Each has one home, under the heading `Contract Cn`; ARCHITECTURE.md lists them in full.
//!
//! # Where to start reading
//! Follow a fault: it begins in [`fault`] and finds the entry in [`map`]. It walks the entry's chain of objects
//! ([`object::backing`]), and looks the page up in each object's [`index`](object::index). It checks the page's state
//! ([`phys::page`]), and installs the leaf ([`machine::Pmap`]). A new page then joins a queue ([`phys::queues`]).
//!
//! # The rooms
//! A *room* is a folder or file of this crate. This table lists them from the top to the bottom. A room uses only rooms
//! below it (`./quire test layers` checks that, and draws it with `--graph`).
//!
//! | room | contents |
//! |---|---|
//! | [`Vm`] | the whole system: its construction, and the census of frames |
//! | `map::ops` | map, unmap, protect, remap, fork, advise, wire, grow a stack, exit |
//! | [`fault`] | the fault, and the ways to a page |
//! | [`reclaim`] | pageout, eviction, migration, the daemons |
//! | [`map`] | address spaces: entries, trees, arenas, the steps of a change |
//! | [`content`] | bytes, sizes, holes and write-back of objects |
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
//! A [`Vm`] consists of nested values, called storeys. The code for page tables, queues and slabs gets the lowest
//! storey, [`phys::Physical`]. Objects and their content get [`object::Objects`], maps and faults get [`map::Maps`],
//! and pageout gets [`reclaim::Reclaimer`]. Each storey dereferences to the one below, so that the methods of all
//! storeys can be called on a `Vm`. A room cannot use state above its own storey.
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
pub use machine::{DirectMap, Machine, Phys, Pmap, Standing, Table};
pub use map::{Space, SpaceRef};
pub use object::ObjectRef;
pub use phys::Config;
pub use stats::FaultKind;
pub use types::{Access, MemoryType, PAGE_SHIFT, PAGE_SIZE, Pfn, PhysRange, Prot, VirtRange};
pub use vm::{BootError, Vm};
pub use vm::{frame_census, frame_info};
