//! Files that are not regular, but can be read and written: pipes, devices, terminals, sockets, counters.
//!
//! A [`Stream`] moves bytes through the sinks and sources of [`transfer`], and waits as an [`Io`] allows. Its
//! [`readiness`] announces when a call would not wait. A call that waits may give up its stack by a [`park`]. [`flags`]
//! are the modes of opening a file. [`event`] is the smallest stream, a counter.
//!
//! May use: errors, and nothing else of this crate. Invariants: a change is announced after it is made, so that no
//! wake-up is lost; bytes move with no spin lock held.

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
    /// Reads available bytes into `sink`, and waits for the first byte as `io` allows. Returns their number, 0 at the
    /// end.
    fn read(&self, io: &Io<'_>, sink: &mut dyn Sink) -> Result<usize, FsError>;
    /// Writes the bytes of `source`, and waits for room as `io` allows. Fails only if no byte was written.
    fn write(&self, io: &Io<'_>, source: &mut dyn Source) -> Result<usize, FsError>;
    /// The operations that would not wait now.
    fn ready(&self) -> Ready {
        Ready::READ | Ready::WRITE
    }
    /// Whether [`ready`](Self::ready) depends on the calling thread, so that only a waiting thread may call it.
    fn is_ready_for_caller_alone(&self) -> bool {
        false
    }
    /// The readiness that announces changes of [`ready`](Self::ready); `None` if that never changes.
    fn readiness(&self) -> Option<&Readiness> {
        None
    }
    /// The number of bytes that could be read now, or an error if the stream does not know it.
    fn queued(&self) -> Result<usize, FsError> {
        Err(FsError::NotTerminal)
    }
    /// The kernel memory of the bytes that the stream holds, in bytes. When memory is exhausted, the choice of the
    /// process to kill depends on this number. So an estimate suffices.
    fn held(&self) -> usize {
        self.queued().unwrap_or(0)
    }
    /// Whether calls with positions are allowed. The stream then ignores the positions, as `/dev/zero` does.
    fn seekable(&self) -> bool {
        false
    }
    /// Returns the position that any seek results in, or an error if the stream refuses seeks.
    fn seek(&self) -> Result<u64, FsError> {
        if self.seekable() { Ok(0) } else { Err(FsError::NotSeekable) }
    }
    /// Whether a private mapping of the stream is a mapping of zeroes, as for `/dev/zero`.
    fn maps_zeroes(&self) -> bool {
        false
    }
    /// Called when the calling process closes a descriptor of the stream, which may not be the last one.
    fn descriptor_closed(&self) {}
    /// The stream as its own type, for requests that only this type supports.
    fn as_any(&self) -> &dyn Any;
}
