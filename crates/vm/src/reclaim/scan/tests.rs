//! Tests of short memory, on the test machine.

use crate::object::ObjectRef;
use crate::paging::io::Polled;
use crate::paging::memory_store::FaultPlan;
use crate::reclaim::daemon::Daemon;
use crate::stats::Event;
use crate::testing::{Boot, boot, page};
use crate::tests::{anonymous, load, settled, show, store};
use crate::types::{Access, PAGE_SIZE};
use crate::{Config, FaultError, Space};
use quire_sync::atomic::{AtomicU32, Ordering};

/// A system with about `frames` frames for programs.
fn small(frames: u64) -> Boot {
    quire_sync::hooks::threads::set_cpu(0);
    boot(frames, 3)
}

const PROMPT: FaultPlan = FaultPlan { delay: 0, pause: 0, fail_reads: 0, fail_writes: 0, window: 0, seed: 1 };

/// Writes four times the memory of the machine, and reads it back.
fn overcommit(m: &Boot, pages: u64) {
    let space = Space::new(m.vm).unwrap();
    anonymous(&space, 0, pages);
    for round in 0..3u8 {
        (0..pages).for_each(|n| store(&space, page(n), (n as u8).wrapping_mul(3) ^ round));
        (0..pages).for_each(|n| assert_eq!(load(&space, page(n)), (n as u8).wrapping_mul(3) ^ round, "page {n}"));
    }
}

#[test]
fn a_program_of_four_times_the_memory_keeps_its_data() {
    for plan in [PROMPT, FaultPlan { delay: 3, window: 5, seed: 7, ..PROMPT }] {
        let m = small(512);
        m.swap(2048, plan);
        let before = settled(m.vm);
        let pages = (m.vm.frames().total() - m.vm.frames().reserve()).min(240) * 4;
        overcommit(&m, pages);
        assert!(m.vm.stats().total(Event::SwapOut) > pages);
        while m.vm.io().in_flight() != 0 {
            m.vm.poll_pagers();
            m.vm.finish_completed(&mut crate::sleep::MaySleep::here());
        }
        assert_eq!(m.vm.swap().free(), 2048);
        assert_eq!(settled(m.vm), before);
        m.vm.queues().check(true).unwrap();
    }
}

#[test]
fn with_daemons_too() {
    let m = small(512);
    m.swap(2048, FaultPlan { delay: 2, window: 4, fail_writes: 9, seed: 5, ..PROMPT });
    let before = settled(m.vm);
    beside_daemons(&m, 1, || overcommit(&m, 800));
    // This finishes I/O that was in progress when the daemon was stopped.
    m.vm.finish_io(&mut crate::sleep::MaySleep::here());
    assert_eq!((m.vm.swap().free(), settled(m.vm)), (2048, before));
    m.vm.queues().check(true).unwrap();
}

/// A poller that panics when CPU 1 polls it for the third time.
struct Breaks(AtomicU32);

impl Polled for Breaks {
    fn poll(&self) -> bool {
        if quire_sync::current_cpu() == 1 {
            assert_ne!(self.0.fetch_add(1, Ordering::Relaxed), 2, "the daemon breaks");
        }
        false
    }
}

#[test]
fn a_dead_daemon_leaves_its_work_to_the_waiters() {
    let m = small(512);
    m.swap(2048, FaultPlan { delay: 2, window: 4, seed: 5, ..PROMPT });
    m.vm.poll_with(Box::leak(Box::new(Breaks(AtomicU32::new(0))))).unwrap();
    std::thread::scope(|s| {
        let daemon = s.spawn(|| {
            quire_sync::hooks::threads::set_cpu(1);
            m.vm.daemon_run(Daemon::Completion);
        });
        while !m.vm.io().has_completer() && !daemon.is_finished() {
            std::thread::yield_now();
        }
        overcommit(&m, 800);
        // Each wake-up causes a poll, so the daemon dies here at the latest.
        while !daemon.is_finished() {
            m.vm.io().wake_completer();
            std::thread::yield_now();
        }
        assert!(daemon.join().is_err(), "the daemon did not panic");
    });
}

#[test]
fn memory_is_out_only_when_nothing_can_be_freed() {
    let m = small(512);
    let swap = m.swap(64, PROMPT);
    let space = Space::new(m.vm).unwrap();
    anonymous(&space, 0, 1000);
    let stored = (0..1000).take_while(|n| space.fault(page(*n), Access::Write).is_ok()).count() as u64;
    assert_eq!(m.vm.swap().free(), 0, "swap was used up first");
    assert!(stored > 64 + 200, "{stored}");
    assert_eq!(space.fault(page(stored), Access::Write), Err(FaultError::OutOfMemory));
    // Memory that one program frees is available to another.
    space.unmap(crate::tests::range(0, 200)).unwrap();
    (200..stored).for_each(|n| assert_eq!(load(&space, page(n)), 0));
    assert!(swap.counts().writes < 1000, "nothing is written over and over: {:?}", swap.counts());
}

#[test]
fn a_backing_store_that_takes_nothing_ends_in_an_error() {
    let m = small(512);
    let swap = m.swap(2048, FaultPlan { fail_writes: 1, ..PROMPT });
    let space = Space::new(m.vm).unwrap();
    anonymous(&space, 0, 1000);
    let stored = (0..1000).take_while(|n| space.fault(page(*n), Access::Write).is_ok()).count() as u64;
    assert!(stored < 512);
    let writes = swap.counts().writes;
    assert_eq!(space.fault(page(stored), Access::Write), Err(FaultError::OutOfMemory));
    assert!(swap.counts().writes - writes < 600, "{} writes for one fault", swap.counts().writes - writes);
    swap.set_plan(PROMPT);
    (0..stored).for_each(|n| store(&space, page(n), n as u8));
}

#[test]
fn marks_follow_the_size_of_memory_and_leave_most_of_it_in_use() {
    for frames in [256, 512, 2048, 1 << 14] {
        let m = small(frames);
        let (f, total) = (m.vm.frames(), m.vm.frames().total());
        let w = f.marks(0);
        assert!(
            w.min == f.reserve() && w.min < w.low && w.low < w.high && w.high - w.min <= total / 4,
            "{w:?} of {total}"
        );
    }
}

/// Starts the daemons beside `f`, each on its own CPU. The first is on CPU `cpu`.
fn beside_daemons(m: &Boot, cpu: usize, f: impl FnOnce()) {
    std::thread::scope(|s| {
        for (daemon, cpu) in [Daemon::Completion, Daemon::Pageout].into_iter().zip(cpu..) {
            s.spawn(move || {
                quire_sync::hooks::threads::set_cpu(cpu);
                m.vm.daemon_run(daemon);
            });
        }
        let _stop = crate::reclaim::daemon::OnEnd(|| m.vm.stop_daemons());
        f();
    });
}

/// Waits until memory is not low.
fn until_the_store_has_kept_up(m: &Boot) {
    while m.vm.frames().is_low() {
        std::thread::yield_now();
    }
}

#[test]
fn an_allocator_at_the_pace_of_the_store_is_rarely_refused() {
    let m = small(2048);
    m.swap(8192, FaultPlan { delay: 2, window: 4, seed: 3, ..PROMPT });
    beside_daemons(&m, 1, || {
        let pages = 960;
        // The test uses several spaces, because a space of this machine is small. It makes all of them before memory is
        // full, because a space needs consecutive frames.
        let spaces: Vec<_> = (0..5).map(|_| Space::new(m.vm).unwrap()).collect();
        // For a moment the daemon can have frames between a magazine and the buddy lists. That moment is long if the
        // host suspends the daemon's thread in it. So all tries of one access count as one refusal.
        let mut refused = 0;
        let mut paced = |access: &dyn Fn()| {
            let tries = || m.vm.stats().total(Event::AllocStall);
            let before = tries();
            access();
            refused += u64::from(tries() > before);
            until_the_store_has_kept_up(&m);
        };
        for (n, space) in spaces.iter().enumerate() {
            anonymous(space, 0, pages);
            (0..pages).for_each(|p| paced(&|| store(space, page(p), p as u8 ^ n as u8)));
        }
        for (n, space) in spaces.iter().enumerate() {
            (0..pages).for_each(|p| paced(&|| assert_eq!(load(space, page(p)), p as u8 ^ n as u8)));
        }
        let written = m.vm.stats().total(Event::SwapOut);
        assert!(written > 2 * pages);
        assert!(refused * 50 <= written, "{refused} of {written}");
    });
}

#[test]
fn unfreeable_pages_do_not_block_the_freeing_of_others() {
    let m = small(512);
    // Swap is soon full of anonymous pages, and the file's pages need no swap.
    m.swap(16, PROMPT);
    let disk = crate::testing::memory_store(600, PROMPT);
    m.vm.poll_with(disk).unwrap();
    let file = ObjectRef::with_pager(m.vm, disk, 600 * PAGE_SIZE).unwrap();
    let (own, files) = (Space::new(m.vm).unwrap(), Space::new(m.vm).unwrap());
    anonymous(&own, 0, 250);
    (0..250).for_each(|n| store(&own, page(n), n as u8));
    show(&files, 0, 600, &file, false);
    for round in 0..2 {
        for n in 0..600 {
            assert!(files.fault(page(n), Access::Read).is_ok(), "page {n} in round {round}");
        }
    }
    assert!((0..250).all(|n| load(&own, page(n)) == n as u8));
}

#[test]
fn domains_short_of_memory_are_spared_and_get_own_frames_back() {
    quire_sync::hooks::threads::set_cpu(0);
    let m = crate::testing::boot_in_domains(4096, 2, 2, Config::default());
    m.swap(8192, PROMPT);
    let f = m.vm.frames();
    let low = |domain: usize| f.free_in(domain) < f.marks(domain).low + 2 * crate::phys::frames::CHAIN as u64;
    let spaces: Vec<_> = (0..8)
        .map(|_| {
            let space = Space::new(m.vm).unwrap();
            anonymous(&space, 0, 960);
            space
        })
        .collect();
    let mut pages = spaces.iter().flat_map(|s| (0..960).map(move |p| (s, p)));
    // CPU 0 uses up its own domain, and continues in the other.
    while !low(0) {
        let (space, p) = pages.next().unwrap();
        store(space, page(p), 1);
    }
    assert!(!low(1) && !f.is_low());
    while !f.is_low() {
        let (space, p) = pages.next().unwrap();
        store(space, page(p), 1);
    }
    assert_eq!(m.vm.stats().total(Event::AllocStall), 0);
    m.vm.drain_caches();
    let (missing, which) = f.missing();
    assert!(
        missing > 0 && which.contains(0),
        "{missing} {which:?} {:?} {:?}",
        [f.marks(0), f.marks(1)],
        [f.free_in(0), f.free_in(1)]
    );
    m.vm.pageout_pass(&mut crate::sleep::MaySleep::here());
    for domain in 0..2 {
        let (free, high) = (f.free_in(domain), f.marks(domain).high);
        assert!(free >= high, "{free} of domain {domain}, whose high mark is {high}");
    }
    assert_eq!(f.missing().0, 0);
}

/// Stores into pages from 0 on until memory is exhausted. Returns the number of pages that were stored into.
fn fill(space: &Space<crate::testing::TestMachine>, pages: u64) -> u64 {
    anonymous(space, 0, pages);
    let stored = (0..pages).take_while(|n| space.fault(page(*n), Access::Write).is_ok()).count() as u64;
    (0..stored).for_each(|n| store(space, page(n), n as u8));
    stored
}

#[test]
fn with_full_swap_each_frame_and_each_slot_holds_a_page() {
    let m = small(512);
    m.swap(128, PROMPT);
    let space = Space::new(m.vm).unwrap();
    let stored = fill(&space, 900);
    let in_frames = space.holdings().resident;
    assert!(m.vm.swap().free() < 128 / 4);
    assert_eq!(stored, in_frames + 128 - m.vm.swap().free(), "no page has both");
}

/// Four fifths of the frames are in use all the time, at random. The other frames and all slots hold pages that no
/// program uses. Hot pages that went to swap are read back, one at a time. Swap is full, so each of them replaces a
/// page that was not used since the last visit. If that is a hot page, it is read back as well. This ends when no hot
/// page is in swap.
#[test]
fn a_working_set_that_fits_is_at_peace_though_swap_is_full() {
    for first in 1..=4u64 {
        let m = small(512);
        m.swap(128, PROMPT);
        let space = Space::new(m.vm).unwrap();
        let stored = fill(&space, 900);
        space.unmap(crate::tests::range(stored - 8, 8)).unwrap();
        // The pages that were stored first went to swap first.
        let hot = (stored - 128) * 8 / 10;
        let mut seed = first;
        let mut read_by = |touches: u64| {
            let before = m.vm.stats().total(Event::SwapIn);
            for _ in 0..touches {
                seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let n = (seed >> 33) % hot;
                assert_eq!(load(&space, page(n)), n as u8, "page {n}");
                store(&space, page(n), n as u8);
            }
            m.vm.stats().total(Event::SwapIn) - before
        };
        // Measured: 1,468 to 2,249 pages for 335 hot pages, after 45,000 touches at most.
        let settling = read_by(100_000);
        assert!((1..10 * hot).contains(&settling), "{settling} pages were read until {hot} were there");
        assert_eq!(read_by(20_000), 0, "pages are read for a set that fits");
        (0..stored - 8).for_each(|n| assert_eq!(load(&space, page(n)), n as u8, "page {n}"));
    }
}
