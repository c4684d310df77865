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
    /// Page faults served, of all kinds.
    Fault = "pgfault",
    /// Faults that had to wait for a pager.
    FaultMajor = "pgmajfault",
    /// Faults that filled a new page with zeroes.
    FaultZero = "pgfault_zero",
    /// Faults that copied a page.
    FaultCopy = "pgfault_copy",
    /// Faults that moved a page into the front instead of copying it, since nobody else saw it any more.
    FaultMove = "pgfault_move",
    /// Faults that found the translation in place already.
    FaultSpurious = "pgfault_spurious",
    /// Faults that began again because something changed under them.
    FaultRetry = "pgfault_retry",
    /// Frames handed out.
    FrameAlloc = "pgalloc",
    /// Times that a depot refused a frame for a program: memory was out, or sat with other CPUs.
    AllocStall = "allocstall_normal",
    /// Frames taken back.
    FrameFree = "pgfree",
    /// Magazine exchanged with the depot.
    DepotExchange = "depot_exchange",
    /// Flushes of translations.
    Flush = "tlb_flush",
    /// Flushes that had to reach another CPU.
    FlushRemote = "tlb_flush_remote",
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
    /// Pages written to swap.
    SwapOut = "pswpout",
    /// Pages written to their own pagers.
    PageOut = "pgpgout",
    /// Pages whose write failed.
    WriteFailed = "pgwrite_failed",
    /// Pages that pageout looked at on the inactive queue.
    Scan = "pgscan_kswapd",
    /// Pages whose frames were taken by pageout.
    Steal = "pgsteal_kswapd",
    /// Pages that pageout took from the active queue because nobody had referenced them.
    Deactivate = "pgdeactivate",
    /// Pages that pageout gave back to the active queue because somebody had.
    Activate = "pgactivate",
    /// Pages that programs gave up, to be freed when memory is short.
    LazyFree = "pglazyfree",
    /// Pages that left their frames so that those could be part of a run.
    Migrated = "pgmigrate_success",
    /// Pages that could not, at that moment or at all.
    MigrateFailed = "pgmigrate_fail",
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
    events: [AtomicU64; Event::ALL.len()],
}

impl Counters {
    /// All zero.
    pub fn new() -> Self {
        Counters { events: core::array::from_fn(|_| AtomicU64::new(0)) }
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

    /// Counts two events, on this CPU.
    #[inline]
    pub fn count_both(&self, one: Event, other: Event) {
        let cpu = preempt_off();
        let events = &self.cpus.mine(&cpu).events;
        for event in [one, other] {
            let c = &events[event as usize];
            c.store(c.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        }
    }

    /// Counts `event` `n` times, on this CPU.
    #[inline]
    pub fn add(&self, event: Event, n: u64) {
        let cpu = preempt_off();
        let c = &self.cpus.mine(&cpu).events[event as usize];
        // Only this CPU writes, and stays: a load and a store, no locked instruction.
        c.store(c.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// The sum over all CPUs; each CPU's count is read once.
    pub fn total(&self, event: Event) -> u64 {
        self.cpus.iter().map(|c| c.events[event as usize].load(Ordering::Relaxed)).fold(0, u64::wrapping_add)
    }
}
