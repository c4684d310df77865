//! Which numbers of a table are used and marked, and the lowest free one.

use super::OutOfMemory;
use core::alloc::Layout;
use core::slice;
use quire_heap::{Box, Vec};

/// Numbers in a word of [`Word`].
pub(super) const BITS: usize = u64::BITS as usize;

/// State of 64 numbers, guarded by the lock.
#[derive(Clone, Copy, Default)]
pub(super) struct Word {
    used: u64,
    marked: u64,
}

/// The states of all numbers. Guarded by the lock, as changes of slots are.
pub(super) enum Changes {
    /// At most 64 numbers: they need no other memory.
    Few(Word),
    Many(Box<Many>),
}

/// On a line of its own, because changers write it.
#[repr(align(64))]
pub(super) struct Many {
    words: Vec<Word>,
    /// No number in a word below it is free.
    lowest: usize,
}

impl Changes {
    /// A line of words, so that no other data shares their line.
    const LEAST: usize = 64 / size_of::<Word>();

    /// The layouts of its allocations, or of no bytes.
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

    /// No number in a word below it is free.
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

    /// A number in word `word` became free.
    fn free_from(&mut self, word: usize) {
        self.set_lowest(self.lowest().min(word));
    }

    /// Memory for `words` words: for [`grow`](Self::grow), which cannot fail.
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

    /// Makes room for `words` words, in memory of [`reserve`](Self::reserve).
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

    /// Number `n`, for which there is room, is used from now on.
    pub fn take(&mut self, n: usize) {
        self.words_mut()[n / BITS].used |= 1 << (n % BITS);
    }

    /// Number `n`, which was used, is free from now on.
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

    /// One past the highest number that has a value.
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
            // The words up to here are full, unless `from` hides a part of one.
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
