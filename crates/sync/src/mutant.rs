//! Steps of this crate's protocols that models leave out; see [`mutants!`](crate::mutants!).

crate::mutants! {
    /// A step that can be left out; each names the protocol and the step.
    pub enum Mutant {
        /// Epoch: a reader's loads may come before its pin is visible.
        PinNoFence,
        /// Epoch: the epoch advances past readers that are pinned in an older epoch.
        AdvancePastReaders,
        /// Epoch: a CPU that retires and advances never fences, so it may read slots before its unlinking is visible.
        AdvanceNoFence,
        /// Epoch: retired values are freed one epoch later, not two.
        FreedTooSoon,
        /// Epoch: a drain frees without advancing the epoch.
        DrainAdvancesNothing,
        /// Epoch: a drain does not wait for CPUs that have emptied a bag of retired values and are still freeing these
        /// values.
        DrainTrustsEmptyBags,
        /// Epoch: a CPU's slot that was checked in an older epoch is not checked again.
        PassedInAnyEpoch,
        /// Epoch: a writer that has retired very much does not wait for readers.
        NoPushBack,
        /// Epoch: when a reader drops a pin inside another pin, both pins end.
        NestedPinEnds,
        /// Limited counter: a taker takes a spare permit although its stock was closed after it read the stock.
        TakeFromClosed,
        /// Limited counter: a CPU that closes a stock reads and marks it in two steps.
        CloseNotAtomic,
        /// Spin lock: the lock is acquired by a load and a later store.
        LockNotAtomic,
        /// Spin lock: the holder's stores need not be visible to the next holder.
        UnlockRelaxed,
        /// Mutex: a release wakes no waiter.
        UnlockWithoutWakeUp,
        /// Wait queue: a waiter checks its condition before it is listed, and not after.
        LookBeforeListed,
        /// Wait queue: a waiter's check may come before it is visible as waiting.
        WaitNoFence,
        /// Wait queue: a waker reads the waiters before its change is visible.
        WakeNoFence,
        /// Wait queue: a waiter sleeps although a waker chose it while its check of the condition slept.
        TokenUsedUp,
        /// Wait queue: a listed thread that waited for a lock before its sleep does not renew the wake-up token that
        /// this wait consumed.
        TokenNotRenewed,
        /// Wait queue: a thread that ends its listing stays on the queue.
        ListingStays,
        /// Wait queue: a wake-up is lost if it chose a waiter whose wait ends for another reason.
        WakeNotPassedOn,
        /// Wait queue: a waiter that a waker chose, but whose condition held already, does not wake the next waiter instead.
        WakeKept,
        /// Sequence: a reader does not read the count again.
        NoSecondCount,
        /// Sequence: a reader may load the words after its second read of the count.
        ReadNoFence,
        /// Sequence: a writer does not make the count odd.
        WriteUncounted,
        /// Sequence: a writer's stores may be seen before the odd count.
        WriteNoFence,
    }
}
