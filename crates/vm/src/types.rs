//! Addresses, frame numbers, protections: the small types of the core.
//!
//! # Contract C10: bad input is an error
//! Bad input is an error, never a panic, and so is a lack of memory at every allocation. A range that a caller of the
//! core chose is made only by [`VirtRange::checked`].

/// Bytes in a page or frame.
pub const PAGE_SIZE: u64 = 4096;
/// log2 of [`PAGE_SIZE`].
pub const PAGE_SHIFT: u32 = 12;

/// The number of a physical frame: its physical address divided by [`PAGE_SIZE`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(transparent)]
pub struct Pfn(pub u64);

impl Pfn {
    /// The physical address of the frame's first byte.
    pub const fn address(self) -> u64 {
        self.0 << PAGE_SHIFT
    }
    /// The frame that holds physical address `pa`.
    pub const fn containing(pa: u64) -> Pfn {
        Pfn(pa >> PAGE_SHIFT)
    }
}

/// A range of physical frames, `start..end`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PhysRange {
    /// First frame.
    pub start: Pfn,
    /// One past the last frame.
    pub end: Pfn,
}

/// A range of virtual addresses, `start..end` in bytes. Ranges that the core makes are page-aligned.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct VirtRange {
    /// First byte.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
}

impl VirtRange {
    /// The range of `len` bytes from `start`. `None` unless both are multiples of the page size, `len` is not zero, and
    /// the end does not wrap around. All ranges from callers of the core pass this check (relies on C10).
    pub fn checked(start: u64, len: u64) -> Option<VirtRange> {
        let end = start.checked_add(len)?;
        (start.is_multiple_of(PAGE_SIZE) && len.is_multiple_of(PAGE_SIZE) && len != 0)
            .then_some(VirtRange { start, end })
    }
    /// Length in bytes; 0 for a range whose end lies before its start.
    pub const fn len(&self) -> u64 {
        self.end.saturating_sub(self.start)
    }
    /// Length in bytes of a range whose start is not above its end. For fast paths, because it saves the comparison of
    /// [`len`](Self::len).
    #[inline(always)]
    pub(crate) const fn bytes(&self) -> u64 {
        debug_assert!(self.start <= self.end);
        self.end - self.start
    }
    /// Whether the range has no byte.
    pub const fn is_empty(&self) -> bool {
        self.start >= self.end
    }
    /// Whether `va` lies inside.
    pub const fn contains(&self, va: u64) -> bool {
        self.start <= va && va < self.end
    }
    /// The part that both ranges cover. `None` if it is empty.
    pub fn intersect(&self, other: &VirtRange) -> Option<VirtRange> {
        let r = VirtRange { start: self.start.max(other.start), end: self.end.min(other.end) };
        (!r.is_empty()).then_some(r)
    }
}

/// The way in which accesses to memory are cached.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum MemoryType {
    /// RAM: accesses are cached, and stores are written back later.
    #[default]
    WriteBack = 0,
    /// Loads are not cached; stores are gathered and may be reordered: frame buffers.
    WriteCombining = 1,
    /// Each access reaches the device, in program order: registers.
    Uncached = 2,
}

bitflags::bitflags! {
    /// The rights of a mapping.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct Prot: u8 {
        /// Loads.
        const READ = 1;
        /// Stores.
        const WRITE = 2;
        /// Instruction fetches.
        const EXEC = 4;
    }
}

/// A program's access that faulted, or that the kernel is about to make on its behalf.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// A load.
    Read,
    /// A store.
    Write,
    /// An instruction fetch.
    Exec,
}

impl Prot {
    /// Whether the access is allowed. Memory with any right can be read, because the supported page tables cannot
    /// forbid that, and programs rely on it.
    #[inline(always)]
    pub fn allows(self, access: Access) -> bool {
        match access {
            Access::Read => !self.is_empty(),
            _ => self.contains(access.needs()),
        }
    }
}

impl Access {
    /// The protection that the access needs.
    pub fn needs(self) -> Prot {
        match self {
            Access::Read => Prot::READ,
            Access::Write => Prot::WRITE,
            Access::Exec => Prot::EXEC,
        }
    }
}

/// The page queues. A page is on one of them until pageout evicts it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Queue {
    /// Pages that are probably in use.
    Active = 1,
    /// Pages that were not used recently.
    Inactive = 2,
    /// Dirty pages that must be written before their frames can be freed.
    Laundry = 3,
}

impl Queue {
    /// Every queue, in the order of their numbers.
    pub const ALL: [Queue; 3] = [Queue::Active, Queue::Inactive, Queue::Laundry];
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::VirtRange;

    #[test]
    fn a_range_that_ends_before_its_start_is_empty() {
        let reversed = VirtRange { start: 0x3000, end: 0x1000 };
        assert_eq!((reversed.len(), reversed.is_empty(), reversed.contains(0x2000)), (0, true, false));
        assert_eq!(VirtRange { start: 0, end: u64::MAX }.len(), u64::MAX);
    }
}
