//! Futexes: the table of the machine.

pub mod table;
