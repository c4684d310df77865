//! Terminals and processes: controlling terminals, the foreground process group, job control.

pub mod settings;

use quire_fs::device::{Driver, PTS};
use quire_fs::terminal::pty::Pty;
use quire_fs::terminal::{Key, Notice, Processes, Terminal};
use quire_fs::{FsError, OpenFlags, Stream};
use quire_heap::{Arc, unsize};
use quire_linux_state::file::host::File;
use quire_linux_state::file::ptys::index_of;
use quire_linux_state::process::credentials::capabilities::cap;
use quire_linux_state::process::group::Session;
use quire_linux_state::signal::{SigInfo, Signal};
use quire_linux_state::{Ctx, Errno, Linux, Machine};
use quire_sync::atomic::Ordering;

/// The number that stands for the console's terminal. Pseudo-terminals have other numbers.
pub const CONSOLE: u64 = 1;

/// The device number of the terminal with number `number`, in the format of `/proc/<pid>/stat`. 0 for no terminal.
pub fn device_of(number: u64) -> u32 {
    match number {
        0 => 0,
        CONSOLE => 5 << 8 | 1,
        pty => {
            let minor = index_of(pty);
            minor & 0xff | PTS << 8 | (minor & !0xff) << 12
        }
    }
}

/// The controlling terminal of `session`.
pub fn of_session<M: Machine>(linux: &Linux<M>, session: &Session) -> Option<Arc<Terminal>> {
    let terminal = match session.terminal.load(Ordering::Acquire) {
        0 => None,
        CONSOLE => linux.files.terminal(),
        pty => linux.files.ptys.numbered(pty).map(|pty| pty.terminal().clone()),
    };
    terminal.filter(|terminal| terminal.owner().1 == session.id)
}

/// The operations on process groups that terminals need.
pub struct Groups<M: Machine>(pub &'static Linux<M>);

impl<M: Machine> Processes for Groups<M> {
    fn notify(&self, group: u32, notice: Notice) {
        let signal = match notice {
            Notice::Key(Key::Interrupt) => Signal::INT,
            Notice::Key(Key::Quit) => Signal::QUIT,
            Notice::Key(Key::Suspend) => Signal::TSTP,
            Notice::Resized => Signal::WINCH,
        };
        self.0.signal_group(group, signal);
    }

    fn check(&self, session: u32, foreground: u32, writing: bool) -> Result<(), FsError> {
        let thread = self.0.current();
        let group = thread.process.group();
        if session == 0 || group.session.id != session || foreground == 0 || group.id == foreground {
            return Ok(());
        }
        let signal = if writing { Signal::TTOU } else { Signal::TTIN };
        let ignored =
            thread.blocked().has(signal) || thread.process.with_actions(|all| all.get(signal)).ignores(signal);
        if ignored {
            return if writing { Ok(()) } else { Err(FsError::Io) };
        }
        if group.is_orphaned() {
            return Err(FsError::Io);
        }
        let _no_receiver = group.signal(Some(SigInfo::kernel(signal)), |_| true);
        Err(FsError::Interrupted)
    }

    fn hung_up(&self, session: u32, foreground: u32) {
        if session == 0 {
            return;
        }
        let Some(leader) = self.0.ids.process(session) else { return };
        let owner = leader.group().session.clone();
        if owner.id != session {
            return;
        }
        // The foreground group is stored, because it gets SIGHUP when the session leader ends.
        owner.old_foreground.store(foreground, Ordering::Relaxed);
        owner.terminal.store(0, Ordering::Release);
        for signal in [Signal::HUP, Signal::CONT] {
            let _merged = self.0.signal_process(&leader, SigInfo::kernel(signal));
        }
    }
}

/// `/dev/tty`: the opening process's controlling terminal.
pub struct OwnTerminal<M: Machine>(pub &'static Linux<M>);

impl<M: Machine> Driver for OwnTerminal<M> {
    fn open(&self, _flags: OpenFlags) -> Result<Arc<dyn Stream>, FsError> {
        let session = self.0.current().process.group().session.clone();
        let terminal = of_session(self.0, &session).ok_or(FsError::NoDevice)?;
        match self.0.files.ptys.numbered(terminal.number()) {
            Some(pty) => Pty::open_slave(&pty),
            None => Ok(unsize!(terminal)),
        }
    }
}

/// The session of the caller, if `terminal` is its controlling terminal.
fn own_session<M: Machine>(ctx: &Ctx<'_, M>, terminal: &Terminal) -> Result<u32, Errno> {
    let session = ctx.process().group().session.id;
    if terminal.owner().1 == session { Ok(session) } else { Err(Errno::ENOTTY) }
}

/// Gives a session leader without a terminal the free terminal that it has opened.
pub fn claim_at_open<M: Machine>(ctx: &Ctx<'_, M>, file: &File<M>) {
    if let Some(terminal) = file.stream_as::<Terminal>()
        && file.flags().contains(OpenFlags::READ)
    {
        let session = ctx.process().group().session.clone();
        if session.id == ctx.pid() && session.terminal.load(Ordering::Acquire) == 0 {
            // If the terminal belongs to another session, it stays opened, but is not claimed.
            let _not_free = claim(ctx, terminal, false);
        }
    }
}

/// Makes `terminal` the controlling terminal of the caller's session. If the last argument is true, the terminal may be
/// taken from another session.
pub fn claim<M: Machine>(ctx: &Ctx<'_, M>, terminal: &Terminal, steal: bool) -> Result<(), Errno> {
    let group = ctx.process().group();
    let session = group.session.clone();
    let root = ctx.credentials().may(cap::SYS_ADMIN);
    if terminal.owner().1 == session.id && session.id == ctx.pid() {
        return Ok(());
    }
    if session.id != ctx.pid() || session.terminal.load(Ordering::Acquire) != 0 {
        return Err(Errno::EPERM);
    }
    let (_, before) = terminal.owner();
    terminal.claim(session.id, group.id, steal && root)?;
    if let Some(robbed) = ctx.linux.ids.group(before) {
        robbed.session.terminal.store(0, Ordering::Release);
    }
    session.terminal.store(terminal.number(), Ordering::Release);
    Ok(())
}

/// Gives up the caller's controlling terminal. If the caller is the session leader, the session loses the terminal, and
/// the foreground group gets SIGHUP. Otherwise the call has no effect.
pub fn give_up<M: Machine>(ctx: &Ctx<'_, M>, terminal: &Terminal) -> Result<(), Errno> {
    let session = own_session(ctx, terminal)?;
    if session == ctx.pid() {
        let (foreground, _) = terminal.owner();
        ctx.process().group().session.terminal.store(0, Ordering::Release);
        terminal.release(session);
        ctx.linux.signal_group(foreground, Signal::HUP);
        ctx.linux.signal_group(foreground, Signal::CONT);
    }
    Ok(())
}

/// The terminal's foreground group. Fails if the caller is not in the terminal's session.
pub fn foreground_of<M: Machine>(ctx: &Ctx<'_, M>, terminal: &Terminal) -> Result<i32, Errno> {
    own_session(ctx, terminal)?;
    Ok(terminal.owner().0 as i32)
}

/// The terminal's session. Fails if the caller is not in that session.
pub fn session_of<M: Machine>(ctx: &Ctx<'_, M>, terminal: &Terminal) -> Result<i32, Errno> {
    Ok(own_session(ctx, terminal)? as i32)
}

/// Makes `group`, which must be in the caller's session, the foreground group.
pub fn set_foreground<M: Machine>(ctx: &Ctx<'_, M>, terminal: &Terminal, group: i32) -> Result<(), Errno> {
    let session = own_session(ctx, terminal)?;
    terminal.check(true)?;
    if group < 0 {
        return Err(Errno::EINVAL);
    }
    // As on Linux, `id` may be the id of a process. Then the group of this process is used.
    let (ids, id) = (&ctx.linux.ids, group as u32);
    let found = match ids.group(id) {
        Some(group) => group,
        None => ids.process_of_thread(id).ok_or(Errno::ESRCH)?.group(),
    };
    if found.session.id != session {
        return Err(Errno::EPERM);
    }
    terminal.set_foreground(group as u32);
    Ok(())
}

/// Frees the terminal of a session whose leader has ended, and sends SIGHUP to the foreground group. If the terminal
/// was hung up before, the signal goes to the group that was in the foreground at the hang-up.
pub fn session_ends<M: Machine>(linux: &'static Linux<M>, session: &Session) {
    let (foreground, goes_on) = match of_session(linux, session) {
        Some(terminal) => {
            let (foreground, _) = terminal.owner();
            terminal.release(session.id);
            (foreground, terminal.number() == CONSOLE)
        }
        None => (session.old_foreground.swap(0, Ordering::Relaxed), true),
    };
    session.terminal.store(0, Ordering::Release);
    if foreground != 0 {
        linux.signal_group(foreground, Signal::HUP);
        if goes_on {
            linux.signal_group(foreground, Signal::CONT);
        }
    }
}
