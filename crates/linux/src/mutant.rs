//! Steps of this crate's protocols that models leave out; see [`quire_sync::mutants!`].

quire_sync::mutants! {
    /// A step that can be left out; each names the protocol and the step.
    pub enum Mutant {
        /// Barrier: the interrupts may be seen before the caller's stores.
        BarrierNoFence,
        /// Barrier: the caller does not wait for the interrupts.
        BarrierUnawaited,
        /// Barrier: the caller's loads may come before the others' interrupts.
        BarrierNoLastFence,
    }
}
