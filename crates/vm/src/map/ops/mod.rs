//! Operations on a map: each names the pieces that replace a range, and the work on the leaves.
//!
//! `update` (one level up) does the change; the map's own documentation lists the rules for operations. An operation
//! knows the space, its arenas and entries, and faults pages in where it has to. Only the system's top stands above.

pub(crate) mod advise;
pub(crate) mod dump;
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
