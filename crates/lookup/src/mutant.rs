//! Mutants: steps of this crate's protocols that a model leaves out, so that it must fail; see
//! [`quire_sync::mutants!`].

quire_sync::mutants! {
    /// A protocol step that can be left out. Each comment names the protocol and the step.
    pub enum Mutant {
        /// Holds: a lookup takes a hold although the crowd (the sharded count of holds) is closed.
        HoldOfClosed,
        /// Holds: a hold that is released after the close of a crowd is not subtracted from the sum.
        LetGoUncounted,
        /// Names: a lookup that finds a value whose count is zero does not check for a replacement.
        NameReadOnce,
        /// Names: the value of a removed name, or its memory, is not kept until lookups are done.
        NameValueFreed,
        /// Slots: a lookup that finds a value whose count is zero does not check for a replacement.
        SlotReadOnce,
        /// Slots: the memory of a removed value is not kept until lookups are done.
        SlotValueFreed,
    }
}
