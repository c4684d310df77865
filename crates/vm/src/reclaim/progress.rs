//! Whether programs make progress while memory is short.
//!
//! A pass that frees a page proves nothing: two faults may trade one frame for ever. The pages that programs *keep* are
//! decisive. Each frame that a program gets counts as gained. A page that comes back soon after its frame was taken was
//! lost for nothing: it cancels a gain. Where threads are refused memory for a whole window and hardly any gain is
//! left, memory is out.
//!
//! With full swap no gain is left at all: each page that comes in replaces another. A working set that fits does that
//! for a while, fast, and hardly waits. Memory is out where threads wait for half of a window and programs get less than
//! a [`TURNOVER`] of memory in it, and less than [`MOST_TURNOVER`]. Then they only exchange pages, however long each of
//! those was out.
//!
//! # Soon
//! A table of fixed size records recent evictions, by a hash of the page's identity, with the number of the eviction. A
//! page that is read while at most [`Ghosts::near`] others were evicted since is a *near refault*. A program that
//! touches more than there is, in any order, refaults far: many other pages were evicted after its own. Only a program
//! that needs a few pages at once, and cannot have them, refaults near. A collision forgets an eviction, which errs
//! towards progress.
//!
//! # The clock
//! One clock numbers evictions. Each CPU takes [a block](Ghosts::block) of it at once, so that CPUs that reclaim do not
//! write one line for each page. All blocks together are a sixteenth of [`Ghosts::near`]. So
//! - a page counts as near although up to `near / 16` more were evicted since, because the last block of each CPU may
//!   be used in part;
//! - a page counts as far although it was near where its CPU took its block long before. For an error of that size, the
//!   other CPUs must evict half of `near` while one CPU uses up a block. So at most an eighth of all evictions has it.
//!
//! An eighth is half of the gains that may be left for memory to count as out ([`KEPT`]). So a trade in which all is
//! lost is still found.

use quire_sync::atomic::{AtomicU64, Ordering};
use quire_sync::hooks::now;
use quire_sync::{CachePadded, PerCpu, Rank, SpinLock, preempt_off};

/// Nanoseconds in which threads must have been refused all the time for a decision.
pub(crate) const WINDOW: u64 = 1_000_000_000;
/// Nanoseconds without a refusal, and without a thread that waits, after which a window begins anew.
pub(crate) const QUIET: u64 = 200_000_000;
/// Nanoseconds for which one fault is refused at most where nothing is left to page out to.
pub(crate) const STARVED: u64 = 2_000_000_000;
/// One gain in so many must be left.
const KEPT: u64 = 4;
/// With full swap, threads must have waited for this part of a window.
const WAITED: u64 = 2;
/// With full swap, the part of all frames that programs must get in a window.
pub(crate) const TURNOVER: u64 = 32;
/// Upper limit of that number, in frames: the rate of a slow disk, however large memory is.
pub(crate) const MOST_TURNOVER: u64 = 4096;
/// Entries of the table. The models do not use it.
const GHOSTS: usize = if cfg!(any(loom, shuttle)) { 0 } else { 4096 };

/// Pages that were evicted lately.
pub(crate) struct Ghosts {
    /// Hash of the identity in the upper half, number of the eviction in the lower one.
    table: &'static [AtomicU64],
    /// The numbers that CPUs have taken.
    clock: CachePadded<AtomicU64>,
    blocks: PerCpu<Block>,
    /// Numbers in a block.
    block: u64,
    near: u32,
}

/// A CPU's block of the clock. Written by that CPU while preemption is off.
#[derive(Default)]
pub(crate) struct Block {
    next: AtomicU64,
    end: AtomicU64,
}

/// All CPUs' blocks together are one part in so many of `near`.
const UNCLEAR: u64 = 16;

impl Ghosts {
    pub const BYTES: usize = GHOSTS * size_of::<AtomicU64>();

    /// For a system of `frames` frames and `cpus` CPUs, each of which has one of `blocks`.
    pub fn new(
        slice: &mut dyn FnMut(usize) -> &'static [AtomicU64],
        blocks: PerCpu<Block>,
        cpus: usize,
        frames: u64,
    ) -> Ghosts {
        let near = (frames / 64).clamp(8, 1024);
        Ghosts {
            table: slice(GHOSTS),
            clock: CachePadded(AtomicU64::new(0)),
            blocks,
            block: (near / (UNCLEAR * cpus as u64)).max(1),
            near: near as u32,
        }
    }

    /// The number of the calling CPU's next eviction.
    fn number(&self) -> u64 {
        let cpu = preempt_off();
        let own = self.blocks.mine(&cpu);
        let mut number = own.next.load(Ordering::Relaxed);
        if number == own.end.load(Ordering::Relaxed) {
            number = self.clock.fetch_add(self.block, Ordering::Relaxed);
            own.end.store(number + self.block, Ordering::Relaxed);
        }
        own.next.store(number + 1, Ordering::Relaxed);
        number
    }

    fn place(&self, object: u64, key: u64) -> Option<(&AtomicU64, u64)> {
        let hash = (object.rotate_left(20) ^ key).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let at = self.table.get((hash >> 52) as usize % GHOSTS.max(1))?;
        // Never zero, which is an empty entry.
        Some((at, (hash & 0xffff_ffff) | 1))
    }

    /// The page `key` of the object at `object` lost its frame.
    pub fn evicted(&self, object: u64, key: u64) {
        let Some((at, tag)) = self.place(object, key) else { return };
        at.store(tag << 32 | self.number() & 0xffff_ffff, Ordering::Relaxed);
    }

    /// Notes that the page comes back; whether that is a near refault.
    pub fn comes_back(&self, object: u64, key: u64) -> bool {
        let Some((at, tag)) = self.place(object, key) else { return false };
        let entry = at.load(Ordering::Relaxed);
        let since = (self.clock.load(Ordering::Relaxed) as u32).wrapping_sub(entry as u32);
        entry >> 32 == tag && since <= self.near
    }
}

/// Pages that programs gained and lost so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Tally {
    /// Pages that programs got.
    pub gained: u64,
    /// Near refaults among them.
    pub near: u64,
    /// Pages that they must get in a window, near refaults included. Not a running sum.
    pub least: u64,
    /// Reads and writes that were finished.
    pub finished: u64,
    /// Reads and writes under way. Not a running sum.
    pub in_flight: u64,
}

/// The current window.
pub(crate) struct Progress {
    window: SpinLock<Window>,
}

struct Window {
    began: u64,
    /// The last refusal.
    last: u64,
    tally: Tally,
    /// Threads that wait for memory now.
    waiters: u64,
    /// Nanoseconds of this window in which a thread waited, up to `counted`.
    waited: u64,
    counted: u64,
}

impl Window {
    /// Adds the time since the last call, if a thread waited in it.
    fn count(&mut self, now: u64) {
        if self.waiters != 0 {
            self.waited += now.saturating_sub(self.counted);
        }
        self.counted = now;
    }

    fn begin(&mut self, now: u64, tally: Tally) {
        (self.began, self.tally, self.waited) = (now, tally, 0);
    }
}

/// A thread that waits for memory, until this is dropped.
pub(crate) struct Waiter<'p>(&'p Progress);

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let mut w = self.0.window.lock();
        w.count(now());
        w.waiters -= 1;
    }
}

impl Progress {
    pub fn new() -> Progress {
        let window = Window { began: 0, last: 0, tally: Tally::default(), waiters: 0, waited: 0, counted: 0 };
        Progress { window: SpinLock::new(Rank::IO, window) }
    }

    /// Counts the calling thread among the waiters for memory.
    pub fn wait(&self) -> Waiter<'_> {
        self.wait_from(now());
        Waiter(self)
    }

    fn wait_from(&self, now: u64) {
        let mut w = self.window.lock();
        w.count(now);
        w.waiters += 1;
    }

    /// Notes that a thread is refused memory at `now`, or still waits for it. Returns whether programs made no progress
    /// for a whole window: true for one thread, then a new window begins.
    ///
    /// With swap that is not full, a pause between refusals begins a new window. With full swap (`least` is not 0) a
    /// pause says nothing, because a pass may take longer. There threads must have waited for half of the window.
    ///
    /// I/O under way may take long, and may be progress when it completes. With full swap some is always under way, so
    /// a window counts in which some was finished.
    pub fn is_lost(&self, now: u64, tally: Tally) -> bool {
        let mut w = self.window.lock();
        w.count(now);
        let full = tally.least != 0;
        if !full && now.saturating_sub(w.last) > QUIET {
            w.begin(now, tally);
        }
        w.last = now;
        let took = now.saturating_sub(w.began);
        if took < WINDOW {
            return false;
        }
        let gained = tally.gained.wrapping_sub(w.tally.gained);
        let near = tally.near.wrapping_sub(w.tally.near);
        let (waited, finished) = (w.waited, tally.finished != w.tally.finished);
        w.begin(now, tally);
        let traded = gained.saturating_sub(near) <= gained / KEPT;
        if !full {
            return traded && tally.in_flight == 0;
        }
        let slow = u128::from(gained) * u128::from(WINDOW) < u128::from(tally.least) * u128::from(took);
        (traded || slow) && waited >= took / WAITED && (tally.in_flight == 0 || finished)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    fn tally(gained: u64, near: u64) -> Tally {
        Tally { gained, near, ..Tally::default() }
    }

    /// Refusals every tenth of a second for `tenths`, while programs gain `gained` and lose `near` in each.
    fn after(tenths: u64, gained: u64, near: u64) -> bool {
        let p = Progress::new();
        (0..=tenths).any(|n| p.is_lost(5_000_000_000 + n * WINDOW / 10, tally(n * gained, n * near)))
    }

    #[test]
    fn a_trade_of_one_frame_is_no_progress_and_new_pages_are() {
        // Three to ten faults a second, each of which takes the other's page.
        assert!(after(10, 1, 1));
        assert!(after(10, 1000, 990));
        // No gain at all.
        assert!(after(10, 0, 0));
        // Slow, but with progress.
        assert!(!after(50, 1, 0));
        assert!(!after(50, 1000, 700));
    }

    #[test]
    fn the_decision_takes_a_window_of_refusals_without_a_pause() {
        assert!(!after(9, 1, 1));
        assert!(after(11, 1, 1));
        let p = Progress::new();
        // A refusal now and then is not a shortage.
        for n in 0..100 {
            assert!(!p.is_lost(1 + n * (QUIET + 1), tally(n, n)));
        }
    }

    /// With full swap, where programs must get 1,000 pages in a window.
    fn full(gained: u64, near: u64) -> Tally {
        Tally { least: 1000, ..tally(gained, near) }
    }

    #[test]
    fn a_slow_exchange_of_pages_with_full_swap_is_no_progress() {
        let after = |gained| {
            let p = Progress::new();
            p.wait_from(0);
            (0..=10).any(|n| p.is_lost(1 + n * WINDOW / 10, full(n * gained, 0)))
        };
        assert!(after(99));
        assert!(!after(101));
    }

    #[test]
    fn with_full_swap_a_pass_is_no_pause_however_long_it_takes() {
        for waiters in [1, 5] {
            let p = Progress::new();
            (0..waiters).for_each(|_| p.wait_from(0));
            assert!(!p.is_lost(1, full(0, 0)));
            assert!(p.is_lost(1 + 4 * WINDOW, full(3999, 0)));
            assert!(!p.is_lost(1 + 8 * WINDOW, full(3999 + 4001, 0)));
        }
    }

    #[test]
    fn io_under_way_delays_a_decision_until_some_is_finished() {
        for least in [0, 1000] {
            let (p, full) = (Progress::new(), least != 0);
            let start = 1_000 * WINDOW;
            p.wait_from(start);
            // Ten refusals a window, at whose end some I/O was finished and some is under way.
            let mut time = start;
            let mut lost = |finished, in_flight| {
                (0..10).any(|_| {
                    time += WINDOW / 10;
                    p.is_lost(time, Tally { least, finished, in_flight, ..Tally::default() })
                })
            };
            lost(0, 1);
            assert!(!lost(0, 7) && !lost(0, 7), "it may complete");
            assert_eq!(lost(1, 7), full);
            assert!(!lost(1, 7), "nothing was finished");
            assert!(lost(1, 0) || lost(1, 0));
        }
    }

    #[test]
    fn with_full_swap_memory_is_not_out_where_threads_hardly_wait() {
        // A refusal now and then, and one after a long rest, whatever was gained.
        for each in [WINDOW / 10, 3600 * WINDOW] {
            let p = Progress::new();
            assert!((0..100).all(|n| !p.is_lost(1 + n * each, full(0, 0))));
        }
        // Waits of less than half of the time.
        let p = Progress::new();
        for n in 1..100 {
            p.wait_from(n * WINDOW / 10);
            let mut w = p.window.lock();
            w.count(n * WINDOW / 10 + WINDOW / 25);
            w.waiters -= 1;
            drop(w);
            assert!(!p.is_lost((n + 1) * WINDOW / 10 - 1, full(0, 0)));
        }
    }

    #[test]
    fn one_of_many_waiters_is_told() {
        let p = Progress::new();
        let told = (0..=10).flat_map(|n| [n; 5]).filter(|n| p.is_lost(7 + n * WINDOW / 10, tally(*n, *n))).count();
        assert_eq!(told, 1);
    }

    /// A table for so many CPUs and frames.
    fn ghosts(cpus: usize, frames: u64) -> Ghosts {
        quire_sync::hooks::threads::set_cpu(0);
        let blocks = PerCpu::leaked(cpus, |_| Block::default());
        Ghosts::new(&mut |n| (0..n).map(|_| AtomicU64::new(0)).collect::<Vec<_>>().leak(), blocks, cpus, frames)
    }

    /// `evictions` on CPUs that `cpu` says, each of a page that comes back after `after` more; how many of them come
    /// back near.
    fn near_among(g: &Ghosts, evictions: u64, after: u64, cpu: impl Fn(u64) -> usize) -> u64 {
        let mut near = 0;
        for n in 0..evictions + after {
            if n >= after {
                near += u64::from(g.comes_back(0x1000, n - after));
            }
            if n < evictions {
                quire_sync::hooks::threads::set_cpu(cpu(n));
                g.evicted(0x1000, n);
            } else {
                g.number();
            }
        }
        quire_sync::hooks::threads::set_cpu(0);
        near
    }

    #[test]
    fn near_refaults_are_told_within_the_stated_error_on_any_cpus() {
        const ALL: u64 = 20_000;
        let turns: [fn(u64) -> usize; 3] =
            [|n| (n % 4) as usize, |n| usize::from(n % 200 == 0), |n| (n / 7 % 4) as usize];
        for cpu in turns {
            let g = ghosts(4, 64 * 512);
            assert_eq!((g.near, g.block), (512, 8));
            // Collisions in the table forget some, too.
            let near = near_among(&g, ALL, u64::from(g.near) / 2, cpu);
            assert!(near >= ALL * 3 / 4, "{near} of {ALL}");
            let far = near_among(&g, ALL, u64::from(g.near) * 17 / 16 + 1, cpu);
            assert!(far == 0, "{far} of {ALL}");
        }
    }

    #[test]
    fn only_a_refault_after_few_evictions_is_near() {
        let ghosts = ghosts(1, 64 * 16);
        assert_eq!(ghosts.near, 16);
        assert!(!ghosts.comes_back(0x1000, 7), "never evicted");
        ghosts.evicted(0x1000, 7);
        assert!(ghosts.comes_back(0x1000, 7));
        assert!(!ghosts.comes_back(0x1000, 8) && !ghosts.comes_back(0x2000, 7));
        (0..15).for_each(|n| ghosts.evicted(0x9000, n));
        assert!(ghosts.comes_back(0x1000, 7));
        ghosts.evicted(0x9000, 99);
        assert!(!ghosts.comes_back(0x1000, 7));
    }
}
