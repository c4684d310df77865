//! The operations whose allocations fail. Each has one line: the name, the preparation (whose allocations do not fail),
//! the operation, and its effect.

use super::world::*;
use quire_hosted::{Simulate, Simulated};
use quire_vm::map::{Advice, Inherit, MapRequest, Move, Placement, Wire};
use quire_vm::object::ObjectRef;
use quire_vm::{Access, MemoryType, PAGE_SIZE, Prot, Space, VirtRange};
use std::convert::Infallible;

type Run<F> = fn(&mut World<'_, F>) -> Result<(), Failed>;

pub struct Operation<F: Simulate> {
    pub name: &'static str,
    pub prepare: fn(&mut World<'_, F>),
    pub run: Run<F>,
    pub effect: fn(&mut Expected),
    /// Whether the operation needs memory. The test checks this; `None` if it depends on the case.
    pub allocates: Option<bool>,
}

const fn op<F: Simulate>(name: &'static str, run: Run<F>, effect: fn(&mut Expected)) -> Operation<F> {
    Operation { name, prepare: |_| {}, run, effect, allocates: Some(true) }
}

const fn after<F: Simulate>(
    name: &'static str,
    prepare: fn(&mut World<'_, F>),
    run: Run<F>,
    effect: fn(&mut Expected),
) -> Operation<F> {
    Operation { name, prepare, run, effect, allocates: Some(true) }
}

/// An operation that needs memory in some cases.
const fn at_times<F: Simulate>(name: &'static str, run: Run<F>, effect: fn(&mut Expected)) -> Operation<F> {
    Operation { name, prepare: |_| {}, run, effect, allocates: None }
}

/// An operation that must never need memory.
const fn free<F: Simulate>(name: &'static str, run: Run<F>, effect: fn(&mut Expected)) -> Operation<F> {
    Operation { name, prepare: |_| {}, run, effect, allocates: Some(false) }
}

fn same(_: &mut Expected) {}

fn map<F: Simulate>(w: &World<'_, F>, r: MapRequest<'_, Simulated<F>>) -> Result<(), Failed> {
    let at = w.space.map(&r)?;
    match r.at {
        Placement::Fixed(want) | Placement::FixedNoReplace(want) if want != at => {
            Err(Failed::Other(format!("it lies at {at:#x}")))
        }
        _ => Ok(()),
    }
}

fn of_shared<'w, F: Simulate>(w: &'w World<'_, F>, first: u64, pages: u64, at: u64) -> MapRequest<'w, Simulated<F>> {
    MapRequest { object: Some((&w.shared, at * PAGE_SIZE)), shared: true, ..request(first, pages) }
}

fn of_the_file<'w, F: Simulate>(
    w: &'w World<'_, F>,
    first: u64,
    pages: u64,
    prot: Prot,
) -> MapRequest<'w, Simulated<F>> {
    MapRequest { object: Some((&w.file, 0)), prot, ..request(first, pages) }
}

fn advise<F: Simulate>(w: &World<'_, F>, first: u64, pages: u64, advice: Advice) -> Result<(), Failed> {
    Ok(w.space.advise(range(first, pages), advice)?)
}

/// Wires a range, and makes it resident if `how` says so.
fn wire<F: Simulate>(w: &World<'_, F>, first: u64, pages: u64, how: Wire) -> Result<(), Failed> {
    w.space.wire(range(first, pages), how)?;
    if how == Wire::Now {
        w.space.make_resident(range(first, pages))?;
    }
    Ok(())
}

/// The page where a device's registers are mapped. The test does not compare these pages.
const REGISTERS: u64 = END + 100;

fn map_device<F: Simulate>(w: &mut World<'_, F>) -> Result<(), Failed> {
    // SAFETY: these are the simulated device's own frames, after the end of RAM.
    let device = unsafe { ObjectRef::device(w.vm, w.vm.machine().devices(), MemoryType::Uncached) }?;
    map(w, MapRequest { object: Some((&device, 0)), shared: true, ..request(REGISTERS, DEVICE_FRAMES) })
}

fn remap<F: Simulate>(w: &World<'_, F>, first: u64, old: u64, new: u64, how: Move, keep: bool) -> Result<(), Failed> {
    w.space.remap(range(first, old), new * PAGE_SIZE, how, keep).map(drop).map_err(Failed::from)
}

fn fault<F: Simulate>(w: &World<'_, F>, n: u64, access: Access) -> Result<(), Failed> {
    w.space.fault(page(n), access).map(drop).map_err(Failed::from)
}

fn store<F: Simulate>(w: &World<'_, F>, n: u64, value: u64) -> Result<(), Failed> {
    w.cpu.write(&w.space, page(n), value).map_err(Failed::from)
}

/// Stores a number into page `n` of the shared object, without a mapping.
fn write_object<F: Simulate>(w: &World<'_, F>, n: u64) -> Result<(), Failed> {
    w.shared.write::<Infallible>(n * PAGE_SIZE, 8, &mut |to| {
        to.copy_from(&(700 + n).to_le_bytes());
        Ok(8)
    })?;
    Ok(())
}

/// Pages out the pages that no other space maps.
fn page_out<F: Simulate>(w: &mut World<'_, F>) {
    drop(w.child.take());
    assert!(w.page_out_everything().is_ok());
}

/// Pages out, and shares the swapped pages with a child.
fn page_out_and_fork<F: Simulate>(w: &mut World<'_, F>) {
    page_out(w);
    w.made.push(w.space.fork().expect("memory"));
}

/// Keeps a child for as long as the world lives.
fn keep<F: Simulate>(w: &mut World<'_, F>, child: quire_vm::SpaceRef<Simulated<F>>) -> Result<(), Failed> {
    w.made.push(child);
    Ok(())
}

fn map_hole<F: Simulate>(w: &mut World<'_, F>) {
    assert!(map(w, request(HOLE, 8)).is_ok());
    w.expected.set(HOLE, 8, |_| Some(0));
}

/// The effect of a move of `n` pages. `old` is the content of the old place after the move.
fn moved(e: &mut Expected, from: u64, to: u64, n: u64, old: Content) {
    for i in 0..n {
        e.pages[(to + i) as usize] = e.pages[(from + i) as usize];
        e.pages[(from + i) as usize] = old;
    }
}

pub fn operations<F: Simulate>() -> Vec<Operation<F>> {
    vec![
        // Mappings.
        op("map, empty place", |w| map(w, request(HOLE, 8)), |e| e.set(HOLE, 8, |_| Some(0))),
        op(
            "map, wherever there is room",
            |w| map(w, MapRequest { at: Placement::Any { hint: 0 }, ..request(HOLE, 8) }),
            same,
        ),
        op(
            "map, in the middle of another",
            |w| map(w, request(PRIVATE + 8, 4)),
            |e| e.set(PRIVATE + 8, 4, |_| Some(0)),
        ),
        op("map, over several", |w| map(w, request(PRIVATE + 8, 200)), |e| e.set(PRIVATE + 8, 200, |_| Some(0))),
        op(
            "map, joining a neighbour",
            |w| map(w, MapRequest { at: Placement::FixedNoReplace(page(PRIVATE + 32)), ..request(PRIVATE + 32, 4) }),
            |e| e.set(PRIVATE + 32, 4, |_| Some(0)),
        ),
        op(
            "map, shared object",
            |w| map(w, of_shared(w, HOLE, 8, 4)),
            |e| e.set(HOLE, 8, |i| Some(if i < 4 { 304 + i } else { 0 })),
        ),
        op(
            "map, shared memory",
            |w| map(w, MapRequest { shared: true, ..request(HOLE, 8) }),
            |e| e.set(HOLE, 8, |_| Some(0)),
        ),
        op("map, file", |w| map(w, of_the_file(w, HOLE, 8, RW)), |e| e.set(HOLE, 8, |i| Some(of_file(i)))),
        op(
            "map, file, over its own mapping",
            |w| map(w, of_the_file(w, TEXT + 4, 8, Prot::READ)),
            |e| e.set(TEXT + 4, 8, |i| Some(of_file(i))),
        ),
        op(
            "map and make resident",
            |w| map(w, MapRequest { populate: true, ..request(HOLE, 40) }),
            |e| e.set(HOLE, 40, |_| Some(0)),
        ),
        op("unmap, middle", |w| Ok(w.space.unmap(range(PRIVATE + 8, 4))?), |e| e.set(PRIVATE + 8, 4, |_| None)),
        op(
            "unmap, the middle of memory that a child shares",
            |w| Ok(w.space.unmap(range(FORKED + 8, 4))?),
            |e| e.set(FORKED + 8, 4, |_| None),
        ),
        op(
            "unmap, from one into another",
            |w| Ok(w.space.unmap(range(PRIVATE + 8, 130))?),
            |e| e.set(PRIVATE + 8, 130, |_| None),
        ),
        free(
            "unmap, everything",
            |w| Ok(w.space.unmap(VirtRange { start: 0x1000, end: F::USER.end })?),
            |e| e.set(0, END, |_| None),
        ),
        // Rights.
        op("protect, all of it", |w| Ok(w.space.protect(range(PRIVATE, 32), Prot::READ)?), same),
        op("protect, middle", |w| Ok(w.space.protect(range(FORKED + 8, 8), Prot::READ)?), same),
        op(
            "protect, to nothing",
            |w| Ok(w.space.protect(range(FORKED + 8, 8), Prot::empty())?),
            |e| e.set(FORKED + 8, 8, |_| None),
        ),
        op("protect, to stores into a file's text", |w| Ok(w.space.protect(range(TEXT + 4, 4), RW)?), same),
        // Advice.
        at_times("discard private memory", |w| forget_twice(w, PRIVATE), |e| e.set(PRIVATE, 32, |_| Some(0))),
        at_times("discard memory that a child shares", |w| forget_twice(w, FORKED), |e| e.set(FORKED, 32, |_| Some(0))),
        free("discard shared memory", |w| advise(w, SHARED, 32, Advice::DontNeed), same),
        at_times(
            "discard copies of a file's pages",
            |w| forget_twice(w, FILE),
            |e| e.set(FILE, 16, |i| Some(of_file(i))),
        ),
        free(
            "punch a hole",
            |w| advise(w, SHARED + 2, 4, Advice::Remove),
            |e| {
                e.set(SHARED + 2, 4, |_| Some(0));
                (2..6).for_each(|i| {
                    e.object[i] = 0;
                    e.child[SHARED as usize + i] = Some(0);
                });
            },
        ),
        op("leave out of forks", |w| Ok(w.space.inherit(range(PRIVATE + 4, 4), Inherit::NONE)?), same),
        op("wipe in forks", |w| Ok(w.space.inherit(range(FORKED + 4, 4), Inherit::ZERO)?), same),
        op("make resident for stores", |w| advise(w, PRIVATE, 32, Advice::PopulateWrite), same),
        op("make resident for loads", |w| advise(w, TEXT, 16, Advice::PopulateRead), same),
        at_times("advise to read ahead", |w| advise(w, TEXT, 16, Advice::WillNeed), same),
        free("page out", |w| w.page_out_everything(), same),
        // Wiring.
        op("wire, all of it", |w| wire(w, PRIVATE, 32, Wire::Now), same),
        op("wire, the middle of memory that a child shares", |w| wire(w, FORKED + 8, 8, Wire::Now), same),
        op("wire a file's text", |w| wire(w, TEXT + 4, 4, Wire::Now), same),
        op("wire from the first use on", |w| wire(w, SHARED + 8, 8, Wire::OnFault), same),
        after(
            "unwire, middle",
            |w| assert!(wire(w, FORKED, 32, Wire::Now).is_ok()),
            |w| wire(w, FORKED + 8, 8, Wire::No),
            same,
        ),
        after(
            "fork a wired range",
            |w| assert!(wire(w, FORKED, 32, Wire::Now).is_ok()),
            |w| keep(w, w.space.fork()?),
            same,
        ),
        op(
            "map, wired",
            |w| map(w, MapRequest { wire: Wire::Now, ..request(HOLE, 8) }),
            |e| e.set(HOLE, 8, |_| Some(0)),
        ),
        // Devices.
        op("map a device", map_device, same),
        after("fault: a device", |w| assert!(map_device(w).is_ok()), |w| fault(w, REGISTERS, Access::Write), same),
        after(
            "unmap a part of a device",
            |w| assert!(map_device(w).is_ok() && fault(w, REGISTERS, Access::Read).is_ok()),
            |w| Ok(w.space.unmap(range(REGISTERS + 1, 2))?),
            same,
        ),
        // Moves.
        op("grow in place", |w| remap(w, PRIVATE, 32, 40, Move::No, false), |e| e.set(PRIVATE + 32, 8, |_| Some(0))),
        op(
            "grow in place, a range that a child shares",
            |w| remap(w, FORKED, 32, 40, Move::No, false),
            |e| e.set(FORKED + 32, 8, |_| Some(0)),
        ),
        op("shrink", |w| remap(w, PRIVATE, 32, 8, Move::No, false), |e| e.set(PRIVATE + 8, 24, |_| None)),
        op("move", |w| remap(w, PRIVATE, 32, 32, Move::To(page(HOLE)), false), |e| moved(e, PRIVATE, HOLE, 32, None)),
        op(
            "move a part, and grow",
            |w| remap(w, FORKED + 4, 8, 12, Move::To(page(HOLE)), false),
            |e| {
                moved(e, FORKED + 4, HOLE, 8, None);
                e.set(HOLE + 8, 4, |_| Some(0));
            },
        ),
        op(
            "move, and leave nothing behind but room",
            |w| remap(w, PRIVATE, 32, 32, Move::To(page(HOLE)), true),
            |e| moved(e, PRIVATE, HOLE, 32, Some(0)),
        ),
        op(
            "map shared memory twice",
            |w| remap(w, SHARED, 0, 8, Move::To(page(HOLE)), false),
            |e| e.set(HOLE, 8, |i| Some(300 + i)),
        ),
        // Address spaces.
        op("fork", |w| keep(w, w.space.fork()?), same),
        op("fork, and again", |w| keep(w, w.space.fork()?.fork()?), same),
        after(
            "fork memory that a grandchild showed",
            |w| {
                drop(w.child.take());
                w.made.push(w.space.fork().expect("memory"));
                w.cpu.write(&w.space, page(FORKED + 1), 1).expect("memory");
                w.expected.pages[FORKED as usize + 1] = Some(1);
                w.made.clear();
            },
            |w| keep(w, w.space.fork()?),
            same,
        ),
        op("start a program", exec, same),
        op("grow a stack", |w| Ok(w.space.grow_stack(page(STACK - 5))?), |e| e.set(STACK - 5, 5, |_| Some(0))),
        op(
            "fault: below a stack that may grow",
            |w| Ok(w.space.grow_stack_at_fault(page(STACK - 5))?),
            |e| e.set(STACK - 5, 5, |_| Some(0)),
        ),
        free(
            "drop the tables",
            |w| {
                drop_tables(w);
                Ok(())
            },
            same,
        ),
        after("one fault after tables were dropped", |w| drop_tables(w), |w| fault(w, PRIVATE, Access::Read), same),
        // Faults.
        op("fault: zeroes", |w| store(w, PRIVATE + 20, 9), |e| e.set(PRIVATE + 20, 1, |_| Some(9))),
        free("fault: zeroes to read", |w| fault(w, PRIVATE + 20, Access::Read), same),
        after("fault: first touch", map_hole, |w| store(w, HOLE, 9), |e| e.set(HOLE, 1, |_| Some(9))),
        op("fault: copy", |w| store(w, FORKED + 1, 9), |e| e.set(FORKED + 1, 1, |_| Some(9))),
        op("fault: copy of a file's page", |w| store(w, FILE + 8, 9), |e| e.set(FILE + 8, 1, |_| Some(9))),
        op("fault: a file's page", |w| fault(w, TEXT + 12, Access::Exec), same),
        op(
            "fault: a hole of shared memory",
            |w| store(w, SHARED + 20, 9),
            |e| {
                e.set(SHARED + 20, 1, |_| Some(9));
                e.object[20] = 9;
                e.child[SHARED as usize + 20] = Some(9);
            },
        ),
        after("fault: back from swap", page_out, |w| fault(w, PRIVATE + 3, Access::Read), same),
        after(
            "fault: back from swap for a store",
            page_out,
            |w| store(w, SHARED + 3, 9),
            |e| {
                e.set(SHARED + 3, 1, |_| Some(9));
                e.object[3] = 9;
                e.child[SHARED as usize + 3] = Some(9);
            },
        ),
        after(
            "fault: copy of a page in swap",
            page_out_and_fork,
            |w| store(w, FORKED + 3, 9),
            |e| e.set(FORKED + 3, 1, |_| Some(9)),
        ),
        // Files.
        op(
            "write to an object",
            |w| write_object(w, 8),
            |e| {
                e.object[8] = 708;
                e.pages[SHARED as usize + 8] = Some(708);
                e.child[SHARED as usize + 8] = Some(708);
            },
        ),
        free(
            "write to a present page of an object",
            |w| write_object(w, 2),
            |e| {
                e.object[2] = 702;
                e.pages[SHARED as usize + 2] = Some(702);
                e.child[SHARED as usize + 2] = Some(702);
            },
        ),
        after(
            "write to a page in swap",
            page_out,
            |w| write_object(w, 2),
            |e| {
                e.object[2] = 702;
                e.pages[SHARED as usize + 2] = Some(702);
            },
        ),
        op("read a file", read_file, same),
        free(
            "shorten an object",
            |w| {
                w.shared.set_size(4 * PAGE_SIZE);
                Ok(())
            },
            |e| {
                (4..64).for_each(|n| e.object[n] = 0);
                e.set(SHARED + 4, 28, |_| None);
                (4..32).for_each(|n| e.child[SHARED as usize + n] = None);
            },
        ),
        free(
            "discard pages of an object",
            |w| {
                w.shared.discard(0..4);
                Ok(())
            },
            |e| {
                (0..4).for_each(|n| {
                    e.object[n] = 0;
                    e.pages[SHARED as usize + n] = Some(0);
                    e.child[SHARED as usize + n] = Some(0);
                })
            },
        ),
        after("read a page in swap", page_out, read_shared, same),
    ]
}

/// Discards pages. The first call may fail after a part; a second call completes it.
fn forget_twice<F: Simulate>(w: &World<'_, F>, first: u64) -> Result<(), Failed> {
    let pages = if first == FILE { 16 } else { 32 };
    advise(w, first, pages, Advice::DontNeed).or_else(|e| match e {
        Failed::Memory => advise(w, first, pages, Advice::DontNeed),
        other => Err(other),
    })
}

/// Does what exec does: makes a new space with a program's mappings, which replaces the old one.
fn exec<F: Simulate>(w: &mut World<'_, F>) -> Result<(), Failed> {
    let space = Space::new(w.vm)?;
    space.map(&of_the_file(w, TEXT, 16, Prot::READ | Prot::EXEC))?;
    space.map(&of_the_file(w, FILE, 16, RW))?;
    space.map(&request(PRIVATE, 32))?;
    space.map(&MapRequest { grows_down: true, ..request(STACK, 4) })?;
    for n in [STACK, PRIVATE, FILE + 2] {
        w.cpu.enter(&space).unwrap();
        let done = w.cpu.write(&space, page(n), 1);
        w.cpu.enter(&w.space).unwrap();
        done?;
    }
    w.made.push(space);
    Ok(())
}

fn drop_tables<F: Simulate>(w: &World<'_, F>) {
    w.cpu.leave();
    let dropped = w.space.drop_tables();
    w.cpu.enter(&w.space).unwrap();
    assert!(dropped.is_some_and(|d| d.leaves > 0), "the space has tables, and no CPU runs it");
}

fn read_file<F: Simulate>(w: &mut World<'_, F>) -> Result<(), Failed> {
    for n in 0..16 {
        let mut word = 0;
        w.file.read::<Infallible>(n * PAGE_SIZE, 8, &mut |from| {
            let mut bytes = [0; 8];
            from.copy_to(&mut bytes);
            word = u64::from_le_bytes(bytes);
            Ok(8)
        })?;
        if word != of_file(n) {
            return Err(Failed::Other(format!("page {n} of the file is {word:#x}")));
        }
    }
    Ok(())
}

fn read_shared<F: Simulate>(w: &mut World<'_, F>) -> Result<(), Failed> {
    for n in 0..8 {
        let mut word = 0;
        w.shared.read::<Infallible>(n * PAGE_SIZE, 8, &mut |from| {
            let mut bytes = [0; 8];
            from.copy_to(&mut bytes);
            word = u64::from_le_bytes(bytes);
            Ok(8)
        })?;
        if word != w.expected.object[n as usize] {
            return Err(Failed::Other(format!("page {n} of the object is {word:#x}")));
        }
    }
    Ok(())
}
