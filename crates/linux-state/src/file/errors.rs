//! The errno of each error of the file layer.

use crate::Errno;
use quire_fs::FsError;

impl From<FsError> for Errno {
    fn from(e: FsError) -> Self {
        match e {
            FsError::NotFound => Errno::ENOENT,
            FsError::Exists => Errno::EEXIST,
            FsError::NotDirectory => Errno::ENOTDIR,
            FsError::IsDirectory => Errno::EISDIR,
            FsError::NotEmpty => Errno::ENOTEMPTY,
            FsError::Loop => Errno::ELOOP,
            FsError::NameTooLong => Errno::ENAMETOOLONG,
            FsError::Denied => Errno::EACCES,
            FsError::NotPermitted => Errno::EPERM,
            FsError::Invalid => Errno::EINVAL,
            FsError::CrossDevice => Errno::EXDEV,
            FsError::Busy => Errno::EBUSY,
            FsError::NoSpace => Errno::ENOSPC,
            FsError::OutOfMemory => Errno::ENOMEM,
            FsError::TooLarge | FsError::OverLimit => Errno::EFBIG,
            FsError::Overflow => Errno::EOVERFLOW,
            FsError::BadFile => Errno::EBADF,
            FsError::WouldBlock => Errno::EAGAIN,
            FsError::WouldSleep => Errno::WOULD_SLEEP,
            // The delivery of the signal decides whether the call is restarted.
            FsError::Interrupted => Errno::ERESTARTSYS,
            FsError::Stopped => Errno::EINTR,
            FsError::BrokenPipe => Errno::EPIPE,
            FsError::Fault => Errno::EFAULT,
            FsError::NotSeekable => Errno::ESPIPE,
            FsError::NotTerminal => Errno::ENOTTY,
            FsError::NoDevice => Errno::ENXIO,
            FsError::TooManyLinks => Errno::EMLINK,
            FsError::TooManyFiles => Errno::ENFILE,
            FsError::Unsupported => Errno::EOPNOTSUPP,
            FsError::NoData => Errno::ENODATA,
            FsError::Io => Errno::EIO,
            FsError::ReadOnly => Errno::EROFS,
            FsError::TextBusy => Errno::ETXTBSY,
            FsError::OutOfRange => Errno::ERANGE,
            FsError::NoProcess => Errno::ESRCH,
            FsError::Deadlock => Errno::EDEADLK,
            FsError::TooManyPipes => Errno::ENFILE,
            FsError::Canceled => Errno::ECANCELED,
            FsError::NotConnected => Errno::ENOTCONN,
            FsError::IsConnected => Errno::EISCONN,
            FsError::Refused => Errno::ECONNREFUSED,
            FsError::Aborted => Errno::ECONNABORTED,
            FsError::Reset => Errno::ECONNRESET,
            FsError::AddressInUse => Errno::EADDRINUSE,
            FsError::AddressUnavailable => Errno::EADDRNOTAVAIL,
            FsError::MessageTooLong => Errno::EMSGSIZE,
            FsError::NoDestination => Errno::EDESTADDRREQ,
            FsError::InProgress => Errno::EINPROGRESS,
            FsError::Already => Errno::EALREADY,
            FsError::WrongType => Errno::EPROTOTYPE,
            FsError::WrongFamily => Errno::EAFNOSUPPORT,
            FsError::Unreachable => Errno::ENETUNREACH,
        }
    }
}
