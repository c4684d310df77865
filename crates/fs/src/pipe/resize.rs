//! The size of a pipe's ring, and its changes.
//!
//! The page at position `p` is slot `p / PAGE_SIZE % size` of the ring. The bytes of a nearly full ring can begin and
//! end in the same page: the last bytes are then in the front part of the page. In a larger ring the two parts have
//! separate pages. In a smaller ring, two parts can share a page.

use super::{DEFAULT, Large, Mark, Pipe, PipeEnd, RingPage, Slot};
use crate::FsError;
use crate::host::{Host, PAGE_SIZE};
use quire_heap::{Room, Vec};
use quire_sync::Mutex;
use quire_sync::atomic::Ordering;

impl<H: Host> PipeEnd<H> {
    /// The pipe's capacity in bytes.
    pub fn capacity(&self) -> usize {
        self.pipe.capacity()
    }

    /// Resizes the ring to `pages` pages, a power of two. The bytes in the ring stay, in their order. Fails with
    /// [`FsError::NotPermitted`] if the ring would grow to more than `most` pages, and with [`FsError::Busy`] if its
    /// bytes do not fit.
    pub fn resize(&self, pages: usize, most: usize) -> Result<(), FsError> {
        if !pages.is_power_of_two() {
            return Err(FsError::Invalid);
        }
        self.pipe.resize(pages, most)?;
        // Writers may have more room now.
        self.pipe.readiness.notify();
        Ok(())
    }
}

impl<H: Host> Pipe<H> {
    fn resize(&self, pages: usize, most: usize) -> Result<(), FsError> {
        let (mut reader, mut writer) = (self.reader.lock(), self.writer.lock());
        let before = self.ring(&writer.large).len();
        if pages > before && pages > most {
            return Err(FsError::NotPermitted);
        }
        // A larger ring is charged before the move, a smaller one after it, because a smaller charge cannot fail.
        let mut charge = writer.charge.take();
        let mut pays = |pages| charge.as_mut().is_none_or(|charge| self.host.recharge_pipe(charge, pages));
        let may = pages <= before || pays(pages);
        let done = if may { self.move_to(pages, &mut reader, &mut writer.large) } else { Err(FsError::NotPermitted) };
        if may && (pages > before) != done.is_ok() {
            pays(pages.min(before));
        }
        writer.charge = charge;
        drop((reader, writer));
        // The old ring is dropped after both locks are released.
        done.map(drop)
    }

    /// Moves the bytes to a ring of `pages` pages, and returns the old ring. The caller holds both locks.
    fn move_to(&self, pages: usize, reader: &mut Large<H>, writer: &mut Large<H>) -> Result<[Large<H>; 2], FsError> {
        let old = self.ring(writer);
        let mut large = large::<H>(pages)?;
        let (read, written) = (self.read.load(Ordering::Relaxed), self.written.load(Ordering::Relaxed));
        if written - read > (pages * PAGE_SIZE) as u64 {
            return Err(FsError::Busy);
        }
        let first = read as usize / PAGE_SIZE;
        let used = if read == written { 0 } else { (written as usize).div_ceil(PAGE_SIZE) - first };
        let mut kept = Vec::try_with_capacity(used)?;
        // The first and the last bytes share one page of the old ring, so they need one more page now.
        let parted = if used > old.len() { Some(self.host.page().ok_or(FsError::OutOfMemory)?) } else { None };

        // Nothing fails from here on.
        (first..first + used).for_each(|number| {
            let mut slot = old[number & (old.len() - 1)].lock();
            kept.push_reserved(RingPage { page: slot.page.take(), mark: slot.mark });
        });
        old.iter().for_each(|slot| *slot.lock() = RingPage::EMPTY);
        let head = written as usize % PAGE_SIZE;
        if let Some(mut parted) = parted {
            copy_head(&mut parted, kept.first().and_then(|first| first.page.as_ref()), head);
            kept.pop();
            kept.push_reserved(RingPage { page: Some(parted), mark: Mark::NONE });
        }
        if used > pages {
            // The last bytes belong to a stream, because a packet fills its page. So the first page's mark stays valid.
            let last = kept.pop().and_then(|last| last.page);
            if let Some(page) = kept.first_mut().and_then(|first| first.page.as_mut()) {
                copy_head(page, last.as_ref(), head);
            }
        }
        while let Some(place) = kept.pop() {
            let at = (first + kept.len()) & (pages - 1);
            match &mut large {
                Some((_, ring)) => *ring[at].get_mut() = place,
                None => *self.pages[at].lock() = place,
            }
        }
        let large = large.map(|(room, ring)| room.fill(ring));
        self.size.store(pages, Ordering::Release);
        Ok([core::mem::replace(reader, large.clone()), core::mem::replace(writer, large)])
    }
}

/// A ring that no thread sees yet, and the memory for its reference count.
type NewRing<H> = (Room<Vec<Slot<H>>>, Vec<Slot<H>>);

/// Allocates a ring of `pages` pages. `None` if the ring is small enough to be part of the pipe.
fn large<H: Host>(pages: usize) -> Result<Option<NewRing<H>>, FsError> {
    if pages <= DEFAULT {
        return Ok(None);
    }
    let mut ring: Vec<Slot<H>> = Vec::try_with_capacity(pages)?;
    (0..pages).for_each(|_| ring.push_reserved(Mutex::new(RingPage::EMPTY)));
    Ok(Some((Room::try_new()?, ring)))
}

/// Copies the first `len` bytes of `from`, which exists if bytes were written.
fn copy_head<P: core::ops::DerefMut<Target = [u8]>>(to: &mut P, from: Option<&P>, len: usize) {
    if let Some(from) = from {
        to[..len].copy_from_slice(&from[..len]);
    }
}
