//! The panic handler: stops every other CPU, logs the message and a backtrace, and ends the machine with an exit status
//! that the host recognises.

use super::backtrace::{backtrace, frame_pointer};
use crate::cpu;
use core::panic::PanicInfo;
use core::sync::atomic::{AtomicU32, Ordering};
use quire_drivers::{debug_exit, local_apic};

/// The number of the CPU that panics, plus one; 0 if none does.
static BY: AtomicU32 = AtomicU32::new(0);
/// Whether a CPU panics. The other CPUs then stop at their next NMI.
pub fn in_progress() -> bool {
    BY.load(Ordering::Relaxed) != 0
}

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    let _was = cpu::interrupts_off();
    let me = cpu::id() as u32 + 1;
    match BY.compare_exchange(0, me, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => {}
        // This CPU panics in its own panic handler, so it prints no more.
        Err(by) if by == me => end(),
        Err(_) => cpu::stop(),
    }
    for other in 0..cpu::count() {
        // A CPU that has not started has the broadcast identifier as its APIC identifier, which would stop this CPU
        // too.
        if other != cpu::id() && !cpu::block_of(other).is_null() && cpu::apic_id(other) != cpu::NOT_ARRIVED {
            local_apic::send_nmi(cpu::apic_id(other));
        }
    }
    match info.location() {
        Some(at) => log_text!("panic on CPU {} at {}:{}: {}", cpu::id(), at.file(), at.line(), info.message()),
        None => log_text!("panic on CPU {}: {}", cpu::id(), info.message()),
    }
    backtrace(frame_pointer());
    end()
}

fn end() -> ! {
    debug_exit::exit(debug_exit::PANIC);
    cpu::stop()
}
