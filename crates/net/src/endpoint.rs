//! The part of a socket that other sockets reach.
//!
//! # Locks
//! A thread locks the `state` of at most one endpoint at a time. While it holds that lock, it locks at most one inbox.
//! It releases both before it notifies waiters, and before it drops messages, files or other endpoints.
//!
//! The sleeping lock `calls` serialises the calls that start or end a connection of a TCP socket. The lock also
//! serialises the calls that change the peer of a UDP socket. A call acquires `calls` before all other locks, and
//! releases it before it waits. Calls on other sockets do not acquire this socket's `calls`. Such a call locks this
//! socket's `state`, and checks whether this socket is still the peer of the call's socket.

use crate::address::{Address, Credentials, Family, Kind};
use crate::collect::{Collector, CollectorMarks, InFlight, Member};
use crate::host::Host;
use crate::inbox::Inbox;
use crate::mutant::{Mutant, mutant};
use crate::network::{Name, Network};
use crate::options::{Flags, Options};
use core::net::SocketAddr;
use quire_fs::{FsError, Io, Readiness};
use quire_heap::{Arc, Deque, Vec, Weak};
use quire_sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use quire_sync::hooks::now;
use quire_sync::{Mutex, Rank, SpinGuard, SpinLock};

/// The state of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    /// Not connected yet.
    Idle,
    /// The socket is listening.
    Listening,
    /// A call of `connect` is under way, or the socket waits for a place in a listener's backlog.
    Connecting,
    /// The attempt was refused while no call waited. The next call of `connect` returns the error and makes the socket
    /// idle. The error is stored before the phase becomes `Refused`.
    Refused,
    /// Connected, but the next call of `connect` must report it.
    Unreported,
    /// Connected, perhaps to a peer that has closed.
    Connected,
}

/// Connections that wait for `accept`.
pub(crate) struct Backlog<H: Host> {
    /// The servers' ends of the connections. The clients of the first `most` are connected. The clients of the others
    /// are TCP sockets that are still connecting.
    pub queue: Deque<Arc<Endpoint<H>>>,
    pub most: usize,
    /// The listener is a Unix socket that is shut down for receiving. Its connections can still be accepted.
    pub closed: bool,
}

/// The connection and the names of an endpoint.
pub(crate) struct State<H: Host> {
    pub phase: Phase,
    /// The connected peer. This endpoint's own calls clear the field. A listener also clears it if the listener closes
    /// before the endpoint has a place in the backlog.
    pub peer: Option<Arc<Endpoint<H>>>,
    pub local: Option<Address>,
    pub remote: Option<Address>,
    pub peer_credentials: Option<Credentials>,
    pub backlog: Option<Backlog<H>>,
    /// The key of this endpoint in a table of the network.
    pub name: Option<Name>,
    pub node: Option<H::Node>,
    /// The program chose the address (or the port) of this internet socket. A TCP socket keeps a chosen address when it
    /// disconnects.
    pub fixed_address: bool,
    pub fixed_port: bool,
}

/// The number that stands for `error` in `Endpoint::error`: 1 or more.
fn number(error: FsError) -> u8 {
    ERRORS.iter().position(|e| *e == error).map_or(0, |at| at as u8 + 1)
}

impl<H: Host> State<H> {
    /// Clears and returns the port of an internet socket. Returns `None` if the program chose the port. The caller
    /// frees the port after it has released the lock.
    pub(crate) fn take_port(&mut self) -> Option<u16> {
        match self.name {
            Some(Name::Port(port)) if !self.fixed_port => {
                self.name = None;
                Some(port)
            }
            _ => None,
        }
    }

    /// The endpoint's own internet address.
    pub(crate) fn inet(&self) -> Option<SocketAddr> {
        match self.local {
            Some(Address::Inet(at)) => Some(at),
            _ => None,
        }
    }

    /// Whether `other` is the peer.
    pub(crate) fn is_peer(&self, other: &Arc<Endpoint<H>>) -> bool {
        self.peer.as_ref().is_some_and(|peer| Arc::ptr_eq(peer, other))
    }
}

/// The shared part of a socket.
pub struct Endpoint<H: Host> {
    pub(crate) network: &'static Network<H>,
    pub(crate) family: Family,
    pub(crate) kind: Kind,
    pub(crate) options: Options,
    /// Notifies readers, writers and polls of this socket of every change.
    pub(crate) readiness: Readiness,
    /// Notifies clients of room in the backlog.
    pub(crate) room: Readiness,
    /// Datagram sockets whose sends and polls wait for room in this inbox. The list is sorted by address and has no duplicates.
    pub(crate) polls: SpinLock<Vec<Weak<Endpoint<H>>>>,
    pub(crate) inbox: Inbox<InFlight<Self>>,
    error: AtomicU8,
    /// This socket is shut down for sending.
    pub(crate) shut: AtomicBool,
    /// The endpoint waits in a listener's backlog. The program that accepts it may still ask for credentials.
    pub(crate) unaccepted: AtomicBool,
    /// Serialises calls that start or end connections of this TCP socket, or that change the peer of this UDP socket.
    pub(crate) calls: Mutex<Calls>,
    /// The number of disconnects of a TCP socket. A change needs both the lock of `state` and the lock of the inbox. A
    /// call that slept compares the number, because the socket may have a new connection already.
    pub(crate) disconnects: AtomicU32,
    state: SpinLock<State<H>>,
    pub(crate) marks: CollectorMarks<Self>,
    /// The inode number, and the user that made the socket. The list of sockets shows both.
    pub(crate) inode: AtomicU64,
    pub(crate) uid: AtomicU32,
}

/// A socket. Dropping the value closes the socket.
pub struct Socket<H: Host> {
    pub(crate) endpoint: Arc<Endpoint<H>>,
}

/// The content of the lock `Endpoint::calls`, which guards no data.
pub(crate) struct Calls;

/// The errors that may wait for the next call. The number of an error is its index in this array, plus 1.
const ERRORS: [FsError; 4] = [FsError::Reset, FsError::Refused, FsError::BrokenPipe, FsError::Fault];

impl<H: Host> Endpoint<H> {
    pub(crate) fn new(network: &'static Network<H>, family: Family, kind: Kind, options: Options) -> Self {
        let state = State {
            phase: Phase::Idle,
            peer: None,
            local: None,
            remote: None,
            peer_credentials: None,
            backlog: None,
            name: None,
            node: None,
            fixed_address: false,
            fixed_port: false,
        };
        Endpoint {
            network,
            family,
            kind,
            options,
            readiness: Readiness::new(),
            room: Readiness::new(),
            polls: SpinLock::new(Rank::SOCKET, Vec::new()),
            inbox: Inbox::new(),
            error: AtomicU8::new(0),
            shut: AtomicBool::new(false),
            unaccepted: AtomicBool::new(false),
            calls: Mutex::new(Calls),
            disconnects: AtomicU32::new(0),
            state: SpinLock::new(Rank::SOCKET, state),
            marks: CollectorMarks::new(),
            inode: AtomicU64::new(0),
            uid: AtomicU32::new(0),
        }
    }

    pub(crate) fn state(&self) -> SpinGuard<'_, State<H>> {
        self.state.lock()
    }

    pub(crate) fn is_unix(&self) -> bool {
        self.family == Family::Unix
    }

    /// Whether the endpoint waits in a backlog to be accepted.
    pub(crate) fn is_unaccepted(&self) -> bool {
        self.unaccepted.load(Ordering::Relaxed)
    }

    /// Whether the socket is a TCP socket.
    pub(crate) fn is_tcp(&self) -> bool {
        self.kind == Kind::Stream && !self.is_unix()
    }

    /// Whether the socket sends datagrams, which need no connection.
    pub(crate) fn is_datagram(&self) -> bool {
        self.kind == Kind::Datagram
    }

    pub(crate) fn peer(&self) -> Option<Arc<Endpoint<H>>> {
        self.state().peer.clone()
    }

    /// Whether senders must attach their credentials to messages for this endpoint. An unaccepted endpoint counts too,
    /// because as on Linux its program may ask for credentials later.
    pub(crate) fn takes_credentials(&self) -> bool {
        self.options.has(Flags::PASS_CREDENTIALS) || self.is_unaccepted()
    }

    pub(crate) fn peer_takes_credentials(&self) -> bool {
        self.state().peer.as_ref().is_some_and(|peer| peer.takes_credentials())
    }

    /// Whether messages from this endpoint to its peer carry credentials.
    pub(crate) fn passes_credentials(&self) -> bool {
        self.is_unix() && (self.options.has(Flags::PASS_CREDENTIALS) || self.peer_takes_credentials())
    }

    /// Stores an error for the next call. An earlier error stays.
    pub(crate) fn fail(&self, error: FsError) {
        let _earlier = self.error.compare_exchange(0, number(error), Ordering::AcqRel, Ordering::Acquire);
    }

    /// Stores an error for the next call, and replaces an earlier error.
    pub(crate) fn fail_anew(&self, error: FsError) {
        self.error.store(number(error), Ordering::Release);
    }

    pub(crate) fn has_error(&self) -> bool {
        self.error.load(Ordering::Acquire) != 0
    }

    /// The error that waits for the next call, without clearing it.
    pub(crate) fn error(&self) -> Option<FsError> {
        ERRORS.get(usize::from(self.error.load(Ordering::Acquire)).checked_sub(1)?).copied()
    }

    pub(crate) fn take_error(&self) -> Option<FsError> {
        let number = if self.has_error() { self.error.swap(0, Ordering::AcqRel) } else { 0 };
        ERRORS.get(usize::from(number).checked_sub(1)?).copied()
    }

    /// Ends a failed attempt to connect, and returns the error that `connect` reports. `state` is this endpoint's
    /// state.
    pub(crate) fn end_attempt(&self, state: &mut State<H>) -> FsError {
        if state.phase == Phase::Refused {
            state.phase = Phase::Idle;
        }
        self.take_error().unwrap_or(FsError::Aborted)
    }

    /// Whether a connection was refused, and no call of `connect` has reported the refusal yet.
    pub(crate) fn is_refused(&self) -> bool {
        self.is_tcp() && self.state().phase == Phase::Refused
    }

    /// The `io` of a read, with the socket's receive timeout. If the timeout applies, the result is in `limited`.
    pub(crate) fn reading<'i, 'a>(&self, io: &'i Io<'a>, limited: &'i mut Option<Io<'a>>) -> &'i Io<'a> {
        within(io, self.options.receive_timeout(), limited)
    }

    /// The `io` of a write, with the socket's send timeout; see [`reading`](Self::reading).
    pub(crate) fn writing<'i, 'a>(&self, io: &'i Io<'a>, limited: &'i mut Option<Io<'a>>) -> &'i Io<'a> {
        within(io, self.options.send_timeout(), limited)
    }

    /// The charge, in bytes, up to which this socket may fill `receiver`'s inbox. The inbox of a TCP socket also has the
    /// bytes that wait in the sender's buffer on other systems, so its limit is the sum of both buffers.
    pub(crate) fn limit(&self, receiver: &Endpoint<H>) -> usize {
        match self.is_unix() {
            true => self.options.send_buffer(),
            false if self.is_tcp() => receiver.options.receive_buffer() + self.options.send_buffer(),
            false => receiver.options.receive_buffer(),
        }
    }

    /// The charge, in bytes, of `receiver`'s inbox at which a writer of this socket that found no room goes on. Half of
    /// the sender's buffer is free then.
    pub(crate) fn half_free(&self, receiver: &Endpoint<H>) -> usize {
        // Another thread may change the option between the two reads.
        self.limit(receiver).saturating_sub(self.options.send_buffer() / 2)
    }

    /// The endpoint's address, which no other endpoint has while this endpoint lives.
    pub(crate) fn place(&self) -> usize {
        core::ptr::from_ref(self).addr()
    }

    /// The number of disconnects of this socket. A call that may wait compares the number after the wait.
    pub(crate) fn disconnects(&self) -> u32 {
        self.disconnects.load(Ordering::Acquire)
    }

    /// Ends the inbox, because `peer` has closed the connection. `reset` is the error for this socket, if data was
    /// lost.
    pub(crate) fn hang_up(&self, peer: &Endpoint<H>, reset: Option<FsError>) {
        if mutant(Mutant::NotifiedBeforeEnd) {
            self.readiness.notify();
        }
        {
            let mut queue = self.inbox.queue();
            if queue.is_foreign(peer.place()) {
                return;
            }
            if let Some(error) = reset {
                self.fail(error);
            }
            if reset.is_some() || self.is_unix() {
                self.shut.store(true, Ordering::Release);
            }
            queue.ended = true;
            // A call on the peer may still send bytes, which this inbox must refuse.
            queue.receive_shutdown |= self.is_tcp();
        }
        if !mutant(Mutant::NotifiedBeforeEnd) {
            self.readiness.notify();
        }
    }

    /// Notifies clients of room in the backlog, and datagram sockets of room in the inbox.
    pub(crate) fn announce_room(&self) {
        self.room.notify();
        let polls = core::mem::take(&mut *self.polls.lock());
        for poll in polls.iter().filter_map(Weak::upgrade) {
            poll.readiness.notify();
        }
    }

    /// Registers this socket with `receiver`, which notifies it when the inbox has room. Returns false if memory for
    /// the list is exhausted.
    pub(crate) fn poll_room(this: &Arc<Self>, receiver: &Endpoint<H>) -> bool {
        let this = Arc::downgrade(this);
        let mut polls = receiver.polls.lock();
        // A weak reference keeps the memory of its endpoint allocated, so no other endpoint can have that address.
        let place = |polls: &[Weak<Endpoint<H>>]| {
            polls.binary_search_by_key(&this.as_ptr().addr(), |poll| poll.as_ptr().addr())
        };
        let Err(mut at) = place(&polls) else { return true };
        if polls.len() == polls.capacity() {
            polls.retain(|poll| poll.strong_count() > 0);
            at = place(&polls).unwrap_or_else(|at| at);
        }
        polls.try_insert(at, this).is_ok()
    }

    /// Closes the endpoint, after its socket was dropped and its name was freed. No call on this socket is under way,
    /// but other sockets may still reach the endpoint.
    pub(crate) fn close(this: &Arc<Self>) {
        let (peer, backlog, node) = {
            let mut state = this.state();
            state.phase = Phase::Idle;
            (state.peer.take(), state.backlog.take(), state.node.take())
        };
        let unread = this.end();
        if let Some(peer) = peer.filter(|_| !this.is_datagram()) {
            let lost = unread || !this.is_unix() && this.options.linger() == Some(0);
            peer.hang_up(this, if lost { this.reset_of(&peer) } else { None });
        }
        this.announce_room();
        Self::abort_all(backlog);
        drop(node);
        Collector::bury(this);
    }

    /// The error that `peer` gets if this socket closes while it has unread data. If this socket was shut down for
    /// sending, a TCP peer gets [`FsError::BrokenPipe`]. If both sockets were shut down for sending, there is no error,
    /// because the connection is over.
    pub(crate) fn reset_of(&self, peer: &Endpoint<H>) -> Option<FsError> {
        let ended = |side: &Endpoint<H>| self.is_tcp() && side.shut.load(Ordering::Acquire);
        match (ended(self), ended(peer)) {
            (false, _) => Some(FsError::Reset),
            (true, false) => Some(FsError::BrokenPipe),
            (true, true) => None,
        }
    }

    /// Closes the inbox for new messages, and leaves the old ones there. Returns whether there are old ones.
    fn end(&self) -> bool {
        let mut queue = self.inbox.queue();
        (queue.ended, queue.receive_shutdown, queue.closed) = (true, true, true);
        !queue.is_empty()
    }

    /// Drops a connection that no call has accepted.
    fn abort(this: &Arc<Self>) {
        let peer = this.state().peer.take();
        this.end();
        if let Some(client) = peer {
            // The client may still be connecting, without a place in the backlog. Then its attempt is refused.
            let link = {
                let mut state = client.state();
                match state.phase {
                    Phase::Connecting if !client.is_unix() && state.is_peer(this) => {
                        client.fail(FsError::Refused);
                        (state.phase, state.remote) = (Phase::Refused, None);
                        Some(state.peer.take())
                    }
                    _ => None,
                }
            };
            match link {
                Some(_) => {
                    client.readiness.notify();
                }
                None => client.hang_up(this, Some(FsError::Reset)),
            }
        }
        Collector::bury(this);
    }
}

impl<H: Host> Member for Endpoint<H> {
    type Host = H;
    type Backlog = Backlog<H>;

    fn collector(&self) -> &'static Collector<Self> {
        &self.network.collector
    }

    fn marks(&self) -> &CollectorMarks<Self> {
        &self.marks
    }

    fn inbox(&self) -> &Inbox<InFlight<Self>> {
        &self.inbox
    }

    fn is_unix(&self) -> bool {
        self.family == Family::Unix
    }

    fn of_file(file: &H::File) -> Option<&Arc<Self>> {
        let socket = H::stream_of(file)?.as_any().downcast_ref::<Socket<H>>()?;
        Some(&socket.endpoint).filter(|endpoint| endpoint.is_unix())
    }

    fn each_unaccepted(&self, mut f: impl FnMut(&Self)) {
        let state = self.state();
        if let Some(backlog) = &state.backlog {
            backlog.queue.iter().for_each(|server| f(server));
        }
    }

    fn take_backlog(&self) -> Option<Backlog<H>> {
        self.state().backlog.take()
    }

    fn abort_all(backlog: Option<Backlog<H>>) {
        let Some(mut backlog) = backlog else { return };
        while let Some(server) = backlog.queue.pop_front() {
            Endpoint::abort(&server);
        }
    }
}

/// Returns `io` with a deadline after `timeout` nanoseconds, unless it has a deadline or `timeout` is 0. The usual
/// `timeout` is 0, and then nothing is copied.
#[inline]
fn within<'i, 'a>(io: &'i Io<'a>, timeout: u64, limited: &'i mut Option<Io<'a>>) -> &'i Io<'a> {
    let deadline = match io.earlier() {
        // A call that is repeated keeps the deadline of its first attempt.
        Some(earlier) => earlier.deadline,
        None if timeout == 0 => return io,
        None => Some(now().saturating_add(timeout)),
    };
    if deadline.is_none() || io.deadline.is_some() {
        return io;
    }
    limited.insert(Io { deadline, ..*io })
}
