//! Tests of message queues.

use super::*;
use crate::Caller;
use crate::msg::{Message, Queue, Queues, Receive, Wanted};
use crate::owner::Change;
use quire_heap::Arc as Counted;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;

pub type Messages = Counted<Queue<TestHost>>;

pub fn queues() -> (Queues<TestHost>, TestHost) {
    let host = TestHost::new();
    (Queues::new(host.clone()).unwrap(), host)
}

pub fn queue(all: &Queues<TestHost>) -> Messages {
    all.find(all.open(&ME, PRIVATE, NEW).unwrap()).unwrap()
}

pub fn message(all: &Queues<TestHost>, kind: i64, bytes: &[u8]) -> Result<Message<TestHost>, Error> {
    let mut message = all.message(kind, bytes.len())?;
    let mut left = bytes;
    for chunk in message.text.chunks_mut() {
        let (now, later) = left.split_at(chunk.len());
        chunk.copy_from_slice(now);
        left = later;
    }
    assert!(left.is_empty());
    Ok(message)
}

fn send(all: &Queues<TestHost>, queue: &Messages, kind: i64, bytes: &[u8]) -> Result<(), Error> {
    queue.send(&ME, message(all, kind, bytes)?, true, QUIET)
}

/// Returns two functions. The first waits until calls have checked for signals `n` times. The second is the check for
/// signals that the calls use. A call checks after it is listed as a waiter.
fn looks() -> (impl Fn(usize), impl Fn() -> bool + Sync) {
    let count = std::sync::Arc::new(AtomicUsize::new(0));
    let own = count.clone();
    let until = move |n| {
        while own.load(Ordering::SeqCst) < n {
            std::thread::yield_now();
        }
    };
    (until, move || {
        count.fetch_add(1, Ordering::SeqCst);
        false
    })
}

pub fn receive(queue: &Messages, wanted: Wanted, no_wait: bool) -> Result<(i64, std::vec::Vec<u8>), Error> {
    let how = Receive { wanted, most: 100_000, cuts: false, no_wait };
    let got = queue.receive(&ME, how, QUIET)?;
    Ok((got.kind, got.text.chunks().flatten().copied().collect()))
}

#[test]
fn messages_come_by_type_and_age() {
    let (all, host) = queues();
    let queue = queue(&all);
    let before = host.charged();
    for (kind, text) in [(5, "a"), (3, "b"), (4, "c"), (3, "d"), (9, "")] {
        send(&all, &queue, kind, text.as_bytes()).unwrap();
    }
    let get = |wanted| receive(&queue, wanted, true).map(|(kind, text)| (kind, String::from_utf8(text).unwrap()));
    let is = |kind, text: &str| Ok((kind, text.to_owned()));
    assert_eq!(get(Wanted::Copy(3)), is(3, "d"));
    assert_eq!(get(Wanted::Copy(5)), Err(Error::NoMessage));
    assert_eq!(get(Wanted::Of(4)), is(4, "c"));
    assert_eq!(get(Wanted::Lowest(4)), is(3, "b"));
    assert_eq!(get(Wanted::Lowest(2)), Err(Error::NoMessage));
    assert_eq!(get(Wanted::Except(5)), is(3, "d"));
    let short = Receive { wanted: Wanted::Any, most: 0, cuts: false, no_wait: true };
    assert_eq!(queue.receive(&ME, short, QUIET).err(), Some(Error::TooLong));
    assert_eq!(queue.receive(&ME, Receive { cuts: true, ..short }, QUIET).unwrap().text.len(), 1);
    assert_eq!(get(Wanted::Any), is(9, ""));
    assert_eq!(get(Wanted::Any), Err(Error::NoMessage));
    let status = queue.status(None).unwrap();
    assert_eq!((status.bytes, status.messages, host.charged()), (0, 0, before));
    assert_eq!((status.sent, status.received), (1000, 1000));
}

#[test]
fn long_messages_stay_whole() {
    let (all, _) = queues();
    let queue = queue(&all);
    for len in [0, 1, 4095, 4096, 4097, 16384] {
        let bytes: std::vec::Vec<u8> = (0..len).map(|i| (i ^ i >> 8) as u8).collect();
        send(&all, &queue, 1, &bytes).unwrap();
        assert_eq!(receive(&queue, Wanted::Copy(0), true), Ok((1, bytes.clone())));
        assert_eq!(receive(&queue, Wanted::Any, true), Ok((1, bytes)));
    }
    assert_eq!(send(&all, &queue, 1, &[0; 16385]), Err(Error::WouldBlock));
}

#[test]
fn empty_messages_fill_a_queue_too() {
    let (all, _) = queues();
    all.limits().queue.store(100, Ordering::Relaxed);
    let queue = queue(&all);
    (0..100).for_each(|_| send(&all, &queue, 1, b"").unwrap());
    assert_eq!(send(&all, &queue, 1, b""), Err(Error::WouldBlock));
}

#[test]
fn a_waiting_receiver_gets_the_message_itself() {
    let (all, _) = queues();
    let queue = &queue(&all);
    std::thread::scope(|s| {
        let waits = |wanted, most| {
            let (waits, waited) = channel();
            let started = s.spawn(move || {
                let how = Receive { wanted, most, cuts: false, no_wait: false };
                let interrupted = || {
                    waits.send(()).ok();
                    false
                };
                queue.receive(&ME, how, &interrupted).map(|got| (got.kind, got.text.len()))
            });
            // A receiver checks for signals after it is listed.
            waited.recv().expect("the receiver did not wait");
            started
        };
        let small = waits(Wanted::Of(2), 1);
        let other = waits(Wanted::Except(2), 10);
        let low = waits(Wanted::Lowest(2), 10);
        send(&all, queue, 2, b"long").unwrap();
        assert_eq!(small.join().unwrap(), Err(Error::TooLong));
        assert_eq!(low.join().unwrap(), Ok((2, 4)));
        assert!(!other.is_finished());
        send(&all, queue, 2, b"stays").unwrap();
        send(&all, queue, 3, b"x").unwrap();
        assert_eq!(other.join().unwrap(), Ok((3, 1)));
    });
    assert_eq!(receive(queue, Wanted::Any, true), Ok((2, b"stays".to_vec())));
}

#[test]
fn signals_and_removals_end_a_wait() {
    let (all, host) = queues();
    let queue = &queue(&all);
    let how = Receive { wanted: Wanted::Of(2), most: 10, cuts: false, no_wait: false };
    assert_eq!(queue.receive(&ME, how, &|| true).err(), Some(Error::Interrupted));
    send(&all, queue, 1, &[0; 16384]).unwrap();
    let large = || message(&all, 1, b"x").unwrap();
    assert_eq!(queue.send(&ME, large(), false, &|| true), Err(Error::Interrupted));
    let id = queue.status(None).unwrap().id;
    let (looked, asks) = looks();
    std::thread::scope(|s| {
        let sender = s.spawn(|| queue.send(&ME, large(), false, &asks));
        let receiver = s.spawn(|| queue.receive(&ME, how, &asks).err());
        looked(2);
        let other = Caller { user: 8, group: 8, in_group: &|_| false, ..ME };
        assert_eq!(all.remove(&other, id), Err(Error::NotPermitted));
        all.remove(&ME, id).unwrap();
        assert_eq!(sender.join().unwrap(), Err(Error::Removed));
        assert_eq!(receiver.join().unwrap(), Some(Error::Removed));
    });
    assert_eq!(send(&all, queue, 1, b"x"), Err(Error::Removed));
    assert_eq!(queue.status(None), Err(Error::Removed));
    // Only the queue itself is still charged, because the test holds it.
    assert!(host.charged() < 1024, "{}", host.charged());
}

#[test]
fn a_larger_queue_admits_the_waiting_senders() {
    let (all, _) = queues();
    let queue = &queue(&all);
    let id = queue.status(None).unwrap().id;
    send(&all, queue, 1, &[0; 16384]).unwrap();
    let to = Change { user: 7, group: 7, mode: 0o600 };
    assert_eq!(all.change(&ME, id, to, 16385), Err(Error::NotPermitted));
    let (looked, asks) = looks();
    std::thread::scope(|s| {
        let sender = s.spawn(|| queue.send(&ME, message(&all, 4, b"x").unwrap(), false, &asks));
        looked(1);
        assert_eq!(all.change(&Caller { exceeds: true, ..ME }, id, to, 16385), Ok(()));
        assert_eq!(sender.join().unwrap(), Ok(()));
    });
    assert_eq!(queue.status(None).unwrap().messages, 2);
}

#[test]
fn a_stricter_mode_ends_the_waits_that_it_excludes() {
    let (all, host) = queues();
    let queue = queue(&all);
    let id = queue.status(None).unwrap().id;
    let before = host.charged();
    let to = |mode| Change { user: ME.user, group: ME.group, mode };
    // The mode changes while the calls wait, because the function that checks for signals changes it.
    let all = &all;
    let changes = &|mode| move || all.change(&ME, id, to(mode), 3).is_err();
    let receive = |mode| {
        let how = Receive { wanted: Wanted::Any, most: 9, cuts: false, no_wait: false };
        queue.receive(&ME, how, &changes(mode)).map(drop)
    };
    assert_eq!(receive(0o200), Err(Error::Denied));
    all.change(&ME, id, to(0o600), 3).unwrap();
    send(all, &queue, 1, b"abc").unwrap();
    let full = || queue.send(&ME, message(all, 1, b"d").unwrap(), false, &changes(0o400));
    assert_eq!(full(), Err(Error::Denied));
    // The change gives the queue more room, and the waiting sender sends its message.
    let more = || all.change(&ME, id, to(0o600), 4).is_err();
    all.change(&ME, id, to(0o600), 3).unwrap();
    assert_eq!(queue.send(&ME, message(all, 2, b"e").unwrap(), false, &more), Ok(()));
    let got = [(); 2].map(|()| super::messages::receive(&queue, Wanted::Any, true).unwrap());
    assert_eq!(got, [(1, b"abc".to_vec()), (2, b"e".to_vec())]);
    assert_eq!(host.charged(), before);
}

#[test]
fn many_senders_and_receivers_lose_nothing() {
    const EACH: usize = 3000;
    let (all, host) = &queues();
    all.limits().queue.store(200, Ordering::Relaxed);
    let queue = &queue(all);
    let before = host.charged();
    let (sum, signals) = (&AtomicUsize::new(0), &AtomicUsize::new(0));
    std::thread::scope(|s| {
        for kind in 1..4 {
            s.spawn(move || {
                for n in 0..EACH {
                    let bytes = std::vec![kind as u8; n % 190];
                    queue.send(&ME, message(all, kind, &bytes).unwrap(), false, QUIET).unwrap();
                }
            });
            s.spawn(move || {
                for n in 0..EACH {
                    let wanted = if n % 3 == 0 { Wanted::Lowest(kind) } else { Wanted::Of(kind) };
                    let wanted = if kind == 1 { wanted } else { Wanted::Of(kind) };
                    let (of, bytes) = receive(queue, wanted, false).unwrap();
                    assert!(of == kind && bytes.iter().all(|byte| i64::from(*byte) == kind));
                    sum.fetch_add(bytes.len(), Ordering::Relaxed);
                }
            });
        }
        s.spawn(move || {
            while sum.load(Ordering::Relaxed) == 0 || signals.load(Ordering::Relaxed) < 1000 {
                signals.fetch_add(1, Ordering::Relaxed);
                let how = Receive { wanted: Wanted::Of(77), most: 1, cuts: false, no_wait: false };
                assert_eq!(queue.receive(&ME, how, &|| true).err(), Some(Error::Interrupted));
            }
        });
    });
    assert_eq!(sum.load(Ordering::Relaxed), 3 * (0..EACH).map(|n| n % 190).sum::<usize>());
    let status = queue.status(None).unwrap();
    assert_eq!((status.messages, status.bytes, host.charged()), (0, 0, before));
}
