//! What others use: the library crates can be packaged as a registry wants them, and build with each set of their features.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

use super::{Context, lint, verdict::Check};
use crate::failure::{Doing, Failure, Result};

/// The crates that others embed.
const LIBRARIES: [&str; 8] = [
    "quire-heap",
    "quire-sync",
    "quire-lookup",
    "quire-vm",
    "quire-task",
    "quire-pmap",
    "quire-pmap-x86_64",
    "quire-pmap-sv39",
];

const PACKAGE: &str = "packages/cargo package";

/// One name for the packaging, one for each crate's features.
pub fn names(_: &Context<'_>) -> Result<Vec<String>> {
    Ok(std::iter::once(PACKAGE.to_owned()).chain(LIBRARIES.map(features_of)).collect())
}

fn features_of(package: &str) -> String {
    format!("packages/features of {package}")
}

/// Packages the libraries and builds what was packaged; then each library with each set of its features.
pub fn run(context: &Context<'_>, done: &mut dyn FnMut(Check)) -> Result<()> {
    if context.names_another("packages") {
        return Ok(());
    }
    let target = context.places.target.join("packages");
    // What was built of packages before: cargo takes the same version of one for the same sources.
    if target.exists() {
        fs::remove_dir_all(&target).doing(|| format!("cannot remove {}", target.display()))?;
    }
    let mut package = lint::plain(context, "package");
    package.env("CARGO_HOME", home(&target)?);
    // What is committed does not matter here, and what is compiled comes from the packages themselves.
    package.args(["--locked", "--offline", "--allow-dirty", "--target-dir"]).arg(&target);
    for library in LIBRARIES {
        package.args(["-p", library]);
    }
    lint::tool(context, PACKAGE, package, done)?;
    let metadata = metadata(context)?;
    for library in LIBRARIES.iter().filter(|p| context.selects(&features_of(p))) {
        let mut check = Ok(());
        for set in subsets(&features(&metadata, library)?) {
            check = check.and(build(context, library, &set));
        }
        done(match check {
            Ok(()) => Check::passed(features_of(library)),
            Err(failure) => Check::failed(features_of(library), failure.message),
        });
    }
    Ok(())
}

/// Cargo's home but for the sources that it has unpacked: those of our packages would be a former run's, since they are told apart
/// by their versions, and by where they were packaged.
fn home(target: &Path) -> Result<PathBuf> {
    let about = || "a home for cargo".to_string();
    let theirs = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let theirs = theirs.or_else(|| Some(std::env::home_dir()?.join(".cargo")));
    let theirs = theirs.ok_or_else(|| Failure::usage("nobody says where cargo's home is"))?;
    let home = target.join("home");
    let registry = home.join("registry");
    fs::create_dir_all(&registry).doing(about)?;
    link_all(&theirs, &home, &["registry", ".global-cache"]).doing(about)?;
    link_all(&theirs.join("registry"), &registry, &["src"]).doing(about)?;
    Ok(home)
}

/// Links in `to` for everything in `from`, if there is such a directory, but what has one of the names in `except`.
fn link_all(from: &Path, to: &Path, except: &[&str]) -> io::Result<()> {
    if !from.is_dir() {
        return Ok(());
    }
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        if !except.iter().any(|name| entry.file_name() == *name) {
            std::os::unix::fs::symlink(entry.path(), to.join(entry.file_name()))?;
        }
    }
    Ok(())
}

fn metadata(context: &Context<'_>) -> Result<Value> {
    let mut command = Command::new("cargo");
    command.args(["metadata", "--format-version", "1", "--no-deps", "--offline"]).current_dir(&context.places.root);
    let out = command.output().doing(|| "cannot run cargo metadata".to_string())?;
    serde_json::from_slice(&out.stdout).doing(|| "cargo metadata".to_string())
}

/// The features that a package names.
fn features(metadata: &Value, package: &str) -> Result<Vec<String>> {
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let found = packages.clone().find(|p| p["name"] == package);
    let found = found.ok_or_else(|| Failure::usage(format_args!("cargo knows no package {package}")))?;
    Ok(found["features"].as_object().map(|f| f.keys().cloned().collect()).unwrap_or_default())
}

/// All sets of features, the empty one among them.
fn subsets(features: &[String]) -> Vec<Vec<String>> {
    let take = |set: usize| (0..features.len()).filter(move |i| set >> i & 1 == 1).map(|i| features[i].clone());
    (0..1usize << features.len()).map(|set| take(set).collect()).collect()
}

fn build(context: &Context<'_>, package: &str, features: &[String]) -> Result<()> {
    let mut command = lint::plain(context, "check");
    command.args(["--locked", "--lib", "-p", package, "--no-default-features", "--features", &features.join(",")]);
    command.arg("--target-dir").arg(&context.places.target).env("RUSTFLAGS", "-D warnings");
    let out = command.output().doing(|| "cannot run cargo".to_string())?;
    if out.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&out.stderr);
    let first = said.lines().find(|l| l.starts_with("error")).unwrap_or("it did not build");
    Err(Failure::usage(format_args!("with features [{}]: {first}", features.join(","))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_set_of_features_is_tried_once() {
        assert_eq!(subsets(&[]), [Vec::<String>::new()]);
        let all = subsets(&["a".to_owned(), "b".to_owned()]);
        assert_eq!(all.iter().map(|s| s.concat()).collect::<Vec<_>>(), ["", "a", "b", "ab"]);
    }

    #[test]
    fn everything_is_linked_but_what_is_left_out() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        ["cache", "src"].iter().for_each(|n| fs::create_dir(from.path().join(n)).unwrap());
        link_all(from.path(), to.path(), &["src"]).unwrap();
        let names: Vec<_> = fs::read_dir(to.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(names, ["cache"]);
        link_all(&from.path().join("nothing"), to.path(), &[]).unwrap();
    }

    #[test]
    fn a_packages_features_are_those_that_cargo_names() {
        let metadata = serde_json::json!({"packages": [{"name": "quire-sync", "features": {"std": [], "more": []}}]});
        assert_eq!(features(&metadata, "quire-sync").unwrap(), ["more", "std"]);
        assert!(features(&metadata, "quire-none").is_err());
    }
}
