//! The first serial port (a 16550 at 0x3f8), for the kernel's log. Polled, output only.

use crate::port::{in8, out8};

const BASE: u16 = 0x3f8;
const LINE_STATUS: u16 = BASE + 5;
const TRANSMITTER_EMPTY: u8 = 0x20;
/// How often a byte polls the transmitter before it is written anyway. A machine without the port must still boot.
const PATIENCE: u32 = 100_000;

/// Sets 115200 baud, 8 data bits, FIFOs on, interrupts off.
pub fn init() {
    // SAFETY: the standard programming sequence of the 16550 at its standard ports. Without such a port the writes have
    // no effect.
    unsafe {
        out8(BASE + 1, 0);
        out8(BASE + 3, 0x80);
        out8(BASE, 1);
        out8(BASE + 1, 0);
        out8(BASE + 3, 3);
        out8(BASE + 2, 7);
        out8(BASE + 4, 3);
    }
}

/// Sends `bytes`, and each newline as carriage return and newline. The caller serialises writers.
pub fn write(bytes: &[u8]) {
    for &b in bytes {
        if b == b'\n' {
            put(b'\r');
        }
        put(b);
    }
}

fn put(byte: u8) {
    // SAFETY: reading the line status and writing the data register is all that polled output does.
    unsafe {
        for _ in 0..PATIENCE {
            if in8(LINE_STATUS) & TRANSMITTER_EMPTY != 0 {
                break;
            }
            core::hint::spin_loop();
        }
        out8(BASE, byte);
    }
}
