//! Device drivers. They know neither the memory core nor Linux: what they need of memory and interrupts their caller hands
//! in, so that what parses outside data ([`acpi`]) is tested in an ordinary process.
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
