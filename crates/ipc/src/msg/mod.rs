//! Message queues.
//!
//! [`queue`] has a queue and its calls, [`text`] the bytes of messages. [`Queues`] has the ids and the limits.

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

/// Limits on queues.
pub struct Limits {
    /// Bytes of a message.
    pub message: AtomicUsize,
    /// Bytes of a new queue.
    pub queue: AtomicUsize,
    /// Queues.
    pub count: AtomicUsize,
}

/// Sums over all queues.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sums {
    /// Queues.
    pub count: usize,
    /// Messages.
    pub messages: usize,
    /// Their bytes.
    pub bytes: usize,
}

/// All queues.
pub struct Queues<H: Host> {
    host: H,
    registry: Registry<Queue<H>>,
    limits: Limits,
}

impl<H: Host> Queues<H> {
    /// None.
    pub fn new(host: H) -> Result<Self, Error> {
        let limits =
            Limits { message: AtomicUsize::new(8192), queue: AtomicUsize::new(16384), count: AtomicUsize::new(32000) };
        Ok(Queues { host, registry: Registry::new()?, limits })
    }

    /// The limits.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The ids.
    pub fn registry(&self) -> &Registry<Queue<H>> {
        &self.registry
    }

    /// Opens the queue with `key`, and returns its id.
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

    /// The queue `id`.
    pub fn find(&self, id: i32) -> Result<Arc<Queue<H>>, Error> {
        self.registry.find(id, self.host.epoch())
    }

    /// The queue with the index of `id`.
    pub fn at(&self, id: i32) -> Result<Arc<Queue<H>>, Error> {
        self.registry.at(id, self.host.epoch())
    }

    /// Changes owner, mode and the limit on bytes.
    pub fn change(&self, caller: &Caller<'_>, id: i32, to: Change, most: usize) -> Result<(), Error> {
        self.find(id)?.change(caller, to, most, self.limits.queue.load(Ordering::Relaxed))
    }

    /// Removes a queue with its messages. Its sleepers are woken.
    pub fn remove(&self, caller: &Caller<'_>, id: i32) -> Result<(), Error> {
        let queue = self.find(id)?;
        queue.remove(caller)?;
        self.registry.forget_key(&queue);
        self.registry.forget_id(&queue, self.host.epoch());
        Ok(())
    }

    /// A message of process memory, charged to the calling thread's user. The caller fills it.
    pub fn message(&self, kind: i64, len: usize) -> Result<Message<H>, Error> {
        Message::new(&self.host, kind, len)
    }

    /// Sums over all queues.
    pub fn sums(&self) -> Result<Sums, Error> {
        let mut sums = Sums { count: self.registry.used(), ..Sums::default() };
        self.registry.each(|queue| {
            // A queue may be removed meanwhile.
            if let Ok(status) = queue.status(None) {
                sums.messages += status.messages;
                sums.bytes += status.bytes;
            }
            Ok::<(), Error>(())
        })?;
        Ok(sums)
    }
}
