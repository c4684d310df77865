//! The state of one address space: data only, so that the machine's trait can name it.

use crate::format::Format;
use crate::root::Root;
use crate::roots::Fan;
use crate::shootdown::residency::Residency;
use core::marker::PhantomData;
use quire_sync::SpinLock;

/// The page tables of one address space. Faults read only its first line.
#[repr(C)]
pub struct Tables<F: Format> {
    /// None while the space is idle and memory is short.
    pub(super) root: Root,
    /// Root tables of the CPUs' own; null until the map fans out for the first time.
    pub(super) fan: Fan,
    /// The residency's number.
    pub(super) id: u64,
    pub(super) format: PhantomData<F>,
    pub(super) residency: Residency,
    /// Held while a CPU counts pages, one GiB at a time, and while the tables are detached at the end. Counting is the
    /// only walk that may run beside an exit.
    pub(super) census: SpinLock<()>,
}
