//! The machine's link to its host: the three byte ports, and the end of the machine.
//!
//! This module uses threads, interrupts and mapped device registers. Boot finds and starts the ports. The start of
//! process 1 and the end of the machine use them.
//!
//! Invariant: an interrupt handler only acknowledges its device and wakes the ports' thread. It acquires no lock of a
//! port.

pub mod ports;
pub mod power;
