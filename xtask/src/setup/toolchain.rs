//! Finds the Rust that compiles the kernel: rustup's if it has the kernel's target, or else Debian's with a sysroot
//! that this tool makes.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use super::sysroot;
use crate::{
    failure::{Doing, Failure, Result},
    places::Places,
};

/// The target for which the kernel is compiled.
pub const KERNEL_TARGET: &str = "x86_64-unknown-none";
/// The target of the example for RISC-V.
pub const RISCV_TARGET: &str = "riscv64gc-unknown-none-elf";
const NO_TOOLCHAIN: &str = "no Rust toolchain can build the kernel: run `rustup target add x86_64-unknown-none`, or on \
    Debian `./quire setup`";
const DEBIAN_RUSTC: &str = "/usr/bin/rustc";

/// A cargo and a rustc that can compile for a target without an operating system.
#[derive(Debug, Clone)]
pub struct Toolchain {
    /// The path of cargo.
    pub cargo: PathBuf,
    /// The rustc that cargo must use. `None` if cargo uses its own rustc.
    pub rustc: Option<PathBuf>,
    /// The sysroot, if it is not rustc's own. Clippy needs it as an option.
    pub sysroot: Option<PathBuf>,
}

impl Toolchain {
    /// Finds the toolchain for the kernel. Makes the sysroot if there is none yet for this rustc.
    pub fn for_kernel(places: &Places) -> Result<Self> {
        Self::for_target(places, KERNEL_TARGET)
    }

    /// Finds the toolchain for `target`. Makes the sysroot if there is none yet for this rustc and target.
    pub fn for_target(places: &Places, target: &str) -> Result<Self> {
        if let Some(cargo) = rustup_with_target(target) {
            return Ok(Self { cargo, rustc: None, sysroot: None });
        }
        if !Path::new(DEBIAN_RUSTC).exists() || !Path::new("/usr/bin/cargo").exists() {
            return Err(match target {
                KERNEL_TARGET => Failure::usage(NO_TOOLCHAIN),
                _ => Failure::usage(format_args!("run `rustup target add {target}`, or ./quire setup")),
            });
        }
        let made = sysroot::ensure(places, Path::new(DEBIAN_RUSTC), target)?;
        Ok(Self { cargo: "/usr/bin/cargo".into(), rustc: Some(made.join("bin/rustc")), sysroot: Some(made) })
    }

    /// The command `cargo SUBCOMMAND` in the repository's root, to which the caller adds arguments.
    pub fn cargo(&self, places: &Places, subcommand: &str) -> Command {
        let mut command = Command::new(&self.cargo);
        command.arg(subcommand).current_dir(&places.root);
        if let Some(rustc) = &self.rustc {
            // Debian's cargo searches its helpers (cargo-clippy, clippy-driver) in its own directory, then along
            // `PATH`.
            command.env("RUSTC", rustc).env("PATH", path_with("/usr/bin")).env_remove("RUSTUP_TOOLCHAIN");
        }
        if let Some(sysroot) = &self.sysroot {
            command.env("SYSROOT", sysroot);
        }
        command
    }

    /// A text that is another one for another compiler: the compiler's path, and the size and time of its file.
    pub fn identity(&self) -> Result<String> {
        let rustc = self.rustc.clone().unwrap_or_else(|| self.cargo.with_file_name("rustc"));
        let about = || format!("cannot find {}", rustc.display());
        let meta = std::fs::metadata(&rustc).doing(about)?;
        Ok(format!("{} {} {:?}", rustc.display(), meta.len(), meta.modified().doing(about)?))
    }

    /// The command `rustc`, to which the caller adds arguments.
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

/// A description of the Rust that builds the kernel. This function makes no sysroot.
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
    let core =
        if sysroot::is_made(places, debian, KERNEL_TARGET)? { "is compiled" } else { "will be compiled at first use" };
    Ok(format!("Debian's rustc {}; Rust's core library for the kernel {core}", release(debian)?))
}

/// The exact version of the kernel's compiler: `rustc 1.96.0 (HASH DATE)`.
pub fn compiler(places: &Places) -> Result<String> {
    let about = || "cannot run rustc".to_string();
    let out = Toolchain::for_kernel(places)?.rustc().arg("--version").output().doing(about)?;
    Ok(String::from_utf8_lossy(&out.stdout).trim().to_owned())
}

/// Whether rustup's active toolchain has the kernel's target.
pub fn rustup_builds_kernels() -> bool {
    rustup_with_target(KERNEL_TARGET).is_some()
}

/// Adds `target` to rustup's active toolchain, if that toolchain builds the kernel and lacks the target.
pub fn add_to_rustup(target: &str) -> Result<()> {
    if !rustup_builds_kernels() || rustup_with_target(target).is_some() {
        return Ok(());
    }
    let added = Command::new("rustup").args(["target", "add", target]).status();
    match added.doing(|| "cannot run rustup".to_string())?.success() {
        true => Ok(()),
        false => Err(Failure::usage(format_args!("rustup target add {target} failed"))),
    }
}

/// The path of rustup's cargo, if its active toolchain has `target`. This never makes rustup download anything.
fn rustup_with_target(target: &str) -> Option<PathBuf> {
    let out = Command::new("rustc").args(["--print", "sysroot"]).env("RUSTUP_AUTO_INSTALL", "0").output().ok()?;
    let sysroot = PathBuf::from(String::from_utf8(out.stdout).ok()?.trim());
    sysroot.join("lib/rustlib").join(target).is_dir().then(|| sysroot.join("bin/cargo")).filter(|c| c.exists())
}

fn path_with(first: &str) -> String {
    format!("{first}:{}", std::env::var("PATH").unwrap_or_default())
}

/// The output of `rustc -vV` for this rustc. This exact version is the key of all data that is cached for it.
pub fn version(rustc: &Path) -> Result<String> {
    let out = Command::new(rustc).arg("-vV").output().doing(|| format!("cannot run {}", rustc.display()))?;
    String::from_utf8(out.stdout).doing(|| "rustc -vV".to_string())
}
