//! RAM: one anonymous memory mapping of the host, whose first frame has the number [`FIRST`].

use memmap2::{MmapMut, MmapRaw};
use quire_vm::{PAGE_SIZE, Pfn, PhysRange};

/// The number of the first frame. Not zero, so that "frame zero" is always a bug here.
pub const FIRST: Pfn = Pfn(0x100);

/// The machine's memory. The host zeroes each page when it is first touched.
pub struct Arena {
    /// A mapping without slices: the core and the simulated CPUs write through pointers to shared memory.
    memory: MmapRaw,
    frames: u64,
}

impl Arena {
    /// Allocates `frames` frames of RAM.
    pub fn new(frames: u64) -> std::io::Result<Self> {
        let bytes = usize::try_from(frames * PAGE_SIZE).map_err(std::io::Error::other)?;
        Ok(Arena { memory: MmapMut::map_anon(bytes)?.into(), frames })
    }

    /// The range of the arena's frames.
    pub fn range(&self) -> PhysRange {
        PhysRange { start: FIRST, end: Pfn(FIRST.0 + self.frames) }
    }

    /// The address of frame `pfn` in this process.
    ///
    /// # Panics
    /// If there is no such frame. Then a page table or a list was corrupted.
    pub fn ptr(&self, pfn: Pfn) -> *mut u8 {
        let range = self.range();
        assert!(range.start <= pfn && pfn < range.end, "frame {pfn:?} is not RAM");
        self.memory.as_mut_ptr().wrapping_add(((pfn.0 - FIRST.0) * PAGE_SIZE) as usize)
    }

    /// Returns the frame that contains `ptr`.
    pub fn pfn(&self, ptr: *const u8) -> Pfn {
        let offset = ptr as usize - self.memory.as_ptr() as usize;
        let pfn = Pfn(FIRST.0 + offset as u64 / PAGE_SIZE);
        assert!(pfn < self.range().end, "{ptr:?} is not in RAM");
        pfn
    }
}
