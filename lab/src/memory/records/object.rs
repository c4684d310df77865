//! Objects: pages by index, and the shadow chain behind them.

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
    /// The object seen where this one has no page. Only anonymous objects have one behind them.
    behind: Option<Arc<Object>>,
    /// The objects that have or had this one behind them.
    shadows: Vec<Weak<Object>>,
    /// Faults that hold a page of this busy and look behind it: meanwhile no page behind is moved.
    in_progress: u32,
}

/// A thing that has pages.
pub struct Object {
    core: &'static Core,
    anonymous: bool,
    state: SpinLock<State>,
}

/// The result of a fault's search: a busy page, and whether it belongs to the front object.
pub(super) struct FaultPage {
    pub frame: Frame,
    pub own: bool,
    pub fresh: bool,
}

impl Object {
    /// An object without pages; `behind` is seen through it.
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

    /// A file of so many pages, all resident and zero.
    pub fn file(core: &'static Core, pages: u64) -> Result<Arc<Object>, Failure> {
        let file = Self::new(core, false, None);
        for key in 0..pages {
            let frame = core.take(key)?;
            // SAFETY: `take` just gave the frame to this thread, and it is mapped nowhere yet.
            unsafe { core.zero(frame) };
            let mut state = file.state.lock();
            state.pages.set(key, Some(frame));
            state.resident += 1;
            drop(state);
            core.enqueue(frame);
        }
        Ok(file)
    }

    /// Whether this anonymous object has exactly one reference.
    pub(super) fn only_one(self: &Arc<Object>) -> bool {
        self.anonymous && Arc::strong_count(self) == 1
    }

    /// The page that is seen at `key`, busy. For a store it belongs to this object, copied or zeroed if needed. For a
    /// load it may be one behind; if there is none, it is zeroed here.
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
                // No page there: it gets zeroes, as for a store.
                state = self.state.lock();
                if state.pages.get(key).is_some() {
                    continue;
                }
            }
            // A busy page takes the slot, so that the lock can be released while it is filled.
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
                // SAFETY: `frame` is busy, taken by this fault, and mapped nowhere yet.
                None => unsafe { core.zero(frame) },
            }
            self.state.lock().in_progress -= 1;
            core.enqueue(frame);
            return Ok(FaultPage { frame, own: true, fresh: true });
        }
    }

    /// Busies this object's own pages in a range that no CPU holds; as many as there is room for.
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

    /// The page that is seen at `key` from `first` on, busy.
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

    /// Drops a space's reference. If one object alone then has this one behind it, this one is collapsed into that.
    pub(super) fn release(mut self: Arc<Object>) {
        loop {
            let left = Arc::downgrade(&self);
            // Where this is the last reference, the object moves out of the allocation, which another one may get.
            self.state.leaves_its_place();
            if let Some(object) = Arc::into_inner(self) {
                let behind = object.state.lock().behind.take();
                let Some(behind) = behind else { return };
                self = behind;
                continue;
            }
            // Checked once the reference is gone: of two that are dropped at once, one sees it.
            if left.strong_count() == 1
                && let Some(shadow) = left.upgrade().and_then(|o| o.state.lock().shadows.iter().find_map(Weak::upgrade))
            {
                shadow.collapse();
            }
            return;
        }
    }

    /// Collapses the chain. If only this refers to an anonymous object behind it, that one's pages move here, or are
    /// freed if hidden; then the next one behind. Returns the number of pages visited.
    pub(super) fn collapse(self: &Arc<Object>) -> u64 {
        let mut looked = 0;
        loop {
            let mut state = self.state.lock();
            let Some(behind) = state.behind.clone() else { return looked };
            // This one's reference and the one just made.
            if !behind.anonymous || state.in_progress != 0 || Arc::strong_count(&behind) != 2 {
                return looked;
            }
            let mut other = behind.state.lock_nested();
            let all: Vec<(u64, Frame)> = other.pages.all().collect();
            let hidden: Vec<Frame> =
                all.iter().filter(|(key, _)| state.pages.get(*key).is_some()).map(|(_, f)| *f).collect();
            // Pages that are freed must not be on their way into a leaf.
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

    /// Removes pages from it and from every space that maps them.
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
        // In a loop, however long the chain is.
        if let Some(behind) = behind {
            behind.release();
        }
    }
}
