//! Fetches the packages of a root file system. Apt chooses and fetches them, and each is unpacked once into the cache.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
    time::Duration,
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

/// The packages of a request: the name of each file without its ending, and its size in bytes.
type Chosen = Vec<(String, u64)>;

/// Returns the packages with these names, and their dependencies. Chooses and fetches them first if needed. A choice is
/// kept for as long as apt's lists are the same.
pub fn ensure(places: &Places, names: &[String], step: &Step) -> Result<Vec<Package>> {
    let home = places.cache.join("debian");
    let about = || format!("cannot write to {}", home.display());
    let chosen = home.join("chosen").join(key(names));
    let package = |file: &str| Package {
        files: home.join("packages").join(format!("{file}.tar")),
        control: home.join("packages").join(format!("{file}.control")),
    };
    let is_missing = |file: &str| !package(file).files.exists() || !package(file).control.exists();
    let kept = || fs::read_to_string(&chosen).ok().and_then(|text| parse_chosen(&text));
    // A request whose packages are all there does not wait for another command, which may be fetching.
    if let Some(files) = kept().filter(|files| !files.iter().any(|(file, _)| is_missing(file))) {
        return Ok(files.iter().map(|(file, _)| package(file)).collect());
    }
    for directory in ["apt/archives/partial", "chosen", "packages"] {
        fs::create_dir_all(home.join(directory)).doing(about)?;
    }
    let _lock = places.lock("debian")?;
    needs_apt("--packages", "; use --root with an archive of a root")?;
    let files = match kept() {
        Some(files) => files,
        None => {
            step.doing("choosing");
            let files = choose(&apt(places, &home)?, &home, names)?;
            let text: String = files.iter().map(|(file, size)| format!("{file} {size}\n")).collect();
            // An interrupted write must not leave a part of the list.
            let part = chosen.with_extension("part");
            fs::write(&part, text).and_then(|()| fs::rename(&part, &chosen)).doing(about)?;
            files
        }
    };
    let missing: Chosen = files.iter().filter(|(file, _)| is_missing(file)).cloned().collect();
    if !missing.is_empty() {
        let work = home.join("work");
        let _ = fs::remove_dir_all(&work);
        fs::create_dir_all(&work).doing(about)?;
        if let Err(e) = download(&apt(places, &home)?, &work, &missing, step) {
            // The lists may be newer than the kept choice, so the choice is made again next time.
            let _ = fs::remove_file(&chosen);
            return Err(e);
        }
        unpack(&work, &missing, package, step)?;
        let _ = fs::remove_dir_all(&work);
    }
    Ok(files.iter().map(|(file, _)| package(file)).collect())
}

/// Reads a kept choice. `None` if it has another format.
fn parse_chosen(text: &str) -> Option<Chosen> {
    let one = |line: &str| line.split_once(' ').and_then(|(file, size)| Some((file.to_owned(), size.parse().ok()?)));
    text.lines().map(one).collect::<Option<Chosen>>().filter(|files| !files.is_empty())
}

/// The progress of a step over many files: `3 of 160, 12 of 300 MB`.
fn progress(what: &str, done: usize, bytes: u64, all: &Chosen) -> String {
    let megabytes = |bytes: u64| bytes.div_ceil(1_000_000);
    let total = all.iter().map(|(_, size)| size).sum();
    format!("{what} {done} of {}, {} of {} MB", all.len(), megabytes(bytes), megabytes(total))
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

/// The packages in the order in which apt would install them.
fn choose(apt: &Apt, home: &Path, names: &[String]) -> Result<Chosen> {
    let mut command = apt.command("apt-get");
    command.args(["-q", "-y", "--no-install-recommends", "--print-uris", "install"]).args(ALWAYS).args(names);
    let out = command.stdin(Stdio::null()).output().doing(|| "cannot run apt-get".to_string())?;
    let text = String::from_utf8_lossy(&out.stdout);
    if !out.status.success() {
        let why = refusal(&text, &String::from_utf8_lossy(&out.stderr));
        return Err(Failure::usage(format_args!("--packages {}: {why}", names.join(","))));
    }
    let files = addresses(&text);
    if files.is_empty() {
        return Err(Failure::usage(format_args!(
            "apt chose nothing for {}; its cache is {}",
            names.join(","),
            home.display()
        )));
    }
    Ok(files)
}

/// The packages in the lines of `--print-uris`: `'ADDRESS' FILE SIZE CHECKSUM`.
fn addresses(text: &str) -> Chosen {
    let one = |line: &str| {
        let mut words = line.strip_prefix('\'')?.split(' ').skip(1);
        Some((words.next()?.strip_suffix(".deb")?.to_owned(), words.next()?.parse().ok()?))
    };
    text.lines().filter_map(one).collect()
}

/// The reason why apt refuses: its errors, and the lines that explain a conflict or a virtual package.
fn refusal(text: &str, errors: &str) -> String {
    let why: Vec<&str> = errors.lines().filter_map(|l| l.strip_prefix("E: ")).collect();
    let mut why = if why.is_empty() { errors.trim().to_owned() } else { why.join("; ") };
    let begins = |line: &&str| line.contains("is a virtual package") || line.contains("have unmet dependencies");
    let mut explained = false;
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        if begins(&line) {
            explained = true;
            why.push_str(&format!("\n  {line}"));
            while let Some(detail) = lines.next_if(|line| line.starts_with(' ')) {
                why.push_str(&format!("\n  {}", detail.trim_end()));
            }
        }
    }
    if !explained {
        why.push_str(" (perhaps run apt-get update)");
    }
    why
}

/// Fetches these packages into `work`.
fn download(apt: &Apt, work: &Path, files: &Chosen, step: &Step) -> Result<()> {
    let exact = files.iter().filter_map(|(file, _)| {
        let mut parts = file.split('_');
        let (name, version, architecture) = (parts.next()?, parts.next()?, parts.next()?);
        let architecture = if architecture == "all" { "amd64" } else { architecture };
        Some(format!("{name}:{architecture}={}", version.replace("%3a", ":")))
    });
    let log = work.join("log");
    let errors = fs::File::create(&log).doing(|| format!("cannot write {}", log.display()))?;
    let mut child = apt
        .command("apt-get")
        .args(["-q", "download"])
        .args(exact)
        .current_dir(work)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(errors)
        .spawn()
        .doing(|| "cannot run apt-get".to_string())?;
    let status = loop {
        let (count, bytes) = fetched(work);
        step.doing(&progress("fetching", count, bytes, files));
        match child.try_wait().doing(|| "cannot wait for apt-get".to_string())? {
            Some(status) => break status,
            None => std::thread::sleep(LOOK),
        }
    };
    match status.success() {
        true => Ok(()),
        false => {
            let said = fs::read_to_string(&log).unwrap_or_default();
            let why = said.lines().find_map(|l| l.strip_prefix("E: ")).unwrap_or("apt-get failed");
            let log = log.display();
            Err(Failure::usage(format_args!("fetching packages: {why}; see {log}; perhaps run apt-get update first")))
        }
    }
}

/// The time between two looks at the progress of apt.
const LOOK: Duration = Duration::from_millis(100);

/// The number of packages in a directory, and the size of all files, of which one may be incomplete.
fn fetched(work: &Path) -> (usize, u64) {
    let files = fs::read_dir(work).into_iter().flatten().flatten();
    files.fold((0, 0), |(count, bytes), file| {
        let whole = file.path().extension().is_some_and(|e| e == "deb");
        (count + usize::from(whole), bytes + file.metadata().map_or(0, |m| if m.is_file() { m.len() } else { 0 }))
    })
}

/// Makes the two archives of each package, on several threads.
fn unpack(work: &Path, files: &Chosen, package: impl Fn(&str) -> Package + Sync, step: &Step) -> Result<()> {
    let (next, done, bytes) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicU64::new(0));
    step.doing(&progress("unpacking", 0, 0, files));
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
        while let Some((file, size)) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
            one(file)?;
            let bytes = bytes.fetch_add(*size, Ordering::Relaxed) + size;
            step.doing(&progress("unpacking", done.fetch_add(1, Ordering::Relaxed) + 1, bytes, files));
        }
        Ok(())
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(8);
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..threads).map(|_| scope.spawn(work_off)).collect();
        all.into_iter().try_for_each(|t| t.join().unwrap_or_else(|_| Err(Failure::usage("unpacking failed"))))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_is_kept_with_its_sizes() {
        let uris = "Reading package lists...\nThe following NEW packages will be installed:\n  a b\n\
                    'http://h/a_1%3a2-1_amd64.deb' a_1%3a2-1_amd64.deb 1200000 MD5Sum:x\n\
                    'http://h/b' b_1_all.deb 5 SHA256:y\n\
                    'http://h/c' c_1_all.deb many\n";
        let chosen = addresses(uris);
        assert_eq!(chosen, [("a_1%3a2-1_amd64".to_owned(), 1_200_000), ("b_1_all".to_owned(), 5)]);
        let kept: String = chosen.iter().map(|(file, size)| format!("{file} {size}\n")).collect();
        assert_eq!(parse_chosen(&kept), Some(chosen.clone()));
        assert_eq!((parse_chosen(""), parse_chosen("a_1_all\n")), (None, None));
        assert_eq!(progress("fetching", 1, 5, &chosen), "fetching 1 of 2, 1 of 2 MB");
    }

    #[test]
    fn apts_own_lines_explain_a_refusal() {
        let noise = "Reading package lists...\nBuilding dependency tree...\n";
        let virtual_package = format!(
            "{noise}Package mail-transport-agent is a virtual package provided by:\n  \
             postfix 3.7.11\n  dma 0.13-1+b1\n\n"
        );
        let why = refusal(&virtual_package, "E: Package 'mail-transport-agent' has no installation candidate\n");
        assert_eq!(
            why,
            "Package 'mail-transport-agent' has no installation candidate\n  Package mail-transport-agent is a virtual \
             package provided by:\n    postfix 3.7.11\n    dma 0.13-1+b1"
        );
        let conflict = format!(
            "{noise}Some packages could not be installed. This may mean\n\nThe following packages have unmet \
             dependencies:\n exim4-config : Conflicts: postfix but 3.7.11 is to be installed\n"
        );
        let why = refusal(&conflict, "E: Unable to correct problems, you have held broken packages.\n");
        assert!(
            why.ends_with("dependencies:\n   exim4-config : Conflicts: postfix but 3.7.11 is to be installed"),
            "{why}"
        );
        let why = refusal(noise, "E: Unable to locate package x\nE: Version '9' for 'y' was not found\n");
        let both = "Unable to locate package x; Version '9' for 'y' was not found (perhaps run apt-get update)";
        assert_eq!(why, both);
        assert_eq!(refusal("", "broken\n"), "broken (perhaps run apt-get update)");
    }
}
