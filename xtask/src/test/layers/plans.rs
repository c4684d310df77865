//! The order of rooms in each crate, written down. What is not in it has no place.

use super::rooms::Plan;

/// All crates whose rooms have an order.
pub const PLANS: &[Plan] = &[Plan {
    krate: "vm",
    rooms: &[
        "mutant", "types", "error", "sleep", "stats", "machine", "tlb", "phys", "object", "cow", "rmap", "map",
        "reclaim", "fault", "check", "vm",
    ],
    exceptions: &[],
    limit: 10,
}];
