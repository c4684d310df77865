//! The operations of the matrix. Each is a description: its name, its effect on the reference model, and its real call.
//! To add one is to add a row to [`ALL`].

use super::model::{Model, Outcome, Region};
use super::world::World;
use super::{memory, tasks};
use crate::Failure;
use quire_hosted::Hosted;
use quire_vm::map::Space;

/// One of the two CPUs, and the owner of its things: 0 or 1.
pub type Side = usize;

/// An operation as one side repeats it on the real core. Only [`Act::run`] is recorded.
pub trait Act {
    /// In the state with a parent: touches the memory that the parent will pass on.
    fn inherit(&mut self, _world: &World, _parent: &Space<Hosted>, _side: Side) -> Result<(), Failure> {
        Ok(())
    }
    /// Once, before the first round.
    fn set_up(&mut self, _world: &World, _side: Side) -> Result<(), Failure> {
        Ok(())
    }
    /// Before each round: prepares the operation.
    fn ready(&mut self, _world: &World, _side: Side) -> Result<(), Failure> {
        Ok(())
    }
    /// The operation.
    fn run(&mut self, world: &World, side: Side) -> Result<Outcome, Failure>;
    /// After each round: undoes what would pile up, and may find that the result was wrong.
    fn settle(&mut self, _world: &World, _side: Side) -> Result<(), Failure> {
        Ok(())
    }
}

/// A row and a column of the matrix.
pub struct Operation {
    /// The name that a user types.
    pub name: &'static str,
    /// What it is, in a few words.
    pub about: &'static str,
    /// Its observable effect.
    pub effect: fn(&mut Model, Side) -> Outcome,
    /// A side that does it.
    pub act: fn() -> Box<dyn Act>,
}

macro_rules! operations {
    ($($name:literal, $about:literal, $effect:expr, $act:expr;)*) => {
        /// All operations, in the order in which they are shown.
        pub const ALL: &[Operation] =
            &[$(Operation { name: $name, about: $about, effect: $effect, act: || Box::new($act) },)*];
    };
}

operations! {
    "zero-fill", "a store into untouched memory", |m, s| m.store(Region::Zero, s), memory::ZeroFill::new();
    "read-fault", "a load from a file's page that is in memory", |m, s| m.load(Region::File, s), memory::ReadFault::new();
    "copy-fault", "a store that copies a shared page", |m, s| m.store(Region::Copy, s), memory::CopyFault::new();
    "mmap", "a mapping without an address", |m, s| m.map(Region::Anywhere, s), memory::Map::new();
    "mmap-fixed", "a mapping over a touched mapping", |m, s| m.map(Region::Fixed, s), memory::MapFixed;
    "munmap", "a touched mapping is removed", |m, s| m.unmap(Region::Mapped, s), memory::Unmap;
    "mprotect", "touched memory becomes read-only", |m, s| m.protect(Region::Writable, s), memory::Protect;
    "dontneed", "touched memory is discarded", |m, s| m.give_up(Region::Kept, s, true), memory::Forget;
    "free", "touched memory is marked as free when memory is short", |m, s| m.give_up(Region::Lazy, s, false), memory::GiveUp;
    "brk", "the heap grows by a page", Model::grow_heap, memory::GrowHeap::new();
    "fork", "a copy of the address space", Model::fork, memory::Fork::new();
    "exec", "the mappings of a program and its interpreter in a new space", Model::exec, memory::Exec::new();
    "exit", "the drop of an address space", Model::exit, memory::Exit::new();
    "page-alloc", "a frame is taken", Model::take_frame, memory::TakeFrame::new();
    "page-free", "a frame is freed", Model::give_frame, memory::GiveFrame::new();
    "queue-insert", "a page is put into the inactive queue", Model::enqueue_page, memory::Enqueue::new();
    "reclaim", "the frame of a file's page is reclaimed", Model::reclaim, memory::Reclaim::new();
    "futex-wait", "a thread sleeps until a word changes", Model::wait, tasks::Wait::new();
    "futex-wake", "the thread that sleeps on a word is woken", Model::wake, tasks::Wake::new();
    "thread-new", "a thread with a number is made runnable", Model::spawn, tasks::NewThread;
    "timer-arm", "a timer is armed", Model::arm, tasks::Arm::new();
    "timer-cancel", "a timer is cancelled", Model::cancel, tasks::Cancel::new();
    "timer-fire", "the interrupt of a timer that is due", Model::fire, tasks::Fire::new();
    "pid-alloc", "a process id is taken", Model::take_number, tasks::TakeNumber::new();
    "wake-here", "a sleeping thread of this CPU is woken", |m, s| m.unpark(s, false), tasks::Unpark::here();
    "wake-there", "a sleeping thread of another CPU is woken", |m, s| m.unpark(s, true), tasks::Unpark::there();
}

/// The operation of that name.
pub fn named(name: &str) -> Option<&'static Operation> {
    ALL.iter().find(|o| o.name == name)
}
