//! The page tables by themselves: against a map of what must be there, and under concurrent faults, removals and pruning.

use proptest::prelude::*;
use quire_hosted::{Cpu, Hosted, Settings};
use quire_pmap_x86_64::{X86, X86Pmap};
use quire_vm::flush::Obligation;
use quire_vm::frames::{Fill, For, Frame};
use quire_vm::machine::Enter;
use quire_vm::page::{Kind, State};
use quire_vm::{Access, PAGE_SIZE, Pfn, Pmap, Prot, Table, VirtRange, Vm};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

type V = &'static Vm<Hosted>;

/// A frame that passes for a page of some object, dirty so that writable leaves may show it.
fn page(vm: V) -> Pfn {
    let pfn = vm.alloc_frame(Fill::Zeroed, For::User).unwrap().into_pfn();
    vm.page(pfn).set_kind(Kind::Object);
    vm.page(pfn).set(State::DIRTY);
    pfn
}

fn frame(pfn: Pfn) -> Frame {
    // SAFETY: from `page`, given up by the caller.
    unsafe { Frame::from_pfn(pfn) }
}

fn range(start: u64, pages: u64) -> VirtRange {
    VirtRange { start, end: start + pages * PAGE_SIZE }
}

/// Addresses that share tables at every level, and some that do not.
fn address(n: u16) -> u64 {
    let n = n as u64;
    let bases = [0x1000, 0x1f_f000, 0x4000_0000, 0x80_0000_0000, 0x7fff_ffe0_0000];
    bases[(n % 5) as usize] + (n / 5 % 24) * PAGE_SIZE
}

#[derive(Clone, Debug)]
enum Op {
    Enter(u16, u8),
    Remove(u16, u8),
    Weaken(u16, u8, u8),
    Prune(u16, u16),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (any::<u16>(), 1..8u8).prop_map(|(a, p)| Op::Enter(a, p)),
        3 => (any::<u16>(), 1..40u8).prop_map(|(a, n)| Op::Remove(a, n)),
        2 => (any::<u16>(), 1..40u8, 0..8u8).prop_map(|(a, n, p)| Op::Weaken(a, n, p)),
        1 => (any::<u16>(), any::<u16>()).prop_map(|(a, n)| Op::Prune(a, n)),
    ]
}

/// Calls `f` with each locked table and the part of `r` that it covers, paying in between.
fn each(
    vm: V,
    pmap: &X86Pmap,
    r: VirtRange,
    mut f: impl FnMut(&mut <X86Pmap as Pmap<Hosted>>::Table<'_>, VirtRange, &mut Obligation<'_, Hosted>),
) {
    let mut at = r.start;
    while at < r.end {
        let mut owed = Obligation::new(vm, pmap);
        {
            let Some(mut t) = Pmap::<Hosted>::next_table(pmap, vm, VirtRange { start: at, end: r.end }) else { return };
            let span = Table::<Hosted>::span(&t);
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

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, .. ProptestConfig::default() })]
    #[test]
    fn the_tables_hold_exactly_what_was_entered(ops in prop::collection::vec(op(), 1..60)) {
        let vm = Hosted::boot(Settings { cpus: 1, frames: 2048, ..Settings::default() });
        let cpu = Cpu::attach(vm, 0);
        let before = vm.frames().free();
        // Leaked, so that a failing assertion drops no pmap that is still loaded.
        let pmap = Box::leak(Box::new(<X86Pmap as Pmap<Hosted>>::new(vm).unwrap()));
        let frame_of = page(vm);
        let mut model: BTreeMap<u64, Prot> = BTreeMap::new();
        // SAFETY: destroyed below, after the CPU has left.
        unsafe { cpu.load(pmap) };
        for op in ops {
            match op {
                Op::Enter(a, p) => {
                    let va = address(a);
                    let mut t = Pmap::<Hosted>::table(&*pmap, vm, va).unwrap();
                    Table::<Hosted>::enter(&mut t, va, Enter { pfn: frame_of, prot: normal(p) });
                    let old = model.get(&va).copied().unwrap_or(Prot::empty());
                    model.insert(va, old | normal(p));
                    if let Some(leaf) = Table::<Hosted>::get(&t, va) {
                        prop_assert_eq!(leaf.prot, model[&va]);
                    }
                }
                Op::Remove(a, n) => {
                    let r = range(address(a), n as u64);
                    each(vm, pmap, r, |t, part, owed| {
                        let mut at = part.start;
                        while let Some(va) = Table::<Hosted>::next_present(t, at, part.end) {
                            let old = t.remove(va, owed).unwrap();
                            assert_eq!(Some(old.prot), model.remove(&va));
                            assert!(Table::<Hosted>::unflushed(t));
                            at = va + PAGE_SIZE;
                        }
                    });
                    prop_assert_eq!(model.range(r.start..r.end).next(), None);
                }
                Op::Weaken(a, n, p) => {
                    let r = range(address(a), n as u64);
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
                Op::Prune(a, n) => {
                    let start = address(a) & !((2 << 20) - 1);
                    Pmap::<Hosted>::prune(&*pmap, vm, VirtRange { start, end: start + (n as u64 + 1) * (2 << 20) });
                }
            }
            prop_assert_eq!(Pmap::<Hosted>::resident_pages(&*pmap, vm), model.len() as u64);
            for n in 0..120 {
                let va = address(n);
                let prot = model.get(&va).copied();
                // Where a leaf gained rights, the first access may still fault on the weaker translation.
                let twice = |f: &dyn Fn() -> bool| f() || f();
                prop_assert_eq!(twice(&|| cpu.load_word(va).is_ok()), prot.is_some());
                let write = prot.is_some_and(|p| p.contains(Prot::WRITE));
                prop_assert_eq!(twice(&|| cpu.store_word(va, 1).is_ok()), write);
                let execute = prot.is_some_and(|p| p.contains(Prot::EXEC));
                prop_assert_eq!(twice(&|| cpu.fetch(va).is_ok()), execute);
            }
        }
        // A prune of everything leaves exactly the tables that still hold something.
        Pmap::<Hosted>::prune(&*pmap, vm, VirtRange { start: 0, end: 1 << 47 });
        let mut tables = std::collections::BTreeSet::new();
        for va in model.keys() {
            (1..4).for_each(|l| { tables.insert((l, va >> (12 + 9 * l))); });
        }
        prop_assert_eq!(Pmap::<Hosted>::table_pages(&*pmap, vm), 1 + tables.len() as u64);
        cpu.leave();
        Pmap::<Hosted>::clear(&*pmap, vm);
        prop_assert_eq!(Pmap::<Hosted>::table_pages(&*pmap, vm), 1);
        // SAFETY: cleared, loaded nowhere.
        unsafe { Pmap::<Hosted>::destroy(&mut *pmap, vm) };
        vm.free_frame(frame(frame_of));
        vm.epoch().drain();
        vm.machine().mmu().drain(vm);
        prop_assert_eq!(vm.frames().free(), before);
    }
}

#[test]
fn a_table_page_that_owes_a_flush_is_not_pruned() {
    let vm = Hosted::boot(Settings { cpus: 1, frames: 2048, ..Settings::default() });
    let cpu = Cpu::attach(vm, 0);
    let pmap = Box::leak(Box::new(<X86Pmap as Pmap<Hosted>>::new(vm).unwrap()));
    let pfn = page(vm);
    let va = 0x40_0000;
    Table::<Hosted>::enter(&mut Pmap::<Hosted>::table(&*pmap, vm, va).unwrap(), va, Enter { pfn, prot: Prot::READ });
    let mut owed = Obligation::new(vm, &*pmap);
    {
        let mut t = Pmap::<Hosted>::table(&*pmap, vm, va).unwrap();
        t.remove(va, &mut owed).unwrap();
    }
    assert!(Pmap::<Hosted>::unflushed_above(&*pmap, vm, va));
    let everything = VirtRange { start: 0, end: 1 << 47 };
    Pmap::<Hosted>::prune(&*pmap, vm, everything);
    assert_eq!(Pmap::<Hosted>::table_pages(&*pmap, vm), 4);
    let _ = owed.discharge();
    assert!(!Pmap::<Hosted>::unflushed_above(&*pmap, vm, va));
    Pmap::<Hosted>::prune(&*pmap, vm, everything);
    assert_eq!(Pmap::<Hosted>::table_pages(&*pmap, vm), 1);
    vm.free_frame(frame(pfn));
    cpu.leave();
    // SAFETY: empty, loaded nowhere.
    unsafe { Pmap::<Hosted>::destroy(&mut *pmap, vm) };
}

/// CPUs fault pages in, use them, take them away again and free their frames, all in one space; table pages are pruned
/// under them. The machine itself fails the test where anything is used after it was freed.
fn tables_under_fire(pcid: bool) {
    const CPUS: usize = 4;
    let vm = Hosted::boot(Settings { cpus: CPUS, frames: 8192, pcid, ..Settings::default() });
    let before = vm.frames().free();
    let spaces: Vec<Box<X86Pmap>> = (0..9).map(|_| Box::new(<X86Pmap as Pmap<Hosted>>::new(vm).unwrap())).collect();
    let done = AtomicBool::new(false);
    let work = AtomicU64::new(0);
    let left = AtomicU64::new(CPUS as u64);
    std::thread::scope(|s| {
        for id in 0..CPUS {
            let (spaces, done, work, left) = (&spaces, &done, &work, &left);
            s.spawn(move || {
                let cpu = Cpu::attach(vm, id);
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
                        // Nothing of the space runs, but the hardware may still look things up.
                        cpu.speculate(0x20_0000 * (1 + random(3)) + random(6) * PAGE_SIZE);
                    }
                    if random(16) == 0 {
                        lazy = random(3) == 0;
                        if lazy {
                            cpu.idle(&spaces[current]);
                            continue;
                        }
                        // Mostly two spaces, at times more than there are PCIDs.
                        current = (if random(4) == 0 { random(spaces.len() as u64) } else { random(2) }) as usize;
                        // SAFETY: destroyed below, after every CPU has left.
                        unsafe { cpu.load(&spaces[current]) };
                    }
                    // Each space is used by all; most of the time by those whose turn it is.
                    let space = &*spaces[if random(8) == 0 { random(spaces.len() as u64) as usize } else { current }];
                    let here = !lazy && std::ptr::eq(space, &*spaces[current]);
                    let va = 0x20_0000 * (1 + random(3)) + random(6) * PAGE_SIZE;
                    match random(8) {
                        0..3 => {
                            let fresh = page(vm);
                            let mut t = Pmap::<Hosted>::table(space, vm, va).unwrap();
                            if Table::<Hosted>::get(&t, va).is_none() {
                                Table::<Hosted>::enter(
                                    &mut t,
                                    va,
                                    Enter { pfn: fresh, prot: Prot::READ | Prot::WRITE },
                                );
                            } else {
                                drop(t);
                                vm.free_frame(frame(fresh));
                            }
                        }
                        3..6 => {
                            let mut owed = Obligation::new(vm, space);
                            if let Some(mut t) = Pmap::<Hosted>::next_table(space, vm, range(va, 6)) {
                                let part = Table::<Hosted>::span(&t).intersect(&range(va, 6)).unwrap();
                                while let Some(va) = Table::<Hosted>::next_present(&t, part.start, part.end) {
                                    let old = t.remove(va, &mut owed).unwrap();
                                    owed.own(frame(old.pfn));
                                }
                            }
                            let _ = owed.discharge();
                        }
                        6 => {
                            let start = 0x20_0000 * random(5);
                            Pmap::<Hosted>::prune(space, vm, VirtRange { start, end: start + 0x40_0000 });
                        }
                        _ => {
                            Pmap::<Hosted>::resident_pages(space, vm);
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
    let _cpu = Cpu::attach(vm, 0);
    for mut space in spaces {
        each(vm, &space, VirtRange { start: 0, end: 1 << 47 }, |t, part, owed| {
            let mut at = part.start;
            while let Some(va) = Table::<Hosted>::next_present(t, at, part.end) {
                let old = t.remove(va, owed).unwrap();
                owed.own(frame(old.pfn));
                at = va + PAGE_SIZE;
            }
        });
        Pmap::<Hosted>::clear(&*space, vm);
        // SAFETY: cleared, loaded nowhere.
        unsafe { Pmap::<Hosted>::destroy(&mut *space, vm) };
    }
    vm.epoch().drain();
    vm.machine().mmu().drain(vm);
    assert_eq!(vm.frames().free(), before, "frames are lost");
}

#[test]
fn tables_under_fire_with_pcids() {
    tables_under_fire(true);
}

#[test]
fn tables_under_fire_without_pcids() {
    tables_under_fire(false);
}

#[test]
fn a_lazy_cpu_is_not_interrupted_and_catches_up() {
    let vm = Hosted::boot(Settings { cpus: 2, frames: 2048, ..Settings::default() });
    let pmap = Box::leak(Box::new(<X86Pmap as Pmap<Hosted>>::new(vm).unwrap()));
    let pfn = page(vm);
    let va = 0x40_0000;
    Table::<Hosted>::enter(&mut Pmap::<Hosted>::table(&*pmap, vm, va).unwrap(), va, Enter { pfn, prot: Prot::READ });
    let other = Cpu::attach(vm, 1);
    // SAFETY: destroyed below.
    unsafe { other.load(pmap) };
    assert!(other.load_word(va).is_ok());
    other.idle(pmap);
    // This thread stands for both CPUs in turn: CPU 1 answers nothing meanwhile, and nothing is asked of it.
    quire_sync::hooks::threads::set_cpu(0);
    let mut owed = Obligation::new(vm, &*pmap);
    Pmap::<Hosted>::table(&*pmap, vm, va).unwrap().remove(va, &mut owed).unwrap();
    let _ = owed.discharge();
    quire_sync::hooks::threads::set_cpu(1);
    assert_eq!(vm.machine().interrupts(1), 0);
    // SAFETY: as above.
    unsafe { other.load(pmap) };
    assert_eq!(other.load_word(va).unwrap_err().access, Access::Read);
    other.leave();
    Pmap::<Hosted>::clear(&*pmap, vm);
    // SAFETY: cleared, loaded nowhere.
    unsafe { Pmap::<Hosted>::destroy(&mut *pmap, vm) };
    vm.free_frame(frame(pfn));
}

#[test]
fn a_lazy_cpu_drops_cached_upper_levels_before_a_table_page_is_freed() {
    let vm = Hosted::boot(Settings { cpus: 2, frames: 2048, ..Settings::default() });
    let pmap = Box::leak(Box::new(<X86Pmap as Pmap<Hosted>>::new(vm).unwrap()));
    let pfn = page(vm);
    let va = 0x40_0000;
    let cpu = Cpu::attach(vm, 0);
    Table::<Hosted>::enter(&mut Pmap::<Hosted>::table(pmap, vm, va).unwrap(), va, Enter { pfn, prot: Prot::READ });
    let (idle, done) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|s| {
        s.spawn(|| {
            let other = Cpu::attach(vm, 1);
            // SAFETY: destroyed below.
            unsafe { other.load(pmap) };
            assert!(other.load_word(va).is_ok());
            other.idle(pmap);
            idle.store(true, Ordering::Release);
            while !done.load(Ordering::Acquire) {
                other.speculate(va + PAGE_SIZE);
                std::thread::yield_now();
            }
        });
        while !idle.load(Ordering::Acquire) {
            cpu.interrupts();
        }
        let mut owed = Obligation::new(vm, &*pmap);
        Pmap::<Hosted>::table(pmap, vm, va).unwrap().remove(va, &mut owed).unwrap();
        let _ = owed.discharge();
        let asked_for_the_leaf = vm.machine().interrupts(1);
        Pmap::<Hosted>::prune(pmap, vm, VirtRange { start: 0, end: 1 << 47 });
        let asked_for_the_tables = vm.machine().interrupts(1);
        vm.epoch().drain();
        let reused: Vec<Frame> = (0..256).map(|_| vm.alloc_frame(Fill::Any, For::User).unwrap()).collect();
        std::thread::sleep(std::time::Duration::from_millis(5));
        reused.into_iter().for_each(|f| vm.free_frame(f));
        done.store(true, Ordering::Release);
        assert_eq!((asked_for_the_leaf, asked_for_the_tables), (0, 1));
    });
    // SAFETY: empty, loaded nowhere.
    unsafe { Pmap::<Hosted>::destroy(pmap, vm) };
    vm.free_frame(frame(pfn));
}
