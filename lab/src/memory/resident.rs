//! The resident pages of an object, by index.

use super::pages::Frame;
use quire_sync::record;
use std::collections::BTreeMap;

const CHUNK: u64 = 512;

/// Pages by index, in chunks. A chunk has as many pages as a table page covers.
#[derive(Default)]
pub struct Resident {
    chunks: BTreeMap<u64, Box<[Option<Frame>; CHUNK as usize]>>,
    count: u64,
}

impl Drop for Resident {
    fn drop(&mut self) {
        if record::ENABLED {
            // `kept` in `lab/src/memory/mod.rs` explains why the memory is not freed.
            std::mem::forget(std::mem::take(&mut self.chunks));
        }
    }
}

impl Resident {
    /// The frame of a page. `None` if the page is not resident.
    pub fn get(&self, key: u64) -> Option<Frame> {
        let chunk = self.chunks.get(&(key / CHUNK))?;
        record::read(&chunk[(key % CHUNK) as usize]);
        chunk[(key % CHUNK) as usize]
    }

    /// Sets the frame of a page, or removes the page with `None`.
    pub fn set(&mut self, key: u64, frame: Option<Frame>) {
        let empty = || Box::new([None; CHUNK as usize]);
        let slot = &mut self.chunks.entry(key / CHUNK).or_insert_with(empty)[(key % CHUNK) as usize];
        record::wrote(slot);
        self.count = self.count - u64::from(slot.is_some()) + u64::from(frame.is_some());
        *slot = frame;
    }

    /// The number of resident pages.
    pub fn len(&self) -> u64 {
        self.count
    }

    /// All resident pages with their frames.
    pub fn all(&self) -> impl Iterator<Item = (u64, Frame)> + '_ {
        self.chunks.iter().flat_map(|(n, chunk)| {
            chunk.iter().enumerate().filter_map(move |(i, f)| f.map(|f| (n * CHUNK + i as u64, f)))
        })
    }
}
