//! The options of a call on a file: how it waits, and its rights.

use super::flags::OpenFlags;
use super::park::{Kept, Park};

/// The options of a call.
#[derive(Clone, Copy)]
pub struct Io<'a> {
    /// Fail with [`FsError::WouldBlock`](crate::FsError::WouldBlock) instead of waiting.
    pub nonblock: bool,
    /// The deadline, on the monotonic clock in nanoseconds.
    pub deadline: Option<u64>,
    /// How the call may wait without a stack. Only for a call that has moved nothing.
    pub park: Option<&'a Park>,
    /// Whether the caller has a signal to handle.
    pub interrupted: &'a dyn Fn() -> bool,
    /// A file that the caller writes to keeps its set-id bits, because the caller has
    /// [`Powers::SET_IDS`](crate::Powers). Else it loses them.
    pub keeps_set_ids: bool,
    /// Writes go to the end of the file, or to their offset, whatever the file's flags say.
    pub appends: Option<bool>,
    /// Each write to a pipe makes packets.
    pub packets: bool,
    /// The caller makes no regular file longer than this, and writes to none beyond it:
    /// [`FsError::OverLimit`](crate::FsError::OverLimit).
    pub most: u64,
}

impl Io<'_> {
    /// Never wait.
    pub const NOW: Self = Io { nonblock: true, ..Io::WAIT };
    /// Wait as long as it takes.
    pub const WAIT: Self = Io {
        nonblock: false,
        deadline: None,
        park: None,
        interrupted: &|| false,
        keeps_set_ids: false,
        appends: None,
        packets: false,
        most: u64::MAX,
    };

    /// The conditions of a call that keeps its stack from now on: it has moved bytes, or waits at another's announcer.
    pub fn on_stack(self) -> Self {
        Io { park: None, ..self }
    }

    /// The state that the earlier attempt of this call kept, if it slept without a stack.
    #[inline]
    pub fn earlier(&self) -> Option<Kept> {
        self.park.and_then(Park::earlier)
    }

    /// These options, but nonblocking, or with packets, if the file's flags say so. A call that has slept goes on to
    /// wait, though another thread may have changed the flags.
    pub fn of(self, flags: OpenFlags) -> Self {
        Io {
            nonblock: self.nonblock || flags.contains(OpenFlags::NONBLOCK) && self.earlier().is_none(),
            packets: flags.contains(OpenFlags::DIRECT),
            ..self
        }
    }

    /// Calls `f` with the options [of](Self::of) a file with these flags. `packets` is unset in `self`. Few files have
    /// such flags, so mostly nothing is copied.
    #[inline]
    pub(crate) fn with<R>(&self, flags: OpenFlags, f: impl FnOnce(&Io<'_>) -> R) -> R {
        debug_assert!(!self.packets, "only the flags of a file ask for packets");
        if flags.intersects(OpenFlags::NONBLOCK.union(OpenFlags::DIRECT)) { f(&self.of(flags)) } else { f(self) }
    }
}
