//! The states of a table's numbers: which are used and marked, and which is the lowest free one.

use super::OutOfMemory;
use core::alloc::Layout;
use core::slice;
use quire_heap::{Box, Vec};

/// The number of numbers in a [`Word`].
pub(super) const BITS: usize = u64::BITS as usize;

/// The state of 64 numbers. The lock `Slots::changes` guards it.
#[derive(Clone, Copy, Default)]
pub(super) struct Word {
    used: u64,
    marked: u64,
}

/// The states of all numbers. The lock `Slots::changes` guards them, and also changes of slots.
pub(super) enum Changes {
    /// At most 64 numbers. They need no other memory.
    Few(Word),
    Many(Box<Many>),
}

/// The states of more numbers. They have their own cache line, because changers write it.
#[repr(align(64))]
pub(super) struct Many {
    words: Vec<Word>,
    /// No number in a word before this one is free.
    lowest: usize,
}

impl Changes {
    /// The least number of words: a cache line of words, so that no other data shares the line.
    const LEAST: usize = 64 / size_of::<Word>();

    /// The layouts of the allocations; a layout of zero bytes is not an allocation.
    pub fn allocations(&self) -> [Layout; 2] {
        let none = Layout::new::<()>();
        match self {
            Changes::Few(_) => [none; 2],
            Changes::Many(many) => {
                [Layout::new::<Many>(), Layout::array::<Word>(many.words.capacity()).unwrap_or(none)]
            }
        }
    }

    pub fn words(&self) -> &[Word] {
        match self {
            Changes::Few(word) => slice::from_ref(word),
            Changes::Many(many) => &many.words,
        }
    }

    pub fn words_mut(&mut self) -> &mut [Word] {
        match self {
            Changes::Few(word) => slice::from_mut(word),
            Changes::Many(many) => &mut many.words,
        }
    }

    /// The word number below which no number is free.
    pub fn lowest(&self) -> usize {
        match self {
            Changes::Few(_) => 0,
            Changes::Many(many) => many.lowest,
        }
    }

    pub fn set_lowest(&mut self, lowest: usize) {
        if let Changes::Many(many) = self {
            many.lowest = lowest;
        }
    }

    /// Records that a number in word `word` became free.
    fn free_from(&mut self, word: usize) {
        self.set_lowest(self.lowest().min(word));
    }

    /// Allocates memory for `words` words, so that [`grow`](Self::grow) cannot fail.
    pub fn reserve(&mut self, words: usize) -> Result<Option<Box<Many>>, OutOfMemory> {
        match self {
            Changes::Few(_) if words <= 1 => Ok(None),
            Changes::Few(_) => {
                let many = Many { words: Vec::try_with_capacity(words.max(Self::LEAST))?, lowest: 0 };
                Ok(Some(Box::try_new(many)?))
            }
            Changes::Many(many) => {
                let more = words.saturating_sub(many.words.len());
                many.words.try_reserve_exact(more)?;
                Ok(None)
            }
        }
    }

    /// Makes room for `words` words, in memory that [`reserve`](Self::reserve) has allocated.
    pub fn grow(&mut self, many: Option<Box<Many>>, words: usize) {
        if let (Some(mut many), Changes::Few(word)) = (many, &*self) {
            many.words.push_reserved(*word);
            *self = Changes::Many(many);
        }
        if let Changes::Many(many) = self {
            let words = words.max(many.words.len());
            many.words.resize_reserved(words, Word::default());
        }
    }

    pub fn set_mark(&mut self, n: usize, mark: bool) {
        let bit = 1 << (n % BITS);
        let word = &mut self.words_mut()[n / BITS];
        word.marked = if mark { word.marked | bit } else { word.marked & !bit };
    }

    pub fn is_marked(&self, n: usize) -> bool {
        self.words().get(n / BITS).is_some_and(|w| w.marked >> (n % BITS) & 1 != 0)
    }

    /// Marks number `n` as used. The table has room for it.
    pub fn take(&mut self, n: usize) {
        self.words_mut()[n / BITS].used |= 1 << (n % BITS);
    }

    /// Marks number `n`, which was used, as free.
    pub fn give(&mut self, n: usize) {
        self.words_mut()[n / BITS].used &= !(1 << (n % BITS));
        self.free_from(n / BITS);
    }

    pub fn is_used(&self, n: usize) -> bool {
        self.words().get(n / BITS).is_some_and(|w| w.used >> (n % BITS) & 1 != 0)
    }

    pub fn next_used(&self, from: usize) -> Option<usize> {
        let mut mask = u64::MAX << (from % BITS);
        for (i, word) in self.words().iter().enumerate().skip(from / BITS) {
            let here = word.used & mask;
            if here != 0 {
                return Some(i * BITS + here.trailing_zeros() as usize);
            }
            mask = u64::MAX;
        }
        None
    }

    /// One past the highest number that is used.
    pub fn used(&self) -> usize {
        let words = self.words();
        let last = words.iter().rposition(|w| w.used != 0);
        last.map_or(0, |i| (i + 1) * BITS - words[i].used.leading_zeros() as usize)
    }

    pub fn lowest_free(&mut self, from: usize) -> usize {
        let start = self.lowest().max(from / BITS);
        let mut below = if start == from / BITS { (1 << (from % BITS)) - 1 } else { 0 };
        let mut at = start;
        while let Some(&word) = self.words().get(at).filter(|w| w.used | below == u64::MAX) {
            // All words up to `at` are full. The exception is the word of `from`, whose bits below `from` were not
            // checked.
            if at == self.lowest() && word.used == u64::MAX {
                self.set_lowest(at + 1);
            }
            below = 0;
            at += 1;
        }
        let used = self.words().get(at).map_or(0, |w| w.used) | below;
        at * BITS + used.trailing_ones() as usize
    }
}
