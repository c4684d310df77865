//! Maps: what an address space shows at which address.
//!
//! A [`Space`] is an address space: an arena of entries (an ordered [`tree`] read without locks) or several where CPUs
//! contend (`arenas`), and the page tables that cache it. An [`Entry`] says what a range allows and which chain of backings it shows. Faults look entries up and change
//! nothing that they say of the range; map operations replace whole entries.
//!
//! # Contract C3: stale entries
//! Writers publish entries immutable and replace them; no writer edits an entry that readers can find. A writer marks the old
//! entry stale before it touches PTEs, and a fault checks the mark under the page-table page's lock. No fault takes a lock of the map.
//!
//! A writer holds its arena's sleeping lock. It marks the entries that it will replace stale and fences; plans and allocates,
//! which may fail; then, without failure: clears or weakens leaves and flushes, links new chains, publishes by one swap, and
//! gives up what was replaced. [`update`](self) is the one place where that is done; the operations only say which pieces
//! take a range's place and what is to happen to the leaves:
//!
//! | operation | pieces | leaves |
//! |---|---|---|
//! | map | the new one; what is in the way goes | cleared where something was in the way |
//! | unmap | the ends of entries that reach beyond | cleared |
//! | protect | the same chains, other rights | weakened, where rights are lost |
//! | remap | the same chain elsewhere | cleared at the old place, and refault |
//! | inherit, wire | the same chains, other flags | none |
//! | advise (free) | fresh ones, where layers lie behind | cleared |
//! | grow a stack | one more page or more at the lower end | none |
//! | fork | new fronts for parent and child | stores taken away from private ones |
//!
//! | | fault | other writer | reverse scan |
//! |---|---|---|---|
//! | **mark** | sees it under its table page's lock, after a fence on both sides | arena lock | does not look at entries |
//! | **leaves** | table page's lock | arena lock | table page's lock; unflushed counts |
//! | **swap** | old or new entry; a miss counts if the sequence stood still | arena lock | - |
//! | **unlink** | chains live until the epoch | parts' locks | part's lock: sees the old backing, the new one, or both |
//!
//! # Where to start reading
//! [`space`](self): what a space is. `arenas`: which lock and tree an address has. `find_space`: where a mapping goes. `update`: how a change happens. Then the operations.
//!
//! The structure (all but `ops`) knows objects and pageout's waits, and no fault; the operations stand above the fault.

mod arena;
mod arenas;
mod check;
mod covered;
mod entry;
pub(crate) mod find_space;
mod idle;
pub mod kernel;
pub(crate) mod maps;
mod memory;
mod ops;
#[cfg(all(test, not(any(loom, shuttle))))]
mod outside;
pub(crate) mod piece;
pub(crate) mod pte_update;
pub(crate) mod query;
mod space;
mod spaces;
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
pub mod tree;
mod update;
pub(crate) mod wired;

pub use crate::check::Broken;
pub use crate::map::ops::advise::Advice;
pub use crate::map::ops::inherit::{Content, Inherit};
pub use crate::map::ops::remap::Move;
pub use crate::map::wired::Wire;
pub use arena::Writer;
pub use arenas::{Changed, Moment, SPAN};
pub use covered::Covered;
pub use entry::{Attributes, Entry, Flags, Tag};
pub use find_space::{MapRequest, Placement};
pub use idle::{Dropped, SMALL};
pub use maps::Maps;
pub use memory::{FAN_OUT, MapMemory};
pub use ops::reap::Holdings;
pub use query::EntryInfo;
pub use space::{Limits, STACK_GUARD, Space, SpaceRef, SpaceStats, USER};
pub use spaces::IDLE;
pub(crate) use spaces::{Hand, Which};
