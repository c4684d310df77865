//! Swap slots: adds the swap store, and frees the slots of resident pages.

use super::laundry;
use super::swap::*;
use crate::machine::Machine;
use crate::object::Object;
use crate::object::Objects;
use crate::paging::io::Polled;
use crate::paging::pager::SwapStore;
use crate::phys::frames::For;
use crate::phys::page::Page;
use crate::sleep::MaySleep;
use crate::stats::Event;
use crate::types::PAGE_SIZE;
use crate::types::Pfn;
use quire_sync::atomic::Ordering;
use quire_sync::epoch::Pinned;

impl<M: Machine> Objects<M> {
    /// Frees the swap slot of a resident page if slots are scarce. The page is dirty afterwards. Does nothing if the
    /// page is busy.
    pub(crate) fn give_slot_back(&self, object: &Object<M>, key: u64, page: &Page, may: &MaySleep) {
        if page.swap_slot().is_none() || !self.swap().is_scarce() || self.try_busy_page(object, key, page).is_none() {
            return;
        }
        let state = page.state();
        if state.valid() && !state.laundering() {
            self.release_slot(object, key, page, &may.pin(self.epoch()));
        }
        self.unbusy(page);
    }

    /// Frees the slot of a resident page. From then on the frame has the only copy of the page.
    ///
    /// # Requires
    /// The page is busy and not being written.
    pub(crate) fn release_slot(&self, object: &Object<M>, key: u64, page: &Page, pin: &Pinned<'_>) {
        if page.swap_slot().is_none() {
            return;
        }
        // The page is marked dirty first, because a clean page without a slot counts as never stored into.
        laundry::mark_dirty(object, key, page, pin);
        if let Some(first) = page.take_swap_slot() {
            self.swap().release(SwapSlots { first, len: 1 });
        }
    }

    /// Registers `store`: from now on, pages of anonymous memory and of files in memory are written to it when memory
    /// is short. It can be called only once.
    pub fn add_swap(&self, store: &'static dyn SwapStore) -> Result<(), SwapError> {
        let swap = self.swap();
        if swap.ready.load(Ordering::Acquire) {
            return Err(SwapError::Exists);
        }
        let slots = store.slots();
        let words = slots.div_ceil(64) as usize;
        let frames = (words as u64 * 8).div_ceil(PAGE_SIZE).max(1);
        let order = frames.next_power_of_two().ilog2() as u8;
        let memory = self.alloc_run(order, For::Kernel).map_err(|_| SwapError::OutOfMemory)?;
        self.stats().add(Event::BufferPage, 1 << order);
        let at = self.machine().frame_ptr(memory.pfn()).cast::<u64>();
        // SAFETY: the run has a bit for each slot. It was allocated by this call, and is never freed once it is the
        // bitmap.
        let map = unsafe {
            core::ptr::write_bytes(at, 0, words);
            core::slice::from_raw_parts_mut(at, words)
        };
        if let Some(last) = map.last_mut()
            && !slots.is_multiple_of(64)
        {
            *last = u64::MAX << (slots % 64);
        }
        let mut bitmap = swap.bitmap.lock();
        if swap.ready.load(Ordering::Acquire) {
            drop(bitmap);
            self.return_run(memory, order);
            self.stats().add(Event::BufferPageGone, 1 << order);
            return Err(SwapError::Exists);
        }
        bitmap.words = map;
        let _kept: Pfn = memory.into_pfn();
        // SAFETY: readers read the word only after they have seen `ready`, which is not set yet. The bitmap's lock
        // excludes other writers.
        unsafe { *swap.store.get() = Some(store) };
        swap.total.store(slots, Ordering::Relaxed);
        swap.free.store(slots, Ordering::Relaxed);
        swap.ready.store(true, Ordering::Release);
        Ok(())
    }

    /// Registers `store` like [`Objects::add_swap`](crate::object::Objects::add_swap), and polls it from now on.
    pub fn add_polled_swap<S: SwapStore + Polled>(&self, store: &'static S) -> Result<(), SwapError> {
        self.poll_with(store).map_err(|_| SwapError::Exists)?;
        self.add_swap(store)
    }
}
