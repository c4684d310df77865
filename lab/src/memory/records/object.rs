//! Objects of the records core: their pages by index, and the shadow chain behind them.

use super::Core;
use crate::Failure;
use crate::memory::kept;
use crate::memory::pages::Frame;
use crate::memory::resident::Resident;
use quire_sync::{Rank, SpinLock, record};
use std::ops::Range;
use std::sync::{Arc, Weak};

struct State {
    pages: Resident,
    resident: u64,
    /// The object whose pages are seen where this object has none. Only anonymous objects have an object behind them.
    behind: Option<Arc<Object>>,
    /// The objects that have this object behind them, or once had.
    shadows: Vec<Weak<Object>>,
    /// The number of faults that hold a page of this object busy and look behind it. While it is not 0,
    /// `collapse` moves no page from the object behind.
    in_progress: u32,
}

/// An object that has pages.
pub struct Object {
    core: &'static Core,
    anonymous: bool,
    state: SpinLock<State>,
}

/// The result of a fault's search: a busy page, whether it belongs to the front object, and whether the fault made it.
pub(super) struct FaultPage {
    pub frame: Frame,
    pub own: bool,
    pub fresh: bool,
}

impl Object {
    /// Makes an object without pages. The pages of `behind` are seen through it.
    pub(super) fn anonymous(core: &'static Core, behind: Option<Arc<Object>>) -> Arc<Object> {
        let object = Self::new(core, true, behind.clone());
        if let Some(behind) = behind.filter(|b| b.anonymous) {
            let shadows = &mut behind.state.lock().shadows;
            shadows.retain(|s| s.strong_count() != 0);
            shadows.push(Arc::downgrade(&object));
        }
        object
    }

    fn new(core: &'static Core, anonymous: bool, behind: Option<Arc<Object>>) -> Arc<Object> {
        let state = State { pages: Resident::default(), resident: 0, behind, shadows: Vec::new(), in_progress: 0 };
        kept(Object { core, anonymous, state: SpinLock::new(Rank::BACKINGS, state) })
    }

    /// Makes a file of `pages` pages, all resident and zeroed.
    pub fn file(core: &'static Core, pages: u64) -> Result<Arc<Object>, Failure> {
        let file = Self::new(core, false, None);
        for key in 0..pages {
            let frame = core.take(key)?;
            // SAFETY: `take` just allocated the frame for this thread, and it is mapped nowhere yet.
            unsafe { core.zero(frame) };
            let mut state = file.state.lock();
            state.pages.set(key, Some(frame));
            state.resident += 1;
            drop(state);
            core.enqueue(frame);
        }
        Ok(file)
    }

    /// Whether the object is anonymous and has exactly one reference.
    pub(super) fn only_one(self: &Arc<Object>) -> bool {
        self.anonymous && Arc::strong_count(self) == 1
    }

    /// Finds the page that is seen at `key`, and makes it busy. For a store, the page belongs to this object, and is
    /// copied or zeroed if needed. For a load, the page may belong to an object behind. If no object has one, a zeroed
    /// page is made in this object.
    pub(super) fn find(self: &Arc<Object>, key: u64, store: bool) -> Result<FaultPage, Failure> {
        let core = self.core;
        loop {
            let mut state = self.state.lock();
            if let Some(frame) = state.pages.get(key) {
                if core.try_busy(frame) {
                    return Ok(FaultPage { frame, own: true, fresh: false });
                }
                drop(state);
                core.wait_unbusy(frame);
                continue;
            }
            if !store && let Some(behind) = state.behind.clone() {
                drop(state);
                if let Some(frame) = Self::seen(behind, key) {
                    return Ok(FaultPage { frame, own: false, fresh: false });
                }
                // No object behind has the page, so a zeroed page is made, as for a store.
                state = self.state.lock();
                if state.pages.get(key).is_some() {
                    continue;
                }
            }
            // A busy page is put into the slot, so that the lock can be released before the page is filled.
            drop(state);
            let frame = core.take(key)?;
            let mut state = self.state.lock();
            if state.pages.get(key).is_some() {
                drop(state);
                core.free(frame);
                continue;
            }
            let busied = core.try_busy(frame);
            debug_assert!(busied, "a free frame is not busy");
            state.pages.set(key, Some(frame));
            state.resident += 1;
            state.in_progress += 1;
            record::wrote(&state.resident);
            let behind = state.behind.clone();
            drop(state);
            match behind.and_then(|b| Self::seen(b, key)) {
                Some(source) => {
                    // SAFETY: `frame` is busy and mapped nowhere yet.
                    unsafe { core.copy(source, frame) };
                    core.unbusy(source);
                }
                // SAFETY: this fault allocated `frame` and holds it busy, and it is mapped nowhere yet.
                None => unsafe { core.zero(frame) },
            }
            self.state.lock().in_progress -= 1;
            core.enqueue(frame);
            return Ok(FaultPage { frame, own: true, fresh: true });
        }
    }

    /// Makes pages of this object in a range busy, except pages that are held already. Returns the number of pages
    /// found, which is at most the length of `found`.
    pub(super) fn near(&self, keys: Range<u64>, found: &mut [(u64, Frame)]) -> usize {
        let state = self.state.lock();
        let mut n = 0;
        for key in keys {
            if let Some(frame) = state.pages.get(key)
                && n < found.len()
                && self.core.try_busy(frame)
            {
                found[n] = (key, frame);
                n += 1;
            }
        }
        n
    }

    /// The page that is seen at `key` from the object `first` on, made busy.
    fn seen(first: Arc<Object>, key: u64) -> Option<Frame> {
        let mut at = first;
        loop {
            let state = at.state.lock();
            match state.pages.get(key) {
                Some(frame) if at.core.try_busy(frame) => return Some(frame),
                Some(frame) => {
                    drop(state);
                    at.core.wait_unbusy(frame);
                }
                None => {
                    let behind = state.behind.clone()?;
                    drop(state);
                    at = behind;
                }
            }
        }
    }

    /// Drops a space's reference. If then exactly one object has this object behind it, this object is collapsed into
    /// that object.
    pub(super) fn release(mut self: Arc<Object>) {
        loop {
            let left = Arc::downgrade(&self);
            // If this is the last reference, the object moves out of its allocation, and a later object may get that
            // memory.
            self.state.leaves_its_place();
            if let Some(object) = Arc::into_inner(self) {
                let behind = object.state.lock().behind.take();
                let Some(behind) = behind else { return };
                self = behind;
                continue;
            }
            // The count is checked after the reference is dropped. So if two references are dropped at once, at least
            // one of the two CPUs sees the count 1.
            if left.strong_count() == 1
                && let Some(shadow) = left.upgrade().and_then(|o| o.state.lock().shadows.iter().find_map(Weak::upgrade))
            {
                shadow.collapse();
            }
            return;
        }
    }

    /// Collapses the chain. If this object alone refers to the anonymous object behind it, that object's pages move to
    /// this object, and hidden pages are freed. This is repeated with the next object behind. Returns the number of
    /// pages visited.
    pub(super) fn collapse(self: &Arc<Object>) -> u64 {
        let mut looked = 0;
        loop {
            let mut state = self.state.lock();
            let Some(behind) = state.behind.clone() else { return looked };
            // The two references are this object's own, and the clone that was just made.
            if !behind.anonymous || state.in_progress != 0 || Arc::strong_count(&behind) != 2 {
                return looked;
            }
            let mut other = behind.state.lock_nested();
            let all: Vec<(u64, Frame)> = other.pages.all().collect();
            let hidden: Vec<Frame> =
                all.iter().filter(|(key, _)| state.pages.get(*key).is_some()).map(|(_, f)| *f).collect();
            // Hidden pages are made busy first, so that no fault is mapping a page that is freed.
            let busied = hidden.iter().take_while(|f| self.core.try_busy(**f)).count();
            if other.in_progress != 0 || busied != hidden.len() {
                hidden[..busied].iter().for_each(|f| self.core.unbusy(*f));
                return looked;
            }
            looked += all.len() as u64;
            for (key, frame) in all {
                if state.pages.get(key).is_none() {
                    state.pages.set(key, Some(frame));
                    state.resident += 1;
                }
            }
            other.pages = Resident::default();
            other.resident = 0;
            state.behind = other.behind.take();
            drop(other);
            if let Some(behind) = &state.behind {
                behind.state.lock_nested().shadows.push(Arc::downgrade(self));
            }
            drop(state);
            hidden.into_iter().for_each(|frame| self.core.destroy(frame));
        }
    }

    /// Removes pages from the object and from every space that maps them. Returns the number of removed pages.
    pub fn remove(&self, keys: Range<u64>) -> u64 {
        let mut removed = 0;
        for key in keys {
            loop {
                let mut state = self.state.lock();
                let Some(frame) = state.pages.get(key) else { break };
                if !self.core.try_busy(frame) {
                    drop(state);
                    self.core.wait_unbusy(frame);
                    continue;
                }
                state.pages.set(key, None);
                state.resident -= 1;
                drop(state);
                self.core.destroy(frame);
                removed += 1;
                break;
            }
        }
        removed
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        let (pages, behind) = {
            let mut state = self.state.lock();
            (std::mem::take(&mut state.pages), state.behind.take())
        };
        for (_, frame) in pages.all() {
            while !self.core.try_busy(frame) {
                self.core.wait_unbusy(frame);
            }
            self.core.destroy(frame);
        }
        // The release is a loop, not a recursion, so that a long chain does not overflow the stack.
        if let Some(behind) = behind {
            behind.release();
        }
    }
}
