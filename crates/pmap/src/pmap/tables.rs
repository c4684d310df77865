//! The state of one address space. This module has only data, so that the machine's trait can name the type.

use crate::format::Format;
use crate::root::Root;
use crate::roots::Fan;
use crate::shootdown::residency::Residency;
use core::marker::PhantomData;
use quire_sync::SpinLock;
use quire_sync::atomic::AtomicBool;

/// The page tables of one address space. A fault reads only the first cache line of this struct.
#[repr(C)]
pub struct Tables<F: Format> {
    /// The root table. The space has none while no CPU runs it and pageout has freed its page tables.
    pub(super) root: Root,
    /// The CPUs' own root tables; null until the map fans out (gives CPUs ranges of their own) for the first time.
    pub(super) fan: Fan,
    /// The space's number; `residency` has it too.
    pub(super) id: u64,
    /// Whether the count of resident pages includes pages that no leaf maps ([`quire_vm::Pmap::inherit`]).
    pub(super) inherits: AtomicBool,
    pub(super) format: PhantomData<F>,
    pub(super) residency: Residency,
    /// A CPU that counts table pages holds this lock for one GiB at a time. The thread that ends the space holds it
    /// while it detaches the table pages. The count is the only walk that may run at the same time as an exit.
    pub(super) census: SpinLock<()>,
}
