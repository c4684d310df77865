//! The benchmark of the kernel's map, and of page tables after an unmap. It has counts and no times.

use super::{Bench, Build, Line};
use crate::machine;
use quire_hosted::{Cpu, Hosted};
use quire_vm::map::kernel::KernelMap;
use quire_vm::map::{MapRequest, Placement, Space};
use quire_vm::{Access, PAGE_SIZE, VirtRange};

/// The search for space for a kernel stack among 100,000 stacks.
pub const FIND: Bench = Bench {
    build: Build::Native,
    lines: &[Line {
        name: "findspace_nodes_100k_stacks",
        unit: "nodes",
        how: "Hosted, one CPU: a kernel map of 1 GiB holds 100,000 one-page ranges with guards. Every second range is \
            removed, and a row of ranges in the middle, which is the only hole that is large enough. Tree nodes \
            visited by the search for a 16 KiB stack.",
    }],
    run: |report| {
        let vm = machine::boot(1, 512);
        let _cpu = Cpu::attach(vm, 0).expect("no other thread is this CPU");
        // SAFETY: this is the machine's only map in the kernel window.
        let map = unsafe { KernelMap::new(vm, Hosted::KERNEL_WINDOW, 4 * PAGE_SIZE)? };
        let map: &'static KernelMap<Hosted> = Box::leak(Box::new(map));
        let mut kept = Vec::new();
        let ranges = report.size.of(1000, 100_000);
        for _ in 0..ranges {
            kept.push(map.buffer(PAGE_SIZE)?);
        }
        // The ranges are freed only now. Otherwise, the next ranges would be mapped in their places.
        let mut n = 0;
        kept.retain(|_| {
            n += 1;
            n % 2 == 0 && !(ranges / 2..ranges / 2 + 4).contains(&n)
        });
        map.settle();
        report.put("findspace_nodes_100k_stacks", map.visits_for_a_stack() as f64);
        Ok(())
    },
};

/// The page tables that remain after everything was unmapped.
pub const TABLES: Bench = Bench {
    build: Build::Native,
    lines: &[
        Line {
            name: "pagetable_bytes_after_unmap_all",
            unit: "bytes",
            how: "Hosted, one CPU: 512 pages, each 1 GiB from the next, are touched and unmapped one by one. Bytes of \
                table pages that the live space then holds, the root included.",
        },
        Line {
            name: "pagetable_bytes_after_drop",
            unit: "bytes",
            how: "Hosted, one CPU: 400 pages at ten places are touched, no CPU has loaded the space, and \
                Space::drop_tables runs. Bytes of table pages afterwards: the root goes too.",
        },
        Line {
            name: "faults_after_drop_400_pages",
            unit: "faults",
            how: "The same space: faults until all 400 pages were read and written again.",
        },
    ],
    run: |report| {
        let vm = machine::boot(1, 256);
        let cpu = Cpu::attach(vm, 0).expect("no other thread is this CPU");
        let space = Space::new(vm)?;
        let page = |n: u64| 0x1000_0000 + n * (1 << 30);
        for n in 0..512 {
            let r = MapRequest::private(Placement::Fixed(page(n)), PAGE_SIZE);
            space.map(&r)?;
            space.fault(page(n), Access::Write)?;
        }
        for n in 0..512 {
            space.unmap(VirtRange { start: page(n), end: page(n) + PAGE_SIZE })?;
        }
        report.put("pagetable_bytes_after_unmap_all", (space.stats().table_pages * PAGE_SIZE) as f64);

        let all = || (0..10).flat_map(move |n| (0..40).map(move |i| page(n) + i * PAGE_SIZE));
        cpu.enter(&space).expect("the space belongs to this machine");
        for n in 0..10 {
            let r = MapRequest::private(Placement::Fixed(page(n)), 40 * PAGE_SIZE);
            space.map(&r)?;
        }
        for va in all() {
            cpu.write(&space, va, 1)?;
        }
        cpu.leave();
        space.drop_tables();
        report.put("pagetable_bytes_after_drop", (space.stats().table_pages * PAGE_SIZE) as f64);
        let before = vm.stats().faults();
        cpu.enter(&space).expect("the space belongs to this machine");
        for va in all() {
            cpu.read(&space, va).and_then(|v| cpu.write(&space, va, v + 1))?;
        }
        report.put("faults_after_drop_400_pages", (vm.stats().faults() - before) as f64);
        cpu.leave();
        Ok(())
    },
};
