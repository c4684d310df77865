//! Steps of this crate's protocols that models leave out; see [`quire_sync::mutants!`].

quire_sync::mutants! {
    /// A step that can be left out; each names the protocol and the step.
    pub enum Mutant {
        /// Holds: a lookup that comes after the crowd was closed holds all the same.
        HoldOfClosed,
        /// Holds: a holder that lets go after the crowd was closed is not counted in the sum.
        LetGoUncounted,
        /// Names: a lookup that finds a value on its way out does not look what has taken its place.
        NameReadOnce,
        /// Names: what was taken out does not wait for lookups.
        NameValueFreed,
        /// Slots: a lookup that finds a value on its way out does not look what has taken its place.
        SlotReadOnce,
        /// Slots: the memory of a value that was taken out does not wait for lookups.
        SlotValueFreed,
    }
}
