//! Disconnecting: `connect` with no address (`AF_UNSPEC`), and datagram sockets whose peers change or close.
//!
//! A disconnected TCP socket may connect or listen again. So its endpoint can have a second peer while calls on the
//! first peer are still under way. Such a call finds that the first peer is no longer the inbox's [only
//! sender](crate::inbox::Queue::sender). Calls on this socket that began before the disconnect find that the number of
//! disconnects has changed.

use crate::address::Address;
use crate::collect::{InFlight, Member};
use crate::endpoint::{Calls, Endpoint, Phase, State};
use crate::host::Host;
use crate::inbox::{NO_SENDER, Queue};
use crate::listing::Stage;
use crate::mutant::{Mutant, mutant};
use core::mem;
use core::net::SocketAddr;
use quire_fs::FsError;
use quire_heap::Arc;
use quire_sync::MutexGuard;
use quire_sync::atomic::Ordering;

impl<H: Host> Endpoint<H> {
    /// Removes the peer, or ends the connection; see [`Socket::disconnect`](crate::Socket::disconnect).
    pub(crate) fn disconnect(this: &Arc<Self>) -> Result<(), FsError> {
        if this.is_tcp() {
            Endpoint::end_connection(this, &this.calls.lock(), true);
            return Ok(());
        }
        if !this.is_datagram() {
            return Err(FsError::Invalid);
        }
        let _calls = (!this.is_unix()).then(|| this.calls.lock());
        Endpoint::set_peer(this, None, None);
        let port = {
            let mut state = this.state();
            let port = state.take_port();
            if port.is_some() {
                let address = if state.fixed_address { state.inet() } else { None };
                state.local = address.map(|at| Address::Inet(SocketAddr::new(at.ip(), 0)));
            }
            port
        };
        this.free_port(port);
        Ok(())
    }

    /// Frees the port `taken`. With `None`, the socket keeps its port, and the port's table entry loses its peer.
    pub(crate) fn free_port(&self, taken: Option<u16>) {
        match taken {
            Some(port) => self.forget_port(port),
            // The change cannot fail, because an entry that does not listen meets no conflict.
            None => drop(self.change_port(false, None)),
        }
    }

    /// Clears the parts of the address that the program did not choose. The caller frees the returned port without
    /// locks.
    pub(crate) fn leave_address(&self, state: &mut State<H>) -> Option<u16> {
        let port = state.take_port();
        if let Some(at) = state.inet()
            && !state.fixed_address
        {
            // As on Linux, the socket still reports its port.
            state.local = Some(Address::Inet(SocketAddr::new(self.wildcard().ip(), at.port())));
        }
        port
    }

    /// Ends the connection, the attempt to connect or the listening of a TCP socket. If `counted` is set, this counts
    /// as a disconnect, so waiting calls fail.
    pub(crate) fn end_connection(this: &Arc<Self>, _calls: &MutexGuard<'_, Calls>, counted: bool) {
        let (phase, peer) = {
            let mut state = this.state();
            let phase = state.phase;
            // From now on the listener cannot complete the attempt.
            if phase == Phase::Connecting {
                state.phase = Phase::Idle;
                this.fail_anew(FsError::Reset);
                this.count_disconnect(&this.inbox.queue(), counted);
            }
            (phase, state.peer.clone())
        };
        let connected = matches!(phase, Phase::Connected | Phase::Unreported);
        let open = connected && this.stage() != Stage::Closed;
        // The peer gets its error before its next write can find that this inbox refuses bytes.
        if let Some(peer) = &peer {
            peer.hang_up(this, if open { this.reset_of(peer) } else { None });
        }
        let (backlog, removed, port) = {
            let mut state = this.state();
            (state.phase, state.remote) = (Phase::Idle, None);
            let port = this.leave_address(&mut state);
            let link = state.peer.take();
            let backlog = state.backlog.take();
            let mut queue = this.inbox.queue();
            let messages = queue.purge();
            (queue.ended, queue.receive_shutdown, queue.sender) = (false, false, Some(NO_SENDER));
            this.shut.store(false, Ordering::Release);
            if open {
                this.fail_anew(FsError::Reset);
            }
            // The disconnect of an attempt to connect was counted above, together with the change of the phase. So a
            // waiting call that sees the new phase also sees the count.
            this.count_disconnect(&queue, counted && phase != Phase::Connecting);
            (backlog, (messages, link), port)
        };
        drop(removed);
        this.free_port(port);
        this.readiness.notify();
        // A writer that waits for room finds now that this inbox refuses its bytes.
        if let Some(peer) = peer {
            peer.readiness.notify();
        }
        Endpoint::abort_all(backlog);
    }

    fn count_disconnect(&self, _queue: &Queue<InFlight<Endpoint<H>>>, counted: bool) {
        if counted && !mutant(Mutant::DisconnectUncounted) {
            self.disconnects.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Changes the peer of a datagram socket.
    pub(crate) fn set_peer(this: &Arc<Self>, peer: Option<Arc<Self>>, remote: Option<Address>) {
        let new = peer.clone();
        let before = {
            let mut state = this.state();
            state.phase = if remote.is_some() { Phase::Connected } else { Phase::Idle };
            state.remote = remote;
            mem::replace(&mut state.peer, peer)
        };
        if let Some(before) = before
            && !new.is_some_and(|new| Arc::ptr_eq(&new, &before))
        {
            Endpoint::drop_messages_of(this, &before);
        }
        this.readiness.notify();
    }

    /// Removes the peer of a Unix datagram socket if the peer is `closed`, an endpoint that has closed. Returns whether
    /// `closed` was the peer.
    pub(crate) fn lose_peer(this: &Arc<Self>, closed: &Arc<Self>) -> bool {
        let link = {
            let mut state = this.state();
            if !state.is_peer(closed) {
                return false;
            }
            (state.phase, state.remote) = (Phase::Idle, None);
            state.peer.take()
        };
        drop(link);
        Endpoint::drop_messages_of(this, closed);
        this.readiness.notify();
        true
    }

    /// Drops all messages that wait at a Unix datagram socket that has left `peer`, as Linux does. If `peer` is
    /// connected to this socket, `peer` gets an error.
    fn drop_messages_of(this: &Arc<Self>, peer: &Arc<Self>) {
        let messages = {
            let mut queue = this.inbox.queue();
            if queue.is_empty() {
                return;
            }
            queue.purge()
        };
        drop(messages);
        this.announce_room();
        if peer.state().is_peer(this) {
            peer.fail_anew(FsError::Reset);
            peer.readiness.notify();
        }
    }
}
