//! The modules and sites of servers that packages enable: apache's and PHP's. Their commands are scripts that make
//! links in directories, and here the links are made.

use std::collections::HashSet;

use super::super::tree::Tree;
use crate::failure::Result;

const APACHE: &str = "/etc/apache2";
/// The priority of a module of PHP that names none, as in `phpenmod`.
const USUAL: &str = "20";

/// A part of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// A module, a configuration or a site of apache: the kind (`mods`, `conf`, `sites`) and the name.
    Apache(&'static str, String),
    /// The module of apache that runs its processes, in place of another such module.
    Processes(String),
    /// A module of PHP: the version and the name.
    Php(String, String),
}

/// The parts that a command of a script enables.
pub fn wishes(command: &str, words: &[&str]) -> Vec<Part> {
    let names: Vec<&str> = words.iter().copied().filter(|w| !w.starts_with('-') && is_name(w)).collect();
    let apache = |kind, names: &[&str]| names.iter().map(|n| Part::Apache(kind, (*n).to_owned())).collect();
    match (command, &names[..]) {
        ("a2enmod", names) => apache("mods", names),
        ("a2enconf", names) => apache("conf", names),
        ("a2ensite", names) => apache("sites", names),
        ("apache2_invoke", ["enmod", names @ ..]) => apache("mods", names),
        ("apache2_invoke", ["enconf", names @ ..]) => apache("conf", names),
        ("apache2_invoke", ["ensite", names @ ..]) => apache("sites", names),
        ("apache2_switch_mpm", [name]) => vec![Part::Processes((*name).to_owned())],
        // Every interface gets the module: Debian enables the modules of a new interface, too.
        ("php_invoke", ["enmod", version, _, name]) => vec![Part::Php((*version).to_owned(), (*name).to_owned())],
        _ => Vec::new(),
    }
}

/// Whether a word can be a file's name.
fn is_name(word: &str) -> bool {
    !word.is_empty() && !word.starts_with('.') && word.chars().all(|c| c.is_ascii_alphanumeric() || "-_.+".contains(c))
}

/// Makes the links of the parts whose files are in the tree.
pub fn enable(tree: &mut Tree, parts: &[Part]) -> Result<()> {
    for part in parts {
        match part {
            Part::Apache(kind, name) => apache(tree, kind, name, &mut HashSet::new())?,
            Part::Processes(name) => {
                let name = format!("mpm_{name}");
                if tree.has(format!("{APACHE}/mods-available/{name}.load")) {
                    for node in tree.below(format!("{APACHE}/mods-enabled")) {
                        if node.file_name().is_some_and(|n| n.to_string_lossy().starts_with("mpm_")) {
                            tree.remove(&node);
                        }
                    }
                    apache(tree, "mods", &name, &mut HashSet::new())?;
                }
            }
            Part::Php(version, name) => php(tree, version, name)?,
        }
    }
    Ok(())
}

/// Links a part of apache, and the modules that it names in a line `# Depends:`.
fn apache(tree: &mut Tree, kind: &str, name: &str, seen: &mut HashSet<String>) -> Result<()> {
    if !seen.insert(name.to_owned()) {
        return Ok(());
    }
    for ending in ["load", "conf"] {
        let file = format!("{name}.{ending}");
        let Some(bytes) = tree.read(format!("{APACHE}/{kind}-available/{file}")) else { continue };
        let text = String::from_utf8_lossy(&bytes);
        let needed = text.lines().filter_map(|line| line.strip_prefix("# Depends:")).flat_map(str::split_whitespace);
        for other in needed.filter(|other| is_name(other)) {
            apache(tree, "mods", other, seen)?;
        }
        tree.alias(format!("{APACHE}/{kind}-enabled/{file}"), format!("../{kind}-available/{file}"))?;
    }
    Ok(())
}

/// Links a module of PHP for every interface of that version, as `phpenmod` does.
fn php(tree: &mut Tree, version: &str, name: &str) -> Result<()> {
    let home = format!("/etc/php/{version}");
    let module = format!("{home}/mods-available/{name}.ini");
    let Some(bytes) = tree.read(&module) else { return Ok(()) };
    let text = String::from_utf8_lossy(&bytes);
    let digits = |text: &str| text.chars().take_while(char::is_ascii_digit).collect::<String>();
    let priority = text.lines().find_map(|line| line.strip_prefix("; priority=").map(digits));
    let priority = priority.filter(|p| !p.is_empty()).unwrap_or_else(|| USUAL.to_owned());
    for interface in tree.below(format!("/usr/lib/php/{version}/sapi")) {
        let interface = interface.file_name().unwrap_or_default().to_string_lossy().into_owned();
        tree.alias(format!("{home}/{interface}/conf.d/{priority}-{name}.ini"), &module)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enabled(tree: &Tree, at: &str) -> Vec<String> {
        tree.below(at).iter().map(|p| p.file_name().unwrap().to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn apaches_modules_bring_those_that_they_need() {
        let mut tree = Tree::default();
        for (name, text) in [
            ("auth_basic.load", "# Depends: authn_core auth_basic\nLoadModule a\n"),
            ("authn_core.load", "LoadModule b\n"),
            ("status.load", ""),
            ("status.conf", ""),
            ("mpm_event.load", "# Conflicts: mpm_worker mpm_prefork\n"),
            ("mpm_prefork.load", ""),
        ] {
            tree.file(format!("/etc/apache2/mods-available/{name}"), 0o644, text).unwrap();
        }
        tree.file("/etc/apache2/sites-available/000-default.conf", 0o644, "site").unwrap();
        let mut parts = wishes("a2enmod", &["-m", "-q", "mpm_event", "auth_basic", "status", "../etc", "none"]);
        parts.extend(wishes("a2ensite", &["-q", "000-default"]));
        parts.extend(wishes("apache2_switch_mpm", &["prefork"]));
        enable(&mut tree, &parts).unwrap();
        let mods = ["auth_basic.load", "authn_core.load", "mpm_prefork.load", "status.conf", "status.load"];
        assert_eq!(enabled(&tree, "/etc/apache2/mods-enabled"), mods);
        assert_eq!(tree.read("/etc/apache2/sites-enabled/000-default.conf").as_deref(), Some(&b"site"[..]));
    }

    #[test]
    fn phps_modules_have_their_priority_for_every_interface() {
        let mut tree = Tree::default();
        tree.file("/etc/php/8.2/mods-available/pdo.ini", 0o644, "; configuration\n; priority=10\nextension=pdo.so\n")
            .unwrap();
        tree.file("/etc/php/8.2/mods-available/ctype.ini", 0o644, "; priority=x\nextension=ctype.so\n").unwrap();
        for interface in ["cli", "fpm"] {
            tree.file(format!("/usr/lib/php/8.2/sapi/{interface}"), 0o644, "").unwrap();
        }
        let parts: Vec<Part> = ["pdo", "ctype", "gone"]
            .iter()
            .flat_map(|name| wishes("php_invoke", &["enmod", "8.2", "ALL", name]))
            .collect();
        enable(&mut tree, &parts).unwrap();
        for interface in ["cli", "fpm"] {
            assert_eq!(enabled(&tree, &format!("/etc/php/8.2/{interface}/conf.d")), ["10-pdo.ini", "20-ctype.ini"]);
        }
        assert!(tree.read("/etc/php/8.2/fpm/conf.d/10-pdo.ini").is_some());
    }
}
