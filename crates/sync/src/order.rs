//! Learns at run time the order in which locks are taken. This is the part of C6 (all CPUs take locks in one order)
//! that [`Rank`](crate::Rank) does not decide. Debug builds only.
//!
//! Ranks order spin locks of different kinds. This module checks the rest. Two spin locks of one rank are ordered by
//! their addresses. Sleeping locks have no ranks: they are ordered by the types that they guard. Two locks of one type
//! are ordered by their addresses. When a thread takes a lock while it holds another, it adds an arrow to a graph. An
//! arrow that closes a circle is a possible deadlock. So the first run that adds it panics, and prints where each arrow
//! of the circle was first added.

use crate::backtrace::Trace;
use crate::record::apart;
use core::cell::UnsafeCell;
use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// An end of an arrow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum OrderNode {
    /// Every spin lock of this rank.
    Rank(u8),
    /// Every sleeping lock around this type.
    Type(&'static str),
    /// The lock at this address, while it exists.
    Lock(usize),
}

impl fmt::Display for OrderNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OrderNode::Rank(rank) => write!(f, "a spin lock of rank {rank}"),
            OrderNode::Type(name) => write!(f, "a mutex around {name}"),
            OrderNode::Lock(at) => write!(f, "the lock at {at:#x}"),
        }
    }
}

/// `from` was held when `to` was taken.
#[derive(Clone)]
struct Arrow {
    from: OrderNode,
    to: OrderNode,
    seen: Trace,
}

/// The most arrows that are kept (an arrow: one lock was held while another was taken). When the list is full, the
/// oldest arrow is replaced.
const MOST: usize = 512;
/// The most locks of a circle.
const LONGEST: usize = 8;

struct Arrows {
    list: [Option<Arrow>; MOST],
    next: usize,
}

/// The graph of the order in which a program took its locks. The graph's own lock (`busy`) is not checked.
struct Graph {
    busy: AtomicBool,
    arrows: UnsafeCell<Arrows>,
}

// SAFETY: a thread reaches the arrows only while it has set `busy`.
unsafe impl Sync for Graph {}

static GRAPH: Graph =
    Graph { busy: AtomicBool::new(false), arrows: UnsafeCell::new(Arrows { list: [const { None }; MOST], next: 0 }) };
/// Whether the graph has single locks (not only ranks or types). If not, a destroyed lock need not be searched for in
/// it.
static SINGLE: AtomicBool = AtomicBool::new(false);

impl Graph {
    fn with<R>(&self, f: impl FnOnce(&mut Arrows) -> R) -> R {
        let _here = crate::preempt_off();
        let out = || {
            while self.busy.swap(true, Ordering::Acquire) {
                core::hint::spin_loop();
            }
            // SAFETY: the swap took `busy` from false to true, so this thread alone uses the arrows until it stores
            // false.
            let out = f(unsafe { &mut *self.arrows.get() });
            self.busy.store(false, Ordering::Release);
            out
        };
        apart(|| crate::hooks::uninterrupted(out))
    }
}

impl Arrows {
    fn known(&self, from: OrderNode, to: OrderNode) -> Option<&Arrow> {
        self.list.iter().flatten().find(|a| a.from == from && a.to == to)
    }

    /// Follows arrows from `at` to `goal`. Returns whether there is such a path, and stores its arrows in `path`.
    fn path<'a>(&'a self, at: OrderNode, goal: OrderNode, path: &mut [Option<&'a Arrow>]) -> bool {
        let Some((here, rest)) = path.split_first_mut() else { return false };
        for arrow in self.list.iter().flatten().filter(|a| a.from == at) {
            *here = Some(arrow);
            if arrow.to == goal || self.path(arrow.to, goal, rest) {
                return true;
            }
        }
        *here = None;
        false
    }

    fn draw(&mut self, from: OrderNode, to: OrderNode) {
        let at = self.next;
        self.list[at] = Some(Arrow { from, to, seen: Trace::here() });
        self.next = (at + 1) % MOST;
    }

    /// Adds the arrow and returns `None`, or returns the circle that it would close.
    fn add(&mut self, from: OrderNode, to: OrderNode) -> Option<Circle> {
        if self.known(from, to).is_some() {
            return None;
        }
        let mut path = [None; LONGEST];
        if self.path(to, from, &mut path) {
            return Some(Circle { from, to, others: path.map(|a: Option<&Arrow>| a.cloned()), now: Trace::here() });
        }
        self.draw(from, to);
        None
    }
}

/// A circle, and where each of its arrows was added.
struct Circle {
    from: OrderNode,
    to: OrderNode,
    others: [Option<Arrow>; LONGEST],
    now: Trace,
}

impl fmt::Display for Circle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "lock order (Contract C6): {} is taken while {} is held", self.to, self.from)?;
        for arrow in self.others.iter().flatten() {
            writeln!(f, "before, {} was taken while {} was held:\n{}", arrow.to, arrow.from, arrow.seen)?;
        }
        write!(f, "now:\n{}", self.now)
    }
}

/// Notes that the caller holds `from` and is about to wait for `to`.
///
/// # Panics
/// Panics if these locks, or a chain of locks between them, were taken in the opposite order before.
pub(crate) fn after(from: OrderNode, to: OrderNode) {
    if matches!(from, OrderNode::Lock(_)) {
        apart(|| SINGLE.store(true, Ordering::Relaxed));
    }
    if let Some(circle) = GRAPH.with(|arrows| arrows.add(from, to)) {
        panic!("{circle}");
    }
}

/// One bit for each pair of ranks whose arrow exists.
static RANKS: [AtomicU64; 1024] = [const { AtomicU64::new(0) }; 1024];

/// Notes the first place where a spin lock of rank `to` is taken while one of rank `from` is held. The ranks allow this
/// order; a later violation prints the place.
pub(crate) fn ranks(from: u8, to: u8) {
    let (word, bit) = (&RANKS[usize::from(from) * 4 + usize::from(to) / 64], 1 << (to % 64));
    let new = || word.load(Ordering::Relaxed) & bit == 0 && word.fetch_or(bit, Ordering::Relaxed) & bit == 0;
    if apart(new) {
        GRAPH.with(|arrows| arrows.draw(OrderNode::Rank(from), OrderNode::Rank(to)));
    }
}

/// The backtrace of the first time that a spin lock of rank `to` was taken while one of rank `from` was held.
pub(crate) fn first(from: u8, to: u8) -> Option<Trace> {
    GRAPH.with(|arrows| arrows.known(OrderNode::Rank(from), OrderNode::Rank(to)).map(|a| a.seen.clone()))
}

/// Forgets the lock at `at`, because it is destroyed and another lock may get its address.
pub(crate) fn forget(at: usize) {
    if apart(|| SINGLE.load(Ordering::Relaxed)) {
        GRAPH.with(|arrows| {
            for place in &mut arrows.list {
                if place.as_ref().is_some_and(|a| a.from == OrderNode::Lock(at) || a.to == OrderNode::Lock(at)) {
                    *place = None;
                }
            }
        });
    }
}
