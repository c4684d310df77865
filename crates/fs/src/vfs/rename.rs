//! Moving names.
//!
//! # Lock order
//! At most two directories are locked, then the entries of a replaced directory. A move between directories holds
//! `Vfs::moving`, so there is one such move at a time, and ancestors do not change. It locks an ancestor before a
//! descendant, and unrelated directories by address. `rmdir` locks the parent before the child. A deadlock needs a
//! thread that holds a directory and waits for an ancestor of it. Only a move between *unrelated* directories could do
//! that, and there is one such move at a time.

use crate::FsError;
use crate::host::Host;
use crate::tree::attr::Timestamp;
use crate::tree::dentry::Dentry;
use crate::tree::inode::InodeContent;
use crate::tree::inode::directory::{Directory, EntryMemory, Locked, ShownMemory, Taken};
use crate::tree::watch::Happening;
use crate::vfs::Vfs;
use crate::vfs::credentials::Want;
use crate::vfs::found::{FoundPath, Last};
use crate::vfs::view::View;
use quire_heap::Arc;
use quire_sync::atomic::Ordering;

/// The treatment of an existing target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rename {
    /// The target is replaced.
    Replace,
    /// The move is refused.
    NoReplace,
    /// The two files exchange their names.
    Exchange,
}

/// The locked entries of one or two directories.
struct Both<'a, H: Host> {
    old: Locked<'a, H>,
    new: Option<Locked<'a, H>>,
}

impl<'a, H: Host> Both<'a, H> {
    fn source(&mut self) -> &mut Locked<'a, H> {
        &mut self.old
    }
    fn target(&mut self) -> &mut Locked<'a, H> {
        match &mut self.new {
            Some(new) => new,
            None => &mut self.old,
        }
    }
    /// Unlocks both directories. Removed elements are freed when neither directory is locked.
    fn unlock(self) {
        let _given_up = (self.old.unlock(), self.new.map(Locked::unlock));
    }
}

fn entries<H: Host>(dentry: &Dentry<H>) -> Result<&Directory<H>, FsError> {
    match &dentry.inode.node {
        InodeContent::Directory(d) => Ok(d),
        _ => Err(FsError::NotPermitted),
    }
}

/// A move: its two names and their directories.
struct Move<'m, H: Host> {
    from: &'m FoundPath<H>,
    to: &'m FoundPath<H>,
    old_parent: &'m Arc<Dentry<H>>,
    new_parent: &'m Arc<Dentry<H>>,
    old_dir: &'m Directory<H>,
    new_dir: &'m Directory<H>,
    /// Whether both names are in one directory.
    same: bool,
    how: Rename,
}

/// The memory that a move needs. It is allocated before the locks, so that a move does not fail half way.
struct Memory<H: Host> {
    name: Arc<[u8]>,
    shown: ShownMemory<H>,
    /// In an exchange: the other name, which moves back, and the memory of its entry.
    back: Option<(Arc<[u8]>, ShownMemory<H>)>,
}

/// The dentries that a move concerns.
struct Ends<H: Host> {
    source: Arc<Dentry<H>>,
    /// The dentry that has the new name before the move.
    there: Option<Arc<Dentry<H>>>,
}

impl<H: Host> Ends<H> {
    fn source_is_dir(&self) -> bool {
        self.source.inode.is_directory()
    }

    fn there_is_dir(&self) -> bool {
        self.there.as_ref().is_some_and(|there| there.inode.is_directory())
    }
}

/// Entries and dentries that may be freed. They are dropped after the locks are released.
type Dropped<H> = (Option<Taken<H>>, [Option<Arc<Dentry<H>>>; 4]);

impl<'m, H: Host> Move<'m, H> {
    /// A move whose directories exist and may be changed.
    fn new(from: &'m FoundPath<H>, to: &'m FoundPath<H>, how: Rename) -> Result<Self, FsError> {
        match (from.last, to.last) {
            (Last::Name, Last::Name) => {}
            (Last::Name, _) if how == Rename::NoReplace => return Err(FsError::Exists),
            _ => return Err(FsError::Busy),
        }
        if !from.parent.same_mount(&to.parent) {
            return Err(FsError::CrossDevice);
        }
        let (old_parent, new_parent) = (Dentry::seen(&from.parent), Dentry::seen(&to.parent));
        let (old_dir, new_dir) = (entries(old_parent)?, entries(new_parent)?);
        from.parent.changeable()?;
        to.parent.changeable()?;
        let same = Arc::ptr_eq(old_parent, new_parent);
        Ok(Move { from, to, old_parent, new_parent, old_dir, new_dir, same, how })
    }

    fn memory(&self) -> Result<Memory<H>, FsError> {
        let name = self.to.name.shared()?;
        let shown = self.new_dir.shown_memory()?;
        let back = match self.how {
            Rename::Exchange => Some((self.from.name.shared()?, self.old_dir.shown_memory()?)),
            Rename::Replace | Rename::NoReplace => None,
        };
        Ok(Memory { name, shown, back })
    }

    /// Locks the directories. If there are two, the caller holds [`Vfs::moving`].
    fn lock(&self) -> Both<'m, H> {
        let (old_dir, new_dir) = (self.old_dir, self.new_dir);
        if self.same {
            return Both { old: old_dir.lock(), new: None };
        }
        let (old_parent, new_parent) = (self.old_parent, self.new_parent);
        let old_first = Dentry::is_below(new_parent, old_parent)
            || (!Dentry::is_below(old_parent, new_parent) && Arc::as_ptr(old_parent) < Arc::as_ptr(new_parent));
        if old_first {
            let old = old_dir.lock();
            Both { old, new: Some(new_dir.lock_below()) }
        } else {
            let new = new_dir.lock();
            Both { old: old_dir.lock_below(), new: Some(new) }
        }
    }

    /// Finds the dentries, and checks that the move is permitted. `None` if both names are of one file: then a move has
    /// no effect, as POSIX requires.
    fn check(&self, view: &View<H>, both: &mut Both<'_, H>, name: &[u8]) -> Result<Option<Ends<H>>, FsError> {
        let (from, to, how) = (self.from, self.to, self.how);
        let source = both.source().get(from.name.bytes()).cloned().ok_or(FsError::NotFound)?;
        let there = both.target().get(name).cloned();
        if source.is_fixed() || there.as_ref().is_some_and(|t| t.is_fixed()) {
            return Err(FsError::Busy);
        }
        if both.target().dead() {
            return Err(FsError::NotFound);
        }
        match (&there, how) {
            (Some(_), Rename::NoReplace) => return Err(FsError::Exists),
            (None, Rename::Exchange) => return Err(FsError::NotFound),
            _ => {}
        }
        // As on Linux, a missing name, or a name in the way, is reported before a missing permission.
        view.credentials.may_at(&from.parent, Want::WRITE | Want::EXECUTE)?;
        view.credentials.may_at(&to.parent, Want::WRITE | Want::EXECUTE)?;
        view.credentials.may_take(&self.old_parent.inode, &source.inode)?;
        let ends = Ends { source, there };
        // A trailing slash requires a directory. In a plain move, a slash after either name concerns the source. In an
        // exchange, each slash concerns the file that gets the name.
        let new_is_dir = if how == Rename::Exchange { ends.there_is_dir() } else { ends.source_is_dir() };
        if (from.slash && !ends.source_is_dir()) || (to.slash && !new_is_dir) {
            return Err(FsError::NotDirectory);
        }
        if !self.same && ends.source_is_dir() && Dentry::is_below(self.new_parent, &ends.source) {
            return Err(FsError::Invalid);
        }
        if let Some(there) = &ends.there {
            if !self.same && there.inode.is_directory() && Dentry::is_below(self.old_parent, there) {
                return Err(if how == Rename::Exchange { FsError::Invalid } else { FsError::NotEmpty });
            }
            view.credentials.may_take(&self.new_parent.inode, &there.inode)?;
            if Arc::ptr_eq(&there.inode, &ends.source.inode) {
                return Ok(None);
            }
        }
        // A directory that gets another parent is changed too, because its entry `..` changes.
        let moves = |dentry: &Dentry<H>| !self.same && dentry.inode.is_directory();
        let back_moves = ends.there.as_ref().filter(|there| how == Rename::Exchange && moves(there));
        for moved in [Some(&ends.source).filter(|source| moves(source)), back_moves].into_iter().flatten() {
            view.credentials.may(&moved.inode, Want::WRITE)?;
        }
        Ok(Some(ends))
    }

    /// Changes the entries, and unlocks the directories. If it fails, nothing has changed. Unused `memory` is freed
    /// after the locks are released, because `both` is dropped first.
    fn change(&self, memory: Memory<H>, mut both: Both<'_, H>, ends: &Ends<H>) -> Result<Dropped<H>, FsError> {
        let source = &ends.source;
        if let (Some(there), Some((old_name, old_shown))) = (&ends.there, memory.back) {
            let a = both.source().replace(old_shown, old_name.clone(), there.clone());
            let b = both.target().replace(memory.shown, memory.name.clone(), source.clone());
            let c = there.place_at(self.old_parent, old_name);
            let d = source.place_at(self.new_parent, memory.name);
            both.unlock();
            return Ok((None, [a, b, c, d]));
        }
        if let Some(there) = &ends.there {
            match (ends.source_is_dir(), ends.there_is_dir()) {
                (true, false) => return Err(FsError::NotDirectory),
                (false, true) => return Err(FsError::IsDirectory),
                (false, false) => {}
                (true, true) => {
                    let mut inner = entries(there)?.lock_below();
                    if !inner.is_empty() {
                        return Err(FsError::NotEmpty);
                    }
                    inner.kill();
                }
            }
            there.unlist();
        }
        // The entry takes its memory along.
        let (a, listed) = both.source().take(self.from.name.bytes()).ok_or(FsError::NotFound)?;
        let entry = EntryMemory { shown: memory.shown, listed };
        let b = both.target().put(entry, memory.name.clone(), source.clone());
        let c = source.place_at(self.new_parent, memory.name);
        both.unlock();
        Ok((b, [Some(a), None, c, None]))
    }

    /// Updates times and link counts in the inodes of both files, and of their directories.
    fn settle(&self, ends: &Ends<H>, now: Timestamp) {
        ends.source.inode.change(now, |_| ());
        // The changes of the two parents' link counts: one for each directory that they gain or lose.
        let (mut old_change, mut new_change) = (0i32, 0i32);
        if ends.source_is_dir() {
            old_change -= 1;
            new_change += 1;
        }
        if let Some(there) = &ends.there {
            let there_is_dir = there.inode.is_directory();
            if self.how == Rename::Exchange {
                there.inode.change(now, |_| ());
                old_change += i32::from(there_is_dir);
            } else {
                match there_is_dir {
                    true => there.inode.change(now, |a| a.links = 0),
                    false => there.inode.lose_name(now),
                }
            }
            new_change -= i32::from(there_is_dir);
        }
        let settle = |d: &Arc<Dentry<H>>, by: i32| {
            d.inode.change(now, |a| {
                a.modified = now;
                a.links = a.links.saturating_add_signed(by);
            });
        };
        settle(self.old_parent, old_change);
        settle(self.new_parent, new_change);
    }
}

impl<H: Host> Vfs<H> {
    /// Moves the name `from` to `to`.
    pub fn rename(&self, view: &View<H>, from: &FoundPath<H>, to: &FoundPath<H>, how: Rename) -> Result<(), FsError> {
        let step = Move::new(from, to, how)?;
        self.may_rename_in(view, step.new_parent.inode.system())?;
        let memory = step.memory()?;
        let now = self.host().realtime();
        let moving = (!step.same).then(|| self.moving.lock());
        let mut both = step.lock();
        let Some(ends) = step.check(view, &mut both, &memory.name)? else { return Ok(()) };
        let dropped = step.change(memory, both, &ends)?;
        drop(moving);
        step.settle(&ends, now);
        drop(dropped);
        self.notify_of_move(&step, ends);
        Ok(())
    }

    /// Notifies the watchers of a move, and of the replaced or exchanged file.
    fn notify_of_move(&self, step: &Move<'_, H>, ends: Ends<H>) {
        let Ends { source, there } = ends;
        if !source.inode.system().is_watched() {
            return;
        }
        let (old, new) = ((step.old_parent, step.from), (step.new_parent, step.to));
        let notify = |a: (&Arc<Dentry<H>>, &FoundPath<H>), b: (&Arc<Dentry<H>>, &FoundPath<H>), moved: &Dentry<H>| {
            let cookie = self.cookies.fetch_add(1, Ordering::Relaxed);
            a.0.entry_happened(Happening::MOVED_FROM, cookie, a.1.name.bytes(), &moved.inode);
            b.0.entry_happened(Happening::MOVED_TO, cookie, b.1.name.bytes(), &moved.inode);
        };
        notify(old, new, &source);
        match (there, step.how) {
            (Some(there), Rename::Exchange) => {
                source.inode_happened(Happening::MOVE_SELF);
                notify(new, old, &there);
                there.inode_happened(Happening::MOVE_SELF);
            }
            (Some(there), _) => {
                there.inode_happened(Happening::ATTRIBUTES);
                source.inode_happened(Happening::MOVE_SELF);
                if there.inode.is_directory() {
                    there.inode.end_watches();
                }
            }
            (None, _) => source.inode_happened(Happening::MOVE_SELF),
        }
    }
}
