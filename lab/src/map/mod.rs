//! Address maps: production's tree and the designs that it is measured against, behind one trait.
//!
//! A map holds disjoint ranges, each with a protection. Ranges that touch and allow the same are one ("merge"); an
//! operation on a part of a range cuts it ("clip"). [`AddressMap`] is what a map offers; maps that are changed entry by
//! entry implement the narrower [`Entries`] and get the operations from [`by_entry`]; [`ours::Ours`] drives
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

/// The least that is mapped or found, in bytes.
pub const PAGE: u64 = 4096;

/// A range of a map.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Held {
    /// First address.
    pub start: u64,
    /// One past the last address.
    pub end: u64,
    /// What is allowed there: anything but equality is of no interest here.
    pub prot: u32,
}

/// What a map keeps its ranges in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Kept {
    /// Nodes of its tree.
    pub nodes: usize,
    /// Bytes of these, and of what else there is for each range.
    pub bytes: usize,
}

/// Something is mapped in a range that was to be filled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Taken;

/// An ordered map of address ranges, with gap finding. Addresses are multiples of [`PAGE`] in the map's range.
pub trait AddressMap {
    /// The range that covers `at`. (A splay tree moves what is looked up.)
    fn lookup(&mut self, at: u64) -> Option<Held>;

    /// Maps `start..end`, which must be free; it is merged with equal neighbours.
    fn insert(&mut self, start: u64, end: u64, prot: u32) -> Result<(), Taken>;

    /// Unmaps what is mapped in `start..end`; holes are no error.
    fn remove(&mut self, start: u64, end: u64);

    /// Gives what is mapped in `start..end` the protection `prot`; holes are no error.
    fn protect(&mut self, start: u64, end: u64, prot: u32);

    /// The lowest multiple of `align` in `lo..hi` with `len` free bytes behind it. For alignments above a page a map
    /// may prefer a higher hole that is surely large enough to a lower one that happens to be aligned.
    fn first_fit(&mut self, len: u64, align: u64, lo: u64, hi: u64) -> Option<u64>;

    /// All ranges, ascending.
    fn all(&self) -> Vec<Held>;

    /// What they are kept in; `None` where the map does not tell.
    fn kept(&self) -> Option<Kept> {
        None
    }

    /// Derives every invariant of the structure again; the error says which does not hold, and where.
    fn check(&self) -> Result<(), String>;
}
