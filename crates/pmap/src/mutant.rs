//! Steps of this crate's protocols that models leave out, to show that they would find the omission.

quire_sync::mutants! {
    /// A step that can be left out; each names the protocol and the step.
    pub enum Mutant {
        /// Switch-in reads the generation before the shooter can see the CPU in the set.
        ArriveNoFence,
        /// A flush reads the set before arriving CPUs can see the new generation.
        BumpNoFence,
        /// A CPU that leaves a space reads it again when it is no target any more.
        LeaveLooksLate,
        /// A CPU that has missed a flush counts it as seen with the next.
        MissedCountAsSeen,
        /// A CPU that drops everything reads the generation afterwards.
        NewestAfterFlush,
        /// A CPU that goes idle leaves the running set before it enters the lazy set.
        LazyAfterRunning,
        /// A walker uses a table page that was marked dead before it got the lock.
        TableNoDeadCheck,
        /// A table page is linked below a dead parent.
        LinkNoDeadCheck,
        /// A CPU that links a table page does not check again, under its parent's lock, whether there is one.
        LinkUnlooked,
        /// The caller's checks under the lock may read before the table was linked.
        TableNoFence,
        /// A leaf is cleared before its removal is counted, or without.
        TakeNotCounted,
        /// A removal that is flushed at once does not check whether a CPU runs the space.
        TakenUnasked,
        /// A table page whose removals are not flushed yet is pruned.
        PruneUnflushed,
        /// The pruner trusts the count that it read without the child's lock.
        PruneNoChildLock,
        /// A CPU that copies an entry of the root reads its generation before a flush can see it in the set.
        CopyNoFence,
        /// A CPU that closes a regime reads its targets before CPUs that switch in can see it closed.
        CloseNoFence,
        /// A step of pruning reads at its beginning whether entries of the root stay, not under the root's lock.
        KeepsRootEarly,
        /// A CPU that switches in reads which root to load before it joins the CPUs that run the space.
        RootReadEarly,
        /// A CPU that makes a root does not check again, under the word's lock, whether there is one.
        PutRootUnlooked,
        /// A CPU that makes a root reads the running CPUs before CPUs that switch in can see the root.
        PutRootNoFence,
        /// The root goes without its own lock.
        TakeRootNoLock,
        /// The root goes although CPUs have copies of its entries.
        TakeRootCopied,
        /// A CPU that drops the root reads its targets before CPUs that switch in can see that there is none.
        TakeRootNoFence,
        /// Of the CPUs that have the space loaded, those that do not run it keep a dropped root.
        TakeRootAsksRunning,
    }
}
