//! The ticks at which a CPU checks whether it or its ward (the CPU that it watches) is stuck. The module
//! [`watch`](crate::watch) has the protocol.

use super::cpu::{Cpu, Scheduler};
use crate::machine::Machine;
use crate::watch::Lockup;
use quire_sync::atomic::Ordering;
use quire_sync::{CpuId, current_cpu};

impl<M: Machine> Scheduler<M> {
    /// Serves this CPU's watchdog tick: checks whether the CPU or its ward is stuck.
    ///
    /// # Requires
    /// Interrupts are masked; called by the timer interrupt.
    #[cold]
    pub(super) fn watch_tick(&self, here: &Cpu<M>, now: u64) {
        let Some(how) = self.machine.watching() else { return here.watch.stop() };
        let cpu = current_cpu();
        let (ward, watcher) = self.neighbours(cpu);
        let came = here.switches.load(Ordering::Relaxed) + here.looked.load(Ordering::Relaxed);
        let idle = self.is_idle(here, &self.current());
        let found = here.watch.tick(&how, now, came, idle, ward.map(|ward| &*self.cpus.of(ward).watch));
        if !idle && here.watch.becomes_busy(now, watcher.map(|watcher| &*self.cpus.of(watcher).watch)) {
            watcher.into_iter().for_each(|watcher| self.machine.kick(watcher));
        }
        // Makes the running thread enter the scheduler to check for preemption. A stuck thread does not enter it.
        self.machine.set_pending(true);
        if let (true, Some(ward)) = (found.probe, ward) {
            self.machine.probe(ward);
        }
        if let Some(ticks) = found.soft {
            self.machine.locked_up(Lockup::Soft(ticks));
        }
        if let (true, Some(ward)) = (found.hard, ward) {
            self.machine.locked_up(Lockup::Hard(ward));
        }
    }

    /// The ward of `cpu` (the CPU that it watches), and its watcher. Both are `None` if the machine has one CPU.
    pub(super) fn neighbours(&self, cpu: CpuId) -> (Option<CpuId>, Option<CpuId>) {
        match self.cpus.len() {
            1 => (None, None),
            n => (Some((cpu + n - 1) % n), Some((cpu + 1) % n)),
        }
    }

    /// Marks this CPU as busy, because it has begun to run threads and was not marked. Interrupts this CPU's watcher if
    /// the watcher has no tick.
    ///
    /// # Requires
    /// Interrupts are masked.
    #[cold]
    pub(super) fn watch_busy(&self, here: &Cpu<M>) {
        let Some(how) = self.machine.watching() else { return };
        let watcher = self.neighbours(current_cpu()).1;
        let due = self.machine.now().saturating_add(how.period);
        if here.watch.becomes_busy(due, watcher.map(|watcher| &*self.cpus.of(watcher).watch)) {
            watcher.into_iter().for_each(|watcher| self.machine.kick(watcher));
        }
        self.program(here);
    }

    /// Starts this CPU's tick. Called at a reschedule interrupt on a CPU without a tick, whose ward may have become
    /// busy.
    ///
    /// # Requires
    /// Interrupts are masked.
    #[cold]
    pub(super) fn watch_kicked(&self, here: &Cpu<M>) {
        if let Some(how) = self.machine.watching() {
            here.watch.start(self.machine.now().saturating_add(how.period));
            self.program(here);
        }
    }

    /// Serves the non-maskable interrupt of [`Machine::probe`]. `masked` is whether it found interrupts masked.
    pub fn probed(&self, masked: bool) {
        self.here().watch.probe(masked);
    }
}
