//! Clocks without a system call: a shared object and a page of clock words that each new program finds mapped.
//!
//! # What lives here
//! The shared object (`image`, assembled from `image.s`), the clock words that its code reads (`page`), and the memory
//! objects with these two pages. `exec` maps both for each program. A mapping needs an entry and a backing, but no page
//! of its own. Its PTEs are in the page table that the stack needs anyway.
//!
//! # Invariants
//! - No mapping of the clock page allows stores, neither now nor later (`max_prot`).
//! - The image is mapped privately, as on Linux. A program or its debugger that stores into it gets a copy.
//! - Where both pages are mapped, the page before the image is the clock page. If a program moves only one of them, the
//!   image reads other bytes there, or faults.
//! - A clock that a program computes agrees with the same clock of a system call. Both use the same clock words, the
//!   same rounding, and one reading of the TSC.

mod image;
pub mod page;
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;

use crate::errno::Errno;
use crate::machine::Machine;
use page::ClockPage;
use quire_sync::{Rank, SpinLock};
use quire_vm::machine::FrameBytesMut;
use quire_vm::map::{MapRequest, Placement, Tag};
use quire_vm::object::ObjectRef;
use quire_vm::phys::frames::For;
use quire_vm::types::{MemoryType, PhysRange};
use quire_vm::{MapError, PAGE_SIZE, Pfn, Prot, SpaceRef, Vm};

/// The number of pages that are mapped: the clock page, then the image.
pub const PAGES: u64 = 2;

/// The shared object and its clock page.
pub struct Vdso<M: Machine> {
    clocks: ObjectRef<M>,
    image: ObjectRef<M>,
    page: &'static ClockPage,
    /// A thread holds this lock while it writes the clock page.
    writing: SpinLock<()>,
}

impl<M: Machine> Vdso<M> {
    /// Creates the two pages with the clocks of `machine`. The clock page is never freed.
    pub fn new(vm: &'static Vm<M>, machine: &M) -> Result<Self, Errno> {
        const BYTES: usize = PAGE_SIZE as usize;
        let first = vm.alloc_contiguous(quire_vm::phys::frames::Contiguous::anywhere(1), For::Kernel)?.into_pfn();
        let frames = PhysRange { start: first, end: Pfn(first.0 + 1) };
        let at = machine.frame_ptr(first);
        // SAFETY: the frame was just allocated and is never freed. It is written before any reference to it exists. A
        // page of zeroes is a valid clock page.
        let page = unsafe {
            at.write_bytes(0, BYTES);
            &*at.cast::<ClockPage>()
        };
        page.begin(machine.clock_resolution(), machine.cpu_selector());
        page.publish(machine.user_clock());
        // SAFETY: the frame belongs to this object for ever, and is write-back like all RAM. `map` lets no program
        // store into it.
        let clocks = unsafe { ObjectRef::device(vm, frames, MemoryType::WriteBack) }?;
        let image = ObjectRef::anonymous(vm, 1)?;
        let mut rest = &image::image()[..];
        let written = image.write(0, BYTES, &mut |to: FrameBytesMut<'_>| -> Result<usize, Errno> {
            let n = to.copy_from(rest);
            rest = &rest[n..];
            Ok(n)
        });
        written.map_err(|_| Errno::ENOMEM)?;
        Ok(Vdso { clocks, image, page, writing: SpinLock::new(Rank::OWNED, ()) })
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
        let part = |page: u64| MapRequest::private(Placement::FixedNoReplace(at + page * PAGE_SIZE), PAGE_SIZE);
        let prot = Prot::READ;
        let object = Some((&self.clocks, 0));
        let clocks = MapRequest { prot, max_prot: prot, shared: true, object, tag: Tag::Vvar, ..part(0) };
        let object = Some((&self.image, 0));
        let image = MapRequest { prot: Prot::READ | Prot::EXEC, object, tag: Tag::Vdso, ..part(1) };
        match space.map(&clocks).and_then(|_| space.map(&image)) {
            Ok(_) => Ok(Some(at + PAGE_SIZE)),
            Err(MapError::Exists) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }
}
