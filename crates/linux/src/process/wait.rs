//! `wait4` and `waitid`, which wait for children.

use crate::process::pidfd::process_of;
use crate::process::usage::RawUsage;
use linux_raw_sys::general as raw;
use quire_heap::Arc;
use quire_linux_state::errno::Errno;
use quire_linux_state::machine::Machine;
use quire_linux_state::process::sleep::{Answer, ChildWait, Sleep, Wanted, Which};
use quire_linux_state::process::stage::Stage;
use quire_linux_state::process::usage::Usage;
use quire_linux_state::process::{DUMPED, Family, Process, Report, group};
use quire_linux_state::signal::info::code;
use quire_linux_state::signal::{Detail, SigInfo, Signal};
use quire_linux_state::{Ctx, Linux, Pid};
use quire_sync::atomic::Ordering;

const NOHANG: u32 = raw::WNOHANG;
const UNTRACED: u32 = raw::WUNTRACED;
const EXITED: u32 = raw::WEXITED;
const CONTINUED: u32 = raw::WCONTINUED;
const NOWAIT: u32 = raw::WNOWAIT;
const ALL: u32 = raw::__WALL;
const CLONE: u32 = raw::__WCLONE;
const NOTHREAD: u32 = raw::__WNOTHREAD;

/// A child that a wait has found, with the event to report.
struct FoundChild {
    pid: Pid,
    uid: u32,
    event: Event,
    usage: Usage,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Event {
    /// The child has ended, with this wait status.
    Ended(i32),
    Living(Report),
}

impl Event {
    fn status(self) -> i32 {
        match self {
            Event::Ended(status) => status,
            Event::Living(Report::Stopped(signal)) => i32::from(signal) << 8 | 0x7f,
            Event::Living(Report::Continued) => 0xffff,
        }
    }

    /// The event's `si_code` and `si_status`.
    fn info(self) -> (i32, i32) {
        match self {
            Event::Ended(status) if status & 0x7f == 0 => (code::CLD_EXITED, status >> 8 & 0xff),
            Event::Ended(status) if status & DUMPED != 0 => (code::CLD_DUMPED, status & 0x7f),
            Event::Ended(status) => (code::CLD_KILLED, status & 0x7f),
            Event::Living(Report::Stopped(signal)) => (code::CLD_STOPPED, i32::from(signal)),
            Event::Living(Report::Continued) => (code::CLD_CONTINUED, i32::from(Signal::CONT.number())),
        }
    }
}

/// Whether the wait selects `child`.
fn fits<M: Machine>(wanted: Wanted, child: &Process<M>) -> bool {
    let named = match wanted.which {
        Which::Any => true,
        Which::Process(pid) => child.pid == pid,
        Which::Group(id) => child.group.lock().id == id,
    };
    let cloned = child.exit_signal.load(Ordering::Relaxed) != Signal::CHLD.number();
    named && (wanted.options & ALL != 0 || cloned == (wanted.options & CLONE != 0))
}

/// Whether the wait asks for such a report.
fn wants(wanted: Wanted, report: Report) -> bool {
    match report {
        Report::Stopped(_) => wanted.options & UNTRACED != 0,
        Report::Continued => wanted.options & CONTINUED != 0,
    }
}

/// Checks the children once. `None` if no selected child has an event yet. ECHILD if there is no child to wait for.
fn look<M: Machine>(linux: &'static Linux<M>, me: &Process<M>, wanted: Wanted) -> Option<Result<FoundChild, Errno>> {
    // The variable is declared before the lock, so that the reference is dropped after the lock is released.
    let counted;
    let mut family = me.family.lock();
    let mut named = None;
    if let Which::Process(pid) = wanted.which
        && family.first(pid).is_none()
    {
        // The child is looked up by its id and not among the siblings, because process 1 may have thousands of
        // children.
        drop(family);
        counted = linux.ids.process(pid);
        family = me.family.lock();
        // While this thread holds the family lock, a child stays a child and stays on its list. A child that another
        // thread has reaped is on no list, although the id table may still contain it for a moment. A wait for a reaped
        // child would never end.
        let listed = |child: &Process<M>| family.children.has(child) || family.zombies.has(child);
        named = counted.as_deref().filter(|child| child.is_child_of(me) && listed(child));
    }
    if let Which::Process(pid) = wanted.which {
        named = named.or_else(|| family.first(pid));
    }
    if wanted.options & EXITED != 0
        && let Some(child) = zombie(&family, wanted, named)
    {
        let taken = if wanted.options & NOWAIT == 0 { family.zombies.remove(&child) } else { None };
        drop(family);
        let found = FoundChild {
            pid: child.pid,
            uid: child.credentials().real_user,
            event: Event::Ended(child.status.load(Ordering::Acquire)),
            usage: whole(&child),
        };
        if taken.is_some() {
            me.accounts.lock().children.add(&found.usage);
            release(linux, &child);
        }
        return Some(Ok(found));
    }
    if !family.reports.is_empty()
        && let Some((at, child)) = report(&family, wanted)
    {
        let (pid, report) = family.reports[at];
        if wanted.options & NOWAIT == 0 {
            family.reports.swap_remove(at);
        }
        drop(family);
        let event = Event::Living(report);
        return Some(Ok(FoundChild { pid, uid: child.credentials().real_user, event, usage: whole(&child) }));
    }
    let anybody = match wanted.which {
        Which::Any if wanted.options & ALL != 0 => !family.children.is_empty() || !family.zombies.is_empty(),
        Which::Process(_) => named.is_some_and(|child| fits(wanted, child)),
        _ => family.children.iter().chain(family.zombies.iter()).any(|child| fits(wanted, child)),
    };
    if anybody { None } else { Some(Err(Errno::ECHILD)) }
}

fn zombie<M: Machine>(family: &Family<M>, wanted: Wanted, named: Option<&Process<M>>) -> Option<Arc<Process<M>>> {
    if let Which::Process(_) = wanted.which {
        let child = named.filter(|child| family.zombies.has(child) && fits(wanted, child))?;
        return family.zombies.counted(child);
    }
    let found = family.zombies.iter().find(|child| fits(wanted, child))?;
    family.zombies.counted(found)
}

fn report<M: Machine>(family: &Family<M>, wanted: Wanted) -> Option<(usize, Arc<Process<M>>)> {
    family.reports.iter().enumerate().find_map(|(at, (pid, report))| {
        if !wants(wanted, *report) {
            return None;
        }
        let child = family.children.iter().find(|child| child.pid == *pid && fits(wanted, child))?;
        Some((at, family.children.counted(child)?))
    })
}

/// The resource usage of a child and of its reaped children.
fn whole<M: Machine>(child: &Process<M>) -> Usage {
    let mut sum = child.usage();
    sum.peak_pages = sum.peak_pages.max(child.peak_pages());
    sum.add(&child.accounts.lock().children);
    sum
}

/// Frees the id of a reaped process, and removes it from its group.
pub(super) fn release<M: Machine>(linux: &'static Linux<M>, process: &Arc<Process<M>>) {
    let user_charge =
        core::mem::replace(&mut *process.user_charge.lock(), quire_linux_state::process::users::UserCharge::root());
    drop(user_charge);
    linux.ids.forget_process(process.pid);
    group::leave(process);
    linux.ids.release(process.pid);
    process.comes_to(Stage::Reaped);
    process.notify_its_files();
}

/// Waits for a child. While the thread sleeps, it needs no kernel stack.
fn wait<M: Machine>(ctx: &mut Ctx<'_, M>, wait: ChildWait) -> Result<usize, Errno> {
    let (me, linux, wanted) = (ctx.process(), ctx.linux, wait.wanted);
    if let Some(found) = look(linux, me, wanted) {
        return answer(ctx, wait.answer, Some(found?));
    }
    if wanted.options & NOHANG != 0 {
        return answer(ctx, wait.answer, None);
    }
    let look = || look(linux, me, wanted);
    match ctx.thread.park.listing().wait(&me.child_events, None, || ctx.interrupted(), look) {
        None => Err(ctx.sleep(Sleep::Child(wait), None)),
        Some(Ok(found)) => answer(ctx, wait.answer, Some(found?)),
        Some(Err(_)) => Err(Errno::ERESTARTSYS),
    }
}

/// Continues after a wake-up: reports a child, or sleeps again.
pub(crate) fn go_on<M: Machine>(ctx: &mut Ctx<'_, M>, child: ChildWait) -> Result<usize, Errno> {
    ctx.thread.park.listing().unlist();
    wait(ctx, child)
}

/// Writes the result of the wait to the caller's addresses. `None` means that no child has an event.
fn answer<M: Machine>(ctx: &mut Ctx<'_, M>, to: Answer, found: Option<FoundChild>) -> Result<usize, Errno> {
    match to {
        Answer::Wait4 { status, usage } => {
            let Some(found) = found else { return Ok(0) };
            ctx.write_optional(status, &found.event.status())?;
            ctx.write_optional(usage, &RawUsage::from(&found.usage))?;
            Ok(found.pid as usize)
        }
        Answer::Waitid { info, usage } => {
            if info != 0 {
                ctx.write(info, &raw_info(found.as_ref()))?;
            }
            if let Some(found) = &found {
                ctx.write_optional(usage, &RawUsage::from(&found.usage))?;
            }
            Ok(0)
        }
    }
}

fn raw_info(found: Option<&FoundChild>) -> [u8; 128] {
    let Some(found) = found else { return [0; 128] };
    let (code, status) = found.event.info();
    let (user, system) =
        (quire_linux_state::time::ticks(found.usage.user), quire_linux_state::time::ticks(found.usage.system));
    let detail = Detail::Child { pid: found.pid, uid: found.uid, status, user, system };
    SigInfo { signal: Signal::CHLD, code, errno: 0, detail }.encode()
}

/// `wait4`
pub fn sys_wait4<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    pid: i32,
    status: u64,
    options: u32,
    usage: u64,
) -> Result<usize, Errno> {
    if options & !(NOHANG | UNTRACED | CONTINUED | NOTHREAD | ALL | CLONE) != 0 {
        return Err(Errno::EINVAL);
    }
    let which = match pid {
        i32::MIN => return Err(Errno::ESRCH),
        -1 => Which::Any,
        0 => Which::Group(ctx.process().group().id),
        group if group < 0 => Which::Group(-group as Pid),
        pid => Which::Process(pid as Pid),
    };
    let wanted = Wanted { which, options: options | EXITED };
    if options & NOHANG != 0 {
        // Usually no child has ended yet, so this path is short.
        return match look(ctx.linux, ctx.process(), wanted) {
            None => Ok(0),
            Some(found) => answer(ctx, Answer::Wait4 { status, usage }, Some(found?)),
        };
    }
    wait(ctx, ChildWait { wanted, answer: Answer::Wait4 { status, usage } })
}

/// `waitid`
pub fn sys_waitid<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    kind: u32,
    id: i32,
    info: u64,
    options: u32,
    usage: u64,
) -> Result<usize, Errno> {
    let known = NOHANG | UNTRACED | EXITED | CONTINUED | NOWAIT | NOTHREAD | ALL | CLONE;
    if options & !known != 0 || options & (EXITED | UNTRACED | CONTINUED) == 0 {
        return Err(Errno::EINVAL);
    }
    let mut never_waits = false;
    let which = match (kind, id) {
        (raw::P_PIDFD, 0..) => {
            let (process, nonblock) = process_of(ctx, id)?;
            if process.stage() == Stage::Reaped {
                return Err(Errno::ECHILD);
            }
            never_waits = nonblock && options & NOHANG == 0;
            Which::Process(process.pid)
        }
        (0, _) => Which::Any,
        (1, 1..) => Which::Process(id as Pid),
        (2, 0) => Which::Group(ctx.process().group().id),
        (2, 1..) => Which::Group(id as Pid),
        _ => return Err(Errno::EINVAL),
    };
    if never_waits {
        // If no child has an event, a nonblocking process file makes the call fail with EAGAIN.
        let wanted = Wanted { which, options: options | NOHANG };
        return match look(ctx.linux, ctx.process(), wanted) {
            Some(found) => answer(ctx, Answer::Waitid { info, usage }, Some(found?)),
            None => Err(Errno::EAGAIN),
        };
    }
    wait(ctx, ChildWait { wanted: Wanted { which, options }, answer: Answer::Waitid { info, usage } })
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
