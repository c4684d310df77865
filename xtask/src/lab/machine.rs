//! The description of the measuring machine in `results.json`.

use std::{
    collections::BTreeMap,
    fs,
    hash::{Hash, Hasher},
    os::unix::ffi::OsStrExt,
    process::Command,
};

use quire_results::Machine;

use crate::{failure::Result, machine::accel, places::Places};

/// The numbers of CPUs that are measured: the powers of two from one on, and all CPUs.
pub fn cpus_to_try() -> Vec<u32> {
    let all = available();
    let mut cpus: Vec<u32> = (0..).map(|n| 1 << n).take_while(|n| *n <= all).collect();
    if cpus.last() != Some(&all) {
        cpus.push(all);
    }
    cpus
}

fn available() -> u32 {
    // A guest has at most 64 CPUs, so further CPUs are not used.
    std::thread::available_parallelism().map_or(1, |n| n.get() as u32).min(64)
}

/// The description of the host.
pub fn describe(places: &Places) -> Result<Machine> {
    let qemu = accel::find_qemu()?;
    let (accelerator, _) = accel::choose(places, &qemu)?;
    let says = |program: &str, args: &[&str]| {
        let out = Command::new(program).args(args).current_dir(&places.root).output().ok()?;
        String::from_utf8_lossy(&out.stdout).lines().next().map(str::to_owned)
    };
    let field = |file: &str, name: &str| {
        let text = fs::read_to_string(file).ok()?;
        let line = text.lines().find(|l| l.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let memory = field("/proc/meminfo", "MemTotal").and_then(|m| m.split(' ').next()?.parse::<u64>().ok());
    let uname = rustix::system::uname();
    let system = field_of("/etc/os-release", "PRETTY_NAME").unwrap_or_else(|| uname.sysname().to_string_lossy().into());
    let mut versions = BTreeMap::new();
    let mut add = |name: &str, value: Option<String>| {
        value.filter(|v| !v.is_empty()).map(|v| versions.insert(name.to_owned(), v));
    };
    add("Quire", version(places));
    add("Linux in guests", crate::setup::linux::release(places));
    add("rustc", says("rustc", &["--version"]));
    Ok(Machine {
        processor: field("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown".to_owned()),
        cpus: available(),
        memory_mib: memory.unwrap_or(0) / 1024,
        system: format!("{system}, {} {}", uname.sysname().to_string_lossy(), uname.release().to_string_lossy()),
        emulator: format!(
            "{} ({accelerator})",
            says(&qemu.to_string_lossy(), &["--version"]).unwrap_or_else(|| "QEMU".to_owned())
        ),
        versions,
    })
}

/// The directories on which the figures depend. `lab/runs` is excluded, because a run may add files there.
const MEASURED: [&str; 6] = ["crates", "lab", "plugin", "programs", "xtask", ":(exclude)lab/runs"];

/// The commit. If files were changed or added since the commit, a hash of them follows.
fn version(places: &Places) -> Option<String> {
    let git = |args: &[&str]| {
        let out = Command::new("git").args(args).current_dir(&places.root).output().ok()?;
        out.status.success().then_some(out.stdout)
    };
    let commit = git(&["describe", "--always", "--dirty", "--abbrev=12"])?;
    let commit = String::from_utf8_lossy(&commit).trim().to_owned();
    let unknown = git(&[&["ls-files", "-z", "--others", "--exclude-standard", "--"][..], &MEASURED].concat())?;
    let changed = commit.ends_with("-dirty");
    if !changed && unknown.is_empty() {
        return Some(commit);
    }
    let mut hasher = std::hash::DefaultHasher::new();
    git(&["diff", "HEAD"])?.hash(&mut hasher);
    for name in unknown.split(|b| *b == 0).filter(|name| !name.is_empty()) {
        let path = places.root.join(std::ffi::OsStr::from_bytes(name));
        (name, fs::read(path).ok()).hash(&mut hasher);
    }
    let dirty = if changed { "" } else { "-dirty" };
    Some(format!("{commit}{dirty}-{:08x}", hasher.finish() as u32))
}

/// The value of `NAME` in a file of lines `NAME="value"`.
fn field_of(file: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix('='))?;
    Some(line.trim_matches('"').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_are_the_powers_of_two_and_all() {
        let cpus = cpus_to_try();
        assert_eq!(cpus[0], 1);
        assert_eq!(cpus.last(), Some(&available()));
        assert!(cpus.windows(2).all(|w| w[0] < w[1]));
    }

    #[test]
    fn a_new_file_changes_the_version_of_a_tree_and_results_do_not() {
        let home = tempfile::tempdir().unwrap();
        let root = home.path().to_owned();
        let git = |args: &[&str]| {
            let who = ["-c", "user.name=x", "-c", "user.email=x@localhost", "-c", "commit.gpgsign=false"];
            let done = Command::new("git").args(who).args(args).current_dir(&root).output().unwrap();
            assert!(done.status.success(), "{args:?}: {}", String::from_utf8_lossy(&done.stderr));
        };
        let write = |name: &str, text: &str| {
            let path = root.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let places = Places { root: root.clone(), cache: root.join(".cache"), target: root.join("target") };
        let version = || version(&places).unwrap();
        git(&["init", "-q"]);
        write("crates/a.rs", "one");
        git(&["add", "."]);
        git(&["commit", "-q", "-m", "x"]);
        let clean = version();
        assert!(!clean.contains("dirty"), "{clean}");
        write("big/results.json", "{}");
        write("lab/runs/today.json", "{}");
        assert_eq!(version(), clean);
        write("programs/new.c", "first");
        let first = version();
        write("programs/new.c", "second");
        let second = version();
        write("crates/a.rs", "two");
        let all = [clean.clone(), first, second, version()];
        assert!(all[1..].iter().all(|v| v.starts_with(&format!("{clean}-dirty-"))), "{all:?}");
        let different: std::collections::BTreeSet<&String> = all.iter().collect();
        assert_eq!(different.len(), 4, "{all:?}");
    }
}
