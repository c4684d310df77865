//! Steps of the protocols that models leave out, to show that they would find the omission.

quire_sync::mutants! {
    /// A step that can be left out; each names the protocol and the step.
    pub enum Mutant {
        /// Park: a waiting token is not checked.
        ParkOverToken,
        /// Wake-up: a woken thread is queued on another CPU although it has not left its own.
        PlaceBeforeLeft,
        /// Steal: a thread is taken from a queue although it has not left that CPU.
        StealBeforeLeft,
        /// Switch: the saved context need not be visible to the CPU that runs the thread next.
        LeftRelaxed,
        /// Queue: a CPU that halts is not interrupted when a thread is queued there.
        QueueWithoutKick,
        /// Idle: a CPU looks for threads before it can be seen as idle.
        IdleNoFence,
        /// Idle: a CPU looks for threads before it is marked as idle.
        LookBeforeIdle,
        /// Idle: a searcher that clears a hint does not check again whether the CPU is idle.
        ForgetNoLook,
        /// Offer: a crowded CPU looks for idle ones before it can be seen as crowded.
        OfferNoFence,
        /// Queue: a CPU reads a thread's urgency before its new home can be seen.
        HomeNoFence,
        /// Watch: a CPU looks for its watcher before it can be seen as busy.
        BusyNoFence,
        /// Watch: an idle CPU stops its tick, whether or not its ward is busy.
        StandDownNoLook,
        /// Futex: a waiter compares the word before it is counted.
        CheckBeforeCount,
        /// Futex: a waiter's comparison may come before its count is visible.
        CountNoFence,
        /// Futex: a waker reads the count before its change of the word is visible.
        WakeNoFence,
        /// Futex: `woken` of a chosen waiter is set before its waker has a reference to its thread.
        WokenBeforeReference,
        /// Futex: a waiter that leaves by itself does not check whether it was moved while it waited for its bucket's
        /// lock.
        LeaveOldBucket,
        /// Futex: a waiter that leaves by itself does not check whether it was chosen while it waited for its bucket's
        /// lock.
        LeaveThoughChosen,
        /// Futex: a waiter that is moved is not counted in its new bucket.
        RequeueUncounted,
        /// Priority inheritance: a lock is given to a thread without a look whether the thread has ended.
        PiOwnerUnlooked,
        /// Priority inheritance: a waiter's level is read before the waiter can be found by a walk.
        PiLevelEarly,
        /// Priority inheritance: a waiter that gives up does not check whether it was made the owner.
        PiLeaveThoughOwner,
        /// Priority inheritance: the owner keeps the weight of a waiter that left.
        PiLeaveUnsettled,
        /// Timer: it stops being armed before its callback runs, not after.
        UnarmedBeforeFired,
        /// Timer: a cancel does not check again whether the timer is armed, once it has the wheel's lock.
        CancelTrustsFirstLook,
        /// Park: a deadline stays armed when the thread returns.
        DeadlineStaysArmed,
        /// Ids: a lookup uses a name without locking it.
        LookupUnlocked,
        /// Ids: the holders of a number are counted by a load and a store.
        HoldNotAtomic,
        /// Broadcast: the table may be read before the broadcast can be seen.
        BroadcastNoFence,
        /// Broadcast: the maker's last check may be read before the new thread can be found.
        MadeNoFence,
        /// Broadcast: a thread is made during a broadcast.
        MadeDuringBroadcast,
        /// Broadcast: the maker does not check a second time.
        MadeUnchecked,
        /// Powers: the owner's memory is closed after its new ids are shown.
        ClosesLate,
        /// Powers: a looker checks whether the memory is open before it reads the ids.
        OpenBeforeIds,
        /// Powers: a looker checks the memory that the thread has when its ids were read, not the memory that it took
        /// before.
        OpenOfOther,
        /// Powers: a looker is granted the memory that the thread has after the check.
        GrantsOther,
        /// Powers: the note whether the memory was closed is written after the owner has left it.
        NotesLate,
        /// Powers: whether a copy of memory is open is read before the copy is made.
        OpenBeforeCopy,
    }
}
