//! The names and ports of one machine.

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
    /// Its address; mapped addresses are IPv4 ones here.
    pub at: SocketAddr,
    /// The user that bound it.
    pub uid: u32,
    pub listening: bool,
    /// The only peer. A TCP port with a peer was chosen by `connect`, and other connections may share it.
    pub remote: Option<SocketAddr>,
    pub endpoint: Arc<Endpoint<H>>,
}

/// An entry of the list of all sockets. It does not keep the endpoint.
pub(crate) struct Listed<H: Host> {
    /// The address of the endpoint.
    pub at: usize,
    pub endpoint: Weak<Endpoint<H>>,
}

/// The sockets of one machine, by their names.
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
    /// The first and the last port that a search for a free one gives, as its halves.
    ports: AtomicU32,
}

impl<H: Host> Network<H> {
    /// A machine without sockets. It is never freed, so that a socket need not count itself among its users.
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

    /// Drops the messages of sockets that only such messages keep alive. Closing a Unix socket does so, too. Without
    /// memory for its lists, or while another thread does the same, it does nothing.
    pub fn collect(&self) {
        self.collector.collect();
    }

    /// The ports that `bind` and `connect` choose.
    pub fn automatic_ports(&self) -> RangeInclusive<u16> {
        let both = self.ports.load(Ordering::Relaxed);
        (both >> 16) as u16..=both as u16
    }

    /// Changes them. [`FsError::Invalid`] for none, or if port 0 is among them.
    pub fn set_automatic_ports(&self, ports: RangeInclusive<u16>) -> Result<(), FsError> {
        if *ports.start() == 0 || ports.is_empty() {
            return Err(FsError::Invalid);
        }
        self.ports.store(u32::from(*ports.start()) << 16 | u32::from(*ports.end()), Ordering::Relaxed);
        Ok(())
    }
}
