//! The stage of a process's life, and the notification of waiters when it changes.

use crate::machine::Machine;
use crate::process::Process;
use quire_sync::atomic::{AtomicU8, Ordering};

/// The stages of a process's life, in order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Stage {
    /// The process lives.
    Alive,
    /// The process is a zombie.
    Ended,
    /// The parent has reaped the process, and its id may belong to another process.
    Reaped,
}

/// The present [`Stage`] of a process.
pub struct OwnStage(AtomicU8);

impl OwnStage {
    /// The stage of a living process.
    pub(crate) fn new() -> Self {
        OwnStage(AtomicU8::new(Stage::Alive as u8))
    }
}

impl<M: Machine> Process<M> {
    /// The process's present stage.
    pub fn stage(&self) -> Stage {
        match self.stage.0.load(Ordering::Acquire) {
            0 => Stage::Alive,
            1 => Stage::Ended,
            _ => Stage::Reaped,
        }
    }

    /// Records that the process has reached `stage`. The caller then calls
    /// [`notify_its_files`](Self::notify_its_files).
    pub fn comes_to(&self, stage: Stage) {
        self.stage.0.fetch_max(stage as u8, Ordering::AcqRel);
    }

    /// Wakes the waiters for the `pidfd_open` files of this process. Called after a change of the stage, with no spin
    /// lock held.
    pub fn notify_its_files(&self) {
        if let Some(files) = self.own_files.get() {
            files.notify();
        }
    }
}
