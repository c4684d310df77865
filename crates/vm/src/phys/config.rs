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
    /// Overwrite freed frames with a pattern, so that use after free shows. Debug builds and the hosted machine's
    /// default.
    pub poison: bool,
    /// Frames kept back for the kernel; `None`: one in 64, at least 256 and at most 4,096.
    pub reserve: Option<u64>,
    /// When structures are checked at first ([`Physical::set_check_level`](crate::phys::Physical::set_check_level)
    /// changes it).
    pub check: Level,
    /// Shards of each page queue, at most [`MAX_PARTS`]; `None`: as [`Queues::scale`] says.
    pub queue_parts: Option<usize>,
    /// Zeroed frames that each CPU may keep for first touches, made while the CPU is idle
    /// ([`Physical::idle_zero`](crate::phys::Physical::idle_zero)); 0: none. Small machines keep fewer.
    pub zero_stock: u32,
    /// Most pages that a first touch of private memory fills, its own included, after touches of consecutive pages. At
    /// most 64, in multiples of eight. Below 8: only its own page.
    pub zero_window: u32,
    /// Machines of at most so many frames initialise all page descriptors at boot, since there is little to save;
    /// larger ones as memory is used.
    pub describe_at_boot: u64,
    /// Layers that a private chain may have before pages of shared layers are copied up, from 2 to 254. Fewer layers
    /// cost memory and copies where generations of forks live side by side: with 12, a line of 50 holds one and a half
    /// times as much. More layers make forks and walks longer.
    pub layers: u8,
}

// Only where debug assertions are off do all fields have their types' defaults.
#[allow(clippy::derivable_impls)]
impl Default for Config {
    fn default() -> Self {
        Config {
            poison: cfg!(debug_assertions),
            reserve: None,
            check: Level::DEFAULT,
            queue_parts: None,
            zero_stock: 256,
            zero_window: if cfg!(any(loom, shuttle)) { 0 } else { 32 },
            describe_at_boot: 1 << 18,
            layers: if cfg!(any(loom, shuttle)) { 2 } else { 64 },
        }
    }
}
