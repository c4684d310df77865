//! Sending and receiving messages: datagrams, and the packets of connected sockets.

use crate::address::{Address, Destination, Place};
use crate::collect::InFlight;
use crate::endpoint::Endpoint;
use crate::host::{Arrival, Choice, Header, Host, ReceiveFlags, Received};
use crate::inbox::{Borrowed, CHUNK, Message, OVERHEAD};
use crate::options::Flags;
use crate::stream::{Look, fill};
use core::net::SocketAddr;
use quire_fs::{FsError, Io, Readiness, Sink, Source};
use quire_heap::{Arc, Box, Vec};
use quire_sync::atomic::Ordering;

/// The most data bytes of a UDP datagram in IPv4 and in IPv6: 65,535 less the headers. For IPv6, only the UDP header
/// counts.
const UDP_MAX: [usize; 2] = [65_507, 65_527];
/// Bytes of a sender's buffer that a message cannot use, as on Linux.
const RESERVE: usize = 32;

impl<H: Host> Endpoint<H> {
    /// Gives a datagram socket a peer.
    pub(crate) fn connect_datagram(this: &Arc<Self>, to: &Destination<'_>) -> Result<(), FsError> {
        if this.is_unix() {
            let peer = Endpoint::receiver_at(this, to)?;
            let name = peer.state().local.clone();
            Endpoint::set_peer(this, Some(peer), Some(name.unwrap_or(Address::Unnamed)));
            return Ok(());
        }
        let Destination::Inet(to) = to else { return Err(FsError::WrongFamily) };
        let to = this.peer_address(*to)?;
        let _calls = this.calls.lock();
        Endpoint::bind_for(this, None)?;
        this.change_port(false, Some(to))?;
        Endpoint::set_peer(this, None, Some(Address::Inet(to)));
        Ok(())
    }

    /// The Unix datagram socket at `to`. Fails if that socket does not accept messages of this socket.
    fn receiver_at(this: &Arc<Self>, to: &Destination<'_>) -> Result<Arc<Self>, FsError> {
        let receiver = this.network.find_unix(to)?;
        if receiver.kind != this.kind {
            return Err(FsError::WrongType);
        }
        let other = receiver.peer();
        match other.is_none_or(|peer| Arc::ptr_eq(&peer, this)) {
            true => Ok(receiver),
            false => Err(FsError::NotPermitted),
        }
    }

    /// Sends a datagram, and returns the number of its bytes.
    pub(crate) fn send_datagram(
        this: &Arc<Self>,
        io: &Io<'_>,
        source: &mut dyn Source,
        to: Option<&Destination<'_>>,
        choice: Choice,
        attached: Option<Box<InFlight<Endpoint<H>>>>,
    ) -> Result<usize, FsError> {
        if this.shut.load(Ordering::Acquire) {
            return Err(FsError::BrokenPipe);
        }
        if let Some(error) = this.take_error() {
            return Err(error);
        }
        match this.is_unix() {
            true => Endpoint::send_unix(this, io, source, to, attached),
            false => Endpoint::send_udp(this, source, to, choice),
        }
    }

    fn send_unix(
        this: &Arc<Self>,
        io: &Io<'_>,
        source: &mut dyn Source,
        to: Option<&Destination<'_>>,
        attached: Option<Box<InFlight<Endpoint<H>>>>,
    ) -> Result<usize, FsError> {
        let mut limited = None;
        // The thread keeps its kernel stack while it waits, because only the reference on the stack keeps the receiver
        // alive, and the receiver announces room.
        let io = &this.writing(io, &mut limited).on_stack();
        let receiver = match to {
            Some(to) => Endpoint::receiver_at(this, to)?,
            None => this.peer().ok_or(FsError::NotConnected)?,
        };
        if this.options.has(Flags::PASS_CREDENTIALS) && this.state().name.is_none() {
            match Endpoint::bind_unix(this, Place::Auto) {
                // Another call has bound the socket since this call found it unbound.
                Ok(()) | Err(FsError::Invalid) => {}
                Err(e) => return Err(e),
            }
        }
        let from = this.state().local.clone().unwrap_or(Address::Unnamed);
        let mut message = this.message(source, this.options.send_buffer(), attached)?;
        message.from = Some(from);
        let sent = Endpoint::deliver(this, io, &receiver, &receiver.room, message, 0, FsError::Refused);
        match sent {
            // The receiver has closed, so this call removes it as the peer. If the receiver was no longer the peer, the
            // error is that of a lost connection.
            Err(FsError::Refused) if !Endpoint::lose_peer(this, &receiver) && to.is_none() => Err(FsError::Reset),
            sent => sent,
        }
    }

    fn send_udp(
        this: &Arc<Self>,
        source: &mut dyn Source,
        to: Option<&Destination<'_>>,
        choice: Choice,
    ) -> Result<usize, FsError> {
        let remote = this.state().remote.clone();
        let to = match (to, remote) {
            (Some(Destination::Inet(to)), _) => this.destination(*to).and_then(|to| match to.port() {
                0 => Err(FsError::Invalid),
                _ => Ok(to),
            })?,
            (Some(_), _) => return Err(FsError::WrongFamily),
            (None, Some(Address::Inet(to))) => to,
            (None, _) => return Err(FsError::NoDestination),
        };
        let mut message = this.message(source, UDP_MAX[usize::from(to.is_ipv6())] + RESERVE, None)?;
        Endpoint::bind_for(this, None)?;
        let mut from = this.inet_towards(to.ip());
        if let Some(ip) = choice.from {
            match ip.is_ipv4() == to.is_ipv4() {
                true if ip.is_loopback() => {}
                true if ip.is_ipv4() => return Err(FsError::Unreachable),
                _ => return Err(FsError::Invalid),
            }
            from.set_ip(ip);
        }
        let usual = this.options.header(to.is_ipv6());
        let header = Header { hops: choice.hops.unwrap_or(usual.hops), class: choice.class.unwrap_or(usual.class) };
        message.arrival = Some(Arrival { to: to.ip(), header });
        message.from = Some(Address::Inet(from));
        let bytes = message.len();
        let Some(receiver) = this.network.find_inet(this.kind, from, to) else {
            this.refuse(to);
            return Ok(bytes);
        };
        {
            let mut queue = receiver.inbox.queue();
            let full = queue.charge + bytes + OVERHEAD > this.limit(&receiver) && !queue.is_empty();
            // The inbox has no room, so the datagram is lost, and the call succeeds.
            if full || queue.receive_shutdown || queue.reserve(1).is_err() {
                drop(queue);
                return Ok(bytes);
            }
            queue.push_reserved(message);
        }
        receiver.readiness.notify();
        Ok(bytes)
    }

    /// Handles a datagram to `to`, where no socket is. If `to` is the peer of this socket, the next call on this socket
    /// fails with [`FsError::Refused`].
    fn refuse(&self, to: SocketAddr) {
        if self.state().remote == Some(Address::Inet(to)) {
            self.fail(FsError::Refused);
            self.readiness.notify();
        }
    }

    /// Sends a packet to the peer of a connection.
    pub(crate) fn send_packet(
        this: &Arc<Self>,
        io: &Io<'_>,
        source: &mut dyn Source,
        attached: Option<Box<InFlight<Endpoint<H>>>>,
    ) -> Result<usize, FsError> {
        let mut limited = None;
        let io = this.writing(io, &mut limited);
        let since = this.began(io);
        let peer = this.writable_peer(io, since)?;
        let message = this.message(source, this.options.send_buffer(), attached)?;
        Endpoint::deliver(this, io, &peer, &this.readiness, message, since, FsError::BrokenPipe)
    }

    /// Queues a message at `receiver`. The call waits for room in the inbox, which `room` announces.
    fn deliver(
        this: &Arc<Self>,
        io: &Io<'_>,
        receiver: &Endpoint<H>,
        room: &Readiness,
        message: Message<InFlight<Endpoint<H>>>,
        since: u32,
        gone: FsError,
    ) -> Result<usize, FsError> {
        let bytes = message.len();
        let mut message = Some(message);
        let mut queued = || {
            let limit = this.limit(receiver);
            let mut queue = receiver.inbox.queue();
            // A receiver that is shut down for receiving gives a broken pipe. A closed receiver gives the error `gone`.
            if queue.receive_shutdown {
                return Some(Err(if queue.closed { gone } else { FsError::BrokenPipe }));
            }
            if this.shut.load(Ordering::Acquire) {
                return Some(Err(FsError::BrokenPipe));
            }
            // As on Linux, a message has room if the buffer is not full, even if the buffer then contains more than its
            // size. An empty inbox accepts any message, because the buffers may have become smaller.
            if !queue.is_empty() && !queue.is_below(limit.saturating_sub(1)) {
                return None;
            }
            if queue.reserve(1).is_err() {
                return Some(Err(FsError::OutOfMemory));
            }
            message.take().into_iter().for_each(|message| queue.push_reserved(message));
            Some(Ok(()))
        };
        match room.wait_in(since, io, &mut queued) {
            // From now on, announcements of room also notify polls of this socket. The call tries again, because room
            // may have come before the registration.
            Err(FsError::WouldBlock) if this.is_datagram() => {
                let _listed = Endpoint::poll_room(this, receiver);
                queued().unwrap_or(Err(FsError::WouldBlock))
            }
            done => done?,
        }?;
        receiver.readiness.notify();
        Ok(bytes)
    }

    /// Copies a message into chunks. Fails if its bytes and [`RESERVE`] exceed `most`.
    fn message(
        &self,
        source: &mut dyn Source,
        most: usize,
        attached: Option<Box<InFlight<Endpoint<H>>>>,
    ) -> Result<Message<InFlight<Endpoint<H>>>, FsError> {
        let size = source.left();
        if size.saturating_add(RESERVE) > most {
            return Err(FsError::MessageTooLong);
        }
        let mut message = Message::new(Vec::new(), attached);
        let mut copied = 0;
        while copied < size {
            let mut chunk = Vec::new();
            let n = (size - copied).min(CHUNK);
            if fill(source, &mut chunk, n)? < n {
                return Err(FsError::Fault);
            }
            copied += n;
            match message.data.is_empty() {
                true => message.data = chunk,
                false => {
                    message.more.try_reserve_exact((size - copied).div_ceil(CHUNK) + 1)?;
                    message.more.push_reserved(chunk);
                }
            }
        }
        Ok(message)
    }

    /// Receives a datagram or a packet.
    pub(crate) fn receive_message(
        &self,
        io: &Io<'_>,
        sink: &mut dyn Sink,
        flags: ReceiveFlags,
    ) -> Result<Received<H>, FsError> {
        let since = self.reads_since(io)?;
        // As on Linux, a stored error is returned before messages, even before messages that arrived earlier. A
        // repeated attempt skips this, because the wait below finds errors.
        if io.earlier().is_none()
            && let Some(error) = self.take_error()
        {
            return Err(error);
        }
        let mut limited = None;
        let io = self.reading(io, &mut limited);
        loop {
            if !self.wait_readable(io, Look::First, since)? {
                return Ok(Received::nothing());
            }
            let readers = self.inbox.read();
            let done = match flags.contains(ReceiveFlags::PEEK) {
                true => self.peek_message(sink, flags),
                false => self.take_message(sink, flags),
            };
            drop(readers);
            // `None`: another reader has taken the message.
            if let Some(result) = done {
                return result;
            }
        }
    }

    fn take_message(&self, sink: &mut dyn Sink, flags: ReceiveFlags) -> Option<Result<Received<H>, FsError>> {
        let (message, memory, room) = {
            let mut queue = self.inbox.queue();
            let (message, memory) = queue.pop();
            (message?, memory, queue.made_room())
        };
        drop(memory);
        if room {
            if self.is_datagram() {
                self.announce_room();
            } else if let Some(peer) = self.peer() {
                peer.readiness.notify();
            }
        }
        let Message { data, more, from, arrival, attached, .. } = message;
        let copied = copy(&data, &more, sink, flags);
        Some(copied.map(|out| Received {
            from: self.sender(from, flags),
            arrival,
            ancillary: attached.map_or(out.ancillary, |attached| attached.into_inner().take_out()),
            ..out
        }))
    }

    fn peek_message(&self, sink: &mut dyn Sink, flags: ReceiveFlags) -> Option<Result<Received<H>, FsError>> {
        let (borrowed, from, arrival) = {
            let mut queue = self.inbox.queue();
            let message = queue.get(0)?;
            let (from, arrival) = (message.from.clone(), message.arrival);
            (queue.borrow(0)?, from, arrival)
        };
        let Borrowed { data, more, attached, .. } = &borrowed;
        let copied = copy(data, more, sink, flags);
        let ancillary = attached.as_ref().map(|attached| attached.copy()).transpose();
        let purged = self.inbox.queue().give_back(0, borrowed, 0);
        drop(purged);
        Some(copied.and_then(|out| {
            let ancillary = ancillary?.unwrap_or(out.ancillary);
            Ok(Received { from: self.sender(from, flags), arrival, ancillary, ..out })
        }))
    }

    /// The sender's address of a message, as this socket sees it.
    fn sender(&self, from: Option<Address>, flags: ReceiveFlags) -> Option<Address> {
        match self.is_datagram() {
            // As on Linux, no sender is reported for a Unix socket without a name.
            true => from.filter(|from| !matches!(from, Address::Unnamed)).map(|from| from.seen_by(self.family)),
            false => self.connected_sender(flags),
        }
    }
}

/// Copies as much of a message to `sink` as fits.
fn copy<H: Host>(
    first: &[u8],
    more: &[Vec<u8>],
    sink: &mut dyn Sink,
    flags: ReceiveFlags,
) -> Result<Received<H>, FsError> {
    let room = sink.room();
    let length = first.len() + more.iter().map(|chunk| chunk.len()).sum::<usize>();
    let mut copied = 0;
    for chunk in core::iter::once(first).chain(more.iter().map(|chunk| &chunk[..])) {
        let n = chunk.len().min(room - copied);
        if n > 0 && sink.put(&chunk[..n])? < n {
            return Err(FsError::Fault);
        }
        copied += n;
    }
    let bytes = if flags.contains(ReceiveFlags::TRUNCATE) { length } else { copied };
    Ok(Received { bytes, is_message: true, truncated: copied < length, ..Received::nothing() })
}
