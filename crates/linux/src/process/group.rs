//! Process groups and sessions.

use super::Process;
use super::arc_list::{ArcList, Kind, Place, Walk};
use crate::errno::Errno;
use crate::machine::Machine;
use crate::{Linux, Pid};
use core::sync::atomic::AtomicU64;
use quire_heap::{Arc, Vec};
use quire_sync::{Rank, SpinLock};

/// A session.
pub struct Session {
    /// Its id: that of the process that made it.
    pub id: Pid,
    /// Its controlling terminal, as the file layer numbers terminals; 0: none.
    pub terminal: AtomicU64,
}

/// A process group. On lines of its own: whoever forks counts it.
#[repr(align(64))]
pub struct Group<M: Machine> {
    /// Its id: that of the process that made it.
    pub id: Pid,
    /// Its session.
    pub session: Arc<Session>,
    pub(crate) linux: &'static Linux<M>,
    members: SpinLock<Members<M>>,
}

struct Members<M: Machine> {
    list: ArcList<MemberKind<M>>,
    /// The group lost its last member and its name: it takes no new ones.
    gone: bool,
    /// How often a signal to all members was begun, and how many are under way: a child that joins meanwhile would miss it.
    told: u64,
    telling: usize,
}

/// The kind of list that a group has.
pub struct MemberKind<M>(core::marker::PhantomData<fn(M)>);
// SAFETY: `member` is used by no other kind; a process moves between groups under the group pointer's protocol in
// `move_to`: out of the old list under its lock, then into the new one under its lock, by one mover at a time.
unsafe impl<M: Machine> Kind for MemberKind<M> {
    type Node = Process<M>;
    fn place(node: &Process<M>) -> &Place<Process<M>> {
        &node.member
    }
}

impl<M: Machine> Group<M> {
    /// A group without members, which its id does not name yet.
    pub fn new(linux: &'static Linux<M>, id: Pid, session: Arc<Session>) -> Result<Arc<Group<M>>, Errno> {
        Ok(Arc::try_new(Group {
            id,
            session,
            linux,
            members: SpinLock::new(
                Rank::MEMBERS,
                Members { list: ArcList::new(id as usize), gone: false, told: 0, telling: 0 },
            ),
        })?)
    }

    /// From now on the group's id, which is held and names no group, is held for it too and names it. It has a member.
    pub(super) fn begin(this: &Arc<Self>) {
        this.linux.ids.hold(this.id);
        this.linux.ids.name_group(this);
    }

    /// How often all members were told of a signal; `None` while they are. For who forks, before it looks for signals.
    pub(super) fn told(&self) -> Option<u64> {
        let members = self.members.lock();
        (members.telling == 0).then_some(members.told)
    }

    /// Takes a new process in, made since the group was [`told`](Self::told) `told`. `false` where the group is gone, or was told more
    /// since: what the parent was told, the child must not miss.
    pub(super) fn join(&self, process: Arc<Process<M>>, told: u64) -> bool {
        let mut members = self.members.lock();
        let fits = !members.gone && members.telling == 0 && members.told == told;
        fits && members.list.push(process).is_ok()
    }

    /// Takes the name away from a group that has no members any more. Under the lock: who finds the group gone finds that its
    /// id names it no more.
    fn end_if_empty(&self) {
        let empty = {
            let mut members = self.members.lock();
            let empty = members.list.is_empty() && !members.gone;
            if empty {
                members.gone = true;
                self.linux.ids.forget_group(self.id);
            }
            empty
        };
        if empty {
            self.linux.ids.release(self.id);
        }
    }

    /// All members, counted.
    pub fn members(&self) -> Result<Vec<Arc<Process<M>>>, Errno> {
        let mut out = Vec::new();
        loop {
            let need = self.members.lock().list.len();
            out.try_reserve(need)?;
            let members = self.members.lock();
            if members.list.len() <= out.capacity() {
                let counted = members.list.iter().filter_map(|process| members.list.counted(process));
                counted.for_each(|process| out.push_reserved(process));
                return Ok(out);
            }
        }
    }

    /// The members one by one, with no lock held: those that neither come nor go meanwhile once each. Nothing is allocated, so
    /// that a group can be ended while there is no memory.
    pub(crate) fn any(&self, mut is: impl FnMut(&Arc<Process<M>>) -> bool) -> bool {
        let walk = Walk::new();
        let under_way = UnderWay::begin(self, &walk);
        while let Some(process) = under_way.step() {
            if is(&process) {
                return true;
            }
        }
        false
    }

    /// Whether no member has a parent in another group of the same session: nobody is there to continue it.
    pub fn is_orphaned(&self) -> bool {
        !self.any(|process| {
            process.parent().is_some_and(|parent| {
                let group = parent.group();
                group.id != self.id && group.session.id == self.session.id
            })
        })
    }

    /// Whether a member is stopped.
    pub fn has_stopped_member(&self) -> bool {
        self.any(|process| process.job.lock().stopped_threads > 0)
    }
}

/// A walk over a group's members.
struct UnderWay<'a, M: Machine> {
    group: &'a Group<M>,
    walk: &'a Walk<MemberKind<M>>,
}

impl<'a, M: Machine> UnderWay<'a, M> {
    fn begin(group: &'a Group<M>, walk: &'a Walk<MemberKind<M>>) -> Self {
        // SAFETY: the walk is borrowed, hence stays in place, until this value's drop ends it; the group is borrowed as long.
        unsafe { group.members.lock().list.begin_walk(walk) };
        UnderWay { group, walk }
    }

    fn step(&self) -> Option<Arc<Process<M>>> {
        self.group.members.lock().list.step(self.walk)
    }
}

impl<M: Machine> Drop for UnderWay<'_, M> {
    fn drop(&mut self) {
        // SAFETY: `begin` began the walk on this list, and it ends once, here.
        unsafe { self.group.members.lock().list.end_walk(self.walk) };
    }
}

/// All members of a group are told of a signal: no child joins while it lives, nor one whose parent had looked before.
pub(crate) struct Telling<'a, M: Machine>(&'a Group<M>);

impl<'a, M: Machine> Telling<'a, M> {
    pub(crate) fn begin(group: &'a Group<M>) -> Self {
        let mut members = group.members.lock();
        members.told += 1;
        members.telling += 1;
        Telling(group)
    }
}

impl<M: Machine> Drop for Telling<'_, M> {
    fn drop(&mut self) {
        self.0.members.lock().telling -= 1;
    }
}

/// What became of a move to a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Move {
    Done,
    /// Others came or went meanwhile: the id names another group now, or none.
    Changed,
    /// The process was waited for.
    NoProcess,
}

/// Moves `process` from its group to `to`, which has begun.
pub(super) fn move_to<M: Machine>(process: &Arc<Process<M>>, to: &Arc<Group<M>>) -> Move {
    let one_mover = process.moving.lock();
    let from = process.group();
    if Arc::ptr_eq(&from, to) {
        return Move::Done;
    }
    {
        // Both at once: a group is never left for one that is gone. Of two, the one at the lower address first.
        let ascending = Arc::as_ptr(&from) < Arc::as_ptr(to);
        let (low, high) = if ascending { (&from, to) } else { (to, &from) };
        let mut low = low.members.lock();
        let mut high = high.members.lock_nested();
        let (old, new) = if ascending { (&mut *low, &mut *high) } else { (&mut *high, &mut *low) };
        if new.gone {
            return Move::Changed;
        }
        let Some(node) = old.list.remove(process) else { return Move::NoProcess };
        let pushed = new.list.push(node);
        debug_assert!(pushed.is_ok());
    }
    let old = core::mem::replace(&mut *process.group.lock(), to.clone());
    drop(one_mover);
    drop(old);
    from.end_if_empty();
    Move::Done
}

/// Moves `process` to a group of its own, in `session`. Only here does its id come to name a group, under its `moving`: so of two
/// who want that at once (a shell and its child) one makes it, and none is made for a process whose id is free.
pub(super) fn found<M: Machine>(process: &Arc<Process<M>>, session: Arc<Session>) -> Result<Move, Errno> {
    let linux = process.linux;
    let group = Group::new(linux, process.pid, session)?;
    let one_mover = process.moving.lock();
    let named = linux.ids.group(process.pid);
    let from = process.group();
    let node = if named.is_none() { from.members.lock().list.remove(process) } else { None };
    let Some(node) = node else {
        drop(one_mover);
        return Ok(if named.is_some() { Move::Changed } else { Move::NoProcess });
    };
    let pushed = group.members.lock().list.push(node);
    debug_assert!(pushed.is_ok());
    // Who was waited for leaves its group, under `moving`, before it lets its id go: so that is held.
    Group::begin(&group);
    let old = core::mem::replace(&mut *process.group.lock(), group);
    drop(one_mover);
    drop(old);
    from.end_if_empty();
    Ok(Move::Done)
}

/// Takes a process that was waited for out of its group, for good. (A zombie still counts: a shell puts the next command
/// of a pipeline into the group of the first, which may have ended.)
pub(crate) fn leave<M: Machine>(process: &Process<M>) {
    let one_mover = process.moving.lock();
    let group = process.group();
    let left = group.members.lock().list.remove(process);
    drop(one_mover);
    drop(left);
    group.end_if_empty();
}
