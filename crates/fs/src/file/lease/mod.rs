//! Leases: an open file's holder is notified before another opener uses the file, and gets time to give the lease up.
//!
//! A file system counts the leases on its inodes. If there are none, an opener only reads that count. The leases of one
//! inode are in a list, which is made for the first lease and stays with the inode.
//!
//! An opener that conflicts with leases *breaks* them. For each lease it notes the kind that may stay, and notifies the
//! holder. Then it waits. When the time is over, the opener itself changes or removes the leases. While an opener
//! waits, no open file gets a new or stronger lease, so the wait ends.

mod inode;

use crate::FsError;
use crate::stream::readiness::Readiness;
use quire_heap::{Arc, Vec};
use quire_sync::atomic::AtomicUsize;
use quire_sync::{Rank, SpinLock};

/// The most leases on one inode.
const MOST: usize = 1024;

/// The kind of a lease: which opens it delays.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum LeaseKind {
    /// Delays opening the file for writing.
    Read,
    /// Delays every open of the file.
    Write,
}

/// The receiver of the notification that a lease is broken.
pub trait LeaseHolder: Send + Sync {
    /// Called when another opener waits for the lease. The caller holds no lock.
    fn broken(&self);
}

/// The change of a lease that an opener waits for.
#[derive(Clone, Copy)]
struct Break {
    /// The kind that may stay; `None` if the lease must go.
    to: Option<LeaseKind>,
    /// The time at which the opener makes the change itself, in nanoseconds of the monotonic clock.
    due: u64,
}

struct Lease {
    /// The open file, by its id as an owner of locks.
    file: u64,
    kind: LeaseKind,
    holder: Arc<dyn LeaseHolder>,
    broken: Option<Break>,
}

impl Lease {
    fn conflicts(&self, writes: bool) -> bool {
        writes || self.kind == LeaseKind::Write
    }
}

/// The leases of an inode.
pub(crate) struct LeaseList {
    held: SpinLock<Vec<Lease>>,
    /// The number of openers that wait.
    waiting: AtomicUsize,
    changed: Readiness,
}

/// The list of an inode's leases, made for its first lease.
pub(crate) type OwnLeases = SpinLock<Option<Arc<LeaseList>>>;

pub(crate) fn none() -> OwnLeases {
    SpinLock::new(Rank::ATTRIBUTES, None)
}

impl LeaseList {
    fn new() -> Result<Arc<Self>, FsError> {
        let held = SpinLock::new(Rank::ATTRIBUTES, Vec::new());
        Ok(Arc::try_new(LeaseList { held, waiting: AtomicUsize::new(0), changed: Readiness::new() })?)
    }

    /// Returns `Some` if no lease conflicts with an opener. `writes` is whether the opener opens the file for writing.
    fn is_free(&self, writes: bool) -> Option<()> {
        (!self.held.lock().iter().any(|lease| lease.conflicts(writes))).then_some(())
    }

    /// Notes in the conflicting leases that an opener waits until `due`. Returns the first holder that was not notified
    /// yet, and the time at which the earliest conflicting lease ends by itself.
    fn note(&self, writes: bool, due: u64) -> (Option<Arc<dyn LeaseHolder>>, u64) {
        let mut first = u64::MAX;
        for lease in self.held.lock().iter_mut().filter(|lease| lease.conflicts(writes)) {
            let to = if writes { None } else { Some(LeaseKind::Read) };
            match &mut lease.broken {
                None => {
                    lease.broken = Some(Break { to, due });
                    return (Some(lease.holder.clone()), due);
                }
                Some(before) => {
                    before.to = before.to.min(to);
                    first = first.min(before.due);
                }
            }
        }
        (None, first)
    }

    /// Ends the leases whose time is over at `now`, or changes such a lease to the kind that may stay. Returns how many
    /// ended.
    fn expire(&self, now: u64) -> usize {
        let mut ended = Vec::new();
        let mut held = self.held.lock();
        let count = held.len();
        let over = |lease: &Lease| lease.broken.filter(|of| of.due <= now);
        while let Some(at) = held.iter().position(|lease| over(lease).is_some()) {
            match over(&held[at]).and_then(|of| of.to) {
                Some(kind) => (held[at].kind, held[at].broken) = (kind, None),
                // The holder is dropped after the lock is released, if there is memory to keep it until then.
                None if ended.try_reserve(1).is_ok() => ended.push_reserved(held.swap_remove(at)),
                None => drop(held.swap_remove(at)),
            }
        }
        let gone = count - held.len();
        drop(held);
        drop(ended);
        gone
    }
}
