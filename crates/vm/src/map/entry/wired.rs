//! The marks of wired ranges on entries and chains. The operation itself is in [`ops::wire`](crate::map::ops::wire).

use crate::machine::Machine;
use crate::map::entry::piece::layers;
use crate::map::entry::{Attributes, Flags};
use crate::object::backing::Backing;

/// Whether a range is wired.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Wire {
    /// The range's pages may be paged out.
    #[default]
    No,
    /// The range's pages are made resident at once, and stay resident.
    Now,
    /// Each page of the range stays resident from its first use on.
    OnFault,
}

pub(in crate::map) const WIRED: Flags = Flags::WIRED.union(Flags::WIRED_ON_FAULT);

impl Wire {
    pub(in crate::map) fn flags(self) -> Flags {
        match self {
            Wire::No => Flags::empty(),
            Wire::Now => Flags::WIRED,
            Wire::OnFault => WIRED,
        }
    }
    pub(in crate::map) fn from_u8(n: u8) -> Wire {
        match n {
            1 => Wire::Now,
            2 => Wire::OnFault,
            _ => Wire::No,
        }
    }
}

impl Attributes {
    /// The attributes that a child gets: wiring is not inherited.
    pub(in crate::map) fn inherited(self) -> Attributes {
        Attributes { flags: self.flags - WIRED, ..self }
    }
}

/// Marks every layer of a chain as wired or not, as the entry's `flags` say. The chain is not published yet, or its
/// entry is stale.
pub(in crate::map) fn mark_chain<M: Machine>(front: &Backing<M>, flags: Flags) {
    for layer in layers(front) {
        layer.set_wired(flags.contains(Flags::WIRED));
    }
}
