//! The uses of all frames, for tools that look up the owner of a physical address.

use crate::machine::Machine;
use crate::phys::descriptors::{Closed, SECTION};
use crate::phys::page::{FrameKind, Page};
use crate::phys::slab::Cache;
use crate::types::{PAGE_SIZE, Pfn};
use crate::vm::Vm;

/// The use of a run of frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Use {
    /// Page descriptors. The descriptor of frame `n` is a cache line, the `n`th from the start of
    /// [`frame_span`](crate::phys::Physical::frame_span).
    Descriptors,
    /// Used before the core started, or for the core's own structures at its start.
    Boot,
    /// A page-table page.
    Table,
    /// A page of an object.
    Object,
    /// A slab: the label of its objects, and their size in bytes.
    Slab(&'static str, usize),
    /// Other memory of the kernel.
    Kernel,
}

impl<M: Machine> Vm<M> {
    /// Calls `each` for all runs of frames in use, in ascending order, with the first frame, the number of frames and
    /// the use. Other CPUs may run during the walk: a use that changes is reported as before or after the change. An
    /// error of `each` ends the walk and is returned.
    pub fn uses<E>(&self, mut each: impl FnMut(Pfn, u64, Use) -> Result<(), E>) -> Result<(), E> {
        let span = self.frame_span();
        let first = self.machine().pfn_of(self.descriptors().memory().start).0;
        let descriptors = first..first + ((span.end - span.start) * size_of::<Page>() as u64).div_ceil(PAGE_SIZE);
        let mut at = span.start;
        let mut run: Option<(u64, Use)> = None;
        while at < span.end {
            let (use_, count) = match self.descriptors().find(Pfn(at)) {
                _ if descriptors.contains(&at) => (Some(Use::Descriptors), descriptors.end - at),
                None => match self.descriptors().closed(Pfn(at)) {
                    Closed::Fresh(_) => (None, SECTION - at % SECTION),
                    Closed::Hole(end) => {
                        let descriptors = if at < first { first } else { u64::MAX };
                        (Some(Use::Boot), end.min(at - at % SECTION + SECTION).min(descriptors) - at)
                    }
                },
                Some(page) => match page.kind() {
                    FrameKind::Free | FrameKind::Cached => (None, 1),
                    FrameKind::Reserved => (Some(Use::Boot), 1),
                    FrameKind::Table => (Some(Use::Table), 1),
                    FrameKind::Object => (Some(Use::Object), 1),
                    FrameKind::Unowned => (Some(Use::Kernel), 1),
                    FrameKind::Slab => match self.slab_at(page) {
                        Some(cache) => (Some(Use::Slab(cache.label(), cache.object_size())), cache.slab_frames()),
                        None => (Some(Use::Kernel), 1),
                    },
                },
            };
            if run.map(|(_, u)| u) != use_ || matches!(use_, Some(Use::Slab(..))) {
                if let Some((start, u)) = run {
                    each(Pfn(start), at - start, u)?;
                }
                run = use_.map(|u| (at, u));
            }
            at += count;
        }
        run.map_or(Ok(()), |(start, u)| each(Pfn(start), at - start, u))
    }

    fn slab_at(&self, page: &Page) -> Option<&Cache> {
        self.heap()
            .caches()
            .iter()
            .chain(self.map_memory().caches())
            .chain(self.object_memory().caches())
            .find(|c| c.is_of(page))
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::machine::Phys;
    use crate::testing::boot;
    use core::alloc::Layout;

    #[test]
    fn runs_of_frames_are_reported_once_and_a_slab_by_its_label() {
        let m = boot(1024, 1);
        let layout = Layout::from_size_align(768, 8).unwrap();
        // SAFETY: the heap belongs to `m.vm`, which is passed to it.
        let object = unsafe { m.vm.heap().alloc(m.vm, layout) }.unwrap();
        let at = m.vm.machine().pfn_of(object.as_ptr());
        let mut runs = Vec::new();
        let done = m.vm.uses(|first, count, use_| {
            runs.push((first.0, count, use_));
            Ok::<(), ()>(())
        });
        assert_eq!(done, Ok(()));
        assert!(runs.windows(2).all(|r| r[0].0 + r[0].1 <= r[1].0), "runs overlap: {runs:?}");
        let of = |frame: u64| runs.iter().find(|r| (r.0..r.0 + r.1).contains(&frame)).map(|r| r.2);
        assert_eq!(of(at.0), Some(Use::Slab("heap-768", 768)));
        let descriptor = m.vm.machine().pfn_of(core::ptr::from_ref(m.vm.page(at)).cast());
        assert_eq!(of(descriptor.0), Some(Use::Descriptors));
        // SAFETY: the object came from this heap with this layout, and is not used any more.
        unsafe { m.vm.heap().free(m.vm, object, layout) };
    }
}
