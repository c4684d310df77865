//! Netlink sockets of the protocol `NETLINK_ROUTE`. A request is answered at once, into the inbox of its own socket.
//!
//! The network never changes, so multicast groups are joined without effect. Programs send no messages to each other.

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

/// Linux's NETLINK_ROUTE, and the least number that no protocol has.
const ROUTE: u32 = 0;
const PROTOCOLS: u32 = 32;
/// The charge of a datagram beside its bytes: at least the memory of its place and its allocation.
const OVERHEAD: usize = 256;
/// `NLMSG_ERROR`, and its flag that leaves out the body of the request.
const ERROR: u16 = 2;
const CAPPED: u16 = 0x100;
/// Flags of requests: it is one, and it wants to know that it was done.
const REQUEST: u16 = 1;
const ACKNOWLEDGE: u16 = 4;
/// The least type that is not one of netlink itself.
const FIRST_KIND: u16 = 16;

/// A destination: a socket and its groups. The kernel is socket 0.
pub(super) type Place = (u32, u32);

/// The names of a socket.
#[derive(Clone, Copy, Default)]
struct Names {
    /// Its own id, if it has one.
    port: Option<u32>,
    groups: u32,
    peer: Place,
}

/// The answers that wait.
struct Inbox {
    answers: Deque<Vec<u8>>,
    charge: usize,
    /// Answers were lost.
    lost: bool,
}

/// A netlink socket.
pub(super) struct Netlink<M: Machine> {
    linux: &'static Linux<M>,
    /// Whether it is of the type SOCK_RAW. The two types do the same.
    raw: bool,
    names: SpinLock<Names>,
    inbox: SpinLock<Inbox>,
    readiness: Readiness,
    options: Options,
    /// Options of the level SOL_NETLINK, as bits.
    bits: AtomicU32,
}

/// The netlink socket of an open file.
pub(super) fn of<M: Machine>(file: &Arc<File<M>>) -> Option<&Netlink<M>> {
    file.stream_as()
}

impl<M: Machine> Netlink<M> {
    /// A socket of `protocol`.
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

    /// Its port. It gets one now if it has none.
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

    /// Names it `port`, which was taken for it, unless another thread was faster. Returns its port.
    fn name(&self, port: u32) -> Result<u32, FsError> {
        let mut names = self.names.lock();
        let named = *names.port.get_or_insert(port);
        drop(names);
        if named != port {
            self.linux.netlink_ports.put(port);
        }
        Ok(named)
    }

    /// `bind`: port 0 stands for any.
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

    /// Refuses a destination that is not the kernel.
    fn check(&self, (port, groups): Place) -> Result<(), FsError> {
        match (port, groups) {
            (0, 0) => Ok(()),
            _ if !self.admin() => Err(FsError::NotPermitted),
            (0, _) => Ok(()),
            _ => Err(FsError::Refused),
        }
    }

    /// `connect`; `None` takes the peer away.
    pub(super) fn connect(&self, to: Option<Place>) -> Result<(), Errno> {
        let to = to.unwrap_or_default();
        if to != (0, 0) && !self.admin() {
            return Err(Errno::EPERM);
        }
        self.port()?;
        self.names.lock().peer = to;
        Ok(())
    }

    /// Its own name.
    pub(super) fn local(&self) -> OutAddress {
        let names = *self.names.lock();
        OutAddress::netlink(names.port.unwrap_or(0), names.groups)
    }

    /// Its peer's name.
    pub(super) fn remote(&self) -> OutAddress {
        let (port, groups) = self.names.lock().peer;
        OutAddress::netlink(port, groups)
    }

    /// Its options of the level SOL_SOCKET.
    pub(super) fn options(&self) -> &Options {
        &self.options
    }

    fn admin(&self) -> bool {
        // SAFETY: the calling thread's own, which nothing replaces meanwhile.
        unsafe { self.linux.current().credentials.get() }.may(cap::NET_ADMIN)
    }

    /// Sends requests, and receives their answers.
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

    /// The message that a request was done, or its error.
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

    /// Puts bytes of the kernel into the socket's inbox, without a header. Where there is no room the next read says
    /// so.
    pub(super) fn deliver(&self, bytes: Vec<u8>) {
        if self.put_bytes(bytes).is_err() {
            self.inbox.lock().lost = true;
            self.readiness.notify();
        }
    }

    fn put(&self, answers: Answers) -> Result<(), FsError> {
        self.put_bytes(answers.bytes)
    }

    /// Puts a datagram into its inbox. A full one loses it, and the next read says so.
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

    /// Takes an error that waits for a call.
    fn take_error(&self) -> Option<Errno> {
        core::mem::take(&mut self.inbox.lock().lost).then_some(Errno::ENOBUFS)
    }

    /// Receives a datagram: its length, and its part that fits. With `peek` it stays.
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

    /// Puts a datagram back that a reader has looked at.
    fn put_back(&self, bytes: Vec<u8>) {
        let mut inbox = self.inbox.lock();
        inbox.charge += bytes.len() + OVERHEAD;
        // A concurrent request may have taken its place.
        if inbox.answers.try_reserve(1).is_ok() {
            inbox.answers.push_front_reserved(bytes);
        } else {
            inbox.charge -= bytes.len() + OVERHEAD;
            inbox.lost = true;
        }
        drop(inbox);
        self.readiness.notify();
    }

    /// The length of the first datagram.
    fn next_len(&self) -> usize {
        self.inbox.lock().answers.front().map_or(0, |bytes| bytes.len())
    }
}

/// Copies bytes as far as there is room.
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
        // A loss has no number here: the reader finds the end of what there was.
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

/// Whether a file is a socket of either kind.
pub(super) fn is_socket<M: Machine>(file: &Arc<File<M>>) -> Result<(), Errno> {
    match file.stream_as::<Socket<M>>().is_some() || of(file).is_some() {
        true => Ok(()),
        false => Err(Errno::ENOTSOCK),
    }
}
