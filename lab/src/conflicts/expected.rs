//! The list of known shared lines: which line is shared, by which operations in which states, and why.
//!
//! A shared line that is not listed fails the run. A listed line that is no longer shared fails the run too, because
//! the list describes the present.

use super::measure::Line;
use super::model::State;
use super::operation::Operation;

/// A line that operations share although they commute.
#[derive(Clone, Copy, Debug)]
pub struct Expected {
    /// The names that the one operation may have. Empty for any operation.
    pub a: &'static [&'static str],
    /// The names that the other operation may have. Empty for any operation.
    pub b: &'static [&'static str],
    /// The states in which the line is shared. Empty for all states.
    pub states: &'static [State],
    /// The labels that the owner of the line's memory may have.
    pub labels: &'static [&'static str],
    /// A part of the path of the source file that writes the line. Empty for any file.
    pub by: &'static str,
    /// The line is shared at most once in this many operations. `None` for any rate.
    pub every: Option<u32>,
    /// The reason for the sharing, in one line.
    pub reason: &'static str,
}

const ANY: &[&str] = &[];
const EVERYWHERE: &[State] = &[];
/// The operations that build or tear down a whole address space.
const SPACES: &[&str] = &["fork", "exec", "exit"];

const fn rate(
    a: &'static [&'static str],
    labels: &'static [&'static str],
    by: &'static str,
    every: u32,
    reason: &'static str,
) -> Expected {
    Expected { a, b: ANY, states: EVERYWHERE, labels, by, every: Some(every), reason }
}

const fn always(
    a: &'static [&'static str],
    b: &'static [&'static str],
    states: &'static [State],
    labels: &'static [&'static str],
    reason: &'static str,
) -> Expected {
    Expected { a, b, states, labels, by: "", every: None, reason }
}

/// The list of known shared lines.
pub static EXPECTED: &[Expected] = &[
    rate(
        ANY,
        &["epoch::Slot", "vm"],
        "epoch.rs",
        12,
        "a CPU that has retired 64 structures reads all CPUs' slots and advances the epoch; a change of a map retires \
         a few",
    ),
    rate(
        SPACES,
        &["epoch::Slot", "vm"],
        "epoch.rs",
        5,
        "a CPU that has retired 64 structures reads all CPUs' slots; the creation or the end of an address space retires \
         some dozen",
    ),
    rate(
        SPACES,
        &["vm", "page", "backing"],
        "slab.rs",
        4,
        "a CPU exchanges small structures with a slab's depot in batches of sixteen; a fork takes a dozen backings",
    ),
    rate(
        &["exit"],
        &["backing-shards"],
        "mapping_list.rs",
        32,
        "once in 256 removals, a removal reads all shards of a file's list of mappings",
    ),
    rate(
        &["pid-alloc", "thread-new"],
        &["id-directory"],
        "ids.rs",
        64,
        "the table of numbers grows by 64 entries at once",
    ),
    rate(
        &["zero-fill"],
        &["index-node"],
        "index.rs",
        64,
        "a node of the page index holds 64 pages, and is linked into its parent node",
    ),
    rate(
        &["reclaim"],
        &["vm"],
        "reclaim/progress.rs",
        3,
        "evicted pages get numbers from one clock, and a CPU takes a block of numbers at once: three on this small \
         machine",
    ),
    always(
        &["fork"],
        &["fork"],
        &[State::Threads],
        &["space", "map-entry", "table", "page", "object", "backing"],
        "a fork copies its process's map under the map's lock",
    ),
    always(
        &["reclaim"],
        &["reclaim", "fork"],
        &[State::Threads, State::File, State::Parent],
        &["page", "table", "object", "backing", "backing-shards", "space"],
        "eviction finds the processes that map a page by its file's list of mappings, and reads their page tables",
    ),
    always(
        &["reclaim"],
        &["mmap", "mmap-fixed", "munmap", "exec", "exit"],
        &[State::File],
        &["object", "backing", "backing-shards", "page"],
        "eviction reads the file's list of mappings, which these operations change",
    ),
    always(
        &["reclaim"],
        &["exit"],
        &[State::Parent],
        &["object", "backing", "page"],
        "eviction reads the file's list of mappings, which an exit changes",
    ),
    always(
        &["fork"],
        &["fork", "exit"],
        &[State::Anonymous, State::Parent],
        &["object", "backing", "page"],
        "memory that few processes map has one list of them, which each fork and each exit changes",
    ),
    always(
        &["exit"],
        &["exit"],
        &[State::Parent],
        &["object", "backing", "page"],
        "memory that few processes map has one list of them, which each fork and each exit changes",
    ),
    always(
        &["copy-fault"],
        &["fork", "exit"],
        &[State::Parent],
        &["object"],
        "a copy checks whether another space shares the layer behind, and these operations change that",
    ),
];

impl Expected {
    /// Whether the entry applies to this pair of operations in this state.
    pub fn covers(&self, a: &Operation, b: &Operation, state: State) -> bool {
        let has = |list: &[&str], o: &Operation| list.is_empty() || list.contains(&o.name);
        (self.states.is_empty() || self.states.contains(&state))
            && ((has(self.a, a) && has(self.b, b)) || (has(self.a, b) && has(self.b, a)))
    }

    /// Whether the entry applies to this line.
    pub fn names(&self, line: &Line) -> bool {
        self.labels.contains(&line.label.as_str()) && line.by.contains(self.by)
    }

    /// Whether the entry allows that a line was shared in `seen` of `rounds` rounds. A round has one operation on each
    /// side.
    pub fn allows(&self, seen: u32, rounds: u32) -> bool {
        self.every.is_none_or(|n| seen <= (2 * rounds).div_ceil(n) + 1)
    }
}
