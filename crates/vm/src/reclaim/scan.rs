//! Pageout: which pages give up their frames when memory is short, and who waits for that.
//!
//! # A pass
//! Pages go round: *active* → *inactive*, where no translation says that they were referenced since the last look (second
//! chance); inactive and referenced again → active; inactive and clean → free; inactive and changed → *laundry* → written, in
//! clusters of neighbours of one object → inactive again, now clean. A pass goes over the parts of the queues in rounds, until
//! its target is met or a whole round has found nothing to do. Each round looks at each page once at most: what was looked at
//! goes to a tail, and as many are looked at as there were at the round's beginning. From the third round on references do not
//! count: so programs that touch everything all the time cannot keep a pass from its target.
//!
//! # Decisions come from exact sums
//! A pass begins by bringing home what sits in magazines, and goes on until each memory domain has reached its high mark
//! ([`Marks`](crate::phys::frames::Marks)), by the exact counts of the depots; pages of domains that have reached it are left alone.
//! Queue lengths are the parts' own. The marks are computed from the totals each time, so that there is nothing to rescale.
//! (Known bugs of others: limits computed once at boot, and counters that lag behind by a multiple of the number of CPUs.)
//!
//! # The daemon
//! Whoever takes a chain from a depot and leaves every domain below its low mark wakes the daemon, by the frames' own word
//! ([`Frames::wake_when_low`](crate::phys::frames::Frames::wake_when_low)); who takes a frame from its magazine looks at nothing. So
//! as long as the store keeps up, nobody is ever refused. After a pass that found nothing to do the daemon sleeps until
//! somebody is refused, or memory gets low anew.
//!
//! # Pages that cannot be cleaned
//! A page whose write failed is dirty still, and tried again in every second pass, then in every fourth, and so on; after
//! [`GIVE_UP`] failures hardly ever. It waits on the active queue, out of the way. The same goes for pages that have nowhere
//! to go. So no pass is spent on writing the same pages over and over.
//!
//! # Low memory
//! Below the reserve, frames for programs are refused; a fault drops everything, wakes the daemon and sleeps until frames are
//! free or a pass that *began after it asked* has found nothing: no page to free, none on its way to be clean, none to be tried
//! again, and nothing kept that costs no write ([page tables](super::idle_tables) of spaces that no CPU runs). Only then is memory out. Where
//! there is no daemon, the fault does a pass itself.
//!
//! With full swap a pass looks at all of memory and frees a few pages, so it takes long. Faults that wait are woken for each batch that it
//! frees, or several programs would share a handful of frames a second. A fault that is refused for [`STARVED`] all the same
//! fails, whether or not memory is free at the moment when it wakes: others take that first.
//!
//! # What pageout itself needs
//! No memory: records of writes and the swap bitmap were made before, queue positions are in the pages. It holds one page
//! batch busy at a time, never over a wait: for a record it waits before it sets pages busy. It takes no lock of a map. So
//! nothing that waits for memory is ever waited for here.

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;

pub use super::idle_tables::Reclaim;

use super::memory_wait::Asking;
use super::progress::{MOST_TURNOVER, Progress, STARVED, TURNOVER, Tally};
use crate::error::FaultError;
use crate::machine::Machine;
use crate::map::Hand;
use crate::object::batch::Batch;
use crate::object::index::Slot;
use crate::object::kept::Kept;
use crate::object::{Object, What};
use crate::paging::io::CLUSTER;
use crate::paging::laundry;
use crate::paging::waiting::{DEFEATS, MemoryWait, Patience};
use crate::phys::frames::DomainSet;
use crate::phys::page::Page;
use crate::phys::queues::{Place, Queue};
use crate::reclaim::Reclaimer;
use crate::reclaim::daemon::OnEnd;
use crate::reclaim::evict;
use crate::rmap;
use crate::sleep::MaySleep;
use crate::stats::Event;
use crate::stats::FaultKind;
use quire_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use quire_sync::hooks::{current_thread, now};
use quire_sync::trace::{Kind, Span};
use quire_sync::{Mutex, Rank, SpinLock};

/// Pages taken from a part at once.
#[cfg(not(any(loom, shuttle)))]
const TAKE: usize = crate::object::batch::BATCH;
#[cfg(any(loom, shuttle))]
const TAKE: usize = 2;

/// Failed writes of a page after which it is hardly tried again.
pub(crate) const GIVE_UP: u64 = 8;

/// Rounds of a pass in which a reference saves a page.
const CHANCES: u32 = 2;

/// Rounds of a pass at most: in practice it is over long before, one way or the other.
const ROUNDS: u32 = 64;

/// One part in so many of memory is the most that pages of files in use keep under any pressure.
const SHIELDED: u64 = 64;

/// Passes for which a reference shields such a page.
const SPARED: u32 = 2;

/// Fewer refusals of one fault starve nobody, however long they took.
const STARVED_DEFEATS: u32 = 3;

/// What a pass has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Pass {
    /// Pages whose frames were freed.
    pub freed: u64,
    /// Pages whose writes were started.
    pub washed: u64,
    /// Page tables of idle spaces that were dropped.
    pub tables: u64,
    /// Pages that will be tried again later: their writes have failed lately.
    pub deferred: u64,
    /// Rounds.
    pub rounds: u32,
    /// Nothing was found, nothing is on its way, and nothing will be tried again.
    pub hopeless: bool,
}

/// Where the scans stand.
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
    /// One pass at a time.
    pub(super) hands: Mutex<Hands>,
    /// Who keeps memory that a pass may ask for.
    pub(super) keeper: SpinLock<Option<&'static dyn Reclaim>>,
    /// One claim of consecutive frames at a time; see [`Reclaimer::alloc_contiguous_reclaiming`](crate::reclaim::Reclaimer::alloc_contiguous_reclaiming).
    pub(crate) claims: Mutex<()>,
    /// Held by who reaps because memory is out.
    reaps: Mutex<()>,
}

/// Pages in the scan's hands, of one look at one part, each with the identity that it had then.
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

/// Pages that a pass lets the reaper look at before it begins, and again while programs get no frames.
pub(super) const SHADOWED: u64 = 4096;

impl<M: Machine> Reclaimer<M> {
    /// Pages out until as many frames are free as the high mark says, or nothing is left to be done. May sleep.
    pub(crate) fn pageout_pass(&'static self, may: &mut MaySleep) -> Pass {
        self.reap_first(may);
        self.pass(&mut self.pageout().hands.lock(), may)
    }

    /// What nobody sees any more goes first: it costs no write. All of it, where programs get no frames.
    fn reap_first(&'static self, may: &mut MaySleep) {
        while self.reap(SHADOWED, may) >= SHADOWED && !self.has_memory() {}
    }

    fn pass(&'static self, hands: &mut Hands, may: &mut MaySleep) -> Pass {
        let mut span = Span::begin(Kind::Pageout, 0, 0);
        let p = self.pageout();
        let number = p.begun.fetch_add(1, Ordering::AcqRel) + 1;
        self.drain_caches();
        let (done, short) = (Pass::default(), DomainSet::default());
        let mut scan = Scan { vm: self, number, done, hands, short, in_vain: false, shielded: 0, offered: 0 };
        scan.run(may);
        let done = scan.done;
        span.count(done.freed, done.washed);
        if done.hopeless {
            p.hopeless.store(number, Ordering::Release);
        }
        p.asking.pass_is_over();
        done
    }

    /// Whether there is anywhere for pages to go. Where not, nothing is worth a look at every page.
    fn can_page_out(&self) -> bool {
        self.swap().store().is_some() || self.io().has_freeable()
    }

    /// Whether programs get frames.
    pub(crate) fn has_memory(&self) -> bool {
        self.frames().free() > self.frames().reserve()
    }

    /// The same; false as well once the waiter `gives_up`.
    fn wait_for_memory_unless(&'static self, may: &mut MaySleep, gives_up: impl Fn() -> bool) -> bool {
        if self.take_injected() || self.machine().is_ending() {
            return false;
        }
        let _span = Span::begin(Kind::NoMemory, 0, 0);
        let p = self.pageout();
        if gives_up() || self.is_lost() {
            return false;
        }
        if !self.can_page_out() {
            {
                // One at a time: who finds nothing to reap must not go before another has freed it.
                let _one = p.reaps.lock();
                if !self.has_memory() {
                    self.reap_first(may);
                }
            }
            return self.has_memory() || self.take_kept(&mut p.hands.lock()) && self.has_memory();
        }
        let since = p.begun.load(Ordering::Acquire);
        if p.daemon.load(Ordering::Acquire) {
            let mut hopeless = false;
            p.asking.wait(may, || {
                hopeless = p.hopeless.load(Ordering::Acquire) > since
                    || self.machine().is_ending()
                    || gives_up()
                    || self.is_lost();
                hopeless || self.has_memory() || !p.daemon.load(Ordering::Acquire)
            });
            return self.has_memory() || !hopeless;
        }
        self.reap_first(may);
        let mut hands = p.hands.lock();
        // Whoever had the hands meanwhile has looked at everything since this CPU wanted some.
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

    /// Whether programs that are refused memory get nowhere ([`progress`](super::progress)).
    fn is_lost(&self) -> bool {
        let stats = self.stats();
        let read = stats.total(Event::SwapIn) + stats.total(Event::PageIn);
        let made = stats.faults_of(FaultKind::ZeroFill) + stats.faults_of(FaultKind::Copy);
        let more = stats.total(Event::FaultAhead) + stats.total(Event::PageFilled);
        // Only there may a pass take long for little.
        let full = self.swap().store().is_some() && self.swap().is_as_good_as_full();
        let least = if full { (self.frames().total() / TURNOVER).min(MOST_TURNOVER) } else { 0 };
        let gained = read.wrapping_add(made).wrapping_add(more);
        let tally = Tally { gained, near: stats.total(Event::NearRefault), least };
        // What is on its way may take long, and is progress when it comes.
        let p = self.pageout();
        p.progress.is_lost(now(), full && p.asking.is_waited_for(), tally) && self.io().in_flight() == 0
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
            if !waited_for && !self.is_low_indeed() {
                return false;
            }
            let pass = self.pageout_pass(may);
            // One domain that is not low does not help whoever waits for more than that has.
            let short = || p.asking.is_waited_for() && !self.has_memory();
            // Where swap is full, another pass finds what this one has found.
            let worth = self.swap().store().is_none() || self.swap().free() != 0;
            !pass.hopeless && (worth && self.is_low_indeed() || short())
        });
    }

    /// Whether memory is low when what CPUs keep has been brought home, and there is anywhere for pages to go.
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
        self.wait_for_memory_unless(may, || false)
    }

    /// As [`Objects::wait_for_memory`](crate::object::Objects::wait_for_memory), for so long. What counts is that this fault is refused: memory that is free when it wakes is
    /// often taken by others before it comes to it.
    #[cold]
    fn memory_or_error(&'static self, patience: &mut Patience, may: &mut MaySleep) -> Result<(), FaultError> {
        patience.left = patience.left.saturating_sub(1);
        let begin = *patience.since.get_or_insert_with(now);
        // What others gain is nothing to a fault that they always come before, where no page can go out to make up for it.
        let defeats = DEFEATS - patience.left;
        let is_starved = || {
            now().saturating_sub(begin) >= STARVED
                && defeats >= STARVED_DEFEATS
                && self.swap().is_as_good_as_full()
                && self.io().in_flight() == 0
        };
        let served = patience.left != 0 && self.wait_for_memory_unless(may, is_starved);
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
    /// The last round changed nothing: what is inactive can be neither freed nor washed (it is wired, or swap is full), and does
    /// not count as inactive in the next one.
    in_vain: bool,
    /// Pages of files that this round has spared although references did not count.
    shielded: u64,
    /// Of the pages freed, those that waiters were told of.
    offered: u64,
}

impl<M: Machine> Scan<'_, M> {
    fn run(&mut self, may: &mut MaySleep) {
        let vm = self.vm;
        loop {
            // What is complete counts: its pages are clean now.
            vm.poll_pagers();
            vm.finish_completed(may);
            // What this pass has freed is counted where others can get it.
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
                && (self.done.freed, self.done.washed, self.done.tables)
                    == (before.freed, before.washed, before.tables);
            self.in_vain = idle;
            if idle && vm.io().in_flight() != 0 {
                // Some of it makes pages clean.
                let finished = vm.io().finished();
                vm.wait_for_io(may, || (vm.io().finished() != finished || vm.io().in_flight() == 0).then_some(()));
            } else if idle && self.is_exhausted() && self.done.freed != 0 {
                // As many went out as there was room for.
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
        // In each round somewhat more than is missing: some will be stored into again.
        self.wash(missing + missing / 2, may);
        aged
    }

    /// Those who wait get what this pass has freed so far. A pass over much memory takes long where little of it can go.
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

    /// Whether there is swap and no room in it: only what needs no new slot can go.
    fn is_exhausted(&self) -> bool {
        let swap = self.vm.swap();
        swap.store().is_some() && swap.free() == 0
    }

    /// Whether a page keeps its frame in this round: it was referenced, while that counts; or it is one of a few pages of files that
    /// programs use all the time. A program cannot do a thing without those, so where they go, all that is read is their coming back.
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

    /// Takes up to `n` pages at the hand's part, at most `share`, and moves the hand on.
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

    /// How many pages of each part make `n` in all: targets follow the number of parts that have pages, and small ones still
    /// take enough at once for a pass over backings to be worth it.
    fn share(&self, queue: Queue, n: u64) -> usize {
        let parts = self.vm.queues().parts(queue).count() as u64;
        n.div_ceil(parts.max(1)).clamp(1, TAKE as u64) as usize
    }

    /// Makes up to `n` active pages inactive that were not referenced lately; looks at each active page once at most.
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
                    // Those that cannot be written now are no good on the inactive queue.
                    let stuck = page.state().dirty() && !scan.can_wash(object, page);
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

    /// Frees up to `n` inactive pages that are clean; those that are not go to the laundry, those that were referenced back to
    /// the active queue. Looks at each inactive page once at most.
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
                            true if scan.can_wash(object, page) => dirty.push(page),
                            true => active.push(page),
                            false => again.push(page),
                        }
                    }
                }
                let freed = evict::steal(object, &clean, &mut |page| again.push(page), may);
                scan.done.freed += freed as u64;
            });
            self.offer_freed();
            let activated = queues.put_all(active.iter(), Queue::Active);
            self.vm.stats().add(Event::Activate, activated as u64);
            queues.put_all(again.iter(), Queue::Inactive);
            queues.put_all(dirty.iter(), Queue::Laundry);
        }
    }

    /// Whether writing the page makes sense now. Counts those that are put off.
    fn can_wash(&mut self, object: &Object<M>, page: &Page) -> bool {
        if !laundry::is_washable(object) || !laundry::has_room(object, page) {
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

    /// Starts writing up to `n` pages of the laundry, each with its neighbours. Looks at each page there once at most.
    fn wash(&mut self, n: u64, may: &mut MaySleep) {
        let queues = self.vm.queues();
        let mut left = queues.len(Queue::Laundry);
        let end = self.done.washed + n;
        while self.done.washed < end && left > 0 {
            let Some(mut taken) = self.take(Queue::Laundry, CLUSTER) else { break };
            if taken.len == 0 {
                break;
            }
            left = left.saturating_sub(taken.len as u64);
            let mut inactive = Taken::new();
            self.by_object(&mut taken, &mut |scan, object, batch| {
                for (key, pfn) in batch.as_slice() {
                    let page = scan.vm.page(*pfn);
                    // A neighbour's cluster may have had it.
                    if page.state().dirty() && !page.state().laundering() {
                        scan.done.washed += cluster(object, *key, page, may) as u64;
                    }
                    // By the time it comes to the head there it is clean; if not, it goes round again.
                    inactive.push(page);
                }
            });
            queues.put_all(inactive.iter(), Queue::Inactive);
        }
    }

    /// Calls `f` for each object of the pages taken, with those of its pages, ascending, and nothing held but a reference.
    /// Pages that have lost their identity are left out: nobody puts them back.
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
                same.iter().flatten().find_map(|(_, _, page)| object(page)).and_then(|o| Kept::new(o, &pin))
            };
            let Some(kept) = kept else {
                // They have gone meanwhile, or are busy: for the next look.
                self.vm.queues().put_all(same.iter().flatten().map(|p| p.2), Queue::Inactive);
                continue;
            };
            let mut batch = Batch::new();
            same.iter().flatten().for_each(|(_, key, page)| batch.push(*key, self.vm.pfn_of_page(page)));
            f(self, kept.object(), &batch);
        }
    }
}

/// Starts writing `page` with those of its neighbours that are changed and not in use; returns how many.
fn cluster<M: Machine>(object: &Object<M>, key: u64, page: &Page, may: &mut MaySleep) -> usize {
    let vm = object.vm();
    // Before any page is busy: this may wait.
    let taken = vm.take_record_for_writing(may);
    let start = key - key % CLUSTER as u64;
    let mut range = object.range(start..start + CLUSTER as u64, What::PAGES);
    let mut wash = Batch::new();
    {
        let pin = may.pin(vm.epoch());
        for found in range.walk(&pin) {
            let (at, Slot::Page(pfn)) = (found.key(), found.slot()) else { continue };
            let other = vm.page(pfn);
            let wanted = core::ptr::eq(other, page)
                || (matches!(Place::of(other.state()), Place::Listed(Queue::Inactive | Queue::Laundry, _))
                    && other.failed_writes() == 0);
            let gap = wash.as_slice().last().is_some_and(|(last, _)| last + 1 != at);
            if gap && at > key {
                break;
            }
            if gap {
                wash.as_slice().iter().for_each(|(_, pfn)| vm.unbusy(vm.page(*pfn)));
                wash = Batch::new();
            }
            if !wanted || !other.state().dirty() || vm.try_busy_page(object, at, other).is_none() {
                continue;
            }
            if laundry::is_laundry(other) {
                wash.push(at, pfn);
            } else {
                vm.unbusy(other);
            }
        }
    }
    if wash.is_empty() {
        return 0;
    }
    let mut span = Span::begin(Kind::Launder, 0, key);
    let n = laundry::launder(object, &wash, taken, may).len();
    span.count(n as u64, key);
    n
}
