//! Process groups and sessions: a number, and a list of members whose links are in the members.

use crate::list::{Adapter, List};
use core::ptr::NonNull;
use quire_sync::{Rank, SpinLock};

/// A numbered set of members. The adapter `A` selects the links of a member that the set uses. So a process can be in a
/// group and in a session.
pub struct Group<A: Adapter> {
    id: u32,
    members: SpinLock<Members<A>>,
}

struct Members<A: Adapter> {
    list: List<A>,
    len: usize,
}
// SAFETY: members are accessed under the lock, while they belong to the group. They are shared, hence the bound `Sync`.
unsafe impl<A: Adapter> Send for Members<A> where A::Node: Sync {}

impl<A: Adapter> Group<A> {
    /// A group without members.
    pub fn new(id: u32) -> Self {
        Group { id, members: SpinLock::new(Rank::GROUP, Members { list: List::new(), len: 0 }) }
    }

    /// The group's number.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// How many members the group has.
    pub fn len(&self) -> usize {
        self.members.lock().len
    }

    /// Whether the group has no members.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds a member at the end of the list.
    ///
    /// # Safety
    /// `member` is in no group of this kind, and stays in place until it has left.
    pub unsafe fn join(&self, member: NonNull<A::Node>) {
        let mut members = self.members.lock();
        // SAFETY: the caller vouches that `member` is in no such group and stays in place, and the list's lock is held.
        unsafe { members.list.push_back(member) };
        members.len += 1;
    }

    /// Removes a member. Returns true if it was the last one.
    ///
    /// # Safety
    /// `member` is in this group.
    pub unsafe fn leave(&self, member: NonNull<A::Node>) -> bool {
        let mut members = self.members.lock();
        // SAFETY: the caller vouches that `member` is in this group, and the list's lock is held.
        unsafe { members.list.remove(member) };
        members.len -= 1;
        members.len == 0
    }

    /// Calls `f` with each member, until it returns false. The group's spin lock is held, so `f` must not sleep.
    pub fn for_each(&self, mut f: impl FnMut(&A::Node) -> bool) {
        let members = self.members.lock();
        for member in members.list.iter() {
            // SAFETY: a member stays alive until it has left the group, for which it needs the lock that is held here.
            if !f(unsafe { member.as_ref() }) {
                return;
            }
        }
    }
}
