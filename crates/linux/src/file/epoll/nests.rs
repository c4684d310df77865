//! Sets in sets: no loops, no deep nests, and few paths.
//!
//! A change of a file notifies the sets that watch the file, then the sets that watch these sets, and so on. So the
//! notification follows each path from the file up to an outermost set. If each set of a level is in every set of the
//! next level, the number of paths grows exponentially with the levels. So Linux limits the paths of a file for each
//! path length, and this module has the same limits. Paths with only one set are not limited.
//!
//! A check holds one lock for all nested sets of the system (`Nests::last`), and visits each set once.

use super::{Epoll, New, Watch};
use quire_fs::Readiness;
use quire_heap::{Arc, Vec};
use quire_linux_state::file::host::File;
use quire_linux_state::{Errno, Machine};
use quire_sync::atomic::{AtomicU64, Ordering};
use quire_sync::{Mutex, MutexGuard};

/// The most sets nested in a set: Linux's `EP_MAX_NESTS`.
const MOST_NESTS: usize = 4;
/// The most paths of a file for each path length: Linux's `path_limits`. The index is the number of sets on the path
/// minus one.
const MOST_PATHS: [u32; MOST_NESTS + 1] = [u32::MAX, 500, 100, 50, 10];
/// Watches that a walk takes from a set at a time.
const BATCH: usize = 64;

/// The results that walks over nested sets store in a set. The lock `Nests::last` guards them.
#[derive(Default)]
pub(super) struct Walked {
    /// The number of the last downward walk that visited this set.
    down: AtomicU64,
    /// The last walk that measured how deep sets are nested in this set, and the measured depth.
    below: Depth,
    /// The last walk that measured how deep this set is nested in outer sets, and the measured depth.
    above: Depth,
}

/// A depth, and the walk that measured it.
#[derive(Default)]
struct Depth {
    walk: AtomicU64,
    depth: AtomicU64,
}

impl Depth {
    /// Returns the depth for this walk. If the walk has not stored a depth yet, `measure` computes it.
    fn once(&self, walk: u64, measure: impl FnOnce() -> Result<usize, Errno>) -> Result<usize, Errno> {
        if self.walk.load(Ordering::Relaxed) != walk {
            self.depth.store(measure()? as u64, Ordering::Relaxed);
            self.walk.store(walk, Ordering::Relaxed);
        }
        Ok(self.depth.load(Ordering::Relaxed) as usize)
    }
}

/// The lock that serialises all walks over nested sets. Its value is the number of the last walk. `killed` says whether
/// a fatal signal waits for the calling thread.
pub(super) struct Nests<'a> {
    pub last: &'a Mutex<u64>,
    pub killed: &'a dyn Fn() -> bool,
}

/// A walk over nested sets. It holds the lock `Nests::last`, so no other thread walks over sets or adds a set to a
/// set.
struct Walk<'a> {
    number: MutexGuard<'a, u64>,
    killed: &'a dyn Fn() -> bool,
}

/// The number of paths of one file for each path length. The index is the number of sets on the path minus one.
#[derive(Default)]
struct Paths([u32; MOST_NESTS + 1]);

impl<M: Machine> Epoll<M> {
    /// Adds a watch by [`add`](Self::add) for a file that is not an epoll set, and checks the paths of the file. A
    /// fatal signal ends a long check with EINTR.
    pub(super) fn add_file(&self, fd: i32, file: &Arc<File<M>>, new: New, nests: &Nests<'_>) -> Result<(), Errno> {
        self.add(fd, file, new)?;
        // If this set is put into another set after this load, `add_set` finds the file in the set and checks its
        // paths.
        if !self.nested.load(Ordering::Relaxed) {
            return Ok(());
        }
        nests.walk().check(file).inspect_err(|_| self.take_back(fd, file))
    }

    /// Adds a watch by [`add`](Self::add) for the set `inner`, whose file is `file`, and checks depths and paths. A
    /// fatal signal ends a long check with EINTR.
    pub(super) fn add_set(
        &self,
        fd: i32,
        file: &Arc<File<M>>,
        inner: &Epoll<M>,
        new: New,
        nests: &Nests<'_>,
    ) -> Result<(), Errno> {
        let walk = nests.walk();
        let below = walk.depth_below(inner, self, MOST_NESTS - 1)?;
        if below + 1 + walk.depth_above(self)? > MOST_NESTS {
            return Err(Errno::ELOOP);
        }
        inner.become_nested();
        self.add(fd, file, new)?;
        walk.check_below(inner).inspect_err(|_| self.take_back(fd, file))
    }

    /// Removes a file that a check has refused. Another thread may have removed it before.
    fn take_back(&self, fd: i32, file: &Arc<File<M>>) {
        let _removed = self.remove(fd, file);
    }

    /// Sets the `nested` flag of the set and of its watches, so that each later change of a watch notifies the outer
    /// sets.
    fn become_nested(&self) {
        let watches = self.watches.lock();
        if !self.nested.swap(true, Ordering::Relaxed) {
            watches.values().for_each(|watch| watch.nested.store(true, Ordering::Relaxed));
        }
    }

    /// Calls `each` with the files of the set, and whether they are sets.
    fn files(
        &self,
        walk: &Walk<'_>,
        mut each: impl FnMut(&Arc<File<M>>, bool) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        // File references are dropped after the lock is released. The last reference closes the file, and the close
        // notifies this set, which acquires the lock.
        let mut batch = Vec::try_with_capacity(BATCH)?;
        let mut next = Some(i32::MIN);
        while let Some(from) = next {
            if (walk.killed)() {
                return Err(Errno::EINTR);
            }
            let watches = self.watches.lock();
            let mut rest = watches.iter_from(&from);
            for (_, watch) in rest.by_ref().take(BATCH) {
                if let Some(file) = watch.file.upgrade() {
                    batch.push_reserved((file, watch.is_set));
                }
            }
            next = rest.next().map(|(fd, _)| *fd);
            drop(watches);
            for (file, is_set) in batch.drain(..) {
                each(&file, is_set)?;
            }
        }
        Ok(())
    }
}

impl<'a> Nests<'a> {
    fn walk(&self) -> Walk<'a> {
        let mut number = self.last.lock();
        *number += 1;
        Walk { number, killed: self.killed }
    }
}

impl Walk<'_> {
    /// Returns how deep sets are nested in `set`. ELOOP if `outer` is `set` or nested in it, or if the depth exceeds
    /// `most`.
    fn depth_below<M: Machine>(&self, set: &Epoll<M>, outer: &Epoll<M>, most: usize) -> Result<usize, Errno> {
        if core::ptr::eq(set, outer) {
            return Err(Errno::ELOOP);
        }
        let depth = set.walked.below.once(*self.number, || {
            let mut depth = 0;
            set.files(self, |file, is_set| {
                let Some(inner) = is_set.then(|| file.stream_as::<Epoll<M>>()).flatten() else { return Ok(()) };
                let most = most.checked_sub(1).ok_or(Errno::ELOOP)?;
                depth = depth.max(self.depth_below(inner, outer, most)? + 1);
                Ok(())
            })?;
            Ok(depth)
        })?;
        // The stored depth may come from an earlier visit of this walk with a larger `most`, so it is compared again.
        if depth > most { Err(Errno::ELOOP) } else { Ok(depth) }
    }

    /// Returns the length of the longest chain of outer sets above `set`.
    fn depth_above<M: Machine>(&self, set: &Epoll<M>) -> Result<usize, Errno> {
        set.walked.above.once(*self.number, || {
            let mut most = 0;
            sets_above::<M>(&set.readiness, None, |outer| {
                most = most.max(self.depth_above(outer)? + 1);
                Ok(())
            })?;
            Ok(most)
        })
    }

    /// Checks the paths of all files below `set`, which the caller has just put into another set.
    fn check_below<M: Machine>(&self, set: &Epoll<M>) -> Result<(), Errno> {
        if set.walked.down.swap(*self.number, Ordering::Relaxed) == *self.number {
            return Ok(());
        }
        let mut checked = false;
        set.files(self, |file, is_set| match file.stream_as::<Epoll<M>>() {
            Some(inner) if is_set => self.check_below(inner),
            // Files that only this set watches all have the same paths, so one of them is checked for all.
            _ if file.readiness().is_some_and(|readiness| readiness.listening() == 1) => match checked {
                true => Ok(()),
                false => {
                    checked = true;
                    self.check(file)
                }
            },
            _ => self.check(file),
        })
    }

    /// EINVAL if the file has too many paths.
    fn check<M: Machine>(&self, file: &Arc<File<M>>) -> Result<(), Errno> {
        let mut paths = Paths::default();
        match file.readiness() {
            Some(readiness) => paths.count(readiness, Some(file), 0),
            None => Ok(()),
        }
    }
}

impl Paths {
    /// Counts the paths from `readiness` up to outermost sets. `nests` is the number of sets on the path from the
    /// file up to `readiness`: 0 if `readiness` is the file's own. EINVAL if a path length has too many paths.
    fn count<M: Machine>(
        &mut self,
        readiness: &Readiness,
        file: Option<&Arc<File<M>>>,
        nests: usize,
    ) -> Result<(), Errno> {
        let (most, count) = MOST_PATHS.get(nests).zip(self.0.get(nests)).ok_or(Errno::EINVAL)?;
        let (most, before) = (*most, *count);
        let mut ends = before;
        sets_above(readiness, file, |set: &Epoll<M>| {
            if set.is_in_sets() {
                return self.count::<M>(&set.readiness, None, nests + 1);
            }
            ends = ends.saturating_add(1);
            if ends > most { Err(Errno::EINVAL) } else { Ok(()) }
        })?;
        self.0[nests] = ends;
        Ok(())
    }
}

impl<M: Machine> Epoll<M> {
    fn is_in_sets(&self) -> bool {
        // The error from the closure ends the visit at the first set, so `is_err` means that an outer set exists.
        sets_above::<M>(&self.readiness, None, |_| Err(Errno::EEXIST)).is_err()
    }
}

/// Calls `each` with the sets that watch `readiness`. If `file` is given, only sets with a watch of `file` are visited.
fn sets_above<M: Machine>(
    readiness: &Readiness,
    file: Option<&Arc<File<M>>>,
    mut each: impl FnMut(&Epoll<M>) -> Result<(), Errno>,
) -> Result<(), Errno> {
    readiness.visit(|listener| {
        let Some(watch) = listener.as_any().and_then(|it| it.downcast_ref::<Watch<M>>()) else { return Ok(()) };
        if watch.gone.load(Ordering::Acquire) || file.is_some_and(|file| watch.file.as_ptr() != Arc::as_ptr(file)) {
            return Ok(());
        }
        watch.epoll.upgrade().map_or(Ok(()), |set| each(&set))
    })
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
