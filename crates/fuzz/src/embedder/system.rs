//! Calls on the memory systems themselves: frames, kernel addresses, pageout, daemons, counts, checks.
#![forbid(unsafe_code)]

use super::pagers::{Blank, Keeper, Late};
use super::player::Player;
use super::world::Run;
use super::{Operation, inside};
use core::alloc::Layout;
use quire_vm::check::Level;
use quire_vm::frame_info::{FrameInfo, Mappings};
use quire_vm::map::CommitCharge;
use quire_vm::phys::frames::Fill;
use quire_vm::reclaim::daemon::Daemon;
use quire_vm::sleep::MaySleep;
use quire_vm::stats::Event;
use quire_vm::types::Queue;
use quire_vm::{FaultKind, MapError, PAGE_SIZE, Pfn, Phys, Prot};

pub const OPERATIONS: &[Operation] = &[
    ("take a frame", |p| {
        let (vm, fill, behalf) = (p.vm(), p.one_of(&[Fill::Any, Fill::Zeroed]), p.behalf());
        if let Ok(frame) = vm.alloc_frame(fill, behalf) {
            let at = vm.machine().frame_ptr(frame.pfn());
            assert_eq!(vm.machine().pfn_of(at), frame.pfn());
            match p.below(8) {
                0 => inside::free_by_number(vm, frame),
                _ => p.keep_frame(frame),
            }
        }
    }),
    ("free a frame", |p| p.free_one()),
    ("take frames", |p| {
        let ((n, vm), behalf) = (p.system(), p.behalf());
        let order = if p.below(8) == 0 { p.input.byte() } else { p.below(6) as u8 };
        match p.below(3) {
            0 => {
                if let Ok(first) = vm.alloc_run(order, behalf) {
                    p.keep_run(n, first, Run::Aligned(order));
                }
            }
            kind => {
                let want = p.contiguous();
                let taken = match kind {
                    1 => vm.alloc_contiguous(want, behalf),
                    _ => vm.alloc_contiguous_reclaiming(want, behalf, &mut MaySleep::here()),
                };
                if let Ok(first) = taken {
                    p.keep_run(n, first, Run::Contiguous(want.count));
                }
            }
        }
    }),
    ("drain", |p| {
        let vm = p.vm();
        match p.below(10) {
            8 => inside::requeue(vm, p.one_of(&Queue::ALL), p.one_of(&Queue::ALL), p.below(4) as usize),
            0 => vm.drain_caches(),
            1 => vm.drain_magazines(),
            2 => vm.drain_own_queue_batch(),
            3 => vm.drain_queue_batches(),
            4 => vm.queues().drain_batches(),
            5 => drop(vm.idle_zero(p.below(8) as u32)),
            6 => vm.give_back_kept(),
            7 => vm.settle(&mut MaySleep::here()),
            _ => vm.epoch().drain(),
        }
    }),
    ("pageout", |p| {
        let vm = p.vm();
        match p.below(6) {
            0 => drop(vm.wait_for_frames()),
            1 => vm.finish_io(&mut MaySleep::here()),
            2 => {
                let budget = p.input.long();
                while vm.reapable() && vm.reap(budget.max(1), &mut MaySleep::here()) != 0 {}
            }
            3 => vm.reclaim_from(&Keeper),
            4 => {
                let mut more = 3;
                let mut may = MaySleep::here();
                may.sleep_until(|| {
                    more -= 1;
                    more == 0
                });
                drop(may.pin(vm.epoch()));
            }
            _ => {
                // The daemons have been stopped, so `daemon_run` returns at once.
                vm.stop_daemons();
                vm.daemon_run(p.one_of(&[Daemon::Completion, Daemon::Pageout, Daemon::Reaper]));
            }
        }
    }),
    ("a second store", |p| {
        let ((_, vm), store) = (p.system(), p.world.swap);
        assert!(vm.add_swap(&Blank).is_err(), "swap is added twice");
        // Each success of `poll_with` uses up an entry of a table until the process ends, so this is tried rarely.
        if p.below(64) == 0 {
            assert!(vm.add_polled_swap(store).is_err(), "swap is added twice");
            let _full = vm.poll_with(&Late);
        }
    }),
    ("limit the commit charge", |p| {
        let commit_charge = p.vm().map_memory().commit_charge();
        let _racing = commit_charge.bytes();
        if p.alone {
            let limit = p.input.long();
            commit_charge.set_limit(limit);
            let (range, space) = (p.range(), p.space().1);
            let before = commit_charge.bytes();
            let done = space.protect(range, Prot::READ | Prot::WRITE);
            let within = commit_charge.bytes() <= before.max(commit_charge.limit());
            commit_charge.set_limit(CommitCharge::UNLIMITED);
            assert!(within, "{done:?}: charged more than {limit}");
        }
    }),
    ("fail an allocation", |p| {
        let vm = p.vm();
        match p.below(4) {
            0 => vm.fail_allocations(p.below(40) as u32, p.input.long()),
            1 => vm.fail_allocation(0),
            _ => vm.fail_allocation(p.below(20)),
        }
        let _racing = (vm.failure_is_pending(), vm.is_injected(), vm.inject_failure());
        vm.forget_injected();
    }),
    ("choose a level", |p| {
        let (vm, n) = (p.vm(), p.input.byte() % 4);
        if let Some(level) = Level::from_number(n) {
            vm.set_check_level(level);
            let _racing = vm.check_level();
        }
    }),
    ("check a system", |p| p.vm().check(false).unwrap_or_else(|broken| panic!("{broken}"))),
    ("count", count),
    ("a stack", |p| {
        let kernel = p.kernel();
        let range = match p.below(5) {
            0 | 1 => kernel.stack(),
            2 => kernel.stock().and_then(|()| kernel.last_stack().ok_or(MapError::NoSpace)),
            _ => kernel.buffer(if p.below(8) == 0 { p.input.long() } else { p.below(9) * PAGE_SIZE / 2 }),
        };
        if let Ok(range) = range {
            assert_ne!(range.range().len(), 0);
            p.ranges.push(range);
        }
    }),
    ("give a stack up", |p| {
        if !p.ranges.is_empty() {
            let n = p.input.below(p.ranges.len());
            let range = p.ranges.swap_remove(n);
            if p.flip() {
                p.kernel().put_by(range);
            }
        }
    }),
    ("look at a kernel's map", |p| {
        let kernel = p.kernel();
        match p.below(4) {
            0 => drop(kernel.settle()),
            1 => drop(kernel.reclaim()),
            2 => kernel.each(|range, _purpose, guard| assert!(!range.is_empty() && guard <= PAGE_SIZE)),
            _ => {
                let _racing = (kernel.generation(), kernel.visits_for_a_stack(), kernel.len());
                assert!(!kernel.is_empty());
                assert!(kernel.stack_bytes() < kernel.range().len());
            }
        }
    }),
];

/// Reads the counters of a system.
fn count(p: &mut Player<'_>) {
    let vm = p.vm();
    let frames = vm.frames();
    match p.below(5) {
        0 => {
            let domain = p.input.below(frames.domains());
            let _racing = (frames.free(), frames.free_in(domain), frames.large(), frames.is_low(), frames.lowest());
            let _racing = frames.is_scarce();
            let fixed = (frames.total(), frames.total_in(domain), frames.domains(), frames.reserve(), frames.floor());
            let span = vm.frame_span();
            assert!(fixed.0 <= span.end - span.start && span.end == vm.page_count());
            let (info, kept) = (frames.domain_info(domain), frames.cpu_frames(0));
            assert!(info.total == fixed.1 && info.span.end <= vm.page_count() && kept.domain < fixed.2);
        }
        1 => {
            let stats = vm.stats();
            let (event, kind) = (Event::ALL[p.input.below(Event::ALL.len())], p.input.below(FaultKind::ALL.len()));
            let kind = FaultKind::ALL[kind];
            assert!(!event.name().is_empty() && !kind.name().is_empty());
            let _racing = (stats.total(event), stats.faults(), stats.faults_of(kind), stats.table_pages());
            let _racing = (stats.shared_pages(), stats.stack_pages(), stats.buffer_pages());
            stats.count(Event::CheckVisit);
            stats.add(Event::CheckVisit, p.input.long());
        }
        2 => {
            for queue in Queue::ALL {
                let _racing = vm.queues().len(queue);
            }
            let _racing = (vm.swap().free(), vm.swap().total(), vm.io().writing(), vm.zero_stock());
            vm.queues().check(false).unwrap_or_else(|broken| panic!("{broken:?}"));
        }
        3 => {
            let (maps, objects) = (vm.map_memory().caches(), vm.object_memory().caches());
            for cache in maps.into_iter().chain(objects).chain(vm.heap().caches()) {
                assert!(!cache.label().is_empty() && cache.object_size() != 0 && cache.frames() <= frames.total());
                assert!(cache.share() >= cache.object_size() as u64);
            }
            let bytes = p.below(3 * PAGE_SIZE) as usize;
            if let Ok(layout) = Layout::from_size_align(bytes, 1 << p.below(8)) {
                assert!(vm.heap().share(layout) >= bytes as u64);
            }
        }
        _ => {
            let counts = p.world.swap.counts();
            assert!(counts.failed <= counts.reads + counts.writes);
            let _racing = vm.pageout().passes();
            let mut frames = 0;
            let _ended = vm.uses(|first, count, _frame_use| {
                for frame in [first, Pfn(u64::MAX)] {
                    let (info, mapped) = (vm.frame_info(frame), vm.mappings_of(frame));
                    assert!(info != FrameInfo::Unknown || mapped == Mappings::default(), "{frame:?} is mapped");
                }
                frames += count;
                if frames < 2000 { Ok(()) } else { Err(()) }
            });
        }
    }
}
