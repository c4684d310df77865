//! A POSIX message queue. Every change wakes all waiting calls, and each of them tries again.

use crate::error::Error;
use crate::host::Host;
use crate::msg::Text;
use crate::mutant::{Mutant, mutant};
use crate::owner::Owner;
use quire_heap::{Arc, Deque, Map, SpareEntry};
use quire_sync::{Mutex, WaitOutcome, WaitQueue};

/// Notifies sleeping threads and polls of changes of a queue.
pub trait Watch: Default + Send + Sync + 'static {
    /// The queue of threads that wait for a change.
    fn sleepers(&self) -> &WaitQueue;
    /// Wakes the sleeping threads, and notifies polls.
    fn notify(&self);
}

/// A registration for one notification: that an empty queue has received a message.
pub trait Notify: Send + Sync + 'static {
    /// Called when the calling thread has sent a message to the empty queue.
    fn arrived(&self);
    /// Called when the process has cancelled the registration before a message arrived.
    fn removed(&self) {}
    /// Whether the registered process still exists.
    fn is_alive(&self) -> bool;
}

/// The size of a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attributes {
    /// The most messages.
    pub messages: usize,
    /// The most bytes of a message.
    pub size: usize,
}

/// A message of a POSIX queue.
pub struct Message {
    /// The priority. Messages of a higher priority are received first.
    pub priority: u32,
    /// The message's bytes.
    pub text: Text,
}

struct State {
    /// The messages by the complement of their priority, so that the highest priority is first. No list is empty.
    messages: Map<u32, Deque<Text>>,
    count: usize,
    bytes: usize,
    /// The number of waiting receivers. Each of them gets one of the next messages. A message for a waiting receiver
    /// causes no notification of the registered process.
    receivers: usize,
    /// The id of the registered process, and the registration. The process is notified of the next message.
    notify: Option<(u32, Arc<dyn Notify>)>,
}

/// The conditions under which a call waits.
#[derive(Clone, Copy)]
pub struct Patience<'a> {
    /// Whether the call does not wait at all.
    pub no_wait: bool,
    /// The deadline in nanoseconds since boot. `None`: no limit.
    pub deadline: Option<u64>,
    /// Whether a signal should end the wait.
    pub interrupted: &'a dyn Fn() -> bool,
}

/// A POSIX message queue.
pub struct PosixQueue<H: Host, W: Watch> {
    attributes: Attributes,
    owner: Owner,
    /// The number of the queue. No other queue ever had this number.
    number: u64,
    state: Mutex<State>,
    watch: W,
    _charge: H::Charge,
}

impl State {
    /// Adds a message. The caller has checked the limit. If memory is exhausted, the message stays in `message`.
    fn put(&mut self, message: &mut Option<Message>) -> Result<(), Error> {
        let Some(new) = message.take() else { return Ok(()) };
        let key = !new.priority;
        if let Some(list) = self.messages.get_mut(&key) {
            if let Err(e) = list.try_reserve(1) {
                *message = Some(new);
                return Err(e.into());
            }
            self.count += 1;
            self.bytes += new.text.len();
            list.push_back_reserved(new.text);
            return Ok(());
        }
        let made = SpareEntry::try_new().and_then(|entry| Ok((entry, Deque::try_with_capacity(1)?)));
        let (entry, mut list) = match made {
            Ok(made) => made,
            Err(e) => {
                *message = Some(new);
                return Err(e.into());
            }
        };
        self.count += 1;
        self.bytes += new.text.len();
        list.push_back_reserved(new.text);
        self.messages.insert(entry, key, list);
        Ok(())
    }

    /// Removes the oldest message of the highest priority.
    fn take(&mut self) -> Option<Message> {
        let (key, _) = self.messages.iter().next()?;
        let key = *key;
        let list = self.messages.get_mut(&key)?;
        let text = list.pop_front()?;
        if list.is_empty() {
            self.messages.remove(&key);
        }
        self.count -= 1;
        self.bytes -= text.len();
        Some(Message { priority: !key, text })
    }
}

impl<H: Host, W: Watch> PosixQueue<H, W> {
    pub(super) fn new(attributes: Attributes, owner: Owner, number: u64, charge: H::Charge) -> Self {
        let state = State { messages: Map::new(), count: 0, bytes: 0, receivers: 0, notify: None };
        let state = Mutex::new(state);
        PosixQueue { attributes, owner, number, state, watch: W::default(), _charge: charge }
    }

    /// The queue's number. No other queue ever had this number.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The queue's size.
    pub fn attributes(&self) -> Attributes {
        self.attributes
    }

    /// The queue's owner and mode.
    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    /// The notifier of the queue's changes.
    pub fn watch(&self) -> &W {
        &self.watch
    }

    /// The number of messages that belong to no waiting receiver, and the bytes of all messages.
    pub fn filled(&self) -> (usize, usize) {
        let state = self.state.lock();
        (state.count.saturating_sub(state.receivers), state.bytes)
    }

    /// The id of the process that is notified of the next message; 0 if there is none.
    pub fn notified(&self) -> u32 {
        self.state.lock().notify.as_ref().map_or(0, |(pid, _)| *pid)
    }

    fn wait<R>(&self, patience: &Patience<'_>, mut ready: impl FnMut() -> Option<R>) -> Result<R, Error> {
        if patience.no_wait {
            return ready().ok_or(Error::WouldBlock);
        }
        self.watch.sleepers().wait_until(patience.deadline, patience.interrupted, ready).map_err(|why| match why {
            WaitOutcome::Interrupted => Error::Interrupted,
            _ => Error::TimedOut,
        })
    }

    /// Checks that a message of `len` bytes is not too long.
    pub fn fits(&self, len: usize) -> Result<(), Error> {
        if len > self.attributes.size { Err(Error::TooLarge) } else { Ok(()) }
    }

    /// Sends a message that [fits](Self::fits).
    pub fn send(&self, message: Message, patience: &Patience<'_>) -> Result<(), Error> {
        let mut message = Some(message);
        let registered = self.wait(patience, || {
            let mut state = self.state.lock();
            // Messages that belong to waiting receivers do not count against the limit.
            if state.count >= self.attributes.messages.saturating_add(state.receivers) {
                return None;
            }
            let done = state.put(&mut message).map(|()| {
                let is_first = state.count == state.receivers + 1;
                if is_first { state.notify.take() } else { None }
            });
            Some(done)
        })??;
        if let Some((_, notify)) = registered {
            notify.arrived();
        }
        if !mutant(Mutant::SentUnannounced) {
            self.watch.notify();
        }
        Ok(())
    }

    /// Receives a message into a buffer of `most` bytes. `TooLarge` if the buffer is too small for the longest message.
    pub fn receive(&self, most: usize, patience: &Patience<'_>) -> Result<Message, Error> {
        if most < self.attributes.size {
            return Err(Error::TooLarge);
        }
        let mut state = self.state.lock();
        let mut first = state.take();
        let waits = first.is_none() && !patience.no_wait;
        state.receivers += usize::from(waits);
        drop(state);
        if waits {
            let ended = self.wait(patience, || {
                let mut state = self.state.lock();
                let taken = state.take();
                state.receivers -= usize::from(taken.is_some());
                taken
            });
            first = match ended {
                Ok(taken) => Some(taken),
                Err(why) => Some(self.leave().ok_or(why)?),
            };
        }
        let message = first.ok_or(Error::WouldBlock)?;
        self.watch.notify();
        Ok(message)
    }

    /// Called when a receiver stops waiting. Returns a message that arrived for this receiver. The receiver must take
    /// it, because no process was notified of that message.
    fn leave(&self) -> Option<Message> {
        let mut state = self.state.lock();
        state.receivers -= 1;
        if mutant(Mutant::LeaveWithoutLook) { None } else { state.take() }
    }

    /// Registers `notify` for one notification: when the next message arrives in the empty queue. `None` cancels the
    /// registration of process `pid`. `Busy` if another process is registered.
    pub fn set_notify(&self, pid: u32, notify: Option<Arc<dyn Notify>>) -> Result<(), Error> {
        let mut state = self.state.lock();
        let taken_back = notify.is_none();
        let gone = match notify {
            Some(_) if state.notify.as_ref().is_some_and(|(_, there)| there.is_alive()) => return Err(Error::Busy),
            Some(notify) => state.notify.replace((pid, notify)),
            None if state.notify.as_ref().is_some_and(|(owner, _)| *owner == pid) => state.notify.take(),
            None => None,
        };
        drop(state);
        if let Some((_, notify)) = gone
            && taken_back
        {
            notify.removed();
        }
        Ok(())
    }
}
