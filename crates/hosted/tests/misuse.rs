//! What an embedder that writes no `unsafe` can do wrong: each misuse is refused, and the machine goes on (Contract C10).
#![forbid(unsafe_code)]

use quire_hosted::{AttachError, Cpu, ForeignSpace, Hosted, NoMachine, Settings};
use quire_vm::map::{MapRequest, Placement, Space};
use quire_vm::phys::frames::{Fill, For};
use quire_vm::{BootError, FaultError, MapError, ObjectRef, PAGE_SIZE, Vm};

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
fn a_thread_becomes_no_cpu_that_there_is_not_or_that_another_is() {
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
    // Nor is one that was a CPU, and is none any more.
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
