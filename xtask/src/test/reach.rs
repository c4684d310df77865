//! Checks that the fuzz target `embedder` calls every safe public function of the memory core. These are the functions
//! that `docs/api.md` lists, except those in `EXCEPTIONS`.
//!
//! Calls are the relocations of the target's object, which is built without any inlining. `./quire test layers` finds
//! calls in the same way. A method of a trait that the target implements counts too, because the core calls the
//! target's method.
//!
//! # Limits
//! - A call counts whether or not an input executes it. `crates/fuzz/tests/embedder.rs` checks that the corpus executes
//!   each operation.
//! - A call that the compiler evaluates does not count: a `const fn` in a constant.
//! - If a function is passed by its path, the function that receives it makes the call, so the check does not see it.
//!   The target writes closures instead.
//! - Functions are distinguished by their name and that of their type or trait. Two functions that share both are an
//!   error.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    process::{Command, Stdio},
};

use object::{Object, ObjectSymbol, SymbolKind};

use super::{
    Context, api,
    layers::compiler::{calls, plain},
    verdict::Check,
};
use crate::{
    failure::{Doing, Failure, Result},
    places::Places,
};

/// The check's name.
pub const NAME: &str = "fuzz/embedder calls every safe function of the core";

/// Functions that the target does not call, and the reason.
struct Exceptions {
    why: &'static str,
    /// The module of `crates/fuzz` that calls them instead, if there is one.
    instead: Option<&'static str>,
    functions: &'static [&'static str],
}

/// The list can only become shorter: an exception fails if the target calls the function, or if the function no longer
/// exists.
const EXCEPTIONS: &[Exceptions] = &[
    Exceptions {
        why: "the core's maps do not know of leaves that the core has not entered or removed",
        instead: Some("tables"),
        functions: &["Pmap::clear", "Table::enter", "Table::remove", "Table::sweep", "Table::weaken"],
    },
    Exceptions {
        why: "the core calls it on a table page that it holds, or after it has removed leaves",
        instead: None,
        functions: &[
            "Pmap::fan_in",
            "Pmap::fan_out",
            "Pmap::settle",
            "Table::enter_absent",
            "Table::remove_alone",
            "Table::sweep_leaves",
            "Table::restore_stores",
            "tlb::flush::Obligation::empties",
            "tlb::flush::Obligation::owe",
            "tlb::flush::Obligation::owe_table",
        ],
    },
    Exceptions {
        why: "only the core changes an object's index",
        instead: Some("index"),
        functions: &[
            "object::index::Index::clear",
            "object::index::Index::dismantle",
            "object::index::Index::fill",
            "object::index::Index::prune",
            "object::index::Index::replace",
            "object::index::Index::take",
            "object::index::Nodes::allocate",
            "object::index::TakenSlot::empty",
            "object::index::TakenSlot::replace",
        ],
    },
    Exceptions {
        why: "programs reach a map's tree only through the map; the tests of crates/vm/src/map/tree have a tree of \
            their own",
        instead: None,
        functions: &[
            "map::tree::Cursor::before",
            "map::tree::NodeAlloc::alloc",
            "map::tree::Tree::check",
            "map::tree::Tree::commit",
            "map::tree::Tree::first_fit",
            "map::tree::Tree::first_fit_visits",
            "map::tree::Tree::new",
            "map::tree::Tree::prepare",
            "map::tree::node_bytes",
        ],
    },
    Exceptions {
        why: "the only tree of intervals holds an object's mappings, and no function returns it",
        instead: None,
        functions: &[
            "object::interval::Interval::age",
            "object::interval::Interval::end",
            "object::interval::Interval::links",
            "object::interval::Interval::start",
        ],
    },
    Exceptions {
        why: "only the owner of a frame writes its descriptor",
        instead: Some("tables"),
        functions: &["phys::page::Page::set", "phys::page::Page::set_kind"],
    },
    Exceptions {
        why: "only the owner of a frame links its descriptor",
        instead: None,
        functions: &["phys::page::Page::set_next"],
    },
];

/// The beginning of the demangled name of a caller or implementor.
const CRATE: &str = "quire_fuzz::";
const TARGET: &str = "embedder";
const CORE: &str = "quire_vm::";

/// A function: its type or trait, if it has one, and its own name.
type Function = (Option<String>, String);

/// Compares the list of safe functions with the calls of the target.
pub fn run(context: &Context<'_>, done: &mut dyn FnMut(Check)) -> Result<()> {
    if !context.selects(NAME) {
        return Ok(());
    }
    let listed = api::safe_functions(context.places)?;
    let called = called(context.places, context.log("reach-build")?)?;
    let wrong = compare(&listed, &called, EXCEPTIONS);
    let excepted: usize = EXCEPTIONS.iter().map(|e| e.functions.len()).sum();
    let reached = |name: &&String| called.get(TARGET).is_some_and(|all| all.contains(&by_type(name)));
    let reached = listed.iter().filter(reached).count();
    fs::write(
        context.log_path(NAME),
        format!("{} safe functions, {} called, {excepted} exceptions\n", listed.len(), reached),
    )
    .doing(|| NAME)?;
    done(if wrong.is_empty() { Check::passed(NAME) } else { Check::failed(NAME, wrong.join("\n")) });
    Ok(())
}

/// Returns the functions of the core that each module of `crates/fuzz` calls or implements.
fn called(places: &Places, log: fs::File) -> Result<BTreeMap<String, BTreeSet<Function>>> {
    let target = places.target.join("reach");
    let mut command = Command::new("cargo");
    command.args(["rustc", "--profile", "structure", "--locked", "-p", "quire-fuzz", "--lib", "--color", "never"]);
    // Builds only the targets of the memory core.
    command.arg("--no-default-features");
    command.arg("--target-dir").arg(&target).current_dir(&places.root);
    // Mangled names must distinguish traits and types. These flags also keep the compiler from inlining
    // `#[inline(always)]` functions.
    command.env("RUSTFLAGS", "-Csymbol-mangling-version=v0 -Cno-prepopulate-passes -Cdebuginfo=0");
    command.args(["--", "--emit=obj", "-Ccodegen-units=1"]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    if !command.status().doing(|| "cannot run cargo")?.success() {
        return Err(Failure::usage("quire-fuzz did not build: see reach-build in target/test-logs"));
    }
    let deps = target.join("structure/deps");
    let mut newest = None;
    for entry in fs::read_dir(&deps).doing(|| deps.display())? {
        let path = entry.doing(|| deps.display())?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.starts_with("quire_fuzz-") && name.ends_with(".o") {
            let written = path.metadata().and_then(|m| m.modified()).doing(|| path.display())?;
            newest = newest.max(Some((written, path)));
        }
    }
    let (_, path) = newest.ok_or_else(|| Failure::usage(format_args!("{}: no object", deps.display())))?;
    let bytes = fs::read(&path).doing(|| path.display())?;
    let file = object::File::parse(&*bytes).doing(|| path.display())?;
    let mut called: BTreeMap<String, BTreeSet<Function>> = BTreeMap::new();
    let mut add = |module: Option<String>, function: Option<Function>| {
        if let (Some(module), Some(function)) = (module, function) {
            called.entry(module).or_default().insert(function);
        }
    };
    for (caller, callee) in calls(&file) {
        add(module_of(&plain(&caller)), function_of(&plain(&callee)));
    }
    for symbol in file.symbols().filter(|s| s.kind() == SymbolKind::Text && s.is_definition()) {
        let name = plain(symbol.name().unwrap_or_default());
        add(module_of(&name), function_of(&name));
    }
    Ok(called)
}

/// Returns the module of `crates/fuzz` that contains a function, or the type of which the function is a method.
fn module_of(name: &str) -> Option<String> {
    let rest = name.trim_start_matches(['<', '&']).strip_prefix(CRATE)?;
    Some(rest.split("::").next().unwrap_or_default().to_owned())
}

/// Returns a function of the core by its demangled name, or `None` for a closure.
fn function_of(name: &str) -> Option<Function> {
    let Some(inner) = name.strip_prefix('<') else {
        let path = without_arguments(name.strip_prefix(CORE)?);
        let last = path.rsplit("::").next()?.to_owned();
        return (!path.contains('{')).then_some((None, last));
    };
    let (of, rest) = inner.split_at(closing(inner)?);
    let of = of.rsplit_once(" as ").map_or(of, |(_, of)| of).strip_prefix(CORE)?;
    let of = without_arguments(of).rsplit("::").next()?.to_owned();
    let rest = without_arguments(rest.strip_prefix(">::")?);
    (!rest.contains("::") && !rest.contains('{')).then_some((Some(of), rest))
}

/// Returns the position of the bracket that closes the bracket before `text`.
fn closing(text: &str) -> Option<usize> {
    let mut depth = 0usize;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'<' => depth += 1,
            // The `>` of an arrow closes nothing.
            b'>' if text[..at].ends_with('-') => {}
            b'>' => match depth.checked_sub(1) {
                Some(less) => depth = less,
                None => return Some(at),
            },
            _ => {}
        }
    }
    None
}

/// Returns a path without its type arguments and the `::` before them.
fn without_arguments(path: &str) -> String {
    let mut plain = String::new();
    let mut rest = path;
    while let Some((before, behind)) = rest.split_once('<') {
        plain.push_str(before.strip_suffix("::").unwrap_or(before));
        rest = closing(behind).map_or("", |at| &behind[at + 1..]);
    }
    plain + rest
}

/// Returns the differences, one line for each.
fn compare(
    listed: &BTreeSet<String>,
    called: &BTreeMap<String, BTreeSet<Function>>,
    exceptions: &[Exceptions],
) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut names: BTreeMap<Function, &str> = BTreeMap::new();
    for name in listed {
        if let Some(other) = names.insert(by_type(name), name) {
            wrong.push(format!("the names {other} and {name} are equal without their modules"));
        }
    }
    let calls = |module: &str, name: &str| called.get(module).is_some_and(|all| all.contains(&by_type(name)));
    for Exceptions { why, instead, functions } in exceptions {
        for name in *functions {
            if !listed.contains(*name) {
                wrong.push(format!(
                    "{name} is an exception ({why}), but the core has no such safe function; remove the exception"
                ));
            } else if calls(TARGET, name) {
                wrong.push(format!("{name} is an exception ({why}), but the target calls it; remove the exception"));
            } else if let Some(other) = instead.filter(|other| !calls(other, name)) {
                wrong.push(format!("{name} is an exception ({why}), but the target {other} does not call it"));
            }
        }
    }
    let excepted: BTreeSet<_> = exceptions.iter().flat_map(|e| e.functions.iter().copied()).collect();
    let missing = listed.iter().filter(|name| !excepted.contains(name.as_str()) && !calls(TARGET, name));
    wrong.extend(missing.map(|name| format!("the target does not call {name}; call it in crates/fuzz/src/embedder")));
    wrong
}

/// Converts a path of the list to the form of [`function_of`].
fn by_type(path: &str) -> Function {
    let mut parts = path.rsplit("::");
    let name = parts.next().unwrap_or_default().to_owned();
    // A lowercase name is a module's, not a type's.
    (parts.next().filter(|of| of.starts_with(char::is_uppercase)).map(str::to_owned), name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_is_found_in_each_form_of_a_demangled_name() {
        let of = |name: &str| function_of(name).map(|(of, name)| (of.unwrap_or_default(), name));
        let is = |of: &str, name: &str| Some((of.to_owned(), name.to_owned()));
        assert_eq!(of("<quire_vm::map::space::Space<a::B<c::D>>>::map"), is("Space", "map"));
        assert_eq!(of("<quire_vm::object::ObjectRef<a::B>>::read::<()>"), is("ObjectRef", "read"));
        assert_eq!(of("<a::B<c::D> as quire_vm::machine::phys::Phys>::pfn_of"), is("Phys", "pfn_of"));
        assert_eq!(of("quire_vm::map::tree::node::node_bytes::<A, 11>"), is("", "node_bytes"));
        assert_eq!(of("<quire_vm::map::kernel::KernelMap<A>>::each::<fn(u64) -> u8>"), is("KernelMap", "each"));
        for none in [
            "<quire_vm::map::space::Space<A>>::map::{closure#0}",
            "<quire_vm::map::space::SpaceRef<A> as core::ops::deref::Deref>::deref",
            "core::ptr::drop_in_place::<quire_vm::map::space::SpaceRef<A>>",
            "quire_sync::hooks::relax",
        ] {
            assert_eq!(of(none), None, "{none}");
        }
        assert_eq!(module_of("<quire_fuzz::embedder::pagers::Disk as quire_vm::p::Pager>::fill").unwrap(), TARGET);
        assert_eq!(module_of("<quire_vm::X<quire_fuzz::embedder::Y>>::f"), None);
    }

    #[test]
    fn uncalled_functions_and_unused_exceptions_are_reported() {
        let listed = ["Space::map", "Space::unmap", "a::b"].map(str::to_owned).into();
        let space = |name: &str| (Some("Space".to_owned()), name.to_owned());
        let called = |all: &[Function]| [(TARGET.to_owned(), all.iter().cloned().collect())].into();
        let all = [space("map"), space("unmap"), (None, "b".to_owned())];
        assert_eq!(compare(&listed, &called(&all), &[]), [""; 0]);
        assert_eq!(compare(&listed, &called(&all[1..]), &[]).len(), 1);
        let exception = |functions, instead| [Exceptions { why: "of a reason", instead, functions }];
        assert_eq!(compare(&listed, &called(&all[1..]), &exception(&["Space::map"], None)), [""; 0]);
        assert_eq!(compare(&listed, &called(&all[1..]), &exception(&["Space::map"], Some("index"))).len(), 1);
        assert_eq!(compare(&listed, &called(&all), &exception(&["Space::map"], None)).len(), 1);
        assert_eq!(compare(&listed, &called(&all), &exception(&["Space::gone"], None)).len(), 1);
        let twice = ["a::Cursor::key", "b::Cursor::key"].map(str::to_owned).into();
        assert!(compare(&twice, &called(&[]), &[])[0].contains("without their modules"));
    }
}
