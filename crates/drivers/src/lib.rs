//! Device drivers. They use neither the memory core nor Linux: the caller passes in memory and interrupts. So parsers
//! of untrusted data ([`acpi`]) are tested in an ordinary process.
#![cfg_attr(not(test), no_std)]

pub mod acpi;
pub mod console;
pub mod debug_exit;
pub mod io_apic;
pub mod local_apic;
pub mod pic;
pub mod pit;
pub mod port;
pub mod rtc;
pub mod uart;
