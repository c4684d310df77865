//! `getsockopt` and `setsockopt`.
//!
//! Options that change how a socket works are stored in `quire_net`. Others, such as the intervals of keep-alive
//! probes, have no effect between processes of one machine. Their values are only stored for the program ([`Kept`]).

use crate::socket::{netlink, of, raw};
use quire_fs::FsError;
use quire_linux_state::process::credentials::capabilities::cap;
use quire_linux_state::socket::host::Socket;
use quire_linux_state::system::settings::{Setting, Settings};
use quire_linux_state::system::unsupported::Unsupported;
use quire_linux_state::{Ctx, Errno, Machine};
use quire_net::{Family, Flags, Header, Kind, Options, Stage};

/// The least sizes of buffers in bytes, as on Linux.
const LEAST_SEND: u32 = 4608;
const LEAST_RECEIVE: u32 = 2304;
const IPPROTO_TCP: u32 = 6;
const IPPROTO_UDP: u32 = 17;
/// Linux's numbers for the states of TCP sockets.
pub const TCP_ESTABLISHED: u8 = 1;
const TCP_SYN_SENT: u8 = 2;
const TCP_FIN_WAIT2: u8 = 5;
pub const TCP_CLOSE: u8 = 7;
const TCP_CLOSE_WAIT: u8 = 8;
pub const TCP_LISTEN: u8 = 10;
/// The size of the first version of `tcp_info`, in bytes.
const TCP_INFO_BYTES: usize = 104;
/// The size of a segment on Linux's loopback, in bytes.
const SEGMENT: u32 = 65_483;
/// The least size of a packet that every link of IPv6 carries, in bytes.
const LEAST_MTU: i32 = 1280;
const NANOS: u64 = 1_000_000_000;

/// Converts the stage of a TCP socket to Linux's state.
pub fn tcp_state(stage: Stage) -> u8 {
    match stage {
        Stage::Unconnected | Stage::Closed => TCP_CLOSE,
        Stage::Listening => TCP_LISTEN,
        Stage::Connecting => TCP_SYN_SENT,
        Stage::Connected => TCP_ESTABLISHED,
        Stage::Finished => TCP_FIN_WAIT2,
        Stage::PeerFinished => TCP_CLOSE_WAIT,
    }
}

/// An option whose value is only stored for the program.
struct Kept {
    level: u32,
    name: u32,
    /// The initial value.
    first: i32,
    /// `least` is the least value that Linux accepts, and `most` the largest.
    least: i32,
    most: i32,
    kind: Is,
}

#[derive(PartialEq)]
enum Is {
    /// Any value except 0 counts as 1.
    Switch,
    Number,
}

const fn switch(level: u32, name: u32, first: i32) -> Kept {
    Kept { level, name, first, least: i32::MIN, most: i32::MAX, kind: Is::Switch }
}

const fn number(level: u32, name: u32, first: i32, least: i32, most: i32) -> Kept {
    Kept { level, name, first, least, most, kind: Is::Number }
}

/// The options whose values are only stored. The index of an option in this array is its index in the storage of
/// `quire_net`.
const KEPT: [Kept; quire_net::KEPT] = [
    number(raw::SOL_TCP, raw::TCP_KEEPIDLE, 7200, 1, 32_767),
    number(raw::SOL_TCP, raw::TCP_KEEPINTVL, 75, 1, 32_767),
    number(raw::SOL_TCP, raw::TCP_KEEPCNT, 9, 1, 127),
    number(raw::SOL_TCP, raw::TCP_USER_TIMEOUT, 0, 0, i32::MAX),
    number(raw::SOL_TCP, raw::TCP_LINGER2, 60, -1, i32::MAX),
    number(raw::SOL_TCP, raw::TCP_DEFER_ACCEPT, 0, i32::MIN, i32::MAX),
    number(raw::SOL_TCP, raw::TCP_NOTSENT_LOWAT, 0, i32::MIN, i32::MAX),
    number(raw::SOL_TCP, raw::TCP_SYNCNT, 6, 1, 127),
    number(raw::SOL_TCP, raw::TCP_FASTOPEN, 0, 0, i32::MAX),
    switch(raw::SOL_TCP, raw::TCP_QUICKACK, 1),
    number(raw::SOL_IP, raw::IP_TOS, 0, i32::MIN, i32::MAX),
    number(raw::SOL_IP, raw::IP_TTL, 64, 1, 255),
    switch(raw::SOL_IP, raw::IP_RECVERR, 0),
    number(raw::SOL_IP, raw::IP_MTU_DISCOVER, 1, 0, 5),
    switch(raw::SOL_IP, raw::IP_BIND_ADDRESS_NO_PORT, 0),
    number(raw::SOL_IPV6, raw::IPV6_TCLASS, 0, 0, 255),
    number(raw::SOL_IPV6, raw::IPV6_UNICAST_HOPS, 64, 0, 255),
    switch(raw::SOL_IPV6, raw::IPV6_RECVERR, 0),
    number(raw::SOL_IPV6, raw::IPV6_MTU_DISCOVER, 1, 0, 5),
    switch(raw::SOL_IP, raw::IP_PKTINFO, 0),
    switch(raw::SOL_IP, raw::IP_RECVTTL, 0),
    switch(raw::SOL_IP, raw::IP_RECVTOS, 0),
    switch(raw::SOL_IPV6, raw::IPV6_RECVPKTINFO, 0),
    switch(raw::SOL_IPV6, raw::IPV6_RECVHOPLIMIT, 0),
    switch(raw::SOL_IPV6, raw::IPV6_RECVTCLASS, 0),
    number(raw::SOL_SOCKET, raw::SO_PRIORITY, 0, 0, 6),
    switch(raw::SOL_SOCKET, raw::SO_DONTROUTE, 0),
    number(raw::SOL_TCP, raw::TCP_CONGESTION, 0, 0, 1),
];

/// The bits of a traffic class that signal congestion (ECN).
const CONGESTION_BITS: i32 = 3;

/// The names of congestion control algorithms that TCP_CONGESTION accepts, by the number that is stored. They have no
/// effect, because there are no segments.
const CONGESTION: [&[u8; 16]; 2] = [b"cubic\0\0\0\0\0\0\0\0\0\0\0", b"reno\0\0\0\0\0\0\0\0\0\0\0\0"];

fn kept(level: u32, name: u32) -> Option<(usize, &'static Kept)> {
    KEPT.iter().enumerate().find(|(_, kept)| kept.level == level && kept.name == name)
}

/// The flag of `quire_net` for an option, if it has one.
fn flag(level: u32, name: u32) -> Option<Flags> {
    Some(match (level, name) {
        (raw::SOL_SOCKET, raw::SO_REUSEADDR) => Flags::REUSE_ADDRESS,
        (raw::SOL_SOCKET, raw::SO_REUSEPORT) => Flags::REUSE_PORT,
        (raw::SOL_SOCKET, raw::SO_KEEPALIVE) => Flags::KEEP_ALIVE,
        (raw::SOL_SOCKET, raw::SO_BROADCAST) => Flags::BROADCAST,
        (raw::SOL_SOCKET, raw::SO_PASSCRED) => Flags::PASS_CREDENTIALS,
        (raw::SOL_SOCKET, raw::SO_OOBINLINE) => Flags::INLINE_URGENT,
        (raw::SOL_TCP, raw::TCP_NODELAY) => Flags::NO_DELAY,
        (raw::SOL_TCP, raw::TCP_CORK) => Flags::CORK,
        (raw::SOL_IPV6, raw::IPV6_V6ONLY) => Flags::V6_ONLY,
        _ => return None,
    })
}

/// Whether sockets of this family and kind support options of `level`.
fn has_level<M: Machine>(socket: &Socket<M>, level: u32) -> bool {
    match level {
        raw::SOL_SOCKET => true,
        raw::SOL_TCP => socket.family() != Family::Unix && socket.kind() == Kind::Stream,
        raw::SOL_IP => socket.family() != Family::Unix,
        raw::SOL_IPV6 => socket.family() == Family::Inet6,
        _ => false,
    }
}

/// The error for setting an option of a level that the socket does not support.
fn no_level<M: Machine>(socket: &Socket<M>) -> Errno {
    if socket.family() == Family::Unix { Errno::EOPNOTSUPP } else { Errno::ENOPROTOOPT }
}

/// The error for reading an option of a level that the socket does not support.
fn no_level_to_read<M: Machine>(socket: &Socket<M>) -> Errno {
    if socket.family() == Family::Inet6 { Errno::ENOPROTOOPT } else { Errno::EOPNOTSUPP }
}

/// Whether an error of an option means that no socket has it. An option that sockets of another kind have is no such
/// option.
fn is_unsupported(level: u32, name: u32, error: Errno) -> bool {
    matches!(error, Errno::ENOPROTOOPT | Errno::EOPNOTSUPP)
        && kept(level, name).is_none()
        && flag(level, name).is_none()
}

/// `setsockopt`
pub fn sys_setsockopt<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    fd: i32,
    level: u32,
    name: u32,
    at: u64,
    len: i32,
) -> Result<usize, Errno> {
    let result = set_option(ctx, fd, level, name, at, len);
    if let Err(error) = result
        && is_unsupported(level, name, error)
    {
        ctx.linux.refuses_option(Unsupported::SetOption(level, name));
    }
    result
}

fn set_option<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    fd: i32,
    level: u32,
    name: u32,
    at: u64,
    len: i32,
) -> Result<usize, Errno> {
    let file = ctx.file(fd)?;
    let len = usize::try_from(len).map_err(|_| Errno::EINVAL)?;
    if let Some(socket) = netlink::of(&file) {
        return netlink::set_option(ctx, socket, (level, name), at, len);
    }
    let socket = of(&file)?;
    if !has_level(socket, level) {
        return Err(no_level(socket));
    }
    let options = socket.options();
    if level == raw::SOL_SOCKET {
        let done = set_socket_option(ctx, options, name, at, len)?;
        match name {
            raw::SO_RCVLOWAT => socket.set_low_water(options.low_water()),
            raw::SO_SNDBUF | raw::SO_SNDBUFFORCE | raw::SO_RCVBUF | raw::SO_RCVBUFFORCE => socket.announce_buffers(),
            _ => {}
        }
        return Ok(done);
    }
    // Values of IP options may be shorter than an `int`.
    let value = || match len {
        4.. => ctx.read::<i32>(at),
        1.. if level == raw::SOL_IP => ctx.read::<u8>(at).map(i32::from),
        0 if level == raw::SOL_IP && name != raw::IP_TTL => Ok(0),
        _ => Err(Errno::EINVAL),
    };
    if let Some(flag) = flag(level, name) {
        let on = value()? != 0;
        if flag == Flags::V6_ONLY && socket.is_bound() {
            return Err(Errno::EINVAL);
        }
        options.set(flag, on);
        return Ok(0);
    }
    match (level, name) {
        (raw::SOL_TCP, raw::TCP_CONGESTION) => {
            let named = short_name(ctx, at, len)?;
            let chosen = CONGESTION.iter().position(|known| **known == named).ok_or(Errno::ENOENT)?;
            set_kept(options, level, name, chosen as i32)
        }
        // The size of fragments has no effect, because no packet is too large for the loopback.
        (raw::SOL_IPV6, raw::IPV6_MTU) => match value()? {
            0 | LEAST_MTU.. => Ok(0),
            _ => Err(Errno::EINVAL),
        },
        // No upper-layer protocol (TLS) runs above TCP, as on a Linux without modules for upper-layer protocols.
        (raw::SOL_TCP, raw::TCP_ULP) => short_name(ctx, at, len).and(Err(Errno::ENOENT)),
        _ => {
            let value = match (value()?, usual(&ctx.linux.settings, level, name)) {
                (-1, Some(usual)) => usual,
                (value, _) => value,
            };
            let value = match (level, name) {
                (raw::SOL_IP, raw::IP_TOS) => value & 0xff,
                _ => value,
            };
            let is_class = matches!((level, name), (raw::SOL_IP, raw::IP_TOS) | (raw::SOL_IPV6, raw::IPV6_TCLASS));
            // On a stream, the kernel owns the two bits for congestion in the traffic class, and they stay 0.
            let own = if is_class && socket.kind() == Kind::Stream { CONGESTION_BITS } else { 0 };
            set_kept(options, level, name, value & !own)
        }
    }
}

/// The default value of an option that a program resets with -1. `None` if -1 does not reset the option.
fn usual(settings: &Settings, level: u32, name: u32) -> Option<i32> {
    match (level, name) {
        (raw::SOL_IP, raw::IP_TTL) => Some(settings.get(Setting::Hops) as i32),
        (raw::SOL_IPV6, raw::IPV6_UNICAST_HOPS) => Some(Header::USUAL.hops.into()),
        (raw::SOL_IPV6, raw::IPV6_TCLASS) => Some(Header::USUAL.class.into()),
        _ => None,
    }
}

/// Reads a name of at most 15 bytes, and pads it with zeroes. Further bytes are not read.
fn short_name<M: Machine>(ctx: &Ctx<'_, M>, at: u64, len: usize) -> Result<[u8; 16], Errno> {
    let mut name = [0; 16];
    if len == 0 {
        return Err(Errno::EINVAL);
    }
    for (place, byte) in name[..len.min(15)].iter_mut().enumerate() {
        match ctx.read::<u8>(at.wrapping_add(place as u64))? {
            0 => break,
            read => *byte = read,
        }
    }
    Ok(name)
}

/// Options whose initial value is a system setting.
const FIRST: [(u32, u32, Setting); 6] = [
    (raw::SOL_TCP, raw::TCP_KEEPIDLE, Setting::KeepAliveTime),
    (raw::SOL_TCP, raw::TCP_KEEPINTVL, Setting::KeepAliveInterval),
    (raw::SOL_TCP, raw::TCP_KEEPCNT, Setting::KeepAliveProbes),
    (raw::SOL_TCP, raw::TCP_LINGER2, Setting::FinTimeout),
    (raw::SOL_TCP, raw::TCP_SYNCNT, Setting::ConnectTries),
    (raw::SOL_IP, raw::IP_TTL, Setting::Hops),
];

/// Sets the options of a new socket that depend on system settings.
pub(super) fn set_first<M: Machine>(socket: &Socket<M>, settings: &Settings) {
    let options = socket.options();
    for (level, name, setting) in FIRST {
        let value = settings.get(setting);
        if value != setting.first()
            && let Some((place, kept)) = kept(level, name)
        {
            options.keep(place, (value as i32).wrapping_sub(kept.first) as u32);
        }
    }
    set_headers(options);
    if socket.family() == Family::Inet6 {
        options.set(Flags::V6_ONLY, settings.get(Setting::OnlySix) != 0);
    }
    if socket.family() == Family::Unix || socket.kind() == Kind::Datagram {
        options.set_send_buffer(settings.get(Setting::FirstSend) as usize);
        options.set_receive_buffer(settings.get(Setting::FirstReceive) as usize);
    }
}

/// Stores the value of an option that has no effect.
fn set_kept(options: &Options, level: u32, name: u32, value: i32) -> Result<usize, Errno> {
    let (place, kept) = kept(level, name).ok_or(Errno::ENOPROTOOPT)?;
    if !(kept.least..=kept.most).contains(&value) {
        return Err(Errno::EINVAL);
    }
    let value = if kept.kind == Is::Switch { i32::from(value != 0) } else { value };
    options.keep(place, value.wrapping_sub(kept.first) as u32);
    set_headers(options);
    Ok(0)
}

/// The stored value of an option without effect, or 0 for any other option.
pub(super) fn kept_value(options: &Options, level: u32, name: u32) -> i32 {
    kept(level, name).map_or(0, |(place, kept)| kept.first.wrapping_add(options.kept(place) as i32))
}

/// Sets the hop limit and the traffic class of sent datagrams from the stored options. A stored -1 means the default.
fn set_headers(options: &Options) {
    let choice = |level, name, usual| u8::try_from(kept_value(options, level, name)).unwrap_or(usual);
    let Header { hops, class } = Header::USUAL;
    let four = Header {
        hops: choice(raw::SOL_IP, raw::IP_TTL, hops),
        // As on Linux, the other bits are dropped.
        class: kept_value(options, raw::SOL_IP, raw::IP_TOS) as u8,
    };
    let six = Header {
        hops: choice(raw::SOL_IPV6, raw::IPV6_UNICAST_HOPS, hops),
        class: choice(raw::SOL_IPV6, raw::IPV6_TCLASS, class),
    };
    options.set_header(false, four);
    options.set_header(true, six);
}

/// Sets an option of the level SOL_SOCKET that sockets of all families support.
pub(super) fn set_socket_option<M: Machine>(
    ctx: &Ctx<'_, M>,
    options: &Options,
    name: u32,
    at: u64,
    len: usize,
) -> Result<usize, Errno> {
    let value = || if len < 4 { Err(Errno::EINVAL) } else { ctx.read::<i32>(at) };
    // The limit is at most half of the largest number, because `buffer` doubles the requested size.
    let most = |setting| ctx.linux.settings.get(setting).min(i64::from(i32::MAX / 2)) as u32;
    if let Some(flag) = flag(raw::SOL_SOCKET, name) {
        options.set(flag, value()? != 0);
        return Ok(0);
    }
    if kept(raw::SOL_SOCKET, name).is_some() {
        return set_kept(options, raw::SOL_SOCKET, name, value()?);
    }
    match name {
        raw::SO_SNDBUF => options.set_send_buffer(buffer(value()?, most(Setting::MostSend), LEAST_SEND)),
        raw::SO_RCVBUF => options.set_receive_buffer(buffer(value()?, most(Setting::MostReceive), LEAST_RECEIVE)),
        raw::SO_SNDBUFFORCE | raw::SO_RCVBUFFORCE => {
            let value = value()?;
            if !ctx.credentials().may(cap::NET_ADMIN) {
                return Err(Errno::EPERM);
            }
            let most = i32::MAX as u32 / 2;
            match name {
                raw::SO_SNDBUFFORCE => options.set_send_buffer(buffer(value, most, LEAST_SEND)),
                _ => options.set_receive_buffer(buffer(value, most, LEAST_RECEIVE)),
            }
        }
        raw::SO_RCVLOWAT => {
            let value = value()?;
            options.set_low_water(if value <= 0 { 1 } else { value as usize });
        }
        raw::SO_LINGER => {
            if len < 8 {
                return Err(Errno::EINVAL);
            }
            let [on, seconds] = ctx.read::<[i32; 2]>(at)?;
            options.set_linger((on != 0).then_some(seconds as u32));
        }
        raw::SO_RCVTIMEO | raw::SO_RCVTIMEO_NEW => options.set_receive_timeout(time(ctx, at, len)?),
        raw::SO_SNDTIMEO | raw::SO_SNDTIMEO_NEW => options.set_send_timeout(time(ctx, at, len)?),
        _ => return Err(Errno::ENOPROTOOPT),
    }
    Ok(0)
}

/// The size of a buffer for a requested size. As on Linux, it is twice the requested size, which leaves room for
/// overhead.
fn buffer(asked: i32, most: u32, least: u32) -> usize {
    // As on Linux, a negative number counts as a large one.
    (asked as u32).min(most).saturating_mul(2).max(least) as usize
}

/// Reads a timeout in nanoseconds. 0 means no timeout.
fn time<M: Machine>(ctx: &Ctx<'_, M>, at: u64, len: usize) -> Result<u64, Errno> {
    if len < 16 {
        return Err(Errno::EINVAL);
    }
    let [seconds, micros] = ctx.read::<[i64; 2]>(at)?;
    if !(0..1_000_000).contains(&micros) {
        return Err(Errno::EDOM);
    }
    // As on Linux, a negative timeout ends at once.
    if seconds < 0 {
        return Ok(1);
    }
    Ok((seconds as u64).saturating_mul(NANOS).saturating_add(micros as u64 * 1000))
}

/// The value of an option for a program.
pub(super) enum Value {
    Number(i32),
    Pair([i32; 2]),
    Three([u32; 3]),
    Time(u64),
    Text(&'static [u8]),
    TcpInfo(u8),
}

/// `getsockopt`
pub fn sys_getsockopt<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    fd: i32,
    level: u32,
    name: u32,
    at: u64,
    len_at: u64,
) -> Result<usize, Errno> {
    let result = get_option(ctx, fd, level, name, at, len_at);
    if let Err(error) = result
        && is_unsupported(level, name, error)
    {
        ctx.linux.refuses_option(Unsupported::GetOption(level, name));
    }
    result
}

fn get_option<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    fd: i32,
    level: u32,
    name: u32,
    at: u64,
    len_at: u64,
) -> Result<usize, Errno> {
    let file = ctx.file(fd)?;
    let netlink = netlink::of(&file);
    if netlink.is_none() {
        let socket = of(&file)?;
        if !has_level(socket, level) {
            return Err(no_level_to_read(socket));
        }
    }
    let room = usize::try_from(ctx.read::<i32>(len_at)?).map_err(|_| Errno::EINVAL)?;
    let value = match netlink {
        Some(socket) => netlink::get_option(socket, (level, name))?,
        None => value(of(&file)?, level, name)?,
    };
    let mut bytes = [0; TCP_INFO_BYTES];
    let len = value.fill(&mut bytes).min(room);
    ctx.write(len_at, &(len as i32))?;
    ctx.user().write_bytes(at, &bytes[..len])?;
    Ok(0)
}

impl Value {
    /// Writes the value to the beginning of `bytes`, and returns its length in bytes.
    fn fill(&self, bytes: &mut [u8; TCP_INFO_BYTES]) -> usize {
        let mut used = 0;
        let mut push = |part: &[u8]| {
            bytes[used..used + part.len()].copy_from_slice(part);
            used += part.len();
        };
        match self {
            Value::Number(n) => push(&n.to_le_bytes()),
            Value::Pair(two) => two.iter().for_each(|n| push(&n.to_le_bytes())),
            Value::Three(three) => three.iter().for_each(|n| push(&n.to_le_bytes())),
            Value::Time(ns) => {
                push(&(ns / NANOS).to_le_bytes());
                push(&(ns % NANOS / 1000).to_le_bytes());
            }
            Value::Text(text) => push(text),
            Value::TcpInfo(state) => {
                bytes[0] = *state;
                // The sizes of sent and received segments.
                bytes[16..20].copy_from_slice(&SEGMENT.to_le_bytes());
                bytes[20..24].copy_from_slice(&SEGMENT.to_le_bytes());
                used = TCP_INFO_BYTES;
            }
        }
        used
    }
}

fn value<M: Machine>(socket: &Socket<M>, level: u32, name: u32) -> Result<Value, Errno> {
    let options = socket.options();
    if let Some(flag) = flag(level, name) {
        return Ok(Value::Number(options.has(flag).into()));
    }
    if (level, name) == (raw::SOL_TCP, raw::TCP_CONGESTION) {
        return Ok(Value::Text(CONGESTION[kept_value(options, level, name) as usize % CONGESTION.len()]));
    }
    if let Some((place, kept)) = kept(level, name) {
        return Ok(Value::Number(kept.first.wrapping_add(options.kept(place) as i32)));
    }
    let is_stream = socket.kind() == Kind::Stream;
    Ok(match (level, name) {
        (raw::SOL_SOCKET, raw::SO_TYPE) => Value::Number(match socket.kind() {
            Kind::Stream => raw::SOCK_STREAM,
            Kind::Datagram => raw::SOCK_DGRAM,
            Kind::SeqPacket => raw::SOCK_SEQPACKET,
        } as i32),
        (raw::SOL_SOCKET, raw::SO_DOMAIN) => Value::Number(match socket.family() {
            Family::Unix => raw::AF_UNIX,
            Family::Inet4 => raw::AF_INET,
            Family::Inet6 => raw::AF_INET6,
        } as i32),
        (raw::SOL_SOCKET, raw::SO_PROTOCOL) => Value::Number(match socket.family() {
            Family::Unix => 0,
            _ if is_stream => IPPROTO_TCP,
            _ => IPPROTO_UDP,
        } as i32),
        (raw::SOL_SOCKET, raw::SO_ACCEPTCONN) => Value::Number(socket.is_listening().into()),
        (raw::SOL_SOCKET, raw::SO_ERROR) => {
            Value::Number(socket.take_error().map_or(0, |e: FsError| Errno::from(e).0.into()))
        }
        (raw::SOL_SOCKET, raw::SO_PEERCRED) => {
            Value::Three(match socket.peer_credentials().filter(|_| socket.family() == Family::Unix) {
                Some(peer) => [peer.pid, peer.uid, peer.gid],
                None => [0, u32::MAX, u32::MAX],
            })
        }
        (raw::SOL_TCP, raw::TCP_MAXSEG) => Value::Number(SEGMENT as i32),
        (raw::SOL_TCP, raw::TCP_ULP) => Value::Text(b""),
        (raw::SOL_TCP, raw::TCP_INFO) => Value::TcpInfo(tcp_state(socket.stage())),
        (raw::SOL_SOCKET, name) => return socket_option(options, name),
        _ => return Err(Errno::ENOPROTOOPT),
    })
}

/// The value of an option of the level SOL_SOCKET that sockets of all families support.
pub(super) fn socket_option(options: &Options, name: u32) -> Result<Value, Errno> {
    if let Some(flag) = flag(raw::SOL_SOCKET, name) {
        return Ok(Value::Number(options.has(flag).into()));
    }
    if let Some((place, kept)) = kept(raw::SOL_SOCKET, name) {
        return Ok(Value::Number(kept.first.wrapping_add(options.kept(place) as i32)));
    }
    Ok(match name {
        raw::SO_SNDBUF => Value::Number(options.send_buffer() as i32),
        raw::SO_RCVBUF => Value::Number(options.receive_buffer() as i32),
        raw::SO_RCVLOWAT => Value::Number(options.low_water() as i32),
        raw::SO_SNDLOWAT => Value::Number(1),
        raw::SO_LINGER => {
            let linger = options.linger();
            Value::Pair([linger.is_some().into(), linger.unwrap_or(0) as i32])
        }
        raw::SO_RCVTIMEO | raw::SO_RCVTIMEO_NEW => Value::Time(options.receive_timeout()),
        raw::SO_SNDTIMEO | raw::SO_SNDTIMEO_NEW => Value::Time(options.send_timeout()),
        _ => return Err(Errno::ENOPROTOOPT),
    })
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn the_usual_time_to_live_is_the_setting() {
        let settings = Settings::new();
        assert_eq!(usual(&settings, raw::SOL_IP, raw::IP_TTL), Some(64));
        settings.set(Setting::Hops, 77).expect("within bounds");
        assert_eq!(usual(&settings, raw::SOL_IP, raw::IP_TTL), Some(77));
        assert_eq!(usual(&settings, raw::SOL_IPV6, raw::IPV6_UNICAST_HOPS), Some(64));
        assert_eq!(usual(&settings, raw::SOL_IP, raw::IP_TOS), None);
    }

    #[test]
    fn buffers_are_twice_as_large_as_asked_for_within_bounds() {
        const MOST_BUFFER: u32 = 212_992;
        for (asked, size) in [(0, 4608), (1, 4608), (2304, 4608), (10_000, 20_000), (i32::MAX, 425_984), (-1, 425_984)]
        {
            assert_eq!(buffer(asked, MOST_BUFFER, LEAST_SEND), size);
        }
        assert_eq!(buffer(-1, i32::MAX as u32 / 2, LEAST_SEND), i32::MAX as usize - 1);
    }

    #[test]
    fn values_fill_as_many_bytes_as_linux_gives() {
        let mut bytes = [0; TCP_INFO_BYTES];
        let values = [Value::Number(1), Value::Pair([1, 2]), Value::Three([1, 2, 3]), Value::Time(2_500_000_000)];
        let lens: std::vec::Vec<_> = values.iter().map(|value| value.fill(&mut bytes)).collect();
        assert_eq!(lens, [4, 8, 12, 16]);
        assert_eq!((bytes[0], u32::from_le_bytes(*bytes[8..].first_chunk().unwrap())), (2, 500_000));
        assert_eq!(Value::TcpInfo(1).fill(&mut bytes), TCP_INFO_BYTES);
    }
}
