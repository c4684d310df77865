//! Users' shares of CPU time.
//!
//! A CPU divides its time between users first, then between the threads of a user. On each CPU a user has a [`Share`],
//! which contains the user's runnable threads on that CPU and a *virtual time*. The virtual time is the CPU time that
//! these threads have used. The share with the least virtual time runs next. So a user with a thousand threads gets as
//! much time as a user with one.
//!
//! Virtual time is counted per CPU. A thread that migrates joins its user's share of the other CPU. A share whose
//! threads all slept restarts with a virtual time at most [`CREDIT`] behind the other shares of its CPU. Otherwise it
//! would catch up on all the time that it slept.
//!
//! Shares with waiting threads form an intrusive leftist heap, so no memory is allocated. Each operation on the heap
//! takes steps logarithmic in the number of users.

use crate::list::List;
use crate::machine::Machine;
use crate::thread::{Queued, Thread};
use core::cell::{Cell, UnsafeCell};
use core::marker::PhantomData;
use core::ptr::NonNull;
use quire_sync::{CpuId, PerCpu, record};

/// How far behind the other shares a share may restart, in nanoseconds of virtual time. A user whose threads slept may
/// run for this time before other users run. The value equals the turn (time slice) of a thread.
pub(crate) const CREDIT: u64 = 4_000_000;

/// How far the front list may get ahead of the back list ([`Threads`] explains the lists), in nanoseconds of
/// [`Threads::ahead`]. The value is a few turns, so all threads of a burst of wake-ups run before the threads of the
/// back list.
pub(crate) const PATIENCE: u64 = 20_000_000;

/// The greatest ratio of the front list's CPU time to the back list's while both have threads. So the front list gets
/// at most four fifths of the time. The front list also gets at least half.
pub(crate) const FRONT_TO_BACK: u64 = 4;

/// Where a thread joins the queue of its user.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Join {
    /// At the end of the front list.
    Front,
    /// At the end of the back list.
    Back,
    /// At the head of the back list, for a thread that came from that list and has some of its turn left.
    Resume,
}

type Link<M> = Option<NonNull<Share<M>>>;

/// One user's threads and virtual time on one CPU. Guarded by the lock of that CPU's queue. The holder of the lock
/// writes through shared references, hence the cells.
pub(crate) struct Share<M: Machine> {
    /// Virtual time: the CPU time that the user's threads have used on this CPU, in nanoseconds.
    used: Cell<u64>,
    threads: UnsafeCell<Threads<M>>,
    /// The share's node in the heap: left and right child, parent, and rank. The rank is the length of the shortest
    /// path to a missing child.
    left: Cell<Link<M>>,
    right: Cell<Link<M>>,
    up: Cell<Link<M>>,
    rank: Cell<u32>,
    in_heap: Cell<bool>,
}

/// A user's threads that wait for one CPU.
///
/// There are two lists. A *turn* is a thread's time slice; its length is proportional to the thread's nice weight. A
/// thread that wakes up with some of its turn left joins the *front* list. The threads of this list run round-robin,
/// each for a short time (a *stretch*). So a thread that mostly sleeps runs soon. A thread whose turn is used up joins
/// the end of the *back* list. It gets a new turn when it is taken off that list. So the threads get CPU time by their
/// weights. A thread that wakes up often gets ahead of a busy thread by at most one turn. Then it waits on the back
/// list too.
///
/// A preempted thread keeps the rest of its turn, and rejoins the list from which it came. It joins the front list at
/// the end, and the back list at the head. So a busy thread gets its whole turn, however long the front list is.
///
/// The front list is served first. If it does not become empty, it alone is served until it is [`PATIENCE`] ahead. From
/// then on CPU time is divided between the lists by their lengths, and the back list gets from a fifth to a half. In a
/// *round* each waiting thread of the user runs once. A thread waits for at most two rounds. Without the bound of a
/// half, a few threads that wake up together would wait for the turns of a thousand busy threads. The lists share time,
/// not the number of dispatches, because the threads of the back list may sleep again soon after they run.
///
/// If the front list becomes empty now and then, a thread on the back list waits for at most one turn of each other
/// thread. After that turn the other thread joins the back list behind it.
struct Threads<M: Machine> {
    front: List<Queued<M>>,
    back: List<Queued<M>>,
    front_len: u32,
    back_len: u32,
    /// The thread that runs, or that ran last, was taken off the back list.
    from_back: bool,
    /// How far the front list is ahead: the CPU time of threads from the front list, less that of threads from the back
    /// list. The back list's time is first multiplied by the ratio of the lists' lengths. The count starts when both
    /// lists have threads, and is never negative.
    ahead: u64,
}

// SAFETY: a share is used only under the lock of the queue of its CPU.
unsafe impl<M: Machine> Send for Share<M> {}
// SAFETY: the cells of a share are read and written only under the lock of the queue of its CPU.
unsafe impl<M: Machine> Sync for Share<M> {}

impl<M: Machine> Share<M> {
    pub fn new() -> Self {
        let threads =
            Threads { front: List::new(), back: List::new(), front_len: 0, back_len: 0, from_back: false, ahead: 0 };
        Share {
            used: Cell::new(0),
            threads: UnsafeCell::new(threads),
            left: Cell::new(None),
            right: Cell::new(None),
            up: Cell::new(None),
            rank: Cell::new(0),
            in_heap: Cell::new(false),
        }
    }

    /// The lists of threads, for reading.
    ///
    /// # Requires
    /// As for every function of this type, the caller holds the lock of the CPU's queue.
    fn threads(&self) -> &Threads<M> {
        record::read(self);
        // SAFETY: the queue's lock is held, and no `&mut` outlives the function that made it.
        unsafe { &*self.threads.get() }
    }

    #[allow(clippy::mut_from_ref)] // the queue's lock makes it exclusive
    #[cfg_attr(recording, track_caller)]
    fn threads_mut(&self) -> &mut Threads<M> {
        record::wrote(self);
        // SAFETY: the queue's lock is held, and neither this reference nor one of `threads` outlives the function that
        // made it.
        unsafe { &mut *self.threads.get() }
    }

    /// The share's virtual time.
    pub fn used(&self) -> u64 {
        self.used.get()
    }

    #[cfg_attr(recording, track_caller)]
    pub fn set_used(&self, ns: u64) {
        debug_assert!(!self.in_heap.get(), "the heap is in the order of virtual times");
        record::wrote(&self.used);
        self.used.set(ns);
    }

    pub fn is_in_heap(&self) -> bool {
        self.in_heap.get()
    }

    /// How many threads of the share wait for the CPU.
    pub fn len(&self) -> usize {
        let threads = self.threads();
        (threads.front_len + threads.back_len) as usize
    }

    /// Whether no thread waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The length of the front list: threads that should not wait for a whole turn of another thread of their user.
    pub fn eager(&self) -> usize {
        self.threads().front_len as usize
    }

    /// How many waiting threads run before a thread that now joins the list that `join` names.
    pub fn before(&self, join: Join) -> usize {
        if join == Join::Back { self.len() } else { self.eager() }
    }

    /// Charges the list of the thread that has run for `ns` nanoseconds, which are `weighted` nanoseconds at nice 0.
    ///
    /// The front list is charged with the lesser of the two times, and the back list with the greater. Otherwise a
    /// single thread of great weight on the back list would be charged little, and would get nearly all the time. That
    /// would be unfair to the threads on the front list, which may together have more weight. Threads still get time by
    /// their weights, because the length of a turn depends on the weight.
    pub fn pass(&self, ns: u64, weighted: u64) {
        // No thread waits, so there is nothing to divide between the lists.
        if self.is_empty() {
            return;
        }
        let threads = self.threads_mut();
        if threads.from_back {
            // The usual case: `ahead` stays 0 while one of the lists is empty.
            if threads.ahead == 0 {
                return;
            }
            let cost = ns.max(weighted);
            let (front, back) = (u64::from(threads.front_len), u64::from(threads.back_len) + 1);
            let by_length = cost.saturating_mul(front) / back;
            threads.ahead = threads.ahead.saturating_sub(by_length.clamp(cost, FRONT_TO_BACK * cost));
        } else {
            threads.ahead += ns.min(weighted);
        }
    }

    /// Records that a thread runs that was not taken off a list of this share.
    pub fn begin(&self) {
        self.threads_mut().from_back = false;
    }

    /// The list and the end at which the running thread is inserted if it is preempted with some of its turn left.
    pub fn preempted(&self) -> Join {
        if self.threads().from_back { Join::Resume } else { Join::Front }
    }

    /// Puts `thread` on a list.
    ///
    /// # Safety
    /// The thread is on no list, and stays alive and in place until it is removed.
    pub unsafe fn push(&self, thread: NonNull<Thread<M>>, join: Join) {
        let threads = self.threads_mut();
        // SAFETY: the caller vouches that the thread is on no list and stays in place, and holds the queue's lock.
        unsafe {
            match join {
                Join::Front => threads.front.push_back(thread),
                Join::Back => threads.back.push_back(thread),
                Join::Resume => threads.back.push_front(thread),
            }
        }
        match join {
            Join::Front => threads.front_len += 1,
            Join::Back | Join::Resume => threads.back_len += 1,
        }
    }

    /// Removes the thread that runs next. Returns the thread, and whether it was on the back list (threads whose turn
    /// was used up). In that case the caller gives it a new turn if it has used up the last one. `None` if no thread
    /// waits.
    pub fn pop(&self) -> Option<(NonNull<Thread<M>>, bool)> {
        let threads = self.threads_mut();
        if threads.front_len == 0 || threads.back_len == 0 {
            threads.ahead = 0;
        }
        let starved = threads.ahead > PATIENCE;
        if !starved && let Some(thread) = threads.front.pop_front() {
            threads.front_len -= 1;
            threads.from_back = false;
            return Some((thread, false));
        }
        let thread = threads.back.pop_front()?;
        threads.back_len -= 1;
        threads.from_back = true;
        Some((thread, true))
    }

    /// Finds the first thread that `may` accepts, on the back list, else on the front list. Each examined thread lowers
    /// `looks` by one, and the search ends when `looks` is 0.
    pub fn find(&self, looks: &Cell<usize>, may: impl Fn(NonNull<Thread<M>>) -> bool) -> Option<NonNull<Thread<M>>> {
        let threads = self.threads();
        let look = || looks.replace(looks.get().saturating_sub(1)) > 0;
        let first = |list: &List<Queued<M>>| list.iter().take_while(|_| look()).find(|n| may(*n));
        first(&threads.back).or_else(|| first(&threads.front))
    }

    /// Removes a waiting thread from the back list if `back` is true, else from the front list.
    ///
    /// # Safety
    /// The thread is on that list of this share.
    pub unsafe fn remove(&self, thread: NonNull<Thread<M>>, back: bool) {
        let threads = self.threads_mut();
        // SAFETY: the caller vouches that the thread is on the list that `back` names, and holds the queue's lock.
        unsafe {
            if back {
                threads.back.remove(thread);
                threads.back_len -= 1;
            } else {
                threads.front.remove(thread);
                threads.front_len -= 1;
            }
        }
    }
}

/// A heap of shares in the order of virtual time, the least first. The lock of the CPU's queue guards the heap and the
/// links in its shares.
pub(crate) struct Heap<M: Machine> {
    root: Link<M>,
    _shares: PhantomData<Share<M>>,
}

// SAFETY: a heap only holds pointers to shares, which are `Sync`.
unsafe impl<M: Machine> Send for Heap<M> {}

/// # Safety
/// The share is in a heap. So it stays alive and in place, because its user lives while a thread of it is runnable.
unsafe fn at<'a, M: Machine>(share: NonNull<Share<M>>) -> &'a Share<M> {
    // SAFETY: the caller vouches that the share is alive and in place for `'a`.
    unsafe { share.as_ref() }
}

impl<M: Machine> Heap<M> {
    pub const fn new() -> Self {
        Heap { root: None, _shares: PhantomData }
    }

    /// The share with the least virtual time.
    pub fn first(&self) -> Option<&Share<M>> {
        // SAFETY: the root is in the heap, so it is alive by `insert`'s contract.
        self.root.map(|root| unsafe { at(root) })
    }

    /// Inserts `share` in the heap.
    ///
    /// # Safety
    /// `share` is in no heap, and stays alive and in place until it is removed.
    pub unsafe fn insert(&mut self, share: NonNull<Share<M>>) {
        // SAFETY: the caller vouches that the share stays alive and in place until it is removed.
        let new = unsafe { at(share) };
        debug_assert!(!new.in_heap.get());
        record::wrote(new);
        new.in_heap.set(true);
        new.rank.set(1);
        // Usually only one user has runnable threads, so the heap was empty.
        self.root = if self.root.is_none() { Some(share) } else { merge(self.root, Some(share)) };
    }

    /// Removes and returns the share with the least virtual time.
    pub fn pop(&mut self) -> Link<M> {
        let first = self.root?;
        // SAFETY: the root is in this heap: it was read just now, under `&mut self`.
        let root = unsafe { at(first) };
        if root.left.get().is_none() {
            // The root is the only share, because a leftist heap without a left child has no right child.
            record::wrote(root);
            root.in_heap.set(false);
            self.root = None;
        } else {
            // SAFETY: `first` is the root of this heap, by the read at the top.
            unsafe { self.remove(first) };
        }
        Some(first)
    }

    /// Removes `share` from the heap.
    ///
    /// # Safety
    /// The share is in this heap.
    pub unsafe fn remove(&mut self, share: NonNull<Share<M>>) {
        // SAFETY: `share` is in the heap, and so are all shares that it is linked to.
        let gone = unsafe { at(share) };
        debug_assert!(gone.in_heap.get());
        record::wrote(gone);
        let above = gone.up.take();
        let rest = merge(gone.left.take(), gone.right.take());
        gone.in_heap.set(false);
        let Some(above) = above else {
            self.root = rest;
            return;
        };
        // SAFETY: every share that a share in the heap links to is in the heap too, so it is alive.
        let parent = unsafe { at(above) };
        record::wrote(parent);
        let place = if parent.left.get() == Some(share) { &parent.left } else { &parent.right };
        place.set(rest);
        if let Some(rest) = rest {
            // SAFETY: `rest` was below a share in the heap, so it is in the heap and alive.
            unsafe { at(rest) }.up.set(Some(above));
        }
        // Update the ranks of the ancestors, up to the first whose rank does not change.
        let mut next = Some(above);
        while let Some(node) = next {
            // SAFETY: every share that a share in the heap links to is in the heap too, so it is alive.
            let node = unsafe { at(node) };
            if !lean(node) {
                break;
            }
            next = node.up.get();
        }
    }

    /// Calls `f` for each share until `f` returns `Some`, and returns this result. The walk visits the share with the
    /// least virtual time first, and the other shares in no particular order.
    pub fn find<R>(&self, mut f: impl FnMut(NonNull<Share<M>>) -> Option<R>) -> Option<R> {
        let mut node = self.root;
        while let Some(here) = node {
            let found = f(here);
            if found.is_some() {
                return found;
            }
            // SAFETY: `here` is the root, or a share in the heap links to it. So it is in the heap, and alive.
            let share = unsafe { at(here) };
            node = share.left.get().or(share.right.get());
            let mut from = here;
            // The walk has visited both subtrees of `from`: go up to the first ancestor whose right subtree is not
            // visited.
            while node.is_none() {
                // SAFETY: `from` is in the heap, because the walk reached it by links of shares in the heap.
                let above = unsafe { at(from) }.up.get()?;
                // SAFETY: every share that a share in the heap links to is in the heap too, so it is alive.
                let parent = unsafe { at(above) };
                node = parent.right.get().filter(|right| parent.left.get() == Some(from) && *right != from);
                from = above;
            }
        }
        None
    }
}

fn rank<M: Machine>(link: Link<M>) -> u32 {
    // SAFETY: a link leads to a share in the heap, which is alive by `insert`'s contract.
    link.map_or(0, |share| unsafe { at(share) }.rank.get())
}

/// Makes the child with the greater rank the left child, and updates the rank of `share`. Returns whether that rank
/// has changed.
fn lean<M: Machine>(share: &Share<M>) -> bool {
    if rank(share.left.get()) < rank(share.right.get()) {
        share.left.swap(&share.right);
    }
    let new = rank(share.right.get()) + 1;
    record::wrote(share);
    share.rank.replace(new) != new
}

/// Merges two heaps, whose roots have no parents. The merge descends along right children only. In a leftist heap the
/// length of such a path is at most logarithmic in the number of shares.
fn merge<M: Machine>(a: Link<M>, b: Link<M>) -> Link<M> {
    let (Some(x), Some(y)) = (a, b) else {
        let one = a.or(b);
        if let Some(one) = one {
            // SAFETY: both heaps' shares are in the merged heap, so they are alive.
            unsafe { at(one) }.up.set(None);
        }
        return one;
    };
    // SAFETY: both roots are in a heap, so they are alive by `insert`'s contract.
    let (less, more) = if unsafe { at(y).used() < at(x).used() } { (y, x) } else { (x, y) };
    // SAFETY: `less` is one of the two roots, which are alive by `insert`'s contract.
    let top = unsafe { at(less) };
    record::wrote(top);
    let right = merge(top.right.get(), Some(more));
    top.right.set(right);
    if let Some(right) = right {
        // SAFETY: `right` is a root that `merge` returned: a share in the heap, so alive.
        unsafe { at(right) }.up.set(Some(less));
    }
    lean(top);
    top.up.set(None);
    Some(less)
}

/// A user, which has a share of CPU time on each CPU. A thread without a user belongs to the share that each CPU keeps
/// for the kernel's threads and user 0.
pub struct User<M: Machine> {
    shares: PerCpu<Share<M>>,
}

impl<M: Machine> User<M> {
    /// The size in bytes of the memory that [`new`](Self::new) needs.
    pub const fn bytes(cpus: usize) -> usize {
        PerCpu::<Share<M>>::bytes(cpus)
    }

    /// A user without threads, on a machine of `cpus` CPUs.
    ///
    /// # Safety
    /// `memory` points to [`bytes`](Self::bytes)`(cpus)` writable bytes, aligned to 128, that nothing else uses while
    /// the user lives.
    pub unsafe fn new(memory: NonNull<u8>, cpus: usize) -> Self {
        // SAFETY: the caller hands over the memory that `PerCpu::new` requires: room for `cpus` shares, for ever.
        User { shares: unsafe { PerCpu::new(memory, cpus, |_| Share::new()) } }
    }

    pub(crate) fn share(&self, cpu: CpuId) -> &Share<M> {
        self.shares.of(cpu)
    }
}
