//! Whether programs make progress while memory is short.
//!
//! A pass that frees a page proves nothing, because two faults may take one frame from each other for ever. The
//! decisive pages are those that programs *keep*. Each frame that a program gets counts as gained. If a page is read
//! back soon after its eviction, the eviction was useless, and the refault cancels a gain. Memory is exhausted if
//! threads are refused memory for a whole window and hardly any gain is left.
//!
//! With full swap no gain is left at all, because each page that is read in replaces another. A working set that fits
//! into memory also exchanges pages for a short time, but at a high rate, and its threads hardly wait. Memory is
//! exhausted if two conditions hold in each of two windows. Threads wait for half of the window, and programs get less
//! than a [`TURNOVER`] of memory and less than [`MOST_TURNOVER`]. Then programs only exchange pages, however long each
//! page was evicted.
//!
//! # Near refaults
//! A table of fixed size records recent evictions, by a hash of the page's identity, with the number of the eviction. A
//! page that is read back before more than [`Ghosts::near`] other pages were evicted is a *near refault*. A program
//! that touches more memory than the machine has, in any order, has far refaults, because many other pages were evicted
//! after its own. Only a program that needs a few pages at once, and cannot get them, has near refaults. A collision in
//! the table forgets an eviction, which errs towards progress.
//!
//! # The clock
//! One clock numbers the evictions of all CPUs. Each CPU takes [a block](Ghosts::block) of numbers at once, so that
//! CPUs that reclaim do not write one line for each page. All blocks together are a sixteenth of [`Ghosts::near`]. This
//! causes two errors:
//! - Up to `near / 16` more pages may have been evicted since a near page, because the last block of each CPU may be
//!   used in part.
//! - A near page may count as far if its CPU took its block long before. For an error of that size, the other CPUs must
//!   evict half of `near` while one CPU uses up a block. So at most an eighth of all evictions has this error.
//!
//! An eighth is half of the gains that may be left while memory counts as exhausted ([`KEPT`]). So an exchange in which
//! all pages are lost is still found.

use quire_sync::atomic::{AtomicU64, Ordering};
use quire_sync::hooks::now;
use quire_sync::{CachePadded, PerCpu, Rank, SpinLock, preempt_off};

/// Nanoseconds for which threads must be refused without a pause before memory counts as exhausted.
pub(crate) const WINDOW: u64 = 1_000_000_000;
/// Nanoseconds without a refusal after which a window restarts. A thread that is refused less often does not count as
/// waiting.
pub(crate) const QUIET: u64 = 200_000_000;
/// The most nanoseconds for which one fault is refused if no place is left to page out to.
pub(crate) const STARVED: u64 = 2_000_000_000;
/// One in this number of the gains must be left. Otherwise memory counts as exhausted.
const KEPT: u64 = 4;
/// With full swap: memory counts as exhausted only if threads waited for the time of a window divided by this number.
const WAITED: u64 = 2;
/// With full swap: in a window, programs must get at least the number of all frames divided by this number.
pub(crate) const TURNOVER: u64 = 32;
/// The upper limit of the number of pages that programs must get in a window. A slow disk delivers this number, however
/// large memory is.
pub(crate) const MOST_TURNOVER: u64 = 4096;
/// The number of entries of the table. The models do not use it.
const GHOSTS: usize = if cfg!(any(loom, shuttle)) { 0 } else { 4096 };

/// The traces of pages that were evicted lately.
pub(crate) struct Ghosts {
    /// Each entry has a hash of the identity in the upper half, and the number of the eviction in the lower half.
    table: &'static [AtomicU64],
    /// The count of eviction numbers that CPUs have taken.
    clock: CachePadded<AtomicU64>,
    blocks: PerCpu<Block>,
    /// The number of eviction numbers in a block.
    block: u64,
    near: u32,
}

/// A CPU's block of eviction numbers. Written by that CPU while preemption is off.
#[derive(Default)]
pub(crate) struct Block {
    next: AtomicU64,
    end: AtomicU64,
}

/// The blocks of eviction numbers of all CPUs together have [`Ghosts::near`] numbers, divided by this.
const UNCLEAR: u64 = 16;

impl Ghosts {
    pub const BYTES: usize = GHOSTS * size_of::<AtomicU64>();

    /// Makes the table for a system of `frames` frames and `cpus` CPUs. `blocks` has one block for each CPU.
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

    /// The number for the calling CPU's next eviction.
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
        // The tag is never zero, because a zero entry is empty.
        Some((at, (hash & 0xffff_ffff) | 1))
    }

    /// Records that page `key` of the object at address `object` was evicted.
    pub fn evicted(&self, object: u64, key: u64) {
        let Some((at, tag)) = self.place(object, key) else { return };
        at.store(tag << 32 | self.number() & 0xffff_ffff, Ordering::Relaxed);
    }

    /// Called when page `key` of the object at address `object` is read back. Returns whether this is a near refault.
    pub fn comes_back(&self, object: u64, key: u64) -> bool {
        let Some((at, tag)) = self.place(object, key) else { return false };
        let entry = at.load(Ordering::Relaxed);
        let since = (self.clock.load(Ordering::Relaxed) as u32).wrapping_sub(entry as u32);
        entry >> 32 == tag && since <= self.near
    }
}

/// Counts of the pages that programs gained and lost so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Tally {
    /// The number of pages that programs got.
    pub gained: u64,
    /// The number of near refaults among them.
    pub near: u64,
    /// With full swap: the number of pages that programs must get in a window, near refaults included. Otherwise 0. Not
    /// a running sum.
    pub least: u64,
    /// The number of reads and writes that were finished.
    pub finished: u64,
    /// The number of reads and writes in progress. Not a running sum.
    pub in_flight: u64,
}

/// The state of the decision whether memory is exhausted.
pub(crate) struct Progress {
    window: SpinLock<Window>,
}

struct Window {
    began: u64,
    /// The time of the last refusal.
    last: u64,
    tally: Tally,
    /// The number of threads that wait for memory now.
    waiters: u64,
    /// Nanoseconds of this window in which a thread waited, up to the time `counted`.
    waited: u64,
    counted: u64,
    /// This window had a pause: a time longer than [`QUIET`] without a refusal.
    paused: bool,
    /// With full swap: the window before this one was without progress.
    bad: bool,
}

impl Window {
    /// Adds the time since the last call, if a thread waited during it.
    fn count(&mut self, now: u64) {
        if self.waiters != 0 {
            self.waited += now.saturating_sub(self.counted);
        }
        // Another CPU may have read the clock later, but acquired the lock first.
        self.counted = self.counted.max(now);
    }

    fn begin(&mut self, now: u64, tally: Tally) {
        (self.began, self.tally, self.waited, self.paused) = (now, tally, 0, false);
    }
}

/// A thread that is counted as waiting for memory until this value is dropped.
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
        let window = Window {
            began: 0,
            last: 0,
            tally: Tally::default(),
            waiters: 0,
            waited: 0,
            counted: 0,
            paused: false,
            bad: false,
        };
        Progress { window: SpinLock::new(Rank::IO, window) }
    }

    /// Counts the calling thread as waiting for memory, until the returned value is dropped.
    pub fn wait(&self) -> Waiter<'_> {
        self.wait_from(now());
        Waiter(self)
    }

    fn wait_from(&self, now: u64) {
        let mut w = self.window.lock();
        w.count(now);
        w.waiters += 1;
    }

    /// The number of threads that wait for memory now.
    pub fn waiters(&self) -> u64 {
        self.window.lock().waiters
    }

    /// Records that at time `now` a thread is refused memory, or still waits for it since `refused`. Returns whether
    /// programs made no progress for a whole window. Only one thread gets true, because a new window then begins.
    ///
    /// If swap is not full, a pause between refusals begins a new window. With full swap (`least` is not 0) a pause
    /// shows nothing, because a pass may take longer. Then threads must have waited for half of each of two windows,
    /// and only a thread that was refused for longer than [`QUIET`] decides. So a burst of refusals after a pause does
    /// not count as exhausted memory. Nor do many threads that each hardly wait.
    ///
    /// I/O in progress may take long, and its completion may be progress. With full swap some I/O is always in
    /// progress, so a window counts only if some I/O was finished in it.
    pub fn is_lost(&self, now: u64, refused: u64, tally: Tally) -> bool {
        let mut w = self.window.lock();
        w.count(now);
        let full = tally.least != 0;
        if now.saturating_sub(w.last) > QUIET {
            w.paused = true;
            if !full {
                w.begin(now, tally);
            }
        }
        w.last = w.last.max(now);
        let took = now.saturating_sub(w.began);
        let hardly_refused = full && now.saturating_sub(refused) <= QUIET;
        // The sums were read before the lock was acquired. Another CPU may have begun a window with later sums.
        let is_old = tally.gained.wrapping_sub(w.tally.gained) > u64::MAX / 2;
        if took < WINDOW || hardly_refused || is_old {
            return false;
        }
        let gained = tally.gained.wrapping_sub(w.tally.gained);
        let near = tally.near.wrapping_sub(w.tally.near);
        let (waited, finished, paused) = (w.waited, tally.finished != w.tally.finished, w.paused);
        let bad = core::mem::take(&mut w.bad);
        w.begin(now, tally);
        let traded = gained.saturating_sub(near) <= gained / KEPT;
        if !full {
            return traded && !paused && tally.in_flight == 0;
        }
        let slow = u128::from(gained) * u128::from(WINDOW) < u128::from(tally.least) * u128::from(took);
        w.bad = (traded || slow) && waited >= took / WAITED && (tally.in_flight == 0 || finished);
        bad && core::mem::take(&mut w.bad)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    fn tally(gained: u64, near: u64) -> Tally {
        Tally { gained, near, ..Tally::default() }
    }

    /// Refusals every tenth of a second for `tenths`, while programs gain `gained` pages and lose `near` pages in each.
    fn after(tenths: u64, gained: u64, near: u64) -> bool {
        let p = Progress::new();
        (0..=tenths).any(|n| p.is_lost(5_000_000_000 + n * WINDOW / 10, 0, tally(n * gained, n * near)))
    }

    #[test]
    fn a_trade_of_one_frame_is_no_progress_and_new_pages_are() {
        // Three to ten faults a second, each of which takes the page of another.
        assert!(after(10, 1, 1));
        assert!(after(10, 1000, 990));
        // There is no gain at all.
        assert!(after(10, 0, 0));
        // The gains are slow, but they are progress.
        assert!(!after(50, 1, 0));
        assert!(!after(50, 1000, 700));
    }

    #[test]
    fn the_decision_takes_a_window_of_refusals_without_a_pause() {
        assert!(!after(9, 1, 1));
        assert!(after(11, 1, 1));
        let p = Progress::new();
        // A refusal now and then does not mean that memory is exhausted.
        for n in 0..100 {
            assert!(!p.is_lost(1 + n * (QUIET + 1), 0, tally(n, n)));
        }
    }

    /// A tally with full swap, where programs must get 1,000 pages in a window.
    fn full(gained: u64, near: u64) -> Tally {
        Tally { least: 1000, ..tally(gained, near) }
    }

    /// A time at which no window has begun.
    const START: u64 = 1_000 * WINDOW;

    /// Ten refusals in each of `windows` windows, of a thread that is refused from the start. Programs gain `gained`
    /// pages in each tenth. Returns the number of the window in which memory is exhausted.
    fn out_in(p: &Progress, windows: u64, gained: u64) -> Option<u64> {
        let lost = |n: u64| p.is_lost(START + n * WINDOW / 10, START - 2 * QUIET, full(n * gained, 0));
        (1..=windows * 10).find(|n| lost(*n)).map(|n| n.div_ceil(10))
    }

    /// A window that began at `START`, with `waiters` waiting threads.
    fn begun(waiters: u64) -> Progress {
        let p = Progress::new();
        p.is_lost(START, 0, full(0, 0));
        (0..waiters).for_each(|_| p.wait_from(START));
        p
    }

    #[test]
    fn a_slow_exchange_of_pages_with_full_swap_is_no_progress() {
        assert_eq!(out_in(&begun(1), 5, 99), Some(2));
        assert_eq!(out_in(&begun(5), 5, 99), Some(2));
        assert_eq!(out_in(&begun(1), 5, 100), None);
    }

    #[test]
    fn with_full_swap_a_pass_is_no_pause_however_long_it_takes() {
        let p = begun(1);
        let lost = |n: u64, gained| p.is_lost(START + n * WINDOW, START, full(gained, 0));
        assert!(!lost(4, 3999));
        assert!(lost(8, 2 * 3999));
        assert!(!lost(12, 2 * 3999 + 4001));
        assert!(!lost(16, 12_100));
        assert!(lost(20, 12_200));
    }

    #[test]
    fn with_full_swap_a_good_window_between_two_bad_ones_counts() {
        let p = begun(1);
        let lost = |n: u64, gained| p.is_lost(START + n * WINDOW, START, full(gained, 0));
        assert!(!lost(1, 0) && !lost(2, 1000) && !lost(3, 1000) && lost(4, 1000));
    }

    #[test]
    fn with_full_swap_memory_is_not_out_where_threads_hardly_wait() {
        // A refusal now and then, and one after a long rest, with any gain.
        for each in [WINDOW / 10, WINDOW, 3600 * WINDOW] {
            let p = begun(0);
            assert!((0..100).all(|n| !p.is_lost(START + n * each, START - 2 * QUIET, full(0, 0))));
        }
        // Two threads wait at the same time, for less than half of the time.
        let p = begun(0);
        for n in 1..100 {
            let from = START + n * WINDOW / 10;
            (0..2).for_each(|_| p.wait_from(from));
            let mut w = p.window.lock();
            w.count(from + WINDOW / 25);
            w.waiters = 0;
            drop(w);
            assert!(!p.is_lost(from + WINDOW / 10 - 1, START, full(0, 0)));
        }
    }

    #[test]
    fn with_full_swap_a_thread_that_was_hardly_refused_decides_nothing() {
        let p = begun(1);
        let lost = |n: u64, refused| p.is_lost(START + n * WINDOW, refused, full(0, 0));
        assert!(!lost(1, START) && !lost(2, START + 2 * WINDOW - QUIET));
        assert!(lost(3, START), "another thread ends the window");
    }

    #[test]
    fn sums_and_times_that_were_read_early_decide_nothing() {
        let p = begun(1);
        assert!(!p.is_lost(START + WINDOW, START, full(5000, 0)));
        // Another CPU read its sums before that window began, and the clock after it.
        assert!((2..9).all(|n| !p.is_lost(START + n * WINDOW, START, full(4000, 0))));
        let p = begun(1);
        p.window.lock().count(START + WINDOW);
        p.window.lock().count(START);
        p.window.lock().count(START + WINDOW);
        assert_eq!(p.window.lock().waited, WINDOW);
    }

    #[test]
    fn a_window_with_a_pause_decides_nothing_once_swap_has_room() {
        let p = begun(1);
        assert!(!p.is_lost(START + 9 * WINDOW / 10, START, full(0, 0)));
        assert!(!p.is_lost(START + WINDOW, START, tally(0, 0)));
    }

    #[test]
    fn io_under_way_delays_a_decision_until_some_is_finished() {
        for least in [0, 1000] {
            let (p, full) = (begun(1), least != 0);
            // Each window has ten refusals. At its end some I/O was finished and some is in progress.
            let mut time = START;
            let mut lost = |finished, in_flight| {
                (0..10).any(|_| {
                    time += WINDOW / 10;
                    p.is_lost(time, START - 2 * QUIET, Tally { least, finished, in_flight, ..Tally::default() })
                })
            };
            assert!(!lost(0, 7) && !lost(0, 7), "the I/O may complete");
            assert!(!lost(1, 7));
            assert_eq!(lost(2, 7), full);
            assert!(!lost(2, 7), "no I/O was finished");
            assert_eq!(lost(2, 0), !full);
            assert!(lost(2, 0));
        }
    }

    #[test]
    fn one_of_many_waiters_decides() {
        let p = Progress::new();
        let lost = (0..=10).flat_map(|n| [n; 5]).filter(|n| p.is_lost(7 + n * WINDOW / 10, 0, tally(*n, *n))).count();
        assert_eq!(lost, 1);
    }

    /// A table for `cpus` CPUs and `frames` frames.
    fn ghosts(cpus: usize, frames: u64) -> Ghosts {
        quire_sync::hooks::threads::set_cpu(0);
        let blocks = PerCpu::leaked(cpus, |_| Block::default());
        Ghosts::new(&mut |n| (0..n).map(|_| AtomicU64::new(0)).collect::<Vec<_>>().leak(), blocks, cpus, frames)
    }

    /// Makes `evictions` evictions, each on the CPU that `cpu` returns. Each page is read back after `after` more
    /// evictions. Returns how many of these refaults are near.
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
    fn near_refaults_are_counted_within_the_stated_error_on_any_cpus() {
        const ALL: u64 = 20_000;
        let turns: [fn(u64) -> usize; 3] =
            [|n| (n % 4) as usize, |n| usize::from(n % 200 == 0), |n| (n / 7 % 4) as usize];
        for cpu in turns {
            let g = ghosts(4, 64 * 512);
            assert_eq!((g.near, g.block), (512, 8));
            // Collisions in the table forget some evictions, too.
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
