//! A queue. Every change is announced, and a waiting call tries again.

use crate::error::Error;
use crate::host::Host;
use crate::msg::Text;
use crate::mutant::{Mutant, mutant};
use crate::owner::Owner;
use quire_heap::{Arc, Deque, Map, SpareEntry};
use quire_sync::{Mutex, WaitOutcome, WaitQueue};

/// Announces changes of a queue to polls, beside the threads that sleep.
pub trait Watch: Default + Send + Sync + 'static {
    /// The threads that wait for a change.
    fn sleepers(&self) -> &WaitQueue;
    /// Wakes the threads, and notifies polls.
    fn notify(&self);
}

/// Receives one announcement that an empty queue has got a message.
pub trait Notify: Send + Sync + 'static {
    /// A message came from the calling thread.
    fn arrived(&self);
    /// The process took the registration back before a message came.
    fn removed(&self) {}
    /// Whether its process still exists.
    fn is_alive(&self) -> bool;
}

/// The size of a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attributes {
    /// Messages at most.
    pub messages: usize,
    /// Bytes of a message at most.
    pub size: usize,
}

/// A message.
pub struct Message {
    /// A higher one is received before a lower one.
    pub priority: u32,
    /// Its bytes.
    pub text: Text,
}

struct State {
    /// By priority, the highest first: its complement is the key. No list is empty.
    messages: Map<u32, Deque<Text>>,
    count: usize,
    bytes: usize,
    /// Receivers that wait. As many messages are for them, and no event for the notified process.
    receivers: usize,
    /// The process that is notified of the next message, by its id.
    notify: Option<(u32, Arc<dyn Notify>)>,
}

/// How long a call may wait.
#[derive(Clone, Copy)]
pub struct Patience<'a> {
    /// Not at all.
    pub no_wait: bool,
    /// Nanoseconds since boot.
    pub deadline: Option<u64>,
    /// Whether a signal has come.
    pub interrupted: &'a dyn Fn() -> bool,
}

/// A queue.
pub struct PosixQueue<H: Host, W: Watch> {
    attributes: Attributes,
    owner: Owner,
    /// Unique: no other queue has or had it.
    number: u64,
    state: Mutex<State>,
    watch: W,
    _charge: H::Charge,
}

impl State {
    /// Adds a message for which there is room.
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

    /// Takes the oldest message of the highest priority.
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

    /// A number that no other queue has or had.
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

    /// Announces its changes.
    pub fn watch(&self) -> &W {
        &self.watch
    }

    /// Messages that are for no receiver that waits, and the bytes of all.
    pub fn filled(&self) -> (usize, usize) {
        let state = self.state.lock();
        (state.count.saturating_sub(state.receivers), state.bytes)
    }

    /// The process that is notified of the next message; 0 if there is none.
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

    /// Checks the length of a message.
    pub fn fits(&self, len: usize) -> Result<(), Error> {
        if len > self.attributes.size { Err(Error::TooLarge) } else { Ok(()) }
    }

    /// Sends a message that [fits](Self::fits).
    pub fn send(&self, message: Message, patience: &Patience<'_>) -> Result<(), Error> {
        let mut message = Some(message);
        let registered = self.wait(patience, || {
            let mut state = self.state.lock();
            // The messages of receivers that wait take no room.
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

    /// Receives a message into a buffer of `most` bytes, which must be enough for every message.
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

    /// A receiver waits no longer. A message that came for it, of which no process was notified, is still its own.
    fn leave(&self) -> Option<Message> {
        let mut state = self.state.lock();
        state.receivers -= 1;
        if mutant(Mutant::LeaveWithoutLook) { None } else { state.take() }
    }

    /// `notify` gets one notification: of the next message that comes to the empty queue. `None`: not any more, if
    /// it is of the same process.
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
