//! Harvesting dirty bits: a leaf that goes says whether its page was stored into.

use crate::machine::{Machine, Removed};
use crate::object::Objects;
use crate::phys::page::State;

/// Relies on C2, *dirty*: who takes a leaf away, or its right to store, credits what it says of stores, under the table page's
/// lock. (A writable leaf implies a dirty page, so there is something to do only where a cleaner has just cleared the page's
/// mark and has not come to this leaf yet: it will find nothing there, and the store must not be lost.)
#[inline]
pub(crate) fn credit<M: Machine>(vm: &Objects<M>, old: Option<Removed>) {
    if let Some(leaf) = old
        && leaf.dirty
        && leaf.pfn.0 < vm.page_count()
        // Most often it is: asked first, whatever the frame may be.
        && !vm.page(leaf.pfn).state().dirty()
        && let Some(page) = vm.page_of_leaf(leaf.pfn)
    {
        page.set(State::DIRTY);
    }
}
