//! Pageout with the maps and objects that it works on, as one value: the fourth storey of a memory system.

use super::daemon::Daemons;
use super::scan::Pageout;
use crate::machine::Machine;
use crate::map::maps::Maps;
use crate::phys::boot::write_storey;
use core::ops::Deref;

/// Pageout, its daemons, and the maps and objects that they take memory from.
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
    /// Writes everything but the storey below.
    ///
    /// # Safety
    /// The place is fresh memory that no reader knows, and the storey below is written.
    #[inline(never)]
    pub(crate) unsafe fn write(place: *mut Self) {
        write_storey!(place => Reclaimer { pageout: Pageout::new(), daemons: Daemons::new(); maps });
    }

    /// Pageout: passes, and the threads that wait for memory.
    pub fn pageout(&self) -> &Pageout {
        &self.pageout
    }

    /// State shared by the daemons.
    pub(crate) fn daemons(&self) -> &Daemons {
        &self.daemons
    }
}
