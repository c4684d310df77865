//! The operations of the matrix. The description of an operation has its name, its effect on the reference model, and
//! its real call. A new operation needs only a new row in [`ALL`].

use super::model::{Model, Outcome, Region};
use super::world::World;
use super::{memory, tasks};
use crate::Failure;
use quire_hosted::Hosted;
use quire_vm::map::Space;

/// A side: the number (0 or 1) of one of the two CPUs. It also names the objects that belong to this CPU's operation.
pub type Side = usize;

/// An operation on the real core, which one CPU (its *side*) repeats. Only the accesses of [`Act::run`] are recorded.
pub trait Act {
    /// Touches memory of the parent, which its children inherit. Called only in `State::Parent`, before the forks.
    fn inherit(&mut self, _world: &World, _parent: &Space<Hosted>, _side: Side) -> Result<(), Failure> {
        Ok(())
    }
    /// Prepares the objects of CPU `side`. Called once, before the first round.
    fn set_up(&mut self, _world: &World, _side: Side) -> Result<(), Failure> {
        Ok(())
    }
    /// Prepares the operation. Called before each round.
    fn ready(&mut self, _world: &World, _side: Side) -> Result<(), Failure> {
        Ok(())
    }
    /// Does the operation.
    fn run(&mut self, world: &World, side: Side) -> Result<Outcome, Failure>;
    /// Undoes effects that would accumulate, and may check the result. Called after each round.
    fn settle(&mut self, _world: &World, _side: Side) -> Result<(), Failure> {
        Ok(())
    }
}

/// An operation, which is a row and a column of the matrix.
pub struct Operation {
    /// The name on the command line.
    pub name: &'static str,
    /// A description in a few words.
    pub about: &'static str,
    /// The observable effect on the model.
    pub effect: fn(&mut Model, Side) -> Outcome,
    /// Makes the object that does the operation for one CPU.
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
