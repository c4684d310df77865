//! A page that a walk along a chain found, and its place.

use crate::machine::Machine;
use crate::object::Object;
use crate::object::backing::Backing;
use crate::phys::page::{Page, State};
use quire_sync::atomic::AtomicU64;

/// A page that a walk found.
pub(crate) struct FoundPage<'e, M: Machine> {
    pub page: &'static Page,
    /// The page's state when the walk found it: not busy, and valid.
    pub state: State,
    pub object: &'e Object<M>,
    pub key: u64,
    /// The time of the last store, in the leaf node of the index that has the page. `None` if the page is not in a leaf
    /// node.
    pub stored: Option<&'e AtomicU64>,
    /// The layer that shows the object.
    pub layer: &'e Backing<M>,
    /// Number of layers in front of `layer`.
    pub depth: usize,
}
