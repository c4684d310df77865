//! Options and requests that Linux has and this kernel does not support. Each is logged once, if the log is verbose.

use crate::system::option_names as names;
use core::fmt;
use quire_sync::atomic::{AtomicU64, Ordering};

/// The most different options and requests that are logged.
const MOST: usize = 64;

/// An option or a request of a system call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unsupported {
    /// An option of `setsockopt`: the level and the name.
    SetOption(u32, u32),
    /// An option of `getsockopt`: the level and the name.
    GetOption(u32, u32),
    /// A request of `ioctl`.
    Ioctl(u32),
    /// An option of `prctl`.
    Prctl(u32),
}

impl Unsupported {
    /// A number that no other value has, and that is not 0.
    fn key(self) -> u64 {
        let (kind, level, name) = match self {
            Unsupported::SetOption(level, name) => (1, level, name),
            Unsupported::GetOption(level, name) => (2, level, name),
            Unsupported::Ioctl(request) => (3, 0, request),
            Unsupported::Prctl(option) => (4, 0, option),
        };
        // Levels are small. Larger ones count as one.
        kind << 56 | u64::from(level.min(0xff_ffff)) << 32 | u64::from(name)
    }
}

/// A number, or its name.
struct Named(u32, Option<&'static str>);

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.1 {
            Some(name) => f.write_str(name),
            None => write!(f, "{:#x}", self.0),
        }
    }
}

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let option = |level, name| (Named(level, names::level(level)), Named(name, names::socket_option(level, name)));
        match *self {
            Unsupported::SetOption(level, name) => {
                let (level, name) = option(level, name);
                write!(f, "setsockopt({level}, {name})")
            }
            Unsupported::GetOption(level, name) => {
                let (level, name) = option(level, name);
                write!(f, "getsockopt({level}, {name})")
            }
            Unsupported::Ioctl(request) => write!(f, "ioctl({})", Named(request, names::ioctl(request))),
            Unsupported::Prctl(option) => write!(f, "prctl({})", Named(option, names::prctl(option))),
        }
    }
}

/// The options and requests that were logged already.
pub struct Logged {
    seen: [AtomicU64; MOST],
}

impl Default for Logged {
    fn default() -> Self {
        Self::new()
    }
}

impl Logged {
    /// An empty set.
    pub fn new() -> Self {
        Self { seen: core::array::from_fn(|_| AtomicU64::new(0)) }
    }

    /// Adds an option, and returns whether it was not in the set. A full set takes no more.
    pub(crate) fn first_time(&self, option: Unsupported) -> bool {
        let key = option.key();
        for place in &self.seen {
            match place.compare_exchange(0, key, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(there) if there == key => return false,
                Err(_) => {}
            }
        }
        false
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn an_option_is_named_with_its_level() {
        for (option, text) in [
            (Unsupported::SetOption(6, 14), "setsockopt(SOL_TCP, TCP_MD5SIG)"),
            (Unsupported::GetOption(1, 9999), "getsockopt(SOL_SOCKET, 0x270f)"),
            (Unsupported::SetOption(0x1234, 5), "setsockopt(0x1234, 0x5)"),
            (Unsupported::Ioctl(0x5415), "ioctl(TIOCMGET)"),
            (Unsupported::Prctl(22), "prctl(PR_SET_SECCOMP)"),
        ] {
            assert_eq!(option.to_string(), text);
        }
    }

    #[test]
    fn each_option_is_new_once_and_the_set_is_bounded() {
        let logged = Logged::new();
        assert!(logged.first_time(Unsupported::Ioctl(0)) && !logged.first_time(Unsupported::Ioctl(0)));
        assert!(logged.first_time(Unsupported::Prctl(0)) && logged.first_time(Unsupported::SetOption(0, 0)));
        let more = (1..1000).filter(|n| logged.first_time(Unsupported::GetOption(*n, 1))).count();
        assert_eq!(more, MOST - 3);
        assert!(!logged.first_time(Unsupported::GetOption(999, 1)) && !logged.first_time(Unsupported::Ioctl(0)));
    }
}
