//! Operations on a map. Each states the pieces that replace a range, and the work on the leaves.
//!
//! The folder `map/update` makes the change. `map/mod.rs` lists the rules for operations. An operation may use the
//! space, its arenas and entries, and may fault pages in. Only `vm/mod.rs` is above the operations.

pub(crate) mod advise;
pub(crate) mod dump;
#[cfg(all(test, not(any(loom, shuttle))))]
mod ending;
pub(crate) mod force;
pub(crate) mod foreign;
pub(crate) mod fork;
pub(crate) mod inherit;
pub(crate) mod map;
pub(crate) mod populate;
pub(crate) mod protect;
pub(crate) mod reap;
pub(crate) mod remap;
pub(crate) mod seal;
pub(crate) mod show;
pub(crate) mod stack;
pub(crate) mod structures;
pub(crate) mod unmap;
pub(crate) mod wire;
