//! Arming a timer on this CPU, and cancelling it on any CPU.

use super::cpu::{NEVER, Scheduler};
use crate::irq::Masked;
use crate::machine::Machine;
use crate::mutant::{Mutant, mutant};
use crate::timer::Timer;
use quire_sync::CpuId;
use quire_sync::atomic::Ordering;

impl<M: Machine> Scheduler<M> {
    /// Arms `timer`, which is not armed, on this CPU's wheel. `deadline` is in nanoseconds of [`Machine::now`]. The
    /// timer expires up to 16 microseconds late, never early.
    ///
    /// # Safety
    /// The timer stays in place and alive until it has expired and is not armed again, or until
    /// [`cancel`](Self::cancel) has returned.
    pub unsafe fn arm(&self, timer: &Timer, deadline: u64) {
        debug_assert!(!timer.is_armed());
        let _masked = Masked::new(self.machine);
        let here = self.here();
        {
            let mut wheel = here.wheel.lock_masked();
            // SAFETY: the caller vouches that the timer stays in place until it has expired or is cancelled.
            unsafe { wheel.insert(timer, deadline) };
            here.wheel_due.store(wheel.next().unwrap_or(NEVER), Ordering::Relaxed);
        }
        self.program(here);
    }

    /// Cancels `timer`, on the CPU where it is armed. Returns whether it was still armed. When this returns, the
    /// timer's callback neither runs nor will run. Timer callbacks must not call this.
    #[inline]
    pub fn cancel(&self, timer: &Timer) -> bool {
        // A timer stays on one wheel until it expires or is cancelled, and only its owner arms it.
        timer.wheel().is_some_and(|cpu| self.cancel_on(cpu, timer))
    }

    fn cancel_on(&self, cpu: CpuId, timer: &Timer) -> bool {
        let owner = self.cpus.of(cpu);
        let mut wheel = owner.wheel.lock(self.machine);
        if timer.wheel().is_none() && !mutant(Mutant::CancelTrustsFirstLook) {
            return false;
        }
        wheel.remove(timer);
        owner.wheel_due.store(wheel.next().unwrap_or(NEVER), Ordering::Relaxed);
        true
    }
}
