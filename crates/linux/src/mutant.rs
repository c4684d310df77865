//! Steps of this crate's protocols that models leave out; see [`quire_sync::mutants!`].

quire_sync::mutants! {
    /// A step that can be left out. Each description names the protocol and the step.
    pub enum Mutant {
        /// Barrier: other CPUs may see the interrupt before the caller's stores.
        BarrierNoFence,
        /// Barrier: the caller does not wait until the other CPUs have handled the interrupts.
        BarrierUnawaited,
        /// Barrier: the caller's loads may be executed before the other CPUs have handled the interrupts.
        BarrierNoLastFence,
    }
}
