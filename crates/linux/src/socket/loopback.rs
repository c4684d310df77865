//! The only network interface: `lo`, with 127.0.0.1/8 and ::1/128. This module serves `ioctl` requests about it, and
//! [`netlink`](crate::socket::netlink) serves netlink requests.

use crate::socket::user_address::OutAddress;
use core::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use linux_raw_sys::net as raw;
use quire_linux_state::process::credentials::capabilities::cap;
use quire_linux_state::socket::host::Socket;
use quire_linux_state::{Ctx, Errno, Machine};
use quire_net::Family;

/// The interface's number.
pub const INDEX: u32 = 1;
/// The interface's name.
pub(crate) const NAME: &[u8] = b"lo";
/// The interface's MTU in bytes, as on Linux.
pub(crate) const MTU: u32 = 65_536;
/// The length of the transmit queue in packets, as on Linux.
pub(crate) const QUEUE: u32 = 1000;
/// Linux's `ARPHRD_LOOPBACK`.
pub(crate) const HARDWARE: u16 = 772;
/// The interface's flags: up, loopback, running, lower layer up.
pub(crate) const FLAGS: u32 = 0x1_0049;
/// The flag of permanent addresses (`IFA_F_PERMANENT`).
pub const PERMANENT: u32 = 0x80;

/// The bytes of an interface's name in an `ifreq`, with the terminator.
const NAME_BYTES: usize = 16;
/// The size of an `ifreq` in bytes: a name, and a union.
const REQUEST: usize = 40;

const SIOCGIFNAME: u32 = 0x8910;
const SIOCSIFLINK: u32 = 0x8911;
const SIOCGIFCONF: u32 = 0x8912;
const SIOCGIFFLAGS: u32 = 0x8913;
const SIOCGIFADDR: u32 = 0x8915;
const SIOCGIFDSTADDR: u32 = 0x8917;
const SIOCGIFBRDADDR: u32 = 0x8919;
const SIOCGIFNETMASK: u32 = 0x891b;
const SIOCGIFMETRIC: u32 = 0x891d;
const SIOCGIFMTU: u32 = 0x8921;
const SIOCGIFHWADDR: u32 = 0x8927;
const SIOCGIFINDEX: u32 = 0x8933;
const SIOCGIFTXQLEN: u32 = 0x8942;
const SIOCGIFMAP: u32 = 0x8970;
const SIOCSIFFLAGS: u32 = 0x8914;
const SIOCSIFADDR: u32 = 0x8916;
const SIOCSIFDSTADDR: u32 = 0x8918;
const SIOCSIFBRDADDR: u32 = 0x891a;
const SIOCSIFNETMASK: u32 = 0x891c;
const SIOCSIFMETRIC: u32 = 0x891e;
const SIOCSIFMTU: u32 = 0x8922;
const SIOCSIFNAME: u32 = 0x8923;
const SIOCSIFHWADDR: u32 = 0x8924;
const SIOCSIFHWBROADCAST: u32 = 0x8937;
const SIOCSIFTXQLEN: u32 = 0x8943;
const SIOCSIFMAP: u32 = 0x8971;

/// The interface flags that a program may change on Linux.
const CHANGEABLE: u16 = 0xf3a5;

/// Whether packets to `to` would be sent through the loopback.
pub(crate) fn leads_to(to: IpAddr) -> bool {
    to.is_loopback() || to == IpAddr::V4(Ipv4Addr::UNSPECIFIED)
}

/// Whether a request is one about interfaces that some socket supports.
pub(crate) fn is_known(request: u32) -> bool {
    match request {
        SIOCGIFNAME..=SIOCSIFMETRIC | SIOCGIFMTU..=SIOCSIFHWADDR => request != SIOCSIFLINK,
        SIOCGIFHWADDR | SIOCGIFINDEX | SIOCSIFHWBROADCAST | SIOCGIFTXQLEN | SIOCSIFTXQLEN => true,
        SIOCGIFMAP | SIOCSIFMAP => true,
        _ => false,
    }
}

/// Serves an `ioctl` request about interfaces, which all sockets support. `None` if `request` is another one.
pub(crate) fn ioctl<M: Machine>(
    ctx: &Ctx<'_, M>,
    socket: Option<&Socket<M>>,
    request: u32,
    at: u64,
) -> Option<Result<usize, Errno>> {
    let inet = socket.is_some_and(|socket| socket.family() != Family::Unix);
    Some(match request {
        SIOCGIFCONF => list(ctx, at),
        SIOCGIFNAME => name(ctx, at),
        SIOCGIFFLAGS | SIOCGIFMETRIC | SIOCGIFMTU | SIOCGIFHWADDR | SIOCGIFINDEX | SIOCGIFTXQLEN | SIOCGIFMAP => {
            one(ctx, request, at)
        }
        // Only internet sockets support requests for addresses.
        SIOCGIFADDR | SIOCGIFDSTADDR | SIOCGIFBRDADDR | SIOCGIFNETMASK if inet => one(ctx, request, at),
        SIOCSIFFLAGS | SIOCSIFMETRIC | SIOCSIFMTU | SIOCSIFNAME | SIOCSIFHWADDR | SIOCSIFHWBROADCAST
        | SIOCSIFTXQLEN | SIOCSIFMAP => set(ctx, request, at),
        SIOCSIFADDR | SIOCSIFDSTADDR | SIOCSIFBRDADDR | SIOCSIFNETMASK
            if socket.is_some_and(|socket| socket.family() == Family::Inet4) =>
        {
            set(ctx, request, at)
        }
        _ => return None,
    })
}

/// The union of an `ifreq` with an IPv4 address.
fn address(ip: Ipv4Addr) -> [u8; REQUEST - NAME_BYTES] {
    let address = OutAddress::inet(SocketAddr::V4(SocketAddrV4::new(ip, 0)), false);
    let mut union = [0; REQUEST - NAME_BYTES];
    let bytes = address.cut(union.len());
    union[..bytes.len()].copy_from_slice(bytes);
    union
}

/// `SIOCGIFCONF`: lists the interfaces with an IPv4 address. Without a buffer, returns the number of bytes that the
/// list needs.
fn list<M: Machine>(ctx: &Ctx<'_, M>, at: u64) -> Result<usize, Errno> {
    let room: i32 = ctx.read(at)?;
    let buffer: u64 = ctx.read(at.checked_add(8).ok_or(Errno::EFAULT)?)?;
    let used = match buffer {
        0 => REQUEST,
        _ if (room as i64) < REQUEST as i64 => 0,
        _ => {
            let mut entry = [0; REQUEST];
            entry[..NAME.len()].copy_from_slice(NAME);
            entry[NAME_BYTES..].copy_from_slice(&address(Ipv4Addr::LOCALHOST));
            ctx.user().write_bytes(buffer, &entry)?;
            REQUEST
        }
    };
    ctx.write(at, &(used as i32))?;
    Ok(0)
}

/// `SIOCGIFNAME`: the name of an interface by its number.
fn name<M: Machine>(ctx: &Ctx<'_, M>, at: u64) -> Result<usize, Errno> {
    let mut request: [u8; REQUEST] = ctx.read(at)?;
    let index = request[NAME_BYTES..].first_chunk().map_or(0, |index| u32::from_le_bytes(*index));
    if index != INDEX {
        return Err(Errno::ENODEV);
    }
    request[..NAME_BYTES].fill(0);
    request[..NAME.len()].copy_from_slice(NAME);
    ctx.write(at, &request)?;
    Ok(0)
}

/// Returns a property of the interface that the request names.
fn one<M: Machine>(ctx: &Ctx<'_, M>, request: u32, at: u64) -> Result<usize, Errno> {
    let mut bytes: [u8; REQUEST] = ctx.read(at)?;
    let name = bytes[..NAME_BYTES - 1].split(|byte| *byte == 0).next().unwrap_or(&[]);
    // A name may have a suffix: a colon and the label of an address.
    if name.split(|byte| *byte == b':').next() != Some(NAME) {
        return Err(Errno::ENODEV);
    }
    let union = property(request);
    bytes[NAME_BYTES..].copy_from_slice(&union);
    ctx.write(at, &bytes)?;
    Ok(0)
}

/// Serves a request to change a property of the interface. The properties are fixed, so a request with the present
/// value succeeds and any other value is refused.
fn set<M: Machine>(ctx: &Ctx<'_, M>, request: u32, at: u64) -> Result<usize, Errno> {
    let bytes: [u8; REQUEST] = ctx.read(at)?;
    if !ctx.credentials().may(cap::NET_ADMIN) {
        return Err(Errno::EPERM);
    }
    let (name, new) = bytes.split_at(NAME_BYTES);
    let name = name[..NAME_BYTES - 1].split(|byte| *byte == 0).next().unwrap_or(&[]);
    is_present(request, name, new).and_then(|present| if present { Ok(0) } else { Err(Errno::EOPNOTSUPP) })
}

/// Whether the union `new` of a change equals the present value of the interface `name`.
fn is_present(request: u32, name: &[u8], new: &[u8]) -> Result<bool, Errno> {
    let word = |of: &[u8]| of.first_chunk().map_or(0, |word| u16::from_le_bytes(*word));
    let family = word(new);
    let is_address = matches!(request, SIOCSIFADDR | SIOCSIFDSTADDR | SIOCSIFBRDADDR | SIOCSIFNETMASK);
    if is_address && u32::from(family) != raw::AF_INET {
        return Err(Errno::EINVAL);
    }
    if name != NAME {
        return Err(Errno::ENODEV);
    }
    let (shown_by, range) = match request {
        SIOCSIFFLAGS => return Ok((family ^ FLAGS as u16) & CHANGEABLE == 0),
        SIOCSIFADDR => (SIOCGIFADDR, 4..8),
        SIOCSIFDSTADDR => (SIOCGIFDSTADDR, 4..8),
        SIOCSIFBRDADDR => (SIOCGIFBRDADDR, 4..8),
        SIOCSIFNETMASK => (SIOCGIFNETMASK, 4..8),
        SIOCSIFMTU => (SIOCGIFMTU, 0..4),
        SIOCSIFTXQLEN => (SIOCGIFTXQLEN, 0..4),
        // Only six bytes of a hardware address are significant.
        SIOCSIFHWADDR | SIOCSIFHWBROADCAST if family != HARDWARE => return Err(Errno::EINVAL),
        SIOCSIFHWADDR | SIOCSIFHWBROADCAST => (SIOCGIFHWADDR, 2..8),
        // Linux also refuses to set a metric, or a map of this interface.
        _ => return Ok(false),
    };
    Ok(new.get(range.clone()) == property(shown_by).get(range))
}

/// The union of the `ifreq` that is the answer to `request`.
fn property(request: u32) -> [u8; REQUEST - NAME_BYTES] {
    let mut union = [0; REQUEST - NAME_BYTES];
    let mut put = |bytes: &[u8]| union[..bytes.len()].copy_from_slice(bytes);
    match request {
        SIOCGIFADDR | SIOCGIFDSTADDR => return address(Ipv4Addr::LOCALHOST),
        SIOCGIFNETMASK => return address(Ipv4Addr::new(255, 0, 0, 0)),
        SIOCGIFBRDADDR => return address(Ipv4Addr::UNSPECIFIED),
        // The field has only 16 bits.
        SIOCGIFFLAGS => put(&(FLAGS as u16).to_le_bytes()),
        SIOCGIFMTU => put(&MTU.to_le_bytes()),
        SIOCGIFINDEX => put(&INDEX.to_le_bytes()),
        SIOCGIFTXQLEN => put(&QUEUE.to_le_bytes()),
        SIOCGIFHWADDR => put(&HARDWARE.to_le_bytes()),
        _ => {}
    }
    union
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn only_the_present_value_is_taken() {
        let mtu = MTU.to_le_bytes();
        let mut union = [0; REQUEST - NAME_BYTES];
        union[..4].copy_from_slice(&mtu);
        assert_eq!(is_present(SIOCSIFMTU, NAME, &union), Ok(true));
        assert_eq!(is_present(SIOCSIFMTU, b"eth0", &union), Err(Errno::ENODEV));
        union[1] = 5;
        assert_eq!(is_present(SIOCSIFMTU, NAME, &union), Ok(false));
        assert_eq!(is_present(SIOCSIFADDR, b"eth0", &union), Err(Errno::EINVAL));
        assert_eq!(is_present(SIOCSIFADDR, NAME, &address(Ipv4Addr::LOCALHOST)), Ok(true));
        assert_eq!(is_present(SIOCSIFNETMASK, NAME, &address(Ipv4Addr::LOCALHOST)), Ok(false));
        assert_eq!(is_present(SIOCSIFHWADDR, NAME, &property(SIOCGIFHWADDR)), Ok(true));
        assert_eq!(is_present(SIOCSIFMETRIC, NAME, &property(SIOCGIFMETRIC)), Ok(false));
    }

    #[test]
    fn flags_that_no_program_changes_do_not_count() {
        let flags = |bits: u16| {
            let mut union = [0; REQUEST - NAME_BYTES];
            union[..2].copy_from_slice(&bits.to_le_bytes());
            is_present(SIOCSIFFLAGS, NAME, &union)
        };
        let now = FLAGS as u16;
        // The flags `running` and `loopback` are reported, but cannot be changed.
        assert_eq!(
            [flags(now), flags(1), flags(now & !1), flags(now | 0x100)].map(Result::unwrap),
            [true, true, false, false]
        );
    }
}
