//! The mutants of this crate: steps of its protocols that a build leaves out, to show that the models find the
//! omission.

quire_sync::mutants! {
    /// A step that can be left out. Each comment describes the protocol without the step.
    pub enum Mutant {
        /// A CPU that switches in reads the generation before the flushing CPU can see it in the set of running CPUs.
        ArriveNoFence,
        /// A flush reads the set of running CPUs before CPUs that switch in can see the new generation.
        BumpNoFence,
        /// A CPU that leaves a space still reads the space's sets when it is in none of them, so the space may be
        /// freed.
        LeaveLooksLate,
        /// A CPU that has missed a flush counts this flush as seen when it serves the next flush.
        MissedCountAsSeen,
        /// A CPU that drops all translations reads the generation after the drop, not before.
        NewestAfterFlush,
        /// A CPU that goes idle leaves the running set before it enters the lazy set.
        LazyAfterRunning,
        /// A walker uses a table page that was marked dead before it got the lock.
        TableNoDeadCheck,
        /// A table page is linked below a dead parent.
        LinkNoDeadCheck,
        /// A CPU that links a table page does not check again, under its parent's lock, whether another CPU has linked
        /// one.
        LinkUnlooked,
        /// The checks that a caller makes under the lock may read memory before the linking of the table page is
        /// visible.
        TableNoFence,
        /// A leaf is cleared, but its removal is not counted.
        TakeNotCounted,
        /// A removal counts as flushed at once, without a check whether a CPU runs the space.
        TakenUnasked,
        /// A table page whose removals are not flushed yet is pruned.
        PruneUnflushed,
        /// The pruner relies on the count of present entries that it read without the child's lock.
        PruneNoChildLock,
        /// A CPU that copies an entry of the root reads the entry's generation before a flush can see the CPU in the
        /// entry's set.
        CopyNoFence,
        /// A CPU that ends the use of per-CPU roots reads its targets before CPUs that switch in can see the end.
        CloseNoFence,
        /// A regime of per-CPU roots begins while CPUs may still have own roots of the last one loaded.
        OpenWhileClosing,
        /// A step of pruning reads at its beginning, and not under the root's lock, whether root entries must stay
        /// linked.
        KeepsRootEarly,
        /// A CPU that switches in reads which root to load before it joins the CPUs that run the space.
        RootReadEarly,
        /// A CPU that makes a root does not check again, under the word's lock, whether another CPU has made one.
        PutRootUnlooked,
        /// A CPU that makes a root reads the running CPUs before CPUs that switch in can see the root.
        PutRootNoFence,
        /// The root is dropped without its own lock.
        TakeRootNoLock,
        /// The root is dropped although CPUs have copies of its entries.
        TakeRootCopied,
        /// A CPU that drops the root reads its targets before CPUs that switch in can see that there is no root.
        TakeRootNoFence,
        /// Only CPUs that run the space leave a dropped root; lazy CPUs keep it loaded.
        TakeRootAsksRunning,
    }
}
