//! An object's pages by index.

use super::pages::Frame;
use quire_sync::record;
use std::collections::BTreeMap;

const CHUNK: u64 = 512;

/// Pages by index: chunks of a table page's reach.
#[derive(Default)]
pub struct Resident {
    chunks: BTreeMap<u64, Box<[Option<Frame>; CHUNK as usize]>>,
    count: u64,
}

impl Drop for Resident {
    fn drop(&mut self) {
        if record::ENABLED {
            // See `kept`.
            std::mem::forget(std::mem::take(&mut self.chunks));
        }
    }
}

impl Resident {
    /// The frame of a page.
    pub fn get(&self, key: u64) -> Option<Frame> {
        let chunk = self.chunks.get(&(key / CHUNK))?;
        record::read(&chunk[(key % CHUNK) as usize]);
        chunk[(key % CHUNK) as usize]
    }

    /// Puts one there, or takes it away.
    pub fn set(&mut self, key: u64, frame: Option<Frame>) {
        let empty = || Box::new([None; CHUNK as usize]);
        let slot = &mut self.chunks.entry(key / CHUNK).or_insert_with(empty)[(key % CHUNK) as usize];
        record::wrote(slot);
        self.count = self.count - u64::from(slot.is_some()) + u64::from(frame.is_some());
        *slot = frame;
    }

    /// How many there are.
    pub fn len(&self) -> u64 {
        self.count
    }

    /// All that are there.
    pub fn all(&self) -> impl Iterator<Item = (u64, Frame)> + '_ {
        self.chunks.iter().flat_map(|(n, chunk)| {
            chunk.iter().enumerate().filter_map(move |(i, f)| f.map(|f| (n * CHUNK + i as u64, f)))
        })
    }
}
