//! Store protection of whole table pages, under several threads. Two CPUs store into a region of two table pages. Other
//! CPUs fork the space, read the children, and protect, drop or move parts of the region.

use quire_hosted::{Account, Cpu, Settings, Simulate, Simulated};
use quire_vm::map::{Advice, MapRequest, Placement, Space, SpaceRef};
use quire_vm::{Access, PAGE_SIZE, Prot, VirtRange, Vm};
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, Ordering};

quire_hosted::of_each_architecture!(stores_restored_by_table_page_reach_no_other_sharer);

const BASE: u64 = 0x20_0000_0000;
const PAGES: u64 = 1024;
/// The number of CPUs that store, each into pages of its own.
const STORING: u64 = 2;
/// The number of changes of the region by each of the other CPUs.
const ROUNDS: u64 = 800;

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % n
    }
}

fn page(n: u64) -> u64 {
    BASE + n * PAGE_SIZE
}

fn range(first: u64, pages: u64) -> VirtRange {
    VirtRange { start: page(first), end: page(first + pages) }
}

/// Stores rising numbers into the CPU's own pages, and checks that it reads them back. Returns the last number in each
/// page.
fn store<F: Simulate>(cpu: &Cpu<F>, space: &SpaceRef<Simulated<F>>, stop: &AtomicBool) -> Vec<u64> {
    let mut random = Random(88_172_645_463_325_252 + cpu.id() as u64);
    let mut stored = vec![0; PAGES as usize];
    let mut count = 0;
    cpu.enter(space).unwrap();
    while !stop.load(Ordering::SeqCst) {
        // The CPU stores into many consecutive pages, so that most of both table pages are stored into before the next
        // fork.
        let (first, len) = (random.below(PAGES), random.below(300));
        for n in (first..(first + len).min(PAGES)).filter(|n| n % STORING == cpu.id() as u64) {
            count += 1;
            // The store fails while the region is read-only.
            if cpu.write(space, page(n), count).is_ok() {
                stored[n as usize] = count;
            }
            assert_eq!(cpu.read(space, page(n)), Ok(stored[n as usize]), "page {n}");
        }
    }
    cpu.leave();
    stored
}

/// Does one random operation, most of which remove store rights.
fn disturb<F: Simulate>(
    cpu: &Cpu<F>,
    space: &Space<Simulated<F>>,
    random: &mut Random,
    kept: &mut Vec<SpaceRef<Simulated<F>>>,
) {
    match random.below(8) {
        0..4 => {
            let child = cpu.run(|| space.fork()).unwrap();
            cpu.enter(&child).unwrap();
            // The child must have the contents of one moment, except its own stores.
            let pages: Vec<u64> = (0..40).map(|_| random.below(PAGES)).collect();
            let seen: Vec<u64> = pages.iter().map(|n| cpu.read(&child, page(*n)).unwrap()).collect();
            let own = random.below(PAGES);
            let writes = cpu.write(&child, page(own), u64::MAX).is_ok();
            for (n, seen) in pages.iter().zip(seen) {
                let expected = if writes && *n == own { u64::MAX } else { seen };
                assert_eq!(cpu.read(&child, page(*n)), Ok(expected), "the child's page {n}");
            }
            cpu.leave();
            if kept.len() < 3 && random.below(2) == 0 { kept.push(child) } else { cpu.run(|| drop(child)) }
        }
        4 => {
            let (first, len) = if random.below(2) == 0 { (0, PAGES) } else { (random.below(900), 100) };
            cpu.run(|| space.protect(range(first, len), Prot::READ)).unwrap();
            if random.below(3) == 0 {
                kept.push(cpu.run(|| space.fork()).unwrap());
            }
            cpu.run(|| space.protect(range(0, PAGES), Prot::READ | Prot::WRITE)).unwrap();
        }
        5 => {
            cpu.run(|| space.advise(range(random.below(900), 100), Advice::PageOut)).unwrap();
        }
        6 => cpu.run(|| {
            let n = random.below(PAGES);
            // A load makes the page, so that store-protected table pages get new leaves.
            let _any = space.fault(page(n), Access::Read);
        }),
        _ => {
            let n = random.below(kept.len() as u64 + 1) as usize;
            if n < kept.len() {
                let child = kept.swap_remove(n);
                cpu.run(|| drop(child));
            }
        }
    }
}

/// When dropped, ends the loops of the other threads, even if this thread fails.
struct StopOnDrop<'s>(&'s AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

fn stores_restored_by_table_page_reach_no_other_sharer<F: Simulate>() {
    let vm: &'static Vm<Simulated<F>> =
        Simulated::boot(Settings { cpus: 4, frames: 24 * 1024, ..Settings::default() }).unwrap();
    let account = {
        let _cpu = Cpu::attach(vm, 0).unwrap();
        Account::of(vm)
    };
    let space = {
        let cpu = Cpu::attach(vm, 0).unwrap();
        let space = Space::new(vm).unwrap();
        assert_eq!(space.map(&MapRequest::private(Placement::Fixed(BASE), PAGES * PAGE_SIZE)), Ok(BASE));
        cpu.enter(&space).unwrap();
        (0..PAGES).for_each(|n| cpu.write(&space, page(n), 0).unwrap());
        cpu.leave();
        ManuallyDrop::new(space)
    };
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        let storing: Vec<_> = (0..STORING as usize)
            .map(|id| {
                let (space, stop) = (&space, &stop);
                s.spawn(move || {
                    let cpu = Cpu::attach(vm, id).unwrap();
                    cpu.disturb(7 + id as u64);
                    store(&cpu, space, stop)
                })
            })
            .collect();
        let disturbing: Vec<_> = [2, 3]
            .into_iter()
            .map(|id| {
                let (space, stop) = (&space, &stop);
                s.spawn(move || {
                    let cpu = Cpu::attach(vm, id).unwrap();
                    cpu.disturb(7 + id as u64);
                    let (mut random, mut kept) = (Random(0x9e37_79b9_7f4a_7c15 + id as u64), Vec::new());
                    let _stop = StopOnDrop(stop);
                    (0..ROUNDS).for_each(|_| disturb(&cpu, space, &mut random, &mut kept));
                    cpu.run(|| kept.clear());
                })
            })
            .collect();
        disturbing.into_iter().for_each(|t| t.join().unwrap());
        let stored: Vec<Vec<u64>> = storing.into_iter().map(|t| t.join().unwrap()).collect();
        let cpu = Cpu::attach(vm, 0).unwrap();
        cpu.enter(&space).unwrap();
        space.check(true).unwrap();
        for n in 0..PAGES {
            assert_eq!(cpu.read(&space, page(n)), Ok(stored[(n % STORING) as usize][n as usize]), "page {n}");
        }
        cpu.leave();
    });
    let _cpu = Cpu::attach(vm, 0).unwrap();
    drop(ManuallyDrop::into_inner(space));
    account.assert_settled(vm);
}
