//! QEMU's `isa-debug-exit` device at port 0xf4: a write of `v` ends QEMU with status `2 v + 1`.

use crate::port::out8;

const PORT: u16 = 0xf4;

/// An orderly power-off: QEMU ends with status 33.
pub const POWER_OFF: u8 = 0x10;
/// A panic: QEMU ends with status 35.
pub const PANIC: u8 = 0x11;
/// The kernel cannot run on this machine, and has logged the reason: QEMU ends with status 37.
pub const REFUSED: u8 = 0x12;

/// Ends QEMU; returns if the device is absent.
pub fn exit(value: u8) {
    // SAFETY: only this device uses the port on PCs, and it accepts any byte.
    unsafe { out8(PORT, value) }
}
