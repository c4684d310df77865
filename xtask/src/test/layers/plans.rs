//! The order of rooms in each crate, written down. What is not in it has no place.

use super::rooms::Plan;

/// All crates whose rooms have an order.
pub const PLANS: &[Plan] = &[Plan {
    krate: "vm",
    rooms: &[
        "mutant",
        "types",
        "error",
        "sleep",
        "stats",
        "reclaim/progress",
        "check",
        "machine",
        "phys",
        "tlb",
        "paging/io",
        "paging/pager",
        "paging/swap",
        "object",
        "rmap",
        "cow",
        "paging",
        "content",
        "map",
        "reclaim",
        "fault",
        "map/ops",
        "vm",
    ],
    exceptions: &[],
    limit: 10,
}];
