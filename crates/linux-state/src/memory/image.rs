//! The program that an address space holds.

use crate::file::executable::Executable;
use crate::machine::Machine;
use quire_heap::Vec;

/// The program in an address space.
pub struct Image<M: Machine> {
    /// The file and its path, for `/proc/<pid>/exe`.
    pub file: Executable<M>,
    /// Where the arguments' strings are on the stack.
    pub arguments: (u64, u64),
    /// Where the environment's strings are.
    pub environment: (u64, u64),
    /// The auxiliary vector, for `/proc/<pid>/auxv`.
    pub vector: Vec<(u64, u64)>,
    /// Code, from the first to the last byte.
    pub code: (u64, u64),
    /// The stack pointer at the first instruction.
    pub stack: u64,
}
