//! Pageout: selects the pages that give up their frames when memory is short, and serves the threads that wait for
//! memory.
//!
//! # A pass
//! Pages move in a cycle:
//! - *active* → *inactive*, if no translation was referenced since the last visit (second chance);
//! - inactive and referenced again → active;
//! - inactive and clean → free;
//! - inactive and dirty → *laundry* → written, in clusters of neighbours of one object → inactive again, now clean.
//!
//! The queues consist of shards (parts with their own locks). A pass visits the shards in rounds, until its target is
//! met, or a whole round has found nothing to do. Each round visits each page at most once, because a visited page goes
//! to the tail of a shard. The number of visits is limited to the number of pages at the beginning of the round. From
//! the third round on, references do not count. So programs that touch all their memory all the time cannot keep a pass
//! from its target.
//!
//! # Decisions come from exact sums
//! A pass first drains the magazines (the free frames of single CPUs). It continues until each memory domain has
//! reached its high mark ([`Watermarks`](crate::phys::frames::Watermarks)), by the exact counts of the depots. It skips
//! pages of domains that have reached their marks. The lengths of queues are those of their shards. The marks are
//! computed from the totals each time, so they never need rescaling. (Known bugs of other systems: limits that are
//! computed once at boot, and counters that lag by a multiple of the number of CPUs.)
//!
//! # The daemon
//! A CPU wakes the daemon when it takes a chain from a depot and leaves all domains below their low marks
//! (`Frames::wake_when_low`). A CPU that takes a frame from its magazine
//! checks nothing. So while the store keeps up, no request is refused. After a pass that found nothing to do, the
//! daemon sleeps until a request is refused, or memory becomes low again. If no page can be written or dropped, the
//! daemon runs no passes, and only drops page tables of idle spaces.
//!
//! # Pages that cannot be cleaned
//! A page whose write failed stays dirty. It is tried again in every second pass, then in every fourth, and so on, and
//! after `GIVE_UP` failures hardly ever. Meanwhile it stays on the active queue, where it delays no other page. A
//! page that has no place to be written to also stays there. So no pass repeats the same failing writes.
//!
//! # Low memory
//! Below the reserve, frames for programs are refused. A fault that is refused releases all that it holds, wakes the
//! daemon and sleeps. It sleeps until frames are free, or until a pass that *began after the fault slept* has found
//! nothing. "Nothing" means that no page can be freed, no page is being cleaned, and no page will be tried again. Also
//! no cache can be dropped without a write (page tables of spaces that no CPU runs). Only then is
//! memory exhausted. If there is no daemon, the fault runs a pass itself.
//!
//! With full swap a pass visits all of memory and frees few pages, so it takes long. Waiting faults are woken for each
//! batch of freed pages. Otherwise several programs would share a handful of frames a second. A fault that is still
//! refused after `STARVED` fails. It fails even if memory is free when it wakes, because other threads take that
//! memory first.
//!
//! # Needs of pageout itself
//! Pageout needs no memory: records of writes and the swap bitmap are allocated at boot, and queue links are in the
//! page descriptors. It holds one batch of pages busy at a time, and never while it waits, because it waits for a
//! record before it sets pages busy. It acquires no lock of a map. So it never waits for a thread that waits for
//! memory.

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;

pub use super::idle_tables::Reclaim;

use super::memory_wait::Asking;
use super::progress::{MOST_TURNOVER, Progress, STARVED, TURNOVER, Tally};
use crate::error::FaultError;
use crate::machine::{Machine, Standing};
use crate::map::space::spaces::Hand;
use crate::object::batch::Batch;
use crate::object::index::Slot;
use crate::object::kept::KeptObject;
use crate::object::{Object, SlotFilter};
use crate::paging::io::CLUSTER;
use crate::paging::laundry;
use crate::paging::waiting::{MemoryWait, Patience, Refused};
use crate::phys::frames::{DomainSet, For};
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
use quire_sync::{Mutex, MutexGuard, Rank, SpinLock, WaitQueue};

/// The most pages that are taken from a shard at once.
#[cfg(not(any(loom, shuttle)))]
const TAKE: usize = crate::object::batch::BATCH;
#[cfg(any(loom, shuttle))]
const TAKE: usize = 2;

/// The number of failed writes of a page after which the page is hardly ever tried again.
pub(crate) const GIVE_UP: u64 = 8;

/// The number of rounds of a pass in which a reference saves a page.
const CHANCES: u32 = 2;

/// The most rounds of a pass; in practice a pass ends long before.
const ROUNDS: u32 = 64;

/// The number of frames for each file page in constant use that a round may spare when references do not count any
/// more.
const SHIELDED: u64 = 64;

/// The number of later passes that still spare a file page after it was seen referenced.
const SPARED: u32 = 2;

/// The least number of refusals of a starved fault, however long they took.
const STARVED_DEFEATS: u32 = 3;
/// With up to this number of waiters, a fault is served within [`STARVED`]. With n times this number of waiters, the
/// fault may wait n times that long.
const FEW: u64 = 32;

/// The work that a pass has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Pass {
    /// The number of pages whose frames were freed.
    pub freed: u64,
    /// The number of pages whose writes were started.
    pub laundered: u64,
    /// The number of page-table pages of idle spaces that were dropped.
    pub tables: u64,
    /// The number of pages that will be tried again later, because their writes failed lately.
    pub deferred: u64,
    /// The number of rounds.
    pub rounds: u32,
    /// The pass found nothing, no write is in progress, and no page will be tried again.
    pub hopeless: bool,
}

/// The positions of the scans in the queues and in the list of spaces.
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
    /// Whether the daemon's thread runs.
    daemon: AtomicBool,
    /// The number of passes begun. Each pass has its number.
    begun: AtomicU64,
    /// The number of the last pass that found nothing.
    hopeless: AtomicU64,
    /// The time in nanoseconds before which the daemon does not search for idle spaces. A round that finds none sets
    /// it.
    pub(super) no_tables_until: AtomicU64,
    /// The lock of passes: one pass runs at a time.
    pub(super) hands: Mutex<Hands>,
    /// The registered cache of the layers above, whose memory a pass may reclaim.
    pub(super) keeper: SpinLock<Option<&'static dyn Reclaim>>,
    /// The lock of claims: one claim of consecutive frames runs at a time. See
    /// [`Reclaimer::alloc_contiguous_reclaiming`](crate::reclaim::Reclaimer::alloc_contiguous_reclaiming).
    pub(crate) claims: Mutex<()>,
    /// Held by a thread that frees pages that no space can see, because memory is exhausted and there is no swap.
    reaps: Mutex<()>,
    /// The number of these searches. Raised by the thread that holds `reaps`.
    reaped: AtomicU64,
    /// The threads that wait for such a search.
    reap_waits: WaitQueue,
}

/// Pages that the scan isolated from one shard, each with the identity that it had when it was isolated.
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
            reaped: AtomicU64::new(0),
            reap_waits: WaitQueue::new(),
        }
    }

    /// The number of passes so far.
    pub fn passes(&self) -> u64 {
        self.begun.load(Ordering::Relaxed)
    }

    pub(crate) fn wake_daemon(&self) {
        self.asking.wake_daemon();
    }
}

/// The number of pages that the reaper visits before a pass begins, and again while programs get no frames. (The reaper
/// frees pages that no space can see.)
pub(super) const SHADOWED: u64 = 4096;
/// How often the reaper visits as many pages before a pass that can write pages begins.
const REAPS: u32 = 8;
/// The same where no page can be written. These are more pages than a search finds unless objects are marked meanwhile.
const MOST_REAPS: u32 = 1024;

impl<M: Machine> Reclaimer<M> {
    /// Pages out until the high marks are reached, or nothing is left to do. May sleep.
    pub(crate) fn pageout_pass(&'static self, may: &mut MaySleep) -> Pass {
        self.reap_first(REAPS, may);
        self.pass(&mut self.pageout().hands.lock(), may)
    }

    /// First frees pages that no space can see any more, because they need no write. While programs get no frames,
    /// repeats this up to `most` times. Forks mark objects all the time, so the reaper may never find the last one.
    fn reap_first(&'static self, most: u32, may: &mut MaySleep) {
        for _ in 0..most {
            if self.reap(SHADOWED, may) < SHADOWED || self.has_memory() {
                return;
            }
            self.offer_to_administrators();
        }
    }

    /// Wakes the administrator's threads that wait for memory, if some is free for them. Threads that end free frames
    /// and wake no waiter, so a pass looks after these frames. Programs that may not use the reserve would only take
    /// each other's frames, so they wait for a batch.
    fn offer_to_administrators(&self) {
        let asking = &self.pageout().asking;
        if asking.is_urgent() && self.has_memory_for(true) {
            asking.wake_urgent();
        }
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

    /// Whether pages can be written or dropped at all. If not, a scan of all pages would free none.
    fn can_page_out(&self) -> bool {
        self.swap().store().is_some() || self.io().has_freeable()
    }

    /// Whether programs like the caller's can get frames. The administrator's may use a part of the reserve, for which
    /// no other program competes with them.
    pub(crate) fn has_memory(&self) -> bool {
        self.has_memory_for(self.is_administrator())
    }

    fn has_memory_for(&self, administrator: bool) -> bool {
        let tier = if administrator { For::Administrator } else { For::User };
        self.frames().free() > self.frames().limit(tier)
    }

    fn is_administrator(&self) -> bool {
        self.machine().standing() == Standing::Administrator
    }

    /// Waits like `wait_for_memory`, but also returns false once `gives_up` returns true. The thread has been refused
    /// memory since the time `refused`.
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
            return self.reap_or_wait(may);
        }
        let _waits = p.progress.wait();
        let since = p.begun.load(Ordering::Acquire);
        if p.daemon.load(Ordering::Acquire) {
            let (mut hopeless, mut out) = (false, false);
            p.asking.wait(may, self.is_administrator(), || {
                // The decision stands even if some memory is free now, because each freed batch wakes all waiters, and
                // other waiters take it.
                out = gives_up() || self.is_lost(refused);
                hopeless = p.hopeless.load(Ordering::Acquire) > since || self.machine().is_ending();
                out || hopeless || self.has_memory() || !p.daemon.load(Ordering::Acquire)
            });
            return !out && (self.has_memory() || !hopeless);
        }
        self.reap_first(REAPS, may);
        let mut hands = p.hands.lock();
        // The previous holder of the lock ran a whole pass after this thread began to wait.
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

    /// Waits until pages that no space can see are freed, and all caches are dropped, where no page can be written.
    /// Returns whether programs can get frames then.
    ///
    /// One thread at a time searches. A thread that finds nothing must not continue before another thread has freed
    /// those that it has found. All other threads sleep, and return together when one whole search has passed since
    /// they came. They do not queue for a lock, because then thousands of them would search in vain, one after the
    /// other.
    ///
    /// The daemon searches, if it runs. A program's thread may wait long for a CPU, because its user may have thousands
    /// of threads that want a turn, and all others would wait for that thread. The administrator's threads search
    /// themselves beside it. A thread that must end does not wait, because its end frees memory.
    fn reap_or_wait(&'static self, may: &mut MaySleep) -> bool {
        let p = self.pageout();
        if self.is_administrator() {
            let alone = p.reaps.try_lock();
            let found = self.search(|| if alone.is_some() { Some(p.hands.lock()) } else { p.hands.try_lock() }, may);
            if alone.is_some() {
                drop(alone);
                p.reap_waits.wake_all();
            }
            return found;
        }
        let before = p.reaped.load(Ordering::Acquire);
        // The first of the two searches began before this thread came.
        let is_over = || {
            p.reaped.load(Ordering::Acquire).wrapping_sub(before) >= 2
                || self.has_memory()
                || self.can_page_out()
                || self.machine().is_ending()
        };
        // If pages can be written by now, the thread tries again, and waits for a pass.
        let goes_on = || self.has_memory() || self.can_page_out();
        if p.daemon.load(Ordering::Acquire) {
            p.asking.wait(may, false, || is_over() || !p.daemon.load(Ordering::Acquire));
            return goes_on();
        }
        let mut searches = p.reaps.try_lock();
        if searches.is_none() {
            may.sleep_on(&p.reap_waits, || {
                is_over() || {
                    searches = p.reaps.try_lock();
                    searches.is_some()
                }
            });
        }
        let Some(one) = searches else { return goes_on() };
        let found = self.search(|| Some(p.hands.lock()), may);
        p.reaped.fetch_add(1, Ordering::AcqRel);
        drop(one);
        p.reap_waits.wake_all();
        found
    }

    /// The daemon's search for threads that wait in [`reap_or_wait`](Self::reap_or_wait).
    fn search_for_waiters(&'static self, may: &mut MaySleep) {
        let p = self.pageout();
        let one = p.reaps.lock();
        self.search(|| Some(p.hands.lock()), may);
        p.reaped.fetch_add(1, Ordering::AcqRel);
        drop(one);
        p.reap_waits.wake_all();
        p.asking.pass_is_over();
    }

    /// Frees pages that no space can see, and then drops all caches if `hands` returns the lock, until programs can get
    /// frames. Returns whether they can.
    fn search<'a>(&'static self, hands: impl FnOnce() -> Option<MutexGuard<'a, Hands>>, may: &mut MaySleep) -> bool {
        if !self.has_memory() {
            self.reap_first(MOST_REAPS, may);
        }
        self.has_memory() || hands().is_some_and(|mut hands| self.take_kept(&mut hands)) && self.has_memory()
    }

    /// Whether programs that are refused memory make no progress ([`progress`](super::progress)). The calling thread
    /// has been refused memory since the time `refused`.
    fn is_lost(&self, refused: u64) -> bool {
        let stats = self.stats();
        let read = stats.total(Event::SwapIn) + stats.total(Event::PageIn);
        let made = stats.faults_of(FaultKind::ZeroFill) + stats.faults_of(FaultKind::Copy);
        let more = stats.total(Event::FaultAhead) + stats.total(Event::PageFilled);
        // Only with full swap may a pass take long and free few pages.
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
            if !self.can_page_out() {
                match waited_for {
                    true => self.search_for_waiters(may),
                    false => self.drop_tables_ahead(),
                }
                return false;
            }
            if !waited_for && !self.is_low_indeed() {
                return false;
            }
            let pass = self.pageout_pass(may);
            // A domain that is not low does not help a thread that waits for more memory than the domain has.
            let short = || p.asking.is_waited_for() && !self.has_memory();
            // With full swap, another pass would find no more pages than this one.
            let worth = self.swap().store().is_none() || self.swap().free() != 0;
            !pass.hopeless && (worth && self.is_low_indeed() || short())
        });
    }

    /// Whether memory is still low after the magazines are drained, and pages can be written or dropped.
    fn is_low_indeed(&self) -> bool {
        if !self.frames().is_low() || !self.can_page_out() {
            return false;
        }
        self.drain_caches();
        self.frames().is_low()
    }
}

impl<M: Machine> MemoryWait for Reclaimer<M> {
    /// Sleeps until frames for programs are free. Returns false if no memory can be freed.
    #[cold]
    fn wait_for_memory(&'static self, may: &mut MaySleep) -> bool {
        self.wait_for_memory_unless(may, now(), || false)
    }

    /// Waits like [`Objects::wait_for_memory`](crate::object::Objects::wait_for_memory), within the limits of
    /// `patience`. Each refusal of this fault counts, because other threads often take the free memory before the fault
    /// runs.
    #[cold]
    fn memory_or_error(&'static self, patience: &mut Patience, may: &mut MaySleep) -> Result<(), FaultError> {
        patience.left = patience.left.saturating_sub(1);
        let io = self.io();
        let first = || Refused { at: now(), finished: io.finished(), left: patience.left };
        let refused = *patience.since.get_or_insert_with(first);
        // The gains of other faults do not help a fault that always loses to them. With full swap no further page can
        // be evicted for it.
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

/// A pass in progress.
struct Scan<'s, M: Machine> {
    vm: &'static Reclaimer<M>,
    number: u64,
    done: Pass,
    hands: &'s mut Hands,
    /// The domains that are below their high marks.
    short: DomainSet,
    /// The last round changed nothing, because the inactive pages can be neither freed nor written out (they are wired,
    /// or swap is full). The next round does not count them as inactive.
    in_vain: bool,
    /// The number of file pages that this round has spared although references did not count.
    shielded: u64,
    /// The number of freed pages for which waiters were already woken.
    offered: u64,
}

impl<M: Machine> Scan<'_, M> {
    fn run(&mut self, may: &mut MaySleep) {
        let vm = self.vm;
        loop {
            // Completed writes are finished first, because their pages are clean now.
            vm.poll_pagers();
            vm.finish_completed(may);
            // The frames that this pass has freed move to the buddy lists, where they are counted and other CPUs can
            // get them.
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
                // Some of this I/O makes pages clean.
                let finished = vm.io().finished();
                vm.wait_for_io(may, || (vm.io().finished() != finished || vm.io().in_flight() == 0).then_some(()));
            } else if idle && self.is_exhausted() && self.done.freed != 0 {
                // All pages for which swap had room were written.
                break;
            } else if idle && (last || self.is_exhausted()) && self.done.rounds > CHANCES + 1 {
                let done = self.done.freed != 0 || self.done.tables != 0 || self.done.deferred != 0;
                self.done.hopeless = !done && !vm.take_kept(self.hands);
                break;
            }
        }
    }

    /// Runs one round. Returns the number of pages that became inactive.
    fn round(&mut self, missing: u64, may: &mut MaySleep) -> u64 {
        let queues = self.vm.queues();
        self.shielded = 0;
        queues.drain_batches();
        let (active, inactive) = (queues.len(Queue::Active), queues.len(Queue::Inactive));
        // A third of all pages should be inactive. Then a page is inactive long enough for a reference to show.
        let there = if self.in_vain { 0 } else { inactive };
        let wanted = ((active + inactive) / 3).max(2 * missing).saturating_sub(there);
        let aged = self.age(wanted.min(active), may);
        self.reclaim(missing, may);
        // Each round writes out one and a half times the missing pages, because programs will store into some of them
        // again.
        self.launder(missing + missing / 2, may);
        aged
    }

    /// Wakes waiting threads for the frames that were freed so far. A pass over much memory takes long if few of its
    /// pages can be freed.
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

    /// Whether there is a swap store without free slots. Then only pages that need no new slot can be freed.
    fn is_exhausted(&self) -> bool {
        let swap = self.vm.swap();
        swap.store().is_some() && swap.free() == 0
    }

    /// Whether a page keeps its frame in this round. It does if it was referenced, in rounds in which references count.
    /// It also does if it is one of a few file pages in constant use. Programs cannot run without these pages, so their
    /// eviction would only cause refaults.
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

    /// Isolates up to `share` pages of the next shard of `queue` in turn.
    fn take(&mut self, queue: Queue, share: usize) -> Option<Taken> {
        self.vm.offer_to_administrators();
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

    /// The number of pages to take from each shard, so that they are `n` in all. Only shards that have pages count.
    fn share(&self, queue: Queue, n: u64) -> usize {
        let parts = self.vm.queues().parts(queue).count() as u64;
        n.div_ceil(parts.max(1)).clamp(1, TAKE as u64) as usize
    }

    /// Makes up to `n` active pages inactive that were not referenced lately. Visits each active page at most once.
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
                    // Pages that cannot be written now would fill the inactive queue, so they stay active.
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

    /// Frees up to `n` clean inactive pages. Dirty pages go to the laundry, and referenced pages go back to the active
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

    /// Whether the page can be written now. Counts pages that are deferred because their writes failed.
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

    /// Starts writes of up to `n` pages of the laundry, each with its neighbours. Visits each page of the laundry at
    /// most once.
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
                    // The cluster of a neighbour may have included this page already.
                    if page.state().dirty() && !page.state().laundering() {
                        scan.done.laundered += cluster(object, *key, page, may) as u64;
                    }
                    // When the page reaches the head of the inactive queue, it is clean. If it is not, it goes to the
                    // laundry again.
                    inactive.push(page);
                }
            });
            queues.put_all(inactive.iter(), Queue::Inactive);
        }
    }

    /// Calls `f` for each object that has taken pages, with the object's pages in ascending order. During the call of
    /// `f`, only a reference to the object is held. Pages that have lost their identity are left out, so they return to
    /// no queue.
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
                // The pages were removed since they were isolated, or are busy. They are left for the next visit.
                self.vm.queues().put_all(same.iter().flatten().map(|p| p.2), Queue::Inactive);
                continue;
            };
            let mut batch = Batch::new();
            same.iter().flatten().for_each(|(_, key, page)| batch.push(*key, self.vm.pfn_of_page(page)));
            f(self, kept.object(), &batch);
        }
    }
}

/// Starts a write of `page` with its dirty neighbours that are not in use. Returns the number of pages.
fn cluster<M: Machine>(object: &Object<M>, key: u64, page: &Page, may: &mut MaySleep) -> usize {
    let vm = object.vm();
    // The record is taken before any page is busy, because this may wait.
    let Some(taken) = vm.take_record_for_writing(laundry::share(object), may) else { return 0 };
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
