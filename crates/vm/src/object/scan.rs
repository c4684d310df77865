//! Scans of the backings in a shard (a part of a mapping list with its own lock). A scan releases the shard's lock from
//! time to time.
//!
//! A scan visits [`VISITS`] backings or a few more under one hold of the lock, and continues after the last one
//! ([`Scan`]). Between two holds, a backing that the scan has not visited may be replaced by one with an earlier place.
//! So the scan makes several *passes*:
//! 1. The first pass visits all backings, in order.
//! 2. Each later pass visits the backings that were linked after the pass before it began (mutant
//!    [`Mutant::ScanGoesOn`]). The tree finds them without a visit to others, because each linking during a scan stores
//!    its stamp in its ancestors (mutant [`Mutant::LinkingUnnoted`]).
//! 3. A pass that never released the lock is the last one.
//!
//! *Why each backing is visited.* Take a backing that is in the list when a pass begins, and that the scan has not
//! visited. If it stays until the pass reaches it, the pass visits it. Otherwise its replacement was linked during this
//! pass, or before this pass. If it was linked during this pass, the next pass visits it. If it was linked before, it
//! was also in the list when the pass began, and the same argument holds for it. Each replacement was linked later than
//! the backing that it replaced, so the argument ends.
//!
//! *Why the scan ends.* A linking causes at most two more visits: one in this pass, if the new backing is ahead, and
//! one in the next pass. One hold of the lock makes four visits for each linking since the last hold, and at least
//! [`VISITS`] ([`Scan::room`]). So fewer visits are left after each hold than after the hold before. On the way to
//! recently linked members, a hold passes other members. It also ends after [`STEPS`] such members for each of its
//! visits. So the length of a hold does not grow with the number of backings.

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;

use crate::mutant::{Mutant, mutant};
use crate::object::interval::{Interval, Newer, Tree, TreePlace};
use core::ops::ControlFlow;
use core::ptr::NonNull;

/// The least number of backings that a scan visits before it releases the shard's lock for other CPUs.
#[cfg(not(any(loom, shuttle)))]
pub(super) const VISITS: u32 = 16;
#[cfg(any(loom, shuttle))]
pub(super) const VISITS: u32 = 2;
/// The number of visits under one hold of the lock, for each backing that was linked since the last hold.
const VISITS_A_LINKING: u64 = 4;
/// The largest number of visits under one hold of the lock. It is four for each of 256 CPUs that have linked a backing
/// since the last hold. If more backings are linked between two holds, the scan only ends later.
const MOST_VISITS: u32 = 1024;
/// The number of other members that a hold may pass for each of its visits. The search for a new member passes the
/// members above it in the tree. These are 2 ln n on average: 28 for a million members.
const STEPS: u32 = 32;

/// A scan of the backings in one shard that show a page of `start..end`. It releases the shard's lock from time to
/// time. Each backing and each replacement is visited at least once, as the module's comment explains.
///
/// A scan stores places, not references to backings. So it may continue after any time, while the caller keeps the
/// object alive. A caller that does not continue to the end calls [`stop`](Self::stop).
pub struct Scan {
    start: u64,
    end: u64,
    /// The place after which the first pass begins; at the end of the list the pass wraps round to it. `None`: the pass
    /// begins with the first backing.
    from: Option<TreePlace>,
    /// The first pass has wrapped round.
    round: bool,
    /// The place that this pass has reached.
    after: Option<TreePlace>,
    /// The number of linkings when the previous pass began. This pass visits only later ones. `None` in the first pass.
    since: Option<u64>,
    /// The number of linkings when this pass began. `None` before the first hold of the lock.
    began: Option<u64>,
    /// The number of linkings at the last hold.
    held: u64,
    /// The scan has released the lock in this pass.
    let_go: bool,
    /// The walk is registered with the tree, because the scan has released the lock.
    noted: bool,
    visits: u64,
}

/// The result of one hold of a scan.
pub enum Step<T> {
    /// The visitor stopped the scan with this value.
    Found(T),
    /// All backings have been visited. The scan is over.
    Over,
    /// More backings may be left. The lock is released until the next step.
    More,
}

impl Scan {
    /// A scan that begins after the place `from`, and wraps round once.
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

    /// The number of backings visited so far.
    pub fn visits(&self) -> u64 {
        self.visits
    }

    /// The place that this pass has reached.
    pub fn last(&self) -> Option<TreePlace> {
        self.after
    }

    /// Continues for one hold of the lock that guards `tree`. `linked` is the number of linkings so far, which is the
    /// stamp of the next one.
    pub fn step<T: Interval, F>(
        &mut self,
        tree: &mut Tree<T>,
        linked: u64,
        visit: &mut impl FnMut(&T) -> ControlFlow<F>,
    ) -> Step<F> {
        self.step_as::<T, F, false>(tree, linked, visit)
    }

    /// As [`step`](Self::step), but a visit that breaks ends only this hold, because it has work to do without the
    /// lock. So nothing is ever found.
    pub fn step_apart<T: Interval>(
        &mut self,
        tree: &mut Tree<T>,
        linked: u64,
        visit: &mut impl FnMut(&T) -> ControlFlow<()>,
    ) -> Step<()> {
        self.step_as::<T, (), true>(tree, linked, visit)
    }

    #[inline]
    fn step_as<T: Interval, F, const APART: bool>(
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
                        if !APART {
                            break Step::Found(found);
                        }
                        // If all backings were visited under this one hold, the scan needs no second hold.
                        let over = !self.let_go && matches!(self.next(tree, last, &mut steps), Newer::End);
                        break if over { Step::Over } else { Step::More };
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

    /// Ends the scan early, and removes its registration from the tree. Otherwise each later linking would write into
    /// the members above the new one.
    pub fn stop<T: Interval>(mut self, tree: &mut Tree<T>) {
        if self.noted {
            tree.forget_walk();
        }
        self.noted = false;
    }

    /// The number of backings that this hold visits. This number is larger than the number of visits that the linkings
    /// since the last hold have added.
    fn room(&mut self, linked: u64) -> u32 {
        let since = if self.noted { linked - self.held } else { 0 };
        self.held = linked;
        since.saturating_mul(VISITS_A_LINKING).clamp(VISITS.into(), MOST_VISITS.into()) as u32
    }

    /// The next backing of this pass. `last` is the backing of the last visit in this hold.
    fn next<'t, T: Interval>(&mut self, tree: &'t Tree<T>, last: Option<NonNull<T>>, steps: &mut u32) -> Newer<'t, T> {
        match self.since {
            Some(since) => tree.next_newer(self.start, self.end, since, self.after, steps),
            None => self.next_of_all(tree, last).map_or(Newer::End, Newer::Member),
        }
    }

    /// As [`next`](Self::next), in the first pass.
    fn next_of_all<'t, T: Interval>(&mut self, tree: &'t Tree<T>, last: Option<NonNull<T>>) -> Option<&'t T> {
        loop {
            let next = match last {
                // SAFETY: `last` was found in this tree, and the lock was not released since.
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

    /// Begins the next pass. Returns false if this pass was the last.
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
