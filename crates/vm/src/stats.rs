//! Event counters, one set a CPU: a count is a plain store to the CPU's own line, a total is a sum.

use quire_sync::atomic::{AtomicU64, Ordering};
use quire_sync::{PerCpu, preempt_off};

macro_rules! events {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// Something that is counted.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(usize)]
        pub enum Event { $($(#[$doc])* $name,)* }
        impl Event {
            /// Every event, in the order of their numbers.
            pub const ALL: &'static [Event] = &[$(Event::$name,)*];
            /// The name under which tools know it (as in Linux's /proc/vmstat where Linux has it).
            pub fn name(self) -> &'static str {
                match self { $(Event::$name => $text,)* }
            }
        }
    };
}

events! {
    /// Faults that began again because something changed under them.
    FaultRetry = "pgfault_retry",
    /// Faults that could not be served: no mapping allows the access, or nothing is there. A fault below a stack that
    /// then grows counts too.
    FaultRefused = "pgfault_refused",
    /// Resident neighbours of the page of a fault that were mapped along.
    FaultAround = "pgfault_around",
    /// Pages of zeroes that first touches in a row made besides their own.
    FaultAhead = "pgfault_ahead",
    /// Frames handed out.
    FrameAlloc = "pgalloc_normal",
    /// Times that a depot refused a frame for a program: memory was out, or sat with other CPUs.
    AllocStall = "allocstall_normal",
    /// Frames taken back.
    FrameFree = "pgfree",
    /// Magazine exchanged with the depot.
    DepotExchange = "depot_exchange",
    /// Page-table pages that were taken.
    TableAlloc = "pgtable_alloc",
    /// Page-table pages that were given up.
    TableFree = "pgtable_free",
    /// Pages of files and of memory that is mapped shared, that got a frame.
    SharedPage = "shared_page",
    /// Of those, the ones whose frames were taken or given up.
    SharedPageGone = "shared_page_gone",
    /// Pages of kernel stacks that were mapped.
    StackPage = "kernel_stack_page",
    /// Pages of kernel stacks that were given up.
    StackPageGone = "kernel_stack_page_gone",
    /// Frames of the kernel's that are neither table, stack nor slab: large runs of the heap, mapped buffers, pages of
    /// pipes and the like.
    BufferPage = "kernel_buffer_page",
    /// Of those, the ones that were given up.
    BufferPageGone = "kernel_buffer_page_gone",
    /// Flushes of translations, wherever.
    Flush = "tlb_flush",
    /// Shootdowns: requests that had to reach another CPU.
    Shootdown = "nr_tlb_remote_flush",
    /// CPUs that those were sent to.
    ShootdownTarget = "nr_tlb_remote_flush_received",
    /// Pages moved from a front object into the object behind it instead of being copied.
    PageMoved = "page_moved",
    /// Slots of objects and leaves of page tables that operations on ranges looked at.
    RangeVisit = "range_visit",
    /// Pages copied from near a front into it, so that the chain gets shorter.
    PageCopiedUp = "page_copied_up",
    /// Pages destroyed because every chain in front of them had its own.
    PageShadowed = "page_shadowed",
    /// Pages read from swap.
    SwapIn = "pswpin",
    /// Pages read from their own pagers.
    PageIn = "pgpgin",
    /// New pages that system calls filled.
    PageFilled = "pgfilled",
    /// Pages that came back soon after their frames were taken: programs lost them for nothing.
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
    /// Pages that pageout took from the active queue because no program had referenced them.
    Deactivate = "pgdeactivate",
    /// Pages that pageout gave back to the active queue because a program had.
    Activate = "pgactivate",
    /// Pages that programs gave up, to be freed when memory is short.
    LazyFree = "pglazyfree",
    /// Pages that left their frames so that those could be part of a run.
    Migrated = "pgmigrate_success",
    /// Pages that could not leave, at that moment or at all.
    MigrateFailed = "pgmigrate_fail",
    /// Spaces that were looked at for idle table pages.
    SpacesVisited = "pagetable_visits",
    /// Table pages freed because their space was idle.
    TablesDropped = "pagetables_dropped",
    /// Pages mapped by the first fault after that.
    FaultAll = "pgfault_all",
    /// Address spaces forked.
    Fork = "fork",
    /// Things that the consistency checker looked at.
    CheckVisit = "check_visit",
}

/// The counters of one CPU.
pub struct Counters {
    faults: [AtomicU64; FaultKind::ALL.len()],
    events: [AtomicU64; Event::ALL.len()],
}

/// Adds to a counter that only this CPU writes, and stays on: a load and a store, no locked instruction.
#[inline(always)]
fn bump(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
}

impl Counters {
    /// All zero.
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

    /// Faults that were served so, on all CPUs.
    pub fn faults_of(&self, kind: FaultKind) -> u64 {
        self.cpus.iter().map(|c| c.faults[kind as usize].load(Ordering::Relaxed)).fold(0, u64::wrapping_add)
    }

    /// Faults that were served, of all kinds.
    pub fn faults(&self) -> u64 {
        FaultKind::ALL.iter().map(|kind| self.faults_of(*kind)).fold(0, u64::wrapping_add)
    }

    /// Page-table pages that there are.
    pub fn table_pages(&self) -> u64 {
        self.there_are(Event::TableAlloc, Event::TableFree)
    }

    /// Pages in memory of files, and of memory that is mapped shared.
    pub fn shared_pages(&self) -> u64 {
        self.there_are(Event::SharedPage, Event::SharedPageGone)
    }

    /// Pages of kernel stacks, those included that wait for a thread.
    pub fn stack_pages(&self) -> u64 {
        self.there_are(Event::StackPage, Event::StackPageGone)
    }

    /// Pages of the kernel's buffers, and of pipes.
    pub fn buffer_pages(&self) -> u64 {
        self.there_are(Event::BufferPage, Event::BufferPageGone)
    }

    /// Structures made less those gone; the halves of each count are read one after the other.
    fn there_are(&self, came: Event, gone: Event) -> u64 {
        let gone = self.total(gone);
        self.total(came).saturating_sub(gone)
    }

    /// The sum over all CPUs; each CPU's count is read once.
    pub fn total(&self, event: Event) -> u64 {
        self.cpus.iter().map(|c| c.events[event as usize].load(Ordering::Relaxed)).fold(0, u64::wrapping_add)
    }
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// How a fault was served. Each kind is counted by itself
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
    /// The translation was there already: a stale negative or weaker entry in this CPU's TLB.
    Spurious = "spurious",
    /// The page was there, and was mapped.
    Resident = "resident",
    /// The page was mapped already, for less than the access needs: the same page, for a store most often.
    Reuse = "reuse",
    /// A new page, of zeroes.
    ZeroFill = "zero",
    /// A new page, copied.
    Copy = "copy",
    /// The page was behind the front, and no other chain saw it any more: it was moved into the front.
    Move = "move",
    /// A pager was waited for.
    PagedIn = "paged_in",
}
