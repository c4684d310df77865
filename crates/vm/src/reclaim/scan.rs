//! Pageout: which pages give up their frames when memory is short, and which threads wait for that.
//!
//! # A pass
//! Pages move in a cycle:
//! - *active* → *inactive*, where no translation was referenced since the last visit (second chance);
//! - inactive and referenced again → active;
//! - inactive and clean → free;
//! - inactive and dirty → *laundry* → written, in clusters of neighbours of one object → inactive again, now clean.
//!
//! A pass goes over the shards of the queues in rounds, until its target is met or a whole round has found nothing to
//! do. Each round visits each page at most once: a visited page goes to a tail, and the visits are limited to the
//! number of pages at the round's beginning. From the third round on references do not count. So programs that touch
//! all their memory all the time cannot keep a pass from its target.
//!
//! # Decisions come from exact sums
//! A pass first drains the magazines. It continues until each memory domain has reached its high mark
//! ([`Watermarks`](crate::phys::frames::Watermarks)), by the exact counts of the depots. It leaves pages of domains
//! that have reached it alone. Queue lengths are the shards' own. The marks are computed from the totals each time, so
//! that nothing needs rescaling. (Known bugs of others: limits computed once at boot, and counters that lag behind by a
//! multiple of the number of CPUs.)
//!
//! # The daemon
//! A CPU that takes a chain from a depot and leaves every domain below its low mark wakes the daemon
//! ([`Frames::wake_when_low`](crate::phys::frames::Frames::wake_when_low)). A CPU that takes a frame from its magazine
//! checks nothing. So as long as the store keeps up, no request is refused. After a pass that found nothing to do the
//! daemon sleeps until a request is refused, or memory gets low anew. Where no page can be written or dropped, it runs
//! no passes, and drops page tables of idle spaces only.
//!
//! # Pages that cannot be cleaned
//! A page whose write failed stays dirty. It is tried again in every second pass, then in every fourth, and so on, and
//! after [`GIVE_UP`] failures hardly ever. It waits on the active queue, out of the way. Pages without a place to be
//! written to do the same. So no pass is spent on writing the same pages over and over.
//!
//! # Low memory
//! Below the reserve, frames for programs are refused. The fault then drops all that it holds, wakes the daemon and
//! sleeps. It sleeps until frames are free, or until a pass that *began after it slept* has found nothing. Nothing
//! means: no page to free, none being cleaned, none to be tried again, and no cache that costs no write to drop ([page
//! tables](super::idle_tables) of spaces that no CPU runs). Only then is memory out. Where there is no daemon, the
//! fault runs a pass itself.
//!
//! With full swap a pass visits all of memory and frees a few pages, so it takes long. Waiting faults are woken for
//! each batch that it frees, or several programs would share a handful of frames a second. A fault that is still
//! refused for [`STARVED`] fails. It fails even if memory is free when it wakes, because other threads take that memory
//! first.
//!
//! # What pageout itself needs
//! It needs no memory: records of writes and the swap bitmap are made at boot, and queue links are in the pages. It
//! holds one page batch busy at a time, never over a wait: it waits for a record before it sets pages busy. It takes no
//! lock of a map. So it never waits for a thread that waits for memory.

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;

pub use super::idle_tables::Reclaim;

use super::memory_wait::Asking;
use super::progress::{MOST_TURNOVER, Progress, STARVED, TURNOVER, Tally};
use crate::error::FaultError;
use crate::machine::Machine;
use crate::map::space::spaces::Hand;
use crate::object::batch::Batch;
use crate::object::index::Slot;
use crate::object::kept::KeptObject;
use crate::object::{Object, SlotFilter};
use crate::paging::io::CLUSTER;
use crate::paging::laundry;
use crate::paging::waiting::{MemoryWait, Patience, Refused};
use crate::phys::frames::DomainSet;
use crate::phys::page::Page;
use crate::phys::queues::{Queue, QueuePlace};
use crate::reclaim::Reclaimer;
use crate::reclaim::daemon::OnEnd;
use crate::reclaim::evict;
use crate::rmap;
use crate::sleep::MaySleep;
use crate::stats::Event;
use crate::stats::FaultKind;
use quire_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use quire_sync::hooks::{current_thread, now};
use quire_sync::trace::{EventKind, Span};
use quire_sync::{Mutex, Rank, SpinLock};

/// Pages taken from a shard at once.
#[cfg(not(any(loom, shuttle)))]
const TAKE: usize = crate::object::batch::BATCH;
#[cfg(any(loom, shuttle))]
const TAKE: usize = 2;

/// Failed writes of a page after which it is hardly ever tried again.
pub(crate) const GIVE_UP: u64 = 8;

/// Rounds of a pass in which a reference saves a page.
const CHANCES: u32 = 2;

/// Rounds of a pass at most; in practice it ends long before.
const ROUNDS: u32 = 64;

/// One part in so many of memory is the most that pages of files in use keep under any pressure.
const SHIELDED: u64 = 64;

/// Passes for which a reference shields such a page.
const SPARED: u32 = 2;

/// A fault with fewer refusals than this is not starved, however long they took.
const STARVED_DEFEATS: u32 = 3;
/// Among so many waiters a fault gets its turn within [`STARVED`]; among more it may take as many times longer.
const FEW: u64 = 32;

/// What a pass has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Pass {
    /// Pages whose frames were freed.
    pub freed: u64,
    /// Pages whose writes were started.
    pub laundered: u64,
    /// Page tables of idle spaces that were dropped.
    pub tables: u64,
    /// Pages that will be tried again later: their writes have failed lately.
    pub deferred: u64,
    /// Rounds.
    pub rounds: u32,
    /// Nothing was found, no write is under way, and nothing will be tried again.
    pub hopeless: bool,
}

/// Positions of the scans.
pub(super) struct Hands {
    active: usize,
    inactive: usize,
    laundry: usize,
    pub(super) spaces: Hand,
}

/// The state of pageout.
pub struct Pageout {
    asking: Asking,
    progress: Progress,
    /// The daemon's thread runs.
    daemon: AtomicBool,
    /// Passes begun; each has its number.
    begun: AtomicU64,
    /// The last pass that found nothing.
    hopeless: AtomicU64,
    /// Nanoseconds: before this time the daemon looks for no idle spaces, because a round has found none.
    pub(super) no_tables_until: AtomicU64,
    /// One pass at a time.
    pub(super) hands: Mutex<Hands>,
    /// The keeper of cached memory that a pass may reclaim.
    pub(super) keeper: SpinLock<Option<&'static dyn Reclaim>>,
    /// One claim of consecutive frames at a time; see
    /// [`Reclaimer::alloc_contiguous_reclaiming`](crate::reclaim::Reclaimer::alloc_contiguous_reclaiming).
    pub(crate) claims: Mutex<()>,
    /// Held by a thread that reaps because memory is out.
    reaps: Mutex<()>,
}

/// Pages that the scan isolated from one shard, each with its identity at that time.
struct Taken {
    pages: [Option<(u64, u64, &'static Page)>; TAKE],
    len: usize,
}

impl Taken {
    fn new() -> Taken {
        Taken { pages: [None; TAKE], len: 0 }
    }
    fn push(&mut self, page: &'static Page) {
        if self.len < TAKE {
            self.pages[self.len] = Some((page.object(), page.index(), page));
            self.len += 1;
        }
    }
    fn iter(&self) -> impl Iterator<Item = &'static Page> + '_ {
        self.pages[..self.len].iter().flatten().map(|p| p.2)
    }
}

impl Pageout {
    pub(crate) fn new() -> Pageout {
        Pageout {
            asking: Asking::new(),
            progress: Progress::new(),
            daemon: AtomicBool::new(false),
            begun: AtomicU64::new(0),
            hopeless: AtomicU64::new(0),
            no_tables_until: AtomicU64::new(0),
            hands: Mutex::new(Hands { active: 0, inactive: 0, laundry: 0, spaces: Hand::default() }),
            keeper: SpinLock::new(Rank::IO, None),
            claims: Mutex::new(()),
            reaps: Mutex::new(()),
        }
    }

    /// Passes so far.
    pub fn passes(&self) -> u64 {
        self.begun.load(Ordering::Relaxed)
    }

    pub(crate) fn wake_daemon(&self) {
        self.asking.wake_daemon();
    }
}

/// Pages that the reaper visits before a pass begins, and again while programs get no frames.
pub(super) const SHADOWED: u64 = 4096;

impl<M: Machine> Reclaimer<M> {
    /// Pages out until the high marks are reached, or nothing is left to do. May sleep.
    pub(crate) fn pageout_pass(&'static self, may: &mut MaySleep) -> Pass {
        self.reap_first(may);
        self.pass(&mut self.pageout().hands.lock(), may)
    }

    /// Frees pages that no space can see any more first, because they cost no write. All of them, where programs get no
    /// frames.
    fn reap_first(&'static self, may: &mut MaySleep) {
        while self.reap(SHADOWED, may) >= SHADOWED && !self.has_memory() {}
    }

    fn pass(&'static self, hands: &mut Hands, may: &mut MaySleep) -> Pass {
        let mut span = Span::begin(EventKind::Pageout, 0, 0);
        let p = self.pageout();
        let number = p.begun.fetch_add(1, Ordering::AcqRel) + 1;
        self.drain_caches();
        let (done, short) = (Pass::default(), DomainSet::default());
        let mut scan = Scan { vm: self, number, done, hands, short, in_vain: false, shielded: 0, offered: 0 };
        scan.run(may);
        let done = scan.done;
        span.count(done.freed, done.laundered);
        if done.hopeless {
            p.hopeless.store(number, Ordering::Release);
        }
        p.asking.pass_is_over();
        done
    }

    /// Whether pages can be written or dropped at all. If not, a scan of all pages frees none.
    fn can_page_out(&self) -> bool {
        self.swap().store().is_some() || self.io().has_freeable()
    }

    /// Whether programs get frames.
    pub(crate) fn has_memory(&self) -> bool {
        self.frames().free() > self.frames().reserve()
    }

    /// As `wait_for_memory`; false as well once the waiter `gives_up`.
    fn wait_for_memory_unless(&'static self, may: &mut MaySleep, refused: u64, gives_up: impl Fn() -> bool) -> bool {
        if self.take_injected() || self.machine().is_ending() {
            return false;
        }
        let _span = Span::begin(EventKind::NoMemory, 0, 0);
        let p = self.pageout();
        if gives_up() || self.is_lost(refused) {
            return false;
        }
        if !self.can_page_out() {
            {
                // One at a time, because a thread that finds nothing to reap must not continue before another has freed
                // its pages.
                let _one = p.reaps.lock();
                if !self.has_memory() {
                    self.reap_first(may);
                }
            }
            if self.has_memory() {
                return true;
            }
            // Another thread may have dropped all there was while this one waited for the hands.
            let mut hands = p.hands.lock();
            return self.has_memory() || self.take_kept(&mut hands) && self.has_memory();
        }
        let _waits = p.progress.wait();
        let since = p.begun.load(Ordering::Acquire);
        if p.daemon.load(Ordering::Acquire) {
            let (mut hopeless, mut out) = (false, false);
            p.asking.wait(may, || {
                // A decision stands although some memory is free now: each freed batch wakes all waiters, who take it.
                out = gives_up() || self.is_lost(refused);
                hopeless = p.hopeless.load(Ordering::Acquire) > since || self.machine().is_ending();
                out || hopeless || self.has_memory() || !p.daemon.load(Ordering::Acquire)
            });
            return !out && (self.has_memory() || !hopeless);
        }
        self.reap_first(may);
        let mut hands = p.hands.lock();
        // The previous holder of the hands ran a whole pass since this CPU needed memory.
        if p.begun.load(Ordering::Acquire) > since {
            if self.has_memory() {
                return true;
            }
            if p.hopeless.load(Ordering::Acquire) > since {
                return false;
            }
        }
        !self.pass(&mut hands, may).hopeless || self.has_memory()
    }

    /// Whether programs that are refused memory make no progress ([`progress`](super::progress)).
    fn is_lost(&self, refused: u64) -> bool {
        let stats = self.stats();
        let read = stats.total(Event::SwapIn) + stats.total(Event::PageIn);
        let made = stats.faults_of(FaultKind::ZeroFill) + stats.faults_of(FaultKind::Copy);
        let more = stats.total(Event::FaultAhead) + stats.total(Event::PageFilled);
        // Only with full swap may a pass take long and free little.
        let full = self.swap().store().is_some() && self.swap().is_as_good_as_full();
        let least = if full { (self.frames().total() / TURNOVER).clamp(1, MOST_TURNOVER) } else { 0 };
        let gained = read.wrapping_add(made).wrapping_add(more);
        let (finished, in_flight) = (self.io().finished(), self.io().in_flight());
        let tally = Tally { gained, near: stats.total(Event::NearRefault), least, finished, in_flight };
        self.pageout().progress.is_lost(now(), refused, tally)
    }

    /// The pageout daemon's loop.
    pub(crate) fn run_pageout(&'static self) {
        let mut may = MaySleep::here();
        let p = self.pageout();
        p.daemon.store(true, Ordering::Release);
        let frames = self.frames();
        frames.wake_when_low(Some(current_thread()));
        let _withdraws = OnEnd(|| {
            frames.wake_when_low(None);
            p.daemon.store(false, Ordering::Release);
            p.asking.wake();
        });
        let (stopped, woken) = (|| self.daemons().stopping(), || frames.take_asked());
        p.asking.serve(&mut may, stopped, woken, |waited_for, may| {
            if !waited_for && !self.can_page_out() {
                self.drop_tables_ahead();
                return false;
            }
            if !waited_for && !self.is_low_indeed() {
                return false;
            }
            let pass = self.pageout_pass(may);
            // A domain that is not low does not help a thread that needs more than it has.
            let short = || p.asking.is_waited_for() && !self.has_memory();
            // With full swap, another pass would find no more than this one.
            let worth = self.swap().store().is_none() || self.swap().free() != 0;
            !pass.hopeless && (worth && self.is_low_indeed() || short())
        });
    }

    /// Whether memory is still low after the magazines were drained, and pages can be written or dropped.
    fn is_low_indeed(&self) -> bool {
        if !self.frames().is_low() || !self.can_page_out() {
            return false;
        }
        self.drain_caches();
        self.frames().is_low()
    }
}

impl<M: Machine> MemoryWait for Reclaimer<M> {
    /// Sleeps until frames for programs are free; false where there is nothing that could be freed.
    #[cold]
    fn wait_for_memory(&'static self, may: &mut MaySleep) -> bool {
        self.wait_for_memory_unless(may, now(), || false)
    }

    /// As [`Objects::wait_for_memory`](crate::object::Objects::wait_for_memory), within `patience`. The refusals of
    /// this fault count, because other threads often take the free memory before it runs.
    #[cold]
    fn memory_or_error(&'static self, patience: &mut Patience, may: &mut MaySleep) -> Result<(), FaultError> {
        patience.left = patience.left.saturating_sub(1);
        let io = self.io();
        let first = || Refused { at: now(), finished: io.finished(), left: patience.left };
        let refused = *patience.since.get_or_insert_with(first);
        // The gains of others do not help a fault that always loses to them, where no page can go out to make up for
        // it.
        let defeats = refused.left - patience.left;
        let is_starved = || {
            now().saturating_sub(refused.at) >= STARVED.saturating_mul(1 + self.pageout().progress.waiters() / FEW)
                && defeats >= STARVED_DEFEATS
                && self.swap().is_as_good_as_full()
                && (io.in_flight() == 0 || io.finished() != refused.finished)
        };
        let served = patience.left != 0 && self.wait_for_memory_unless(may, refused.at, is_starved);
        if served { Ok(()) } else { Err(FaultError::OutOfMemory) }
    }
}

/// A pass under way.
struct Scan<'s, M: Machine> {
    vm: &'static Reclaimer<M>,
    number: u64,
    done: Pass,
    hands: &'s mut Hands,
    /// The domains that are short.
    short: DomainSet,
    /// The last round changed nothing: the inactive pages can be neither freed nor laundered (wired, or swap is full).
    /// They do not count as inactive in the next round.
    in_vain: bool,
    /// Pages of files that this round has spared although references did not count.
    shielded: u64,
    /// Of the freed pages, those for which waiters were woken.
    offered: u64,
}

impl<M: Machine> Scan<'_, M> {
    fn run(&mut self, may: &mut MaySleep) {
        let vm = self.vm;
        loop {
            // Finish completed writes first, because their pages are clean now.
            vm.poll_pagers();
            vm.finish_completed(may);
            // Move the frames that this pass has freed to where they are counted and other CPUs get them.
            vm.drain_own_cache();
            let (missing, short) = vm.frames().missing();
            if missing == 0 || self.done.rounds >= ROUNDS {
                break;
            }
            self.short = short;
            let before = self.done;
            self.done.deferred = 0;
            if self.done.rounds == CHANCES {
                vm.ask_keeper();
            }
            self.done.tables += vm.drop_idle_tables(self.hands);
            let aged = self.round(missing, may);
            self.done.rounds += 1;
            let last = self.in_vain;
            let idle = aged == 0
                && (self.done.freed, self.done.laundered, self.done.tables)
                    == (before.freed, before.laundered, before.tables);
            self.in_vain = idle;
            if idle && vm.io().in_flight() != 0 {
                // Some of the I/O makes pages clean.
                let finished = vm.io().finished();
                vm.wait_for_io(may, || (vm.io().finished() != finished || vm.io().in_flight() == 0).then_some(()));
            } else if idle && self.is_exhausted() && self.done.freed != 0 {
                // All pages that there was room for were written.
                break;
            } else if idle && (last || self.is_exhausted()) && self.done.rounds > CHANCES + 1 {
                let done = self.done.freed != 0 || self.done.tables != 0 || self.done.deferred != 0;
                self.done.hopeless = !done && !vm.take_kept(self.hands);
                break;
            }
        }
    }

    /// One round; returns how many pages were made inactive.
    fn round(&mut self, missing: u64, may: &mut MaySleep) -> u64 {
        let queues = self.vm.queues();
        self.shielded = 0;
        queues.drain_batches();
        let (active, inactive) = (queues.len(Queue::Active), queues.len(Queue::Inactive));
        // A third of all inactive: long enough there for a reference to show.
        let there = if self.in_vain { 0 } else { inactive };
        let wanted = ((active + inactive) / 3).max(2 * missing).saturating_sub(there);
        let aged = self.age(wanted.min(active), may);
        self.reclaim(missing, may);
        // In each round half as many again as are missing, because some will be stored into again.
        self.launder(missing + missing / 2, may);
        aged
    }

    /// Wakes waiting threads for the frames freed so far. A pass over much memory takes long where little of it can go.
    fn offer_freed(&mut self) {
        let vm = self.vm;
        if self.done.freed != self.offered && vm.pageout().asking.is_waited_for() {
            self.offered = self.done.freed;
            vm.drain_own_cache();
            if vm.has_memory() {
                vm.pageout().asking.wake();
            }
        }
    }

    /// Whether there is swap without room. Then only pages that need no new slot can go.
    fn is_exhausted(&self) -> bool {
        let swap = self.vm.swap();
        swap.store().is_some() && swap.free() == 0
    }

    /// Whether a page keeps its frame in this round. It does if it was referenced, while that counts, or if it is one
    /// of a few pages of files in constant use. Programs cannot run without those, so evicting them would only cause
    /// refaults.
    fn is_saved(&mut self, object: &Object<M>, page: &Page, referenced: bool) -> bool {
        if self.done.rounds < CHANCES && referenced {
            return true;
        }
        let most = self.vm.frames().total() / SHIELDED;
        if object.is_private() || self.shielded >= most {
            return false;
        }
        let pass = self.number as u32;
        let saved = referenced || page.spared().is_some_and(|last| pass.wrapping_sub(last) <= SPARED);
        if referenced {
            page.shield(pass);
        }
        self.shielded += u64::from(saved);
        saved
    }

    /// Takes up to `share` pages at the hand's shard, and moves the hand on.
    fn take(&mut self, queue: Queue, share: usize) -> Option<Taken> {
        let hand = match queue {
            Queue::Active => &mut self.hands.active,
            Queue::Inactive => &mut self.hands.inactive,
            Queue::Laundry => &mut self.hands.laundry,
        };
        let part = self.vm.queues().parts_from(queue, *hand).next()?;
        *hand = part.number() + 1;
        let mut taken = Taken::new();
        part.take(share.clamp(1, TAKE), &mut |page| taken.push(page));
        Some(taken)
    }

    /// How many pages of each shard make `n` in all. Targets follow the number of shards that have pages. Small targets
    /// still take enough at once to be worth a pass over backings.
    fn share(&self, queue: Queue, n: u64) -> usize {
        let parts = self.vm.queues().parts(queue).count() as u64;
        n.div_ceil(parts.max(1)).clamp(1, TAKE as u64) as usize
    }

    /// Makes up to `n` active pages inactive that were not referenced lately; visits each active page at most once.
    fn age(&mut self, n: u64, may: &mut MaySleep) -> u64 {
        let queues = self.vm.queues();
        let mut left = queues.len(Queue::Active);
        let share = self.share(Queue::Active, n).max(TAKE / 4);
        let mut aged = 0;
        while aged < n && left > 0 {
            let Some(mut taken) = self.take(Queue::Active, share) else { break };
            if taken.len == 0 {
                break;
            }
            left = left.saturating_sub(taken.len as u64);
            let (mut stay, mut go) = (Taken::new(), Taken::new());
            self.by_object(&mut taken, &mut |scan, object, batch| {
                let referenced = rmap::take_referenced(object, batch);
                for (i, (key, pfn)) in batch.as_slice().iter().enumerate() {
                    let page = scan.vm.page(*pfn);
                    let rich = !scan.short.contains(page.domain());
                    let saved = rich || scan.is_saved(object, page, referenced.contains(i));
                    if saved {
                        scan.vm.give_slot_back(object, *key, page, may);
                    }
                    // Pages that cannot be written now would clog the inactive queue.
                    let stuck = page.state().dirty() && !scan.can_launder(object, page);
                    if saved || stuck { stay.push(page) } else { go.push(page) }
                }
            });
            let inactive = queues.put_all(go.iter(), Queue::Inactive) as u64;
            self.vm.stats().add(Event::Deactivate, inactive);
            aged += inactive;
            queues.put_all(stay.iter(), Queue::Active);
        }
        aged
    }

    /// Frees up to `n` inactive pages that are clean. Dirty pages go to the laundry, referenced ones back to the active
    /// queue. Visits each inactive page at most once.
    fn reclaim(&mut self, n: u64, may: &mut MaySleep) {
        let queues = self.vm.queues();
        let mut left = queues.len(Queue::Inactive);
        let share = self.share(Queue::Inactive, n).max(TAKE / 4);
        let end = self.done.freed + n;
        while self.done.freed < end && left > 0 {
            let Some(mut taken) = self.take(Queue::Inactive, share) else { break };
            if taken.len == 0 {
                break;
            }
            left = left.saturating_sub(taken.len as u64);
            self.vm.stats().add(Event::Scan, taken.len as u64);
            let (mut active, mut again, mut dirty) = (Taken::new(), Taken::new(), Taken::new());
            self.by_object(&mut taken, &mut |scan, object, batch| {
                let vm = scan.vm;
                let referenced = rmap::take_referenced(object, batch);
                let mut clean = Batch::new();
                for (i, (key, pfn)) in batch.as_slice().iter().enumerate() {
                    let page = vm.page(*pfn);
                    if scan.is_saved(object, page, referenced.contains(i)) {
                        vm.give_slot_back(object, *key, page, may);
                        active.push(page);
                    } else if !scan.short.contains(page.domain()) || vm.try_busy_page(object, *key, page).is_none() {
                        again.push(page);
                    } else if evict::is_clean(page) {
                        clean.push(*key, *pfn);
                    } else {
                        let changed = laundry::is_laundry(page);
                        vm.unbusy(page);
                        match changed {
                            true if scan.can_launder(object, page) => dirty.push(page),
                            true => active.push(page),
                            false => again.push(page),
                        }
                    }
                }
                let freed = evict::evict(object, &clean, &mut |page| again.push(page), may);
                scan.done.freed += freed as u64;
            });
            self.offer_freed();
            let activated = queues.put_all(active.iter(), Queue::Active);
            self.vm.stats().add(Event::Activate, activated as u64);
            queues.put_all(again.iter(), Queue::Inactive);
            queues.put_all(dirty.iter(), Queue::Laundry);
        }
    }

    /// Whether writing the page makes sense now. Counts deferred pages.
    fn can_launder(&mut self, object: &Object<M>, page: &Page) -> bool {
        if !laundry::can_launder(object) || !laundry::has_room(object, page) {
            return false;
        }
        match page.failed_writes() {
            0 => true,
            n if n >= GIVE_UP => self.number.is_multiple_of(1 << GIVE_UP),
            n => {
                let now = self.number.is_multiple_of(1 << n);
                self.done.deferred += !now as u64;
                now
            }
        }
    }

    /// Starts writing up to `n` pages of the laundry, each with its neighbours. Visits each page there at most once.
    fn launder(&mut self, n: u64, may: &mut MaySleep) {
        let queues = self.vm.queues();
        let mut left = queues.len(Queue::Laundry);
        let end = self.done.laundered + n;
        while self.done.laundered < end && left > 0 {
            let Some(mut taken) = self.take(Queue::Laundry, CLUSTER) else { break };
            if taken.len == 0 {
                break;
            }
            left = left.saturating_sub(taken.len as u64);
            let mut inactive = Taken::new();
            self.by_object(&mut taken, &mut |scan, object, batch| {
                for (key, pfn) in batch.as_slice() {
                    let page = scan.vm.page(*pfn);
                    // A neighbour's cluster may have included it.
                    if page.state().dirty() && !page.state().laundering() {
                        scan.done.laundered += cluster(object, *key, page, may) as u64;
                    }
                    // When it reaches the head there it is clean; if not, it goes round again.
                    inactive.push(page);
                }
            });
            queues.put_all(inactive.iter(), Queue::Inactive);
        }
    }

    /// Calls `f` for each object of the taken pages, with its pages, ascending, holding only a reference. Pages that
    /// have lost their identity are left out, so they return to no queue.
    fn by_object(&mut self, taken: &mut Taken, f: &mut dyn FnMut(&mut Self, &Object<M>, &Batch)) {
        let pages = &mut taken.pages[..taken.len];
        pages.sort_unstable_by_key(|p| p.map_or((0, 0), |p| (p.0, p.1)));
        let mut rest = &pages[..];
        while let Some((first, _)) = rest.split_first() {
            let name = first.map_or(0, |p| p.0);
            let (same, others) =
                rest.split_at(rest.iter().take_while(|p| p.is_some_and(|p| p.0 == name)).count().max(1));
            rest = others;
            let kept = {
                let pin = self.vm.epoch().pin();
                let object = |page| self.vm.object_of(page, &pin).filter(|o| o.address() == name);
                same.iter().flatten().find_map(|(_, _, page)| object(page)).and_then(|o| KeptObject::new(o, &pin))
            };
            let Some(kept) = kept else {
                // They have gone meanwhile, or are busy: left for the next visit.
                self.vm.queues().put_all(same.iter().flatten().map(|p| p.2), Queue::Inactive);
                continue;
            };
            let mut batch = Batch::new();
            same.iter().flatten().for_each(|(_, key, page)| batch.push(*key, self.vm.pfn_of_page(page)));
            f(self, kept.object(), &batch);
        }
    }
}

/// Starts writing `page` with its dirty neighbours that are not in use; returns how many.
fn cluster<M: Machine>(object: &Object<M>, key: u64, page: &Page, may: &mut MaySleep) -> usize {
    let vm = object.vm();
    // Before any page is busy: this may wait.
    let taken = vm.take_record_for_writing(may);
    let start = key - key % CLUSTER as u64;
    let mut range = object.range(start..start + CLUSTER as u64, SlotFilter::PAGES);
    let mut batch = Batch::new();
    {
        let pin = may.pin(vm.epoch());
        for found in range.walk(&pin) {
            let (at, Slot::Page(pfn)) = (found.key(), found.slot()) else { continue };
            let other = vm.page(pfn);
            let wanted = core::ptr::eq(other, page)
                || (matches!(QueuePlace::of(other.state()), QueuePlace::Listed(Queue::Inactive | Queue::Laundry, _))
                    && other.failed_writes() == 0);
            let gap = batch.as_slice().last().is_some_and(|(last, _)| last + 1 != at);
            if gap && at > key {
                break;
            }
            if gap {
                batch.as_slice().iter().for_each(|(_, pfn)| vm.unbusy(vm.page(*pfn)));
                batch = Batch::new();
            }
            if !wanted || !other.state().dirty() || vm.try_busy_page(object, at, other).is_none() {
                continue;
            }
            if laundry::is_laundry(other) {
                batch.push(at, pfn);
            } else {
                vm.unbusy(other);
            }
        }
    }
    if batch.is_empty() {
        return 0;
    }
    let mut span = Span::begin(EventKind::Launder, 0, key);
    let n = laundry::launder(object, &batch, taken, may).len();
    span.count(n as u64, key);
    n
}
