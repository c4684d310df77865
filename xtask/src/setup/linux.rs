//! Debian's Linux kernel, to compare with Quire. It is fetched through apt and unpacked into the cache, never
//! installed.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use super::apt::Apt;
use crate::{
    failure::{Doing, Failure, Result},
    places::Places,
    progress::Step,
};

/// A Linux kernel that can be booted.
#[derive(Debug, Clone)]
pub struct Linux {
    /// The path of the bzImage.
    pub kernel: PathBuf,
    /// The kernel's release, for instance `6.12.117+deb12-cloud-amd64`.
    pub release: String,
}

/// A Linux with drivers for all machines, and the modules that make it a host for KVM.
#[derive(Debug, Clone)]
pub struct Host {
    /// The kernel.
    pub linux: Linux,
    /// The modules that the kernel loads first, in this order.
    pub modules: Vec<PathBuf>,
}

/// The package of Debian's general kernel, which has KVM, unlike the kernel for clouds.
const HOST_PACKAGE: &str = "linux-image-amd64";

/// The modules that a host needs, each after the modules on which it depends: drivers for the virtio ports, and KVM for
/// AMD processors. The emulator offers no other virtualisation extension.
const HOST_MODULES: [&str; 10] = [
    "virtio_ring",
    "virtio",
    "virtio_pci_legacy_dev",
    "virtio_pci_modern_dev",
    "virtio_pci",
    "virtio_console",
    "irqbypass",
    "ccp",
    "kvm",
    "kvm-amd",
];

/// The packages in the order of preference: the backported 6.12, then the newest of the suite.
const PACKAGES: [&str; 2] = ["linux-image-6.12-cloud-amd64", "linux-image-cloud-amd64"];

/// The release of the kernel that [`ensure`] returns, if that is in the cache already.
pub fn release(places: &Places) -> Option<String> {
    match std::env::var("QUIRE_LINUX") {
        Ok(given) => Some(given),
        Err(_) => kept(&places.cache.join("linux")).map(|linux| linux.release),
    }
}

/// Returns the kernel in the cache, and fetches it first if there is none. `$QUIRE_LINUX` names another kernel.
pub fn ensure(places: &Places) -> Result<Linux> {
    if let Some(given) = std::env::var_os("QUIRE_LINUX").map(PathBuf::from) {
        fs::metadata(&given).doing(|| format!("QUIRE_LINUX={}", given.display()))?;
        return Ok(Linux { release: given.display().to_string(), kernel: given });
    }
    let home = places.cache.join("linux");
    if let Some(found) = kept(&home) {
        return Ok(found);
    }
    let _lock = places.lock("linux")?;
    if let Some(found) = kept(&home) {
        return Ok(found);
    }
    if !Path::new("/usr/bin/apt-get").exists() {
        return Err(Failure::usage(
            "Debian's Linux is fetched with apt, which this machine lacks; name a bzImage in $QUIRE_LINUX",
        ));
    }
    let step = Step::new("fetching Debian's Linux kernel (once, 35 MB)");
    let work = places.cache.join("linux-fetch");
    let mut why = Failure::usage("apt lists no Linux kernel for the cloud; run apt-get update, or set $QUIRE_LINUX");
    let sources = [Some(Apt::own()), Apt::with_backports(places, "apt")];
    for package in PACKAGES {
        for apt in sources.iter().flatten() {
            step.doing(package);
            match fetch(apt, package, &work, &home) {
                Ok(()) => {
                    let _ = fs::remove_dir_all(&work);
                    return kept(&home).ok_or_else(|| Failure::usage("the fetched package holds no kernel"));
                }
                Err(Some(failure)) => why = failure,
                Err(None) => {}
            }
        }
    }
    Err(why)
}

/// Returns the Linux in the cache that can be a host for KVM, and fetches it first if there is none.
pub fn host(places: &Places) -> Result<Host> {
    let home = places.cache.join("linux-host");
    if let Some(found) = kept_host(&home) {
        return Ok(found);
    }
    let _lock = places.lock("linux-host")?;
    if let Some(found) = kept_host(&home) {
        return Ok(found);
    }
    let _step = Step::new("fetching Debian's Linux kernel for all machines (once, 70 MB)");
    let apt = Apt::own();
    let real = resolve(&apt, HOST_PACKAGE)
        .ok_or_else(|| Failure::usage(format_args!("apt lists no package {HOST_PACKAGE}; run apt-get update")))?;
    let work = places.cache.join("linux-host-fetch");
    let root = work.join("root");
    apt.unpack(&[&real], &work, &root)?;
    let about = || format!("keeping {real}");
    let fresh = work.join("kept");
    fs::create_dir_all(fresh.join("modules")).doing(about)?;
    let found = modules_below(&root).doing(about)?;
    for (number, name) in HOST_MODULES.iter().enumerate() {
        let Some(from) = found.get(*name) else {
            return Err(Failure::usage(format_args!("{real} has no module {name}")));
        };
        let to = fresh.join("modules").join(module_file(number, name));
        if from.extension().is_some_and(|e| e == "xz") {
            let out = fs::File::create(&to).doing(about)?;
            let status = Command::new("xz").args(["-dc"]).arg(from).stdin(Stdio::null()).stdout(out).status();
            if !status.doing(about)?.success() {
                return Err(Failure::usage(format_args!("{name} of {real} cannot be unpacked")));
            }
        } else {
            fs::copy(from, to).doing(about)?;
        }
    }
    keep(&root.join("boot"), &fresh).doing(about)?;
    let _ = fs::remove_dir_all(&home);
    fs::rename(&fresh, &home).doing(about)?;
    let _ = fs::remove_dir_all(&work);
    kept_host(&home).ok_or_else(|| Failure::usage(format_args!("{real} holds no kernel")))
}

/// The file name of a kept module. The order of the names is the order in which the modules are loaded.
fn module_file(number: usize, name: &str) -> String {
    format!("{number:02}-{name}.ko")
}

/// The host that an earlier call of [`host`] has put into the cache, if it is complete.
fn kept_host(home: &Path) -> Option<Host> {
    let linux = kept(home)?;
    let modules: Vec<PathBuf> =
        (0..).zip(HOST_MODULES).map(|(number, name)| home.join("modules").join(module_file(number, name))).collect();
    modules.iter().all(|m| m.exists()).then_some(Host { linux, modules })
}

/// All modules in a tree of files, by name.
fn modules_below(root: &Path) -> std::io::Result<BTreeMap<String, PathBuf>> {
    let mut found = BTreeMap::new();
    let mut left = vec![root.join("lib/modules"), root.join("usr/lib/modules")];
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(&directory).into_iter().flatten() {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if entry.file_type()?.is_dir() {
                left.push(entry.path());
            } else if let Some(name) = name.strip_suffix(".ko").or_else(|| name.strip_suffix(".ko.xz")) {
                found.insert(name.to_owned(), entry.path());
            }
        }
    }
    Ok(found)
}

/// The kernel that an earlier call has put into the cache, if there is one.
fn kept(home: &Path) -> Option<Linux> {
    let release = fs::read_to_string(home.join("release")).ok()?;
    let kernel = home.join("vmlinuz");
    kernel.exists().then(|| Linux { kernel, release: release.trim().to_owned() })
}

/// Fetches a package and unpacks it. Returns `Err(None)` if apt does not know the package.
fn fetch(apt: &Apt, package: &str, work: &Path, home: &Path) -> Result<(), Option<Failure>> {
    let Some(real) = resolve(apt, package) else { return Err(None) };
    apt.unpack(&[&real], work, &work.join("root")).map_err(Some)?;
    keep(&work.join("root/boot"), home).map_err(|e| Some(Failure::usage(format_args!("keeping the kernel: {e}"))))
}

/// Copies the kernel of an unpacked directory `boot` to the place where [`kept`] finds it.
fn keep(boot: &Path, home: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(boot)? {
        let entry = entry?;
        if let Some(release) = entry.file_name().to_string_lossy().strip_prefix("vmlinuz-") {
            fs::create_dir_all(home)?;
            fs::copy(entry.path(), home.join("vmlinuz"))?;
            return fs::write(home.join("release"), release);
        }
    }
    Err(std::io::Error::other("no vmlinuz in the package"))
}

/// The package that a meta package depends on at present.
fn resolve(apt: &Apt, meta: &str) -> Option<String> {
    let out = apt.command("apt-cache").args(["depends", "--important", meta]).output().ok()?;
    depends_on(&String::from_utf8_lossy(&out.stdout))
}

/// The first kernel image among the dependencies that `apt-cache depends` prints.
fn depends_on(text: &str) -> Option<String> {
    text.lines()
        .filter_map(|l| l.trim().strip_prefix("Depends: "))
        .find(|p| p.starts_with("linux-image-") && !p.contains('<'))
        .map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_meta_package_is_followed_to_its_image() {
        let text = "linux-image-cloud-amd64\n  Depends: linux-image-6.1.0-9-cloud-amd64\n";
        assert_eq!(depends_on(text).as_deref(), Some("linux-image-6.1.0-9-cloud-amd64"));
        assert_eq!(depends_on("linux-image-x\n  Depends: <linux-image-y>\n"), None);
    }
}
