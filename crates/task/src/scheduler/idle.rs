//! Which CPUs are idle, and can be claimed.
//!
//! Each CPU says so on a line of its own, which only those look at who want that CPU. For who wants any there is a set of hints:
//! the CPUs that are idle or were lately. A CPU stays in it when it has work again, so that one that sleeps and wakes writes
//! nothing that others share; who looks for an idle CPU takes out what is idle no more.
//!
//! | | goes idle: *says so, fences, looks whether it is in the hints, joins them* |
//! |---|---|
//! | **who takes it out of the hints** (*takes out, fences, looks again whether it is idle*) | one of the two sees the other, and it is in again |
//! | **who has work for it** (*queues, fences, looks here*) | finds it, or is found: it looks for work afterwards |

use super::cpu_mask::CpuBits;
use crate::mutant::{Mutant, mutant};
use core::ptr::NonNull;
use quire_sync::atomic::{AtomicBool, Ordering, fence_full};
use quire_sync::cpuset::CpuMask;
use quire_sync::{CpuId, PerCpu};

pub(crate) struct IdleCpus {
    /// The CPU halts, or is about to.
    now: PerCpu<AtomicBool>,
    /// It does, or did lately.
    lately: CpuBits,
}

impl IdleCpus {
    /// The size in bytes of the memory that [`new`](Self::new) needs.
    pub const fn bytes(cpus: usize) -> usize {
        PerCpu::<AtomicBool>::bytes(cpus)
    }

    /// None of `cpus` CPUs is.
    ///
    /// # Safety
    /// As [`PerCpu::new`].
    pub unsafe fn new(memory: NonNull<u8>, cpus: usize) -> Self {
        // SAFETY: the caller hands over what `PerCpu::new` asks for: `bytes` is the size of these elements.
        let now = unsafe { PerCpu::new(memory, cpus, |_| AtomicBool::new(false)) };
        IdleCpus { now, lately: CpuBits::new() }
    }

    /// Whether `cpu` is.
    pub fn contains(&self, cpu: CpuId) -> bool {
        self.now.of(cpu).load(Ordering::Acquire)
    }

    /// `cpu`, the caller's, goes idle. Whatever it looks at afterwards it sees as it is once others can find it here.
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

    /// Takes `cpu` out; whether it was in. Writes nothing where it was not.
    pub fn take(&self, cpu: CpuId) -> bool {
        self.contains(cpu) && self.now.of(cpu).swap(false, Ordering::AcqRel)
    }

    /// Takes one of `mask` out, searched upwards from `from` and round.
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
    fn who_was_idle_lately_is_not_taken_and_who_is_idle_again_is_found() {
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
