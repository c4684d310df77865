//! Netlink sockets of the protocol `NETLINK_ROUTE`. The answer to a request is put into the socket's inbox during the
//! send.
//!
//! The network never changes, so joining multicast groups has no effect. Programs cannot send messages to each other.

mod message;
mod options;
mod route;

pub(super) use options::{get_option, set_option};

use crate::socket::user_address::OutAddress;
use core::any::Any;
use message::{Answers, Request};
use quire_fs::{FsError, Host as _, Io, Readiness, Ready, Sink, Source, Stream};
use quire_heap::{Arc, Deque, Vec};
use quire_linux_state::file::host::File;
use quire_linux_state::process::credentials::capabilities::cap;
use quire_linux_state::socket::host::Socket;
use quire_linux_state::{Errno, Linux, Machine};
use quire_net::Options;
use quire_sync::atomic::{AtomicU32, Ordering};
use quire_sync::{Rank, SpinLock};
use route::Answer;

/// Linux's NETLINK_ROUTE, and one more than the highest protocol number.
const ROUTE: u32 = 0;
const PROTOCOLS: u32 = 32;
/// The charge of a datagram in bytes, without its content. It covers the memory of its slot and its allocation.
const OVERHEAD: usize = 256;
/// `NLMSG_ERROR`, and its flag that leaves out the body of the request.
const ERROR: u16 = 2;
const CAPPED: u16 = 0x100;
/// The flags of a request: the message is a request, and it asks for an acknowledgement.
const REQUEST: u16 = 1;
const ACKNOWLEDGE: u16 = 4;
/// The least message type of a protocol. Lower types belong to netlink itself.
const FIRST_KIND: u16 = 16;

/// A destination: a port and groups. The kernel has port 0.
pub(super) type Place = (u32, u32);

/// The names of a socket and of its peer.
#[derive(Clone, Copy, Default)]
struct Names {
    /// The socket's own port, if it has one.
    port: Option<u32>,
    groups: u32,
    peer: Place,
}

/// The answers that wait for a reader.
struct Inbox {
    answers: Deque<Vec<u8>>,
    charge: usize,
    /// Answers were lost.
    lost: bool,
}

/// A netlink socket.
pub(super) struct Netlink<M: Machine> {
    linux: &'static Linux<M>,
    /// Whether the socket's type is SOCK_RAW, and not SOCK_DGRAM. Netlink treats both types equally.
    raw: bool,
    names: SpinLock<Names>,
    inbox: SpinLock<Inbox>,
    readiness: Readiness,
    options: Options,
    /// The options of the level SOL_NETLINK, one bit each.
    bits: AtomicU32,
}

/// The netlink socket of an open file.
pub(super) fn of<M: Machine>(file: &Arc<File<M>>) -> Option<&Netlink<M>> {
    file.stream_as()
}

impl<M: Machine> Netlink<M> {
    /// Makes a socket. EPROTONOSUPPORT unless `protocol` is NETLINK_ROUTE.
    pub(super) fn new(linux: &'static Linux<M>, raw: bool, protocol: u32) -> Result<Arc<Self>, Errno> {
        if protocol >= PROTOCOLS || protocol != ROUTE {
            return Err(Errno::EPROTONOSUPPORT);
        }
        let inbox = Inbox { answers: Deque::new(), charge: 0, lost: false };
        Ok(Arc::try_new(Netlink {
            linux,
            raw,
            names: SpinLock::new(Rank::SOCKET, Names::default()),
            inbox: SpinLock::new(Rank::INBOX, inbox),
            readiness: Readiness::new(),
            options: Options::default(),
            bits: AtomicU32::new(0),
        })?)
    }

    /// The socket's port. A socket without a port gets one now.
    fn port(&self) -> Result<u32, FsError> {
        if let Some(port) = self.names.lock().port {
            return Ok(port);
        }
        let linux = self.linux;
        let mut random = [0; 4];
        linux.files.vfs().host().random(&mut random);
        let port = linux.netlink_ports.take_free(linux.current().process.pid, u32::from_le_bytes(random))?;
        self.name(port)
    }

    /// Sets the socket's port to `port`, which the caller has reserved. If the socket has a port already, `port` is
    /// freed. Returns the socket's port.
    fn name(&self, port: u32) -> Result<u32, FsError> {
        let mut names = self.names.lock();
        let named = *names.port.get_or_insert(port);
        drop(names);
        if named != port {
            self.linux.netlink_ports.put(port);
        }
        Ok(named)
    }

    /// `bind`. Port 0 means any free port.
    pub(super) fn bind(&self, (port, groups): Place) -> Result<(), Errno> {
        let own = self.names.lock().port;
        match own {
            Some(own) if own != port && port != 0 => return Err(Errno::EINVAL),
            None if port != 0 => {
                self.linux.netlink_ports.take(port)?;
                if self.name(port)? != port {
                    return Err(Errno::EINVAL);
                }
            }
            _ => {
                self.port()?;
            }
        }
        self.names.lock().groups = groups;
        Ok(())
    }

    /// Fails if the destination is not the kernel. Privileged callers may also name groups.
    fn check(&self, (port, groups): Place) -> Result<(), FsError> {
        match (port, groups) {
            (0, 0) => Ok(()),
            _ if !self.admin() => Err(FsError::NotPermitted),
            (0, _) => Ok(()),
            _ => Err(FsError::Refused),
        }
    }

    /// `connect`. `None` removes the peer.
    pub(super) fn connect(&self, to: Option<Place>) -> Result<(), Errno> {
        let to = to.unwrap_or_default();
        if to != (0, 0) && !self.admin() {
            return Err(Errno::EPERM);
        }
        self.port()?;
        self.names.lock().peer = to;
        Ok(())
    }

    /// The socket's own address.
    pub(super) fn local(&self) -> OutAddress {
        let names = *self.names.lock();
        OutAddress::netlink(names.port.unwrap_or(0), names.groups)
    }

    /// The peer's address.
    pub(super) fn remote(&self) -> OutAddress {
        let (port, groups) = self.names.lock().peer;
        OutAddress::netlink(port, groups)
    }

    /// The options of the level SOL_SOCKET.
    pub(super) fn options(&self) -> &Options {
        &self.options
    }

    fn admin(&self) -> bool {
        // SAFETY: these are the calling thread's own credentials, which only that thread replaces.
        unsafe { self.linux.current().credentials.get() }.may(cap::NET_ADMIN)
    }

    /// Serves the requests in `source`, and puts their answers into the inbox. Returns the number of bytes of the
    /// requests.
    pub(super) fn send(&self, source: &mut dyn Source, to: Option<Place>) -> Result<usize, FsError> {
        let to = to.unwrap_or(self.names.lock().peer);
        self.check(to)?;
        let port = self.port()?;
        let len = source.left();
        if len > self.options.send_buffer().saturating_sub(32) {
            return Err(FsError::MessageTooLong);
        }
        let mut bytes = Vec::new();
        bytes.try_resize(len, 0)?;
        let mut filled = 0;
        while filled < len {
            match source.take(&mut bytes[filled..])? {
                0 => return Err(FsError::Fault),
                n => filled += n,
            }
        }
        let admin = self.admin();
        for request in message::requests(&bytes) {
            self.serve(&request, port, admin)?;
        }
        Ok(len)
    }

    /// Serves one request.
    fn serve(&self, request: &Request<'_>, port: u32, admin: bool) -> Result<(), FsError> {
        let header = request.header;
        let answer = match header.flags & REQUEST != 0 && header.kind >= FIRST_KIND {
            true => route::answer(request, port, admin)?,
            false => Answer::Done(Ok(())),
        };
        let done = match answer {
            Answer::All(all, end) => {
                self.put(all)?;
                return self.put(end);
            }
            Answer::One(one) => {
                self.put(one)?;
                Ok(())
            }
            Answer::Done(done) => done,
        };
        if done.is_ok() && header.flags & ACKNOWLEDGE == 0 {
            return Ok(());
        }
        self.put(self.acknowledge(request, port, done)?)
    }

    /// Makes the acknowledgement of a request: success, or its error.
    fn acknowledge(&self, request: &Request<'_>, port: u32, done: Result<(), Errno>) -> Result<Answers, FsError> {
        let whole = done.is_err() && self.bits.load(Ordering::Relaxed) & options::CAP_ACKNOWLEDGEMENTS == 0;
        let mut answers = Answers::new();
        let header = request.header;
        let number = done.map_or_else(|e| -i32::from(e.0), |()| 0);
        answers.message((ERROR, if whole { 0 } else { CAPPED }), &header, port, |answers| {
            answers.part(&number.to_le_bytes())?;
            answers.header(&header)?;
            answers.part(if whole { request.body } else { &[] })
        })?;
        Ok(answers)
    }

    /// Puts a notification of the kernel into the socket's inbox, without a header. If there is no room, the next read
    /// fails.
    pub(super) fn deliver(&self, bytes: Vec<u8>) {
        if self.put_bytes(bytes).is_err() {
            self.inbox.lock().lost = true;
            self.readiness.notify();
        }
    }

    fn put(&self, answers: Answers) -> Result<(), FsError> {
        self.put_bytes(answers.bytes)
    }

    /// Puts a datagram into the inbox. If the inbox is full, the datagram is lost, and the next read fails with
    /// ENOBUFS.
    fn put_bytes(&self, bytes: Vec<u8>) -> Result<(), FsError> {
        if bytes.is_empty() {
            return Ok(());
        }
        let (charge, most) = (bytes.len() + OVERHEAD, self.options.receive_buffer());
        {
            let mut inbox = self.inbox.lock();
            if inbox.charge + charge > most && inbox.charge > 0 {
                inbox.lost = true;
            } else {
                inbox.answers.try_reserve(1)?;
                inbox.answers.push_back_reserved(bytes);
                inbox.charge += charge;
            }
        }
        self.readiness.notify();
        Ok(())
    }

    /// Returns and clears the pending error of the socket, which is ENOBUFS for lost datagrams.
    fn take_error(&self) -> Option<Errno> {
        core::mem::take(&mut self.inbox.lock().lost).then_some(Errno::ENOBUFS)
    }

    /// Receives a datagram. Returns its length, and the number of bytes that were copied. With `peek`, the datagram
    /// stays in the inbox.
    pub(super) fn receive(&self, io: &Io<'_>, sink: &mut dyn Sink, peek: bool) -> Result<(usize, usize), Errno> {
        let timeout = self.options.receive_timeout();
        let limit = || (timeout != 0).then(|| quire_sync::hooks::now().saturating_add(timeout));
        let deadline = io.earlier().map_or_else(limit, |earlier| earlier.deadline);
        let io = Io { deadline: io.deadline.or(deadline), ..*io };
        let next = || {
            let mut inbox = self.inbox.lock();
            if core::mem::take(&mut inbox.lost) {
                return Some(Err(Errno::ENOBUFS));
            }
            let bytes = inbox.answers.pop_front()?;
            inbox.charge -= bytes.len() + OVERHEAD;
            Some(Ok(bytes))
        };
        let bytes = self.readiness.wait(&io, next).map_err(|e| match e {
            FsError::Interrupted if timeout != 0 => Errno::EINTR,
            e => e.into(),
        })??;
        let len = bytes.len();
        let copied = copy(&bytes, sink);
        if peek {
            self.put_back(bytes);
        }
        Ok((len, copied?))
    }

    /// Puts a datagram back after a peek.
    fn put_back(&self, bytes: Vec<u8>) {
        let mut inbox = self.inbox.lock();
        inbox.charge += bytes.len() + OVERHEAD;
        // The datagram goes back to the front of the inbox. A concurrent request may have used its former slot.
        if inbox.answers.try_reserve(1).is_ok() {
            inbox.answers.push_front_reserved(bytes);
        } else {
            inbox.charge -= bytes.len() + OVERHEAD;
            inbox.lost = true;
        }
        drop(inbox);
        self.readiness.notify();
    }

    /// The length of the first datagram in bytes, or 0 without one.
    fn next_len(&self) -> usize {
        self.inbox.lock().answers.front().map_or(0, |bytes| bytes.len())
    }
}

/// Copies as many bytes as fit, and returns their number.
fn copy(bytes: &[u8], sink: &mut dyn Sink) -> Result<usize, FsError> {
    let mut done = 0;
    while done < bytes.len() && sink.room() > 0 {
        match sink.put(&bytes[done..])? {
            0 => break,
            n => done += n,
        }
    }
    Ok(done)
}

impl<M: Machine> Stream for Netlink<M> {
    fn read(&self, io: &Io<'_>, sink: &mut dyn Sink) -> Result<usize, FsError> {
        // The file layer has no error for lost answers (ENOBUFS), so these and all other errors become an overflow.
        self.receive(io, sink, false).map(|(_, copied)| copied).map_err(|e| match e {
            Errno::EAGAIN => FsError::WouldBlock,
            Errno::WOULD_SLEEP => FsError::WouldSleep,
            Errno::ERESTARTSYS => FsError::Interrupted,
            Errno::EINTR => FsError::Stopped,
            Errno::EFAULT => FsError::Fault,
            _ => FsError::Overflow,
        })
    }

    fn write(&self, _io: &Io<'_>, source: &mut dyn Source) -> Result<usize, FsError> {
        self.send(source, None)
    }

    fn ready(&self) -> Ready {
        let inbox = self.inbox.lock();
        let mut ready = Ready::WRITE;
        ready.set(Ready::READ, !inbox.answers.is_empty() || inbox.lost);
        ready.set(Ready::ERROR, inbox.lost);
        ready
    }

    fn readiness(&self) -> Option<&Readiness> {
        Some(&self.readiness)
    }

    fn queued(&self) -> Result<usize, FsError> {
        Ok(self.next_len())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl<M: Machine> Drop for Netlink<M> {
    fn drop(&mut self) {
        let port = self.names.lock().port;
        if let Some(port) = port {
            self.linux.netlink_ports.put(port);
        }
    }
}

/// Fails with ENOTSOCK if a file is neither a socket of `quire_net` nor a netlink socket.
pub(super) fn is_socket<M: Machine>(file: &Arc<File<M>>) -> Result<(), Errno> {
    match file.stream_as::<Socket<M>>().is_some() || of(file).is_some() {
        true => Ok(()),
        false => Err(Errno::ENOTSOCK),
    }
}
