//! Sockets between threads.

use super::*;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The byte at `i` of a long stream.
fn byte(i: usize) -> u8 {
    (i ^ (i >> 8) ^ (i >> 16)) as u8
}

fn pump(s: &Shared, total: usize) {
    let (mut sent, mut size) = (0, 1);
    while sent < total {
        let bytes: Vec<u8> = (sent..total.min(sent + size)).map(byte).collect();
        let n = write(s, &Io::WAIT, &bytes).unwrap();
        (sent, size) = (sent + n, size * 7 % 50_021);
    }
}

fn drain(s: &Shared, total: usize) {
    let (mut got, mut size) = (0, 1);
    while got < total {
        let bytes = read(s, &Io::WAIT, size).unwrap();
        assert!(!bytes.is_empty() && bytes.iter().enumerate().all(|(i, b)| *b == byte(got + i)), "at {got}");
        (got, size) = (got + bytes.len(), size * 11 % 60_013);
    }
}

#[test]
fn bytes_arrive_in_order_both_ways_at_once() {
    const TOTAL: usize = 4_000_000;
    for (family, kind) in CONNECTED.into_iter().filter(|(_, kind)| *kind == Kind::Stream) {
        let n = network();
        let (a, b) = &connected(&n, family, kind);
        std::thread::scope(|s| {
            s.spawn(move || pump(a, TOTAL));
            s.spawn(move || pump(b, TOTAL));
            s.spawn(move || drain(a, TOTAL));
            s.spawn(move || drain(b, TOTAL));
        });
    }
}

#[test]
fn packets_of_many_senders_arrive_whole() {
    let n = network();
    let (a, b) = &pair(&n, Kind::Datagram);
    std::thread::scope(|s| {
        for id in 0..3u8 {
            s.spawn(move || {
                (0..3000).for_each(|i| drop(write(a, &Io::WAIT, &std::vec![id; 1 + i * 7 % 9000]).unwrap().to_string()))
            });
        }
        for _ in 0..2 {
            s.spawn(|| {
                for _ in 0..4500 {
                    let got = read(b, &Io::WAIT, 10_000).unwrap();
                    assert!(!got.is_empty() && got.iter().all(|byte| *byte == got[0]));
                }
            });
        }
    });
    assert_eq!(read(b, &Io::NOW, 1), Err(FsError::WouldBlock));
}

#[test]
fn a_larger_buffer_lets_waiting_writers_go_on() {
    type Grow = fn(&Shared, &Shared);
    let grow: [(&str, Grow); 2] = [
        ("send", |a, _| {
            a.options().set_send_buffer(4_000_000);
            a.announce_buffers();
        }),
        ("receive", |_, b| {
            b.options().set_receive_buffer(4_000_000);
            b.announce_buffers();
        }),
    ];
    for (family, kind) in CONNECTED.into_iter().chain([(Family::Unix, Kind::Datagram)]) {
        for (which, grow) in grow {
            // The room of a Unix sender depends on its own buffer alone.
            if family == Family::Unix && which == "receive" {
                continue;
            }
            let n = network();
            let (a, b) = if kind == Kind::Datagram { pair(&n, kind) } else { connected(&n, family, kind) };
            a.options().set_send_buffer(8192);
            b.options().set_receive_buffer(8192);
            while write(&a, &Io::NOW, &[0; 1000]).is_ok() {}
            let done = during(|io| write(&a, io, &[0; 2000]), || grow(&a, &b));
            assert_eq!(done, Ok(2000), "{family:?} {kind:?} {which}");
        }
    }
}

#[test]
fn a_larger_buffer_lets_a_datagram_to_any_receiver_go_on() {
    let n = network();
    let receiver = socket(&n, Family::Unix, Kind::Datagram);
    receiver.bind(Place::Abstract(b"receiver"), ME).unwrap();
    let sender = socket(&n, Family::Unix, Kind::Datagram);
    while send_to(&sender, &[0; 1000], Destination::Abstract(b"receiver")).is_ok() {}
    let waits = |io: &Io<'_>| {
        let to = Destination::Abstract(b"receiver");
        sender.send(io, &mut SliceSource::new(b"abc"), Some(&to), Ancillary::none())
    };
    let grow = || {
        sender.options().set_send_buffer(4_000_000);
        sender.announce_buffers();
    };
    assert_eq!(during(waits, grow), Ok(3));
    // Room at the receiver ends the wait too.
    sender.options().set_send_buffer(8192);
    assert_eq!(during(waits, || while read(&receiver, &Io::NOW, 1000).is_ok() {}), Ok(3));
}

#[test]
fn waiting_readers_and_writers_learn_that_the_peer_closes() {
    for (family, kind) in CONNECTED {
        let n = network();
        let (a, b) = connected(&n, family, kind);
        assert_eq!(during(|io| read(&a, io, 9), || drop(b)).unwrap(), b"");
        let (a, b) = connected(&n, family, kind);
        let fills = |io: &Io<'_>| {
            loop {
                if let Err(e) = write(&a, io, &[0; 5000]) {
                    return e;
                }
            }
        };
        let end = if family == Family::Unix { FsError::BrokenPipe } else { FsError::Reset };
        assert_eq!(during(fills, || drop(b)), end);
        let (a, _b) = connected(&n, family, kind);
        assert_eq!(during(|io| read(&a, io, 9), || a.shutdown(true, true).unwrap()).unwrap(), b"");
    }
}

#[test]
fn connections_and_a_listener_that_closes_meet_in_every_order() {
    for (family, kind) in CONNECTED {
        let n = network();
        for round in 0..300 {
            let l = listener(&n, family, kind, round % 2);
            let to = destination(&l);
            let (accepted, connected) = (AtomicUsize::new(0), AtomicUsize::new(0));
            std::thread::scope(|s| {
                for _ in 0..3 {
                    s.spawn(|| {
                        let client = socket(&n, family, kind);
                        match client.connect(&Io::WAIT, &to, ME) {
                            Ok(()) => {
                                connected.fetch_add(1, Ordering::SeqCst);
                                // The client reads an answer or the end.
                                match read(&client, &Io::WAIT, 9) {
                                    Ok(bytes) => assert!(bytes == b"hi" || bytes.is_empty()),
                                    Err(e) => assert_eq!(e, FsError::Reset),
                                }
                            }
                            Err(e) => assert_eq!(e, FsError::Refused),
                        }
                    });
                }
                for _ in 0..round % 4 {
                    if let Ok(server) = l.accept(&Io::NOW) {
                        accepted.fetch_add(1, Ordering::SeqCst);
                        let _sent = write(&server, &Io::NOW, b"hi");
                    }
                }
                drop(l);
            });
            assert!(accepted.into_inner() <= connected.into_inner());
        }
        assert_eq!(alive(n), 0, "{family:?}");
    }
}

#[test]
fn every_connection_is_accepted_once() {
    for (family, kind) in CONNECTED {
        let n = network();
        let l = &listener(&n, family, kind, 2);
        std::thread::scope(|s| {
            for id in 0..4u8 {
                let n = &n;
                s.spawn(move || {
                    for _ in 0..200 {
                        let client = socket(n, family, kind);
                        client.connect(&Io::WAIT, &destination(l), ME).unwrap();
                        write(&client, &Io::WAIT, &[id]).unwrap();
                        assert_eq!(read(&client, &Io::WAIT, 9).unwrap(), [id]);
                    }
                });
            }
            for _ in 0..2 {
                s.spawn(|| {
                    for _ in 0..400 {
                        let server = l.accept(&Io::WAIT).unwrap();
                        let id = read(&server, &Io::WAIT, 9).unwrap();
                        write(&server, &Io::WAIT, &id).unwrap();
                    }
                });
            }
        });
    }
}

#[test]
fn files_move_while_the_collector_runs() {
    let n = &network();
    let done = &AtomicBool::new(false);
    std::thread::scope(|s| {
        for _ in 0..2 {
            s.spawn(move || {
                let (a, b) = pair(n, Kind::Stream);
                let (a, b) = (open(&a), open(&b));
                let of = |file: &TestFile| match file {
                    TestFile::Socket(open) => open.0.clone(),
                    _ => panic!(),
                };
                for i in 0..5_000 {
                    // Only the message keeps `c` alive.
                    let (c, d) = pair(n, Kind::Stream);
                    let c = open(&c);
                    send_files(&of(&a), b"x", std::vec![c, b.clone()]).unwrap();
                    let (_, received) = receive(&of(&b), 9, ReceiveFlags::empty()).unwrap();
                    let c = of(&received.ancillary.files[0]);
                    write(&c, &Io::NOW, b"alive").unwrap();
                    assert_eq!(read(&d, &Io::NOW, 9).unwrap(), b"alive", "{i}");
                }
                done.store(true, Ordering::SeqCst);
            });
        }
        s.spawn(move || {
            while !done.load(Ordering::SeqCst) {
                n.collect();
            }
        });
    });
    assert_eq!(alive(n), 0);
}
