//! What is read and written without being a regular file: pipes, devices, terminals, sockets, counters.

use crate::readiness::{Readiness, Ready};
use crate::transfer::{Sink, Source};
use crate::{FsError, OpenFlags};
use core::any::Any;

/// How a call may wait.
#[derive(Clone, Copy)]
pub struct Io<'a> {
    /// Rather fail with [`FsError::WouldBlock`] than wait.
    pub nonblock: bool,
    /// When to give up, by the monotonic clock in nanoseconds.
    pub deadline: Option<u64>,
    /// Whether a signal wants the caller.
    pub interrupted: &'a dyn Fn() -> bool,
    /// What is written keeps its set-id bits (the caller has [`Powers::SET_IDS`](crate::Powers)); else it loses them.
    pub keeps_set_ids: bool,
    /// Each write to a pipe makes packets.
    pub packets: bool,
    /// The caller makes no regular file longer than this, and writes to none beyond it: [`FsError::OverLimit`].
    pub most: u64,
}

impl Io<'_> {
    /// Never wait.
    pub const NOW: Io<'static> = Io { nonblock: true, ..Io::WAIT };
    /// Wait as long as it takes.
    pub const WAIT: Io<'static> = Io {
        nonblock: false,
        deadline: None,
        interrupted: &|| false,
        keeps_set_ids: false,
        packets: false,
        most: u64::MAX,
    };

    /// The same, but not waiting, and of packets, where the file was opened so.
    pub fn of(self, flags: OpenFlags) -> Self {
        Io {
            nonblock: self.nonblock || flags.contains(OpenFlags::NONBLOCK),
            packets: flags.contains(OpenFlags::DIRECT),
            ..self
        }
    }
}

/// An open stream. Dropping it closes it.
pub trait Stream: Send + Sync {
    /// Reads what is there into `sink`, waiting for the first byte as `io` allows; `Ok(0)` at the end.
    fn read(&self, io: &Io<'_>, sink: &mut dyn Sink) -> Result<usize, FsError>;
    /// Writes what `source` has, waiting for room as `io` allows. An error only where nothing was written.
    fn write(&self, io: &Io<'_>, source: &mut dyn Source) -> Result<usize, FsError>;
    /// What can be done now.
    fn ready(&self) -> Ready {
        Ready::READ | Ready::WRITE
    }
    /// Where changes of [`ready`](Self::ready) are announced; `None` where it never changes.
    fn readiness(&self) -> Option<&Readiness> {
        None
    }
    /// Bytes that could be read now, where the stream can tell.
    fn queued(&self) -> Result<usize, FsError> {
        Err(FsError::NotTerminal)
    }
    /// Whether positions mean something (they are then ignored, as on `/dev/zero`).
    fn seekable(&self) -> bool {
        false
    }
    /// Where a seek arrives, whatever it asked for; an error where the stream refuses it.
    fn seek(&self) -> Result<u64, FsError> {
        if self.seekable() { Ok(0) } else { Err(FsError::NotSeekable) }
    }
    /// A private mapping of it is a mapping of zeroes, as of `/dev/zero`.
    fn maps_zeroes(&self) -> bool {
        false
    }
    /// The stream's own type, for requests that only it knows.
    fn as_any(&self) -> &dyn Any;
}
