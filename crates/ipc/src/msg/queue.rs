//! A message queue: messages, senders that wait for room, receivers that wait for a message.
//!
//! A sender passes its message to the oldest waiting receiver that accepts this type of message. A receiver that makes
//! room adds the messages of waiting senders to the queue, oldest first, if they fit. So the call of a woken thread is
//! complete, and the thread only reads its result. A change of the owner or the mode ends all waits with [`AGAIN`].
//! Each call then begins again with a check of its rights.

use super::text::Text;
use crate::error::Error;
use crate::host::Host;
use crate::mutant::{Mutant, mutant};
use crate::owner::{Caller, Change, Owner, READ, WRITE};
use crate::registry::{Name, Named};
use quire_heap::{Arc, Deque};
use quire_sync::{Mutex, Rank, SpinLock, WaitQueue};

/// The result of a wait that makes its call begin again.
const AGAIN: Error = Error::WouldBlock;
/// The bytes of kernel memory of a message, in addition to its text.
const MESSAGE: u64 = 128;
/// The bytes of kernel memory of a queue.
const OVERHEAD: u64 = 512;

/// A message of a System V message queue.
pub struct Message<H: Host> {
    /// The message's type, which is above 0.
    pub kind: i64,
    /// The message's bytes.
    pub text: Text,
    /// `None` for a copy, which its reader drops at once.
    _charge: Option<H::Charge>,
}

impl<H: Host> Message<H> {
    pub(super) fn new(host: &H, kind: i64, len: usize) -> Result<Self, Error> {
        let charge = host.charge(MESSAGE + len as u64).ok_or(Error::OutOfMemory)?;
        Ok(Message { kind, text: Text::new(len)?, _charge: Some(charge) })
    }
}

/// The message that a receiver wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wanted {
    /// The oldest message.
    Any,
    /// The oldest message of this type.
    Of(i64),
    /// The oldest message of any other type.
    Except(i64),
    /// The oldest message of the lowest type, if that type is at most the given type.
    Lowest(i64),
    /// A copy of the message at this position in the queue. A call for a copy never waits.
    Copy(usize),
}

impl Wanted {
    /// Whether a waiting receiver accepts a message of type `kind`.
    fn takes(self, kind: i64) -> bool {
        match self {
            Wanted::Any => true,
            Wanted::Of(only) => kind == only,
            Wanted::Except(not) => kind != not,
            Wanted::Lowest(most) => kind <= most,
            Wanted::Copy(_) => false,
        }
    }
}

/// The parameters of a receive call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Receive {
    /// The message that the receiver wants.
    pub wanted: Wanted,
    /// The most bytes that the receiver accepts.
    pub most: usize,
    /// Whether a longer message is truncated. If not, it causes an error.
    pub cuts: bool,
    /// Whether the call fails, instead of waiting, if the queue has no wanted message.
    pub no_wait: bool,
}

/// The result of a sleeping call, which a waker stores.
enum Outcome<T> {
    Waits,
    Is(Result<T, Error>),
    Taken,
}

/// A thread that waits for a result.
struct Sleeper<T> {
    outcome: SpinLock<Outcome<T>>,
    queue: WaitQueue,
}

impl<T> Sleeper<T> {
    fn new() -> Self {
        Sleeper { outcome: SpinLock::new(Rank::OWNED, Outcome::Waits), queue: WaitQueue::new() }
    }

    fn end(&self, result: Result<T, Error>) {
        *self.outcome.lock() = Outcome::Is(result);
        self.queue.wake_all();
    }

    fn take(&self) -> Option<Result<T, Error>> {
        let mut outcome = self.outcome.lock();
        match core::mem::replace(&mut *outcome, Outcome::Taken) {
            Outcome::Is(result) => Some(result),
            before => {
                *outcome = before;
                None
            }
        }
    }
}

struct Receiver<H: Host> {
    how: Receive,
    pid: u32,
    sleeper: Sleeper<Message<H>>,
}

struct Sender<H: Host> {
    message: SpinLock<Option<Message<H>>>,
    len: usize,
    pid: u32,
    sleeper: Sleeper<()>,
}

struct State<H: Host> {
    owner: Owner,
    removed: bool,
    /// The most bytes of all messages.
    most: usize,
    bytes: usize,
    messages: Deque<Message<H>>,
    receivers: Deque<Arc<Receiver<H>>>,
    senders: Deque<Arc<Sender<H>>>,
    sent: i64,
    received: i64,
    changed: i64,
    last_sender: u32,
    last_receiver: u32,
}

/// A System V message queue.
pub struct Queue<H: Host> {
    host: H,
    name: Name,
    state: Mutex<State<H>>,
    _charge: H::Charge,
}

impl<H: Host> Named for Queue<H> {
    fn name(&self) -> &Name {
        &self.name
    }
}

/// The values of a queue that `msgctl` reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Status {
    /// The key.
    pub key: i32,
    /// The id.
    pub id: i32,
    /// The sequence number in the id.
    pub sequence: u32,
    /// The owner.
    pub owner: Owner,
    /// The time of the last send, in seconds since 1970.
    pub sent: i64,
    /// The time of the last receive, in seconds since 1970.
    pub received: i64,
    /// The time of the last change by `msgctl`, in seconds since 1970.
    pub changed: i64,
    /// The number of bytes of all messages.
    pub bytes: usize,
    /// The number of messages.
    pub messages: usize,
    /// The most bytes of all messages.
    pub most: usize,
    /// The id of the process that sent last.
    pub last_sender: u32,
    /// The id of the process that received last.
    pub last_receiver: u32,
}

impl<H: Host> State<H> {
    /// Whether a message of `len` bytes fits. The number of messages is limited too, because messages may be empty.
    fn fits(&self, len: usize) -> bool {
        self.bytes.saturating_add(len) <= self.most && self.messages.len() < self.most
    }

    /// The position of the wanted message.
    fn find(&self, wanted: Wanted) -> Option<usize> {
        let mut kinds = self.messages.iter().map(|message| message.kind).enumerate();
        match wanted {
            Wanted::Copy(at) => (at < self.messages.len()).then_some(at),
            Wanted::Lowest(most) => {
                kinds.filter(|(_, kind)| *kind <= most).min_by_key(|(_, kind)| *kind).map(|(at, _)| at)
            }
            wanted => kinds.find(|(_, kind)| wanted.takes(*kind)).map(|(at, _)| at),
        }
    }

    /// Passes `message` to a waiting receiver, or adds it to the queue. The caller has reserved room in the queue.
    fn accept(&mut self, message: Message<H>, sender: u32, now: i64) {
        (self.last_sender, self.sent) = (sender, now);
        let mut at = 0;
        while let Some(receiver) = self.receivers.get(at) {
            if !receiver.how.wanted.takes(message.kind) {
                at += 1;
                continue;
            }
            let Some(receiver) = self.receivers.remove(at) else { break };
            if message.text.len() > receiver.how.most && !receiver.how.cuts {
                receiver.sleeper.end(Err(Error::TooLong));
                continue;
            }
            (self.last_receiver, self.received) = (receiver.pid, now);
            receiver.sleeper.end(Ok(message));
            return;
        }
        self.bytes += message.text.len();
        self.messages.push_back_reserved(message);
    }

    /// Completes the calls of waiting senders whose messages now fit. A sender whose message finds no memory fails.
    fn admit(&mut self, now: i64) {
        let mut at = 0;
        while let Some(sender) = self.senders.get(at) {
            if !self.fits(sender.len) {
                at += 1;
                continue;
            }
            let room = self.messages.try_reserve(1);
            let Some(sender) = self.senders.remove(at) else { break };
            let message = sender.message.lock().take();
            match (room, message) {
                (Ok(()), Some(message)) => {
                    self.accept(message, sender.pid, now);
                    sender.sleeper.end(Ok(()));
                }
                (_, message) => {
                    drop(message);
                    sender.sleeper.end(Err(Error::OutOfMemory));
                }
            }
        }
    }

    /// Ends all waiting calls with the error `why`.
    fn end_all(&mut self, why: Error) {
        let (receivers, senders) = (core::mem::take(&mut self.receivers), core::mem::take(&mut self.senders));
        receivers.iter().for_each(|receiver| receiver.sleeper.end(Err(why)));
        senders.iter().for_each(|sender| sender.sleeper.end(Err(why)));
    }

    /// Checks the caller's rights, and that the queue was not removed.
    fn allowed(&self, caller: &Caller<'_>, wanted: u32) -> Result<(), Error> {
        self.owner.allow(caller, wanted)?;
        if self.removed { Err(Error::Removed) } else { Ok(()) }
    }
}

impl<H: Host> Queue<H> {
    pub(super) fn new(host: &H, name: Name, caller: &Caller<'_>, mode: u32, most: usize) -> Result<Self, Error> {
        let charge = host.charge(OVERHEAD).ok_or(Error::OutOfMemory)?;
        let state = State {
            owner: Owner::new(caller, mode),
            removed: false,
            most,
            bytes: 0,
            messages: Deque::new(),
            receivers: Deque::new(),
            senders: Deque::new(),
            sent: 0,
            received: 0,
            changed: host.seconds(),
            last_sender: 0,
            last_receiver: 0,
        };
        Ok(Queue { host: host.clone(), name, state: Mutex::new(state), _charge: charge })
    }

    /// Checks that `caller` has the rights in `wanted`.
    pub fn allow(&self, caller: &Caller<'_>, wanted: u32) -> Result<(), Error> {
        self.state.lock().owner.allow(caller, wanted)
    }

    /// The values that `msgctl` reports. If there is a `caller`, its right to read is checked.
    pub fn status(&self, caller: Option<&Caller<'_>>) -> Result<Status, Error> {
        let state = self.state.lock();
        if let Some(caller) = caller {
            state.owner.allow(caller, READ)?;
        }
        if state.removed {
            return Err(Error::Removed);
        }
        Ok(Status {
            key: self.name.key(),
            id: self.name.id(),
            sequence: self.name.sequence(),
            owner: state.owner,
            sent: state.sent,
            received: state.received,
            changed: state.changed,
            bytes: state.bytes,
            messages: state.messages.len(),
            most: state.most,
            last_sender: state.last_sender,
            last_receiver: state.last_receiver,
        })
    }

    /// Sends a message. If there is no room, waits for room, or fails with `WouldBlock` if `no_wait`.
    pub fn send(
        &self,
        caller: &Caller<'_>,
        mut message: Message<H>,
        no_wait: bool,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<(), Error> {
        let (pid, len) = (self.host.pid(), message.text.len());
        loop {
            let mut state = self.state.lock();
            state.allowed(caller, WRITE)?;
            if state.fits(len) {
                state.messages.try_reserve(1)?;
                state.accept(message, pid, self.host.seconds());
                return Ok(());
            }
            if no_wait {
                return Err(Error::WouldBlock);
            }
            let held = SpinLock::new(Rank::OWNED, Some(message));
            let sender = Arc::try_new(Sender { message: held, len, pid, sleeper: Sleeper::new() })?;
            state.senders.try_push_back(sender.clone())?;
            drop(state);
            let ended = self.await_end(&sender, |sender| &sender.sleeper, |state| &mut state.senders, interrupted);
            let kept = sender.message.lock().take();
            match (ended, kept) {
                (Err(AGAIN), Some(kept)) => message = kept,
                (ended, _) => return ended,
            }
        }
    }

    /// Waits until a waker stores the result or a signal comes. After a signal, removes the sleeper from its list.
    fn await_end<S, T>(
        &self,
        me: &Arc<S>,
        sleeper: impl Fn(&S) -> &Sleeper<T>,
        list: impl FnOnce(&mut State<H>) -> &mut Deque<Arc<S>>,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<T, Error> {
        let waited = sleeper(me).queue.wait_until(None, interrupted, || sleeper(me).take());
        waited.unwrap_or_else(|_| {
            let mut state = self.state.lock();
            // A waker may have stored the result before this thread acquired the lock. The result then takes precedence
            // over the signal.
            if !mutant(Mutant::ResultOfWakerIgnored)
                && let Some(result) = sleeper(me).take()
            {
                return result;
            }
            leave(list(&mut state), me);
            Err(Error::Interrupted)
        })
    }

    /// Receives a message. If the queue has no wanted message, waits for one, or fails with `NoMessage` if `no_wait`.
    pub fn receive(
        &self,
        caller: &Caller<'_>,
        how: Receive,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<Message<H>, Error> {
        let pid = self.host.pid();
        loop {
            let mut state = self.state.lock();
            state.allowed(caller, READ)?;
            if let Some(at) = state.find(how.wanted) {
                return self.take(&mut state, at, how, pid);
            }
            if how.no_wait || matches!(how.wanted, Wanted::Copy(_)) {
                return Err(Error::NoMessage);
            }
            let receiver = Arc::try_new(Receiver { how, pid, sleeper: Sleeper::new() })?;
            state.receivers.try_push_back(receiver.clone())?;
            drop(state);
            match self.await_end(&receiver, |r| &r.sleeper, |state| &mut state.receivers, interrupted) {
                Err(AGAIN) => {}
                ended => return ended,
            }
        }
    }

    /// Removes the message at position `at`, or copies it for [`Wanted::Copy`].
    fn take(&self, state: &mut State<H>, at: usize, how: Receive, pid: u32) -> Result<Message<H>, Error> {
        let found = state.messages.get(at).ok_or(Error::NoMessage)?;
        if found.text.len() > how.most && !how.cuts {
            return Err(Error::TooLong);
        }
        if matches!(how.wanted, Wanted::Copy(_)) {
            return Ok(Message { kind: found.kind, text: found.text.copy()?, _charge: None });
        }
        let message = state.messages.remove(at).ok_or(Error::NoMessage)?;
        if state.messages.is_empty() {
            state.messages = Deque::new();
        }
        state.bytes -= message.text.len();
        let now = self.host.seconds();
        (state.last_receiver, state.received) = (pid, now);
        state.admit(now);
        Ok(message)
    }

    /// Changes the owner, the mode and the most bytes. Only privileged callers may set more bytes than `limit`.
    pub(super) fn change(&self, caller: &Caller<'_>, to: Change, most: usize, limit: usize) -> Result<(), Error> {
        let mut state = self.state.lock();
        state.owner.allow_change(caller)?;
        if state.removed {
            return Err(Error::Removed);
        }
        if most > limit && !caller.exceeds {
            return Err(Error::NotPermitted);
        }
        state.owner.change(to)?;
        (state.most, state.changed) = (most, self.host.seconds());
        if !mutant(Mutant::ChangeEndsNoWait) {
            state.end_all(AGAIN);
        }
        Ok(())
    }

    /// Marks the queue as removed, and ends all waiting calls.
    pub(super) fn remove(&self, caller: &Caller<'_>) -> Result<(), Error> {
        let mut state = self.state.lock();
        state.owner.allow_change(caller)?;
        if state.removed {
            return Err(Error::Removed);
        }
        state.removed = true;
        state.bytes = 0;
        let messages = core::mem::take(&mut state.messages);
        state.end_all(Error::Removed);
        drop(state);
        drop(messages);
        Ok(())
    }
}

/// Removes a sleeper from its list.
fn leave<T>(list: &mut Deque<Arc<T>>, who: &Arc<T>) {
    let at = list.iter().position(|there| Arc::ptr_eq(there, who));
    let _left = at.and_then(|at| list.remove(at));
    if list.is_empty() {
        *list = Deque::new();
    }
}
