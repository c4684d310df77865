//! The levels above the buddy lists: magazines, depots, and the return of frames to their own domain.

use super::{Fill, For, Frames, Group};
use crate::machine::{Machine, Pmap};
use crate::mutant::{Mutant, mutant};
use crate::phys::Physical;
use crate::phys::descriptors::Descriptors;
use crate::phys::page::FrameKind;
use crate::stats::Event;
use crate::types::Pfn;
use quire_sync::atomic::Ordering;
use quire_sync::{Rank, SpinLock, preempt_off};

/// The number of frames of other domains that a CPU collects before it returns them.
#[cfg(not(any(loom, shuttle)))]
const FOREIGN: u32 = 64;
#[cfg(any(loom, shuttle))]
const FOREIGN: u32 = 2;

/// The number of frames in a chain while memory is low. Each CPU then keeps about this number.
const SCARCE: u32 = if cfg!(any(loom, shuttle)) { 1 } else { 16 };

/// The most frames that go into the buddy lists under one hold of the depot's lock.
const PIECE: u32 = 32;

/// A list of frames, linked through their descriptors.
#[derive(Clone, Copy)]
pub(super) struct Chain {
    /// The number of the first frame plus one; 0 if the chain is empty.
    head: u32,
    pub len: u32,
}

impl Chain {
    pub const EMPTY: Chain = Chain { head: 0, len: 0 };

    pub fn of(head: Pfn, len: u32) -> Chain {
        Chain { head: head.0 as u32 + 1, len }
    }
    pub fn head(&self) -> Option<Pfn> {
        self.head.checked_sub(1).map(|n| Pfn(n as u64))
    }
    #[inline(always)]
    pub fn push(&mut self, pages: &Descriptors, pfn: Pfn) {
        pages.get(pfn).set_next(self.head());
        *self = Chain::of(pfn, self.len + 1);
    }
    #[inline(always)]
    pub fn pop(&mut self, pages: &Descriptors) -> Option<Pfn> {
        let pfn = self.head()?;
        let next = pages.get(pfn).next();
        *self = Chain { head: next.map_or(0, |p| p.0 as u32 + 1), len: self.len - 1 };
        Some(pfn)
    }
}

/// The two chains of a CPU for one group. With two, a CPU that allocates and frees in turn at the end of one chain does
/// not go to the depot each time.
type Stack = [Chain; 2];

pub(super) struct Local {
    /// The chains of each group.
    pub stacks: [Stack; 2],
    /// Frames of other domains, which will be returned to their domains.
    pub foreign: Chain,
    /// Frames for programs that are already zeroed.
    pub zeroed: Chain,
}

impl Local {
    pub fn chains(&self) -> impl Iterator<Item = &Chain> {
        self.stacks.iter().flatten().chain([&self.foreign, &self.zeroed])
    }
    fn all(&self) -> [Chain; 6] {
        let Local { stacks: [[a, b], [c, d]], foreign, zeroed } = *self;
        [a, b, c, d, foreign, zeroed]
    }
    fn take_all(&mut self) -> [Chain; 6] {
        core::mem::replace(self, Local::EMPTY).all()
    }
    const EMPTY: Local = Local { stacks: [[Chain::EMPTY; 2]; 2], foreign: Chain::EMPTY, zeroed: Chain::EMPTY };
}

/// One CPU's free frames. Other CPUs acquire its lock only to drain it, or to count its frames.
pub struct Magazine {
    pub(super) domain: u8,
    pub(super) local: SpinLock<Local>,
}

impl Magazine {
    pub(crate) fn new(domain: u8) -> Self {
        Magazine { domain, local: SpinLock::new(Rank::MAGAZINE, Local::EMPTY) }
    }
}

impl Frames {
    /// The number of frames in a full chain of `group`.
    #[inline(always)]
    pub(super) fn chain(&self, group: Group) -> u32 {
        match group {
            Group::User => self.chain,
            // All running CPUs request kernel frames, but far less often. So their chains have a quarter of the length.
            Group::Kernel => (self.chain / 4).max(1),
        }
    }

    /// A chain for CPUs of `domain`: a full chain, or a chain of frames from blocks. It comes from the domain's own
    /// depot, or from the next depot that has frames.
    #[cold]
    fn refill(&self, domain: u8, on_behalf: For) -> Chain {
        let group = on_behalf.group();
        let count = self.domains.len();
        // First the next domain that is not low is used. If all are low, the next that has frames is used.
        let from = if count == 1 || self.is_low() { count } else { 0 };
        for i in from..2 * count {
            let depot = &self.domains[(domain as usize + i) % count];
            if i < count && depot.is_low() {
                continue;
            }
            let mut held = depot.held.lock();
            let room = self.room(on_behalf);
            if room == 0 {
                break;
            }
            // Other requests may use the rest of a chain, so a request that may use the reserve gets one frame.
            let wants = if on_behalf.uses_reserve() { 1 } else { self.chain(group) };
            if room >= self.chain(group)
                && wants == self.chain(group)
                && let Some(head) = depot.take_full(&mut held, &self.pages, group)
            {
                let chain = Chain::of(head, self.chain(group));
                self.account(depot, -(chain.len as i64));
                return chain;
            }
            let most = if self.is_low() { wants.min(SCARCE) } else { wants }.min(room);
            // The blocks are linked by `prev`. They are split into frames after the lock is released.
            let (mut blocks, mut n) = (None, 0);
            // Half a chain is enough. A block of half a chain or more is taken whole, and no other block is split to
            // fill the chain up. So few other CPUs have the cache lines of these frames' descriptors.
            while n < most.div_ceil(2)
                && let Some((pfn, order)) = held.buddy.take_piece((most - n).ilog2() as u8, group)
            {
                let page = self.pages.get(pfn);
                page.set_order(order);
                page.set_prev(blocks);
                blocks = Some(pfn);
                n += 1 << order;
            }
            self.account(depot, -(n as i64));
            drop(held);
            if n != 0 {
                return self.take_apart(blocks, group);
            }
        }
        Chain::EMPTY
    }

    /// The number of frames that may leave the depots for a request for `on_behalf`, so that the reserve is kept.
    fn room(&self, on_behalf: For) -> u32 {
        match self.limit(on_behalf) {
            0 => u32::MAX,
            limit => self.uncached().saturating_sub(limit).min(u32::MAX as u64) as u32,
        }
    }

    fn take_apart(&self, mut blocks: Option<Pfn>, group: Group) -> Chain {
        let mut chain = Chain::EMPTY;
        while let Some(first) = blocks {
            let page = self.pages.get(first);
            blocks = page.prev();
            for i in (first.0..first.0 + (1 << page.order())).rev() {
                let page = self.pages.get(Pfn(i));
                page.set_kind(FrameKind::Cached);
                page.set_group(group as u8);
                chain.push(&self.pages, Pfn(i));
            }
        }
        chain
    }

    /// Returns a chain to its depot. A full chain is linked by its head alone. The frames of any other chain go to the
    /// buddy lists.
    #[cold]
    fn put_chain(&self, domain: u8, group: Group, chain: Chain) {
        let depot = &self.domains[domain as usize];
        match chain.head() {
            Some(head) if chain.len == self.chain(group) && !self.is_low() => {
                let mut held = depot.held.lock();
                depot.put_full(&mut held, &self.pages, group, head);
                self.account(depot, chain.len as i64);
            }
            _ => self.take_home(chain),
        }
    }

    /// Puts each frame of a chain into the buddy lists of its own domain.
    fn take_home(&self, mut chain: Chain) {
        let mut at = chain.pop(&self.pages);
        while let Some(first) = at {
            let domain = self.pages.get(first).domain();
            let depot = &self.domains[domain as usize];
            let mut held = depot.held.lock();
            let mut n = 0;
            while n < PIECE
                && let Some(pfn) = at
                && self.pages.get(pfn).domain() == domain
            {
                held.buddy.put(pfn, 0, Group::from_u8(self.pages.get(pfn).group()));
                at = chain.pop(&self.pages);
                n += 1;
            }
            self.account(depot, n as i64);
        }
    }

    /// The domain of the calling CPU.
    pub(super) fn here(&self) -> usize {
        self.magazines.of(quire_sync::current_cpu()).domain as usize
    }

    /// Breaks up one full chain of a depot, so that blocks form and either group can use them. The depot of the calling
    /// CPU comes first. Returns false if no depot has a chain.
    pub(super) fn break_one(&self) -> bool {
        let (near, far) = self.domains.split_at(self.here());
        for depot in far.iter().chain(near).filter(|d| d.chains.load(Ordering::Relaxed) != 0) {
            for group in Group::ALL {
                let mut held = depot.held.lock();
                let Some(head) = depot.take_full(&mut held, &self.pages, group) else { continue };
                let chain = Chain::of(head, self.chain(group));
                self.account(depot, -(chain.len as i64));
                drop(held);
                self.take_home(chain);
                return true;
            }
        }
        false
    }
}

impl<M: Machine> Physical<M> {
    /// Takes a frame from this CPU's magazine, which is refilled if it is empty. Also returns whether the frame is
    /// already zeroed.
    #[inline]
    pub(super) fn pop_frame(&self, fill: Fill, on_behalf: For) -> Option<(Pfn, bool)> {
        let group = on_behalf.group();
        let f = self.frames();
        let cpu = preempt_off();
        let magazine = f.magazines.mine(&cpu);
        let mut local = magazine.local.lock();
        if fill == Fill::Zeroed
            && group == Group::User
            && let Some(pfn) = local.zeroed.pop(&f.pages)
        {
            return Some((pfn, true));
        }
        let stack = &mut local.stacks[group as usize];
        if stack[0].len == 0 {
            stack.swap(0, 1);
            if stack[0].len == 0 {
                stack[0] = f.refill(magazine.domain, on_behalf);
                self.stats().count(Event::DepotExchange);
            }
        }
        match stack[0].pop(&f.pages) {
            Some(pfn) => Some((pfn, false)),
            None => local.zeroed.pop(&f.pages).map(|pfn| (pfn, true)),
        }
    }

    /// Takes frames for programs until `into` is full, with at most one refill. Zeroed frames come first, and have a
    /// bit each in the returned mask.
    pub(super) fn pop_frames(&self, into: &mut [Pfn]) -> (usize, u64) {
        debug_assert!(into.len() < u64::BITS as usize, "each frame has a bit");
        let f = self.frames();
        let cpu = preempt_off();
        let magazine = f.magazines.mine(&cpu);
        let mut local = magazine.local.lock();
        let (mut n, mut refilled) = (0, false);
        while n < into.len()
            && let Some(pfn) = local.zeroed.pop(&f.pages)
        {
            into[n] = pfn;
            n += 1;
        }
        let zeroed = (1 << n) - 1;
        let stack = &mut local.stacks[Group::User as usize];
        while n < into.len() {
            if let Some(pfn) = stack[0].pop(&f.pages) {
                into[n] = pfn;
                n += 1;
            } else if stack[1].len != 0 {
                stack.swap(0, 1);
            } else if core::mem::replace(&mut refilled, true) {
                break;
            } else {
                stack[0] = f.refill(magazine.domain, For::User);
                self.stats().count(Event::DepotExchange);
            }
        }
        (n, zeroed)
    }

    /// Tries harder to allocate a frame, after this CPU's magazine and the depots had none.
    #[cold]
    pub(super) fn pop_frame_at_last(&self, fill: Fill, on_behalf: For) -> Option<(Pfn, bool)> {
        if let Some(got) = self.pop_broken_up(fill, on_behalf) {
            return Some(got);
        }
        let f = self.frames();
        f.wake_daemon();
        if on_behalf.is_limited() {
            self.stats().count(Event::AllocStall);
        }
        // Frames and spare table pages of other CPUs are drained only if this helps. So a request that is refused
        // anyway does not empty all magazines.
        M::Pmap::reclaim_tables(self);
        let limit = f.limit(on_behalf);
        if limit == 0 || f.free() > limit {
            self.drain_caches();
            let got = self.pop_frame(fill, on_behalf).or_else(|| self.pop_broken_up(fill, on_behalf));
            if got.is_some() {
                return got;
            }
        }
        let lower = self.lower_tier(on_behalf)?;
        self.pop_frame(fill, lower).or_else(|| self.pop_frame_at_last(fill, lower))
    }

    /// Takes a frame from the depots' chains of the other group (kernel or programs). A refill of the magazine does not
    /// use these chains. Returns `None` when the reserve is reached.
    fn pop_broken_up(&self, fill: Fill, on_behalf: For) -> Option<(Pfn, bool)> {
        let f = self.frames();
        while f.room(on_behalf) != 0 && f.break_one() {
            let got = self.pop_frame(fill, on_behalf);
            if got.is_some() {
                return got;
            }
        }
        None
    }

    /// Puts free frames into this CPU's magazine.
    #[inline]
    pub(super) fn push_frames(&self, frames: impl Iterator<Item = Pfn>) {
        let cpu = preempt_off();
        let magazine = self.frames().magazines.mine(&cpu);
        let mut local = magazine.local.lock();
        frames.for_each(|pfn| self.push_frame(pfn, magazine, &mut local));
    }

    #[inline(always)]
    fn push_frame(&self, pfn: Pfn, magazine: &Magazine, local: &mut Local) {
        let f = self.frames();
        let page = self.page(pfn);
        if page.domain() != magazine.domain {
            local.foreign.push(&f.pages, pfn);
            if local.foreign.len >= FOREIGN {
                let chain = core::mem::replace(&mut local.foreign, Chain::EMPTY);
                self.stats().count(Event::DepotExchange);
                f.take_home(chain);
            }
            return;
        }
        if f.is_low() && f.is_reserve_in_use() {
            // Requests that may not use the reserve would find the frame in the magazine.
            let mut one = Chain::EMPTY;
            one.push(&f.pages, pfn);
            f.take_home(one);
            return;
        }
        let group = Group::from_u8(page.group());
        let most = if f.is_low() { f.chain(group).min(SCARCE) } else { f.chain(group) };
        let stack = &mut local.stacks[group as usize];
        if stack[0].len >= most {
            if stack[1].len >= most {
                let chain = core::mem::replace(&mut stack[1], Chain::EMPTY);
                self.stats().count(Event::DepotExchange);
                f.put_chain(magazine.domain, group, chain);
            }
            stack.swap(0, 1);
        }
        stack[0].push(&f.pages, pfn);
    }

    /// Returns the frames of all magazines, zeroed ones included, to the buddy lists. It is called when memory is
    /// short.
    pub fn drain_caches(&self) {
        let f = self.frames();
        for m in f.magazines.iter() {
            let early = mutant(Mutant::DrainInTwoHolds).then(|| m.local.lock().all());
            let chains = m.local.lock().take_all();
            early.unwrap_or(chains).into_iter().for_each(|c| f.take_home(c));
        }
    }

    /// Returns the frames of the calling CPU's magazine to the buddy lists, for a caller that needs the exact sum.
    pub(crate) fn drain_own_cache(&self) {
        let chains = {
            let cpu = preempt_off();
            self.frames().magazines.mine(&cpu).local.lock().take_all()
        };
        chains.into_iter().for_each(|c| self.frames().take_home(c));
    }

    /// Returns all frames of the magazines and the depots' chains to the buddy lists, before large blocks are
    /// allocated.
    pub fn drain_magazines(&self) {
        self.drain_caches();
        while self.frames().break_one() {}
    }
}
