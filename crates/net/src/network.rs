//! The tables of names and ports of one machine.

use crate::collect::Collector;
use crate::endpoint::Endpoint;
use crate::host::{Host, NameBytes};
use crate::table::Table;
use core::net::SocketAddr;
use core::ops::RangeInclusive;
use quire_fs::{FsError, Ident};
use quire_heap::{Arc, Weak, try_leak};
use quire_sync::atomic::{AtomicU32, Ordering};

/// The name of a Unix socket in its table.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Name {
    /// A call is binding the socket.
    Pending,
    /// The inode of a path.
    Inode(Ident),
    /// An abstract name.
    Abstract(NameBytes),
    /// An internet port.
    Port(u16),
}

/// A Unix socket that has a name.
pub(crate) struct NameEntry<H: Host> {
    pub name: Name,
    pub endpoint: Arc<Endpoint<H>>,
}

/// A socket that has a port.
pub(crate) struct PortEntry<H: Host> {
    /// The socket's address. An IPv4-mapped address is stored as the IPv4 address.
    pub at: SocketAddr,
    /// The user that bound the socket.
    pub uid: u32,
    pub listening: bool,
    /// The only peer, or `None`. If a TCP entry has a peer, `connect` chose the port, and other connections may share
    /// it.
    pub remote: Option<SocketAddr>,
    pub endpoint: Arc<Endpoint<H>>,
}

/// An entry of the list of all sockets. The entry does not keep the endpoint alive.
pub(crate) struct Listed<H: Host> {
    /// The address of the endpoint.
    pub at: usize,
    pub endpoint: Weak<Endpoint<H>>,
}

/// The tables of the sockets of one machine, by their names.
///
/// An endpoint is in a table until it is closed or disconnects, so the tables keep no endpoint alive.
pub struct Network<H: Host> {
    pub(crate) host: H,
    pub(crate) names: Table<NameEntry<H>>,
    pub(crate) tcp: Table<PortEntry<H>>,
    pub(crate) udp: Table<PortEntry<H>>,
    pub(crate) collector: Collector<Endpoint<H>>,
    /// All endpoints.
    pub(crate) all: Table<Listed<H>>,
    /// The range of ports in which a search for a free port looks. The high half is the first port, the low half the
    /// last.
    ports: AtomicU32,
}

impl<H: Host> Network<H> {
    /// A network without sockets. The network is never freed, so sockets need no reference count for it.
    pub fn new(host: H) -> Result<&'static Self, FsError> {
        Ok(try_leak(Network {
            host,
            names: Table::new()?,
            tcp: Table::new()?,
            udp: Table::new()?,
            collector: Collector::new(),
            all: Table::new()?,
            ports: AtomicU32::new(32_768 << 16 | 60_999),
        })?)
    }

    /// Drops the messages of garbage: sockets that only messages in each other's inboxes keep alive. The close of a
    /// Unix socket also does this. The call does nothing if memory for its lists is exhausted, or while another thread
    /// collects.
    pub fn collect(&self) {
        self.collector.collect();
    }

    /// The range of ports from which `bind` and `connect` choose.
    pub fn automatic_ports(&self) -> RangeInclusive<u16> {
        let both = self.ports.load(Ordering::Relaxed);
        (both >> 16) as u16..=both as u16
    }

    /// Changes [`automatic_ports`](Self::automatic_ports). [`FsError::Invalid`] if the range is empty or begins with
    /// port 0.
    pub fn set_automatic_ports(&self, ports: RangeInclusive<u16>) -> Result<(), FsError> {
        if *ports.start() == 0 || ports.is_empty() {
            return Err(FsError::Invalid);
        }
        self.ports.store(u32::from(*ports.start()) << 16 | u32::from(*ports.end()), Ordering::Relaxed);
        Ok(())
    }
}
