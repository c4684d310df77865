//! How a call on a file may wait, and what it may do.

use super::flags::OpenFlags;

/// How a call may wait.
#[derive(Clone, Copy)]
pub struct Io<'a> {
    /// Rather fail with [`FsError::WouldBlock`](crate::FsError::WouldBlock) than wait.
    pub nonblock: bool,
    /// When to give up, by the monotonic clock in nanoseconds.
    pub deadline: Option<u64>,
    /// Whether a signal wants the caller.
    pub interrupted: &'a dyn Fn() -> bool,
    /// A file that the caller writes to keeps its set-id bits, because the caller has [`Powers::SET_IDS`](crate::Powers). Else it loses
    /// them.
    pub keeps_set_ids: bool,
    /// Each write to a pipe makes packets.
    pub packets: bool,
    /// The caller makes no regular file longer than this, and writes to none beyond it: [`FsError::OverLimit`](crate::FsError::OverLimit).
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
