//! Page tables, and the hardware's walk of them, compared with a sorted map.

use crate::Input;
use quire_hosted::{Cpu, Settings, Simulate, Simulated, Sv39, X86_64};
use quire_pmap::Tables;
use quire_vm::machine::Enter;
use quire_vm::phys::frames::{Fill, For};
use quire_vm::phys::page::{FrameKind, State};
use quire_vm::tlb::flush::Obligation;
use quire_vm::{PAGE_SIZE, Pfn, Pmap, Prot, Table, VirtRange, Vm};
use std::collections::BTreeMap;

type V<F> = &'static Vm<Simulated<F>>;

fn boot<F: Simulate>() -> V<F> {
    Simulated::boot(Settings { cpus: 1, frames: 1024, ..Settings::default() })
        .expect("the settings are valid for a machine")
}

std::thread_local! {
    static X86: V<X86_64> = boot();
    static RISCV: V<Sv39> = boot();
}

/// Chooses an address. Some share tables at every level, some do not.
fn address<F: Simulate>(input: &mut Input<'_>) -> u64 {
    let half = F::USER.end + PAGE_SIZE;
    let bases = [0x1000, 0x1f_f000, 0x4000_0000, half / 4, half - 0x20_0000];
    bases[input.below(bases.len())] + input.below(24) as u64 * PAGE_SIZE
}

fn prot(input: &mut Input<'_>) -> Prot {
    Prot::from_bits_truncate(input.byte())
}

fn range(start: u64, pages: u64) -> VirtRange {
    VirtRange { start, end: start + pages * PAGE_SIZE }
}

/// Returns the range that user page tables cover.
fn everything<F: Simulate>() -> VirtRange {
    VirtRange { start: 0, end: F::USER.end + PAGE_SIZE }
}

/// Runs the bytes as operations. The lowest bit of the first byte chooses the architecture.
pub fn run(data: &[u8]) {
    let input = &mut Input::new(data);
    if input.byte() & 1 == 0 { operate(X86.with(|vm| *vm), input) } else { operate(RISCV.with(|vm| *vm), input) }
}

fn operate<F: Simulate>(vm: V<F>, input: &mut Input<'_>) {
    let cpu = Cpu::attach(vm, 0).expect("no other thread is this CPU");
    // All leaves map this frame.
    let shown = vm.alloc_frame(Fill::Zeroed, For::User).expect("a frame").into_pfn();
    // SAFETY: the frame belongs to this target.
    let page = unsafe { vm.descriptor(shown) };
    page.set_kind(FrameKind::Object);
    page.set(State::DIRTY);
    // SAFETY: the pmap is used only with this machine, and destroyed below.
    let mut pmap = Box::new(unsafe { <Tables<F> as Pmap<Simulated<F>>>::new(vm) }.expect("page tables"));
    // SAFETY: the CPU leaves the tables before they are freed. If a check fails, the process ends.
    unsafe { cpu.load(&pmap) };
    let mut model: BTreeMap<u64, Prot> = BTreeMap::new();
    while !input.is_over() {
        operation(vm, &pmap, shown, &mut model, input);
        assert_eq!(Pmap::<Simulated<F>>::resident_pages(&*pmap, vm), model.len() as u64);
        let va = address::<F>(input);
        look(&cpu, va, model.get(&va).copied());
    }
    for (va, prot) in &model {
        look(&cpu, *va, Some(*prot));
    }
    cpu.leave();
    Pmap::<Simulated<F>>::clear(&*pmap, vm);
    // SAFETY: the tables were cleared, and the only CPU has left them.
    unsafe { Pmap::<Simulated<F>>::destroy(&mut *pmap, vm) };
    // SAFETY: no table maps the frame any more.
    unsafe { vm.free_pfn(shown) };
}

/// Checks the hardware's translation of an address. If a leaf gained rights, the first access may still fault on the
/// weaker cached translation.
fn look<F: Simulate>(cpu: &Cpu<F>, va: u64, prot: Option<Prot>) {
    let twice = |f: &dyn Fn() -> bool| f() || f();
    let allows = |p: Prot| prot.is_some_and(|has| has.contains(p));
    assert_eq!(twice(&|| cpu.load_word(va).is_ok()), prot.is_some(), "a load at {va:#x}");
    assert_eq!(twice(&|| cpu.store_word(va, 1).is_ok()), allows(Prot::WRITE), "a store at {va:#x}");
    assert_eq!(twice(&|| cpu.fetch(va).is_ok()), allows(Prot::EXEC), "a fetch at {va:#x}");
}

fn operation<F: Simulate>(
    vm: V<F>,
    pmap: &Tables<F>,
    shown: Pfn,
    model: &mut BTreeMap<u64, Prot>,
    input: &mut Input<'_>,
) {
    match input.below(8) {
        0..3 => {
            let (va, prot) = (address::<F>(input), prot(input) | Prot::READ);
            let mut table = Pmap::<Simulated<F>>::table(pmap, vm, va, &vm.epoch().pin()).expect("memory for tables");
            Table::<Simulated<F>>::enter(&mut table, va, Enter::new(shown, prot));
            let all = model.entry(va).or_insert(Prot::empty());
            *all |= prot;
            assert_eq!(Table::<Simulated<F>>::get(&table, va).map(|l| l.prot), Some(*all));
        }
        3 => {
            let r = range(address::<F>(input), 1 + u64::from(input.byte() % 40));
            each(vm, pmap, r, |table, part, owed| {
                let mut at = part.start;
                while let Some(va) = Table::<Simulated<F>>::next_present(table, at, part.end) {
                    let old = table.remove(va, owed).expect("it was found present");
                    assert_eq!(Some(old.prot), model.remove(&va));
                    at = va + PAGE_SIZE;
                }
            });
            assert_eq!(model.range(r.start..r.end).next(), None, "a leaf was skipped");
        }
        4 | 5 => {
            let (r, keep) = (range(address::<F>(input), 1 + u64::from(input.byte() % 40)), prot(input));
            each(vm, pmap, r, |table, part, owed| {
                for va in (part.start..part.end).step_by(PAGE_SIZE as usize) {
                    assert_eq!(table.weaken(va, keep, owed).map(|l| l.prot), model.get(&va).copied());
                }
            });
            keep_of(model, r, Some(keep));
        }
        6 => {
            let r = range(address::<F>(input), 1 + u64::from(input.short() % 600));
            let r = r.intersect(&everything::<F>()).expect("the range begins in it");
            let keep = (input.byte() & 1 == 0).then(|| prot(input));
            let (mut met, mut count) = (Vec::new(), 0);
            each(vm, pmap, r, |table, part, owed| {
                count += Table::<Simulated<F>>::sweep(table, part, keep, owed, |leaf| met.push(leaf.prot));
            });
            assert_eq!(count, met.len() as u64);
            // If only store rights are removed, read-only leaves may be skipped. All other leaves must be visited, once
            // each, in order.
            let only_stores = keep.is_some_and(|k| k.contains(Prot::READ | Prot::EXEC) && !k.contains(Prot::WRITE));
            let must_come = |p: &Prot| !only_stores || p.contains(Prot::WRITE);
            let mut there = model.range(r.start..r.end).map(|(_, p)| *p);
            assert!(met.iter().all(|m| there.by_ref().any(|p| p == *m)), "{met:?} of {model:?}");
            met.retain(must_come);
            assert_eq!(met, model.range(r.start..r.end).map(|(_, p)| *p).filter(must_come).collect::<Vec<_>>());
            keep_of(model, r, keep);
        }
        _ => {
            let start = address::<F>(input) & !((2 << 20) - 1);
            let r = VirtRange { start, end: start + (u64::from(input.short()) + 1) * (2 << 20) };
            Pmap::<Simulated<F>>::prune(pmap, vm, r);
        }
    }
}

/// Reduces the model's leaves in `r` to the rights `keep`. If `keep` is `None` or empty, removes them.
fn keep_of(model: &mut BTreeMap<u64, Prot>, r: VirtRange, keep: Option<Prot>) {
    let keys: Vec<u64> = model.range(r.start..r.end).map(|(k, _)| *k).collect();
    for k in keys {
        match keep.filter(|keep| !keep.is_empty()) {
            None => model.remove(&k),
            Some(keep) => model.insert(k, model[&k] & (keep | Prot::READ)),
        };
    }
}

/// Calls `f` with each locked table and the part of `r` that the table covers. After each call, unlocks the table and
/// does the flushes that `f` has requested.
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
            let rest = VirtRange { start: at, end: r.end };
            let Some(mut table) = Pmap::<Simulated<F>>::next_table(pmap, vm, rest) else { return };
            let part = Table::<Simulated<F>>::span(&table).intersect(&r).expect("the table lies in the range");
            f(&mut table, part, &mut owed);
            at = part.end;
        }
        let _ = owed.discharge();
    }
}
