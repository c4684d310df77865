//! The list of an object's backings: interval trees, fanned out into parts where many CPUs link and unlink.
//!
//! A backing records its part, chosen when it is first mapped; every backing that replaces it is in the same part, and is
//! linked before the old one is unlinked. So a scan of a part that holds its lock meets the one or the other.

use crate::backing::Backing;
use crate::check::{Broken, Due, Level};
use crate::interval::{Interval, Tree};
use crate::machine::Machine;
use crate::object::Object;
use crate::vm::Vm;
use core::ops::ControlFlow;
use core::ptr::{self, NonNull};
use quire_sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use quire_sync::{CachePadded, Rank, SpinLock};

/// Parts beyond the first, where there are any.
#[cfg(not(any(loom, shuttle)))]
const MORE: usize = 15;
#[cfg(any(loom, shuttle))]
const MORE: usize = 1;
/// Backings in the first part before it may fan out: at most one part for 64.
#[cfg(not(any(test, loom, shuttle)))]
const FAN_OUT_AT: u32 = 64 * (MORE as u32 + 1);
#[cfg(any(test, loom, shuttle))]
const FAN_OUT_AT: u32 = 8;
/// Backings that a scan visits before it lets go of a part, so that others get in.
const VISITS: u32 = 16;
/// Times that a scan begins a part again because something was unlinked meanwhile, before it holds the part to the end.
const RESTARTS: u32 = 4;

struct Listed<M: Machine> {
    tree: Tree<Backing<M>>,
    /// When the tree is checked next.
    due: Due,
}

/// One part of the list.
pub struct Part<M: Machine> {
    list: SpinLock<Listed<M>>,
    /// Backings in the tree. Written under the lock.
    count: AtomicU32,
    /// Rises with every unlinking, under the lock: a scan that let go may have missed a replacement that stands before its
    /// place.
    unlinked: AtomicU64,
    /// Somebody met the lock held, since the count was last looked at.
    contended: AtomicU32,
}

#[cfg(test)]
quire_sync::assert_layout!(Part<crate::testing::TestMachine> { size: 48, align: 8 });

/// Parts 1 and up.
pub struct MoreParts<M: Machine> {
    parts: [CachePadded<Part<M>>; MORE],
}

/// The whole list.
pub(crate) struct Parts<M: Machine> {
    first: Part<M>,
    /// Null until the first part is contended and full. Set once.
    more: AtomicPtr<MoreParts<M>>,
}

impl<M: Machine> Part<M> {
    fn new(only: *mut Backing<M>) -> Self {
        Part {
            list: SpinLock::new(Rank::BACKINGS, Listed { tree: Tree::new(only), due: Due::new() }),
            count: AtomicU32::new(!only.is_null() as u32),
            unlinked: AtomicU64::new(0),
            contended: AtomicU32::new(0),
        }
    }

    fn lock(&self) -> quire_sync::SpinGuard<'_, Listed<M>> {
        match self.list.try_lock() {
            Some(g) => g,
            None => {
                self.contended.fetch_add(1, Ordering::Relaxed);
                self.list.lock()
            }
        }
    }
}

impl<M: Machine> Part<M> {
    /// One backing was linked or unlinked, and the lock is about to be given up.
    #[inline]
    fn release(&self, vm: &Vm<M>, list: &mut Listed<M>) {
        list.due.note(1);
        let level = vm.check_level();
        if level != Level::Never && list.due.is_due(level) {
            let result = self.check(list, &mut |_| Ok(()));
            vm.checked(&mut list.due, result);
        }
    }

    fn check(&self, list: &Listed<M>, each: &mut dyn FnMut(&Backing<M>) -> Result<(), Broken>) -> Result<u64, Broken> {
        let says = u64::from(self.count.load(Ordering::Relaxed));
        let has = list.tree.check(each)?;
        if has == says { Ok(has) } else { Err(Broken::ListCount(says)) }
    }
}

impl<M: Machine> Parts<M> {
    /// Empty, or holding `only`, whose links say that it is alone.
    pub fn new(only: *mut Backing<M>) -> Self {
        Parts { first: Part::new(only), more: AtomicPtr::new(ptr::null_mut()) }
    }

    fn more(&self) -> Option<&MoreParts<M>> {
        // SAFETY: set once, freed with the object.
        unsafe { self.more.load(Ordering::Acquire).as_ref() }
    }

    fn part(&self, i: u8) -> &Part<M> {
        match (i, self.more()) {
            (0, _) | (_, None) => &self.first,
            (i, Some(more)) => &more.parts[(i as usize - 1) % MORE],
        }
    }

    fn iter(&self) -> impl Iterator<Item = &Part<M>> {
        core::iter::once(&self.first).chain(self.more().into_iter().flat_map(|m| m.parts.iter().map(|p| &p.0)))
    }

    /// Whether there is one backing in all, now.
    #[inline(always)]
    pub fn is_single(&self) -> bool {
        self.first.count.load(Ordering::Acquire) == 1 && self.more.load(Ordering::Acquire).is_null()
    }

    /// The part for a new backing: by CPU, once the list has fanned out, which it does where it is long and contended.
    pub fn choose(&self, vm: &Vm<M>) -> u8 {
        if self.more().is_none()
            && self.first.count.load(Ordering::Relaxed) >= FAN_OUT_AT
            && self.first.contended.load(Ordering::Relaxed) != 0
        {
            self.fan_out(vm);
        }
        if self.more().is_some() { (quire_sync::current_cpu() % (MORE + 1)) as u8 } else { 0 }
    }

    // Kept out of its caller's stack frame: the parts are built on the stack.
    #[cold]
    #[inline(never)]
    fn fan_out(&self, vm: &Vm<M>) {
        let parts = MoreParts { parts: core::array::from_fn(|_| CachePadded(Part::new(ptr::null_mut()))) };
        // No memory: the list stays as it is, which is slower and right.
        if let Ok(fresh) = vm.object_memory().parts.alloc(vm, parts)
            && self.more.compare_exchange(ptr::null_mut(), fresh.as_ptr(), Ordering::AcqRel, Ordering::Acquire).is_err()
        {
            // SAFETY: nobody has seen it.
            unsafe { vm.object_memory().parts.free(vm, fresh) };
        }
    }

    /// Links `b` into its part; true where the part was empty.
    pub fn insert(&self, vm: &Vm<M>, b: NonNull<Backing<M>>) -> bool {
        // SAFETY: the caller's, and not linked yet.
        let part = self.part(unsafe { b.as_ref() }.part());
        let mut list = part.lock();
        // SAFETY: in no tree; backings are unlinked before they are freed.
        unsafe { list.tree.insert(b.as_ptr()) };
        let n = part.count.load(Ordering::Relaxed);
        part.count.store(n + 1, Ordering::Release);
        part.release(vm, &mut list);
        n == 0
    }

    /// Unlinks `b`; true where its part is empty now.
    ///
    /// # Safety
    /// It is linked here.
    pub unsafe fn remove(&self, b: NonNull<Backing<M>>) -> bool {
        // SAFETY: linked, hence alive.
        let part = self.part(unsafe { b.as_ref() }.part());
        let mut list = part.lock();
        // SAFETY: by this function's contract.
        unsafe { list.tree.remove(b.as_ptr()) };
        let unlinked = part.unlinked.load(Ordering::Relaxed);
        part.unlinked.store(unlinked + 1, Ordering::Release);
        let n = part.count.load(Ordering::Relaxed);
        part.count.store(n - 1, Ordering::Release);
        // SAFETY: not linked any more, but the caller's still.
        part.release(unsafe { b.as_ref() }.vm(), &mut list);
        n == 1
    }

    /// How often a backing was unlinked.
    pub fn unlinked(&self) -> u64 {
        self.iter().map(|p| p.unlinked.load(Ordering::Acquire)).fold(0, u64::wrapping_add)
    }

    /// Calls `visit` with every backing that shows a page of `start..end`, under the lock of its part: each at least once,
    /// and whatever replaces one meanwhile too. Lets go of a part now and then.
    pub fn scan(&self, start: u64, end: u64, mut visit: impl FnMut(&Backing<M>)) {
        let _all = self.search(start, end, |b| {
            visit(b);
            ControlFlow::<()>::Continue(())
        });
    }

    /// As [`scan`](Self::scan), up to the first backing at which `visit` breaks; what it breaks with.
    pub fn search<T>(&self, start: u64, end: u64, mut visit: impl FnMut(&Backing<M>) -> ControlFlow<T>) -> Option<T> {
        for part in self.iter() {
            let mut restarts = 0;
            'part: loop {
                let mut after = None;
                let mut seen = None;
                loop {
                    let list = part.lock();
                    let unlinked = part.unlinked.load(Ordering::Relaxed);
                    if *seen.get_or_insert(unlinked) != unlinked {
                        restarts += 1;
                        continue 'part;
                    }
                    let mut visits = 0;
                    while let Some(b) = list.tree.next_overlap(start, end, after) {
                        after = Some(Tree::place(b));
                        if let ControlFlow::Break(found) = visit(b) {
                            return Some(found);
                        }
                        visits += 1;
                        if visits == VISITS && restarts < RESTARTS {
                            break;
                        }
                    }
                    if visits < VISITS || restarts >= RESTARTS {
                        break 'part;
                    }
                }
            }
        }
        None
    }

    /// As [`search`](Self::search) for one page, only among those that stand behind `b` in its part, and with no promise to
    /// meet them all. `b` is linked.
    pub fn search_after<T>(
        &self,
        b: &Backing<M>,
        key: u64,
        mut visit: impl FnMut(&Backing<M>) -> ControlFlow<T>,
    ) -> Option<T> {
        let part = self.part(b.part());
        let mut after = Tree::place(b);
        loop {
            let list = part.lock();
            for _ in 0..VISITS {
                let next = list.tree.next_overlap(key, key + 1, Some(after))?;
                after = Tree::place(next);
                if let ControlFlow::Break(found) = visit(next) {
                    return Some(found);
                }
            }
        }
    }

    /// The end of the run of pages from `key` that some backing shows, or a page beyond `end`; `key` itself where none does.
    /// Work for the backings that begin below `end`.
    pub fn covered(&self, mut key: u64, end: u64) -> u64 {
        while key < end {
            let next =
                self.iter().filter_map(|p| p.lock().tree.next_overlap(key, key + 1, None).map(Interval::end)).max();
            match next {
                Some(e) => key = e,
                None => break,
            }
        }
        key
    }

    /// The first page after `key` that a backing begins with.
    pub fn next_start(&self, key: u64) -> Option<u64> {
        self.iter().filter_map(|p| p.lock().tree.next_start(key)).min()
    }

    /// Whether `b` is linked in the part that it names.
    pub fn lists(&self, b: &Backing<M>) -> bool {
        self.part(b.part()).lock().tree.contains(b)
    }

    /// Checks every part of the list of `object`, whose parts these are; returns the number of backings and of parts that are
    /// not empty.
    pub fn check(&self, object: &Object<M>) -> Result<(u64, u32), Broken> {
        let (mut backings, mut parts) = (0, 0);
        for part in self.iter() {
            let list = part.lock();
            let n = part.check(&list, &mut |b| {
                let shown = b.object().is_some_and(|o| ptr::eq(o, object));
                // A private object has its first backing on its list before that shows it.
                let touched = object.is_private() && b.object().is_none();
                let here = ptr::eq(self.part(b.part()), part);
                if (shown || touched) && here { Ok(()) } else { Err(Broken::Stranger(b.range().start)) }
            })?;
            backings += n;
            parts += u32::from(n != 0);
        }
        Ok((backings, parts))
    }

    /// Frees the further parts.
    pub fn free(&self, vm: &Vm<M>) {
        if let Some(more) = NonNull::new(self.more.load(Ordering::Acquire)) {
            debug_assert!(self.iter().all(|p| p.list.lock().tree.is_empty()), "an object goes while backings show it");
            // SAFETY: the object is dead and shown by nobody: only scans looked here, and they hold the object.
            unsafe { vm.object_memory().parts.free(vm, more) };
        }
    }
}

/// Doors for tests of the checker.
#[cfg(all(test, not(any(loom, shuttle))))]
impl<M: Machine> Parts<M> {
    pub fn corrupt_max(&self, b: NonNull<Backing<M>>) {
        // SAFETY: the tests' backings are listed.
        unsafe { self.first.list.lock().tree.corrupt_max(b.as_ptr()) };
    }
    pub fn corrupt_count(&self) {
        self.first.count.fetch_add(1, Ordering::Relaxed);
    }
}
