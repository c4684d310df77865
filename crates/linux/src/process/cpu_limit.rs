//! A process's state for its limit on CPU time. [`cpu_limit`](crate::time::cpu_limit) uses it.

use super::timers::Timers;
use crate::machine::Machine;
use core::sync::atomic::{AtomicBool, AtomicU64};

/// A process's state for its limit on CPU time.
pub struct CpuLimit<M: Machine> {
    pub(crate) timers: Timers<M>,
    /// The other threads were interrupted, and are counted next.
    pub(crate) interrupted: AtomicBool,
    /// The CPU time at the last count, and the timer's length set then. Both are hints, written by each count.
    pub(crate) used: AtomicU64,
    pub(crate) wait: AtomicU64,
}

impl<M: Machine> Default for CpuLimit<M> {
    fn default() -> Self {
        Self::new()
    }
}

impl<M: Machine> CpuLimit<M> {
    /// No limit.
    pub fn new() -> Self {
        CpuLimit {
            timers: Timers::new(),
            interrupted: AtomicBool::new(false),
            used: AtomicU64::new(0),
            wait: AtomicU64::new(0),
        }
    }
}
