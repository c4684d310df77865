//! Typed errors of the file layer. The Linux layer maps each to an errno.

use core::fmt;

/// The reason why a file operation was refused. The operation has changed nothing, unless the variant says otherwise.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FsError {
    /// No entry has that name.
    NotFound,
    /// An entry has that name already.
    Exists,
    /// A component that must be a directory is another kind of file.
    NotDirectory,
    /// The operation does not work on directories.
    IsDirectory,
    /// The directory has entries.
    NotEmpty,
    /// The path has too many symbolic links, or a link where links are forbidden.
    Loop,
    /// A component or path is too long.
    NameTooLong,
    /// The permission bits forbid the access.
    Denied,
    /// Only a privileged caller may do this, or no caller at all.
    NotPermitted,
    /// An argument makes no sense.
    Invalid,
    /// The two names are on different file systems.
    CrossDevice,
    /// Something is mounted on the entry, or a mapping may store into the file.
    Busy,
    /// No frames, or no inodes, are left for file contents.
    NoSpace,
    /// No memory for the operation itself.
    OutOfMemory,
    /// The file would become larger than the largest possible file.
    TooLarge,
    /// The file would become larger than its writer's limit ([`Io::most`](crate::Io::most)).
    OverLimit,
    /// An offset or a value does not fit its type.
    Overflow,
    /// A number in a text does not fit its type.
    OutOfRange,
    /// The file is not open for this operation.
    BadFile,
    /// The call would have to wait, and the caller forbids waiting.
    WouldBlock,
    /// The calling thread is listed at the stream, and sleeps without a stack ([`park`](crate::stream::park)). A
    /// program's call never returns this error.
    WouldSleep,
    /// A signal came first.
    Interrupted,
    /// No reader is left for the written bytes.
    BrokenPipe,
    /// The caller's memory cannot be reached.
    Fault,
    /// The file has no position.
    NotSeekable,
    /// The file is not a terminal, or its kind does not support the request.
    NotTerminal,
    /// The device number has no driver, or the FIFO's other end is not open.
    NoDevice,
    /// The inode has the most names that an inode may have.
    TooManyLinks,
    /// The system has the most open files that it may have.
    TooManyFiles,
    /// The file system does not support the operation.
    Unsupported,
    /// There is no such attribute.
    NoData,
    /// A device failed, or a background process must not touch the terminal.
    Io,
    /// The file system takes no changes.
    ReadOnly,
    /// The file is being executed, or is open for writing and cannot be executed.
    TextBusy,
    /// The process that the file described has ended.
    NoProcess,
    /// Waiting for the lock would never end.
    Deadlock,
    /// A signal interrupted a wait with a time limit. The call must not be restarted, because its limit would begin
    /// again.
    Stopped,
    /// The caller's user has the most pages in pipes that it may have.
    TooManyPipes,
    /// The clock of the timer that the caller waits for was set.
    Canceled,
    /// The socket has no peer.
    NotConnected,
    /// The socket has a peer already.
    IsConnected,
    /// No socket listens at the address.
    Refused,
    /// The connection has failed, and another call has reported why.
    Aborted,
    /// The peer dropped the connection, and data was lost.
    Reset,
    /// Another socket has the address.
    AddressInUse,
    /// The address does not belong to this machine, or no port is free.
    AddressUnavailable,
    /// The message does not fit into one datagram or buffer.
    MessageTooLong,
    /// A datagram needs a destination.
    NoDestination,
    /// The connection is being made.
    InProgress,
    /// An earlier call is still making the connection.
    Already,
    /// The socket at the address is of another kind.
    WrongType,
    /// The address is of another family than the socket.
    WrongFamily,
    /// No network leads to the address.
    Unreachable,
}

impl fmt::Display for FsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FsError::NotFound => "no such file or directory",
            FsError::Exists => "file exists",
            FsError::NotDirectory => "not a directory",
            FsError::IsDirectory => "is a directory",
            FsError::NotEmpty => "directory not empty",
            FsError::Loop => "too many symbolic links",
            FsError::NameTooLong => "name too long",
            FsError::Denied => "permission denied",
            FsError::NotPermitted => "operation not permitted",
            FsError::Invalid => "invalid argument",
            FsError::CrossDevice => "different file systems",
            FsError::Busy => "resource busy",
            FsError::NoSpace => "no space left",
            FsError::OutOfMemory => "out of memory",
            FsError::TooLarge => "file too large",
            FsError::OverLimit => "file beyond the writer's limit",
            FsError::Overflow => "value too large",
            FsError::OutOfRange => "number out of range",
            FsError::BadFile => "not open for that",
            FsError::WouldBlock => "would block",
            FsError::WouldSleep => "would sleep",
            FsError::Interrupted => "interrupted",
            FsError::BrokenPipe => "broken pipe",
            FsError::Fault => "bad address",
            FsError::NotSeekable => "not seekable",
            FsError::NotTerminal => "not a terminal",
            FsError::NoDevice => "no such device",
            FsError::TooManyLinks => "too many links",
            FsError::TooManyFiles => "too many open files in the system",
            FsError::Unsupported => "not supported",
            FsError::NoData => "no such attribute",
            FsError::Io => "input/output error",
            FsError::ReadOnly => "read-only file system",
            FsError::TextBusy => "text file busy",
            FsError::NoProcess => "no such process",
            FsError::Deadlock => "deadlock",
            FsError::Stopped => "interrupted before its time limit",
            FsError::TooManyPipes => "too many pipes",
            FsError::Canceled => "the clock was set",
            FsError::NotConnected => "not connected",
            FsError::IsConnected => "already connected",
            FsError::Refused => "connection refused",
            FsError::Aborted => "connection aborted",
            FsError::Reset => "connection reset",
            FsError::AddressInUse => "address in use",
            FsError::AddressUnavailable => "address not available",
            FsError::MessageTooLong => "message too long",
            FsError::NoDestination => "destination address required",
            FsError::InProgress => "operation in progress",
            FsError::Already => "operation already in progress",
            FsError::WrongType => "wrong kind of socket",
            FsError::WrongFamily => "address family not supported",
            FsError::Unreachable => "network unreachable",
        })
    }
}

impl core::error::Error for FsError {}

impl From<quire_heap::OutOfMemory> for FsError {
    fn from(_: quire_heap::OutOfMemory) -> Self {
        FsError::OutOfMemory
    }
}

impl From<quire_vm::OutOfMemory> for FsError {
    fn from(_: quire_vm::OutOfMemory) -> Self {
        FsError::OutOfMemory
    }
}
