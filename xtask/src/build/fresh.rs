//! Whether a built kernel is fresh, found without cargo.
//!
//! Cargo holds a lock on its directory for as long as it builds, and a second cargo waits for that lock before it looks
//! whether it has anything to do. So a run of a fresh kernel could wait for minutes. This module looks first. After a
//! build it keeps a digest of everything that the build read. That is the files that cargo lists, the manifests, and
//! the settings. A kernel with an equal digest needs no cargo.

use std::{
    collections::BTreeSet,
    fs::{self, Metadata},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use sha2::{Digest as _, Sha256};

/// Files of the repository's root that change a build, if they exist.
const SETTINGS: [&str; 5] = ["Cargo.toml", "Cargo.lock", ".cargo/config.toml", "rust-toolchain.toml", "rust-toolchain"];
/// The beginnings of the names of variables that change a build.
const VARIABLES: [&str; 6] =
    ["RUST", "CARGO_PROFILE_", "CARGO_BUILD_", "CARGO_ENCODED_", "CARGO_TARGET_", "CARGO_INCREMENTAL"];
/// The time by which a file's time may lag behind the clock, because the file system reads a coarser clock.
const LAG: Duration = Duration::from_millis(50);

/// One variant of the kernel.
pub struct Variant<'a> {
    /// The repository's root.
    pub root: &'a Path,
    /// The ELF file.
    pub kernel: &'a Path,
    /// The compiler and cargo's arguments.
    pub how: String,
}

impl Variant<'_> {
    /// Whether the kernel and everything that it was built from are as they were after the last build.
    pub fn is_fresh(&self) -> bool {
        fs::read_to_string(self.stamp()).is_ok_and(|kept| self.digest().is_some_and(|(now, _)| now == kept))
    }

    /// Keeps the digest after a successful build that began at `start`. A file that has changed since then may not be
    /// in the kernel. In that case nothing is kept.
    pub fn keep(&self, start: SystemTime) {
        // A stamp that cannot be written makes only the next start slower, so errors do no harm.
        let _ = match self.digest() {
            Some((digest, newest)) if newest + LAG < start => {
                let fresh = self.stamp().with_extension(format!("fresh-{}", std::process::id()));
                fs::write(&fresh, digest).and_then(|()| fs::rename(&fresh, self.stamp()))
            }
            _ => fs::remove_file(self.stamp()),
        };
    }

    fn stamp(&self) -> PathBuf {
        self.kernel.with_extension("fresh")
    }

    /// The digest, and the newest time of a source. `None` if a file is missing, or if there was no build.
    fn digest(&self) -> Option<(String, SystemTime)> {
        let list = self.kernel.with_extension("d");
        let inputs = inputs(&fs::read_to_string(&list).ok()?);
        let mut newest = SystemTime::UNIX_EPOCH;
        let mut hash = Sha256::new();
        let mut add = |text: String| {
            hash.update(text.len().to_le_bytes());
            hash.update(text);
        };
        add(format!("{} {}", self.root.display(), self.how));
        for (name, value) in std::env::vars_os() {
            if VARIABLES.iter().any(|v| name.to_string_lossy().starts_with(v)) {
                add(format!("{name:?}={value:?}"));
            }
        }
        for made in [self.kernel, &list] {
            add(shown(made, &fs::metadata(made).ok()?));
        }
        let mut manifests = BTreeSet::new();
        for input in &inputs {
            let meta = fs::metadata(input).ok()?;
            newest = newest.max(meta.modified().ok()?);
            add(shown(input, &meta));
            let inside = input.ancestors().skip(1).take_while(|up| *up != self.root && up.starts_with(self.root));
            manifests.extend(inside.flat_map(|up| [up.join("Cargo.toml"), up.join("build.rs")]));
        }
        manifests.extend(SETTINGS.map(|name| self.root.join(name)));
        manifests.extend(std::env::var_os("CARGO_HOME").map(|home| Path::new(&home).join("config.toml")));
        for file in manifests {
            // A file that appears or goes changes the digest as well.
            match fs::metadata(&file) {
                Ok(meta) => {
                    newest = newest.max(meta.modified().ok()?);
                    add(shown(&file, &meta));
                }
                Err(_) => add(format!("no {}", file.display())),
            }
        }
        Some((hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect(), newest))
    }
}

fn shown(path: &Path, meta: &Metadata) -> String {
    format!("{} {} {}.{:09}", path.display(), meta.len(), meta.mtime(), meta.mtime_nsec())
}

/// The files on the right side of a rule of make, as cargo writes it beside each program. A space in a name has a
/// backslash before it.
fn inputs(rule: &str) -> BTreeSet<PathBuf> {
    let mut all = BTreeSet::new();
    for line in rule.lines() {
        let Some((_, right)) = line.split_once(": ") else { continue };
        let mut name = String::new();
        let mut letters = right.chars();
        while let Some(letter) = letters.next() {
            match letter {
                '\\' => name.extend(letters.next()),
                ' ' => drop(all.insert(PathBuf::from(std::mem::take(&mut name)))),
                letter => name.push(letter),
            }
        }
        all.insert(name.into());
    }
    all.remove(Path::new(""));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rules_files_are_read_with_their_spaces() {
        let rule = "/t/kernel: /r/a.rs /r/with\\ space/b.rs\n/t/other: /r/c.rs\n\nno rule\n";
        assert_eq!(inputs(rule), ["/r/a.rs", "/r/c.rs", "/r/with space/b.rs"].map(PathBuf::from).into());
        assert!(inputs("a: \\").is_empty() && inputs("").is_empty());
    }

    /// Each change after a build makes the kernel stale. A change during the build is not taken for a part of it.
    #[test]
    fn a_kernel_is_fresh_until_something_that_it_was_built_from_changes() {
        let place = tempfile::tempdir().unwrap();
        let root = place.path();
        let [source, manifest, settings, kernel] =
            ["crates/k/src/main.rs", "crates/k/Cargo.toml", "Cargo.lock", "target/kernel"].map(|name| root.join(name));
        for file in [&source, &manifest, &settings, &kernel] {
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, "first").unwrap();
        }
        let variant = |how: &str| Variant { root, kernel: &kernel, how: how.to_owned() };
        let built = || {
            fs::write(kernel.with_extension("d"), format!("{}: {}\n", kernel.display(), source.display())).unwrap();
            variant("a").keep(SystemTime::now() + Duration::from_secs(1));
        };
        assert!(!variant("a").is_fresh(), "never built");
        built();
        assert!(variant("a").is_fresh() && !variant("another compiler").is_fresh());
        for file in [&source, &manifest, &settings, &kernel] {
            built();
            assert!(variant("a").is_fresh());
            fs::write(file, "second, longer").unwrap();
            assert!(!variant("a").is_fresh(), "{}", file.display());
            fs::write(file, "third").unwrap();
        }
        built();
        fs::write(manifest.with_file_name("build.rs"), "new").unwrap();
        assert!(!variant("a").is_fresh(), "a build script appears");
        built();
        variant("a").keep(SystemTime::now() - Duration::from_secs(60));
        assert!(!variant("a").is_fresh(), "a source changed during the build");
        built();
        fs::remove_file(&source).unwrap();
        assert!(!variant("a").is_fresh(), "a source is gone");
    }
}
