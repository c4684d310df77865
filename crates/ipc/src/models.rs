//! Models of waits and of their ends, run with `RUSTFLAGS="--cfg loom"` and `"--cfg shuttle"`.

use crate::msg::{Queues, Receive, Text, Wanted};
use crate::owner::{Change, READ, WRITE};
use crate::posix::{Attributes, Message, Notify, OpenQueue, Patience, PosixQueues, Watch};
use crate::registry::PRIVATE;
use crate::sem::{Array, Arrays, Operation, Wait};
use crate::{Caller, Error, Host, Open};
use quire_heap::{Arc as Counted, unsize};
use quire_sync::epoch::{Domain, Slot};
use quire_sync::explore::{Arc, thread};
use quire_sync::{PerCpu, WaitQueue, protocol};
use std::boxed::Box;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A host without limits.
#[derive(Clone)]
struct ModelHost(&'static Domain);

impl ModelHost {
    fn new() -> Self {
        quire_sync::hooks::threads::set_cpu(0);
        ModelHost(kept(Domain::new(PerCpu::leaked(2, |_| Slot::new()))))
    }
}

/// Leaks a value. A checker that reports a deadlock drops the values of its model. It must not drop this value.
fn kept<T>(value: T) -> &'static T {
    Box::leak(Box::new(value))
}

impl Host for ModelHost {
    type Charge = ();

    fn epoch(&self) -> &'static Domain {
        self.0
    }
    fn seconds(&self) -> i64 {
        1000
    }
    fn pid(&self) -> u32 {
        1
    }
    fn charge(&self, _bytes: u64) -> Option<()> {
        Some(())
    }
    fn charge_queue(&self, _bytes: u64) -> Option<()> {
        Some(())
    }
    fn charge_locked(&self, _bytes: u64) -> Option<()> {
        Some(())
    }
}

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

/// Counts notifications. The counter is no step of a model.
struct Announcements(Arc<AtomicUsize>);

impl Notify for Announcements {
    fn arrived(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
    fn is_alive(&self) -> bool {
        true
    }
}

const ME: Caller<'static> = Caller {
    user: 7,
    group: 7,
    in_group: &|_| false,
    ignores_modes: false,
    administers: false,
    locks: false,
    exceeds: false,
};
const NEW: Open = Open { create: true, exclusive: true, mode: 0o600 };
const QUIET: &dyn Fn() -> bool = &|| false;
const SIGNAL: &dyn Fn() -> bool = &|| true;

fn patience(interrupted: &dyn Fn() -> bool) -> Patience<'_> {
    Patience { no_wait: false, deadline: None, interrupted }
}

type PosixQueue = Counted<crate::posix::PosixQueue<ModelHost, Sleepers>>;

fn posix_queue() -> PosixQueue {
    let attributes = Some(Attributes { messages: 1, size: 8 });
    let how = OpenQueue { create: true, exclusive: true, wanted: READ | WRITE, mode: 0o600, attributes };
    PosixQueues::new(ModelHost::new()).open(&ME, b"a", how).unwrap()
}

fn send(queue: &PosixQueue) {
    queue.send(Message { priority: 1, text: Text::new(1).unwrap() }, &patience(QUIET)).unwrap();
}

/// A receiver waits until a signal ends its call, while a sender sends a message.
fn message_against_signal() {
    let queue = posix_queue();
    let announced = Arc::new(AtomicUsize::new(0));
    let notify = Counted::try_new(Announcements(announced.clone())).unwrap();
    queue.set_notify(1, Some(unsize!(notify))).unwrap();
    let other = queue.clone();
    let receiver = thread::spawn(move || other.receive(8, &patience(SIGNAL)).is_ok());
    send(&queue);
    let received = receiver.join().unwrap();
    let (count, _) = queue.filled();
    assert_eq!(count, usize::from(!received), "a message is lost");
    assert!(received || announced.load(Ordering::Relaxed) == 1, "no process is notified of a message that stays");
}

protocol! {
    a_posix_message_is_received_or_announced = message_against_signal, Some(3);
    LeaveWithoutLook: "no process is notified of a message that stays";
}

/// Two messages are sent through a queue that has room for one.
fn room_against_message() {
    let queue = posix_queue();
    let other = queue.clone();
    let receiver = thread::spawn(move || (0..2).for_each(|_| drop(other.receive(8, &patience(QUIET)).unwrap())));
    send(&queue);
    send(&queue);
    receiver.join().unwrap();
    assert_eq!(queue.filled(), (0, 0));
}

protocol! {
    a_posix_queue_wakes_senders_and_receivers = room_against_message, Some(2);
    SentUnannounced;
}

type Queue = Counted<crate::msg::Queue<ModelHost>>;

fn message_queue() -> (&'static Queues<ModelHost>, Queue) {
    let all = kept(Queues::new(ModelHost::new()).unwrap());
    let queue = all.find(all.open(&ME, PRIVATE, NEW).unwrap()).unwrap();
    (all, queue)
}

fn receive(queue: &Queue, interrupted: &dyn Fn() -> bool) -> Result<usize, Error> {
    let how = Receive { wanted: Wanted::Any, most: 8, cuts: false, no_wait: false };
    queue.receive(&ME, how, interrupted).map(|message| message.text.len())
}

/// A receiver waits until a signal ends its call. During the wait a sender passes a message to the receiver, or adds
/// the message to the queue.
fn hand_over_against_signal() {
    let (all, queue) = message_queue();
    let other = queue.clone();
    let receiver = thread::spawn(move || receive(&other, SIGNAL));
    queue.send(&ME, all.message(1, 3).unwrap(), true, QUIET).unwrap();
    let received = receiver.join().unwrap();
    let left = queue.status(None).unwrap().messages;
    assert_eq!(left, usize::from(received == Err(Error::Interrupted)), "a message is lost");
}

protocol! {
    a_message_for_an_interrupted_receiver_is_not_lost = hand_over_against_signal, Some(3);
    ResultOfWakerIgnored: "a message is lost";
}

/// A receiver waits, while the owner removes its right to read.
fn wait_against_change() {
    let (all, queue) = message_queue();
    let id = queue.status(None).unwrap().id;
    let other = queue.clone();
    let receiver = thread::spawn(move || receive(&other, QUIET));
    all.change(&ME, id, Change { user: 7, group: 7, mode: 0o200 }, 8).unwrap();
    assert_eq!(receiver.join().unwrap(), Err(Error::Denied));
}

protocol! {
    a_wait_ends_with_the_right_to_it = wait_against_change, Some(3);
    ChangeEndsNoWait;
}

type Semaphores = Counted<Array<ModelHost>>;

fn semaphores() -> (&'static Arrays<ModelHost>, Semaphores) {
    let all = kept(Arrays::new(ModelHost::new()).unwrap());
    let array = all.find(all.open(&ME, PRIVATE, 1, NEW).unwrap()).unwrap();
    (all, array)
}

fn operation(change: i16, undo: bool) -> quire_heap::Vec<Operation> {
    quire_heap::Vec::try_copy(&[Operation { number: 0, change, no_wait: false, undo }]).unwrap()
}

/// A call waits for a semaphore until a signal ends it, while another call completes it.
fn operation_against_signal() {
    let (_all, array) = semaphores();
    let other = array.clone();
    let waiter = thread::spawn(move || {
        let waits = Wait { deadline: None, interrupted: SIGNAL };
        Array::operate(&other, &ME, operation(-1, false), None, &waits)
    });
    let at_once = Wait { deadline: None, interrupted: QUIET };
    Array::operate(&array, &ME, operation(1, false), None, &at_once).unwrap();
    let done = waiter.join().unwrap();
    let left = array.value(&ME, 0).unwrap();
    assert_eq!(left, u32::from(done == Err(Error::Interrupted)), "an operation is done and denied");
}

protocol! {
    an_interrupted_semaphore_call_is_done_or_not = operation_against_signal, Some(3);
    ResultOfWakerIgnored: "an operation is done and denied";
}

/// Two threads of a process end. One of them has just decremented a semaphore, which the end of the last thread undoes.
fn undos_of_two_threads() {
    let (all, array) = semaphores();
    let at_once = Wait { deadline: None, interrupted: QUIET };
    Array::operate(&array, &ME, operation(2, false), None, &at_once).unwrap();
    let undos = all.undos().unwrap();
    let (share, other) = (undos.share(), array.clone());
    let second = thread::spawn(move || {
        let at_once = Wait { deadline: None, interrupted: QUIET };
        Array::operate(&other, &ME, operation(-1, true), Some(&share), &at_once).unwrap();
        let left = other.value(&ME, 0).unwrap();
        drop(share);
        left
    });
    drop(undos);
    assert_eq!(second.join().unwrap(), 1, "a unit came back while a thread of its process ran");
    assert_eq!(array.value(&ME, 0).unwrap(), 2, "a unit did not come back");
}

protocol! {
    the_last_thread_alone_gives_units_back = undos_of_two_threads, Some(3);
    EachThreadReverts: "a unit";
}
