//! Steps of this crate's protocols that models leave out; see [`quire_sync::mutants!`].

quire_sync::mutants! {
    /// A step that can be left out. Each description names the protocol and the step.
    pub enum Mutant {
        /// Connections: `accept` notifies no client of the place that it has made.
        BacklogUnannounced,
        /// Connections: a client does not check whether its listener closed while the client connected.
        ConnectedUnchecked,
        /// Files in flight: the collector counts once, and does not count the unreached sockets again.
        CountedOnce,
        /// Streams: a disconnect does not end the calls that began before it.
        DisconnectUncounted,
        /// Files in flight: a thread that has dropped the messages of closed sockets does not look for further closed
        /// sockets.
        GraveUnseen,
        /// Streams: readers are notified of the end of a peer before the end is visible.
        NotifiedBeforeEnd,
        /// Streams: a reader notifies no writer of the room that it has made.
        RoomUnannounced,
    }
}
