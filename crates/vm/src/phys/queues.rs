//! Page queues: active, inactive, laundry, each fanned out into parts, with a batch a CPU in front.
//!
//! A new page goes into its CPU's batch: one store, no shared line. A full batch goes to one part under one lock, so that
//! [`BATCH`] faults share that part's line and the last page's descriptor once. Each CPU goes round the parts of a window of
//! its own; windows overlap only where there are fewer parts than CPUs.
//!
//! # Number of parts
//! [`Queues::scale`]: 256 for each queue, sixteen a CPU where that is more, at most [`MAX_PARTS`]; and on a small machine no
//! more than one for 32 frames, so that the parts take at most a three-hundredth of memory.
//!
//! # Rules
//! - A page's state says where it is: nowhere, in the hands of whoever isolated it, in some batch on its way to a queue, or in
//!   part *n* of a queue. The word that says so is the one that holds the identity's generation, and it changes by
//!   compare-and-swap; taking the identity away is one swap of the same word, which thereby learns where the page was.
//! - A page goes into a part or out of it only under that part's lock: first the state is changed, then the links. On the way
//!   out the page's own links are read before that, since whoever takes an identity that is in no part frees the frame at
//!   once. Where the change fails because the identity has just been taken away, the links are left alone: who took it is
//!   about to unlink the page, and the frame is nobody else's before that. So nobody waits for anything but the lock, and each
//!   lock is held for a bounded number of steps.
//! - An entry in a batch is only a hint: the page may have gone, even come back. Draining takes what the state says is in *a*
//!   batch and skips the rest.
//! - Who isolated a page holds nothing of it: the page may lose its identity meanwhile, and then putting it back does nothing.
//!   (Had it another identity by then, and were isolated by somebody else too, it would be put into a queue by the first of
//!   the two. A queue is a hint for the pageout daemon, which looks at each page again.)
//! - `len` of a part is written under its lock and read without: a part that says it is empty is skipped without a look at
//!   its lock.
//!
//! | | drain | take, isolate | put | lose identity |
//! |---|---|---|---|---|
//! | **drain, put** | state: one of them moves it | the part's lock | the part's lock | state before links: skipped, or unlinked after |
//! | **take, isolate** | | state: one of them has it | — (isolated by one) | state before links: left linked for the other |

mod check;

use crate::machine::Machine;
use crate::mutant::{Mutant, mutant};
use crate::phys::Physical;
use crate::phys::boot::BootMemory;
use crate::phys::descriptors::Descriptors;
use crate::phys::page::{Page, State};
use crate::types::Pfn;
pub use crate::types::Queue;
pub use check::QueueError;
use quire_sync::atomic::{AtomicU32, Ordering};
use quire_sync::{CachePadded, CpuId, PerCpu, Rank, SpinGuard, SpinLock, current_cpu, preempt_off, record};

/// Pages in a batch: with two shared lines for a drain, one in 128 faults shares anything.
#[cfg(not(any(loom, shuttle)))]
pub const BATCH: usize = 256;
#[cfg(any(loom, shuttle))]
/// Pages in a batch, small so that drains happen under the checkers.
pub const BATCH: usize = 2;

/// The most parts that a queue can have: what fits into a page's state.
pub const MAX_PARTS: usize = 1 << State::PART_BITS;

/// Parts that a drain finds locked before it waits for one.
const TRIES: usize = 4;

/// Where a page is, as its state says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// In no queue: it has no identity, or is wired.
    Nowhere,
    /// Taken from a queue by somebody who has not put it back.
    Isolated,
    /// In some CPU's batch, on its way to this queue.
    Batched(Queue),
    /// In this part of this queue.
    Listed(Queue, u16),
}

const ISOLATED: u16 = 4;

impl Place {
    /// As the queue field of a state: three bits for what it is, the part above them.
    const fn encode(self) -> u16 {
        match self {
            Place::Nowhere => 0,
            Place::Isolated => ISOLATED,
            Place::Batched(queue) => ISOLATED + queue as u16,
            Place::Listed(queue, part) => queue as u16 | part << 3,
        }
    }

    fn decode(field: u16) -> Place {
        let queue = |n| Queue::ALL[n as usize - 1];
        match field & 7 {
            0 => Place::Nowhere,
            n @ 1..=3 => Place::Listed(queue(n), field >> 3),
            ISOLATED => Place::Isolated,
            n => Place::Batched(queue(n - ISOLATED)),
        }
    }

    /// Where the page with this state is.
    pub(crate) fn of(state: State) -> Place {
        Place::decode(state.queue())
    }
}

/// The state bits of a new page: on its way to the active queue.
pub(crate) const NEW: u64 = (Place::Batched(Queue::Active).encode() as u64) << State::QUEUE_SHIFT;

/// Moves `page` from one place to another; false where it was somewhere else.
fn change(page: &Page, from: Place, to: Place) -> bool {
    page.change_queue(from.encode(), to.encode())
}

#[derive(Default)]
struct List {
    head: Option<Pfn>,
    tail: Option<Pfn>,
}

/// One part of one queue, on a line of its own.
struct Part {
    /// Written under the lock.
    len: AtomicU32,
    list: SpinLock<List>,
}

quire_sync::assert_layout!(Part { size: 48, align: 8 });

/// What a CPU has not put into a part yet.
struct Batch {
    /// Frame numbers; hints.
    pages: [u32; BATCH],
    len: usize,
    /// Turns over the parts.
    turn: usize,
}

/// All queues.
pub struct Queues {
    pages: Descriptors,
    cpus: PerCpu<SpinLock<Batch>>,
    /// The active queue's parts, then the inactive's, then the laundry's.
    parts: &'static [CachePadded<Part>],
    count: usize,
}

impl Queues {
    /// Parts for each queue on a machine of `cpus` CPUs and `frames` frames; see the module.
    pub(crate) const fn scale(cpus: usize, frames: u64) -> usize {
        if cfg!(any(loom, shuttle)) {
            return 2;
        }
        let mut parts = 256;
        while parts < 16 * cpus && parts < MAX_PARTS {
            parts *= 2;
        }
        while parts > 1 && parts as u64 * 32 > frames {
            parts /= 2;
        }
        parts
    }

    /// Bytes of boot memory that the parts take.
    pub(crate) const fn boot_bytes(parts: usize) -> usize {
        parts * Queue::ALL.len() * size_of::<CachePadded<Part>>()
    }

    pub(crate) fn new(boot: &mut BootMemory<'_, impl Machine>, pages: Descriptors, parts: usize) -> Self {
        let slots = boot.slice(parts * Queue::ALL.len(), || {
            CachePadded(Part { len: AtomicU32::new(0), list: SpinLock::new(Rank::QUEUE, List::default()) })
        });
        record::own_array(slots.as_ptr().cast(), size_of_val(slots), size_of::<CachePadded<Part>>(), "queue-part");
        Queues {
            pages,
            cpus: boot.per_cpu(|_| SpinLock::new(Rank::QUEUE_BATCH, Batch { pages: [0; BATCH], len: 0, turn: 0 })),
            parts: slots,
            count: parts,
        }
    }

    /// Parts of each queue.
    #[cfg(all(test, not(any(loom, shuttle))))]
    pub(crate) fn parts_count(&self) -> usize {
        self.count
    }

    /// As pageout goes by the parts of `queue`, for measurements.
    ///
    /// # Safety
    /// What is taken out of a part is put into a queue again before its object goes, and is not changed meanwhile.
    pub unsafe fn parts_of(&self, queue: Queue) -> impl Iterator<Item = PartRef<'_>> {
        self.parts(queue)
    }

    /// As pageout takes one page out of its queue, for measurements.
    ///
    /// # Safety
    /// As for [`parts_of`](Self::parts_of): the page is put into a queue again before its object goes.
    pub unsafe fn take_out(&self, page: &Page) -> bool {
        self.isolate(page)
    }

    /// Pages in `queue`, as each part says when it is asked; batches not counted.
    pub fn len(&self, queue: Queue) -> u64 {
        self.parts(queue).map(|p| p.len() as u64).sum()
    }

    /// Whether no part of `queue` has a page.
    #[cfg(all(test, not(any(loom, shuttle))))]
    pub(crate) fn is_empty(&self, queue: Queue) -> bool {
        self.parts(queue).next().is_none()
    }

    /// Entries in the CPUs' batches: at most so many pages are on their way to a queue.
    #[cfg(all(test, not(any(loom, shuttle))))]
    pub(crate) fn batched(&self) -> u64 {
        self.cpus.iter().map(|b| b.lock().len as u64).sum()
    }

    /// The parts of `queue` that have pages, each at most once, from the calling CPU's own on. **The one iterator over the
    /// parts**: pageout, reclaim for contiguous memory, swap and statistics go by it. Empty parts are skipped by a look at
    /// their length, without their lock.
    pub(crate) fn parts(&self, queue: Queue) -> impl Iterator<Item = PartRef<'_>> {
        self.parts_from(queue, self.window(current_cpu()))
    }

    /// As [`Queues::parts`], from part `start` on (modulo the number of parts): for who goes round the parts in turn, as the
    /// pageout daemon does so that no CPU's pages live longer than another's.
    pub(crate) fn parts_from(&self, queue: Queue, start: usize) -> impl Iterator<Item = PartRef<'_>> {
        (0..self.count)
            .map(move |i| PartRef { queues: self, queue, number: (start % self.count + i) % self.count })
            .filter(|p| !p.is_empty())
    }

    /// The first part of a CPU's window.
    fn window(&self, cpu: CpuId) -> usize {
        cpu * self.count / self.cpus.len() % self.count
    }

    /// Parts in a CPU's window.
    fn width(&self) -> usize {
        (self.count / self.cpus.len()).max(1)
    }

    fn part(&self, queue: Queue, number: usize) -> &Part {
        &self.parts[(queue as usize - 1) * self.count + number].0
    }

    /// Puts `page` at the tail of a locked part.
    fn link(&self, part: &Part, list: &mut List, page: &Page) {
        let pfn = self.pages.pfn(page);
        page.set_prev(list.tail);
        page.set_next(None);
        match list.tail {
            Some(t) => self.pages.get(t).set_next(Some(pfn)),
            None => list.head = Some(pfn),
        }
        list.tail = Some(pfn);
        part.len.store(part.len.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// What stands before and behind `page` in a locked part that it is in.
    fn neighbours(page: &Page) -> (Option<Pfn>, Option<Pfn>) {
        (page.prev(), page.next())
    }

    /// Takes a page out of a locked part, from between its neighbours. The page itself is not looked at: once its state names
    /// no part, a remover frees it without asking for the lock, and its links are somebody else's.
    fn unlink(&self, part: &Part, list: &mut List, (prev, next): (Option<Pfn>, Option<Pfn>)) {
        match prev {
            Some(p) => self.pages.get(p).set_next(next),
            None => list.head = next,
        }
        match next {
            Some(n) => self.pages.get(n).set_prev(prev),
            None => list.tail = prev,
        }
        part.len.store(part.len.load(Ordering::Relaxed) - 1, Ordering::Relaxed);
    }

    /// A part of `queue` in the window of `cpu`, locked; the next in turn, but one that is free rather than one that is not.
    fn lock_next(&self, cpu: CpuId, turn: &mut usize, queue: Queue) -> (u16, &Part, SpinGuard<'_, List>) {
        let (first, width) = (self.window(cpu), self.width());
        let mut number = first;
        for _ in 0..TRIES.min(width) {
            *turn = (*turn + 1) % width;
            number = (first + *turn) % self.count;
            let part = self.part(queue, number);
            if let Some(list) = part.list.try_lock() {
                return (number as u16, part, list);
            }
        }
        let part = self.part(queue, number);
        (number as u16, part, part.list.lock())
    }

    /// Puts a page whose state says `Batched` into this CPU's batch.
    #[inline]
    pub(crate) fn add(&self, page: &Page) {
        self.add_all(core::iter::once(self.pages.pfn(page)));
    }

    /// Puts pages whose states say `Batched` into this CPU's batch.
    #[inline(always)]
    pub(crate) fn add_all(&self, pages: impl Iterator<Item = Pfn>) {
        let cpu = preempt_off();
        let mut batch = self.cpus.mine(&cpu).lock();
        for pfn in pages {
            let n = batch.len;
            batch.pages[n] = pfn.0 as u32;
            batch.len = n + 1;
            if n + 1 == BATCH {
                self.drain(cpu.cpu(), &mut batch);
            }
        }
    }

    #[cold]
    fn drain(&self, cpu: CpuId, batch: &mut Batch) {
        let n = core::mem::take(&mut batch.len);
        let mut left = n != 0;
        // Nearly always all go to the active queue, and this is one round.
        for queue in Queue::ALL {
            if !left {
                return;
            }
            left = false;
            let (number, part, mut list) = self.lock_next(cpu, &mut batch.turn, queue);
            for pfn in &batch.pages[..n] {
                let page = self.pages.get(Pfn(*pfn as u64));
                if change(page, Place::Batched(queue), Place::Listed(queue, number)) || mutant(Mutant::DrainTrustsBatch)
                {
                    self.link(part, &mut list, page);
                } else {
                    left |= matches!(Place::of(page.state()), Place::Batched(q) if q as u8 > queue as u8);
                }
            }
        }
    }

    /// Moves every CPU's batch to the queues. A CPU that halts drains its own.
    pub fn drain_batches(&self) {
        for (cpu, batch) in self.cpus.iter().enumerate() {
            self.drain(cpu, &mut batch.lock());
        }
    }

    /// Moves the calling CPU's batch to the queues: before it halts.
    pub(crate) fn drain_own_batch(&self) {
        let cpu = preempt_off();
        self.drain(cpu.cpu(), &mut self.cpus.mine(&cpu).lock());
    }

    /// Takes a page out of wherever it is, into the caller's hands; false where it is in no queue, or somebody else has it.
    pub(crate) fn isolate(&self, page: &Page) -> bool {
        loop {
            let place = Place::of(page.state());
            match place {
                Place::Nowhere | Place::Isolated => return false,
                Place::Batched(_) => {
                    if change(page, place, Place::Isolated) {
                        return true;
                    }
                }
                Place::Listed(queue, number) => {
                    let part = self.part(queue, number as usize);
                    let mut list = part.list.lock();
                    let around = Self::neighbours(page);
                    if change(page, place, Place::Isolated) {
                        self.unlink(part, &mut list, around);
                        return true;
                    }
                }
            }
        }
    }

    /// Puts an isolated page into `queue`, by way of this CPU's batch. Nothing happens where it has lost its identity.
    pub(crate) fn put(&self, page: &Page, queue: Queue) {
        if change(page, Place::Isolated, Place::Batched(queue)) {
            self.add(page);
        }
    }

    /// Puts isolated pages at the tail of one part of `queue`, under one lock, in their order. Those that have lost their
    /// identity are skipped; returns how many were not.
    pub(crate) fn put_all<'p>(&self, pages: impl IntoIterator<Item = &'p Page>, queue: Queue) -> usize {
        let cpu = preempt_off();
        let mut batch = self.cpus.mine(&cpu).lock();
        let (number, part, mut list) = self.lock_next(cpu.cpu(), &mut batch.turn, queue);
        let mut n = 0;
        for page in pages {
            if change(page, Place::Isolated, Place::Listed(queue, number)) {
                self.link(part, &mut list, page);
                n += 1;
            }
        }
        n
    }

    /// Moves a page from wherever it is to the tail of `queue`; false where it is in no queue or in somebody's hands.
    pub(crate) fn move_to(&self, page: &Page, queue: Queue) -> bool {
        let moves = self.isolate(page);
        if moves {
            self.put(page, queue);
        }
        moves
    }

    /// Moves a page to the tail of the part that it is in; false where it is in none.
    #[cfg(test)]
    pub(crate) fn requeue(&self, page: &Page) -> bool {
        let place = Place::of(page.state());
        let Place::Listed(queue, number) = place else { return false };
        let part = self.part(queue, number as usize);
        let mut list = part.list.lock();
        // Under the lock the state can only lose the page to a remover, which then waits for the lock.
        if Place::of(page.state()) != place && !mutant(Mutant::RequeueUnlooked) {
            return false;
        }
        self.unlink(part, &mut list, Self::neighbours(page));
        self.link(part, &mut list, page);
        true
    }

    /// See [`Leaving`].
    pub(crate) fn leaving(&self) -> Leaving<'_> {
        Leaving { queues: self, held: None }
    }

    /// Takes a page off the queue that its state named before it lost its identity.
    pub(crate) fn leave(&self, page: &Page, before: State) {
        let Place::Listed(queue, number) = Place::of(before) else { return };
        let part = self.part(queue, number as usize);
        // Whoever set that state did so under this lock, and has linked the page by now.
        let mut list = part.list.lock();
        self.unlink(part, &mut list, Self::neighbours(page));
    }
}

/// Takes pages off their queues as they lose their identity, one after the other: the lock of a part is kept while the pages stand
/// in it.
pub(crate) struct Leaving<'q> {
    queues: &'q Queues,
    /// The part whose lock is held, and what the states of its pages say of it.
    held: Option<(u16, &'q Part, SpinGuard<'q, List>)>,
}

impl Leaving<'_> {
    /// Takes the identity of a busy page away ([`Page::disown`]), and the page off the queue that it was in.
    #[inline]
    pub(crate) fn disown(&mut self, page: &Page) -> State {
        // Where it is now. Others may still move it: to a part that it was on its way to, or out of one.
        let place = page.state().queue();
        if self.held.as_ref().is_none_or(|(held, ..)| *held != place) {
            self.pause();
            if let Place::Listed(queue, number) = Place::decode(place) {
                let part = self.queues.part(queue, number as usize);
                self.held = Some((place, part, part.list.lock()));
            }
        }
        let before = page.disown();
        match &mut self.held {
            Some((held, part, list)) if before.queue() == *held => {
                self.queues.unlink(part, list, Queues::neighbours(page));
            }
            _ if mutant(Mutant::LeavesWhereItWas) => {}
            _ => {
                self.pause();
                self.queues.leave(page, before);
            }
        }
        before
    }

    /// Lets go of the lock, before anything but the next page.
    pub(crate) fn pause(&mut self) {
        self.held = None;
    }
}

/// One part of a queue.
#[derive(Clone, Copy)]
pub struct PartRef<'q> {
    queues: &'q Queues,
    queue: Queue,
    number: usize,
}

impl<'q> PartRef<'q> {
    /// Pages in it now; takes no lock.
    pub(crate) fn len(&self) -> usize {
        self.queues.part(self.queue, self.number).len.load(Ordering::Relaxed) as usize
    }
    /// Whether it has no page now; takes no lock.
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Its number, below `Queues::parts_count`: to go on behind it with [`Queues::parts_from`].
    pub(crate) fn number(&self) -> usize {
        self.number
    }

    /// Shows `f` up to `n` pages at the head, under the lock; they stay.
    pub(crate) fn look(&self, n: usize, f: &mut dyn FnMut(&'static Page)) {
        let list = self.queues.part(self.queue, self.number).list.lock();
        let pages = &self.queues.pages;
        core::iter::successors(list.head, |pfn| pages.get(*pfn).next()).take(n).for_each(|pfn| f(pages.get(pfn)));
    }

    /// Takes up to `n` pages from the head into the caller's hands ([`Place::Isolated`]), under one lock: the longest there
    /// first. `f` gets each, with the lock held: it may keep them and look at their state, no more. Returns how many.
    ///
    /// The caller holds nothing of these pages but the duty to put them back ([`Queues::put`], [`Queues::put_all`]): any may
    /// lose its identity at once.
    pub fn take(&self, n: usize, f: &mut dyn FnMut(&'static Page)) -> usize {
        let part = self.queues.part(self.queue, self.number);
        let here = Place::Listed(self.queue, self.number as u16);
        let mut list = part.list.lock();
        let (mut at, mut taken) = (list.head, 0);
        while taken < n
            && let Some(pfn) = at
        {
            let page = self.queues.pages.get(pfn);
            let around = Queues::neighbours(page);
            at = around.1;
            // Else a remover has just taken its identity, and is waiting for the lock to unlink it: one a CPU at most.
            if change(page, here, Place::Isolated) || mutant(Mutant::TakeUnlinksLeaving) {
                let around = if mutant(Mutant::LinksAfterState) { Queues::neighbours(page) } else { around };
                self.queues.unlink(part, &mut list, around);
                taken += 1;
                f(page);
            }
        }
        taken
    }
}

impl<M: Machine> Physical<M> {
    /// Puts an isolated page into `queue`; see [`Queues::put`].
    pub fn put_in_queue(&self, page: &Page, queue: Queue) {
        self.queues().put(page, queue);
    }

    /// Moves every CPU's batch to the queues. A CPU that halts drains its own.
    pub fn drain_queue_batches(&self) {
        self.queues().drain_batches();
    }

    /// Moves the calling CPU's batch to the queues: before it halts.
    pub fn drain_own_queue_batch(&self) {
        self.queues().drain_own_batch();
    }
}

#[cfg(all(test, any(loom, shuttle)))]
mod models;
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
