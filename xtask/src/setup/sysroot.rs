//! A sysroot for a target without an operating system. It is compiled once from Debian's `rust-web-src`, and kept for
//! the exact version of rustc and the target.
//!
//! Debian ships `core` and `alloc` only as source. If every build compiled them, it would take half a minute longer and
//! depend on unstable flags. With a sysroot that is laid out as rustc expects it, plain `cargo build --target` works on
//! stable.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use sha2::{Digest, Sha256};

use super::toolchain::{KERNEL_TARGET, version};
use crate::{
    failure::{Doing, Failure, Result},
    places::Places,
    progress::Step,
};

const MANIFEST: &str = "[package]\nname = \"empty\"\nversion = \"0.0.0\"\nedition = \"2024\"\n[lib]\n\
                        [profile.release]\nopt-level = 3\ncodegen-units = 1\nlto = \"fat\"\npanic \
                            = \"abort\"\n[workspace]\n";

/// The name of the sysroot's directory for the version that `rustc -vV` printed, and a target.
pub fn key(version: &str, target: &str) -> String {
    let release = version.lines().find_map(|l| l.strip_prefix("release: ")).unwrap_or("unknown");
    let digest = Sha256::digest(version.as_bytes());
    let of = if target == KERNEL_TARGET { String::new() } else { format!("-{target}") };
    format!("sysroot-lto-{release}-{:02x}{:02x}{:02x}{:02x}{of}", digest[0], digest[1], digest[2], digest[3])
}

/// Whether the sysroot for `rustc` and `target` exists already.
pub fn is_made(places: &Places, rustc: &Path, target: &str) -> Result<bool> {
    Ok(places.cache.join(key(&version(rustc)?, target)).join("complete").exists())
}

/// Returns the sysroot for `rustc` and `target`, and makes it first if it does not exist.
pub fn ensure(places: &Places, rustc: &Path, target: &str) -> Result<PathBuf> {
    let version = version(rustc)?;
    let home = places.cache.join(key(&version, target));
    let done = home.join("complete");
    if done.exists() {
        return Ok(home);
    }
    let _lock = places.lock("sysroot")?;
    if done.exists() {
        return Ok(home);
    }
    let _step = Step::new(format!("compiling Rust's core library for {target} (once)"));
    // An interrupted attempt may have left an incomplete sysroot, which is removed.
    let _ = fs::remove_dir_all(&home);
    let work = places.cache.join("sysroot-build");
    let _ = fs::remove_dir_all(&work);
    compile(&work, rustc, target)?;
    let linker = linker(&version)?;
    lay_out(&work, &home, rustc, &linker, target)
        .doing(|| format!("cannot lay out the sysroot in {}", home.display()))?;
    let _ = fs::remove_dir_all(&work);
    fs::write(&done, version).doing(|| format!("cannot write {}", done.display()))?;
    Ok(home)
}

/// Compiles an empty crate for `target`, together with the core library.
fn compile(work: &Path, rustc: &Path, target: &str) -> Result<()> {
    let src = work.join("src");
    fs::create_dir_all(&src).doing(|| format!("cannot make {}", src.display()))?;
    fs::write(work.join("Cargo.toml"), MANIFEST).doing(|| "cannot write the sysroot's manifest".to_string())?;
    fs::write(src.join("lib.rs"), "#![no_std]\n").doing(|| "cannot write the sysroot's source".to_string())?;
    let log = work.join("log");
    let file = fs::File::create(&log).doing(|| format!("cannot make {}", log.display()))?;
    let status = Command::new(rustc.with_file_name("cargo"))
        .args(["build", "--release", "--target", target, "-Zbuild-std=core,alloc,compiler_builtins"])
        .arg("-Zbuild-std-features=compiler-builtins-mem")
        .current_dir(work)
        .env("RUSTC", rustc)
        .env("RUSTC_BOOTSTRAP", "1")
        .env("CARGO_TARGET_DIR", work.join("target"))
        // The bitcode is needed because the kernel is linked with LTO. Backtraces follow frame pointers through the
        // library too.
        .env("RUSTFLAGS", "-Cembed-bitcode=yes -Cforce-frame-pointers=yes")
        .env_remove("RUSTUP_TOOLCHAIN")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(file)
        .status()
        .doing(|| "cannot run cargo".to_string())?;
    if status.success() {
        return Ok(());
    }
    let said = fs::read_to_string(&log).unwrap_or_default();
    let last = said.lines().rev().find(|l| l.contains("error")).unwrap_or("see its log").to_owned();
    Err(Failure::usage(format_args!(
        "compiling Rust's core library failed ({last}); it needs rust-web-src and the crate registry. Log: {}",
        log.display()
    )))
}

/// The path of LLVM's linker: of rustc's own LLVM version if possible, else of any version.
fn linker(version: &str) -> Result<PathBuf> {
    let major = version.lines().find_map(|l| l.strip_prefix("LLVM version: ")?.split('.').next()).unwrap_or_default();
    let mut places = vec![format!("/usr/lib/llvm-{major}/bin/lld"), "/usr/bin/lld".to_owned()];
    places.extend((14..40).rev().map(|n| format!("/usr/lib/llvm-{n}/bin/lld")));
    places
        .into_iter()
        .map(PathBuf::from)
        .find(|p| p.exists())
        .ok_or_else(|| Failure::usage(format_args!("no LLVM linker: install lld-{major}")))
}

/// Copies the libraries to the place where rustc searches them. Also writes the wrapper that makes rustc use this
/// sysroot.
fn lay_out(work: &Path, home: &Path, rustc: &Path, linker: &Path, target: &str) -> std::io::Result<()> {
    let libraries = home.join("lib/rustlib").join(target).join("lib");
    fs::create_dir_all(&libraries)?;
    for entry in fs::read_dir(work.join("target").join(target).join("release/deps"))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if (name.ends_with(".rlib") || name.ends_with(".rmeta")) && !name.starts_with("libempty") {
            fs::copy(&path, libraries.join(&name))?;
        }
    }
    let out = Command::new(rustc).args(["--print", "sysroot"]).output()?;
    let host = PathBuf::from(String::from_utf8_lossy(&out.stdout).trim().to_owned()).join("lib/rustlib");
    let ours = home.join("lib/rustlib");
    for part in ["src", "etc"] {
        symlink(host.join(part), ours.join(part))?;
    }
    // Build scripts are compiled with the host's library. Kernels are linked with `rust-lld`, a name that Debian's
    // linker does not have.
    let tools = ours.join("x86_64-unknown-linux-gnu");
    fs::create_dir_all(tools.join("bin"))?;
    symlink(host.join("x86_64-unknown-linux-gnu/lib"), tools.join("lib"))?;
    symlink(linker, tools.join("bin/rust-lld"))?;
    let bin = home.join("bin");
    fs::create_dir_all(&bin)?;
    let wrapper = bin.join("rustc");
    fs::write(&wrapper, format!("#!/bin/sh\nexec {} --sysroot '{}' \"$@\"\n", rustc.display(), home.display()))?;
    fs::set_permissions(&wrapper, fs::Permissions::from_mode(0o755))?;
    symlink(rustc.with_file_name("cargo"), bin.join("cargo"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_rustc_gets_another_sysroot() {
        let one = "rustc 1.96.0\nhost: x86_64\nrelease: 1.96.0\nLLVM version: 22.1.8\n";
        let other = "rustc 1.96.0\nhost: x86_64\nrelease: 1.96.0\nLLVM version: 22.1.9\n";
        assert!(key(one, KERNEL_TARGET).starts_with("sysroot-lto-1.96.0-"));
        assert_ne!(key(one, KERNEL_TARGET), key(other, KERNEL_TARGET));
        assert_ne!(key(one, KERNEL_TARGET), key(one, "riscv64gc-unknown-none-elf"));
        assert_eq!(key(one, KERNEL_TARGET), key(one, KERNEL_TARGET));
    }
}
