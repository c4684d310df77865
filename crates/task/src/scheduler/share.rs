//! Users' shares of CPU time.
//!
//! A CPU divides its time between users first, then between the threads of a user. On each CPU a user has a [`Share`]:
//! its runnable threads there, and its *virtual time*, the CPU time used there. The share with the least virtual time
//! runs next, so a user with a thousand threads gets as much as a user with one.
//!
//! Virtual time belongs to a CPU and never moves. A thread that migrates joins its user's share of the other CPU. A
//! share that was idle restarts at most [`CREDIT`] behind the others of its CPU, because it must not catch up on the
//! time that it slept.
//!
//! Shares with waiting threads form an intrusive leftist heap, so nothing is allocated. A join, a turn's end and a
//! removal take steps logarithmic in the number of users.

use crate::list::List;
use crate::machine::Machine;
use crate::thread::{Queued, Thread};
use core::cell::{Cell, UnsafeCell};
use core::marker::PhantomData;
use core::ptr::NonNull;
use quire_sync::{CpuId, PerCpu, record};

/// How far behind the others a share may restart, in nanoseconds: a user who slept may run so long before it takes
/// turns. It equals a thread's turn, which an interactive program also gets within its user.
pub(crate) const CREDIT: u64 = 4_000_000;

/// How far the front list may get ahead of the back list, in nanoseconds of [`Threads::ahead`]. It is a few turns long,
/// so a burst of wake-ups is served whole before the back list.
pub(crate) const PATIENCE: u64 = 20_000_000;

/// How much CPU time the front list gets at most for that of the back list while both have threads: four fifths of
/// both. It gets half of both at least.
pub(crate) const FRONT_TO_BACK: u64 = 4;

/// Where a thread joins the queue of its user.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Join {
    /// At the end of the front list.
    Front,
    /// At the end of the back list.
    Back,
    /// At the head of the back list, from which it came: its turn is not over.
    Resume,
}

type Link<M> = Option<NonNull<Share<M>>>;

/// One user's part of one CPU. Guarded by the lock of that CPU's queue, whose holder reads and writes it through shared
/// references.
pub(crate) struct Share<M: Machine> {
    /// Virtual time: CPU time that the user's threads have had here, in nanoseconds.
    used: Cell<u64>,
    threads: UnsafeCell<Threads<M>>,
    /// Its place in the heap: the two smaller heaps below it, the share above it, and its rank. The rank is the length
    /// of the shortest path to a free place.
    left: Cell<Link<M>>,
    right: Cell<Link<M>>,
    up: Cell<Link<M>>,
    rank: Cell<u32>,
    in_heap: Cell<bool>,
}

/// A user's threads that wait for one CPU.
///
/// There are two lists. A thread that wakes up with some of its turn left joins the *front* list, which takes short
/// stretches round-robin. So a thread that mostly sleeps runs soon. A thread whose turn is used up joins the end of the
/// *back* list, and gets a new turn when it comes off it. A turn is as long as the thread's nice weight says, so in
/// each round threads get CPU time by their weights. A thread that wakes up often gets ahead of a busy thread by one
/// turn of CPU time at most. Then it waits in line.
///
/// A preempted thread keeps the rest of its turn, and rejoins the list from which it came. It joins the front list at
/// the end, and the back list at the head. So a busy thread's turn does not depend on the length of the front list.
///
/// While the front list never runs dry, the back list is passed over for [`PATIENCE`]. From then on CPU time is divided
/// between the lists by their lengths. The back list gets from a fifth to a half. So a thread waits for two rounds at
/// most. In a round each waiting thread of its user runs once. Without the bound of a half, a few threads that wake up
/// together would wait for the turns of a thousand busy ones. The divided quantity is time, not the number of threads
/// served, because a back list of threads that sleep soon empties as fast as it fills.
///
/// Where the front list runs dry now and then, it is served first. A thread on the back list then waits for at most one
/// turn of each other thread. A thread whose turn is used up joins the back list behind it.
struct Threads<M: Machine> {
    front: List<Queued<M>>,
    back: List<Queued<M>>,
    front_len: u32,
    back_len: u32,
    /// The thread that runs, or ran last, came off the back list.
    from_back: bool,
    /// CPU time of threads off the front list, less that of threads off the back list, which counts by the ratio of the
    /// lengths. Counts from the moment at which both lists had threads, and is never negative.
    ahead: u64,
}

// SAFETY: only the holder of the lock of the share's CPU's queue uses it.
unsafe impl<M: Machine> Send for Share<M> {}
// SAFETY: a shared share lets only the holder of its queue's lock touch its cells.
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

    /// # Requires
    /// As for every function of this type, the caller holds the lock of the CPU's queue.
    fn threads(&self) -> &Threads<M> {
        record::read(self);
        // SAFETY: the lock is held, and no `&mut` outlives the function that made it.
        unsafe { &*self.threads.get() }
    }

    #[allow(clippy::mut_from_ref)] // the queue's lock makes it exclusive
    #[cfg_attr(recording, track_caller)]
    fn threads_mut(&self) -> &mut Threads<M> {
        record::wrote(self);
        // SAFETY: the lock is held, and neither this nor a `&` of `threads` outlives the function that made it.
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

    /// How many threads wait.
    pub fn len(&self) -> usize {
        let threads = self.threads();
        (threads.front_len + threads.back_len) as usize
    }

    /// Whether no thread waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many threads should not wait for a whole turn of another thread of the same user.
    pub fn eager(&self) -> usize {
        self.threads().front_len as usize
    }

    /// A thread of the user's has run for `ns`, which are `weighted` nanoseconds at nice 0.
    ///
    /// A turn's length is the thread's weight already. Here the front list is charged with the lesser time and the back
    /// list with the greater. Otherwise a single thread of great weight on the back list would take nearly all time.
    /// The weights of a thousand threads on the front list together may exceed its own.
    pub fn pass(&self, ns: u64, weighted: u64) {
        // No thread waited, so no list was passed over.
        if self.is_empty() {
            return;
        }
        let threads = self.threads_mut();
        if threads.from_back {
            // Mostly, because it stays so while one of the lists is empty.
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

    /// A thread that was not taken off a list runs now.
    pub fn begin(&self) {
        self.threads_mut().from_back = false;
    }

    /// Where the running thread joins if it is preempted with some of its turn left.
    pub fn preempted(&self) -> Join {
        if self.threads().from_back { Join::Resume } else { Join::Front }
    }

    /// Puts `thread` on a list.
    ///
    /// # Safety
    /// The thread is on no list, and stays alive and in place until it is taken off.
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

    /// Takes off the thread to run next, and returns whether it comes from the back list. There it gets a new turn if
    /// it has used up the last one.
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

    /// The first thread, of the back list, else of the front list, that `may` accepts. Each thread that it looks at
    /// takes one of `looks`, and it stops where none is left.
    pub fn find(&self, looks: &Cell<usize>, may: impl Fn(NonNull<Thread<M>>) -> bool) -> Option<NonNull<Thread<M>>> {
        let threads = self.threads();
        let look = || looks.replace(looks.get().saturating_sub(1)) > 0;
        let first = |list: &List<Queued<M>>| list.iter().take_while(|_| look()).find(|n| may(*n));
        first(&threads.back).or_else(|| first(&threads.front))
    }

    /// Takes off a thread that waits.
    ///
    /// # Safety
    /// The thread is on that list.
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

/// Shares by virtual time, the least first. Guarded, with the places in the shares, by the lock of the CPU's queue.
pub(crate) struct Heap<M: Machine> {
    root: Link<M>,
    _shares: PhantomData<Share<M>>,
}

// SAFETY: it only holds pointers to shares, which are `Sync`.
unsafe impl<M: Machine> Send for Heap<M> {}

/// # Safety
/// A share in a heap stays alive and in place: its user does as long as a thread of it is runnable.
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

    /// Puts `share` in.
    ///
    /// # Safety
    /// `share` is in no heap, and stays alive and in place until it is out again.
    pub unsafe fn insert(&mut self, share: NonNull<Share<M>>) {
        // SAFETY: the caller vouches that the share stays alive and in place until it is out again.
        let new = unsafe { at(share) };
        debug_assert!(!new.in_heap.get());
        record::wrote(new);
        new.in_heap.set(true);
        new.rank.set(1);
        // Mostly one user runs, so the heap was empty.
        self.root = if self.root.is_none() { Some(share) } else { merge(self.root, Some(share)) };
    }

    /// Takes the share with the least virtual time out.
    pub fn pop(&mut self) -> Link<M> {
        let first = self.root?;
        // SAFETY: the root is in this heap: it was read just now, under `&mut self`.
        let root = unsafe { at(first) };
        if root.left.get().is_none() {
            // The only one, because the greater side is the left one.
            record::wrote(root);
            root.in_heap.set(false);
            self.root = None;
        } else {
            // SAFETY: `first` is the root of this heap, by the read at the top.
            unsafe { self.remove(first) };
        }
        Some(first)
    }

    /// Takes `share` out.
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
        // Ranks above change only as far up as the shortest path led through here.
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

    /// The first result of `f` over the shares, in no particular order except that the share with the least virtual
    /// time comes first.
    pub fn find<R>(&self, mut f: impl FnMut(NonNull<Share<M>>) -> Option<R>) -> Option<R> {
        let mut node = self.root;
        while let Some(here) = node {
            let found = f(here);
            if found.is_some() {
                return found;
            }
            // SAFETY: `here` is in the heap, as every share that a share in the heap links to.
            let share = unsafe { at(here) };
            node = share.left.get().or(share.right.get());
            let mut from = here;
            // Both heaps below are done: go up to the first share whose right heap is not.
            while node.is_none() {
                // SAFETY: `from` is in the heap: the walk came to it by links of shares that are.
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

/// Puts the heap with the greater rank to the left, and updates the rank; true if that changed it.
fn lean<M: Machine>(share: &Share<M>) -> bool {
    if rank(share.left.get()) < rank(share.right.get()) {
        share.left.swap(&share.right);
    }
    let new = rank(share.right.get()) + 1;
    record::wrote(share);
    share.rank.replace(new) != new
}

/// Merges two heaps, whose roots have nothing above them. It walks down right-hand paths only, which are at most as
/// long as the logarithm of the number of shares.
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

/// A user: a share of CPU time on each CPU. A thread without a user belongs to the share that each CPU keeps for the
/// kernel's threads and user 0.
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
