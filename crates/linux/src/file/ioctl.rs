//! `ioctl`: requests to terminals, and the few requests that all files support.

use crate::file::ptys::{Master, open_peer};
use crate::file::terminals;
use crate::file::terminals::settings;
use crate::file::terminals::settings::{Speeds, Termios};
use crate::socket::loopback;
use crate::system::random_ioctl;
use linux_raw_sys::general as raw;
use quire_fs::open_file::Body;
use quire_fs::terminal::{Size, Terminal};
use quire_fs::{InodeContent, Io, OpenFlags, device};
use quire_linux_state::file::host::File;
use quire_linux_state::file::notices;
use quire_linux_state::process::credentials::capabilities::cap;
use quire_linux_state::signal::Signal;
use quire_linux_state::socket::host::Socket;
use quire_linux_state::system::unsupported::Unsupported;
use quire_linux_state::{Ctx, Errno, Machine};
use quire_net::{Family, Kind};

// From Linux's asm-generic/ioctls.h.
const TCGETS: u32 = 0x5401;
const TCSETS: u32 = 0x5402;
const TCSETSW: u32 = 0x5403;
const TCSETSF: u32 = 0x5404;
const TCGETA: u32 = 0x5405;
const TCSETA: u32 = 0x5406;
const TCSETAW: u32 = 0x5407;
const TCSETAF: u32 = 0x5408;
const TCSBRK: u32 = 0x5409;
const TCXONC: u32 = 0x540a;
const TCFLSH: u32 = 0x540b;
const TCGETS2: u32 = 0x802c_542a;
const TCSETS2: u32 = 0x402c_542b;
const TCSETSW2: u32 = 0x402c_542c;
const TCSETSF2: u32 = 0x402c_542d;
const TIOCSCTTY: u32 = 0x540e;
const TIOCGPGRP: u32 = 0x540f;
const TIOCSPGRP: u32 = 0x5410;
const TIOCSTI: u32 = 0x5412;
const TIOCPKT: u32 = 0x5420;
const TIOCGETD: u32 = 0x5424;
const TIOCGPTPEER: u32 = 0x5441;
const TIOCSPTLCK: u32 = 0x4004_5431;
const TIOCSIG: u32 = 0x4004_5436;
const TIOCGPTN: u32 = 0x8004_5430;
const TIOCGPKT: u32 = 0x8004_5438;
const TIOCGPTLCK: u32 = 0x8004_5439;
const TIOCOUTQ: u32 = 0x5411;
const TIOCGWINSZ: u32 = 0x5413;
const TIOCSWINSZ: u32 = 0x5414;
const FIONREAD: u32 = 0x541b;
const FIONBIO: u32 = 0x5421;
const TIOCNOTTY: u32 = 0x5422;
const TCSBRKP: u32 = 0x5425;
const TIOCGSID: u32 = 0x5429;
const FIONCLEX: u32 = 0x5450;
const FIOCLEX: u32 = 0x5451;
const FIOASYNC: u32 = 0x5452;
const FIOSETOWN: u32 = 0x8901;
const SIOCSPGRP: u32 = 0x8902;
const FIOGETOWN: u32 = 0x8903;
const SIOCGPGRP: u32 = 0x8904;
const SIOCATMARK: u32 = 0x8905;
const TIOCGLCKTRMIOS: u32 = 0x5456;
const TIOCSLCKTRMIOS: u32 = 0x5457;

/// Whether some file supports the request. Another file then refuses it, as on Linux.
fn is_known(request: u32) -> bool {
    /// The type of requests to the random devices.
    const RANDOM: u32 = 0x52;
    /// `PROCMAP_QUERY`, a request to `/proc/PID/maps`.
    const QUERY: u32 = 0xc068_6611;
    match request {
        TCGETS..=TCFLSH | TIOCSCTTY..=TIOCSWINSZ | FIONREAD | TIOCPKT..=TIOCNOTTY | TIOCGETD..=TCSBRKP | TIOCGSID => {
            true
        }
        TCGETS2 | TCSETS2 | TCSETSW2 | TCSETSF2 | TIOCGPTPEER | TIOCSPTLCK | TIOCSIG | TIOCGPTN | TIOCGPKT => true,
        TIOCGPTLCK | FIONCLEX..=FIOASYNC | TIOCGLCKTRMIOS | TIOCSLCKTRMIOS => true,
        FIOSETOWN..=SIOCATMARK | QUERY => true,
        _ => request >> 8 & 0xff == RANDOM || loopback::is_known(request),
    }
}

/// `ioctl`
pub fn sys_ioctl<M: Machine>(ctx: &mut Ctx<'_, M>, fd: i32, request: u32, argument: u64) -> Result<usize, Errno> {
    let result = request_of(ctx, fd, request, argument);
    if result == Err(Errno::ENOTTY) && !is_known(request) {
        ctx.linux.refuses_option(Unsupported::Ioctl(request));
    }
    result
}

fn request_of<M: Machine>(ctx: &mut Ctx<'_, M>, fd: i32, request: u32, argument: u64) -> Result<usize, Errno> {
    let file = ctx.file(fd)?;
    match request {
        FIOCLEX | FIONCLEX => {
            ctx.files()?.set_close_on_exec(fd as u32, request == FIOCLEX)?;
            return Ok(0);
        }
        FIONBIO | FIOASYNC => {
            let on = ctx.read::<i32>(argument)? != 0;
            let flag = if request == FIONBIO { OpenFlags::NONBLOCK } else { OpenFlags::ASYNC };
            let mut flags = file.flags();
            if request == FIOASYNC && flags.contains(flag) != on {
                super::fcntl::set_async(ctx, &file, fd, on)?;
            }
            flags.set(flag, on);
            file.set_flags(flags);
            return Ok(0);
        }
        FIONREAD => {
            ctx.write(argument, &readable_bytes(&file)?)?;
            return Ok(0);
        }
        // This number is SIOCOUTQ for sockets.
        TIOCOUTQ if let Some(socket) = file.stream_as::<Socket<M>>() => {
            ctx.write(argument, &i32::try_from(socket.unsent()).unwrap_or(i32::MAX))?;
            return Ok(0);
        }
        // There is no urgent data, so the mark is never reached.
        SIOCATMARK if file.stream_as::<Socket<M>>().is_some_and(|socket| has_mark(socket.family(), socket.kind())) => {
            ctx.write(argument, &0i32)?;
            return Ok(0);
        }
        _ => {}
    }
    let is_socket = file.dentry.inode.kind() == quire_fs::FileKind::Socket;
    match request {
        FIOSETOWN | SIOCSPGRP if is_socket => {
            notices::set_owner_by_number(ctx, &file, ctx.read::<i32>(argument)?)?;
            return Ok(0);
        }
        FIOGETOWN | SIOCGPGRP if is_socket => {
            ctx.write(argument, &notices::owner_as_number(&file))?;
            return Ok(0);
        }
        _ => {}
    }
    if is_socket && let Some(done) = loopback::ioctl(ctx, file.stream_as(), request, argument) {
        return done;
    }
    if let Body::Text(text, _) = file.body() {
        return ctx.linux.trees.ioctl(ctx, &**text, request, argument).unwrap_or(Err(Errno::ENOTTY));
    }
    if matches!(file.dentry.inode.node, InodeContent::CharDevice(number) if device::RANDOM.contains(&number)) {
        return random_ioctl(ctx, request, argument);
    }
    if let Some(master) = file.stream_as::<Master<M>>() {
        return of_master(ctx, master, request, argument);
    }
    match file.stream_as::<Terminal>() {
        Some(terminal) if terminal.is_hung_up() => Err(if request == TIOCSPGRP { Errno::ENOTTY } else { Errno::EIO }),
        Some(terminal) => of_terminal(ctx, terminal, request, argument),
        None => Err(Errno::ENOTTY),
    }
}

/// Whether sockets of that family and kind support SIOCATMARK, which asks about urgent data.
fn has_mark(family: Family, kind: Kind) -> bool {
    family == Family::Unix || kind == Kind::Stream
}

/// Requests to the master of a pseudo-terminal. Requests that the master does not know are passed to its terminal.
fn of_master<M: Machine>(ctx: &Ctx<'_, M>, master: &Master<M>, request: u32, argument: u64) -> Result<usize, Errno> {
    let (pty, terminal) = (&master.pty, master.pty.terminal());
    match request {
        TIOCGPTN => ctx.write(argument, &master.index)?,
        TIOCSPTLCK => pty.set_locked(ctx.read::<i32>(argument)? != 0),
        TIOCGPTLCK => ctx.write(argument, &i32::from(pty.is_locked()))?,
        TIOCPKT => pty.set_packets(ctx.read::<i32>(argument)? != 0),
        TIOCGPKT => ctx.write(argument, &i32::from(pty.has_packets()))?,
        TIOCGPTPEER => return open_peer(ctx, master, argument as u32),
        TIOCSIG => {
            let signal = Signal::new(argument)?;
            if ![Signal::INT, Signal::QUIT, Signal::TSTP].contains(&signal) {
                return Err(Errno::EINVAL);
            }
            ctx.linux.signal_group(terminal.owner().0, signal);
        }
        TIOCGPGRP => ctx.write(argument, &(terminal.owner().0 as i32))?,
        TIOCGSID => match terminal.owner().1 {
            0 => return Err(Errno::ENOTTY),
            session => ctx.write(argument, &(session as i32))?,
        },
        TIOCNOTTY => return Err(Errno::ENOTTY),
        TCFLSH => match argument {
            0..=2 => pty.flush_master(argument != 1, argument != 0),
            _ => return Err(Errno::EINVAL),
        },
        TCSBRK | TCSBRKP => {}
        _ => return of_terminal(ctx, terminal, request, argument),
    }
    Ok(0)
}

fn readable_bytes<M: Machine>(file: &File<M>) -> Result<i32, Errno> {
    let bytes = match file.stream() {
        Some(stream) => stream.queued()?,
        None if file.regular().is_some() => {
            // As on Linux, the result is negative if the position is after the end, and it is truncated to 32 bits.
            return Ok(file.dentry.inode.status().size.wrapping_sub(file.position()) as i32);
        }
        None => return Err(Errno::ENOTTY),
    };
    Ok(i32::try_from(bytes).unwrap_or(i32::MAX))
}

fn of_terminal<M: Machine>(ctx: &Ctx<'_, M>, terminal: &Terminal, request: u32, argument: u64) -> Result<usize, Errno> {
    match request {
        TCGETS => ctx.write(argument, &settings::to_linux(&terminal.settings()))?,
        TCGETA => ctx.write(argument, &settings::to_termio(&settings::to_linux(&terminal.settings())))?,
        TCGETS2 => ctx.write(argument, &settings::to_linux2(&terminal.settings()))?,
        TCSETS | TCSETSW | TCSETSF => {
            let new = ctx.read(argument)?;
            set(ctx, terminal, &new, None, (request != TCSETS, request == TCSETSF))?;
        }
        TCSETS2 | TCSETSW2 | TCSETSF2 => {
            let (new, speeds) = settings::from_linux2(&ctx.read(argument)?);
            set(ctx, terminal, &new, Some(speeds), (request != TCSETS2, request == TCSETSF2))?;
        }
        TCSETA | TCSETAW | TCSETAF => {
            let new = settings::from_termio(&settings::to_linux(&terminal.settings()), &ctx.read(argument)?);
            set(ctx, terminal, &new, None, (request != TCSETA, request == TCSETAF))?;
        }
        TIOCGLCKTRMIOS => {
            let locked = terminal.locked().map_or([0; 36], |locked| settings::to_linux(&locked));
            ctx.write(argument, &locked)?;
        }
        TIOCSLCKTRMIOS => {
            if !ctx.credentials().may(cap::SYS_ADMIN) && !ctx.credentials().may(cap::CHECKPOINT_RESTORE) {
                return Err(Errno::EPERM);
            }
            terminal.set_locked(settings::from_linux(&ctx.read(argument)?, Speeds::of(&terminal.settings())));
        }
        TCSBRK | TCSBRKP => {
            terminal.check(true)?;
            drain(ctx, terminal)?;
        }
        TCXONC => {
            terminal.check(true)?;
            match argument {
                0 => terminal.set_stopped(true),
                1 => terminal.set_stopped(false),
                2 | 3 => {
                    let interrupted = || ctx.thread.interrupted();
                    let io = Io { interrupted: &interrupted, ..Io::WAIT };
                    terminal.send_flow(&io, argument == 3)?;
                }
                _ => return Err(Errno::EINVAL),
            }
        }
        TCFLSH => {
            terminal.check(true)?;
            match argument {
                0 => terminal.flush_input(),
                1 => terminal.flush_output(),
                2 => {
                    terminal.flush_input();
                    terminal.flush_output();
                }
                _ => return Err(Errno::EINVAL),
            }
        }
        TIOCGWINSZ => {
            let s = terminal.size();
            ctx.write(argument, &[s.rows, s.columns, s.width, s.height])?;
        }
        TIOCSWINSZ => {
            let [rows, columns, width, height] = ctx.read::<[u16; 4]>(argument)?;
            terminal.set_size(Size { rows, columns, width, height });
        }
        // TIOCSTI is refused, as on a Linux whose `dev.tty.legacy_tiocsti` is 0.
        TIOCSTI => return Err(Errno::EIO),
        TIOCGPTPEER => return Err(Errno::EIO),
        TIOCGETD => ctx.write(argument, &0i32)?,
        TIOCOUTQ => ctx.write(argument, &0i32)?,
        TIOCGPGRP => ctx.write(argument, &terminals::foreground_of(ctx, terminal)?)?,
        TIOCSPGRP => terminals::set_foreground(ctx, terminal, ctx.read::<i32>(argument)?)?,
        TIOCGSID => ctx.write(argument, &terminals::session_of(ctx, terminal)?)?,
        TIOCSCTTY => terminals::claim(ctx, terminal, argument == 1)?,
        TIOCNOTTY => terminals::give_up(ctx, terminal)?,
        _ => return Err(Errno::ENOTTY),
    }
    Ok(0)
}

/// Changes the settings. Without `speeds`, flags that choose no speed keep the present ones. With `drained`, the call
/// first waits until the output has left the terminal. With `flush`, it discards typed bytes.
fn set<M: Machine>(
    ctx: &Ctx<'_, M>,
    terminal: &Terminal,
    new: &Termios,
    speeds: Option<Speeds>,
    (drained, flush): (bool, bool),
) -> Result<(), Errno> {
    terminal.check(true)?;
    if drained {
        drain(ctx, terminal)?;
    }
    let new = match terminal.locked() {
        None => *new,
        Some(locked) => {
            settings::keep_locked(&settings::to_linux(&terminal.settings()), new, &settings::to_linux(&locked))
        }
    };
    let speeds = speeds.unwrap_or_else(|| Speeds::of(&terminal.settings()));
    terminal.set_settings(settings::from_linux(&new, speeds), flush);
    Ok(())
}

fn drain<M: Machine>(ctx: &Ctx<'_, M>, terminal: &Terminal) -> Result<(), Errno> {
    let thread = ctx.thread;
    let interrupted = || thread.interrupted();
    terminal.drain(&Io { interrupted: &interrupted, ..Io::WAIT })?;
    Ok(())
}

/// The value of `O_NONBLOCK` on x86-64.
const _: () = assert!(raw::O_NONBLOCK == 0o4000);
