//! Examines the machine. It changes nothing, except that the result of a KVM trial is kept.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use super::{MachineFacts, Memory, Qemu};
use crate::{
    failure::{Doing, Result},
    image::{program, root},
    machine::accel,
    places::Places,
    setup::{apt, linux, toolchain},
};

/// Collects all facts about the machine.
pub fn look(places: &Places) -> Result<MachineFacts> {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let qemu = accel::find_qemu().map_err(|e| e.message).and_then(|path| qemu(&path));
    Ok(MachineFacts {
        processor: field(&cpuinfo, "model name").unwrap_or("of an unknown kind").to_owned(),
        cpus: std::thread::available_parallelism().map_or(1, usize::from),
        virtualisation: flag(&cpuinfo, "vmx").then_some("VT-x").or_else(|| flag(&cpuinfo, "svm").then_some("SVM")),
        guest: flag(&cpuinfo, "hypervisor"),
        kvm: qemu.as_ref().ok().map(|q| accel::find_out(places, &q.path)),
        forced: accel::forced()?,
        memory: memory(),
        toolchain: toolchain::describe(places).map_err(|e| e.message),
        busybox: root::busybox().map_err(|e| e.message),
        apt: Path::new("/usr/bin/apt-get").exists().then(apt::own_mirror).flatten(),
        missing: missing(places)?,
        shims: shims(),
        cache: places.cache.clone(),
        linux: linux::release(places),
        qemu,
    })
}

/// The value of the first line `name : value`.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|l| l.strip_prefix(name)?.trim_start().strip_prefix(':').map(str::trim))
}

/// Whether the first processor has this flag.
fn flag(cpuinfo: &str, name: &str) -> bool {
    field(cpuinfo, "flags").is_some_and(|flags| flags.split_whitespace().any(|f| f == name))
}

fn qemu(path: &Path) -> Result<Qemu, String> {
    let said = |args: &[&str]| {
        let out =
            Command::new(path).args(args).output().map_err(|e| format!("{} does not start: {e}", path.display()))?;
        Ok::<_, String>(String::from_utf8_lossy(&out.stdout).into_owned())
    };
    let version = version(&said(&["--version"])?).ok_or_else(|| format!("{} is no QEMU", path.display()))?;
    let accelerators = accelerators(&said(&["-accel", "help"])?);
    if !accelerators.iter().any(|a| a == "tcg" || a == "kvm") {
        return Err(format!("{} has neither KVM nor TCG", path.display()));
    }
    Ok(Qemu { path: path.to_owned(), version, accelerators })
}

/// The version in a text such as `QEMU emulator version 7.2.22 (Debian ...)`.
fn version(text: &str) -> Option<String> {
    Some(text.split_once("QEMU emulator version ")?.1.split_whitespace().next()?.to_owned())
}

/// The words below the headline of the output of `-accel help`.
fn accelerators(text: &str) -> Vec<String> {
    let words = text.lines().map(str::trim).filter(|l| !l.is_empty() && !l.contains(' '));
    words.map(str::to_owned).collect()
}

fn memory() -> Memory {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let mib =
        |name| field(&meminfo, name).and_then(|v| v.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) / 1024;
    let overcommit = fs::read_to_string("/proc/sys/vm/overcommit_memory").unwrap_or_default();
    let huge = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").ok();
    Memory {
        total: mib("MemTotal"),
        available: mib("MemAvailable"),
        overcommit: overcommit.trim().parse().unwrap_or(0),
        huge: huge.and_then(|text| chosen(&text)),
    }
}

/// The word in brackets, for example `madvise` in `always [madvise] never`.
fn chosen(text: &str) -> Option<String> {
    Some(text.split_once('[')?.1.split_once(']')?.0.to_owned())
}

/// The interpreters on `PATH` that are shims of version managers, with the manager's name.
fn shims() -> Vec<(PathBuf, String)> {
    let found = ["python3", "node", "ruby", "perl"].into_iter().filter_map(|name| program::on_path(name.as_ref()));
    found.filter_map(|path| program::shim_of(&path).map(|manager| (path, manager))).collect()
}

/// The listed packages that are not installed. The test for each is the same as in the script `quire`.
fn missing(places: &Places) -> Result<Vec<String>> {
    let list = places.root.join("xtask/packages");
    let text = fs::read_to_string(&list).doing(|| format!("cannot read {}", list.display()))?;
    let kernels = toolchain::rustup_builds_kernels();
    Ok(missing_of(&text, kernels, |proof| match proof.starts_with('/') {
        true => Path::new(proof).exists(),
        false => program::on_path(proof.as_ref()).is_some(),
    }))
}

fn missing_of(list: &str, rustup_builds_kernels: bool, there: impl Fn(&str) -> bool) -> Vec<String> {
    let lines = list.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#'));
    let packages = lines.filter_map(|l| {
        let mut words = l.split_whitespace();
        Some((words.next()?, words.next()?))
    });
    packages
        .filter(|(_, proof)| match proof.strip_prefix("rust:") {
            Some(proof) => !rustup_builds_kernels && !there(proof),
            None => !there(proof),
        })
        .map(|(package, _)| package.to_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_of_other_programs_is_read() {
        let cpuinfo = "processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nflags\t\t: fpu svm_lock svm\n\nflags\t\t: vmx\n";
        assert_eq!(field(cpuinfo, "model name"), Some("Some CPU @ 2 GHz"));
        assert!(flag(cpuinfo, "svm") && !flag(cpuinfo, "vmx") && !flag("", "svm"));
        assert_eq!(version("QEMU emulator version 7.2.22 (Debian 1:7.2)\nCopyright").as_deref(), Some("7.2.22"));
        assert_eq!(version("true (GNU coreutils) 9.1\nGPL version 3"), None);
        assert_eq!(accelerators("Accelerators supported in QEMU binary:\ntcg\nkvm\n"), ["tcg", "kvm"]);
        assert_eq!(chosen("always [madvise] never\n").as_deref(), Some("madvise"));
        assert_eq!(chosen("never"), None);
    }

    #[test]
    fn packages_are_missing_by_their_proofs() {
        let list = "# why\ngcc  gcc  150 links\nrustc-web rust:/usr/bin/rustc 300 compiles\nx /y 1 z\n\n";
        assert_eq!(missing_of(list, false, |_| false), ["gcc", "rustc-web", "x"]);
        assert_eq!(missing_of(list, true, |p| p == "/y"), ["gcc"]);
        assert!(missing_of(list, false, |_| true).is_empty());
    }
}
