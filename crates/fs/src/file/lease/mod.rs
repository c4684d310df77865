//! Leases: an open file's holder is notified before another opener uses the file, and is given time to give the lease
//! up.
//!
//! A file system counts the leases on its inodes. Without any, an opener only reads that count. The leases of one inode
//! are in a list, which is made for the first one and stays with the inode.
//!
//! An opener that conflicts with leases *breaks* them: it notes for each the kind that may stay, notifies the holders,
//! and waits. Once the time is over, it changes or removes the leases itself. While an opener waits, no open file gets
//! a new or stronger lease, so that its wait has an end.

mod inode;

use crate::FsError;
use crate::stream::readiness::Readiness;
use quire_heap::{Arc, Vec};
use quire_sync::atomic::AtomicUsize;
use quire_sync::{Rank, SpinLock};

/// Most leases on one inode.
const MOST: usize = 1024;

/// The opens that a lease delays.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum LeaseKind {
    /// Opening the file for writing.
    Read,
    /// Opening it at all.
    Write,
}

/// The holder's notification that its lease is broken. Called with no lock held.
pub trait LeaseHolder: Send + Sync {
    /// Another opener waits.
    fn broken(&self);
}

/// The change of a lease that an opener waits for.
#[derive(Clone, Copy)]
struct Break {
    /// The kind that may stay; `None` if the lease must go.
    to: Option<LeaseKind>,
    /// When it happens by itself, on the monotonic clock in nanoseconds.
    due: u64,
}

struct Lease {
    /// The open file, as an owner of locks.
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
    /// Openers that wait.
    waiting: AtomicUsize,
    changed: Readiness,
}

/// An inode's list, made for its first lease.
pub(crate) type OwnLeases = SpinLock<Option<Arc<LeaseList>>>;

pub(crate) fn none() -> OwnLeases {
    SpinLock::new(Rank::ATTRIBUTES, None)
}

impl LeaseList {
    fn new() -> Result<Arc<Self>, FsError> {
        let held = SpinLock::new(Rank::ATTRIBUTES, Vec::new());
        Ok(Arc::try_new(LeaseList { held, waiting: AtomicUsize::new(0), changed: Readiness::new() })?)
    }

    /// Whether no lease keeps an opener off.
    fn is_free(&self, writes: bool) -> Option<()> {
        (!self.held.lock().iter().any(|lease| lease.conflicts(writes))).then_some(())
    }

    /// Notes that an opener waits, up to `due`. Returns the first holder that was not notified yet, and when the
    /// earliest conflicting lease ends by itself.
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

    /// Ends the leases whose time is over at `now`, or makes them the kind that may stay. Returns how many ended.
    fn expire(&self, now: u64) -> usize {
        let mut ended = Vec::new();
        let mut held = self.held.lock();
        let count = held.len();
        let over = |lease: &Lease| lease.broken.filter(|of| of.due <= now);
        while let Some(at) = held.iter().position(|lease| over(lease).is_some()) {
            match over(&held[at]).and_then(|of| of.to) {
                Some(kind) => (held[at].kind, held[at].broken) = (kind, None),
                // Holders are dropped without the lock, where there is memory to keep them for that long.
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
