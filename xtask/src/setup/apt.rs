//! Runs apt with the host's sources or with private ones. The system's own apt is not changed.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::{
    failure::{Doing, Failure, Result},
    places::Places,
};

/// An apt that is used for queries and downloads.
pub struct Apt {
    options: Vec<String>,
    suite: String,
}

impl Apt {
    /// The apt of the host.
    pub fn own() -> Self {
        Self { options: Vec::new(), suite: String::new() }
    }

    /// A private apt that also has Debian's backports as a source. Its lists are in the directory `name` of the cache.
    pub fn with_backports(places: &Places, name: &str) -> Option<Self> {
        Self::private(places, name, |mirror, suite, by| {
            format!("deb {by} {mirror} {suite} main\ndeb {by} {mirror} {suite}-backports main\n")
        })
    }

    /// Returns this apt with more options.
    pub fn with(mut self, options: impl IntoIterator<Item = String>) -> Self {
        self.options.extend(options.into_iter().flat_map(|o| ["-o".to_owned(), o]));
        self
    }

    /// The suite of a private apt, for instance `bookworm`. Empty for the host's apt.
    pub fn suite(&self) -> &str {
        &self.suite
    }

    /// A private apt. `list` writes its sources from the host's mirror, the suite, and the option for the signing key.
    /// Its lists are in the directory `name` of the cache. Returns `None` if the mirror is unknown or the lists cannot
    /// be fetched.
    pub fn private(places: &Places, name: &str, list: impl FnOnce(&str, &str, &str) -> String) -> Option<Self> {
        let (mirror, suite) = own_mirror()?;
        let home = places.cache.join(name);
        for directory in ["lists/partial", "archives/partial"] {
            fs::create_dir_all(home.join(directory)).ok()?;
        }
        let signed = "[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]";
        fs::write(home.join("sources.list"), list(&mirror, &suite, signed)).ok()?;
        let home = home.display();
        let apt = Self {
            options: [
                format!("Dir::Etc::SourceList={home}/sources.list"),
                "Dir::Etc::SourceParts=-".into(),
                format!("Dir::State::Lists={home}/lists"),
                format!("Dir::Cache={home}"),
                "APT::Get::List-Cleanup=false".into(),
            ]
            .into_iter()
            .flat_map(|o| ["-o".to_owned(), o])
            .collect(),
            suite,
        };
        let updated =
            apt.command("apt-get").args(["-q", "update"]).stdout(Stdio::null()).stderr(Stdio::null()).status();
        updated.is_ok_and(|s| s.success()).then_some(apt)
    }

    /// Fetches `packages` and unpacks them into `root`. The directory `work` is emptied first and gets the archives and
    /// a log. Nothing is installed.
    pub fn unpack(&self, packages: &[&str], work: &Path, root: &Path) -> Result<()> {
        let about = || format!("cannot write to {}", work.display());
        let _ = fs::remove_dir_all(work);
        fs::create_dir_all(work).doing(about)?;
        let log = fs::File::create(work.join("log")).doing(about)?;
        let run = |what: &str, command: &mut Command| -> Result<()> {
            let err = log.try_clone().doing(about)?;
            command.current_dir(work).stdin(Stdio::null()).stdout(Stdio::null()).stderr(err);
            match command.status().is_ok_and(|s| s.success()) {
                true => Ok(()),
                false => Err(Failure::usage(format_args!(
                    "{what} {} failed; see {}",
                    packages.join(", "),
                    work.join("log").display()
                ))),
            }
        };
        run("fetching", self.command("apt-get").args(["-q", "download"]).args(packages))?;
        for entry in fs::read_dir(work).doing(about)? {
            let file = entry.doing(about)?.path();
            if file.extension().is_some_and(|e| e == "deb") {
                run("unpacking", Command::new("dpkg-deb").arg("-x").arg(&file).arg(root))?;
            }
        }
        Ok(())
    }

    /// A command of this apt, for instance `apt-get`.
    pub fn command(&self, name: &str) -> Command {
        let mut command = Command::new(name);
        command.args(&self.options).env("LC_ALL", "C");
        command
    }
}

/// The mirror and the suite of the host's Debian. Both formats of apt's sources are read.
pub fn own_mirror() -> Option<(String, String)> {
    let os = fs::read_to_string("/etc/os-release").ok()?;
    let suite = os.lines().find_map(|l| l.strip_prefix("VERSION_CODENAME="))?.trim_matches('"').to_owned();
    let mut files = vec![PathBuf::from("/etc/apt/sources.list")];
    files.extend(fs::read_dir("/etc/apt/sources.list.d").into_iter().flatten().filter_map(|e| Some(e.ok()?.path())));
    let text: String = files.iter().filter_map(|f| fs::read_to_string(f).ok()).collect::<Vec<_>>().join("\n\n");
    mirror_in(&text, &suite).map(|uri| (uri, suite))
}

/// The mirror that serves `suite` itself, not the suite's updates or security fixes.
fn mirror_in(text: &str, suite: &str) -> Option<String> {
    let one_line = text.lines().filter(|l| l.starts_with("deb ")).find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().skip(1).skip_while(|w| w.starts_with('[')).collect();
        let at = words.iter().position(|w| *w == suite)?;
        words.get(at.checked_sub(1)?).map(|u| (*u).to_owned())
    });
    one_line.or_else(|| {
        text.split("\n\n").find_map(|stanza| {
            let field =
                |name: &str| stanza.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':')).map(str::trim);
            let here = field("Suites")?.split_whitespace().any(|s| s == suite);
            here.then(|| field("URIs")?.split_whitespace().next().map(str::to_owned)).flatten()
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mirror_is_read_from_both_formats() {
        let old = "# x\ndeb [arch=amd64] http://a/debian bookworm main\ndeb http://b bookworm-updates main\n";
        assert_eq!(mirror_in(old, "bookworm").as_deref(), Some("http://a/debian"));
        let new = "Types: deb\nURIs: http://s\nSuites: bookworm-security\n\nTypes: deb\n# snapshot\n\
                   URIs: http://d/debian\nSuites: bookworm bookworm-updates\nComponents: main\n";
        assert_eq!(mirror_in(new, "bookworm").as_deref(), Some("http://d/debian"));
        assert_eq!(mirror_in(new, "trixie"), None);
    }
}
