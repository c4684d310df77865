//! The one network interface: `lo`, with 127.0.0.1/8 and ::1/128. `ioctl` asks for it here, and netlink in
//! [`netlink`](super::netlink).

use super::host::Socket;
use super::user_address::Told;
use crate::{Ctx, Errno, Machine};
use core::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use quire_net::Family;

/// Its number.
pub(crate) const INDEX: u32 = 1;
/// Its name.
pub(crate) const NAME: &[u8] = b"lo";
/// The most bytes of a packet, as on Linux.
pub(crate) const MTU: u32 = 65_536;
/// The length of its queue, as on Linux.
pub(crate) const QUEUE: u32 = 1000;
/// Linux's `ARPHRD_LOOPBACK`.
pub(crate) const HARDWARE: u16 = 772;
/// It is up, running and a loopback; its lower layer is up.
pub(crate) const FLAGS: u32 = 0x1_0049;
/// The flag of addresses that last for ever.
pub(crate) const PERMANENT: u32 = 0x80;

/// Bytes of an interface's name in an `ifreq`, its terminator included.
const NAME_BYTES: usize = 16;
/// Bytes of an `ifreq`: a name, and a union.
const REQUEST: usize = 40;

const SIOCGIFNAME: u32 = 0x8910;
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

/// Whether packets to `to` would leave and arrive here.
pub(crate) fn leads_to(to: IpAddr) -> bool {
    to.is_loopback() || to == IpAddr::V4(Ipv4Addr::UNSPECIFIED)
}

/// Answers a request about interfaces, which any socket may be asked. `None` if `request` is another one.
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
        // Only sockets of the Internet know addresses.
        SIOCGIFADDR | SIOCGIFDSTADDR | SIOCGIFBRDADDR | SIOCGIFNETMASK if inet => one(ctx, request, at),
        _ => return None,
    })
}

/// The union of an `ifreq` with an IPv4 address.
fn address(ip: Ipv4Addr) -> [u8; REQUEST - NAME_BYTES] {
    let told = Told::inet(SocketAddr::V4(SocketAddrV4::new(ip, 0)), false);
    let mut union = [0; REQUEST - NAME_BYTES];
    let bytes = told.cut(union.len());
    union[..bytes.len()].copy_from_slice(bytes);
    union
}

/// `SIOCGIFCONF`: the interfaces with an IPv4 address. Without a buffer, the bytes that they need.
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

/// A property of an interface by its name.
fn one<M: Machine>(ctx: &Ctx<'_, M>, request: u32, at: u64) -> Result<usize, Errno> {
    let mut bytes: [u8; REQUEST] = ctx.read(at)?;
    let name = bytes[..NAME_BYTES - 1].split(|byte| *byte == 0).next().unwrap_or(&[]);
    // A name may be followed by a colon and a label of one of its addresses.
    if name.split(|byte| *byte == b':').next() != Some(NAME) {
        return Err(Errno::ENODEV);
    }
    let union = property(request);
    bytes[NAME_BYTES..].copy_from_slice(&union);
    ctx.write(at, &bytes)?;
    Ok(0)
}

/// The union of an `ifreq` that answers `request`.
fn property(request: u32) -> [u8; REQUEST - NAME_BYTES] {
    let mut union = [0; REQUEST - NAME_BYTES];
    let mut put = |bytes: &[u8]| union[..bytes.len()].copy_from_slice(bytes);
    match request {
        SIOCGIFADDR | SIOCGIFDSTADDR => return address(Ipv4Addr::LOCALHOST),
        SIOCGIFNETMASK => return address(Ipv4Addr::new(255, 0, 0, 0)),
        SIOCGIFBRDADDR => return address(Ipv4Addr::UNSPECIFIED),
        // Only the low half is there.
        SIOCGIFFLAGS => put(&(FLAGS as u16).to_le_bytes()),
        SIOCGIFMTU => put(&MTU.to_le_bytes()),
        SIOCGIFINDEX => put(&INDEX.to_le_bytes()),
        SIOCGIFTXQLEN => put(&QUEUE.to_le_bytes()),
        SIOCGIFHWADDR => put(&HARDWARE.to_le_bytes()),
        _ => {}
    }
    union
}
