//! Tests of passes over the backings of an object, on the test machine.

use crate::content::RangeCounts;
use crate::map::Space;
use crate::object::ObjectRef;
use crate::stats::FaultKind;
use crate::testing::{TestMachine, page};
use crate::tests::{load, range, settled, show, store, system};
use crate::types::{Access, PAGE_SIZE, Prot};

fn filled(vm: &'static crate::Vm<TestMachine>, pages: u64) -> ObjectRef<TestMachine> {
    let file = ObjectRef::anonymous(vm, pages).unwrap();
    for n in 0..pages {
        file.write(n * PAGE_SIZE, 1, &mut |b| -> Result<_, ()> { Ok(b.len()) }).unwrap();
    }
    file
}

#[test]
fn a_reference_by_any_mapping_is_seen_once_and_cleared_in_all() {
    let m = system();
    let file = filled(m.vm, 200);
    let (a, b) = (Space::new(m.vm).unwrap(), Space::new(m.vm).unwrap());
    show(&a, 0, 200, &file, true);
    show(&b, 300, 200, &file, false);
    file.take_referenced(0..200);
    assert_eq!(file.query_range(0..200), RangeCounts { resident: 200, mapped: 0, referenced: 0, dirty: 200 });
    for n in [0, 63, 64, 130] {
        a.fault(page(n), Access::Write).unwrap();
        b.fault(page(300 + n), Access::Read).unwrap();
    }
    b.unmap(range(300 + 130, 1)).unwrap();
    let seen = file.query_range(0..200);
    assert!(seen.referenced >= 4 && seen.referenced == seen.mapped, "{seen:?}");
    assert_eq!(file.query_range(100..200).mapped, file.take_referenced(100..200));
    assert_eq!(file.take_referenced(0..100), seen.referenced - file.query_range(100..200).mapped);
    assert_eq!(file.query_range(0..200).referenced, 0);
    assert_eq!(a.fault(page(63), Access::Read), Ok(FaultKind::Spurious));
    assert_eq!(file.take_referenced(0..200), 1, "a fault says that the page was referenced");
}

#[test]
fn write_protection_makes_stores_of_every_space_fault() {
    let m = system();
    let file = filled(m.vm, 100);
    let (a, b) = (Space::new(m.vm).unwrap(), Space::new(m.vm).unwrap());
    show(&a, 0, 100, &file, true);
    show(&b, 100, 100, &file, true);
    for n in 0..100 {
        store(&a, page(n), 1);
        store(&b, page(100 + n), 2);
    }
    let _proof = file.write_protect(10..90);
    for n in 0..100 {
        let keeps = !(10..90).contains(&n);
        for (space, n) in [(&a, n), (&b, 100 + n)] {
            assert_eq!(space.pmap().peek(page(n)).unwrap().prot.contains(Prot::WRITE), keeps);
            assert!(
                keeps || space.pmap().cached(page(n)).all(|l| !l.prot.contains(Prot::WRITE)),
                "a TLB allows stores"
            );
        }
    }
    assert_eq!(file.query_range(0..100).dirty, 100);
    store(&b, page(150), 3);
    assert_eq!(load(&a, page(50)), 3);
}

#[test]
fn a_thousand_mappings_add_no_memory_to_a_page() {
    let m = system();
    let file = filled(m.vm, 1);
    let space = Space::new(m.vm).unwrap();
    for n in 0..1000 {
        show(&space, n, 1, &file, n % 2 == 0);
    }
    let once = {
        load(&space, page(0));
        settled(m.vm)
    };
    for n in 0..1000 {
        load(&space, page(n));
    }
    assert_eq!(space.stats().resident_pages, 1000);
    assert_eq!(settled(m.vm), once, "frames for 999 more mappings of a page");
    file.set_size(0);
    assert_eq!(space.stats().resident_pages, 0, "the page is found in all of them");
}

#[test]
fn a_contended_list_has_one_shard_again_once_it_is_short() {
    let m = system();
    let before = settled(m.vm);
    {
        let file = ObjectRef::anonymous(m.vm, 4).unwrap();
        file.write(0, 1, &mut |b| -> Result<_, ()> {
            b.copy_from(&[1]);
            Ok(1)
        })
        .unwrap();
        for round in 0..3 {
            let spaces: Vec<_> = (0..20)
                .map(|n| {
                    if n == 10 {
                        file.shards().widen(m.vm);
                    }
                    quire_sync::hooks::threads::set_cpu(n % 2);
                    let space = Space::new(m.vm).unwrap();
                    show(&space, 0, 4, &file, true);
                    assert_eq!(load(&space, page(0)), 1);
                    space
                })
                .collect();
            quire_sync::hooks::threads::set_cpu(0);
            assert!(file.shards().is_wide(), "round {round}");
            file.check(true).unwrap();
            let mut spaces = spaces;
            assert_eq!(file.query_range(0..4).mapped, 1);
            spaces.drain(..10);
            assert!(file.shards().is_wide(), "while it is long");
            spaces.drain(..5);
            assert!(file.shards().is_wide(), "without scans the shards stay");
            assert_eq!(file.query_range(0..4).mapped, 1);
            // If CPUs have shards of their own, only one of two unlinkings checks whether the shards must close. So
            // unlink two backings.
            spaces.drain(..2);
            assert!(!file.shards().is_wide(), "round {round}");
            file.check(true).unwrap();
            // The pass finds the mapping of a CPU that has changed its shard.
            assert_eq!(file.query_range(0..4).mapped, 1);
            file.discard(0..1);
            spaces.iter().for_each(|s| assert_eq!(s.pmap().peek(page(0)), None));
            file.write(0, 1, &mut |b| -> Result<_, ()> {
                b.copy_from(&[1]);
                Ok(1)
            })
            .unwrap();
        }
    }
    assert_eq!(settled(m.vm), before);
}

#[test]
fn cpus_that_alternate_in_a_shard_get_their_own_shards() {
    let set_cpu = quire_sync::hooks::threads::set_cpu;
    set_cpu(0);
    let m = crate::testing::boot(4096, 16);
    let before = settled(m.vm);
    for file_last in [false, true] {
        let file = ObjectRef::anonymous(m.vm, 4).unwrap();
        file.write(0, 1, &mut |b| -> Result<_, ()> { Ok(b.len()) }).unwrap();
        let mut spaces: Vec<_> = (0..20)
            .map(|n| {
                if n == 10 {
                    file.shards().widen(m.vm);
                }
                // CPUs 0 and 15 use the same shard, until CPUs get shards of their own.
                set_cpu(if n % 2 == 0 { 0 } else { 15 });
                let space = Space::new(m.vm).unwrap();
                show(&space, 0, 4, &file, true);
                space
            })
            .collect();
        set_cpu(0);
        assert!(file.shards().has_own());
        file.check(true).unwrap();
        // The pass visits CPUs' own shards too. No space has faulted yet, so it finds no leaf.
        assert_eq!(file.query_range(0..4).mapped, 0);
        spaces.drain(..13);
        assert!(file.shards().is_wide(), "while it is long");
        file.check(true).unwrap();
        if file_last {
            drop(spaces);
            drop(file);
        } else {
            drop(file);
            drop(spaces);
        }
        assert_eq!(settled(m.vm), before, "with the file last: {file_last}");
    }
}

#[test]
fn alternating_cpus_fan_a_short_list_out_until_a_scan() {
    let set_cpu = quire_sync::hooks::threads::set_cpu;
    let m = system();
    set_cpu(0);
    let before = settled(m.vm);
    {
        let file = ObjectRef::anonymous(m.vm, 4).unwrap();
        file.write(0, 1, &mut |b| -> Result<_, ()> { Ok(b.len()) }).unwrap();
        let exec = |cpu| {
            set_cpu(cpu);
            let space = Space::new(m.vm).unwrap();
            show(&space, 0, 4, &file, true);
            load(&space, page(0));
        };
        (0..1000).for_each(|_| exec(0));
        assert!(!file.shards().is_wide(), "one CPU contends with no other");
        for _ in 0..40 {
            (0..8).for_each(|n| exec(n % 2));
            assert_eq!(file.query_range(0..4).mapped, 0);
        }
        assert!(!file.shards().is_wide(), "with so many scans, shards would cost more than turns");
        let kept = Space::new(m.vm).unwrap();
        show(&kept, 0, 4, &file, true);
        (0..100).for_each(|n| exec(n % 2));
        assert!(file.shards().is_wide() && file.shards().has_own());
        load(&kept, page(0));
        file.check(true).unwrap();
        for n in 0..200 {
            assert_eq!(file.query_range(0..4).mapped, 1, "scan {n}");
        }
        assert!(!file.shards().is_wide(), "scans alone close the shards");
        file.check(true).unwrap();
        set_cpu(0);
    }
    assert_eq!(settled(m.vm), before);
}

#[test]
fn a_scan_sees_parts_that_open_while_it_looks_at_the_first() {
    let m = system();
    quire_sync::hooks::threads::set_cpu(0);
    let file = ObjectRef::anonymous(m.vm, 4).unwrap();
    let [one, other] = [(); 2].map(|()| Space::new(m.vm).unwrap());
    show(&one, 0, 4, &file, true);
    let mut met = 0;
    let _all = file.search(0, 4, |_| {
        met += 1;
        if met == 1 {
            file.shards().widen(m.vm);
            let links = || {
                quire_sync::hooks::threads::set_cpu(1);
                show(&other, 0, 4, &file, true);
            };
            std::thread::scope(|s| s.spawn(links).join().unwrap());
        }
        std::ops::ControlFlow::<()>::Continue(())
    });
    assert_eq!(met, 2, "the scan must visit the shard that opened during it");
}
