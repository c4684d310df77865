//! Finding the Rust that compiles the kernel: rustup's where it has the target, else Debian's with a sysroot of ours.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use super::sysroot;
use crate::{
    failure::{Doing, Failure, Result},
    places::Places,
};

/// The target that the kernel is compiled for.
pub const KERNEL_TARGET: &str = "x86_64-unknown-none";
const NO_TOOLCHAIN: &str = "no Rust toolchain can build the kernel: run `rustup target add x86_64-unknown-none`, or on \
    Debian `./quire setup`";
const DEBIAN_RUSTC: &str = "/usr/bin/rustc";

/// A cargo and a rustc that can compile for [`KERNEL_TARGET`].
#[derive(Debug, Clone)]
pub struct Toolchain {
    /// The cargo to call.
    pub cargo: PathBuf,
    /// The rustc it shall use; `None` leaves cargo its own.
    pub rustc: Option<PathBuf>,
    /// The sysroot where it is not rustc's own; clippy must get it as an option.
    pub sysroot: Option<PathBuf>,
}

impl Toolchain {
    /// Finds the toolchain for the kernel, and makes the sysroot where there is none yet for this rustc.
    pub fn for_kernel(places: &Places) -> Result<Self> {
        if let Some(cargo) = rustup_with_target() {
            return Ok(Self { cargo, rustc: None, sysroot: None });
        }
        if !Path::new(DEBIAN_RUSTC).exists() || !Path::new("/usr/bin/cargo").exists() {
            return Err(Failure::usage(NO_TOOLCHAIN));
        }
        let made = sysroot::ensure(places, Path::new(DEBIAN_RUSTC))?;
        Ok(Self { cargo: "/usr/bin/cargo".into(), rustc: Some(made.join("bin/rustc")), sysroot: Some(made) })
    }

    /// `cargo SUBCOMMAND`, ready for more arguments, in the repository's root.
    pub fn cargo(&self, places: &Places, subcommand: &str) -> Command {
        let mut command = Command::new(&self.cargo);
        command.arg(subcommand).current_dir(&places.root);
        if let Some(rustc) = &self.rustc {
            // Debian's own cargo looks for its helpers (cargo-clippy, clippy-driver) beside it, then on PATH.
            command.env("RUSTC", rustc).env("PATH", path_with("/usr/bin")).env_remove("RUSTUP_TOOLCHAIN");
        }
        if let Some(sysroot) = &self.sysroot {
            command.env("SYSROOT", sysroot);
        }
        command
    }

    /// The rustc itself.
    pub fn rustc(&self) -> Command {
        let mut command = Command::new(match &self.rustc {
            Some(rustc) => rustc.clone(),
            None => self.cargo.with_file_name("rustc"),
        });
        if self.rustc.is_some() {
            command.env_remove("RUSTUP_TOOLCHAIN");
        }
        command
    }
}

/// Which Rust builds the kernel, for people. Makes nothing.
pub fn describe(places: &Places) -> Result<String> {
    let release = |rustc: &Path| -> Result<String> {
        let version = version(rustc)?;
        Ok(version.lines().find_map(|l| l.strip_prefix("release: ")).unwrap_or("of an unknown release").to_owned())
    };
    if rustup_builds_kernels() {
        return Ok(format!("rustup's rustc {}, with the kernel's target", release(Path::new("rustc"))?));
    }
    let debian = Path::new(DEBIAN_RUSTC);
    if !debian.exists() || !Path::new("/usr/bin/cargo").exists() {
        return Err(Failure::usage(NO_TOOLCHAIN));
    }
    let core = if sysroot::is_made(places, debian)? { "is compiled" } else { "will be compiled at first use" };
    Ok(format!("Debian's rustc {}; Rust's core library for the kernel {core}", release(debian)?))
}

/// The compiler of the kernel, by its exact version: `rustc 1.96.0 (HASH DATE)`.
pub fn compiler(places: &Places) -> Result<String> {
    let about = || "cannot run rustc".to_string();
    let out = Toolchain::for_kernel(places)?.rustc().arg("--version").output().doing(about)?;
    Ok(String::from_utf8_lossy(&out.stdout).trim().to_owned())
}

/// Has rustup's active toolchain the kernel's target?
pub fn rustup_builds_kernels() -> bool {
    rustup_with_target().is_some()
}

/// rustup's cargo, if its active toolchain has the kernel's target installed. Never makes rustup download.
fn rustup_with_target() -> Option<PathBuf> {
    let out = Command::new("rustc").args(["--print", "sysroot"]).env("RUSTUP_AUTO_INSTALL", "0").output().ok()?;
    let sysroot = PathBuf::from(String::from_utf8(out.stdout).ok()?.trim());
    sysroot.join("lib/rustlib").join(KERNEL_TARGET).is_dir().then(|| sysroot.join("bin/cargo")).filter(|c| c.exists())
}

fn path_with(first: &str) -> String {
    format!("{first}:{}", std::env::var("PATH").unwrap_or_default())
}

/// `rustc -vV` of that rustc: the exact version is the key of everything that is cached for it.
pub fn version(rustc: &Path) -> Result<String> {
    let out = Command::new(rustc).arg("-vV").output().doing(|| format!("cannot run {}", rustc.display()))?;
    String::from_utf8(out.stdout).doing(|| "rustc -vV".to_string())
}
