//! Operations on a map: each says which pieces take a range's place, and what is to happen to the leaves.
//!
//! `update` (one level up) does the change; what an operation must not do is listed in the map's own documentation. An operation
//! knows the space, its arenas and entries, and faults pages in where it has to. Nothing but the system's top stands above.

pub(crate) mod advise;
pub(crate) mod foreign;
pub(crate) mod fork;
pub(crate) mod inherit;
pub(crate) mod map;
pub(crate) mod populate;
pub(crate) mod protect;
pub(crate) mod reap;
pub(crate) mod remap;
pub(crate) mod stack;
pub(crate) mod unmap;
pub(crate) mod wire;
