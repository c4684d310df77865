//! System V shared memory segments.
//!
//! The memory of a segment is an object that the embedding kernel creates, and maps where a program attaches the
//! segment. The kernel counts the mappings in the segment's [`Attaches`]. A removed segment drops its own handle on the
//! memory. Programs can still attach the removed segment while its memory is mapped. When the memory is freed, the
//! kernel calls [`Segments::memory_gone`], and the segment loses its id.

use crate::error::Error;
use crate::host::Host;
use crate::owner::{Caller, Change, Owner, READ};
use crate::registry::{Name, Named, Open, Registry};
use quire_heap::{Arc, Room};
use quire_sync::Mutex;
use quire_sync::atomic::{AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// The bytes of a page.
const PAGE: u64 = 4096;
/// The bytes of kernel memory of a segment, charged to its creator.
const OVERHEAD: u64 = 1024;

/// The memory of a segment.
pub trait Memory: Send + Sync + 'static {
    /// A handle that keeps the memory alive.
    type Handle;
    /// A new handle. `None` if the memory is gone.
    fn handle(&self) -> Option<Self::Handle>;
    /// Drops the segment's own handle. The memory then exists as long as it is mapped. May sleep.
    fn give_up(&self);
    /// The number of pages that hold data, in memory or in swap.
    fn resident(&self) -> u64;
    /// Starts or stops to keep the pages in memory.
    fn keep_resident(&self, keep: bool);
}

/// The number of mappings of a segment, and the times of the last changes. The embedding kernel reports the changes.
#[derive(Debug, Default)]
pub struct Attaches {
    count: AtomicU64,
    attached: AtomicI64,
    detached: AtomicI64,
    last_pid: AtomicU32,
}

impl Attaches {
    /// Records that a mapping was added (`came`) or removed. Acquires no lock.
    pub fn note(&self, came: bool, host: &impl Host) {
        let (pid, now) = (host.pid(), host.seconds());
        if came {
            self.count.fetch_add(1, Ordering::Relaxed);
            self.attached.store(now, Ordering::Relaxed);
        } else {
            self.count.fetch_sub(1, Ordering::Relaxed);
            self.detached.store(now, Ordering::Relaxed);
        }
        if pid != 0 {
            self.last_pid.store(pid, Ordering::Relaxed);
        }
    }
}

/// The pages of one segment, counted against the limit on all segments.
struct Taken {
    all: Arc<AtomicU64>,
    pages: u64,
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.all.fetch_sub(self.pages, Ordering::Relaxed);
    }
}

/// The part of a segment that calls change.
struct State<H: Host> {
    owner: Owner,
    changed: i64,
    removed: bool,
    locked: Option<H::Charge>,
}

/// A shared memory segment.
pub struct Segment<H: Host, S: Memory> {
    name: Name,
    size: u64,
    creator: u32,
    state: Mutex<State<H>>,
    attaches: Arc<Attaches>,
    memory: S,
    taken: Taken,
    _charge: H::Charge,
}

impl<H: Host, S: Memory> Named for Segment<H, S> {
    fn name(&self) -> &Name {
        &self.name
    }
}

/// The values of a segment that `shmctl` reports.
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
    /// Whether the segment was removed. It then ends with its last mapping.
    pub removed: bool,
    /// Whether the pages are kept in memory.
    pub locked: bool,
    /// The size in bytes.
    pub size: u64,
    /// The time of the last attach, in seconds since 1970.
    pub attached: i64,
    /// The time of the last detach, in seconds since 1970.
    pub detached: i64,
    /// The time of the last change by `shmctl`, in seconds since 1970.
    pub changed: i64,
    /// The id of the process that created the segment.
    pub creator: u32,
    /// The id of the process that attached or detached last.
    pub last_pid: u32,
    /// The number of mappings.
    pub attaches: u64,
    /// The number of pages that hold data, in memory or in swap.
    pub resident: u64,
}

impl<H: Host, S: Memory> Segment<H, S> {
    /// The size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The counts of the segment's mappings.
    pub fn attaches(&self) -> &Arc<Attaches> {
        &self.attaches
    }

    /// A handle on the segment's memory. The rights of `caller` in `wanted` are checked.
    pub fn attach(&self, caller: &Caller<'_>, wanted: u32) -> Result<S::Handle, Error> {
        self.state.lock().owner.allow(caller, wanted)?;
        self.memory.handle().ok_or(Error::Removed)
    }

    /// The values that `shmctl` reports. If there is a `caller`, its right to read is checked.
    pub fn status(&self, caller: Option<&Caller<'_>>) -> Result<Status, Error> {
        let state = self.state.lock();
        if let Some(caller) = caller {
            state.owner.allow(caller, READ)?;
        }
        let (owner, removed, locked, changed) = (state.owner, state.removed, state.locked.is_some(), state.changed);
        drop(state);
        let at = &self.attaches;
        Ok(Status {
            key: self.name.key(),
            id: self.name.id(),
            sequence: self.name.sequence(),
            owner,
            removed,
            locked,
            size: self.size,
            attached: at.attached.load(Ordering::Relaxed),
            detached: at.detached.load(Ordering::Relaxed),
            changed,
            creator: self.creator,
            last_pid: at.last_pid.load(Ordering::Relaxed),
            attaches: at.count.load(Ordering::Relaxed),
            resident: self.memory.resident(),
        })
    }
}

/// The limits on segments.
pub struct Limits {
    /// The most bytes of a segment.
    pub size: AtomicU64,
    /// The most pages of all segments together.
    pub pages: AtomicU64,
    /// The most segments.
    pub count: AtomicUsize,
}

/// The default of the limits on bytes and pages, as on Linux. It is below the largest number, so that a sum with a few
/// sizes does not overflow.
pub const UNLIMITED: u64 = u64::MAX - (1 << 24);
/// The default of the limit on the number of segments.
pub const COUNT: usize = 4096;

/// Sums over all segments.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sums {
    /// The number of segments.
    pub count: usize,
    /// The number of pages of all segments.
    pub pages: u64,
    /// The number of pages that hold data, in memory or in swap.
    pub resident: u64,
}

/// All shared memory segments of the system.
pub struct Segments<H: Host, S: Memory> {
    host: H,
    registry: Registry<Segment<H, S>>,
    limits: Limits,
    pages: Arc<AtomicU64>,
}

impl<H: Host, S: Memory> Segments<H, S> {
    /// A system without segments.
    pub fn new(host: H) -> Result<Self, Error> {
        let limits = Limits {
            size: AtomicU64::new(UNLIMITED),
            pages: AtomicU64::new(UNLIMITED),
            count: AtomicUsize::new(COUNT),
        };
        Ok(Segments { host, registry: Registry::new()?, limits, pages: Arc::try_new(AtomicU64::new(0))? })
    }

    /// The limits, which callers may change.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The registry of ids and keys.
    pub fn registry(&self) -> &Registry<Segment<H, S>> {
        &self.registry
    }

    /// Opens or creates the segment with `key` and at least `size` bytes, and returns its id. `make` creates the memory
    /// of a new segment.
    pub fn open(
        &self,
        caller: &Caller<'_>,
        key: i32,
        size: u64,
        how: Open,
        make: impl FnOnce(&Name, &Arc<Attaches>) -> Result<S, Error>,
    ) -> Result<i32, Error> {
        let there = |segment: &Segment<H, S>| {
            if segment.size < size {
                return Err(Error::Invalid);
            }
            segment.state.lock().owner.allow(caller, how.mode)
        };
        let may = || match size {
            0 => Err(Error::Invalid),
            _ if size > self.limits.size.load(Ordering::Relaxed) => Err(Error::Invalid),
            _ => self.take(size),
        };
        let limit = self.limits.count.load(Ordering::Relaxed);
        self.registry.open(key, how, limit, self.host.epoch(), there, may, |name, taken| {
            let charge = self.host.charge(OVERHEAD).ok_or(Error::OutOfMemory)?;
            let attaches = Arc::try_new(Attaches::default())?;
            let owner = Owner::new(caller, how.mode);
            let state = State { owner, changed: self.host.seconds(), removed: false, locked: None };
            let room = Room::try_new()?;
            let memory = make(&name, &attaches)?;
            Ok(room.fill(Segment {
                name,
                size,
                creator: self.host.pid(),
                state: Mutex::new(state),
                attaches,
                memory,
                taken,
                _charge: charge,
            }))
        })
    }

    /// The segment with the id `id`.
    pub fn find(&self, id: i32) -> Result<Arc<Segment<H, S>>, Error> {
        self.registry.find(id, self.host.epoch())
    }

    /// The segment at the index of `id`. The sequence number in `id` is ignored.
    pub fn at(&self, id: i32) -> Result<Arc<Segment<H, S>>, Error> {
        self.registry.at(id, self.host.epoch())
    }

    /// Changes the owner and the mode of segment `id`.
    pub fn change(&self, caller: &Caller<'_>, id: i32, to: Change) -> Result<(), Error> {
        let (segment, now) = (self.find(id)?, self.host.seconds());
        let mut state = segment.state.lock();
        state.owner.allow_change(caller)?;
        state.owner.change(to)?;
        state.changed = now;
        Ok(())
    }

    /// Removes the segment. It loses its key now, and ends with its last mapping.
    pub fn remove(&self, caller: &Caller<'_>, id: i32) -> Result<(), Error> {
        let segment = self.find(id)?;
        let mut state = segment.state.lock();
        state.owner.allow_change(caller)?;
        let first = !core::mem::replace(&mut state.removed, true);
        drop(state);
        if first {
            self.registry.forget_key(&segment);
            segment.memory.give_up();
        }
        Ok(())
    }

    /// Called when the memory of the segment with `id` and `attaches` was freed. Removes the id of the segment. Does
    /// nothing if the segment has no id, because its creation failed.
    pub fn memory_gone(&self, id: i32, attaches: &Arc<Attaches>) {
        if let Ok(segment) = self.find(id)
            && Arc::ptr_eq(&segment.attaches, attaches)
        {
            self.registry.forget_id(&segment, self.host.epoch());
        }
    }

    /// Starts (`lock`) or stops to keep the pages of a segment in memory.
    pub fn lock(&self, caller: &Caller<'_>, id: i32, lock: bool) -> Result<(), Error> {
        let segment = self.find(id)?;
        let owner = segment.state.lock().owner;
        if !caller.locks {
            owner.allow_change(&Caller { administers: false, ..*caller })?;
        }
        if segment.state.lock().locked.is_some() == lock {
            return Ok(());
        }
        let mut charge = if lock {
            Some(self.host.charge_locked(segment.taken.pages * PAGE).ok_or(Error::OutOfMemory)?)
        } else {
            None
        };
        let mut state = segment.state.lock();
        if state.locked.is_some() != lock {
            core::mem::swap(&mut state.locked, &mut charge);
            // The call is made with the lock held, so that of several concurrent calls the last decides for `locked`
            // and for the memory.
            segment.memory.keep_resident(lock);
        }
        drop(state);
        Ok(())
    }

    /// Sums over all segments.
    pub fn sums(&self) -> Result<Sums, Error> {
        let mut sums = Sums { count: self.registry.used(), pages: 0, resident: 0 };
        self.registry.each(|segment| {
            sums.pages += segment.taken.pages;
            sums.resident += segment.memory.resident();
            Ok::<(), Error>(())
        })?;
        Ok(sums)
    }

    fn take(&self, size: u64) -> Result<Taken, Error> {
        let pages = size.checked_next_multiple_of(PAGE).ok_or(Error::NoSpace)? / PAGE;
        let most = self.limits.pages.load(Ordering::Relaxed);
        let more = |all: u64| all.checked_add(pages).filter(|all| *all <= most);
        self.pages.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).map_err(|_| Error::NoSpace)?;
        Ok(Taken { all: self.pages.clone(), pages })
    }
}
