//! The kernel's tables of each architecture, compared with a model: a map that records all changes.

use proptest::prelude::*;
use quire_hosted::Simulate;
use quire_pmap::format::{FANOUT, index};
use quire_pmap::{KernelMapError, KernelTables, Rights};
use quire_vm::{MemoryType, PAGE_SIZE, Pfn, Phys, VirtRange};
use std::sync::atomic::{AtomicU64, Ordering};

/// A small RAM that holds the tables.
struct Ram(Vec<Box<[AtomicU64; 512]>>);

impl Ram {
    fn new(frames: usize) -> Ram {
        Ram((0..frames).map(|_| Box::new(core::array::from_fn(|_| AtomicU64::new(0xdead)))).collect())
    }
    fn source(&self) -> impl FnMut() -> Option<Pfn> {
        let mut next = 1;
        let end = self.0.len() as u64;
        move || {
            next += 1;
            (next < end).then_some(Pfn(next))
        }
    }
}

// SAFETY: the boxes do not move, and no test uses consecutive frames.
unsafe impl Phys for Ram {
    fn frame_ptr(&self, pfn: Pfn) -> *mut u8 {
        self.0[pfn.0 as usize].as_ptr().cast::<u8>().cast_mut()
    }
    fn pfn_of(&self, _ptr: *const u8) -> Pfn {
        unreachable!("tables do not call it")
    }
}

quire_hosted::of_each_architecture!(
    the_direct_map_takes_large_leaves_and_few_tables,
    an_unreserved_range_cannot_be_mapped,
    every_new_root_gets_the_reserved_entries_and_nothing_else,
    lookups_agree_with_a_map_of_the_changes,
);

/// A range within one entry of the root.
fn window<F: Simulate>() -> VirtRange {
    VirtRange { start: F::KERNEL_HALF, end: F::KERNEL_HALF + (1 << 30) }
}

fn at<F: Simulate>(page: u64, pages: u64) -> VirtRange {
    VirtRange { start: F::KERNEL_HALF + page * PAGE_SIZE, end: F::KERNEL_HALF + (page + pages) * PAGE_SIZE }
}

/// The tables of a test. Their memory is the test's `Ram`, which no other code uses and no CPU translates by.
struct Own<F: Simulate>(KernelTables<F>);

type Source<'a> = &'a mut dyn FnMut() -> Option<Pfn>;
type Done = Result<(), KernelMapError>;

impl<F: Simulate> Own<F> {
    fn new(ram: &Ram) -> Self {
        // SAFETY: the test's memory is the tables' alone.
        Own(unsafe { KernelTables::new(ram, Pfn(0)) })
    }
    fn reserve(&mut self, ram: &Ram, range: VirtRange, frames: Source<'_>) -> Done {
        // SAFETY: `ram` is the test's memory, which these tables alone use.
        unsafe { self.0.reserve(ram, range, frames) }
    }
    fn map(&self, ram: &Ram, at: VirtRange, to: u64, rights: Rights, memory: MemoryType, frames: Source<'_>) -> Done {
        // SAFETY: `ram` is the test's memory, which these tables alone use.
        unsafe { self.0.map(ram, at, to, rights, memory, frames) }
    }
    fn unmap(&self, ram: &Ram, range: VirtRange) -> Done {
        // SAFETY: `ram` is the test's memory, which these tables alone use.
        unsafe { self.0.unmap(ram, range) }
    }
    fn protect(&self, ram: &Ram, range: VirtRange, rights: Rights) -> Done {
        // SAFETY: `ram` is the test's memory, which these tables alone use.
        unsafe { self.0.protect(ram, range, rights) }
    }
}

fn the_direct_map_takes_large_leaves_and_few_tables<F: Simulate>() {
    let ram = Ram::new(16);
    let mut frames = ram.source();
    let mut tables = Own::<F>::new(&ram);
    tables.reserve(&ram, window::<F>(), &mut frames).unwrap();
    let range = VirtRange { start: F::KERNEL_HALF, end: F::KERNEL_HALF + (1 << 30) };
    tables.map(&ram, range, 0, Rights::Write, MemoryType::WriteBack, &mut frames).unwrap();
    assert_eq!(tables.0.lookup(&ram, F::KERNEL_HALF + 0x1234_5678), Some((0x1234_5678, Rights::Write)));
    assert_eq!(frames(), Some(Pfn(F::LEVELS as u64)), "one table of 2 MiB leaves maps a GiB");
    assert_eq!(
        tables.protect(&ram, at::<F>(1, 1), Rights::Read),
        Err(KernelMapError::Invalid(F::KERNEL_HALF + PAGE_SIZE)),
        "a part of a large leaf cannot change"
    );
}

fn an_unreserved_range_cannot_be_mapped<F: Simulate>() {
    let ram = Ram::new(16);
    let mut frames = ram.source();
    let mut tables = Own::<F>::new(&ram);
    let user = VirtRange { start: 0x1000, end: 0x2000 };
    let map =
        |t: &Own<F>, r, f: &mut dyn FnMut() -> Option<Pfn>| t.map(&ram, r, 0, Rights::Read, MemoryType::WriteBack, f);
    assert_eq!(map(&tables, at::<F>(0, 1), &mut frames), Err(KernelMapError::Invalid(F::KERNEL_HALF)));
    assert_eq!(map(&tables, user, &mut frames), Err(KernelMapError::Invalid(0x1000)));
    assert_eq!(tables.reserve(&ram, user, &mut frames), Err(KernelMapError::Invalid(0x1000)));
    assert_eq!(map(&tables, at::<F>(0, 1), &mut || None), Err(KernelMapError::Invalid(F::KERNEL_HALF)));
    tables.reserve(&ram, window::<F>(), &mut frames).unwrap();
    assert_eq!(map(&tables, at::<F>(0, 1), &mut || None), Err(KernelMapError::OutOfMemory));
    assert_eq!(map(&tables, at::<F>(0, 1), &mut frames), Ok(()));
    assert_eq!(map(&tables, at::<F>(0, 1), &mut frames), Err(KernelMapError::Exists(F::KERNEL_HALF)));
}

fn every_new_root_gets_the_reserved_entries_and_nothing_else<F: Simulate>() {
    let ram = Ram::new(16);
    let mut frames = ram.source();
    let mut tables = Own::<F>::new(&ram);
    tables.reserve(&ram, window::<F>(), &mut frames).unwrap();
    let top = VirtRange { start: 0xffff_ffff_8000_0000, end: 0xffff_ffff_ffff_f000 };
    tables.reserve(&ram, top, &mut frames).unwrap();
    // SAFETY: the test does not use frame 1 yet.
    unsafe {
        ram.zero_frame(Pfn(1));
        tables.0.share(&ram, Pfn(1));
    }
    let word = |t: u64, i: usize| ram.0[t as usize][i].load(Ordering::Relaxed);
    let reserved = |i: usize| {
        [window::<F>(), top]
            .iter()
            .any(|r| (index(r.start, F::LEVELS - 1)..=index(r.end - 1, F::LEVELS - 1)).contains(&i))
    };
    for i in 0..FANOUT {
        assert_eq!(word(1, i) != 0, reserved(i), "entry {i}");
        assert_eq!(word(1, i), word(0, i));
    }
}

fn lookups_agree_with_a_map_of_the_changes<F: Simulate>() {
    let ops = prop::collection::vec((0..4u8, 0..2048u64, 1..700u64, 0..3usize), 1..40);
    proptest!(|(ops in ops)| {
        let ram = Ram::new(64);
        let mut frames = ram.source();
        let mut tables = Own::<F>::new(&ram);
        tables.reserve(&ram, window::<F>(), &mut frames).unwrap();
        let mut model = std::collections::BTreeMap::<u64, (u64, Rights)>::new();
        for (op, page, pages, rights) in ops {
            let rights = [Rights::Read, Rights::Write, Rights::Execute][rights];
            let range = at::<F>(page, pages);
            // All leaves are of 4 KiB, because the physical and the virtual address are never both aligned to 2 MiB.
            let physical = (page + 77) * PAGE_SIZE;
            match op {
                0 | 1 => {
                    let taken = (page..page + pages).find(|p| model.contains_key(p));
                    let end = taken.unwrap_or(page + pages);
                    let expected = taken.map_or(Ok(()), |p| Err(KernelMapError::Exists(at::<F>(p, 1).start)));
                    prop_assert_eq!(
                        tables.map(&ram, range, physical, rights, MemoryType::WriteBack, &mut frames), expected);
                    (page..end).for_each(|p| { model.insert(p, ((p + 77) * PAGE_SIZE, rights)); });
                }
                2 => {
                    prop_assert_eq!(tables.unmap(&ram, range), Ok(()));
                    (page..page + pages).for_each(|p| { model.remove(&p); });
                }
                _ => {
                    prop_assert_eq!(tables.protect(&ram, range, rights), Ok(()));
                    (page..page + pages).for_each(|p| if let Some(m) = model.get_mut(&p) { m.1 = rights; });
                }
            }
        }
        for p in 0..2800 {
            let found = tables.0.lookup(&ram, at::<F>(p, 1).start + 5);
            prop_assert_eq!(found, model.get(&p).map(|(pa, r)| (pa + 5, *r)));
        }
    });
}
