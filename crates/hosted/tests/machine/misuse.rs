//! Misuse by an embedder that writes no `unsafe` code. Each misuse is refused, and the machine keeps working (relies on
//! C10).
#![forbid(unsafe_code)]

use quire_hosted::{AttachError, Cpu, ForeignSpace, Hosted, NoMachine, Settings};
use quire_vm::content::IoError;
use quire_vm::map::{Advice, MapRequest, Move, Placement, Space, SpaceRef, USER, Wire};
use quire_vm::phys::frames::{Fill, For};
use quire_vm::{BootError, FaultError, MapError, ObjectRef, PAGE_SIZE, Prot, VirtRange, Vm};

fn boot(cpus: usize) -> &'static Vm<Hosted> {
    Hosted::boot(Settings { cpus, frames: 4096, ..Settings::default() }).unwrap()
}

#[test]
fn a_machine_without_cpus_or_with_too_many_is_an_error() {
    for cpus in [0, 257, usize::MAX] {
        let refused = Hosted::boot(Settings { cpus, ..Settings::default() }).err();
        assert_eq!(refused, Some(NoMachine::Core(BootError::BadCpus(cpus))));
    }
    let vm = Hosted::boot(Settings { cpus: 256, frames: 16 * 1024, ..Settings::default() }).unwrap();
    let cpu = Cpu::attach(vm, 255).unwrap();
    let space = Space::new(vm).unwrap();
    let at = space.map(&MapRequest::private(Placement::Any { hint: 0 }, PAGE_SIZE)).unwrap();
    cpu.enter(&space).unwrap();
    cpu.write(&space, at, 7).unwrap();
    cpu.leave();
}

#[test]
fn ram_that_is_too_small_or_too_large_is_an_error() {
    for frames in [0, 1, 2, 3, 10, 100, u64::from(u32::MAX), u64::MAX] {
        let refused = Hosted::boot(Settings { frames, ..Settings::default() }).err();
        assert!(matches!(refused, Some(NoMachine::Core(_))), "{frames} frames: {refused:?}");
    }
    let settings = Settings { frames: 4096, device_frames: u64::MAX, ..Settings::default() };
    assert!(matches!(Hosted::boot(settings).err(), Some(NoMachine::Core(BootError::BadRange(_)))));
}

#[test]
fn a_thread_cannot_become_an_absent_or_taken_cpu() {
    let vm = boot(2);
    let first = Cpu::attach(vm, 0).unwrap();
    for id in [2, 99, 256, usize::MAX] {
        assert_eq!(Cpu::attach(vm, id).err(), Some(AttachError::NoSuchCpu { cpus: 2 }));
    }
    std::thread::spawn(move || assert_eq!(Cpu::attach(vm, 0).err(), Some(AttachError::Taken))).join().unwrap();
    drop(first);
    std::thread::spawn(move || drop(Cpu::attach(vm, 0).unwrap())).join().unwrap();
}

#[test]
fn a_thread_that_is_no_cpu_is_refused_before_it_can_do_harm() {
    let vm = boot(2);
    let cpu = Cpu::attach(vm, 0).unwrap();
    let space = Space::new(vm).unwrap();
    let stranger = |f: &(dyn Fn(&Space<Hosted>) + Sync)| {
        let space = &space;
        std::thread::scope(|scope| scope.spawn(move || f(space)).join().is_err())
    };
    assert!(stranger(&|space| drop(Space::new(space.vm()))));
    assert!(stranger(&|space| {
        let _refused = space.map(&MapRequest::private(Placement::Any { hint: 0 }, PAGE_SIZE));
    }));
    assert!(stranger(&|space| {
        let _refused = space.fault(0x1000, quire_vm::Access::Read);
    }));
    // A thread that has detached from its CPU is refused too.
    assert!(stranger(&|space| {
        drop(Cpu::attach(vm, 1).unwrap());
        drop(Space::new(space.vm()));
    }));
    let at = space.map(&MapRequest::private(Placement::Any { hint: 0 }, PAGE_SIZE)).unwrap();
    cpu.enter(&space).unwrap();
    cpu.write(&space, at, 7).unwrap();
    assert_eq!(cpu.read(&space, at), Ok(7));
    cpu.leave();
}

#[test]
fn objects_and_frames_of_another_system_are_refused() {
    let (here, there) = (boot(1), boot(1));
    let cpus = [Cpu::attach(there, 0).unwrap(), Cpu::attach(here, 0).unwrap()];
    let free = [here, there].map(|vm| vm.frames().free());
    let space = Space::new(here).unwrap();
    let foreign = ObjectRef::anonymous(there, 4).unwrap();
    for shared in [true, false] {
        let request = MapRequest {
            shared,
            object: Some((&foreign, 0)),
            ..MapRequest::private(Placement::Any { hint: 0 }, PAGE_SIZE)
        };
        assert_eq!(space.map(&request), Err(MapError::Foreign));
    }
    assert_eq!(space.stats().entries, 0);

    let strange = Space::new(there).unwrap();
    let [_other, cpu] = &cpus;
    cpu.enter(&space).unwrap();
    assert_eq!(cpu.enter(&strange), Err(ForeignSpace));
    assert_eq!(cpu.read(&strange, 0x1000), Err(FaultError::Foreign));
    assert_eq!(cpu.write(&strange, 0x1000, 1), Err(FaultError::Foreign));
    cpu.leave();

    let frame = there.alloc_frame(Fill::Any, For::User).unwrap();
    let refused = here.free_frame(frame).unwrap_err();
    there.free_frame(refused.0).unwrap();
    drop((space, strange, foreign));
    for vm in [here, there] {
        vm.epoch().drain();
        assert_eq!(vm.frames().check(), Ok(()));
    }
    assert_eq!([here, there].map(|vm| vm.frames().total() - vm.frames().free() < 300), [true; 2], "{free:?}");
}

#[test]
fn readers_and_writers_of_the_same_page_at_the_same_time_get_copies() {
    let vm = boot(1);
    let _cpu = Cpu::attach(vm, 0).unwrap();
    let object = ObjectRef::anonymous(vm, 4).unwrap();
    let write = |text: &[u8]| object.write::<()>(0, text.len(), &mut |to| Ok(to.copy_from(text))).unwrap();
    write(b"before");
    let mut copies = [[0; 6]; 2];
    let read = object.read::<()>(0, 6, &mut |bytes| {
        bytes.copy_to(&mut copies[0]);
        write(b"behind");
        Ok(bytes.copy_to(&mut copies[1]))
    });
    assert_eq!((read, copies), (Ok(6), [*b"before", *b"behind"]));
    // A write inside a write, to a page that exists and to a new one.
    for at in [0, PAGE_SIZE] {
        let mut inner = [0; 6];
        let outer = object.write::<()>(at, 6, &mut |outer| {
            outer.copy_from(b"outer.");
            object.write::<()>(at, 6, &mut |to| Ok(to.copy_from(b"inner."))).unwrap();
            object.read::<()>(at, 6, &mut |bytes| Ok(bytes.copy_to(&mut inner))).unwrap();
            Ok(outer.copy_from(b"last.."))
        });
        assert_eq!((outer, inner), (Ok(6), *b"inner."));
        let mut last = [0; 6];
        object.read::<()>(at, 6, &mut |bytes| Ok(bytes.copy_to(&mut last))).unwrap();
        assert_eq!(&last, b"last..");
    }
    // More bytes than lent are not copied.
    let lent = object.read::<()>(6, 2, &mut |bytes| {
        assert_eq!((bytes.len(), bytes.get(1), bytes.get(2)), (2, Some(0), None));
        assert_eq!((bytes.copy_to(&mut [0; 9]), bytes.copy_to_from(9, &mut [0; 9])), (2, 0));
        Ok(bytes.len())
    });
    assert_eq!(lent, Ok(2));
}

#[test]
fn a_panic_of_the_source_frees_the_frame_that_it_was_to_fill() {
    let vm = boot(1);
    let _cpu = Cpu::attach(vm, 0).unwrap();
    let object = ObjectRef::anonymous(vm, 4).unwrap();
    object.write::<()>(0, 1, &mut |to| Ok(to.copy_from(b"a"))).unwrap();
    let free = vm.frames().free();
    for page in [0, 1] {
        let panics = || object.write::<()>(page * PAGE_SIZE, PAGE_SIZE as usize, &mut |_| panic!("the source's own"));
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(panics)).is_err());
    }
    assert_eq!((vm.frames().free(), object.resident()), (free, 1));
    object.write::<()>(PAGE_SIZE, 1, &mut |to| Ok(to.copy_from(b"a"))).unwrap();
    vm.check(true).unwrap();
}

#[test]
fn a_space_that_a_cpu_has_entered_outlives_its_last_handle() {
    let vm = boot(2);
    let cpu = Cpu::attach(vm, 0).unwrap();
    let space = Space::new(vm).unwrap();
    let at = space.map(&MapRequest::private(Placement::Any { hint: 0 }, PAGE_SIZE)).unwrap();
    cpu.enter(&space).unwrap();
    cpu.write(&space, at, 7).unwrap();
    std::thread::scope(|scope| {
        let other = scope.spawn(move || {
            let other = Cpu::attach(vm, 1).unwrap();
            other.run(|| drop(space));
            // Frames that were freed by the drop would be used again here.
            let space = Space::new(vm).unwrap();
            let all = MapRequest { populate: true, ..MapRequest::private(Placement::Any { hint: 0 }, 64 * PAGE_SIZE) };
            space.map(&all).unwrap();
            drop(space);
        });
        while !other.is_finished() {
            cpu.interrupts();
            assert_eq!(cpu.load_word(at), Ok(7));
        }
    });
    assert_eq!(cpu.load_word(at), Ok(7));
    cpu.leave();
    vm.epoch().drain();
    vm.check(true).unwrap();
}

#[test]
fn offsets_at_the_end_of_all_offsets_are_refused() {
    let vm = boot(1);
    let _cpu = Cpu::attach(vm, 0).unwrap();
    let object = ObjectRef::anonymous(vm, 4).unwrap();
    let write = |at: u64, len: usize| object.write::<()>(at, len, &mut |to| Ok(to.len()));
    for at in [u64::MAX, u64::MAX - 1, u64::MAX - PAGE_SIZE + 1] {
        for len in [1, 10, usize::MAX] {
            assert_eq!(write(at, len), Err(IoError::TooLarge), "{len} bytes at {at:#x}");
            assert_eq!(object.read::<()>(at, len, &mut |from| Ok(from.len())), Ok(0));
        }
        assert_eq!(object.zero(at..u64::MAX), Ok(()));
    }
    // The last byte of a write that begins lower is beyond all sizes.
    assert_eq!(write(u64::MAX - PAGE_SIZE, 10), Ok(1));
    assert_eq!((object.size(), object.resident()), (u64::MAX - PAGE_SIZE + 1, 1));
    vm.check(true).unwrap();
}

/// Random numbers that are determined by the seed.
struct Random(fastrand::Rng);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0.u64(..n)
    }

    /// Returns mostly a page of a small range, sometimes an impossible address.
    fn address(&mut self) -> u64 {
        match self.below(16) {
            0 => [0, 1, u64::MAX, u64::MAX - PAGE_SIZE + 1, 1 << 63, USER.end, USER.end - PAGE_SIZE]
                [self.below(7) as usize],
            1 => BASE + self.below(64 * PAGE_SIZE),
            _ => BASE + self.below(64) * PAGE_SIZE,
        }
    }

    /// Returns a range that may be reversed, empty or misaligned.
    fn range(&mut self) -> VirtRange {
        VirtRange { start: self.address(), end: self.address() }
    }
}

const BASE: u64 = 0x1000_0000;

/// Makes random calls of an embedder, on objects of either machine.
fn play(cpu: &Cpu, random: &mut Random, spaces: &[SpaceRef<Hosted>; 4], objects: &[ObjectRef<Hosted>; 4]) {
    let space = &spaces[random.below(4) as usize];
    let own = space.is_of(cpu.vm());
    let object = &objects[random.below(4) as usize];
    // A space of the other machine is used only in the first two calls, which refuse it.
    match random.below(if own { 14 } else { 2 }) {
        0 => assert_eq!(cpu.enter(space).is_ok(), own),
        1 => {
            let at = random.address() & !7;
            let (read, written) = (cpu.read(space, at), cpu.write(space, at, 1));
            assert!(own || (read, written) == (Err(FaultError::Foreign), Err(FaultError::Foreign)));
        }
        2..=4 => {
            let (at, offset) = (random.address(), random.below(8) * PAGE_SIZE);
            let shown = random.below(2) == 0;
            let request = MapRequest {
                at: [Placement::Fixed(at), Placement::FixedNoReplace(at), Placement::Any { hint: at }]
                    [random.below(3) as usize],
                len: [random.below(16) * PAGE_SIZE, random.below(1 << 40), u64::MAX]
                    [random.below(20).saturating_sub(17) as usize],
                prot: Prot::from_bits_truncate(random.below(8) as u8),
                shared: random.below(2) == 0,
                object: shown.then_some((object, offset)),
                populate: random.below(4) == 0,
                ..MapRequest::private(Placement::Fixed(at), PAGE_SIZE)
            };
            let foreign = shown && !object.is_of(space.vm());
            assert!(space.map(&request).is_err() || !foreign, "an object of another machine is mapped");
        }
        5 => drop(space.unmap(random.range()).is_ok()),
        6 => drop(space.protect(random.range(), Prot::from_bits_truncate(random.below(8) as u8)).is_ok()),
        7 => {
            use Advice::*;
            let all = [Normal, WillNeed, DontNeed, Free, Remove, PageOut, PopulateRead, PopulateWrite];
            let _typed = space.advise(random.range(), all[random.below(8) as usize]);
        }
        8 => drop(space.make_resident(random.range()).is_ok()),
        9 => drop(space.remap(random.range(), random.below(64) * PAGE_SIZE, Move::May, random.below(2) == 0).is_ok()),
        10 => drop(space.wire(random.range(), [Wire::No, Wire::Now, Wire::OnFault][random.below(3) as usize]).is_ok()),
        11 => drop(space.fork().is_ok()),
        12 => drop(space.sync(random.range()).is_ok() && space.futex_key(random.address()).is_ok()),
        _ => {
            if object.is_of(cpu.vm()) {
                let _typed = object.write(random.below(1 << 16), 5000, &mut |b| -> Result<_, ()> { Ok(b.len()) });
                object.discard(random.below(8)..random.below(16));
            }
        }
    }
    cpu.interrupts();
}

#[test]
fn misuse_of_two_machines_ends_in_errors_only() {
    for seed in 0..4 {
        let [here, there] = [boot(3), boot(3)];
        let setup = [Cpu::attach(there, 2).unwrap(), Cpu::attach(here, 2).unwrap()];
        let spaces = [here, here, there, there].map(|vm| Space::new(vm).unwrap());
        let objects = [here, here, there, there].map(|vm| ObjectRef::anonymous(vm, 16).unwrap());
        std::thread::scope(|scope| {
            let mut threads = Vec::new();
            for id in 0..2 {
                for vm in [here, there] {
                    let (spaces, objects) = (&spaces, &objects);
                    threads.push(scope.spawn(move || {
                        let cpu = Cpu::attach(vm, id).unwrap();
                        let mut random = Random(fastrand::Rng::with_seed(
                            seed * 4 + id as u64 * 2 + u64::from(std::ptr::eq(vm, here)),
                        ));
                        (0..1500).for_each(|_| play(&cpu, &mut random, spaces, objects));
                        cpu.leave();
                    }));
                }
            }
            while threads.iter().any(|thread| !thread.is_finished()) {
                setup.iter().for_each(Cpu::interrupts);
                std::thread::yield_now();
            }
        });
        for (cpu, vm) in setup.iter().zip([there, here]) {
            cpu.run(|| {
                for space in spaces.iter().filter(|space| space.is_of(vm)) {
                    space.check(true).unwrap();
                }
                vm.check(true).unwrap();
            });
        }
        drop((spaces, objects));
    }
}
