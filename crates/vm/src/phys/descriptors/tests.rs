use super::*;
use crate::map::{MapRequest, Placement, Space};
use crate::object::ObjectRef;
use crate::phys::Config;
use crate::phys::frames::{Fill, For, Frame};
use crate::testing::{BASE, Boot, boot_over, page};
use crate::tests::{load, store};
use crate::types::{Access, MemoryType, PhysRange, VirtRange};
use crate::vm::frame_info::FrameInfo;

const MIB: u64 = (1 << 20) / PAGE_SIZE;
const GIB: u64 = 1024 * MIB;

fn range(start: u64, frames: u64) -> PhysRange {
    PhysRange { start: Pfn(start), end: Pfn(start + frames) }
}

fn boot(ram: &[PhysRange], describe_at_boot: u64) -> Boot {
    boot_over(ram, 1, 1, Config { poison: false, describe_at_boot, ..Config::default() })
}

/// Allocates all frames for the system itself, and checks that each is in `ram` and has one owner.
fn take_all(m: &Boot, ram: &[PhysRange]) -> Vec<Frame> {
    let frames: Vec<Frame> = std::iter::from_fn(|| m.vm.alloc_frame(Fill::Any, For::System).ok()).collect();
    let mut numbers: Vec<u64> = frames.iter().map(|f| f.pfn().0).collect();
    numbers.sort_unstable();
    assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]), "a frame has two owners");
    for n in numbers {
        assert!(ram.iter().any(|r| (r.start.0..r.end.0).contains(&n)), "frame {n:#x} is no RAM");
        assert_eq!(m.vm.pfn_of_page(m.vm.page(Pfn(n))), Pfn(n));
    }
    frames
}

/// Private memory is written, forked and read.
fn run_a_program(m: &Boot) {
    let space = Space::new(m.vm).unwrap();
    space.map(&MapRequest::private(Placement::Fixed(page(0)), 32 * PAGE_SIZE)).unwrap();
    (0..32).for_each(|n| store(&space, page(n), n as u8));
    let child = space.fork().unwrap();
    (0..32).for_each(|n| store(&space, page(n), n as u8 + 100));
    (0..32).for_each(|n| assert_eq!((load(&child, page(n)), load(&space, page(n))), (n as u8, n as u8 + 100)));
    m.vm.check(true).unwrap();
    drop((space, child));
    m.vm.epoch().drain();
    m.vm.check(true).unwrap();
}

#[test]
fn ram_costs_its_own_descriptors_wherever_it_begins() {
    let mut costs = vec![];
    for start in [0, 2 * GIB, 2 * GIB + 5, 256 * GIB, 8192 * GIB] {
        for describe_at_boot in [0, u64::MAX] {
            let ram = [range(start, 128 * MIB)];
            let m = boot(&ram, describe_at_boot);
            costs.push(128 * MIB - m.vm.frames().free());
            run_a_program(&m);
            let free = m.vm.frames().free();
            let frames = take_all(&m, &ram);
            assert!(frames.len() as u64 + 64 >= free, "{} of {free} frames can be used", frames.len());
            frames.into_iter().for_each(|frame| m.vm.free_frame(frame).unwrap());
            m.vm.check(true).unwrap();
            for outside in [start.checked_sub(SECTION), Some(start + 128 * MIB)].into_iter().flatten() {
                assert_eq!(m.vm.frame_info(Pfn(outside)), FrameInfo::Unknown, "{outside:#x}");
            }
        }
    }
    // The descriptors are 512 frames. A start within a section adds the descriptors of the rest of that section.
    assert!(costs.iter().all(|cost| (512..512 + 150).contains(cost)), "{costs:?}");
    assert!(costs.iter().all(|cost| cost.abs_diff(costs[0]) <= SECTION * 64 / PAGE_SIZE), "{costs:?}");
}

#[test]
fn two_ranges_of_ram_with_a_hole_are_one_memory() {
    for describe_at_boot in [0, u64::MAX] {
        let ram = [range(2 * GIB, 32 * MIB), range(2 * GIB + 96 * MIB + 3, 48 * MIB)];
        let m = boot(&ram, describe_at_boot);
        run_a_program(&m);
        let frames = take_all(&m, &ram);
        for r in ram {
            let here = frames.iter().filter(|f| (r.start.0..r.end.0).contains(&f.pfn().0)).count() as u64;
            assert!(here + 1000 > r.end.0 - r.start.0, "{here} frames of {r:?} can be used");
        }
        for frame in frames {
            m.vm.free_frame(frame).unwrap();
        }
        m.vm.check(true).unwrap();
        assert_eq!(m.vm.frame_info(Pfn(2 * GIB + 64 * MIB)), FrameInfo::Unknown);
        let mut last = 2 * GIB;
        let walked = m.vm.uses::<()>(|first, count, _| {
            assert!(first.0 >= last && count > 0, "{first:?} {count}");
            last = first.0 + count;
            Ok(())
        });
        assert!(walked.is_ok() && last <= ram[1].end.0);
    }
}

/// A device below all RAM, in a hole, and above all RAM. Only the second has descriptors.
#[test]
fn devices_are_mapped_wherever_they_lie() {
    let ram = [range(2 * GIB, 32 * MIB), range(2 * GIB + 96 * MIB, 32 * MIB)];
    for at in [0x10000, 2 * GIB - 1, 2 * GIB + 64 * MIB, 300 * GIB] {
        let m = boot(&ram, 0);
        // SAFETY: the test machine never reaches the memory of the frames, which is not RAM.
        let device = unsafe { ObjectRef::device(m.vm, range(at, 1), MemoryType::Uncached) }.unwrap();
        let space = Space::new(m.vm).unwrap();
        let request = MapRequest::private(Placement::Fixed(BASE), PAGE_SIZE);
        space.map(&MapRequest { shared: true, object: Some((&device, 0)), ..request }).unwrap();
        assert!(space.fault(BASE, Access::Write).is_ok());
        assert_eq!(space.pmap().peek(BASE).map(|leaf| leaf.pfn), Some(Pfn(at)));
        assert_eq!(m.vm.descriptors().of_leaf(Pfn(at)).is_some(), at == 2 * GIB + 64 * MIB);
        assert!(m.vm.page_of_leaf(Pfn(at)).is_none());
        let child = space.fork().unwrap();
        assert!(child.fault(BASE, Access::Write).is_ok());
        space.unmap(VirtRange { start: BASE, end: BASE + PAGE_SIZE }).unwrap();
        device.revoke();
        drop((space, child, device));
        m.vm.epoch().drain();
        m.vm.check(true).unwrap();
    }
}
