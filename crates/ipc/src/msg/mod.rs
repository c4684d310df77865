//! System V message queues.
//!
//! [`queue`] has a queue and its calls, [`text`] the bytes of a message. [`Queues`] has the ids and the limits.

mod queue;
mod text;

pub use queue::{Message, Queue, Receive, Status, Wanted};
pub use text::Text;

use crate::error::Error;
use crate::host::Host;
use crate::owner::{Caller, Change};
use crate::registry::{Open, Registry};
use quire_heap::Arc;
use quire_sync::atomic::{AtomicUsize, Ordering};

/// The limits on message queues.
pub struct Limits {
    /// The most bytes of a message.
    pub message: AtomicUsize,
    /// The most bytes of all messages in a new queue.
    pub queue: AtomicUsize,
    /// The most queues.
    pub count: AtomicUsize,
}

/// Sums over all message queues.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sums {
    /// The number of queues.
    pub count: usize,
    /// The number of messages.
    pub messages: usize,
    /// The number of bytes of all messages.
    pub bytes: usize,
}

/// All message queues of the system.
pub struct Queues<H: Host> {
    host: H,
    registry: Registry<Queue<H>>,
    limits: Limits,
}

impl<H: Host> Queues<H> {
    /// A system without message queues.
    pub fn new(host: H) -> Result<Self, Error> {
        let limits =
            Limits { message: AtomicUsize::new(8192), queue: AtomicUsize::new(16384), count: AtomicUsize::new(32000) };
        Ok(Queues { host, registry: Registry::new()?, limits })
    }

    /// The limits, which callers may change.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The registry of ids and keys.
    pub fn registry(&self) -> &Registry<Queue<H>> {
        &self.registry
    }

    /// Opens or creates the queue with `key`, and returns its id.
    pub fn open(&self, caller: &Caller<'_>, key: i32, how: Open) -> Result<i32, Error> {
        let limit = self.limits.count.load(Ordering::Relaxed);
        let there = |queue: &Queue<H>| queue.allow(caller, how.mode);
        self.registry.open(
            key,
            how,
            limit,
            self.host.epoch(),
            there,
            || Ok(()),
            |name, ()| {
                let most = self.limits.queue.load(Ordering::Relaxed);
                Ok(Arc::try_new(Queue::new(&self.host, name, caller, how.mode, most)?)?)
            },
        )
    }

    /// The queue with the id `id`.
    pub fn find(&self, id: i32) -> Result<Arc<Queue<H>>, Error> {
        self.registry.find(id, self.host.epoch())
    }

    /// The queue at the index of `id`. The sequence number in `id` is ignored.
    pub fn at(&self, id: i32) -> Result<Arc<Queue<H>>, Error> {
        self.registry.at(id, self.host.epoch())
    }

    /// Changes the owner, the mode and the limit on bytes of queue `id`.
    pub fn change(&self, caller: &Caller<'_>, id: i32, to: Change, most: usize) -> Result<(), Error> {
        self.find(id)?.change(caller, to, most, self.limits.queue.load(Ordering::Relaxed))
    }

    /// Removes a queue with its messages, and wakes its sleepers.
    pub fn remove(&self, caller: &Caller<'_>, id: i32) -> Result<(), Error> {
        let queue = self.find(id)?;
        queue.remove(caller)?;
        self.registry.forget_key(&queue);
        self.registry.forget_id(&queue, self.host.epoch());
        Ok(())
    }

    /// A message of type `kind` with `len` zero bytes, charged to the calling thread's user. The caller then fills the
    /// message with bytes from user memory.
    pub fn message(&self, kind: i64, len: usize) -> Result<Message<H>, Error> {
        Message::new(&self.host, kind, len)
    }

    /// Sums over all queues.
    pub fn sums(&self) -> Result<Sums, Error> {
        let mut sums = Sums { count: self.registry.used(), ..Sums::default() };
        self.registry.each(|queue| {
            // Another thread may have removed the queue since the listing.
            if let Ok(status) = queue.status(None) {
                sums.messages += status.messages;
                sums.bytes += status.bytes;
            }
            Ok::<(), Error>(())
        })?;
        Ok(sums)
    }
}
