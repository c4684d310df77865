//! Socket addresses in the form of programs: `sockaddr_un`, `sockaddr_in`, `sockaddr_in6` and `sockaddr_nl`.

use crate::socket::raw;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use quire_heap::Vec;
use quire_linux_state::socket::host::Socket;
use quire_linux_state::{Ctx, Errno, Machine};
use quire_net::Family;

/// The size of the largest address in bytes: Linux's `sockaddr_storage`.
const MOST: usize = 128;
/// The size of a `sockaddr_in` in bytes.
const INET4: usize = 16;
/// The size of a `sockaddr_in6` in bytes, without the scope, which old programs leave out.
const INET6_LEAST: usize = 24;
/// The size of a `sockaddr_in6` in bytes.
const INET6: usize = 28;
/// The size of the family field in bytes.
const FAMILY: usize = 2;
/// The size of a `sun_path` in bytes.
const UNIX_PATH: usize = 108;

/// An address that a program gave.
pub(super) enum Given {
    /// AF_UNSPEC: no address, which disconnects a socket.
    Unspecified,
    /// A path in the file tree, without its terminator.
    Path(Vec<u8>),
    /// An abstract name, without its leading zero.
    Abstract(Vec<u8>),
    /// AF_UNIX without a name: the kernel chooses a name.
    Unnamed,
    /// An Internet address.
    Inet(SocketAddr),
    /// The port and the groups of a netlink socket.
    Netlink(u32, u32),
}

impl Given {
    /// Reads the address of `len` bytes at user address `at`.
    pub(super) fn read<M: Machine>(ctx: &Ctx<'_, M>, at: u64, len: i32) -> Result<Given, Errno> {
        let mut bytes = [0; MOST];
        let len = Self::copy(ctx, at, len, &mut bytes)?;
        Self::of(&bytes[..len])
    }

    /// Checks that `len` is a valid length and that the memory at `at` is readable. The address itself is not checked.
    pub(super) fn check<M: Machine>(ctx: &Ctx<'_, M>, at: u64, len: i32) -> Result<(), Errno> {
        Self::copy(ctx, at, len, &mut [0; MOST]).map(drop)
    }

    fn copy<M: Machine>(ctx: &Ctx<'_, M>, at: u64, len: i32, to: &mut [u8; MOST]) -> Result<usize, Errno> {
        let len = usize::try_from(len).ok().filter(|len| *len <= MOST).ok_or(Errno::EINVAL)?;
        ctx.user().read_bytes(at, &mut to[..len])?;
        Ok(len)
    }

    /// Does the work of `read` for a `socket` that is no netlink socket. As on Linux, the errors depend on the socket's
    /// family.
    pub(super) fn read_for<M: Machine>(
        ctx: &Ctx<'_, M>,
        at: u64,
        len: i32,
        socket: &Socket<M>,
    ) -> Result<Given, Errno> {
        Self::read(ctx, at, len).map_err(|e| match socket.family() {
            Family::Unix if e == Errno::EAFNOSUPPORT => Errno::EINVAL,
            _ => e,
        })
    }

    /// The least length in bytes of an address to which a socket of `family` can be bound.
    pub(super) fn least(family: Family) -> usize {
        match family {
            Family::Unix => 0,
            Family::Inet4 => INET4,
            Family::Inet6 => INET6_LEAST,
        }
    }

    /// Parses the address in `bytes`.
    fn of(bytes: &[u8]) -> Result<Given, Errno> {
        let (family, rest) = bytes.split_first_chunk::<FAMILY>().ok_or(Errno::EINVAL)?;
        match u32::from(u16::from_le_bytes(*family)) {
            raw::AF_UNSPEC => Ok(Given::Unspecified),
            raw::AF_UNIX => Self::of_path(rest),
            raw::AF_INET => {
                let (port, rest) = rest.split_first_chunk::<2>().ok_or(Errno::EINVAL)?;
                if bytes.len() < INET4 {
                    return Err(Errno::EINVAL);
                }
                let ip = rest.first_chunk::<4>().ok_or(Errno::EINVAL)?;
                let ip = Ipv4Addr::from_octets(*ip);
                Ok(Given::Inet(SocketAddrV4::new(ip, u16::from_be_bytes(*port)).into()))
            }
            raw::AF_INET6 => {
                if bytes.len() < INET6_LEAST {
                    return Err(Errno::EINVAL);
                }
                let (port, rest) = rest.split_first_chunk::<2>().ok_or(Errno::EINVAL)?;
                let (flow, rest) = rest.split_first_chunk::<4>().ok_or(Errno::EINVAL)?;
                let (ip, rest) = rest.split_first_chunk::<16>().ok_or(Errno::EINVAL)?;
                let scope = rest.first_chunk::<4>().map_or(0, |scope| u32::from_le_bytes(*scope));
                let (port, flow) = (u16::from_be_bytes(*port), u32::from_be_bytes(*flow));
                Ok(Given::Inet(SocketAddrV6::new(Ipv6Addr::from_octets(*ip), port, flow, scope).into()))
            }
            raw::AF_NETLINK => {
                let words = rest.get(2..).and_then(|rest| rest.first_chunk::<8>()).ok_or(Errno::EINVAL)?;
                let [port, groups] = [0, 4].map(|at| words[at..].first_chunk().map_or(0, |w| u32::from_le_bytes(*w)));
                Ok(Given::Netlink(port, groups))
            }
            _ => Err(Errno::EAFNOSUPPORT),
        }
    }

    fn of_path(path: &[u8]) -> Result<Given, Errno> {
        if path.len() > UNIX_PATH {
            return Err(Errno::EINVAL);
        }
        match path {
            [] => Ok(Given::Unnamed),
            [0, name @ ..] => Ok(Given::Abstract(Vec::try_copy(name)?)),
            _ => {
                let end = path.iter().position(|byte| *byte == 0).unwrap_or(path.len());
                Ok(Given::Path(Vec::try_copy(&path[..end])?))
            }
        }
    }
}

/// The bytes of an address for a program.
pub(super) struct OutAddress {
    bytes: [u8; MOST],
    len: usize,
}

impl OutAddress {
    fn of_family(family: u32) -> OutAddress {
        let mut out = OutAddress { bytes: [0; MOST], len: 0 };
        out.push(&(family as u16).to_le_bytes());
        out
    }

    fn push(&mut self, bytes: &[u8]) {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    /// The address of a Unix socket without a name.
    pub(super) fn unnamed() -> OutAddress {
        Self::of_family(raw::AF_UNIX)
    }

    /// The address of a Unix socket that is bound to `path`. The path has no terminator and at most 108 bytes.
    pub(super) fn path(path: &[u8]) -> OutAddress {
        let mut out = Self::of_family(raw::AF_UNIX);
        out.push(&path[..path.len().min(UNIX_PATH)]);
        out.push(&[0]);
        out
    }

    /// The address of a Unix socket with an abstract name.
    pub(super) fn abstract_name(name: &[u8]) -> OutAddress {
        let mut out = Self::of_family(raw::AF_UNIX);
        out.push(&[0]);
        out.push(&name[..name.len().min(UNIX_PATH - 1)]);
        out
    }

    /// An internet address for a program whose socket is an IPv6 (`six`) or an IPv4 one. An IPv6 socket sees IPv4
    /// addresses as IPv4-mapped addresses.
    pub(super) fn inet(at: SocketAddr, six: bool) -> OutAddress {
        let ip = match at.ip() {
            IpAddr::V4(ip) if !six => {
                let mut out = Self::of_family(raw::AF_INET);
                out.push(&at.port().to_be_bytes());
                out.push(&ip.octets());
                out.push(&[0; INET4 - 8]);
                return out;
            }
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        let mut out = Self::of_family(raw::AF_INET6);
        out.push(&at.port().to_be_bytes());
        out.push(&[0; 4]);
        out.push(&ip.octets());
        out.push(&[0; INET6 - INET6_LEAST]);
        out
    }

    /// The address of a netlink socket.
    pub(super) fn netlink(port: u32, groups: u32) -> OutAddress {
        let mut out = Self::of_family(raw::AF_NETLINK);
        out.push(&[0; 2]);
        out.push(&port.to_le_bytes());
        out.push(&groups.to_le_bytes());
        out
    }

    /// Stores the address at user address `at`. The `i32` at `len_at` is the size of the buffer. As on Linux, the
    /// function then replaces it by the full length of the address.
    pub(super) fn store<M: Machine>(&self, ctx: &Ctx<'_, M>, at: u64, len_at: u64) -> Result<(), Errno> {
        let room: i32 = ctx.read(len_at)?;
        let room = usize::try_from(room).map_err(|_| Errno::EINVAL)?;
        ctx.user().write_bytes(at, &self.bytes[..self.len.min(room)])?;
        ctx.write(len_at, &(self.len as i32))
    }

    /// The address's length in bytes.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The first bytes of the address, at most `room`.
    pub(super) fn cut(&self, room: usize) -> &[u8] {
        &self.bytes[..self.len.min(room)]
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_they_are_written() {
        for at in ["127.0.0.1:80", "[::1]:65535", "0.0.0.0:0"] {
            let at: SocketAddr = at.parse().unwrap();
            let out = OutAddress::inet(at, at.is_ipv6());
            assert!(matches!(Given::of(out.cut(MOST)), Ok(Given::Inet(read)) if read == at));
            assert_eq!(out.len(), if at.is_ipv6() { INET6 } else { INET4 });
        }
        let mapped = OutAddress::inet("127.0.0.1:80".parse().unwrap(), true);
        let Ok(Given::Inet(SocketAddr::V6(read))) = Given::of(mapped.cut(MOST)) else { panic!() };
        assert_eq!(read.ip().to_ipv4_mapped(), Some(Ipv4Addr::LOCALHOST));
        assert!(
            matches!(Given::of(OutAddress::path(b"/run/x").cut(MOST)), Ok(Given::Path(path)) if &path[..] == b"/run/x")
        );
        let abstract_name = OutAddress::abstract_name(b"\0x");
        assert!(matches!(Given::of(abstract_name.cut(MOST)), Ok(Given::Abstract(name)) if &name[..] == b"\0x"));
        assert!(matches!(Given::of(OutAddress::unnamed().cut(MOST)), Ok(Given::Unnamed)));
        let netlink = OutAddress::netlink(7, 1 << 31);
        assert!(matches!(Given::of(netlink.cut(MOST)), Ok(Given::Netlink(7, 0x8000_0000))));
        assert_eq!((netlink.len(), Given::of(netlink.cut(11)).err()), (12, Some(Errno::EINVAL)));
    }

    #[test]
    fn wrong_lengths_and_families_are_refused() {
        let refused = |bytes: &[u8]| Given::of(bytes).err();
        assert_eq!(refused(&[]), Some(Errno::EINVAL));
        assert_eq!(refused(&[1]), Some(Errno::EINVAL));
        assert_eq!(refused(&[200, 0, 1]), Some(Errno::EAFNOSUPPORT));
        for (family, least) in [(raw::AF_INET, INET4), (raw::AF_INET6, INET6_LEAST)] {
            let mut bytes = [0; MOST];
            bytes[0] = family as u8;
            assert_eq!(refused(&bytes[..least - 1]), Some(Errno::EINVAL));
            assert!(Given::of(&bytes[..least]).is_ok());
        }
        let mut long = [b'x'; FAMILY + UNIX_PATH + 1];
        long[..2].copy_from_slice(&[1, 0]);
        assert_eq!(refused(&long), Some(Errno::EINVAL));
        assert!(matches!(Given::of(&long[..FAMILY + UNIX_PATH]), Ok(Given::Path(path)) if path.len() == UNIX_PATH));
    }
}
