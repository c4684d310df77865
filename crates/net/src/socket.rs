//! Sockets: open files whose endpoints other sockets reach. Dropping a socket closes its endpoint.

use crate::address::{Address, Credentials, Destination, Family, Kind, Place};
use crate::collect::InFlight;
use crate::endpoint::{Endpoint, Phase, Socket};
use crate::host::{Ancillary, Host, ReceiveFlags, Received};
use crate::listing::Stage;
use crate::network::{Name, Network};
use crate::options::{Flags, Options};
use core::any::Any;
use core::net::IpAddr;
use quire_fs::{FsError, Io, Readiness, Ready, Sink, Source, Stream};
use quire_heap::{Arc, Room};
use quire_sync::atomic::Ordering;

impl<H: Host> Socket<H> {
    /// A socket without a name or a peer. [`FsError::Unsupported`] if the family does not have the kind.
    pub fn new(network: &'static Network<H>, family: Family, kind: Kind) -> Result<Arc<Self>, FsError> {
        if family != Family::Unix && kind == Kind::SeqPacket {
            return Err(FsError::Unsupported);
        }
        let room = Room::try_new()?;
        let endpoint = Arc::try_new(Endpoint::new(network, family, kind, Options::new()))?;
        Endpoint::list(&endpoint)?;
        Ok(room.fill(Socket { endpoint }))
    }

    /// Two Unix sockets that are connected to each other.
    pub fn pair(network: &'static Network<H>, kind: Kind, me: Credentials) -> Result<(Arc<Self>, Arc<Self>), FsError> {
        let (one, other) = (Self::new(network, Family::Unix, kind)?, Self::new(network, Family::Unix, kind)?);
        Endpoint::join(&one.endpoint, &other.endpoint, me);
        Ok((one, other))
    }

    /// The family of the socket's addresses.
    pub fn family(&self) -> Family {
        self.endpoint.family
    }

    /// Sets the inode number and the user that made the socket. The list of sockets shows both.
    pub fn set_file(&self, inode: u64, uid: u32) {
        self.endpoint.inode.store(inode, Ordering::Relaxed);
        self.endpoint.uid.store(uid, Ordering::Relaxed);
    }

    /// Whether the socket moves a stream, datagrams or packets.
    pub fn kind(&self) -> Kind {
        self.endpoint.kind
    }

    /// Sets the number of bytes for which a read of a stream waits. Polls of TCP sockets depend on this number too, so
    /// the call notifies them.
    pub fn set_low_water(&self, bytes: usize) {
        self.options().set_low_water(bytes);
        self.endpoint.readiness.notify();
    }

    /// The socket's options.
    pub fn options(&self) -> &Options {
        &self.endpoint.options
    }

    /// Whether the socket has a name or a port, or a call is binding it.
    pub fn is_bound(&self) -> bool {
        self.endpoint.state().name.is_some()
    }

    /// Whether the socket is a listener.
    pub fn is_listening(&self) -> bool {
        self.endpoint.state().phase == Phase::Listening
    }

    /// Binds the socket to a name. [`FsError::Invalid`] if it is bound already.
    pub fn bind(&self, at: Place<'_, H::Node>, me: Credentials) -> Result<(), FsError> {
        match self.endpoint.is_unix() {
            true => Endpoint::bind_unix(&self.endpoint, at),
            false => Endpoint::bind_inet(&self.endpoint, at, me.uid),
        }
    }

    /// Makes the socket a listener. Up to `backlog + 1` connections can wait for [`accept`](Self::accept).
    pub fn listen(&self, backlog: u32, me: Credentials) -> Result<(), FsError> {
        match self.endpoint.is_datagram() {
            true => Err(FsError::Unsupported),
            false => Endpoint::listen(&self.endpoint, backlog, me),
        }
    }

    /// Accepts the next connection. The call waits for one as `io` allows.
    pub fn accept(&self, io: &Io<'_>) -> Result<Arc<Self>, FsError> {
        if self.endpoint.is_datagram() {
            return Err(FsError::Unsupported);
        }
        let room = Room::try_new()?;
        let accepted = limited(self.endpoint.accept(io), self.options().receive_timeout())?;
        Ok(room.fill(Socket { endpoint: accepted }))
    }

    /// Connects to `to`. A nonblocking call on a TCP socket returns [`FsError::InProgress`], also if the connection is
    /// made already. Once the connection is made, one more call of `connect` succeeds, and only one.
    pub fn connect(&self, io: &Io<'_>, to: &Destination<'_>, me: Credentials) -> Result<(), FsError> {
        match self.endpoint.is_datagram() {
            true => Endpoint::connect_datagram(&self.endpoint, to),
            false => limited(Endpoint::connect_stream(&self.endpoint, io, to, me), self.options().send_timeout()),
        }
    }

    /// Continues a [`connect`](Self::connect) whose thread gave up its kernel stack while it slept.
    pub fn wait_connected(&self, io: &Io<'_>) -> Result<(), FsError> {
        limited(self.endpoint.wait_connected(io, self.endpoint.began(io)), self.options().send_timeout())
    }

    /// Removes the peer of a datagram socket. For a TCP socket, ends the connection, the attempt to connect, or the
    /// listening. [`FsError::Invalid`] for connection-based Unix sockets.
    pub fn disconnect(&self) -> Result<(), FsError> {
        Endpoint::disconnect(&self.endpoint)
    }

    /// Shuts down one or both directions of a connection. A listener that is shut down for receiving accepts no more
    /// connections.
    pub fn shutdown(&self, read: bool, write: bool) -> Result<(), FsError> {
        Endpoint::shutdown(&self.endpoint, read, write)
    }

    /// Sends the bytes of `source` as a part of a stream or as one message, and returns the number of bytes. Files and
    /// credentials reach only Unix sockets. The call fails only if it sent no byte.
    pub fn send(
        &self,
        io: &Io<'_>,
        source: &mut dyn Source,
        to: Option<&Destination<'_>>,
        ancillary: Ancillary<H>,
    ) -> Result<usize, FsError> {
        let endpoint = &self.endpoint;
        let choice = ancillary.choice;
        let mut attached = if endpoint.is_unix() { self.attached(to, ancillary)? } else { None };
        let done = match endpoint.kind {
            Kind::Datagram => Endpoint::send_datagram(endpoint, io, source, to, choice, attached),
            _ if to.is_some() && endpoint.is_unix() => match endpoint.state().phase {
                Phase::Connected => Err(FsError::IsConnected),
                _ => Err(FsError::Unsupported),
            },
            Kind::Stream => endpoint.send_stream(io, source, Some(&mut attached)),
            Kind::SeqPacket => Endpoint::send_packet(endpoint, io, source, attached),
        };
        limited(done, endpoint.options.send_timeout())
    }

    /// The files and credentials of a message. The credentials are left out unless one of the two sockets has asked for
    /// them.
    fn attached(
        &self,
        to: Option<&Destination<'_>>,
        mut ancillary: Ancillary<H>,
    ) -> Result<Option<quire_heap::Box<InFlight<Endpoint<H>>>>, FsError> {
        if ancillary.credentials.is_some() && !self.endpoint.options.has(Flags::PASS_CREDENTIALS) {
            let asks = match to {
                Some(to) => self.endpoint.network.find_unix(to).is_ok_and(|receiver| receiver.takes_credentials()),
                None => self.endpoint.peer_takes_credentials(),
            };
            if !asks {
                ancillary.credentials = None;
            }
        }
        InFlight::put_in_flight(&self.endpoint.network.collector, ancillary)
    }

    /// Receives bytes or a message. Zero bytes from a connection mean its end.
    pub fn receive(&self, io: &Io<'_>, sink: &mut dyn Sink, flags: ReceiveFlags) -> Result<Received<H>, FsError> {
        let done = match self.endpoint.kind {
            Kind::Stream => self.endpoint.receive_stream(io, sink, flags),
            Kind::Datagram | Kind::SeqPacket => self.endpoint.receive_message(io, sink, flags),
        };
        limited(done, self.options().receive_timeout())
    }

    /// The socket's own name.
    pub fn local(&self) -> Address {
        let endpoint = &self.endpoint;
        if endpoint.is_unix() {
            return endpoint.state().local.clone().unwrap_or(Address::Unnamed);
        }
        let remote = match &endpoint.state().remote {
            Some(Address::Inet(at)) => Some(at.ip()),
            _ => None,
        };
        let at = remote.map_or_else(|| endpoint.inet(), |to: IpAddr| endpoint.inet_towards(to));
        match at.ip() {
            // An IPv6 socket shows the IPv4 wildcard only if it was bound to the IPv4 wildcard. Otherwise it shows the
            // wildcard of IPv6.
            ip if at.port() == 0 && ip.is_unspecified() => Address::Inet(endpoint.wildcard()),
            _ => Address::Inet(at).seen_by(endpoint.family),
        }
    }

    /// The peer's name. [`FsError::NotConnected`] without a peer.
    pub fn remote(&self) -> Result<Address, FsError> {
        let state = self.endpoint.state();
        match state.phase {
            Phase::Connected | Phase::Unreported => {
                Ok(state.remote.clone().unwrap_or(Address::Unnamed).seen_by(self.endpoint.family))
            }
            _ => Err(FsError::NotConnected),
        }
    }

    /// Like [`remote`](Self::remote), but [`FsError::NotConnected`] also if a TCP connection has ended in both
    /// directions.
    pub fn peer_name(&self) -> Result<Address, FsError> {
        match self.endpoint.is_tcp() && self.stage() == Stage::Closed {
            true => Err(FsError::NotConnected),
            false => self.remote(),
        }
    }

    /// The identity of the peer's process when it connected, listened, or made the pair.
    pub fn peer_credentials(&self) -> Option<Credentials> {
        self.endpoint.state().peer_credentials
    }

    /// Returns and clears the error that waits for the next call.
    pub fn take_error(&self) -> Option<FsError> {
        self.endpoint.take_error()
    }

    /// The length of the first message in bytes, or 0 without one.
    pub fn next_datagram(&self) -> usize {
        self.endpoint.inbox.queue().get(0).map_or(0, |message| message.len())
    }

    /// The socket's state as a table shows it.
    pub fn stage(&self) -> Stage {
        self.endpoint.stage()
    }

    /// For a connection-based Unix socket, the number of sent bytes that the peer has not read. Otherwise 0, because
    /// bytes and datagrams arrive at once.
    pub fn unsent(&self) -> usize {
        let peer = if self.endpoint.is_unix() && !self.endpoint.is_datagram() { self.endpoint.peer() } else { None };
        peer.map_or(0, |peer| peer.inbox.queue().bytes)
    }

    /// Frees the socket's name or port.
    fn forget_name(&self) {
        let name = self.endpoint.state().name.take();
        match name {
            None | Some(Name::Pending) => {}
            Some(Name::Port(port)) => self.endpoint.forget_port(port),
            Some(name) => self.endpoint.forget_unix(&name),
        }
    }

    /// Whether a write could proceed without a wait.
    fn is_writable(&self) -> bool {
        let endpoint = &self.endpoint;
        let Some(peer) = endpoint.peer() else { return true };
        let below = || {
            let mut queue = peer.inbox.queue();
            queue.refuses(endpoint.place()) || queue.is_below(endpoint.limit(&peer) / 2)
        };
        // The receiver of a datagram socket does not know this socket as its peer. So this socket registers for a
        // notification, and checks again.
        endpoint.shut.load(Ordering::Acquire)
            || below()
            || endpoint.is_datagram() && (!Endpoint::poll_room(endpoint, &peer) || below())
    }
}

/// The result of a call that waited at most `timeout` nanoseconds, or without a limit if `timeout` is 0. An interrupted
/// call with a limit must not be restarted, so its error becomes [`FsError::Stopped`].
fn limited<T>(done: Result<T, FsError>, timeout: u64) -> Result<T, FsError> {
    done.map_err(|e| if e == FsError::Interrupted && timeout != 0 { FsError::Stopped } else { e })
}

impl<H: Host> Stream for Socket<H> {
    fn read(&self, io: &Io<'_>, sink: &mut dyn Sink) -> Result<usize, FsError> {
        // As on Linux, `read` with an empty buffer leaves the messages in the queue. Only `recv` takes a message in
        // that case.
        if sink.room() == 0 {
            return Ok(0);
        }
        // `read` closes files that come with the bytes.
        let endpoint = &self.endpoint;
        if endpoint.kind == Kind::Stream {
            let mut received = Received::nothing();
            let done = endpoint.receive_bytes(io, sink, ReceiveFlags::empty(), &mut received);
            return limited(done, endpoint.options.receive_timeout()).map(|()| received.bytes);
        }
        self.receive(io, sink, ReceiveFlags::empty()).map(|received| received.bytes)
    }

    fn write(&self, io: &Io<'_>, source: &mut dyn Source) -> Result<usize, FsError> {
        let endpoint = &self.endpoint;
        if endpoint.kind == Kind::Stream && !endpoint.passes_credentials() {
            return limited(endpoint.send_stream(io, source, None), endpoint.options.send_timeout());
        }
        let credentials = endpoint.is_unix().then(|| endpoint.network.host.caller());
        self.send(io, source, None, Ancillary { credentials, ..Ancillary::none() })
    }

    fn ready(&self) -> Ready {
        let endpoint = &self.endpoint;
        let (phase, waiting) = {
            let state = endpoint.state();
            (state.phase, state.backlog.as_ref().is_none_or(|backlog| !backlog.queue.is_empty()))
        };
        let mut ready = Ready::empty();
        // A listener does not show the error of an earlier connection.
        ready.set(Ready::ERROR, phase != Phase::Listening && endpoint.has_error());
        let stream = !endpoint.is_datagram();
        match phase {
            Phase::Listening => {
                ready.set(Ready::READ, waiting);
                return ready;
            }
            Phase::Connecting => return ready,
            Phase::Idle if stream => return ready | Ready::WRITE | Ready::HANGUP,
            // A refused socket looks like a connection that has ended in both directions.
            Phase::Refused => return ready | Ready::WRITE | Ready::HANGUP | Ready::READ | Ready::READ_HANGUP,
            _ => {}
        }
        let (data, ended) = {
            let queue = endpoint.inbox.queue();
            let few = endpoint.is_tcp() && queue.bytes < endpoint.options.low_water();
            // If more than half of the buffer is filled, a writer may wait for room. Then the socket is readable with
            // fewer bytes too.
            let enough = !few || queue.charge > endpoint.options.receive_buffer() / 2;
            (!queue.is_empty() && enough, queue.ended)
        };
        ready.set(Ready::READ, data || ended);
        ready.set(Ready::READ_HANGUP, ended);
        ready.set(Ready::HANGUP, ended && endpoint.shut.load(Ordering::Acquire));
        ready.set(Ready::WRITE, self.is_writable());
        ready
    }

    fn readiness(&self) -> Option<&Readiness> {
        Some(&self.endpoint.readiness)
    }

    fn queued(&self) -> Result<usize, FsError> {
        match self.endpoint.kind {
            _ if self.is_listening() => Err(FsError::Invalid),
            Kind::Datagram => Ok(self.next_datagram()),
            _ => Ok(self.endpoint.inbox.queue().bytes),
        }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl<H: Host> Drop for Socket<H> {
    fn drop(&mut self) {
        self.forget_name();
        Endpoint::close(&self.endpoint);
    }
}
