//! The names and ports of one machine.

use crate::collect::Flights;
use crate::endpoint::Endpoint;
use crate::host::{Host, NameBytes};
use crate::table::Table;
use core::net::SocketAddr;
use quire_fs::{FsError, Ident};
use quire_heap::Arc;

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

/// The sockets of one machine, by their names.
///
/// An endpoint is in a table until it is closed, so the tables keep no endpoint alive.
pub struct Network<H: Host> {
    pub(crate) host: H,
    pub(crate) names: Table<NameEntry<H>>,
    pub(crate) tcp: Table<PortEntry<H>>,
    pub(crate) udp: Table<PortEntry<H>>,
    pub(crate) flights: Flights<H>,
}

impl<H: Host> Network<H> {
    /// A machine without sockets.
    pub fn new(host: H) -> Result<Arc<Self>, FsError> {
        Ok(Arc::try_new(Network {
            host,
            names: Table::new()?,
            tcp: Table::new()?,
            udp: Table::new()?,
            flights: Flights::new(),
        })?)
    }
}
