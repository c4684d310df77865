use super::*;
use crate::Phys;
use crate::testing::{Boot, boot_with};
use crate::types::{PAGE_SIZE, PhysRange};

fn system(frames: u64, cpus: usize, domains: usize, zero_stock: u32) -> Boot {
    let config = Config { poison: true, reserve: Some(64), zero_stock, ..Config::default() };
    crate::testing::boot_in_domains(frames, cpus, domains, config)
}

fn on(cpu: usize) {
    quire_sync::hooks::threads::set_cpu(cpu);
}

fn take(m: &Boot, n: usize, on_behalf: For) -> Vec<Frame> {
    (0..n).map(|_| m.vm.alloc_frame(Fill::Any, on_behalf).unwrap()).collect()
}

#[test]
fn every_frame_is_accounted_for_once_and_damage_is_found() {
    let m = boot_with(4096, 2, Config { reserve: Some(64), ..Config::default() });
    let f = m.vm.frames();
    assert_eq!(f.check(), Ok(()));
    let mut mine = take(&m, 1000, For::User);
    mine.extend(take(&m, 100, For::Kernel));
    let run = m.vm.alloc_run(4, For::Kernel).unwrap();
    assert_eq!(f.check(), Ok(()));
    assert_eq!(f.free() + 1100 + 16, f.total());
    mine.drain(..700).for_each(|p| m.vm.return_frame(p));
    m.vm.return_run(run, 4);
    assert_eq!(f.check(), Ok(()));

    let pfn = mine[0].pfn();
    m.vm.page(pfn).set_kind(FrameKind::Cached);
    assert_eq!(f.check(), Err(FrameError::Lost(1)));
    m.vm.page(pfn).set_kind(FrameKind::Unowned);

    let cached = m.vm.described().find(|page| page.kind() == FrameKind::Cached).unwrap();
    cached.set_kind(FrameKind::Unowned);
    assert!(matches!(f.check(), Err(FrameError::Kind(_))));
    cached.set_kind(FrameKind::Cached);
    let next = cached.next();
    cached.set_next(Some(m.vm.pfn_of_page(cached)));
    assert!(matches!(f.check(), Err(FrameError::Chain(_))));
    cached.set_next(next);

    // The block is in a section that is open.
    let whole = m.vm.alloc_run(MAX_ORDER, For::User).unwrap();
    m.vm.return_run(whole, MAX_ORDER);
    let block = f.domains[0].held.lock().buddy.first(MAX_ORDER, Group::User).unwrap();
    m.vm.page(block).set_order(3);
    assert_eq!(f.check(), Err(FrameError::Block(block)));
    m.vm.page(block).set_order(MAX_ORDER);
    f.domains[0].uncached.fetch_add(1, Ordering::Relaxed);
    assert_eq!(f.check(), Err(FrameError::Count(0)));
    f.domains[0].uncached.fetch_sub(1, Ordering::Relaxed);
    assert_eq!(f.check(), Ok(()));
    mine.into_iter().for_each(|p| m.vm.return_frame(p));
    m.vm.drain_magazines();
    assert_eq!(f.check(), Ok(()));
}

#[test]
fn a_cpu_takes_from_its_own_domain_and_frees_go_home() {
    let m = system(8192, 4, 2, 0);
    let f = m.vm.frames();
    let free = [f.free_in(0), f.free_in(1)];
    let mut mine = Vec::new();
    for cpu in 0..4 {
        on(cpu);
        let frames = take(&m, 600, For::User);
        assert!(frames.iter().all(|p| m.vm.page(p.pfn()).domain() as usize == cpu % 2), "CPU {cpu} takes near frames");
        mine.extend(frames);
    }
    // One CPU frees all of them.
    on(0);
    mine.into_iter().for_each(|p| m.vm.return_frame(p));
    assert_eq!(f.check(), Ok(()));
    m.vm.drain_magazines();
    assert_eq!([f.free_in(0), f.free_in(1)], free);

    // The request is for more than the CPU's own domain has.
    let most = free[0] as usize + 1000;
    let mine = take(&m, most, For::User);
    let far = mine.iter().filter(|p| m.vm.page(p.pfn()).domain() == 1).count();
    assert!((990..=1000 + 2 * CHAIN as usize).contains(&far), "{far} from the next domain");
    assert_eq!(f.check(), Ok(()));
    mine.into_iter().for_each(|p| m.vm.return_frame(p));
    m.vm.drain_magazines();
    assert_eq!([f.free_in(0), f.free_in(1)], free);
    assert_eq!(f.check(), Ok(()));
}

#[test]
fn no_block_spans_two_domains() {
    let m = system(8192, 2, 3, 0);
    let blocks: Vec<Frame> = core::iter::from_fn(|| m.vm.alloc_run(9, For::Kernel).ok()).collect();
    for b in &blocks {
        let first = b.pfn().0;
        assert!((first..first + 512).all(|i| m.vm.page(Pfn(i)).domain() == m.vm.page(b.pfn()).domain()));
    }
    blocks.into_iter().for_each(|b| m.vm.return_run(b, 9));
    assert_eq!(m.vm.frames().check(), Ok(()));
}

#[test]
fn stocked_zeroed_frames_go_first_and_return_when_memory_is_short() {
    let m = system(4096, 1, 1, 100);
    assert!(m.vm.idle_zero(30) && m.vm.zero_stock() == 30);
    while m.vm.idle_zero(64) {}
    assert_eq!(m.vm.zero_stock(), 100);
    assert_eq!(m.vm.frames().check(), Ok(()));
    let frame = m.vm.alloc_frame(Fill::Zeroed, For::User).unwrap();
    assert_eq!(m.vm.zero_stock(), 99);
    // SAFETY: the frame was allocated by this test, and its RAM is valid for a page.
    let bytes = unsafe { core::slice::from_raw_parts(m.vm.machine().frame_ptr(frame.pfn()), PAGE_SIZE as usize) };
    assert!(bytes.iter().all(|b| *b == 0));
    m.vm.return_frame(frame);

    let all = m.vm.frames().free();
    let mine: Vec<Frame> = core::iter::from_fn(|| m.vm.alloc_frame(Fill::Any, For::User).ok()).collect();
    assert!(mine.len() as u64 >= all - m.vm.frames().reserve(), "the stock is memory like any other");
    assert_eq!(m.vm.zero_stock(), 0);
    assert!(!m.vm.idle_zero(10), "nothing is zeroed while memory is low");
    mine.into_iter().for_each(|f| m.vm.return_frame(f));
    m.vm.drain_magazines();
    assert_eq!(m.vm.frames().check(), Ok(()));
    assert!(!system(4096, 1, 1, 0).vm.idle_zero(10), "the stock is off");
}

#[test]
#[should_panic(expected = "a store was made into free frame")]
fn a_store_into_a_zeroed_frame_of_the_stock_is_found() {
    let m = system(4096, 1, 1, 100);
    m.vm.idle_zero(1);
    for page in m.vm.described().filter(|page| page.kind() == FrameKind::Cached) {
        let p = m.vm.pfn_of_page(page);
        // SAFETY: the frame is RAM, so the pointer is valid. The test stores into a free frame on purpose.
        unsafe { m.vm.machine().frame_ptr(p).add(77).write(1) };
    }
    let _frame = m.vm.alloc_frame(Fill::Zeroed, For::User).map(Frame::into_pfn);
}

#[test]
fn a_cpu_takes_what_others_keep_and_returns_what_it_took_of_the_reserve() {
    let m = system(8192, 4, 1, 0);
    let f = m.vm.frames();
    // The other CPUs have freed many frames, and keep some of them.
    let theirs: Vec<Vec<Frame>> = (1..4)
        .map(|cpu| {
            on(cpu);
            take(&m, 1000, For::User)
        })
        .collect();
    theirs.into_iter().zip(1..).for_each(|(frames, cpu)| {
        on(cpu);
        frames.into_iter().for_each(|p| m.vm.return_frame(p));
    });
    on(0);
    let all = f.free();
    let mine: Vec<Frame> = core::iter::from_fn(|| m.vm.alloc_frame(Fill::Any, For::User).ok()).collect();
    assert!(mine.len() as u64 >= all - f.reserve(), "{} of {all}", mine.len());
    assert!(f.is_low());
    // Frames of the reserve return to the depot, not to a magazine, where programs would find them.
    on(1);
    let own = take(&m, 5, For::Kernel);
    assert_eq!(f.uncached(), f.reserve() - 5);
    own.into_iter().for_each(|p| m.vm.return_frame(p));
    assert_eq!(f.uncached(), f.reserve());
    on(0);
    assert_eq!(m.vm.alloc_frame(Fill::Any, For::User).map(Frame::into_pfn), Err(OutOfMemory));
    mine.into_iter().for_each(|p| m.vm.return_frame(p));
    assert!(!f.is_low());
}

#[test]
fn frames_in_a_depot_of_one_group_serve_the_other_at_last() {
    for (keeps, wants) in [(For::Kernel, For::User), (For::User, For::Kernel)] {
        let m = system(2048, 1, 1, 0);
        let f = m.vm.frames();
        let most = (f.free() - f.reserve()) as usize;
        let frames = take(&m, most, keeps);
        frames.into_iter().for_each(|p| m.vm.return_frame(p));
        assert!(f.domains[0].chains.load(Ordering::Relaxed) != 0, "the depot keeps chains");
        let frames = take(&m, most, wants);
        assert_eq!(f.check(), Ok(()));
        let stalls = m.vm.stats().total(Event::AllocStall);
        assert!(stalls <= 1, "frames of all CPUs were collected {stalls} times");
        frames.into_iter().for_each(|p| m.vm.return_frame(p));
        m.vm.drain_magazines();
        assert_eq!(f.check(), Ok(()));
    }
}

#[test]
fn a_program_leaves_the_kernel_its_reserve() {
    for freed_before in [false, true] {
        let m = system(4096, 1, 1, 0);
        let f = m.vm.frames();
        if freed_before {
            // These frees make full chains of programs' frames.
            let frames = take(&m, 3000, For::User);
            frames.into_iter().for_each(|p| m.vm.return_frame(p));
        }
        let mine: Vec<Frame> = core::iter::from_fn(|| m.vm.alloc_frame(Fill::Any, For::User).ok()).collect();
        let kernels = take(&m, 60, For::Kernel);
        assert!(mine.len() as u64 >= f.total() - f.reserve() - 60, "{}", mine.len());
        mine.into_iter().chain(kernels).for_each(|p| m.vm.return_frame(p));
    }
}

#[test]
fn chains_are_broken_up_near_the_cpu_that_asks() {
    let m = system(8192, 2, 2, 0);
    let f = m.vm.frames();
    let chains = |domain: usize| f.domains[domain].chains.load(Ordering::Relaxed);
    for cpu in [0, 1] {
        on(cpu);
        let frames = take(&m, 1000, For::Kernel);
        frames.into_iter().for_each(|p| m.vm.return_frame(p));
    }
    let before = [chains(0), chains(1)];
    assert!(before.iter().all(|n| *n > 1), "{before:?}");
    assert!(f.break_one());
    assert_eq!([chains(0), chains(1)], [before[0], before[1] - 1]);
    on(0);
    assert!(f.break_one());
    assert_eq!([chains(0), chains(1)], [before[0] - 1, before[1] - 1]);
    assert_eq!(f.check(), Ok(()));
}

#[test]
fn an_idle_cpu_that_finds_nothing_but_its_own_stock_keeps_it() {
    let m = system(2048, 1, 1, 100);
    let f = m.vm.frames();
    let frames = take(&m, 1000, For::Kernel);
    assert!(m.vm.idle_zero(10) && m.vm.zero_stock() == 10);
    frames.into_iter().for_each(|p| m.vm.return_frame(p));
    // The loop ends when the depots have only chains of kernel frames, and this CPU only has its stock.
    let stack = || f.magazines.of(0).local.lock().stacks[Group::User as usize].iter().map(|c| c.len).sum::<u32>();
    let in_chains = || f.domains[0].chains.load(Ordering::Relaxed) as u64 * f.chain(Group::Kernel) as u64;
    let mut mine = Vec::new();
    while f.uncached() > in_chains() || stack() != 0 {
        mine.extend(take(&m, 1, For::User));
    }
    assert!(in_chains() != 0 && !f.is_low());
    for _ in 0..3 {
        m.vm.idle_zero(1);
        assert_eq!(f.check(), Ok(()));
    }
    mine.into_iter().for_each(|p| m.vm.return_frame(p));
    m.vm.drain_magazines();
    assert_eq!(f.check(), Ok(()));
}

#[test]
fn the_daemon_is_woken_once_when_memory_gets_low() {
    let m = system(4096, 1, 1, 0);
    let f = m.vm.frames();
    let woken = std::sync::Arc::new(AtomicBool::new(false));
    let (send, receive) = std::sync::mpsc::channel();
    let seen = woken.clone();
    let daemon = std::thread::spawn(move || {
        send.send(quire_sync::hooks::current_thread()).unwrap();
        quire_sync::hooks::park(None);
        seen.store(true, Ordering::Release);
    });
    f.wake_when_low(Some(receive.recv().unwrap()));
    let enough = take(&m, (f.free() - f.marks(0).low - 2 * CHAIN as u64) as usize, For::User);
    assert!(!f.is_low() && !woken.load(Ordering::Acquire));
    let rest = take(&m, 2 * CHAIN as usize, For::User);
    assert!(f.is_low());
    daemon.join().unwrap();
    assert!(woken.load(Ordering::Acquire));
    f.wake_when_low(None);
    enough.into_iter().chain(rest).for_each(|p| m.vm.return_frame(p));
}

#[test]
fn contiguous_frames_are_where_they_were_asked_for() {
    let m = system(8192, 1, 2, 0);
    let f = m.vm.frames();
    // In one part of memory, every seventh frame stays allocated.
    let busy: Vec<Frame> = take(&m, 3000, For::Kernel);
    let (keep, free): (Vec<_>, Vec<_>) = busy.into_iter().partition(|p| p.pfn().0 % 7 == 0);
    free.into_iter().for_each(|p| m.vm.return_frame(p));
    let before = f.free();
    let mut mine = Vec::new();
    for (count, align, start, end) in [
        (1, 1, 0, 8192),
        (6, 1, 0, 8192),
        (5, 4, 0, 8192),
        (100, 64, 2000, 6000),
        (1500, 1, 0, 8192),
        (3, 2, 4000, 4090),
    ] {
        let within = PhysRange { start: Pfn(start), end: Pfn(end) };
        let frame = m.vm.alloc_contiguous(Contiguous { count, align, within }, For::Kernel).unwrap();
        let first = frame.pfn().0;
        assert!(first.is_multiple_of(align) && first >= start && first + count <= end);
        let domain = m.vm.page(frame.pfn()).domain();
        for i in first..first + count {
            assert_eq!((m.vm.page(Pfn(i)).kind(), m.vm.page(Pfn(i)).domain()), (FrameKind::Unowned, domain));
        }
        assert!(!keep.iter().any(|p| (first..first + count).contains(&p.pfn().0)));
        assert_eq!(f.check(), Ok(()));
        mine.push((frame, count));
    }
    let bad = |c: Contiguous| m.vm.alloc_contiguous(c, For::Kernel).map(Frame::into_pfn);
    assert_eq!(bad(Contiguous::anywhere(0)), Err(OutOfMemory));
    assert_eq!(bad(Contiguous { align: 3, ..Contiguous::anywhere(1) }), Err(OutOfMemory));
    assert_eq!(bad(Contiguous { align: 1 << 63, ..Contiguous::anywhere(1) }), Err(OutOfMemory));
    assert_eq!(bad(Contiguous::anywhere(u64::MAX)), Err(OutOfMemory));
    mine.into_iter().for_each(|(p, count)| m.vm.return_contiguous(p, count));
    assert_eq!(f.free(), before);
    keep.into_iter().for_each(|p| m.vm.return_frame(p));
    m.vm.drain_magazines();
    assert_eq!(f.check(), Ok(()));
}

#[test]
fn more_frames_than_can_be_counted_are_refused() {
    let m = system(512, 1, 1, 0);
    for count in [513, u64::MAX - 1, u64::MAX] {
        for on_behalf in [For::User, For::Kernel] {
            let want = Contiguous::anywhere(count);
            let refused = m.vm.alloc_contiguous_reclaiming(want, on_behalf, &mut crate::sleep::MaySleep::here());
            assert_eq!(refused.map(Frame::into_pfn), Err(crate::error::OutOfMemory));
        }
    }
}

#[test]
fn frames_of_the_reserve_reach_no_request_that_may_not_use_it() {
    on(0);
    let m = system(512, 1, 1, 0);
    let become_one = |standing| *m.vm.machine().standing.lock().unwrap() = (standing, false);
    become_one(Standing::Program);
    let mut taken: Vec<_> = core::iter::from_fn(|| m.vm.alloc_frame(Fill::Any, For::User).ok()).collect();
    assert_eq!(m.vm.frames().free(), 64);
    for round in 0..3 {
        become_one(Standing::Administrator);
        let own = [For::User, For::Table, For::Kernel].map(|what| m.vm.alloc_frame(Fill::Any, what).unwrap());
        become_one(Standing::Program);
        for what in [For::User, For::Table, For::Kernel] {
            assert!(m.vm.alloc_frame(Fill::Any, what).is_err(), "{what:?} beside the rest of a chain, round {round}");
        }
        // The frames return to the reserve.
        own.into_iter().for_each(|frame| m.vm.return_frame(frame));
        for what in [For::User, For::Table, For::Kernel] {
            assert!(m.vm.alloc_frame(Fill::Any, what).is_err(), "{what:?} after a free, round {round}");
        }
        assert_eq!(m.vm.frames().free(), 64);
    }
    // Two frames more than the reserve are for all.
    (0..2).for_each(|_| m.vm.return_frame(taken.pop().unwrap()));
    assert!(m.vm.alloc_frame(Fill::Any, For::User).map(|frame| taken.push(frame)).is_ok());
    taken.into_iter().for_each(|frame| m.vm.return_frame(frame));
    assert_eq!(m.vm.frames().check(), Ok(()));
}

#[test]
fn standings_share_the_reserve_out() {
    on(0);
    // For each standing of a thread: the frames that are left when its request for data is refused, and when one for
    // kernel structures is.
    for (standing, ends, data, structures) in [
        (Standing::Program, false, 64, 64),
        (Standing::Administrator, false, 48, 32),
        (Standing::System, false, 64, 32),
        (Standing::Program, true, 64, 0),
        (Standing::System, true, 64, 0),
    ] {
        for runs in [false, true] {
            let m = system(512, 1, 1, 0);
            *m.vm.machine().standing.lock().unwrap() = (standing, ends);
            let mut taken = Vec::new();
            for (on_behalf, left) in [(For::User, data), (For::Kernel, structures)] {
                let next = || match runs {
                    true => m.vm.alloc_run(0, on_behalf),
                    false => m.vm.alloc_frame(Fill::Any, on_behalf),
                };
                taken.extend(core::iter::from_fn(|| next().ok()));
                assert_eq!(m.vm.frames().free(), left, "{standing:?}, {on_behalf:?}, ends: {ends}, runs: {runs}");
            }
            taken.into_iter().for_each(|frame| m.vm.return_frame(frame));
        }
    }
}
