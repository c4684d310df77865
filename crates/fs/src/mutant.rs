//! Steps of this crate's protocols that models leave out; see [`quire_sync::mutants!`].

quire_sync::mutants! {
    /// A step that can be left out; each names the protocol and the step.
    pub enum Mutant {
        /// Readiness: a waiter checks the stream's state before the waiter is visible among the listeners.
        ListenNoFence,
        /// Readiness: a poller that is notified wakes no thread.
        PollerUnwoken,
        /// Pipe: a reader that checks whether it has made room uses its first load of `written`, instead of a new load.
        RoomByFirstEnd,
        /// Pipe: a reader may check whether it has made room while its new position is not visible yet.
        RoomNoFence,
    }
}
