//! Calls that send and receive.

use crate::file::park::{attempt, sleep};
use crate::socket::calls::Target;
use crate::socket::control;
use crate::socket::control::{Knows, Sent, Writer};
use crate::socket::headers;
use crate::socket::netlink;
use crate::socket::netlink::is_socket;
use crate::socket::user_address::{Given, OutAddress};
use crate::socket::{of, raw};
use quire_fs::{FsError, Io, OpenFlags, Stream as _};
use quire_heap::Arc;
use quire_linux_state::file::host::File;
use quire_linux_state::process::credentials::capabilities::cap;
use quire_linux_state::process::limits::which;
use quire_linux_state::process::sleep::StreamCall;
use quire_linux_state::process::users::Account;
use quire_linux_state::signal::Signal;
use quire_linux_state::socket::host::InFlightCharge;
use quire_linux_state::socket::host::Socket;
use quire_linux_state::user::transfer::MessageHeader;
use quire_linux_state::user::transfer::Vectors;
use quire_linux_state::{Ctx, Errno, Machine};
use quire_net::{Ancillary, Arrival, Credentials, Family, Flags, Kind, ReceiveFlags, Stage};

/// The most messages of one `sendmmsg` or `recvmmsg`, as on Linux.
const MOST_MESSAGES: u32 = 1024;
/// Linux's MSG_WAITFORONE, which the generated constants leave out.
const WAIT_FOR_ONE: u32 = 0x1_0000;
/// The sizes of a `msghdr` and of a `mmsghdr` in bytes. A `mmsghdr` ends with the length of the message.
const HEADER: u64 = 56;
const MANY_HEADER: u64 = 64;

/// Whether a call is nonblocking, by its flags or by its file.
fn nonblock<M: Machine>(file: &File<M>, flags: u32) -> bool {
    flags & raw::MSG_DONTWAIT != 0 || file.flags().contains(OpenFlags::NONBLOCK)
}

/// The options of a call that keeps its kernel stack while it waits.
fn on_stack<'a, M: Machine>(file: &File<M>, flags: u32, interrupted: &'a dyn Fn() -> bool) -> Io<'a> {
    Io { nonblock: nonblock(file, flags), interrupted, ..Io::WAIT }
}

/// Sends bytes or a message. The call waits for room as `io` allows.
fn send<M: Machine>(
    ctx: &Ctx<'_, M>,
    io: &Io<'_>,
    file: &Arc<File<M>>,
    from: &Vectors,
    to: Option<Given>,
    sent: Sent<M>,
    flags: u32,
) -> Result<usize, Errno> {
    if flags & raw::MSG_OOB != 0 {
        is_socket(file)?;
        return Err(Errno::EOPNOTSUPP);
    }
    let Some(socket) = file.stream_as::<Socket<M>>() else {
        let socket = netlink::of(file).ok_or(Errno::ENOTSOCK)?;
        let to = match to {
            None => None,
            Some(Given::Netlink(port, groups)) => Some((port, groups)),
            Some(_) => return Err(Errno::EINVAL),
        };
        return Ok(socket.send(&mut from.transfer(ctx.user()), to)?);
    };
    let target = match to {
        None => None,
        // As on Linux, a Unix stream or packet socket refuses an address.
        Some(_) if socket.kind() != Kind::Datagram => {
            return Err(if socket.remote().is_ok() { Errno::EISCONN } else { Errno::EOPNOTSUPP });
        }
        // As on Linux, AF_UNSPEC on an IPv6 socket means the peer.
        Some(Given::Unspecified) if socket.family() == Family::Inet6 => None,
        Some(given) => Some(Target::of(ctx, given, socket)?),
    };
    let credentials =
        (socket.family() == Family::Unix).then(|| sent.credentials.unwrap_or(super::real_credentials(ctx)));
    let charge = charge_for(ctx, sent.files.len())?;
    let ancillary = Ancillary { files: sent.files, charge, credentials, choice: sent.choice };
    let destination = target.as_ref().map(Target::destination);
    socket.send(io, &mut from.transfer(ctx.user()), destination.as_ref(), ancillary).map_err(|e| {
        if e == FsError::BrokenPipe && flags & raw::MSG_NOSIGNAL == 0 && socket.kind() == Kind::Stream {
            ctx.refused_write(Signal::PIPE);
        }
        e.into()
    })
}

/// Charges the caller's user for files in flight. ETOOMANYREFS if the user has more files in flight than its limit of
/// open files, and no capability to exceed the limit.
fn charge_for<M: Machine>(ctx: &Ctx<'_, M>, files: usize) -> Result<Option<InFlightCharge>, Errno> {
    if files == 0 {
        return Ok(None);
    }
    let own = ctx.credentials();
    let most = match own.may(cap::SYS_RESOURCE) || own.may(cap::SYS_ADMIN) {
        true => u64::MAX,
        // As on Linux, the last message may exceed the limit.
        false => ctx.process().soft_limit(which::NOFILE).saturating_add(files as u64),
    };
    // SAFETY: the value belongs to the calling thread, which does not replace it during the access.
    let user_charge = unsafe { ctx.thread.user_charge.get() };
    let charge =
        ctx.linux.users.charge(user_charge, Account::FilesInFlight, files as u64, most).ok_or(Errno::ETOOMANYREFS)?;
    Ok(Some(charge.into()))
}

fn given<M: Machine>(ctx: &Ctx<'_, M>, file: &Arc<File<M>>, at: u64, len: i32) -> Result<Option<Given>, Errno> {
    if at == 0 || len == 0 {
        return Ok(None);
    }
    match of(file) {
        // A TCP socket ignores any address of a valid length.
        Ok(socket) if socket.kind() == Kind::Stream && socket.family() != Family::Unix => {
            Given::check(ctx, at, len).map(|()| None)
        }
        Ok(socket) => Given::read_for(ctx, at, len, socket).map(Some),
        Err(_) => Given::read(ctx, at, len).map(Some),
    }
}

/// Checks the buffer of a call on `file`. ENOTSOCK takes precedence over errors of the buffer. The transfer itself
/// refuses a file that is no socket. So this function checks for a socket only if the buffer is invalid.
fn buffer<M: Machine>(file: &Arc<File<M>>, at: u64, len: u64) -> Result<Vectors, Errno> {
    Vectors::cut(at, len).or_else(|e| is_socket(file).and(Err(e)))
}

/// `sendto`
pub fn sys_sendto<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    fd: i32,
    from: u64,
    len: u64,
    flags: u32,
    to: u64,
    to_len: i32,
) -> Result<usize, Errno> {
    let file = ctx.file(fd)?;
    if to != 0 {
        is_socket(&file)?;
    }
    let from = buffer(&file, from, len)?;
    let is_udp = |socket: &Socket<M>| socket.kind() == Kind::Datagram && socket.family() != Family::Unix;
    if to != 0 && to_len == 0 && of(&file).is_ok_and(is_udp) {
        return Err(Errno::EINVAL);
    }
    match given(ctx, &file, to, to_len)? {
        None => send_bytes(ctx, file, from, flags),
        to => {
            let interrupted = || ctx.thread.interrupted();
            send(ctx, &on_stack(&file, flags, &interrupted), &file, &from, to, Sent::nothing(), flags)
        }
    }
}

/// Makes an attempt to send to the peer, without control data. If there is no room, the thread sleeps without a kernel
/// stack.
pub(crate) fn send_bytes<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    file: Arc<File<M>>,
    from: Vectors,
    flags: u32,
) -> Result<usize, Errno> {
    match attempt(ctx, nonblock(&file, flags), |io| send(ctx, io, &file, &from, None, Sent::nothing(), flags)) {
        Err(Errno::WOULD_SLEEP) => Err(sleep(ctx, file, StreamCall::Send { from, flags })),
        done => done,
    }
}

/// A message to send.
struct Outgoing<M: Machine> {
    header: MessageHeader,
    to: Option<Given>,
    sent: Sent<M>,
}

#[inline(always)]
fn outgoing<M: Machine>(ctx: &Ctx<'_, M>, file: &Arc<File<M>>, at: u64) -> Result<Outgoing<M>, Errno> {
    is_socket(file)?;
    let knows = of(file).map_or(Knows::Nothing, |socket| match (socket.family(), socket.kind()) {
        (Family::Unix, _) => Knows::Unix,
        (family, Kind::Datagram) => Knows::Headers(family),
        _ => Knows::Nothing,
    });
    let header = MessageHeader::read(&ctx.user(), at)?;
    let to = given(ctx, file, header.name, header.name_len)?;
    let sent = control::read(ctx, header.control, header.control_len, knows)?;
    Ok(Outgoing { header, to, sent })
}

/// `sendmsg`
pub fn sys_sendmsg<M: Machine>(ctx: &mut Ctx<'_, M>, fd: i32, at: u64, flags: u32) -> Result<usize, Errno> {
    let file = ctx.file(fd)?;
    let Outgoing { header, to, sent } = outgoing(ctx, &file, at)?;
    if to.is_none() && header.control_len == 0 {
        return send_bytes(ctx, file, header.vectors, flags);
    }
    let interrupted = || ctx.thread.interrupted();
    send(ctx, &on_stack(&file, flags, &interrupted), &file, &header.vectors, to, sent, flags)
}

/// `sendmmsg`
pub fn sys_sendmmsg<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    fd: i32,
    at: u64,
    count: u32,
    flags: u32,
) -> Result<usize, Errno> {
    let file = ctx.file(fd)?;
    is_socket(&file)?;
    let interrupted = || ctx.thread.interrupted();
    each_message(at, count, |one, _| {
        let Outgoing { header, to, sent } = outgoing(ctx, &file, one)?;
        let n = send(ctx, &on_stack(&file, flags, &interrupted), &file, &header.vectors, to, sent, flags)?;
        ctx.write(one + HEADER, &(n as u32))
    })
}

/// Calls `each` for up to `count` messages, until one fails. Returns the number of messages, or the error of the first
/// message.
fn each_message(at: u64, count: u32, mut each: impl FnMut(u64, usize) -> Result<(), Errno>) -> Result<usize, Errno> {
    let mut done = 0;
    while done < count.min(MOST_MESSAGES) as usize {
        let one = (done as u64 * MANY_HEADER).checked_add(at).ok_or(Errno::EFAULT)?;
        match each(one, done) {
            Ok(()) => done += 1,
            Err(_) if done > 0 => break,
            Err(e) => return Err(e),
        }
    }
    Ok(done)
}

/// The result of a receive without the bytes themselves.
struct Got<M: Machine> {
    len: usize,
    is_message: bool,
    flags: u32,
    from: Option<OutAddress>,
    arrival: Option<Arrival>,
    ancillary: Ancillary<quire_linux_state::socket::host::SocketHost<M>>,
}

/// Receives bytes or a message. The call waits as `io` allows. With `named`, the program asks for the sender.
fn receive<M: Machine>(
    ctx: &Ctx<'_, M>,
    io: &Io<'_>,
    file: &Arc<File<M>>,
    to: &Vectors,
    flags: u32,
    named: bool,
) -> Result<Got<M>, Errno> {
    let Some(socket) = file.stream_as::<Socket<M>>() else {
        let socket = netlink::of(file).ok_or(Errno::ENOTSOCK)?;
        if flags & raw::MSG_OOB != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let mut sink = to.transfer(ctx.user());
        let (whole, copied) = socket.receive(io, &mut sink, flags & raw::MSG_PEEK != 0)?;
        let len = if flags & raw::MSG_TRUNC != 0 { whole } else { copied };
        let flags = if copied < whole { raw::MSG_TRUNC } else { 0 };
        let from = Some(OutAddress::netlink(0, 0));
        return Ok(Got { len, is_message: true, flags, from, arrival: None, ancillary: Ancillary::none() });
    };
    if flags & raw::MSG_OOB != 0 {
        return Err(if socket.family() == Family::Unix { Errno::EOPNOTSUPP } else { Errno::EINVAL });
    }
    if flags & raw::MSG_ERRQUEUE != 0 {
        // The error queue is always empty.
        return Err(Errno::EAGAIN);
    }
    let mut how = ReceiveFlags::empty();
    how.set(ReceiveFlags::PEEK, flags & raw::MSG_PEEK != 0);
    how.set(ReceiveFlags::WAIT_ALL, flags & raw::MSG_WAITALL != 0);
    how.set(ReceiveFlags::SENDER, named);
    // As on Linux, Unix streams ignore MSG_TRUNC.
    let knows = socket.kind() != Kind::Stream || socket.family() != Family::Unix;
    how.set(ReceiveFlags::TRUNCATE, flags & raw::MSG_TRUNC != 0 && knows);
    let received = socket.receive(io, &mut to.transfer(ctx.user()), how)?;
    let flags = if received.truncated { raw::MSG_TRUNC } else { 0 };
    let from = received.from.map(|address| crate::socket::out_address(&address, socket.family()));
    let (len, is_message) = (received.bytes, received.is_message);
    Ok(Got { len, is_message, flags, from, arrival: received.arrival, ancillary: received.ancillary })
}

/// `recvfrom`
pub fn sys_recvfrom<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    fd: i32,
    to: u64,
    len: u64,
    flags: u32,
    from: u64,
    from_len: u64,
) -> Result<usize, Errno> {
    let file = ctx.file(fd)?;
    let to = buffer(&file, to, len)?;
    receive_from(ctx, file, to, flags, From { name: from, name_len: from_len })
}

/// The user addresses at which the sender's address and its length are stored. If `name` is 0, they are not stored.
#[derive(Clone, Copy)]
pub(crate) struct From {
    pub name: u64,
    pub name_len: u64,
}

/// Makes an attempt to receive bytes and the sender's address. If no bytes are available, the thread sleeps without a
/// kernel stack.
pub(crate) fn receive_from<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    file: Arc<File<M>>,
    to: Vectors,
    flags: u32,
    from: From,
) -> Result<usize, Errno> {
    let From { name, name_len } = from;
    let got = match attempt(ctx, nonblock(&file, flags), |io| receive(ctx, io, &file, &to, flags, name != 0)) {
        Err(Errno::WOULD_SLEEP) => return Err(sleep(ctx, file, StreamCall::Receive { to, flags, name, name_len })),
        got => got?,
    };
    if name != 0 {
        match got.from {
            Some(address) => address.store(ctx, name, name_len)?,
            None if ctx.read::<i32>(name_len)? < 0 => return Err(Errno::EINVAL),
            None => ctx.write(name_len, &0i32)?,
        }
    }
    Ok(got.len)
}

/// The credentials that a receiver gets for a message without credentials. A message has none if neither side had asked
/// for credentials when it was sent.
const NOT_SENT: Credentials = Credentials { pid: 0, uid: 65_534, gid: 65_534 };

/// The credentials reported for data of a Unix socket. As on Linux, the end of a stream has zeroes. `None` if the
/// receive got no message.
fn credentials_of<M: Machine>(socket: &Socket<M>, got: &Got<M>) -> Option<Credentials> {
    match got.ancillary.credentials {
        Some(credentials) => Some(credentials),
        None if got.is_message || got.len > 0 => Some(NOT_SENT),
        None if socket.kind() == Kind::Stream => Some(Credentials { pid: 0, uid: 0, gid: 0 }),
        None => None,
    }
}

/// Stores the sender's address, the control messages and the flags at the addresses in `header`. Returns the length of
/// the message.
#[inline]
fn store<M: Machine>(
    ctx: &Ctx<'_, M>,
    file: &Arc<File<M>>,
    header: &MessageHeader,
    mut got: Got<M>,
    flags: u32,
) -> Result<usize, Errno> {
    let mut writer = Writer::new(header.control, header.control_len);
    if let Ok(socket) = of(file)
        && socket.family() == Family::Unix
        && socket.options().has(Flags::PASS_CREDENTIALS)
        && let Some(credentials) = credentials_of(socket, &got)
    {
        writer.credentials(ctx, credentials)?;
    }
    if let (Some(arrival), Ok(socket)) = (got.arrival, of(file)) {
        headers::store(ctx, &mut writer, socket, arrival)?;
    }
    if let Ok(socket) = of(file)
        && socket.options().has(Flags::REPORT_REST)
    {
        // As on Linux, the end of the stream counts as a byte.
        let ends = matches!(socket.stage(), Stage::PeerFinished | Stage::Closed);
        let rest = i32::try_from(socket.queued()?).unwrap_or(i32::MAX).saturating_add(i32::from(ends));
        writer.put(ctx, (raw::SOL_TCP, raw::TCP_INQ), &rest.to_le_bytes())?;
    }
    if !got.ancillary.files.is_empty() {
        writer.files(ctx, core::mem::take(&mut got.ancillary.files), flags & raw::MSG_CMSG_CLOEXEC != 0)?;
    }
    if writer.truncated {
        got.flags |= raw::MSG_CTRUNC;
    }
    let name_len = match (&got.from, header.name) {
        (_, 0) => header.name_len,
        (None, _) => 0,
        (Some(address), to) => {
            let room = usize::try_from(header.name_len).map_err(|_| Errno::EINVAL)?;
            ctx.user().write_bytes(to, address.cut(room))?;
            address.len() as i32
        }
    };
    ctx.write(header.at + 8, &name_len)?;
    ctx.write(header.at + 40, &(writer.used as u64))?;
    ctx.write(header.at + 48, &(got.flags | flags & raw::MSG_CMSG_CLOEXEC))?;
    Ok(got.len)
}

/// `recvmsg`
pub fn sys_recvmsg<M: Machine>(ctx: &mut Ctx<'_, M>, fd: i32, at: u64, flags: u32) -> Result<usize, Errno> {
    let file = ctx.file(fd)?;
    is_socket(&file)?;
    let header = MessageHeader::read(&ctx.user(), at)?;
    receive_message(ctx, file, header, flags)
}

/// Makes an attempt to receive a message. If there is none, the thread sleeps without a kernel stack.
pub(crate) fn receive_message<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    file: Arc<File<M>>,
    header: MessageHeader,
    flags: u32,
) -> Result<usize, Errno> {
    let get = |io: &Io<'_>| receive(ctx, io, &file, &header.vectors, flags, header.name != 0);
    match attempt(ctx, nonblock(&file, flags), get) {
        Err(Errno::WOULD_SLEEP) => Err(sleep(ctx, file, StreamCall::ReceiveMessage { header, flags })),
        got => store(ctx, &file, &header, got?, flags),
    }
}

/// `recvmmsg`
pub fn sys_recvmmsg<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    fd: i32,
    at: u64,
    count: u32,
    flags: u32,
    timeout: u64,
) -> Result<usize, Errno> {
    let file = ctx.file(fd)?;
    is_socket(&file)?;
    let deadline = crate::file::timeout(ctx, timeout)?.map(|ns| ctx.now().saturating_add(ns));
    let interrupted = || ctx.thread.interrupted();
    let socket = file.stream_as::<Socket<M>>();
    // As on Linux, a stored error comes before messages.
    if flags & raw::MSG_ERRQUEUE == 0
        && let Some(error) = socket.and_then(|socket| socket.take_error())
    {
        return Err(error.into());
    }
    let mut late = false;
    let mut receive_one = |one, done| {
        // As on Linux, the timeout is checked only after each message.
        if late {
            return Err(Errno::EAGAIN);
        }
        let now = if done > 0 && flags & WAIT_FOR_ONE != 0 { raw::MSG_DONTWAIT } else { 0 };
        let flags = (flags & !WAIT_FOR_ONE) | now;
        let header = MessageHeader::read(&ctx.user(), one)?;
        let got = receive(ctx, &on_stack(&file, flags, &interrupted), &file, &header.vectors, flags, header.name != 0)?;
        let n = store(ctx, &file, &header, got, flags)?;
        late = deadline.is_some_and(|deadline| ctx.now() >= deadline);
        ctx.write(one + HEADER, &(n as u32))
    };
    each_message(at, count, |one, done| {
        let received = receive_one(one, done);
        if let (1.., Err(error), Some(socket)) = (done, received, socket) {
            keep_error(socket, error);
        }
        received
    })
}

/// Stores the error that ended a `recvmmsg` after its first message, for the next call.
#[cold]
fn keep_error<M: Machine>(socket: &Socket<M>, error: Errno) {
    let kept = [FsError::Reset, FsError::Refused, FsError::BrokenPipe, FsError::Fault];
    if let Some(kept) = kept.into_iter().find(|kept| Errno::from(*kept) == error) {
        socket.fail_next(kept);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use crate::test_host::script::run;
    use linux_raw_sys::general::*;
    use linux_raw_sys::net::{AF_UNIX, MSG_DONTWAIT, SO_ERROR, SOCK_DGRAM, SOL_SOCKET};
    use quire_linux_state::Errno;

    #[test]
    fn an_error_after_the_first_message_is_the_result_of_the_next_call() {
        run(|task| {
            let ends = task.room(8);
            task.call(__NR_socketpair, [AF_UNIX.into(), SOCK_DGRAM.into(), 0, ends]).unwrap();
            let [to, from] = task.get::<[u32; 2]>(ends).map(u64::from);
            let to_read = task.room(8);
            let good = task.put([to_read, 8]);
            let bad = task.put([8, 8u64]);
            let headers = task.put([[0u64, 0, good, 1, 0, 0, 0, 0], [0, 0, bad, 1, 0, 0, 0, 0]]);
            let (error, len) = (task.put(0u32), task.put(4u32));
            for by_option in [true, false] {
                for _ in 0..2 {
                    assert_eq!(task.call(__NR_write, [from, to_read, 8]), Ok(8));
                }
                assert_eq!(task.call(__NR_recvmmsg, [to, headers, 2, MSG_DONTWAIT.into(), 0]), Ok(1));
                let ask = [to, SOL_SOCKET.into(), SO_ERROR.into(), error, len];
                if by_option {
                    assert_eq!(task.call(__NR_getsockopt, ask), Ok(0));
                    assert_eq!(task.get::<u32>(error), u32::from(Errno::EFAULT.0));
                } else {
                    let again = task.call(__NR_recvmmsg, [to, headers, 1, MSG_DONTWAIT.into(), 0]);
                    assert_eq!(again, Err(Errno::EFAULT));
                }
                assert_eq!(task.call(__NR_recvmmsg, [to, headers, 1, MSG_DONTWAIT.into(), 0]), Err(Errno::EAGAIN));
            }
        });
    }
}
