//! The state of one address space: data only, so that the machine's trait can name it.

use crate::format::Format;
use crate::roots::Fan;
use crate::shootdown::residency::Residency;
use core::marker::PhantomData;
use quire_sync::SpinLock;
use quire_vm::Pfn;

/// The page tables of one address space. Faults read the first line and nothing else of it.
#[repr(C)]
pub struct Tables<F: Format> {
    pub(super) root: Pfn,
    /// Root tables of the CPUs' own; null until the map fans out for the first time.
    pub(super) fan: Fan,
    /// As the residency says.
    pub(super) id: u64,
    pub(super) format: PhantomData<F>,
    pub(super) residency: Residency,
    /// Held while somebody counts pages, one GiB at a time, and while the tables are detached at the end: counting is the
    /// one walk that may meet an exit.
    pub(super) census: SpinLock<()>,
}
