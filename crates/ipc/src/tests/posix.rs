//! Tests of POSIX message queues.

use super::*;
use crate::Caller;
use crate::msg::Text;
use crate::owner::{READ, WRITE};
use crate::posix::{Attributes, Message, Notify, OpenQueue, Patience, PosixQueue, PosixQueues, Watch};
use quire_heap::{Arc as Counted, refusal, unsize};
use quire_sync::WaitQueue;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

#[derive(Default)]
struct Sleepers(WaitQueue);

impl Watch for Sleepers {
    fn sleepers(&self) -> &WaitQueue {
        &self.0
    }
    fn notify(&self) {
        self.0.wake_all();
    }
}

type Queues = PosixQueues<TestHost, Sleepers>;
type Queue = Counted<PosixQueue<TestHost, Sleepers>>;

const NOW: Patience<'static> = Patience { no_wait: true, deadline: None, interrupted: QUIET };
const LONG: Patience<'static> = Patience { no_wait: false, ..NOW };

fn how(messages: usize, size: usize) -> OpenQueue {
    let attributes = Some(Attributes { messages, size });
    OpenQueue { create: true, exclusive: true, wanted: READ | WRITE, mode: 0o600, attributes }
}

fn queues() -> (Queues, TestHost) {
    let host = TestHost::new();
    (Queues::new(host.clone()), host)
}

fn send(queue: &Queue, priority: u32, len: usize, patience: &Patience<'_>) -> Result<(), Error> {
    queue.fits(len)?;
    queue.send(Message { priority, text: Text::new(len)? }, patience)
}

fn receive(queue: &Queue, patience: &Patience<'_>) -> Result<(u32, usize), Error> {
    queue.receive(100, patience).map(|got| (got.priority, got.text.len()))
}

#[test]
fn a_name_leads_to_a_queue_until_it_is_taken_away() {
    let (all, host) = queues();
    let find = OpenQueue { create: false, exclusive: false, attributes: None, ..how(1, 1) };
    assert_eq!(all.open(&ME, b"a", find).err(), Some(Error::NotFound));
    let one = all.open(&ME, b"a", how(2, 10)).unwrap();
    assert_eq!(all.open(&ME, b"a", how(2, 10)).err(), Some(Error::Exists));
    assert!(Counted::ptr_eq(&one, &all.open(&ME, b"a", find).unwrap()));
    let other = Caller { user: 8, group: 8, in_group: &|_| false, ..ME };
    assert_eq!(all.open(&other, b"a", find).err(), Some(Error::Denied));
    assert_eq!(all.unlink(&other, b"a", false), Err(Error::NotPermitted));
    assert_eq!(all.unlink(&other, b"a", true), Ok(()));
    assert_eq!(all.unlink(&ME, b"a", false), Err(Error::NotFound));
    // A removed queue exists while it is open.
    assert_eq!(send(&one, 0, 10, &NOW), Ok(()));
    assert!(host.charged() > 20);
    drop(one);
    assert_eq!(host.charged(), 0);
}

#[test]
fn sizes_and_numbers_are_limited() {
    let (all, host) = queues();
    for (messages, size) in [(0, 1), (1, 0), (11, 1), (1, 8193)] {
        assert_eq!(all.open(&ME, b"a", how(messages, size)).err(), Some(Error::Invalid));
    }
    let free = Caller { exceeds: true, ..ME };
    assert!(all.open(&free, b"large", how(65536, 16 << 20)).is_ok());
    assert_eq!(all.open(&free, b"a", how(65537, 1)).err(), Some(Error::Invalid));
    host.limit(host.charged() + 100);
    assert_eq!(all.open(&ME, b"a", how(1, 1)).err(), Some(Error::TooMany));
    host.limit(u64::MAX);
    all.limits().count.store(1, Ordering::Relaxed);
    assert_eq!(all.open(&ME, b"a", how(1, 1)).err(), Some(Error::NoSpace));
    let default = all.open(&free, b"a", OpenQueue { attributes: None, ..how(1, 1) }).unwrap();
    assert_eq!(default.attributes(), Attributes { messages: 10, size: 8192 });
}

#[test]
fn high_priorities_come_first_and_then_the_oldest() {
    let (all, _) = queues();
    let queue = all.open(&ME, b"a", how(5, 100)).unwrap();
    for (len, priority) in [3, u32::MAX, 0, 3, 7].into_iter().enumerate() {
        send(&queue, priority, len, &NOW).unwrap();
    }
    assert_eq!(send(&queue, 0, 1, &NOW), Err(Error::WouldBlock));
    assert_eq!(send(&queue, 0, 101, &NOW), Err(Error::TooLarge));
    assert_eq!(queue.receive(99, &NOW).err(), Some(Error::TooLarge));
    assert_eq!(queue.filled(), (5, 10));
    for expected in [(u32::MAX, 1), (7, 4), (3, 0), (3, 3), (0, 2)] {
        assert_eq!(receive(&queue, &NOW), Ok(expected));
    }
    assert_eq!((receive(&queue, &NOW), queue.filled()), (Err(Error::WouldBlock), (0, 0)));
    assert_eq!(receive(&queue, &Patience { deadline: Some(0), ..LONG }), Err(Error::TimedOut));
    assert_eq!(receive(&queue, &Patience { interrupted: &|| true, ..LONG }), Err(Error::Interrupted));
}

/// Counts notifications: 1 for an arrival, 100 for a removal.
struct Count(Arc<AtomicUsize>, Arc<AtomicBool>);

impl Notify for Count {
    fn arrived(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
    fn removed(&self) {
        self.0.fetch_add(100, Ordering::SeqCst);
    }
    fn is_alive(&self) -> bool {
        self.1.load(Ordering::SeqCst)
    }
}

#[test]
fn one_process_is_notified_once_of_a_message_in_an_empty_queue() {
    let (all, _) = queues();
    let queue = &all.open(&ME, b"a", how(5, 100)).unwrap();
    let (count, alive) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(true)));
    let notify = || -> Counted<dyn Notify> { unsize!(Counted::try_new(Count(count.clone(), alive.clone())).unwrap()) };
    queue.set_notify(1, Some(notify())).unwrap();
    assert_eq!((queue.notified(), queue.set_notify(2, Some(notify()))), (1, Err(Error::Busy)));
    queue.set_notify(2, None).unwrap();
    send(queue, 0, 1, &NOW).unwrap();
    assert_eq!((count.load(Ordering::SeqCst), queue.notified()), (1, 0));
    queue.set_notify(1, Some(notify())).unwrap();
    send(queue, 0, 1, &NOW).unwrap();
    assert_eq!(count.load(Ordering::SeqCst), 1);
    // The registration of an ended process does not count, and its replacement is not reported as a removal.
    alive.store(false, Ordering::SeqCst);
    queue.set_notify(2, Some(notify())).unwrap();
    assert_eq!(count.load(Ordering::SeqCst), 1);
    queue.set_notify(1, None).unwrap();
    queue.set_notify(2, None).unwrap();
    assert_eq!(count.swap(1, Ordering::SeqCst), 101);
    // If a receiver waits, it gets the message, and no process is notified.
    receive(queue, &NOW).unwrap();
    receive(queue, &NOW).unwrap();
    queue.set_notify(1, Some(notify())).unwrap();
    let (waits, waited) = std::sync::mpsc::channel();
    std::thread::scope(|s| {
        s.spawn(move || {
            let interrupted = || {
                waits.send(()).ok();
                false
            };
            receive(queue, &Patience { interrupted: &interrupted, ..LONG }).unwrap()
        });
        // A receiver checks for signals after the queue has counted it as a waiting receiver.
        waited.recv().expect("the receiver did not wait");
        send(queue, 0, 1, &NOW).unwrap();
    });
    assert_eq!(count.load(Ordering::SeqCst), 1);
}

#[test]
fn a_message_that_meets_a_leaving_receiver_is_received_or_announced() {
    let (all, _) = queues();
    let queue = &all.open(&ME, b"a", how(5, 100)).unwrap();
    let count = Arc::new(AtomicUsize::new(0));
    let notify = Counted::try_new(Count(count.clone(), Arc::new(AtomicBool::new(true)))).unwrap();
    queue.set_notify(1, Some(unsize!(notify))).unwrap();
    // The receiver first finds no message, and then a signal. The message arrives between these two checks, and the
    // receiver gets it.
    let interrupted = || send(queue, 0, 1, &NOW).is_ok();
    assert_eq!(receive(queue, &Patience { interrupted: &interrupted, ..LONG }), Ok((0, 1)));
    assert_eq!((count.load(Ordering::SeqCst), queue.filled()), (0, (0, 0)));
    // No receiver waits for the second message.
    let interrupted = || send(queue, 0, 1, &NOW).and_then(|()| send(queue, 0, 2, &NOW)).is_ok();
    assert_eq!(receive(queue, &Patience { interrupted: &interrupted, ..LONG }), Ok((0, 1)));
    assert_eq!((count.load(Ordering::SeqCst), receive(queue, &NOW)), (1, Ok((0, 2))));
    assert_eq!(receive(queue, &NOW), Err(Error::WouldBlock));
}

#[test]
fn many_senders_and_receivers_lose_nothing() {
    let (all, _) = queues();
    let queue = &all.open(&ME, b"a", how(3, 100)).unwrap();
    let sum = &AtomicUsize::new(0);
    std::thread::scope(|s| {
        for n in 0..3 {
            s.spawn(move || (0..2000).for_each(|i| send(queue, i % 5, n, &LONG).unwrap()));
            s.spawn(move || {
                (0..2000).for_each(|_| _ = sum.fetch_add(receive(queue, &LONG).unwrap().1, Ordering::Relaxed));
            });
        }
    });
    assert_eq!((sum.load(Ordering::Relaxed), queue.filled()), (6000, (0, 0)));
}

#[test]
fn a_call_without_memory_changes_nothing() {
    for at in 1.. {
        let (all, host) = queues();
        let (done, made) = refusal::at(at, || all.open(&ME, b"a", how(2, 10)).map(drop));
        if made < at {
            assert!(done.is_ok() && at > 1);
            break;
        }
        assert_eq!((done, host.charged()), (Err(Error::OutOfMemory), 0), "allocation {at}");
    }
    for at in 1.. {
        let (all, _) = queues();
        let queue = all.open(&ME, b"a", how(5, 10)).unwrap();
        let (done, made) = refusal::at(at, || send(&queue, 1, 5, &NOW).and_then(|()| send(&queue, 1, 5, &NOW)));
        if made < at {
            assert!(done.is_ok() && at > 3);
            break;
        }
        assert_eq!(done, Err(Error::OutOfMemory), "allocation {at}");
        let (count, bytes) = queue.filled();
        assert_eq!(bytes, 5 * count);
        (0..count).for_each(|_| assert_eq!(receive(&queue, &NOW), Ok((1, 5))));
        assert_eq!(receive(&queue, &NOW), Err(Error::WouldBlock));
    }
}
