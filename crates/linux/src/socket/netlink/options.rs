//! Options of the level SOL_NETLINK.

use crate::socket::netlink::Netlink;
use crate::socket::options::{Value, set_socket_option, socket_option};
use crate::socket::raw;
use quire_linux_state::{Ctx, Errno, Machine};
use quire_sync::atomic::Ordering;

const ADD_MEMBERSHIP: u32 = 1;
const DROP_MEMBERSHIP: u32 = 2;
const LIST_MEMBERSHIPS: u32 = 9;
/// The options that are on or off: packet information, errors of broadcasts, no ENOBUFS, all namespaces, short
/// acknowledgements, extended acknowledgements, strict checks.
const SWITCHES: [u32; 7] = [3, 4, 5, 8, 10, 11, 12];
/// The bit of the option for short acknowledgements (NETLINK_CAP_ACK).
pub(super) const CAP_ACKNOWLEDGEMENTS: u32 = 1 << 10;
/// The highest group of `NETLINK_ROUTE`.
const GROUPS: u32 = 36;

/// `setsockopt`
pub(in super::super) fn set_option<M: Machine>(
    ctx: &Ctx<'_, M>,
    socket: &Netlink<M>,
    (level, name): (u32, u32),
    at: u64,
    len: usize,
) -> Result<usize, Errno> {
    if level == raw::SOL_SOCKET {
        return set_socket_option(ctx, socket.options(), name, at, len);
    }
    if level != raw::SOL_NETLINK {
        return Err(Errno::ENOPROTOOPT);
    }
    // As on Linux, a value shorter than 4 bytes counts as 0.
    let value = if len >= 4 { ctx.read::<u32>(at)? } else { 0 };
    match name {
        ADD_MEMBERSHIP | DROP_MEMBERSHIP => {
            let group = value.checked_sub(1).filter(|_| value <= GROUPS).ok_or(Errno::EINVAL)?;
            // Groups above 32 have no bit in an address. No group ever gets messages.
            let bit = 1u32.checked_shl(group).unwrap_or(0);
            socket.port()?;
            let mut names = socket.names.lock();
            if name == ADD_MEMBERSHIP { names.groups |= bit } else { names.groups &= !bit }
        }
        name if SWITCHES.contains(&name) => {
            match value != 0 {
                true => socket.bits.fetch_or(1 << name, Ordering::Relaxed),
                false => socket.bits.fetch_and(!(1 << name), Ordering::Relaxed),
            };
        }
        _ => return Err(Errno::ENOPROTOOPT),
    }
    Ok(0)
}

/// `getsockopt`
pub(in super::super) fn get_option<M: Machine>(socket: &Netlink<M>, (level, name): (u32, u32)) -> Result<Value, Errno> {
    match (level, name) {
        (raw::SOL_SOCKET, raw::SO_TYPE) => {
            Ok(Value::Number(if socket.raw { raw::SOCK_RAW } else { raw::SOCK_DGRAM } as i32))
        }
        (raw::SOL_SOCKET, raw::SO_DOMAIN) => Ok(Value::Number(raw::AF_NETLINK as i32)),
        (raw::SOL_SOCKET, raw::SO_PROTOCOL | raw::SO_ACCEPTCONN) => Ok(Value::Number(0)),
        (raw::SOL_SOCKET, raw::SO_ERROR) => Ok(Value::Number(socket.take_error().map_or(0, |e| e.0.into()))),
        (raw::SOL_SOCKET, name) => socket_option(socket.options(), name),
        (raw::SOL_NETLINK, LIST_MEMBERSHIPS) => Ok(Value::Pair([socket.names.lock().groups as i32, 0])),
        (raw::SOL_NETLINK, name) if SWITCHES.contains(&name) => {
            Ok(Value::Number((socket.bits.load(Ordering::Relaxed) >> name & 1) as i32))
        }
        _ => Err(Errno::ENOPROTOOPT),
    }
}
