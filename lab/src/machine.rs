//! The measured machines: hosted, without the checks that would distort the measurement.

use quire_hosted::{Hosted, Settings};
use quire_vm::Vm;
use quire_vm::check::Level;

/// A machine with `cpus` CPUs and at least `mib` MiB for programs, whose freed frames are not overwritten. It lives
/// until the process ends: a bench boots one and uses it for all its samples.
pub fn boot(cpus: usize, mib: u64) -> &'static Vm<Hosted> {
    // A page's descriptor is a line, the reserve and the tables take some more.
    let frames = mib * 256 + mib * 256 / 16 + 4096;
    // One page a fault, because the sources measured such faults.
    let check = Level::Never;
    Hosted::boot(Settings { cpus, frames, poison: false, check, zero_window: 0, ..Settings::default() })
        .expect("the settings are valid for a machine")
}
