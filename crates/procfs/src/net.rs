//! `/proc/net`: the network interface, its addresses and routes, and all sockets.

use crate::about::System;
use crate::node::{Directory, Item, Table, directory, put};
use core::fmt::{self, Write as _};
use core::net::{IpAddr, SocketAddr};
use quire_fs::FsError;
use quire_fs::generated::Text;
use quire_linux::socket::loopback::{INDEX, PERMANENT};
use quire_linux::socket::options::{TCP_CLOSE, TCP_ESTABLISHED, TCP_LISTEN, tcp_state};
use quire_linux_state::machine::Machine;
use quire_net::{Address, Family, Kind, Row, Stage};

type Written = Result<(), FsError>;

/// The flag of a listening Unix socket (`__SO_ACCEPTCON`).
const ACCEPTS: u32 = 0x1_0000;

struct Names<M>(core::marker::PhantomData<M>);

impl<M: Machine> Names<M> {
    const ITEMS: &'static [Item<M, System<M>>] = &[
        Item::file("dev", |_, out| {
            put!(out, "Inter-|   Receive                                                |  Transmit\n")?;
            put!(out, " face |bytes    packets errs drop fifo frame compressed multicast")?;
            put!(out, "|bytes    packets errs drop fifo colls carrier compressed\n")?;
            put!(out, "    lo:       0       0    0    0    0     0          0         0")?;
            put!(out, "        0       0    0    0    0     0       0          0\n")
        }),
        Item::file("if_inet6", |_, out| {
            put!(out, "00000000000000000000000000000001 {INDEX:02x} 80 10 {PERMANENT:02x}       lo\n")
        }),
        Item::file("ipv6_route", |_, out| {
            let none = "00000000000000000000000000000000";
            put!(
                out,
                "00000000000000000000000000000001 80 {none} 00 {none} 00000000 00000001 00000000 80200001       lo\n"
            )
        }),
        Item::file("route", |_, out| {
            let head = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT";
            put!(out, "{head:<127}\n")
        }),
        Item::file("sockstat", |about, out| counts(about, Family::Inet4, out)),
        Item::file("sockstat6", |about, out| counts(about, Family::Inet6, out)),
        Item::file("tcp", |about, out| tcp(about, Family::Inet4, out)),
        Item::file("tcp6", |about, out| tcp(about, Family::Inet6, out)),
        Item::file("udp", |about, out| udp(about, Family::Inet4, out)),
        Item::file("udp6", |about, out| udp(about, Family::Inet6, out)),
        Item::file("unix", unix),
    ];
}

/// The directory `net`. Its inode numbers start at `numbers`.
pub(super) fn of<M: Machine>(about: System<M>, numbers: u64) -> Directory<M> {
    directory(Table::of_root(about, Names::<M>::ITEMS, numbers))
}

/// An address in the format of the tables: hexadecimal words in the machine's byte order.
struct Shown<'a>(&'a Address, Family);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Address::Inet(at) = self.0 else { return Ok(()) };
        let words = |bytes: &[u8], f: &mut fmt::Formatter<'_>| {
            bytes.as_chunks::<4>().0.iter().try_for_each(|word| write!(f, "{:08X}", u32::from_le_bytes(*word)))
        };
        match (at.ip(), self.1) {
            (IpAddr::V4(ip), Family::Inet6) => words(&ip.to_ipv6_mapped().octets(), f)?,
            (IpAddr::V4(ip), _) => words(&ip.octets(), f)?,
            (IpAddr::V6(ip), _) => words(&ip.octets(), f)?,
        }
        write!(f, ":{:04X}", at.port())
    }
}

/// A line of text that is padded to a width.
struct Line {
    bytes: [u8; Line::MOST],
    len: usize,
}

impl Line {
    /// The most bytes of a line.
    const MOST: usize = 256;

    /// Writes `line` to `out`, padded to `width` bytes.
    fn put(out: &mut Text, width: usize, line: fmt::Arguments<'_>) -> Written {
        let mut text = Line { bytes: [b' '; Line::MOST], len: 0 };
        let written = text.write_fmt(line);
        debug_assert!(written.is_ok(), "a line is longer than there is room");
        out.push(&text.bytes[..text.len.max(width)])?;
        out.push(b"\n")
    }
}

impl fmt::Write for Line {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        let end = self.len + s.len();
        self.bytes.get_mut(self.len..end).ok_or(fmt::Error)?.copy_from_slice(s.as_bytes());
        self.len = end;
        Ok(())
    }
}

/// The number of a TCP socket's state on Linux; `None` for a closed socket, which the tables omit.
fn state(stage: Stage) -> Option<u8> {
    Some(tcp_state(stage)).filter(|state| *state != TCP_CLOSE)
}

fn rows<M: Machine>(about: &System<M>, family: Family, kind: Kind, mut each: impl FnMut(&Row) -> Written) -> Written {
    about.0.network.each(|row| if row.family == family && row.kind == kind { each(row) } else { Ok(()) })
}

const AFTER: &str = "st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode";

fn tcp<M: Machine>(about: &System<M>, family: Family, out: &mut Text) -> Written {
    let width = match family {
        Family::Inet6 => {
            put!(out, "  sl  {:<38}{:<38}{AFTER}\n", "local_address", "remote_address")?;
            0
        }
        _ => {
            Line::put(out, 149, format_args!("  sl  local_address rem_address   {AFTER}"))?;
            149
        }
    };
    let mut n = 0;
    rows(about, family, Kind::Stream, |row| {
        let Some(state) = state(row.stage) else { return Ok(()) };
        let (local, remote) = (Shown(&row.local, family), Shown(&row.remote, family));
        let end = if state == TCP_LISTEN { "100 0 0 10 0" } else { "20 4 0 10 -1" };
        // `tx_queue` is always 0, because the peer has acknowledged every byte.
        let Row { received, uid, inode, .. } = row;
        Line::put(
            out,
            width,
            format_args!(
                "{n:4}: {local} {remote} {state:02X} 00000000:{received:08X} \
                 00:00000000 00000000 {uid:5}        0 {inode} 1 {:016x} {end}",
                0
            ),
        )?;
        n += 1;
        Ok(())
    })
}

fn udp<M: Machine>(about: &System<M>, family: Family, out: &mut Text) -> Written {
    let rest = "ref pointer drops";
    let width = match family {
        Family::Inet6 => {
            put!(out, "  sl  {:<38}{:<38}{AFTER} {rest}\n", "local_address", "remote_address")?;
            0
        }
        _ => {
            Line::put(out, 127, format_args!("   sl  local_address rem_address   {AFTER} {rest}"))?;
            127
        }
    };
    let mut n = 0;
    rows(about, family, Kind::Datagram, |row| {
        // As on Linux, only sockets with a port are listed.
        if !matches!(&row.local, Address::Inet(at) if at.port() != 0) {
            return Ok(());
        }
        let (local, remote) = (Shown(&row.local, family), Shown(&row.remote, family));
        let state = if row.stage == Stage::Connected { TCP_ESTABLISHED } else { TCP_CLOSE };
        let Row { received, uid, inode, .. } = row;
        Line::put(
            out,
            width,
            format_args!(
                "{n:5}: {local} {remote} {state:02X} 00000000:{received:08X} \
                 00:00000000 00000000 {uid:5}        0 {inode} 2 {:016x} 0",
                0
            ),
        )?;
        n += 1;
        Ok(())
    })
}

fn unix<M: Machine>(about: &System<M>, out: &mut Text) -> Written {
    put!(out, "Num       RefCount Protocol Flags    Type St Inode Path\n")?;
    about.0.network.each(|row| {
        if row.family != Family::Unix {
            return Ok(());
        }
        let kind = match row.kind {
            Kind::Stream => 1,
            Kind::Datagram => 2,
            Kind::SeqPacket => 5,
        };
        let (flags, state) = match row.stage {
            Stage::Listening => (ACCEPTS, 1),
            Stage::Unconnected => (0, 1),
            // A connection that no call has accepted yet has no file, so its inode number is 0.
            _ if row.inode == 0 => (0, 2),
            Stage::Connecting => (0, 2),
            _ => (0, 3),
        };
        put!(out, "{:016x}: 00000002 00000000 {flags:08X} {kind:04X} {state:02X} {:5}", 0, row.inode)?;
        match &row.local {
            Address::Path(path) => {
                out.push(b" ")?;
                out.push(path)?;
            }
            Address::Abstract(name) => {
                out.push(b" @")?;
                for byte in &name[..] {
                    out.push(&[if *byte == 0 { b'@' } else { *byte }])?;
                }
            }
            Address::Unnamed | Address::Inet(_) => {}
        }
        out.push(b"\n")
    })
}

/// Writes `sockstat` or `sockstat6`: the numbers of sockets.
fn counts<M: Machine>(about: &System<M>, family: Family, out: &mut Text) -> Written {
    let (mut used, mut connections, mut streams, mut datagrams) = (0, 0, 0, 0);
    about.0.network.each(|row| {
        used += 1;
        if row.family == family {
            match row.kind {
                Kind::Datagram => datagrams += u32::from(has_port(&row.local)),
                _ => {
                    streams += 1;
                    connections += u32::from(state(row.stage).is_some());
                }
            }
        }
        Ok(())
    })?;
    if family == Family::Inet6 {
        return put!(
            out,
            "TCP6: inuse {connections}\nUDP6: inuse {datagrams}\nUDPLITE6: inuse 0\n\
             RAW6: inuse 0\nFRAG6: inuse 0 memory 0\n"
        );
    }
    put!(out, "sockets: used {used}\nTCP: inuse {connections} orphan 0 tw 0 alloc {streams} mem 0\n")?;
    put!(out, "UDP: inuse {datagrams} mem 0\nUDPLITE: inuse 0\nRAW: inuse 0\nFRAG: inuse 0 memory 0\n")
}

fn has_port(address: &Address) -> bool {
    matches!(address, Address::Inet(at) if SocketAddr::port(at) != 0)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn addresses_are_words_in_the_order_of_the_machine() {
        let shown = |at: &str, family| Shown(&Address::Inet(at.parse().unwrap()), family).to_string();
        assert_eq!(shown("127.0.0.1:80", Family::Inet4), "0100007F:0050");
        assert_eq!(shown("[::1]:80", Family::Inet6), "00000000000000000000000001000000:0050");
        assert_eq!(shown("127.0.0.1:80", Family::Inet6), "0000000000000000FFFF00000100007F:0050");
    }
}
