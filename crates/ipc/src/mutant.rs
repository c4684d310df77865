//! Steps of this crate's protocols that models leave out; see [`quire_sync::mutants!`].

quire_sync::mutants! {
    /// A step that can be left out; each names the protocol and the step.
    pub enum Mutant {
        /// Message queues: a change of the mode leaves the calls that wait asleep.
        ChangeEndsNoWait,
        /// POSIX queues: a receiver that a signal ends leaves without a last look.
        LeaveWithoutLook,
        /// All sleepers: a call that a signal ends ignores the result that a waker has given.
        ResultOfWakerIgnored,
        /// POSIX queues: a sender announces no message.
        SentUnannounced,
        /// Semaphores: each thread of a process reverts its changes, not only the last.
        EachThreadReverts,
    }
}
