//! Typed errors. Each error has the information with which its caller can act. None is an errno.

use core::fmt;

/// No frame could be allocated. Nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OutOfMemory;

/// Why a change of a map was refused. Nothing was changed, except where the operation says so.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MapError {
    /// The address, length or alignment is impossible: misaligned, empty, wrapping, or outside the map's range.
    Invalid,
    /// The range, or a part of it, is not mapped.
    NotMapped,
    /// The range has a mapping, and the caller asked not to replace it.
    Exists,
    /// No hole is large enough.
    NoSpace,
    /// The protection exceeds the mapping's maximum.
    Protection,
    /// The map would have too many entries.
    TooMany,
    /// No memory is free for the operation itself.
    OutOfMemory,
    /// A pager could not write dirty pages.
    Pager,
    /// The pager does not allow the removal of pages.
    Refused,
    /// The object belongs to another memory system.
    Foreign,
    /// A mapping is sealed, so it must not change.
    Sealed,
    /// The calling thread must end. A part of a long range may have changed. Each mapping in that part has changed as a
    /// whole.
    Ending,
}

/// The reason why an access cannot be served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultError {
    /// Nothing is mapped at the address.
    NotMapped,
    /// The mapping does not allow the access.
    Protection,
    /// The address lies beyond the end of the mapped object.
    BeyondEnd,
    /// The object's pager could not read the page.
    Pager,
    /// No frame could be allocated for the page.
    OutOfMemory,
    /// The object's file system has no room for the page.
    NoRoom,
    /// The space belongs to another [`Vm`](crate::Vm) than the CPU, or the CPU has another space loaded.
    Foreign,
}

impl From<OutOfMemory> for MapError {
    fn from(_: OutOfMemory) -> Self {
        MapError::OutOfMemory
    }
}
impl From<OutOfMemory> for FaultError {
    fn from(_: OutOfMemory) -> Self {
        FaultError::OutOfMemory
    }
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("out of memory")
    }
}
impl core::error::Error for OutOfMemory {}

impl fmt::Display for MapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MapError::Invalid => "the address, length or alignment is not valid",
            MapError::NotMapped => "not mapped",
            MapError::Exists => "a mapping is in the way",
            MapError::NoSpace => "no hole is large enough",
            MapError::Protection => "the mapping does not allow this protection",
            MapError::TooMany => "too many mappings",
            MapError::OutOfMemory => "out of memory",
            MapError::Pager => "changes could not be written",
            MapError::Refused => "the object's pages must not be dropped",
            MapError::Foreign => "the object belongs to another memory system",
            MapError::Sealed => "the mapping is sealed",
            MapError::Ending => "the calling thread must end",
        })
    }
}
impl core::error::Error for MapError {}

impl fmt::Display for FaultError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FaultError::NotMapped => "not mapped",
            FaultError::Protection => "the mapping does not allow this access",
            FaultError::BeyondEnd => "beyond the end of the object",
            FaultError::Pager => "the page could not be read",
            FaultError::OutOfMemory => "out of memory",
            FaultError::NoRoom => "the file system is full",
            FaultError::Foreign => "the CPU has not loaded the space",
        })
    }
}
impl core::error::Error for FaultError {}

/// The pager failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PagerError;
