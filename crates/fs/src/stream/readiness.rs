//! Waiting for one stream, or for many at once.
//!
//! A stream announces each change of its state by its [`Readiness`]. The announcement wakes threads in blocking calls,
//! and notifies [`Listener`]s (a poll of many streams, an epoll set, a terminal's input). A woken thread checks the
//! stream's state again, so superfluous notifications are slow but never wrong.
//!
//! No wake-up is lost, because of this order: a stream changes its state *before* it notifies, and a waiter registers
//! *before* it checks the state.

use super::park::Kept;
use crate::mutant::{Mutant, mutant};
use crate::{FsError, Io};
use core::any::Any;
use quire_heap::{Arc, Room, Vec};
use quire_sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence_full};
use quire_sync::hooks::{ThreadHandle, current_thread, unpark};
use quire_sync::{Rank, SpinLock, WaitOutcome, WaitQueue};

bitflags::bitflags! {
    /// The operations on a stream that would not wait.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct Ready: u16 {
        /// A read returns data, or the end.
        const READ = 1;
        /// A write accepts data.
        const WRITE = 2;
        /// The other side is closed.
        const HANGUP = 4;
        /// A write would fail.
        const ERROR = 8;
        /// An exceptional condition is present.
        const PRIORITY = 16;
        /// The other side will write no more.
        const READ_HANGUP = 32;
    }
}

/// A receiver of the notifications that a stream changed. Called from threads, with no lock held. A listener may be
/// called once more after it stopped listening.
pub trait Listener: Send + Sync {
    /// Called when the stream has changed.
    fn changed(&self);

    /// Whether the listener is exclusive. Exclusive listeners are notified one after the other, until one of them wakes
    /// a thread.
    fn is_exclusive(&self) -> bool {
        false
    }

    /// Whether the open file that the listener watches is closed. Then the listener is not notified any more, though
    /// the stream may still exist.
    fn is_closed(&self) -> bool {
        false
    }

    /// Called after the readiness has removed the listener, because its open file is [closed](Self::is_closed). Like
    /// `changed`, it is called from threads with no lock held.
    fn closed(&self) {}

    /// The listener itself, if other code may look at it ([`Readiness::visit`]).
    fn as_any(&self) -> Option<&dyn Any> {
        None
    }

    /// As [`changed`](Self::changed), for an exclusive listener. Returns whether a waiting thread was woken.
    fn changed_for_one(&self) -> bool {
        self.changed();
        false
    }
}

/// An entry of the list of listeners.
struct ListenerEntry {
    listener: Arc<dyn Listener>,
    exclusive: bool,
    /// Whether the listener stopped while a thread read the list.
    gone: AtomicBool,
}

impl ListenerEntry {
    fn new(listener: &Arc<dyn Listener>) -> Self {
        ListenerEntry { listener: listener.clone(), exclusive: listener.is_exclusive(), gone: AtomicBool::new(false) }
    }
}

type Listening = Vec<ListenerEntry>;
type Listeners = Arc<Listening>;

/// The threads and listeners that wait for a stream.
pub struct Readiness {
    sleepers: WaitQueue,
    /// A thread that changes this list while another thread reads it makes a copy. So a thread can notify the listeners
    /// without the lock.
    listeners: SpinLock<Option<Listeners>>,
    listening: AtomicUsize,
}

impl Default for Readiness {
    fn default() -> Self {
        Self::new()
    }
}

impl Readiness {
    /// A readiness without waiters.
    pub fn new() -> Self {
        Readiness {
            sleepers: WaitQueue::new(),
            listeners: SpinLock::new(Rank::LISTENERS, None),
            listening: AtomicUsize::new(0),
        }
    }

    /// Wakes the sleepers and notifies the listeners after a change of state. Returns whether a thread slept. Called
    /// from threads, never from an interrupt, with no spin lock held.
    pub fn notify(&self) -> bool {
        // `wake_all` has a full fence, so the new state is visible before `listening` is read.
        let slept = self.sleepers.wake_all() > 0;
        if self.listening.load(Ordering::Acquire) == 0 {
            return slept;
        }
        let Some(all) = self.listeners.lock().clone() else { return slept };
        let mut served = false;
        for place in all.iter().filter(|place| !place.gone.load(Ordering::Acquire)) {
            match place.exclusive {
                false => place.listener.changed(),
                true => served = served || place.listener.changed_for_one(),
            }
        }
        let mut stale = all.iter().any(|place| place.gone.load(Ordering::Relaxed));
        drop(all);
        while stale {
            stale = self.sweep();
        }
        slept
    }

    /// Sleeps until `ready` returns a value, as `io` allows. A call that waits at another object's readiness keeps its
    /// [kernel stack](Io::on_stack), which has the reference to that object. Otherwise the object could be freed before
    /// the thread wakes.
    pub fn wait<R>(&self, io: &Io<'_>, ready: impl FnMut() -> Option<R>) -> Result<R, FsError> {
        self.wait_in(0, io, ready)
    }

    /// As [`wait`](Self::wait), in a call that began when the stream had this [generation](Kept::generation).
    #[inline]
    pub fn wait_in<R>(&self, generation: u32, io: &Io<'_>, mut ready: impl FnMut() -> Option<R>) -> Result<R, FsError> {
        match ready() {
            Some(value) => Ok(value),
            None if io.nonblock => Err(FsError::WouldBlock),
            None => self.sleep(generation, io, ready),
        }
    }

    /// As [`wait_in`](Self::wait_in), for a caller that has just found no value.
    #[inline]
    pub fn wait_again<R>(
        &self,
        generation: u32,
        io: &Io<'_>,
        mut ready: impl FnMut() -> Option<R>,
    ) -> Result<R, FsError> {
        if io.nonblock { ready().ok_or(FsError::WouldBlock) } else { self.sleep(generation, io, ready) }
    }

    #[inline(never)]
    fn sleep<R>(&self, generation: u32, io: &Io<'_>, mut ready: impl FnMut() -> Option<R>) -> Result<R, FsError> {
        let interrupted = || (io.interrupted)();
        let ended = match io.park {
            None => self.sleepers.wait_until(io.deadline, interrupted, ready),
            Some(park) => match park.listing().wait(&self.sleepers, io.deadline, interrupted, &mut ready) {
                Some(ended) => ended,
                None => {
                    park.keep(Kept { deadline: io.deadline, generation });
                    return Err(FsError::WouldSleep);
                }
            },
        };
        ended.map_err(|why| match why {
            WaitOutcome::TimedOut => FsError::WouldBlock,
            _ => FsError::Interrupted,
        })
    }

    /// The threads that wait. Every change wakes all of them.
    pub fn sleepers(&self) -> &WaitQueue {
        &self.sleepers
    }

    /// Adds `listener`, which is then notified of changes.
    pub fn listen(&self, listener: &Arc<dyn Listener>) -> Result<(), FsError> {
        let old = {
            let mut slot = self.listeners.lock();
            let old = match slot.as_mut().map(Arc::get_mut) {
                Some(Some(all)) => {
                    all.try_push(ListenerEntry::new(listener))?;
                    None
                }
                // There is no listener yet, or another thread is notifying the listed listeners. So the list is copied.
                _ => {
                    let (room, mut all) = copy(slot.as_ref(), 1)?;
                    all.push_reserved(ListenerEntry::new(listener));
                    slot.replace(room.fill(all))
                }
            };
            self.listening.fetch_add(1, Ordering::AcqRel);
            old
        };
        drop(old);
        if !mutant(Mutant::ListenNoFence) {
            fence_full();
        }
        Ok(())
    }

    /// Removes `listener`; a notification in progress may still call it. Needs no memory and does not wait, because the
    /// caller may be the notifying thread.
    pub fn unlisten(&self, listener: &Arc<dyn Listener>) {
        let is = |place: &ListenerEntry| Arc::ptr_eq(&place.listener, listener) && !place.gone.load(Ordering::Relaxed);
        let mut slot = self.listeners.lock();
        let gone = match slot.as_mut().map(Arc::get_mut) {
            Some(Some(all)) => match all.iter().position(is) {
                Some(at) => Some(all.swap_remove(at)),
                None => return,
            },
            // Another thread reads the list, so the entry stays. A `notify` drops it when no thread reads the list.
            _ => match slot.as_ref().and_then(|all| all.iter().find(|place| is(place))) {
                Some(place) => {
                    place.gone.store(true, Ordering::Release);
                    None
                }
                None => return,
            },
        };
        self.listening.fetch_sub(1, Ordering::AcqRel);
        let empty = if slot.as_ref().is_some_and(|all| all.is_empty()) { slot.take() } else { None };
        drop(slot);
        drop((gone, empty));
    }

    /// Drops the listeners that are [closed](Listener::is_closed), and notifies them. Like [`notify`](Self::notify),
    /// called from threads with no spin lock held.
    pub fn drop_closed(&self) {
        while self.listening.load(Ordering::Acquire) != 0 {
            let closed = |place: &&ListenerEntry| !place.gone.load(Ordering::Relaxed) && place.listener.is_closed();
            let all = self.listeners.lock();
            let listener = all.as_ref().and_then(|all| all.iter().find(closed)).map(|place| place.listener.clone());
            drop(all);
            let Some(listener) = listener else { return };
            self.unlisten(&listener);
            listener.closed();
        }
    }

    /// The number of listeners.
    pub fn listening(&self) -> usize {
        self.listening.load(Ordering::Acquire)
    }

    /// Calls `f` with each listener, up to the first error. Like [`notify`](Self::notify), called from threads with no
    /// spin lock held.
    pub fn visit<E>(&self, mut f: impl FnMut(&dyn Listener) -> Result<(), E>) -> Result<(), E> {
        let Some(all) = self.listeners.lock().clone() else { return Ok(()) };
        let mut listening = all.iter().filter(|place| !place.gone.load(Ordering::Acquire));
        let visited = listening.try_for_each(|place| f(&*place.listener));
        drop(listening);
        drop(all);
        // An entry that was removed during the visit is dropped now.
        while self.sweep() {}
        visited
    }

    /// Drops one entry whose listener has stopped, unless a thread reads the list. Returns whether it dropped one.
    fn sweep(&self) -> bool {
        let mut slot = self.listeners.lock();
        let Some(all) = slot.as_mut().and_then(Arc::get_mut) else { return false };
        let stale = all.iter().position(|place| place.gone.load(Ordering::Relaxed)).map(|at| all.swap_remove(at));
        let empty = if all.is_empty() { slot.take() } else { None };
        drop(slot);
        drop(empty);
        stale.is_some()
    }
}

/// A copy of the listeners of `all`, with room for `more`, and the memory for its reference count.
fn copy(all: Option<&Listeners>, more: usize) -> Result<(Room<Listening>, Listening), FsError> {
    let all = all.map_or(&[][..], |all| &all[..]);
    let room = Room::try_new()?;
    let mut new = Vec::try_with_capacity(all.len() + more)?;
    let listening = all.iter().filter(|place| !place.gone.load(Ordering::Relaxed));
    listening.for_each(|place| new.push_reserved(ListenerEntry::new(&place.listener)));
    Ok((room, new))
}

/// The listener of a thread that waits for any of many streams.
pub struct Poller {
    /// `None` after the wait, because a stream may still notify when the thread has exited. A notifier holds the lock
    /// while it wakes the thread.
    thread: SpinLock<Option<ThreadHandle>>,
    changed: AtomicBool,
}

impl Listener for Poller {
    fn changed(&self) {
        if !self.changed.swap(true, Ordering::AcqRel)
            && let Some(thread) = *self.thread.lock()
            && !mutant(Mutant::PollerUnwoken)
        {
            unpark(thread);
        }
    }
}

impl Poller {
    /// A poller for the calling thread. Only that thread parks until the poller is notified. The thread calls
    /// [`end`](Self::end) before it exits.
    pub fn new() -> Result<Arc<Poller>, FsError> {
        let thread = SpinLock::new(Rank::WAIT, Some(current_thread()));
        Ok(Arc::try_new(Poller { thread, changed: AtomicBool::new(false) })?)
    }

    /// Ends the wait: from now on a notification wakes no thread.
    pub fn end(&self) {
        *self.thread.lock() = None;
    }

    /// Whether a stream has changed since the last call. A thread that parks after `false` is unparked by each change.
    pub fn take_changed(&self) -> bool {
        self.changed.swap(false, Ordering::AcqRel)
    }
}
