//! Steps of this crate's protocols that models leave out; see [`mutants!`](crate::mutants!).

crate::mutants! {
    /// A step that can be left out; each names the protocol and the step.
    pub enum Mutant {
        /// Epoch: what a reader looks at may be read before its pin is visible.
        PinNoFence,
        /// Epoch: the epoch advances past readers that are pinned in an older one.
        AdvancePastReaders,
        /// Epoch: who retires and advances never fences: slots may be read before the unlinking is visible.
        AdvanceNoFence,
        /// Epoch: what was retired is freed one epoch later, not two.
        FreedTooSoon,
        /// Epoch: a drain frees what may go, and advances nothing.
        DrainAdvancesNothing,
        /// Epoch: slots that were passed in an older epoch are not looked at again.
        PassedInAnyEpoch,
        /// Epoch: a writer that has retired very much does not wait for readers.
        NoPushBack,
        /// Epoch: a reader that unpins inside another pin ends both.
        NestedPinEnds,
        /// Headcount: a taker takes a spare permit though its stock was closed meanwhile.
        TakeFromClosed,
        /// Headcount: who closes a stock looks at it and marks it, instead of both at once.
        CloseNotAtomic,
        /// Spin lock: it is taken by a look and a store.
        LockNotAtomic,
        /// Spin lock: what the holder wrote need not be visible to the next one.
        UnlockRelaxed,
        /// Mutex: who waits for it is not told when it is free.
        UnlockTellsNobody,
        /// Wait queue: a waiter looks at its condition before it is listed, and not after.
        LookBeforeListed,
        /// Wait queue: a waiter's look may come before it can be seen as waiting.
        WaitNoFence,
        /// Wait queue: a waker looks for waiters before its change is visible.
        WakeNoFence,
        /// Wait queue: a wake-up that chose a waiter which ends for another reason is lost.
        WakeNotPassedOn,
        /// Wait queue: the same where that waiter has found what it waited for.
        WakeKept,
        /// Sequence: a reader does not look at the count again.
        NoSecondCount,
        /// Sequence: a reader may see the words after it has looked at the count for the second time.
        ReadNoFence,
        /// Sequence: a writer does not say that it writes.
        WriteUncounted,
        /// Sequence: what a writer stores may be seen before that it writes.
        WriteNoFence,
    }
}
