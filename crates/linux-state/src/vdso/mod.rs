//! Clocks without a system call: a shared object and a page of clock words that each new program finds mapped.
//!
//! # What lives here
//! The shared object (`image`, assembled from `image.s`), the words that its code reads (`page`), and the one object
//! with both pages, which `exec` maps for each program. Both pages are the machine's own for ever. A
//! mapping of them has an entry and a backing, and no page of its own. The page tables of the stack hold its leaves.
//!
//! # Invariants
//! - No mapping of the object allows stores, now or later (`max_prot`).
//! - The page before the image is the clock page, wherever both are mapped. A program that moves only one of them finds
//!   other bytes there, or none.
//! - A clock computed by a program and the same clock of a system call agree. Both follow from one reading of the
//!   time-stamp counter, by the same words and the same rounding.

mod image;
pub mod page;
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;

use crate::errno::Errno;
use crate::machine::Machine;
use page::ClockPage;
use quire_sync::{Rank, SpinLock};
use quire_vm::map::{MapRequest, Placement, Tag};
use quire_vm::object::ObjectRef;
use quire_vm::phys::frames::For;
use quire_vm::types::{MemoryType, PhysRange};
use quire_vm::{MapError, PAGE_SIZE, Pfn, Prot, SpaceRef, Vm};

/// The pages of the object: the clock page, then the image.
pub const PAGES: u64 = 2;

/// The shared object and its clock page.
pub struct Vdso<M: Machine> {
    object: ObjectRef<M>,
    page: &'static ClockPage,
    /// Taken by writers of the clock page.
    writing: SpinLock<()>,
}

impl<M: Machine> Vdso<M> {
    /// Makes the pages, in memory that is never freed, with the clocks of `machine`.
    pub fn new(vm: &'static Vm<M>, machine: &M) -> Result<Self, Errno> {
        const BYTES: usize = PAGE_SIZE as usize;
        let first = vm.alloc_contiguous(quire_vm::phys::frames::Contiguous::anywhere(PAGES), For::Kernel)?.into_pfn();
        let frames = PhysRange { start: first, end: Pfn(first.0 + PAGES) };
        let at = machine.frame_ptr(first);
        // SAFETY: the two frames were just allocated, are never freed, and are consecutive in memory. They are written
        // before any reference to them exists. Zeroes are a clock page.
        let page = unsafe {
            at.write_bytes(0, BYTES);
            at.add(BYTES).copy_from_nonoverlapping(image::image().as_ptr(), BYTES);
            &*at.cast::<ClockPage>()
        };
        page.begin(machine.clock_resolution(), machine.cpu_selector());
        page.publish(machine.user_clock());
        // SAFETY: the frames are this object's for ever, and write-back as all RAM. `map` lets no program store.
        let object = unsafe { ObjectRef::device(vm, frames, MemoryType::WriteBack) }?;
        Ok(Vdso { object, page, writing: SpinLock::new(Rank::OWNED, ()) })
    }

    /// Sets the wall clock to the nanoseconds since 1970 that `new` makes of the present ones, for system calls and for
    /// programs that compute it. If `new` fails, the clock stays.
    pub fn change_realtime(&self, machine: &M, new: impl FnOnce(u64) -> Result<u64, Errno>) -> Result<(), Errno> {
        let _alone = self.writing.lock();
        let ns = new(machine.realtime())?;
        self.page.change(|| {
            machine.set_realtime(ns);
            machine.user_clock()
        });
        Ok(())
    }

    /// Maps both pages at `at`, and returns the image's address. `None` if the program itself lies there. It then makes
    /// system calls.
    pub fn map(&self, space: &SpaceRef<M>, at: u64) -> Result<Option<u64>, Errno> {
        let part = |page: u64, prot, tag| {
            let at = Placement::FixedNoReplace(at + page * PAGE_SIZE);
            let object = Some((&self.object, page * PAGE_SIZE));
            let private = MapRequest::private(at, PAGE_SIZE);
            space.map(&MapRequest { prot, max_prot: prot, shared: true, object, tag, ..private })
        };
        let both = part(0, Prot::READ, Tag::Vvar).and_then(|_| part(1, Prot::READ | Prot::EXEC, Tag::Vdso));
        match both {
            Ok(_) => Ok(Some(at + PAGE_SIZE)),
            Err(MapError::Exists) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }
}
