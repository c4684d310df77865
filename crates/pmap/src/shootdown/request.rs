//! A request to other CPUs: data only, so that the machine's trait can name it. [`shootdown`](crate::shootdown) serves
//! it.

use super::residency::Residency;
use crate::format::Format;
use crate::root::Root;
use crate::roots::Reach;
use core::marker::PhantomData;
use quire_vm::VirtRange;
use quire_vm::tlb::flush::FlushSet;

/// A request from one CPU to others. It lives on the requester's stack until all have answered.
pub struct Request<'a, F: Format> {
    pub(super) kind: RequestKind<'a>,
    format: PhantomData<F>,
}

/// The kinds of requests.
pub(super) enum RequestKind<'a> {
    /// Drop `set` of the space, as of `generation`.
    Flush { space: &'a Residency, generation: u64, set: &'a FlushSet },
    /// Drop `set`, which lies below entry `i` of the space `id`'s root, as of `generation` of that entry.
    Entry { id: u64, i: usize, reach: &'a Reach, generation: u64, set: &'a FlushSet },
    /// A CPU that has its own root of the space loaded loads the space's.
    Home { space: &'a Residency, root: &'a Root, regime: u64 },
    /// The space has got or lost its root: a CPU that has it loaded, and no root of its own, loads the space's root of
    /// this moment.
    Root { space: &'a Residency, root: &'a Root },
    /// The space is about to lose its tables: a CPU that has it loaded loads the kernel's.
    Leave { space: &'a Residency },
    /// Kernel addresses, the same in every space.
    Kernel { ranges: &'a [VirtRange] },
    /// All translations of kernel addresses.
    Everything,
}

impl<'a, F: Format> Request<'a, F> {
    pub(crate) fn flush(space: &'a Residency, generation: u64, set: &'a FlushSet) -> Self {
        Request { kind: RequestKind::Flush { space, generation, set }, format: PhantomData }
    }

    pub(crate) fn entry(id: u64, i: usize, (reach, generation): (&'a Reach, u64), set: &'a FlushSet) -> Self {
        Request { kind: RequestKind::Entry { id, i, reach, generation, set }, format: PhantomData }
    }

    pub(crate) fn home(space: &'a Residency, root: &'a Root, regime: u64) -> Self {
        Request { kind: RequestKind::Home { space, root, regime }, format: PhantomData }
    }

    pub(crate) fn root(space: &'a Residency, root: &'a Root) -> Self {
        Request { kind: RequestKind::Root { space, root }, format: PhantomData }
    }

    pub(crate) fn leave(space: &'a Residency) -> Self {
        Request { kind: RequestKind::Leave { space }, format: PhantomData }
    }

    /// Kernel addresses, in whole pages, must leave every TLB: the one flush that may be sent to all CPUs. Page by
    /// page, because only the most expensive instruction also drops global translations.
    pub fn kernel(ranges: &'a [VirtRange]) -> Self {
        Request { kind: RequestKind::Kernel { ranges }, format: PhantomData }
    }

    /// Every translation must leave every TLB, global ones included. For so many kernel addresses at once that dropping
    /// each costs more than refilling the TLBs.
    pub fn everything() -> Self {
        Request { kind: RequestKind::Everything, format: PhantomData }
    }
}
