//! Event counters (`eventfd`): writers add to a number, readers wait until it is not zero and take it.

use crate::FsError;
use crate::stream::Stream;
use crate::stream::io::Io;
use crate::stream::readiness::{Readiness, Ready};
use crate::stream::transfer::{Sink, Source};
use core::any::Any;
use quire_heap::Arc;
use quire_sync::atomic::{AtomicU64, Ordering};

/// The largest count.
const MOST: u64 = u64::MAX - 1;

/// A counter that is read as a number of eight bytes.
pub struct Event {
    count: AtomicU64,
    /// Whether each read subtracts one instead of taking the whole count.
    semaphore: bool,
    readiness: Readiness,
}

impl Event {
    /// A counter that starts at `count`.
    pub fn new(count: u64, semaphore: bool) -> Result<Arc<Self>, FsError> {
        Ok(Arc::try_new(Event { count: AtomicU64::new(count), semaphore, readiness: Readiness::new() })?)
    }

    /// The count now.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    /// Whether each read subtracts one instead of taking the whole count.
    pub fn is_semaphore(&self) -> bool {
        self.semaphore
    }

    fn try_take(&self) -> Option<u64> {
        let next = |c: u64| match (c, self.semaphore) {
            (0, _) => None,
            (c, true) => Some(c - 1),
            (_, false) => Some(0),
        };
        let old = self.count.fetch_update(Ordering::AcqRel, Ordering::Acquire, next).ok()?;
        Some(if self.semaphore { 1 } else { old })
    }

    fn try_add(&self, by: u64) -> Option<()> {
        let next = |c: u64| c.checked_add(by).filter(|&c| c <= MOST);
        self.count.fetch_update(Ordering::AcqRel, Ordering::Acquire, next).ok().map(drop)
    }
}

impl Stream for Event {
    fn read(&self, io: &Io<'_>, sink: &mut dyn Sink) -> Result<usize, FsError> {
        if sink.room() < 8 {
            return Err(FsError::Invalid);
        }
        let value = self.readiness.wait(io, || self.try_take())?;
        self.readiness.notify();
        match sink.put(&value.to_le_bytes())? {
            8 => Ok(8),
            _ => Err(FsError::Fault),
        }
    }

    fn write(&self, io: &Io<'_>, source: &mut dyn Source) -> Result<usize, FsError> {
        let mut bytes = [0; 8];
        if source.left() != 8 {
            return Err(FsError::Invalid);
        }
        if source.take(&mut bytes)? < 8 {
            return Err(FsError::Fault);
        }
        let by = u64::from_le_bytes(bytes);
        if by > MOST {
            return Err(FsError::Invalid);
        }
        self.readiness.wait(io, || self.try_add(by))?;
        self.readiness.notify();
        Ok(8)
    }

    fn ready(&self) -> Ready {
        let count = self.count.load(Ordering::Acquire);
        let mut ready = Ready::empty();
        ready.set(Ready::READ, count > 0);
        ready.set(Ready::WRITE, count < MOST);
        ready
    }

    fn readiness(&self) -> Option<&Readiness> {
        Some(&self.readiness)
    }

    fn seek(&self) -> Result<u64, FsError> {
        Ok(0)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
