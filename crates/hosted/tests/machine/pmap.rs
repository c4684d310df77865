//! Page tables without a map, of each architecture: compared with a model of the expected leaves, and under concurrent
//! faults, removals and pruning.

use proptest::prelude::*;
use quire_hosted::{Cpu, Settings, Simulate, Simulated};
use quire_pmap::Tables;
use quire_vm::machine::Enter;
use quire_vm::phys::frames::{Fill, For, Frame};
use quire_vm::phys::page::{FrameKind, State};
use quire_vm::tlb::flush::Obligation;
use quire_vm::{Access, PAGE_SIZE, Pfn, Pmap, Prot, Table, VirtRange, Vm};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

type V<F> = &'static Vm<Simulated<F>>;

quire_hosted::of_each_architecture!(
    the_tables_hold_exactly_the_entered_leaves,
    a_table_page_that_owes_a_flush_is_not_pruned,
    tables_under_fire_with_tags,
    tables_under_fire_without_tags,
    a_lone_removal_in_a_space_without_cpus_is_flushed_at_once,
    a_lazy_cpu_is_not_interrupted_and_catches_up,
    a_lazy_cpu_drops_upper_levels_before_a_table_page_is_freed,
);

/// Allocates a frame that stands for a page of some object. It is dirty, so writable leaves may map it.
fn page<F: Simulate>(vm: V<F>) -> Pfn {
    let pfn = vm.alloc_frame(Fill::Zeroed, For::User).unwrap().into_pfn();
    // SAFETY: the frame belongs to this test.
    let page = unsafe { vm.descriptor(pfn) };
    page.set_kind(FrameKind::Object);
    page.set(State::DIRTY);
    pfn
}

fn frame(pfn: Pfn) -> Frame {
    // SAFETY: `page` allocated the frame, and the caller does not use it any more.
    unsafe { Frame::from_pfn(pfn) }
}

fn range(start: u64, pages: u64) -> VirtRange {
    VirtRange { start, end: start + pages * PAGE_SIZE }
}

/// Returns one of several addresses. Some share tables at every level, some do not.
fn address<F: Simulate>(n: u16) -> u64 {
    let n = n as u64;
    let half = F::USER.end + PAGE_SIZE;
    let bases = [0x1000, 0x1f_f000, 0x4000_0000, half / 4, half - 0x20_0000];
    bases[(n % 5) as usize] + (n / 5 % 24) * PAGE_SIZE
}

#[derive(Clone, Debug)]
enum Op {
    Enter(u16, u8),
    Remove(u16, u8),
    Weaken(u16, u8, u8),
    Sweep(u16, u16, Option<u8>),
    Prune(u16, u16),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (any::<u16>(), 1..8u8).prop_map(|(a, p)| Op::Enter(a, p)),
        3 => (any::<u16>(), 1..40u8).prop_map(|(a, n)| Op::Remove(a, n)),
        2 => (any::<u16>(), 1..40u8, 0..8u8).prop_map(|(a, n, p)| Op::Weaken(a, n, p)),
        3 => (any::<u16>(), 1..600u16, prop::option::of(0..8u8)).prop_map(|(a, n, p)| Op::Sweep(a, n, p)),
        1 => (any::<u16>(), any::<u16>()).prop_map(|(a, n)| Op::Prune(a, n)),
    ]
}

/// Returns the range that user page tables cover, up to the end of the last table page.
fn everything<F: Simulate>() -> VirtRange {
    VirtRange { start: 0, end: F::USER.end + PAGE_SIZE }
}

/// Calls `f` with each locked table and the part of `r` that it covers, with flushes in between.
fn each<F: Simulate>(
    vm: V<F>,
    pmap: &Tables<F>,
    r: VirtRange,
    mut f: impl FnMut(&mut <Tables<F> as Pmap<Simulated<F>>>::Table<'_>, VirtRange, &mut Obligation<'_, Simulated<F>>),
) {
    let mut at = r.start;
    while at < r.end {
        let mut owed = Obligation::new(vm, pmap);
        {
            let Some(mut t) = Pmap::<Simulated<F>>::next_table(pmap, vm, VirtRange { start: at, end: r.end }) else {
                return;
            };
            let span = Table::<Simulated<F>>::span(&t);
            let part = span.intersect(&r).unwrap();
            f(&mut t, part, &mut owed);
            at = part.end;
        }
        let _ = owed.discharge();
    }
}

fn normal(prot: u8) -> Prot {
    Prot::from_bits_truncate(prot) | Prot::READ
}

fn the_tables_hold_exactly_the_entered_leaves<F: Simulate>() {
    let config = ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() };
    proptest!(config, |(ops in prop::collection::vec(op(), 1..60), sets_accessed: bool)| {
        let settings = Settings { cpus: 1, frames: 2048, sets_accessed, ..Settings::default() };
        let vm = Simulated::<F>::boot(settings).unwrap();
        let cpu = Cpu::attach(vm, 0).unwrap();
        let before = vm.frames().free();
        // Leaked, so that a failed assertion drops no pmap that is still loaded.
        // SAFETY: the pmap is used only with this machine.
    let pmap = Box::leak(Box::new(unsafe { <Tables<F> as Pmap<Simulated<F>>>::new(vm) }.unwrap()));
        let frame_of = page(vm);
        let mut model: BTreeMap<u64, Prot> = BTreeMap::new();
        // SAFETY: the pmap is destroyed below, after the CPU has left it.
        unsafe { cpu.load(pmap) };
        for op in ops {
            match op {
                Op::Enter(a, p) => {
                    let va = address::<F>(a);
                    let mut t = Pmap::<Simulated<F>>::table(&*pmap, vm, va, &vm.epoch().pin()).unwrap();
                    Table::<Simulated<F>>::enter(&mut t, va, Enter::new(frame_of, normal(p)));
                    let old = model.get(&va).copied().unwrap_or(Prot::empty());
                    model.insert(va, old | normal(p));
                    if let Some(leaf) = Table::<Simulated<F>>::get(&t, va) {
                        prop_assert_eq!(leaf.prot, model[&va]);
                    }
                }
                Op::Remove(a, n) => {
                    let r = range(address::<F>(a), n as u64);
                    each(vm, pmap, r, |t, part, owed| {
                        let mut at = part.start;
                        while let Some(va) = Table::<Simulated<F>>::next_present(t, at, part.end) {
                            let old = t.remove(va, owed).unwrap();
                            assert_eq!(Some(old.prot), model.remove(&va));
                            assert!(Table::<Simulated<F>>::unflushed(t));
                            at = va + PAGE_SIZE;
                        }
                    });
                    prop_assert_eq!(model.range(r.start..r.end).next(), None);
                }
                Op::Weaken(a, n, p) => {
                    let r = range(address::<F>(a), n as u64);
                    let keep = Prot::from_bits_truncate(p);
                    each(vm, pmap, r, |t, part, owed| {
                        for va in (part.start..part.end).step_by(PAGE_SIZE as usize) {
                            let old = t.weaken(va, keep, owed);
                            assert_eq!(old.map(|l| l.prot), model.get(&va).copied());
                        }
                    });
                    let keys: Vec<u64> = model.range(r.start..r.end).map(|(k, _)| *k).collect();
                    for k in keys {
                        let now = model[&k] & (keep | Prot::READ);
                        if keep.is_empty() { model.remove(&k); } else { model.insert(k, now); }
                    }
                }
                Op::Sweep(a, n, keep) => {
                    let r = range(address::<F>(a), n as u64);
                    let r = r.intersect(&everything::<F>()).unwrap();
                    let keep = keep.map(Prot::from_bits_truncate);
                    let (mut met, mut count) = (Vec::new(), 0);
                    each(vm, pmap, r, |t, part, owed| {
                        let before = count;
                        count += Table::<Simulated<F>>::sweep(t, part, keep, owed, |leaf| met.push(leaf.prot));
                        assert!(keep.is_some() || count == before || Table::<Simulated<F>>::unflushed(t));
                    });
                    let there: Vec<Prot> = model.range(r.start..r.end).map(|(_, p)| *p).collect();
                    prop_assert_eq!(count, met.len() as u64);
                    if keep == Some(Prot::READ | Prot::EXEC) {
                        // A call that only removes store rights may skip read-only leaves.
                        let writable = |all: &[Prot]| all.iter().filter(|p| p.contains(Prot::WRITE)).count();
                        prop_assert_eq!(writable(&met), writable(&there));
                        prop_assert!(met.len() <= there.len());
                    } else {
                        prop_assert_eq!(met, there);
                    }
                    let keys: Vec<u64> = model.range(r.start..r.end).map(|(k, _)| *k).collect();
                    for k in keys {
                        match keep.filter(|keep| !keep.is_empty()) {
                            None => model.remove(&k),
                            Some(keep) => model.insert(k, model[&k] & (keep | Prot::READ)),
                        };
                    }
                }
                Op::Prune(a, n) => {
                    let start = address::<F>(a) & !((2 << 20) - 1);
                    let end = start + (n as u64 + 1) * (2 << 20);
                    Pmap::<Simulated<F>>::prune(&*pmap, vm, VirtRange { start, end });
                }
            }
            prop_assert_eq!(Pmap::<Simulated<F>>::resident_pages(&*pmap, vm), model.len() as u64);
            for n in 0..120 {
                let va = address::<F>(n);
                let prot = model.get(&va).copied();
                // If a leaf gained rights, the first access may still fault on the weaker cached translation.
                let twice = |f: &dyn Fn() -> bool| f() || f();
                prop_assert_eq!(twice(&|| cpu.load_word(va).is_ok()), prot.is_some());
                let write = prot.is_some_and(|p| p.contains(Prot::WRITE));
                prop_assert_eq!(twice(&|| cpu.store_word(va, 1).is_ok()), write);
                let execute = prot.is_some_and(|p| p.contains(Prot::EXEC));
                prop_assert_eq!(twice(&|| cpu.fetch(va).is_ok()), execute);
            }
        }
        // A prune of everything leaves exactly the table pages that still have a present entry.
        Pmap::<Simulated<F>>::prune(&*pmap, vm, everything::<F>());
        let mut tables = std::collections::BTreeSet::new();
        for va in model.keys() {
            (1..F::LEVELS).for_each(|l| { tables.insert((l, va >> (12 + 9 * l))); });
        }
        prop_assert_eq!(Pmap::<Simulated<F>>::table_pages(&*pmap, vm), 1 + tables.len() as u64);
        cpu.leave();
        Pmap::<Simulated<F>>::clear(&*pmap, vm);
        prop_assert_eq!(Pmap::<Simulated<F>>::table_pages(&*pmap, vm), 1);
        // SAFETY: the tables were cleared, and the only CPU has left them.
        unsafe { Pmap::<Simulated<F>>::destroy(&mut *pmap, vm) };
        vm.free_frame(frame(frame_of)).unwrap();
        vm.epoch().drain();
        Tables::<F>::reclaim_tables(vm);
        prop_assert_eq!(vm.frames().free(), before);
    });
}

fn a_table_page_that_owes_a_flush_is_not_pruned<F: Simulate>() {
    let vm = Simulated::<F>::boot(Settings { cpus: 1, frames: 2048, ..Settings::default() }).unwrap();
    let cpu = Cpu::attach(vm, 0).unwrap();
    // SAFETY: the pmap is used only with this machine.
    let pmap = Box::leak(Box::new(unsafe { <Tables<F> as Pmap<Simulated<F>>>::new(vm) }.unwrap()));
    let pfn = page(vm);
    let va = 0x40_0000;
    Table::<Simulated<F>>::enter(
        &mut Pmap::<Simulated<F>>::table(&*pmap, vm, va, &vm.epoch().pin()).unwrap(),
        va,
        Enter::new(pfn, Prot::READ),
    );
    let mut owed = Obligation::new(vm, &*pmap);
    {
        let mut t = Pmap::<Simulated<F>>::table(&*pmap, vm, va, &vm.epoch().pin()).unwrap();
        t.remove(va, &mut owed).unwrap();
    }
    assert!(Pmap::<Simulated<F>>::unflushed_above(&*pmap, vm, va));
    let everything = everything::<F>();
    Pmap::<Simulated<F>>::prune(&*pmap, vm, everything);
    assert_eq!(Pmap::<Simulated<F>>::table_pages(&*pmap, vm), F::LEVELS as u64);
    let _ = owed.discharge();
    assert!(!Pmap::<Simulated<F>>::unflushed_above(&*pmap, vm, va));
    Pmap::<Simulated<F>>::prune(&*pmap, vm, everything);
    assert_eq!(Pmap::<Simulated<F>>::table_pages(&*pmap, vm), 1);
    vm.free_frame(frame(pfn)).unwrap();
    cpu.leave();
    // SAFETY: the last leaf was removed, and the only CPU has left the tables.
    unsafe { Pmap::<Simulated<F>>::destroy(&mut *pmap, vm) };
}

/// CPUs fault pages in, use them, remove them and free their frames, all in one space. Table pages are pruned
/// concurrently. The hosted machine fails the test on any use after free.
fn tables_under_fire<F: Simulate>(pcid: bool) {
    const CPUS: usize = 4;
    let vm = Simulated::<F>::boot(Settings { cpus: CPUS, frames: 8192, pcid, ..Settings::default() }).unwrap();
    // The thread that sets up acts as CPU 0 while no thread is attached.
    quire_sync::hooks::threads::set_cpu(0);
    let before = vm.frames().free();
    let spaces: Vec<Box<Tables<F>>> =
        // SAFETY: the pmap is used only with this machine.
        (0..9).map(|_| Box::new(unsafe { <Tables<F> as Pmap<Simulated<F>>>::new(vm) }.unwrap())).collect();
    let done = AtomicBool::new(false);
    let work = AtomicU64::new(0);
    let left = AtomicU64::new(CPUS as u64);
    std::thread::scope(|s| {
        for id in 0..CPUS {
            let (spaces, done, work, left) = (&spaces, &done, &work, &left);
            s.spawn(move || {
                let cpu = Cpu::attach(vm, id).unwrap();
                let mut rng = 0x9e37_79b9_7f4a_7c15u64.wrapping_mul(id as u64 + 1);
                let mut random = move |n: u64| {
                    rng ^= rng << 13;
                    rng ^= rng >> 7;
                    rng ^= rng << 17;
                    rng % n
                };
                let (mut current, mut lazy) = (0, true);
                cpu.disturb(id as u64);
                for step in 0..6_000 {
                    if lazy {
                        // This CPU does not run the space, but its hardware may still walk the space's tables.
                        cpu.speculate(0x20_0000 * (1 + random(3)) + random(6) * PAGE_SIZE);
                    }
                    if random(16) == 0 {
                        lazy = random(3) == 0;
                        if lazy {
                            // SAFETY: the CPU has loaded these page tables.
                            unsafe { cpu.idle(&spaces[current]) };
                            continue;
                        }
                        // Mostly two spaces are used, sometimes more than there are tags.
                        current = (if random(4) == 0 { random(spaces.len() as u64) } else { random(2) }) as usize;
                        // SAFETY: the spaces are destroyed below, after every CPU has left them.
                        unsafe { cpu.load(&spaces[current]) };
                    }
                    // Every CPU changes every space, mostly its loaded space.
                    let space = &*spaces[if random(8) == 0 { random(spaces.len() as u64) as usize } else { current }];
                    let here = !lazy && std::ptr::eq(space, &*spaces[current]);
                    let va = 0x20_0000 * (1 + random(3)) + random(6) * PAGE_SIZE;
                    match random(8) {
                        0..3 => {
                            let fresh = page(vm);
                            let mut t = Pmap::<Simulated<F>>::table(space, vm, va, &vm.epoch().pin()).unwrap();
                            if Table::<Simulated<F>>::get(&t, va).is_none() {
                                Table::<Simulated<F>>::enter(&mut t, va, Enter::new(fresh, Prot::READ | Prot::WRITE));
                            } else {
                                drop(t);
                                vm.free_frame(frame(fresh)).unwrap();
                            }
                        }
                        5 => {
                            let mut owed = Obligation::new(vm, space).pruning();
                            if let Some(mut t) = Pmap::<Simulated<F>>::next_table(space, vm, range(va, 1))
                                && let Some(old) = t.remove_alone(va, &mut owed)
                            {
                                owed.own(frame(old.pfn));
                            }
                            let _ = owed.discharge();
                        }
                        3..5 => {
                            let mut owed = Obligation::new(vm, space);
                            if let Some(mut t) = Pmap::<Simulated<F>>::next_table(space, vm, range(va, 6)) {
                                let part = Table::<Simulated<F>>::span(&t).intersect(&range(va, 6)).unwrap();
                                while let Some(va) = Table::<Simulated<F>>::next_present(&t, part.start, part.end) {
                                    let old = t.remove(va, &mut owed).unwrap();
                                    owed.own(frame(old.pfn));
                                }
                            }
                            let _ = owed.discharge();
                        }
                        6 => {
                            let start = 0x20_0000 * random(5);
                            Pmap::<Simulated<F>>::prune(space, vm, VirtRange { start, end: start + 0x40_0000 });
                        }
                        _ => {
                            Pmap::<Simulated<F>>::resident_pages(space, vm);
                        }
                    }
                    if here {
                        cpu.speculate(0x20_0000 * (1 + random(3)) + random(6) * PAGE_SIZE);
                        let value = step << 8 | id as u64;
                        if cpu.store_word(va, value).is_ok() {
                            work.fetch_add(1, Ordering::Relaxed);
                        }
                        let _ = cpu.load_word(0x20_0000 * (1 + random(3)) + random(6) * PAGE_SIZE);
                    }
                    cpu.interrupts();
                }
                cpu.leave();
                left.fetch_sub(1, Ordering::AcqRel);
                while left.load(Ordering::Acquire) != 0 && !done.load(Ordering::Relaxed) {
                    cpu.interrupts();
                    std::thread::yield_now();
                }
            });
        }
    });
    assert!(work.load(Ordering::Relaxed) > 100, "the test touches memory");
    let _cpu = Cpu::attach(vm, 0).unwrap();
    for mut space in spaces {
        each(vm, &space, everything::<F>(), |t, part, owed| {
            let mut at = part.start;
            while let Some(va) = Table::<Simulated<F>>::next_present(t, at, part.end) {
                let old = t.remove(va, owed).unwrap();
                owed.own(frame(old.pfn));
                at = va + PAGE_SIZE;
            }
        });
        Pmap::<Simulated<F>>::clear(&*space, vm);
        // SAFETY: the threads have ended, so no CPU has the tables loaded, and they were cleared.
        unsafe { Pmap::<Simulated<F>>::destroy(&mut *space, vm) };
    }
    vm.epoch().drain();
    Tables::<F>::reclaim_tables(vm);
    assert_eq!(vm.frames().free(), before, "frames are lost");
}

fn tables_under_fire_with_tags<F: Simulate>() {
    tables_under_fire::<F>(true);
}

fn tables_under_fire_without_tags<F: Simulate>() {
    tables_under_fire::<F>(false);
}

fn a_lone_removal_in_a_space_without_cpus_is_flushed_at_once<F: Simulate>() {
    let vm = Simulated::<F>::boot(Settings { cpus: 2, frames: 2048, ..Settings::default() }).unwrap();
    // The thread that sets up acts as CPU 0 while no thread is attached.
    quire_sync::hooks::threads::set_cpu(0);
    // SAFETY: the pmap is used only with this machine.
    let pmap = Box::leak(Box::new(unsafe { <Tables<F> as Pmap<Simulated<F>>>::new(vm) }.unwrap()));
    let pfn = page(vm);
    let va = 0x40_0000;
    let enter = || {
        let mut t = Pmap::<Simulated<F>>::table(&*pmap, vm, va, &vm.epoch().pin()).unwrap();
        Table::<Simulated<F>>::enter(&mut t, va, Enter::new(pfn, Prot::READ));
    };
    let remove = |owed: &mut Obligation<'_, Simulated<F>>| {
        let mut t = Pmap::<Simulated<F>>::table(&*pmap, vm, va, &vm.epoch().pin()).unwrap();
        assert_eq!(t.remove_alone(va, owed).unwrap().pfn, pfn);
        Table::<Simulated<F>>::unflushed(&t)
    };
    let cpu = Cpu::attach(vm, 1).unwrap();
    // First case: CPU 1 caches the leaf, and keeps the space's tag when it leaves.
    enter();
    // SAFETY: the tables stay in place until `destroy` at the end, before which the CPU leaves them.
    unsafe { cpu.load(&*pmap) };
    assert!(cpu.load_word(va).is_ok());
    cpu.leave();
    let mut owed = Obligation::new(vm, &*pmap).pruning();
    assert!(!remove(&mut owed) && owed.is_empty());
    // The discharge also frees the empty table page.
    let _ = owed.discharge();
    assert_eq!(Pmap::<Simulated<F>>::table_pages(&*pmap, vm), 1);
    // SAFETY: the tables stay in place until `destroy` at the end, before which the CPU leaves them.
    unsafe { cpu.load(&*pmap) };
    assert_eq!(cpu.load_word(va).unwrap_err().access, Access::Read);
    // Second case: CPU 1 runs the space, so the removal must be flushed by an interrupt. Until then the removal is
    // owed, and every CPU can see this.
    enter();
    let beside = va + PAGE_SIZE;
    Table::<Simulated<F>>::enter(
        &mut Pmap::<Simulated<F>>::table(&*pmap, vm, beside, &vm.epoch().pin()).unwrap(),
        beside,
        Enter::new(pfn, Prot::READ),
    );
    assert!(cpu.load_word(va).is_ok() && cpu.load_word(beside).is_ok());
    let mut owed = Obligation::new(vm, &*pmap);
    assert!(remove(&mut owed) && !owed.is_empty());
    let _ = owed.discharge();
    assert!(!Pmap::<Simulated<F>>::unflushed_above(&*pmap, vm, va));
    assert_eq!(cpu.load_word(va).unwrap_err().access, Access::Read);
    // CPU 1 loses only that page's translation. Its translation of the neighbour page stays valid until a flush.
    let mut unpaid = Obligation::new(vm, &*pmap);
    Pmap::<Simulated<F>>::table(&*pmap, vm, beside, &vm.epoch().pin()).unwrap().remove(beside, &mut unpaid).unwrap();
    assert!(cpu.load_word(beside).is_ok(), "the flush of one page dropped other translations");
    let _ = unpaid.discharge();
    cpu.leave();
    Pmap::<Simulated<F>>::clear(&*pmap, vm);
    // SAFETY: the tables were cleared, and the only CPU has left them.
    unsafe { Pmap::<Simulated<F>>::destroy(&mut *pmap, vm) };
    vm.free_frame(frame(pfn)).unwrap();
}

fn a_lazy_cpu_is_not_interrupted_and_catches_up<F: Simulate>() {
    let vm = Simulated::<F>::boot(Settings { cpus: 2, frames: 2048, ..Settings::default() }).unwrap();
    // The thread that sets up acts as CPU 0 while no thread is attached.
    quire_sync::hooks::threads::set_cpu(0);
    // SAFETY: the pmap is used only with this machine.
    let pmap = Box::leak(Box::new(unsafe { <Tables<F> as Pmap<Simulated<F>>>::new(vm) }.unwrap()));
    let pfn = page(vm);
    let va = 0x40_0000;
    Table::<Simulated<F>>::enter(
        &mut Pmap::<Simulated<F>>::table(&*pmap, vm, va, &vm.epoch().pin()).unwrap(),
        va,
        Enter::new(pfn, Prot::READ),
    );
    let other = Cpu::attach(vm, 1).unwrap();
    // SAFETY: the tables stay in place until `destroy` at the end, before which the CPU leaves them.
    unsafe { other.load(pmap) };
    assert!(other.load_word(va).is_ok());
    // SAFETY: the CPU has loaded these page tables.
    unsafe { other.idle(pmap) };
    // This thread acts as both CPUs in turn. While it acts as CPU 0, CPU 1 serves nothing and must receive no request.
    quire_sync::hooks::threads::set_cpu(0);
    let mut owed = Obligation::new(vm, &*pmap);
    Pmap::<Simulated<F>>::table(&*pmap, vm, va, &vm.epoch().pin()).unwrap().remove(va, &mut owed).unwrap();
    let _ = owed.discharge();
    quire_sync::hooks::threads::set_cpu(1);
    assert_eq!(vm.machine().interrupts(1), 0);
    // SAFETY: the tables stay in place until `destroy` at the end, before which the CPU leaves them.
    unsafe { other.load(pmap) };
    assert_eq!(other.load_word(va).unwrap_err().access, Access::Read);
    other.leave();
    Pmap::<Simulated<F>>::clear(&*pmap, vm);
    // SAFETY: the tables were cleared, and the CPU that had loaded them has left.
    unsafe { Pmap::<Simulated<F>>::destroy(&mut *pmap, vm) };
    vm.free_frame(frame(pfn)).unwrap();
}

fn a_lazy_cpu_drops_upper_levels_before_a_table_page_is_freed<F: Simulate>() {
    let vm = Simulated::<F>::boot(Settings { cpus: 2, frames: 2048, ..Settings::default() }).unwrap();
    // The thread that sets up acts as CPU 0 while no thread is attached.
    quire_sync::hooks::threads::set_cpu(0);
    // SAFETY: the pmap is used only with this machine.
    let pmap = Box::leak(Box::new(unsafe { <Tables<F> as Pmap<Simulated<F>>>::new(vm) }.unwrap()));
    let pfn = page(vm);
    let va = 0x40_0000;
    let cpu = Cpu::attach(vm, 0).unwrap();
    Table::<Simulated<F>>::enter(
        &mut Pmap::<Simulated<F>>::table(pmap, vm, va, &vm.epoch().pin()).unwrap(),
        va,
        Enter::new(pfn, Prot::READ),
    );
    let (idle, done, walks) = (AtomicBool::new(false), AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|s| {
        s.spawn(|| {
            let other = Cpu::attach(vm, 1).unwrap();
            // SAFETY: the tables stay in place until `destroy` at the end, after this thread has ended.
            unsafe { other.load(pmap) };
            assert!(other.load_word(va).is_ok());
            // SAFETY: the CPU has loaded these page tables.
            unsafe { other.idle(pmap) };
            idle.store(true, Ordering::Release);
            while !done.load(Ordering::Acquire) {
                other.speculate(va + PAGE_SIZE);
                walks.fetch_add(1, Ordering::Release);
                std::thread::yield_now();
            }
        });
        while !idle.load(Ordering::Acquire) {
            cpu.interrupts();
        }
        let mut owed = Obligation::new(vm, &*pmap);
        Pmap::<Simulated<F>>::table(pmap, vm, va, &vm.epoch().pin()).unwrap().remove(va, &mut owed).unwrap();
        let _ = owed.discharge();
        let asked_for_the_leaf = vm.machine().interrupts(1);
        Pmap::<Simulated<F>>::prune(pmap, vm, everything::<F>());
        let asked_for_the_tables = vm.machine().interrupts(1);
        vm.epoch().drain();
        let reused: Vec<Frame> = (0..256).map(|_| vm.alloc_frame(Fill::Any, For::User).unwrap()).collect();
        let before = walks.load(Ordering::Acquire);
        while walks.load(Ordering::Acquire) < before + 1000 {
            std::thread::yield_now();
        }
        reused.into_iter().for_each(|f| vm.free_frame(f).unwrap());
        done.store(true, Ordering::Release);
        assert_eq!((asked_for_the_leaf, asked_for_the_tables), (0, 1));
    });
    // SAFETY: the tables are empty, and the thread whose CPU had loaded them has ended.
    unsafe { Pmap::<Simulated<F>>::destroy(pmap, vm) };
    vm.free_frame(frame(pfn)).unwrap();
}
