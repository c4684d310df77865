//! RAM: one anonymous memory mapping of the host. The machine's settings choose the number of its first frame.

use memmap2::{MmapMut, MmapRaw};
use quire_vm::{PAGE_SIZE, Pfn, PhysRange};

/// The machine's memory. The host zeroes each page when it is first touched.
pub struct Arena {
    /// A mapping without slices: the core and the simulated CPUs write through pointers to shared memory.
    memory: MmapRaw,
    range: PhysRange,
}

impl Arena {
    /// Allocates RAM for the frames `range`.
    pub fn new(range: PhysRange) -> std::io::Result<Self> {
        let frames = range.end.0.saturating_sub(range.start.0);
        let bytes = frames.checked_mul(PAGE_SIZE).and_then(|bytes| usize::try_from(bytes).ok());
        let bytes = bytes.ok_or(std::io::ErrorKind::OutOfMemory)?;
        let memory: MmapRaw = MmapMut::map_anon(bytes)?.into();
        // The core reaches values in RAM by their addresses, for instance the object of a page.
        let _address = memory.as_mut_ptr().expose_provenance();
        Ok(Arena { memory, range })
    }

    /// The range of the arena's frames.
    pub fn range(&self) -> PhysRange {
        self.range
    }

    /// The address of frame `pfn` in this process.
    ///
    /// # Panics
    /// If there is no such frame. Then a page table or a list was corrupted.
    pub fn ptr(&self, pfn: Pfn) -> *mut u8 {
        let range = self.range();
        assert!(range.start <= pfn && pfn < range.end, "frame {pfn:?} is not RAM");
        self.memory.as_mut_ptr().wrapping_add(((pfn.0 - range.start.0) * PAGE_SIZE) as usize)
    }

    /// Returns the frame that contains `ptr`.
    pub fn pfn(&self, ptr: *const u8) -> Pfn {
        let offset = ptr as usize - self.memory.as_ptr() as usize;
        let pfn = Pfn(self.range.start.0 + offset as u64 / PAGE_SIZE);
        assert!(pfn < self.range.end, "{ptr:?} is not in RAM");
        pfn
    }
}

#[cfg(test)]
mod tests {
    use crate::{Cpu, Hosted, Settings};
    use quire_vm::map::{MapRequest, Placement, Space};
    use quire_vm::{ObjectRef, PAGE_SIZE};

    /// Small enough for Miri, which checks each access to the arena.
    #[test]
    fn the_smallest_machine_writes_to_a_space_and_to_a_file() {
        let vm = Hosted::boot(Settings { cpus: 1, frames: 320, poison: false, ..Settings::default() }).unwrap();
        let cpu = Cpu::attach(vm, 0).unwrap();
        let space = Space::new(vm).unwrap();
        let at = space.map(&MapRequest::private(Placement::Any { hint: 0 }, 2 * PAGE_SIZE)).unwrap();
        cpu.enter(&space).unwrap();
        cpu.write(&space, at, 7).unwrap();
        assert_eq!(cpu.read(&space, at), Ok(7));
        let file = ObjectRef::anonymous(vm, 1).unwrap();
        file.write::<()>(3, 5, &mut |to| Ok(to.copy_from(b"bytes"))).unwrap();
        let mut copy = [0; 6];
        assert_eq!(file.read::<()>(2, 6, &mut |from| Ok(from.copy_to(&mut copy))), Ok(6));
        assert_eq!(&copy, b"\0bytes");
        cpu.leave();
        drop((space, file));
        vm.epoch().drain();
    }
}
