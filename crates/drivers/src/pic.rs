//! The pair of 8259 interrupt controllers of PCs, which stay masked.

use crate::port::out8;

/// Masks every line of both controllers. First moves the lines to vectors 0x20 to 0x2f, so that a spurious interrupt
/// does not look like an exception.
///
/// # Safety
/// Interrupts are off, and no other code programs the controllers.
pub unsafe fn mask_all() {
    // SAFETY: the standard initialisation sequence (ICW1 to ICW4, then the mask).
    unsafe {
        for (command, data, vector, cascade) in [(0x20, 0x21, 0x20, 4), (0xa0, 0xa1, 0x28, 2)] {
            out8(command, 0x11);
            out8(data, vector);
            out8(data, cascade);
            out8(data, 1);
            out8(data, 0xff);
        }
    }
}
