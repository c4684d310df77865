//! The end of the machine.

use crate::cpu;
use crate::host::ports;
use quire_drivers::debug_exit;
use quire_linux_state::End;

/// Nanoseconds that the host has to take the bytes written to the ports.
const PATIENCE: u64 = 10_000_000_000;

/// Reports how process 1 ended, and powers off.
pub fn off(end: End) -> ! {
    match end {
        End::Exit(status) => ports::report(format_args!("exit {status}")),
        End::Signal(number) => ports::report(format_args!("signal {number}")),
        End::PowerOff => ports::report(format_args!("exit 0")),
    }
    ports::drain(PATIENCE);
    debug_exit::exit(debug_exit::POWER_OFF);
    // Real machines have no such device.
    log!("the machine can be switched off");
    let _was = cpu::interrupts_off();
    cpu::stop()
}
