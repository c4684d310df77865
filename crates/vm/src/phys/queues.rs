//! Page queues: active, inactive, laundry, each divided into shards, with a batch a CPU in front.
//!
//! A new page goes into its CPU's batch: one store, no shared line. A full batch goes to one shard under one lock. So
//! [`BATCH`] faults share that shard's line and the last page's descriptor once. Each CPU goes round the shards of a
//! window of its own. Windows overlap only where there are fewer shards than CPUs.
//!
//! # Number of shards
//! [`Queues::scale`]: 256 for each queue, or sixteen a CPU where that is more, at most [`MAX_PARTS`]. A small machine
//! has at most one shard for 32 frames, so the shards take at most a three-hundredth of memory.
//!
//! # Rules
//! - A page's state says where it is: nowhere, isolated, in some batch on its way to a queue, or in shard *n* of a
//!   queue. The place shares one word with the identity's generation and changes by compare-and-swap. Taking the
//!   identity away is one swap of that word, which returns the place too.
//! - A page enters or leaves a shard only under that shard's lock: first the state is changed, then the links. On the
//!   way out the page's links are read before the state changes. Afterwards the state names no shard, and a remover
//!   that takes the identity frees the frame at once. The change fails where a remover has just taken the identity.
//!   Then the links stay: that remover is about to unlink the page, and owns the frame until it has. So a CPU waits for
//!   nothing but the lock, and each lock is held for a bounded number of steps.
//! - An entry in a batch is only a hint: the page may have gone, even come back. Draining takes the pages whose state
//!   says *in some batch*, and skips the rest.
//! - Isolating a page gives no hold on it. The page may lose its identity meanwhile, and then putting it back does
//!   nothing. If the frame has a new identity and was isolated again, the first of the two isolators puts it into a
//!   queue. That is harmless, because a queue is a hint and the pageout daemon checks each page again.
//! - `len` of a shard is written under its lock and read without it. A shard of length zero is skipped without its
//!   lock.
//!
//! | | drain | take, isolate | put | lose identity |
//! |---|---|---|---|---|
//! | **drain, put** | state: one moves it | shard's lock | shard's lock | state before links: skipped or unlinked |
//! | **take, isolate** | | state: one has it | isolated by one | state before links: left linked for the other |

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

/// Pages in a batch. A drain touches two shared lines, so one fault in 128 does.
#[cfg(not(any(loom, shuttle)))]
pub const BATCH: usize = 256;
#[cfg(any(loom, shuttle))]
/// Pages in a batch, small so that drains happen under the checkers.
pub const BATCH: usize = 2;

/// The most shards that a queue can have: as many as fit into a page's state.
pub const MAX_PARTS: usize = 1 << State::PART_BITS;

/// Shards that a drain finds locked before it waits for one.
const TRIES: usize = 4;

/// Where a page is, as its state says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QueuePlace {
    /// In no queue: it has no identity, or is wired.
    Nowhere,
    /// Taken from a queue by a CPU that has not put it back.
    Isolated,
    /// In some CPU's batch, on its way to this queue.
    Batched(Queue),
    /// In this shard of this queue.
    Listed(Queue, u16),
}

const ISOLATED: u16 = 4;

impl QueuePlace {
    /// As the queue field of a state: three bits for the kind of place, the shard above them.
    const fn encode(self) -> u16 {
        match self {
            QueuePlace::Nowhere => 0,
            QueuePlace::Isolated => ISOLATED,
            QueuePlace::Batched(queue) => ISOLATED + queue as u16,
            QueuePlace::Listed(queue, part) => queue as u16 | part << 3,
        }
    }

    fn decode(field: u16) -> QueuePlace {
        let queue = |n| Queue::ALL[n as usize - 1];
        match field & 7 {
            0 => QueuePlace::Nowhere,
            n @ 1..=3 => QueuePlace::Listed(queue(n), field >> 3),
            ISOLATED => QueuePlace::Isolated,
            n => QueuePlace::Batched(queue(n - ISOLATED)),
        }
    }

    /// Where the page with this state is.
    pub(crate) fn of(state: State) -> QueuePlace {
        QueuePlace::decode(state.queue())
    }
}

/// The state bits of a new page: on its way to the active queue.
pub(crate) const NEW: u64 = (QueuePlace::Batched(Queue::Active).encode() as u64) << State::QUEUE_SHIFT;

/// Moves `page` from one place to another; false where it was somewhere else.
fn change(page: &Page, from: QueuePlace, to: QueuePlace) -> bool {
    page.change_queue(from.encode(), to.encode())
}

#[derive(Default)]
struct PageList {
    head: Option<Pfn>,
    tail: Option<Pfn>,
}

/// One shard of one queue, on a line of its own.
struct Part {
    /// Written under the lock.
    len: AtomicU32,
    list: SpinLock<PageList>,
}

quire_sync::assert_layout!(Part { size: 48, align: 8 });

/// A CPU's pages that are not in a shard yet.
struct Batch {
    /// Frame numbers; hints.
    pages: [u32; BATCH],
    len: usize,
    /// Turn over the shards of the window.
    turn: usize,
}

/// All queues.
pub struct Queues {
    pages: Descriptors,
    cpus: PerCpu<SpinLock<Batch>>,
    /// The active queue's shards, then the inactive's, then the laundry's.
    parts: &'static [CachePadded<Part>],
    count: usize,
}

impl Queues {
    /// Shards for each queue on a machine of `cpus` CPUs and `frames` frames; see the module.
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

    /// Bytes of boot memory that the shards take.
    pub(crate) const fn boot_bytes(parts: usize) -> usize {
        parts * Queue::ALL.len() * size_of::<CachePadded<Part>>()
    }

    pub(crate) fn new(boot: &mut BootMemory<'_, impl Machine>, pages: Descriptors, parts: usize) -> Self {
        let slots = boot.slice(parts * Queue::ALL.len(), || {
            CachePadded(Part { len: AtomicU32::new(0), list: SpinLock::new(Rank::QUEUE, PageList::default()) })
        });
        record::own_array(slots.as_ptr().cast(), size_of_val(slots), size_of::<CachePadded<Part>>(), "queue-part");
        Queues {
            pages,
            cpus: boot.per_cpu(|_| SpinLock::new(Rank::QUEUE_BATCH, Batch { pages: [0; BATCH], len: 0, turn: 0 })),
            parts: slots,
            count: parts,
        }
    }

    /// Shards of each queue.
    #[cfg(all(test, not(any(loom, shuttle))))]
    pub(crate) fn parts_count(&self) -> usize {
        self.count
    }

    /// The shards of `queue`, in pageout's order, for measurements.
    ///
    /// # Safety
    /// The caller puts each page that it takes out into a queue again before the page's object goes, and does not
    /// change it meanwhile.
    pub unsafe fn parts_of(&self, queue: Queue) -> impl Iterator<Item = PartRef<'_>> {
        self.parts(queue)
    }

    /// Takes one page out of its queue as pageout does, for measurements.
    ///
    /// # Safety
    /// As for [`parts_of`](Self::parts_of): the page is put into a queue again before its object goes.
    pub unsafe fn take_out(&self, page: &Page) -> bool {
        self.isolate(page)
    }

    /// Pages in `queue`, by each shard's length when it is read; batches not counted.
    pub fn len(&self, queue: Queue) -> u64 {
        self.parts(queue).map(|p| p.len() as u64).sum()
    }

    /// Whether no shard of `queue` has a page.
    #[cfg(all(test, not(any(loom, shuttle))))]
    pub(crate) fn is_empty(&self, queue: Queue) -> bool {
        self.parts(queue).next().is_none()
    }

    /// Entries in the CPUs' batches, the most pages that can be on their way to a queue.
    #[cfg(all(test, not(any(loom, shuttle))))]
    pub(crate) fn batched(&self) -> u64 {
        self.cpus.iter().map(|b| b.lock().len as u64).sum()
    }

    /// The shards of `queue` that have pages, each at most once, from the calling CPU's own on. **The one iterator over
    /// the shards**: pageout, reclaim for contiguous memory, swap and statistics use it. Empty shards are skipped by
    /// their length, without their lock.
    pub(crate) fn parts(&self, queue: Queue) -> impl Iterator<Item = PartRef<'_>> {
        self.parts_from(queue, self.window(current_cpu()))
    }

    /// As [`Queues::parts`], from shard `start` on (modulo the number of shards). The pageout daemon goes round the
    /// shards in turn, so that no CPU's pages live longer than another's.
    pub(crate) fn parts_from(&self, queue: Queue, start: usize) -> impl Iterator<Item = PartRef<'_>> {
        (0..self.count)
            .map(move |i| PartRef { queues: self, queue, number: (start % self.count + i) % self.count })
            .filter(|p| !p.is_empty())
    }

    /// The first shard of a CPU's window.
    fn window(&self, cpu: CpuId) -> usize {
        cpu * self.count / self.cpus.len() % self.count
    }

    /// Shards in a CPU's window.
    fn width(&self) -> usize {
        (self.count / self.cpus.len()).max(1)
    }

    fn part(&self, queue: Queue, number: usize) -> &Part {
        &self.parts[(queue as usize - 1) * self.count + number].0
    }

    /// Puts `page` at the tail of a locked shard.
    fn link(&self, part: &Part, list: &mut PageList, page: &Page) {
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

    /// The pages before and behind `page` in its locked shard.
    fn neighbours(page: &Page) -> (Option<Pfn>, Option<Pfn>) {
        (page.prev(), page.next())
    }

    /// Takes a page out of a locked shard, from between its neighbours. The page's own links are not read. Once its
    /// state names no shard, a remover frees it without the lock, and the links belong to its next owner.
    fn unlink(&self, part: &Part, list: &mut PageList, (prev, next): (Option<Pfn>, Option<Pfn>)) {
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

    /// A shard of `queue` in the window of `cpu`, locked. The next in turn, except that locked shards are skipped up to
    /// [`TRIES`] times.
    fn lock_next(&self, cpu: CpuId, turn: &mut usize, queue: Queue) -> (u16, &Part, SpinGuard<'_, PageList>) {
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
                if change(page, QueuePlace::Batched(queue), QueuePlace::Listed(queue, number))
                    || mutant(Mutant::DrainTrustsBatch)
                {
                    self.link(part, &mut list, page);
                } else {
                    left |= matches!(QueuePlace::of(page.state()), QueuePlace::Batched(q) if q as u8 > queue as u8);
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

    /// Isolates a page from its queue or batch. False where it is in neither, or another CPU has isolated it.
    pub(crate) fn isolate(&self, page: &Page) -> bool {
        loop {
            let place = QueuePlace::of(page.state());
            match place {
                QueuePlace::Nowhere | QueuePlace::Isolated => return false,
                QueuePlace::Batched(_) => {
                    if change(page, place, QueuePlace::Isolated) {
                        return true;
                    }
                }
                QueuePlace::Listed(queue, number) => {
                    let part = self.part(queue, number as usize);
                    let mut list = part.list.lock();
                    let around = Self::neighbours(page);
                    if change(page, place, QueuePlace::Isolated) {
                        self.unlink(part, &mut list, around);
                        return true;
                    }
                }
            }
        }
    }

    /// Puts an isolated page into `queue`, by way of this CPU's batch. Nothing happens where it has lost its identity.
    pub(crate) fn put(&self, page: &Page, queue: Queue) {
        if change(page, QueuePlace::Isolated, QueuePlace::Batched(queue)) {
            self.add(page);
        }
    }

    /// Puts isolated pages at the tail of one shard of `queue`, under one lock, in their order. Skips pages that have
    /// lost their identity; returns how many it put.
    pub(crate) fn put_all<'p>(&self, pages: impl IntoIterator<Item = &'p Page>, queue: Queue) -> usize {
        let cpu = preempt_off();
        let mut batch = self.cpus.mine(&cpu).lock();
        let (number, part, mut list) = self.lock_next(cpu.cpu(), &mut batch.turn, queue);
        let mut n = 0;
        for page in pages {
            if change(page, QueuePlace::Isolated, QueuePlace::Listed(queue, number)) {
                self.link(part, &mut list, page);
                n += 1;
            }
        }
        n
    }

    /// Moves a page from its queue or batch to the tail of `queue`; false where it is in none or isolated.
    pub(crate) fn move_to(&self, page: &Page, queue: Queue) -> bool {
        let moves = self.isolate(page);
        if moves {
            self.put(page, queue);
        }
        moves
    }

    /// Moves a page to the tail of its shard; false where it is in none.
    #[cfg(test)]
    pub(crate) fn requeue(&self, page: &Page) -> bool {
        let place = QueuePlace::of(page.state());
        let QueuePlace::Listed(queue, number) = place else { return false };
        let part = self.part(queue, number as usize);
        let mut list = part.list.lock();
        // Under the lock the state can only lose the page to a remover, which then waits for the lock.
        if QueuePlace::of(page.state()) != place && !mutant(Mutant::RequeueUnlooked) {
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
        let QueuePlace::Listed(queue, number) = QueuePlace::of(before) else { return };
        let part = self.part(queue, number as usize);
        // The CPU that set that state did so under this lock, and has linked the page by now.
        let mut list = part.list.lock();
        self.unlink(part, &mut list, Self::neighbours(page));
    }
}

/// Takes pages off their queues as they lose their identity, one after the other. It keeps a shard's lock while
/// consecutive pages stand in that shard.
pub(crate) struct Leaving<'q> {
    queues: &'q Queues,
    /// The shard whose lock is held, and the queue field of its pages' states.
    held: Option<(u16, &'q Part, SpinGuard<'q, PageList>)>,
}

impl Leaving<'_> {
    /// Takes the identity of a busy page away ([`Page::disown`]), and the page off the queue that it was in.
    #[inline]
    pub(crate) fn disown(&mut self, page: &Page) -> State {
        // Its place now. Other CPUs may still move it: from a batch into a shard, or out of a shard.
        let place = page.state().queue();
        if self.held.as_ref().is_none_or(|(held, ..)| *held != place) {
            self.pause();
            if let QueuePlace::Listed(queue, number) = QueuePlace::decode(place) {
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

    /// Releases the lock. The caller calls it before any other work than the next page.
    pub(crate) fn pause(&mut self) {
        self.held = None;
    }
}

/// One shard of a queue.
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
    /// Its number, below `Queues::parts_count`, to continue behind it with [`Queues::parts_from`].
    pub(crate) fn number(&self) -> usize {
        self.number
    }

    /// Calls `f` for up to `n` pages at the head, under the lock; they stay.
    pub(crate) fn look(&self, n: usize, f: &mut dyn FnMut(&'static Page)) {
        let list = self.queues.part(self.queue, self.number).list.lock();
        let pages = &self.queues.pages;
        core::iter::successors(list.head, |pfn| pages.get(*pfn).next()).take(n).for_each(|pfn| f(pages.get(pfn)));
    }

    /// Isolates up to `n` pages from the head ([`QueuePlace::Isolated`]), under one lock, the oldest first. `f` gets
    /// each with the lock held; it may keep them and read their state, no more. Returns how many.
    ///
    /// The caller has no hold on these pages, only the duty to put them back ([`Queues::put`], [`Queues::put_all`]).
    /// Any of them may lose its identity at once.
    pub fn take(&self, n: usize, f: &mut dyn FnMut(&'static Page)) -> usize {
        let part = self.queues.part(self.queue, self.number);
        let here = QueuePlace::Listed(self.queue, self.number as u16);
        let mut list = part.list.lock();
        let (mut at, mut taken) = (list.head, 0);
        while taken < n
            && let Some(pfn) = at
        {
            let page = self.queues.pages.get(pfn);
            let around = Queues::neighbours(page);
            at = around.1;
            // Else a remover has just taken its identity, and is waiting for the lock to unlink it: one a CPU at most.
            if change(page, here, QueuePlace::Isolated) || mutant(Mutant::TakeUnlinksLeaving) {
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
