//! Shootdowns: which CPUs must drop translations, and how CPUs that were not interrupted catch up (relies on C4: frames
//! are freed only after the flush).
//!
//! # The protocol
//! A space has a generation and the set of CPUs that *run* it. The flushing CPU raises the generation, fences, then
//! reads the set and interrupts the CPUs in the set. A CPU that switches in adds itself to the set, fences, then reads
//! the generation. If the generation has changed since this CPU last read it, the CPU drops all translations of the
//! space. The fences guarantee one of two outcomes: the flushing CPU sees the arriving CPU in the set, or the arriving
//! CPU sees the new generation. So no CPU runs on translations older than the last completed flush.
//!
//! | | switch in | flush | go lazy | structure flush |
//! |---|---|---|---|---|
//! | **switch in** | each CPU changes only its own state | the flush raises the generation, then reads the set; the arriving CPU joins the set, then reads the generation | both run on one CPU | the CPU leaves the lazy set after it has caught up |
//! | **flush** | | each flush raises the generation; a CPU ignores a flush whose generation it has passed | at worst an unneeded interrupt | as for two flushes |
//! | **go lazy** | | a lazy CPU is no target: it catches up when it runs the space again | both run on one CPU | the CPU joins the lazy set before it leaves the running set |
//!
//! A *lazy* CPU has the space loaded but runs a kernel thread. User translations may stay stale there until it runs the
//! space again. Freed page tables must leave its paging-structure caches, so flushes of upper levels (structure
//! flushes) interrupt it too. It also unloads a root that another CPU drops (`root`).

pub(crate) mod inboxes;
pub(crate) mod request;
pub(crate) mod residency;

pub use inboxes::Inboxes;
pub use request::Request;

use crate::format::Format;
use crate::hardware::{Drops, Hardware};
use crate::mmu::CpuMmu;
use crate::mutant::{Mutant, mutant};
use crate::roots::Reach;
use quire_vm::tlb::flush::FlushSet;
use quire_vm::{PAGE_SIZE, VirtRange};
use request::RequestKind;
use residency::Residency;

impl<F: Format> Request<'_, F> {
    /// Serves the request on the calling CPU, which is the requesting CPU or a target in its interrupt handler.
    /// Preemption is off.
    pub fn serve<M: Hardware<Format = F>>(&self, machine: &M) {
        let mmu = machine.mmu();
        let cpu = quire_sync::current_cpu();
        let state = mmu.cpu(cpu);
        match &self.kind {
            RequestKind::Flush { space, generation, set } => {
                if state.loaded() == space.id() {
                    flush_here(machine, state, space, *generation, set);
                }
            }
            RequestKind::Entry { id, i, reach, generation, set } => {
                // Interrupts are masked, so that a handler finds the space either loaded or left, as at `Leave` below.
                // Also, a handler could serve a `Home` request here, and its requester would free the own root that
                // this code uses.
                machine.masked(|| {
                    if state.loaded() == *id {
                        flush_entry_here(machine, state, *i, reach, *generation, set);
                    }
                });
            }
            RequestKind::Home { space, root, regime } => {
                // Interrupts are masked, so that a handler finds either the old or the new root loaded, as at `Leave`
                // below.
                machine.masked(|| {
                    if state.loaded() == space.id() && state.has_own() {
                        // SAFETY: this is the target CPU, with interrupts masked; `root` belongs to the loaded space.
                        unsafe { mmu.come_home(machine, cpu, space, root, *regime) };
                    }
                });
            }
            RequestKind::Root { space, root } => {
                // Interrupts are masked, so that a handler finds either the old or the new root loaded, as at `Leave`
                // below. The target CPU, not the requester, reads the word of the root. Otherwise the request to load a
                // new root and the request to leave it could arrive in the wrong order.
                machine.masked(|| {
                    if state.loaded() == space.id() && !state.has_own() {
                        // SAFETY: this is the target CPU, with interrupts masked; `root` belongs to the loaded space.
                        unsafe { mmu.follow(machine, cpu, space, root) };
                    }
                });
            }
            RequestKind::Leave { space } => {
                // Interrupts are masked, because a handler must find the space either loaded or left, not in between.
                // Otherwise the handler could report a flush as done while the hardware still walks tables that are
                // about to be freed.
                machine.masked(|| {
                    if state.loaded() == space.id() {
                        // SAFETY: this is the target CPU, with interrupts masked; no code there uses the user half.
                        unsafe { mmu.leave(machine, cpu) };
                    }
                });
            }
            RequestKind::Kernel { ranges } => {
                for range in *ranges {
                    let pages = (range.start..range.end).step_by(PAGE_SIZE as usize);
                    pages.for_each(|va| Hardware::drop_page(machine, va));
                }
            }
            RequestKind::Everything => machine.drop_all(),
        }
    }
}

/// Serves a flush on a CPU that has the space loaded. Drops the translations in `set`, or all of the space's if this
/// CPU missed an earlier flush.
///
/// A handler may serve another request in the middle of this function. Then the recorded generation may be too low,
/// which causes one flush too many and never one too few.
pub(crate) fn flush_here(machine: &impl Drops, state: &CpuMmu, space: &Residency, generation: u64, set: &FlushSet) {
    let seen = state.seen();
    if seen >= generation {
        return;
    }
    if let Some(ranges) = set.ranges()
        // Dropping single pages suffices only if this CPU missed no generation in between.
        && (seen + 1 == generation || mutant(Mutant::MissedCountAsSeen))
    {
        drop_ranges(machine, state, ranges, set.structure());
        state.set_seen(generation);
    } else {
        // This CPU reads the generation before it drops its translations. So it has dropped the translations of all
        // leaves that were cleared before that generation was raised.
        let mut newest = space.generation();
        machine.drop_loaded(state);
        if mutant(Mutant::NewestAfterFlush) {
            newest = space.generation();
        }
        state.set_seen(newest);
    }
}

/// Serves a flush of translations below one entry of the root, on a CPU that has the space loaded. [`flush_here`]
/// serves a flush of the whole space.
fn flush_entry_here(machine: &impl Drops, state: &CpuMmu, i: usize, reach: &Reach, generation: u64, set: &FlushSet) {
    let Some(own) = state.own() else {
        // A CPU that has the space's root loaded records no generations of single entries. Each flush targets it while
        // it runs the space, so it drops exactly what this flush covers.
        match set.ranges() {
            Some(ranges) => drop_ranges(machine, state, ranges, set.structure()),
            None => machine.drop_loaded(state),
        }
        return;
    };
    let seen = own.seen(i);
    if !own.has(i) || seen >= generation {
        return;
    }
    if let Some(ranges) = set.ranges()
        && seen + 1 == generation
    {
        drop_ranges(machine, state, ranges, set.structure());
        own.set_seen(i, generation);
    } else {
        let newest = reach.generation();
        machine.drop_loaded(state);
        own.set_seen(i, newest);
    }
}

/// Drops this CPU's cached translations of `ranges`, and also its cached upper levels if `upper` is true.
fn drop_ranges<M: Drops>(machine: &M, state: &CpuMmu, ranges: &[VirtRange], mut upper: bool) {
    for range in ranges {
        for va in (range.start..range.end).step_by(PAGE_SIZE as usize) {
            machine.drop_page(va);
            upper &= !M::PAGE_DROPS_UPPER;
        }
    }
    if upper && M::PAGE_DROPS_UPPER {
        machine.drop_page(0);
    } else if upper {
        machine.drop_loaded(state);
    }
}
