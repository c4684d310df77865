//! Interrupt vectors, and the drivers behind the device ones.

use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use quire_drivers::local_apic;

/// The local timer.
pub const TIMER: u8 = 0xf0;
/// Another CPU has put a thread here, or wants this one to look.
pub const RESCHEDULE: u8 = 0xf1;
/// Another CPU asks for translations to be dropped.
pub const SHOOTDOWN: u8 = 0xf2;
/// The local APIC's spurious vector.
pub const SPURIOUS: u8 = 0xff;
/// The first device's vector.
const DEVICES: u8 = 0x30;
/// How many devices can have one.
const MAX_DEVICES: usize = 16;

/// What a device's interrupt calls, with interrupts masked: it must not sleep or take locks that thread context takes.
pub type Handler = fn(usize);

static HANDLERS: [AtomicPtr<()>; MAX_DEVICES] = [const { AtomicPtr::new(core::ptr::null_mut()) }; MAX_DEVICES];
static ARGUMENTS: [AtomicUsize; MAX_DEVICES] = [const { AtomicUsize::new(0) }; MAX_DEVICES];
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// A vector for a device, whose interrupt will call `handler(argument)`; `None` where all are taken.
pub fn register(handler: Handler, argument: usize) -> Option<u8> {
    let i = NEXT.fetch_add(1, Ordering::Relaxed);
    ARGUMENTS.get(i)?.store(argument, Ordering::Relaxed);
    HANDLERS[i].store(handler as *mut (), Ordering::Release);
    Some(DEVICES + i as u8)
}

/// Serves device vector `vector`.
pub fn device(vector: u8) {
    let slot = vector.wrapping_sub(DEVICES) as usize;
    if let Some(handler) = HANDLERS.get(slot).map(|h| h.load(Ordering::Acquire))
        && !handler.is_null()
    {
        // SAFETY: only `register` stores here, and only handlers.
        let handler = unsafe { core::mem::transmute::<*mut (), Handler>(handler) };
        handler(ARGUMENTS[slot].load(Ordering::Relaxed));
    }
    local_apic::end_of_interrupt();
}
