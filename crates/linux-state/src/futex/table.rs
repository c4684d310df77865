//! The table of a machine's futexes.

use crate::base::tables::TableMemory;
use crate::errno::Errno;
use crate::machine::Machine;
use quire_task::FutexTable;

/// The futexes of a machine.
pub struct Futexes<M: Machine> {
    pub table: FutexTable<M>,
}

impl<M: Machine> Futexes<M> {
    /// Bytes of a table for `memory` bytes of RAM.
    pub const fn bytes(memory: u64) -> usize {
        FutexTable::<M>::bytes(FutexTable::<M>::buckets_for(memory))
    }

    /// The bytes of its memory.
    pub fn table_bytes(&self) -> usize {
        self.table.table_bytes()
    }

    /// A table sized for `memory` bytes of RAM.
    pub fn new(memory: u64, tables: &mut TableMemory) -> Result<Self, Errno> {
        let buckets = FutexTable::<M>::buckets_for(memory);
        let place = tables.take(Self::bytes(memory))?;
        // SAFETY: fresh memory of that size and alignment, which is never freed.
        Ok(Futexes { table: unsafe { FutexTable::new(place, buckets) } })
    }
}
