//! The objects of one kind, found by id and by key.
//!
//! An id consists of an index and a sequence number. The index is the object's position in a table of [`Slots`], which
//! lookups read without a lock. The sequence number is incremented when the indexes begin again at 0, so an old id does
//! not name a new object. Creation and lookups by key acquire the registry's sleeping lock.

use crate::error::Error;
use quire_heap::{Arc, Map, SpareEntry, Vec};
use quire_lookup::Slots;
use quire_lookup::slots::NoNumber;
use quire_sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use quire_sync::epoch::Domain;
use quire_sync::{Mutex, Rank};

/// The number of bits in an id that are the index.
const INDEX_BITS: u32 = 15;
/// The most objects of a kind.
pub const MOST: usize = 1 << INDEX_BITS;
/// The number of sequence numbers. After the last sequence number, they begin again at 0.
const SEQUENCES: u32 = 1 << 16;
/// The least number of indexes that creation runs through before it begins again at 0. So even with few objects, an id
/// is not reused soon.
const ROUND: usize = 64;
/// The key of an object that is found only by its id.
pub const PRIVATE: i32 = 0;
/// The number of objects to which a listing holds references at a time.
const STEP: usize = 64;

/// The id and the key of an object.
#[derive(Debug)]
pub struct Name {
    id: i32,
    key: AtomicI32,
}

impl Name {
    /// The id.
    pub fn id(&self) -> i32 {
        self.id
    }
    /// The key; [`PRIVATE`] if the object has no key, or no longer has one.
    pub fn key(&self) -> i32 {
        self.key.load(Ordering::Relaxed)
    }
    /// The part of the id that distinguishes objects with the same index.
    pub fn sequence(&self) -> u32 {
        self.id as u32 >> INDEX_BITS
    }
    /// The object's index in the table.
    pub fn index(&self) -> usize {
        self.id as usize & (MOST - 1)
    }
}

/// An object that a registry can hold.
pub trait Named: Send + Sync + 'static {
    /// The object's id and key.
    fn name(&self) -> &Name;
}

/// The parameters with which an object is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Open {
    /// Whether an object is created if none has the key.
    pub create: bool,
    /// With `create`: whether it is an error if an object has the key already.
    pub exclusive: bool,
    /// The mode of a new object, or the rights that the caller wants on an existing object.
    pub mode: u32,
}

/// The keys of objects, and the position of the next id.
struct Keys<T> {
    by_key: Map<i32, Arc<T>>,
    /// The index after the index that was allocated last.
    next: usize,
    sequence: u32,
}

/// All objects of one kind, by id and by key.
pub struct Registry<T: Named> {
    slots: Slots<T>,
    keys: Mutex<Keys<T>>,
    used: AtomicUsize,
    /// The id that the next object should get; negative for any.
    wanted: AtomicI32,
}

impl<T: Named> Registry<T> {
    /// A registry without objects.
    pub fn new() -> Result<Self, Error> {
        let slots = Slots::new(Rank::SYSTEM);
        slots.share()?;
        let keys = Keys { by_key: Map::new(), next: 0, sequence: 0 };
        Ok(Registry { slots, keys: Mutex::new(keys), used: AtomicUsize::new(0), wanted: AtomicI32::new(-1) })
    }

    /// The number of objects.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// The id that the next object gets if its index is free; negative for any.
    pub fn wanted(&self) -> &AtomicI32 {
        &self.wanted
    }

    /// The object at the index of `id`. The sequence number in `id` is ignored.
    pub fn at(&self, id: i32, epoch: &Domain) -> Result<Arc<T>, Error> {
        let index = usize::try_from(id).map_err(|_| Error::Invalid)? & (MOST - 1);
        // SAFETY: `new` has marked the table as shared, so lookups may run beside changes.
        #[allow(unsafe_code)]
        let found = unsafe { self.slots.get(index, epoch) };
        found.ok_or(Error::Invalid)
    }

    /// The object with the id `id`. `Invalid` if there is none.
    pub fn find(&self, id: i32, epoch: &Domain) -> Result<Arc<T>, Error> {
        self.at(id, epoch).and_then(|found| if found.name().id == id { Ok(found) } else { Err(Error::Invalid) })
    }

    /// Opens or creates the object with `key`, and returns its id. `there` checks an object that has the key already.
    /// `may` checks whether a new object may be created, and there must be fewer than `limit` objects. `make` then
    /// creates the object from the result of `may`.
    #[allow(clippy::too_many_arguments)]
    pub fn open<P>(
        &self,
        key: i32,
        how: Open,
        limit: usize,
        epoch: &Domain,
        there: impl FnOnce(&T) -> Result<(), Error>,
        may: impl FnOnce() -> Result<P, Error>,
        make: impl FnOnce(Name, P) -> Result<Arc<T>, Error>,
    ) -> Result<i32, Error> {
        let mut keys = self.keys.lock();
        let mut entry = None;
        if key != PRIVATE {
            if let Some(found) = keys.by_key.get(&key).cloned() {
                drop(keys);
                if how.create && how.exclusive {
                    return Err(Error::Exists);
                }
                there(&found)?;
                return Ok(found.name().id);
            }
            if !how.create {
                return Err(Error::NotFound);
            }
            entry = Some(SpareEntry::try_new()?);
        }
        let part = may()?;
        if self.used() >= limit.min(MOST) {
            return Err(Error::NoSpace);
        }
        let (index, sequence) = self.place(&mut keys, limit, epoch)?;
        let id = (sequence << INDEX_BITS | index as u32) as i32;
        let made = make(Name { id, key: AtomicI32::new(key) }, part);
        let made = made.inspect_err(|_| self.slots.give_back(index))?;
        if let Some(entry) = entry {
            keys.by_key.insert(entry, key, made.clone());
        }
        self.used.fetch_add(1, Ordering::Relaxed);
        self.slots.fill_reserved(index, made);
        Ok(id)
    }

    /// Reserves an index, and chooses its sequence number.
    fn place(&self, keys: &mut Keys<T>, limit: usize, epoch: &Domain) -> Result<(usize, u32), Error> {
        let reserve = |from, end| self.slots.reserve(false, from, end, epoch);
        let refused = |e| if e == NoNumber::Limit { Error::NoSpace } else { Error::OutOfMemory };
        let wanted = self.wanted.swap(-1, Ordering::Relaxed);
        if let Ok(wanted) = u32::try_from(wanted) {
            let index = reserve(wanted as usize & (MOST - 1), MOST).map_err(refused)?;
            return Ok((index, wanted >> INDEX_BITS));
        }
        let end = (self.used() * 3 / 2).max(ROUND).min(limit).min(MOST);
        let index = match reserve(keys.next, end) {
            Err(NoNumber::Limit) => {
                let index = reserve(0, end).map_err(refused)?;
                // If the indexes began again at 0, the sequence number is incremented. The very first object gets index
                // 0 without an increment.
                keys.sequence = (keys.sequence + u32::from(index < keys.next)) % SEQUENCES;
                index
            }
            other => other.map_err(refused)?,
        };
        keys.next = index + 1;
        Ok((index, keys.sequence))
    }

    /// Removes the key from `object`, which can still be found by its id.
    pub fn forget_key(&self, object: &T) {
        let mut keys = self.keys.lock();
        let key = object.name().key.swap(PRIVATE, Ordering::Relaxed);
        let is = |there: &Arc<T>| core::ptr::eq(&**there, object);
        let gone = if keys.by_key.get(&key).is_some_and(is) { keys.by_key.take(&key) } else { None };
        drop(keys);
        drop(gone);
    }

    /// Removes the id from `object`. The caller has removed the object's key before, and calls this only once for each
    /// object.
    pub fn forget_id(&self, object: &T, epoch: &Domain) {
        let gone = self.slots.remove(object.name().index(), epoch);
        debug_assert!(gone.is_some());
        self.used.fetch_sub(1, Ordering::Relaxed);
    }

    /// Calls `each` with all objects, in ascending order of the index, until it returns an error.
    pub fn each<E: From<Error>>(&self, mut each: impl FnMut(&Arc<T>) -> Result<(), E>) -> Result<(), E> {
        let mut some = Vec::try_with_capacity(STEP).map_err(Error::from)?;
        let mut from = 0;
        loop {
            self.slots.list(from, &mut some);
            let Some((last, _)) = some.last() else { return Ok(()) };
            from = last + 1;
            for (_, object) in &some {
                each(object)?;
            }
            some.clear();
        }
    }

    /// The highest index of an object; 0 if there is none.
    pub fn highest(&self) -> Result<usize, Error> {
        let mut highest = 0;
        self.each(|object| {
            highest = object.name().index();
            Ok::<(), Error>(())
        })?;
        Ok(highest)
    }
}
