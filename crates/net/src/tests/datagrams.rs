//! Datagrams and packets.

use super::*;
use crate::Address;

#[test]
fn packets_keep_their_limits_at_both_ends_of_their_sizes() {
    for kind in [Kind::Datagram, Kind::SeqPacket] {
        let n = network();
        let (a, b) = pair(&n, kind);
        for size in [0, 1, 4096, 4097, 65_536, 212_992 - 256] {
            let bytes: Vec<u8> = (0..size).map(|i| (i % 249) as u8).collect();
            assert_eq!(write(&a, &Io::NOW, &bytes), Ok(size));
            assert_eq!(b.next_datagram(), size);
            let (peeked, _) = receive(&b, size + 1, ReceiveFlags::PEEK).unwrap();
            let (got, received) = receive(&b, size + 1, ReceiveFlags::empty()).unwrap();
            assert!(got == bytes && peeked == bytes && received.bytes == size && !received.truncated);
        }
        assert_eq!(write(&a, &Io::NOW, &[0; 212_992]), Err(FsError::MessageTooLong));
        write(&a, &Io::NOW, b"one").unwrap();
        write(&a, &Io::NOW, b"two").unwrap();
        let (got, received) = receive(&b, 2, ReceiveFlags::TRUNCATE).unwrap();
        assert_eq!((&got[..], received.bytes, received.truncated), (&b"on"[..], 3, true));
        let (got, received) = receive(&b, 2, ReceiveFlags::empty()).unwrap();
        assert_eq!((&got[..], received.bytes, received.truncated), (&b"tw"[..], 2, true));
        assert_eq!(read(&b, &Io::NOW, 9), Err(FsError::WouldBlock));
    }
}

#[test]
fn a_read_of_no_bytes_takes_no_message() {
    for kind in [Kind::Datagram, Kind::SeqPacket] {
        let n = network();
        let (a, b) = pair(&n, kind);
        assert_eq!(read(&b, &Io::WAIT, 0).unwrap(), b"", "an empty inbox");
        write(&a, &Io::NOW, b"one").unwrap();
        assert_eq!(read(&b, &Io::WAIT, 0).unwrap(), b"");
        assert_eq!(read(&b, &Io::NOW, 9).unwrap(), b"one");
        write(&a, &Io::NOW, b"two").unwrap();
        // Another call of the program takes the message.
        assert_eq!(receive(&b, 0, ReceiveFlags::empty()).unwrap().1.bytes, 0);
        assert_eq!(read(&b, &Io::NOW, 9), Err(FsError::WouldBlock));
    }
    let udp = socket(&network(), Family::Inet4, Kind::Datagram);
    assert_eq!(read(&udp, &Io::WAIT, 0).unwrap(), b"");
}

#[test]
fn a_connected_unix_socket_returns_the_name_of_its_peer() {
    for (family, kind) in CONNECTED {
        let n = network();
        let listener = listener(&n, family, kind, 1);
        let client = socket(&n, family, kind);
        client.connect(&Io::WAIT, &destination(&listener), ME).unwrap();
        let server = listener.accept(&Io::NOW).unwrap();
        let unix = family == Family::Unix;
        let from = |s: &Shared, flags| receive(s, 1, flags).unwrap().1.from;
        write(&client, &Io::NOW, b"a").unwrap();
        assert_eq!(from(&server, ReceiveFlags::SENDER), None, "it has no name");
        write(&server, &Io::NOW, b"b").unwrap();
        assert_eq!(from(&client, ReceiveFlags::PEEK), None);
        let listeners = unix.then(|| listener.local());
        assert_eq!(from(&client, ReceiveFlags::PEEK | ReceiveFlags::SENDER), listeners);
        assert_eq!(from(&client, ReceiveFlags::SENDER), listeners);
        if unix {
            client.bind(Place::Abstract(b"late"), ME).unwrap();
        }
        write(&client, &Io::NOW, b"c").unwrap();
        drop(client);
        // The call reports the sender's present name, although the sender has closed.
        assert_eq!(from(&server, ReceiveFlags::SENDER), unix.then(|| named(b"late")));
        assert_eq!(from(&server, ReceiveFlags::SENDER), None, "at the end");
    }
}

#[test]
fn udp_goes_to_bound_and_connected_sockets() {
    for (family, wild, dest, big) in
        [(Family::Inet4, "0.0.0.0:7000", "127.0.0.1:7000", 65_507), (Family::Inet6, "[::]:7000", "[::1]:7000", 65_527)]
    {
        let n = network();
        let server = socket(&n, family, Kind::Datagram);
        bind(&server, wild).unwrap();
        let client = socket(&n, family, Kind::Datagram);
        assert_eq!(write(&client, &Io::NOW, b"x"), Err(FsError::NoDestination));
        assert!(!client.is_bound());
        for size in [0, 1, big] {
            assert_eq!(send_to(&client, &std::vec![7; size], inet(dest)), Ok(size));
            let (got, received) = receive(&server, 70_000, ReceiveFlags::empty()).unwrap();
            assert_eq!(got.len(), size);
            let Some(Address::Inet(from)) = received.from else { panic!() };
            assert!(client.is_bound() && from.ip() == at(dest).ip() && from.port() >= 32768);
            assert_eq!(send_to(&server, b"answer", Destination::Inet(from)), Ok(6));
            assert_eq!(read(&client, &Io::NOW, 9).unwrap(), b"answer");
        }
        assert_eq!(send_to(&client, &std::vec![7; big + 1], inet(dest)), Err(FsError::MessageTooLong));
        client.connect(&Io::NOW, &inet(dest), ME).unwrap();
        assert_eq!(client.remote(), Ok(address(dest)));
        assert_eq!(write(&client, &Io::NOW, b"connected"), Ok(9));
        assert_eq!(read(&server, &Io::NOW, 99).unwrap(), b"connected");
        // Only the peer reaches a connected socket.
        let stranger = socket(&n, family, Kind::Datagram);
        let Address::Inet(to) = client.local() else { panic!() };
        send_to(&stranger, b"hello", Destination::Inet(to)).unwrap();
        assert_eq!(read(&client, &Io::NOW, 9), Err(FsError::WouldBlock));
        client.disconnect().unwrap();
        assert!(!client.is_bound(), "the port was chosen for it");
        assert_eq!(write(&client, &Io::NOW, b"x"), Err(FsError::NoDestination));
        client.bind(Place::Inet(to), ME).unwrap();
        client.connect(&Io::NOW, &inet(dest), ME).unwrap();
        client.disconnect().unwrap();
        send_to(&stranger, b"hello", Destination::Inet(to)).unwrap();
        assert_eq!(read(&client, &Io::NOW, 9).unwrap(), b"hello");
        assert_eq!(write(&client, &Io::NOW, b"x"), Err(FsError::NoDestination));
    }
}

#[test]
fn udp_without_a_receiver_is_refused_by_the_next_call() {
    let n = network();
    let client = socket(&n, Family::Inet4, Kind::Datagram);
    assert_eq!(send_to(&client, b"x", inet("127.0.0.1:9")), Ok(1));
    assert_eq!(send_to(&client, b"x", inet("127.0.0.1:9")), Ok(1));
    client.connect(&Io::NOW, &inet("127.0.0.1:9"), ME).unwrap();
    assert_eq!(write(&client, &Io::NOW, b"x"), Ok(1));
    assert_eq!(client.ready(), Ready::WRITE | Ready::ERROR);
    assert_eq!(read(&client, &Io::NOW, 1), Err(FsError::Refused));
    assert_eq!(read(&client, &Io::NOW, 1), Err(FsError::WouldBlock));
    write(&client, &Io::NOW, b"x").unwrap();
    assert_eq!(write(&client, &Io::NOW, b"x"), Err(FsError::Refused));
}

#[test]
fn udp_drops_what_does_not_fit_and_unix_datagrams_wait() {
    let n = network();
    let server = socket(&n, Family::Inet4, Kind::Datagram);
    bind(&server, "127.0.0.1:7000").unwrap();
    let client = socket(&n, Family::Inet4, Kind::Datagram);
    (0..2000u32).for_each(|i| assert_eq!(send_to(&client, &i.to_le_bytes(), inet("127.0.0.1:7000")), Ok(4)));
    let mut got = 0;
    while let Ok(bytes) = read(&server, &Io::NOW, 4) {
        assert_eq!(bytes, u32::to_le_bytes(got));
        got += 1;
    }
    assert!((500..1500).contains(&got), "{got}");
    let (a, b) = pair(&n, Kind::Datagram);
    while write(&a, &Io::NOW, &[0; 1000]).is_ok() {}
    assert_eq!((a.ready(), a.ready()), (Ready::empty(), Ready::empty()));
    let looks = Looks::default();
    let waits = std::thread::scope(|s| {
        let sender = s.spawn(|| write(&a, &Io { interrupted: &looks.ask(), ..Io::WAIT }, &[1; 1000]));
        looks.until(1);
        let waits = !sender.is_finished();
        read(&b, &Io::NOW, 1000).unwrap();
        assert_eq!(sender.join().unwrap(), Ok(1000));
        waits
    });
    assert!(waits);
    while read(&b, &Io::NOW, 1000).is_ok() {}
    assert_eq!(a.ready(), Ready::WRITE);
}

#[test]
fn a_poll_of_a_datagram_socket_is_notified_of_room_at_its_peer() {
    struct Counts(std::sync::atomic::AtomicUsize);
    impl quire_fs::Listener for Counts {
        fn changed(&self) {
            self.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        }
    }
    let n = network();
    let server = socket(&n, Family::Unix, Kind::Datagram);
    server.bind(Place::Abstract(b"server"), ME).unwrap();
    let client = socket(&n, Family::Unix, Kind::Datagram);
    client.connect(&Io::NOW, &Destination::Abstract(b"server"), ME).unwrap();
    while write(&client, &Io::NOW, &[0; 1000]).is_ok() {}
    let counts = Arc::try_new(Counts(Default::default())).unwrap();
    let listener: Arc<dyn quire_fs::Listener> = quire_heap::unsize!(counts.clone());
    client.readiness().unwrap().listen(&listener).unwrap();
    assert_eq!(client.ready(), Ready::empty());
    while read(&server, &Io::NOW, 1000).is_ok() {}
    assert!(counts.0.load(std::sync::atomic::Ordering::SeqCst) > 0);
    assert_eq!(client.ready(), Ready::WRITE);
    client.readiness().unwrap().unlisten(&listener);
}

#[test]
fn unix_datagrams_have_senders_and_peers() {
    let n = network();
    let server = socket(&n, Family::Unix, Kind::Datagram);
    server.bind(Place::Path { path: b"/run/server", ident: ident(9), node: Arc::try_new(9).unwrap() }, ME).unwrap();
    let to = Destination::Inode(ident(9));
    let client = socket(&n, Family::Unix, Kind::Datagram);
    send_to(&client, b"unnamed", to).unwrap();
    let (got, received) = receive(&server, 99, ReceiveFlags::PEEK).unwrap();
    assert_eq!((&got[..], received.from), (&b"unnamed"[..], None));
    read(&server, &Io::NOW, 99).unwrap();
    client.bind(Place::Abstract(b"client"), ME).unwrap();
    client.connect(&Io::NOW, &to, ME).unwrap();
    assert!(matches!(client.remote(), Ok(Address::Path(path)) if path[..] == b"/run/server"[..]));
    write(&client, &Io::NOW, b"").unwrap();
    let (got, received) = receive(&server, 99, ReceiveFlags::empty()).unwrap();
    assert_eq!((got.len(), received.from), (0, Some(named(b"client"))));
    // A connected receiver takes messages of its peer only.
    server.connect(&Io::NOW, &Destination::Abstract(b"client"), ME).unwrap();
    let stranger = socket(&n, Family::Unix, Kind::Datagram);
    assert_eq!(send_to(&stranger, b"x", to), Err(FsError::NotPermitted));
    assert_eq!(stranger.connect(&Io::NOW, &to, ME), Err(FsError::NotPermitted));
    assert_eq!(write(&stranger, &Io::NOW, b"x"), Err(FsError::NotConnected));
    write(&client, &Io::NOW, b"x").unwrap();
    drop(server);
    assert_eq!(write(&client, &Io::NOW, b"x"), Err(FsError::Refused));
    assert_eq!(send_to(&client, b"x", to), Err(FsError::Refused));
    let stream = socket(&n, Family::Unix, Kind::Stream);
    stream.bind(Place::Abstract(b"stream"), ME).unwrap();
    assert_eq!(send_to(&client, b"x", Destination::Abstract(b"stream")), Err(FsError::WrongType));
    assert_eq!(send_to(&stream, b"x", to), Err(FsError::Unsupported));
}

#[test]
fn shut_down_datagram_sockets_neither_send_nor_receive() {
    let n = network();
    let (a, b) = pair(&n, Kind::Datagram);
    a.shutdown(false, true).unwrap();
    assert_eq!(write(&a, &Io::NOW, b"x"), Err(FsError::BrokenPipe));
    a.shutdown(true, false).unwrap();
    assert_eq!(read(&a, &Io::WAIT, 9).unwrap(), b"");
    assert!(write(&b, &Io::NOW, b"x").is_err());
}
