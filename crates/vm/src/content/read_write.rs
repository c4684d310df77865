//! Reads and writes of an object's content, for `read` and `write` on a file.
//!
//! Content is transferred page by page. While the caller's function runs, this thread has a *hold* on the page, which
//! keeps its frame. The page is not busy. So the function may sleep and may fault, even on a mapping of the same page.

use crate::content::remove;
use crate::error::{FaultError, OutOfMemory};
use crate::machine::{FrameBytes, FrameBytesMut, Machine};
use crate::object::Objects;
use crate::object::index::{FillError, KEYS, Slot};
use crate::object::{Charge, NoRoom};
use crate::object::{Object, ObjectRef};
use crate::paging::laundry;
use crate::paging::page_in::PageIn;
use crate::paging::pager::PagerError;
use crate::phys::frames::{Fill, Frame};
use crate::phys::page::{Page, State};
use crate::sleep::MaySleep;
use crate::types::{PAGE_SHIFT, PAGE_SIZE};
use core::ops::Range;
use quire_sync::atomic::{Ordering, fence_full};

/// The reason why a read or a write transferred no byte. A call that has transferred bytes returns their number instead
/// of an error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum IoError<E> {
    /// No frame is free for a page.
    OutOfMemory,
    /// The pager could not read a page, or refused to make it writable, for this reason.
    Pager(PagerError),
    /// The object's file system has no room for a page.
    NoRoom,
    /// The offset is beyond what an object can have, or beyond the object's end.
    TooLarge,
    /// The caller's function returned this.
    Caller(E),
}

impl<E> From<OutOfMemory> for IoError<E> {
    fn from(_: OutOfMemory) -> Self {
        IoError::OutOfMemory
    }
}
impl<E> From<NoRoom> for IoError<E> {
    fn from(_: NoRoom) -> Self {
        IoError::NoRoom
    }
}
impl<E> From<PagerError> for IoError<E> {
    fn from(error: PagerError) -> Self {
        IoError::Pager(error)
    }
}

/// How often a truncation reads the last page again if a read fails.
const TAIL_READS: u32 = 16;

static ZEROES: [u64; PAGE_SIZE as usize / 8] = [0; PAGE_SIZE as usize / 8];

/// A hold on a page. A drop releases it.
struct HeldPage<'a, M: Machine> {
    object: &'a Object<M>,
    page: &'static Page,
}

impl<M: Machine> HeldPage<'_, M> {
    fn bytes(&self) -> *mut u8 {
        let vm = self.object.vm();
        vm.machine().frame_ptr(vm.pfn_of_page(self.page))
    }
}

/// A frame that is not in an index yet. Dropping the value frees it, also when the caller's function panics.
struct NewFrame<'a, M: Machine> {
    vm: &'a Objects<M>,
    frame: Option<Frame>,
}

impl<M: Machine> Drop for NewFrame<'_, M> {
    fn drop(&mut self) {
        if let Some(frame) = self.frame.take() {
            self.vm.return_frame(frame);
        }
    }
}

impl<M: Machine> Drop for HeldPage<'_, M> {
    fn drop(&mut self) {
        self.object.vm().unhold_page(self.page);
    }
}

/// Acquires a hold on the page at `key`. Reads the page in if it is in swap. The page was valid when the hold was
/// acquired. `None` means a hole.
fn resident<'a, M: Machine>(
    object: &'a Object<M>,
    key: u64,
    may: &mut MaySleep,
) -> Result<Option<HeldPage<'a, M>>, IoError<()>> {
    let vm = object.vm();
    loop {
        let mut swapped = None;
        let busy = {
            let pin = may.pin(vm.epoch());
            match object.index().get(key, &pin) {
                Slot::Page(pfn) => {
                    let page = vm.page(pfn);
                    if page.try_hold() {
                        let held = HeldPage { object, page };
                        let state = page.state();
                        // The page is checked after its hold was acquired, because the frame is not reused from then
                        // on.
                        if !state.busy() && state.valid() && page.object() == object.address() && page.index() == key {
                            return Ok(Some(held));
                        }
                        drop(held);
                        Some(page)
                    } else {
                        None
                    }
                }
                Slot::Reserved => None,
                Slot::Swap(slot) => {
                    swapped = PageIn::swapped(object, key, slot, &pin);
                    None
                }
                _ => return Ok(None),
            }
        };
        match (busy, swapped) {
            (Some(page), _) => vm.wait_unbusy(page, may),
            (None, Some(read)) => run(vm, read, may)?,
            (None, None) => quire_sync::hooks::relax(),
        }
    }
}

/// Reads a page in, or waits until memory is free for it. After `Ok` the caller looks for the page again.
fn run<M: Machine>(vm: &'static Objects<M>, read: PageIn<M>, may: &mut MaySleep) -> Result<(), IoError<()>> {
    match read.run(may) {
        Ok(()) => Ok(()),
        Err(FaultError::OutOfMemory) if vm.wait_for_memory(may) => Ok(()),
        Err(FaultError::OutOfMemory) => Err(IoError::OutOfMemory),
        Err(FaultError::Pager(error)) => Err(IoError::Pager(error)),
        Err(_) => Err(IoError::Pager(PagerError::Failed)),
    }
}

/// Acquires a hold on the page at `key`. If there is no page, reads it from the pager, or makes one of zeroes.
///
/// The pager's copy is read as in a fault, behind a busy placeholder in the index. Without the placeholder the copy
/// could be outdated before it is put into the index. Another thread could read the page too and change it, and pageout
/// could write and evict that page.
fn present<'a, M: Machine>(
    object: &'a Object<M>,
    key: u64,
    may: &mut MaySleep,
) -> Result<HeldPage<'a, M>, IoError<()>> {
    let vm = object.vm();
    loop {
        if let Some(held) = resident(object, key, may)? {
            return Ok(held);
        }
        if object.holes_are_zero() {
            break;
        }
        if key >= object.end() {
            return Err(IoError::TooLarge);
        }
        let read = PageIn::new(object, key, &may.pin(vm.epoch()));
        if let Some(read) = read {
            run(vm, read, may)?;
        }
    }
    let charge = object.charge(1)?;
    let frame = vm.alloc_frame_waiting(Fill::Zeroed, may)?;
    match add(object, key, frame, 0, charge, may)? {
        Added::Ours(held) => {
            // A truncation that did not see the page wrote the size before this check (relies on C2: insert, fence,
            // then check).
            fence_full();
            if key >= object.end() {
                drop(held);
                remove::remove_pages(object, key..key + 1, may);
                return Err(IoError::TooLarge);
            }
            Ok(held)
        }
        Added::Theirs { theirs, .. } => Ok(theirs),
    }
}

/// The outcome of [`add`].
enum Added<'a, M: Machine> {
    /// The frame became the page.
    Ours(HeldPage<'a, M>),
    /// Another thread made the page first. The new frame is freed when `ours` is dropped.
    Theirs { theirs: HeldPage<'a, M>, ours: HeldPage<'a, M> },
}

/// Makes `frame`, which has its content, the valid page `key`, if the object has no page with that number.
fn add<'a, M: Machine>(
    object: &'a Object<M>,
    key: u64,
    frame: Frame,
    bits: u64,
    charge: Charge,
    may: &mut MaySleep,
) -> Result<Added<'a, M>, IoError<()>> {
    let vm = object.vm();
    let pfn = frame.into_pfn();
    let page = vm.page(pfn);
    vm.assume_page(page, object.address(), key, object.page_bits() | State::VALID | bits);
    let held = page.try_hold();
    debug_assert!(held, "a page with an identity can be held");
    let ours = HeldPage { object, page };
    let error = loop {
        let filled = {
            let pin = may.pin(vm.epoch());
            let filled = object.index().fill(key, Slot::Page(pfn), vm, &pin);
            if filled.is_ok() && bits & State::DIRTY != 0 {
                object.index().tag_dirty(key, &pin);
            }
            filled
        };
        match filled {
            Ok(()) => {
                charge.keep();
                fence_full();
                object.hole_is_filled(key);
                vm.enqueue_new(page);
                vm.unbusy(page);
                return Ok(Added::Ours(ours));
            }
            Err(FillError::OutOfMemory) => break IoError::OutOfMemory,
            Err(FillError::BeyondKeys | FillError::Gone) => break IoError::TooLarge,
            // Another thread has filled the slot. Its page may be removed before this thread finds it. (This thread's
            // page stays busy during the wait. No thread waits for it, because it is in no index.)
            Err(FillError::Taken(_)) => match resident(object, key, may) {
                Ok(Some(theirs)) => {
                    vm.release_page(page);
                    return Ok(Added::Theirs { theirs, ours });
                }
                Ok(None) => {}
                Err(e) => break e,
            },
        }
    };
    vm.release_page(page);
    Err(error)
}

/// Marks a clean page dirty, before its memory is written. Before that it calls the pager's hook, which may fail
/// (relies on C2: a page is marked dirty before its content changes).
fn make_dirty<M: Machine>(held: &HeldPage<'_, M>, key: u64, may: &mut MaySleep) -> Result<(), PagerError> {
    let (object, page) = (held.object, held.page);
    if page.state().dirty() {
        return Ok(());
    }
    if let Some(pager) = object.pager().filter(|p| !p.in_memory()) {
        pager.make_writable(key)?;
        object.count_dirty();
    }
    laundry::mark_dirty(object, key, page, &may.pin(object.vm().epoch()));
    Ok(())
}

/// Zeroes the bytes from offset `bytes` to the end of the page that contains this offset. `bytes` is the object's size
/// before or after a change.
pub(super) fn zero_tail<M: Machine>(object: &Object<M>, bytes: u64, may: &mut MaySleep) {
    let key = bytes >> PAGE_SHIFT;
    let mut find = || match object.holes_are_zero() {
        true => resident(object, key, may),
        false => present(object, key, may).map(Some),
    };
    let mut held = find();
    for _ in 0..TAIL_READS {
        if held.is_ok() {
            break;
        }
        held = find();
    }
    // If the page cannot be read, it is left as it is, because other threads cannot read it either.
    if let Ok(Some(held)) = held {
        // The page must become dirty, so that the old bytes in swap or at the pager do not reappear if the object grows
        // again. If the pager has no room for the page, the write to the pager fails, and `fsync` returns that error.
        if make_dirty(&held, key, may).is_err() {
            laundry::mark_dirty(object, key, held.page, &may.pin(object.vm().epoch()));
        }
        let from = (bytes % PAGE_SIZE) as usize;
        // SAFETY: the access lies within the frame, which is held. Programs that map the page may race with this
        // access, as they race with each other.
        unsafe { crate::machine::bytes::fill(held.bytes().add(from), 0, PAGE_SIZE as usize - from) };
    }
}

impl<M: Machine> ObjectRef<M> {
    /// Reads up to `len` bytes from `offset`, within the object's size, page by page into `sink`. `sink` returns how
    /// many bytes it took; fewer than offered end the read. Holes read as zeroes and stay holes. Returns how many bytes
    /// were taken. May sleep; so may `sink`. Writers may change the bytes while `sink` runs, so it gets
    /// [copies](FrameBytes) of them and no slice.
    pub fn read<E>(
        &self,
        offset: u64,
        len: usize,
        sink: &mut dyn FnMut(FrameBytes<'_>) -> Result<usize, E>,
    ) -> Result<usize, IoError<E>> {
        if self.device().is_some() {
            return Err(IoError::Pager(PagerError::Device));
        }
        let mut may = MaySleep::here();
        let mut done = 0;
        while done < len {
            let size = self.size();
            let at = match offset.checked_add(done as u64) {
                Some(at) if at < size => at,
                _ => break,
            };
            let (key, within) = (at >> PAGE_SHIFT, (at % PAGE_SIZE) as usize);
            let n = (PAGE_SIZE as usize - within).min(len - done).min((size - at).min(PAGE_SIZE) as usize);
            let found = match resident(self, key, &mut may) {
                Ok(found) => found,
                Err(_) if done > 0 => break,
                Err(e) => return Err(e.of_caller()),
            };
            let held = match found {
                None if self.holes_are_zero() => None,
                Some(held) => Some(held),
                None => match present(self, key, &mut may) {
                    Ok(held) => Some(held),
                    Err(IoError::TooLarge) => break,
                    Err(_) if done > 0 => break,
                    Err(e) => return Err(e.of_caller()),
                },
            };
            let took = match &held {
                // SAFETY: `n` is at most a page, and the zeroes are never stored into.
                None => sink(unsafe { FrameBytes::new(ZEROES.as_ptr().cast(), n) }),
                // SAFETY: within the frame, which is held. Other threads and programs that store into it meanwhile race
                // with the sink's atomic loads.
                Some(held) => sink(unsafe { FrameBytes::new(held.bytes().add(within), n) }),
            };
            match took {
                Ok(took) => {
                    done += took.min(n);
                    if took < n {
                        break;
                    }
                }
                Err(_) if done > 0 => break,
                Err(e) => return Err(IoError::Caller(e)),
            }
        }
        Ok(done)
    }

    /// Writes up to `len` bytes at `offset`, page by page from `source`, which returns how many bytes it gave. If it
    /// gave too few, it is called again, and the write ends only after it gave none. Its bytes may be of this very
    /// object, which has grown by then. Holes are filled; the size grows to the end of the written bytes. Returns how
    /// many bytes were written. May sleep; so may `source`. Other writers may store into the same bytes while `source`
    /// runs, so it gets a [target of copies](FrameBytesMut) and no slice.
    pub fn write<E>(
        &self,
        offset: u64,
        len: usize,
        source: &mut dyn FnMut(FrameBytesMut<'_>) -> Result<usize, E>,
    ) -> Result<usize, IoError<E>> {
        if self.device().is_some() {
            return Err(IoError::Pager(PagerError::Device));
        }
        let mut may = MaySleep::here();
        let mut done = 0;
        let old = self.size();
        if offset > old && !old.is_multiple_of(PAGE_SIZE) && len > 0 {
            // The bytes between the old end and `offset` become part of the file, so they must be zeroes, as in
            // `set_size`.
            zero_tail(self, old, &mut may);
        }
        while done < len {
            // The last page of all offsets is left out, because its end is beyond every size.
            let Some(at) = offset.checked_add(done as u64).filter(|at| at >> PAGE_SHIFT < KEYS - 1) else {
                if done > 0 {
                    break;
                }
                return Err(IoError::TooLarge);
            };
            let (key, within) = (at >> PAGE_SHIFT, (at % PAGE_SIZE) as usize);
            let n = (PAGE_SIZE as usize - within).min(len - done);
            let gave = match self.write_page(key, within, n, source, &mut may) {
                Ok(gave) => gave.min(n),
                Err(_) if done > 0 => break,
                Err(e) => return Err(e),
            };
            done += gave;
            // Most writes lie within the size. Then its cache line, which other CPUs read, is not written.
            if at + gave as u64 > self.size() {
                self.size.fetch_max(at + gave as u64, Ordering::AcqRel);
            }
            if gave == 0 {
                break;
            }
        }
        Ok(done)
    }

    /// Allocates a dirty page for each of `pages` and charges it, so that pageout does not turn it into a hole. Charges
    /// nothing if the file system has no room for all. If memory is exhausted, pages made so far stay. May sleep.
    pub fn allocate(&self, pages: Range<u64>) -> Result<(), IoError<()>> {
        let vm = self.vm();
        let mut may = MaySleep::here();
        let (first, end) = (pages.start, pages.end.min(KEYS));
        let there = self.index().count(first..end, &may.pin(vm.epoch()));
        let mut charge = self.charge(end.saturating_sub(first).saturating_sub(there))?;
        for key in first..end {
            loop {
                let found = self.index().get(key, &may.pin(vm.epoch()));
                match found {
                    Slot::Swap(_) => break,
                    Slot::Page(_) => {
                        // The page must be dirty, because pageout turns a clean page of zeroes into a hole.
                        let Some(held) = resident(self, key, &mut may)? else { continue };
                        make_dirty(&held, key, &mut may)?;
                        break;
                    }
                    Slot::Reserved => quire_sync::hooks::relax(),
                    Slot::Empty | Slot::ZeroMarker => {
                        // The charge is exhausted if a page has become a hole since the pages were counted.
                        let one = match charge.split() {
                            Some(one) => one,
                            None => self.charge(1)?,
                        };
                        let frame = vm.alloc_frame_waiting(Fill::Zeroed, &mut may)?;
                        if let Added::Theirs { theirs, .. } = add(self, key, frame, State::DIRTY, one, &mut may)? {
                            make_dirty(&theirs, key, &mut may)?;
                        }
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    /// Zeroes the bytes `range`. Holes stay holes. May sleep.
    pub fn zero(&self, range: Range<u64>) -> Result<(), IoError<()>> {
        let mut may = MaySleep::here();
        let mut at = range.start;
        while at < range.end {
            let (key, within) = (at >> PAGE_SHIFT, at % PAGE_SIZE);
            let n = (PAGE_SIZE - within).min(range.end - at);
            let held = match self.holes_are_zero() {
                true => resident(self, key, &mut may)?,
                false => {
                    self.wait_to_dirty(&mut may)?;
                    Some(present(self, key, &mut may)?)
                }
            };
            let Some(held) = held else {
                // All holes up to the next page are skipped in one step, because a range from a program may have 2^52
                // of them.
                let Some(next) = self.next_page(key + 1) else { break };
                at = next << PAGE_SHIFT;
                continue;
            };
            make_dirty(&held, key, &mut may)?;
            // SAFETY: the access lies within the frame, which is held. Programs that map the page may race with this
            // access, as they race with each other.
            unsafe { crate::machine::bytes::fill(held.bytes().add(within as usize), 0, n as usize) };
            at += n;
        }
        Ok(())
    }

    fn write_page<E>(
        &self,
        key: u64,
        within: usize,
        n: usize,
        source: &mut dyn FnMut(FrameBytesMut<'_>) -> Result<usize, E>,
        may: &mut MaySleep,
    ) -> Result<usize, IoError<E>> {
        let vm = self.vm();
        // Usually the page is resident, and one lookup suffices.
        let held = match self.holes_are_zero() {
            true => resident(self, key, may),
            false => {
                self.wait_to_dirty(may)?;
                present(self, key, may).map(Some)
            }
        };
        let Some(held) = held.map_err(IoError::of_caller)? else {
            let charge = self.charge(1)?;
            // A new page is filled before any thread can see it, so a page that is written as a whole is not zeroed
            // first.
            let whole = n == PAGE_SIZE as usize;
            let frame = vm.alloc_frame_waiting(if whole { Fill::Any } else { Fill::Zeroed }, may)?;
            let bytes = vm.machine().frame_ptr(frame.pfn());
            let mut new = NewFrame { vm, frame: Some(frame) };
            // SAFETY: within the frame, which is ours alone.
            let gave = match source(unsafe { FrameBytesMut::new(bytes.add(within), n) }) {
                Ok(gave) if gave > 0 => gave.min(n),
                end => return end.map_err(IoError::Caller),
            };
            if whole && gave < n {
                // SAFETY: a whole page is written from its first byte on, so the rest lies within the frame, which no
                // index has yet.
                unsafe { core::ptr::write_bytes(bytes.add(gave), 0, n - gave) };
            }
            let Some(frame) = new.frame.take() else { return Err(IoError::OutOfMemory) };
            match add(self, key, frame, State::DIRTY, charge, may).map_err(IoError::of_caller)? {
                Added::Ours(_) => {}
                Added::Theirs { theirs, ours } => {
                    make_dirty(&theirs, key, may)?;
                    // SAFETY: both frames are held, and differ: one is in the index, the other is not.
                    unsafe {
                        let (from, to) = (ours.bytes().add(within), theirs.bytes().add(within));
                        crate::machine::bytes::copy(from, to, gave);
                    }
                }
            }
            return Ok(gave);
        };
        make_dirty(&held, key, may)?;
        // SAFETY: within the frame, which is held. Programs that map the page, and other writers, race with the source's
        // atomic stores.
        source(unsafe { FrameBytesMut::new(held.bytes().add(within), n) }).map_err(IoError::Caller)
    }
}

impl IoError<()> {
    /// The same error for a caller whose own errors are of another type.
    pub fn of_caller<E>(self) -> IoError<E> {
        match self {
            IoError::OutOfMemory | IoError::Caller(()) => IoError::OutOfMemory,
            IoError::Pager(error) => IoError::Pager(error),
            IoError::NoRoom => IoError::NoRoom,
            IoError::TooLarge => IoError::TooLarge,
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
