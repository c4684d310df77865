//! The machine's link to its host: the three byte ports, and the end of the machine.
//!
//! Uses threads, interrupts and mapped device registers. Only the start and the end of programs use it.
//!
//! Invariant: an interrupt handler acknowledges its device and wakes the ports' thread. It takes no lock.

pub mod ports;
pub mod power;
