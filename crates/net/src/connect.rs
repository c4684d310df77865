//! Connections: listening, connecting, accepting, and shutting down.

use crate::address::{Address, Credentials, Destination, Place};
use crate::collect::Member;
use crate::endpoint::{Backlog, Endpoint, Phase};
use crate::host::Host;
use crate::listing::Stage;
use crate::mutant::{Mutant, mutant};
use crate::options::Flags;
use core::mem;
use quire_fs::{FsError, Io};
use quire_heap::{Arc, Deque};
use quire_sync::atomic::Ordering;

/// The largest backlog. Larger values are reduced to this one, so that a listener's memory is bounded.
const BACKLOG_MAX: u32 = 65_535;
/// The most clients of a TCP listener that wait for a place in its backlog.
const WAITING_MAX: usize = 1024;

/// The result of an attempt to queue a connection.
enum Queued {
    /// The backlog has a place for the connection, so its client is connected.
    Within,
    /// The connection waits for a place in the backlog.
    Beyond,
}

impl<H: Host> Endpoint<H> {
    /// Makes the socket a listener, or changes the length of its backlog.
    pub(crate) fn listen(this: &Arc<Self>, backlog: u32, me: Credentials) -> Result<(), FsError> {
        let _calls = this.is_tcp().then(|| this.calls.lock());
        match this.state().phase {
            Phase::Idle | Phase::Listening => {}
            _ => return Err(FsError::Invalid),
        }
        match this.is_unix() {
            true if this.state().name.is_none() => return Err(FsError::Invalid),
            true => {}
            false => {
                Endpoint::bind_for(this, None)?;
                this.change_port(true, None)?;
            }
        }
        let most = backlog.min(BACKLOG_MAX) as usize + 1;
        let before = {
            let mut state = this.state();
            state.peer_credentials = Some(me);
            state.phase = Phase::Listening;
            match &mut state.backlog {
                Some(backlog) => mem::replace(&mut backlog.most, most),
                none => {
                    *none = Some(Backlog { queue: Deque::new(), most });
                    most
                }
            }
        };
        // A longer backlog has places for connections that wait.
        for at in before..most {
            let server = this.state().backlog.as_ref().and_then(|backlog| backlog.queue.get(at).cloned());
            let Some(server) = server else { break };
            Endpoint::within_backlog(&server);
        }
        this.announce_room();
        Ok(())
    }

    /// Accepts the next connection, and returns the server's end of it.
    pub(crate) fn accept(&self, io: &Io<'_>) -> Result<Arc<Self>, FsError> {
        let next = || {
            let mut state = self.state();
            let Some(backlog) = &mut state.backlog else { return Some(Err(FsError::Invalid)) };
            let server = backlog.queue.pop_front()?;
            let within = (!self.is_unix()).then(|| backlog.queue.get(backlog.most - 1).cloned());
            Some(Ok((server, within.flatten())))
        };
        let (server, within) = self.readiness.wait(self.reading(io, &mut None), next)??;
        server.unaccepted.store(false, Ordering::Relaxed);
        if self.is_unix() {
            if !mutant(Mutant::BacklogUnannounced) {
                self.announce_room();
            }
        } else {
            // The client of `server` is also checked. `listen` may have made the backlog longer, and not have notified
            // this client yet.
            within.iter().chain([&server]).for_each(Endpoint::within_backlog);
        }
        Ok(server)
    }

    /// Makes the client of `server` connected, because the listener's backlog has a place for `server`.
    fn within_backlog(server: &Arc<Self>) {
        let Some(client) = server.peer() else { return };
        {
            let mut state = client.state();
            // The client may have ended this attempt, and may connect to another listener.
            if state.phase != Phase::Connecting || !state.is_peer(server) {
                return;
            }
            state.phase = Phase::Unreported;
        }
        client.readiness.notify();
    }

    /// Connects a stream or sequenced-packet socket.
    pub(crate) fn connect_stream(
        this: &Arc<Self>,
        io: &Io<'_>,
        to: &Destination<'_>,
        me: Credentials,
    ) -> Result<(), FsError> {
        let calls = this.is_tcp().then(|| this.calls.lock());
        let since = this.disconnects();
        {
            let mut state = this.state();
            match state.phase {
                Phase::Idle => state.phase = Phase::Connecting,
                Phase::Unreported => {
                    state.phase = Phase::Connected;
                    return Ok(());
                }
                Phase::Refused => return Err(this.end_attempt(&mut state)),
                Phase::Connected => return Err(FsError::IsConnected),
                Phase::Listening if this.is_unix() => return Err(FsError::Invalid),
                Phase::Listening => return Err(FsError::IsConnected),
                Phase::Connecting if this.is_unix() || io.nonblock => return Err(FsError::Already),
                Phase::Connecting => {
                    drop((state, calls));
                    return this.wait_connected(io, since);
                }
            }
        }
        let mut limited = None;
        let io = this.writing(io, &mut limited);
        let done = if this.is_unix() {
            Endpoint::connect_unix(this, io, to, me)
        } else {
            Endpoint::connect_inet(this, to, me)
        };
        match done {
            Ok(Queued::Within) if this.is_unix() || !io.nonblock => {
                {
                    let mut state = this.state();
                    // If the listener has closed since the connection was queued, the listener has undone the
                    // connection.
                    let refused = matches!(state.phase, Phase::Refused | Phase::Idle);
                    if refused && !mutant(Mutant::ConnectedUnchecked) {
                        return Err(this.end_attempt(&mut state));
                    }
                    state.phase = Phase::Connected;
                }
                this.readiness.notify();
                Ok(())
            }
            Ok(Queued::Within) => {
                if let Some(server) = this.peer() {
                    Endpoint::within_backlog(&server);
                }
                Err(FsError::InProgress)
            }
            Ok(Queued::Beyond) if io.nonblock => Err(FsError::InProgress),
            Ok(Queued::Beyond) => {
                drop(calls);
                this.wait_connected(io, since)
            }
            Err(e) => {
                let later = e == FsError::Refused && !this.is_unix() && io.nonblock;
                this.unlink(e, later);
                if later {
                    this.readiness.notify();
                    return Err(FsError::InProgress);
                }
                Err(e)
            }
        }
    }

    /// Undoes an attempt to connect that failed with `error`. If `later` is set, the error is stored for the next call
    /// on the socket.
    fn unlink(&self, error: FsError, later: bool) {
        let mut state = self.state();
        if later {
            self.fail(error);
        }
        (state.phase, state.remote) = (if later { Phase::Refused } else { Phase::Idle }, None);
        let port = (error == FsError::Refused && self.is_tcp()).then(|| self.leave_address(&mut state));
        let peer = state.peer.take();
        drop(state);
        drop(peer);
        port.into_iter().for_each(|port| self.free_port(port));
    }

    /// Waits for a place in the backlog. As on Linux, the call fails with [`FsError::BrokenPipe`] if the socket was
    /// disconnected after `since` was read.
    pub(crate) fn wait_connected(&self, io: &Io<'_>, since: u32) -> Result<(), FsError> {
        let mut limited = None;
        let io = self.writing(io, &mut limited);
        let settled = || {
            let mut state = self.state();
            if self.disconnects() != since {
                return Some(Err(FsError::BrokenPipe));
            }
            match state.phase {
                Phase::Connecting => None,
                Phase::Unreported | Phase::Connected => {
                    state.phase = Phase::Connected;
                    Some(Ok(()))
                }
                _ => Some(Err(self.end_attempt(&mut state))),
            }
        };
        match self.readiness.wait_in(since, io, settled) {
            Ok(done) => done,
            Err(FsError::WouldBlock) => Err(FsError::InProgress),
            Err(e) => Err(e),
        }
    }

    /// Makes the server's end of a new connection, for the listener's backlog.
    fn server(
        this: &Arc<Self>,
        listener: &Endpoint<H>,
        local: Option<Address>,
        remote: Option<Address>,
        me: Credentials,
    ) -> Result<Arc<Self>, FsError> {
        let options = listener.options.inherited(listener.is_unix());
        let server = Arc::try_new(Endpoint::new(this.network, listener.family, listener.kind, options))?;
        Endpoint::list(&server)?;
        server.unaccepted.store(true, Ordering::Relaxed);
        let fixed = listener.is_tcp() && listener.state().fixed_address;
        {
            let mut state = server.state();
            (state.local, state.remote, state.peer) = (local, remote, Some(this.clone()));
            (state.phase, state.peer_credentials) = (Phase::Connected, Some(me));
            state.fixed_address = fixed;
        }
        if server.is_tcp() {
            server.inbox.queue().sender = Some(this.place());
        }
        Ok(server)
    }

    /// Queues `server` in the backlog of this listener.
    fn enqueue(&self, server: &Arc<Self>) -> Result<Queued, FsError> {
        let (queued, left) = {
            let mut state = self.state();
            let backlog = state.backlog.as_mut().ok_or(FsError::Refused)?;
            let within = backlog.queue.len() < backlog.most;
            if !within && self.is_unix() {
                return Err(FsError::WouldBlock);
            }
            // Clients that wait for a place may have closed. Each new connection removes one such client from the
            // queue, so that few of them stay.
            let waiting = backlog.most..backlog.queue.len();
            let closed = |at: &usize| backlog.queue.get(*at).is_some_and(|server| server.inbox.queue().ended);
            let left = waiting.rev().find(closed).and_then(|at| backlog.queue.remove(at));
            if backlog.queue.len() >= backlog.most + WAITING_MAX {
                return Err(FsError::Refused);
            }
            backlog.queue.try_reserve(1)?;
            backlog.queue.push_back_reserved(server.clone());
            (if within { Queued::Within } else { Queued::Beyond }, left)
        };
        drop(left);
        self.readiness.notify();
        Ok(queued)
    }

    fn connect_unix(this: &Arc<Self>, io: &Io<'_>, to: &Destination<'_>, me: Credentials) -> Result<Queued, FsError> {
        if this.options.has(Flags::PASS_CREDENTIALS) && this.state().name.is_none() {
            Endpoint::bind_unix(this, Place::Auto)?;
        }
        loop {
            let listener = this.network.find_unix(to)?;
            if listener.kind != this.kind {
                return Err(FsError::WrongType);
            }
            let (name, theirs) = {
                let state = listener.state();
                (state.local.clone(), state.peer_credentials)
            };
            let mine = this.state().local.clone();
            let server = Endpoint::server(this, &listener, name.clone(), mine, me)?;
            let earlier = {
                let mut state = this.state();
                (state.remote, state.peer_credentials) = (name, theirs);
                state.peer.replace(server.clone())
            };
            drop(earlier);
            let queued = listener.enqueue(&server);
            if queued.is_err() {
                let link = server.state().peer.take();
                drop(link);
            }
            match queued {
                Err(FsError::WouldBlock) => {}
                other => return other,
            }
            let room = || match &listener.state().backlog {
                Some(backlog) => (backlog.queue.len() < backlog.most).then_some(()),
                None => Some(()),
            };
            listener.room.wait(&io.on_stack(), room)?;
        }
    }

    fn connect_inet(this: &Arc<Self>, to: &Destination<'_>, me: Credentials) -> Result<Queued, FsError> {
        let Destination::Inet(to) = to else { return Err(FsError::WrongFamily) };
        let to = this.destination(*to)?;
        this.take_error();
        Endpoint::bind_for(this, Some(to))?;
        let from = this.inet_towards(to.ip());
        let listener = this.network.find_inet(this.kind, from, to).ok_or(FsError::Refused)?;
        let server = Endpoint::server(this, &listener, Some(Address::Inet(to)), Some(Address::Inet(from)), me)?;
        {
            let mut state = this.state();
            (state.remote, state.peer) = (Some(Address::Inet(to)), Some(server.clone()));
            this.inbox.queue().sender = Some(server.place());
        }
        let queued = listener.enqueue(&server);
        if queued.is_err() {
            let link = server.state().peer.take();
            drop(link);
        }
        queued
    }

    /// Connects two new endpoints to each other.
    pub(crate) fn join(this: &Arc<Self>, other: &Arc<Self>, me: Credentials) {
        for (one, other) in [(this, other), (other, this)] {
            let mut state = one.state();
            (state.phase, state.peer) = (Phase::Connected, Some(other.clone()));
            state.peer_credentials = Some(me);
        }
    }

    /// Shuts down one or both directions of a connection.
    pub(crate) fn shutdown(this: &Arc<Self>, read: bool, write: bool) -> Result<(), FsError> {
        let calls = this.is_tcp().then(|| this.calls.lock());
        let (phase, peer, backlog) = {
            let mut state = this.state();
            let listens = this.is_unix() && state.phase == Phase::Listening;
            let backlog = if listens && read { state.backlog.take() } else { None };
            (state.phase, state.peer.clone(), backlog)
        };
        if let Some(calls) = &calls
            && (phase == Phase::Listening && read || phase == Phase::Connecting)
        {
            Endpoint::end_connection(this, calls, false);
            return Ok(());
        }
        if backlog.is_some() {
            Endpoint::abort_all(backlog);
            this.room.notify();
        }
        this.shut_down(phase, peer, read, write)
    }

    fn shut_down(&self, phase: Phase, peer: Option<Arc<Self>>, read: bool, write: bool) -> Result<(), FsError> {
        let over = self.is_tcp() && self.stage_of(phase, peer.as_deref()) == Stage::Closed;
        if write {
            self.shut.store(true, Ordering::Release);
        }
        {
            let mut queue = self.inbox.queue();
            queue.ended |= read;
            queue.receive_shutdown |= match self.is_tcp() {
                false => read && self.is_unix(),
                // TCP accepts bytes until both directions have ended. If two calls end the two directions at once, the
                // call that locks the inbox last sees that both have ended.
                true => {
                    let both = queue.ended && self.shut.load(Ordering::Acquire);
                    both && matches!(phase, Phase::Connected | Phase::Unreported)
                }
            };
        }
        self.readiness.notify();
        self.announce_room();
        if let Some(peer) = peer.filter(|_| !self.is_datagram()) {
            if write {
                let mut queue = peer.inbox.queue();
                queue.ended |= !queue.is_foreign(self.place());
            }
            if read && self.is_unix() {
                peer.shut.store(true, Ordering::Release);
            }
            peer.readiness.notify();
        }
        match phase {
            Phase::Idle | Phase::Refused if !self.is_unix() => Err(FsError::NotConnected),
            _ if over => Err(FsError::NotConnected),
            _ => Ok(()),
        }
    }
}
