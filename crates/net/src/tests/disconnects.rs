//! Sockets whose peers are taken away, or close.

use super::*;
use crate::Stage;
use quire_heap::refusal;

const GONE: Ready = Ready::WRITE.union(Ready::HANGUP);

fn tcp(n: &Network) -> (Shared, Shared) {
    connected(n, Family::Inet4, Kind::Stream)
}

/// A client that waits for a place at a listener.
fn waiting(n: &Network) -> (Shared, Vec<Shared>, Shared) {
    let listener = listener(n, Family::Inet4, Kind::Stream, 0);
    let mut clients: Vec<_> = (0..2).map(|_| socket(n, Family::Inet4, Kind::Stream)).collect();
    for client in &clients {
        assert_eq!(client.connect(&Io::NOW, &destination(&listener), ME), Err(FsError::InProgress));
    }
    let last = clients.pop().unwrap();
    assert_eq!(last.stage(), Stage::Connecting);
    (listener, clients, last)
}

#[test]
fn a_connection_that_is_disconnected_is_reset_and_another_one_made() {
    let n = network();
    let (a, b) = tcp(&n);
    let old = a.local();
    write(&b, &Io::NOW, b"unread").unwrap();
    a.disconnect().unwrap();
    assert!(!a.is_bound() && a.remote().is_err());
    // The port stays visible.
    let (crate::Address::Inet(old), crate::Address::Inet(new)) = (old, a.local()) else { panic!() };
    assert_eq!((new.port(), new.ip().is_unspecified()), (old.port(), true));
    assert_eq!((a.ready(), a.stage()), (GONE | Ready::ERROR, Stage::Unconnected));
    assert_eq!(b.stage(), Stage::Closed);
    assert_eq!(read(&b, &Io::NOW, 9), Err(FsError::Reset));
    assert_eq!(write(&b, &Io::NOW, b"x"), Err(FsError::BrokenPipe));
    assert_eq!(read(&a, &Io::NOW, 9), Err(FsError::Reset));
    assert_eq!(read(&a, &Io::NOW, 9), Err(FsError::NotConnected));
    assert_eq!((a.ready(), write(&a, &Io::NOW, b"x")), (GONE, Err(FsError::BrokenPipe)));
    a.disconnect().unwrap();
    assert_eq!(a.take_error(), None);
    // The next connection is not affected by the first one, whose other end closes now.
    let l = listener(&n, Family::Inet4, Kind::Stream, 1);
    a.connect(&Io::WAIT, &destination(&l), ME).unwrap();
    let c = l.accept(&Io::NOW).unwrap();
    b.shutdown(true, true).ok();
    drop(b);
    assert_eq!((a.ready(), a.stage()), (Ready::WRITE, Stage::Connected));
    write(&c, &Io::NOW, b"new").unwrap();
    assert_eq!(read(&a, &Io::NOW, 9).unwrap(), b"new");
    write(&a, &Io::NOW, b"answer").unwrap();
    assert_eq!(read(&c, &Io::NOW, 9).unwrap(), b"answer");
    // The accepted end may connect and listen too.
    c.disconnect().unwrap();
    c.connect(&Io::WAIT, &destination(&l), ME).unwrap();
    c.disconnect().unwrap();
    c.listen(1, ME).unwrap();
    a.disconnect().unwrap();
    a.connect(&Io::WAIT, &destination(&c), ME).unwrap();
    assert!(c.accept(&Io::NOW).is_ok());
    drop((a, c, l));
    assert_eq!(alive(n), 0);
}

#[test]
fn the_error_of_a_disconnect_depends_on_the_ends_before_it() {
    for (mine, theirs, own, of_peer) in [
        (false, false, Some(FsError::Reset), Some(FsError::Reset)),
        (false, true, Some(FsError::Reset), Some(FsError::Reset)),
        (true, false, Some(FsError::Reset), Some(FsError::BrokenPipe)),
        (true, true, None, None),
    ] {
        let n = network();
        let (a, b) = tcp(&n);
        a.shutdown(false, mine).unwrap();
        b.shutdown(false, theirs).unwrap();
        a.disconnect().unwrap();
        assert_eq!((a.take_error(), b.take_error()), (own, of_peer), "{mine} {theirs}");
        assert_eq!(a.ready(), GONE);
    }
    let n = network();
    let (a, b) = tcp(&n);
    b.options().set_linger(Some(0));
    drop(b);
    assert_eq!(a.take_error(), Some(FsError::Reset));
    a.disconnect().unwrap();
    assert_eq!(a.take_error(), None, "it was over");
    // The error of a refused attempt stays.
    let refused = socket(&n, Family::Inet4, Kind::Stream);
    assert_eq!(refused.connect(&Io::NOW, &inet("127.0.0.1:9"), ME), Err(FsError::InProgress));
    refused.disconnect().unwrap();
    assert_eq!(read(&refused, &Io::NOW, 1), Err(FsError::Refused));
    assert_eq!(read(&refused, &Io::NOW, 1), Err(FsError::NotConnected));
}

#[test]
fn a_listener_that_is_disconnected_resets_its_clients_and_listens_again() {
    for fixed in [false, true] {
        let n = network();
        let l = socket(&n, Family::Inet4, Kind::Stream);
        bind(&l, if fixed { "127.0.0.1:4000" } else { "127.0.0.1:0" }).unwrap();
        l.listen(1, ME).unwrap();
        let to = destination(&l);
        let client = socket(&n, Family::Inet4, Kind::Stream);
        client.connect(&Io::WAIT, &to, ME).unwrap();
        l.disconnect().unwrap();
        assert_eq!((l.ready(), l.take_error()), (GONE, None));
        assert_eq!(client.take_error(), Some(FsError::Reset));
        assert!(matches!(l.accept(&Io::NOW), Err(FsError::Invalid)));
        assert_eq!(socket(&n, Family::Inet4, Kind::Stream).connect(&Io::WAIT, &to, ME), Err(FsError::Refused));
        // Only a port that the program chose is kept.
        let other = socket(&n, Family::Inet4, Kind::Stream);
        let Destination::Inet(at) = to else { panic!() };
        let taken = if fixed { Err(FsError::AddressInUse) } else { Ok(()) };
        assert_eq!((l.is_bound(), bind(&other, &at.to_string())), (fixed, taken));
        drop(other);
        l.listen(1, ME).unwrap();
        client.disconnect().unwrap();
        client.connect(&Io::WAIT, &destination(&l), ME).unwrap();
        assert!(l.accept(&Io::NOW).is_ok());
    }
}

#[test]
fn an_attempt_is_given_up_by_a_disconnect_or_a_shutdown() {
    for shutdown in [false, true] {
        let n = network();
        let (listener, clients, last) = waiting(&n);
        match shutdown {
            true => last.shutdown(false, true).unwrap(),
            false => last.disconnect().unwrap(),
        }
        assert_eq!((last.ready(), last.take_error()), (GONE | Ready::ERROR, Some(FsError::Reset)));
        // The client waits at another listener when the first listener has a place for it.
        let (other, _others, _) = waiting(&n);
        assert_eq!(last.connect(&Io::NOW, &destination(&other), ME), Err(FsError::InProgress));
        for _ in 0..2 {
            listener.accept(&Io::NOW).unwrap();
        }
        assert_eq!(last.stage(), Stage::Connecting);
        drop((listener, clients));
        assert_eq!((last.stage(), last.take_error()), (Stage::Connecting, None));
        let _servers = [other.accept(&Io::NOW).unwrap(), other.accept(&Io::NOW).unwrap()];
        assert_eq!(last.stage(), Stage::Connected);
    }
}

#[test]
fn calls_that_wait_learn_of_a_disconnect_though_the_socket_connects_again() {
    for again in [false, true] {
        let n = network();
        let l = listener(&n, Family::Inet4, Kind::Stream, 10);
        let disconnect = |a: &Shared| {
            a.disconnect().unwrap();
            if again {
                a.connect(&Io::WAIT, &destination(&l), ME).unwrap();
            }
        };
        let left = |a: &Shared| assert_eq!(a.take_error(), (!again).then_some(FsError::Reset));
        let (a, _b) = tcp(&n);
        assert_eq!(during(|io| read(&a, io, 9), || disconnect(&a)), Err(FsError::BrokenPipe));
        left(&a);
        let (a, b) = tcp(&n);
        write(&b, &Io::NOW, b"hi").unwrap();
        let all = |io: &Io<'_>| {
            let mut sink = [0; 9];
            a.receive(io, &mut SliceSink::new(&mut sink), ReceiveFlags::WAIT_ALL).map(|got| got.bytes)
        };
        assert_eq!(during(all, || disconnect(&a)), Ok(2));
        left(&a);
        let (a, _b) = tcp(&n);
        while write(&a, &Io::NOW, &[0; 5000]).is_ok() {}
        let wrote = during(|io| write(&a, io, b"x"), || disconnect(&a));
        assert_eq!(wrote, Err(if again { FsError::BrokenPipe } else { FsError::Reset }));
        let (_listener, _clients, last) = waiting(&n);
        let connects = |io: &Io<'_>| last.connect(io, &inet("127.0.0.1:9"), ME);
        assert_eq!(during(connects, || disconnect(&last)), Err(FsError::BrokenPipe));
        left(&last);
        let (_listener, _clients, last) = waiting(&n);
        assert_eq!(during(|io| read(&last, io, 9), || disconnect(&last)), Err(FsError::BrokenPipe));
        let (_listener, _clients, last) = waiting(&n);
        let wrote = during(|io| write(&last, io, b"x"), || disconnect(&last));
        assert_eq!(wrote, Err(if again { FsError::BrokenPipe } else { FsError::Reset }));
    }
    let n = network();
    let l = listener(&n, Family::Inet4, Kind::Stream, 1);
    let accepted = during(|io| l.accept(io).map(drop), || l.disconnect().unwrap());
    assert_eq!(accepted, Err(FsError::Invalid));
    let (_listener, _clients, last) = waiting(&n);
    let connects = |io: &Io<'_>| last.connect(io, &inet("127.0.0.1:9"), ME);
    assert_eq!(during(connects, || last.shutdown(false, true).unwrap()), Err(FsError::Reset));
}

#[test]
fn no_byte_of_an_earlier_connection_comes_over_the_next_one() {
    let n = network();
    let l = &listener(&n, Family::Inet4, Kind::Stream, 1000);
    let a = &socket(&n, Family::Inet4, Kind::Stream);
    let done = &std::sync::atomic::AtomicBool::new(false);
    let over = || done.load(std::sync::atomic::Ordering::SeqCst);
    std::thread::scope(|s| {
        for _ in 0..2 {
            // Each connection has its own byte value, which the server sends. The server closes at any time.
            s.spawn(move || {
                for id in (0..=u8::MAX).cycle() {
                    let Ok(server) = l.accept(&Io::WAIT) else { break };
                    for size in [1, 3, 300, 5000] {
                        let _reset = write(&server, &Io::NOW, &std::vec![id; size]);
                    }
                    let _any = read(&server, &Io::NOW, 9);
                }
            });
        }
        s.spawn(move || {
            while !over() {
                let _any = write(a, &Io::NOW, &[7; 700]);
                std::thread::yield_now();
            }
        });
        s.spawn(move || {
            while !over() {
                let Ok(bytes) = read(a, &Io::NOW, 10_000) else { continue };
                assert!(bytes.iter().all(|byte| *byte == bytes[0]), "bytes of two connections");
            }
        });
        for round in 0..3000 {
            match a.connect(&Io::WAIT, &destination(l), ME) {
                Ok(()) => {}
                Err(e) => panic!("{e}, round {round}"),
            }
            a.disconnect().unwrap();
        }
        done.store(true, std::sync::atomic::Ordering::SeqCst);
        l.disconnect().unwrap();
    });
}

#[test]
fn a_disconnect_needs_no_memory() {
    for round in 0..2 {
        let n = network();
        let (a, b) = tcp(&n);
        write(&b, &Io::NOW, &[1; 20_000]).unwrap();
        let l = listener(&n, Family::Inet4, Kind::Stream, 1);
        let client = socket(&n, Family::Inet4, Kind::Stream);
        client.connect(&Io::WAIT, &destination(&l), ME).unwrap();
        let (c, d) = pair(&n, Kind::Datagram);
        write(&d, &Io::NOW, b"lost").unwrap();
        let allocations = refusal::allocations(|| {
            a.disconnect().unwrap();
            l.disconnect().unwrap();
            c.disconnect().unwrap();
        });
        assert!(round == 0 || allocations == 0, "{allocations}");
    }
}

#[test]
fn tcp_discards_bytes_and_waits_for_all_that_it_looks_at() {
    let n = network();
    let (a, b) = tcp(&n);
    write(&a, &Io::NOW, b"0123456789").unwrap();
    let got = |most, flags| receive(&b, most, flags).map(|(stored, got)| (stored, got.bytes, got.truncated));
    assert_eq!(got(3, ReceiveFlags::TRUNCATE | ReceiveFlags::PEEK), Ok((std::vec![], 3, false)));
    assert_eq!(got(3, ReceiveFlags::TRUNCATE), Ok((std::vec![], 3, false)));
    assert_eq!(read(&b, &Io::NOW, 2).unwrap(), b"34");
    assert_eq!(got(60, ReceiveFlags::TRUNCATE), Ok((std::vec![], 5, false)));
    assert_eq!(got(60, ReceiveFlags::TRUNCATE), Err(FsError::WouldBlock));
    let all = ReceiveFlags::PEEK | ReceiveFlags::WAIT_ALL;
    assert_eq!(got(8, all), Err(FsError::WouldBlock));
    write(&a, &Io::NOW, b"ab").unwrap();
    assert_eq!(got(8, all).unwrap().0, b"ab");
    let looks = |io: &Io<'_>| {
        let mut bytes = [0; 4];
        let got = b.receive(io, &mut SliceSink::new(&mut bytes), all).map(|got| got.bytes);
        (got, bytes)
    };
    assert_eq!(during(looks, || assert_eq!(write(&a, &Io::NOW, b"cdef"), Ok(4))), (Ok(4), *b"abcd"));
    read(&b, &Io::NOW, 3).unwrap();
    assert_eq!(during(looks, || a.shutdown(false, true).unwrap()), (Ok(3), *b"def\0"));
    read(&b, &Io::NOW, 9).unwrap();
    assert_eq!(looks(&Io::WAIT).0, Ok(0));
    // A peek at a Unix stream returns the present bytes without a wait.
    let (a, b) = pair(&n, Kind::Stream);
    write(&a, &Io::NOW, b"ab").unwrap();
    assert_eq!(receive(&b, 8, all).unwrap().0, b"ab");
}

#[test]
fn an_ipv6_datagram_socket_sends_to_ipv4_unless_it_is_only_of_ipv6() {
    let n = network();
    let receiver = socket(&n, Family::Inet4, Kind::Datagram);
    bind(&receiver, "127.0.0.1:7000").unwrap();
    let to = inet("127.0.0.1:7000");
    let six = || socket(&n, Family::Inet6, Kind::Datagram);
    let s = six();
    assert_eq!(send_to(&s, b"one", to), Ok(3));
    assert_eq!(send_to(&s, b"x", inet("127.0.0.1:0")), Err(FsError::Invalid));
    s.connect(&Io::NOW, &to, ME).unwrap();
    assert_eq!(s.remote(), Ok(address("[::ffff:127.0.0.1]:7000")));
    assert_eq!(write(&s, &Io::NOW, b"two"), Ok(3));
    for text in [b"one", b"two"] {
        assert_eq!(read(&receiver, &Io::NOW, 9).unwrap(), text);
    }
    let only = six();
    only.options().set(Flags::V6_ONLY, true);
    let bound = six();
    bind(&bound, "[::1]:0").unwrap();
    for s in [only, bound] {
        assert_eq!(send_to(&s, b"x", to), Err(FsError::Unreachable));
        assert_eq!(s.connect(&Io::NOW, &to, ME), Err(FsError::WrongFamily));
    }
    assert_eq!(bind(&six(), "127.0.0.1:0"), Err(FsError::WrongFamily));
    let stream = socket(&n, Family::Inet6, Kind::Stream);
    assert_eq!(stream.connect(&Io::NOW, &to, ME), Err(FsError::WrongFamily));
}

#[test]
fn a_unix_datagram_socket_loses_a_closed_peer_and_its_messages() {
    let n = network();
    let (a, b) = pair(&n, Kind::Datagram);
    write(&b, &Io::NOW, b"lost").unwrap();
    b.shutdown(true, false).unwrap();
    assert_eq!(write(&a, &Io::NOW, b"x"), Err(FsError::BrokenPipe));
    drop(b);
    assert_eq!((a.ready(), a.take_error()), (Ready::READ | Ready::WRITE, None));
    assert_eq!(write(&a, &Io::NOW, b"x"), Err(FsError::Refused));
    assert_eq!(write(&a, &Io::NOW, b"x"), Err(FsError::NotConnected));
    assert_eq!(read(&a, &Io::NOW, 9), Err(FsError::WouldBlock));
    assert!(a.remote().is_err());
    // A sender that waits for room.
    let (a, b) = pair(&n, Kind::Datagram);
    while write(&a, &Io::NOW, &[0; 1000]).is_ok() {}
    assert_eq!(during(|io| write(&a, io, &[0; 1000]), || drop(b)), Err(FsError::Refused));
}

#[test]
fn a_unix_datagram_socket_that_leaves_its_peer_drops_its_messages() {
    let n = network();
    for leaves in [true, false] {
        let (a, b) = pair(&n, Kind::Datagram);
        let c = socket(&n, Family::Unix, Kind::Datagram);
        c.bind(Place::Abstract(b"c"), ME).unwrap();
        let to = Destination::Abstract(b"c");
        write(&b, &Io::NOW, b"lost").unwrap();
        match leaves {
            true => a.disconnect().unwrap(),
            false => a.connect(&Io::NOW, &to, ME).unwrap(),
        }
        assert_eq!(read(&a, &Io::NOW, 9), Err(FsError::WouldBlock));
        assert_eq!(read(&b, &Io::NOW, 9), Err(FsError::Reset), "the loss is reported");
        a.connect(&Io::NOW, &to, ME).unwrap();
        // A `connect` to the same peer loses no message.
        a.bind(Place::Abstract(b"a"), ME).unwrap();
        c.connect(&Io::NOW, &Destination::Abstract(b"a"), ME).unwrap();
        write(&c, &Io::NOW, b"kept").unwrap();
        a.connect(&Io::NOW, &to, ME).unwrap();
        assert_eq!(read(&a, &Io::NOW, 9).unwrap(), b"kept");
        a.disconnect().unwrap();
        assert_eq!(c.take_error(), None);
    }
}

#[test]
fn each_reader_of_an_attempt_that_is_shut_down_wakes() {
    let n = network();
    let (_listener, _clients, last) = waiting(&n);
    let mut second = None;
    let shutdown = || last.shutdown(false, true).unwrap();
    let first = during(|io| read(&last, io, 9), || second = Some(during(|io| read(&last, io, 9), shutdown)));
    let ends = [Some(first), second];
    // The first call takes the error.
    assert!(ends.contains(&Some(Err(FsError::Reset))) && ends.contains(&Some(Err(FsError::NotConnected))), "{ends:?}");
}

#[test]
fn a_chosen_address_outlives_the_port() {
    let n = network();
    for (family, ip) in [(Family::Inet4, "127.0.0.1"), (Family::Inet6, "[::1]"), (Family::Inet6, "[::ffff:127.0.0.1]")]
    {
        let a = socket(&n, family, Kind::Datagram);
        bind(&a, &format!("{ip}:0")).unwrap();
        a.connect(&Io::NOW, &inet(&format!("{ip}:9")), ME).unwrap();
        a.disconnect().unwrap();
        assert_eq!(a.local(), address(&format!("{ip}:0")));
    }
}

#[test]
fn a_listener_does_not_show_the_error_of_its_earlier_connection() {
    let n = network();
    let (a, _b) = tcp(&n);
    a.disconnect().unwrap();
    assert!(a.ready().contains(Ready::ERROR));
    a.listen(1, ME).unwrap();
    assert_eq!((a.ready(), a.take_error()), (Ready::empty(), Some(FsError::Reset)));
}
