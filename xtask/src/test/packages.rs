//! Checks the library crates as others use them. They can be packaged for a registry, contain everything that a reader
//! of the package needs, and build with each set of their features. All other crates must declare that they are not
//! published.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

use super::{
    Context, lint,
    verdict::{Check, Outcome},
};
use crate::failure::{Doing, Failure, Result};

/// The crates that other projects embed.
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
const MANIFESTS: &str = "packages/every crate states whether it is published";
/// The files of the repository's root that each package must contain unchanged.
const LICENCES: [&str; 2] = ["LICENSE-MIT", "LICENSE-APACHE"];
/// The fields that cargo's metadata must have for a library, because a registry displays them.
const SHOWN: [&str; 5] = ["description", "license", "readme", "documentation", "rust_version"];

/// The checks' names: one for the manifests, one for the packaging, and two for each crate (contents and features).
pub fn names(_: &Context<'_>) -> Result<Vec<String>> {
    let one = [MANIFESTS, PACKAGE].map(str::to_owned);
    Ok(one.into_iter().chain(LIBRARIES.map(contents_of)).chain(LIBRARIES.map(features_of)).collect())
}

fn contents_of(package: &str) -> String {
    format!("packages/contents of {package}")
}

fn features_of(package: &str) -> String {
    format!("packages/features of {package}")
}

/// Runs the checks. Checks the manifests, packages the libraries, and unpacks and builds the packages. Then checks
/// their contents, and builds each library with each set of its features.
pub fn run(context: &Context<'_>, done: &mut dyn FnMut(Check)) -> Result<()> {
    if context.names_another("packages") {
        return Ok(());
    }
    let metadata = metadata(context)?;
    if context.selects(MANIFESTS) {
        let wrong = unfit(&metadata);
        done(if wrong.is_empty() { Check::passed(MANIFESTS) } else { Check::failed(MANIFESTS, wrong.join("\n")) });
    }
    let target = context.places.target.join("packages");
    // Builds of earlier packages are removed, because cargo would assume that a package of the same version has the
    // same sources.
    if target.exists() {
        fs::remove_dir_all(&target).doing(|| format!("cannot remove {}", target.display()))?;
    }
    let mut package = lint::plain(context, "package");
    package.env("CARGO_HOME", home(&target)?);
    // Uncommitted changes are allowed, because the compiled sources come from the packages.
    package.args(["--locked", "--offline", "--allow-dirty", "--target-dir"]).arg(&target);
    for library in LIBRARIES {
        package.args(["-p", library]);
    }
    if [PACKAGE.to_owned()].into_iter().chain(LIBRARIES.map(contents_of)).any(|name| context.selects(&name)) {
        let mut packaged = false;
        lint::tool_of(context, PACKAGE, package, &mut |check| {
            packaged = check.outcome == Outcome::Passed;
            if context.selects(PACKAGE) {
                done(check);
            }
        })?;
        for library in LIBRARIES.iter().filter(|p| context.selects(&contents_of(p))) {
            let name = contents_of(library);
            if !packaged {
                done(Check::failed(name, "it was not packaged"));
                continue;
            }
            let unpacked = target.join("package").join(format!("{library}-{}", version(&metadata, library)?));
            let wrong = lacking(library, &unpacked, &context.places.root)?;
            done(if wrong.is_empty() { Check::passed(name) } else { Check::failed(name, wrong.join("\n")) });
        }
    }
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

/// Makes a home for cargo that links to the user's home, without its unpacked sources. In the user's home, the sources
/// of our packages would be those of an earlier run, because cargo distinguishes packages only by version and by the
/// place of packaging.
fn home(target: &Path) -> Result<PathBuf> {
    let about = || "a home for cargo".to_string();
    let theirs = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let theirs = theirs.or_else(|| Some(std::env::home_dir()?.join(".cargo")));
    let theirs = theirs.ok_or_else(|| Failure::usage("cargo's home is unknown; set CARGO_HOME or HOME"))?;
    let home = target.join("home");
    let registry = home.join("registry");
    fs::create_dir_all(&registry).doing(about)?;
    link_all(&theirs, &home, &["registry", ".global-cache"]).doing(about)?;
    link_all(&theirs.join("registry"), &registry, &["src"]).doing(about)?;
    Ok(home)
}

/// Links everything in `from`, if that directory exists, into `to`, except the names in `except`.
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

/// Returns the manifests that break a rule. A library must have all fields that a registry displays, and may be
/// published. Any other crate must declare that it is not published. The switch of a mutant, which leaves out a step
/// for tests, must not be a library's feature.
fn unfit(metadata: &Value) -> Vec<String> {
    let mut wrong = Vec::new();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        let name = package["name"].as_str().unwrap_or_default();
        let published = package["publish"].is_null();
        if !LIBRARIES.contains(&name) {
            if published {
                wrong.push(format!("{name} is not a published library; add `publish = false` to its manifest"));
            }
            continue;
        }
        if !published {
            wrong.push(format!("{name} is a published library, but its manifest has `publish = false`"));
        }
        let absent = SHOWN.iter().filter(|field| package[**field].as_str().is_none_or(str::is_empty));
        wrong.extend(absent.map(|field| format!("{name} has no `{field}`")));
        if !package["metadata"]["docs"]["rs"].is_object() {
            wrong.push(format!("the manifest of {name} has no settings for docs.rs"));
        }
        if package["features"].as_object().is_some_and(|f| f.contains_key("mutants")) {
            wrong.push(format!("{name} enables its mutants by a public feature"));
        }
    }
    wrong
}

/// Returns the missing files of an unpacked package: the licences with the text of the root's files, and a README of
/// its own.
fn lacking(package: &str, unpacked: &Path, root: &Path) -> Result<Vec<String>> {
    let read = |path: PathBuf| fs::read_to_string(&path).doing(|| format!("cannot read {}", path.display()));
    let mut wrong = Vec::new();
    for licence in LICENCES {
        if fs::read_to_string(unpacked.join(licence)).unwrap_or_default() != read(root.join(licence))? {
            wrong.push(format!("{licence} differs from the file of the root"));
        }
    }
    let readme = fs::read_to_string(unpacked.join("README.md")).unwrap_or_default();
    if readme.lines().next() != Some(&format!("# {package}")) {
        wrong.push("README.md does not begin with the package's name".to_owned());
    }
    Ok(wrong)
}

fn version<'m>(metadata: &'m Value, package: &str) -> Result<&'m str> {
    let mut packages = metadata["packages"].as_array().into_iter().flatten();
    let found = packages.find(|p| p["name"] == package).and_then(|p| p["version"].as_str());
    found.ok_or_else(|| Failure::usage(format_args!("cargo finds no package {package}")))
}

/// Returns the features that a package declares.
fn features(metadata: &Value, package: &str) -> Result<Vec<String>> {
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let found = packages.clone().find(|p| p["name"] == package);
    let found = found.ok_or_else(|| Failure::usage(format_args!("cargo finds no package {package}")))?;
    Ok(found["features"].as_object().map(|f| f.keys().cloned().collect()).unwrap_or_default())
}

/// Returns all sets of features, the empty set included.
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
    fn all_but_the_excluded_packages_are_linked() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        ["cache", "src"].iter().for_each(|n| fs::create_dir(from.path().join(n)).unwrap());
        link_all(from.path(), to.path(), &["src"]).unwrap();
        let names: Vec<_> = fs::read_dir(to.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(names, ["cache"]);
        link_all(&from.path().join("nothing"), to.path(), &[]).unwrap();
    }

    #[test]
    fn a_manifest_says_whether_the_crate_is_for_others() {
        let docs = serde_json::json!({"docs": {"rs": {"all-features": true}}});
        let mut library = serde_json::json!({"name": "quire-sync", "publish": null, "description": "Locks.",
            "license": "MIT",
            "readme": "README.md", "documentation": "https://docs.rs/quire-sync", "rust_version": "1.95",
                "metadata": docs,
            "features": {"std": []}});
        let own = serde_json::json!({"name": "quire-kernel", "publish": []});
        let all = |library: &Value, own: &Value| unfit(&serde_json::json!({"packages": [library, own]}));
        assert!(all(&library, &own).is_empty());
        assert_eq!(all(&library, &serde_json::json!({"name": "quire-kernel", "publish": null})).len(), 1);
        for (field, wrong) in [
            ("publish", serde_json::json!([])),
            ("description", Value::Null),
            ("readme", Value::Null),
            ("metadata", Value::Null),
            ("features", serde_json::json!({"mutants": []})),
        ] {
            let right = std::mem::replace(&mut library[field], wrong);
            assert_eq!(all(&library, &own).len(), 1, "{field}");
            library[field] = right;
        }
    }

    #[test]
    fn a_package_without_the_licences_text_is_found() {
        let (root, unpacked) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        LICENCES.iter().for_each(|l| fs::write(root.path().join(l), "all of it").unwrap());
        assert_eq!(lacking("quire-sync", unpacked.path(), root.path()).unwrap().len(), 3);
        LICENCES.iter().for_each(|l| fs::write(unpacked.path().join(l), "all of it").unwrap());
        fs::write(unpacked.path().join("README.md"), "# quire-sync\n").unwrap();
        assert!(lacking("quire-sync", unpacked.path(), root.path()).unwrap().is_empty());
        fs::write(unpacked.path().join(LICENCES[0]), "../../LICENSE-MIT").unwrap();
        assert_eq!(lacking("quire-sync", unpacked.path(), root.path()).unwrap().len(), 1);
    }

    #[test]
    fn a_packages_features_are_those_that_cargo_names() {
        let metadata = serde_json::json!({"packages": [{"name": "quire-sync", "features": {"std": [], "more": []}}]});
        assert_eq!(features(&metadata, "quire-sync").unwrap(), ["more", "std"]);
        assert!(features(&metadata, "quire-none").is_err());
    }
}
