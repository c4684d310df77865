//! The fourth storey (nested value) of a memory system: pageout, with the maps and objects that it works on.

use super::daemon::Daemons;
use super::scan::Pageout;
use crate::machine::Machine;
use crate::map::maps::Maps;
use crate::phys::boot::write_storey;
use core::ops::Deref;

/// Pageout, its daemons, and the maps and objects from which they take memory.
pub struct Reclaimer<M: Machine> {
    pub(crate) maps: Maps<M>,
    pub(crate) pageout: Pageout,
    pub(crate) daemons: Daemons,
}

impl<M: Machine> Deref for Reclaimer<M> {
    type Target = Maps<M>;
    #[inline(always)]
    fn deref(&self) -> &Maps<M> {
        &self.maps
    }
}

impl<M: Machine> Reclaimer<M> {
    /// Initialises all fields except `maps`, the embedded value of the storey below.
    ///
    /// # Safety
    /// The place is new memory that no other thread can reach, and its field `maps` is initialised.
    #[inline(never)]
    pub(crate) unsafe fn write(place: *mut Self) {
        write_storey!(place => Reclaimer { pageout: Pageout::new(), daemons: Daemons::new(); maps });
    }

    /// The pageout: its passes, and the threads that wait for memory.
    pub fn pageout(&self) -> &Pageout {
        &self.pageout
    }

    /// The state that the daemons share.
    pub(crate) fn daemons(&self) -> &Daemons {
        &self.daemons
    }
}
