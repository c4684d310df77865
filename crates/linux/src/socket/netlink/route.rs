//! The answers of `NETLINK_ROUTE`: the only interface, its addresses and its routes.

use crate::socket::loopback;
use crate::socket::loopback::{INDEX, MTU, NAME, QUEUE};
use crate::socket::netlink::message::{Answers, Header, Request};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use linux_raw_sys::net as raw;
use quire_fs::FsError;
use quire_linux_state::Errno;

type Written = Result<(), FsError>;

// Types of messages, from Linux's rtnetlink.h. Each group of four has the types for making, removing, reading and
// changing.
const BASE: u16 = 16;
const MOST: u16 = 123;
const NEW_LINK: u16 = 16;
const GET_LINK: u16 = 18;
const NEW_ADDRESS: u16 = 20;
const GET_ADDRESS: u16 = 22;
const NEW_ROUTE: u16 = 24;
const GET_ROUTE: u16 = 26;
const GET_NEIGHBOUR: u16 = 30;
const GET_RULE: u16 = 34;
const GET_QUEUE: u16 = 38;
const DONE: u16 = 3;

const DUMP: u16 = 0x300;
const MULTI: u16 = 2;

const UNIX: u8 = 0;
const INET: u8 = raw::AF_INET as u8;
const INET6: u8 = raw::AF_INET6 as u8;
const BRIDGE: u8 = raw::AF_BRIDGE as u8;

/// The sizes in bytes of the structures at the beginning of requests: `ifinfomsg`, `ifaddrmsg`, `rtmsg`.
const LINK_BYTES: usize = 16;
const ADDRESS_BYTES: usize = 8;
const ROUTE_BYTES: usize = 12;

/// `IFLA_IFNAME`, `IFLA_ALT_IFNAME` and `IFLA_EXT_MASK`, and the bit of the mask that leaves out counters.
const LINK_NAME: u16 = 3;
const OTHER_NAME: u16 = 53;
const EXTENSIONS: u16 = 29;
const NO_COUNTERS: u32 = 1 << 3;

const HOST: u8 = 254;
const LINK: u8 = 253;
const MAIN: u8 = 254;
const LOCAL: u8 = 255;
const FOREVER: u32 = u32::MAX;

/// The datagrams that answer a request, in order.
pub(super) enum Answer {
    /// The request has succeeded, or has failed with this error.
    Done(Result<(), Errno>),
    /// The answer is one message.
    One(Answers),
    /// A list: all messages, and the message that ends the list.
    All(Answers, Answers),
}

/// Answers `request`. `port` is the port of the requesting socket. `admin` says whether the caller may change the
/// network.
pub(super) fn answer(request: &Request<'_>, port: u32, admin: bool) -> Result<Answer, FsError> {
    let Header { kind, flags, .. } = request.header;
    if kind > MOST {
        return Ok(Answer::Done(Err(Errno::EOPNOTSUPP)));
    }
    let Some(family) = request.family() else { return Ok(Answer::Done(Ok(()))) };
    if (kind - BASE) % 4 != 2 {
        return Ok(Answer::Done(Err(if admin { Errno::EOPNOTSUPP } else { Errno::EPERM })));
    }
    let one = |fill: &dyn Fn(&mut Answers) -> Written| {
        let mut answers = Answers::new();
        fill(&mut answers)?;
        Ok(Answer::One(answers))
    };
    let writer = Writer { to: request.header, port, flags: 0 };
    if flags & DUMP != 0 {
        return dump(request, family, Writer { flags: MULTI, ..writer });
    }
    let refused = |e| Ok(Answer::Done(Err(e)));
    match kind {
        GET_LINK => match wanted_link(request) {
            Ok(()) => one(&|answers| writer.link(answers, counters(request))),
            Err(e) => refused(e),
        },
        GET_ADDRESS if family == INET6 => {
            let asked = request.attribute(ADDRESS_BYTES, 1).or(request.attribute(ADDRESS_BYTES, 2));
            match asked.and_then(|address| address.first_chunk::<16>()) {
                None => refused(Errno::EINVAL),
                Some(address) if Ipv6Addr::from_octets(*address).is_loopback() => {
                    one(&|answers| writer.address6(answers))
                }
                Some(_) => refused(Errno::EADDRNOTAVAIL),
            }
        }
        GET_ROUTE if matches!(family, INET | INET6) => {
            let to = request.attribute(ROUTE_BYTES, 1);
            let to: Option<IpAddr> = match family {
                INET => Some(to.map_or(Ipv4Addr::UNSPECIFIED, |to| four(to).unwrap_or(Ipv4Addr::UNSPECIFIED)).into()),
                _ => to.and_then(|to| to.first_chunk::<16>()).map(|to| Ipv6Addr::from_octets(*to).into()),
            };
            match to {
                Some(to) if loopback::leads_to(to) => one(&|answers| writer.way(answers, to)),
                _ => refused(Errno::ENETUNREACH),
            }
        }
        _ => refused(Errno::EOPNOTSUPP),
    }
}

fn four(bytes: &[u8]) -> Option<Ipv4Addr> {
    bytes.first_chunk::<4>().map(|ip| Ipv4Addr::from_octets(*ip))
}

/// Whether the answer to a request about the interface includes its counters.
fn counters(request: &Request<'_>) -> bool {
    let mask = request.attribute(LINK_BYTES, EXTENSIONS).and_then(|mask| mask.first_chunk());
    mask.is_none_or(|mask| u32::from_le_bytes(*mask) & NO_COUNTERS == 0)
}

/// Checks that a request names the interface, by its number or name. ENODEV for another one.
fn wanted_link(request: &Request<'_>) -> Result<(), Errno> {
    let index = request.word(4).ok_or(Errno::EINVAL)? as i32;
    if index > 0 {
        return if index as u32 == INDEX { Ok(()) } else { Err(Errno::ENODEV) };
    }
    let name = request.attribute(LINK_BYTES, LINK_NAME).or(request.attribute(LINK_BYTES, OTHER_NAME));
    let name = name.ok_or(Errno::EINVAL)?;
    let name = name.split(|byte| *byte == 0).next().unwrap_or(name);
    if name == NAME { Ok(()) } else { Err(Errno::ENODEV) }
}

fn dump(request: &Request<'_>, family: u8, writer: Writer) -> Result<Answer, FsError> {
    let mut all = Answers::new();
    let (four, six) = (family != INET6, family != INET);
    match request.header.kind {
        GET_LINK if family == BRIDGE => {}
        GET_LINK => writer.link(&mut all, counters(request))?,
        GET_ADDRESS => {
            if four {
                writer.address4(&mut all)?;
            }
            if six {
                writer.address6(&mut all)?;
            }
        }
        GET_ROUTE => {
            // A request of the old form has only a family, and asks for all tables.
            let table = request.body.get(4).filter(|_| request.body.len() >= ROUTE_BYTES);
            let in_local = table.is_none_or(|table| matches!(*table, 0 | LOCAL));
            if four && in_local {
                writer.routes4(&mut all)?;
            }
            if six && in_local {
                writer.route6(&mut all)?;
            }
        }
        GET_NEIGHBOUR | GET_QUEUE => {}
        GET_RULE if matches!(family, UNIX | INET | INET6) => {}
        _ => return Ok(Answer::Done(Err(Errno::EOPNOTSUPP))),
    }
    let mut end = Answers::new();
    end.message((DONE, MULTI), &writer.to, writer.port, |end| end.part(&[0; 4]))?;
    Ok(Answer::All(all, end))
}

/// An IPv4 route: prefix length, scope, type and destination.
type Route4 = (u8, u8, u8, Ipv4Addr);

/// Writes the answers to one request.
#[derive(Clone, Copy)]
struct Writer {
    to: Header,
    port: u32,
    flags: u16,
}

impl Writer {
    fn message(&self, out: &mut Answers, kind: u16, fill: impl FnOnce(&mut Answers) -> Written) -> Written {
        out.message((kind, self.flags), &self.to, self.port, fill)
    }

    fn link(&self, out: &mut Answers, counters: bool) -> Written {
        self.message(out, NEW_LINK, |out| {
            let [low, high] = loopback::HARDWARE.to_le_bytes();
            out.part(&[0, 0, low, high])?;
            out.part(&INDEX.to_le_bytes())?;
            out.part(&loopback::FLAGS.to_le_bytes())?;
            out.part(&[0; 4])?;
            out.attribute(LINK_NAME, b"lo\0")?;
            for (kind, value) in [(13, QUEUE), (4, MTU), (50, 0), (51, 0), (27, 0), (30, 0), (61, 0), (31, 1), (32, 1)]
            {
                out.number(kind, value)?;
            }
            // IFLA_OPERSTATE unknown, IFLA_LINKMODE default, IFLA_CARRIER on, IFLA_PROTO_DOWN off.
            for (kind, value) in [(16, 0u8), (17, 0), (33, 1), (39, 0)] {
                out.attribute(kind, &[value])?;
            }
            for changes in [35, 47, 48] {
                out.number(changes, 0)?;
            }
            out.attribute(1, &[0; 6])?;
            out.attribute(2, &[0; 6])?;
            if counters {
                // All counters are 0, because there are no packets.
                out.attribute(23, &[0; 25 * 8])?;
                out.attribute(7, &[0; 24 * 4])?;
            }
            out.attribute(6, b"noqueue\0")
        })
    }

    fn address4(&self, out: &mut Answers) -> Written {
        self.message(out, NEW_ADDRESS, |out| {
            out.part(&[INET, 8, loopback::PERMANENT as u8, HOST])?;
            out.part(&INDEX.to_le_bytes())?;
            let own = Ipv4Addr::LOCALHOST.octets();
            out.attribute(1, &own)?;
            out.attribute(2, &own)?;
            out.attribute(3, b"lo\0")?;
            out.number(8, loopback::PERMANENT)?;
            out.attribute(6, &lifetime())
        })
    }

    fn address6(&self, out: &mut Answers) -> Written {
        self.message(out, NEW_ADDRESS, |out| {
            out.part(&[INET6, 128, loopback::PERMANENT as u8, HOST])?;
            out.part(&INDEX.to_le_bytes())?;
            out.attribute(1, &Ipv6Addr::LOCALHOST.octets())?;
            out.attribute(6, &lifetime())?;
            out.number(8, loopback::PERMANENT)?;
            // The address's origin: the kernel's own address of a loopback (IFA_PROTO).
            out.attribute(11, &[1])
        })
    }

    fn routes4(&self, out: &mut Answers) -> Written {
        const LOCAL_ROUTE: u8 = 2;
        const BROADCAST: u8 = 3;
        let all: [Route4; 3] = [
            (8, HOST, LOCAL_ROUTE, Ipv4Addr::new(127, 0, 0, 0)),
            (32, HOST, LOCAL_ROUTE, Ipv4Addr::LOCALHOST),
            (32, LINK, BROADCAST, Ipv4Addr::new(127, 255, 255, 255)),
        ];
        for (prefix, scope, kind, to) in all {
            self.message(out, NEW_ROUTE, |out| {
                out.part(&[INET, prefix, 0, 0])?;
                out.part(&[LOCAL, 2, scope, kind])?;
                out.part(&[0; 4])?;
                out.number(15, LOCAL.into())?;
                out.attribute(1, &to.octets())?;
                out.attribute(7, &Ipv4Addr::LOCALHOST.octets())?;
                out.number(4, INDEX)
            })?;
        }
        Ok(())
    }

    fn route6(&self, out: &mut Answers) -> Written {
        self.message(out, NEW_ROUTE, |out| {
            out.part(&[INET6, 128, 0, 0])?;
            out.part(&[LOCAL, 2, 0, 2])?;
            out.part(&[0; 4])?;
            out.number(15, LOCAL.into())?;
            out.attribute(1, &Ipv6Addr::LOCALHOST.octets())?;
            out.number(6, 0)?;
            out.number(4, INDEX)?;
            out.attribute(12, &[0; 32])?;
            out.attribute(20, &[0])
        })
    }

    /// Adds the route to an address of this machine.
    fn way(&self, out: &mut Answers, to: IpAddr) -> Written {
        const CLONED: u32 = 0x200;
        const IS_LOCAL: u32 = 0x8000_0000;
        self.message(out, NEW_ROUTE, |out| match to {
            IpAddr::V4(to) => {
                out.part(&[INET, 32, 0, 0])?;
                out.part(&[MAIN, 0, 0, 2])?;
                out.part(&(CLONED | IS_LOCAL).to_le_bytes())?;
                out.number(15, MAIN.into())?;
                out.attribute(1, &to.octets())?;
                out.number(4, INDEX)?;
                out.attribute(7, &to.octets())?;
                out.attribute(12, &[0; 32])
            }
            IpAddr::V6(to) => {
                out.part(&[INET6, 128, 0, 0])?;
                out.part(&[LOCAL, 2, 0, 2])?;
                out.part(&[0; 4])?;
                out.number(15, LOCAL.into())?;
                out.attribute(1, &to.octets())?;
                out.number(4, INDEX)?;
                out.attribute(7, &to.octets())?;
                out.number(6, 0)?;
                out.attribute(12, &[0; 32])?;
                out.attribute(20, &[0])
            }
        })
    }
}

/// The lifetimes of an address that is permanent and was made at boot.
fn lifetime() -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&FOREVER.to_le_bytes());
    bytes[4..8].copy_from_slice(&FOREVER.to_le_bytes());
    bytes
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::socket::netlink::message::requests;

    fn asked(kind: u16, flags: u16, body: &[u8]) -> Answer {
        let mut bytes = Answers::new();
        let to = Header { len: 0, kind, flags, sequence: 3, port: 0 };
        bytes.message((kind, flags), &to, 0, |a| a.part(body)).unwrap();
        answer(&requests(&bytes.bytes).next().unwrap(), 77, false).unwrap()
    }

    fn kinds(answers: &Answers) -> std::vec::Vec<u16> {
        requests(&answers.bytes).map(|one| one.header.kind).collect()
    }

    #[test]
    fn a_dump_has_all_entries_and_an_end() {
        let cases: [(u16, u8, &[u16]); 6] = [
            (GET_LINK, 0, &[NEW_LINK]),
            (GET_LINK, BRIDGE, &[]),
            (GET_ADDRESS, 0, &[NEW_ADDRESS; 2]),
            (GET_ADDRESS, INET6, &[NEW_ADDRESS]),
            (GET_ROUTE, 0, &[NEW_ROUTE; 4]),
            (GET_NEIGHBOUR, 0, &[]),
        ];
        for (kind, family, entries) in cases {
            let Answer::All(all, end) = asked(kind, DUMP | 1, &[family]) else { panic!("{kind}") };
            assert_eq!((kinds(&all).as_slice(), kinds(&end).as_slice()), (entries, &[DONE][..]));
            for one in requests(&all.bytes).chain(requests(&end.bytes)) {
                assert_eq!((one.header.sequence, one.header.port, one.header.flags), (3, 77, MULTI));
            }
        }
        let mut route = [0u8; ROUTE_BYTES];
        route[4] = MAIN;
        let Answer::All(all, _) = asked(GET_ROUTE, DUMP, &route) else { panic!() };
        assert!(kinds(&all).is_empty());
    }

    #[test]
    fn a_single_request_is_answered_or_refused() {
        let mut body = [0u8; LINK_BYTES];
        assert!(matches!(asked(GET_LINK, 1, &body), Answer::Done(Err(Errno::EINVAL))));
        body[4] = 2;
        assert!(matches!(asked(GET_LINK, 1, &body), Answer::Done(Err(Errno::ENODEV))));
        body[4] = 1;
        let Answer::One(answers) = asked(GET_LINK, 1, &body) else { panic!() };
        let link = requests(&answers.bytes).next().unwrap();
        assert_eq!(link.body[2..4], loopback::HARDWARE.to_le_bytes());
        assert_eq!(link.attribute(LINK_BYTES, LINK_NAME), Some(&b"lo\0"[..]));
        assert!(matches!(asked(NEW_LINK, 1, &body), Answer::Done(Err(Errno::EPERM))));
        assert!(matches!(asked(MOST + 1, 1, &body), Answer::Done(Err(Errno::EOPNOTSUPP))));
        // Without a destination, the route leads to this machine.
        assert!(matches!(asked(GET_ROUTE, 1, &[INET]), Answer::One(_)));
        let mut way = [0u8; ROUTE_BYTES + 8];
        way[0] = INET;
        way[ROUTE_BYTES..].copy_from_slice(&[8, 0, 1, 0, 8, 8, 8, 8]);
        assert!(matches!(asked(GET_ROUTE, 1, &way), Answer::Done(Err(Errno::ENETUNREACH))));
    }
}
