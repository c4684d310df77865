//! The production core on the hosted machine, behind the interface `Memory`.

use super::store::SparseStore;
use super::{Memory, Target};
use crate::bench::zero_fill::shuffle;
use crate::{Failure, machine};
use quire_hosted::{Cpu, Hosted};
use quire_sync::hooks::threads;
use quire_vm::map::{MapRequest, Placement, Space, SpaceRef};
use quire_vm::phys::frames::{Fill, For, Frame};
use quire_vm::phys::page::FrameKind;
use quire_vm::phys::slab::Cache;
use quire_vm::sleep::MaySleep;
use quire_vm::{Access, ObjectRef, PAGE_SIZE, Phys, Prot, VirtRange, Vm};
use std::ops::Range;

/// A hosted machine.
#[derive(Clone, Copy)]
pub struct Production(pub &'static Vm<Hosted>);

impl Production {
    /// Boots a machine with this number of CPUs, and with `mib` MiB of memory for programs.
    pub fn boot(cpus: usize, mib: u64) -> Production {
        Production(machine::boot(cpus, mib))
    }
}

/// Allocated frames that are freed when the value is dropped.
pub struct Taken(&'static Vm<Hosted>, Vec<Frame>);

impl Drop for Taken {
    fn drop(&mut self) {
        self.1.drain(..).for_each(|f| self.0.free_frame(f).expect("the frame is the machine's"));
    }
}

impl Memory for Production {
    type Cpu = Cpu;
    type Space = SpaceRef<Hosted>;
    type File = ObjectRef<Hosted>;
    type Taken = Taken;

    fn attach(self, cpu: usize) -> Cpu {
        Cpu::attach(self.0, cpu).expect("no other thread is this CPU")
    }

    fn on<R>(self, cpu: &Cpu, f: impl FnOnce() -> R) -> R {
        cpu.run(f)
    }

    fn enter(self, cpu: &Cpu, space: &SpaceRef<Hosted>) {
        cpu.enter(space).expect("the space belongs to this machine");
    }

    fn space(self) -> Result<SpaceRef<Hosted>, Failure> {
        Ok(Space::new(self.0)?)
    }

    fn file(self, pages: u64) -> Result<ObjectRef<Hosted>, Failure> {
        let object = ObjectRef::anonymous(self.0, pages)?;
        for page in 0..pages {
            let written = object.write(page * PAGE_SIZE, 1, &mut |b| -> Result<_, ()> { Ok(b.len()) });
            written.map_err(|e| Failure::Wrong(format!("{e:?}")))?;
        }
        Ok(object)
    }

    fn stored_file(self, pages: u64) -> Result<ObjectRef<Hosted>, Failure> {
        // The store is leaked, like the whole machine.
        let object = ObjectRef::with_pager(self.0, Box::leak(Box::new(SparseStore::default())), pages * PAGE_SIZE)?;
        for page in 0..pages {
            let read = object.read(page * PAGE_SIZE, 1, &mut |b| -> Result<_, ()> { Ok(b.len()) });
            read.map_err(|e| Failure::Wrong(format!("{e:?}")))?;
        }
        match object.resident() {
            n if n == pages => Ok(object),
            n => Err(Failure::Wrong(format!("{n} pages of {pages} are resident"))),
        }
    }

    fn map(self, space: &SpaceRef<Hosted>, range: VirtRange, target: Target<ObjectRef<Hosted>>) -> Result<(), Failure> {
        let (shared, object) = match &target {
            Target::Private => (false, None),
            Target::Shared(file, page) => (true, Some((file, page * PAGE_SIZE))),
            Target::Copied(file, page) => (false, Some((file, page * PAGE_SIZE))),
        };
        let private = MapRequest::private(Placement::Fixed(range.start), range.len());
        space.map(&MapRequest { shared, object, prot: Prot::all(), ..private })?;
        Ok(())
    }

    fn protect(self, space: &SpaceRef<Hosted>, range: VirtRange, stores: bool) -> Result<(), Failure> {
        let prot = if stores { Prot::all() } else { Prot::READ | Prot::EXEC };
        Ok(space.protect(range, prot)?)
    }

    fn unmap(self, space: &SpaceRef<Hosted>, range: VirtRange) -> Result<(), Failure> {
        space.unmap(range)?;
        Ok(())
    }

    #[inline]
    fn fault(self, space: &SpaceRef<Hosted>, va: u64, access: Access) -> Result<(), Failure> {
        space.fault(va, access)?;
        Ok(())
    }

    fn fork(self, space: &SpaceRef<Hosted>) -> Result<SpaceRef<Hosted>, Failure> {
        Ok(space.fork()?)
    }

    fn waits(self) -> u64 {
        threads::waits()
    }

    fn remove(self, file: &ObjectRef<Hosted>, pages: Range<u64>) {
        file.discard(pages);
    }

    fn page_out(self, file: &ObjectRef<Hosted>, pages: Range<u64>) {
        file.page_out(pages);
    }

    fn overhead(self, _spaces: &[SpaceRef<Hosted>]) -> u64 {
        let vm = self.0;
        vm.epoch().drain();
        // The counted memory belongs to backings, to their lists, and to the part of objects that does not depend on
        // spaces.
        // SAFETY: the caches belong to `vm`, which is passed to them.
        let bytes = |c: &&Cache| unsafe { c.in_use(vm) }.expect("the slabs are whole") * c.object_size() as u64;
        vm.object_memory().caches().iter().map(bytes).sum()
    }

    fn held(self) -> u64 {
        let vm = self.0;
        vm.epoch().drain();
        // SAFETY: the descriptors are only read, as `descriptors_in_use` requires.
        unsafe { vm.descriptors_in_use() }.filter(|page| page.kind() == FrameKind::Object).count() as u64
    }

    fn reap(self) {
        while self.0.reapable() {
            self.0.reap(u64::MAX, &mut MaySleep::here());
        }
    }

    fn shuffle(self) {
        let _cpu = self.attach(0);
        shuffle(self.0, &mut 0x9e37_79b9_7f4a_7c15);
    }

    fn take_zeroed(self, frames: u64) -> Result<Taken, Failure> {
        let mut taken = Taken(self.0, Vec::with_capacity(frames as usize));
        for _ in 0..frames {
            let frame = self.0.alloc_frame(Fill::Any, For::User)?;
            // SAFETY: the frame was just allocated, so only the caller uses it.
            unsafe { self.0.machine().zero_frame(frame.pfn()) };
            taken.1.push(frame);
        }
        Ok(taken)
    }
}
