//! Moving names.
//!
//! # Lock order
//! At most two directories are locked, then the entries of a replaced directory. A move between directories holds
//! `Vfs::moving`, so there is one at a time and ancestors do not change. It locks an ancestor before a descendant, and
//! unrelated directories by address. `rmdir` locks the parent before the child. A cycle needs a thread that holds a
//! directory and waits for its ancestor. Only a move between *unrelated* directories could do that, and there is one at
//! a time.

use crate::FsError;
use crate::host::Host;
use crate::tree::dentry::Dentry;
use crate::tree::inode::InodeContent;
use crate::tree::inode::directory::{Directory, EntryMemory, Locked};
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
    /// It is replaced.
    Replace,
    /// The move is refused.
    NoReplace,
    /// The two change places.
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
    /// Unlocks both; removed elements are freed when neither is locked.
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

impl<H: Host> Vfs<H> {
    /// Moves the name `from` to `to`.
    pub fn rename(&self, view: &View<H>, from: &FoundPath<H>, to: &FoundPath<H>, how: Rename) -> Result<(), FsError> {
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
        self.may_rename_in(view, new_parent.inode.system())?;
        let same = Arc::ptr_eq(old_parent, new_parent);
        let name = to.name.shared()?;
        // All memory is allocated before the locks, so that a move does not fail half way.
        let shown = new_dir.shown_memory()?;
        let back = match how {
            Rename::Exchange => Some((from.name.shared()?, old_dir.shown_memory()?)),
            Rename::Replace | Rename::NoReplace => None,
        };
        let now = self.host().realtime();

        let moving = (!same).then(|| self.moving.lock());
        let mut both = if same {
            Both { old: old_dir.lock(), new: None }
        } else {
            let old_first = Dentry::is_below(new_parent, old_parent)
                || (!Dentry::is_below(old_parent, new_parent) && Arc::as_ptr(old_parent) < Arc::as_ptr(new_parent));
            if old_first {
                let old = old_dir.lock();
                Both { old, new: Some(new_dir.lock_below()) }
            } else {
                let new = new_dir.lock();
                Both { old: old_dir.lock_below(), new: Some(new) }
            }
        };
        let source = both.source().get(from.name.bytes()).cloned().ok_or(FsError::NotFound)?;
        let there = both.target().get(&name).cloned();
        let source_is_dir = source.inode.is_directory();
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
        // As on Linux, a name that is missing, or is in the way, is told before a right that is missing.
        view.credentials.may_at(&from.parent, Want::WRITE | Want::EXECUTE)?;
        view.credentials.may_at(&to.parent, Want::WRITE | Want::EXECUTE)?;
        view.credentials.may_take(&old_parent.inode, &source.inode)?;
        // A trailing slash requires a directory. For either name that is the source; in an exchange each name requires
        // its own.
        let there_is_dir = there.as_ref().is_some_and(|t| t.inode.is_directory());
        let new_is_dir = if how == Rename::Exchange { there_is_dir } else { source_is_dir };
        if (from.slash && !source_is_dir) || (to.slash && !new_is_dir) {
            return Err(FsError::NotDirectory);
        }
        if !same && source_is_dir && Dentry::is_below(new_parent, &source) {
            return Err(FsError::Invalid);
        }
        if let Some(there) = &there {
            if !same && there.inode.is_directory() && Dentry::is_below(old_parent, there) {
                return Err(if how == Rename::Exchange { FsError::Invalid } else { FsError::NotEmpty });
            }
            view.credentials.may_take(&new_parent.inode, &there.inode)?;
            if Arc::ptr_eq(&there.inode, &source.inode) {
                return Ok(()); // two names of one file: no effect, as POSIX requires
            }
        }
        // A directory that gets another parent changes, because its entry `..` does.
        let moves = |dentry: &Dentry<H>| !same && dentry.inode.is_directory();
        let back_moves = there.as_ref().filter(|there| how == Rename::Exchange && moves(there));
        for moved in [Some(&source).filter(|source| moves(source)), back_moves].into_iter().flatten() {
            view.credentials.may(&moved.inode, Want::WRITE)?;
        }

        // Dentries that may be freed are dropped after the locks.
        let dropped = match (&there, back) {
            (Some(there), Some((old_name, old_shown))) => {
                let a = both.source().replace(old_shown, old_name.clone(), there.clone());
                let b = both.target().replace(shown, name.clone(), source.clone());
                let c = there.place_at(old_parent, old_name);
                let d = source.place_at(new_parent, name);
                both.unlock();
                (a, b, None, [c, d])
            }
            _ => {
                if let Some(there) = &there {
                    match (source_is_dir, there_is_dir) {
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
                // The entry moves with its memory.
                let (a, listed) = both.source().take(from.name.bytes()).ok_or(FsError::NotFound)?;
                let b = both.target().put(EntryMemory { shown, listed }, name.clone(), source.clone());
                let c = source.place_at(new_parent, name);
                both.unlock();
                (Some(a), None, b, [c, None])
            }
        };
        drop(moving);

        source.inode.change(now, |_| ());
        // How many directories each parent gained or lost.
        let (mut old_change, mut new_change) = (0i32, 0i32);
        if source_is_dir {
            old_change -= 1;
            new_change += 1;
        }
        if let Some(there) = &there {
            if how == Rename::Exchange {
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
        settle(old_parent, old_change);
        settle(new_parent, new_change);
        drop(dropped);
        self.tell_of_move((old_parent, from), (new_parent, to), &source, there, how);
        Ok(())
    }

    /// Tells the watchers of a move, and of the replaced or exchanged file `there`.
    fn tell_of_move(
        &self,
        from: (&Dentry<H>, &FoundPath<H>),
        to: (&Dentry<H>, &FoundPath<H>),
        source: &Dentry<H>,
        there: Option<Arc<Dentry<H>>>,
        how: Rename,
    ) {
        if !source.inode.system().is_watched() {
            return;
        }
        let tell = |a: (&Dentry<H>, &FoundPath<H>), b: (&Dentry<H>, &FoundPath<H>), moved: &Dentry<H>| {
            let cookie = self.cookies.fetch_add(1, Ordering::Relaxed);
            a.0.entry_happened(Happening::MOVED_FROM, cookie, a.1.name.bytes(), &moved.inode);
            b.0.entry_happened(Happening::MOVED_TO, cookie, b.1.name.bytes(), &moved.inode);
        };
        tell(from, to, source);
        match (there, how) {
            (Some(there), Rename::Exchange) => {
                source.inode_happened(Happening::MOVE_SELF);
                tell(to, from, &there);
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
