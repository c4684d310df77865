//! x86 I/O ports.

use core::arch::asm;

/// Writes a byte to I/O port `port`.
///
/// # Safety
/// The port belongs to the caller's device, and the device's manual allows the write.
#[inline(always)]
pub unsafe fn out8(port: u16, value: u8) {
    // SAFETY: the caller vouches that the device's manual allows this access.
    unsafe { asm!("out dx, al", in("dx") port, in("al") value, options(nomem, nostack, preserves_flags)) }
}

/// Reads a byte from I/O port `port`.
///
/// # Safety
/// As [`out8`]: some reads have side effects.
#[inline(always)]
pub unsafe fn in8(port: u16) -> u8 {
    let value: u8;
    // SAFETY: the caller vouches that the device's manual allows this access.
    unsafe { asm!("in al, dx", in("dx") port, out("al") value, options(nomem, nostack, preserves_flags)) }
    value
}
