//! Steps of the protocols that models leave out, to show that they would find the omission.

quire_sync::mutants! {
    /// A step that can be left out; each names the protocol and the step.
    pub enum Mutant {
        /// Park: a waiting token is not checked.
        ParkOverToken,
        /// Wake-up: a woken thread is queued on another CPU although its old CPU has not switched away from it.
        PlaceBeforeLeft,
        /// Steal: a thread is taken from a CPU's queue although that CPU has not switched away from it.
        StealBeforeLeft,
        /// Switch: `on_cpu` is cleared without release, so the next CPU of the thread may not see the saved context.
        LeftRelaxed,
        /// Queue: a CPU that halts is not interrupted when a thread is queued there.
        QueueWithoutKick,
        /// Idle: a CPU may check for threads before its idle mark is visible.
        IdleNoFence,
        /// Idle: a CPU checks for threads before it marks itself as idle.
        LookBeforeIdle,
        /// Idle: a searcher that clears a CPU's hint ("was idle recently") does not check again whether the CPU is
        /// idle.
        ForgetNoLook,
        /// Offer: a crowded CPU may check for idle CPUs before its mark as crowded is visible.
        OfferNoFence,
        /// Queue: a CPU may read a thread's urgency before the thread's new home (the CPU of its queue) is visible.
        HomeNoFence,
        /// End: a thread that must end is taken off the queue of its old home.
        HastenAtOldHome,
        /// Watch: a CPU may check whether its watcher has a tick before its own mark as busy is visible.
        BusyNoFence,
        /// Watch: an idle CPU turns its tick off, whether or not its ward (the CPU that it watches) is busy.
        StandDownNoLook,
        /// Futex: a waiter compares the word before the waiter is counted.
        CheckBeforeCount,
        /// Futex: a waiter's comparison may come before its count is visible.
        CountNoFence,
        /// Futex: a waker may read the count before its change of the word is visible.
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
        /// Priority inheritance: a thread becomes the owner without a check whether it has ended.
        PiOwnerUnlooked,
        /// Priority inheritance: a waiter's level is read before a walk along the owners can find the waiter.
        PiLevelEarly,
        /// Priority inheritance: a waiter that gives up does not check whether it was made the owner.
        PiLeaveThoughOwner,
        /// Priority inheritance: the owner keeps the weight of a waiter that left.
        PiLeaveUnsettled,
        /// Timer: a timer is marked as not armed before its callback runs, not after.
        UnarmedBeforeFired,
        /// Timer: a cancel does not check again whether the timer is armed, once it has the wheel's lock.
        CancelTrustsFirstLook,
        /// Park: a deadline stays armed when the thread returns.
        DeadlineStaysArmed,
        /// Ids: a lookup uses a name without locking it.
        LookupUnlocked,
        /// Ids: the holders of a number are counted by a load and a store.
        HoldNotAtomic,
        /// Broadcast: the table may be read before the raised count is visible.
        BroadcastNoFence,
        /// Broadcast: the maker's last check may happen before the new thread is visible in the table.
        MadeNoFence,
        /// Broadcast: a thread is made during a broadcast.
        MadeDuringBroadcast,
        /// Broadcast: the maker does not check a second time.
        MadeUnchecked,
        /// Powers: the owner's memory is closed after its new ids are shown.
        ClosesLate,
        /// Powers: a looker checks whether the memory is open before it reads the ids.
        OpenBeforeIds,
        /// Powers: a looker checks the memory that the thread has after the looker has read its ids. It should check
        /// the memory that it got before it read the ids.
        OpenOfOther,
        /// Powers: a looker is granted the memory that the thread has after the check.
        GrantsOther,
        /// Powers: the note whether the memory was closed is written after the owner has left that memory.
        NotesLate,
        /// Powers: whether a copy of memory is open is read before the copy is made.
        OpenBeforeCopy,
    }
}
