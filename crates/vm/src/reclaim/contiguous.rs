//! Allocation of consecutive frames when no free run is long enough. Pages are moved out of a run of frames, or
//! evicted, until the run is free.
//!
//! # Steps
//! 1. A *candidate* is a run that has only free frames and pages of objects. Candidates are found through the pages at
//!    the heads of the page queues' shards, the coldest pages first. All descriptors are read only if no queue leads to
//!    a candidate. The candidate with the fewest pages is tried.
//! 2. The candidate is *claimed*, frame by frame. First the magazines (the free frames of single CPUs) are drained and
//!    free frames are taken out of the buddy lists. A page leaves its frame ([`vacate`]), and the frame goes to the
//!    claim, not to a list. A temporary obstacle, such as a busy page or a frame between two owners, is tried again.
//! 3. When all frames are claimed, the run is allocated. If a frame cannot be claimed, the claim's frames are freed,
//!    and the next candidate is tried. Pages that were moved stay in their new frames.
//!
//! A claimed frame has the kind `Unowned` and the order [`CLAIMED`]. Only one claim runs at a time. So a claim needs no
//! list, and its end visits each frame once, in success and in failure.
//!
//! - **claim**
//!   - fault: busy page, as any remover
//!   - pageout: only one of the two can hold the page busy
//!   - magazines, buddy lists: the depot's lock; frames in magazines are drained
//!   - another claim: the lock of all claims

use crate::error::OutOfMemory;
use crate::machine::Machine;
use crate::phys::descriptors::Closed;
use crate::phys::frames::contiguous::{Contiguous, FrameLookup};
use crate::phys::frames::{For, Frame};
use crate::phys::page::FrameKind;
use crate::phys::queues::Queue;
use crate::reclaim::Reclaimer;
use crate::reclaim::migrate::{Vacated, vacate};
use crate::sleep::MaySleep;
use crate::stats::Event;
use crate::types::Pfn;

/// The order that marks a claimed frame.
const CLAIMED: u8 = 0xfe;

/// The number of candidates (runs that may become free) that are tried before the request fails.
const ATTEMPTS: usize = 8;

/// The number of rounds over the frames of a candidate (a run that may become free) before it is given up. A temporary
/// obstacle is gone after a few rounds.
const ROUNDS: u32 = 16;

/// The number of pages at the head of a shard that are used to find candidates.
const HEADS: usize = 4;

/// The most frames that are claimed under one hold of a depot's lock.
const PIECE: u64 = 512;

impl<M: Machine> Reclaimer<M> {
    /// Allocates frames like [`Physical::alloc_contiguous`](crate::phys::Physical::alloc_contiguous). If no such run of
    /// frames is free, pages are moved or evicted until a run is free. May sleep, so the caller holds no lock or page
    /// that a fault or pageout could need. Programs continue to use their memory during the call.
    pub fn alloc_contiguous_reclaiming(
        &'static self,
        want: Contiguous,
        on_behalf: For,
        may: &mut MaySleep,
    ) -> Result<Frame, OutOfMemory> {
        let refused = match self.alloc_contiguous(want, on_behalf) {
            Err(refused) if want.count != 0 && want.align.is_power_of_two() => refused,
            done => return done,
        };
        let spare = || self.frames().free().saturating_sub(self.frames().reserve());
        let enough = || !on_behalf.is_limited() || spare() >= want.count;
        if !enough() {
            self.pageout_pass(may);
        }
        let _one_at_a_time = self.pageout().claims.lock();
        let mut tried = [u64::MAX; ATTEMPTS];
        for attempt in 0..ATTEMPTS {
            if !enough() {
                break;
            }
            let Some(start) = self.candidate(want, &tried[..attempt]) else { break };
            tried[attempt] = start;
            let mut claim = Claim { vm: self, start, end: start + want.count, on_behalf, held: 0 };
            if claim.fill(may) {
                claim.complete();
                self.hand_out(start, start + want.count, on_behalf.group());
                return Ok(Frame::of(self, Pfn(start)));
            }
        }
        Err(refused)
    }

    /// The start of the best candidate that is not in `tried`.
    fn candidate(&self, want: Contiguous, tried: &[u64]) -> Option<u64> {
        let mut best = Best { start: None, pages: u64::MAX };
        for queue in [Queue::Inactive, Queue::Laundry, Queue::Active] {
            for part in self.queues().parts(queue) {
                let (mut heads, mut n) = ([Pfn(0); HEADS], 0);
                part.look(HEADS, &mut |page| {
                    heads[n] = self.pfn_of_page(page);
                    n += 1;
                });
                for pfn in &heads[..n] {
                    let _next = best.consider(self, want, pfn.0 & !(want.align - 1), tried);
                }
            }
            if best.start.is_some() {
                return best.start;
            }
        }
        let mut at = want.within.start.0.checked_next_multiple_of(want.align)?;
        while let Some(next) = best.consider(self, want, at, tried) {
            at = next.checked_next_multiple_of(want.align)?;
        }
        best.start
    }
}

/// The candidate with the fewest pages that was found so far.
struct Best {
    start: Option<u64>,
    pages: u64,
}

impl Best {
    /// Considers the run that begins at `start`. Returns the earliest start of another run to consider, or `None` if no
    /// further run fits.
    fn consider<M: Machine>(&mut self, vm: &Reclaimer<M>, want: Contiguous, start: u64, tried: &[u64]) -> Option<u64> {
        let (from, to) = (want.within.start.0, want.within.end.0.min(vm.page_count()));
        let end = start.checked_add(want.count).filter(|end| *end <= to && start >= from)?;
        if tried.contains(&start) || self.start == Some(start) {
            return Some(start + 1);
        }
        let mut domain = None;
        let mut pages = 0;
        for i in start..end {
            let (here, kind) = match vm.frame_at(Pfn(i)) {
                FrameLookup::Frame(page) => (page.domain(), page.kind()),
                FrameLookup::Closed(Closed::Fresh(domain)) => (domain, FrameKind::Free),
                FrameLookup::Closed(Closed::Hole(end)) => return Some(end),
            };
            match kind {
                _ if here != *domain.get_or_insert(here) => return Some(i),
                FrameKind::Free | FrameKind::Cached => {}
                FrameKind::Object => pages += 1,
                _ => return Some(i + 1),
            }
            if pages >= self.pages {
                return Some(start + 1);
            }
        }
        (self.start, self.pages) = (Some(start), pages);
        Some(start + 1)
    }
}

/// A run of frames of one domain, some of which are claimed.
struct Claim<M: Machine> {
    vm: &'static Reclaimer<M>,
    start: u64,
    end: u64,
    on_behalf: For,
    held: u64,
}

impl<M: Machine> Claim<M> {
    /// Claims all frames of the run. Returns false if a frame cannot be claimed.
    fn fill(&mut self, may: &mut MaySleep) -> bool {
        let vm = self.vm;
        vm.drain_magazines();
        for _ in 0..ROUNDS {
            if !self.take_free() {
                return false;
            }
            let mut cached = false;
            for i in self.start..self.end {
                let page = vm.page(Pfn(i));
                match page.kind() {
                    FrameKind::Unowned if page.order() == CLAIMED => {}
                    FrameKind::Object => {
                        let mut wanted = |frame: &Frame| (self.start..self.end).contains(&frame.pfn().0);
                        let (mut mine, mut inside) = ([None, None], 0);
                        let done = vacate(vm, page, &mut wanted, may, &mut |frame| {
                            mine[inside] = Some(frame);
                            inside += 1;
                        });
                        mine.into_iter().flatten().for_each(|frame| self.keep(frame));
                        if done == Vacated::Never {
                            return false;
                        }
                    }
                    FrameKind::Cached => cached = true,
                    // The frame is moving between a list and an owner, so the next round tries it again.
                    FrameKind::Free | FrameKind::Unowned => {}
                    FrameKind::Table | FrameKind::Slab | FrameKind::Reserved => return false,
                }
            }
            if self.held == self.end - self.start {
                return true;
            }
            if cached {
                // The depots' chains are drained too, because other CPUs that free frames put full chains there.
                vm.drain_magazines();
            }
            quire_sync::hooks::relax();
        }
        false
    }

    /// Passes the frames to their new owner, so that the drop frees none of them.
    fn complete(mut self) {
        (self.start..self.end).for_each(|i| self.vm.page(Pfn(i)).set_order(0));
        self.held = 0;
    }

    /// Claims the free frames of the run. Returns false if the reserve forbids it.
    fn take_free(&mut self) -> bool {
        let (vm, f) = (self.vm, self.vm.frames());
        let domain = match vm.frame_at(Pfn(self.start)) {
            FrameLookup::Frame(page) => page.domain(),
            FrameLookup::Closed(Closed::Fresh(domain)) => domain,
            FrameLookup::Closed(Closed::Hole(_)) => return false,
        };
        let depot = &f.domains[domain as usize];
        let mut at = self.start;
        while at < self.end {
            let to = (at + PIECE).min(self.end);
            let mut held = depot.held.lock();
            // `most` counts only frames that are not claimed yet. Claimed frames no longer count in `uncached`, the
            // free frames outside the magazines.
            let most = (to - at).min(self.end - self.start - self.held);
            if f.uncached() < f.limit(self.on_behalf) + most {
                return false;
            }
            let n = held.buddy.take_free(at, to, &mut |pfn| vm.page(pfn).set_order(CLAIMED));
            f.account(depot, -(n as i64));
            self.held += n;
            at = to;
        }
        true
    }

    /// Claims a frame of the run that had an owner.
    fn keep(&mut self, frame: Frame) {
        let pfn = frame.into_pfn();
        self.vm.poison(pfn);
        self.vm.stats().count(Event::FrameFree);
        self.vm.page(pfn).set_order(CLAIMED);
        self.held += 1;
    }
}

impl<M: Machine> Drop for Claim<M> {
    /// Frees the claimed frames, unless the run was completed.
    fn drop(&mut self) {
        let (vm, f) = (self.vm, self.vm.frames());
        let mut at = self.start;
        while at < self.end && self.held != 0 {
            let mine = |i: &u64| {
                let page = vm.page(Pfn(*i));
                page.kind() == FrameKind::Unowned && page.order() == CLAIMED
            };
            let end = (at..self.end.min(at + PIECE)).find(|i| !mine(i)).unwrap_or(self.end.min(at + PIECE));
            if end > at {
                let page = vm.page(Pfn(at));
                let (depot, group) = (&f.domains[page.domain() as usize], self.on_behalf.group());
                let mut held = depot.held.lock();
                held.buddy.put_range(at, end, group);
                f.account(depot, (end - at) as i64);
                self.held -= end - at;
            }
            at = end.max(at + 1);
        }
        debug_assert_eq!(self.held, 0, "a claim has lost a frame");
    }
}
