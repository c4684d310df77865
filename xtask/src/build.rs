//! Building the kernel, and reading its symbols back.

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::Stdio,
};

use object::{Object, ObjectSymbol, SymbolKind};

use crate::{
    failure::{Doing, Failure, Result},
    places::Places,
    progress::Step,
    setup::toolchain::{KERNEL_TARGET, Toolchain},
};

/// Builds the kernel if it is stale and returns its ELF file. `$QUIRE_KERNEL` names a built kernel instead.
pub fn kernel(places: &Places) -> Result<PathBuf> {
    if let Some(given) = std::env::var_os("QUIRE_KERNEL") {
        return Ok(given.into());
    }
    compiled(places)
}

/// The kernel of the tree at `places`, built if it is stale.
pub fn compiled(places: &Places) -> Result<PathBuf> {
    compile(places, "kernel", &[])
}

/// The self-checking kernel. It checks assertions, the order of locks and the maps' consistency as it runs.
pub fn checked_kernel(places: &Places) -> Result<PathBuf> {
    compile(places, "kernel-checked", &[])
}

/// The kernel that records events for `./quire trace`.
pub fn traced_kernel(places: &Places) -> Result<PathBuf> {
    compile(places, "kernel-traced", &["--features", "quire-kernel/trace"])
}

/// Builds the kernel by a profile of the workspace.
fn compile(places: &Places, profile: &str, features: &[&str]) -> Result<PathBuf> {
    let toolchain = Toolchain::for_kernel(places)?;
    let target = places.target.join("kernel");
    let step = Step::new("building the kernel");
    // Cargo prints nothing while there is nothing to do. Errors and warnings pass through to the user.
    let out = toolchain
        .cargo(places, "build")
        .args(["--profile", profile, "--locked", "-p", "quire-kernel", "--target", KERNEL_TARGET, "--target-dir"])
        .arg(&target)
        .args(features)
        .args(["--color", "never"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .output()
        .doing(|| "cannot run cargo".to_string())?;
    drop(step);
    if !out.status.success() {
        eprint!("{}", String::from_utf8_lossy(&out.stderr));
        return Err(Failure::usage("the kernel did not build: see above"));
    }
    Ok(target.join(KERNEL_TARGET).join(profile).join("quire-kernel"))
}

/// The kernel's functions as lines `address name`, sorted by address. The kernel's panics print names from them.
pub fn symbols(kernel: &Path) -> Result<String> {
    let bytes = fs::read(kernel).doing(|| format!("cannot read {}", kernel.display()))?;
    let file = object::File::parse(&*bytes).doing(|| format!("{} is no kernel", kernel.display()))?;
    let mut functions: Vec<(u64, &str)> = file
        .symbols()
        .filter(|s| s.kind() == SymbolKind::Text && s.address() != 0)
        .filter_map(|s| Some((s.address(), s.name().ok()?)))
        .filter(|(_, name)| !name.is_empty())
        .collect();
    functions.sort_unstable();
    functions.dedup_by_key(|f| f.0);
    let mut text = String::with_capacity(functions.len() * 60);
    for (address, name) in functions {
        // The alternate form omits the hash, which differs between versions of a crate.
        let _ = writeln!(text, "{address:x} {:#}", rustc_demangle::demangle(name));
    }
    Ok(text)
}

/// `./quire build`.
pub fn command(places: &Places) -> Result<u8> {
    println!("{}", kernel(places)?.display());
    Ok(0)
}
