//! The list of all sockets, for tables that users read.

use crate::address::{Address, Family, Kind};
use crate::endpoint::{Endpoint, Phase};
use crate::host::Host;
use crate::network::{Listed, Network};
use crate::table::mix;
use core::net::SocketAddr;
use quire_fs::FsError;
use quire_heap::Arc;
use quire_sync::atomic::Ordering;

/// The state of a socket as a table shows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// The socket has no peer.
    Unconnected,
    /// The socket is a listener.
    Listening,
    /// The socket waits for a place in a backlog.
    Connecting,
    /// The socket has a peer.
    Connected,
    /// The socket has a peer, and is shut down for sending.
    Finished,
    /// The peer is shut down for sending.
    PeerFinished,
    /// Both sides are shut down for sending.
    Closed,
}

/// A socket in the list.
#[derive(Clone, Debug)]
pub struct Row {
    /// The family of the socket's addresses.
    pub family: Family,
    /// The socket's kind.
    pub kind: Kind,
    /// The socket's state.
    pub stage: Stage,
    /// The socket's own name.
    pub local: Address,
    /// The peer's name.
    pub remote: Address,
    /// The inode number, or 0 if the socket has no file yet.
    pub inode: u64,
    /// The user that made it.
    pub uid: u32,
    /// The number of bytes in the inbox, or of connections in the backlog of a listener.
    pub received: usize,
}

impl<H: Host> Endpoint<H> {
    /// Adds the endpoint to the list of sockets. Its `drop` removes it.
    pub(crate) fn list(this: &Arc<Self>) -> Result<(), FsError> {
        let at = this.place();
        let mut bucket = this.network.all.bucket(mix(at as u64));
        Ok(bucket.try_push(Listed { at, endpoint: Arc::downgrade(this) })?)
    }

    /// The endpoint's row, or `None` if it has closed.
    fn row(&self) -> Option<Row> {
        let (phase, local, remote, peer, waiting) = {
            let state = self.state();
            let waiting = state.backlog.as_ref().map_or(0, |backlog| backlog.queue.len());
            (state.phase, state.local.clone(), state.remote.clone(), state.peer.clone(), waiting)
        };
        let (bytes, receive_shutdown) = {
            let queue = self.inbox.queue();
            (queue.bytes, queue.receive_shutdown)
        };
        if receive_shutdown && phase == Phase::Idle {
            return None;
        }
        let none = || match self.is_unix() {
            true => Address::Unnamed,
            false => Address::Inet(SocketAddr::new(self.wildcard().ip(), 0)),
        };
        Some(Row {
            family: self.family,
            kind: self.kind,
            stage: self.stage_of(phase, peer.as_deref()),
            local: local.unwrap_or_else(none).seen_by(self.family),
            remote: remote.unwrap_or_else(none).seen_by(self.family),
            inode: self.inode.load(Ordering::Relaxed),
            uid: self.uid.load(Ordering::Relaxed),
            received: if phase == Phase::Listening { waiting } else { bytes },
        })
    }

    /// The endpoint's state.
    pub(crate) fn stage(&self) -> Stage {
        let (phase, peer) = {
            let state = self.state();
            (state.phase, state.peer.clone())
        };
        self.stage_of(phase, peer.as_deref())
    }

    pub(crate) fn stage_of(&self, phase: Phase, peer: Option<&Self>) -> Stage {
        match phase {
            Phase::Listening => Stage::Listening,
            Phase::Connecting => Stage::Connecting,
            Phase::Idle if peer.is_some() && self.is_datagram() => Stage::Connected,
            Phase::Idle | Phase::Refused => Stage::Unconnected,
            Phase::Connected | Phase::Unreported => {
                match (self.shut.load(Ordering::Acquire), self.is_finished_by(peer)) {
                    (false, false) => Stage::Connected,
                    (true, false) => Stage::Finished,
                    (false, true) => Stage::PeerFinished,
                    (true, true) => Stage::Closed,
                }
            }
        }
    }

    /// Whether `peer` is known to send no more. A TCP socket that was only shut down for receiving does not know
    /// whether its peer sends more.
    fn is_finished_by(&self, peer: Option<&Self>) -> bool {
        let ended = self.inbox.queue().ended;
        let sends = |peer: &Self| !peer.shut.load(Ordering::Acquire) && !peer.inbox.queue().refuses(self.place());
        ended && !(self.is_tcp() && peer.is_some_and(sends))
    }
}

impl<H: Host> Drop for Endpoint<H> {
    fn drop(&mut self) {
        let at = self.place();
        self.network.all.remove(mix(at as u64), |listed| listed.at == at);
    }
}

impl<H: Host> Network<H> {
    /// Calls `each` with the row of each socket until `each` fails. Sockets that are made or closed during the call may
    /// be left out.
    pub fn each(&self, mut each: impl FnMut(&Row) -> Result<(), FsError>) -> Result<(), FsError> {
        for hash in 0..crate::table::BUCKETS as u64 {
            for at in 0.. {
                let endpoint = match self.all.bucket(hash).get(at) {
                    None => break,
                    Some(listed) => listed.endpoint.upgrade(),
                };
                if let Some(row) = endpoint.and_then(|endpoint| endpoint.row()) {
                    each(&row)?;
                }
            }
        }
        Ok(())
    }
}
