//! The stage of a process's life, and the waiters that learn of a change.

use crate::machine::Machine;
use crate::process::Process;
use quire_sync::atomic::{AtomicU8, Ordering};

/// How far a process has come.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Stage {
    /// The process lives.
    Alive,
    /// The process is a zombie.
    Ended,
    /// Its parent has reaped it, and its id may be another's.
    Reaped,
}

/// A process's [`Stage`].
pub struct OwnStage(AtomicU8);

impl OwnStage {
    /// Of a living process.
    pub(crate) fn new() -> Self {
        OwnStage(AtomicU8::new(Stage::Alive as u8))
    }
}

impl<M: Machine> Process<M> {
    /// How far it has come.
    pub fn stage(&self) -> Stage {
        match self.stage.0.load(Ordering::Acquire) {
            0 => Stage::Alive,
            1 => Stage::Ended,
            _ => Stage::Reaped,
        }
    }

    /// The process has come to `stage`. [`notify_its_files`](Self::notify_its_files) follows.
    pub fn comes_to(&self, stage: Stage) {
        self.stage.0.fetch_max(stage as u8, Ordering::AcqRel);
    }

    /// Notifies the waiters for its files of `pidfd_open`. Called after a change of its stage, with no spin lock held.
    pub fn notify_its_files(&self) {
        if let Some(files) = self.own_files.get() {
            files.notify();
        }
    }
}
