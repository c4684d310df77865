//! Tests of names and ports: which sockets can share one, and which socket a search finds.

use super::*;
use crate::Address;

#[test]
fn a_unix_name_has_one_socket_until_that_closes() {
    let n = network();
    let a = socket(&n, Family::Unix, Kind::Stream);
    assert_eq!((a.local(), a.is_bound()), (Address::Unnamed, false));
    a.bind(Place::Abstract(b"name\0x"), ME).unwrap();
    assert_eq!((a.local(), a.is_bound()), (named(b"name\0x"), true));
    assert_eq!(a.bind(Place::Abstract(b"again"), ME), Err(FsError::Invalid));
    let b = socket(&n, Family::Unix, Kind::Stream);
    assert_eq!(b.bind(Place::Abstract(b"name\0x"), ME), Err(FsError::AddressInUse));
    assert!(!b.is_bound());
    drop(a);
    b.bind(Place::Abstract(b"name\0x"), ME).unwrap();
    assert_eq!(
        socket(&n, Family::Unix, Kind::Stream).bind(Place::Inet(at("127.0.0.1:1")), ME),
        Err(FsError::WrongFamily)
    );
    let node = Arc::try_new(1).unwrap();
    let c = socket(&n, Family::Unix, Kind::Stream);
    c.bind(Place::Path { path: b"/c", ident: ident(1), node: node.clone() }, ME).unwrap();
    let d = socket(&n, Family::Unix, Kind::Stream);
    let place = Place::Path { path: b"/c", ident: ident(1), node: node.clone() };
    assert_eq!(d.bind(place, ME), Err(FsError::AddressInUse));
    assert_eq!(Arc::strong_count(&node), 2);
    drop(c);
    assert_eq!(Arc::strong_count(&node), 1);
}

#[test]
fn each_kind_of_socket_has_its_own_abstract_names() {
    let n = network();
    let name = || Destination::Abstract(b"name");
    let stream = socket(&n, Family::Unix, Kind::Stream);
    stream.bind(Place::Abstract(b"name"), ME).unwrap();
    stream.listen(1, ME).unwrap();
    let (datagrams, packets) = (socket(&n, Family::Unix, Kind::Datagram), socket(&n, Family::Unix, Kind::SeqPacket));
    for other in [&datagrams, &packets] {
        assert_eq!(other.connect(&Io::WAIT, &name(), ME), Err(FsError::Refused));
    }
    assert_eq!(send_to(&datagrams, b"x", name()), Err(FsError::Refused));
    datagrams.bind(Place::Abstract(b"name"), ME).unwrap();
    packets.bind(Place::Abstract(b"name"), ME).unwrap();
    packets.listen(1, ME).unwrap();
    for kind in [Kind::Stream, Kind::Datagram, Kind::SeqPacket] {
        socket(&n, Family::Unix, kind).connect(&Io::WAIT, &name(), ME).unwrap();
    }
    // An inode has one socket, whatever its kind.
    let inode = socket(&n, Family::Unix, Kind::Stream);
    inode.bind(Place::Path { path: b"/c", ident: ident(1), node: Arc::try_new(1).unwrap() }, ME).unwrap();
    for kind in [Kind::Datagram, Kind::SeqPacket] {
        let other = socket(&n, Family::Unix, kind);
        assert_eq!(other.connect(&Io::WAIT, &Destination::Inode(ident(1)), ME), Err(FsError::WrongType));
    }
}

#[test]
fn a_name_that_the_kernel_chooses_has_five_digits() {
    let n = network();
    let all: Vec<Shared> = (0..100).map(|_| socket(&n, Family::Unix, Kind::Datagram)).collect();
    for s in &all {
        s.bind(Place::Auto, ME).unwrap();
        let Address::Abstract(name) = s.local() else { panic!() };
        assert!(name.len() == 5 && name.iter().all(|c| c.is_ascii_hexdigit()));
    }
    let s = socket(&n, Family::Unix, Kind::Datagram);
    s.options().set(Flags::PASS_CREDENTIALS, true);
    let Address::Abstract(name) = all[0].local() else { panic!() };
    send_to(&s, b"x", Destination::Abstract(&name)).unwrap();
    assert!(matches!(s.local(), Address::Abstract(_)));
}

#[test]
fn only_addresses_of_the_loopback_are_bound() {
    let n = network();
    for (family, place, expect) in [
        (Family::Inet4, "127.0.0.1:80", Ok(())),
        (Family::Inet4, "127.9.9.9:80", Ok(())),
        (Family::Inet4, "0.0.0.0:81", Ok(())),
        (Family::Inet4, "10.0.0.1:80", Err(FsError::AddressUnavailable)),
        (Family::Inet4, "[::1]:80", Err(FsError::WrongFamily)),
        (Family::Inet6, "[::1]:80", Ok(())),
        (Family::Inet6, "[::]:82", Ok(())),
        (Family::Inet6, "[fe80::1]:80", Err(FsError::AddressUnavailable)),
        (Family::Inet6, "[::ffff:127.0.0.2]:80", Ok(())),
        (Family::Inet6, "[::ffff:10.0.0.1]:80", Err(FsError::AddressUnavailable)),
        (Family::Inet6, "127.0.0.1:80", Err(FsError::WrongFamily)),
    ] {
        for kind in [Kind::Stream, Kind::Datagram] {
            let s = socket(&n, family, kind);
            assert_eq!(bind(&s, place), expect, "{place}");
            if expect.is_ok() {
                assert_eq!(s.local(), address(place));
            }
        }
    }
    let s = socket(&n, Family::Inet4, Kind::Stream);
    assert_eq!(s.local(), address("0.0.0.0:0"));
    bind(&s, "127.0.0.1:0").unwrap();
    assert!(matches!(s.local(), Address::Inet(at) if (32768..=60999).contains(&at.port())));
    assert_eq!(bind(&s, "127.0.0.1:0"), Err(FsError::Invalid));
}

#[test]
fn wildcards_and_addresses_of_one_port_conflict() {
    for (one, other, conflict) in [
        ("127.0.0.1:80", "127.0.0.1:80", true),
        ("127.0.0.1:80", "127.0.0.1:81", false),
        ("127.0.0.1:80", "127.0.0.2:80", false),
        ("127.0.0.1:80", "0.0.0.0:80", true),
        ("0.0.0.0:80", "0.0.0.0:80", true),
        ("0.0.0.0:80", "[::]:80", true),
        ("127.0.0.1:80", "[::]:80", true),
        ("0.0.0.0:80", "[::1]:80", false),
        ("[::1]:80", "[::]:80", true),
        ("127.0.0.1:80", "[::ffff:127.0.0.1]:80", true),
    ] {
        for (one, other) in [(one, other), (other, one)] {
            let n = network();
            let make = |at: &str| {
                let s = socket(&n, if at.contains('[') { Family::Inet6 } else { Family::Inet4 }, Kind::Stream);
                (bind(&s, at), s)
            };
            let (first, _kept) = make(one);
            assert_eq!(first, Ok(()));
            let expect = if conflict { Err(FsError::AddressInUse) } else { Ok(()) };
            assert_eq!(make(other).0, expect, "{one} and {other}");
        }
    }
    let n = network();
    let (four, six) = (socket(&n, Family::Inet4, Kind::Stream), socket(&n, Family::Inet6, Kind::Stream));
    six.options().set(Flags::V6_ONLY, true);
    bind(&six, "[::]:80").unwrap();
    bind(&four, "0.0.0.0:80").unwrap();
}

#[test]
fn addresses_are_shared_by_those_that_asked_for_it() {
    let n = network();
    let make = |flag, uid| {
        let s = socket(&n, Family::Inet4, Kind::Stream);
        s.options().set(flag, true);
        (s.bind(Place::Inet(at("127.0.0.1:80")), Credentials { uid, ..ME }), s)
    };
    let (first, a) = make(Flags::REUSE_ADDRESS, 1);
    let (second, b) = make(Flags::REUSE_ADDRESS, 1);
    assert_eq!((first, second), (Ok(()), Ok(())));
    assert_eq!(make(Flags::NO_DELAY, 1).0, Err(FsError::AddressInUse));
    a.listen(1, ME).unwrap();
    assert_eq!(b.listen(1, ME), Err(FsError::AddressInUse));
    assert_eq!(make(Flags::REUSE_ADDRESS, 1).0, Err(FsError::AddressInUse));
    drop((a, b));
    let group: Vec<Shared> =
        (0..3).map(|_| make(Flags::REUSE_PORT, 7)).map(|(bound, s)| (bound.unwrap(), s).1).collect();
    assert_eq!(make(Flags::REUSE_PORT, 8).0, Err(FsError::AddressInUse));
    group.iter().for_each(|s| s.listen(100, ME).unwrap());
    let clients: Vec<Shared> = (0..60).map(|_| socket(&n, Family::Inet4, Kind::Stream)).collect();
    clients.iter().for_each(|c| c.connect(&Io::WAIT, &inet("127.0.0.1:80"), ME).unwrap());
    let counts: Vec<usize> = group.iter().map(|s| std::iter::from_fn(|| s.accept(&Io::NOW).ok()).count()).collect();
    assert_eq!(counts.iter().sum::<usize>(), 60);
    assert!(counts.iter().all(|n| *n > 0), "{counts:?}");
}

#[test]
fn the_most_specific_socket_is_found() {
    let n = network();
    let make = |family, place| {
        let s = socket(&n, family, Kind::Datagram);
        s.options().set(Flags::REUSE_ADDRESS, true);
        bind(&s, place).unwrap();
        s
    };
    let client = socket(&n, Family::Inet4, Kind::Datagram);
    let to = inet("127.0.0.1:80");
    let got = |s: &Shared| read(s, &Io::NOW, 9).is_ok();
    let dual = make(Family::Inet6, "[::]:80");
    send_to(&client, b"x", to).unwrap();
    let (_, received) = receive(&dual, 9, ReceiveFlags::empty()).unwrap();
    assert!(matches!(received.from, Some(Address::Inet(SocketAddr::V6(at))) if at.ip().to_ipv4_mapped().is_some()));
    let wild = make(Family::Inet4, "0.0.0.0:80");
    send_to(&client, b"x", to).unwrap();
    assert!(got(&wild) && !got(&dual));
    let exact = make(Family::Inet4, "127.0.0.1:80");
    send_to(&client, b"x", to).unwrap();
    assert!(got(&exact) && !got(&wild));
    send_to(&client, b"x", inet("127.0.0.2:80")).unwrap();
    assert!(got(&wild) && !got(&exact));
    send_to(&client, b"x", inet("0.0.0.0:80")).unwrap();
    assert!(got(&exact), "the wildcard is the loopback");
}

#[test]
fn ipv6_sockets_reach_ipv4_unless_they_are_set_apart() {
    let n = network();
    let l = listener(&n, Family::Inet4, Kind::Stream, 5);
    let Address::Inet(here) = l.local() else { panic!() };
    let mapped = SocketAddr::new("::ffff:127.0.0.1".parse().unwrap(), here.port());
    let client = socket(&n, Family::Inet6, Kind::Stream);
    client.connect(&Io::WAIT, &Destination::Inet(mapped), ME).unwrap();
    assert_eq!(client.remote(), Ok(Address::Inet(mapped)));
    let server = l.accept(&Io::NOW).unwrap();
    assert!(matches!(server.remote(), Ok(Address::Inet(SocketAddr::V4(_)))));
    let apart = socket(&n, Family::Inet6, Kind::Stream);
    apart.options().set(Flags::V6_ONLY, true);
    assert_eq!(apart.connect(&Io::WAIT, &Destination::Inet(mapped), ME), Err(FsError::Unreachable));
    assert_eq!(apart.bind(Place::Inet(mapped), ME), Err(FsError::AddressUnavailable));
}

#[test]
fn connections_share_ports_to_different_peers_until_none_is_free() {
    let n = network();
    let ls: Vec<Shared> = ["127.0.0.1:80", "127.0.0.2:80"]
        .map(|place| {
            let s = socket(&n, Family::Inet4, Kind::Stream);
            bind(&s, place).unwrap();
            s.listen(1, ME).unwrap();
            s
        })
        .into();
    let connect = |l: &Shared| {
        let client = socket(&n, Family::Inet4, Kind::Stream);
        let done = client.connect(&Io::WAIT, &destination(l), ME);
        (done, client, l.accept(&Io::NOW).ok())
    };
    let held: Vec<_> = (0..28_232).map(|_| connect(&ls[0])).collect();
    assert!(held.iter().all(|(done, ..)| done.is_ok()));
    assert_eq!(connect(&ls[0]).0, Err(FsError::AddressUnavailable));
    assert_eq!(connect(&ls[1]).0, Ok(()));
    assert_eq!(bind(&socket(&n, Family::Inet4, Kind::Stream), "127.0.0.1:0"), Err(FsError::AddressInUse));
    drop(held);
    assert_eq!(connect(&ls[0]).0, Ok(()));
}
