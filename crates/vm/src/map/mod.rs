//! Maps: the mappings of an address space by address.
//!
//! A [`Space`] is an address space. It has an arena of entries (an ordered [`tree`] that is read without locks), or
//! several arenas if CPUs contend (`arenas`). Each arena has its own lock. The space's page tables are a cache of the
//! entries. An [`Entry`] has the rights of a range and its chain of backings. Faults look entries up. Map operations
//! replace whole entries.
//!
//! # Contract C3: stale entries
//! A published entry is never edited: a writer replaces it. There are two exceptions. A writer marks the old entry
//! stale, and a fault sets a bit that makes a fork visit its leaves. The writer marks before it touches PTEs, and a
//! fault checks the mark under the page-table page's lock. To install a leaf, a fault takes a lock of the map only to
//! wait for a writer, or after eight failed attempts. After a copy-on-write fault has installed its leaf, it may take
//! the lock to remove copied-up layers from a deep chain.
//!
//! A writer holds its arena's sleeping lock. It works in three steps:
//! 1. The writer marks the entries that it will replace as stale, and issues a full fence.
//! 2. The writer plans and allocates, which may fail.
//! 3. This step cannot fail. The writer clears or weakens leaves, flushes, links new chains, publishes by one swap, and
//!    retires the old entries.
//!
//! The folder `update` runs these steps. Fork, and the protection of a whole entry, run them in their own files in
//! `ops`. Each operation states the pieces that replace a range, and the work on the leaves:
//!
//! | operation | pieces | leaves |
//! |---|---|---|
//! | map | the new entry, which replaces all older ones in its range | cleared, if something was mapped there |
//! | unmap | the ends of entries that reach beyond | cleared |
//! | protect | the same chains, other rights | weakened, if rights are lost |
//! | remap | the same chain elsewhere | cleared at the old place; faults fill them at the new one |
//! | inherit, wire, dump | the same chains, other flags | none |
//! | advise (free) | entries with new fronts, if other layers are behind | cleared |
//! | grow a stack | one more page or more at the lower end | none |
//! | fork | new fronts for parent and child | private leaves lose the right to store |
//!
//! Each row is a step of a writer. Its cells say what orders the step against a concurrent thread:
//!
//! | | fault | other writer | reverse scan |
//! |---|---|---|---|
//! | **mark** | sees the mark under its table page's lock; both sides fence | arena lock | does not look at entries |
//! | **leaves** | table page's lock | arena lock | table page's lock; counts of unflushed removals |
//! | **publish** | finds the old or the new entry; a miss counts if the sequence did not change | arena lock | - |
//! | **unlink** | chains are freed through the epoch | shards' locks | shard's lock; old or new backing, or both |
//!
//! # Where to start reading
//! | folder | subject |
//! |---|---|
//! | `space` | a space and its limits, the list of spaces, idle tables, queries of entries and pages |
//! | `arena` | the lock and the tree of an address, the arenas of a space, the place of a new mapping |
//! | `entry` | an entry, the pieces that replace it, and its marks of wiring |
//! | `update` | a change of the map, and its work on the leaves |
//! | [`tree`] | the ordered tree that is read without locks |
//! | [`kernel`] | the map of the kernel's own addresses |
//! | `ops` | the operations |
//!
//! All folders but `ops` may use objects and the waits for pageout, but not the fault. `ops` may call the fault.

pub(crate) mod arena;
mod check;
pub(crate) mod entry;
#[cfg(all(test, not(any(loom, shuttle))))]
mod hostile_arguments;
pub mod kernel;
pub(crate) mod maps;
mod memory;
mod ops;
pub(crate) mod space;
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
pub mod tree;
pub(crate) mod update;

pub use crate::check::Broken;
pub use arena::Writer;
pub use arena::arenas::{Changed, Moment, SPAN};
pub use arena::covered::Covered;
pub use arena::find_space::{MapRequest, Placement};
pub use entry::wired::Wire;
pub use entry::{Attributes, Entry, Flags, Tag};
pub use maps::Maps;
pub use memory::{FAN_OUT, MapMemory};
pub use ops::advise::Advice;
pub use ops::inherit::{Content, Inherit};
pub use ops::reap::Holdings;
pub use ops::remap::Move;
pub use ops::structures::Structures;
pub use space::commit::CommitCharge;
pub use space::idle::{Dropped, SMALL};
pub use space::pages::{PageInfo, PagePlace};
pub use space::query::EntryInfo;
pub use space::spaces::IDLE;
pub use space::{Limits, STACK_GUARD, Space, SpaceRef, SpaceStats, USER};
