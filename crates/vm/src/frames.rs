//! Physical frames: a buddy allocator, a depot of chains before it, a magazine a CPU before that.
//!
//! A magazine is two chains of frames, linked through their descriptors; the depot holds whole chains of [`CHAIN`] frames, so
//! an exchange moves one pointer. At most one shared operation for [`CHAIN`] allocations or frees, whatever the mix: two
//! chains mean that a CPU which alternates at the edge of one does not go back to the depot each time (Bonwick and Adams,
//! USENIX 2001). Blocks of several frames come from the buddy lists directly; where those have split too far, the depot's
//! chains are broken up first.
//!
//! # The reserve
//! Frames for programs ([`For::User`]) are refused once fewer than the reserve are left outside the magazines, so that the
//! kernel's own memory ([`For::Kernel`]) does not run out because a program asked for everything. The mark is one
//! read-mostly flag, changed only at depot exchanges.

use crate::error::OutOfMemory;
use crate::machine::Machine;
use crate::page::{Kind, Page};
use crate::stats::Event;
use crate::types::Pfn;
use crate::vm::Vm;
use quire_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use quire_sync::{PerCpu, Rank, SpinLock, preempt_off};

/// Frames in a chain: with one shared line for an exchange, one in 256 allocations shares anything.
#[cfg(not(any(loom, shuttle)))]
pub const CHAIN: u32 = 256;
/// Frames in a chain, small so that exchanges happen under the checkers.
#[cfg(any(loom, shuttle))]
pub const CHAIN: u32 = 2;

/// The largest block is 2^MAX_ORDER frames (4 MiB): a large page and its alignment, with room.
pub const MAX_ORDER: u8 = 10;

/// A frame that somebody owns. Not copied; it goes back with [`Vm::free_frame`], or becomes a page or a table.
#[derive(Debug)]
#[must_use = "an owned frame is leaked where it is not freed"]
pub struct Frame(Pfn);

impl Frame {
    /// The frame's number.
    pub fn pfn(&self) -> Pfn {
        self.0
    }
    /// Gives ownership up to whoever keeps the number (an index slot, a page table).
    pub fn into_pfn(self) -> Pfn {
        let pfn = self.0;
        core::mem::forget(self);
        pfn
    }
    /// Takes ownership back.
    ///
    /// # Safety
    /// The number came from [`Frame::into_pfn`] (or a block's frame), and its keeper gave it up.
    pub unsafe fn from_pfn(pfn: Pfn) -> Frame {
        Frame(pfn)
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        debug_assert!(false, "frame {:?} is dropped instead of freed", self.0);
    }
}

/// What a new frame holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fill {
    /// Whatever was in it.
    Any,
    /// Zeroes.
    Zeroed,
}

/// On whose behalf a frame is taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum For {
    /// A program's data: refused when only the reserve is left.
    User,
    /// The kernel's own structures: may use the reserve.
    Kernel,
}

#[derive(Clone, Copy)]
struct Chain {
    head: Option<Pfn>,
    len: u32,
}

impl Chain {
    const EMPTY: Chain = Chain { head: None, len: 0 };
}

/// One CPU's frames. Its lock is taken by others only to drain it.
pub struct Magazine {
    chains: SpinLock<[Chain; 2]>,
}

impl Magazine {
    pub(crate) fn new() -> Self {
        Magazine { chains: SpinLock::new(Rank::MAGAZINE, [Chain::EMPTY; 2]) }
    }
}

struct Depot {
    /// Full chains, linked head to head through `prev`.
    full: Option<Pfn>,
    /// Free blocks by order, doubly linked.
    blocks: [Option<Pfn>; MAX_ORDER as usize + 1],
}

/// The frames of a machine.
pub struct Frames {
    magazines: PerCpu<Magazine>,
    depot: SpinLock<Depot>,
    /// Frames in the depot (chains and blocks). Written under the depot's lock.
    outside: AtomicU64,
    /// Fewer than the reserve are left outside the magazines.
    low: AtomicBool,
    reserve: u64,
    total: u64,
}

impl Frames {
    pub(crate) fn new(magazines: PerCpu<Magazine>, total: u64, reserve: u64) -> Self {
        Frames {
            magazines,
            depot: SpinLock::new(Rank::FRAMES, Depot { full: None, blocks: [None; MAX_ORDER as usize + 1] }),
            outside: AtomicU64::new(0),
            low: AtomicBool::new(false),
            reserve,
            total,
        }
    }

    /// Frames that the core manages.
    pub fn total(&self) -> u64 {
        self.total
    }
    /// Frames that are kept back for the kernel.
    pub fn reserve(&self) -> u64 {
        self.reserve
    }
    /// Frames that are free now: exact where nothing runs, else each magazine as it was when read.
    pub fn free(&self) -> u64 {
        let cached: u64 =
            self.magazines.iter().map(|m| m.chains.lock().iter().map(|c| c.len as u64).sum::<u64>()).sum();
        self.outside.load(Ordering::Relaxed) + cached
    }

    fn account(&self, delta: i64) {
        // Under the depot's lock: the only writer.
        let now = self.outside.load(Ordering::Relaxed).wrapping_add_signed(delta);
        self.outside.store(now, Ordering::Relaxed);
        let low = now < self.reserve;
        if self.low.load(Ordering::Relaxed) != low {
            self.low.store(low, Ordering::Relaxed);
        }
    }
}

impl<M: Machine> Vm<M> {
    /// One frame. Takes no shared lock but once in [`CHAIN`] calls.
    pub fn alloc_frame(&self, fill: Fill, on_behalf: For) -> Result<Frame, OutOfMemory> {
        let pfn = self.take_frame(on_behalf)?;
        let page = self.page(pfn);
        page.set_kind(Kind::Wild);
        self.stats().count(Event::FrameAlloc);
        if fill == Fill::Zeroed {
            // SAFETY: the frame was just taken off the free lists; nobody else uses it.
            unsafe { self.machine().zero_frame(pfn) };
        }
        Ok(Frame(pfn))
    }

    fn take_frame(&self, on_behalf: For) -> Result<Pfn, OutOfMemory> {
        if self.inject_failure() {
            return Err(OutOfMemory);
        }
        let f = self.frames();
        if on_behalf == For::User && f.low.load(Ordering::Relaxed) {
            // Frames may sit in other CPUs' magazines: bring them back once before giving up.
            self.drain_magazines();
            if f.low.load(Ordering::Relaxed) {
                return Err(OutOfMemory);
            }
        }
        if let Some(pfn) = self.pop_magazine(on_behalf) {
            return Ok(pfn);
        }
        self.drain_magazines();
        self.pop_magazine(on_behalf).ok_or(OutOfMemory)
    }

    fn pop_magazine(&self, on_behalf: For) -> Option<Pfn> {
        let f = self.frames();
        let cpu = preempt_off();
        let mut chains = f.magazines.mine(&cpu).chains.lock();
        if chains[0].len == 0 {
            chains.swap(0, 1);
        }
        if chains[0].len == 0 {
            chains[0] = self.refill(on_behalf);
        }
        let pfn = chains[0].head?;
        chains[0] = Chain { head: self.page(pfn).next(), len: chains[0].len - 1 };
        Some(pfn)
    }

    /// A chain from the depot: a full one, or one cut from the smallest block that is there.
    fn refill(&self, on_behalf: For) -> Chain {
        let f = self.frames();
        let mut depot = f.depot.lock();
        if on_behalf == For::User && f.outside.load(Ordering::Relaxed) < f.reserve {
            return Chain::EMPTY;
        }
        self.stats().count(Event::DepotExchange);
        if let Some(head) = depot.full {
            depot.full = self.page(head).prev();
            f.account(-(CHAIN as i64));
            return Chain { head: Some(head), len: CHAIN };
        }
        let mut chain = Chain::EMPTY;
        while chain.len < CHAIN {
            let want = CHAIN - chain.len;
            // The largest order that fits what is wanted, or what is there below it; else split from above.
            let fit = (31 - want.leading_zeros()).min(MAX_ORDER as u32) as u8;
            let Some((pfn, order)) = (0..=fit)
                .rev()
                .find_map(|o| depot.blocks[o as usize].map(|_| o))
                .or_else(|| (fit + 1..=MAX_ORDER).find(|o| depot.blocks[*o as usize].is_some()))
                .and_then(|o| self.take_block(&mut depot, o.min(fit)).map(|p| (p, o.min(fit))))
            else {
                break;
            };
            let n = 1u64 << order;
            for i in (pfn.0..pfn.0 + n).rev() {
                let page = self.page(Pfn(i));
                page.set_kind(Kind::Cached);
                page.set_next(chain.head);
                chain.head = Some(Pfn(i));
            }
            chain.len += n as u32;
        }
        f.account(-(chain.len as i64));
        chain
    }

    /// Takes a frame back.
    pub fn free_frame(&self, frame: Frame) {
        let pfn = frame.into_pfn();
        let page = self.page(pfn);
        debug_assert!(
            !matches!(page.kind(), Kind::Free | Kind::Cached | Kind::Reserved),
            "frame {pfn:?} is freed twice"
        );
        debug_assert_eq!(page.holds(), 0, "frame {pfn:?} is freed while somebody copies from it");
        page.set_kind(Kind::Cached);
        self.stats().count(Event::FrameFree);
        self.poison(pfn);
        let f = self.frames();
        let cpu = preempt_off();
        let mut chains = f.magazines.mine(&cpu).chains.lock();
        if chains[0].len == CHAIN {
            if chains[1].len == CHAIN {
                let full = chains[1];
                self.put_chain(full);
                chains[1] = Chain::EMPTY;
            }
            chains.swap(0, 1);
        }
        page.set_next(chains[0].head);
        chains[0] = Chain { head: Some(pfn), len: chains[0].len + 1 };
    }

    fn put_chain(&self, chain: Chain) {
        let f = self.frames();
        let mut depot = f.depot.lock();
        self.stats().count(Event::DepotExchange);
        if chain.len == CHAIN
            && let Some(head) = chain.head
        {
            self.page(head).set_prev(depot.full);
            depot.full = Some(head);
        } else {
            self.break_chain(&mut depot, chain);
        }
        f.account(chain.len as i64);
    }

    fn break_chain(&self, depot: &mut Depot, chain: Chain) {
        let mut at = chain.head;
        while let Some(pfn) = at {
            at = self.page(pfn).next();
            self.put_block(depot, pfn, 0);
        }
    }

    /// Brings every CPU's cached frames back to the buddy lists: before giving up, and before asking for large blocks.
    pub fn drain_magazines(&self) {
        let f = self.frames();
        for m in f.magazines.iter() {
            let chains = core::mem::replace(&mut *m.chains.lock(), [Chain::EMPTY; 2]);
            for c in chains {
                if c.len > 0 {
                    let mut depot = f.depot.lock();
                    self.break_chain(&mut depot, c);
                    f.account(c.len as i64);
                }
            }
        }
        let mut depot = f.depot.lock();
        while let Some(head) = depot.full {
            depot.full = self.page(head).prev();
            self.break_chain(&mut depot, Chain { head: Some(head), len: CHAIN });
        }
    }

    /// 2^`order` consecutive frames, aligned to their size. The first frame stands for the block.
    pub fn alloc_run(&self, order: u8, on_behalf: For) -> Result<Frame, OutOfMemory> {
        if order > MAX_ORDER || self.inject_failure() {
            return Err(OutOfMemory);
        }
        let f = self.frames();
        for attempt in 0..2 {
            let mut depot = f.depot.lock();
            let allowed = on_behalf == For::Kernel || f.outside.load(Ordering::Relaxed) >= f.reserve + (1 << order);
            if allowed && let Some(pfn) = self.take_block(&mut depot, order) {
                f.account(-(1i64 << order));
                drop(depot);
                (pfn.0..pfn.0 + (1 << order)).for_each(|i| self.page(Pfn(i)).set_kind(Kind::Wild));
                self.stats().add(Event::FrameAlloc, 1 << order);
                return Ok(Frame(pfn));
            }
            drop(depot);
            if attempt == 0 {
                self.drain_magazines();
            }
        }
        Err(OutOfMemory)
    }

    /// Takes back what [`Vm::alloc_run`] gave, with the same order.
    pub fn free_run(&self, first: Frame, order: u8) {
        let pfn = first.into_pfn();
        let f = self.frames();
        (pfn.0..pfn.0 + (1 << order)).for_each(|i| self.poison(Pfn(i)));
        self.stats().add(Event::FrameFree, 1 << order);
        let mut depot = f.depot.lock();
        self.put_block(&mut depot, pfn, order);
        f.account(1i64 << order);
    }

    /// Hands a range of RAM to the buddy lists, at boot.
    pub(crate) fn donate(&self, mut start: u64, end: u64) {
        let f = self.frames();
        let mut depot = f.depot.lock();
        while start < end {
            let align = if start == 0 { MAX_ORDER as u32 } else { start.trailing_zeros() };
            let order = align.min((end - start).ilog2()).min(MAX_ORDER as u32) as u8;
            self.put_block(&mut depot, Pfn(start), order);
            f.account(1i64 << order);
            start += 1 << order;
        }
    }

    fn take_block(&self, depot: &mut Depot, order: u8) -> Option<Pfn> {
        let from = (order..=MAX_ORDER).find(|o| depot.blocks[*o as usize].is_some())?;
        let pfn = depot.blocks[from as usize]?;
        self.unlink_block(depot, pfn, from);
        for o in (order..from).rev() {
            self.link_block(depot, Pfn(pfn.0 + (1 << o)), o);
        }
        Some(pfn)
    }

    fn put_block(&self, depot: &mut Depot, mut pfn: Pfn, mut order: u8) {
        (pfn.0..pfn.0 + (1 << order)).for_each(|i| self.page(Pfn(i)).set_kind(Kind::Wild));
        while order < MAX_ORDER {
            let buddy = Pfn(pfn.0 ^ (1 << order));
            let Some(page) = self.find_page(buddy) else { break };
            if page.kind() != Kind::Free || page.order() != order {
                break;
            }
            self.unlink_block(depot, buddy, order);
            pfn = Pfn(pfn.0 & !(1 << order));
            order += 1;
        }
        self.link_block(depot, pfn, order);
    }

    fn link_block(&self, depot: &mut Depot, pfn: Pfn, order: u8) {
        let page = self.page(pfn);
        page.set_kind(Kind::Free);
        page.set_order(order);
        page.set_prev(None);
        let head = depot.blocks[order as usize];
        page.set_next(head);
        if let Some(h) = head {
            self.page(h).set_prev(Some(pfn));
        }
        depot.blocks[order as usize] = Some(pfn);
    }

    fn unlink_block(&self, depot: &mut Depot, pfn: Pfn, order: u8) {
        let page = self.page(pfn);
        match page.prev() {
            Some(p) => self.page(p).set_next(page.next()),
            None => depot.blocks[order as usize] = page.next(),
        }
        if let Some(n) = page.next() {
            self.page(n).set_prev(page.prev());
        }
        page.set_kind(Kind::Wild);
    }

    fn poison(&self, pfn: Pfn) {
        self.machine().frame_freed(pfn);
        if self.poisons() {
            // SAFETY: the frame is free: nobody may use its memory. What is read from it later is a bug that shows.
            unsafe { core::ptr::write_bytes(self.machine().frame_ptr(pfn), 0xd5, crate::types::PAGE_SIZE as usize) };
        }
    }

    fn find_page(&self, pfn: Pfn) -> Option<&'static Page> {
        (pfn.0 < self.page_count()).then(|| self.page(pfn))
    }
}
