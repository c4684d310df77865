//! Process groups and sessions.

use super::Process;
use super::arc_list::{ArcList, Kind, Place};
use crate::errno::Errno;
use crate::machine::Machine;
use crate::signal::{SigInfo, Signal};
use crate::{Ctx, Linux, Pid, rank};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};
use quire_sync::SpinLock;

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
    linux: &'static Linux<M>,
    members: SpinLock<Members<M>>,
}

struct Members<M: Machine> {
    list: ArcList<MemberKind<M>>,
    /// The group lost its last member and its name: it takes no new ones.
    gone: bool,
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
    /// A group without members, which holds the id `id` (held once more for it) and is named by it.
    pub fn new(linux: &'static Linux<M>, id: Pid, session: Arc<Session>) -> Arc<Group<M>> {
        let group = Arc::new(Group {
            id,
            session,
            linux,
            members: SpinLock::new(rank::GROUP, Members { list: ArcList::new(id as usize), gone: false }),
        });
        linux.ids.hold(id);
        linux.ids.name_group(&group);
        group
    }

    /// Takes a new process in. `false` where the group is gone.
    pub fn join(&self, process: Arc<Process<M>>) -> bool {
        let mut members = self.members.lock();
        !members.gone && members.list.push(process).is_ok()
    }

    /// Takes the name away from a group that has no members any more.
    fn end_if_empty(&self) {
        let empty = {
            let mut members = self.members.lock();
            let empty = members.list.is_empty() && !members.gone;
            members.gone |= empty;
            empty
        };
        if empty {
            self.linux.ids.forget_group(self.id);
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
                out.extend(members.list.iter().filter_map(|process| members.list.counted(process)));
                return Ok(out);
            }
        }
    }

    /// Sends `info` to every member; whether there was one that `may` allows, or why not.
    pub fn signal(&self, info: Option<SigInfo>, may: impl Fn(&Process<M>) -> bool) -> Result<(), Errno> {
        let (mut found, mut allowed) = (false, false);
        for process in self.members()? {
            found = true;
            if may(&process) {
                allowed = true;
                if let Some(info) = info {
                    self.linux.signal_process(&process, info)?;
                }
            }
        }
        match (found, allowed) {
            (_, true) => Ok(()),
            (true, false) => Err(Errno::EPERM),
            (false, false) => Err(Errno::ESRCH),
        }
    }

    /// Whether no member has a parent in another group of the same session: nobody is there to continue it.
    pub fn is_orphaned(&self) -> bool {
        let Ok(members) = self.members() else { return false };
        !members.iter().any(|process| {
            process.parent().is_some_and(|parent| {
                let group = parent.group();
                group.id != self.id && group.session.id == self.session.id
            })
        })
    }

    /// Whether a member is stopped.
    pub fn has_stopped_member(&self) -> bool {
        let Ok(members) = self.members() else { return false };
        members.iter().any(|process| process.job.lock().stopped_threads > 0)
    }

    /// What POSIX asks for when a group *becomes* orphaned with stopped members: SIGHUP, then SIGCONT. `link` is the group of
    /// the other end of the parenthood that has just gone: only one into another group of the same session kept this group
    /// from being orphaned.
    pub(crate) fn hang_up_if_orphaned(&self, link: &Group<M>) {
        if link.id != self.id && link.session.id == self.session.id && self.is_orphaned() && self.has_stopped_member() {
            let _none_left = self.signal(Some(SigInfo::kernel(Signal::HUP)), |_| true);
            let _none_left = self.signal(Some(SigInfo::kernel(Signal::CONT)), |_| true);
        }
    }
}

impl<M: Machine> Linux<M> {
    /// Sends a signal of the kernel's to group `id` (the terminal's foreground group, say). Nothing happens where there is no
    /// such group.
    pub fn signal_group(&self, id: Pid, signal: Signal) {
        if let Some(group) = self.ids.group(id) {
            let _nobody = group.signal(Some(SigInfo::kernel(signal)), |_| true);
        }
    }
}

/// Moves `process` from its group to `to`. `false` where `to` is gone meanwhile.
fn move_to<M: Machine>(process: &Arc<Process<M>>, to: &Arc<Group<M>>) -> bool {
    let _one_mover = process.moving.lock();
    let from = process.group();
    if Arc::ptr_eq(&from, to) {
        return true;
    }
    {
        let mut members = from.members.lock();
        let Some(node) = members.list.remove(process) else { return false };
        // The list held one count, the caller holds another: dropping this one frees nothing.
        drop(node);
    }
    if !to.join(process.clone()) {
        // Only a mover ends a group that it leaves empty, so the old one still takes it back.
        let _back = from.join(process.clone());
        return false;
    }
    let old = core::mem::replace(&mut *process.group.lock(), to.clone());
    drop(old);
    from.end_if_empty();
    true
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

/// `setpgid`
pub fn sys_setpgid<M: Machine>(ctx: &mut Ctx<'_, M>, pid: i32, group: i32) -> Result<usize, Errno> {
    if group < 0 || pid < 0 {
        return Err(Errno::EINVAL);
    }
    let me = ctx.process();
    let target = if pid == 0 { me.clone() } else { ctx.linux.ids.process(pid as Pid).ok_or(Errno::ESRCH)? };
    let is_me = Arc::ptr_eq(&target, me);
    if !is_me {
        if !target.parent().is_some_and(|parent| Arc::ptr_eq(&parent, me)) {
            return Err(Errno::ESRCH);
        }
        if target.group().session.id != me.group().session.id {
            return Err(Errno::EPERM);
        }
        if target.execed.load(Ordering::Acquire) {
            return Err(Errno::EACCES);
        }
    }
    let session = target.group().session.clone();
    if session.id == target.pid {
        return Err(Errno::EPERM);
    }
    let id = if group == 0 { target.pid } else { group as Pid };
    let destination = match ctx.linux.ids.group(id) {
        Some(existing) if existing.session.id == session.id => existing,
        Some(_) => return Err(Errno::EPERM),
        None if id == target.pid => Group::new(ctx.linux, id, session),
        None => return Err(Errno::EPERM),
    };
    if move_to(&target, &destination) { Ok(0) } else { Err(Errno::EPERM) }
}

/// `getpgid`
pub fn sys_getpgid<M: Machine>(ctx: &mut Ctx<'_, M>, pid: i32) -> Result<usize, Errno> {
    Ok(process_or_self(ctx, pid)?.group().id as usize)
}

/// `getpgrp`
pub fn sys_getpgrp<M: Machine>(ctx: &mut Ctx<'_, M>) -> Result<usize, Errno> {
    Ok(ctx.process().group().id as usize)
}

/// `getsid`
pub fn sys_getsid<M: Machine>(ctx: &mut Ctx<'_, M>, pid: i32) -> Result<usize, Errno> {
    Ok(process_or_self(ctx, pid)?.group().session.id as usize)
}

fn process_or_self<M: Machine>(ctx: &Ctx<'_, M>, pid: i32) -> Result<Arc<Process<M>>, Errno> {
    match pid {
        0 => Ok(ctx.process().clone()),
        pid => ctx.linux.ids.process_of_thread(pid as Pid).ok_or(Errno::ESRCH),
    }
}

/// `setsid`
pub fn sys_setsid<M: Machine>(ctx: &mut Ctx<'_, M>) -> Result<usize, Errno> {
    let me = ctx.process();
    if ctx.linux.ids.group(me.pid).is_some() {
        return Err(Errno::EPERM);
    }
    let session = Arc::new(Session { id: me.pid, terminal: AtomicU64::new(0) });
    let group = Group::new(ctx.linux, me.pid, session);
    if !move_to(me, &group) {
        return Err(Errno::EPERM);
    }
    Ok(me.pid as usize)
}
