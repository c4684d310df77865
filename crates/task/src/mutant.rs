//! Steps of the protocols that models leave out, to show that they would find the omission.

quire_sync::mutants! {
    /// A step that can be left out; each names the protocol and the step.
    pub enum Mutant {
        /// Park: it is not asked whether a token waits.
        ParkOverToken,
        /// Wake-up: a woken thread is queued on another CPU although it has not left its own.
        PlaceBeforeLeft,
        /// Steal: a thread is taken from a queue although it has not left that CPU.
        StealBeforeLeft,
        /// Switch: what a thread's CPU has saved need not be visible to the CPU that runs it next.
        LeftRelaxed,
        /// Queue: a CPU that halts is not told of a thread that was queued there.
        QueueWithoutKick,
        /// Idle: a CPU looks for threads before it can be seen as idle.
        IdleNoFence,
        /// Idle: a CPU looks for threads, and is marked as idle then.
        LookBeforeIdle,
        /// Idle: who takes a CPU that is idle no more out of the hints does not look whether it is again.
        ForgetNoLook,
        /// Offer: a crowded CPU looks for idle ones before it can be seen as crowded.
        OfferNoFence,
        /// Watch: a CPU looks for its watcher before it can be seen as busy.
        BusyNoFence,
        /// Watch: an idle CPU has no tick any more, whether or not its ward is busy.
        StandDownNoLook,
        /// Futex: a waiter compares the word before it is counted.
        CheckBeforeCount,
        /// Futex: a waiter's comparison may come before its count is visible.
        CountNoFence,
        /// Futex: a waker reads the count before its change of the word is visible.
        WakeNoFence,
        /// Futex: a waiter that was chosen is told so before its waker has a reference to its thread.
        WokenBeforeReference,
        /// Futex: who leaves by itself does not look whether it was moved while it waited for its bucket's lock.
        LeaveOldBucket,
        /// Futex: who leaves by itself does not look whether it was chosen while it waited for its bucket's lock.
        LeaveThoughChosen,
        /// Futex: a waiter that is moved is not counted in its new bucket.
        RequeueUncounted,
        /// Timer: it stops being armed before its callback runs, not after.
        UnarmedBeforeFired,
        /// Timer: who takes it back does not look again whether it is armed, once it has the wheel.
        CancelTrustsFirstLook,
        /// Park: a deadline is left armed when the thread goes on.
        DeadlineStaysArmed,
        /// Ids: a lookup uses a name without locking it.
        LookupUnlocked,
        /// Ids: who holds a number is counted by a look and a store.
        HoldNotAtomic,
        /// Roll call: the table may be read before the call can be seen.
        CallNoFence,
        /// Roll call: whether there was a call may be read before the new one can be found.
        MadeNoFence,
        /// Roll call: somebody is made while there is a call.
        MadeDuringCall,
        /// Roll call: who makes somebody does not ask again.
        MadeUnasked,
        /// Powers: the owner's memory is closed after its new ids are shown.
        ClosesLate,
        /// Powers: a looker asks whether the memory is open before it reads the ids.
        OpenBeforeIds,
        /// Powers: a looker asks about the memory that the thread has when its ids were read, not about the one that it took before.
        OpenOfOther,
        /// Powers: a looker is granted the memory that the thread has after the check.
        GrantsOther,
        /// Powers: whether the memory was closed is noted after it was left.
        NotesLate,
        /// Powers: whether a copy of memory is open is read before the copy is made.
        OpenBeforeCopy,
    }
}
