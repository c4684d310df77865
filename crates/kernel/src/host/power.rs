//! The end of the machine: the report to the host, and power-off.

use crate::cpu;
use crate::host::ports;
use quire_drivers::debug_exit;
use quire_linux_state::End;

/// How long power-off waits for the host to read the bytes written to the ports, in nanoseconds.
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
    // A real machine has no debug-exit device, so it continues here.
    log!("the machine can be switched off");
    let _was = cpu::interrupts_off();
    cpu::stop()
}
