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
    /// The socket takes connections.
    Listening,
    /// The socket waits for a place in a backlog.
    Connecting,
    /// The socket has a peer.
    Connected,
    /// The socket has a peer, and sends no more.
    Finished,
    /// Its peer sends no more.
    PeerFinished,
    /// Neither side sends more.
    Closed,
}

/// A socket in the list.
#[derive(Clone, Debug)]
pub struct Row {
    /// Its family.
    pub family: Family,
    /// Its kind.
    pub kind: Kind,
    /// Its state.
    pub stage: Stage,
    /// Its own name.
    pub local: Address,
    /// Its peer's name.
    pub remote: Address,
    /// The number of its inode, or 0 if no file has it yet.
    pub inode: u64,
    /// The user that made it.
    pub uid: u32,
    /// Bytes that wait in its inbox; connections, if it listens.
    pub received: usize,
}

impl<H: Host> Endpoint<H> {
    /// Adds it to the list. It leaves the list when it is freed.
    pub(crate) fn list(this: &Arc<Self>) -> Result<(), FsError> {
        let at = this.place();
        let mut bucket = this.network.all.bucket(mix(at as u64));
        Ok(bucket.try_push(Listed { at, endpoint: Arc::downgrade(this) })?)
    }

    /// Its row, unless it has closed.
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

    /// Its state.
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

    /// Whether `peer` sends no more. A TCP socket that only reads no more has not learnt that.
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
    /// Calls `each` with each socket until it fails. Sockets that are made or closed meanwhile may be left out.
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
