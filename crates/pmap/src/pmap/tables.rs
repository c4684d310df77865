//! The state of one address space. This module has only data, so that the machine's trait can name the type.

use crate::format::Format;
use crate::root::Root;
use crate::roots::Fan;
use crate::shootdown::residency::Residency;
use core::marker::PhantomData;
use quire_sync::SpinLock;

/// The page tables of one address space. A fault reads only the first cache line of this struct.
#[repr(C)]
pub struct Tables<F: Format> {
    /// Empty while the space is idle and memory is short.
    pub(super) root: Root,
    /// The CPUs' own root tables; null until the map fans out for the first time.
    pub(super) fan: Fan,
    /// The same number as the residency's.
    pub(super) id: u64,
    pub(super) format: PhantomData<F>,
    pub(super) residency: Residency,
    /// Held while a CPU counts pages, one GiB at a time, and while the tables are detached at the end of the space. No
    /// walk but the count may run at the same time as an exit.
    pub(super) census: SpinLock<()>,
}
