//! Collects dirty bits: the dirty bit of a removed PTE is credited to its page.

use crate::machine::{Machine, Removed};
use crate::object::Objects;
use crate::phys::page::{FrameKind, State};

/// Relies on C2: no dirty bit is lost. A CPU that removes a PTE, or its right to store, credits the PTE's dirty bit to
/// the page under the table page's lock. (A writable PTE implies a dirty page. So the credit matters only if a cleaner
/// has just cleared the page's dirty bit and has not reached this PTE yet. The cleaner will find no PTE there, and the
/// store must not be lost.)
#[inline]
pub(crate) fn credit<M: Machine>(vm: &Objects<M>, old: Option<Removed>) {
    if let Some(leaf) = old
        && leaf.dirty
        && let Some(page) = vm.descriptors().of_leaf(leaf.pfn)
        // Most often the page is dirty already. So the dirty bit is read first, before the frame's kind is checked.
        && !page.state().dirty()
        && page.kind() == FrameKind::Object
    {
        page.set(State::DIRTY);
    }
}
