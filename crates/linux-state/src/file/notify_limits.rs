//! The limits of `inotify`: the files in `/proc/sys/fs/inotify`.

use quire_sync::atomic::AtomicU64;

/// Linux's defaults of the `fs.inotify` settings.
const INSTANCES: u64 = 128;
const QUEUED: u64 = 16384;
const WATCHES: u64 = 1 << 20;
/// Upper bounds, in bytes, for the kernel memory of a watch and of a queued event with a long name.
const WATCH_BYTES: u64 = 512;
const EVENT_BYTES: u64 = 320;

/// The limits of one user's `inotify` files: `fs.inotify`.
pub struct NotifyLimits {
    /// `max_user_instances`
    pub instances: AtomicU64,
    /// `max_user_watches`
    pub watches: AtomicU64,
    /// `max_queued_events` of one `inotify` file
    pub queued: AtomicU64,
}

impl NotifyLimits {
    /// Linux's limits, or lower ones if `memory` (in bytes) is small. With the lower limits, all watches of a user need
    /// at most a hundredth of memory. All full queues of a user need at most an eighth.
    pub fn new(memory: u64) -> Self {
        NotifyLimits {
            instances: AtomicU64::new(INSTANCES),
            watches: AtomicU64::new((memory / 100 / WATCH_BYTES).clamp(8192, WATCHES)),
            queued: AtomicU64::new((memory / 8 / INSTANCES / EVENT_BYTES).clamp(256, QUEUED)),
        }
    }
}
