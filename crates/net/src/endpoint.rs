//! The part of a socket that other sockets reach.
//!
//! # Locks
//! A thread holds the connection of one endpoint at a time (`state`), and below it at most one inbox. Both are released
//! before a notification, and before messages, files or other endpoints are dropped.
//!
//! The calls that start or end connections of a TCP socket, and those that give a UDP socket a peer or take it away,
//! are serial by a sleeping lock (`calls`), which is taken first. A call releases it before it waits. Other sockets'
//! calls do not take it: they look under `state` whether the socket is still their peer.

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
    /// Takes connections.
    Listening,
    /// A call is connecting it, or it waits for a place at a listener.
    Connecting,
    /// Refused while no call waited for it. The next call of `connect` says so, and makes the socket idle. The error is
    /// left before this state can be seen.
    Refused,
    /// Connected, but the next call of `connect` must report it.
    Unreported,
    /// Connected, perhaps to a peer that has closed.
    Connected,
}

/// Connections that wait for `accept`.
pub(crate) struct Backlog<H: Host> {
    /// The servers' ends. Those behind the first `most` belong to internet sockets that are still connecting.
    pub queue: Deque<Arc<Endpoint<H>>>,
    pub most: usize,
}

/// The connection and the names of an endpoint.
pub(crate) struct State<H: Host> {
    pub phase: Phase,
    /// Cleared by this endpoint's own calls, and where its listener closes before it has a place.
    pub peer: Option<Arc<Endpoint<H>>>,
    pub local: Option<Address>,
    pub remote: Option<Address>,
    pub peer_credentials: Option<Credentials>,
    pub backlog: Option<Backlog<H>>,
    /// The name by which it is in a table of the network.
    pub name: Option<Name>,
    pub node: Option<H::Node>,
    /// The program chose the address, or the port, of an internet socket. A TCP socket keeps it when it disconnects.
    pub fixed_address: bool,
    pub fixed_port: bool,
}

/// The number of an error that waits.
fn number(error: FsError) -> u8 {
    ERRORS.iter().position(|e| *e == error).map_or(0, |at| at as u8 + 1)
}

impl<H: Host> State<H> {
    /// Takes the port of an internet socket away, unless the program chose it. The caller frees it without the lock.
    pub(crate) fn take_port(&mut self) -> Option<u16> {
        match self.name {
            Some(Name::Port(port)) if !self.fixed_port => {
                self.name = None;
                Some(port)
            }
            _ => None,
        }
    }

    /// Its own internet address.
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
    /// Announces every change, for readers, writers and polls of this socket.
    pub(crate) readiness: Readiness,
    /// Announces room in the backlog or, for datagrams, in the inbox, to other sockets.
    pub(crate) room: Readiness,
    /// Datagram sockets whose polls wait for room here: each once, in the order of their addresses.
    pub(crate) polls: SpinLock<Vec<Weak<Endpoint<H>>>>,
    pub(crate) inbox: Inbox<InFlight<Self>>,
    error: AtomicU8,
    /// This socket sends no more.
    pub(crate) shut: AtomicBool,
    /// The endpoint waits in a listener's queue. Its program may ask for credentials once it has it.
    pub(crate) unaccepted: AtomicBool,
    /// Calls that start or end connections of this TCP socket, or change this UDP socket's peer, one at a time.
    pub(crate) calls: Mutex<Calls>,
    /// Counts the disconnects of a TCP socket. It changes under `state` and the inbox's lock. A call that waits
    /// compares it, because the socket may have another connection already.
    pub(crate) disconnects: AtomicU32,
    state: SpinLock<State<H>>,
    pub(crate) marks: CollectorMarks<Self>,
    /// The number of its inode, and the user that made it, for the list of sockets.
    pub(crate) inode: AtomicU64,
    pub(crate) uid: AtomicU32,
}

/// A socket. Dropping it closes it.
pub struct Socket<H: Host> {
    pub(crate) endpoint: Arc<Endpoint<H>>,
}

/// The order of the calls that start or end connections.
pub(crate) struct Calls;

/// The errors that wait for a call, with their numbers.
const ERRORS: [FsError; 3] = [FsError::Reset, FsError::Refused, FsError::BrokenPipe];

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

    /// Whether it waits to be accepted.
    pub(crate) fn is_unaccepted(&self) -> bool {
        self.unaccepted.load(Ordering::Relaxed)
    }

    /// Whether it is a stream of the internet.
    pub(crate) fn is_tcp(&self) -> bool {
        self.kind == Kind::Stream && !self.is_unix()
    }

    /// Whether messages have no connection.
    pub(crate) fn is_datagram(&self) -> bool {
        self.kind == Kind::Datagram
    }

    pub(crate) fn peer(&self) -> Option<Arc<Endpoint<H>>> {
        self.state().peer.clone()
    }

    /// Whether the credentials of senders are for it. As on Linux, an accepted socket may ask for them later.
    pub(crate) fn takes_credentials(&self) -> bool {
        self.options.has(Flags::PASS_CREDENTIALS) || self.is_unaccepted()
    }

    pub(crate) fn peer_takes_credentials(&self) -> bool {
        self.state().peer.as_ref().is_some_and(|peer| peer.takes_credentials())
    }

    /// Whether credentials go with its messages to its peer.
    pub(crate) fn passes_credentials(&self) -> bool {
        self.is_unix() && (self.options.has(Flags::PASS_CREDENTIALS) || self.peer_takes_credentials())
    }

    /// Leaves an error for the next call, unless an earlier one waits.
    pub(crate) fn fail(&self, error: FsError) {
        let _earlier = self.error.compare_exchange(0, number(error), Ordering::AcqRel, Ordering::Acquire);
    }

    /// Leaves an error for the next call, whatever waits.
    pub(crate) fn fail_anew(&self, error: FsError) {
        self.error.store(number(error), Ordering::Release);
    }

    pub(crate) fn has_error(&self) -> bool {
        self.error.load(Ordering::Acquire) != 0
    }

    /// The error that waits for a call. It stays.
    pub(crate) fn error(&self) -> Option<FsError> {
        ERRORS.get(usize::from(self.error.load(Ordering::Acquire)).checked_sub(1)?).copied()
    }

    pub(crate) fn take_error(&self) -> Option<FsError> {
        let number = if self.has_error() { self.error.swap(0, Ordering::AcqRel) } else { 0 };
        ERRORS.get(usize::from(number).checked_sub(1)?).copied()
    }

    /// The end of an attempt to connect, for the call that reports it to the program. `state` is this endpoint's.
    pub(crate) fn end_attempt(&self, state: &mut State<H>) -> FsError {
        if state.phase == Phase::Refused {
            state.phase = Phase::Idle;
        }
        self.take_error().unwrap_or(FsError::Aborted)
    }

    /// Whether a connection was refused, and `connect` has not said so yet.
    pub(crate) fn is_refused(&self) -> bool {
        self.is_tcp() && self.state().phase == Phase::Refused
    }

    /// How long a read waits. `limited` keeps the options, if they are others than the caller's.
    pub(crate) fn reading<'i, 'a>(&self, io: &'i Io<'a>, limited: &'i mut Option<Io<'a>>) -> &'i Io<'a> {
        within(io, self.options.receive_timeout(), limited)
    }

    /// How long a write waits; see [`reading`](Self::reading).
    pub(crate) fn writing<'i, 'a>(&self, io: &'i Io<'a>, limited: &'i mut Option<Io<'a>>) -> &'i Io<'a> {
        within(io, self.options.send_timeout(), limited)
    }

    /// The charge up to which this socket may fill `receiver`'s inbox.
    pub(crate) fn limit(&self, receiver: &Endpoint<H>) -> usize {
        if self.is_unix() { self.options.send_buffer() } else { receiver.options.receive_buffer() }
    }

    /// The endpoint's address, which no other endpoint has while it lives.
    pub(crate) fn place(&self) -> usize {
        core::ptr::from_ref(self).addr()
    }

    /// The disconnects of this socket, for a call that may wait.
    pub(crate) fn disconnects(&self) -> u32 {
        self.disconnects.load(Ordering::Acquire)
    }

    /// `peer` has closed the connection. `reset` is the error if it lost data.
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
            // A call on the peer may still send.
            queue.receive_shutdown |= self.is_tcp();
        }
        if !mutant(Mutant::NotifiedBeforeEnd) {
            self.readiness.notify();
        }
    }

    /// Notifies polls of connected datagram sockets of room.
    pub(crate) fn announce_room(&self) {
        self.room.notify();
        let polls = core::mem::take(&mut *self.polls.lock());
        for poll in polls.iter().filter_map(Weak::upgrade) {
            poll.readiness.notify();
        }
    }

    /// Has `receiver` notify this socket when it makes room. False where there is no memory for that.
    pub(crate) fn poll_room(this: &Arc<Self>, receiver: &Endpoint<H>) -> bool {
        let this = Arc::downgrade(this);
        let mut polls = receiver.polls.lock();
        // A weak reference keeps the memory of its endpoint, so no other endpoint gets the address meanwhile.
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

    /// Closes it, when its socket is dropped and its name is free. No call on it is under way; other sockets may still
    /// reach it.
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

    /// The error of `peer` if this socket closes and loses data. After this socket's end of writing, TCP gives the
    /// error of a pipe. If both have ended, the connection is over and has none.
    pub(crate) fn reset_of(&self, peer: &Endpoint<H>) -> Option<FsError> {
        let ended = |side: &Endpoint<H>| self.is_tcp() && side.shut.load(Ordering::Acquire);
        match (ended(self), ended(peer)) {
            (false, _) => Some(FsError::Reset),
            (true, false) => Some(FsError::BrokenPipe),
            (true, true) => None,
        }
    }

    /// Takes no more messages, and removes none. Returns whether there are any.
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
            // The client may still wait for a place in the backlog.
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

/// `io` with a deadline, if it has none and `timeout` is not 0. Mostly it is 0, and nothing is copied.
#[inline]
fn within<'i, 'a>(io: &'i Io<'a>, timeout: u64, limited: &'i mut Option<Io<'a>>) -> &'i Io<'a> {
    let deadline = match io.earlier() {
        // The first attempt has set the time limit.
        Some(earlier) => earlier.deadline,
        None if timeout == 0 => return io,
        None => Some(now().saturating_add(timeout)),
    };
    if deadline.is_none() || io.deadline.is_some() {
        return io;
    }
    limited.insert(Io { deadline, ..*io })
}
