//! Marks for tools that watch this program's loads and stores from outside, such as an instrumented run. They say
//! which CPU the thread is, when recording begins and ends, and which accesses simulated hardware or checks make.
//!
//! A mark is a store of one byte at an address of its own: every tool that sees stores sees it, in the program's order.

use crate::hooks::CpuId;
use core::sync::atomic::{AtomicU8, Ordering};

/// CPUs that can be distinguished.
const CPUS: usize = 256;
/// A byte for each mark.
static MARKS: [AtomicU8; 4 + CPUS] = [const { AtomicU8::new(0) }; 4 + CPUS];

/// The kinds of marks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mark {
    /// From here on accesses count.
    Begin,
    /// From here on accesses do not count.
    End,
    /// The following accesses are not the system's, up to the matching [`Mark::Back`]: they nest.
    Apart,
    /// See [`Mark::Apart`].
    Back,
    /// The thread is this CPU now.
    Cpu(CpuId),
}

/// Where the marks lie: a mark's store is at [`Mark::offset`] from here.
pub fn base() -> usize {
    MARKS.as_ptr().addr()
}

impl Mark {
    /// Bytes that marks take.
    pub const BYTES: usize = size_of_val(&MARKS);

    /// The offset of its store from the first mark's.
    pub fn offset(self) -> usize {
        match self {
            Mark::Begin => 0,
            Mark::End => 1,
            Mark::Apart => 2,
            Mark::Back => 3,
            Mark::Cpu(cpu) => 4 + cpu % CPUS,
        }
    }

    /// The mark whose store has this offset.
    pub fn at(offset: usize) -> Option<Mark> {
        Some(match offset {
            0 => Mark::Begin,
            1 => Mark::End,
            2 => Mark::Apart,
            3 => Mark::Back,
            n if n < Self::BYTES => Mark::Cpu(n - 4),
            _ => return None,
        })
    }

    /// Emits the mark.
    #[inline]
    pub fn say(self) {
        MARKS[self.offset()].store(0, Ordering::Relaxed);
    }
}

/// From [`Mark::Apart`] to [`Mark::Back`], also where the code between panics.
pub(super) struct Outside;

impl Outside {
    pub(super) fn new() -> Outside {
        Mark::Apart.say();
        Outside
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        Mark::Back.say();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_known_by_its_address() {
        for mark in [Mark::Begin, Mark::End, Mark::Apart, Mark::Back, Mark::Cpu(0), Mark::Cpu(CPUS - 1)] {
            assert_eq!(Mark::at(mark.offset()), Some(mark));
        }
        assert_eq!(Mark::at(Mark::BYTES), None);
    }
}
