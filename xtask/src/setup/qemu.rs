//! A newer QEMU than the host's, from Debian's backports. It is fetched through apt and unpacked into the cache, never
//! installed.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use super::apt::Apt;
use crate::{
    failure::{Doing, Failure, Result},
    image::libraries::{self, SearchPath},
    places::Places,
    progress::Step,
};

/// The packages of the emulator, its data and its firmware. Its libraries are those of the host's QEMU.
const PACKAGES: [&str; 4] = ["qemu-system-x86", "qemu-system-common", "qemu-system-data", "seabios"];

/// The path of the emulator below the directory in which its packages are unpacked. The emulator finds its firmware
/// from there.
const EMULATOR: &str = "usr/bin/qemu-system-x86_64";

/// Returns the path of the emulator from the backports, and fetches it first if needed. The error says why the emulator
/// cannot be fetched or used.
pub fn newer(places: &Places) -> Result<PathBuf> {
    let home = places.cache.join("qemu-newer");
    let emulator = home.join(EMULATOR);
    if emulator.exists() {
        return Ok(emulator);
    }
    let _lock = places.lock("qemu-newer")?;
    if emulator.exists() {
        return Ok(emulator);
    }
    let apt = Apt::with_backports(places, "apt-qemu")
        .ok_or_else(|| Failure::usage("apt cannot list the packages of Debian's backports"))?;
    let _step = Step::new("fetching a newer QEMU (once, 14 MB)");
    let work = places.cache.join("qemu-fetch");
    let root = work.join("root");
    let own = PACKAGES.map(|name| format!("{name}/{}-backports", apt.suite()));
    apt.unpack(&own.each_ref().map(String::as_str), &work, &root)?;
    usable(&root.join(EMULATOR))?;
    fs::rename(&root, &home).doing(|| format!("cannot keep {}", home.display()))?;
    let _ = fs::remove_dir_all(&work);
    Ok(emulator)
}

/// Checks that the emulator starts on this host. It may need newer libraries than the host has.
fn usable(emulator: &Path) -> Result<()> {
    libraries::closure(emulator, &SearchPath::of_host()).doing(|| "the newer QEMU".to_string())?;
    let mut command = Command::new(emulator);
    command.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    match command.status().is_ok_and(|s| s.success()) {
        true => Ok(()),
        false => Err(Failure::usage("the newer QEMU does not start on this machine")),
    }
}
