//! The set of idle CPUs, from which a waker claims one.
//!
//! Each CPU marks itself idle on a cache line of its own, which only a waker that wants that CPU reads. A waker that
//! takes any idle CPU searches a set of hints instead: the CPUs that are idle or were lately. A hint is cleared lazily,
//! by the next waker that searches the set and finds the CPU busy. So a CPU that sleeps and wakes writes no shared
//! line.
//!
//! A CPU that goes idle *marks itself, fences, checks the hints, joins them*. Against it:
//!
//! - **A searcher clears its hint** (*clears, fences, checks again whether the CPU is idle*). One of the two sees the
//!   other, and the hint is set again.
//! - **A waker has work for it** (*queues, fences, looks here*). The waker finds it idle, or the CPU finds the work,
//!   because it looks for work afterwards.

use super::cpu_mask::CpuBits;
use crate::mutant::{Mutant, mutant};
use core::ptr::NonNull;
use quire_sync::atomic::{AtomicBool, Ordering, fence_full};
use quire_sync::cpuset::CpuMask;
use quire_sync::{CpuId, PerCpu};

pub(crate) struct IdleCpus {
    /// The CPU halts, or is about to.
    now: PerCpu<AtomicBool>,
    /// The CPU halts, or did lately.
    lately: CpuBits,
}

impl IdleCpus {
    /// The size in bytes of the memory that [`new`](Self::new) needs.
    pub const fn bytes(cpus: usize) -> usize {
        PerCpu::<AtomicBool>::bytes(cpus)
    }

    /// A set for `cpus` CPUs, none of them idle.
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

    /// Marks `cpu`, the caller's, as idle. A later read by the caller sees the work of every waker that did not see
    /// this mark.
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

    /// Takes `cpu` out; true if it was in. Writes nothing otherwise.
    pub fn take(&self, cpu: CpuId) -> bool {
        self.contains(cpu) && self.now.of(cpu).swap(false, Ordering::AcqRel)
    }

    /// Whether no CPU is idle or was lately. Then [`take_any`](Self::take_any) finds none.
    #[inline]
    pub fn has_none(&self) -> bool {
        self.lately.is_empty()
    }

    /// Takes one CPU of `mask` out, searched upwards from `from` and round.
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
        // SAFETY: a fresh allocation of that size, never freed.
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
