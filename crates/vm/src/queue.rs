//! Page queues: active, inactive, laundry, fanned out into parts, with a batch a CPU in front.
//!
//! A new page goes into its CPU's batch: one store, no shared line. A full batch goes to one part under one lock, so that
//! [`BATCH`] faults share that part's line and the last page's descriptor once. Which part is next rotates by CPU.
//!
//! # Rules
//! - A page's state says where it is: nowhere, in a batch, or in a queue. `BATCH` → `ACTIVE` is one compare-and-swap, by
//!   whoever drains; taking the identity away is one swap of the same word, which thereby learns where the page was.
//! - An entry in a batch is only a hint: the page may have gone, even come back. Draining takes what the state says is in *a*
//!   batch and skips the rest.
//! - `words[0]` is the part, written under the part's lock after the state said `ACTIVE`; until then it is [`UNKNOWN`]. Links
//!   are guarded by the part's lock.

use crate::machine::Machine;
use crate::page::{Page, State};
use crate::types::Pfn;
use crate::vm::{BootMemory, Vm};
use quire_sync::atomic::Ordering;
use quire_sync::hooks::relax;
use quire_sync::{CachePadded, PerCpu, Rank, SpinLock, preempt_off};

/// Pages in a batch: with two shared lines for a drain, one in 128 faults shares anything.
#[cfg(not(any(loom, shuttle)))]
pub const BATCH: usize = 256;
#[cfg(any(loom, shuttle))]
/// Pages in a batch, small so that drains happen under the checkers.
pub const BATCH: usize = 2;

/// Parts for each CPU: 256 parts on a machine of 16 CPUs.
const PARTS: usize = 16;

/// Where a page is; the queue field of its state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Queue {
    /// In use, as far as is known.
    Active = 1,
    /// Not used for a while.
    Inactive = 2,
    /// To be written out before it can be freed.
    Laundry = 3,
}

/// The queue field of a page in a CPU's batch, on its way to the active queue.
const BATCHED: u8 = 4;
/// The state bits of a new page.
pub(crate) const NEW: u64 = (BATCHED as u64) << State::QUEUE_SHIFT;
/// `words[0]` of a page that is in no part yet.
const UNKNOWN: u64 = u64::MAX;

#[derive(Default)]
struct List {
    head: Option<Pfn>,
    tail: Option<Pfn>,
    len: u64,
}

/// One part of the queues.
pub(crate) struct Part {
    lists: SpinLock<[List; 3]>,
}

/// One CPU's batch, and its parts.
pub(crate) struct Local {
    batch: SpinLock<Batch>,
    parts: [CachePadded<Part>; PARTS],
}

struct Batch {
    pages: [u32; BATCH],
    len: usize,
    /// Turns over the parts.
    turn: usize,
}

/// All queues.
pub struct Queues {
    cpus: PerCpu<Local>,
}

impl Queues {
    pub(crate) fn new(boot: &mut BootMemory<'_, impl Machine>) -> Self {
        Queues {
            cpus: boot.per_cpu(|_| Local {
                batch: SpinLock::new(Rank::QUEUE_BATCH, Batch { pages: [0; BATCH], len: 0, turn: 0 }),
                parts: core::array::from_fn(|_| {
                    CachePadded(Part { lists: SpinLock::new(Rank::QUEUE, Default::default()) })
                }),
            }),
        }
    }

    fn part(&self, n: u64) -> &Part {
        let n = n as usize;
        &self.cpus.of((n / PARTS) % self.cpus.len()).parts[n % PARTS]
    }

    /// Pages in `queue`; batches not counted.
    pub fn len(&self, queue: Queue) -> u64 {
        self.cpus.iter().flat_map(|c| &c.parts).map(|p| p.lists.lock()[queue as usize - 1].len).sum()
    }
}

impl<M: Machine> Vm<M> {
    /// Gives a wild frame an identity, as a new page: busy, on its way to the active queue. The caller owns the frame, puts
    /// it into the index and calls [`Vm::enqueue_new`].
    #[inline]
    pub(crate) fn assume_page(&self, page: &Page, object: u64, key: u64, bits: u64) {
        page.words()[0].store(UNKNOWN, Ordering::Relaxed);
        page.assume(object, key, NEW | bits);
    }

    /// Puts a new page into this CPU's batch.
    #[inline]
    pub(crate) fn enqueue_new(&self, page: &Page) {
        let pfn = self.pfn_of_page(page);
        let cpu = preempt_off();
        let mut batch = self.queues().cpus.mine(&cpu).batch.lock();
        let n = batch.len;
        batch.pages[n] = pfn.0 as u32;
        batch.len = n + 1;
        if n + 1 == BATCH {
            self.drain_batch(cpu.cpu(), &mut batch);
        }
    }

    /// Moves every CPU's batch to the queues. A CPU that halts drains its own.
    pub fn drain_queue_batches(&self) {
        for (cpu, local) in self.queues().cpus.iter().enumerate() {
            self.drain_batch(cpu, &mut local.batch.lock());
        }
    }

    /// Moves the calling CPU's batch to the queues: before it halts.
    pub fn drain_own_queue_batch(&self) {
        let cpu = preempt_off();
        let mut batch = self.queues().cpus.mine(&cpu).batch.lock();
        self.drain_batch(cpu.cpu(), &mut batch);
    }

    #[cold]
    fn drain_batch(&self, cpu: usize, batch: &mut Batch) {
        let n = core::mem::take(&mut batch.len);
        if n == 0 {
            return;
        }
        batch.turn = (batch.turn + 1) % PARTS;
        let number = (cpu * PARTS + batch.turn) as u64;
        let part = self.queues().part(number);
        let mut lists = part.lists.lock();
        let list = &mut lists[Queue::Active as usize - 1];
        for pfn in &batch.pages[..n] {
            let pfn = Pfn(*pfn as u64);
            let page = self.page(pfn);
            if !page.change_queue(BATCHED, Queue::Active as u8) {
                continue;
            }
            page.words()[0].store(number, Ordering::Release);
            page.set_prev(list.tail);
            page.set_next(None);
            match list.tail {
                Some(t) => self.page(t).set_next(Some(pfn)),
                None => list.head = Some(pfn),
            }
            list.tail = Some(pfn);
            list.len += 1;
        }
    }

    /// Takes a page off the queue that its state named before it lost its identity.
    pub(crate) fn leave_queue(&self, page: &Page, before: State) {
        let queue = ((before.0 & State::QUEUE_MASK) >> State::QUEUE_SHIFT) as u8;
        if queue == 0 || queue == BATCHED {
            return;
        }
        // Whoever changed the state is about to link the page, with the part's lock held.
        let number = loop {
            let n = page.words()[0].load(Ordering::Acquire);
            if n != UNKNOWN {
                break n;
            }
            relax();
        };
        let mut lists = self.queues().part(number).lists.lock();
        let list = &mut lists[queue as usize - 1];
        match page.prev() {
            Some(p) => self.page(p).set_next(page.next()),
            None => list.head = page.next(),
        }
        match page.next() {
            Some(n) => self.page(n).set_prev(page.prev()),
            None => list.tail = page.prev(),
        }
        list.len -= 1;
    }
}
