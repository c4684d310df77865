//! Steps of the protocols that the model tests leave out on purpose, to see a checker fail. Native builds have no mutants:
//! [`on`] is `false` at compile time there.

/// A step that can be left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Mutant(pub u8);

/// Switch-in reads the generation before the shooter can see the CPU in the set.
pub(crate) const ARRIVE_NO_FENCE: Mutant = Mutant(1);
/// A flush reads the set before arriving CPUs can see the new generation.
pub(crate) const BUMP_NO_FENCE: Mutant = Mutant(2);
/// A walker uses a table page that was marked dead before it got the lock.
pub(crate) const TABLE_NO_DEAD_CHECK: Mutant = Mutant(3);
/// A table page is linked below a dead parent.
pub(crate) const LINK_NO_DEAD_CHECK: Mutant = Mutant(4);
/// What the caller checks under the lock may have been read before the table was linked.
pub(crate) const TABLE_NO_FENCE: Mutant = Mutant(5);
/// A leaf is cleared before its removal is counted, or without.
pub(crate) const TAKE_NOT_COUNTED: Mutant = Mutant(6);
/// A table page whose removals are not flushed yet is pruned.
pub(crate) const PRUNE_UNFLUSHED: Mutant = Mutant(7);
/// The pruner trusts the count that it read without the child's lock.
pub(crate) const PRUNE_NO_CHILD_LOCK: Mutant = Mutant(8);
/// A CPU that copies an entry of the root reads its generation before a flush can see it in the set.
pub(crate) const COPY_NO_FENCE: Mutant = Mutant(9);
/// Who closes a regime reads whom to ask before CPUs that switch in can see it closed.
pub(crate) const CLOSE_NO_FENCE: Mutant = Mutant(10);
/// Whether entries of the root stay is looked at when a step of pruning begins, not under the root's lock.
pub(crate) const KEEPS_ROOT_EARLY: Mutant = Mutant(11);

#[cfg(not(any(loom, shuttle)))]
#[inline(always)]
pub(crate) const fn on(_m: Mutant) -> bool {
    false
}

#[cfg(any(loom, shuttle))]
mod switch {
    use super::Mutant;
    // Both checkers run all threads of a model on the operating-system thread of its test.
    std::thread_local! {
        static ON: std::cell::Cell<u8> = const { std::cell::Cell::new(0) };
    }
    pub(crate) fn on(m: Mutant) -> bool {
        ON.get() == m.0
    }
    #[cfg(test)]
    pub(crate) fn set(m: Option<Mutant>) {
        ON.set(m.map_or(0, |m| m.0));
    }
}
#[cfg(any(loom, shuttle))]
pub(crate) use switch::on;
#[cfg(all(test, any(loom, shuttle)))]
pub(crate) use switch::set;
