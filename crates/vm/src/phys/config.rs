//! Settings that are fixed when a memory system is built.

use crate::check::Level;
#[cfg(doc)]
use crate::{
    Vm,
    phys::queues::{MAX_PARTS, Queues},
};

/// Settings that are fixed when the system is built.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Whether freed frames are overwritten with a pattern, which makes a use after free visible. The default is on in
    /// debug builds and on the hosted machine.
    pub poison: bool,
    /// The number of frames reserved for the kernel. `None`: one in 64, at least 256 and at most 4,096.
    pub reserve: Option<u64>,
    /// The most dirty pages that all files together may have whose pagers have pages elsewhere. `None`: half of the
    /// frames. One file may have half of it. A thread that would exceed that first writes its file's pages, and is
    /// refused if that does not help ([`PagerError::TooManyDirty`](crate::error::PagerError::TooManyDirty)).
    pub dirty: Option<u64>,
    /// How often structures are checked at first. [`Physical::set_check_level`](crate::phys::Physical::set_check_level)
    /// changes it.
    pub check: Level,
    /// The number of parts of each page queue, at most [`MAX_PARTS`]. `None`: the number that `Queues::scale`
    /// computes.
    pub queue_parts: Option<usize>,
    /// The number of zeroed frames that each CPU may keep for first touches. An idle CPU zeroes them
    /// ([`Physical::idle_zero`](crate::phys::Physical::idle_zero)). 0 means none. Small machines keep fewer.
    pub zero_stock: u32,
    /// The most pages of private memory that one first touch fills, its own page included, after touches of consecutive
    /// pages. At most 64, in multiples of eight. Below 8, a first touch fills only its own page.
    pub zero_window: u32,
    /// Machines with at most this number of frames initialise all page descriptors at boot, because they would save
    /// little. Larger machines initialise descriptors when memory is first used.
    pub describe_at_boot: u64,
    /// The number of layers that a private chain may have before pages of shared layers are copied up: 2 to 254. A
    /// lower limit costs memory and copies when generations of forks live at the same time. With a limit of 12, a line
    /// of 50 forks needs one and a half times the memory. A higher limit makes forks and walks longer.
    pub layers: u8,
}

// Only where debug assertions are off do all fields have their types' defaults.
#[allow(clippy::derivable_impls)]
impl Default for Config {
    fn default() -> Self {
        Config {
            poison: cfg!(debug_assertions),
            reserve: None,
            dirty: None,
            check: Level::DEFAULT,
            queue_parts: None,
            zero_stock: 256,
            zero_window: if cfg!(any(loom, shuttle)) { 0 } else { 32 },
            describe_at_boot: 1 << 18,
            layers: if cfg!(any(loom, shuttle)) { 2 } else { 64 },
        }
    }
}
