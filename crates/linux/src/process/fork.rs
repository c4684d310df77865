//! `fork`, `vfork`, `clone` and `clone3`, which make threads and processes.

use crate::process::pidfd::NewPidFile;
use core::alloc::Layout;
use core::ptr::NonNull;
use linux_raw_sys::general as raw;
use quire_fs::stream::park::Park;
use quire_heap::{Arc, SpareEntry};
use quire_linux_state::base::owned::{Owned, Private};
use quire_linux_state::errno::Errno;
use quire_linux_state::file::{Files, FsState};
use quire_linux_state::ipc::host::Undos;
use quire_linux_state::machine::{Fpu, Machine};
use quire_linux_state::memory::{AddressSpace, OwnSpace};
use quire_linux_state::process::credentials::Credentials;
use quire_linux_state::process::credentials::capabilities::cap;
use quire_linux_state::process::group::{self, Group};
use quire_linux_state::process::limits;
use quire_linux_state::process::sleep::Sleep;
use quire_linux_state::process::thread::{Again, AltStack, Name, OwnRseq, Rseq, Thread, Trap, work};
use quire_linux_state::process::timer_slack;
use quire_linux_state::process::timer_slack::Slack;
use quire_linux_state::process::users::UserCharge;
use quire_linux_state::process::{NewProcess, Process};
use quire_linux_state::regs::UserRegs;
use quire_linux_state::signal::pending::PendingQueue;
use quire_linux_state::signal::{Actions, SigSet, Signal};
use quire_linux_state::user::USER_END;
use quire_linux_state::{Ctx, Linux, Pid};
use quire_sync::Listing;
use quire_sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, Ordering};
use quire_sync::{Rank, SpinLock, WaitQueue};
use quire_task::{Quiet, Thread as Task, ThreadRef, futex};

/// The arguments of a call of the `clone` family.
#[derive(Clone, Copy, Debug, Default)]
struct Request {
    flags: u64,
    exit_signal: u8,
    stack: u64,
    parent_tid: u64,
    child_tid: u64,
    tls: u64,
    /// The user address at which the descriptor for CLONE_PIDFD is stored.
    pidfd: u64,
}

const VM: u64 = raw::CLONE_VM as u64;
const FS: u64 = raw::CLONE_FS as u64;
const FILES: u64 = raw::CLONE_FILES as u64;
const SIGHAND: u64 = raw::CLONE_SIGHAND as u64;
const VFORK: u64 = raw::CLONE_VFORK as u64;
const PARENT: u64 = raw::CLONE_PARENT as u64;
const THREAD: u64 = raw::CLONE_THREAD as u64;
const SYSVSEM: u64 = raw::CLONE_SYSVSEM as u64;
const SETTLS: u64 = raw::CLONE_SETTLS as u64;
const PARENT_SETTID: u64 = raw::CLONE_PARENT_SETTID as u64;
const CHILD_CLEARTID: u64 = raw::CLONE_CHILD_CLEARTID as u64;
const CHILD_SETTID: u64 = raw::CLONE_CHILD_SETTID as u64;
const DETACHED: u64 = raw::CLONE_DETACHED as u64;
const UNTRACED: u64 = raw::CLONE_UNTRACED as u64;
const PTRACE: u64 = raw::CLONE_PTRACE as u64;
const PIDFD: u64 = raw::CLONE_PIDFD as u64;
const IO: u64 = raw::CLONE_IO as u64;
const CLEAR_SIGHAND: u64 = 1 << 32;
/// The supported flags. The others are for namespaces and control groups.
const KNOWN: u64 = VM
    | FS
    | FILES
    | SIGHAND
    | VFORK
    | PARENT
    | THREAD
    | SYSVSEM
    | SETTLS
    | PARENT_SETTID
    | CHILD_CLEARTID
    | CHILD_SETTID
    | DETACHED
    | UNTRACED
    | PTRACE
    | PIDFD
    | IO
    | CLEAR_SIGHAND;

impl Request {
    fn has(&self, flag: u64) -> bool {
        self.flags & flag != 0
    }

    fn check(&self) -> Result<(), Errno> {
        let wrong = self.flags & !KNOWN != 0
            || (self.has(THREAD) && !self.has(SIGHAND))
            || (self.has(SIGHAND) && !self.has(VM))
            || (self.has(CLEAR_SIGHAND) && self.has(SIGHAND))
            || (self.has(PIDFD) && self.flags & (THREAD | DETACHED) != 0)
            || self.exit_signal > Signal::MAX;
        if wrong { Err(Errno::EINVAL) } else { Ok(()) }
    }
}

/// A new process or thread id. Its drop frees the id, unless `keep` was called.
struct NewId<M: Machine> {
    linux: &'static Linux<M>,
    id: Pid,
}

impl<M: Machine> NewId<M> {
    fn keep(self) -> Pid {
        let id = self.id;
        core::mem::forget(self);
        id
    }
}

impl<M: Machine> Drop for NewId<M> {
    fn drop(&mut self) {
        self.linux.ids.forget_process(self.id);
        self.linux.ids.release(self.id);
    }
}

/// The parts of a new thread that the caller supplies.
pub(crate) struct NewThread<M: Machine> {
    pub process: Arc<Process<M>>,
    pub tid: Pid,
    pub space: Arc<AddressSpace<M>>,
    pub files: Arc<Files<M>>,
    pub fs: Arc<FsState<M>>,
    pub undos: Option<Undos<M>>,
    pub credentials: Credentials,
    pub user_charge: UserCharge<M>,
    pub blocked: SigSet,
    pub alt_stack: AltStack,
    pub rseq: Rseq,
    pub name: Name,
    pub io_priority: u16,
    pub slack: Slack,
    pub clear_tid: u64,
    pub set_tid: u64,
}

/// Allocates a thread of the scheduler with its payload. ENOMEM if memory is exhausted.
pub(crate) fn place<M: Machine>(
    linux: &'static Linux<M>,
    context: <M as quire_task::Machine>::Context,
    new: NewThread<M>,
) -> Result<ThreadRef<M>, Errno> {
    unsafe fn release<M: Machine>(task: NonNull<Task<M>>) {
        // SAFETY: the memory was allocated below with this layout, and the last reference is gone.
        unsafe {
            core::ptr::drop_in_place(task.as_ptr());
            quire_heap::deallocate(task.cast(), Layout::new::<Task<M>>());
        }
    }
    let user = new.user_charge.share();
    let payload = Thread {
        linux,
        process: new.process,
        tid: AtomicU32::new(new.tid),
        space: OwnSpace::new(new.space),
        files: Owned::new(Some(new.files)),
        fs: Owned::new(Some(new.fs)),
        undos: Private::new(new.undos),
        seen: Private::new(None),
        credentials: Owned::new(new.credentials),
        user_charge: Owned::new(new.user_charge),
        over_limit: AtomicBool::new(false),
        io_priority: AtomicU16::new(new.io_priority),
        slack: new.slack,
        // This makes the return to user mode store the CPU's number in the rseq area before the first instruction.
        work: AtomicU32::new(if new.rseq == Rseq::NONE { 0 } else { work::RSEQ }),
        leaving: AtomicBool::new(false),
        stop_taken: AtomicBool::new(false),
        timed: AtomicBool::new(false),
        rseq: OwnRseq::new(new.rseq),
        blocked: AtomicU64::new(new.blocked.0),
        awaited: AtomicU64::new(0),
        saved_mask: Owned::new(None),
        pending: PendingQueue::new(),
        alt_stack: Owned::new(new.alt_stack),
        sleep: Private::new(None),
        waiter: futex::Waiter::new(),
        // SAFETY: the thread is never moved. Only its own calls list it, and they end the listing before they drop the
        // object whose queue it is on.
        park: Park::new(unsafe { Listing::new() }),
        restart: Private::new(None),
        clear_tid: AtomicU64::new(new.clear_tid),
        set_tid: AtomicU64::new(new.set_tid),
        robust_list: AtomicU64::new(0),
        name: SpinLock::new(Rank::OWNED, new.name),
        minor_faults: AtomicU64::new(0),
        major_faults: AtomicU64::new(0),
        trap: Owned::new(Trap::default()),
        released: AtomicBool::new(false),
        releases: WaitQueue::new(),
        ending: AtomicU64::new(0),
        again: AtomicU64::new(Again::NO),
        #[cfg(debug_assertions)]
        refusals: quire_linux_state::base::refusal::Refusals::new(),
    };
    let memory = quire_heap::allocate(Layout::new::<Task<M>>())?.cast::<Task<M>>();
    // SAFETY: fresh memory of that layout; `release` frees it; the handle takes over the count that `Task::new` starts
    // with.
    unsafe {
        memory.write(Task::new(context, Some(payload), release::<M>));
        // The reference to the user stays valid, because the thread leaves its user before it returns its charge.
        memory.as_ref().belong_to(user);
        Ok(ThreadRef::adopt(memory))
    }
}

/// Nanoseconds between two attempts of a fork that waits for memory.
const FORK_PAUSE: u64 = 20_000_000;

/// Makes a thread. The attempt is repeated if signals to several processes have disturbed it.
fn clone<M: Machine>(ctx: &mut Ctx<'_, M>, request: Request) -> Result<usize, Errno> {
    request.check()?;
    loop {
        match clone_once(ctx, request) {
            // A signal to the process group, or to all processes, is being sent. It did not interrupt this thread, so
            // the attempt is repeated.
            Err(Errno::ERESTARTNOINTR) if !ctx.interrupted() => ctx.linux.scheduler.yield_to_all(),
            Err(Errno::WOULD_SLEEP) => {
                let deadline = ctx.now() + FORK_PAUSE;
                return Err(ctx.sleep(Sleep::Fork, Some(deadline)));
            }
            done => return done,
        }
    }
}

fn clone_once<M: Machine>(ctx: &mut Ctx<'_, M>, request: Request) -> Result<usize, Errno> {
    let group = ctx.process().group();
    let quiet = refuse(ctx, &request, &group)?;
    let new = allocate(ctx, &request, group)?;
    publish(ctx, &request, new, quiet)
}

/// Makes the checks that need no allocation. For a new process, returns the signal counts that [`adopt_into_family`]
/// compares.
///
/// A signal to the whole group, or to all processes, must not miss the child. A signal that was sent before this point
/// has interrupted the parent, or its sender is still going through the processes. In both cases the fork fails and is
/// repeated. A later signal is noticed when the child joins its group, and then the fork is repeated too.
fn refuse<M: Machine>(ctx: &Ctx<'_, M>, request: &Request, group: &Group<M>) -> Result<Option<Undisturbed>, Errno> {
    if request.has(PARENT) && ctx.process().pid == 1 && !request.has(THREAD) {
        return Err(Errno::EINVAL);
    }
    let quiet = if request.has(THREAD) { None } else { Some(undisturbed(ctx.linux, group)?) };
    if ctx.thread.interrupted() {
        return Err(Errno::ERESTARTNOINTR);
    }
    if request.has(SETTLS) && request.tls >= USER_END {
        return Err(Errno::EPERM);
    }
    Ok(quiet)
}

/// A new thread that no other thread can find yet, and the memory that is needed to publish it.
struct Unfound<'a, M: Machine> {
    id: NewId<M>,
    /// The process of the caller, or a new one.
    process: Arc<Process<M>>,
    task: ThreadRef<M>,
    /// The memory for an entry in the list of the process's threads, if the thread joins the caller's process.
    entry: Option<SpareEntry<Pid, ThreadRef<M>>>,
    /// The process's file for CLONE_PIDFD.
    file: Option<NewPidFile<'a, M>>,
}

/// Makes the thread and its process. This function makes all allocations, so later steps cannot run out of memory.
fn allocate<'a, M: Machine>(
    ctx: &'a Ctx<'_, M>,
    request: &Request,
    group: Arc<Group<M>>,
) -> Result<Unfound<'a, M>, Errno> {
    let (linux, me, parent) = (ctx.linux, ctx.thread, ctx.process());
    // The limit is checked first, because the refusal must be cheap for a program that tries often.
    let limit = {
        let own = ctx.credentials();
        let free = own.real_user == 0 || own.may(cap::SYS_RESOURCE) || own.may(cap::SYS_ADMIN);
        if free { limits::INFINITY } else { parent.soft_limit(limits::which::NPROC) }
    };
    // SAFETY: the value belongs to the calling thread, which does not replace it during the access.
    let user_charge = unsafe { me.user_charge.get() }.another(limit)?;
    if user_charge.forks_wait() != 0 {
        may_fork(linux, &user_charge)?;
    }
    linux.check_threads()?;
    let id = NewId { linux, id: linux.ids.allocate()? };
    let space = if request.has(VM) { ctx.space()?.clone() } else { ctx.space()?.fork()? };
    let files = if request.has(FILES) { Files::share(ctx.files()?)? } else { ctx.files()?.fork()? };
    let fs = if request.has(FS) { FsState::share(ctx.fs()?)? } else { ctx.fs()?.fork()? };
    let undos = crate::ipc::undos_of_new(ctx, request.has(SYSVSEM), request.has(THREAD))?;
    if request.has(SIGHAND) {
        // Frozen (shared) actions need a copy, because only processes with one thread may share them.
        // SAFETY: `ctx` is the context of a thread of this process, and this function has no view of the actions.
        unsafe { parent.own_actions() }?;
    }
    let process = process_of_new(ctx, request, id.id, group)?;
    let entry = if request.has(THREAD) { Some(SpareEntry::try_new()?) } else { None };
    let context = context_of_new(ctx, request)?;
    let shares_stack = request.has(VM) && !request.has(VFORK);
    let new = NewThread {
        process: process.clone(),
        tid: id.id,
        space,
        files,
        fs,
        undos,
        credentials: ctx.credentials().clone(),
        user_charge,
        blocked: me.blocked(),
        // SAFETY: only the owning thread has a context, and it does not replace the stack during this read.
        alt_stack: if shares_stack { AltStack::default() } else { *unsafe { me.alt_stack.get() } },
        // If the memory is shared (a thread, or the child of a vfork), the rseq area in it belongs to the caller.
        rseq: if request.has(VM) { Rseq::NONE } else { me.rseq.get() },
        name: *me.name.lock(),
        io_priority: me.io_priority.load(Ordering::Relaxed),
        slack: Slack::inherited(timer_slack::of(&linux.scheduler.current()))?,
        clear_tid: if request.has(CHILD_CLEARTID) { request.child_tid } else { 0 },
        set_tid: if request.has(CHILD_SETTID) { request.child_tid } else { 0 },
    };
    let task = place(linux, context, new)?;
    let current = linux.scheduler.current();
    task.inherit_class(&current);
    task.inherit_affinity(&current);
    if request.has(PARENT_SETTID) {
        ctx.write(request.parent_tid, &id.id)?;
    }
    let file = if request.has(PIDFD) { Some(NewPidFile::new(ctx, &process, request.pidfd)?) } else { None };
    Ok(Unfound { id, process, task, entry, file })
}

/// Whether the user may fork. While memory is low and the time of [`UserCharge::forks_wait`] has not passed, returns
/// [`Errno::WOULD_SLEEP`]. The caller then sleeps, and makes the whole call again.
#[cold]
fn may_fork<M: Machine>(linux: &Linux<M>, user: &UserCharge<M>) -> Result<(), Errno> {
    if linux.vm.frames().is_low() && quire_sync::hooks::now() < user.forks_wait() {
        return Err(Errno::WOULD_SLEEP);
    }
    user.make_forks_wait(0);
    Ok(())
}

/// The process of a new thread: the caller's process, or a new one.
fn process_of_new<M: Machine>(
    ctx: &Ctx<'_, M>,
    request: &Request,
    pid: Pid,
    group: Arc<Group<M>>,
) -> Result<Arc<Process<M>>, Errno> {
    let parent = ctx.process();
    if request.has(THREAD) {
        return Ok(parent.clone());
    }
    let child = Process::new(ctx.linux, child_of(ctx, request, pid, group)?)?;
    if let Some(files) = parent.signal_files.get() {
        child.signal_files.get_or_make(|| files.clone())?;
    }
    Ok(Arc::try_new(child)?)
}

/// The register context of a new thread: a copy of the caller's registers, with a new stack and thread pointer if these
/// were given.
fn context_of_new<M: Machine>(
    ctx: &Ctx<'_, M>,
    request: &Request,
) -> Result<<M as quire_task::Machine>::Context, Errno> {
    let machine = ctx.linux.machine;
    let mut regs = *ctx.regs;
    regs.rax = 0;
    regs.orig_rax = UserRegs::NOT_A_SYSCALL;
    if request.stack != 0 {
        regs.rsp = request.stack;
    }
    let fs_base = if request.has(SETTLS) { request.tls } else { machine.fs_base() };
    Ok(machine.new_context(&regs, fs_base, machine.gs_base(), Fpu::Copy)?)
}

/// Makes the new thread visible to others, and starts it. On failure, all steps are undone.
fn publish<M: Machine>(
    ctx: &Ctx<'_, M>,
    request: &Request,
    new: Unfound<'_, M>,
    quiet: Option<Undisturbed>,
) -> Result<usize, Errno> {
    let (linux, me) = (ctx.linux, ctx.thread);
    let Unfound { id, process, task, entry, file } = new;
    let tid = id.id;
    linux.ids.name_process(tid, &process);
    if let Some(memory) = entry {
        let mut threads = process.threads.lock();
        if threads.closed {
            // The process is ending or executes a program. The caller must end too, so the call does not return.
            me.work.fetch_or(work::KILL, Ordering::AcqRel);
            return Err(Errno::ERESTARTNOINTR);
        }
        threads.join(task.clone(), memory);
        // If the process has begun to stop since the caller's check, the new thread must stop too.
        if process.job.lock().stopping.is_some()
            && let Some(new) = task.payload()
        {
            new.work.fetch_or(work::STOP, Ordering::AcqRel);
        }
    } else if let Some(quiet) = quiet {
        process.threads.lock().begin(task.clone());
        let sibling = request.has(PARENT).then(|| ctx.process());
        if let Err(error) = adopt_into_family(&process, sibling, &quiet) {
            // The word of a priority-inheritance futex may name the new thread as its owner already.
            crate::futex::pi::never_runs(linux, &task);
            // Process and thread hold references to each other. Removing the thread from its process breaks this cycle,
            // so that both are freed.
            let thread = process.threads.lock().remove(tid);
            drop(thread);
            // The id table must not have the process any more when the id is freed.
            linux.ids.forget_process(tid);
            group::leave(&process);
            return Err(error);
        }
    }
    id.keep();
    if let Some(file) = file {
        file.open();
    }
    if request.has(VFORK) {
        // The parent sleeps until the child has left the shared memory. So the child starts on the parent's CPU, which
        // is about to be free.
        linux.scheduler.spawn_on(task.clone(), quire_sync::current_cpu());
        wait_for_release(me, &task);
    } else {
        linux.scheduler.spawn(task);
    }
    Ok(tid as usize)
}

/// Sleeps until the vfork child has left its parent's memory, by exec or exit. Only a fatal signal ends the sleep
/// earlier.
fn wait_for_release<M: Machine>(me: &Thread<M>, child: &ThreadRef<M>) {
    if let Some(child) = child.payload() {
        // The timers of the process still run. `interrupted` handles their expiry, so the sleeping parent calls it
        // here.
        let stops = || {
            let _ends_nothing = me.interrupted();
            me.killed()
        };
        let _killed = child.releases.wait_until(None, stops, || child.released.load(Ordering::Acquire).then_some(()));
    }
}

fn child_of<M: Machine>(
    ctx: &Ctx<'_, M>,
    request: &Request,
    pid: Pid,
    group: Arc<Group<M>>,
) -> Result<NewProcess<M>, Errno> {
    let parent = ctx.process();
    let actions = if request.has(SIGHAND) {
        // SAFETY: only the owning thread has a context, and it does not exec during this call.
        unsafe { parent.actions.get() }.clone()
    } else if request.has(CLEAR_SIGHAND) {
        let copy = parent.with_actions(Actions::try_clone)?;
        copy.reset_handlers();
        Arc::try_new(copy)?
    } else {
        // SAFETY: `ctx` is the context of a thread of the process `parent`.
        unsafe { parent.forked_actions() }?
    };
    let (family, exit_signal) = if request.has(PARENT) {
        (parent.parent(), parent.exit_signal.load(Ordering::Relaxed))
    } else {
        (Some(parent.clone()), request.exit_signal)
    };
    Ok(NewProcess {
        pid,
        parent: family,
        group,
        actions,
        exit_signal,
        credentials: ctx.credentials().clone(),
        limits: parent.limits.for_child()?,
        priority: (20 - i32::from(ctx.linux.scheduler.current().nice())) as u32,
        personality: parent.personality.load(Ordering::Relaxed),
        no_new_privileges: parent.no_new_privileges.load(Ordering::Relaxed),
        oom_adjust: [&parent.oom_adjust, &parent.oom_adjust_least].map(|n| n.load(Ordering::Relaxed)).into(),
    })
}

/// The counts of signals to the group and to all processes, at the beginning of a fork.
struct Undisturbed {
    /// The count of signals to the group.
    group: u64,
    /// The count of signals to all processes.
    all: Quiet,
}

/// Reads the signal counts. A forking thread calls this function before it checks for signals. Fails while a signal to
/// its group, or to all processes, is being sent.
fn undisturbed<M: Machine>(linux: &Linux<M>, group: &Group<M>) -> Result<Undisturbed, Errno> {
    let (group, all) = (group.signals(), linux.broadcasts.quiet());
    Ok(Undisturbed { group: group.ok_or(Errno::ERESTARTNOINTR)?, all: all.ok_or(Errno::ERESTARTNOINTR)? })
}

/// Adds a new process to its group and to its parent's children. Other threads can already find the new process by its
/// id. On failure, the caller undoes all steps. `sibling` is the caller if the new process gets the caller's parent and
/// exit signal (CLONE_PARENT).
fn adopt_into_family<M: Machine>(
    process: &Arc<Process<M>>,
    sibling: Option<&Arc<Process<M>>>,
    since: &Undisturbed,
) -> Result<(), Errno> {
    // The order matters: the process is findable by its id before `join` locks the group, and the broadcasts are
    // checked after `join`.
    if !process.group().join(process.clone(), since.group) || process.linux.broadcasts.was_sent_since(since.all) {
        // A signal was sent to the group or to all processes, or the parent has left the group and the group has ended.
        // The fork is repeated.
        return Err(Errno::ERESTARTNOINTR);
    }
    let mut sibling = sibling;
    loop {
        let parent = process.parent();
        let Some(parent) = parent else { return Ok(()) };
        {
            let mut family = parent.family.lock();
            if !family.closed {
                if let Some(sibling) = sibling {
                    // A reaper that adopts the caller changes the caller's parent and then its exit signal, under this
                    // lock. Without the lock, the signal that is read here could belong to an earlier parent.
                    let signal = sibling.exit_signal.load(Ordering::Relaxed);
                    process.exit_signal.store(signal, Ordering::Relaxed);
                }
                return family.children.push(process.clone()).map_err(|_| Errno::EAGAIN);
            }
        }
        // With CLONE_PARENT, the parent may have ended. Then the ended parent's reaper becomes the parent, and the exit
        // signal is SIGCHLD. The reaper must not get the exit signal that was chosen for the ended parent.
        process.exit_signal.store(Signal::CHLD.number(), Ordering::Relaxed);
        // The caller's own exit signal is not copied, because it may still be the signal for the ended parent.
        sibling = None;
        let reaper = crate::process::exit::reaper_of(&parent);
        let old = process.replace_parent(reaper);
        drop(old);
    }
}

/// `fork`
pub fn sys_fork<M: Machine>(ctx: &mut Ctx<'_, M>) -> Result<usize, Errno> {
    clone(ctx, Request { exit_signal: Signal::CHLD.number(), ..Request::default() })
}

/// `vfork`
pub fn sys_vfork<M: Machine>(ctx: &mut Ctx<'_, M>) -> Result<usize, Errno> {
    clone(ctx, Request { flags: VM | VFORK, exit_signal: Signal::CHLD.number(), ..Request::default() })
}

/// `clone`
pub fn sys_clone<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    flags: u64,
    stack: u64,
    parent_tid: u64,
    child_tid: u64,
    tls: u64,
) -> Result<usize, Errno> {
    let flags_only = flags & 0xffff_ff00;
    if flags_only & PIDFD != 0 && flags_only & PARENT_SETTID != 0 {
        // Both would be stored at the same address.
        return Err(Errno::EINVAL);
    }
    let exit_signal = flags as u8;
    clone(ctx, Request { flags: flags_only, exit_signal, stack, parent_tid, child_tid, tls, pidfd: parent_tid })
}

/// `clone3`
pub fn sys_clone3<M: Machine>(ctx: &mut Ctx<'_, M>, from: u64, size: usize) -> Result<usize, Errno> {
    /// The size of the first version of `struct clone_args`, in bytes.
    const SHORTEST: usize = 64;
    const LONGEST: usize = 88;
    if size > 4096 {
        return Err(Errno::E2BIG);
    }
    if size < SHORTEST {
        return Err(Errno::EINVAL);
    }
    let mut words = [0u64; LONGEST / 8];
    let known = size.min(LONGEST) / 8;
    for (i, word) in words.iter_mut().enumerate().take(known) {
        *word = ctx.read(from + 8 * i as u64)?;
    }
    // Bytes after the known fields must be zero.
    for at in known * 8..size {
        if ctx.read::<u8>(from + at as u64)? != 0 {
            return Err(Errno::E2BIG);
        }
    }
    let [flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid, set_tid_len, _cgroup] =
        words;
    let bad_stack = (stack == 0) != (stack_size == 0) || stack.checked_add(stack_size).is_none_or(|end| end > USER_END);
    if bad_stack || set_tid != 0 || set_tid_len != 0 || flags & 0xff != 0 || flags & DETACHED != 0 {
        return Err(Errno::EINVAL);
    }
    let exit_signal = u8::try_from(exit_signal).map_err(|_| Errno::EINVAL)?;
    if exit_signal != 0 && flags & (THREAD | PARENT) != 0 {
        return Err(Errno::EINVAL);
    }
    clone(ctx, Request { flags, exit_signal, stack: stack + stack_size, parent_tid, child_tid, tls, pidfd })
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
