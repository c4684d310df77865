//! Vectors, and what is done on each.

/// The local timer.
pub const TIMER: u8 = 0xf0;
/// Another CPU has put a thread here, or wants this one to look.
pub const RESCHEDULE: u8 = 0xf1;
/// Another CPU asks for translations to be dropped.
pub const SHOOTDOWN: u8 = 0xf2;
/// The local APIC's spurious vector.
pub const SPURIOUS: u8 = 0xff;
/// The first device's vector.
pub const DEVICES: u8 = 0x30;
