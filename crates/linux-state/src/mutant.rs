//! Steps of this crate's protocols that models leave out; see [`quire_sync::mutants!`].

quire_sync::mutants! {
    /// The steps that can be left out. Each comment names the protocol, and the effect of the missing step.
    pub enum Mutant {
        /// Signals: a sender reads the masks before its signal can be seen.
        SendNoFence,
        /// Signals: a thread reads the pending signals before its new mask can be seen.
        BlockNoFence,
        /// Signals: a thread that unblocks signals does not look for pending signals.
        UnblockUnlooked,
        /// Signals: a thread that blocks a signal, of which it may have been notified, notifies no other thread.
        BlockKeepsNotified,
        /// Signals: a thread clears its signal flag after it has checked the pending signals.
        FlagClearedLate,
        /// Signals: a thread checks for an awaited signal before senders can see that it waits.
        AwaitNoFence,
        /// Signals: a thread that ends its wait checks a last time before senders can see the end.
        AwaitEndNoFence,
        /// Signals: a thread that ends its wait notifies no other thread of the awaited signals that it leaves.
        AwaitKeepsNotified,
        /// Time of day: a sleeper reads the time before its mark can be seen.
        DayMarkNoFence,
        /// Time of day: a setter reads the marks before the new time can be seen.
        DaySetNoFence,
        /// Time of day: a setter reads a thread's mark and notifies the thread in two steps. The thread may clear the
        /// mark between them.
        DayNotifyNotAtomic,
        /// Clock page: a writer does not make the count odd.
        ClockUncounted,
        /// Clock page: a writer's stores may be seen before the odd count.
        ClockWriteNoFence,
        /// Clock page: the final count may be seen before the words.
        ClockCountEarly,
    }
}
