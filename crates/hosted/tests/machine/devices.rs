//! Device objects: physical addresses mapped into programs with a memory type, together with all other operations on
//! mappings.

use quire_hosted::{Cpu, Settings, Simulate, Simulated};
use quire_vm::content::IoError;
use quire_vm::error::PagerError;
use quire_vm::map::{Advice, MapRequest, Placement, Space, SpaceRef};
use quire_vm::object::ObjectRef;
use quire_vm::{Access, FaultError, MapError, MemoryType, PAGE_SIZE, Pfn, PhysRange, Prot, VirtRange, Vm};
use std::convert::Infallible;

quire_hosted::of_each_architecture!(
    a_program_reaches_a_device_with_its_memory_type,
    parent_and_child_reach_the_same_device,
    a_device_has_no_pages_and_leaves_none_behind,
    a_revoked_device_is_unreachable,
    a_device_is_mapped_shared_or_not_at_all,
    a_frame_buffer_may_lie_in_ram,
    tables_of_a_device_are_dropped_and_come_back,
);

type V<F> = &'static Vm<Simulated<F>>;

const AT: u64 = 0x3000_0000 - 3 * PAGE_SIZE;
const PAGES: u64 = 40;

fn boot<F: Simulate>(cpus: usize) -> V<F> {
    Simulated::<F>::boot(Settings { cpus, frames: 4096, device_frames: PAGES, ..Settings::default() }).unwrap()
}

fn device<F: Simulate>(vm: V<F>, memory: MemoryType) -> ObjectRef<Simulated<F>> {
    // SAFETY: these are the simulated device's own frames, after the end of RAM.
    unsafe { ObjectRef::device(vm, vm.machine().devices(), memory) }.unwrap()
}

fn request<F: Simulate>(object: &ObjectRef<Simulated<F>>) -> MapRequest<'_, Simulated<F>> {
    MapRequest {
        object: Some((object, 0)),
        shared: true,
        ..MapRequest::private(Placement::Fixed(AT), PAGES * PAGE_SIZE)
    }
}

fn space<F: Simulate>(cpu: &Cpu<F>, object: &ObjectRef<Simulated<F>>) -> SpaceRef<Simulated<F>> {
    let space = Space::new(cpu.vm()).unwrap();
    space.map(&request(object)).unwrap();
    cpu.enter(&space).unwrap();
    space
}

fn page(n: u64) -> u64 {
    AT + n * PAGE_SIZE
}

/// Returns the word at the start of page `n` of the device.
fn word<F: Simulate>(vm: V<F>, n: u64) -> u64 {
    let pfn = Pfn(vm.machine().devices().start.0 + n);
    // SAFETY: this is the device's memory, and no CPU stores to it during the read.
    unsafe { quire_vm::Phys::frame_ptr(vm.machine(), pfn).cast::<u64>().read_volatile() }
}

fn a_program_reaches_a_device_with_its_memory_type<F: Simulate>() {
    for memory in [MemoryType::WriteBack, MemoryType::WriteCombining, MemoryType::Uncached] {
        let vm = boot::<F>(1);
        let cpu = Cpu::attach(vm, 0).unwrap();
        let object = device(vm, memory);
        let space = space(&cpu, &object);
        for n in 0..PAGES {
            cpu.write(&space, page(n), n + 100).unwrap();
            assert_eq!(word(vm, n), n + 100);
            assert_eq!(cpu.memory_type(page(n)), Ok(memory));
        }
        assert!(vm.stats().faults() <= PAGES / 8, "neighbours are mapped along");
        assert_eq!(space.fault(page(PAGES), Access::Read), Err(FaultError::NotMapped));
        space.check(true).unwrap();
        // Private memory beside the device's mapping stays cached.
        space.map(&MapRequest::private(Placement::Fixed(page(PAGES)), PAGE_SIZE)).unwrap();
        cpu.write(&space, page(PAGES), 1).unwrap();
        assert_eq!(cpu.memory_type(page(PAGES)), Ok(MemoryType::WriteBack));
        cpu.leave();
    }
}

fn parent_and_child_reach_the_same_device<F: Simulate>() {
    let vm = boot::<F>(1);
    let cpu = Cpu::attach(vm, 0).unwrap();
    let object = device(vm, MemoryType::Uncached);
    let parent = space(&cpu, &object);
    cpu.write(&parent, page(7), 1).unwrap();
    let child = parent.fork().unwrap();
    cpu.write(&parent, page(7), 2).unwrap();
    cpu.enter(&child).unwrap();
    assert_eq!(cpu.read(&child, page(7)), Ok(2));
    cpu.write(&child, page(7), 3).unwrap();
    assert_eq!(cpu.memory_type(page(7)), Ok(MemoryType::Uncached));
    cpu.enter(&parent).unwrap();
    assert_eq!(cpu.read(&parent, page(7)), Ok(3));
    cpu.leave();
    parent.check(true).unwrap();
    child.check(true).unwrap();
}

fn a_device_has_no_pages_and_leaves_none_behind<F: Simulate>() {
    let vm = boot::<F>(1);
    let cpu = Cpu::attach(vm, 0).unwrap();
    let object = device(vm, MemoryType::WriteCombining);
    let space = space(&cpu, &object);
    (0..PAGES).for_each(|n| cpu.write(&space, page(n), n).unwrap());
    assert_eq!((object.resident(), space.stats().resident_pages), (0, PAGES));
    // Operations that drop or write back pages of files do not change a device object.
    object.discard(0..PAGES);
    object.set_size(0);
    object.page_out(0..PAGES);
    let part = VirtRange { start: page(3), end: page(9) };
    let _no_matter = space.advise(part, Advice::DontNeed);
    assert_eq!(object.read::<Infallible>(0, 8, &mut |b| Ok(b.len())), Err(IoError::Pager(PagerError::Device)));
    assert_eq!(object.write::<Infallible>(0, 8, &mut |b| Ok(b.len())), Err(IoError::Pager(PagerError::Device)));
    (0..PAGES).for_each(|n| assert_eq!(cpu.read(&space, page(n)), Ok(n)));
    space.protect(part, Prot::READ).unwrap();
    assert_eq!(cpu.write(&space, page(4), 1), Err(FaultError::Protection));
    space.check(true).unwrap();
    space.unmap(VirtRange { start: page(0), end: page(PAGES) }).unwrap();
    assert_eq!(cpu.load_word(page(5)).map_err(|f| f.present), Err(false), "no translation is left");
    assert_eq!(space.stats().table_pages, 1);
    cpu.leave();
}

fn a_revoked_device_is_unreachable<F: Simulate>() {
    let vm = boot::<F>(1);
    let cpu = Cpu::attach(vm, 0).unwrap();
    let object = device(vm, MemoryType::Uncached);
    let space = space(&cpu, &object);
    let child = space.fork().unwrap();
    (0..PAGES).for_each(|n| cpu.write(&space, page(n), n).unwrap());
    object.revoke();
    assert_eq!(space.stats().resident_pages, 0);
    for s in [&space, &child] {
        cpu.enter(s).unwrap();
        assert_eq!(cpu.read(s, page(0)), Err(FaultError::BeyondEnd));
        s.check(true).unwrap();
    }
    cpu.leave();
}

fn a_device_is_mapped_shared_or_not_at_all<F: Simulate>() {
    let vm = boot::<F>(1);
    let _cpu = Cpu::attach(vm, 0).unwrap();
    let object = device(vm, MemoryType::Uncached);
    let space = Space::new(vm).unwrap();
    let private = MapRequest { shared: false, ..request(&object) };
    assert_eq!(space.map(&private), Err(MapError::Invalid));
    // SAFETY: the range is empty, so the object gives access to no memory.
    let nothing =
        unsafe { ObjectRef::device(vm, PhysRange { start: Pfn(9), end: Pfn(9) }, MemoryType::Uncached) }.unwrap();
    space.map(&request(&nothing)).unwrap();
    assert_eq!(space.fault(AT, Access::Read), Err(FaultError::BeyondEnd));
}

fn a_frame_buffer_may_lie_in_ram<F: Simulate>() {
    let vm = boot::<F>(1);
    let cpu = Cpu::attach(vm, 0).unwrap();
    let run = vm.alloc_run(3, quire_vm::phys::frames::For::Kernel).unwrap();
    let first = run.pfn();
    // SAFETY: the frames are not freed before no space maps them.
    let object =
        unsafe { ObjectRef::device(vm, PhysRange { start: first, end: Pfn(first.0 + 8) }, MemoryType::WriteCombining) }
            .unwrap();
    let space = Space::new(vm).unwrap();
    space
        .map(&MapRequest {
            shared: true,
            object: Some((&object, 0)),
            ..MapRequest::private(Placement::Fixed(AT), 8 * PAGE_SIZE)
        })
        .unwrap();
    (0..8).for_each(|n| assert!(space.fault(page(n), Access::Write).is_ok()));
    assert_eq!(space.stats().resident_pages, 8);
    space.check(true).unwrap();
    space.drop_tables().unwrap();
    space.unmap(VirtRange { start: AT, end: page(8) }).unwrap();
    drop(cpu);
    let _cpu = Cpu::attach(vm, 0).unwrap();
    // SAFETY: the test took the frames from this system as a run, and their states are only read.
    let state = |n| unsafe { vm.descriptor(Pfn(first.0 + n)) }.state();
    (0..8).for_each(|n| assert!(!state(n).dirty(), "a frame that is no page is marked"));
    drop((space, object));
    // SAFETY: the frames were allocated as a run of order 3; the device object that gave access to them is gone.
    unsafe { vm.free_run(run, 3) };
}

fn tables_of_a_device_are_dropped_and_come_back<F: Simulate>() {
    let vm = boot::<F>(1);
    let cpu = Cpu::attach(vm, 0).unwrap();
    let object = device(vm, MemoryType::Uncached);
    let space = space(&cpu, &object);
    (0..PAGES).for_each(|n| cpu.write(&space, page(n), n + 5).unwrap());
    cpu.leave();
    assert_eq!(space.drop_tables().unwrap().leaves, PAGES);
    cpu.enter(&space).unwrap();
    (0..PAGES).for_each(|n| assert_eq!(cpu.read(&space, page(n)), Ok(n + 5)));
    cpu.leave();
}
