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
        "paging/waiting",
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
    exceptions: &[
        ("machine", "phys", "page tables are told what system they are of"),
        ("machine", "tlb", "page tables return the flushes that they owe"),
        ("object", "paging", "the last holder of a file waits until its pages are written"),
    ],
    limit: 10,
}];
