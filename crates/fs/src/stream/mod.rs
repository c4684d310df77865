//! Files that are not regular, but can be read and written: pipes, devices, terminals, sockets, counters.
//!
//! A [`Stream`] moves bytes through the sinks and sources of [`transfer`] and waits as an [`Io`] allows. It announces
//! by [`readiness`] that a call would not wait. A call that waits may give up its stack by a [`park`]. [`flags`] are
//! the modes of opening a file. [`event`] is the smallest stream, a counter.
//!
//! May use: errors, and nothing else of this crate.
//! Owns: a change is announced after it is made, so that no wake-up is lost; bytes move with no spin lock held.

pub mod event;
pub(crate) mod flags;
pub(crate) mod io;
pub mod park;
pub mod readiness;
pub mod transfer;

pub use flags::OpenFlags;
pub use io::Io;

use crate::FsError;
use core::any::Any;
use readiness::{Readiness, Ready};
use transfer::{Sink, Source};

/// An open stream. Dropping it closes it.
pub trait Stream: Send + Sync {
    /// Reads available bytes into `sink`, waiting for the first as `io` allows; `Ok(0)` at the end.
    fn read(&self, io: &Io<'_>, sink: &mut dyn Sink) -> Result<usize, FsError>;
    /// Writes the bytes of `source`, waiting for room as `io` allows. An error only if none was written.
    fn write(&self, io: &Io<'_>, source: &mut dyn Source) -> Result<usize, FsError>;
    /// The operations that need no wait now.
    fn ready(&self) -> Ready {
        Ready::READ | Ready::WRITE
    }
    /// Whether [`ready`](Self::ready) is about the calling thread, so that only a waiter may ask.
    fn is_ready_for_caller_alone(&self) -> bool {
        false
    }
    /// The announcer of changes of [`ready`](Self::ready); `None` if it never changes.
    fn readiness(&self) -> Option<&Readiness> {
        None
    }
    /// Bytes that could be read now, if the stream knows.
    fn queued(&self) -> Result<usize, FsError> {
        Err(FsError::NotTerminal)
    }
    /// Whether positions mean something (they are then ignored, as on `/dev/zero`).
    fn seekable(&self) -> bool {
        false
    }
    /// The resulting position of any seek; an error if the stream refuses it.
    fn seek(&self) -> Result<u64, FsError> {
        if self.seekable() { Ok(0) } else { Err(FsError::NotSeekable) }
    }
    /// Whether a private mapping of it is a mapping of zeroes, as of `/dev/zero`.
    fn maps_zeroes(&self) -> bool {
        false
    }
    /// The calling process closes a descriptor of it, perhaps not the last.
    fn descriptor_closed(&self) {}
    /// The stream's own type, for requests that only it knows.
    fn as_any(&self) -> &dyn Any;
}
