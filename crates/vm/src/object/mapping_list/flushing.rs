//! Scans that flush the spaces of the backings that they visit. They hold no lock during a flush (relies on C5), because
//! a flush waits for other CPUs. A CPU that spins for the shard's lock would wait for those CPUs too.
//!
//! The scan changes leaves under the lock of the shard. If a flush is owed then, the scan counts itself in the backing
//! (`Backing::begin_pass`), releases the lock, and flushes. Then it goes on. The count keeps the unlinking of the backing
//! from ending. The page tables of a space are freed only after all its backings were unlinked. So they stay until the
//! flush is done.
//!
//! Between the change of a leaf and its flush, other CPUs may find that leaf. This list names them, and the rule by
//! which each one flushes what it found:
//!
//! - **change, before the flush**
//!   - fault: a removed page is busy until the flush, and its index slot names it. A fault that has seen the page waits
//!   - map operation, drop of tables: the count of unflushed removals in the table page. The operation flushes too
//!   - another scan: the same count
//!   - unlinking: its own operation has flushed the range. It ends after the flush of this scan, by the backing's count
//!   - pruning: a table page with unflushed removals stays

use super::Shards;
use crate::machine::Machine;
use crate::mutant::{Mutant, mutant};
use crate::object::References;
use crate::object::backing::Backing;
use crate::object::scan::{Scan, Step};
use crate::tlb::flush::{Obligation, Pass};
use core::ops::ControlFlow;
use quire_sync::hooks::PreemptOff;
use quire_sync::preempt_off;

/// A hold of a backing by a scan that flushes its space. Preemption is off, because the unlinking spins until the hold
/// ends.
struct Held<'s, M: Machine> {
    b: &'s Backing<M>,
    _here: PreemptOff,
}

impl<'s, M: Machine> Held<'s, M> {
    /// Begins the hold.
    ///
    /// # Requires
    /// The caller holds the lock of the shard in which `b` is linked.
    fn new(b: &'s Backing<M>) -> Self {
        b.begin_pass();
        Held { b, _here: preempt_off() }
    }
}

impl<M: Machine> Drop for Held<'_, M> {
    fn drop(&mut self) {
        self.b.end_pass();
    }
}

/// A scan that flushes.
struct Flushing<'s, M: Machine, P> {
    /// The work on the leaves of one backing; see [`Shards::scan_flushing`].
    part: P,
    passed: &'s mut Pass,
    /// The flush that the last visit owes. It is dropped before the hold that keeps its page tables.
    owed: Option<Obligation<'s, M>>,
    /// The hold of the last visited backing, and the place at which the work there goes on.
    held: Option<(Held<'s, M>, Option<u64>)>,
}

impl<'s, M: Machine, P> Flushing<'s, M, P>
where
    P: for<'b> FnMut(&'b Backing<M>, u64, &mut Obligation<'b, M>) -> Option<u64>,
{
    /// Visits `b` under the lock of its shard. Breaks if a flush is owed then.
    ///
    /// # Safety
    /// `b` is linked, and the caller holds the lock of its shard. If this breaks, the caller releases the lock and calls
    /// [`finish`](Self::finish).
    unsafe fn visit(&mut self, b: &Backing<M>) -> ControlFlow<()> {
        // SAFETY: the reference is used under the lock, which keeps `b` linked, or while `held` keeps its unlinking from
        // ending. A backing is retired only after its unlinking, and the page tables of its space live as long.
        let b: &'s Backing<M> = unsafe { core::ptr::NonNull::from(b).as_ref() };
        let owed = self.owed.insert(Obligation::new(b.vm(), b.pmap()).pruning());
        let next = (self.part)(b, 0, owed);
        if !owed.owes() && next.is_none() {
            return ControlFlow::Continue(());
        }
        self.held = Some((Held::new(b), next));
        if mutant(Mutant::FlushUnderShard) {
            self.finish();
            return ControlFlow::Continue(());
        }
        ControlFlow::Break(())
    }

    /// Flushes, and finishes the work at the backing that is held, if any.
    fn finish(&mut self) {
        let (Some(owed), Some((held, next))) = (&mut self.owed, &mut self.held) else { return };
        loop {
            self.passed.paid(owed.discharge_so_far());
            let Some(at) = *next else { break };
            *next = (self.part)(held.b, at, owed);
        }
        self.owed = None;
        self.held = None;
    }
}

impl<M: Machine> Shards<M> {
    /// Calls `part` with every backing that shows a page of `start..end`, as [`search`](Self::search) does, and flushes all
    /// that `part` adds to its obligation. `part` begins its work at the place 0. If the obligation is full, it returns
    /// the place at which it goes on, and is called again after a flush. The first call at a backing is made under the
    /// lock of its shard, and the others are not. No lock is held during a flush. `passed` takes the proofs.
    pub fn scan_flushing(
        &self,
        start: u64,
        end: u64,
        refs: &References,
        passed: &mut Pass,
        part: impl for<'b> FnMut(&'b Backing<M>, u64, &mut Obligation<'b, M>) -> Option<u64>,
    ) {
        let mut flushing = Flushing { part, passed, owed: None, held: None };
        self.until_unmoved(refs, || {
            for shard in self.iter() {
                let mut scan = Scan::new(start, end, None);
                loop {
                    // SAFETY: a step visits linked backings under the lock of the shard. It ends after a visit that
                    // breaks, and `finish` is called then.
                    let step = shard.step_apart(&mut scan, &mut |b| unsafe { flushing.visit(b) });
                    flushing.finish();
                    if !matches!(step, Step::More) {
                        break;
                    }
                }
            }
            None::<()>
        });
    }
}
