//! Shootdowns: which CPUs must drop translations, and how CPUs that were not interrupted catch up (relies on C4).
//!
//! # The protocol
//! A space has a generation and the set of CPUs that *run* it. The flushing CPU raises the generation, fences, then
//! reads the set and interrupts only those CPUs. A CPU that switches in adds itself to the set, fences, then reads the
//! generation. If the generation is not the one that this CPU saw last, it drops all translations of the space. The
//! fences guarantee that the flushing CPU sees the other in the set, or the other sees the new generation. So no CPU
//! runs on translations older than the last completed flush.
//!
//! | | switch in | flush | go lazy | structure flush |
//! |---|---|---|---|---|
//! | **switch in** | own CPU's state only | bump before set, set before generation | own CPU | lazy mark dropped after the catch-up |
//! | **flush** | | each has its own generation; late ones find it passed | an extra interrupt, harmless | as flush |
//! | **go lazy** | | not a target: catches up when it runs again | own CPU | lazy mark set before the running mark goes |
//!
//! A *lazy* CPU has the space loaded but runs a kernel thread. User translations may stay stale there until it runs the
//! space again. Freed page tables must leave its paging-structure caches, so flushes of upper levels (structure
//! flushes) interrupt it too. It also unloads a root that another CPU drops (`root`).

pub(crate) mod request;
pub(crate) mod residency;

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
                // Masked: as for `Leave`. Also, a `Home` request served in between would free the own root that this
                // code uses.
                machine.masked(|| {
                    if state.loaded() == *id {
                        flush_entry_here(machine, state, *i, reach, *generation, set);
                    }
                });
            }
            RequestKind::Home { space, root, regime } => {
                // Masked: as for `Leave`.
                machine.masked(|| {
                    if state.loaded() == space.id() && state.has_own() {
                        // SAFETY: this is the target CPU, with interrupts masked; `root` belongs to the loaded space.
                        unsafe { mmu.come_home(machine, cpu, space, root, *regime) };
                    }
                });
            }
            RequestKind::Root { space, root } => {
                // Masked: as for `Leave`. The word is read here and not by the requester. Otherwise a request for a new
                // root and a request for its end could arrive in the wrong order.
                machine.masked(|| {
                    if state.loaded() == space.id() && !state.has_own() {
                        // SAFETY: this is the target CPU, with interrupts masked; `root` belongs to the loaded space.
                        unsafe { mmu.follow(machine, cpu, space, root) };
                    }
                });
            }
            RequestKind::Leave { space } => {
                // Masked, because a handler must find either all of the space loaded or nothing of it. Otherwise it
                // could report a flush as done while the hardware still walks tables that are about to be freed.
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
        // The generation is read before the flush, because the flush drops all leaves that were cleared up to it.
        let mut newest = space.generation();
        machine.drop_loaded(state);
        if mutant(Mutant::NewestAfterFlush) {
            newest = space.generation();
        }
        state.set_seen(newest);
    }
}

/// As [`flush_here`], for translations below one entry of the root.
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
