//! Harvesting dirty bits: a removed leaf says whether its page was stored into.

use crate::machine::{Machine, Removed};
use crate::object::Objects;
use crate::phys::page::State;

/// Relies on C2, *dirty*: a CPU that removes a leaf, or its right to store, credits its dirty bit under the table
/// page's lock. (A writable leaf implies a dirty page. So this matters only if a cleaner has just cleared the page's
/// mark and has not come to this leaf yet. The cleaner will find nothing there, and the store must not be lost.)
#[inline]
pub(crate) fn credit<M: Machine>(vm: &Objects<M>, old: Option<Removed>) {
    if let Some(leaf) = old
        && leaf.dirty
        && leaf.pfn.0 < vm.page_count()
        // Mostly true, so read first, whatever the frame may be.
        && !vm.page(leaf.pfn).state().dirty()
        && let Some(page) = vm.page_of_leaf(leaf.pfn)
    {
        page.set(State::DIRTY);
    }
}
