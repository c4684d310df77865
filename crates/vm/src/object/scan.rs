//! Scans of a shard's backings that let go of its lock from time to time.
//!
//! A scan holds the lock for some [`VISITS`] backings, and goes on behind the last one ([`Scan`]). Meanwhile a backing
//! may be replaced that the scan has not visited, by one before its place. So the scan makes *passes*:
//! 1. The first pass visits all backings, in order.
//! 2. Each later pass visits those that were linked since the pass before began (mutant [`Mutant::ScanGoesOn`]). The
//!    tree finds them without a visit to others, because each linking during a scan notes itself in its ancestors
//!    (mutant [`Mutant::LinkingUnnoted`]).
//! 3. A pass that never let go of the lock is the last one.
//!
//! *Why each is met.* Say that a backing is there when a pass begins, and that the scan has not visited it. If it stays
//! until its turn, the pass visits it. If it is replaced before, the replacement was linked in this pass or earlier. In
//! this pass: the next pass has it. Earlier: it is itself a backing that was there when the pass began. Each
//! replacement was linked later than the one before, so this ends.
//!
//! *Why it ends.* A linking gives the scan two more visits at most: one in this pass, if it stands ahead, and one in
//! the next pass. A hold makes four visits for each linking since the last hold, and [`VISITS`] at least
//! ([`Scan::room`]). So fewer visits are left after each hold than after the one before. A hold also ends after
//! [`STEPS`] members for each of its visits that only stand above those that were linked lately. No hold grows with the
//! number of backings.

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;

use crate::mutant::{Mutant, mutant};
use crate::object::interval::{Interval, Newer, Tree, TreePlace};
use core::ops::ControlFlow;
use core::ptr::NonNull;

/// Backings that a scan visits before it releases a shard's lock, so that other CPUs get it.
#[cfg(not(any(loom, shuttle)))]
pub(super) const VISITS: u32 = 16;
#[cfg(any(loom, shuttle))]
pub(super) const VISITS: u32 = 2;
/// Visits of a hold for each linking since the last hold.
const VISITS_A_LINKING: u64 = 4;
/// The most that a hold visits: enough where each of 256 CPUs has linked a backing since the last hold. A pause with
/// more linkings than that only delays the scan's end.
const MOST_VISITS: u32 = 1024;
/// Members that a hold passes for each of its visits. A linking is noted in as many as the tree is deep, 2 ln n on
/// average: 28 for a million.
const STEPS: u32 = 32;

/// A scan of the backings in one shard that show a page of `start..end`. It lets go of the shard's lock from time to
/// time. Each backing is visited at least once, and so is each replacement; see the module.
///
/// A scan refers to places, not to backings. So it may go on after any time, while the caller keeps the object. A
/// caller that does not go on to the end calls [`stop`](Self::stop).
pub struct Scan {
    start: u64,
    end: u64,
    /// The place behind which the first pass begins, to come round to it; `None`: it begins with the first backing.
    from: Option<TreePlace>,
    /// The first pass has come round.
    round: bool,
    /// The place that this pass has reached.
    after: Option<TreePlace>,
    /// Linkings before the pass before this one began; `None`: this is the first pass.
    since: Option<u64>,
    /// Linkings before this pass began; `None`: nothing has begun.
    began: Option<u64>,
    /// Linkings at the last hold.
    held: u64,
    /// The scan has let go in this pass.
    let_go: bool,
    /// The tree has noted it, because it has let go.
    noted: bool,
    visits: u64,
}

/// The result of one hold of a scan.
pub enum Step<T> {
    /// The visitor broke off with this value. The scan is over.
    Found(T),
    /// All have been visited. The scan is over.
    Over,
    /// There may be more. The lock is free meanwhile.
    More,
}

impl Scan {
    /// A scan that begins behind `from` and comes round once.
    pub fn new(start: u64, end: u64, from: Option<TreePlace>) -> Scan {
        Scan {
            start,
            end,
            from,
            round: from.is_none(),
            after: from,
            since: None,
            began: None,
            held: 0,
            let_go: false,
            noted: false,
            visits: 0,
        }
    }

    /// Backings visited so far.
    pub fn visits(&self) -> u64 {
        self.visits
    }

    /// The place that this pass has reached.
    pub fn last(&self) -> Option<TreePlace> {
        self.after
    }

    /// Goes on for one hold of the lock that guards `tree`. `linked`: linkings so far, which is the next one's stamp.
    pub fn step<T: Interval, F>(
        &mut self,
        tree: &mut Tree<T>,
        linked: u64,
        visit: &mut impl FnMut(&T) -> ControlFlow<F>,
    ) -> Step<F> {
        self.began.get_or_insert(linked);
        let room = self.room(linked);
        let (mut left, mut steps) = (room, room * STEPS);
        let mut last = None;
        let step = loop {
            if left == 0 {
                break Step::More;
            }
            match self.next(tree, last, &mut steps) {
                Newer::Member(member) => {
                    self.after = Some(Tree::place(member));
                    left -= 1;
                    last = Some(NonNull::from(member));
                    if let ControlFlow::Break(found) = visit(member) {
                        break Step::Found(found);
                    }
                }
                Newer::NotYet(place) => {
                    self.after = Some(place);
                    break Step::More;
                }
                Newer::End if self.passed(linked) => last = None,
                Newer::End => break Step::Over,
            }
        };
        self.visits += u64::from(room - left);
        let goes_on = matches!(step, Step::More);
        self.let_go |= goes_on;
        match (self.noted, goes_on) {
            (false, true) => tree.note_walk(),
            (true, false) => tree.forget_walk(),
            _ => {}
        }
        self.noted = goes_on;
        step
    }

    /// Ends it before it is over. Else each later linking would be noted for ever.
    pub fn stop<T: Interval>(mut self, tree: &mut Tree<T>) {
        if self.noted {
            tree.forget_walk();
        }
        self.noted = false;
    }

    /// How many backings this hold visits: more than the linkings since the last hold have added.
    fn room(&mut self, linked: u64) -> u32 {
        let since = if self.noted { linked - self.held } else { 0 };
        self.held = linked;
        since.saturating_mul(VISITS_A_LINKING).clamp(VISITS.into(), MOST_VISITS.into()) as u32
    }

    /// The next backing of this pass. `last`: the backing of the last visit in this hold.
    fn next<'t, T: Interval>(&mut self, tree: &'t Tree<T>, last: Option<NonNull<T>>, steps: &mut u32) -> Newer<'t, T> {
        match self.since {
            Some(since) => tree.next_newer(self.start, self.end, since, self.after, steps),
            None => self.next_of_all(tree, last).map_or(Newer::End, Newer::Member),
        }
    }

    /// As [`next`](Self::next), of the first pass.
    fn next_of_all<'t, T: Interval>(&mut self, tree: &'t Tree<T>, last: Option<NonNull<T>>) -> Option<&'t T> {
        loop {
            let next = match last {
                // SAFETY: `last` was found in this tree, and its lock was not released since.
                Some(last) if self.after == Some(Tree::place(unsafe { last.as_ref() })) => unsafe {
                    tree.next_overlap_from(last.as_ref(), self.start, self.end)
                },
                _ => tree.next_overlap(self.start, self.end, self.after),
            };
            if self.round {
                return next.filter(|b| self.from.is_none_or(|from| Tree::place(*b) <= from));
            }
            if next.is_some() {
                return next;
            }
            (self.round, self.after) = (true, None);
        }
    }

    /// Begins the next pass; `false` where this was the last one.
    fn passed(&mut self, linked: u64) -> bool {
        if !self.let_go || mutant(Mutant::ScanGoesOn) {
            return false;
        }
        self.since = self.began.replace(linked);
        (self.after, self.let_go) = (None, false);
        true
    }
}

#[cfg(test)]
impl Drop for Scan {
    fn drop(&mut self) {
        assert!(!self.noted || std::thread::panicking(), "a scan was neither over nor stopped");
    }
}
