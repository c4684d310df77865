//! Bind mounts: a directory or file that is seen at a second place.
//!
//! The entries of a directory belong to its inode, and each entry has one dentry. A walk through a bind mount sees such
//! a dentry by a *view*: a second dentry, which refers to the mount and to the seen dentry. Each lookup makes a new
//! view. So two views of one dentry through one mount are the same place ([`Dentry::same`]), as a mount and a dentry
//! are on Linux. A view has no parent and no name of its own. Both come from the seen dentry, or, at the top of the
//! mount, from the mount. So a move of a seen directory moves its views.

use super::Dentry;
use crate::host::Host;
use crate::tree::system::Restrictions;
use quire_heap::{Arc, Map, SpareEntry};
use quire_sync::atomic::{AtomicU8, Ordering};
use quire_sync::{Rank, SpinLock};

/// A bind mount.
pub(crate) struct Bind<H: Host> {
    /// The number of the mount.
    pub id: u64,
    /// The directory or file that is seen at the top of the mount. Not a view.
    pub source: Arc<Dentry<H>>,
    /// The directory that the top of the mount is in, and the top's name in that directory. `None` before the mount
    /// begins and after it ends.
    place: SpinLock<Option<Top<H>>>,
    /// The bits of its [`Restrictions`].
    restrictions: AtomicU8,
    /// The roots of mounts on seen dentries, by the address of the seen dentry. Each mount holds a reference to the
    /// seen dentry, so that no other dentry gets its address.
    over: SpinLock<Map<usize, Arc<Dentry<H>>>>,
}

/// A directory, and a name in that directory.
pub(crate) type Top<H> = (Arc<Dentry<H>>, Arc<[u8]>);

/// The way to a seen dentry.
pub(crate) struct Through<H: Host> {
    pub bind: Arc<Bind<H>>,
    /// The seen dentry. Not a view.
    pub dentry: Arc<Dentry<H>>,
}

impl<H: Host> Clone for Through<H> {
    fn clone(&self) -> Self {
        Through { bind: self.bind.clone(), dentry: self.dentry.clone() }
    }
}

impl<H: Host> Bind<H> {
    /// Bind mount `id` of `source`, which has no place yet.
    pub fn new(id: u64, source: Arc<Dentry<H>>, restrictions: Restrictions) -> Self {
        Bind {
            id,
            source,
            place: SpinLock::new(Rank::PLACE, None),
            restrictions: AtomicU8::new(restrictions.bits()),
            over: SpinLock::new(Rank::PLACE, Map::new()),
        }
    }

    /// The directory that the mount's top is in, and the top's name in that directory.
    pub fn place(&self) -> Option<Top<H>> {
        self.place.lock().clone()
    }

    /// Sets the place of its top.
    pub fn set_place(&self, place: Option<Top<H>>) {
        let old = core::mem::replace(&mut *self.place.lock(), place);
        drop(old);
    }

    /// The uses that the mount refuses.
    pub fn restrictions(&self) -> Restrictions {
        Restrictions::from_bits_truncate(self.restrictions.load(Ordering::Relaxed))
    }

    /// Changes the uses that it refuses.
    pub fn restrict(&self, uses: Restrictions) {
        self.restrictions.store(uses.bits(), Ordering::Relaxed);
    }

    /// The root of the mount on the dentry `seen`, which this bind mount shows; `None` if there is no such mount.
    pub fn over(&self, seen: &Arc<Dentry<H>>) -> Option<Arc<Dentry<H>>> {
        self.over.lock().get(&Arc::as_ptr(seen).addr()).cloned()
    }

    /// Sets the root of the mount on `seen`. Returns the earlier root, which the caller drops after it has released its
    /// locks.
    pub fn cover(
        &self,
        memory: SpareEntry<usize, Arc<Dentry<H>>>,
        seen: &Arc<Dentry<H>>,
        root: Arc<Dentry<H>>,
    ) -> Option<Arc<Dentry<H>>> {
        self.over.lock().insert(memory, Arc::as_ptr(seen).addr(), root)
    }

    /// Removes the mount on `seen`, and returns its root.
    pub fn uncover(&self, seen: &Arc<Dentry<H>>) -> Option<Arc<Dentry<H>>> {
        let gone = self.over.lock().take(&Arc::as_ptr(seen).addr());
        gone.map(|(_memory, _, root)| root)
    }
}
