//! Source packages of Debian. Apt fetches them once into the cache, and a guest unpacks and builds them.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
};

use super::fetch;
use crate::{
    failure::{Doing, Failure, Result},
    places::Places,
    progress::Step,
    setup::apt::Apt,
};

/// The files of these source packages. Each package has a `.dsc` file with the names and checksums of its other files.
pub fn ensure(places: &Places, names: &[String], step: &Step) -> Result<Vec<PathBuf>> {
    let home = places.cache.join("debian/sources");
    let about = || format!("cannot write to {}", home.display());
    fs::create_dir_all(&home).doing(about)?;
    let _lock = places.lock("debian")?;
    fetch::needs_apt("--sources", "")?;
    let missing: Vec<&String> = names.iter().filter(|name| !home.join(name).exists()).collect();
    if !missing.is_empty() {
        step.doing("reading the list of sources");
        let apt = Apt::private(places, "debian/sources-apt", |mirror, suite, by| {
            format!("deb-src {by} {mirror} {suite} main\n")
        });
        let apt = apt.ok_or_else(|| Failure::usage("Debian's list of sources cannot be fetched"))?;
        for name in missing {
            step.doing(&format!("fetching {name}"));
            fetch_one(&apt, name, &home)?;
        }
    }
    let mut files = Vec::new();
    for name in names {
        for entry in fs::read_dir(home.join(name)).doing(about)? {
            files.push(entry.doing(about)?.path());
        }
    }
    files.sort_unstable();
    Ok(files)
}

/// Fetches one package into the directory of its name. The directory appears only when it is complete.
fn fetch_one(apt: &Apt, name: &str, home: &Path) -> Result<()> {
    let work = home.join(".work");
    let about = || format!("cannot write to {}", work.display());
    let _ = fs::remove_dir_all(&work);
    fs::create_dir_all(&work).doing(about)?;
    let mut command = apt.command("apt-get");
    command.args(["-qq", "--only-source", "--download-only", "-o", "APT::Sandbox::User=root", "source", name]);
    let out = command.current_dir(&work).stdin(Stdio::null()).output().doing(|| "cannot run apt-get".to_string())?;
    if !out.status.success() {
        let text = String::from_utf8_lossy(&out.stderr);
        return Err(Failure::usage(format_args!("--sources {name}: {}", text.trim())));
    }
    let place = home.join(name);
    fs::rename(&work, &place).doing(about)
}
