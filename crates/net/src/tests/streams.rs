//! Tests of connections: their start, their bytes and their end.

use super::*;
use crate::Stage;
use quire_fs::Sink;

const HUP: Ready = Ready::READ.union(Ready::READ_HANGUP);

#[test]
fn connections_of_every_family_carry_bytes_both_ways() {
    for (family, kind) in CONNECTED {
        let n = network();
        let (a, b) = connected(&n, family, kind);
        assert_eq!(write(&a, &Io::NOW, b"ping"), Ok(4));
        assert_eq!((b.ready(), b.queued()), (Ready::READ | Ready::WRITE, Ok(4)));
        assert_eq!(a.unsent(), if family == Family::Unix { 4 } else { 0 }, "TCP has acknowledged them");
        assert_eq!(read(&b, &Io::NOW, 10).unwrap(), b"ping");
        assert_eq!(write(&b, &Io::NOW, b"pong"), Ok(4));
        assert_eq!(read(&a, &Io::NOW, 10).unwrap(), b"pong");
        assert_eq!(read(&a, &Io::NOW, 10), Err(FsError::WouldBlock));
        assert_eq!(a.ready(), Ready::WRITE);
        assert_eq!((b.peer_credentials(), b.local()), (Some(OTHER), a.remote().unwrap()));
        assert_eq!(b.remote().unwrap(), a.local());
        if family == Family::Unix {
            assert_eq!(a.peer_credentials(), Some(ME));
        }
        assert_eq!(a.connect(&Io::NOW, &inet("127.0.0.1:1"), ME), Err(FsError::IsConnected));
    }
}

#[test]
fn a_closed_peer_ends_reading_and_breaks_writing() {
    for (family, kind) in CONNECTED {
        let n = network();
        let (a, b) = connected(&n, family, kind);
        write(&b, &Io::NOW, b"last").unwrap();
        drop(b);
        assert_eq!(read(&a, &Io::WAIT, 10).unwrap(), b"last");
        assert_eq!(read(&a, &Io::WAIT, 10).unwrap(), b"");
        if family == Family::Unix {
            assert_eq!(a.ready(), HUP | Ready::HANGUP | Ready::WRITE);
        } else {
            assert_eq!(a.ready(), HUP | Ready::WRITE);
            assert_eq!(write(&a, &Io::NOW, b"into the void"), Ok(13));
            assert!(a.ready().contains(Ready::HANGUP | Ready::ERROR));
        }
        assert_eq!(write(&a, &Io::NOW, b"x"), Err(FsError::BrokenPipe));
        assert_eq!(write(&a, &Io::NOW, b"x"), Err(FsError::BrokenPipe));
    }
}

#[test]
fn unread_data_at_a_close_resets_the_peer() {
    for (family, kind) in CONNECTED {
        let n = network();
        let (a, b) = connected(&n, family, kind);
        write(&a, &Io::NOW, b"never read").unwrap();
        write(&b, &Io::NOW, b"last").unwrap();
        drop(b);
        assert!(a.ready().contains(Ready::ERROR | Ready::HANGUP));
        // As on Linux, a reader of packets gets the error before the data, and a reader of bytes after it.
        if kind == Kind::SeqPacket {
            assert_eq!(read(&a, &Io::NOW, 10), Err(FsError::Reset));
        }
        assert_eq!(read(&a, &Io::NOW, 10).unwrap(), b"last", "{family:?}");
        if kind == Kind::Stream {
            assert_eq!(read(&a, &Io::NOW, 10), Err(FsError::Reset));
        }
        assert_eq!(read(&a, &Io::NOW, 10).unwrap(), b"");
        assert_eq!(write(&a, &Io::NOW, b"x"), Err(FsError::BrokenPipe));
    }
    let n = network();
    let (a, b) = connected(&n, Family::Inet4, Kind::Stream);
    b.options().set_linger(Some(0));
    drop(b);
    assert_eq!(write(&a, &Io::NOW, b"x"), Err(FsError::Reset));
    assert_eq!(write(&a, &Io::NOW, b"x"), Err(FsError::BrokenPipe));
    let (a, b) = connected(&n, Family::Inet4, Kind::Stream);
    write(&a, &Io::NOW, b"x").unwrap();
    drop(b);
    assert_eq!((a.take_error(), a.take_error()), (Some(FsError::Reset), None));
}

#[test]
fn data_that_is_lost_after_the_end_of_writing_breaks_the_pipe() {
    for linger in [false, true] {
        let n = network();
        let lost = |peer_ends: bool| {
            let (a, b) = connected(&n, Family::Inet4, Kind::Stream);
            a.shutdown(false, true).unwrap();
            write(&b, &Io::NOW, b"never read").unwrap();
            if linger {
                read(&a, &Io::NOW, 10).unwrap();
                a.options().set_linger(Some(0));
            }
            if peer_ends {
                b.shutdown(false, true).unwrap();
            }
            drop(a);
            b
        };
        let b = lost(false);
        // A reader sees the end of the stream, and a writer gets the error.
        assert_eq!(read(&b, &Io::WAIT, 9).unwrap(), b"");
        assert_eq!(b.ready(), HUP | Ready::WRITE | Ready::HANGUP | Ready::ERROR);
        assert_eq!((b.take_error(), b.take_error()), (Some(FsError::BrokenPipe), None));
        assert_eq!(write(&b, &Io::NOW, b"x"), Err(FsError::BrokenPipe));
        // Both sides had ended the connection, so there is no error.
        let b = lost(true);
        assert_eq!((b.ready(), b.take_error()), (HUP | Ready::WRITE | Ready::HANGUP, None));
    }
}

#[test]
fn directions_are_shut_down_one_by_one() {
    for (family, kind) in CONNECTED {
        let n = network();
        let (a, b) = connected(&n, family, kind);
        write(&a, &Io::NOW, b"request").unwrap();
        a.shutdown(false, true).unwrap();
        assert_eq!(write(&a, &Io::NOW, b"x"), Err(FsError::BrokenPipe));
        assert_eq!(read(&b, &Io::WAIT, 10).unwrap(), b"request");
        assert_eq!(read(&b, &Io::WAIT, 10).unwrap(), b"");
        assert_eq!(b.ready(), HUP | Ready::WRITE);
        write(&b, &Io::NOW, b"answer").unwrap();
        assert_eq!(read(&a, &Io::WAIT, 10).unwrap(), b"answer");
        b.shutdown(false, true).unwrap();
        assert!(a.ready().contains(HUP | Ready::HANGUP) && b.ready().contains(Ready::HANGUP));
        let (a, b) = connected(&n, family, kind);
        write(&b, &Io::NOW, b"before").unwrap();
        a.shutdown(true, false).unwrap();
        assert_eq!(read(&a, &Io::WAIT, 10).unwrap(), b"before");
        assert_eq!(read(&a, &Io::WAIT, 10).unwrap(), b"");
        let after = write(&b, &Io::NOW, b"after");
        assert_eq!(after, if family == Family::Unix { Err(FsError::BrokenPipe) } else { Ok(5) });
    }
    let n = network();
    assert_eq!(socket(&n, Family::Inet4, Kind::Stream).shutdown(true, true), Err(FsError::NotConnected));
    assert_eq!(socket(&n, Family::Unix, Kind::Stream).shutdown(true, true), Ok(()));
}

#[test]
fn a_tcp_peer_that_ended_both_directions_breaks_writing() {
    for (first, full) in [(true, false), (false, false), (true, true)] {
        let n = network();
        let (a, b) = connected(&n, Family::Inet4, Kind::Stream);
        while full && write(&b, &Io::NOW, &[0; 5000]).is_ok() {}
        a.shutdown(first, !first).unwrap();
        assert!(full || write(&b, &Io::NOW, b"one direction") == Ok(13));
        let looks = Looks::default();
        std::thread::scope(|s| {
            // A writer that waits for room is woken by the end.
            let waits = || write(&b, &Io { interrupted: &looks.ask(), ..Io::WAIT }, b"waits");
            let writer = full.then(|| s.spawn(waits));
            looks.until(usize::from(full));
            a.shutdown(!first, first).unwrap();
            match writer {
                Some(writer) => assert_eq!(writer.join().unwrap(), Ok(5)),
                None => assert_eq!(write(&b, &Io::NOW, b"in vain"), Ok(7)),
            }
        });
        assert_eq!(b.ready(), HUP | Ready::WRITE | Ready::HANGUP | Ready::ERROR);
        assert_eq!(write(&b, &Io::WAIT, b"x"), Err(FsError::BrokenPipe));
    }
}

#[test]
fn the_state_of_a_tcp_socket_follows_both_ends() {
    let n = network();
    let s = socket(&n, Family::Inet4, Kind::Stream);
    assert_eq!(s.stage(), Stage::Unconnected);
    let (a, b) = connected(&n, Family::Inet4, Kind::Stream);
    assert_eq!((a.stage(), b.stage()), (Stage::Connected, Stage::Connected));
    a.shutdown(true, false).unwrap();
    assert_eq!((a.stage(), b.stage()), (Stage::Connected, Stage::Connected), "it only reads no more");
    a.shutdown(false, true).unwrap();
    assert_eq!((a.stage(), b.stage()), (Stage::Finished, Stage::PeerFinished));
    b.shutdown(false, true).unwrap();
    assert_eq!((a.stage(), b.stage()), (Stage::Closed, Stage::Closed));
    let (a, b) = connected(&n, Family::Inet4, Kind::Stream);
    drop(a);
    assert_eq!(b.stage(), Stage::PeerFinished);
    write(&b, &Io::NOW, b"in vain").unwrap();
    assert_eq!(b.stage(), Stage::Closed);
    let l = listener(&n, Family::Inet4, Kind::Stream, 0);
    let clients = [0; 2].map(|_| socket(&n, Family::Inet4, Kind::Stream));
    for client in &clients {
        assert_eq!(client.connect(&Io::NOW, &destination(&l), ME), Err(FsError::InProgress));
    }
    assert_eq!((l.stage(), clients.map(|c| c.stage())), (Stage::Listening, [Stage::Connected, Stage::Connecting]));
}

#[test]
fn unconnected_streams_refuse_to_move_bytes() {
    let n = network();
    for (family, read_error, write_error) in [
        (Family::Unix, FsError::Invalid, FsError::NotConnected),
        (Family::Inet4, FsError::NotConnected, FsError::BrokenPipe),
    ] {
        let s = socket(&n, family, Kind::Stream);
        assert_eq!(s.ready(), Ready::WRITE | Ready::HANGUP);
        assert_eq!(read(&s, &Io::WAIT, 1), Err(read_error));
        assert_eq!(write(&s, &Io::WAIT, b"x"), Err(write_error));
        assert_eq!(s.remote(), Err(FsError::NotConnected));
        assert!(matches!(s.accept(&Io::NOW), Err(FsError::Invalid)));
        assert_eq!(s.disconnect(), if family == Family::Unix { Err(FsError::Invalid) } else { Ok(()) });
    }
    assert!(matches!(Socket::new(n, Family::Inet4, Kind::SeqPacket), Err(FsError::Unsupported)));
}

#[test]
fn a_full_buffer_stops_the_writer_and_polls_until_half_is_read() {
    for (family, kind) in CONNECTED.into_iter().filter(|(_, kind)| *kind == Kind::Stream) {
        let n = network();
        let (a, b) = connected(&n, family, kind);
        let bytes: Vec<u8> = (0..1_000_000).map(|i| (i / 7) as u8).collect();
        let sent = write(&a, &Io::NOW, &bytes).unwrap();
        // A TCP connection has the receiver's buffer too.
        let most = if family == Family::Unix { 150_000..260_000 } else { 300_000..450_000 };
        assert!(most.contains(&sent), "{sent}");
        assert_eq!(write(&a, &Io::NOW, b"x"), Err(FsError::WouldBlock));
        assert_eq!(a.ready(), Ready::empty());
        assert!(a.unsent() > 150_000, "{}", a.unsent());
        let mut got = read(&b, &Io::NOW, 1000).unwrap();
        assert_eq!(a.ready(), Ready::empty());
        got.extend(read(&b, &Io::NOW, 150_000).unwrap());
        assert_eq!(a.ready(), Ready::WRITE);
        got.extend(read(&b, &Io::NOW, sent).unwrap());
        assert!(got == bytes[..sent]);
    }
}

#[test]
fn small_writes_share_chunks_and_the_buffer_bounds_their_memory() {
    let n = network();
    let (a, b) = pair(&n, Kind::Stream);
    let mut sent = 0;
    while write(&a, &Io::NOW, &[sent as u8]).is_ok() {
        sent += 1;
    }
    assert!(sent > 150_000, "{sent}");
    let got = read(&b, &Io::NOW, sent + 1).unwrap();
    assert!(got.iter().enumerate().all(|(i, byte)| *byte == i as u8) && got.len() == sent);
}

#[test]
fn reads_peek_wait_for_all_and_know_a_low_water_mark() {
    let n = network();
    let (a, b) = pair(&n, Kind::Stream);
    let bytes: Vec<u8> = (0..10_000).map(|i| (i % 251) as u8).collect();
    write(&a, &Io::NOW, &bytes).unwrap();
    for _ in 0..2 {
        assert!(receive(&b, 9_000, ReceiveFlags::PEEK).unwrap().0 == bytes[..9_000]);
    }
    assert_eq!(b.queued(), Ok(10_000));
    assert!(receive(&b, 20_000, ReceiveFlags::WAIT_ALL).unwrap().0 == bytes);
    b.options().set_low_water(4);
    write(&a, &Io::NOW, b"abc").unwrap();
    // A nonblocking read takes the present bytes.
    assert_eq!(read(&b, &Io::NOW, 10).unwrap(), b"abc");
    let looks = Looks::default();
    write(&a, &Io::NOW, b"abc").unwrap();
    std::thread::scope(|s| {
        let reader = s.spawn(|| {
            let mut into = [0; 6];
            let io = Io { interrupted: &looks.ask(), ..Io::WAIT };
            b.receive(&io, &mut SliceSink::new(&mut into), ReceiveFlags::WAIT_ALL).unwrap();
            into
        });
        looks.until(1);
        write(&a, &Io::NOW, b"defg").unwrap();
        assert_eq!(&reader.join().unwrap(), b"abcdef");
    });
    assert_eq!(read(&b, &Io::NOW, 10).unwrap(), b"g");
    assert_eq!((read(&b, &Io::NOW, 0).unwrap(), write(&a, &Io::NOW, b"")), (Vec::new(), Ok(0)));
}

#[test]
fn polls_of_tcp_wait_for_the_low_water_mark() {
    for (family, kind) in CONNECTED.into_iter().filter(|(_, kind)| *kind == Kind::Stream) {
        let n = network();
        let (a, b) = connected(&n, family, kind);
        let few = if family == Family::Unix { Ready::READ | Ready::WRITE } else { Ready::WRITE };
        let enough = Ready::READ | Ready::WRITE;
        b.set_low_water(4);
        write(&a, &Io::NOW, b"ab").unwrap();
        assert_eq!(b.ready(), few);
        write(&a, &Io::NOW, b"cd").unwrap();
        assert_eq!(b.ready(), enough);
        read(&b, &Io::NOW, 1).unwrap();
        assert_eq!(b.ready(), few);
        b.set_low_water(3);
        assert_eq!(b.ready(), enough);
        // A low-water mark above the buffer's size does not keep the reader from making room for a waiting writer.
        b.set_low_water(usize::MAX);
        assert_eq!(b.ready(), few);
        while write(&a, &Io::NOW, &[0; 5000]).is_ok() {}
        while !a.ready().contains(Ready::WRITE) {
            assert_eq!(b.ready(), enough);
            read(&b, &Io::NOW, 1000).unwrap();
        }
        while read(&b, &Io::NOW, 5000).is_ok() {}
        write(&a, &Io::NOW, b"x").unwrap();
        a.shutdown(false, true).unwrap();
        assert_eq!(b.ready(), HUP | Ready::WRITE, "the end");
    }
}

#[test]
fn a_change_of_the_low_water_mark_is_announced() {
    struct Notified(std::sync::atomic::AtomicBool);
    impl quire_fs::Listener for Notified {
        fn changed(&self) {
            self.0.store(true, std::sync::atomic::Ordering::SeqCst);
        }
    }
    let n = network();
    let (_a, b) = connected(&n, Family::Inet4, Kind::Stream);
    let notified = Arc::try_new(Notified(Default::default())).unwrap();
    let listener: Arc<dyn quire_fs::Listener> = quire_heap::unsize!(notified.clone());
    b.readiness().unwrap().listen(&listener).unwrap();
    b.set_low_water(2);
    assert!(notified.0.load(std::sync::atomic::Ordering::SeqCst));
    b.readiness().unwrap().unlisten(&listener);
}

/// Takes some bytes and then faults.
struct Faulty(usize, Vec<u8>);
impl Sink for Faulty {
    fn put(&mut self, bytes: &[u8]) -> Result<usize, FsError> {
        let n = bytes.len().min(self.0);
        if n == 0 {
            return Err(FsError::Fault);
        }
        self.1.extend(&bytes[..n]);
        self.0 -= n;
        Ok(n)
    }
    fn room(&self) -> usize {
        1 << 20
    }
}

#[test]
fn a_fault_loses_no_byte_of_a_stream() {
    let n = network();
    let (a, b) = pair(&n, Kind::Stream);
    let bytes: Vec<u8> = (0..20_000).map(|i| (i % 253) as u8).collect();
    write(&a, &Io::NOW, &bytes).unwrap();
    let mut got = Vec::new();
    for most in [0, 1, 4095, 1, 5000, 0, 7] {
        let mut sink = Faulty(most, Vec::new());
        let read = b.read(&Io::NOW, &mut sink);
        assert_eq!(read, if most == 0 { Err(FsError::Fault) } else { Ok(most) });
        got.extend(sink.1);
    }
    assert_eq!(b.queued(), Ok(20_000 - got.len()));
    got.extend(read(&b, &Io::NOW, 30_000).unwrap());
    assert!(got == bytes);
}

#[test]
fn a_full_backlog_holds_connections_back() {
    let n = network();
    let l = listener(&n, Family::Unix, Kind::Stream, 0);
    assert_eq!(l.ready(), Ready::empty());
    let clients: Vec<Shared> = (0..2).map(|_| socket(&n, Family::Unix, Kind::Stream)).collect();
    clients[0].connect(&Io::NOW, &destination(&l), ME).unwrap();
    assert_eq!(l.ready(), Ready::READ);
    assert_eq!(clients[1].connect(&Io::NOW, &destination(&l), ME), Err(FsError::WouldBlock));
    let looks = Looks::default();
    std::thread::scope(|s| {
        let connect = || clients[1].connect(&Io { interrupted: &looks.ask(), ..Io::WAIT }, &destination(&l), ME);
        let late = s.spawn(connect);
        looks.until(1);
        l.accept(&Io::NOW).unwrap();
        assert_eq!(late.join().unwrap(), Ok(()));
    });
    let l = listener(&n, Family::Inet4, Kind::Stream, 0);
    let clients: Vec<Shared> = (0..4).map(|_| socket(&n, Family::Inet4, Kind::Stream)).collect();
    for client in &clients {
        assert_eq!(client.connect(&Io::NOW, &destination(&l), ME), Err(FsError::InProgress));
    }
    assert_eq!(clients[0].ready(), Ready::WRITE);
    assert_eq!(clients[0].connect(&Io::NOW, &destination(&l), ME), Ok(()));
    assert_eq!(clients[0].connect(&Io::NOW, &destination(&l), ME), Err(FsError::IsConnected));
    assert_eq!(clients[1].ready(), Ready::empty());
    assert_eq!(clients[1].connect(&Io::NOW, &destination(&l), ME), Err(FsError::Already));
    l.accept(&Io::NOW).unwrap();
    assert_eq!(clients[1].ready(), Ready::WRITE);
    assert_eq!(clients[2].ready(), Ready::empty());
    l.listen(1, ME).unwrap();
    assert_eq!(clients[2].ready(), Ready::WRITE, "the backlog is longer now");
    assert_eq!(clients[3].ready(), Ready::empty());
    drop(l);
    assert_eq!(clients[2].take_error(), Some(FsError::Reset));
    assert_eq!(clients[3].take_error(), Some(FsError::Refused));
    assert!(clients[3].ready().contains(Ready::HANGUP));
}

#[test]
fn connections_to_nothing_are_refused() {
    let n = network();
    let unix = socket(&n, Family::Unix, Kind::Stream);
    for to in [Destination::Abstract(b"none"), Destination::Inode(ident(1))] {
        assert_eq!(unix.connect(&Io::WAIT, &to, ME), Err(FsError::Refused));
    }
    assert_eq!(unix.connect(&Io::WAIT, &inet("127.0.0.1:1"), ME), Err(FsError::WrongFamily));
    let bound = socket(&n, Family::Unix, Kind::Stream);
    bound.bind(Place::Abstract(b"bound"), ME).unwrap();
    assert_eq!(unix.connect(&Io::WAIT, &Destination::Abstract(b"bound"), ME), Err(FsError::Refused));
    let packets = socket(&n, Family::Unix, Kind::SeqPacket);
    assert_eq!(packets.connect(&Io::WAIT, &Destination::Abstract(b"bound"), ME), Err(FsError::Refused));
    bound.listen(0, ME).unwrap();
    assert_eq!(unix.connect(&Io::WAIT, &Destination::Abstract(b"bound"), ME), Ok(()));
    assert_eq!(socket(&n, Family::Unix, Kind::Stream).listen(1, ME), Err(FsError::Invalid));
    let tcp = socket(&n, Family::Inet4, Kind::Stream);
    assert_eq!(tcp.connect(&Io::WAIT, &inet("127.0.0.1:9"), ME), Err(FsError::Refused));
    assert_eq!(tcp.connect(&Io::WAIT, &inet("10.0.0.1:9"), ME), Err(FsError::Unreachable));
    assert_eq!(tcp.connect(&Io::NOW, &inet("127.0.0.1:9"), ME), Err(FsError::InProgress));
    assert!(tcp.ready().contains(Ready::ERROR | Ready::HANGUP));
    assert_eq!((tcp.take_error(), tcp.take_error()), (Some(FsError::Refused), None));
}

#[test]
fn a_refused_connection_is_reported_once_before_the_next_attempt() {
    let n = network();
    let to = inet("127.0.0.1:9");
    let refused = || {
        let s = socket(&n, Family::Inet4, Kind::Stream);
        assert_eq!(s.connect(&Io::NOW, &to, ME), Err(FsError::InProgress));
        assert_eq!(s.ready(), HUP | Ready::WRITE | Ready::HANGUP | Ready::ERROR);
        s
    };
    let idle = Ready::WRITE | Ready::HANGUP;
    let s = refused();
    assert_eq!(s.connect(&Io::NOW, &to, ME), Err(FsError::Refused));
    assert_eq!((s.ready(), read(&s, &Io::WAIT, 1)), (idle, Err(FsError::NotConnected)));
    assert_eq!(s.connect(&Io::NOW, &to, ME), Err(FsError::InProgress));
    // Calls other than `connect` take the error too.
    assert_eq!((s.take_error(), s.take_error()), (Some(FsError::Refused), None));
    assert_eq!(s.ready(), HUP | idle);
    assert_eq!((read(&s, &Io::WAIT, 1).unwrap(), write(&s, &Io::WAIT, b"x")), (Vec::new(), Err(FsError::BrokenPipe)));
    assert_eq!((s.listen(1, ME), s.shutdown(true, true)), (Err(FsError::Invalid), Err(FsError::NotConnected)));
    let s = refused();
    assert_eq!((read(&s, &Io::WAIT, 1), read(&s, &Io::WAIT, 1).unwrap()), (Err(FsError::Refused), Vec::new()));
    assert_eq!(s.connect(&Io::WAIT, &to, ME), Err(FsError::Aborted));
    assert_eq!(s.ready(), idle);
    // A `connect` that waits returns the error itself.
    assert_eq!((s.connect(&Io::WAIT, &to, ME), s.ready()), (Err(FsError::Refused), idle));
    let l = listener(&n, Family::Inet4, Kind::Stream, 0);
    let [first, waits] = [0; 2].map(|_| socket(&n, Family::Inet4, Kind::Stream));
    for s in [&first, &waits, &s] {
        assert_eq!(s.connect(&Io::NOW, &destination(&l), ME), Err(FsError::InProgress));
    }
    let [reads, connects] = [Looks::default(), Looks::default()];
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| read(&s, &Io { interrupted: &reads.ask(), ..Io::WAIT }, 1));
        let waiter = scope.spawn(|| waits.connect(&Io { interrupted: &connects.ask(), ..Io::WAIT }, &to, ME));
        reads.until(1);
        connects.until(1);
        drop(l);
        assert_eq!(waiter.join().unwrap(), Err(FsError::Refused));
        assert_eq!(reader.join().unwrap(), Err(FsError::Refused));
    });
    assert_eq!((waits.ready(), s.ready()), (idle, HUP | idle));
    assert_eq!(s.connect(&Io::NOW, &to, ME), Err(FsError::Aborted));
    let l = listener(&n, Family::Inet4, Kind::Stream, 0);
    assert_eq!(s.connect(&Io::WAIT, &destination(&l), ME), Ok(()));
}

#[test]
fn a_listener_that_stops_or_closes_drops_its_connections() {
    for (family, kind) in CONNECTED {
        let n = network();
        let l = listener(&n, family, kind, 5);
        let to = destination(&l);
        let client = socket(&n, family, kind);
        client.connect(&Io::WAIT, &to, ME).unwrap();
        write(&client, &Io::NOW, b"lost").unwrap();
        l.shutdown(true, true).unwrap();
        // As on Linux, a Unix listener keeps its connections until it closes.
        if family == Family::Unix {
            assert_eq!(client.take_error(), None);
            assert_eq!(read(&l.accept(&Io::WAIT).unwrap(), &Io::NOW, 9).unwrap(), b"lost");
        } else {
            assert_eq!(client.take_error(), Some(FsError::Reset));
        }
        assert!(matches!(l.accept(&Io::WAIT), Err(FsError::Invalid)));
        let late = socket(&n, family, kind);
        assert_eq!(late.connect(&Io::WAIT, &to, ME), Err(FsError::Refused));
    }
    // A client that has closed can still be accepted. The server reads its bytes and then the end.
    let n = network();
    let l = listener(&n, Family::Inet4, Kind::Stream, 5);
    let client = socket(&n, Family::Inet4, Kind::Stream);
    client.connect(&Io::WAIT, &destination(&l), ME).unwrap();
    write(&client, &Io::NOW, b"bye").unwrap();
    drop(client);
    let server = l.accept(&Io::NOW).unwrap();
    assert_eq!(read(&server, &Io::NOW, 9).unwrap(), b"bye");
    assert_eq!(read(&server, &Io::NOW, 9).unwrap(), b"");
}

#[test]
fn timeouts_of_the_socket_end_waits() {
    let n = network();
    let (a, b) = pair(&n, Kind::Stream);
    a.options().set_receive_timeout(5_000_000);
    a.options().set_send_timeout(5_000_000);
    assert_eq!(read(&a, &Io::WAIT, 1), Err(FsError::WouldBlock));
    let sent = write(&a, &Io::WAIT, &[0; 1_000_000]).unwrap();
    assert!(sent < 1_000_000);
    assert_eq!(write(&a, &Io::WAIT, b"x"), Err(FsError::WouldBlock));
    let io = Io { interrupted: &|| true, ..Io::WAIT };
    assert_eq!(write(&a, &io, b"x"), Err(FsError::Stopped));
    drop(b);
}

#[test]
fn many_connections_leave_nothing_behind() {
    let n = network();
    let l = listener(&n, Family::Inet4, Kind::Stream, 1);
    let unix = listener(&n, Family::Unix, Kind::Stream, 1);
    for i in 0..100_000 {
        let (family, l) = if i % 2 == 0 { (Family::Inet4, &l) } else { (Family::Unix, &unix) };
        let client = socket(&n, family, Kind::Stream);
        client.connect(&Io::WAIT, &destination(l), ME).unwrap();
        let server = l.accept(&Io::NOW).unwrap();
        if i % 3 == 0 {
            write(&client, &Io::NOW, b"x").unwrap();
        }
        drop((client, server));
    }
    let listening = 2;
    assert_eq!(alive(n), listening);
    drop((l, unix));
    assert_eq!(alive(n), 0);
    assert!((0..256).all(|i| n.tcp.bucket(i).capacity() == 0 && n.names.bucket(i).capacity() == 0));
}

#[test]
fn a_listener_that_is_shut_down_gives_its_waiting_connections_and_refuses_others() {
    for kind in [Kind::Stream, Kind::SeqPacket] {
        let n = network();
        let l = listener(&n, Family::Unix, kind, 1);
        let clients = [(); 3].map(|()| socket(&n, Family::Unix, kind));
        let to = destination(&l);
        clients[..2].iter().for_each(|c| c.connect(&Io::NOW, &to, ME).unwrap());
        let waits = |io: &Io<'_>| clients[2].connect(io, &to, ME);
        assert_eq!(during(waits, || l.shutdown(true, false).unwrap()), Err(FsError::Refused));
        assert_eq!(l.ready(), Ready::READ | Ready::READ_HANGUP);
        for client in &clients[..2] {
            let server = l.accept(&Io::NOW).unwrap();
            assert_eq!(write(&server, &Io::NOW, b"x"), Ok(1));
            assert_eq!(read(client, &Io::NOW, 9).unwrap(), b"x");
        }
        assert!(matches!(l.accept(&Io::WAIT), Err(FsError::Invalid)));
        l.listen(5, ME).unwrap();
        assert_eq!(clients[2].connect(&Io::NOW, &to, ME), Err(FsError::Refused), "the shutdown stays");
        l.shutdown(false, true).unwrap();
        assert!(l.ready().contains(Ready::HANGUP));
        drop((l, clients));
        assert_eq!(alive(n), 0);
    }
}

#[test]
fn a_tcp_socket_connects_to_itself() {
    for nonblock in [false, true] {
        let n = network();
        let s = socket(&n, Family::Inet4, Kind::Stream);
        bind(&s, "127.0.0.1:80").unwrap();
        let to = inet("127.0.0.1:80");
        if nonblock {
            assert_eq!(s.connect(&Io::NOW, &to, ME), Err(FsError::InProgress));
            assert_eq!(s.ready(), Ready::WRITE);
        }
        assert_eq!(s.connect(&Io::WAIT, &to, ME), Ok(()));
        assert_eq!((s.local(), s.remote()), (address("127.0.0.1:80"), Ok(address("127.0.0.1:80"))));
        assert_eq!(write(&s, &Io::NOW, b"abc"), Ok(3));
        assert_eq!(read(&s, &Io::NOW, 9).unwrap(), b"abc");
        assert_eq!(read(&s, &Io::NOW, 9), Err(FsError::WouldBlock));
        assert_eq!(
            during(|io| read(&s, io, 9), || drop(write(&s, &Io::NOW, b"d").unwrap().to_string())).unwrap(),
            b"d"
        );
        if nonblock {
            s.disconnect().unwrap();
            assert_eq!(s.take_error(), Some(FsError::Reset));
            assert_eq!(s.connect(&Io::WAIT, &to, ME), Ok(()), "again");
        }
        s.shutdown(false, true).unwrap();
        assert_eq!(read(&s, &Io::WAIT, 9).unwrap(), b"");
        drop(s);
        assert_eq!(alive(n), 0);
    }
}
