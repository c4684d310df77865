//! The limits on pipes in `/proc/sys/fs`.

use crate::errno::Errno;
use crate::process::credentials::Credentials;
use crate::process::credentials::capabilities::cap;
use quire_fs::PAGE_SIZE;
use quire_sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The limits in `/proc/sys/fs`.
pub struct PipeLimits {
    /// `pipe-max-size`: the bytes to which a thread without CAP_SYS_RESOURCE may enlarge a pipe. [`round`] rounds the
    /// value.
    largest: AtomicU32,
    /// `pipe-user-pages-soft` and `pipe-user-pages-hard`: in pages; 0 for no limit.
    soft: AtomicU64,
    hard: AtomicU64,
}

impl PipeLimits {
    /// The limits of a machine that has just started.
    pub(crate) fn new() -> Self {
        PipeLimits { largest: AtomicU32::new(1 << 20), soft: AtomicU64::new(16_384), hard: AtomicU64::new(0) }
    }

    /// `pipe-max-size`, in bytes.
    pub fn largest(&self) -> u32 {
        self.largest.load(Ordering::Relaxed)
    }

    /// Sets `pipe-max-size` to `bytes`, rounded like the size of a pipe.
    pub fn set_largest(&self, bytes: u32) -> Result<(), Errno> {
        self.largest.store(round(bytes)?, Ordering::Relaxed);
        Ok(())
    }
}

impl PipeLimits {
    /// `pipe-user-pages-soft`, in pages; 0 for no limit.
    pub fn soft(&self) -> &AtomicU64 {
        &self.soft
    }

    /// `pipe-user-pages-hard`, in pages; 0 for no limit.
    pub fn hard(&self) -> &AtomicU64 {
        &self.hard
    }

    /// The soft and the hard limit on the pages of a user's pipes, for a thread with credentials `own`. `u64::MAX`: no
    /// limit.
    pub fn of(&self, own: &Credentials) -> (u64, u64) {
        let free = own.may(cap::SYS_RESOURCE) || own.may(cap::SYS_ADMIN);
        let limit = |limit: &AtomicU64| match limit.load(Ordering::Relaxed) {
            pages if pages == 0 || free => u64::MAX,
            pages => pages,
        };
        (limit(&self.soft), limit(&self.hard))
    }
}

/// The size of a pipe, in bytes, for a request of `bytes`: a power of two, at least a page.
pub fn round(bytes: u32) -> Result<u32, Errno> {
    bytes.max(PAGE_SIZE as u32).checked_next_power_of_two().ok_or(Errno::EINVAL)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_powers_of_two_from_a_page_on() {
        let most = 1 << 31;
        for (wanted, given) in [(0, 4096), (1, 4096), (4096, 4096), (4097, 8192), (65_537, 131_072), (most, most)] {
            assert_eq!(round(wanted), Ok(given));
        }
        assert_eq!((round(most + 1), round(u32::MAX)), (Err(Errno::EINVAL), Err(Errno::EINVAL)));
    }
}
