//! Page queues: active, inactive and laundry. Each is divided into shards (lists with their own locks). Each CPU has a
//! batch of pages that are not in a shard yet.
//!
//! A new page goes into the batch of its CPU, which is one store and no shared cache line. A full batch goes to one
//! shard under one lock. So [`BATCH`] faults together access the cache line of the shard, and the descriptor of its
//! last page, only once. Each CPU uses the shards of its own window in turn. Windows overlap only if there are fewer
//! shards than CPUs.
//!
//! # Number of shards
//! `Queues::scale` gives 256 for each queue, or sixteen for each CPU if that is more, at most [`MAX_PARTS`]. A small
//! machine has at most one shard for 32 frames, so the shards need at most a three-hundredth of memory.
//!
//! # Rules
//! - A page's state names its place: nowhere, isolated, in a batch on its way to a queue, or in shard *n* of a queue.
//!   The place is in one word with the generation of the identity, and changes by compare-and-swap. Removing the
//!   identity is one swap of that word, which also returns the place.
//! - A page enters or leaves a shard only under that shard's lock: first its state changes, then the links. When a page
//!   leaves, its links are read before its state changes. After the change the state names no shard, so a remover of
//!   the identity may free the frame at once. The change of the state fails if a remover has just removed the identity.
//!   The page then stays linked: the remover owns the frame, and is about to unlink the page. So a CPU waits only for
//!   the lock, and each lock is held for a bounded number of steps.
//! - An entry in a batch is only a hint: the page may have lost its identity, and may even have a new one. A drain
//!   moves the pages whose state is *in a batch*, and skips the others.
//! - An isolated page is not held. If it loses its identity before it is put back, putting it back does nothing. If the
//!   frame gets a new identity and is isolated again, the first of the two isolators puts it into a queue. This is
//!   harmless, because a queue is a hint and the pageout daemon checks each page again.
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

/// The number of pages in a batch. A drain touches two shared cache lines, so one fault in 128 touches one.
#[cfg(not(any(loom, shuttle)))]
pub const BATCH: usize = 256;
#[cfg(any(loom, shuttle))]
/// The number of pages in a batch. It is small, so that drains happen under the checkers.
pub const BATCH: usize = 2;

/// The most shards that a queue can have. Their numbers must fit into a page's state.
pub const MAX_PARTS: usize = 1 << State::PART_BITS;

/// The number of locked shards that a drain skips before it waits for one.
const TRIES: usize = 4;

/// The place of a page, which its state names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QueuePlace {
    /// In no queue, because the page has no identity or is wired.
    Nowhere,
    /// Taken from a queue by a CPU that has not put the page back yet.
    Isolated,
    /// In the batch of a CPU, on its way to this queue.
    Batched(Queue),
    /// In the shard with this number, of this queue.
    Listed(Queue, u16),
}

const ISOLATED: u16 = 4;

impl QueuePlace {
    /// The queue field of a state: three bits for the kind of place, and the shard above them.
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

    /// The place that `state` names.
    pub(crate) fn of(state: State) -> QueuePlace {
        QueuePlace::decode(state.queue())
    }
}

/// The state bits of a new page, which is on its way to the active queue.
pub(crate) const NEW: u64 = (QueuePlace::Batched(Queue::Active).encode() as u64) << State::QUEUE_SHIFT;

/// Moves `page` from one place to another. Returns false if it is not at `from`.
fn change(page: &Page, from: QueuePlace, to: QueuePlace) -> bool {
    page.change_queue(from.encode(), to.encode())
}

#[derive(Default)]
struct PageList {
    head: Option<Pfn>,
    tail: Option<Pfn>,
}

/// One shard of one queue, on its own cache line.
struct Part {
    /// The number of pages. Written under the lock.
    len: AtomicU32,
    list: SpinLock<PageList>,
}

quire_sync::assert_layout!(Part { size: 48, align: 8 });

/// The pages of a CPU that are not in a shard yet.
struct Batch {
    /// Frame numbers, which are only hints.
    pages: [u32; BATCH],
    len: usize,
    /// The position, in the CPU's window of shards, of the shard that the CPU used last.
    turn: usize,
}

/// All page queues.
pub struct Queues {
    pages: Descriptors,
    cpus: PerCpu<SpinLock<Batch>>,
    /// The shards of the active queue, then of the inactive queue, then of the laundry queue.
    parts: &'static [CachePadded<Part>],
    count: usize,
}

impl Queues {
    /// The number of shards for each queue on a machine of `cpus` CPUs and `frames` frames; see the module's comment.
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

    /// The bytes of boot memory that the shards need.
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

    /// The number of shards of each queue.
    #[cfg(all(test, not(any(loom, shuttle))))]
    pub(crate) fn parts_count(&self) -> usize {
        self.count
    }

    /// The shards of `queue`, in the order of pageout, for measurements.
    ///
    /// # Safety
    /// The caller puts each page that it takes out into a queue again before the page's object is torn down. It does
    /// not change the page before that.
    pub unsafe fn parts_of(&self, queue: Queue) -> impl Iterator<Item = PartRef<'_>> {
        self.parts(queue)
    }

    /// Takes one page out of its queue as pageout does, for measurements.
    ///
    /// # Safety
    /// As for [`parts_of`](Self::parts_of): the page is put into a queue again before its object is torn down.
    pub unsafe fn take_out(&self, page: &Page) -> bool {
        self.isolate(page)
    }

    /// The number of pages in `queue`: the sum of the lengths of its shards, each as it was when read. Batches are not
    /// counted.
    pub fn len(&self, queue: Queue) -> u64 {
        let first = (queue as usize - 1) * self.count;
        let parts = self.parts.get(first..first + self.count).unwrap_or_default();
        parts.iter().map(|part| u64::from(part.0.len.load(Ordering::Relaxed))).sum()
    }

    /// Whether no shard of `queue` has a page.
    #[cfg(all(test, not(any(loom, shuttle))))]
    pub(crate) fn is_empty(&self, queue: Queue) -> bool {
        self.parts(queue).next().is_none()
    }

    /// The number of entries in the batches of all CPUs. At most this number of pages is on the way to a queue.
    #[cfg(all(test, not(any(loom, shuttle))))]
    pub(crate) fn batched(&self) -> u64 {
        self.cpus.iter().map(|b| b.lock().len as u64).sum()
    }

    /// The shards of `queue` that have pages, each at most once, beginning with the calling CPU's own.
    ///
    /// **This is the only iterator over the shards**: pageout, reclaim for contiguous memory, swap and statistics use
    /// it. It skips empty shards by their length, without their lock.
    pub(crate) fn parts(&self, queue: Queue) -> impl Iterator<Item = PartRef<'_>> {
        self.parts_from(queue, self.window(current_cpu()))
    }

    /// Iterates over the shards like [`Queues::parts`], beginning with shard `start` (modulo the number of shards). The
    /// pageout daemon uses the shards in turn, so that pages of one CPU do not stay longer than pages of another.
    pub(crate) fn parts_from(&self, queue: Queue, start: usize) -> impl Iterator<Item = PartRef<'_>> {
        (0..self.count)
            .map(move |i| PartRef { queues: self, queue, number: (start % self.count + i) % self.count })
            .filter(|p| !p.is_empty())
    }

    /// The first shard of a CPU's window.
    fn window(&self, cpu: CpuId) -> usize {
        cpu * self.count / self.cpus.len() % self.count
    }

    /// The number of shards in a CPU's window.
    fn width(&self) -> usize {
        (self.count / self.cpus.len()).max(1)
    }

    fn part(&self, queue: Queue, number: usize) -> &Part {
        &self.parts[(queue as usize - 1) * self.count + number].0
    }

    /// Links `page` at the tail of a locked shard.
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

    /// The pages before and after `page` in its locked shard.
    fn neighbours(page: &Page) -> (Option<Pfn>, Option<Pfn>) {
        (page.prev(), page.next())
    }

    /// Unlinks a page from between its neighbours in a locked shard. The page's own links are not read. Once its state
    /// names no shard, a remover frees it without the lock, and the links belong to its next owner.
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

    /// Locks a shard of `queue` in the window of `cpu`. Takes the next shard in turn, but skips up to [`TRIES`] locked
    /// shards.
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

    /// Puts a page whose state names `Batched` into this CPU's batch.
    #[inline]
    pub(crate) fn add(&self, page: &Page) {
        self.add_all(core::iter::once(self.pages.pfn(page)));
    }

    /// Puts pages whose states name `Batched` into this CPU's batch.
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
        // Nearly always all pages go to the active queue, which takes one iteration of this loop.
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

    /// Moves the batches of all CPUs to the queues. A CPU that halts drains its own batch.
    pub fn drain_batches(&self) {
        for (cpu, batch) in self.cpus.iter().enumerate() {
            self.drain(cpu, &mut batch.lock());
        }
    }

    /// Moves the calling CPU's batch to the queues, before the CPU halts.
    pub(crate) fn drain_own_batch(&self) {
        let cpu = preempt_off();
        self.drain(cpu.cpu(), &mut self.cpus.mine(&cpu).lock());
    }

    /// Isolates a page from its queue or batch. Returns false if it is in neither, or another CPU has isolated it.
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

    /// Puts an isolated page into `queue`, through this CPU's batch. Does nothing if the page has lost its identity.
    pub(crate) fn put(&self, page: &Page, queue: Queue) {
        if change(page, QueuePlace::Isolated, QueuePlace::Batched(queue)) {
            self.add(page);
        }
    }

    /// Puts isolated pages at the tail of one shard of `queue`, under one lock, in their order. Skips pages that have
    /// lost their identity. Returns the number of pages that it put.
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

    /// Moves a page from its queue or batch to the tail of `queue`. Returns false if the page is in no queue and no
    /// batch, or isolated.
    pub(crate) fn move_to(&self, page: &Page, queue: Queue) -> bool {
        let moves = self.isolate(page);
        if moves {
            self.put(page, queue);
        }
        moves
    }

    /// Moves a page to the tail of its shard. Returns false if the page is in no shard.
    #[cfg(test)]
    pub(crate) fn requeue(&self, page: &Page) -> bool {
        let place = QueuePlace::of(page.state());
        let QueuePlace::Listed(queue, number) = place else { return false };
        let part = self.part(queue, number as usize);
        let mut list = part.list.lock();
        // Under the lock only a remover can still change the state, and it then waits for the lock to unlink the page.
        if QueuePlace::of(page.state()) != place && !mutant(Mutant::RequeueUnlooked) {
            return false;
        }
        self.unlink(part, &mut list, Self::neighbours(page));
        self.link(part, &mut list, page);
        true
    }

    /// Returns a [`Leaving`], which removes identities of pages and takes the pages off their queues.
    pub(crate) fn leaving(&self) -> Leaving<'_> {
        Leaving { queues: self, held: None }
    }

    /// Takes a page that has lost its identity off its queue. `before` is the state that the page had with the
    /// identity.
    pub(crate) fn leave(&self, page: &Page, before: State) {
        let QueuePlace::Listed(queue, number) = QueuePlace::of(before) else { return };
        let part = self.part(queue, number as usize);
        // The CPU that set this state did so under this lock, so it has linked the page by now.
        let mut list = part.list.lock();
        self.unlink(part, &mut list, Self::neighbours(page));
    }
}

/// Removes the identities of pages and takes the pages off their queues, one after the other. It keeps the lock of a
/// shard while consecutive pages are in that shard.
pub(crate) struct Leaving<'q> {
    queues: &'q Queues,
    /// The shard whose lock is held, and the queue field of its pages' states.
    held: Option<(u16, &'q Part, SpinGuard<'q, PageList>)>,
}

impl Leaving<'_> {
    /// Removes the identity of a busy page ([`Page::disown`]), and takes the page off its queue.
    #[inline]
    pub(crate) fn disown(&mut self, page: &Page) -> State {
        // This is the place at present. Other CPUs may still move the page from a batch into a shard, or out of a
        // shard.
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

    /// Releases the lock. The caller does this before any work other than the next page.
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
    /// The number of pages in the shard now. Acquires no lock.
    pub(crate) fn len(&self) -> usize {
        self.queues.part(self.queue, self.number).len.load(Ordering::Relaxed) as usize
    }
    /// Whether the shard has no page now. Acquires no lock.
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// The number of the shard, below `Queues::parts_count`. [`Queues::parts_from`] can continue after it.
    pub(crate) fn number(&self) -> usize {
        self.number
    }

    /// Calls `f` for up to `n` pages at the head, under the lock. The pages stay in the shard.
    pub(crate) fn look(&self, n: usize, f: &mut dyn FnMut(&'static Page)) {
        let list = self.queues.part(self.queue, self.number).list.lock();
        let pages = &self.queues.pages;
        core::iter::successors(list.head, |pfn| pages.get(*pfn).next()).take(n).for_each(|pfn| f(pages.get(pfn)));
    }

    /// Isolates up to `n` pages from the head ([`QueuePlace::Isolated`]), under one lock, the oldest first. Calls `f`
    /// with each while the lock is held. `f` may only keep the page and read its state. Returns the number of pages.
    ///
    /// The caller does not hold these pages, but must put them back (`Queues::put`, `Queues::put_all`). Each of
    /// them may lose its identity at any time.
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
            // If the change fails, a remover has just removed the identity, and is waiting for the lock to unlink the
            // page. This is at most one page for each CPU.
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
    /// Puts an isolated page into `queue`; see `Queues::put`.
    pub fn put_in_queue(&self, page: &Page, queue: Queue) {
        self.queues().put(page, queue);
    }

    /// Moves the batches of all CPUs to the queues. A CPU that halts drains its own batch.
    pub fn drain_queue_batches(&self) {
        self.queues().drain_batches();
    }

    /// Moves the calling CPU's batch to the queues, before the CPU halts.
    pub fn drain_own_queue_batch(&self) {
        self.queues().drain_own_batch();
    }
}

#[cfg(all(test, any(loom, shuttle)))]
mod models;
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
