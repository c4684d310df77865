//! What somebody is told who watches this program's loads and stores from outside, as an instrumented run of it does: which CPU
//! the thread is, when accesses count, and which are not the system's own.
//!
//! A mark is a store of one byte at an address of its own: every tool that sees stores sees it, in the program's order.

use crate::hooks::CpuId;
use core::sync::atomic::{AtomicU8, Ordering};

/// CPUs that can be told apart.
const CPUS: usize = 256;
/// A byte for each mark.
static MARKS: [AtomicU8; 4 + CPUS] = [const { AtomicU8::new(0) }; 4 + CPUS];

/// What is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mark {
    /// From here on accesses count.
    Begin,
    /// They do not any more.
    End,
    /// What follows is not the system's, up to the [`Mark::Back`] that belongs to it: they nest.
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

    /// Where its store goes, from the first one's.
    pub fn offset(self) -> usize {
        match self {
            Mark::Begin => 0,
            Mark::End => 1,
            Mark::Apart => 2,
            Mark::Back => 3,
            Mark::Cpu(cpu) => 4 + cpu % CPUS,
        }
    }

    /// The mark whose store goes there.
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

    /// Says it.
    #[inline]
    pub fn say(self) {
        MARKS[self.offset()].store(0, Ordering::Relaxed);
    }
}

/// From [`Mark::Apart`] to [`Mark::Back`], also where what stands between panics.
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
    fn a_mark_is_told_by_its_address() {
        for mark in [Mark::Begin, Mark::End, Mark::Apart, Mark::Back, Mark::Cpu(0), Mark::Cpu(CPUS - 1)] {
            assert_eq!(Mark::at(mark.offset()), Some(mark));
        }
        assert_eq!(Mark::at(Mark::BYTES), None);
    }
}
