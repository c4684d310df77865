//! Words that are read together without a lock and without a write, and rarely changed (a seqlock).
//!
//! A writer acquires a lock, makes a count odd, stores the words, and makes the count even. A reader reads the count,
//! the words, and the count again. The same even number both times means that the words are of one moment. Otherwise
//! the reader acquires the writers' lock. So no reader retries for ever: it waits for at most the writers before it.
//!
//! | | a writer stores |
//! |---|---|
//! | **reader** | The reader finds an odd count first, or a different count afterwards. The writer fences between the odd count and its stores. So a reader that loads a changed word also sees that count, or a later one. |
//! | **writer** | The lock admits one writer at a time. |

use crate::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use crate::mutant::{Mutant, mutant};
use crate::{Rank, SpinLock};

/// The count and the lock of words that are stored elsewhere. The words are atomics, loaded and stored relaxed.
pub struct Sequence {
    /// Odd while a writer stores.
    count: AtomicU32,
    writing: SpinLock<()>,
}

impl Sequence {
    /// A sequence for words that no writer has changed yet.
    pub fn new(rank: Rank) -> Self {
        Sequence { count: AtomicU32::new(0), writing: SpinLock::new(rank, ()) }
    }

    /// Returns the result of `look` on the words at one moment. `look` must only load. The call may run `look` twice:
    /// the first run may see a mixture of old and new words, and its result is then dropped.
    #[inline]
    #[cfg_attr(recording, track_caller)]
    pub fn read<R>(&self, mut look: impl FnMut() -> R) -> R {
        let before = self.count.load(Ordering::Acquire);
        if before & 1 == 0 {
            let seen = look();
            if !mutant(Mutant::ReadNoFence) {
                fence(Ordering::Acquire);
            }
            if self.count.load(Ordering::Relaxed) == before || mutant(Mutant::NoSecondCount) {
                return seen;
            }
        }
        let _no_writer = self.writing.lock();
        look()
    }

    /// Runs `change`, which stores to the words. Readers see its stores as one step, and other writers wait.
    #[cfg_attr(recording, track_caller)]
    pub fn write<R>(&self, change: impl FnOnce() -> R) -> R {
        let _alone = self.writing.lock();
        let count = self.count.load(Ordering::Relaxed);
        if !mutant(Mutant::WriteUncounted) {
            self.count.store(count.wrapping_add(1), Ordering::Relaxed);
        }
        if !mutant(Mutant::WriteNoFence) {
            fence(Ordering::Release);
        }
        let result = change();
        self.count.store(count.wrapping_add(2), Ordering::Release);
        result
    }
}

/// `N` words that are changed and read together.
pub struct Sequenced<const N: usize> {
    sequence: Sequence,
    words: [AtomicU64; N],
}

impl<const N: usize> Sequenced<N> {
    /// Words with the given first values.
    pub fn new(rank: Rank, words: [u64; N]) -> Self {
        Sequenced { sequence: Sequence::new(rank), words: words.map(AtomicU64::new) }
    }

    /// Returns all words, as they are at one moment.
    #[cfg_attr(recording, track_caller)]
    pub fn read(&self) -> [u64; N] {
        self.read_part(0)
    }

    /// Returns `K` words from word `at` on, as they are at one moment.
    ///
    /// # Panics
    /// Panics if there are fewer words.
    #[inline]
    #[cfg_attr(recording, track_caller)]
    pub fn read_part<const K: usize>(&self, at: usize) -> [u64; K] {
        let words = &self.words[at..at + K];
        self.sequence.read(|| core::array::from_fn(|i| words[i].load(Ordering::Relaxed)))
    }

    /// Returns word `at`.
    ///
    /// # Panics
    /// Panics if there is no such word.
    #[inline]
    #[cfg_attr(recording, track_caller)]
    pub fn word(&self, at: usize) -> u64 {
        self.words[at].load(Ordering::Relaxed)
    }

    /// Changes the words by `edit`, which must not sleep. The changes are stored, whatever `edit` returns.
    #[cfg_attr(recording, track_caller)]
    pub fn update<R>(&self, edit: impl FnOnce(&mut [u64; N]) -> R) -> R {
        self.sequence.write(|| {
            let mut all = core::array::from_fn(|i| self.words[i].load(Ordering::Relaxed));
            let result = edit(&mut all);
            self.words.iter().zip(all).for_each(|(word, new)| word.store(new, Ordering::Relaxed));
            result
        })
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_written_value_is_read_whole_and_in_parts() {
        let words = Sequenced::new(Rank::PROCESS, [1, 2, 3]);
        assert_eq!(words.read(), [1, 2, 3]);
        assert_eq!(words.update(|all| core::mem::replace(&mut all[1], 7)), 2);
        assert_eq!((words.read_part::<2>(1), words.word(0)), ([7, 3], 1));
    }

    #[test]
    fn readers_see_no_mixture() {
        let words = &Sequenced::new(Rank::PROCESS, [0; 8]);
        std::thread::scope(|s| {
            s.spawn(|| (1..50_000).for_each(|n| words.update(|all| all.fill(n))));
            for _ in 0..50_000 {
                let seen = words.read();
                assert!(seen.iter().all(|w| *w == seen[0]), "{seen:?}");
            }
        });
    }
}
