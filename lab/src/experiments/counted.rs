//! The counts of the recording build, in a form that either build compiles.

use crate::Failure;

/// The counts of one piece of work.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Counts {
    /// Spin locks taken.
    pub takes: u64,
    /// Those of the page queues and of the CPUs' batches in front of them.
    pub queue_takes: u64,
    /// Accesses to shared memory under one hold of a queue's lock, at most.
    pub longest_queue_hold: u64,
}

/// Does `f`, and counts.
#[cfg(not(recording))]
pub(super) fn counted<R>(_f: impl FnOnce() -> R) -> Result<(R, Counts), Failure> {
    Err(Failure::Build)
}

/// Does `f`, and counts.
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

/// Lines that CPUs take from each other, in a model with endless caches.
#[derive(Default)]
pub(super) struct Caches {
    #[cfg(recording)]
    caches: quire_sync::record::Coherence,
}

impl Caches {
    /// Does `f`, and counts. The last number is how often it took a line from another CPU, to read or to write it.
    #[cfg(not(recording))]
    pub fn counted<R>(&mut self, _f: impl FnOnce() -> R) -> Result<(R, Counts, u64), Failure> {
        Err(Failure::Build)
    }

    /// Does `f`, and counts. The last number is how often it took a line from another CPU, to read or to write it.
    #[cfg(recording)]
    pub fn counted<R>(&mut self, f: impl FnOnce() -> R) -> Result<(R, Counts, u64), Failure> {
        let (done, record) = quire_sync::record::scope(f);
        let counts = Counts::of(&record);
        Ok((done, counts, self.caches.run(&record).shared()))
    }
}

/// Lines moved for a page into a queue and for a frame, each before and in production; see [`crate::bench::transfers`].
#[cfg(not(recording))]
pub(super) fn transfers(_cpus: usize) -> Result<[f64; 4], Failure> {
    Err(Failure::Build)
}

#[cfg(recording)]
pub(super) use crate::bench::transfers::lines as transfers;
