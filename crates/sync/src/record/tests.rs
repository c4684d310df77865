//! Records of small protocols have exactly the expected accesses.

use super::*;
use crate::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering, fence_full};
use crate::{CachePadded, CpuSet, Mutex, Rank, SpinLock};

/// The record in words, without addresses: CPU, kind, the name of the place from `words`, and size.
fn said(record: &Record, words: &[(&str, *const u8)]) -> Vec<String> {
    let name = |a: &Access| words.iter().find(|(_, p)| p.addr() == a.address).map_or("?", |(n, _)| n);
    let kind = |a: &Access| match a.kind {
        AccessKind::Read => "reads",
        AccessKind::Write => "writes",
        AccessKind::ReadModifyWrite => "changes",
        AccessKind::Fence => "fences",
        AccessKind::Take(_) => "takes",
        AccessKind::Release(_) => "releases",
    };
    record.accesses().iter().map(|a| format!("{} {} {} {}", a.cpu, kind(a), name(a), a.size)).collect()
}

#[test]
fn the_longest_hold_is_that_of_one_cpu_and_one_rank() {
    let (short, long, other) =
        (SpinLock::new(Rank::of_test(7), 0), SpinLock::new(Rank::of_test(7), 0), SpinLock::new(Rank::of_test(9), 0));
    let word = AtomicU64::new(0);
    let ((), record) = scope(|| {
        as_cpu(1, || *short.lock() = 1);
        as_cpu(2, || {
            let guard = long.lock();
            (0..5).for_each(|n| word.store(n, Ordering::Relaxed));
            // Accesses of another CPU during the hold do not count.
            as_cpu(3, || (0..100).for_each(|n| word.store(n, Ordering::Relaxed)));
            drop(guard);
            (0..50).for_each(|n| word.store(n, Ordering::Relaxed));
            *other.lock() = 1;
        });
    });
    assert_eq!([7, 9, 11].map(|r| record.longest_hold(Rank::of_test(r))), [5, 1, 0]);
}

#[test]
fn a_message_passed_under_a_lock_is_recorded_step_by_step() {
    struct Channel {
        lock: SpinLock<u32>,
        ready: AtomicBool,
    }
    let c = Channel { lock: SpinLock::new(Rank::of_test(7), 0), ready: AtomicBool::new(false) };
    let value: *const u8 = unsafe_free_address(&c.lock);
    let ((), record) = scope(|| {
        as_cpu(1, || {
            *c.lock.lock() = 5;
            fence_full();
            c.ready.store(true, Ordering::Release);
        });
        as_cpu(2, || {
            assert!(c.ready.swap(false, Ordering::Acquire));
            assert_eq!(*c.lock.lock(), 5);
        });
    });
    let held = record.accesses()[0].address as *const u8;
    let ready = (&raw const c.ready).cast();
    let expected = [
        "1 changes held 1",
        "1 takes held 0",
        "1 writes value 4",
        "1 releases held 0",
        "1 writes held 1",
        "1 fences ? 0",
        "1 writes ready 1",
        "2 changes ready 1",
        "2 changes held 1",
        "2 takes held 0",
        "2 reads value 4",
        "2 releases held 0",
        "2 writes held 1",
    ];
    assert_eq!(said(&record, &[("held", held), ("ready", ready), ("value", value)]), expected);
    assert_eq!(record.lock_takes(), 2);
    assert_eq!(record.lock_takes_by_rank(), [(Some(Rank::of_test(7)), 2)].into());
    assert_eq!(record.of(1).lock_takes(), 1);
    assert_eq!(record.fences(), 1);
    assert!(record.accesses().iter().all(|a| a.site.file().ends_with("record/tests.rs")
        || a.kind == AccessKind::Release(Some(Rank::of_test(7)))
        || a.address == held.addr()));
}

/// The address of a lock's value.
fn unsafe_free_address<T>(lock: &SpinLock<T>) -> *const u8 {
    unrecorded(|| core::ptr::from_ref(&*lock.lock()).cast())
}

#[test]
fn a_line_conflicts_if_one_cpu_writes_and_another_touches_it() {
    #[derive(Default)]
    struct Counters {
        apart: [CachePadded<AtomicU64>; 2],
        together: CachePadded<[AtomicU64; 2]>,
        read: CachePadded<AtomicU64>,
    }
    let c = Counters::default();
    own((&raw const c.together).cast(), size_of_val(&c.together), "together");
    let ((), record) = scope(|| {
        for cpu in 0..2 {
            as_cpu(cpu, || {
                c.apart[cpu].fetch_add(1, Ordering::Relaxed);
                c.together[cpu].fetch_add(1, Ordering::Relaxed);
                c.read.load(Ordering::Relaxed);
            });
        }
    });
    let conflicts = record.conflicts();
    assert_eq!(conflicts.len(), 1, "{record}");
    assert_eq!(conflicts[0].label(), "together");
    assert_eq!(conflicts[0].writers, [0, 1].into());
    assert_eq!(conflicts[0].accesses[1].place.map(|p| p.offset), Some(8));
    assert!(conflicts[0].to_string().contains("CPU 1 changes 8 at together+8"), "{}", conflicts[0]);
    assert_eq!((record.lines(), record.lines_written()), (4, 3));
    disown((&raw const c.together).cast());
    let ((), record) = scope(|| c.together[0].store(0, Ordering::Relaxed));
    assert_eq!(record.accesses()[0].place, None);
}

#[test]
fn lines_move_to_writers_and_stay_with_readers() {
    let word = CachePadded(AtomicU64::new(0));
    let touch = |cpu, write| {
        scope(|| {
            as_cpu(cpu, || {
                if write {
                    word.store(1, Ordering::Relaxed);
                } else {
                    word.load(Ordering::Relaxed);
                }
            })
        })
        .1
    };
    let mut c = Coherence::new();
    let mut cost = |cpu, write| c.run(&touch(cpu, write));
    let (cold, transfer, upgrade, none) = (
        Traffic { cold: 1, ..Traffic::default() },
        Traffic { transfers: 1, ..Traffic::default() },
        Traffic { upgrades: 1, ..Traffic::default() },
        Traffic::default(),
    );
    assert_eq!(cost(0, true), cold);
    assert_eq!(cost(0, true), none);
    assert_eq!(cost(1, false), transfer);
    assert_eq!(cost(0, false), none);
    assert_eq!(cost(1, true), upgrade);
    assert_eq!(cost(0, true), transfer);
    assert_eq!(c.modified(), 1);
}

#[test]
fn threads_share_a_record_that_they_enter_and_no_other() {
    let word = AtomicU64::new(0);
    let ((), record) = scope(|| {
        let recorder = current().unwrap();
        std::thread::scope(|s| {
            s.spawn(|| recorder.enter(|| as_cpu(3, || word.fetch_add(1, Ordering::Relaxed))));
            s.spawn(|| word.fetch_add(1, Ordering::Relaxed));
        });
        unrecorded(|| word.load(Ordering::Relaxed));
    });
    assert_eq!(record.accesses().iter().map(|a| a.cpu).collect::<Vec<_>>(), [3]);
}

#[test]
fn an_outer_scope_has_the_accesses_of_inner_scopes() {
    let word = AtomicU64::new(0);
    let (inner, outer) = scope(|| {
        word.load(Ordering::Relaxed);
        scope(|| word.store(1, Ordering::Relaxed)).1
    });
    assert_eq!((inner.accesses().len(), outer.accesses().len()), (1, 2));
}

#[test]
fn a_sleeping_lock_is_one_take_and_a_guard_is_one_line() {
    let m = Mutex::new([0u64; 100]);
    let ((), record) = scope(|| m.lock()[99] = 1);
    assert_eq!(record.lock_takes_by_rank(), [(None, 1)].into());
    let large = SpinLock::new(Rank::of_test(1), [0u64; 100]);
    let ((), record) = scope(|| large.lock()[99] = 1);
    let write = record.accesses().iter().find(|a| a.kind == AccessKind::Write).unwrap();
    assert_eq!(write.lines().count(), 1);
}

#[test]
fn owning_memory_again_replaces_its_label() {
    let memory = [0u8; 256];
    let at = memory.as_ptr();
    let label = |offset: usize| labels::find(at.addr() + offset).map(|p| (p.label, p.offset));
    own_array(at, 256, 64, "quarter");
    assert_eq!((label(0), label(130)), (Some(("quarter", 0)), Some(("quarter", 2))));
    own(at.wrapping_add(64), 64, "inner");
    assert_eq!((label(70), label(0), label(128)), (Some(("inner", 6)), None, None));
    disown(at.wrapping_add(64));
    assert_eq!(label(70), None);
}

// The types have the same layouts in this build as in the native build.
crate::assert_layout!(AtomicU64 { size: 8, align: 8 });
crate::assert_layout!(AtomicPtr<u8> { size: 8, align: 8 });
crate::assert_layout!(CpuSet { size: 32, align: 8 });
