//! Families, kinds and names of sockets.

use core::net::{IpAddr, SocketAddr};
use quire_fs::Ident;
use quire_heap::Arc;

/// The family of a socket's addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Family {
    /// Unix domain.
    Unix,
    /// IPv4.
    Inet4,
    /// IPv6, and IPv4 by IPv4-mapped addresses.
    Inet6,
}

/// How a socket moves data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A connection with a stream of bytes.
    Stream,
    /// Single messages, without a connection.
    Datagram,
    /// A connection with messages in order. Unix only.
    SeqPacket,
}

/// The identity of a process that connects, listens or sends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Credentials {
    /// Process id.
    pub pid: u32,
    /// Effective user.
    pub uid: u32,
    /// Effective group.
    pub gid: u32,
}

/// A name as a socket reports it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Address {
    /// A Unix socket without a name.
    Unnamed,
    /// The path by which a Unix socket was bound.
    Path(Arc<[u8]>),
    /// An abstract name.
    Abstract(Arc<[u8]>),
    /// An internet address and port.
    Inet(SocketAddr),
}

impl Address {
    /// The address as a socket of `family` sees it: IPv6 sockets see mapped IPv4 addresses.
    pub(crate) fn seen_by(self, family: Family) -> Address {
        match self {
            Address::Inet(at) if family == Family::Inet6 => Address::Inet(mapped(at)),
            other => other,
        }
    }
}

/// A place for [`bind`](crate::Socket::bind).
pub enum Place<'a, N> {
    /// A free abstract name, or a free port of the wildcard address.
    Auto,
    /// An inode that the caller has made for the socket.
    Path {
        /// The path as the caller gave it.
        path: &'a [u8],
        /// The inode's identity.
        ident: Ident,
        /// Keeps the inode, so that no other one gets its identity.
        node: N,
    },
    /// An abstract name.
    Abstract(&'a [u8]),
    /// An internet address; port 0 stands for a free port.
    Inet(SocketAddr),
}

/// A destination of a connection or a message.
#[derive(Clone, Copy)]
pub enum Destination<'a> {
    /// The socket that is bound to an inode.
    Inode(Ident),
    /// The socket that has an abstract name.
    Abstract(&'a [u8]),
    /// An internet address and port.
    Inet(SocketAddr),
}

/// The address, with an IPv4 address as an IPv4-mapped IPv6 address.
fn mapped(at: SocketAddr) -> SocketAddr {
    match at.ip() {
        IpAddr::V4(ip) => SocketAddr::new(IpAddr::V6(ip.to_ipv6_mapped()), at.port()),
        IpAddr::V6(_) => at,
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn ipv6_sockets_see_mapped_addresses() {
        let at = Address::Inet("127.0.0.1:80".parse().unwrap());
        assert_eq!(at.clone().seen_by(Family::Inet4), at);
        let mapped = Address::Inet("[::ffff:127.0.0.1]:80".parse().unwrap());
        assert_eq!(at.seen_by(Family::Inet6), mapped);
        assert_eq!(Address::Unnamed.seen_by(Family::Inet6), Address::Unnamed);
    }
}
