//! The token word, by which no wake-up is lost: a wake-up before the park leaves a token, and the park returns at once.
//!
//! | word | the thread | `park` | `unpark` |
//! |---|---|---|---|
//! | `EMPTY` | runs or is queued | → `PARKED`, switch away | → `TOKEN` |
//! | `TOKEN` | runs or is queued | → `EMPTY`, return | stays, but is written: the waker's stores become visible |
//! | `PARKED` | sleeps, or is about to | never | → `TOKEN`, **queue the thread** |

use crate::mutant::{Mutant, mutant};
use quire_sync::atomic::{AtomicU8, Ordering};

const EMPTY: u8 = 0;
const TOKEN: u8 = 1;
const PARKED: u8 = 2;

pub(crate) struct Token(AtomicU8);

impl Token {
    pub fn new() -> Self {
        Token(AtomicU8::new(EMPTY))
    }

    /// Announces that the thread is about to sleep. Returns false if a token was there. The token is then used up, and
    /// the thread must not sleep.
    pub fn park(&self) -> bool {
        if mutant(Mutant::ParkOverToken) {
            self.0.store(PARKED, Ordering::Release);
            return true;
        }
        if self.0.compare_exchange(EMPTY, PARKED, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            return true;
        }
        self.take();
        false
    }

    /// Whether the word is `TOKEN`; a hint.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed) == TOKEN
    }

    /// Whether the thread sleeps, or is about to; a hint.
    pub fn is_parked(&self) -> bool {
        self.0.load(Ordering::Relaxed) == PARKED
    }

    /// Uses the token up. Returns whether there was one. All stores of the waker before the wake-up are then visible.
    pub fn take(&self) -> bool {
        self.0.swap(EMPTY, Ordering::AcqRel) == TOKEN
    }

    /// Gives the token. Returns true if the thread had parked. Then this caller, and no other, must queue the thread.
    pub fn give(&self) -> bool {
        self.0.swap(TOKEN, Ordering::AcqRel) == PARKED
    }
}
