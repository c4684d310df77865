//! What a fault does when a pager has to be waited for: with nothing held but a reference and a busy placeholder.

use crate::error::FaultError;
use crate::fault::Found;
use crate::frames::{Fill, For};
use crate::index::Slot;
use crate::machine::Machine;
use crate::object::Object;
use crate::page::{Page, State};
use crate::sleep::MaySleep;
use crate::types::PAGE_SIZE;
use core::ptr::NonNull;
use quire_sync::atomic::fence_full;
use quire_sync::epoch::Pinned;

/// A reference on an object, for the time of a sleep.
struct Kept<M: Machine>(NonNull<Object<M>>);

impl<M: Machine> Kept<M> {
    fn new(object: &Object<M>, pin: &Pinned<'_>) -> Option<Self> {
        object.try_ref(pin).then(|| Kept(NonNull::from(object)))
    }
    fn object(&self) -> &Object<M> {
        // SAFETY: the reference keeps it.
        unsafe { self.0.as_ref() }
    }
}

impl<M: Machine> Drop for Kept<M> {
    fn drop(&mut self) {
        let vm = self.object().vm();
        // SAFETY: our own reference.
        unsafe { Object::unref(vm, self.0) }
    }
}

/// A page that only a pager has.
pub(crate) struct PageIn<M: Machine> {
    object: Kept<M>,
    key: u64,
}

impl<M: Machine> PageIn<M> {
    /// `None`: the object is going.
    pub fn new(object: &Object<M>, key: u64, pin: &Pinned<'_>) -> Option<Self> {
        Some(PageIn { object: Kept::new(object, pin)?, key })
    }

    /// Makes the page: a busy placeholder first, so that others wait instead of asking the pager too. The placeholder keeps
    /// nothing but itself busy, and the reference keeps the object.
    pub fn run(self, may: &mut MaySleep) -> Result<(), FaultError> {
        let (object, key) = (self.object.object(), self.key);
        let vm = object.vm();
        let frame = vm.alloc_frame(Fill::Zeroed, For::User)?;
        let pfn = frame.into_pfn();
        let page = vm.page(pfn);
        vm.assume_page(page, object.address(), key, 0);
        let filled = {
            let pin = may.pin(vm.epoch());
            object.index().fill(key, Slot::Page(pfn), vm, &pin)
        };
        if filled.is_err() {
            // Somebody else was first, or there is no memory for the index: the next attempt finds out.
            vm.release_page(page);
            return match filled {
                Err(crate::index::FillError::OutOfMemory) => Err(FaultError::OutOfMemory),
                _ => Ok(()),
            };
        }
        // SAFETY: the frame is a busy placeholder's: nobody else reads or writes it.
        let bytes = unsafe { &mut *vm.machine().frame_ptr(pfn).cast::<[u8; PAGE_SIZE as usize]>() };
        let result = object.pager().map_or(Ok(()), |p| p.fill(key, bytes));
        fence_full();
        // Contract C2, *insert*: a truncation since then waits for this page, or was before and is seen here.
        if result.is_err() || key >= object.end() {
            let pin = may.pin(vm.epoch());
            object.index().clear(key, Slot::Page(pfn), &pin);
            vm.release_page(page);
            return result.map_err(|_| FaultError::Pager);
        }
        page.set(State::VALID);
        vm.enqueue_new(page);
        vm.unbusy(page);
        Ok(())
    }
}

/// A page that is about to become dirty, whose pager wants to know before.
pub(crate) struct WriteHook<M: Machine> {
    object: Kept<M>,
    key: u64,
    page: &'static Page,
    generation: u64,
}

impl<M: Machine> WriteHook<M> {
    /// `None`: nobody has to be asked.
    pub fn needed(found: &Found<'_, M>, pin: &Pinned<'_>) -> Option<Self> {
        if found.object.holes_are_zero() {
            return None;
        }
        let object = Kept::new(found.object, pin)?;
        Some(WriteHook { object, key: found.key, page: found.page, generation: found.state.generation() })
    }

    /// Asks the pager, then marks the page dirty where it still is that page.
    pub fn run(self, may: &mut MaySleep) -> Result<(), FaultError> {
        let object = self.object.object();
        if let Some(pager) = object.pager() {
            pager.make_writable(self.key).map_err(|_| FaultError::Pager)?;
        }
        if self.page.try_busy(self.generation) {
            self.page.set(State::DIRTY);
            let vm = object.vm();
            {
                let pin = may.pin(vm.epoch());
                object.index().tag_dirty(self.key, &pin);
            }
            vm.unbusy(self.page);
        }
        Ok(())
    }
}
