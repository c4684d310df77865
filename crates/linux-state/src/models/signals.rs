//! Signals: a sender against changes of masks and waits for signals.

use crate::process::thread::work;
use crate::signal::pending::PendingQueue;
use crate::signal::receiver::{Receiver, Wait, notify_one, published};
use crate::signal::{SigInfo, SigSet, Signal};
use quire_sync::atomic::{AtomicU32, AtomicU64, Ordering};
use quire_sync::explore::{Arc, Parker, thread};
use quire_sync::hooks::threads::set_cpu;
use quire_sync::protocol;

const SIGNAL: Signal = Signal::USR1;
const IT: SigSet = SigSet::of(&[SIGNAL]);

/// A thread of the modelled process.
struct Thread {
    work: AtomicU32,
    blocked: AtomicU64,
    awaited: AtomicU64,
    own: PendingQueue,
    parker: Parker,
}

/// A process of two threads, in the order in which a sender checks them.
struct Process {
    threads: [Thread; 2],
    pending: PendingQueue,
}

impl Process {
    fn new(blocked: [SigSet; 2]) -> Arc<Process> {
        let threads = blocked.map(|blocked| Thread {
            work: AtomicU32::new(0),
            blocked: AtomicU64::new(blocked.0),
            awaited: AtomicU64::new(0),
            own: PendingQueue::new(),
            parker: Parker::new(),
        });
        Arc::new(Process { threads, pending: PendingQueue::new() })
    }

    fn receiver(&self, at: usize) -> Receiver<'_> {
        let Thread { work, blocked, awaited, own, .. } = &self.threads[at];
        Receiver { work, blocked, awaited, own, process: &self.pending }
    }

    /// Notifies one thread that wants `signal`, and wakes it.
    fn notify(&self, signal: Signal) {
        let receivers = (0..2).map(|at| (at, self.receiver(at)));
        if let Some(at) = notify_one(receivers, signal) {
            self.threads[at].parker.unpark();
        }
    }

    /// The steps of a sender.
    fn send(&self, signal: Signal) {
        self.pending.add(SigInfo::kernel(signal), None).unwrap();
        published();
        self.notify(signal);
    }

    /// Notifies another thread of a signal that a thread no longer wants.
    fn hand_on(&self, left: SigSet) {
        if let Some(signal) = left.first() {
            self.notify(signal);
        }
    }

    /// Removes a pending signal for the program, as `sigtimedwait` does.
    fn take(&self, wanted: SigSet) -> Option<Signal> {
        self.pending.take(wanted).map(|info| info.signal)
    }

    fn is_flagged(&self, at: usize) -> bool {
        self.threads[at].work.load(Ordering::Relaxed) & work::SIGNAL != 0
    }

    /// Checks that some thread that may receive the pending signal has been notified of it.
    fn check(&self) {
        let pending = self.pending.set();
        let wanting = |at: &usize| !pending.without(self.receiver(*at).blocked()).is_empty();
        let mut wanting = (0..2).filter(wanting).peekable();
        assert!(wanting.peek().is_none() || wanting.any(|at| self.is_flagged(at)), "a signal is lost");
    }
}

/// A thread unblocks a signal while it is sent.
fn unblock_against_send() {
    let process = Process::new([IT; 2]);
    let theirs = process.clone();
    let sender = thread::spawn(move || {
        set_cpu(1);
        theirs.send(SIGNAL);
    });
    set_cpu(0);
    let left = process.receiver(0).block(SigSet::EMPTY);
    process.hand_on(left);
    sender.join().unwrap();
    process.check();
}

protocol! {
    a_signal_is_found_by_the_thread_that_unblocks_it = unblock_against_send, Some(3);
    #[cfg(loom)]
    SendNoFence: "a signal is lost";
    #[cfg(loom)]
    BlockNoFence: "a signal is lost";
    UnblockUnlooked: "a signal is lost";
}

/// A thread blocks a signal while it is sent. The other thread does not block it.
fn block_against_send() {
    let process = Process::new([SigSet::EMPTY; 2]);
    let theirs = process.clone();
    let sender = thread::spawn(move || {
        set_cpu(1);
        theirs.send(SIGNAL);
    });
    set_cpu(0);
    let left = process.receiver(0).block(IT);
    process.hand_on(left);
    sender.join().unwrap();
    process.check();
}

protocol! {
    a_signal_that_a_thread_blocks_is_handed_on = block_against_send, Some(3);
    #[cfg(loom)]
    BlockNoFence: "a signal is lost";
    BlockKeepsNotified: "a signal is lost";
}

/// A thread delivers a signal while another one is sent.
fn delivery_against_send() {
    let process = Process::new([SigSet::EMPTY, SigSet(u64::MAX)]);
    let theirs = process.clone();
    let sender = thread::spawn(move || {
        set_cpu(1);
        theirs.send(SIGNAL);
    });
    set_cpu(0);
    let receiver = process.receiver(0);
    let taken = receiver.take(|| process.take(SigSet(!receiver.blocked().0)));
    sender.join().unwrap();
    assert!(taken.is_none() || process.pending.set().is_empty());
    process.check();
}

protocol! {
    a_signal_that_comes_during_a_delivery_is_delivered = delivery_against_send, Some(3);
    FlagClearedLate: "a signal is lost";
}

/// A thread waits for a signal that all threads block, while it is sent.
fn wait_against_send() {
    let process = Process::new([IT; 2]);
    let theirs = process.clone();
    let sender = thread::spawn(move || {
        set_cpu(1);
        theirs.send(SIGNAL);
    });
    set_cpu(0);
    loop {
        match process.receiver(0).wait(IT, || process.take(IT), || None::<()>) {
            Wait::Over { result, .. } => {
                assert_eq!(result, Ok(SIGNAL));
                break;
            }
            Wait::GoesOn => process.threads[0].parker.park(),
        }
    }
    sender.join().unwrap();
}

protocol! {
    a_thread_that_waits_for_a_signal_gets_it = wait_against_send, Some(3);
    #[cfg(loom)]
    SendNoFence;
    #[cfg(loom)]
    AwaitNoFence;
}

/// A wait for a signal times out while the signal is sent. The other thread does not block it.
fn end_of_wait_against_send() {
    let process = Process::new([IT, SigSet::EMPTY]);
    let theirs = process.clone();
    let sender = thread::spawn(move || {
        set_cpu(1);
        theirs.send(SIGNAL);
    });
    set_cpu(0);
    let Wait::Over { result, left } = process.receiver(0).wait(IT, || process.take(IT), || Some(())) else {
        panic!("a wait with an end goes on");
    };
    process.hand_on(left);
    sender.join().unwrap();
    assert_eq!(result.is_ok(), process.pending.set().is_empty(), "a signal is taken once");
    process.check();
}

protocol! {
    a_signal_that_comes_as_a_wait_ends_is_taken_or_handed_on = end_of_wait_against_send, Some(3);
    #[cfg(loom)]
    AwaitEndNoFence: "a signal is lost";
}

/// A wait ends with one signal while another awaited signal is sent. The other thread does not block the second signal.
fn end_by_another_against_send() {
    const OTHER: Signal = Signal::HUP;
    const BOTH: SigSet = SigSet::of(&[SIGNAL, OTHER]);
    let process = Process::new([BOTH, SigSet::of(&[OTHER])]);
    process.pending.add(SigInfo::kernel(OTHER), None).unwrap();
    let theirs = process.clone();
    let sender = thread::spawn(move || {
        set_cpu(1);
        theirs.send(SIGNAL);
    });
    set_cpu(0);
    let Wait::Over { result, left } = process.receiver(0).wait(BOTH, || process.take(BOTH), || Some(())) else {
        panic!("a wait with an end goes on");
    };
    process.hand_on(left);
    sender.join().unwrap();
    assert_eq!(result, Ok(OTHER), "the first signal is there all the time");
    process.check();
}

protocol! {
    an_awaited_signal_that_a_wait_leaves_is_handed_on = end_by_another_against_send, Some(3);
    AwaitKeepsNotified: "a signal is lost";
}
