//! The counts of the recording build. In the native build, the same functions return an error.

use crate::Failure;

/// The counts of one piece of work.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Counts {
    /// The number of acquired spin locks.
    pub takes: u64,
    /// The number of lock acquisitions, of the page queues and of the per-CPU batches that collect pages for the
    /// queues.
    pub queue_takes: u64,
    /// The most accesses to shared memory while a queue's lock was held once.
    pub longest_queue_hold: u64,
}

/// Calls `f` and returns its counts.
#[cfg(not(recording))]
pub(super) fn counted<R>(_f: impl FnOnce() -> R) -> Result<(R, Counts), Failure> {
    Err(Failure::Build)
}

/// Calls `f` and returns its counts.
#[cfg(recording)]
pub(super) fn counted<R>(f: impl FnOnce() -> R) -> Result<(R, Counts), Failure> {
    let (done, record) = quire_sync::record::scope(f);
    Ok((done, Counts::of(&record)))
}

#[cfg(recording)]
impl Counts {
    fn of(record: &quire_sync::record::Record) -> Counts {
        use quire_sync::Rank;
        let by_rank = record.lock_takes_by_rank();
        let of = |rank| by_rank.get(&Some(rank)).copied().unwrap_or(0) as u64;
        Counts {
            takes: record.lock_takes() as u64,
            queue_takes: of(Rank::QUEUE) + of(Rank::QUEUE_BATCH),
            longest_queue_hold: record.longest_hold(Rank::QUEUE) as u64,
        }
    }
}

/// Counts the lines that CPUs fetch from each other, in a model with unlimited caches.
#[derive(Default)]
pub(super) struct Caches {
    #[cfg(recording)]
    caches: quire_sync::record::Coherence,
}

impl Caches {
    /// Calls `f` and returns its counts. The last number is how often `f` fetched a line from another CPU.
    #[cfg(not(recording))]
    pub fn counted<R>(&mut self, _f: impl FnOnce() -> R) -> Result<(R, Counts, u64), Failure> {
        Err(Failure::Build)
    }

    /// Calls `f` and returns its counts. The last number is how often `f` fetched a line from another CPU.
    #[cfg(recording)]
    pub fn counted<R>(&mut self, f: impl FnOnce() -> R) -> Result<(R, Counts, u64), Failure> {
        let (done, record) = quire_sync::record::scope(f);
        let counts = Counts::of(&record);
        Ok((done, counts, self.caches.run(&record).shared()))
    }
}

/// The lines that move when a page is put into a queue, and when a frame is allocated. Each is counted for the old
/// design and for production; see [`crate::bench::transfers`].
#[cfg(not(recording))]
pub(super) fn transfers(_cpus: usize) -> Result<[f64; 4], Failure> {
    Err(Failure::Build)
}

#[cfg(recording)]
pub(super) use crate::bench::transfers::lines as transfers;
