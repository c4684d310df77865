//! Calls that make, bind and connect sockets.

use crate::file::park::{attempt, sleep};
use crate::file::{AT_FDCWD, find_path, install_two, walk_path};
use crate::socket::netlink;
use crate::socket::netlink::Netlink;
use crate::socket::user_address::Given;
use crate::socket::{of, out_address, raw};
use core::net::Ipv4Addr;
use linux_raw_sys::general::{O_CLOEXEC, O_NONBLOCK};
use quire_fs::{Create, FileKind, Final, FsError, Ident, OpenFlags, Want};
use quire_heap::{Arc, Vec, unsize};
use quire_linux_state::file::host::File;
use quire_linux_state::process::credentials::capabilities::cap;
use quire_linux_state::process::sleep::{Accept, StreamCall};
use quire_linux_state::socket::host::Socket;
use quire_linux_state::system::settings::Setting;
use quire_linux_state::{Ctx, Errno, Machine};
use quire_net::{Destination, Family, Kind, Place};

/// One more than the highest socket type in Linux, and the bits of the argument that are the type. The other bits are
/// flags.
const SOCK_MAX: u32 = 11;
const SOCK_TYPE_MASK: u32 = 0xf;
/// One more than the highest address family in Linux.
const FAMILIES: u32 = 46;
const SOCK_NONBLOCK: u32 = O_NONBLOCK;
const SOCK_CLOEXEC: u32 = O_CLOEXEC;
const IPPROTO_TCP: u32 = 6;
const IPPROTO_UDP: u32 = 17;

const BOTH: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

/// Checks the arguments of `socket`, and returns the family and kind.
fn family_and_kind<M: Machine>(
    ctx: &Ctx<'_, M>,
    family: u32,
    kind: u32,
    protocol: u32,
) -> Result<(Family, Kind), Errno> {
    if kind & !(SOCK_TYPE_MASK | SOCK_NONBLOCK | SOCK_CLOEXEC) != 0 {
        return Err(Errno::EINVAL);
    }
    if family >= FAMILIES {
        return Err(Errno::EAFNOSUPPORT);
    }
    let kind = kind & SOCK_TYPE_MASK;
    if kind >= SOCK_MAX {
        return Err(Errno::EINVAL);
    }
    let family = match family {
        raw::AF_UNIX => Family::Unix,
        raw::AF_INET => Family::Inet4,
        raw::AF_INET6 => Family::Inet6,
        _ => return Err(Errno::EAFNOSUPPORT),
    };
    if family == Family::Unix {
        if protocol > raw::AF_UNIX {
            return Err(Errno::EPROTONOSUPPORT);
        }
        let kind = match kind {
            raw::SOCK_STREAM => Kind::Stream,
            raw::SOCK_DGRAM | raw::SOCK_RAW => Kind::Datagram,
            raw::SOCK_SEQPACKET => Kind::SeqPacket,
            _ => return Err(Errno::ESOCKTNOSUPPORT),
        };
        return Ok((family, kind));
    }
    match (kind, protocol) {
        (raw::SOCK_STREAM, 0 | IPPROTO_TCP) => Ok((family, Kind::Stream)),
        (raw::SOCK_DGRAM, 0 | IPPROTO_UDP) => Ok((family, Kind::Datagram)),
        (raw::SOCK_RAW, _) if protocol != 0 && !ctx.credentials().may(cap::NET_RAW) => Err(Errno::EPERM),
        (raw::SOCK_STREAM | raw::SOCK_DGRAM | raw::SOCK_RAW, _) => Err(Errno::EPROTONOSUPPORT),
        _ => Err(Errno::ESOCKTNOSUPPORT),
    }
}

/// Makes an open file for a socket.
fn open<M: Machine>(ctx: &Ctx<'_, M>, socket: Arc<Socket<M>>, nonblock: bool) -> Result<Arc<File<M>>, Errno> {
    let new = ctx.vfs().nameless(&ctx.file_credentials(), "socket", true)?;
    socket.set_file(new.inode(), ctx.file_credentials().uid);
    Ok(new.open(unsize!(socket), opened(nonblock)))
}

fn opened(nonblock: bool) -> OpenFlags {
    let mut flags = BOTH;
    flags.set(OpenFlags::NONBLOCK, nonblock);
    flags
}

/// Checks the arguments, and makes a netlink socket.
fn netlink_socket<M: Machine>(ctx: &Ctx<'_, M>, kind: u32, protocol: u32) -> Result<Arc<Netlink<M>>, Errno> {
    if kind & !(SOCK_TYPE_MASK | SOCK_NONBLOCK | SOCK_CLOEXEC) != 0 {
        return Err(Errno::EINVAL);
    }
    match kind & SOCK_TYPE_MASK {
        raw::SOCK_RAW => Netlink::new(ctx.linux, true, protocol),
        raw::SOCK_DGRAM => Netlink::new(ctx.linux, false, protocol),
        kind if kind < SOCK_MAX => Err(Errno::ESOCKTNOSUPPORT),
        _ => Err(Errno::EINVAL),
    }
}

/// `socket`
pub fn sys_socket<M: Machine>(ctx: &mut Ctx<'_, M>, family: u32, kind: u32, protocol: u32) -> Result<usize, Errno> {
    if family == raw::AF_NETLINK {
        let socket = netlink_socket(ctx, kind, protocol)?;
        let flags = opened(kind & SOCK_NONBLOCK != 0);
        let file = ctx.vfs().nameless_stream(&ctx.file_credentials(), "socket", unsize!(socket), flags, true)?;
        return ctx.install(file, kind & SOCK_CLOEXEC != 0);
    }
    let (family, what) = family_and_kind(ctx, family, kind, protocol)?;
    let socket = Socket::new(ctx.linux.network, family, what)?;
    crate::socket::options::set_first(&socket, &ctx.linux.settings);
    let file = open(ctx, socket, kind & SOCK_NONBLOCK != 0)?;
    ctx.install(file, kind & SOCK_CLOEXEC != 0)
}

/// `socketpair`
pub fn sys_socketpair<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    family: u32,
    kind: u32,
    protocol: u32,
    to: u64,
) -> Result<usize, Errno> {
    if family == raw::AF_NETLINK {
        netlink_socket(ctx, kind, protocol)?;
        return Err(Errno::EOPNOTSUPP);
    }
    let (family, what) = family_and_kind(ctx, family, kind, protocol)?;
    if family != Family::Unix {
        return Err(Errno::EOPNOTSUPP);
    }
    let (one, other) = Socket::pair(ctx.linux.network, what, super::peer_credentials(ctx))?;
    let nonblock = kind & SOCK_NONBLOCK != 0;
    let ends = (open(ctx, one, nonblock)?, open(ctx, other, nonblock)?);
    install_two(ctx, ends, kind & SOCK_CLOEXEC != 0, to)
}

/// Checks that an address has the socket's family. `unix` is the error for a Unix socket.
fn same_family(given: &Given, family: Family, unix: Errno) -> Result<(), Errno> {
    match (given, family) {
        (Given::Path(_) | Given::Abstract(_) | Given::Unnamed, Family::Unix) => Ok(()),
        (_, Family::Unix) => Err(unix),
        (Given::Inet(at), Family::Inet4) if at.is_ipv4() => Ok(()),
        (Given::Inet(at), Family::Inet6) if at.is_ipv6() => Ok(()),
        _ => Err(Errno::EAFNOSUPPORT),
    }
}

/// `bind`
pub fn sys_bind<M: Machine>(ctx: &mut Ctx<'_, M>, fd: i32, at: u64, len: i32) -> Result<usize, Errno> {
    let file = ctx.file(fd)?;
    if let Some(socket) = netlink::of(&file) {
        match Given::read(ctx, at, len)? {
            Given::Netlink(port, groups) => socket.bind((port, groups))?,
            _ => return Err(Errno::EINVAL),
        }
        return Ok(0);
    }
    let socket = of(&file)?;
    let mut given = Given::read_for(ctx, at, len, socket)?;
    if (len as usize) < Given::least(socket.family()) {
        return Err(Errno::EINVAL);
    }
    // As on Linux, AF_UNSPEC with address 0 is an old form of the IPv4 wildcard.
    if matches!(given, Given::Unspecified) && socket.family() == Family::Inet4 {
        let [port, ip] = [ctx.read::<[u8; 4]>(at)?, ctx.read::<[u8; 4]>(at.wrapping_add(4))?];
        if ip == [0; 4] {
            given = Given::Inet((Ipv4Addr::UNSPECIFIED, u16::from_be_bytes([port[2], port[3]])).into());
        }
    }
    same_family(&given, socket.family(), Errno::EINVAL)?;
    let me = super::peer_credentials(ctx);
    match given {
        Given::Path(path) => bind_in_tree(ctx, socket, &path)?,
        Given::Abstract(name) => socket.bind(Place::Abstract(&name), me)?,
        // As on Linux, a bind without an address succeeds and has no effect if the socket has a name.
        Given::Unnamed => match socket.bind(Place::Auto, me) {
            Err(FsError::Invalid) if socket.is_bound() => {}
            done => done?,
        },
        Given::Inet(at) => {
            let port = at.port();
            let free = ctx.linux.settings.get(Setting::FirstFreePort);
            if port != 0 && i64::from(port) < free && !ctx.credentials().may(cap::NET_BIND_SERVICE) {
                return Err(Errno::EACCES);
            }
            socket.bind(Place::Inet(at), me)?;
        }
        Given::Unspecified | Given::Netlink(..) => return Err(Errno::EINVAL),
    }
    Ok(0)
}

/// Makes a socket file at `path`, and binds the socket to it.
fn bind_in_tree<M: Machine>(ctx: &Ctx<'_, M>, socket: &Socket<M>, path: &[u8]) -> Result<(), Errno> {
    let (view, found) = walk_path(ctx, AT_FDCWD, path, Final::Name)?;
    if socket.is_bound() {
        return Err(if found.target.is_some() { Errno::EADDRINUSE } else { Errno::EINVAL });
    }
    let made = ctx.vfs().make(&view, &found, Create::Socket, 0o777).map_err(|e| match e {
        FsError::Exists => Errno::EADDRINUSE,
        e => e.into(),
    })?;
    let ident = made.inode.ident;
    if let Err(e) = socket.bind(Place::Path { path, ident, node: made }, super::peer_credentials(ctx)) {
        // Another thread has bound the socket since the check, or memory is exhausted. The new file is removed again.
        if let Ok((view, found)) = walk_path(ctx, AT_FDCWD, path, Final::Name)
            && found.target.as_ref().is_some_and(|there| there.inode.ident == ident)
        {
            let _gone = ctx.vfs().unlink(&view, &found);
        }
        return Err(e.into());
    }
    Ok(())
}

/// The identity of the socket file at `path`. Fails if the caller may not write to that file.
fn in_tree<M: Machine>(ctx: &Ctx<'_, M>, path: &[u8]) -> Result<Ident, Errno> {
    let (view, dentry) = find_path(ctx, AT_FDCWD, path, 0)?;
    view.credentials.may(&dentry.inode, Want::WRITE)?;
    if dentry.inode.kind() != FileKind::Socket {
        return Err(Errno::ECONNREFUSED);
    }
    Ok(dentry.inode.ident)
}

/// The destination of a message or a connection.
pub(super) enum Target {
    /// A socket file.
    InTree(Ident),
    /// An abstract name.
    Abstract(Vec<u8>),
    /// An Internet address.
    Inet(core::net::SocketAddr),
}

impl Target {
    /// Converts the address `given` to a target for `socket`.
    pub(super) fn of<M: Machine>(ctx: &Ctx<'_, M>, given: Given, socket: &Socket<M>) -> Result<Target, Errno> {
        let (family, datagrams) = (socket.family(), socket.kind() == Kind::Datagram);
        match (&given, family) {
            // An IPv4 address on an IPv6 datagram socket passes here. `quire_net` checks whether the socket may send to
            // IPv4.
            (Given::Inet(at), Family::Inet6) if datagrams && at.is_ipv4() => {}
            _ => same_family(&given, family, Errno::EINVAL)?,
        }
        match given {
            Given::Path(path) => Ok(Target::InTree(in_tree(ctx, &path)?)),
            Given::Abstract(name) => Ok(Target::Abstract(name)),
            Given::Inet(at) => Ok(Target::Inet(at)),
            Given::Unnamed | Given::Unspecified | Given::Netlink(..) => Err(Errno::EINVAL),
        }
    }

    /// The target in the form of `quire_net`.
    pub(super) fn destination(&self) -> Destination<'_> {
        match self {
            Target::InTree(ident) => Destination::Inode(*ident),
            Target::Abstract(name) => Destination::Abstract(name),
            Target::Inet(at) => Destination::Inet(*at),
        }
    }
}

/// `connect`
pub fn sys_connect<M: Machine>(ctx: &mut Ctx<'_, M>, fd: i32, at: u64, len: i32) -> Result<usize, Errno> {
    let file = ctx.file(fd)?;
    if let Some(socket) = netlink::of(&file) {
        match Given::read(ctx, at, len)? {
            Given::Netlink(port, groups) => socket.connect(Some((port, groups)))?,
            Given::Unspecified => socket.connect(None)?,
            _ => return Err(Errno::EINVAL),
        }
        return Ok(0);
    }
    let socket = of(&file)?;
    let given = Given::read_for(ctx, at, len, socket)?;
    // An IPv6 stream socket refuses IPv4 addresses, which are shorter.
    let is_six = socket.family() == Family::Inet6 && socket.kind() == Kind::Stream;
    if is_six && matches!(given, Given::Inet(_)) && (len as usize) < Given::least(Family::Inet6) {
        return Err(Errno::EINVAL);
    }
    if matches!(given, Given::Unspecified) {
        socket.disconnect()?;
        return Ok(0);
    }
    let target = Target::of(ctx, given, socket)?;
    let me = super::peer_credentials(ctx);
    let done = attempt(ctx, nonblock(&file), |io| Ok(socket.connect(io, &target.destination(), me)?));
    connected(ctx, file, done)
}

/// Continues a `connect` that waits for a place in the backlog.
pub(crate) fn go_on_connecting<M: Machine>(ctx: &mut Ctx<'_, M>, file: Arc<File<M>>) -> Result<usize, Errno> {
    let socket = of(&file)?;
    let done = attempt(ctx, nonblock(&file), |io| Ok(socket.wait_connected(io)?));
    connected(ctx, file, done)
}

/// Whether calls on the file are nonblocking.
fn nonblock<M: Machine>(file: &File<M>) -> bool {
    file.flags().contains(OpenFlags::NONBLOCK)
}

fn connected<M: Machine>(ctx: &mut Ctx<'_, M>, file: Arc<File<M>>, done: Result<(), Errno>) -> Result<usize, Errno> {
    match done {
        Err(Errno::WOULD_SLEEP) => Err(sleep(ctx, file, StreamCall::Connect)),
        done => done.map(|()| 0),
    }
}

/// `listen`
pub fn sys_listen<M: Machine>(ctx: &mut Ctx<'_, M>, fd: i32, backlog: u32) -> Result<usize, Errno> {
    let file = ctx.file(fd)?;
    let most = ctx.linux.settings.get(Setting::MostBacklog);
    of(&file)?.listen(backlog.min(most as u32), super::peer_credentials(ctx))?;
    Ok(0)
}

/// `accept4`
pub fn sys_accept4<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    fd: i32,
    at: u64,
    len_at: u64,
    flags: u32,
) -> Result<usize, Errno> {
    let file = ctx.file(fd)?;
    if flags & !(SOCK_NONBLOCK | SOCK_CLOEXEC) != 0 {
        return Err(Errno::EINVAL);
    }
    accept(ctx, file, Accept { name: at, name_len: len_at, flags })
}

/// Makes an attempt to accept a connection. If there is none, the thread sleeps without a kernel stack.
pub(crate) fn accept<M: Machine>(ctx: &mut Ctx<'_, M>, file: Arc<File<M>>, call: Accept) -> Result<usize, Errno> {
    let Accept { name, name_len, flags } = call;
    let socket = of(&file)?;
    // The descriptor and the inode are allocated first, so that a failure does not lose a connection.
    let files = ctx.files()?.clone();
    let descriptor =
        files.reserve(flags & SOCK_CLOEXEC != 0, quire_linux_state::file::view::descriptor_limit(ctx.thread))?;
    let new = ctx.vfs().nameless(&ctx.file_credentials(), "socket", true)?;
    let accepted = match attempt(ctx, nonblock(&file), |io| Ok(socket.accept(io)?)) {
        Err(Errno::WOULD_SLEEP) => return Err(sleep(ctx, file, StreamCall::Accept(call))),
        accepted => accepted?,
    };
    let (family, peer) = (accepted.family(), accepted.remote());
    accepted.set_file(new.inode(), ctx.file_credentials().uid);
    let file = new.open(unsize!(accepted), opened(flags & SOCK_NONBLOCK != 0));
    if name != 0 {
        // A peer that has closed already has no name.
        let peer = peer.map_err(|_| Errno::ECONNABORTED)?;
        out_address(&peer, family).store(ctx, name, name_len)?;
    }
    Ok(descriptor.fill(file) as usize)
}

/// `accept`
pub fn sys_accept<M: Machine>(ctx: &mut Ctx<'_, M>, fd: i32, at: u64, len_at: u64) -> Result<usize, Errno> {
    sys_accept4(ctx, fd, at, len_at, 0)
}

/// `getsockname`
pub fn sys_getsockname<M: Machine>(ctx: &mut Ctx<'_, M>, fd: i32, at: u64, len_at: u64) -> Result<usize, Errno> {
    let file = ctx.file(fd)?;
    if let Some(socket) = netlink::of(&file) {
        socket.local().store(ctx, at, len_at)?;
        return Ok(0);
    }
    let socket = of(&file)?;
    out_address(&socket.local(), socket.family()).store(ctx, at, len_at)?;
    Ok(0)
}

/// `getpeername`
pub fn sys_getpeername<M: Machine>(ctx: &mut Ctx<'_, M>, fd: i32, at: u64, len_at: u64) -> Result<usize, Errno> {
    let file = ctx.file(fd)?;
    if let Some(socket) = netlink::of(&file) {
        socket.remote().store(ctx, at, len_at)?;
        return Ok(0);
    }
    let socket = of(&file)?;
    out_address(&socket.peer_name()?, socket.family()).store(ctx, at, len_at)?;
    Ok(0)
}

/// `shutdown`
pub fn sys_shutdown<M: Machine>(ctx: &mut Ctx<'_, M>, fd: i32, how: u32) -> Result<usize, Errno> {
    let file = ctx.file(fd)?;
    let socket = of(&file)?;
    match how {
        raw::SHUT_RD => socket.shutdown(true, false)?,
        raw::SHUT_WR => socket.shutdown(false, true)?,
        raw::SHUT_RDWR => socket.shutdown(true, true)?,
        _ => return Err(Errno::EINVAL),
    }
    Ok(0)
}
