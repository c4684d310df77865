//! A request to other CPUs. This module has only data, so that the machine's trait can name the type;
//! [`shootdown`](crate::shootdown) serves it.

use super::residency::Residency;
use crate::format::Format;
use crate::root::Root;
use crate::roots::Reach;
use core::marker::PhantomData;
use quire_vm::VirtRange;
use quire_vm::tlb::flush::FlushSet;

/// A request from one CPU to others. It lives on the requester's stack until all targets have answered.
pub struct Request<'a, F: Format> {
    pub(super) kind: RequestKind<'a>,
    format: PhantomData<F>,
}

/// The kinds of requests.
pub(super) enum RequestKind<'a> {
    /// Drop the space's translations of `set`. The flush raised the space's generation to `generation`.
    Flush { space: &'a Residency, generation: u64, set: &'a FlushSet },
    /// Drop the translations of `set`, which lies below entry `i` of the root of space `id`. The flush raised that
    /// entry's generation to `generation`.
    Entry { id: u64, i: usize, reach: &'a Reach, generation: u64, set: &'a FlushSet },
    /// A CPU that has its own root of the space loaded must load the space's root instead.
    Home { space: &'a Residency, root: &'a Root, regime: u64 },
    /// The space has got or lost its root. A CPU that has the space loaded, without a root of its own, reads the
    /// space's root while it serves the request, and loads it.
    Root { space: &'a Residency, root: &'a Root },
    /// The space is about to lose its tables. A CPU that has it loaded loads the kernel's root instead.
    Leave { space: &'a Residency },
    /// Drop the translations of these kernel addresses, which are the same in every space.
    Kernel { ranges: &'a [VirtRange] },
    /// Drop all translations, those of kernel addresses included.
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

    /// Makes every target drop `ranges` of kernel addresses, in whole pages. Of all flushes, only this one and
    /// [`everything`](Self::everything) may be sent to all CPUs. Targets drop the ranges page by page, because the only
    /// instruction that drops all global translations is the most expensive one.
    pub fn kernel(ranges: &'a [VirtRange]) -> Self {
        Request { kind: RequestKind::Kernel { ranges }, format: PhantomData }
    }

    /// Makes every target drop all translations, global ones included. Used if a flush has more kernel addresses than
    /// are worth dropping one by one: then refilling the TLBs costs less.
    pub fn everything() -> Self {
        Request { kind: RequestKind::Everything, format: PhantomData }
    }
}
