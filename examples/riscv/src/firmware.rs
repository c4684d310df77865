//! Calls of the firmware (SBI 1.0): the console, timers, other CPUs, and the end.

use core::arch::asm;

fn call(extension: usize, function: usize, [a, b, c]: [usize; 3]) -> isize {
    let error: isize;
    // SAFETY: the firmware keeps all other registers, and uses no memory of the kernel in the calls below.
    unsafe {
        asm!("ecall", inlateout("a0") a => error, inlateout("a1") b => _, in("a2") c, in("a6") function,
            in("a7") extension, options(nostack));
    }
    error
}

/// Prints a byte.
pub fn put(byte: u8) {
    call(1, 0, [byte.into(), 0, 0]);
}

/// Interrupts a hart.
pub fn interrupt(hart: usize) {
    call(0x73_5049, 0, [1, hart, 0]);
}

/// Interrupts the calling hart when the counter `time` reaches `at`.
pub fn set_timer(at: u64) {
    call(0x5449_4D45, 0, [at as usize, 0, 0]);
}

/// Starts a hart at the physical address `entry`, with `opaque` in a1. Returns whether it starts.
pub fn start_hart(hart: usize, entry: usize, opaque: usize) -> bool {
    call(0x48_534D, 0, [hart, entry, opaque]) == 0
}

/// Ends the machine. QEMU's status is always 0.
pub fn end() -> ! {
    call(0x5352_5354, 0, [0, 0, 0]);
    loop {
        // SAFETY: stops until an interrupt.
        unsafe { asm!("wfi", options(nomem, nostack)) };
    }
}
