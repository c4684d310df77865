//! `epoll`: sets of files, which report the files that have become ready.
//!
//! A `Watch` listens to its file. When the file changes, the watch puts itself on the set's list of changed watches. A
//! waiter takes watches off that list and checks their files, so a call costs O(changed), not O(watched).
//! Level-triggered watches that were ready are put back on the list. The lock `looking` admits one thread at a time.
//! Without it, a thread could miss a watch that another thread has taken off for a check.
//!
//! A notification allocates no memory, because the set reserves a slot on its list when a watch is added.
//!
//! A set may be in a set, as on Linux no more than `nests::MOST_NESTS` deep, and never in itself. The module `nests`
//! limits the number of paths from a file up to the outermost sets, because a change of the file follows every path.

use crate::file::path::only;
use crate::file::poll::{AT_ONCE, deadline_after, deadline_of, end_temporary_mask, poll_bits, temporary_mask, timeout};
use core::any::Any;
use linux_raw_sys::general as raw;
use quire_fs::{FileCredentials, FsError, Io, Listener, OpenFlags, Readiness, Ready, Sink, Source, Stream};
use quire_heap::{Arc, Deque, Map, OutOfMemory, SpareEntry, Weak, unsize};
use quire_linux_state::file::host::File;
use quire_linux_state::process::sleep::{EpollWait, Sleep};
use quire_linux_state::process::users::{Account, Charge, Payer};
use quire_linux_state::shortage::ATTEMPTS;
use quire_linux_state::{Ctx, Errno, Machine};
use quire_sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use quire_sync::{Mutex, Rank, SpinLock, WaitOutcome};

mod nests;

/// The most events that one call returns.
const MOST: usize = 4096;
/// The event bits that an exclusive watch may have.
const EXCLUSIVE_WITH: u32 = raw::EPOLLIN
    | raw::EPOLLOUT
    | raw::EPOLLERR
    | raw::EPOLLHUP
    | raw::EPOLLWAKEUP
    | raw::EPOLLET
    | raw::EPOLLEXCLUSIVE;
/// The list of a set with `n` watches may also have removed watches: up to `n` plus this number.
const FEW: usize = 16;
/// Events that every watch waits for.
const ALWAYS: u32 = raw::EPOLLERR | raw::EPOLLHUP;

/// The registration of one file in a set.
struct Watch<M: Machine> {
    itself: Weak<Watch<M>>,
    /// The descriptor with which the file was added.
    fd: i32,
    epoll: Weak<Epoll<M>>,
    file: Weak<File<M>>,
    events: AtomicU32,
    data: AtomicU64,
    /// The watch is on the list of changed watches.
    listed: AtomicBool,
    /// The watch was removed from the set. The flag is set under the list's lock. A watch with this flag is never put
    /// on the list again.
    gone: AtomicBool,
    /// The file is a set itself.
    is_set: bool,
    /// The watch's set was added to another set. The outer set may be edge-triggered, so each change notifies the outer
    /// set, even if the watch is listed already.
    nested: AtomicBool,
    /// The charge to the set's user while the watch is in the set.
    charge: SpinLock<Option<Charge>>,
}

/// A set of files.
pub struct Epoll<M: Machine> {
    /// The watches, by the descriptor with which each was added.
    watches: Mutex<Map<i32, Arc<Watch<M>>>>,
    /// The changed watches. The list has a slot for each watch of the set, because a notification cannot fail.
    changed: SpinLock<ChangedWatches<M>>,
    /// The number of watches that were removed from the set since the list was last compacted. Some of them are still
    /// on the list.
    left: AtomicUsize,
    /// A thread holds this lock while it checks the files of changed watches.
    looking: Mutex<()>,
    readiness: Readiness,
    /// The set was once added to another set. The flag is set under the lock of `watches`.
    nested: AtomicBool,
    /// The marks and depths that the last walk over nested sets stored for this set.
    walked: nests::Walked,
    itself: Weak<Epoll<M>>,
    /// The user that made the set. The user is charged for the set's watches.
    payer: Payer,
}

/// The parameters of a new watch.
struct New {
    events: u32,
    data: u64,
    is_set: bool,
    /// The most watches that the user may have.
    most: u64,
}

/// The list of changed watches. It has each watch of the set at most once, and some removed watches.
type ChangedWatches<M> = Deque<Arc<Watch<M>>>;

impl<M: Machine> Listener for Watch<M> {
    fn changed(&self) {
        let nested = self.nested.load(Ordering::Relaxed);
        if self.gone.load(Ordering::Acquire) || self.listed.load(Ordering::Acquire) && !nested {
            return;
        }
        if let (Some(epoll), Some(watch)) = (self.epoll.upgrade(), self.itself.upgrade())
            && !epoll.list(watch)
            && nested
        {
            epoll.readiness.notify();
        }
    }

    fn is_closed(&self) -> bool {
        self.file.strong_count() == 0
    }

    fn closed(&self) {
        let Some(epoll) = self.epoll.upgrade() else { return };
        let mut watches = epoll.watches.lock();
        // The descriptor may name another file now, with another watch.
        let own = watches.get(&self.fd).is_some_and(|watch| core::ptr::eq(&raw const **watch, self));
        let watch = if own { watches.remove(&self.fd) } else { None };
        let old = watch.as_ref().and_then(|watch| epoll.forget(watch, watches.len()));
        drop(watches);
        drop((watch, old));
    }

    fn is_exclusive(&self) -> bool {
        self.events.load(Ordering::Relaxed) & raw::EPOLLEXCLUSIVE != 0
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }

    fn changed_for_one(&self) -> bool {
        // Returns false if this watch does not wait for the event. Then another listener is notified.
        let Some(file) = self.file.upgrade() else { return false };
        // The state of some streams (signal files) depends on the calling thread, and this code runs in the notifying
        // thread. Such a stream counts as readable, and the waiter checks the state.
        let own = file.stream().is_some_and(|stream| stream.is_ready_for_caller_alone());
        let ready = if own { Ready::READ } else { file.ready() };
        drop(file);
        let wanted = poll_bits(ready) & self.events.load(Ordering::Acquire);
        if self.gone.load(Ordering::Acquire) || wanted == 0 {
            return false;
        }
        let (Some(epoll), Some(watch)) = (self.epoll.upgrade(), self.itself.upgrade()) else { return false };
        if !watch.listed.swap(true, Ordering::AcqRel) {
            epoll.put(watch, false);
        }
        epoll.readiness.notify() && !ready.intersects(Ready::HANGUP | Ready::ERROR | Ready::READ_HANGUP)
    }
}

impl<M: Machine> Epoll<M> {
    fn new(payer: Payer) -> Result<Arc<Self>, OutOfMemory> {
        Arc::try_new_cyclic(|itself| Epoll {
            payer,
            watches: Mutex::new(Map::new()),
            changed: SpinLock::new(Rank::EPOLL, Deque::new()),
            left: AtomicUsize::new(0),
            looking: Mutex::new(()),
            readiness: Readiness::new(),
            nested: AtomicBool::new(false),
            walked: nests::Walked::default(),
            itself: itself.clone(),
        })
    }

    /// Puts a watch on the list and notifies the waiters. Returns false if the watch was listed already.
    fn list(&self, watch: Arc<Watch<M>>) -> bool {
        let lists = !watch.listed.swap(true, Ordering::AcqRel);
        if lists {
            self.put(watch, false);
            self.readiness.notify();
        }
        lists
    }

    /// Puts a watch on the list. The caller has set the watch's `listed` flag.
    fn put(&self, watch: Arc<Watch<M>>, in_front: bool) {
        let mut changed = self.changed.lock();
        if watch.gone.load(Ordering::Relaxed) {
            drop(changed);
            return;
        }
        if in_front { changed.push_front_reserved(watch) } else { changed.push_back_reserved(watch) }
    }

    /// Marks a removed watch so that it is not listed again. `watches` is the number of remaining watches. The caller
    /// holds the lock of `watches`, and drops the returned list after it has released that lock.
    #[must_use]
    fn forget(&self, watch: &Watch<M>, watches: usize) -> Option<ChangedWatches<M>> {
        let changed = self.changed.lock();
        watch.gone.store(true, Ordering::Release);
        drop(changed);
        let charge = watch.charge.lock().take();
        drop(charge);
        // Removed watches use memory as long as they are listed. So the list is compacted when the removed watches
        // outnumber the set's watches by more than [`FEW`].
        if self.left.fetch_add(1, Ordering::Relaxed) < watches + FEW {
            return None;
        }
        // If memory is exhausted, the next removal tries again.
        let mut old = Deque::try_with_capacity(2 * watches.max(1)).ok()?;
        exchange(&mut self.changed.lock(), &mut old, |watch| watch.gone.load(Ordering::Relaxed));
        self.left.store(0, Ordering::Relaxed);
        Some(old)
    }

    fn add(&self, fd: i32, file: &Arc<File<M>>, new: New) -> Result<(), Errno> {
        let New { events, data, is_set, most } = new;
        let is_there = |watches: &Map<i32, Arc<Watch<M>>>| {
            watches.get(&fd).is_some_and(|w| core::ptr::eq(w.file.as_ptr(), Arc::as_ptr(file)))
        };
        if is_there(&self.watches.lock()) {
            return Err(Errno::EEXIST);
        }
        let charge = self.payer.charge(Account::Watches, 1, most).ok_or(Errno::ENOSPC)?;
        let entry = SpareEntry::try_new()?;
        let watch = Arc::try_new_cyclic(|itself| Watch {
            itself: itself.clone(),
            fd,
            epoll: self.itself.clone(),
            file: Arc::downgrade(file),
            events: AtomicU32::new(events | ALWAYS),
            data: AtomicU64::new(data),
            listed: AtomicBool::new(false),
            gone: AtomicBool::new(false),
            is_set,
            nested: AtomicBool::new(false),
            charge: SpinLock::new(Rank::EPOLL_CHARGE, Some(charge)),
        })?;
        let listener: Arc<dyn Listener> = unsize!(watch.clone());
        let before = {
            let mut watches = self.watches.lock();
            if is_there(&watches) {
                return Err(Errno::EEXIST);
            }
            make_room(&self.changed, watches.len() + 1, |watch| watch.gone.load(Ordering::Relaxed))?;
            watch.nested.store(self.nested.load(Ordering::Relaxed), Ordering::Relaxed);
            if let Some(readiness) = file.readiness() {
                readiness.listen(&listener)?;
            }
            // An existing watch belongs to another file, which had this descriptor before and is still open through
            // another descriptor.
            let before = watches.insert(entry, fd, watch.clone());
            let old = before.as_ref().and_then(|before| self.forget(before, watches.len()));
            (before, old)
        };
        let (before, old) = before;
        drop(old);
        if let Some(before) = before {
            Watch::dismiss(before);
        }
        self.list_if_ready(watch);
        Ok(())
    }

    /// Lists a new or changed watch whose file is ready. If the file is not ready, its next change lists the watch.
    fn list_if_ready(&self, watch: Arc<Watch<M>>) {
        let ready = watch.file.upgrade().map_or(Ready::empty(), |file| file.ready());
        if poll_bits(ready) & watch.events.load(Ordering::Acquire) != 0 {
            self.list(watch);
        }
    }

    fn watch(&self, fd: i32, file: &Arc<File<M>>) -> Result<Arc<Watch<M>>, Errno> {
        let watches = self.watches.lock();
        watches.get(&fd).filter(|w| core::ptr::eq(w.file.as_ptr(), Arc::as_ptr(file))).cloned().ok_or(Errno::ENOENT)
    }

    fn remove(&self, fd: i32, file: &Arc<File<M>>) -> Result<(), Errno> {
        let (watch, old) = {
            let mut watches = self.watches.lock();
            let is = |w: &Arc<Watch<M>>| core::ptr::eq(w.file.as_ptr(), Arc::as_ptr(file));
            if !watches.get(&fd).is_some_and(is) {
                return Err(Errno::ENOENT);
            }
            let watch = watches.remove(&fd).ok_or(Errno::ENOENT)?;
            // The watch is marked as removed while the lock of `watches` is held, because the list has slots only for
            // the watches in the set.
            let old = self.forget(&watch, watches.len());
            (watch, old)
        };
        drop(old);
        Watch::dismiss(watch);
        Ok(())
    }

    /// Takes up to `most` events off the list, and returns their number. `out` is called with the event's index, its
    /// bits and its data. If `out` fails, the event stays on the list. The error of `out` is returned only if the first
    /// event failed.
    fn collect(&self, most: usize, out: &mut impl FnMut(usize, u32, u64) -> Result<(), Errno>) -> Result<usize, Errno> {
        let mut n = 0;
        let _alone = self.looking.lock();
        // The loop ends after the initial length, so that watches that are put back are not checked twice.
        let mut left = self.changed.lock().len();
        while n < most && left > 0 {
            left -= 1;
            let Some(watch) = self.changed.lock().pop_front() else { break };
            let (ready, events) = watch.look();
            if ready == 0 {
                continue;
            }
            if let Err(e) = out(n, ready, watch.data.load(Ordering::Acquire)) {
                if !watch.listed.swap(true, Ordering::AcqRel) {
                    self.put(watch, true);
                }
                return if n > 0 { Ok(n) } else { Err(e) };
            }
            n += 1;
            if events & raw::EPOLLONESHOT != 0 {
                // The exchange fails if `EPOLL_CTL_MOD` has set new events since. The new events are for the next
                // report, so they stay.
                let _set_anew = watch.events.compare_exchange(events, 0, Ordering::AcqRel, Ordering::Relaxed);
            } else if events & raw::EPOLLET == 0 && !watch.listed.swap(true, Ordering::AcqRel) {
                self.put(watch, false);
            }
        }
        Ok(n)
    }

    /// Whether a listed watch is ready. Watches that are not ready leave the list, so that their next change lists them
    /// again.
    fn any_ready(&self) -> bool {
        let _alone = self.looking.lock();
        let left = self.changed.lock().len();
        for _ in 0..left {
            let Some(watch) = self.changed.lock().pop_front() else { break };
            if watch.look().0 == 0 {
                continue;
            }
            if !watch.listed.swap(true, Ordering::AcqRel) {
                self.put(watch, true);
            }
            return true;
        }
        false
    }
}

/// Reserves slots on a set's list for `watches` watches: all watches of the set, and the new one. The caller holds the
/// lock of the set's watches. If memory is exhausted, the list stays unchanged.
fn make_room<T>(list: &SpinLock<Deque<T>>, watches: usize, is_gone: impl Fn(&T) -> bool) -> Result<(), OutOfMemory> {
    let has_room = {
        let list = list.lock();
        // A watch that is being checked has left the list and may come back. Some listed watches have been removed from
        // the set. So the list must have `watches` free slots besides the listed watches.
        list.capacity() - list.len() >= watches
    };
    if has_room {
        return Ok(());
    }
    // The capacity is four times the need, so that a growing set seldom allocates.
    let mut old = Deque::try_with_capacity(watches.saturating_mul(4))?;
    exchange(&mut list.lock(), &mut old, is_gone);
    // The old list is dropped after the list's lock is released.
    drop(old);
    Ok(())
}

/// Moves the elements of `list` to `other`, which has room for them, and then exchanges the two lists. Gone elements
/// stay in the old list, which is `other` afterwards. The function allocates no memory.
fn exchange<T>(list: &mut Deque<T>, other: &mut Deque<T>, is_gone: impl Fn(&T) -> bool) {
    for _ in 0..list.len() {
        let Some(element) = list.pop_front() else { break };
        let to = if is_gone(&element) { &mut *list } else { &mut *other };
        to.push_back_reserved(element);
    }
    core::mem::swap(list, other);
}

impl<M: Machine> Watch<M> {
    /// Checks the watch's file. The caller has taken the watch off the list. Returns the awaited events that are ready,
    /// and all awaited events.
    fn look(&self) -> (u32, u32) {
        // `listed` is cleared before the check, so that a change after the check lists the watch again.
        self.listed.store(false, Ordering::SeqCst);
        let events = self.events.load(Ordering::Acquire);
        // After a file was closed, its watch stays in the set and reports nothing. The watch is replaced when a file
        // with the same descriptor is added.
        let file = if self.gone.load(Ordering::Acquire) { None } else { self.file.upgrade() };
        (file.map_or(0, |file| poll_bits(file.ready()) & events), events)
    }

    fn dismiss(this: Arc<Self>) {
        this.gone.store(true, Ordering::Release);
        if let Some(file) = this.file.upgrade() {
            let listener: Arc<dyn Listener> = unsize!(this);
            if let Some(readiness) = file.readiness() {
                readiness.unlisten(&listener);
            }
        }
    }
}

impl<M: Machine> Drop for Epoll<M> {
    fn drop(&mut self) {
        while let Some((_, watch)) = self.watches.get_mut().pop_first() {
            Watch::dismiss(watch);
        }
    }
}

impl<M: Machine> Stream for Epoll<M> {
    fn read(&self, _io: &Io<'_>, _sink: &mut dyn Sink) -> Result<usize, FsError> {
        Err(FsError::Invalid)
    }
    fn write(&self, _io: &Io<'_>, _source: &mut dyn Source) -> Result<usize, FsError> {
        Err(FsError::Invalid)
    }
    fn seek(&self) -> Result<u64, FsError> {
        Ok(0)
    }
    fn ready(&self) -> Ready {
        if self.any_ready() { Ready::READ } else { Ready::empty() }
    }
    fn readiness(&self) -> Option<&Readiness> {
        Some(&self.readiness)
    }
    fn held(&self) -> usize {
        // The list of changed watches has a slot for each watch. A set that is being changed does not count.
        let watch = size_of::<Watch<M>>() + 2 * size_of::<Arc<Watch<M>>>();
        self.watches.try_lock().map_or(0, |watches| watches.len() * watch)
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// `epoll_create1`
pub fn sys_epoll_create1<M: Machine>(ctx: &mut Ctx<'_, M>, flags: u32) -> Result<usize, Errno> {
    only(flags, raw::EPOLL_CLOEXEC)?;
    let both = OpenFlags::READ | OpenFlags::WRITE;
    // SAFETY: the value belongs to the calling thread, which does not replace it during the access.
    let payer = ctx.linux.users.payer(unsafe { ctx.thread.user_charge.get() });
    let set = Epoll::<M>::new(payer)?;
    let file = ctx.vfs().nameless_stream(&FileCredentials::ROOT, "[eventpoll]", unsize!(set), both, false)?;
    ctx.install(file, flags != 0)
}

/// `epoll_create`
pub fn sys_epoll_create<M: Machine>(ctx: &mut Ctx<'_, M>, size: i32) -> Result<usize, Errno> {
    if size <= 0 {
        return Err(Errno::EINVAL);
    }
    sys_epoll_create1(ctx, 0)
}

/// `epoll_ctl`
pub fn sys_epoll_ctl<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    set: i32,
    operation: u32,
    fd: i32,
    event: u64,
) -> Result<usize, Errno> {
    let set_file = ctx.file(set)?;
    let file = ctx.file(fd)?;
    let epoll = set_file.stream_as::<Epoll<M>>().ok_or(Errno::EINVAL)?;
    if Arc::ptr_eq(&set_file, &file) {
        return Err(Errno::EINVAL);
    }
    let wanted = || -> Result<(u32, u64), Errno> {
        let [events, low, high] = ctx.read::<[u32; 3]>(event)?;
        Ok((events, u64::from(low) | u64::from(high) << 32))
    };
    match operation {
        raw::EPOLL_CTL_ADD => {
            let (events, data) = wanted()?;
            if file.readiness().is_none() {
                return Err(Errno::EPERM);
            }
            let inner = file.stream_as::<Epoll<M>>();
            if events & raw::EPOLLEXCLUSIVE != 0 && (events & !EXCLUSIVE_WITH != 0 || inner.is_some()) {
                return Err(Errno::EINVAL);
            }
            let new = New { events, data, is_set: inner.is_some(), most: ctx.linux.files.most_watches() };
            let thread = ctx.thread;
            let nests = nests::Nests { last: &ctx.linux.files.epoll_nests, killed: &|| thread.killed() };
            match inner {
                None => epoll.add_file(fd, &file, new, &nests)?,
                Some(inner) => epoll.add_set(fd, &file, inner, new, &nests)?,
            }
        }
        raw::EPOLL_CTL_MOD => {
            let (events, data) = wanted()?;
            if events & raw::EPOLLEXCLUSIVE != 0 {
                return Err(Errno::EINVAL);
            }
            let watch = epoll.watch(fd, &file)?;
            if watch.events.load(Ordering::Relaxed) & raw::EPOLLEXCLUSIVE != 0 {
                return Err(Errno::EINVAL);
            }
            watch.events.store(events | ALWAYS, Ordering::Release);
            watch.data.store(data, Ordering::Release);
            epoll.list_if_ready(watch);
        }
        raw::EPOLL_CTL_DEL => epoll.remove(fd, &file)?,
        _ => return Err(Errno::EINVAL),
    }
    Ok(0)
}

/// Collects events of the set. If there are none, the thread waits without a kernel stack.
fn wait<M: Machine>(ctx: &mut Ctx<'_, M>, wait: EpollWait<M>) -> Result<usize, Errno> {
    let epoll = wait.file.stream_as::<Epoll<M>>().ok_or(Errno::EINVAL)?;
    // Events are written to user memory at once. If that fails, the event stays in the set.
    let collect = || {
        let found = epoll.collect((wait.most as usize).min(MOST), &mut |n, ready, data| {
            ctx.write(wait.to + 12 * n as u64, &[ready, data as u32, (data >> 32) as u32])
        });
        (found != Ok(0)).then_some(found)
    };
    match collect() {
        Some(found) => found,
        None if wait.deadline.is_some_and(|d| d == AT_ONCE || d <= ctx.now()) => Ok(0),
        None => {
            // The stored `wait` keeps the set alive until `go_on` has taken the thread off its queue.
            let (listing, queue) = (ctx.thread.park.listing(), epoll.readiness.sleepers());
            match listing.wait(queue, wait.deadline, || ctx.interrupted(), collect) {
                None => {
                    let deadline = wait.deadline;
                    Err(ctx.sleep(Sleep::Epoll(wait), deadline))
                }
                Some(Ok(found)) => found,
                Some(Err(WaitOutcome::TimedOut)) => Ok(0),
                Some(Err(_)) => Err(Errno::EINTR),
            }
        }
    }
}

/// Continues after a wake-up: returns events, or sleeps again.
pub(crate) fn go_on<M: Machine>(ctx: &mut Ctx<'_, M>, mut sleep: EpollWait<M>) -> Result<usize, Errno> {
    ctx.thread.park.listing().unlist();
    let EpollWait { to, most, deadline, .. } = sleep;
    let file = sleep.file.clone();
    let mut outcome = wait(ctx, sleep);
    // If the collection fails for lack of memory, only the collection is repeated. The whole call cannot be repeated,
    // because its deadline may be relative.
    for _ in 0..ATTEMPTS {
        if outcome != Err(Errno::ENOMEM) || ctx.thread.killed() || !ctx.linux.has_made_room() {
            break;
        }
        sleep = EpollWait { file: file.clone(), to, most, deadline };
        outcome = wait(ctx, sleep);
    }
    // `end_temporary_mask` does nothing if the call has no temporary mask.
    end_temporary_mask(ctx, outcome)
}

/// Waits for events of the set with descriptor `set`.
fn begin<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    set: i32,
    to: u64,
    most: i32,
    deadline: Option<u64>,
) -> Result<usize, Errno> {
    if most <= 0 {
        return Err(Errno::EINVAL);
    }
    let file = ctx.file(set)?;
    wait(ctx, EpollWait { file, to, most, deadline })
}

/// `epoll_wait`
pub fn sys_epoll_wait<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    set: i32,
    to: u64,
    most: i32,
    milliseconds: i32,
) -> Result<usize, Errno> {
    let deadline = deadline_of(ctx, milliseconds);
    begin(ctx, set, to, most, deadline)
}

/// `epoll_pwait`
pub fn sys_epoll_pwait<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    set: i32,
    to: u64,
    most: i32,
    milliseconds: i32,
    mask: u64,
    mask_size: u64,
) -> Result<usize, Errno> {
    temporary_mask(ctx, mask, mask_size)?;
    let outcome = sys_epoll_wait(ctx, set, to, most, milliseconds);
    end_temporary_mask(ctx, outcome)
}

/// `epoll_pwait2`
pub fn sys_epoll_pwait2<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    set: i32,
    to: u64,
    most: i32,
    time: u64,
    mask: u64,
    mask_size: u64,
) -> Result<usize, Errno> {
    let deadline = timeout(ctx, time)?.and_then(|ns| deadline_after(ctx.now(), ns));
    temporary_mask(ctx, mask, mask_size)?;
    let outcome = begin(ctx, set, to, most, deadline);
    end_temporary_mask(ctx, outcome)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use quire_heap::Vec;
    use quire_heap::refusal::{allocations, at, refused_each};

    fn list_of(all: &[u32]) -> SpinLock<Deque<u32>> {
        let mut list = Deque::new();
        all.iter().for_each(|n| list.try_push_back(*n).unwrap());
        SpinLock::new(Rank::FILE, list)
    }

    fn elements(list: &SpinLock<Deque<u32>>) -> Vec<u32> {
        Vec::try_from_iter(list.lock().iter().copied()).unwrap()
    }

    #[test]
    fn a_list_that_gets_no_room_stays_as_it_is() {
        let refused = refused_each(false, |_| {
            let list = list_of(&[]);
            make_room(&list, 3, |_| false).is_ok()
        });
        assert_eq!(refused, 1);
        let list = list_of(&[1, 2, 3]);
        let before = list.lock().capacity();
        assert!(at(1, || make_room(&list, 100, |n| *n == 2).is_err()).0);
        assert_eq!((elements(&list), list.lock().capacity()), (Vec::try_copy(&[1, 2, 3]).unwrap(), before));
        make_room(&list, 100, |n| *n == 2).unwrap();
        assert_eq!(elements(&list), [1, 3]);
    }

    #[test]
    fn reporting_a_watch_of_a_set_needs_no_memory() {
        let list = list_of(&[]);
        for watches in 1..200 {
            make_room(&list, watches, |_| false).unwrap();
            // All watches of the set are on the list. Each leaves the list and comes back.
            let made = allocations(|| {
                let mut list = list.lock();
                list.push_back_reserved(watches as u32);
                for _ in 0..watches {
                    let first = list.pop_front().unwrap();
                    list.push_back_reserved(first);
                }
            });
            assert_eq!((made, list.lock().len()), (0, watches));
        }
        // Watches are added first, and then all are listed at once. Three removed watches are still on the list.
        let list = list_of(&[0, 0, 0]);
        (1..200).for_each(|watches| make_room(&list, watches, |n| *n == 0).unwrap());
        assert_eq!(allocations(|| (1..200).for_each(|n| list.lock().push_back_reserved(n))), 0);
    }

    #[test]
    fn watches_that_come_and_go_do_not_make_the_list_grow() {
        let list = list_of(&[]);
        for n in 0..1000 {
            // All earlier watches have been removed.
            make_room(&list, 1, |there| *there < n).unwrap();
            list.lock().push_back_reserved(n);
        }
        assert!(list.lock().capacity() <= 4, "{}", list.lock().capacity());
    }
}
