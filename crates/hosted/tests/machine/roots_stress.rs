//! Per-CPU root tables under several threads. CPUs fault, map, weaken, unmap and fork. They also open arenas (address
//! ranges with their own locks), switch between two spaces and go lazy. No CPU may ever use a stale translation.

use quire_hosted::{Account, Cpu, Hosted, Settings};
use quire_vm::map::{MapRequest, Placement, Space, SpaceRef};
use quire_vm::{PAGE_SIZE, Prot, VirtRange, Vm};
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU64, Ordering};

type V = &'static Vm<Hosted>;

const CPUS: usize = 3;
/// The number of places that each CPU has in each space. Each place has table pages of its own.
const PLACES: u64 = 4;
const APART: u64 = 4 << 20;

/// The state of a place. The word `PagesOfCpu::state` has it in its lowest bits, and a count above, so that the word
/// never repeats.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Is {
    Nothing,
    Writable,
    ReadOnly,
    /// The owner is changing it.
    Changing,
}

const ALL: [Is; 4] = [Is::Nothing, Is::Writable, Is::ReadOnly, Is::Changing];

/// A few pages that one CPU maps and all CPUs read.
struct PagesOfCpu {
    at: u64,
    state: AtomicU64,
    /// The value from which the words of its pages are made.
    stamp: AtomicU64,
}

impl PagesOfCpu {
    fn now(&self) -> (u64, Is) {
        let word = self.state.load(Ordering::SeqCst);
        (word, ALL[word as usize % 4])
    }

    fn set(&self, is: Is) {
        let next = (self.state.load(Ordering::SeqCst) / 4 + 1) * 4;
        self.state.store(next + is as u64, Ordering::SeqCst);
    }

    fn range(&self, pages: u64) -> VirtRange {
        VirtRange { start: self.at, end: self.at + pages * PAGE_SIZE }
    }
}

/// A space and the places of all CPUs in it.
struct World {
    space: SpaceRef<Hosted>,
    places: Vec<Vec<PagesOfCpu>>,
}

impl World {
    fn new(vm: V, cpus: &[Cpu]) -> World {
        let space = Space::new(vm).unwrap();
        let places = cpus.iter().map(|cpu| {
            cpu.enter(&space).unwrap();
            cpu.run(|| space.open_arena(cpu.id()));
            let r = MapRequest::private(Placement::Any { hint: 0 }, PAGE_SIZE);
            let at = cpu.run(|| space.map(&r)).unwrap();
            cpu.run(|| space.unmap(VirtRange { start: at, end: at + PAGE_SIZE })).unwrap();
            let start = at & !((1 << 39) - 1);
            let place = |n| PagesOfCpu { at: start + n * APART, state: AtomicU64::new(0), stamp: AtomicU64::new(0) };
            (0..PLACES).map(place).collect()
        });
        let places = places.collect();
        World { space, places }
    }
}

/// The number of operations of each CPU.
const STEPS: u64 = 6000;

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % n
    }
}

/// Changes one of the CPU's own places.
///
/// # Requires
/// The space is loaded.
fn change(cpu: &Cpu, world: &World, place: &PagesOfCpu, pages: u64, random: &mut Random) {
    let space = &world.space;
    let range = place.range(pages);
    let (word, is) = place.now();
    place.set(Is::Changing);
    let becomes = match is {
        Is::Nothing => {
            let r = MapRequest::private(Placement::Fixed(place.at), pages * PAGE_SIZE);
            cpu.run(|| space.map(&r)).unwrap();
            for va in (range.start..range.end).step_by(PAGE_SIZE as usize) {
                cpu.write(space, va, va ^ word).unwrap();
            }
            place.stamp.store(word, Ordering::SeqCst);
            Is::Writable
        }
        Is::Writable if random.below(2) == 0 => {
            cpu.run(|| space.protect(range, Prot::READ)).unwrap();
            Is::ReadOnly
        }
        Is::ReadOnly if random.below(2) == 0 => {
            cpu.run(|| space.protect(range, Prot::READ | Prot::WRITE)).unwrap();
            Is::Writable
        }
        Is::Writable | Is::ReadOnly => {
            cpu.run(|| space.unmap(range)).unwrap();
            Is::Nothing
        }
        Is::Changing => unreachable!("only its owner changes a place"),
    };
    place.set(becomes);
}

/// Reads a page of any CPU. If the page did not change during the read, it must have the announced state.
///
/// # Requires
/// The space is loaded.
fn look(cpu: &Cpu, world: &World, place: &PagesOfCpu, page: u64) -> bool {
    let va = place.at + page * PAGE_SIZE;
    let (before, is) = place.now();
    if is == Is::Changing {
        return false;
    }
    let stamp = place.stamp.load(Ordering::SeqCst);
    let found = cpu.read(&world.space, va);
    // The store goes to an unused word, because the place may become writable before the store.
    let stored = (is != Is::Writable).then(|| cpu.write(&world.space, va + 8, 0));
    if place.now().0 != before {
        return false;
    }
    match is {
        Is::Nothing => assert!(found.is_err(), "CPU {} reads an unmapped page", cpu.id()),
        _ => assert_eq!(found, Ok(va ^ stamp), "CPU {} reads another value", cpu.id()),
    }
    assert!(!matches!(stored, Some(Ok(()))), "CPU {} stores into a page that is not writable", cpu.id());
    true
}

/// Counts of events, to prove that all of them happened.
#[derive(Default)]
struct Seen {
    looks: AtomicU64,
    forks: AtomicU64,
    dropped: AtomicU64,
}

impl Seen {
    fn everything(&self) -> bool {
        [&self.looks, &self.forks, &self.dropped].iter().all(|n| n.load(Ordering::Relaxed) > 0)
    }
}

/// Does [`STEPS`] operations, and more if some event has not happened yet.
fn run_cpu(cpu: &Cpu, worlds: &[World; 2], seed: u64, seen: &Seen) {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    cpu.disturb(seed);
    let pages = [1, 3, 40][cpu.id() % 3];
    let mut w = 0;
    cpu.enter(&worlds[w].space).unwrap();
    let mut steps = 0;
    while steps < STEPS || !seen.everything() {
        steps += 1;
        let world = &worlds[w];
        let mine = &world.places[cpu.id()][random.below(PLACES) as usize];
        match random.below(64) {
            0..16 => change(cpu, world, mine, pages, &mut random),
            16..48 => {
                let other = random.below(CPUS as u64) as usize;
                let place = &world.places[other][random.below(PLACES) as usize];
                if look(cpu, world, place, 0) {
                    seen.looks.fetch_add(1, Ordering::Relaxed);
                }
            }
            48..54 => {
                w ^= 1;
                cpu.enter(&worlds[w].space).unwrap();
            }
            54..58 => {
                // A kernel thread borrows the space for a while.
                // SAFETY: the CPU has loaded these page tables.
                unsafe { cpu.idle(world.space.page_tables()) };
                std::thread::yield_now();
                cpu.interrupts();
                cpu.enter(&world.space).unwrap();
            }
            58..62 => cpu.run(|| world.space.open_arena(cpu.id())),
            62 => {
                let child = cpu.run(|| world.space.fork()).unwrap();
                if random.below(2) == 0 {
                    cpu.enter(&child).unwrap();
                    for place in &world.places[cpu.id()] {
                        let (_, is) = place.now();
                        let stamp = place.stamp.load(Ordering::SeqCst);
                        match is {
                            Is::Nothing => assert!(cpu.read(&child, place.at).is_err()),
                            _ => assert_eq!(cpu.read(&child, place.at), Ok(place.at ^ stamp)),
                        }
                    }
                    cpu.enter(&world.space).unwrap();
                }
                seen.forks.fetch_add(1, Ordering::Relaxed);
            }
            _ => {
                // The tables are dropped only if no CPU runs the space.
                let other = &worlds[w ^ 1];
                let done = cpu.run(|| other.space.drop_tables());
                seen.dropped.fetch_add(done.is_some().into(), Ordering::Relaxed);
            }
        }
        cpu.interrupts();
    }
    cpu.leave();
}

fn stress(tags: bool) {
    let vm = Hosted::boot(Settings { cpus: CPUS, frames: 16 * 1024, pcid: tags, ..Settings::default() }).unwrap();
    // No thread is attached to a CPU, so this thread acts as CPU 0.
    let before = quire_sync::hooks::threads::as_cpu(0, || Account::of(vm));
    let worlds = {
        let cpus: Vec<Cpu> = (0..CPUS).map(|id| Cpu::attach(vm, id).unwrap()).collect();
        let worlds = [World::new(vm, &cpus), World::new(vm, &cpus)];
        cpus.iter().for_each(Cpu::leave);
        // After a CPU has failed, the machine's state is lost. So the worlds are not freed then.
        ManuallyDrop::new(worlds)
    };
    let seen = Seen::default();
    std::thread::scope(|scope| {
        for id in 0..CPUS {
            let (worlds, seen) = (&worlds, &seen);
            scope.spawn(move || {
                let cpu = Cpu::attach(vm, id).unwrap();
                run_cpu(&cpu, worlds, 7 + id as u64, seen);
            });
        }
    });
    let _cpu = Cpu::attach(vm, 0).unwrap();
    for world in worlds.iter() {
        world.space.check(true).unwrap();
    }
    for (name, n) in [("looks", &seen.looks), ("forks", &seen.forks), ("tables dropped", &seen.dropped)] {
        assert!(n.load(Ordering::Relaxed) > 0, "no {name}");
    }
    drop(ManuallyDrop::into_inner(worlds));
    before.assert_settled(vm);
}

#[test]
fn cpus_with_own_roots_never_see_stale_translations() {
    stress(true);
}

#[test]
fn nor_do_cpus_without_address_space_tags() {
    stress(false);
}
