//! The kernel's half of every address space: made at boot, shared by all roots, never freed.
//!
//! The root entries of the ranges that the kernel will ever use are filled once, before the first space exists, and copied
//! into every new root; below them everything is shared, so a kernel mapping made later is at once in every space. Table
//! pages of the kernel are never freed and their entries change under one lock: kernel mappings are rare.

use crate::word::{self, DIRTY, FANOUT, GLOBAL, LARGE, LEVELS, NO_CACHE, NO_EXECUTE, WRITE_THROUGH};
use quire_sync::atomic::{AtomicU64, Ordering};
use quire_sync::{Rank, SpinLock};
use quire_vm::{OutOfMemory, PAGE_SIZE, Pfn, Phys, VirtRange};

/// The first address of the kernel's half.
pub const KERNEL_HALF: u64 = 0xffff_8000_0000_0000;

/// Bytes that a large kernel leaf covers.
pub const LARGE_PAGE: u64 = 2 << 20;

/// What the kernel may do with a mapping of its own. There is no way to say "store and execute" (W^X).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rights {
    /// Loads.
    Read,
    /// Loads and stores.
    Write,
    /// Loads and instruction fetches.
    Execute,
}

/// How the memory behind a mapping is cached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Caching {
    /// RAM.
    WriteBack,
    /// Device registers.
    Uncached,
}

/// Why a kernel mapping could not be made. What was made before stays; nothing that was there is replaced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KernelMapError {
    /// Addresses that are misaligned, not in the kernel's half, or outside what was reserved at boot.
    Invalid(u64),
    /// Something else is mapped at this address.
    Exists(u64),
    /// No frame for a table page.
    OutOfMemory,
}

impl From<OutOfMemory> for KernelMapError {
    fn from(_: OutOfMemory) -> Self {
        KernelMapError::OutOfMemory
    }
}

/// The kernel's tables.
pub struct KernelTables {
    root: Pfn,
    /// Root entries that are filled: one bit for each of the upper 256.
    used: [u64; FANOUT.div_ceil(128)],
    lock: SpinLock<()>,
}

impl KernelTables {
    /// Empty tables in the frame `root`, which is theirs from now on.
    pub fn new(phys: &impl Phys, root: Pfn) -> Self {
        // SAFETY: the frame is the caller's to give.
        unsafe { phys.zero_frame(root) };
        KernelTables { root, used: [0; _], lock: SpinLock::new(Rank::TABLE_UPPER, ()) }
    }

    /// The kernel's own root: what a CPU has in CR3 when it runs no program.
    pub fn root(&self) -> Pfn {
        self.root
    }

    /// Fills the root entries over `range`, so that mappings can be made there at any time later. Only before the first
    /// space exists: the table pages taken here are in every root.
    pub fn reserve(
        &mut self,
        phys: &impl Phys,
        range: VirtRange,
        frames: &mut dyn FnMut() -> Option<Pfn>,
    ) -> Result<(), KernelMapError> {
        if range.start < KERNEL_HALF || range.is_empty() {
            return Err(KernelMapError::Invalid(range.start));
        }
        for i in word::index(range.start, LEVELS - 1)..=word::index(range.end - 1, LEVELS - 1) {
            self.descend(phys, self.root, i, frames)?;
            let bit = i - FANOUT / 2;
            self.used[bit / 64] |= 1 << (bit % 64);
        }
        Ok(())
    }

    /// Maps `range` to the physical addresses from `physical` on, with 2 MiB leaves where both sides allow it. New table
    /// pages come from `frames`. A mapping that is there already is left alone and is an error. No flush is needed: entries
    /// that are not present are never cached.
    pub fn map(
        &self,
        phys: &impl Phys,
        range: VirtRange,
        physical: u64,
        rights: Rights,
        caching: Caching,
        frames: &mut dyn FnMut() -> Option<Pfn>,
    ) -> Result<(), KernelMapError> {
        if !(range.start | range.end | physical).is_multiple_of(PAGE_SIZE) {
            return Err(KernelMapError::Invalid(range.start));
        }
        let _guard = self.lock.lock();
        let (mut va, mut pa) = (range.start, physical);
        while va < range.end {
            let large = (va | pa) % LARGE_PAGE == 0 && range.end - va >= LARGE_PAGE;
            let level = if large { 1 } else { 0 };
            let t = self.table(phys, va, level, frames)?;
            let slot = slot(phys, t, word::index(va, level));
            if word::present(slot.load(Ordering::Relaxed)) {
                return Err(KernelMapError::Exists(va));
            }
            slot.store(leaf(pa, rights, caching) | if large { LARGE } else { 0 }, Ordering::Release);
            va += word::span(level);
            pa += word::span(level);
        }
        Ok(())
    }

    /// Takes the 4 KiB mappings in `range` away; gaps are allowed. The caller then shoots
    /// [`Request::kernel`](crate::Request::kernel) at every CPU before it uses the addresses or the frames for anything else.
    pub fn unmap(&self, phys: &impl Phys, range: VirtRange) -> Result<(), KernelMapError> {
        self.change(phys, range, |_| 0)
    }

    /// Changes what the mappings in `range` allow; gaps are allowed. The caller then shoots as after [`unmap`](Self::unmap).
    /// Large leaves must lie wholly inside.
    pub fn protect(&self, phys: &impl Phys, range: VirtRange, rights: Rights) -> Result<(), KernelMapError> {
        self.change(phys, range, |old| old & !(word::WRITE | DIRTY | NO_EXECUTE) | leaf(0, rights, Caching::WriteBack))
    }

    fn change(&self, phys: &impl Phys, range: VirtRange, new: impl Fn(u64) -> u64) -> Result<(), KernelMapError> {
        let _guard = self.lock.lock();
        let mut at = Some(range.start);
        while let Some(va) = at.filter(|va| *va < range.end) {
            let found = self.find(phys, va);
            let (Found::Leaf(_, level) | Found::Absent(level)) = found;
            let start = word::base(va, level);
            // The last entry of the address space has no address behind it.
            let end = start.checked_add(word::span(level));
            if let Found::Leaf(slot, _) = found {
                if va != start || end.is_none_or(|end| end > range.end) {
                    return Err(KernelMapError::Invalid(va));
                }
                slot.store(new(slot.load(Ordering::Relaxed)), Ordering::Release);
            }
            at = end;
        }
        Ok(())
    }

    /// The physical address behind kernel address `va`, and whether it may be stored to.
    pub fn lookup(&self, phys: &impl Phys, va: u64) -> Option<(u64, Rights)> {
        let Found::Leaf(slot, level) = self.find(phys, va) else { return None };
        let w = slot.load(Ordering::Acquire);
        let rights = match (w & word::WRITE != 0, w & NO_EXECUTE == 0) {
            (true, _) => Rights::Write,
            (false, true) => Rights::Execute,
            (false, false) => Rights::Read,
        };
        let offset = va - word::base(va, level);
        Some((((w & word::FRAME) & !(word::span(level) - 1)) + offset, rights))
    }

    /// Copies the kernel's half into a new root. => `root` is the caller's alone, and zeroed.
    pub(crate) fn share(&self, phys: &impl Phys, root: Pfn) {
        self.each_used(|i| {
            slot(phys, root, i).store(slot(phys, self.root, i).load(Ordering::Relaxed), Ordering::Relaxed);
        });
    }

    /// Empties the kernel's half of a root that goes. => no CPU has `root` in CR3.
    pub(crate) fn unshare(&self, phys: &impl Phys, root: Pfn) {
        self.each_used(|i| slot(phys, root, i).store(0, Ordering::Relaxed));
    }

    fn each_used(&self, mut f: impl FnMut(usize)) {
        for (w, bits) in self.used.iter().enumerate() {
            let mut bits = *bits;
            while bits != 0 {
                f(FANOUT / 2 + w * 64 + bits.trailing_zeros() as usize);
                bits &= bits - 1;
            }
        }
    }

    /// The table page at `level` over `va`. => caller holds the lock.
    fn table(
        &self,
        phys: &impl Phys,
        va: u64,
        level: u32,
        frames: &mut dyn FnMut() -> Option<Pfn>,
    ) -> Result<Pfn, KernelMapError> {
        let top = word::index(va, LEVELS - 1);
        if va < KERNEL_HALF || !word::present(slot(phys, self.root, top).load(Ordering::Relaxed)) {
            return Err(KernelMapError::Invalid(va));
        }
        let mut t = self.root;
        for l in (level + 1..LEVELS).rev() {
            t = self.descend(phys, t, word::index(va, l), frames)?.ok_or(KernelMapError::Exists(va))?;
        }
        Ok(t)
    }

    /// The table page below entry `i` of `t`, made where it is missing; `None` where a large leaf stands there.
    fn descend(
        &self,
        phys: &impl Phys,
        t: Pfn,
        i: usize,
        frames: &mut dyn FnMut() -> Option<Pfn>,
    ) -> Result<Option<Pfn>, KernelMapError> {
        let slot = slot(phys, t, i);
        let w = slot.load(Ordering::Relaxed);
        if word::present(w) {
            return Ok((w & LARGE == 0).then(|| word::frame(w)));
        }
        let child = frames().ok_or(KernelMapError::OutOfMemory)?;
        // SAFETY: the frame source gives frames that nobody else uses.
        unsafe { phys.zero_frame(child) };
        slot.store(word::kernel_table(child), Ordering::Release);
        Ok(Some(child))
    }

    fn find<'p>(&self, phys: &'p impl Phys, va: u64) -> Found<'p> {
        let mut t = self.root;
        for level in (0..LEVELS).rev() {
            let slot = slot(phys, t, word::index(va, level));
            let w = slot.load(Ordering::Acquire);
            if !word::present(w) {
                return Found::Absent(level);
            }
            if level == 0 || w & LARGE != 0 {
                return Found::Leaf(slot, level);
            }
            t = word::frame(w);
        }
        unreachable!("the last level has no tables below it")
    }
}

enum Found<'p> {
    Leaf(&'p AtomicU64, u32),
    Absent(u32),
}

/// A kernel leaf. Accessed and dirty are preset: nobody asks for them, and hardware need not write them.
fn leaf(pa: u64, rights: Rights, caching: Caching) -> u64 {
    let mut w = pa | word::PRESENT | word::ACCESSED | GLOBAL;
    match rights {
        Rights::Read => w |= NO_EXECUTE,
        Rights::Write => w |= NO_EXECUTE | word::WRITE | DIRTY,
        Rights::Execute => {}
    }
    if caching == Caching::Uncached {
        w |= NO_CACHE | WRITE_THROUGH;
    }
    w
}

fn slot(phys: &impl Phys, t: Pfn, i: usize) -> &AtomicU64 {
    debug_assert!(i < FANOUT);
    // SAFETY: `t` is a table page, reachable by the trait's contract and never freed; entries are only touched as atomics.
    unsafe { &*phys.frame_ptr(t).cast::<AtomicU64>().add(i) }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A little RAM, to put tables in.
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

    // SAFETY: boxes stay where they are; no test uses consecutive frames.
    unsafe impl Phys for Ram {
        fn frame_ptr(&self, pfn: Pfn) -> *mut u8 {
            self.0[pfn.0 as usize].as_ptr().cast::<u8>().cast_mut()
        }
        fn pfn_of(&self, _ptr: *const u8) -> Pfn {
            unreachable!("tables do not ask")
        }
    }

    const WINDOW: VirtRange = VirtRange { start: KERNEL_HALF, end: KERNEL_HALF + (1 << 39) };

    fn at(page: u64, pages: u64) -> VirtRange {
        VirtRange { start: KERNEL_HALF + page * PAGE_SIZE, end: KERNEL_HALF + (page + pages) * PAGE_SIZE }
    }

    #[test]
    fn the_direct_map_takes_large_leaves_and_few_tables() {
        let ram = Ram::new(16);
        let mut frames = ram.source();
        let mut tables = KernelTables::new(&ram, Pfn(0));
        tables.reserve(&ram, WINDOW, &mut frames).unwrap();
        let range = VirtRange { start: KERNEL_HALF, end: KERNEL_HALF + (1 << 30) };
        tables.map(&ram, range, 0, Rights::Write, Caching::WriteBack, &mut frames).unwrap();
        assert_eq!(tables.lookup(&ram, KERNEL_HALF + 0x1234_5678), Some((0x1234_5678, Rights::Write)));
        assert_eq!(frames(), Some(Pfn(4)), "one table below the reserved one maps a GiB");
        assert_eq!(
            tables.protect(&ram, at(1, 1), Rights::Read),
            Err(KernelMapError::Invalid(KERNEL_HALF + PAGE_SIZE)),
            "a part of a large leaf cannot change"
        );
    }

    #[test]
    fn what_was_not_reserved_cannot_be_mapped() {
        let ram = Ram::new(16);
        let mut frames = ram.source();
        let mut tables = KernelTables::new(&ram, Pfn(0));
        let user = VirtRange { start: 0x1000, end: 0x2000 };
        let map = |t: &KernelTables, r, f: &mut dyn FnMut() -> Option<Pfn>| {
            t.map(&ram, r, 0, Rights::Read, Caching::WriteBack, f)
        };
        assert_eq!(map(&tables, at(0, 1), &mut frames), Err(KernelMapError::Invalid(KERNEL_HALF)));
        assert_eq!(map(&tables, user, &mut frames), Err(KernelMapError::Invalid(0x1000)));
        assert_eq!(tables.reserve(&ram, user, &mut frames), Err(KernelMapError::Invalid(0x1000)));
        assert_eq!(map(&tables, at(0, 1), &mut || None), Err(KernelMapError::Invalid(KERNEL_HALF)));
        tables.reserve(&ram, WINDOW, &mut frames).unwrap();
        assert_eq!(map(&tables, at(0, 1), &mut || None), Err(KernelMapError::OutOfMemory));
        assert_eq!(map(&tables, at(0, 1), &mut frames), Ok(()));
        assert_eq!(map(&tables, at(0, 1), &mut frames), Err(KernelMapError::Exists(KERNEL_HALF)));
    }

    #[test]
    fn every_new_root_gets_the_reserved_entries_and_nothing_else() {
        let ram = Ram::new(16);
        let mut frames = ram.source();
        let mut tables = KernelTables::new(&ram, Pfn(0));
        tables.reserve(&ram, WINDOW, &mut frames).unwrap();
        let top = VirtRange { start: 0xffff_ffff_8000_0000, end: 0xffff_ffff_ffff_f000 };
        tables.reserve(&ram, top, &mut frames).unwrap();
        // SAFETY: nobody uses the frame.
        unsafe { ram.zero_frame(Pfn(1)) };
        tables.share(&ram, Pfn(1));
        for i in 0..FANOUT {
            let shared = slot(&ram, Pfn(1), i).load(Ordering::Relaxed);
            assert_eq!(shared != 0, i == 256 || i == 511, "entry {i}");
            assert_eq!(shared, slot(&ram, Pfn(0), i).load(Ordering::Relaxed));
        }
    }

    proptest! {
        #[test]
        fn lookups_agree_with_a_map_of_what_was_done(
            ops in prop::collection::vec((0..4u8, 0..2048u64, 1..700u64, 0..3usize), 1..40)
        ) {
            let ram = Ram::new(64);
            let mut frames = ram.source();
            let mut tables = KernelTables::new(&ram, Pfn(0));
            tables.reserve(&ram, WINDOW, &mut frames).unwrap();
            let mut model = std::collections::BTreeMap::<u64, (u64, Rights)>::new();
            for (what, page, pages, rights) in ops {
                let rights = [Rights::Read, Rights::Write, Rights::Execute][rights];
                let range = at(page, pages);
                // 4 KiB leaves only: the physical side is never aligned to 2 MiB where the virtual one is.
                let physical = (page + 77) * PAGE_SIZE;
                match what {
                    0 | 1 => {
                        let taken = (page..page + pages).find(|p| model.contains_key(p));
                        let end = taken.unwrap_or(page + pages);
                        let expected = taken.map_or(Ok(()), |p| Err(KernelMapError::Exists(at(p, 1).start)));
                        prop_assert_eq!(
                            tables.map(&ram, range, physical, rights, Caching::WriteBack, &mut frames), expected);
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
                let found = tables.lookup(&ram, at(p, 1).start + 5);
                prop_assert_eq!(found, model.get(&p).map(|(pa, r)| (pa + 5, *r)));
            }
        }
    }
}
