//! Names of modules, made from a file, a path in the source, or the compiler's namespaces.

use std::fmt;

/// A module: its crate and the path below that, such as `vm` and `map::tree`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Module {
    /// The crate's folder below `crates/`.
    pub krate: String,
    /// The segments of the path; empty for the root.
    pub path: Vec<String>,
}

impl Module {
    /// Returns the module that is written in a file below `crates/NAME/src`.
    pub fn of_file(path: &str) -> Option<Self> {
        let (before, inside) = path.split_once("/src/")?;
        let (_, krate) = before.rsplit_once('/').unwrap_or(("", before));
        if !before.trim_end_matches(krate).ends_with("crates/") {
            return None;
        }
        let inside = inside.strip_suffix(".rs")?;
        let mut path: Vec<String> = inside.split('/').filter(|s| !s.is_empty()).map(str::to_owned).collect();
        if path.last().is_some_and(|last| last == "mod") || path == ["lib"] || path == ["main"] {
            path.pop();
        }
        Some(Self { krate: krate.to_owned(), path })
    }

    /// Returns the module of an item whose enclosing namespaces are `names`, such as `quire_vm`, `map`, `{impl#3}`.
    pub fn of_path(names: &[&str]) -> Option<Self> {
        let (first, rest) = names.split_first()?;
        let krate = first.strip_prefix("quire_")?.replace('_', "-");
        // Names of types begin with a capital, and other namespaces with a brace. Items inside a function belong to the
        // function's module.
        let path = rest.iter().take_while(|s| s.starts_with(|c: char| c.is_ascii_lowercase())).map(|&s| s.to_owned());
        Some(Self { krate, path: path.collect() })
    }

    /// Whether the module is `room` or inside of it. A room is a path such as `map/ops`.
    pub fn is_in(&self, room: &str) -> bool {
        let mut path = self.path.iter();
        room.split('/').all(|segment| path.next().is_some_and(|own| own == segment))
    }
}

impl fmt::Display for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.path.is_empty() { f.write_str("the root") } else { f.write_str(&self.path.join("::")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is(module: Option<Module>, krate: &str, path: &str) {
        let module = module.unwrap();
        assert_eq!((module.krate.as_str(), module.path.join("/").as_str()), (krate, path));
    }

    #[test]
    fn files_and_namespaces_name_the_same_modules() {
        is(Module::of_file("/x/crates/vm/src/map/tree/mod.rs"), "vm", "map/tree");
        is(Module::of_file("crates/vm/src/vm.rs"), "vm", "vm");
        is(Module::of_file("crates/vm/src/lib.rs"), "vm", "");
        is(Module::of_path(&["quire_vm", "map", "tree", "{impl#0}"]), "vm", "map/tree");
        assert_eq!(Module::of_path(&["core", "fmt"]), None);
        assert_eq!(Module::of_file("/rustc/library/core/src/fmt/mod.rs"), None);
    }

    #[test]
    fn a_module_is_in_its_room_and_in_those_around_it() {
        let module = Module::of_file("crates/vm/src/map/ops/fork.rs").unwrap();
        assert!(module.is_in("map") && module.is_in("map/ops") && module.is_in("map/ops/fork"));
        assert!(!module.is_in("map/op") && !module.is_in("map/ops/fork/x") && !module.is_in("rmap"));
    }
}
