//! The owners and modes of objects, and the checks of permissions.

use crate::error::Error;

/// The mode bits for reading, of all classes.
pub const READ: u32 = 0o444;
/// The mode bits for writing, of all classes.
pub const WRITE: u32 = 0o222;
/// The mode bits for execution, of all classes.
pub const EXECUTE: u32 = 0o111;
/// The bits of a mode that its owner may set.
pub const MODE: u32 = 0o777;

/// The thread that makes a call: its effective ids and its privileges.
#[derive(Clone, Copy)]
pub struct Caller<'a> {
    /// The effective user.
    pub user: u32,
    /// The effective group.
    pub group: u32,
    /// Whether the caller belongs to the group with this id.
    pub in_group: &'a dyn Fn(u32) -> bool,
    /// Whether modes are not checked for this caller.
    pub ignores_modes: bool,
    /// Whether the caller may change and remove objects of other users.
    pub administers: bool,
    /// Whether the caller may lock memory without a limit.
    pub locks: bool,
    /// Whether the caller may exceed limits on queues.
    pub exceeds: bool,
}

/// The ids of the owner and the creator of an object, and its mode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Owner {
    /// The user id of the owner.
    pub user: u32,
    /// The group id of the owner.
    pub group: u32,
    /// The user id of the creator. It never changes.
    pub creator: u32,
    /// The group id of the creator. It never changes.
    pub creator_group: u32,
    /// The mode: nine bits.
    pub mode: u32,
}

/// The new owner and the new mode of an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Change {
    /// The user id of the new owner.
    pub user: u32,
    /// The group id of the new owner.
    pub group: u32,
    /// The new mode, of which only the bits in [`MODE`] are used.
    pub mode: u32,
}

impl Owner {
    /// The owner of an object that `caller` creates with `mode`.
    pub fn new(caller: &Caller<'_>, mode: u32) -> Owner {
        let (user, group) = (caller.user, caller.group);
        Owner { user, group, creator: user, creator_group: group, mode: mode & MODE }
    }

    /// Checks that the mode gives `caller` the rights in `wanted`. A right counts as wanted if it is in any of the
    /// three classes (user, group, other) of `wanted`.
    pub fn allow(&self, caller: &Caller<'_>, wanted: u32) -> Result<(), Error> {
        let asked = (wanted >> 6) | (wanted >> 3) | wanted;
        let granted = if [self.user, self.creator].contains(&caller.user) {
            self.mode >> 6
        } else if (caller.in_group)(self.creator_group) || (caller.in_group)(self.group) {
            self.mode >> 3
        } else {
            self.mode
        };
        if asked & !granted & 7 == 0 || caller.ignores_modes { Ok(()) } else { Err(Error::Denied) }
    }

    /// Checks that `caller` may change or remove the object.
    pub fn allow_change(&self, caller: &Caller<'_>) -> Result<(), Error> {
        let own = [self.user, self.creator].contains(&caller.user);
        if own || caller.administers { Ok(()) } else { Err(Error::NotPermitted) }
    }

    /// Changes the owner and the mode. `Invalid` for the id -1, which is no user or group.
    pub fn change(&mut self, to: Change) -> Result<(), Error> {
        if to.user == u32::MAX || to.group == u32::MAX {
            return Err(Error::Invalid);
        }
        (self.user, self.group, self.mode) = (to.user, to.group, to.mode & MODE);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(user: u32, groups: &dyn Fn(u32) -> bool) -> Caller<'_> {
        Caller {
            user,
            group: 100 + user,
            in_group: groups,
            ignores_modes: false,
            administers: false,
            locks: false,
            exceeds: false,
        }
    }

    #[test]
    fn the_first_class_that_fits_decides() {
        let (none, seven) = (|_| false, |group| group == 107);
        let mut owner = Owner::new(&caller(7, &none), 0o1642);
        assert_eq!((owner.mode, owner.creator_group), (0o642, 107));
        assert_eq!(owner.allow(&caller(7, &none), READ | WRITE), Ok(()));
        assert_eq!(owner.allow(&caller(7, &none), EXECUTE), Err(Error::Denied));
        assert_eq!(owner.allow(&caller(8, &seven), READ), Ok(()));
        assert_eq!(owner.allow(&caller(8, &seven), WRITE), Err(Error::Denied));
        assert_eq!(owner.allow(&caller(8, &none), WRITE), Ok(()));
        assert_eq!(owner.allow(&caller(8, &none), READ), Err(Error::Denied));
        // The rights that a call wants may be in any class of its mode.
        assert_eq!(owner.allow(&caller(8, &none), 0o400), Err(Error::Denied));
        assert_eq!(owner.allow(&caller(8, &none), 0), Ok(()));
        let free = Caller { ignores_modes: true, ..caller(8, &none) };
        assert_eq!(owner.allow(&free, READ), Ok(()));
        // The creator keeps the rights of the owner.
        owner.change(Change { user: 9, group: 9, mode: 0o7600 }).unwrap();
        assert_eq!((owner.user, owner.group, owner.creator, owner.mode), (9, 9, 7, 0o600));
        assert_eq!(owner.allow(&caller(7, &none), READ), Ok(()));
        assert_eq!(owner.allow(&caller(9, &none), READ), Ok(()));
    }

    #[test]
    fn only_owner_creator_and_administrator_change() {
        let none = |_| false;
        let mut owner = Owner::new(&caller(7, &none), 0o777);
        owner.change(Change { user: 9, group: 1, mode: 0 }).unwrap();
        assert_eq!(owner.allow_change(&caller(7, &none)), Ok(()));
        assert_eq!(owner.allow_change(&caller(9, &none)), Ok(()));
        assert_eq!(owner.allow_change(&caller(8, &none)), Err(Error::NotPermitted));
        assert_eq!(owner.allow_change(&Caller { administers: true, ..caller(8, &none) }), Ok(()));
        assert_eq!(owner.change(Change { user: u32::MAX, group: 1, mode: 0 }), Err(Error::Invalid));
        assert_eq!(owner.change(Change { user: 1, group: u32::MAX, mode: 0 }), Err(Error::Invalid));
        assert_eq!(owner.user, 9);
    }
}
