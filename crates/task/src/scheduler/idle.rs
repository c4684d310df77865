//! The set of idle CPUs, from which a waker claims one.
//!
//! Each CPU has an idle flag on its own cache line, which only a waker that needs that CPU reads. A waker for which any
//! idle CPU will do searches a set of hints instead: the CPUs that are idle or were idle recently. A hint is cleared
//! lazily, by the next waker that searches the set and finds the CPU busy. So a CPU that becomes idle and busy again
//! writes no shared cache line.
//!
//! A CPU that becomes idle *sets its flag, executes a fence, and sets its hint if it is not set*. It races with:
//!
//! - **a searcher that clears the hint** (*clears the hint, executes a fence, reads the flag again*). At least one of
//!   the two sees the other's store, and sets the hint again.
//! - **a waker that has work for the CPU** (*queues a thread, executes a fence, reads the set*). Either the waker finds
//!   the CPU idle, or the CPU finds the thread, because it checks for work after it has set its flag.

use super::cpu_mask::CpuBits;
use crate::mutant::{Mutant, mutant};
use core::ptr::NonNull;
use quire_sync::atomic::{AtomicBool, Ordering, fence_full};
use quire_sync::cpuset::CpuMask;
use quire_sync::{CpuId, PerCpu};

pub(crate) struct IdleCpus {
    /// The idle flag of each CPU: the CPU halts, or is about to halt.
    now: PerCpu<AtomicBool>,
    /// The hints: CPUs that are idle or were idle recently.
    lately: CpuBits,
}

impl IdleCpus {
    /// The size in bytes of the memory that [`new`](Self::new) needs.
    pub const fn bytes(cpus: usize) -> usize {
        PerCpu::<AtomicBool>::bytes(cpus)
    }

    /// A set for `cpus` CPUs, which contains none of them.
    ///
    /// # Safety
    /// As [`PerCpu::new`].
    pub unsafe fn new(memory: NonNull<u8>, cpus: usize) -> Self {
        // SAFETY: the caller hands over memory as `PerCpu::new` requires: `bytes` is the size of these elements.
        let now = unsafe { PerCpu::new(memory, cpus, |_| AtomicBool::new(false)) };
        IdleCpus { now, lately: CpuBits::new() }
    }

    /// Whether `cpu` is idle.
    pub fn contains(&self, cpu: CpuId) -> bool {
        self.now.of(cpu).load(Ordering::Acquire)
    }

    /// Marks `cpu`, the caller's CPU, as idle. If a waker does not see the mark, the caller's check of its queue after
    /// this call sees the thread that the waker has queued.
    pub fn insert(&self, cpu: CpuId) {
        if self.contains(cpu) {
            return;
        }
        let fence = || {
            if !mutant(Mutant::IdleNoFence) {
                fence_full();
            }
        };
        self.now.of(cpu).store(true, Ordering::Release);
        fence();
        if !self.lately.contains(cpu) {
            self.lately.insert(cpu);
            fence();
        }
    }

    /// Removes `cpu` from the set. Returns whether it was in the set. Writes nothing if it was not.
    pub fn take(&self, cpu: CpuId) -> bool {
        self.contains(cpu) && self.now.of(cpu).swap(false, Ordering::AcqRel)
    }

    /// Whether no CPU is idle or was idle recently. Then [`take_any`](Self::take_any) finds none.
    #[inline]
    pub fn has_none(&self) -> bool {
        self.lately.is_empty()
    }

    /// Removes one CPU of `mask` from the set, and returns it. The search goes upwards from `from`, and wraps around.
    pub fn take_any(&self, from: CpuId, mask: &CpuMask) -> Option<CpuId> {
        let mut left = *mask;
        while let Some(cpu) = self.lately.any_in(from, &left) {
            if self.take(cpu) {
                return Some(cpu);
            }
            self.lately.remove(cpu);
            fence_full();
            if self.contains(cpu) && !mutant(Mutant::ForgetNoLook) {
                self.lately.insert(cpu);
                if self.take(cpu) {
                    return Some(cpu);
                }
            }
            left.remove(cpu);
        }
        None
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use std::alloc::{Layout, alloc};

    #[test]
    fn only_cpus_that_are_idle_now_are_found() {
        let layout = Layout::from_size_align(IdleCpus::bytes(3), 128).expect("a layout");
        // SAFETY: the memory is a new allocation of that size, which is never freed.
        let idle = unsafe { IdleCpus::new(NonNull::new(alloc(layout)).expect("memory"), 3) };
        let all = CpuMask::first(3);
        idle.insert(1);
        idle.insert(2);
        assert!(idle.take(1) && !idle.take(1));
        assert_eq!(idle.take_any(1, &CpuMask::only(1)), None);
        assert_eq!((idle.take_any(1, &all), idle.take_any(1, &all)), (Some(2), None));
        idle.insert(1);
        assert_eq!((idle.contains(1), idle.take_any(0, &all)), (true, Some(1)));
    }
}
