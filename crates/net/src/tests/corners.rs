//! Tests of rare cases that a review of the code found.

use super::*;
use quire_fs::Listener;
use quire_heap::unsize;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

#[test]
fn a_read_of_all_bytes_ends_where_other_credentials_begin() {
    let n = network();
    let (a, b) = pair(&n, Kind::Stream);
    write(&a, &Io::NOW, b"x").unwrap();
    b.options().set(Flags::PASS_CREDENTIALS, true);
    write(&a, &Io::NOW, b"y").unwrap();
    let (got, _) = receive(&b, 2, ReceiveFlags::WAIT_ALL).unwrap();
    assert_eq!(got, b"x");
    assert_eq!(receive(&b, 1, ReceiveFlags::WAIT_ALL).unwrap().0, b"y");
}

#[test]
fn a_read_takes_few_bytes_or_an_error_without_a_wait() {
    let n = network();
    let (a, b) = connected(&n, Family::Inet4, Kind::Stream);
    assert_eq!(read(&a, &Io::NOW, 1), Err(FsError::WouldBlock));
    // A low-water mark beyond the writer's buffer must not keep the reader from making room.
    a.options().set_low_water(1 << 30);
    write(&b, &Io::NOW, b"x").unwrap();
    assert_eq!(read(&a, &Io::NOW, 9).unwrap(), b"x");
    let refused = socket(&n, Family::Inet4, Kind::Stream);
    assert_eq!(refused.connect(&Io::NOW, &inet("127.0.0.1:9"), ME), Err(FsError::InProgress));
    assert_eq!(read(&refused, &Io::WAIT, 1), Err(FsError::Refused));
}

#[test]
fn a_signal_ends_a_call_with_a_time_limit_for_good() {
    let n = network();
    let (a, _b) = pair(&n, Kind::Stream);
    let io = Io { interrupted: &|| true, ..Io::WAIT };
    assert_eq!(read(&a, &io, 1), Err(FsError::Interrupted));
    a.options().set_receive_timeout(1 << 40);
    assert_eq!(read(&a, &io, 1), Err(FsError::Stopped));
}

#[test]
fn of_two_readers_of_a_reset_connection_one_gets_the_error_and_one_the_end() {
    for _ in 0..200 {
        let n = network();
        let (a, b) = connected(&n, Family::Inet4, Kind::Stream);
        let errors = AtomicUsize::new(0);
        std::thread::scope(|s| {
            for _ in 0..2 {
                s.spawn(|| match read(&a, &Io::WAIT, 1) {
                    Ok(bytes) => assert_eq!(bytes, b""),
                    Err(e) => {
                        assert_eq!(e, FsError::Reset);
                        errors.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            std::thread::yield_now();
            b.options().set_linger(Some(0));
            drop(b);
        });
        assert_eq!(errors.into_inner(), 1);
    }
}

struct Notified(AtomicBool);

impl Listener for Notified {
    fn changed(&self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn a_sender_without_room_is_notified_though_it_does_not_poll() {
    let n = network();
    let receiver = socket(&n, Family::Unix, Kind::Datagram);
    receiver.bind(Place::Abstract(b"receiver"), ME).unwrap();
    let sender = socket(&n, Family::Unix, Kind::Datagram);
    sender.connect(&Io::NOW, &Destination::Abstract(b"receiver"), ME).unwrap();
    for other in [false, true] {
        if other {
            // The registration with the first receiver must not count for the second.
            let second = socket(&n, Family::Unix, Kind::Datagram);
            second.bind(Place::Abstract(b"second"), ME).unwrap();
            while write(&sender, &Io::NOW, &[0; 1000]).is_ok() {}
            sender.connect(&Io::NOW, &Destination::Abstract(b"second"), ME).unwrap();
            while write(&sender, &Io::NOW, &[0; 1000]).is_ok() {}
            assert_room_is_announced(&sender, &second);
        } else {
            while write(&sender, &Io::NOW, &[0; 1000]).is_ok() {}
            assert_room_is_announced(&sender, &receiver);
        }
    }
}

/// Datagram sockets named b and c that have no room, and the socket that filled them.
fn two_full_receivers(n: &Network) -> ([Shared; 2], Shared) {
    let filler = socket(n, Family::Unix, Kind::Datagram);
    let receivers = [b"b", b"c"].map(|name| {
        let receiver = socket(n, Family::Unix, Kind::Datagram);
        receiver.bind(Place::Abstract(name), ME).unwrap();
        while send_to(&filler, &[0; 1000], Destination::Abstract(name)).is_ok() {}
        receiver
    });
    (receivers, filler)
}

#[test]
fn a_sender_without_room_is_listed_once_at_each_receiver() {
    let n = network();
    let ([b, c], _filler) = two_full_receivers(&n);
    let senders: Vec<_> = (0..20).map(|_| socket(&n, Family::Unix, Kind::Datagram)).collect();
    for sender in senders.iter().chain(senders.iter().rev()) {
        for name in [b"b", b"c", b"b"] {
            sender.connect(&Io::NOW, &Destination::Abstract(name), ME).unwrap();
            sender.options().set_send_buffer(1);
            assert_eq!(write(sender, &Io::NOW, &[0; 1000]), Err(FsError::WouldBlock));
        }
    }
    // Each list has the 20 senders, and the filler, whose sends failed too.
    assert_eq!([&b, &c].map(|receiver| receiver.endpoint.polls.lock().len()), [21, 21]);
    while read(&b, &Io::NOW, 1000).is_ok() {}
    assert_eq!([&b, &c].map(|receiver| receiver.endpoint.polls.lock().len()), [0, 21]);
}

#[test]
fn a_failed_send_elsewhere_does_not_keep_a_poll_from_the_peer() {
    let n = network();
    let ([b, _c], _filler) = two_full_receivers(&n);
    let sender = socket(&n, Family::Unix, Kind::Datagram);
    sender.connect(&Io::NOW, &Destination::Abstract(b"b"), ME).unwrap();
    assert_eq!(send_to(&sender, &[0; 1000], Destination::Abstract(b"c")), Err(FsError::WouldBlock));
    assert_eq!(sender.ready(), Ready::empty());
    assert_room_is_announced(&sender, &b);
}

fn assert_room_is_announced(sender: &Shared, receiver: &Shared) {
    let notified = Arc::try_new(Notified(AtomicBool::new(false))).unwrap();
    let listener: Arc<dyn Listener> = unsize!(notified.clone());
    sender.readiness().unwrap().listen(&listener).unwrap();
    while read(receiver, &Io::NOW, 1000).is_ok() {}
    assert!(notified.0.load(Ordering::SeqCst), "no listener was notified of room");
    sender.readiness().unwrap().unlisten(&listener);
}

#[test]
fn clients_that_close_before_they_have_a_place_leave_nothing() {
    let n = network();
    let listener = listener(&n, Family::Inet4, Kind::Stream, 0);
    let to = destination(&listener);
    for _ in 0..20_000 {
        let client = socket(&n, Family::Inet4, Kind::Stream);
        assert_eq!(client.connect(&Io::NOW, &to, ME), Err(FsError::InProgress));
    }
    let mut accepted = 0;
    while listener.accept(&Io::NOW).is_ok() {
        accepted += 1;
    }
    assert!(accepted <= 3, "{accepted} connections were kept");
}

#[test]
fn only_so_many_clients_wait_for_a_place() {
    let n = network();
    let listener = listener(&n, Family::Inet4, Kind::Stream, 0);
    let to = destination(&listener);
    let clients: Vec<_> = (0..1100).map(|_| socket(&n, Family::Inet4, Kind::Stream)).collect();
    let refused = |client: &&Shared| {
        assert_eq!(client.connect(&Io::NOW, &to, ME), Err(FsError::InProgress));
        client.take_error() == Some(FsError::Refused)
    };
    assert_eq!(clients.iter().filter(refused).count(), 1100 - 1025);
    for client in &clients[..1025] {
        let server = listener.accept(&Io::NOW).unwrap();
        assert_eq!(write(&server, &Io::NOW, b"x"), Ok(1));
        assert_eq!(read(client, &Io::NOW, 1).unwrap(), b"x");
    }
}

#[test]
fn a_free_port_of_tcp_is_one_that_no_socket_has() {
    for flag in [Flags::REUSE_ADDRESS, Flags::REUSE_PORT] {
        let n = network();
        let bound = |text: &str| {
            let s = socket(&n, Family::Inet4, Kind::Stream);
            s.options().set(flag, true);
            bind(&s, text).map(|()| s)
        };
        // Binds all ports of the range, which has 28,232, except one.
        let all: Vec<_> = (0..28_231).map(|_| bound("127.0.0.1:0").unwrap()).collect();
        let mut ports: Vec<_> = all.iter().map(|s| s.local()).map(|at| std::format!("{at:?}")).collect();
        ports.sort();
        ports.dedup();
        assert_eq!(ports.len(), all.len());
        let _last = bound("0.0.0.0:0").unwrap();
        assert!(matches!(bound("127.0.0.1:0"), Err(FsError::AddressInUse)));
        // A port that a program names may be shared.
        let crate::Address::Inet(at) = all[0].local() else { panic!() };
        bound(&at.to_string()).unwrap();
    }
}

#[test]
fn an_automatic_port_joins_no_group() {
    let n = network();
    let of_root = socket(&n, Family::Inet4, Kind::Datagram);
    of_root.options().set(Flags::REUSE_PORT, true);
    let root = Credentials { pid: 1, uid: 0, gid: 0 };
    of_root.bind(Place::Inet(at("127.0.0.1:0")), root).unwrap();
    let crate::Address::Inet(to) = of_root.local() else { panic!() };
    let others: Vec<_> = (0..28_231)
        .map(|_| {
            let other = socket(&n, Family::Inet4, Kind::Datagram);
            other.options().set(Flags::REUSE_PORT, true);
            send_to(&other, b"x", inet("127.0.0.1:9")).unwrap();
            other
        })
        .collect();
    // All ports but the port of `of_root` are taken.
    assert!(others.iter().all(|other| !matches!(other.local(), crate::Address::Inet(at) if at.port() == to.port())));
    let last = socket(&n, Family::Inet4, Kind::Datagram);
    last.options().set(Flags::REUSE_PORT, true);
    assert_eq!(send_to(&last, b"x", inet("127.0.0.1:9")), Err(FsError::AddressUnavailable));
}

#[test]
fn accepted_unix_sockets_have_options_of_their_own() {
    let n = network();
    for (family, inherits) in [(Family::Unix, false), (Family::Inet4, true)] {
        let from = listener(&n, family, Kind::Stream, 1);
        from.options().set_receive_timeout(5);
        let client = socket(&n, family, Kind::Stream);
        client.connect(&Io::NOW, &destination(&from), ME).ok();
        let accepted = from.accept(&Io::NOW).unwrap();
        assert_eq!(accepted.options().receive_timeout() == 5, inherits);
    }
}
