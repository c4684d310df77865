//! A root file system made of Debian's packages and their dependencies. Nothing is installed on the host.
//!
//! Apt chooses the versions as for an empty machine, with the essential packages and without recommended packages. Each
//! package is unpacked once, into the cache under its version. The packages' scripts are not run. Instead, [`scripts`]
//! reads the users, alternatives and files that they create, and [`tables`] and [`units`] read the tables that systemd
//! reads at each start. [`accounts`] and [`configured`] do what the scripts of essential packages do on every machine.

mod accounts;
mod actions;
mod commands;
mod configured;
mod fetch;
mod parts;
mod patterns;
mod scripts;
mod shell;
mod sources;
mod tables;
mod units;
mod useradd;

use std::{io::Read as _, path::Path};

use super::{archive::Archive, root, tree::Tree};
use crate::{
    failure::{Doing, Failure, Result},
    places::Places,
    progress::Step,
};
use accounts::Accounts;

/// Directories that no program needs at run time. Debian's smallest images leave out the same directories.
const LEFT_OUT: &[&str] =
    &["/usr/share/doc", "/usr/share/man", "/usr/share/info", "/usr/share/locale", "/usr/share/lintian"];

/// A tree with the packages `names`, which commas separate, and with their dependencies.
pub fn tree(places: &Places, names: &str) -> Result<Tree> {
    let names = parse("--packages", names)?;
    let step = Step::new(format!("packages {}", names.join(", ")));
    let packages = fetch::ensure(places, &names, &step)?;
    let mut tree = Tree::default();
    root::skeleton(&mut tree)?;
    let mut accounts = Accounts::default();
    let (mut alternatives, mut changes, mut parts) = (Vec::new(), Vec::new(), Vec::new());
    let mut scripts = Vec::new();
    let mut status = String::new();
    for package in &packages {
        tree.members(Path::new("/"), &Archive::open(&package.files)?, false)?;
        let control = control(&package.control)?;
        status.push_str(&installed(&control.about));
        scripts.extend(control.scripts);
    }
    for directory in LEFT_OUT {
        tree.remove(directory);
    }
    accounts.read_base(&tree);
    for script in &scripts {
        let wishes = scripts::read(script);
        wishes.accounts.into_iter().for_each(|a| accounts.add(a));
        alternatives.extend(wishes.alternatives);
        changes.extend(wishes.files);
        parts.extend(wishes.parts);
    }
    tables::accounts(&tree).into_iter().for_each(|a| accounts.add(a));
    accounts.install(&mut tree)?;
    scripts::link(&mut tree, alternatives)?;
    configured::install(&mut tree)?;
    actions::apply(&mut tree, &accounts, &changes);
    // The scripts copy the files of some modules first.
    parts::enable(&mut tree, &parts)?;
    let mut started = units::actions(&tree);
    started.extend(tables::actions(&tree, configured::MACHINE));
    actions::apply(&mut tree, &accounts, &started);
    configured::records(&mut tree, &accounts)?;
    configured::certificate(&mut tree, places, &accounts)?;
    tree.file("/var/lib/dpkg/status", 0o644, status)?;
    root::fill(&mut tree)?;
    Ok(tree)
}

/// Adds the files of source packages to `/usr/src`. `names` has the packages' names, separated by commas.
pub fn sources(tree: &mut Tree, places: &Places, names: &str) -> Result<()> {
    let names = parse("--sources", names)?;
    let step = Step::new(format!("sources {}", names.join(", ")));
    for file in sources::ensure(places, &names, &step)? {
        let name = file.file_name().unwrap_or_default();
        tree.host_file(Path::new("/usr/src").join(name), &file)?;
    }
    Ok(())
}

/// The names in the list of an option. A version may follow a name: `NAME=VERSION`.
fn parse(option: &str, list: &str) -> Result<Vec<String>> {
    let mut names: Vec<String> = list.split(',').map(str::trim).filter(|n| !n.is_empty()).map(str::to_owned).collect();
    let plain = |name: &String| {
        let (name, version) = name.split_once('=').unwrap_or((name, "1"));
        let fits = |text: &str, more: &str| {
            text.starts_with(|c: char| c.is_ascii_alphanumeric())
                && text.chars().all(|c| c.is_ascii_alphanumeric() || more.contains(c))
        };
        fits(name, "+-.") && name.len() > 1 && fits(version, "+-.:~")
    };
    if let Some(bad) = names.iter().find(|n| !plain(n)) {
        return Err(Failure::usage(format_args!("{option}: {bad:?} is not the name of a package")));
    }
    if names.is_empty() {
        return Err(Failure::usage(format_args!("{option} names no package")));
    }
    names.sort_unstable();
    names.dedup();
    Ok(names)
}

/// The description of a package, and its scripts.
struct Control {
    about: String,
    scripts: Vec<String>,
}

fn control(path: &Path) -> Result<Control> {
    let about = || format!("cannot read {}", path.display());
    let mut found = Control { about: String::new(), scripts: Vec::new() };
    let file = std::fs::File::open(path).doing(about)?;
    for entry in tar::Archive::new(file).entries().doing(about)? {
        let mut entry = entry.doing(about)?;
        let name = entry.path().doing(about)?.into_owned();
        let text = match name.file_name().and_then(|n| n.to_str()) {
            Some("control") => &mut found.about,
            Some("preinst" | "postinst") => {
                found.scripts.push(String::new());
                found.scripts.last_mut().unwrap_or(&mut found.about)
            }
            _ => continue,
        };
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).doing(about)?;
        *text = String::from_utf8_lossy(&bytes).into_owned();
    }
    Ok(found)
}

/// The description of an installed package, in dpkg's format.
fn installed(about: &str) -> String {
    let mut lines: Vec<&str> = about.trim_end().lines().collect();
    lines.insert(1.min(lines.len()), "Status: install ok installed");
    lines.push("\n");
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked_and_sorted() {
        assert_eq!(parse("--packages", "redis-server, g++,redis-server").unwrap(), ["g++", "redis-server"]);
        assert_eq!(parse("--packages", "vim=2:9.0.1378-2+deb12u2").unwrap().len(), 1);
        for bad in ["", ",", "-o", "a b", "x", "a/b", "--", "name=", "name=-o", "?essential"] {
            assert_eq!(parse("--packages", bad).unwrap_err().status, 2, "{bad}");
        }
    }

    #[test]
    fn a_description_says_that_the_package_is_installed() {
        let text = installed("Package: a\nVersion: 1\n");
        assert_eq!(text, "Package: a\nStatus: install ok installed\nVersion: 1\n\n");
    }
}
