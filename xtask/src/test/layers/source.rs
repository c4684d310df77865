//! Finds in the source which modules use which others: by paths that begin with `crate`, `self` or `super`.
//!
//! The source is read because the compiler's objects lack constants, macros, and generic functions that the kernel does
//! not call.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use syn::{
    Attribute, Item, UseTree,
    visit::{self, Visit},
};

use super::{compiler::Use, modules::Module};
use crate::failure::{Doing, Failure, Result};

/// A crate's source without its tests.
#[derive(Debug, Default)]
pub struct Source {
    /// The number of lines of each module. Files of tests are left out.
    pub modules: BTreeMap<Module, usize>,
    /// The uses whose path names another module.
    pub uses: BTreeSet<Use>,
}

impl Source {
    /// Returns the module of the source that is or contains `module`. The compiler has namespaces for functions too, so
    /// `module` may name a function.
    pub fn known(&self, module: &Module) -> Module {
        longest(&self.modules, &module.krate, &module.path)
    }
}

/// Reads the crate in `crates/NAME`, from its root files along its `mod` items.
pub fn read(root: &Path, krate: &str) -> Result<Source> {
    let src = root.join("crates").join(krate).join("src");
    let mut files = Vec::new();
    for name in ["lib.rs", "main.rs"] {
        if src.join(name).exists() {
            walk(&src.join(name), Module { krate: krate.to_owned(), path: Vec::new() }, &mut files)?;
        }
    }
    let mut source = Source::default();
    for (module, lines, _) in &files {
        *source.modules.entry(module.clone()).or_default() += lines;
    }
    // A name that the root re-exports stands for its original path.
    let mut exported = BTreeMap::new();
    for (module, _, file) in &files {
        for item in &file.items {
            // The root contains the name of an exported macro.
            if let Item::Macro(syn::ItemMacro { attrs, ident: Some(name), .. }) = item
                && attrs.iter().any(|a| a.path().is_ident("macro_export"))
            {
                exported.insert(name.to_string(), [module.path.clone(), vec![name.to_string()]].concat());
            }
            if let Item::Use(item) = item
                && matches!(item.vis, syn::Visibility::Public(_))
                && module.path.is_empty()
            {
                flatten(&item.tree, &mut Vec::new(), &mut |path| {
                    if let Some(last) = path.last() {
                        exported.insert(last.clone(), path.to_vec());
                    }
                });
            }
        }
    }
    for (module, _, file) in &files {
        let mut paths = Paths { inside: module.clone(), found: BTreeSet::new() };
        paths.visit_file(file);
        for mut path in paths.found {
            if let Some(from) = path.first().and_then(|first| exported.get(first)) {
                path = from.iter().skip_while(|s| *s == "self" || *s == "crate").cloned().collect();
            }
            let to = longest(&source.modules, krate, &path);
            if to != *module {
                let what = format!("{module} names {}", path.join("::"));
                source.uses.insert(Use { from: module.clone(), to, what });
            }
        }
    }
    Ok(source)
}

/// Returns the innermost module that contains `path`.
fn longest(modules: &BTreeMap<Module, usize>, krate: &str, path: &[String]) -> Module {
    let mut module = Module { krate: krate.to_owned(), path: path.to_vec() };
    while !module.path.is_empty() && !modules.contains_key(&module) {
        module.path.pop();
    }
    module
}

/// Parses a file and the files of its modules.
fn walk(path: &Path, module: Module, files: &mut Vec<(Module, usize, syn::File)>) -> Result<()> {
    let text = fs::read_to_string(path).doing(|| format!("cannot read {}", path.display()))?;
    let mut file =
        syn::parse_file(&text).map_err(|e| Failure::usage(format_args!("{} does not parse: {e}", path.display())))?;
    file.items.retain(|item| !of_tests(attributes(item)));
    let inside = match path.file_stem().and_then(|s| s.to_str()) {
        Some("lib" | "main" | "mod") | None => path.with_file_name(""),
        Some(stem) => path.with_file_name(stem),
    };
    for item in &file.items {
        if let Item::Mod(item) = item
            && item.content.is_none()
        {
            let name = item.ident.to_string();
            let child =
                Module { krate: module.krate.clone(), path: [module.path.clone(), vec![name.clone()]].concat() };
            walk(&file_of(&inside, &name, &item.attrs), child, files)?;
        }
    }
    files.push((module, text.lines().count(), file));
    Ok(())
}

fn file_of(inside: &Path, name: &str, attributes: &[Attribute]) -> PathBuf {
    for attribute in attributes {
        if let syn::Meta::NameValue(pair) = &attribute.meta
            && pair.path.is_ident("path")
            && let syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(path), .. }) = &pair.value
        {
            return inside.join(path.value());
        }
    }
    let alone = inside.join(format!("{name}.rs"));
    if alone.exists() { alone } else { inside.join(name).join("mod.rs") }
}

/// Whether an item is built only for tests, model checkers or documentation.
fn of_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let syn::Meta::List(list) = &attribute.meta else { return false };
        let words = list.tokens.to_string();
        let negated = words.starts_with("not") || words.contains("debug_assertions");
        list.path.is_ident("cfg") && !negated && ["test", "loom", "shuttle", "doc"].iter().any(|w| has_word(&words, w))
    })
}

fn has_word(text: &str, word: &str) -> bool {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').any(|w| w == word)
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(i) => &i.attrs,
        Item::Enum(i) => &i.attrs,
        Item::Fn(i) => &i.attrs,
        Item::Impl(i) => &i.attrs,
        Item::Macro(i) => &i.attrs,
        Item::Mod(i) => &i.attrs,
        Item::Static(i) => &i.attrs,
        Item::Struct(i) => &i.attrs,
        Item::Trait(i) => &i.attrs,
        Item::Type(i) => &i.attrs,
        Item::Use(i) => &i.attrs,
        _ => &[],
    }
}

/// Calls `each` with every path of a `use` item.
fn flatten(tree: &UseTree, before: &mut Vec<String>, each: &mut dyn FnMut(&[String])) {
    match tree {
        UseTree::Path(path) => {
            before.push(path.ident.to_string());
            flatten(&path.tree, before, each);
            before.pop();
        }
        UseTree::Name(name) => {
            let own = name.ident == "self";
            if !own {
                before.push(name.ident.to_string());
            }
            each(before);
            if !own {
                before.pop();
            }
        }
        UseTree::Rename(name) => {
            before.push(name.ident.to_string());
            each(before);
            before.pop();
        }
        UseTree::Glob(_) => each(before),
        UseTree::Group(group) => group.items.iter().for_each(|tree| flatten(tree, before, each)),
    }
}

/// Collects the paths of a file, each from the crate's root on.
struct Paths {
    inside: Module,
    found: BTreeSet<Vec<String>>,
}

impl Paths {
    fn add(&mut self, path: &[String]) {
        let Some(first) = path.first() else { return };
        let mut whole = match first.as_str() {
            "crate" => Vec::new(),
            "self" | "super" => self.inside.path.clone(),
            _ => return,
        };
        for segment in path {
            match segment.as_str() {
                "crate" | "self" => {}
                "super" => drop(whole.pop()),
                name => whole.push(name.to_owned()),
            }
        }
        self.found.insert(whole);
    }
}

impl<'ast> Visit<'ast> for Paths {
    fn visit_item(&mut self, item: &'ast Item) {
        if of_tests(attributes(item)) {
            return;
        }
        if let Item::Mod(inner) = item
            && inner.content.is_some()
        {
            self.inside.path.push(inner.ident.to_string());
            visit::visit_item(self, item);
            self.inside.path.pop();
            return;
        }
        visit::visit_item(self, item);
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        let passed_on = !matches!(item.vis, syn::Visibility::Inherited);
        let inside = self.inside.path.clone();
        flatten(&item.tree, &mut Vec::new(), &mut |path| {
            // A module that re-exports names of its own children does not count as their user.
            let own = match path.first().map(String::as_str) {
                Some("crate") => path[1..].starts_with(&inside),
                Some("super") => false,
                _ => true,
            };
            if !(passed_on && own) {
                self.add(path);
            }
        });
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments: Vec<String> = path.segments.iter().map(|s| s.ident.to_string()).collect();
        self.add(&segments);
        visit::visit_path(self, path);
    }

    // `pub(in crate::map)` sets a name's visibility and uses nothing.
    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> Source {
        let root = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = root.path().join("crates/vm/src").join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        read(root.path(), "vm").unwrap()
    }

    fn arrows(source: &Source) -> Vec<String> {
        source.uses.iter().map(|u| format!("{} > {}", u.from, u.to)).collect()
    }

    #[test]
    fn imports_paths_and_reexports_are_uses() {
        let source = tree(&[
            ("lib.rs", "mod low;\nmod high;\npub use high::Thing;"),
            ("low.rs", "use crate::Thing;\npub const N: u32 = 1;"),
            ("high/mod.rs", "pub struct Thing;\nmod inner;\nfn f() -> u32 { crate::low::N }"),
            ("high/inner.rs", "use super::super::low::N;\nuse std::fmt;"),
        ]);
        assert_eq!(arrows(&source), ["high > low", "high::inner > low", "low > high"]);
        assert_eq!(source.modules.values().sum::<usize>(), 10);
    }

    #[test]
    fn a_facade_passes_on_names_of_its_children_alone() {
        let source = tree(&[
            ("lib.rs", "mod low;\nmod high;"),
            ("low/mod.rs", "mod inner;\npub use inner::A;\npub use crate::low::inner::B;\npub use crate::high::C;"),
            ("low/inner.rs", "pub struct A;"),
            ("high.rs", "pub struct C;"),
        ]);
        assert_eq!(arrows(&source), ["low > high"]);
    }

    #[test]
    fn tests_may_look_up() {
        let source = tree(&[
            ("lib.rs", "mod low;\nmod high;\n#[cfg(all(test, loom))]\nmod gone;"),
            ("low.rs", "#[cfg(test)]\nmod tests { use crate::high; }\n#[cfg(any(test, shuttle))]\nuse crate::high;"),
            ("high.rs", "#[cfg(not(loom))]\nuse crate::low;"),
        ]);
        assert_eq!(arrows(&source), ["high > low"]);
    }
}
