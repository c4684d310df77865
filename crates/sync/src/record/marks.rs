//! Marks for tools that watch this program's loads and stores from outside, such as an instrumented run. Marks show
//! which CPU the thread is, and when recording begins and ends. They also enclose accesses of simulated hardware and of
//! checks.
//!
//! A mark is a store of one byte to an address of its own. So every tool that sees stores sees marks, in the program's
//! order.

use crate::hooks::CpuId;
use core::sync::atomic::{AtomicU8, Ordering};

/// The number of CPUs that marks can distinguish.
const CPUS: usize = 256;
/// One byte for each mark.
static MARKS: [AtomicU8; 4 + CPUS] = [const { AtomicU8::new(0) }; 4 + CPUS];

/// The kinds of marks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mark {
    /// From here on accesses count.
    Begin,
    /// From here on accesses do not count.
    End,
    /// The following accesses are not the system's own, up to the matching [`Mark::Back`]. These pairs nest.
    Apart,
    /// Ends the latest [`Mark::Apart`].
    Back,
    /// The thread is this CPU now.
    Cpu(CpuId),
}

/// The address of the first mark. A mark's store is [`Mark::offset`] bytes behind this address.
pub fn base() -> usize {
    MARKS.as_ptr().addr()
}

impl Mark {
    /// The size of all marks, in bytes.
    pub const BYTES: usize = size_of_val(&MARKS);

    /// The offset of this mark's store from [`base`], in bytes.
    pub fn offset(self) -> usize {
        match self {
            Mark::Begin => 0,
            Mark::End => 1,
            Mark::Apart => 2,
            Mark::Back => 3,
            Mark::Cpu(cpu) => 4 + cpu % CPUS,
        }
    }

    /// The mark whose store has this offset, or `None` if there is none.
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

/// Encloses code in [`Mark::Apart`] and [`Mark::Back`], also if the code panics.
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
