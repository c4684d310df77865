//! Linux's error numbers. Nothing below this crate knows one.

use linux_raw_sys::errno as raw;
use quire_vm::{FaultError, MapError, OutOfMemory};

/// An error number as a system call returns it: positive here, negated in the return register.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Errno(pub u16);

macro_rules! numbers {
    ($($name:ident)*) => {
        #[allow(missing_docs)]
        impl Errno {
            $(pub const $name: Errno = Errno(raw::$name as u16);)*

            /// The symbolic name, if this kernel returns the number.
            pub const fn name(self) -> Option<&'static str> {
                match self {
                    $(Errno::$name => Some(stringify!($name)),)*
                    _ => None,
                }
            }
        }
    };
}

numbers! {
    EPERM ENOENT ESRCH EINTR EIO ENXIO E2BIG ENOEXEC EBADF ECHILD EAGAIN ENOMEM EACCES EFAULT ENOTBLK EBUSY EEXIST EXDEV
    ENODEV ENOTDIR EISDIR EINVAL ENFILE EMFILE ENOTTY ETXTBSY EFBIG ENOSPC ESPIPE EROFS EMLINK EPIPE EDOM ERANGE EDEADLK
    ENAMETOOLONG ENOLCK ENOSYS ENOTEMPTY ELOOP ELIBBAD ESTALE EOVERFLOW EOPNOTSUPP EAFNOSUPPORT ENOTSOCK ETIMEDOUT
    EALREADY EINPROGRESS ECANCELED ENODATA ETIME ENOTCONN ECONNREFUSED EPROTO EBADMSG EISCONN ECONNRESET EADDRINUSE
    EADDRNOTAVAIL EMSGSIZE ENOMSG EIDRM EDESTADDRREQ EPROTOTYPE ENETUNREACH ENOBUFS ENOPROTOOPT EPROTONOSUPPORT
    ESOCKTNOSUPPORT ECONNABORTED ETOOMANYREFS
}

/// Numbers that never reach a program. A call returns one if a signal interrupted it before it did anything. Signal
/// delivery then turns it into EINTR or repeats the call.
#[allow(missing_docs)]
impl Errno {
    /// Make the call again unless a handler runs whose action lacks SA_RESTART; then EINTR.
    pub const ERESTARTSYS: Errno = Errno(512);
    /// Make the call again in any case.
    pub const ERESTARTNOINTR: Errno = Errno(513);
    /// Make the call again only when no handler runs; EINTR if one does.
    pub const ERESTARTNOHAND: Errno = Errno(514);
    /// As [`Errno::ERESTARTNOHAND`], but repeats `restart_syscall` instead, with the state that
    /// [`Ctx::restart_with`](crate::Ctx::restart_with) stored. For relative timeouts.
    pub const ERESTARTBLOCK: Errno = Errno(516);

    /// The thread is listed at a stream and sleeps without a stack. No result of a call.
    pub const WOULD_SLEEP: Errno = Errno(517);

    /// Whether signal delivery has to decide.
    pub const fn is_restart(self) -> bool {
        matches!(self.0, 512..=516)
    }
}

impl core::fmt::Debug for Errno {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "errno {}", self.0),
        }
    }
}

/// A result register as Linux encodes it: small negative numbers are errors.
#[inline(always)]
pub fn encode(result: Result<usize, Errno>) -> u64 {
    match result {
        Ok(value) => value as u64,
        Err(e) => (-i64::from(e.0)) as u64,
    }
}

impl From<OutOfMemory> for Errno {
    fn from(_: OutOfMemory) -> Self {
        Errno::ENOMEM
    }
}

impl From<quire_heap::OutOfMemory> for Errno {
    fn from(_: quire_heap::OutOfMemory) -> Self {
        Errno::ENOMEM
    }
}

impl From<MapError> for Errno {
    fn from(e: MapError) -> Self {
        match e {
            MapError::Invalid => Errno::EINVAL,
            MapError::Pager => Errno::EIO,
            MapError::NotMapped | MapError::NoSpace | MapError::TooMany | MapError::OutOfMemory => Errno::ENOMEM,
            MapError::Exists => Errno::EEXIST,
            MapError::Ending => Errno::EINTR,
            MapError::Protection => Errno::EACCES,
            MapError::Refused | MapError::Sealed => Errno::EPERM,
            // There is one system.
            MapError::Foreign => Errno::EINVAL,
        }
    }
}

impl From<FaultError> for Errno {
    fn from(_: FaultError) -> Self {
        Errno::EFAULT
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn results_are_encoded_as_programs_expect() {
        assert_eq!(encode(Ok(7)), 7);
        assert_eq!(encode(Err(Errno::ENOENT)) as i64, -2);
        assert_eq!(Errno::EAGAIN.name(), Some("EAGAIN"));
        assert!(Errno::ERESTARTSYS.is_restart() && !Errno::EINTR.is_restart());
    }
}
