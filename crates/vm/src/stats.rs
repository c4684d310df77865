//! Event counters. Each CPU has a set of its own. A count is a plain store to the CPU's own cache line, and a total is
//! a sum over all CPUs.

use quire_sync::atomic::{AtomicU64, Ordering};
use quire_sync::{PerCpu, preempt_off};

macro_rules! events {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// An event that is counted.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(usize)]
        pub enum Event { $($(#[$doc])* $name,)* }
        impl Event {
            /// Every event, in the order of their numbers.
            pub const ALL: &'static [Event] = &[$(Event::$name,)*];
            /// The event's name for tools. If Linux has the event, it is the name in `/proc/vmstat`.
            pub fn name(self) -> &'static str {
                match self { $(Event::$name => $text,)* }
            }
        }
    };
}

events! {
    /// Attempts of faults that failed, so that the fault tried again.
    FaultRetry = "pgfault_retry",
    /// Faults that failed: nothing is mapped, or the mapping does not allow the access. A fault below a stack that then
    /// grows counts too.
    FaultRefused = "pgfault_refused",
    /// Resident neighbours that faults mapped in addition to their own page.
    FaultAround = "pgfault_around",
    /// Pages of zeroes that faults made ahead of the touched page.
    FaultAhead = "pgfault_ahead",
    /// Frames that were allocated.
    FrameAlloc = "pgalloc_normal",
    /// Failed allocations of frames for programs at a depot, because memory was exhausted, or free frames were with
    /// other CPUs.
    AllocStall = "allocstall_normal",
    /// Frames that were freed.
    FrameFree = "pgfree",
    /// Magazines that were exchanged with the depot.
    DepotExchange = "depot_exchange",
    /// Page-table pages that were allocated.
    TableAlloc = "pgtable_alloc",
    /// Page-table pages that were freed.
    TableFree = "pgtable_free",
    /// Pages of files and of shared memory that were made resident.
    SharedPage = "shared_page",
    /// Pages of files and of shared memory that ceased to be resident.
    SharedPageGone = "shared_page_gone",
    /// Pages of kernel stacks that were mapped.
    StackPage = "kernel_stack_page",
    /// Pages of kernel stacks that were freed.
    StackPageGone = "kernel_stack_page_gone",
    /// Frames that the kernel allocated for other uses than tables, stacks and slabs. Examples are large runs of the
    /// heap, mapped buffers, and pages of pipes.
    BufferPage = "kernel_buffer_page",
    /// Frames of the uses that [`Event::BufferPage`] counts, which were freed.
    BufferPageGone = "kernel_buffer_page_gone",
    /// Flushes of translations, local and remote.
    Flush = "tlb_flush",
    /// Shootdowns: requests that had to reach another CPU.
    Shootdown = "nr_tlb_remote_flush",
    /// CPUs to which shootdowns were sent.
    ShootdownTarget = "nr_tlb_remote_flush_received",
    /// Pages that moved between two layers of a chain when these were merged.
    PageMoved = "page_moved",
    /// Slots of objects and leaves of page tables that operations on ranges visited.
    RangeVisit = "range_visit",
    /// Pages that copy-up copied into the first layer of a chain, to make the chain shorter.
    PageCopiedUp = "page_copied_up",
    /// Pages that were destroyed because every chain hid them.
    PageShadowed = "page_shadowed",
    /// Pages read from swap.
    SwapIn = "pswpin",
    /// Pages read from their own pagers.
    PageIn = "pgpgin",
    /// New pages that system calls made and filled.
    PageFilled = "pgfilled",
    /// Near refaults: pages that a program needed again soon after their eviction.
    NearRefault = "workingset_refault_near",
    /// Pages written to swap.
    SwapOut = "pswpout",
    /// Pages written to their own pagers.
    PageOut = "pgpgout",
    /// Pages whose write failed.
    WriteFailed = "pgwrite_failed",
    /// Pages that pageout looked at on the inactive queue.
    Scan = "pgscan_kswapd",
    /// Pages that pageout evicted.
    Evict = "pgsteal_kswapd",
    /// Pages that pageout moved to the inactive queue because they were not referenced.
    Deactivate = "pgdeactivate",
    /// Pages that pageout moved back to the active queue because they were referenced.
    Activate = "pgactivate",
    /// Pages that programs marked as free if memory is short (`MADV_FREE`).
    LazyFree = "pglazyfree",
    /// Pages that migrated to other frames, to free a run of frames.
    Migrated = "pgmigrate_success",
    /// Pages whose migration failed, temporarily or for good.
    MigrateFailed = "pgmigrate_fail",
    /// Spaces that were visited to drop idle page tables.
    SpacesVisited = "pagetable_visits",
    /// Table pages freed because their space was idle.
    TablesDropped = "pagetables_dropped",
    /// Pages that the first fault after a drop of page tables mapped.
    FaultAll = "pgfault_all",
    /// References to objects that threads and requests took beside handles and mappings.
    ObjectKept = "object_kept",
    /// Such references that were given up.
    ObjectReleased = "object_released",
    /// Address spaces forked.
    Fork = "fork",
    /// Items that the consistency checker visited.
    CheckVisit = "check_visit",
}

/// The counters of one CPU.
pub struct Counters {
    faults: [AtomicU64; FaultKind::ALL.len()],
    events: [AtomicU64; Event::ALL.len()],
}

/// Adds to a counter that only this CPU writes, while preemption is off. A load and a store suffice, without an atomic
/// read-modify-write.
#[inline(always)]
fn bump(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
}

impl Counters {
    /// Counters that are all zero.
    pub(crate) fn new() -> Self {
        let zero = |_| AtomicU64::new(0);
        Counters { faults: core::array::from_fn(zero), events: core::array::from_fn(zero) }
    }
}

impl Default for Counters {
    fn default() -> Self {
        Self::new()
    }
}

/// The counters of all CPUs.
pub struct Stats {
    cpus: PerCpu<Counters>,
}

impl Stats {
    pub(crate) fn new(cpus: PerCpu<Counters>) -> Self {
        Stats { cpus }
    }

    /// Counts `event` once, on this CPU.
    #[inline]
    pub fn count(&self, event: Event) {
        self.add(event, 1);
    }

    /// Counts `event` `n` times, on this CPU.
    #[inline]
    pub fn add(&self, event: Event, n: u64) {
        let cpu = preempt_off();
        bump(&self.cpus.mine(&cpu).events[event as usize], n);
    }

    /// Counts a fault that was served, on this CPU.
    #[inline]
    pub(crate) fn count_fault(&self, kind: FaultKind) {
        let cpu = preempt_off();
        bump(&self.cpus.mine(&cpu).faults[kind as usize], 1);
    }

    /// Number of faults that were served in this way, on all CPUs.
    pub fn faults_of(&self, kind: FaultKind) -> u64 {
        self.cpus.iter().map(|c| c.faults[kind as usize].load(Ordering::Relaxed)).fold(0, u64::wrapping_add)
    }

    /// Number of faults that were served, of all kinds.
    pub fn faults(&self) -> u64 {
        FaultKind::ALL.iter().map(|kind| self.faults_of(*kind)).fold(0, u64::wrapping_add)
    }

    /// Number of page-table pages at present.
    pub fn table_pages(&self) -> u64 {
        self.there_are(Event::TableAlloc, Event::TableFree)
    }

    /// Number of resident pages of files and of shared memory.
    pub fn shared_pages(&self) -> u64 {
        self.there_are(Event::SharedPage, Event::SharedPageGone)
    }

    /// Number of pages of kernel stacks, idle stacks included.
    pub fn stack_pages(&self) -> u64 {
        self.there_are(Event::StackPage, Event::StackPageGone)
    }

    /// Number of frames that the kernel uses for buffers, pipes and the like ([`Event::BufferPage`]).
    pub fn buffer_pages(&self) -> u64 {
        self.there_are(Event::BufferPage, Event::BufferPageGone)
    }

    /// The difference of the two events. The totals are read one after the other, so the result may be slightly wrong.
    fn there_are(&self, came: Event, gone: Event) -> u64 {
        let gone = self.total(gone);
        self.total(came).saturating_sub(gone)
    }

    /// The sum of an event's counts over all CPUs. Each CPU's count is read once.
    pub fn total(&self, event: Event) -> u64 {
        self.cpus.iter().map(|c| c.events[event as usize].load(Ordering::Relaxed)).fold(0, u64::wrapping_add)
    }
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// The way in which a fault was served. Each kind has a counter of its own
        /// ([`Stats::faults_of`](crate::stats::Stats::faults_of)).
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(usize)]
        pub enum FaultKind { $($(#[$doc])* $name,)* }
        impl FaultKind {
            /// Every kind, in the order of their numbers.
            pub const ALL: &'static [FaultKind] = &[$(FaultKind::$name,)*];
            /// The kind's name in counts and traces.
            pub const fn name(self) -> &'static str {
                match self { $(FaultKind::$name => $text,)* }
            }
        }
    };
}

kinds! {
    /// The leaf already allowed the access: this CPU's TLB had an older translation with fewer rights or none.
    Spurious = "spurious",
    /// The page was resident, and was mapped.
    Resident = "resident",
    /// The page was mapped already, but without the needed right, usually the right to store. The leaf got the right.
    Reuse = "reuse",
    /// A new page of zeroes was made.
    ZeroFill = "zero",
    /// The page was copied to a new page.
    Copy = "copy",
    /// The page was behind the front, and no other chain saw it any more: it was moved into the front.
    Move = "move",
    /// The fault waited for a pager that read the page.
    PagedIn = "paged_in",
}
