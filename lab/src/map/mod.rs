//! Address maps: production's tree and the designs that it is compared with, behind one trait.
//!
//! A map holds disjoint ranges, each with a protection. Touching ranges with equal rights are joined ("merge"); an
//! operation on a part of a range splits it ("clip"). [`AddressMap`] is the interface of a map. Maps that change entry
//! by entry implement the narrower [`Entries`] and get the operations from [`by_entry`]. [`ours::Ours`] drives
//! production's tree as `quire_vm::map` does.

pub mod by_entry;
pub mod hinted;
pub mod hints;
pub mod linear;
pub mod ordered;
pub mod ours;
pub mod splay;
#[cfg(test)]
mod tests;
pub mod workload;

pub use by_entry::Entries;

/// The unit of mappings and holes, in bytes.
pub const PAGE: u64 = 4096;

/// A range of a map.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MapRange {
    /// First address.
    pub start: u64,
    /// One past the last address.
    pub end: u64,
    /// The rights; only their equality matters here.
    pub prot: u32,
}

/// The memory of a map's ranges.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MapFootprint {
    /// Nodes of its tree.
    pub nodes: usize,
    /// Bytes of these, and of all other memory for each range.
    pub bytes: usize,
}

/// A range that was to be filled is not free.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Taken;

/// An ordered map of address ranges, with gap finding. Addresses are multiples of [`PAGE`] in the map's range.
pub trait AddressMap {
    /// The range that covers `at`. (A splay tree moves the node that it finds.)
    fn lookup(&mut self, at: u64) -> Option<MapRange>;

    /// Maps `start..end`, which must be free, and merges it with equal neighbours.
    fn insert(&mut self, start: u64, end: u64, prot: u32) -> Result<(), Taken>;

    /// Unmaps the ranges in `start..end`; holes are no error.
    fn remove(&mut self, start: u64, end: u64);

    /// Gives the ranges in `start..end` the protection `prot`; holes are no error.
    fn protect(&mut self, start: u64, end: u64, prot: u32);

    /// The lowest multiple of `align` in `lo..hi` with `len` free bytes behind it. For alignments above a page, a map
    /// may prefer a hole that is surely large enough to a lower hole that happens to be aligned.
    fn first_fit(&mut self, len: u64, align: u64, lo: u64, hi: u64) -> Option<u64>;

    /// All ranges, ascending.
    fn all(&self) -> Vec<MapRange>;

    /// Their memory; `None` if the map does not count it.
    fn kept(&self) -> Option<MapFootprint> {
        None
    }

    /// Recomputes every invariant of the structure; the error names the broken one, and its place.
    fn check(&self) -> Result<(), String>;
}
