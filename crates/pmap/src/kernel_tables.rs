//! The kernel's half of every address space: made at boot, shared by all roots, never freed.
//!
//! The root entries of the ranges that the kernel will ever use are filled once, before the first space exists. They
//! are copied into every new root. All levels below are shared, so a later kernel mapping appears at once in every
//! space. Table pages of the kernel are never freed. One lock guards all changes, because kernel mappings are rare.

use crate::format::{FANOUT, Format, Rights, base, index, span};
use core::marker::PhantomData;
use quire_sync::atomic::{AtomicU64, Ordering};
use quire_sync::{Rank, SpinLock};
use quire_vm::{MemoryType, OutOfMemory, PAGE_SIZE, Pfn, Phys, VirtRange};

/// The bytes that a large kernel leaf covers.
pub const LARGE_PAGE: u64 = span(1);

/// Why a kernel mapping could not be made. Mappings made before the error stay. No existing mapping is replaced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum KernelMapError {
    /// The address is misaligned, not in the kernel's half, or outside the ranges that were reserved at boot.
    Invalid(u64),
    /// Another mapping exists at this address.
    Exists(u64),
    /// No frame was free for a table page.
    OutOfMemory,
}

impl From<OutOfMemory> for KernelMapError {
    fn from(_: OutOfMemory) -> Self {
        KernelMapError::OutOfMemory
    }
}

/// The kernel's tables.
pub struct KernelTables<F: Format> {
    root: Pfn,
    format: PhantomData<F>,
    /// The root entries that are filled: one bit for each entry of the upper half.
    used: [u64; FANOUT.div_ceil(128)],
    lock: SpinLock<()>,
}

impl<F: Format> KernelTables<F> {
    /// Makes empty tables in the frame `root`.
    ///
    /// # Safety
    /// The frame belongs to the tables from now on, and no other code uses it. The `phys` of every later call is the
    /// same memory.
    pub unsafe fn new(phys: &impl Phys, root: Pfn) -> Self {
        // SAFETY: by this function's contract, the tables own the frame.
        unsafe { phys.zero_frame(root) };
        KernelTables { root, format: PhantomData, used: [0; _], lock: SpinLock::new(Rank::TABLE_UPPER, ()) }
    }

    /// The kernel's own root, which a CPU has loaded (in CR3 on x86-64) when it runs no program.
    pub fn root(&self) -> Pfn {
        self.root
    }

    /// Fills the root entries over `range`, so that mappings can be made there at any later time. The table pages come
    /// from `frames`. This is allowed only before the first space exists, because every root copies these entries.
    ///
    /// # Safety
    /// `phys` is the memory of the tables. Frames of `frames` belong to the tables from now on.
    pub unsafe fn reserve(
        &mut self,
        phys: &impl Phys,
        range: VirtRange,
        frames: &mut dyn FnMut() -> Option<Pfn>,
    ) -> Result<(), KernelMapError> {
        if range.start < F::KERNEL_HALF || range.is_empty() {
            return Err(KernelMapError::Invalid(range.start));
        }
        for i in index(range.start, F::LEVELS - 1)..=index(range.end - 1, F::LEVELS - 1) {
            self.descend(phys, self.root, F::LEVELS - 1, i, frames)?;
            let bit = i - FANOUT / 2;
            self.used[bit / 64] |= 1 << (bit % 64);
        }
        Ok(())
    }

    /// Maps `range` to the physical addresses from `physical` on, with 2 MiB leaves where both addresses are aligned to
    /// them. New table pages come from `frames`. An existing mapping stays and is an error. The mapping needs no flush:
    /// no CPU has the absent entry cached, or a fault fences and retries.
    ///
    /// # Safety
    /// `phys` is the memory of the tables. Frames of `frames` belong to the tables from now on. The kernel may have the
    /// physical addresses with these rights until it has unmapped and flushed them.
    pub unsafe fn map(
        &self,
        phys: &impl Phys,
        range: VirtRange,
        physical: u64,
        rights: Rights,
        memory: MemoryType,
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
            let slot = slot(phys, t, index(va, level));
            if F::present(slot.load(Ordering::Relaxed)) {
                return Err(KernelMapError::Exists(va));
            }
            slot.store(F::kernel_leaf(pa, level, rights, memory), Ordering::Release);
            va += span(level);
            pa += span(level);
        }
        Ok(())
    }

    /// Removes the 4 KiB mappings in `range`; gaps are allowed. The caller then sends
    /// [`Request::kernel`](crate::Request::kernel) to every CPU before it reuses the addresses or the frames.
    ///
    /// # Safety
    /// `phys` is the memory of the tables, and the kernel uses no mapping in `range` any more.
    pub unsafe fn unmap(&self, phys: &impl Phys, range: VirtRange) -> Result<(), KernelMapError> {
        self.change(phys, range, |_| 0)
    }

    /// Removes the 4 KiB mapping of `va` and returns its frame, or `None` if there is no such mapping. The caller then
    /// flushes as after [`unmap`](Self::unmap).
    ///
    /// # Safety
    /// As for [`unmap`](Self::unmap).
    pub unsafe fn take(&self, phys: &impl Phys, va: u64) -> Option<Pfn> {
        let _guard = self.lock.lock();
        match self.find(phys, va) {
            FoundEntry::Leaf(slot, 0) => Some(F::frame(slot.swap(0, Ordering::AcqRel))),
            _ => None,
        }
    }

    /// Changes the rights of the mappings in `range`; gaps are allowed. Large leaves must lie wholly inside. The caller
    /// then flushes as after [`unmap`](Self::unmap).
    ///
    /// # Safety
    /// `phys` is the memory of the tables, and the kernel may have its mappings in `range` with these rights.
    pub unsafe fn protect(&self, phys: &impl Phys, range: VirtRange, rights: Rights) -> Result<(), KernelMapError> {
        self.change(phys, range, |old| F::with_rights(old, rights))
    }

    fn change(&self, phys: &impl Phys, range: VirtRange, new: impl Fn(u64) -> u64) -> Result<(), KernelMapError> {
        let _guard = self.lock.lock();
        let mut at = Some(range.start);
        while let Some(va) = at.filter(|va| *va < range.end) {
            let found = self.find(phys, va);
            let (FoundEntry::Leaf(_, level) | FoundEntry::Absent(level)) = found;
            let start = base(va, level);
            // `None` for the last entry of the address space, which has no address behind it.
            let end = start.checked_add(span(level));
            if let FoundEntry::Leaf(slot, _) = found {
                if va != start || end.is_none_or(|end| end > range.end) {
                    return Err(KernelMapError::Invalid(va));
                }
                slot.store(new(slot.load(Ordering::Relaxed)), Ordering::Release);
            }
            at = end;
        }
        Ok(())
    }

    /// Returns the physical address that `va` is mapped to, and the mapping's rights; `None` if `va` is not mapped.
    pub fn lookup(&self, phys: &impl Phys, va: u64) -> Option<(u64, Rights)> {
        let FoundEntry::Leaf(slot, level) = self.find(phys, va) else { return None };
        let w = slot.load(Ordering::Acquire);
        let offset = va - base(va, level);
        Some(((F::frame(w).address() & !(span(level) - 1)) + offset, F::rights(w)))
    }

    /// Copies the kernel's half into a new root.
    ///
    /// # Safety
    /// `phys` is the memory of the tables. Only the caller uses `root`, and it is zeroed.
    pub unsafe fn share(&self, phys: &impl Phys, root: Pfn) {
        self.each_used(|i| {
            slot(phys, root, i).store(slot(phys, self.root, i).load(Ordering::Relaxed), Ordering::Relaxed);
        });
    }

    /// Clears the kernel's half of a root that is about to be freed.
    ///
    /// # Requires
    /// No CPU has `root` loaded.
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

    /// Returns the table page at `level` over `va`, and makes missing levels from `frames`.
    ///
    /// # Requires
    /// The caller holds the lock.
    fn table(
        &self,
        phys: &impl Phys,
        va: u64,
        level: u32,
        frames: &mut dyn FnMut() -> Option<Pfn>,
    ) -> Result<Pfn, KernelMapError> {
        let top = index(va, F::LEVELS - 1);
        if va < F::KERNEL_HALF || !F::present(slot(phys, self.root, top).load(Ordering::Relaxed)) {
            return Err(KernelMapError::Invalid(va));
        }
        let mut t = self.root;
        for l in (level + 1..F::LEVELS).rev() {
            t = self.descend(phys, t, l, index(va, l), frames)?.ok_or(KernelMapError::Exists(va))?;
        }
        Ok(t)
    }

    /// Returns the table page below entry `i` of `t`, a table at `level`, and makes it if it is missing. Returns `None`
    /// if the entry is a large leaf.
    fn descend(
        &self,
        phys: &impl Phys,
        t: Pfn,
        level: u32,
        i: usize,
        frames: &mut dyn FnMut() -> Option<Pfn>,
    ) -> Result<Option<Pfn>, KernelMapError> {
        let slot = slot(phys, t, i);
        let w = slot.load(Ordering::Relaxed);
        if F::present(w) {
            return Ok((!F::is_leaf(w, level)).then(|| F::frame(w)));
        }
        let child = frames().ok_or(KernelMapError::OutOfMemory)?;
        // SAFETY: the frame source gives frames that no other code uses.
        unsafe { phys.zero_frame(child) };
        slot.store(F::kernel_table(child), Ordering::Release);
        Ok(Some(child))
    }

    fn find<'p>(&self, phys: &'p impl Phys, va: u64) -> FoundEntry<'p> {
        let mut t = self.root;
        for level in (0..F::LEVELS).rev() {
            let slot = slot(phys, t, index(va, level));
            let w = slot.load(Ordering::Acquire);
            if !F::present(w) {
                return FoundEntry::Absent(level);
            }
            if F::is_leaf(w, level) {
                return FoundEntry::Leaf(slot, level);
            }
            t = F::frame(w);
        }
        unreachable!("the last level has no tables below it")
    }
}

enum FoundEntry<'p> {
    Leaf(&'p AtomicU64, u32),
    Absent(u32),
}

fn slot(phys: &impl Phys, t: Pfn, i: usize) -> &AtomicU64 {
    debug_assert!(i < FANOUT);
    // SAFETY: `t` is a table page, which is reachable by the contract of `Phys` and never freed. Entries are accessed
    // only as atomics.
    unsafe { &*phys.frame_ptr(t).cast::<AtomicU64>().add(i) }
}
