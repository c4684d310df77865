//! The options of a call on a file: how it waits, and its rights.

use super::flags::OpenFlags;
use super::park::{Kept, Park};

/// The options of a call.
#[derive(Clone, Copy)]
pub struct Io<'a> {
    /// Whether the call fails with [`FsError::WouldBlock`](crate::FsError::WouldBlock) instead of waiting.
    pub nonblock: bool,
    /// The deadline, on the monotonic clock in nanoseconds.
    pub deadline: Option<u64>,
    /// How the call may wait without a stack. `None` if it keeps its stack, for example because it has moved bytes.
    pub park: Option<&'a Park>,
    /// Returns whether the caller has a signal to handle.
    pub interrupted: &'a dyn Fn() -> bool,
    /// Whether a file keeps its set-id bits when the caller writes to it, because the caller has
    /// [`Powers::SET_IDS`](crate::Powers). Otherwise the file loses them.
    pub keeps_set_ids: bool,
    /// Overrides the file's append flag: `true` writes at the end of the file, `false` at the call's offset.
    pub appends: Option<bool>,
    /// Whether each write to a pipe makes packets.
    pub packets: bool,
    /// The limit in bytes for regular files: the caller makes no file longer, and writes to none beyond it. The error
    /// is [`FsError::OverLimit`](crate::FsError::OverLimit).
    pub most: u64,
}

impl Io<'_> {
    /// Options of a call that never waits.
    pub const NOW: Self = Io { nonblock: true, ..Io::WAIT };
    /// Options of a call that waits as long as it takes.
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

    /// These options for a call that keeps its stack from now on. Such a call has moved bytes, or waits at another
    /// object's readiness.
    pub fn on_stack(self) -> Self {
        Io { park: None, ..self }
    }

    /// The state that the earlier attempt of this call kept, if it slept without a stack.
    #[inline]
    pub fn earlier(&self) -> Option<Kept> {
        self.park.and_then(Park::earlier)
    }

    /// These options, combined with two flags of the file: nonblocking mode, and packets. A call that has slept
    /// continues to wait, even if another thread has made the file nonblocking since.
    pub fn of(self, flags: OpenFlags) -> Self {
        Io {
            nonblock: self.nonblock || flags.contains(OpenFlags::NONBLOCK) && self.earlier().is_none(),
            packets: flags.contains(OpenFlags::DIRECT),
            ..self
        }
    }

    /// Calls `f` with the options [of](Self::of) a file with these flags. `packets` must be unset in `self`. Few files
    /// have such flags, so mostly the options are not copied.
    #[inline]
    pub(crate) fn with<R>(&self, flags: OpenFlags, f: impl FnOnce(&Io<'_>) -> R) -> R {
        debug_assert!(!self.packets, "only the flags of a file ask for packets");
        if flags.intersects(OpenFlags::NONBLOCK.union(OpenFlags::DIRECT)) { f(&self.of(flags)) } else { f(self) }
    }
}
