//! Control messages about the headers of internet datagrams: the destination or source address, the hop limit and the
//! traffic class.

use crate::socket::control::{Writer, word};
use crate::socket::options::kept_value;
use crate::socket::{loopback, raw};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use quire_linux_state::socket::host::Socket;
use quire_linux_state::{Ctx, Errno, Machine};
use quire_net::{Arrival, Choice, Family, Header};

/// The size of an `in_pktinfo` in bytes: interface, source, destination.
const PKTINFO: usize = 12;
/// The size of an `in6_pktinfo` in bytes: address, interface.
const PKTINFO6: usize = 20;

/// The value of a message that is an `int` from -1 to 255. `None` for -1, which means the default.
fn number(data: &[u8]) -> Result<Option<u8>, Errno> {
    match word(data, 0) as i32 {
        _ if data.len() != 4 => Err(Errno::EINVAL),
        -1 => Ok(None),
        value => u8::try_from(value).map(Some).map_err(|_| Errno::EINVAL),
    }
}

/// Checks an interface number of a program, which must be 0 (none) or the loopback's. ENODEV otherwise.
fn interface(index: u32) -> Result<(), Errno> {
    if index == 0 || index == loopback::INDEX { Ok(()) } else { Err(Errno::ENODEV) }
}

/// Applies one control message of a sender to `choice`. The socket has `family`. As on Linux, messages of other levels
/// are ignored.
pub(super) fn choose(choice: &mut Choice, family: Family, (level, kind): (u32, u32), data: &[u8]) -> Result<(), Errno> {
    match (level, kind) {
        (raw::SOL_IP, raw::IP_PKTINFO) => {
            let Some(data) = data.first_chunk::<PKTINFO>().filter(|_| data.len() == PKTINFO) else {
                return Err(Errno::EINVAL);
            };
            interface(word(data, 0))?;
            let from = Ipv4Addr::from_bits(word(data, 4).swap_bytes());
            choice.from = (!from.is_unspecified()).then_some(from.into());
        }
        (raw::SOL_IP, raw::IP_TTL) => match number(data)? {
            None | Some(0) => return Err(Errno::EINVAL),
            some => choice.hops = some,
        },
        (raw::SOL_IP, raw::IP_TOS) => match *data {
            [class] => choice.class = Some(class),
            _ => choice.class = Some(number(data)?.ok_or(Errno::EINVAL)?),
        },
        (raw::SOL_IP, raw::IP_RETOPTS) => {}
        (raw::SOL_IPV6, _) if family != Family::Inet6 => {}
        (raw::SOL_IPV6, raw::IPV6_PKTINFO) => {
            let Some(data) = data.first_chunk::<PKTINFO6>() else { return Err(Errno::EINVAL) };
            interface(word(data, 16))?;
            let bytes: [u8; 16] = core::array::from_fn(|i| data[i]);
            let from = Ipv6Addr::from(bytes);
            choice.from = (!from.is_unspecified()).then_some(from.to_canonical());
        }
        (raw::SOL_IPV6, raw::IPV6_HOPLIMIT) => choice.hops = number(data)?,
        (raw::SOL_IPV6, raw::IPV6_TCLASS) => choice.class = number(data)?,
        (raw::SOL_IP | raw::SOL_IPV6, _) => return Err(Errno::EINVAL),
        _ => {}
    }
    Ok(())
}

/// Stores the control messages that the receiver's options request, in Linux's order.
pub(super) fn store<M: Machine>(
    ctx: &Ctx<'_, M>,
    writer: &mut Writer,
    socket: &Socket<M>,
    arrival: Arrival,
) -> Result<(), Errno> {
    let wants = |level, name| kept_value(socket.options(), level, name) != 0;
    let Arrival { to, header: Header { hops, class } } = arrival;
    let (hops, wide_class) = (u32::from(hops).to_le_bytes(), u32::from(class).to_le_bytes());
    let index = loopback::INDEX.to_le_bytes();
    if wants(raw::SOL_IPV6, raw::IPV6_RECVPKTINFO) {
        let address = match to {
            IpAddr::V4(to) => to.to_ipv6_mapped(),
            IpAddr::V6(to) => to,
        };
        let mut data = [0; PKTINFO6];
        data[..16].copy_from_slice(&address.octets());
        data[16..].copy_from_slice(&index);
        writer.put(ctx, (raw::SOL_IPV6, raw::IPV6_PKTINFO), &data)?;
    }
    match to {
        IpAddr::V6(_) => {
            if wants(raw::SOL_IPV6, raw::IPV6_RECVHOPLIMIT) {
                writer.put(ctx, (raw::SOL_IPV6, raw::IPV6_HOPLIMIT), &hops)?;
            }
            if wants(raw::SOL_IPV6, raw::IPV6_RECVTCLASS) {
                writer.put(ctx, (raw::SOL_IPV6, raw::IPV6_TCLASS), &wide_class)?;
            }
        }
        IpAddr::V4(to) => {
            if wants(raw::SOL_IP, raw::IP_PKTINFO) {
                let mut data = [0; PKTINFO];
                data[..4].copy_from_slice(&index);
                data[4..8].copy_from_slice(&to.octets());
                data[8..].copy_from_slice(&to.octets());
                writer.put(ctx, (raw::SOL_IP, raw::IP_PKTINFO), &data)?;
            }
            if wants(raw::SOL_IP, raw::IP_RECVTTL) {
                writer.put(ctx, (raw::SOL_IP, raw::IP_TTL), &hops)?;
            }
            if wants(raw::SOL_IP, raw::IP_RECVTOS) {
                writer.put(ctx, (raw::SOL_IP, raw::IP_TOS), &[class])?;
            }
        }
    }
    Ok(())
}
