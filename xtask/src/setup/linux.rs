//! Debian's Linux kernel, to compare with: fetched through apt, unpacked into the cache, never installed.

use std::{
    fs,
    path::{Path, PathBuf},
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
    /// The bzImage.
    pub kernel: PathBuf,
    /// Its release, for instance `6.12.117+deb12-cloud-amd64`.
    pub release: String,
}

/// In the order of preference: the backported 6.12, whatever the newest of the suite is.
const PACKAGES: [&str; 2] = ["linux-image-6.12-cloud-amd64", "linux-image-cloud-amd64"];

/// The release of the kernel that [`ensure`] gives, where it is there already.
pub fn release(places: &Places) -> Option<String> {
    match std::env::var("QUIRE_LINUX") {
        Ok(given) => Some(given),
        Err(_) => kept(&places.cache.join("linux")).map(|linux| linux.release),
    }
}

/// The kernel in the cache, fetched first where there is none. `$QUIRE_LINUX` names one that is there already.
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
            "Debian's Linux is fetched with apt, which is not here; name a bzImage in $QUIRE_LINUX",
        ));
    }
    let step = Step::new("fetching Debian's Linux kernel (once, 35 MB)");
    let work = places.cache.join("linux-fetch");
    let mut why = Failure::usage("apt knows no Linux kernel for the cloud; run apt-get update, or set $QUIRE_LINUX");
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

/// What an earlier call left.
fn kept(home: &Path) -> Option<Linux> {
    let release = fs::read_to_string(home.join("release")).ok()?;
    let kernel = home.join("vmlinuz");
    kernel.exists().then(|| Linux { kernel, release: release.trim().to_owned() })
}

/// Fetches and unpacks; `Err(None)` if apt does not know the package.
fn fetch(apt: &Apt, package: &str, work: &Path, home: &Path) -> Result<(), Option<Failure>> {
    let Some(real) = resolve(apt, package) else { return Err(None) };
    apt.unpack(&[&real], work, &work.join("root")).map_err(Some)?;
    keep(&work.join("root/boot"), home).map_err(|e| Some(Failure::usage(format_args!("keeping the kernel: {e}"))))
}

/// Moves the one kernel of an unpacked `boot` to where [`kept`] finds it.
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

/// The package that a meta package stands for today.
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
