//! The machine's link to its host: the three byte ports, and the end of the machine.
//!
//! Uses threads, interrupts and mapped device registers. Boot finds and starts the ports; the start and the end of
//! programs use them.
//!
//! Invariant: an interrupt handler acknowledges its device and wakes the ports' thread. It takes no lock.

pub mod ports;
pub mod power;
