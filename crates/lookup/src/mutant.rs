//! Steps of this crate's protocols that models leave out; see [`quire_sync::mutants!`].

quire_sync::mutants! {
    /// A step that can be left out; each names the protocol and the step.
    pub enum Mutant {
        /// Holds: a lookup that comes after the crowd was closed holds all the same.
        HoldOfClosed,
        /// Holds: a hold that is released after the crowd was closed is not subtracted from the sum.
        LetGoUncounted,
        /// Names: a lookup that finds a dying value does not check for its replacement.
        NameReadOnce,
        /// Names: a removed name does not wait for lookups.
        NameValueFreed,
        /// Slots: a lookup that finds a dying value does not check for its replacement.
        SlotReadOnce,
        /// Slots: the memory of a removed value does not wait for lookups.
        SlotValueFreed,
    }
}
