//! Clocks without a system call: a shared object and a page of clock words that each new program finds mapped.
//!
//! # What lives here
//! The shared object (`image`, assembled from `image.s`), the clock words that its code reads (`page`), and the memory
//! object with both pages. `exec` maps this object for each program. The two pages belong to the machine and are never
//! freed. A mapping of the two pages needs a map entry and a backing, which records the mapped part of an object. The
//! mapping needs no frame of its own. Its PTEs are in the page table that the stack needs in any case.
//!
//! # Invariants
//! - No mapping of the object allows stores, neither now nor later (`max_prot`).
//! - Where both pages are mapped, the page before the image is the clock page. If a program moves only one of the
//!   pages, the image reads other bytes in place of the clock page, or faults.
//! - A clock that a program computes agrees with the clock that a system call returns. Program and kernel use the same
//!   clock words, the same rounding, and one reading of the TSC.

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

/// The number of pages of the object: the clock page, then the image.
pub const PAGES: u64 = 2;

/// The shared object and its clock page.
pub struct Vdso<M: Machine> {
    object: ObjectRef<M>,
    page: &'static ClockPage,
    /// A thread holds this lock while it writes the clock page.
    writing: SpinLock<()>,
}

impl<M: Machine> Vdso<M> {
    /// Creates the two pages with the clocks of `machine`, in memory that is never freed.
    pub fn new(vm: &'static Vm<M>, machine: &M) -> Result<Self, Errno> {
        const BYTES: usize = PAGE_SIZE as usize;
        let first = vm.alloc_contiguous(quire_vm::phys::frames::Contiguous::anywhere(PAGES), For::Kernel)?.into_pfn();
        let frames = PhysRange { start: first, end: Pfn(first.0 + PAGES) };
        let at = machine.frame_ptr(first);
        // SAFETY: the two frames were just allocated, are consecutive in memory and never freed. They are written
        // before any reference to them exists. A page of zeroes is a valid clock page.
        let page = unsafe {
            at.write_bytes(0, BYTES);
            at.add(BYTES).copy_from_nonoverlapping(image::image().as_ptr(), BYTES);
            &*at.cast::<ClockPage>()
        };
        page.begin(machine.clock_resolution(), machine.cpu_selector());
        page.publish(machine.user_clock());
        // SAFETY: the frames belong to this object for ever, and are write-back like all RAM. `map` lets no program
        // store into them.
        let object = unsafe { ObjectRef::device(vm, frames, MemoryType::WriteBack) }?;
        Ok(Vdso { object, page, writing: SpinLock::new(Rank::OWNED, ()) })
    }

    /// Sets the wall clock, for system calls and for programs that compute the time themselves. `new` gets the present
    /// time and returns the new one, in nanoseconds since 1970. If `new` fails, the clock does not change.
    pub fn change_realtime(&self, machine: &M, new: impl FnOnce(u64) -> Result<u64, Errno>) -> Result<(), Errno> {
        let _alone = self.writing.lock();
        let ns = new(machine.realtime())?;
        self.page.change(|| {
            machine.set_realtime(ns);
            machine.user_clock()
        });
        Ok(())
    }

    /// Maps both pages at `at`, and returns the image's address. `None` if a mapping of the program uses these
    /// addresses already. The program then makes system calls.
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
