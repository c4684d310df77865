//! The experiment with PostgreSQL. It runs only in guests.

use super::Study;
use quire_results::Source;

/// The experiment.
pub const STUDY: Study = Study {
    name: "postgres",
    source: Source::S0,
    title: "PostgreSQL",
    about: "PostgreSQL 15 of Debian runs with shared buffers of half the guest's memory, and pgbench with 2, 20 and 200 \
        clients. Transactions is pgbench's rate. Kernel memory is the growth of page tables, small structures and \
        stacks while so many clients ask for random rows, for each client. Kernel bytes is the same for each page of \
        shared memory that a client maps. The experiment sharing measures that for a memory core with a record for \
        each mapped page.",
    caveats: &[
        "Each client is a process with its own stack, heap and tables, which are in the kernel's bytes too.",
        "A kernel that maps more pages around each fault divides by more pages. The figure for each client has no such \
        divisor.",
        "The emulator executes both kernels' instructions alike, and has no cost of a cache line that moves.",
    ],
    claims: Vec::new,
    plots: Vec::new,
    cases: |_| Vec::new(),
};
