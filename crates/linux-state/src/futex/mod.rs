//! Futexes: the futex table of the machine.

pub mod table;
