//! Steps of this crate's protocols that models leave out, to show that they would find the omission.

quire_sync::mutants! {
    /// A step that can be left out; each names the protocol and the step.
    pub enum Mutant {
        /// Switch-in reads the generation before the shooter can see the CPU in the set.
        ArriveNoFence,
        /// A flush reads the set before arriving CPUs can see the new generation.
        BumpNoFence,
        /// A CPU that leaves a space looks at it again when nobody has to ask the CPU any more.
        LeaveLooksLate,
        /// A CPU that has missed a flush counts it as seen with the next.
        MissedCountAsSeen,
        /// A CPU that drops everything reads afterwards which flushes that was for.
        NewestAfterFlush,
        /// A CPU that goes idle stops running the space before it says that it still has it loaded.
        LazyAfterRunning,
        /// A walker uses a table page that was marked dead before it got the lock.
        TableNoDeadCheck,
        /// A table page is linked below a dead parent.
        LinkNoDeadCheck,
        /// Who links a table page does not look again, under its parent's lock, whether there is one.
        LinkUnlooked,
        /// What the caller checks under the lock may have been read before the table was linked.
        TableNoFence,
        /// A leaf is cleared before its removal is counted, or without.
        TakeNotCounted,
        /// A removal that is flushed at once does not look whether a CPU runs the space.
        TakenUnasked,
        /// A table page whose removals are not flushed yet is pruned.
        PruneUnflushed,
        /// The pruner trusts the count that it read without the child's lock.
        PruneNoChildLock,
        /// A CPU that copies an entry of the root reads its generation before a flush can see it in the set.
        CopyNoFence,
        /// Who closes a regime reads whom to ask before CPUs that switch in can see it closed.
        CloseNoFence,
        /// Whether entries of the root stay is looked at when a step of pruning begins, not under the root's lock.
        KeepsRootEarly,
    }
}
