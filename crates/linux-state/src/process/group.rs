//! Process groups and sessions.

use crate::errno::Errno;
use crate::machine::Machine;
use crate::process::Process;
use crate::process::arc_list::{ArcList, ListKind, ListPlace, Walk};
use crate::{Linux, Pid};
use quire_heap::{Arc, Vec};
use quire_sync::atomic::{AtomicU32, AtomicU64};
use quire_sync::{Rank, SpinLock};

/// A session.
pub struct Session {
    /// The session's id, equal to the id of the process that created it.
    pub id: Pid,
    /// The file layer's number of the controlling terminal; 0: none.
    pub terminal: AtomicU64,
    /// The group that was in the foreground when the controlling terminal was hung up; 0: it was not hung up.
    pub old_foreground: AtomicU32,
}

impl Session {
    /// A session without a terminal.
    pub fn new(id: Pid) -> Self {
        Session { id, terminal: AtomicU64::new(0), old_foreground: AtomicU32::new(0) }
    }
}

/// A process group. The type is aligned to cache lines, because each fork changes the group's reference count.
#[repr(align(64))]
pub struct Group<M: Machine> {
    /// The group's id, equal to the id of the process that created it.
    pub id: Pid,
    /// The session of the group.
    pub session: Arc<Session>,
    pub linux: &'static Linux<M>,
    members: SpinLock<Members<M>>,
}

struct Members<M: Machine> {
    list: ArcList<MemberKind<M>>,
    /// The group has lost its last member and its id, so it accepts no new members.
    gone: bool,
    /// The number of signals to all members so far (`signals`), and of signals that senders are still delivering to the
    /// members (`under_way`). A child that joins during such a delivery would miss the signal.
    signals: u64,
    under_way: usize,
}

/// The kind of the lists of group members.
pub struct MemberKind<M>(core::marker::PhantomData<fn(M)>);
// SAFETY: no other kind uses `member`. `move_to` moves a process with the locks of both lists held. `moving` admits one
// mover of a process at a time.
unsafe impl<M: Machine> ListKind for MemberKind<M> {
    type Node = Process<M>;
    fn place(node: &Process<M>) -> &ListPlace<Process<M>> {
        &node.member
    }
}

impl<M: Machine> Group<M> {
    /// A group without members. The id table does not have the group under its id yet.
    pub fn new(linux: &'static Linux<M>, id: Pid, session: Arc<Session>) -> Result<Arc<Group<M>>, Errno> {
        Ok(Arc::try_new(Group {
            id,
            session,
            linux,
            members: SpinLock::new(
                Rank::MEMBERS,
                Members { list: ArcList::new(id as usize), gone: false, signals: 0, under_way: 0 },
            ),
        })?)
    }

    /// Makes the group a holder of its session's id, unless the session's id is also the group's id. The id must have
    /// another holder at this time.
    fn hold_session(&self) {
        if self.session.id != self.id {
            self.linux.ids.hold(self.session.id);
        }
    }

    /// Makes the group's id name the group, and adds the group to the holders of that id. The group has a member. The
    /// id has a holder already, and names no group.
    pub fn begin(this: &Arc<Self>) {
        this.linux.ids.hold(this.id);
        this.linux.ids.name_group(this);
    }

    /// The number of signals sent to all members; `None` while a sender still delivers such a signal. A forking thread
    /// reads the number before it checks for its own signals.
    pub fn signals(&self) -> Option<u64> {
        let members = self.members.lock();
        (members.under_way == 0).then_some(members.signals)
    }

    /// Adds a new process. `signals` is the result of [`signals`](Self::signals) before its fork. Returns `false` if
    /// the group has ended, or if a signal was sent to it since `signals` was read. The child must not miss that
    /// signal, so the fork is repeated.
    pub fn join(&self, process: Arc<Process<M>>, signals: u64) -> bool {
        let mut members = self.members.lock();
        let fits = !members.gone && members.under_way == 0 && members.signals == signals;
        fits && members.list.push(process).is_ok()
    }

    /// Removes a group without members from the id table. The removal is done under the lock of `members`. So a thread
    /// that finds the group gone also finds that the id no longer names it. The last group of a session releases the
    /// session's id.
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
            if self.session.id != self.id {
                self.linux.ids.release(self.session.id);
            }
        }
    }

    /// References to all members.
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

    /// Calls `is` for each member until it returns true, with no lock held. Returns whether `is` returned true. A
    /// member that is in the group during the whole call is visited once. The call allocates nothing, so that a group
    /// can be killed when memory is exhausted.
    pub fn any(&self, mut is: impl FnMut(&Arc<Process<M>>) -> bool) -> bool {
        let walk = Walk::new();
        let under_way = UnderWay::begin(self, &walk);
        while let Some(process) = under_way.step() {
            if is(&process) {
                return true;
            }
        }
        false
    }

    /// Whether the group is orphaned: no member has a parent in another group of the same session that could continue
    /// it.
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

/// A walk over a group's members. The drop of this value ends the walk.
struct UnderWay<'a, M: Machine> {
    group: &'a Group<M>,
    walk: &'a Walk<MemberKind<M>>,
}

impl<'a, M: Machine> UnderWay<'a, M> {
    fn begin(group: &'a Group<M>, walk: &'a Walk<MemberKind<M>>) -> Self {
        // SAFETY: the walk and the group are borrowed. So both stay in place until the drop of this value ends the
        // walk.
        unsafe { group.members.lock().list.begin_walk(walk) };
        UnderWay { group, walk }
    }

    fn step(&self) -> Option<Arc<Process<M>>> {
        self.group.members.lock().list.step(self.walk)
    }
}

impl<M: Machine> Drop for UnderWay<'_, M> {
    fn drop(&mut self) {
        // SAFETY: `begin` began the walk on this list, and only this drop ends it.
        unsafe { self.group.members.lock().list.end_walk(self.walk) };
    }
}

/// A signal to all members of a group, while its sender delivers it. No child joins the group during the lifetime of
/// this value. After the drop, the group refuses a child whose parent read the number of signals before this signal.
pub(crate) struct Broadcast<'a, M: Machine>(&'a Group<M>);

impl<'a, M: Machine> Broadcast<'a, M> {
    pub fn begin(group: &'a Group<M>) -> Self {
        let mut members = group.members.lock();
        members.signals += 1;
        members.under_way += 1;
        Broadcast(group)
    }
}

impl<M: Machine> Drop for Broadcast<'_, M> {
    fn drop(&mut self) {
        self.0.members.lock().under_way -= 1;
    }
}

/// The result of a move to a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Move {
    Done,
    /// The group has ended since the caller found it: its id names another group now, or none.
    Changed,
    /// The process has been reaped.
    NoProcess,
}

/// Moves `process` from its group to the group `to`, which the id table has already.
pub fn move_to<M: Machine>(process: &Arc<Process<M>>, to: &Arc<Group<M>>) -> Move {
    let one_mover = process.moving.lock();
    let from = process.group();
    if Arc::ptr_eq(&from, to) {
        return Move::Done;
    }
    {
        // Both locks are held, so that a process never moves to a group that is gone. The group at the lower address is
        // locked first.
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

/// Moves `process` to a new group of its own, in `session`. Only this function makes a process's id name a group, and
/// it holds the process's `moving` lock. So if two callers run at once (a shell and its child), only one of them makes
/// the group. If the process was reaped, its id is free, and no group is made.
pub fn found<M: Machine>(process: &Arc<Process<M>>, session: Arc<Session>) -> Result<Move, Errno> {
    let linux = process.linux;
    let group = Group::new(linux, process.pid, session)?;
    let one_mover = process.moving.lock();
    let named = linux.ids.group(process.pid);
    let from = process.group();
    let node = if named.is_none() {
        let mut members = from.members.lock();
        let node = members.list.remove(process);
        // The old group still holds the session's id. Without the old group's lock, another thread could find that
        // group empty and release the id first.
        if node.is_some() {
            group.hold_session();
        }
        node
    } else {
        None
    };
    let Some(node) = node else {
        drop(one_mover);
        return Ok(if named.is_some() { Move::Changed } else { Move::NoProcess });
    };
    let pushed = group.members.lock().list.push(node);
    debug_assert!(pushed.is_ok());
    // A reaped process leaves its group with `moving` held, and then releases its id. This process was still in a
    // group, so its id is still held.
    Group::begin(&group);
    let old = core::mem::replace(&mut *process.group.lock(), group);
    drop(one_mover);
    drop(old);
    from.end_if_empty();
    Ok(Move::Done)
}

/// Removes a reaped process from its group. A zombie stays in the group: a shell puts all commands of a pipeline into
/// the group of the first command, which may have ended.
pub fn leave<M: Machine>(process: &Process<M>) {
    let one_mover = process.moving.lock();
    let group = process.group();
    let left = group.members.lock().list.remove(process);
    drop(one_mover);
    drop(left);
    group.end_if_empty();
}
