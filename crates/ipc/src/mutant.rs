//! Steps of this crate's protocols that models leave out; see [`quire_sync::mutants!`].

quire_sync::mutants! {
    /// The steps that can be left out. Each comment names the protocol, and the effect of the missing step.
    pub enum Mutant {
        /// Message queues: a change of the mode does not end the waits of sleeping calls.
        ChangeEndsNoWait,
        /// POSIX queues: a receiver that a signal has interrupted does not check for a message again.
        LeaveWithoutLook,
        /// All sleepers: a call that a signal has interrupted ignores the result that a waker has stored.
        ResultOfWakerIgnored,
        /// POSIX queues: a sender wakes no receiver.
        SentUnannounced,
        /// Semaphores: the end of each thread of a process reverts its changes, and not only the end of the last
        /// thread.
        EachThreadReverts,
    }
}
