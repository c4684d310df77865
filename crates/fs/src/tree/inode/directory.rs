//! A directory of a memory file system: its entries, by name and in the order of creation.

use crate::FsError;
use crate::host::Host;
use crate::tree::dentry::Dentry;
use quire_heap::{Arc, Map, SpareEntry, Vec};
use quire_lookup::Names;
use quire_lookup::names::{self, FoundName};
use quire_sync::epoch::{Domain, Pile, Pinned};
use quire_sync::{CachePadded, Rank, SpinGuard, SpinLock};

/// The first cookie of an entry. Lower cookies are those of `.` and `..`.
pub(crate) const FIRST_COOKIE: u64 = 2;

/// A directory's entries. A thread holds the lock for one step at a time. It does not hold the lock while it allocates
/// memory for users, copies to users, or frees memory. Lookups of names do not take the lock.
pub struct Directory<H: Host> {
    /// The names of `entries` again, for lookups. `names` keeps a removed directory until no lookup can use it any
    /// more.
    names: Names<Dentry<H>>,
    epoch: &'static Domain,
    entries: CachePadded<SpinLock<Entries<H>>>,
}

/// A directory whose entries are locked.
pub(crate) struct Locked<'a, H: Host> {
    names: &'a Names<Dentry<H>>,
    entries: SpinGuard<'a, Entries<H>>,
    /// Declared after the guard `entries`, so dropped after it: the elements are freed when the lock is released.
    given_up: Pile<'a>,
}

/// A dentry and its cookie.
type Listed<H> = (u64, Arc<Dentry<H>>);
/// A dentry and the name that the directory lists it under.
type Named<H> = (Arc<[u8]>, Arc<Dentry<H>>);
/// An entry of a listing: the cookie of the next entry, the name, the dentry.
pub(crate) type Shown<H> = (u64, Arc<[u8]>, Arc<Dentry<H>>);

/// The memory of an entry in both maps of [`Entries`].
pub(crate) struct Spares<H: Host> {
    by_name: SpareEntry<Arc<[u8]>, Listed<H>>,
    by_cookie: SpareEntry<u64, Named<H>>,
}

/// The memory of a name for lookups.
pub(crate) type ShownMemory<H> = names::SpareName<Dentry<H>>;

/// All memory for an entry that is about to be added to one directory. Allocated before the directory's lock is taken,
/// so that no step fails under the lock.
pub(crate) struct EntryMemory<H: Host> {
    pub shown: ShownMemory<H>,
    pub listed: Spares<H>,
}

/// An entry that was removed from a directory. The caller drops it after it has released the directory's lock.
pub(crate) type Taken<H> = (Arc<Dentry<H>>, Spares<H>);

/// The state under the lock of a directory.
pub(crate) struct Entries<H: Host> {
    by_name: Map<Arc<[u8]>, Listed<H>>,
    /// The entries by cookie, so that a listing continues at the right place while entries change. A listing searches
    /// no names, because this map has the dentry of each entry, too.
    by_cookie: Map<u64, Named<H>>,
    next: u64,
    /// Whether the directory is removed, so that no entry may be added any more.
    dead: bool,
}

impl<H: Host> Directory<H> {
    /// An empty directory.
    pub fn new(host: &H) -> Self {
        let entries = Entries { by_name: Map::new(), by_cookie: Map::new(), next: FIRST_COOKIE, dead: false };
        let entries = CachePadded(SpinLock::new(Rank::DIRECTORY, entries));
        Directory { names: Names::new(Rank::NAMES), epoch: host.epoch(), entries }
    }

    /// The entry called `name`. The lookup does not change the reference count of a directory.
    pub(crate) fn get<'p>(&self, name: &[u8], pin: &'p Pinned<'_>) -> Option<FoundName<'p, Dentry<H>>> {
        self.names.get(name, pin)
    }

    /// Memory for a name that lookups see.
    pub(crate) fn shown_memory(&self) -> Result<ShownMemory<H>, FsError> {
        Ok(self.names.spare()?)
    }

    /// Memory for one more entry.
    pub(crate) fn memory(&self) -> Result<EntryMemory<H>, FsError> {
        let listed = Spares { by_name: SpareEntry::try_new()?, by_cookie: SpareEntry::try_new()? };
        Ok(EntryMemory { shown: self.shown_memory()?, listed })
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.entries.lock().by_name.len()
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn lock(&self) -> Locked<'_, H> {
        self.locked(self.entries.lock())
    }

    /// As [`lock`](Self::lock), for a caller that holds the lock of a parent (or of an unrelated directory, see
    /// `rename`). The order of two directories changes when directories move, so the lock-order checker cannot record
    /// it.
    pub(crate) fn lock_below(&self) -> Locked<'_, H> {
        self.locked(self.entries.lock_below())
    }

    fn locked<'a>(&'a self, entries: SpinGuard<'a, Entries<H>>) -> Locked<'a, H> {
        Locked { names: &self.names, entries, given_up: self.epoch.pile() }
    }

    /// Up to `most` entries at or after `cookie`, each with the cookie of the next.
    pub(crate) fn batch(&self, cookie: u64, most: usize) -> Result<Vec<Shown<H>>, FsError> {
        let mut out = Vec::try_with_capacity(most)?;
        let entries = self.entries.lock();
        for (at, (name, dentry)) in entries.by_cookie.iter_from(&cookie).take(most) {
            out.push_reserved((at + 1, name.clone(), dentry.clone()));
        }
        Ok(out)
    }
}

impl<'a, H: Host> Locked<'a, H> {
    /// Unlocks, and returns the removed elements. A caller that holds another lock drops them after it has released
    /// that lock too.
    pub(crate) fn unlock(self) -> Pile<'a> {
        self.given_up
    }

    pub(crate) fn get(&self, name: &[u8]) -> Option<&Arc<Dentry<H>>> {
        self.entries.by_name.get(name).map(|(_, d)| d)
    }

    /// The name of any entry.
    pub(crate) fn first(&self) -> Option<Arc<[u8]>> {
        self.entries.by_name.keys().next().cloned()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.by_name.is_empty()
    }

    pub(crate) fn dead(&self) -> bool {
        self.entries.dead
    }

    pub(crate) fn kill(&mut self) {
        self.entries.dead = true;
    }

    fn show(&mut self, memory: ShownMemory<H>, name: Arc<[u8]>, dentry: Arc<Dentry<H>>) -> Option<Arc<Dentry<H>>> {
        let stays = dentry.is_directory();
        self.names.put(memory, name, dentry, stays, &mut self.given_up)
    }

    /// Adds an entry under a free name.
    pub(crate) fn add(&mut self, memory: EntryMemory<H>, name: Arc<[u8]>, dentry: Arc<Dentry<H>>) {
        let EntryMemory { shown, listed } = memory;
        let shown = self.show(shown, name.clone(), dentry.clone());
        debug_assert!(shown.is_none());
        let cookie = self.entries.next;
        self.entries.next += 1;
        self.entries.by_cookie.insert(listed.by_cookie, cookie, (name.clone(), dentry.clone()));
        self.entries.by_name.insert(listed.by_name, name, (cookie, dentry));
    }

    /// Replaces an existing entry by `dentry`. Returns the old dentry, which the caller drops after it has released the
    /// lock.
    pub(crate) fn replace(
        &mut self,
        memory: ShownMemory<H>,
        name: Arc<[u8]>,
        dentry: Arc<Dentry<H>>,
    ) -> Option<Arc<Dentry<H>>> {
        let (cookie, there) = self.entries.by_name.get_mut(&name)?;
        let (cookie, old) = (*cookie, core::mem::replace(there, dentry.clone()));
        // The next steps drop the directory's other two references to the old dentry.
        if let Some((_, listed)) = self.entries.by_cookie.get_mut(&cookie) {
            drop(core::mem::replace(listed, dentry.clone()));
        }
        drop(self.show(memory, name, dentry));
        Some(old)
    }

    /// Replaces an entry by `dentry`, or adds it. Returns the old dentry and the unused memory, which the caller drops
    /// after it has released the lock.
    pub(crate) fn put(&mut self, memory: EntryMemory<H>, name: Arc<[u8]>, dentry: Arc<Dentry<H>>) -> Option<Taken<H>> {
        if self.get(&name).is_none() {
            self.add(memory, name, dentry);
            return None;
        }
        let EntryMemory { shown, listed } = memory;
        self.replace(shown, name, dentry).map(|old| (old, listed))
    }

    /// Removes an entry, which the caller drops after it has released the lock. Its memory can be reused for another
    /// entry.
    pub(crate) fn take(&mut self, name: &[u8]) -> Option<Taken<H>> {
        let (by_name, _, (cookie, dentry)) = self.entries.by_name.take(name)?;
        let (by_cookie, _, listed) = self.entries.by_cookie.take(&cookie)?;
        // The next steps drop the directory's other two references to the returned dentry.
        drop(listed);
        drop(self.names.take(name, &mut self.given_up));
        Some((dentry, Spares { by_name, by_cookie }))
    }
}
