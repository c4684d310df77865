//! A plugin for QEMU's translator. It finds the lines of kernel memory that one virtual CPU writes and another touches,
//! between marks of a program in the guest. It also profiles the kernel's instructions ([`calls`]), or counts those of
//! the kernel and of programs.
//!
//! The program executes long no-operations whose displacement is a word of ours ([`mark`]). They have no other effect,
//! and the plugin recognises them when QEMU translates the code. Between *on* and *off* every load and store of a
//! kernel instruction is noted in the table of its CPU ([`table`]), by physical line. At *round* the tables are
//! compared, the lines in conflict are written out as text, and the tables are cleared.
//!
//! The plugin does not see the processor's own accesses: accessed and dirty bits of page tables, interrupt frames.
#![deny(missing_docs)]

#[cfg(not(test))]
mod api;
pub mod calls;
#[cfg(not(test))]
mod count;
pub mod instruction;
pub mod mark;
#[cfg(not(test))]
mod plugin;
#[cfg(not(test))]
mod profile;
pub mod table;
