//! Checks a cache: recomputes its counts and lists.

use super::{Cache, FREE, FreeList, USED, next};
use crate::check::Broken;
use crate::machine::Machine;
use crate::phys::Physical;
use crate::phys::page::FrameKind;
use crate::types::Pfn;
use quire_sync::atomic::Ordering;
use quire_sync::preempt_off;

impl Cache {
    /// Checks this CPU's list, and the slabs that have free objects. Compares their lengths and counts, and checks that
    /// each free object is at the place of an object of its slab. Takes O(free objects) time. Other CPUs check their
    /// own lists.
    ///
    /// # Safety
    /// `vm` is the system that owns the slabs.
    pub unsafe fn check<M: Machine>(&self, vm: &Physical<M>) -> Result<(), Broken> {
        self.check_mine(vm)?;
        self.free_in_slabs(vm).map(drop)
    }

    /// The number of objects that callers have now. Exact only if no CPU allocates or frees.
    ///
    /// # Safety
    /// `vm` is the system that owns the slabs.
    pub unsafe fn in_use<M: Machine>(&self, vm: &Physical<M>) -> Result<u64, Broken> {
        self.check_mine(vm)?;
        let free = self.local.iter().map(|local| u64::from(local.len.load(Ordering::Relaxed))).sum::<u64>();
        let free = free + self.free_in_slabs(vm)?;
        let all = self.depot.count.load(Ordering::Relaxed) * u64::from(self.per_slab);
        all.checked_sub(free).ok_or(Broken::Slab(free))
    }

    fn check_mine<M: Machine>(&self, vm: &Physical<M>) -> Result<(), Broken> {
        let cpu = preempt_off();
        let mine = self.mine(&cpu);
        let mut at = mine.head.0;
        let mut len = 0;
        while !at.is_null() {
            let slab = self.slab_of(vm, at)?;
            len += 1;
            if len > mine.len() {
                return Err(Broken::Slab(slab.0));
            }
            // SAFETY: a free object's first word is its link, and this CPU owns the list.
            at = unsafe { next(at) };
        }
        if len == mine.len() { Ok(()) } else { Err(Broken::Slab(0)) }
    }

    /// Counts the free objects in slabs, and checks each of them.
    fn free_in_slabs<M: Machine>(&self, vm: &Physical<M>) -> Result<u64, Broken> {
        let mut free = 0;
        let depot = self.depot.slabs.lock();
        let (mut at, mut before) = (depot.partial, None);
        while let Some(slab) = at {
            let page = vm.page(slab);
            if page.kind() != FrameKind::Slab || page.prev() != before {
                return Err(Broken::Slab(slab.0));
            }
            let mut object = page.words()[FREE].load(Ordering::Relaxed) as FreeList;
            let mut n = 0;
            while !object.is_null() {
                n += 1;
                if n > self.per_slab || self.slab_of(vm, object)? != slab {
                    return Err(Broken::Slab(slab.0));
                }
                // SAFETY: objects on a slab's free list are free, and this thread holds the depot's lock, which guards
                // the list.
                object = unsafe { next(object) };
            }
            if n == 0 || u64::from(n) + page.words()[USED].load(Ordering::Relaxed) != u64::from(self.per_slab) {
                return Err(Broken::Slab(slab.0));
            }
            free += u64::from(n);
            (before, at) = (at, page.next());
        }
        Ok(free)
    }

    /// The slab of `object`. Returns an error if `object` is not at the place of an object.
    fn slab_of<M: Machine>(&self, vm: &Physical<M>, object: FreeList) -> Result<Pfn, Broken> {
        let pfn = vm.machine().pfn_of(object.cast());
        let slab = Pfn(pfn.0 & !((1 << self.order) - 1));
        let offset = object.addr() - vm.machine().frame_ptr(slab).addr();
        let whole = offset.is_multiple_of(self.size as usize) && offset / (self.size as usize) < self.per_slab as usize;
        if whole && vm.page(slab).kind() == FrameKind::Slab { Ok(slab) } else { Err(Broken::Slab(slab.0)) }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::machine::Phys;
    use crate::testing::boot;
    use core::alloc::Layout;

    #[test]
    fn a_cache_finds_wrong_counts_and_double_frees() {
        quire_sync::hooks::threads::set_cpu(0);
        for wrong in 0..4 {
            let m = boot(1024, 1);
            let layout = Layout::from_size_align(256, 64).unwrap();
            // SAFETY: the heap belongs to `m.vm`.
            let objects: Vec<_> = (0..40).map(|_| unsafe { m.vm.heap().alloc(m.vm, layout) }.unwrap()).collect();
            let cache = m.vm.heap().caches().iter().find(|c| c.object_size() == 256).unwrap();
            // SAFETY: the cache belongs to the heap of `m.vm`.
            unsafe {
                assert_eq!(cache.in_use(m.vm), Ok(40));
                cache.drain(m.vm);
                assert_eq!(cache.in_use(m.vm), Ok(40));
            }
            // SAFETY: the test allocated the objects and does not use them any more. Cases 2 and 3 free wrongly, onto
            // lists that are only checked.
            unsafe {
                m.vm.heap().free(m.vm, objects[0], layout);
                cache.drain(m.vm);
                assert_eq!(cache.in_use(m.vm), Ok(39));
                let slab = Pfn(m.vm.machine().pfn_of(objects[0].as_ptr()).0 & !((1 << cache.order) - 1));
                match wrong {
                    0 => drop(m.vm.page(slab).words()[USED].fetch_add(1, Ordering::Relaxed)),
                    1 => m.vm.page(slab).set_kind(FrameKind::Unowned),
                    // The object becomes its own successor, as if it were freed twice.
                    2 => super::super::link(objects[0].as_ptr().cast(), objects[0].as_ptr().cast()),
                    _ => cache.free(m.vm, objects[1].add(8)),
                }
            }
            // SAFETY: the cache belongs to the heap of `m.vm`.
            assert!(matches!(unsafe { cache.check(m.vm) }, Err(Broken::Slab(_))), "case {wrong}");
        }
    }
}
