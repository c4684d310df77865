//! Typed errors. Each error has the information with which its caller can act. None is an errno.

use core::fmt;

/// No frame could be allocated. Nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OutOfMemory;

/// Why a change of a map was refused. Nothing was changed, except where the operation says so.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
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
    /// A pager could not write dirty pages, for this reason.
    Pager(PagerError),
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
#[non_exhaustive]
pub enum FaultError {
    /// Nothing is mapped at the address.
    NotMapped,
    /// The mapping does not allow the access.
    Protection,
    /// The address lies beyond the end of the mapped object.
    BeyondEnd,
    /// The object's pager could not read the page, or refused to make it writable, for this reason.
    Pager(PagerError),
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
            MapError::Pager(_) => "changes could not be written",
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
            FaultError::Pager(_) => "the page could not be read",
            FaultError::OutOfMemory => "out of memory",
            FaultError::NoRoom => "the file system is full",
            FaultError::Foreign => "the CPU has not loaded the space",
        })
    }
}
impl core::error::Error for FaultError {}

/// Why a pager did not read or write pages. The reason reaches the caller of the fault, read or write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
#[non_exhaustive]
pub enum PagerError {
    /// The transfer failed, or its request was dropped.
    Failed = 1,
    /// The store has no room for the pages.
    NoRoom = 2,
    /// The store is gone: a file was removed on its server, or a device was unplugged.
    Gone = 3,
    /// The pager has given the transfer up after a time of its choice.
    TimedOut = 4,
    /// The thread that waited for the transfer is ending. The transfer may go on.
    Cancelled = 5,
    /// The object is a device, whose bytes the core does not read or write.
    Device = 6,
    /// The object has its part of all dirty pages ([`Config::dirty`](crate::Config::dirty)), and its pager has not
    /// written them.
    TooManyDirty = 7,
}

impl PagerError {
    /// The code by which a record stores a result.
    pub(crate) fn to_code(result: Result<(), PagerError>) -> u8 {
        result.map_or_else(|error| error as u8, |()| 0)
    }

    /// The result that is stored as `code`.
    pub(crate) fn from_code(code: u8) -> Result<(), PagerError> {
        Err(match code {
            0 => return Ok(()),
            2 => PagerError::NoRoom,
            3 => PagerError::Gone,
            4 => PagerError::TimedOut,
            5 => PagerError::Cancelled,
            6 => PagerError::Device,
            7 => PagerError::TooManyDirty,
            _ => PagerError::Failed,
        })
    }
}

impl From<PagerError> for FaultError {
    fn from(error: PagerError) -> Self {
        FaultError::Pager(error)
    }
}
impl From<PagerError> for MapError {
    fn from(error: PagerError) -> Self {
        MapError::Pager(error)
    }
}

impl fmt::Display for PagerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PagerError::Failed => "the transfer failed",
            PagerError::NoRoom => "the store is full",
            PagerError::Gone => "the store is gone",
            PagerError::TimedOut => "the transfer took too long",
            PagerError::Cancelled => "the waiting thread ends",
            PagerError::Device => "the object is a device",
            PagerError::TooManyDirty => "too many pages of the object are not written",
        })
    }
}
impl core::error::Error for PagerError {}
