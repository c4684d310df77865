//! The growth of stacks. It is a map operation, and not a part of the fault.

use crate::error::{FaultError, MapError};
use crate::machine::{Machine, Pmap};
use crate::map::entry::Flags;
use crate::map::entry::piece::{ChainSource, Piece};
use crate::map::space::{STACK_GUARD, Space};
use crate::map::update::Update;
use crate::map::update::pte_update::Work;
use crate::paging::waiting::Patience;
use crate::sleep::MaySleep;
use crate::types::{PAGE_SIZE, VirtRange};

impl<M: Machine> Space<M> {
    /// Calls [`Space::grow_stack`] for a fault. If the map operation finds no memory, waits for memory and repeats the
    /// call. Any other error becomes [`FaultError::NotMapped`]. May sleep; the caller holds no lock.
    #[cold]
    pub fn grow_stack_at_fault(&self, va: u64) -> Result<(), FaultError> {
        let (mut patience, mut may) = (Patience::new(), MaySleep::here());
        loop {
            match self.grow_stack(va) {
                Ok(()) => return Ok(()),
                Err(MapError::OutOfMemory) => self.vm().memory_or_error(&mut patience, &mut may)?,
                Err(_) => return Err(FaultError::NotMapped),
            }
        }
    }

    /// Extends the stack above `va` down to the page of `va`. The stack must stay within its limit, and its guard must
    /// stay free. After `Ok` the caller repeats the fault at `va`. [`MapError::NotMapped`] if the mapping above `va` is
    /// no stack, or its limit or guard forbids the growth.
    pub fn grow_stack(&self, va: u64) -> Result<(), MapError> {
        let start = va & !(PAGE_SIZE - 1);
        if !M::Pmap::USER.contains(start) {
            return Err(MapError::NotMapped);
        }
        let (mut writer, _) = self.write_at(start);
        let stack = writer.next(start).ok_or(MapError::NotMapped)?;
        if stack.range().contains(start) {
            // Another thread has extended the stack since the fault.
            return Ok(());
        }
        if !stack.flags().contains(Flags::GROWS_DOWN) {
            return Err(MapError::NotMapped);
        }
        // A long stack may have several entries, because growth begins a new entry when all addresses that the front
        // covers (its room) are in use.
        let mut top = stack.range().end;
        while let Some(above) = writer.get(top)
            && above.flags().contains(Flags::GROWS_DOWN)
        {
            top = above.range().end;
        }
        let limits = self.limits();
        if top - start > limits.stack {
            return Err(MapError::NotMapped);
        }
        if let Some(below) = writer.before(start)
            && !below.flags().contains(Flags::GROWS_DOWN)
            // An inaccessible mapping is a guard itself, which language runtimes put below a stack.
            && !below.prot().is_empty()
            && below.range().end.saturating_add(STACK_GUARD) > start
        {
            return Err(MapError::NotMapped);
        }
        let more = stack.range().start - start;
        if self.mapped() + more > limits.bytes {
            return Err(MapError::NoSpace);
        }
        let a = stack.attributes();
        if !writer.charge_commit(more, 0, &a) {
            return Err(MapError::NoSpace);
        }
        let old = stack.range();
        if stack.front().range().start <= start {
            let mut update = Update::new(self, writer, VirtRange { start, end: old.end });
            update.push(Piece::new(VirtRange { start, end: old.end }, a, ChainSource::Entry(stack)))?;
            return update.apply(Work::None);
        }
        // All addresses that the front covers are in use, so a new entry is made below. The new entry's front covers
        // four times as many addresses.
        let room = (top - old.start).saturating_mul(4).min(limits.stack);
        let range = VirtRange { start, end: old.start };
        let mut update = Update::new(self, writer, range).with_stack_room(room);
        update.push(Piece::new(range, a.emptied(), ChainSource::Empty))?;
        update.apply(Work::None)
    }
}
