//! Files and credentials in messages, and sockets that only messages keep alive.

use super::*;
use crate::test_host::{Holder, ON_COUNT};
use quire_fs::Sink;
use std::boxed::Box;
use std::cell::Cell;
use std::sync::mpsc;
use std::time::Duration;
use std::vec;

fn numbers(received: &Received<TestHost>) -> Vec<u32> {
    let number = |file: &TestFile| match file {
        TestFile::Number(n) => **n,
        _ => u32::MAX,
    };
    received.ancillary.files.iter().map(number).collect()
}

#[test]
fn a_read_ends_behind_the_bytes_that_carry_files() {
    let n = network();
    let (a, b) = pair(&n, Kind::Stream);
    write(&a, &Io::NOW, b"plain").unwrap();
    send_files(&a, b"12", vec![number(1), number(2)]).unwrap();
    write(&a, &Io::NOW, b"more").unwrap();
    send_files(&a, b"3", vec![number(3)]).unwrap();
    let (got, received) = receive(&b, 99, ReceiveFlags::PEEK).unwrap();
    assert_eq!((&got[..], numbers(&received)), (&b"plain12"[..], vec![1, 2]));
    let (got, received) = receive(&b, 6, ReceiveFlags::empty()).unwrap();
    assert_eq!((&got[..], numbers(&received)), (&b"plain1"[..], vec![1, 2]));
    let (got, received) = receive(&b, 99, ReceiveFlags::WAIT_ALL).unwrap();
    assert_eq!((&got[..], numbers(&received)), (&b"2more3"[..], vec![3]));
}

#[test]
fn messages_carry_files_and_drop_them_when_they_are_not_taken() {
    for kind in [Kind::Datagram, Kind::SeqPacket, Kind::Stream] {
        let n = network();
        let (a, b) = pair(&n, kind);
        let file = Arc::try_new(5).unwrap();
        let send = || send_files(&a, b"x", vec![TestFile::Number(file.clone()); 2]);
        send().unwrap();
        let (_, received) = receive(&b, 9, ReceiveFlags::empty()).unwrap();
        assert_eq!(numbers(&received), [5, 5]);
        drop(received);
        send().unwrap();
        read(&b, &Io::NOW, 9).unwrap();
        assert_eq!(Arc::strong_count(&file), 1);
        send().unwrap();
        drop(b);
        assert_eq!(Arc::strong_count(&file), 1);
        assert!(send().is_err());
        assert_eq!(Arc::strong_count(&file), 1);
        let (a, b) = pair(&n, kind);
        assert_eq!(send_files(&a, b"x", vec![number(1); 253]), Ok(1));
        assert_eq!(send_files(&a, b"x", vec![number(1); 254]), Err(FsError::Invalid));
        assert_eq!(receive(&b, 9, ReceiveFlags::empty()).unwrap().1.ancillary.files.len(), 253);
    }
}

#[test]
fn a_charge_lasts_until_the_files_arrive_or_are_lost() {
    let n = network();
    let (a, b) = pair(&n, Kind::Stream);
    let charge = Arc::try_new(7).unwrap();
    let send = |file| {
        let files = quire_heap::Vec::try_from_iter([number(file)]).unwrap();
        let ancillary = Ancillary { files, charge: Some(charge.clone()), ..Ancillary::none() };
        a.send(&Io::NOW, &mut SliceSource::new(b"x"), None, ancillary)
    };
    send(1).unwrap();
    send(2).unwrap();
    assert_eq!(Arc::strong_count(&charge), 3);
    // A peek leaves the message in the inbox.
    let peeked = receive(&b, 9, ReceiveFlags::PEEK).unwrap().1;
    assert_eq!((peeked.ancillary.files.len(), Arc::strong_count(&charge)), (1, 3));
    let received = receive(&b, 9, ReceiveFlags::empty()).unwrap().1;
    assert_eq!((received.ancillary.files.len(), Arc::strong_count(&charge)), (1, 2));
    drop(b);
    assert_eq!(Arc::strong_count(&charge), 1);
    assert!(send(3).is_err());
    assert_eq!(Arc::strong_count(&charge), 1);
}

#[test]
fn credentials_come_to_those_that_ask_and_part_the_bytes() {
    let n = network();
    let (a, b) = pair(&n, Kind::Stream);
    let send = |who| {
        let ancillary = Ancillary { files: quire_heap::Vec::new(), credentials: Some(who), ..Ancillary::none() };
        a.send(&Io::NOW, &mut SliceSource::new(b"x"), None, ancillary).unwrap()
    };
    send(ME);
    assert_eq!(receive(&b, 9, ReceiveFlags::empty()).unwrap().1.ancillary.credentials, None);
    b.options().set(Flags::PASS_CREDENTIALS, true);
    (0..2).for_each(|_| drop(send(ME).to_string()));
    send(OTHER);
    let (got, received) = receive(&b, 9, ReceiveFlags::empty()).unwrap();
    assert_eq!((got.len(), received.ancillary.credentials), (2, Some(ME)));
    let (got, received) = receive(&b, 9, ReceiveFlags::empty()).unwrap();
    assert_eq!((got.len(), received.ancillary.credentials), (1, Some(OTHER)));
}

/// A pair of connected sockets, each in an open file.
fn shared(n: &Network, kind: Kind) -> (TestFile, TestFile) {
    let (a, b) = pair(n, kind);
    (open(&a), open(&b))
}
fn inner(file: &TestFile) -> &Shared {
    match file {
        TestFile::Socket(open) => &open.0,
        _ => panic!(),
    }
}

#[test]
fn sockets_that_keep_each_other_alive_are_collected() {
    for kind in [Kind::Datagram, Kind::SeqPacket, Kind::Stream] {
        let n = network();
        let mark = Arc::try_new(7).unwrap();
        // One socket is in its own inbox, and two sockets are in each other's.
        let (a, b) = shared(&n, kind);
        send_files(inner(&b), b"x", vec![a.clone(), TestFile::Number(mark.clone())]).unwrap();
        let (c, d) = shared(&n, kind);
        send_files(inner(&c), b"x", vec![c.clone()]).unwrap();
        send_files(inner(&d), b"x", vec![d.clone(), TestFile::Number(mark.clone())]).unwrap();
        n.collect();
        assert_eq!(Arc::strong_count(&mark), 3, "all are open");
        drop(a);
        n.collect();
        assert_eq!(Arc::strong_count(&mark), 2, "the first socket is in its own inbox only");
        // A file that is taken out of the message stays open.
        let (_, received) = receive(inner(&d), 9, ReceiveFlags::PEEK).unwrap();
        drop((c, d));
        n.collect();
        assert_eq!(Arc::strong_count(&mark), 2);
        drop(received);
        n.collect();
        assert_eq!(Arc::strong_count(&mark), 1);
        drop(b);
        assert_eq!(alive(n), 0);
    }
}

#[test]
fn closing_a_socket_collects_others() {
    let n = network();
    let (a, b) = shared(&n, Kind::Stream);
    send_files(inner(&b), b"x", vec![a.clone()]).unwrap();
    drop(a);
    drop(b);
    assert_eq!(alive(n), 0);
}

#[test]
fn sockets_in_flight_to_a_live_inbox_stay() {
    let n = network();
    let (a, b) = shared(&n, Kind::Stream);
    let (c, d) = shared(&n, Kind::Stream);
    send_files(inner(&a), b"x", vec![c.clone()]).unwrap();
    send_files(inner(&d), b"y", vec![d.clone()]).unwrap();
    drop((c, d));
    n.collect();
    let (_, mut received) = receive(inner(&b), 9, ReceiveFlags::empty()).unwrap();
    let c = received.ancillary.files.pop().unwrap();
    let (got, mut received) = receive(inner(&c), 9, ReceiveFlags::empty()).unwrap();
    assert_eq!(got, b"y");
    let d = received.ancillary.files.pop().unwrap();
    write(inner(&d), &Io::NOW, b"z").unwrap();
    assert_eq!(read(inner(&c), &Io::NOW, 9).unwrap(), b"z");
    // A connection that no call accepted holds files, too.
    let l = listener(&n, Family::Unix, Kind::Stream, 1);
    let client = socket(&n, Family::Unix, Kind::Stream);
    client.connect(&Io::NOW, &destination(&l), ME).unwrap();
    let l = open(&l);
    send_files(&client, b"x", vec![l.clone()]).unwrap();
    n.collect();
    assert!(inner(&l).accept(&Io::NOW).is_ok());
}

#[test]
fn a_long_chain_of_sockets_in_inboxes_closes_without_deep_calls() {
    let n = network();
    let (mut end, far) = shared(&n, Kind::Stream);
    for _ in 0..50_000 {
        let (a, b) = shared(&n, Kind::Stream);
        // The pair's other socket is in the inbox of the next socket in flight.
        send_files(inner(&b), b"x", vec![end]).unwrap();
        end = a;
        drop(b);
    }
    drop(far);
    drop(end);
    assert_eq!(alive(n), 0);
}

/// The address of a socket in its file.
fn address_of(file: &TestFile) -> usize {
    std::ptr::from_ref(inner(file)).addr()
}

/// Runs `n.collect()`. When the collector counts the references to the file at `file`, another thread runs `meanwhile`.
/// Its argument is a function that lets the collector continue. A `meanwhile` that waits for the collector delays it.
fn collect_while<T: Send>(n: &Network, file: usize, meanwhile: impl FnOnce(&dyn Fn()) -> T + Send) -> T {
    let ((begin, begun), (go_on, gone)) = (mpsc::channel(), mpsc::channel());
    std::thread::scope(|s| {
        let other = s.spawn(move || {
            begun.recv().unwrap();
            let result = meanwhile(&|| go_on.send(()).unwrap());
            let _ = go_on.send(());
            result
        });
        let counted = Cell::new(false);
        ON_COUNT.set(Some(Box::new(move |now| {
            if address_of(now) == file && !counted.replace(true) {
                begin.send(()).unwrap();
                let _ = gone.recv_timeout(Duration::from_millis(200));
            }
        })));
        n.collect();
        ON_COUNT.set(None);
        other.join().unwrap()
    })
}

/// A socket that only a message to `sender`'s peer keeps alive, with a byte in its inbox. Returns its peer.
fn send_full(n: &Network, sender: &Shared) -> Shared {
    let (x, y) = pair(n, Kind::SeqPacket);
    write(&y, &Io::NOW, b"x").unwrap();
    send_files(sender, b"m", vec![open(&x)]).unwrap();
    y
}
fn is_full(received: &Received<TestHost>) {
    assert_eq!(read(inner(&received.ancillary.files[0]), &Io::NOW, 9).unwrap(), b"x");
}

#[test]
fn a_socket_that_a_thread_receives_behind_the_count_keeps_its_messages() {
    /// Lets the collector continue when the message is out of the inbox.
    struct Announces<'a>(&'a dyn Fn());
    impl Sink for Announces<'_> {
        fn put(&mut self, bytes: &[u8]) -> Result<usize, FsError> {
            (self.0)();
            Ok(bytes.len())
        }
        fn room(&self) -> usize {
            9
        }
    }
    for (kind, flags) in [Kind::Stream, Kind::SeqPacket, Kind::Datagram]
        .into_iter()
        .flat_map(|kind| [ReceiveFlags::empty(), ReceiveFlags::PEEK].map(|flags| (kind, flags)))
    {
        let n = network();
        let (r, to_r) = shared(&n, kind);
        let _y = send_full(&n, inner(&to_r));
        // The collector counts in the order in which the files were sent: first the inbox of `r`, then the inbox of
        // `q`, which has `r`.
        let (q, to_q) = shared(&n, Kind::SeqPacket);
        send_files(inner(&to_q), b"r", vec![r.clone()]).unwrap();
        send_files(inner(&to_q), b"q", vec![q.clone()]).unwrap();
        let received = collect_while(&n, address_of(&r), |go_on| {
            inner(&r).receive(&Io::NOW, &mut Announces(go_on), flags).unwrap()
        });
        is_full(&received);
    }
}

#[test]
fn a_socket_that_comes_with_a_connection_accepted_behind_the_count_keeps_its_messages() {
    for rooted in [true, false] {
        let n = network();
        let l = listener(&n, Family::Unix, Kind::SeqPacket, 1);
        let client = socket(&n, Family::Unix, Kind::SeqPacket);
        client.connect(&Io::NOW, &destination(&l), ME).unwrap();
        let l = open(&l);
        let (q, to_q) = shared(&n, Kind::SeqPacket);
        send_files(inner(&to_q), b"m", vec![l.clone()]).unwrap();
        let _y = send_full(&n, &client);
        send_files(inner(&to_q), b"q", vec![q.clone()]).unwrap();
        // Without roots, the first round must not be the last.
        let kept = rooted.then_some(q);
        // The thread has the last reference to the listener outside of messages. It drops that reference before the
        // collector counts the references.
        let server = collect_while(&n, address_of(&l), move |_| inner(&l).accept(&Io::NOW).unwrap());
        is_full(&receive(&server, 9, ReceiveFlags::empty()).unwrap().1);
        drop(kept);
    }
}

#[test]
fn a_listener_whose_file_waits_at_its_own_connection_is_freed() {
    for kind in [Kind::Stream, Kind::SeqPacket] {
        let n = network();
        let mark = Arc::try_new(7).unwrap();
        let l = listener(&n, Family::Unix, kind, 1);
        let client = socket(&n, Family::Unix, kind);
        client.connect(&Io::NOW, &destination(&l), ME).unwrap();
        send_files(&client, b"x", vec![open(&l), TestFile::Number(mark.clone())]).unwrap();
        drop(l);
        n.collect();
        assert_eq!(Arc::strong_count(&mark), 1);
        assert_eq!(read(&client, &Io::NOW, 9), Err(FsError::Reset));
        drop(client);
        assert_eq!(alive(n), 0);
    }
}

#[test]
fn senders_of_any_number_of_files_find_garbage() {
    let n = network();
    let mark = Arc::try_new(7).unwrap();
    let mut kept = vec![];
    for _ in 0..700 {
        let pairs = [(); 3].map(|()| shared(&n, Kind::Stream));
        let files = pairs.iter().map(|(a, _)| a.clone());
        // The messages keep these sockets alive, so no socket closes.
        send_files(inner(&pairs[0].1), b"x", files.chain([TestFile::Number(mark.clone())]).collect()).unwrap();
        kept.extend(pairs.map(|(_, b)| b));
    }
    assert!(Arc::strong_count(&mark) < 400);
}

#[test]
fn a_full_inbox_bounds_the_files_in_it() {
    for kind in [Kind::Stream, Kind::SeqPacket, Kind::Datagram] {
        let n = network();
        let (a, b) = pair(&n, kind);
        let file = number(1);
        let mut sent = 0;
        while send_files(&a, b"x", vec![file.clone(); 253]).is_ok() {
            sent += 253;
        }
        assert!(sent >= 253 && sent <= a.options().send_buffer() / 16 + 253, "{sent}");
        for _ in 0..sent / 253 {
            receive(&b, 1, ReceiveFlags::empty()).unwrap();
        }
        assert_eq!(send_files(&a, b"x", vec![file; 253]), Ok(1));
    }
}

#[test]
fn garbage_that_appears_while_garbage_is_dropped_nests_no_calls() {
    std::thread_local! {
        static LOWEST: Cell<usize> = const { Cell::new(usize::MAX) };
        static HIGHEST: Cell<usize> = const { Cell::new(0) };
    }
    fn note_depth() {
        let here = 0;
        let at = (&raw const here).addr();
        LOWEST.set(LOWEST.get().min(at));
        HIGHEST.set(HIGHEST.get().max(at));
    }
    let n = network();
    let mut next = None;
    let mut peers = vec![];
    for _ in 0..24 {
        // Each socket is in its own inbox, and keeps the next socket open. When it is dropped, the next socket becomes
        // garbage.
        let (a, b) = shared(&n, Kind::Stream);
        let holder = TestFile::Holder(Arc::try_new(Holder { _kept: next, on_drop: note_depth }).unwrap());
        send_files(inner(&b), b"x", vec![holder, a.clone()]).unwrap();
        next = Some(a);
        peers.push(b);
    }
    drop(next);
    n.collect();
    drop(peers);
    assert_eq!(alive(n), 0);
    assert!(HIGHEST.get() - LOWEST.get() < 4096, "{}", HIGHEST.get() - LOWEST.get());
}

#[test]
fn a_collector_that_others_find_busy_repeats_its_work() {
    let n = network();
    let (a, b) = shared(&n, Kind::Stream);
    let (c, d) = shared(&n, Kind::Stream);
    send_files(inner(&b), b"x", vec![a.clone()]).unwrap();
    send_files(inner(&d), b"x", vec![c.clone()]).unwrap();
    // The other thread closes all sockets after the collector has found `a` open. Each close calls the collector, too.
    collect_while(&n, address_of(&c), move |_| drop((a, b, c, d)));
    assert_eq!(alive(n), 0);
}
