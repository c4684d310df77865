//! The futex table of a machine.

use crate::base::tables::TableMemory;
use crate::errno::Errno;
use crate::machine::Machine;
use quire_task::FutexTable;

/// The futex table of a machine.
pub struct Futexes<M: Machine> {
    pub table: FutexTable<M>,
}

impl<M: Machine> Futexes<M> {
    /// The size, in bytes, of a table for a machine with `memory` bytes of RAM.
    pub const fn bytes(memory: u64) -> usize {
        FutexTable::<M>::bytes(FutexTable::<M>::buckets_for(memory))
    }

    /// The size of the table's memory in bytes.
    pub fn table_bytes(&self) -> usize {
        self.table.table_bytes()
    }

    /// A table for a machine with `memory` bytes of RAM. ENOMEM if `tables` has too little memory.
    pub fn new(memory: u64, tables: &mut TableMemory) -> Result<Self, Errno> {
        let buckets = FutexTable::<M>::buckets_for(memory);
        let place = tables.take(Self::bytes(memory))?;
        // SAFETY: the memory is fresh, has that size and alignment, and is never freed.
        Ok(Futexes { table: unsafe { FutexTable::new(place, buckets) } })
    }
}
