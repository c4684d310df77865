//! Tools and files that are made or fetched once: the toolchain for the kernel, Debian's Linux, and sources to build in
//! guests.

pub mod apt;
pub mod linux;
pub mod lua;
pub mod qemu;
pub mod runtime;
pub mod sanitizer;
pub mod sysroot;
pub mod toolchain;

use crate::{failure::Result, machine::accel, places::Places};

/// `./quire setup`: makes or fetches all tools and files that later commands need, so that they do not have to. The
/// entry script has already installed the missing packages.
pub fn command(places: &Places) -> Result<u8> {
    toolchain::Toolchain::for_kernel(places)?;
    toolchain::add_to_rustup(toolchain::RISCV_TARGET)?;
    toolchain::Toolchain::for_target(places, toolchain::RISCV_TARGET)?;
    crate::test::miri::install(&places.root)?;
    let qemu = accel::find_qemu()?;
    let (accelerator, why) = accel::choose(places, &qemu)?;
    crate::image::root::busybox()?;
    println!("All tools are installed. Guests run with {accelerator}, because {why}.");
    Ok(0)
}
