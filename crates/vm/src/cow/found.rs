//! A page that a walk along a chain found, and where.

use crate::machine::Machine;
use crate::object::Object;
use crate::object::backing::Backing;
use crate::phys::page::{Page, State};
use quire_sync::atomic::AtomicU64;

/// A page that a walk found.
pub(crate) struct FoundPage<'e, M: Machine> {
    pub page: &'static Page,
    /// As it was when found: not busy, valid.
    pub state: State,
    pub object: &'e Object<M>,
    pub key: u64,
    /// The time of stores of the leaf of the index where it was found, if it was in one.
    pub stored: Option<&'e AtomicU64>,
    /// The layer that shows the object.
    pub layer: &'e Backing<M>,
    /// Layers in front of it.
    pub depth: usize,
}
