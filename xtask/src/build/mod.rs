//! Builds the kernel, and reads the symbols of the result.

mod fresh;

use std::{
    fmt::Write as _,
    fs,
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::SystemTime,
};

use object::{Object, ObjectSymbol, SymbolKind};

use crate::{
    failure::{Doing, Failure, Result},
    places::Places,
    progress::Step,
    setup::toolchain::{KERNEL_TARGET, Toolchain},
};

/// Builds the kernel if it is out of date. Returns the path of its ELF file. `$QUIRE_KERNEL` names another kernel.
pub fn kernel(places: &Places) -> Result<PathBuf> {
    if let Some(given) = std::env::var_os("QUIRE_KERNEL") {
        return Ok(given.into());
    }
    compiled(places)
}

/// Builds the kernel of the tree at `places` if it is out of date. Returns its path.
pub fn compiled(places: &Places) -> Result<PathBuf> {
    compile(places, "the kernel", "kernel", &[])
}

/// Builds the self-checking kernel. It checks assertions, the order of locks and the consistency of maps as it runs.
pub fn checked_kernel(places: &Places) -> Result<PathBuf> {
    compile(places, "the kernel that checks itself", "kernel-checked", &[])
}

/// Builds the kernel that records events for `./quire trace`.
pub fn traced_kernel(places: &Places) -> Result<PathBuf> {
    compile(places, "the kernel with trace events", "kernel-traced", &["--features", "quire-kernel/trace"])
}

/// Builds the kernel with a profile of the workspace. Returns its path. Cargo runs only if a source, a manifest or the
/// compiler has changed, because another build of any variant may hold cargo's lock for minutes.
fn compile(places: &Places, what: &str, profile: &str, features: &[&str]) -> Result<PathBuf> {
    let toolchain = Toolchain::for_kernel(places)?;
    let target = places.target.join("kernel");
    let kernel = target.join(KERNEL_TARGET).join(profile).join("quire-kernel");
    let how = format!("{} {profile} {features:?}", toolchain.identity()?);
    let variant = fresh::Variant { root: &places.root, kernel: &kernel, how };
    if variant.is_fresh() {
        return Ok(kernel);
    }
    let start = SystemTime::now();
    let mut cargo = toolchain.cargo(places, "build");
    cargo
        .args(["--profile", profile, "--locked", "-p", "quire-kernel", "--target", KERNEL_TARGET, "--target-dir"])
        .arg(&target)
        .args(features);
    with_cargo(what, "some 2 min the first time", &mut cargo)?;
    variant.keep(start);
    Ok(kernel)
}

/// Runs `cargo build`, announced as a build of `what` with the expected duration `size`. If it fails, its messages are
/// printed. All other lines of cargo, such as the name of a crate or the wait for another cargo, are shown as details
/// of the step.
pub fn with_cargo(what: &str, size: &str, cargo: &mut Command) -> Result<()> {
    let about = || "cannot run cargo".to_string();
    let step = Step::sized(format!("building {what}"), size);
    cargo.args(["--color", "never"]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = cargo.spawn().doing(about)?;
    let mut said = String::new();
    for line in child.stderr.take().into_iter().flat_map(|lines| BufReader::new(lines).split(b'\n')) {
        let line = String::from_utf8_lossy(&line.doing(about)?).into_owned();
        step.doing(line.trim());
        said += &line;
        said.push('\n');
    }
    let status = child.wait().doing(about)?;
    drop(step);
    if status.success() {
        return Ok(());
    }
    eprint!("{said}");
    Err(Failure::usage(format_args!("{what} did not build: {}; see above", last_error(&said))))
}

/// The last error message in the output of cargo.
fn last_error(said: &str) -> &str {
    said.lines().rev().find_map(|line| line.strip_prefix("error: ")).unwrap_or("cargo failed")
}

/// The kernel's functions as lines `address name`, sorted by address. The kernel prints these names when it panics.
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
        // The alternate form `{:#}` leaves out the hash, which differs between versions of a crate.
        let _ = writeln!(text, "{address:x} {:#}", rustc_demangle::demangle(name));
    }
    Ok(text)
}

/// `./quire build`: builds the kernel and prints its path.
pub fn command(places: &Places) -> Result<u8> {
    println!("{}", kernel(places)?.display());
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_build_ends_in_cargos_last_error() {
        let said =
            "   Compiling a v0.1.0\nerror[E0425]: no x\n --> a.rs:1\n\nerror: could not compile `a` (lib)\nnote\n";
        assert_eq!(last_error(said), "could not compile `a` (lib)");
        assert_eq!(last_error(""), "cargo failed");
        let failed = with_cargo("it", "", Command::new("cargo").arg("no-such-subcommand")).unwrap_err();
        assert!(failed.status == 2 && failed.message.starts_with("it did not build: "), "{failed}");
    }
}
