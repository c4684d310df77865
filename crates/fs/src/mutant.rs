//! Steps of this crate's protocols that models leave out; see [`quire_sync::mutants!`].

quire_sync::mutants! {
    /// A step that can be left out; each names the protocol and the step.
    pub enum Mutant {
        /// Readiness: a waiter checks the stream's state before it is visible among the listeners.
        ListenNoFence,
        /// Readiness: a poller that is notified wakes no thread.
        PollerUnwoken,
        /// Pipe: a reader decides whether it has made room from the end of the bytes that it loaded first, without a
        /// new load.
        RoomByFirstEnd,
        /// Pipe: a reader decides whether it has made room before its new position is visible.
        RoomNoFence,
    }
}
