//! Address maps: production's tree and the designs that it is compared with, behind one trait.
//!
//! A map has disjoint ranges, each with a protection. Touching ranges with equal rights are merged. An operation on a
//! part of a range splits it ("clip"). [`AddressMap`] is the interface of a map. Maps that change one entry at a time
//! implement the narrower [`Entries`], and get the operations from [`by_entry`]. [`ours::Ours`] drives production's
//! tree as `quire_vm::map` does.

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
    /// The first address.
    pub start: u64,
    /// The address after the last.
    pub end: u64,
    /// The rights. Maps only compare them for equality.
    pub prot: u32,
}

/// The memory that a map uses for its ranges.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MapFootprint {
    /// The number of nodes of the tree.
    pub nodes: usize,
    /// The bytes of the nodes and of all other memory for the ranges.
    pub bytes: usize,
}

/// The error that a range to be mapped is not free.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Taken;

/// An ordered map of address ranges, with gap finding. Addresses are multiples of [`PAGE`] in the map's range.
pub trait AddressMap {
    /// The range that covers `at`, if any. A splay tree moves the node that it finds, therefore the map is mutable.
    fn lookup(&mut self, at: u64) -> Option<MapRange>;

    /// Maps `start..end`, which must be free. Merges it with neighbours of equal rights.
    fn insert(&mut self, start: u64, end: u64, prot: u32) -> Result<(), Taken>;

    /// Unmaps the ranges in `start..end`. Holes are no error.
    fn remove(&mut self, start: u64, end: u64);

    /// Sets the protection of the ranges in `start..end` to `prot`. Holes are no error.
    fn protect(&mut self, start: u64, end: u64, prot: u32);

    /// The lowest multiple of `align` in `lo..hi` that is followed by `len` free bytes. For alignments above a page, a
    /// map may prefer a hole that is certainly large enough to a lower hole that happens to be aligned.
    fn first_fit(&mut self, len: u64, align: u64, lo: u64, hi: u64) -> Option<u64>;

    /// All ranges in ascending order.
    fn all(&self) -> Vec<MapRange>;

    /// The memory that the ranges use. `None` if the map does not count it.
    fn kept(&self) -> Option<MapFootprint> {
        None
    }

    /// Checks every invariant of the structure. The error names the broken invariant and its place.
    fn check(&self) -> Result<(), String>;
}
