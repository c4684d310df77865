//! Ports of IPv4 and IPv6 on the loopback.
//!
//! The tables store an IPv4-mapped IPv6 address as the IPv4 address. The wildcard address of an IPv6 socket also covers
//! IPv4, unless the socket has [`Flags::V6_ONLY`].

use crate::address::{Address, Family, Kind, Place};
use crate::endpoint::{Endpoint, Phase};
use crate::host::Host;
use crate::network::{Name, Network, PortEntry};
use crate::options::Flags;
use crate::table::{Table, mix};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::ptr;
use quire_fs::FsError;
use quire_heap::Arc;

/// The address without a mapping, a scope or a flow.
fn canonical(at: SocketAddr) -> SocketAddr {
    SocketAddr::new(at.ip().to_canonical(), at.port())
}

/// Whether the two entries claim a common address.
fn overlap<H: Host>(a: &PortEntry<H>, b: &PortEntry<H>) -> bool {
    let takes = |of: &PortEntry<H>, ip: IpAddr| score(of, ip).is_some();
    a.at.port() == b.at.port() && (takes(a, b.at.ip()) || takes(b, a.at.ip()))
}

/// How well an entry's address matches a destination. Higher is better: an equal address, the wildcard of its family,
/// the IPv6 wildcard for IPv4. `None` if it does not match.
fn score<H: Host>(entry: &PortEntry<H>, ip: IpAddr) -> Option<u32> {
    match (entry.at.ip(), ip) {
        (mine, ip) if mine == ip => Some(3),
        (IpAddr::V4(mine), IpAddr::V4(_)) if mine.is_unspecified() => Some(2),
        (IpAddr::V6(mine), IpAddr::V6(_)) if mine.is_unspecified() => Some(2),
        (IpAddr::V6(mine), IpAddr::V4(_)) if mine.is_unspecified() => {
            (!entry.endpoint.options.has(Flags::V6_ONLY)).then_some(1)
        }
        _ => None,
    }
}

/// The user id in the entry of an automatically bound port, which shares its address with no `REUSE_PORT` group.
const AUTOMATIC: u32 = u32::MAX;

/// Whether entry `a` prevents that entry `b` is made or listens. If `shares` is not set, the options that let both
/// share a port are ignored.
fn conflict<H: Host>(a: &PortEntry<H>, b: &PortEntry<H>, shares: bool) -> bool {
    let both = |flag| shares && a.endpoint.options.has(flag) && b.endpoint.options.has(flag);
    let datagrams = a.endpoint.kind == Kind::Datagram;
    let connections = !datagrams && a.remote.is_some() && b.remote.is_some();
    overlap(a, b)
        && !(both(Flags::REUSE_PORT) && a.uid == b.uid && a.uid != AUTOMATIC)
        && !(both(Flags::REUSE_ADDRESS) && (datagrams || !a.listening))
        && !(connections && a.remote != b.remote)
}

/// The endpoint in `table` that receives a message or connection from `from` to `to`.
fn find<H: Host>(table: &Table<PortEntry<H>>, from: SocketAddr, to: SocketAddr) -> Option<Arc<Endpoint<H>>> {
    let fits = |entry: &PortEntry<H>| {
        let there = entry.at.port() == to.port() && (entry.listening || entry.endpoint.is_datagram());
        let peer = match entry.remote {
            Some(remote) if remote == from => 4,
            Some(_) => return None,
            None => 0,
        };
        if there { score(entry, to.ip()).map(|score| score + peer) } else { None }
    };
    let bucket = table.bucket(u64::from(to.port()));
    let best = bucket.iter().filter_map(fits).max()?;
    let all = || bucket.iter().filter(|entry| fits(entry) == Some(best));
    let grouped = all().all(|entry| entry.endpoint.options.has(Flags::REUSE_PORT));
    // The members of a `REUSE_PORT` group share the messages by the sender's port. Without a group, the latest entry
    // gets all messages. Only datagram sockets can share an address without a group.
    let at = if grouped { mix(u64::from(from.port())) as usize % all().count() } else { all().count() - 1 };
    all().nth(at).map(|entry| entry.endpoint.clone())
}

impl<H: Host> Network<H> {
    fn ports(&self, kind: Kind) -> &Table<PortEntry<H>> {
        if kind == Kind::Datagram { &self.udp } else { &self.tcp }
    }

    /// The listener or the datagram socket that receives from `from` at the address `to`.
    pub(crate) fn find_inet(&self, kind: Kind, from: SocketAddr, to: SocketAddr) -> Option<Arc<Endpoint<H>>> {
        find(self.ports(kind), from, to)
    }
}

impl<H: Host> Endpoint<H> {
    /// The wildcard address of the endpoint's family, with port 0.
    pub(crate) fn wildcard(&self) -> SocketAddr {
        match self.family {
            Family::Inet6 => SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 0),
            _ => SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0),
        }
    }

    /// The endpoint's address, or the wildcard with port 0 if it is not bound.
    pub(crate) fn inet(&self) -> SocketAddr {
        self.state().inet().unwrap_or_else(|| self.wildcard())
    }

    /// The endpoint's address as a peer at `to` sees it.
    pub(crate) fn inet_towards(&self, to: IpAddr) -> SocketAddr {
        let local = self.inet();
        let ip = match (local.ip().is_unspecified(), to) {
            (false, _) => local.ip(),
            (true, IpAddr::V4(_)) => Ipv4Addr::LOCALHOST.into(),
            (true, IpAddr::V6(_)) => Ipv6Addr::LOCALHOST.into(),
        };
        SocketAddr::new(ip, local.port())
    }

    /// Converts an address of a caller to the form of the tables. The wildcard stays the wildcard.
    /// [`FsError::WrongFamily`] if the socket has another family.
    fn checked(&self, at: SocketAddr) -> Result<SocketAddr, FsError> {
        match (self.family, at) {
            (Family::Inet4, SocketAddr::V4(_)) | (Family::Inet6, SocketAddr::V6(_)) => Ok(canonical(at)),
            _ => Err(FsError::WrongFamily),
        }
    }

    /// Whether this is an IPv6 datagram socket and `to` is a plain (not mapped) IPv4 address. Other IPv6 sockets refuse
    /// such addresses.
    fn is_plain(&self, to: SocketAddr) -> bool {
        self.family == Family::Inet6 && self.is_datagram() && to.is_ipv4()
    }

    /// The address of a datagram socket's peer. As on Linux, IPv6 sockets that cannot use IPv4 refuse a plain IPv4
    /// address with [`FsError::WrongFamily`].
    pub(crate) fn peer_address(&self, to: SocketAddr) -> Result<SocketAddr, FsError> {
        if self.is_plain(to) && (self.options.has(Flags::V6_ONLY) || self.is_only_ipv6()) {
            return Err(FsError::WrongFamily);
        }
        self.destination(to)
    }

    /// Whether the endpoint is bound to an IPv6 address that is not the wildcard.
    fn is_only_ipv6(&self) -> bool {
        let local = self.inet().ip();
        local.is_ipv6() && !local.is_unspecified()
    }

    /// Converts a destination like [`checked`](Self::checked), and replaces the wildcard by the loopback address.
    pub(crate) fn destination(&self, to: SocketAddr) -> Result<SocketAddr, FsError> {
        let to = if self.is_plain(to) { to } else { self.checked(to)? };
        let ip = match to.ip() {
            IpAddr::V4(_) if self.family == Family::Inet6 && self.options.has(Flags::V6_ONLY) => {
                return Err(FsError::Unreachable);
            }
            IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
            ip if ip.is_loopback() => ip,
            _ => return Err(FsError::Unreachable),
        };
        let local = self.inet().ip();
        if !local.is_unspecified() && local.is_ipv4() != ip.is_ipv4() {
            return Err(FsError::Unreachable);
        }
        Ok(SocketAddr::new(ip, to.port()))
    }

    /// Gives an unbound internet socket an address and a port.
    pub(crate) fn bind_inet(this: &Arc<Self>, at: Place<'_, H::Node>, uid: u32) -> Result<(), FsError> {
        let at = match at {
            Place::Auto => this.wildcard(),
            Place::Inet(at) => at,
            Place::Path { .. } | Place::Abstract(_) => return Err(FsError::WrongFamily),
        };
        let at = this.checked(at)?;
        let here = at.ip().is_unspecified() || at.ip().is_loopback();
        let mapped = this.family == Family::Inet6 && at.is_ipv4();
        if !here || mapped && this.options.has(Flags::V6_ONLY) {
            return Err(FsError::AddressUnavailable);
        }
        Endpoint::claim(this, at, uid, None, FsError::AddressInUse)
    }

    /// Binds an unbound socket to a free port, for traffic with `remote`.
    pub(crate) fn bind_for(this: &Arc<Self>, remote: Option<SocketAddr>) -> Result<(), FsError> {
        if this.state().name.is_some() {
            return Ok(());
        }
        let mut at = remote.map_or(this.inet(), |to| this.inet_towards(to.ip()));
        // A socket that has disconnected still reports its old port. It gets a new port now.
        at.set_port(0);
        match Endpoint::claim(this, at, AUTOMATIC, remote, FsError::AddressUnavailable) {
            // Another call has bound the socket since the check above.
            Err(FsError::Invalid) => Ok(()),
            other => other,
        }
    }

    /// Enters an unbound socket in the table at address `at`. If the port of `at` is 0, a free port is searched. `none`
    /// is the error if no port is free.
    fn claim(
        this: &Arc<Self>,
        at: SocketAddr,
        uid: u32,
        remote: Option<SocketAddr>,
        none: FsError,
    ) -> Result<(), FsError> {
        {
            let mut state = this.state();
            if state.name.is_some() || state.phase != Phase::Idle && remote.is_none() && !this.is_datagram() {
                return Err(FsError::Invalid);
            }
            state.name = Some(Name::Pending);
        }
        let entered = match at.port() {
            0 => Endpoint::enter_free(this, at.ip(), uid, remote, none),
            port => Endpoint::enter_port(this, at, uid, remote, true).map(|()| port),
        };
        let mut state = this.state();
        match entered {
            Ok(port) => {
                state.name = Some(Name::Port(port));
                state.local = Some(Address::Inet(SocketAddr::new(at.ip(), port)));
                let chosen = uid != AUTOMATIC;
                state.fixed_address |= chosen && !at.ip().is_unspecified();
                state.fixed_port |= chosen && at.port() != 0;
            }
            Err(_) => state.name = None,
        }
        entered.map(drop)
    }

    fn enter_free(
        this: &Arc<Self>,
        ip: IpAddr,
        uid: u32,
        remote: Option<SocketAddr>,
        none: FsError,
    ) -> Result<u16, FsError> {
        let all = this.network.automatic_ports();
        let ports = u32::from(all.end() - all.start()) + 1;
        let start = this.network.host.random() % ports;
        for i in 0..ports {
            let port = all.start() + ((start + i) % ports) as u16;
            // As on Linux, options never let TCP sockets share an automatic port.
            match Endpoint::enter_port(this, SocketAddr::new(ip, port), uid, remote, this.is_datagram()) {
                Ok(()) => return Ok(port),
                Err(FsError::AddressInUse) => {}
                Err(e) => return Err(e),
            }
        }
        Err(none)
    }

    fn enter_port(
        this: &Arc<Self>,
        at: SocketAddr,
        uid: u32,
        remote: Option<SocketAddr>,
        shares: bool,
    ) -> Result<(), FsError> {
        let entry = PortEntry { at, uid, listening: false, remote, endpoint: this.clone() };
        let mut bucket = this.network.ports(this.kind).bucket(u64::from(at.port()));
        if bucket.iter().any(|other| conflict(other, &entry, shares)) {
            return Err(FsError::AddressInUse);
        }
        bucket.try_reserve(1)?;
        bucket.push_reserved(entry);
        Ok(())
    }

    /// Changes the endpoint's table entry: whether it listens, and its only peer.
    pub(crate) fn change_port(&self, listening: bool, remote: Option<SocketAddr>) -> Result<(), FsError> {
        let Some(Name::Port(port)) = self.state().name.clone() else { return Ok(()) };
        let mut bucket = self.network.ports(self.kind).bucket(u64::from(port));
        let Some(at) = bucket.iter().position(|entry| ptr::eq(&*entry.endpoint, self)) else { return Ok(()) };
        let was = bucket[at].listening;
        bucket[at].listening = listening;
        let others = bucket.iter().enumerate().any(|(i, other)| i != at && conflict(other, &bucket[at], true));
        if listening && !was && others {
            bucket[at].listening = was;
            return Err(FsError::AddressInUse);
        }
        bucket[at].remote = remote;
        Ok(())
    }

    /// Frees the endpoint's port.
    pub(crate) fn forget_port(&self, port: u16) {
        let is = |entry: &PortEntry<H>| entry.at.port() == port && ptr::eq(&*entry.endpoint, self);
        self.network.ports(self.kind).remove(u64::from(port), is);
    }
}
