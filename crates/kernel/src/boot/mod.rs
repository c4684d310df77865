//! From the first Rust instruction to the first thread.

pub mod pvh;
pub mod smp;

use crate::clock::Calibration;
use crate::cpu::features::{Feature, has};
use crate::cpu::{self, tables};
use crate::layout::direct;
use crate::{interrupt, paging, trap};
use quire_drivers::{acpi, local_apic, pic, uart};
use quire_kernel::memory_map::{Ram, Span};
use quire_kernel::start_info::StartInfo;

/// Physical memory as the boot tables show it.
struct BootPhysical;

impl acpi::Physical for BootPhysical {
    fn bytes(&self, at: u64, len: usize) -> Option<&[u8]> {
        physical(at, len)
    }
}

fn physical(at: u64, len: usize) -> Option<&'static [u8]> {
    let end = at.checked_add(len as u64)?;
    // SAFETY: the boot tables show the first 4 GiB; what the loader and the firmware left there does not change.
    (end <= 1 << 32).then(|| unsafe { core::slice::from_raw_parts(direct(at), len) })
}

/// The boot CPU arrives here on the boot stack, interrupts masked, under the boot tables.
pub extern "C" fn start(start_info: u32) -> ! {
    // SAFETY: the boot CPU alone runs; each step below is in the order that the hardware needs.
    unsafe {
        tables::fill_interrupts();
        tables::load(cpu::boot_block());
        uart::init();
        pic::mask_all();
    }
    let mut calibration = Calibration::start();
    cpu::features::detect();
    if has(Feature::Smap) {
        // SAFETY: the boot tables leave text writable, and no other CPU runs.
        unsafe { trap::entry::patch_smap() }
    }
    let info = match StartInfo::read(start_info as u64, physical) {
        Ok(info) => info,
        Err(e) => panic!("the boot loader's start info cannot be used: {e:?}"),
    };
    let topology = match acpi::topology(&BootPhysical, info.root_pointer) {
        Ok(t) => t,
        Err(e) => panic!("the firmware's ACPI tables cannot be used: {e:?}"),
    };

    let mut reserved = [Span::default(); 8];
    let (image_start, image_end) = crate::layout::image_physical();
    reserved[0] = Span { start: 0, end: 1 << 20 };
    reserved[1] = Span { start: image_start, end: image_end };
    for (slot, m) in reserved[2..].iter_mut().zip(info.modules()) {
        *slot = Span { start: m.start, end: m.start.saturating_add(m.len) };
    }
    let all = Ram::new(info.ranges(), &[]);
    let mut free = Ram::new(info.ranges(), &reserved);
    let total = all.bytes();
    // SAFETY: the boot tables are loaded, and the boot CPU alone runs.
    if unsafe { paging::init(&all, &mut free) }.is_err() {
        panic!("not enough memory for the kernel's page tables: {} KiB", total / 1024);
    }
    // SAFETY: interrupts are masked, the kernel's tables are loaded.
    unsafe { cpu::set_registers() };

    let registers = if has(Feature::X2apic) {
        None
    } else {
        let mut frame = || paging::take_low(&mut free, 4096);
        // SAFETY: the address is the local APIC's own.
        match unsafe { paging::map_device(local_apic::physical_base(), 4096, &mut frame) } {
            Ok(at) => Some(at as usize),
            Err(_) => panic!("not enough memory to map the local APIC"),
        }
    };
    // SAFETY: mapped uncached just now, or x2APIC; interrupts are masked.
    unsafe { local_apic::init(registers, interrupt::SPURIOUS) };
    calibration.start_apic();
    cpu::register(0, cpu::boot_block(), local_apic::id());
    smp::start(&topology, &mut free, registers);
    let rates = calibration.finish();
    log!(
        "Quire {}: {} CPUs, {} MiB, TSC {} MHz, {}, up after {} us",
        env!("CARGO_PKG_VERSION"),
        cpu::count(),
        total >> 20,
        rates.tsc / 1_000_000,
        if registers.is_some() { "xAPIC" } else { "x2APIC" },
        crate::clock::now() / 1000,
    );
    if quire_kernel::command_line::flag(info.command_line, "panic") {
        panic!("as asked");
    }
    quire_drivers::debug_exit::exit(quire_drivers::debug_exit::POWER_OFF);
    cpu::stop()
}
