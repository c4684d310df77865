//! A plugin for QEMU's translator: which lines of kernel memory one virtual CPU writes and another touches, between marks
//! that a program in the guest makes; or where the kernel's instructions go ([`calls`]); or how many there are, of the kernel and of
//! programs.
//!
//! The program executes long no-operations whose displacement is a word of ours ([`mark`]): free elsewhere, and recognised here
//! when the code is translated. Between *on* and *off* every load and store that a kernel instruction makes is put down in the
//! table of its CPU ([`table`]), by physical line. At *round* the tables are compared, the lines in conflict are written out as
//! text, and the tables begin anew.
//!
//! What the processor does by itself is not seen: accessed and dirty bits of page tables, the frames of interrupts.
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
