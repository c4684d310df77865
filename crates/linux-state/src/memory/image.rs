//! The program that an address space holds: its file, arguments and environment.

use crate::file::executable::Executable;
use crate::machine::Machine;
use quire_heap::Vec;

/// The program in an address space.
pub struct Image<M: Machine> {
    /// The file and its path, for `/proc/<pid>/exe`.
    pub file: Executable<M>,
    /// The stack addresses of the arguments' strings: start and end.
    pub arguments: (u64, u64),
    /// The stack addresses of the environment's strings: start and end.
    pub environment: (u64, u64),
    /// The auxiliary vector as (type, value) pairs, for `/proc/<pid>/auxv`.
    pub vector: Vec<(u64, u64)>,
    /// The addresses of the program's code: first byte and end.
    pub code: (u64, u64),
    /// The stack pointer at the first instruction.
    pub stack: u64,
}
