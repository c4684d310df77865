//! A plugin for QEMU's translator. It finds the cache lines of kernel memory that one virtual CPU writes and another
//! CPU accesses, between marks of a program in the guest. It can also profile the kernel's instructions ([`calls`]), or
//! count those of the kernel and of programs.
//!
//! The program makes a mark by executing a long no-operation whose displacement is a word of ours ([`mark`]). This
//! instruction has no other effect, and the plugin recognises it when QEMU translates the code. Between *on* and *off*
//! the plugin records every load and store of a kernel instruction, by physical line, in the table of its CPU
//! ([`table`]). At *round* it compares the tables, writes the lines in conflict as text, and clears the tables.
//!
//! The plugin does not see accesses that the processor makes itself: to accessed and dirty bits of page tables, and to
//! interrupt frames.
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
