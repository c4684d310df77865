//! Fetches the packages of a root file system. Apt chooses and fetches them, and each is unpacked once into the cache.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::atomic::{AtomicUsize, Ordering},
};

use sha2::{Digest as _, Sha256};

use crate::{
    failure::{Doing, Failure, Result},
    places::Places,
    progress::Step,
    setup::apt::Apt,
};

/// The directory in which the host's apt has its lists of packages.
const LISTS: &str = "/var/lib/apt/lists";
/// Packages that are always chosen: all essential packages except apt, and a package which marks `/bin` as a link.
const ALWAYS: [&str; 2] = ["?essential?not(?name(^apt$))", "usr-is-merged"];

/// A package in the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Package {
    /// The path of a tar archive of its files.
    pub files: PathBuf,
    /// The path of a tar archive of its description and its scripts.
    pub control: PathBuf,
}

/// Returns the packages with these names, and their dependencies. Fetches them first if needed.
pub fn ensure(places: &Places, names: &[String], step: &Step) -> Result<Vec<Package>> {
    let home = places.cache.join("debian");
    let about = || format!("cannot write to {}", home.display());
    for directory in ["apt/archives/partial", "chosen", "packages"] {
        fs::create_dir_all(home.join(directory)).doing(about)?;
    }
    let _lock = places.lock("debian")?;
    needs_apt("--packages", "; use --root with an archive of a root")?;
    let chosen = home.join("chosen").join(key(names));
    let files = match fs::read_to_string(&chosen) {
        Ok(text) => text,
        Err(_) => {
            step.doing("choosing");
            let text = choose(&apt(places, &home)?, &home, names)?;
            fs::write(&chosen, &text).doing(about)?;
            text
        }
    };
    let package = |file: &str| Package {
        files: home.join("packages").join(format!("{file}.tar")),
        control: home.join("packages").join(format!("{file}.control")),
    };
    let missing: Vec<&str> =
        files.lines().filter(|f| !package(f).files.exists() || !package(f).control.exists()).collect();
    if !missing.is_empty() {
        let work = home.join("work");
        let _ = fs::remove_dir_all(&work);
        fs::create_dir_all(&work).doing(about)?;
        step.doing(&format!("fetching {}", missing.len()));
        if let Err(e) = download(&apt(places, &home)?, &work, &missing) {
            // The lists may be newer than the kept choice, so the choice is made again next time.
            let _ = fs::remove_file(&chosen);
            return Err(e);
        }
        step.doing(&format!("unpacking {}", missing.len()));
        unpack(&work, &missing, package)?;
        let _ = fs::remove_dir_all(&work);
    }
    Ok(files.lines().map(package).collect())
}

/// Returns an error for `option` if the host has no apt and dpkg.
pub(super) fn needs_apt(option: &str, instead: &str) -> Result<()> {
    if Path::new("/usr/bin/apt-get").exists() && Path::new("/usr/bin/dpkg-deb").exists() {
        return Ok(());
    }
    Err(Failure::usage(format_args!("{option} needs apt and dpkg, which this machine lacks{instead}")))
}

/// The key of a choice of packages. It depends on `names` and on the state of apt's lists.
fn key(names: &[String]) -> String {
    let mut hash = Sha256::new();
    for name in names.iter().map(String::as_str).chain(ALWAYS) {
        hash.update(name);
        hash.update([0]);
    }
    let lists: BTreeSet<_> = packages_lists().into_iter().map(|(p, time)| (p.into_os_string(), time)).collect();
    hash.update(format!("{lists:?}"));
    hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

/// The files with apt's lists of packages, and their times.
fn packages_lists() -> Vec<(PathBuf, i64)> {
    let files = fs::read_dir(LISTS).into_iter().flatten().flatten();
    files
        .filter(|f| f.file_name().to_string_lossy().contains("_Packages"))
        .filter_map(|f| Some((f.path(), f.metadata().ok()?.mtime())))
        .collect()
}

/// The host's apt. If the host has no lists, an apt with private lists. Both act as if no package were installed.
fn apt(places: &Places, home: &Path) -> Result<Apt> {
    let apt = if packages_lists().is_empty() {
        Apt::private(places, "debian/apt", |mirror, suite, by| format!("deb {by} {mirror} {suite} main\n"))
            .ok_or_else(|| Failure::usage("Debian's list of packages cannot be fetched; run apt-get update"))?
    } else {
        Apt::own()
    };
    let status = home.join("apt/status");
    fs::write(&status, "").doing(|| format!("cannot write {}", status.display()))?;
    Ok(apt.with([
        format!("Dir::State::status={}", status.display()),
        format!("Dir::Cache={}", home.join("apt").display()),
        "Debug::NoLocking=1".to_owned(),
        "APT::Sandbox::User=root".to_owned(),
        "APT::Architecture=amd64".to_owned(),
    ]))
}

/// The names of the packages' files, one for each line, in the order in which apt would install them.
fn choose(apt: &Apt, home: &Path, names: &[String]) -> Result<String> {
    let mut command = apt.command("apt-get");
    command.args(["-qq", "-y", "--no-install-recommends", "--print-uris", "install"]).args(ALWAYS).args(names);
    let out = command.stdin(Stdio::null()).output().doing(|| "cannot run apt-get".to_string())?;
    if !out.status.success() {
        let text = String::from_utf8_lossy(&out.stderr);
        let why: Vec<&str> = text.lines().filter_map(|l| l.strip_prefix("E: ")).collect();
        let why = if why.is_empty() { text.trim() } else { &why.join("; ") };
        return Err(Failure::usage(format_args!("--packages {}: {why} (perhaps run apt-get update)", names.join(","))));
    }
    let text = String::from_utf8_lossy(&out.stdout);
    let files: Vec<&str> = text.lines().filter_map(|l| l.split(' ').nth(1)).filter(|f| f.ends_with(".deb")).collect();
    if files.is_empty() {
        return Err(Failure::usage(format_args!(
            "apt chose nothing for {}; its cache is {}",
            names.join(","),
            home.display()
        )));
    }
    Ok(files.iter().map(|f| format!("{}\n", f.trim_end_matches(".deb"))).collect())
}

/// Fetches these files of packages into `work`.
fn download(apt: &Apt, work: &Path, files: &[&str]) -> Result<()> {
    let exact = files.iter().filter_map(|file| {
        let mut parts = file.split('_');
        let (name, version, architecture) = (parts.next()?, parts.next()?, parts.next()?);
        let architecture = if architecture == "all" { "amd64" } else { architecture };
        Some(format!("{name}:{architecture}={}", version.replace("%3a", ":")))
    });
    let log = work.join("log");
    let errors = fs::File::create(&log).doing(|| format!("cannot write {}", log.display()))?;
    let status = apt
        .command("apt-get")
        .args(["-q", "download"])
        .args(exact)
        .current_dir(work)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(errors)
        .status();
    match status.is_ok_and(|s| s.success()) {
        true => Ok(()),
        false => Err(Failure::usage(format_args!(
            "fetching packages failed; see {}; perhaps run apt-get update first",
            log.display()
        ))),
    }
}

/// Makes the two archives of each package, on several threads.
fn unpack(work: &Path, files: &[&str], package: impl Fn(&str) -> Package + Sync) -> Result<()> {
    let next = AtomicUsize::new(0);
    let one = |file: &str| -> Result<()> {
        let Package { files, control } = package(file);
        // The archive of the files is made last, so that its existence shows that a package is complete.
        for (option, to) in [("--ctrl-tarfile", control), ("--fsys-tarfile", files)] {
            let about = || format!("cannot unpack {file}");
            let part = to.with_extension("part");
            let out = fs::File::create(&part).doing(about)?;
            let mut command = Command::new("dpkg-deb");
            command.arg(option).arg(work.join(format!("{file}.deb"))).stdin(Stdio::null()).stdout(out);
            if !command.status().is_ok_and(|s| s.success()) {
                return Err(Failure::usage(format_args!("dpkg-deb cannot unpack {file}")));
            }
            fs::rename(&part, &to).doing(about)?;
        }
        Ok(())
    };
    let work_off = || -> Result<()> {
        while let Some(file) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
            one(file)?;
        }
        Ok(())
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(8);
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..threads).map(|_| scope.spawn(work_off)).collect();
        all.into_iter().try_for_each(|t| t.join().unwrap_or_else(|_| Err(Failure::usage("unpacking failed"))))
    })
}
