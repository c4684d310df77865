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
    /// Overwrite freed frames with a pattern, so that use after free shows. Debug builds and the hosted machine's default.
    pub poison: bool,
    /// Frames kept back for the kernel; `None`: one in 64, at least 256 and at most 4,096.
    pub reserve: Option<u64>,
    /// When structures are checked at first ([`Physical::set_check_level`](crate::phys::Physical::set_check_level) changes it).
    pub check: Level,
    /// Parts of each page queue, at most [`MAX_PARTS`]; `None`: as [`Queues::scale`] says.
    pub queue_parts: Option<usize>,
    /// Zeroed frames that each CPU may keep for first touches, made while it idles ([`Physical::idle_zero`](crate::phys::Physical::idle_zero)); 0: none. Small machines
    /// keep fewer.
    pub zero_stock: u32,
    /// Pages that a first touch of private memory makes at most, its own included, where the touches before it came in a row: 64 at most,
    /// whole lines of eight. Below 8: its own alone.
    pub zero_window: u32,
    /// Machines of at most so many frames initialise all page descriptors at boot, since there is little to save; larger ones as
    /// memory is used.
    pub describe_at_boot: u64,
    /// Layers that a private chain may have before what others see too is copied up, from 2 to 254: fewer cost memory and copies where
    /// generations of forks live side by side, more cost forks and walks.
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
            layers: if cfg!(any(loom, shuttle)) { 2 } else { 12 },
        }
    }
}
