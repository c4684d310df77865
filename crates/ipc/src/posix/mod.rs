//! POSIX message queues: queues with names, whose messages have priorities.
//!
//! [`queue`] has a queue. [`PosixQueues`] has the names and the limits. A removed queue exists until its last
//! descriptor is closed.

mod queue;

pub use queue::{Attributes, Message, Notify, Patience, PosixQueue, Watch};

use crate::error::Error;
use crate::host::Host;
use crate::owner::{Caller, Owner};
use quire_heap::{Arc, Map, SpareEntry, Vec};
use quire_sync::Mutex;
use quire_sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The limits on POSIX message queues.
pub struct Limits {
    /// The most queues.
    pub count: AtomicUsize,
    /// The most messages of a queue.
    pub messages: AtomicUsize,
    /// The most bytes of a message.
    pub size: AtomicUsize,
    /// The most messages of a queue that is created without attributes.
    pub default_messages: AtomicUsize,
    /// The most bytes of a message in a queue that is created without attributes.
    pub default_size: AtomicUsize,
}

/// The most messages of a queue, for privileged callers.
pub const MESSAGES_MOST: usize = 65536;
/// The most bytes of a message, for privileged callers.
pub const SIZE_MOST: usize = 16 << 20;
/// The bytes of kernel memory of a message in addition to its text, and of a queue.
const MESSAGE: u64 = 128;
const OVERHEAD: u64 = 512;

/// The parameters with which a queue is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpenQueue {
    /// Whether a queue is created if none has the name.
    pub create: bool,
    /// With `create`: whether it is an error if a queue has the name already.
    pub exclusive: bool,
    /// The rights that the caller wants on an existing queue.
    pub wanted: u32,
    /// The mode of a new queue.
    pub mode: u32,
    /// The size of a new queue. `None`: the default size.
    pub attributes: Option<Attributes>,
}

type Names<H, W> = Map<Arc<[u8]>, Arc<PosixQueue<H, W>>>;

/// All POSIX message queues that have a name.
pub struct PosixQueues<H: Host, W: Watch> {
    host: H,
    names: Mutex<Names<H, W>>,
    /// The number of the next queue that is created.
    next: AtomicU64,
    limits: Limits,
}

impl<H: Host, W: Watch> PosixQueues<H, W> {
    /// A system without POSIX message queues.
    pub fn new(host: H) -> Self {
        let limits = Limits {
            count: AtomicUsize::new(256),
            messages: AtomicUsize::new(10),
            size: AtomicUsize::new(8192),
            default_messages: AtomicUsize::new(10),
            default_size: AtomicUsize::new(8192),
        };
        PosixQueues { host, names: Mutex::new(Map::new()), next: AtomicU64::new(1), limits }
    }

    /// The limits, which callers may change.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The attributes of a new queue. `Invalid` if the wanted attributes exceed the limits.
    fn attributes(&self, caller: &Caller<'_>, asked: Option<Attributes>) -> Result<Attributes, Error> {
        let get = |limit: &AtomicUsize| limit.load(Ordering::Relaxed);
        let limits = &self.limits;
        let (messages, size) = (get(&limits.messages), get(&limits.size));
        let Some(asked) = asked else {
            let (messages, size) = (messages.min(get(&limits.default_messages)), size.min(get(&limits.default_size)));
            return Ok(Attributes { messages, size });
        };
        let (messages, size) = if caller.exceeds { (MESSAGES_MOST, SIZE_MOST) } else { (messages, size) };
        let fits = (1..=messages).contains(&asked.messages) && (1..=size).contains(&asked.size);
        if fits { Ok(asked) } else { Err(Error::Invalid) }
    }

    /// Opens or creates the queue with the name `name`.
    pub fn open(&self, caller: &Caller<'_>, name: &[u8], how: OpenQueue) -> Result<Arc<PosixQueue<H, W>>, Error> {
        let mut names = self.names.lock();
        if let Some(found) = names.get(name).cloned() {
            drop(names);
            if how.create && how.exclusive {
                return Err(Error::Exists);
            }
            found.owner().allow(caller, how.wanted)?;
            return Ok(found);
        }
        if !how.create {
            return Err(Error::NotFound);
        }
        if names.len() >= self.limits.count.load(Ordering::Relaxed) && !caller.exceeds {
            return Err(Error::NoSpace);
        }
        let attributes = self.attributes(caller, how.attributes)?;
        // All memory that the queue can use is charged now, so that a send needs no charge.
        let bytes = attributes.messages as u64 * (attributes.size as u64 + MESSAGE) + OVERHEAD;
        let charge = self.host.charge_queue(bytes).ok_or(Error::TooMany)?;
        let (entry, key) = (SpareEntry::try_new()?, Arc::try_copy(name)?);
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let new = Arc::try_new(PosixQueue::new(attributes, Owner::new(caller, how.mode), number, charge))?;
        names.insert(entry, key, new.clone());
        Ok(new)
    }

    /// The queue with the name `name`.
    pub fn find(&self, name: &[u8]) -> Option<Arc<PosixQueue<H, W>>> {
        self.names.lock().get(name).cloned()
    }

    /// Calls `each(number, name)` for each queue whose number is above `after`, in ascending order, until `each`
    /// returns false.
    pub fn list(&self, after: u64, each: &mut dyn FnMut(u64, &[u8]) -> bool) -> Result<(), Error> {
        let mut all: Vec<(u64, Arc<[u8]>)> = Vec::new();
        let names = self.names.lock();
        for (name, queue) in names.iter().filter(|(_, queue)| queue.number() > after) {
            all.try_push((queue.number(), name.clone()))?;
        }
        drop(names);
        all.sort_unstable_by_key(|(number, _)| *number);
        let _refused = all.iter().all(|(number, name)| each(*number, name));
        Ok(())
    }

    /// Removes the name from the queue with this number, without a check of its owner. [`Error::NotFound`] if another
    /// queue has the name.
    pub fn remove(&self, name: &[u8], number: u64) -> Result<(), Error> {
        let mut names = self.names.lock();
        if names.get(name).is_none_or(|queue| queue.number() != number) {
            return Err(Error::NotFound);
        }
        let gone = names.take(name);
        drop(names);
        drop(gone);
        Ok(())
    }

    /// Removes the name from a queue. `owns_all`: the caller may also remove names of other users' queues.
    pub fn unlink(&self, caller: &Caller<'_>, name: &[u8], owns_all: bool) -> Result<(), Error> {
        let mut names = self.names.lock();
        let found = names.get(name).ok_or(Error::NotFound)?;
        if found.owner().user != caller.user && !owns_all {
            return Err(Error::NotPermitted);
        }
        let gone = names.take(name);
        drop(names);
        drop(gone);
        Ok(())
    }
}
