//! Sets in sets: no loops, no deep nests, and few paths.
//!
//! A change of a file notifies the sets that it is in, then the sets that those are in, and so on: it takes each path
//! up from the file. Sets that are all in all sets of the next level would multiply the paths by their number at each
//! level. So the paths of a file are limited by length, to the numbers that Linux has. Paths of one set are free.
//!
//! Checks hold a lock of all nests, and visit each set once.

use super::{Epoll, New, Watch};
use quire_fs::Readiness;
use quire_heap::{Arc, Vec};
use quire_linux_state::file::host::File;
use quire_linux_state::{Errno, Machine};
use quire_sync::atomic::{AtomicU64, Ordering};
use quire_sync::{Mutex, MutexGuard};

/// The most sets nested in a set: Linux's `EP_MAX_NESTS`.
const MOST_NESTS: usize = 4;
/// How many paths over so many nested sets a file may have: Linux's `path_limits`.
const MOST_PATHS: [u32; MOST_NESTS + 1] = [u32::MAX, 500, 100, 50, 10];
/// Watches that a walk takes from a set at a time.
const BATCH: usize = 64;

/// What walks over nests have found at a set. Guarded by the lock of all nests.
#[derive(Default)]
pub(super) struct Walked {
    /// The last walk down that came by.
    down: AtomicU64,
    /// The last walk that measured the depth of sets in this one, and that depth.
    below: Depth,
    /// The last walk that measured the depth of sets above this one, and that depth.
    above: Depth,
}

/// A depth, and the walk that measured it.
#[derive(Default)]
struct Depth {
    walk: AtomicU64,
    depth: AtomicU64,
}

impl Depth {
    /// The depth in this walk: as measured before, or by `measure`.
    fn once(&self, walk: u64, measure: impl FnOnce() -> Result<usize, Errno>) -> Result<usize, Errno> {
        if self.walk.load(Ordering::Relaxed) != walk {
            self.depth.store(measure()? as u64, Ordering::Relaxed);
            self.walk.store(walk, Ordering::Relaxed);
        }
        Ok(self.depth.load(Ordering::Relaxed) as usize)
    }
}

/// The lock of all nests, with the number of the last walk, and whether the thread is killed.
pub(super) struct Nests<'a> {
    pub last: &'a Mutex<u64>,
    pub killed: &'a dyn Fn() -> bool,
}

/// A walk over nested sets. No other thread walks, or adds a set to a set.
struct Walk<'a> {
    number: MutexGuard<'a, u64>,
    killed: &'a dyn Fn() -> bool,
}

/// The paths of one file, by the number of sets beyond the first.
#[derive(Default)]
struct Paths([u32; MOST_NESTS + 1]);

impl<M: Machine> Epoll<M> {
    /// As [`add`](Self::add), for any file but a set. A kill ends a long check with EINTR.
    pub(super) fn add_file(&self, fd: i32, file: &Arc<File<M>>, new: New, nests: &Nests<'_>) -> Result<(), Errno> {
        self.add(fd, file, new)?;
        // A set that is nested only after this sees the file in its own check.
        if !self.nested.load(Ordering::Relaxed) {
            return Ok(());
        }
        nests.walk().check(file).inspect_err(|_| self.take_back(fd, file))
    }

    /// As [`add`](Self::add), where the file is the set `inner`. A kill ends a long check with EINTR.
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

    /// From now on each change of its watches is announced.
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
        // Files are dropped outside of the lock: one may be the last reference, and its end notifies this set.
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
    /// How deep sets are nested in `set`. ELOOP if `outer` is among them, or the depth exceeds `most`.
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
        // It was perhaps measured where more was allowed.
        if depth > most { Err(Errno::ELOOP) } else { Ok(depth) }
    }

    /// How many sets, one in the other, `set` is in.
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

    /// Checks the paths of all files below `set`, which is in another set by now.
    fn check_below<M: Machine>(&self, set: &Epoll<M>) -> Result<(), Errno> {
        if set.walked.down.swap(*self.number, Ordering::Relaxed) == *self.number {
            return Ok(());
        }
        let mut checked = false;
        set.files(self, |file, is_set| match file.stream_as::<Epoll<M>>() {
            Some(inner) if is_set => self.check_below(inner),
            // Files that are in this set alone have the same paths.
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
    /// Counts the paths from `readiness` up, where `nests` sets are below. EINVAL if there are too many.
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
        // An error ends the visit.
        sets_above::<M>(&self.readiness, None, |_| Err(Errno::EEXIST)).is_err()
    }
}

/// Calls `each` with the sets that watch `readiness`, through `file` if that is given.
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
