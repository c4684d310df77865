//! A ring of lists with one lock: the callout wheel of 4.4BSD and its successors (scheme 6 of Varghese and Lauck,
//! 1987). A timer is on the list of its tick modulo the ring's size. Each tick walks one list, and skips the timers
//! that are due in a later turn of the ring.

use super::Timers;
use quire_sync::{Rank, SpinLock};

const NONE: u32 = u32::MAX;
/// The length of a tick in nanoseconds: a millisecond, as ticks were.
const TICK: u64 = 1_000_000;
/// The number of lists, which is the number of ticks in one turn of the ring.
const SLOTS: usize = 1024;

#[derive(Clone)]
#[repr(align(64))]
struct Timer {
    tick: u64,
    next: u32,
    prev: u32,
}

struct State {
    timers: Vec<Timer>,
    heads: Vec<u32>,
    /// The last tick whose list was walked.
    tick: u64,
}

/// The ring of timers.
pub struct Ring(SpinLock<State>);

impl Ring {
    /// Makes a ring for this number of timers.
    pub fn new(timers: usize) -> Ring {
        let timer = Timer { tick: 0, next: NONE, prev: NONE };
        let state = State { timers: vec![timer; timers], heads: vec![NONE; SLOTS], tick: 0 };
        Ring(SpinLock::new(Rank::TIMER, state))
    }
}

impl State {
    fn link(&mut self, timer: u32, deadline: u64) {
        // The deadline is rounded up, so that no timer fires early. The current tick is not used either, because
        // `advance` may be walking its list.
        let tick = deadline.div_ceil(TICK).max(self.tick + 1);
        let slot = tick as usize % SLOTS;
        let head = std::mem::replace(&mut self.heads[slot], timer);
        self.timers[timer as usize] = Timer { tick, next: head, prev: NONE };
        if head != NONE {
            self.timers[head as usize].prev = timer;
        }
    }

    fn unlink(&mut self, timer: u32) {
        let Timer { tick, next, prev } = self.timers[timer as usize];
        match prev {
            NONE => self.heads[tick as usize % SLOTS] = next,
            prev => self.timers[prev as usize].next = next,
        }
        if next != NONE {
            self.timers[next as usize].prev = prev;
        }
    }
}

impl Timers for Ring {
    fn arm(&mut self, timer: u32, deadline: u64) {
        self.0.lock().link(timer, deadline);
    }

    fn cancel(&mut self, timer: u32) {
        self.0.lock().unlink(timer);
    }

    fn advance(&mut self, now: u64, fired: &mut dyn FnMut(u32) -> Option<u64>) {
        while self.0.lock().tick < now / TICK {
            // Each tick stands for one interrupt.
            let mut state = self.0.lock();
            state.tick += 1;
            let tick = state.tick;
            let mut at = state.heads[tick as usize % SLOTS];
            while at != NONE {
                let Timer { tick: due, next, .. } = state.timers[at as usize];
                if due <= tick {
                    state.unlink(at);
                    if let Some(deadline) = fired(at) {
                        state.link(at, deadline);
                    }
                }
                at = next;
            }
        }
    }
}
