//! Boots the hosted machines that are measured, without the checks that would distort a measurement.

use quire_hosted::{Hosted, Settings};
use quire_vm::Vm;
use quire_vm::check::Level;

/// Boots a machine with `cpus` CPUs and at least `mib` MiB for programs. Freed frames are not overwritten. The machine
/// is never freed, because a bench boots one machine and uses it for all its samples.
pub fn boot(cpus: usize, mib: u64) -> &'static Vm<Hosted> {
    // Each page has a descriptor of one cache line. The reserve for the core itself and the page tables take some more
    // memory.
    let frames = mib * 256 + mib * 256 / 16 + 4096;
    // A fault handles one page, because the sources measured such faults.
    let check = Level::Never;
    Hosted::boot(Settings { cpus, frames, poison: false, check, zero_window: 0, ..Settings::default() })
        .expect("the settings are valid for a machine")
}
