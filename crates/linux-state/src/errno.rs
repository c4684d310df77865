//! Linux's error numbers. The crates below this one do not use them.

use linux_raw_sys::errno as raw;
use quire_vm::{FaultError, MapError, OutOfMemory};

/// An error number of a system call. It is positive here, and negated in the return register.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Errno(pub u16);

macro_rules! numbers {
    ($($name:ident)*) => {
        #[allow(missing_docs)]
        impl Errno {
            $(pub const $name: Errno = Errno(raw::$name as u16);)*

            /// The symbolic name, if this kernel returns this number.
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

/// Numbers that programs never see. A call returns one of these numbers if a signal interrupted it before it had an
/// effect. The delivery of the signal then replaces the number by EINTR, or restarts the call.
#[allow(missing_docs)]
impl Errno {
    /// Restart the call. But return EINTR if a handler runs whose action lacks SA_RESTART.
    pub const ERESTARTSYS: Errno = Errno(512);
    /// Restart the call in any case.
    pub const ERESTARTNOINTR: Errno = Errno(513);
    /// Restart the call if no handler runs; else return EINTR.
    pub const ERESTARTNOHAND: Errno = Errno(514);
    /// If no handler runs, execute `restart_syscall` instead of the call; else return EINTR. `restart_syscall`
    /// continues from the state that [`Ctx::restart_with`](crate::Ctx::restart_with) stored. Calls with relative
    /// timeouts return this number.
    pub const ERESTARTBLOCK: Errno = Errno(516);

    /// Not a result of a call: the thread is on a stream's queue and sleeps without a stack.
    pub const WOULD_SLEEP: Errno = Errno(517);

    /// Whether the delivery of a signal decides what the call returns.
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

/// The value of the result register, as on Linux: errors are small negative numbers.
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
            MapError::Pager(_) => Errno::EIO,
            MapError::NotMapped | MapError::NoSpace | MapError::TooMany | MapError::OutOfMemory => Errno::ENOMEM,
            MapError::Exists => Errno::EEXIST,
            MapError::Ending => Errno::EINTR,
            MapError::Protection => Errno::EACCES,
            MapError::Refused | MapError::Sealed => Errno::EPERM,
            // There is only one memory system, so `Foreign` does not occur. There is no other error at present.
            _ => Errno::EINVAL,
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
