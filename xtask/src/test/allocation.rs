//! Checks that the kernel cannot allocate infallibly (relies on C10). Functions that end the program when memory is
//! exhausted must not be linked into it.
//!
//! All infallible functions of `alloc` end in a few functions that do not return. The self-checking kernel is linked
//! without link-time optimisation, function by function. So it contains one of these functions if and only if something
//! refers to it.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use object::{Object, ObjectSection, ObjectSymbol, RelocationTarget, read::archive::ArchiveFile};

use super::{Context, verdict::Check};
use crate::{
    build,
    failure::{Doing, Failure, Result},
    setup::toolchain::{KERNEL_TARGET, Toolchain},
};

/// The functions that end the program when an infallible function of `alloc` cannot allocate: names without the hash.
const ENDS: [&str; 4] = [
    "alloc::alloc::handle_alloc_error",
    "alloc::raw_vec::handle_error",
    "alloc::raw_vec::capacity_overflow",
    "__rust_alloc_error_handler",
];

const KERNEL: &str = "allocation/the kernel links no function that panics without memory";
const SEEDED: &str = "allocation/an infallible container in a kernel crate is found";

/// The names of both checks. The first checks the kernel, and the second checks that the first finds an error.
pub fn names(_: &Context<'_>) -> Result<Vec<String>> {
    Ok(vec![KERNEL.into(), SEEDED.into()])
}

/// Checks the kernel, and a crate with a deliberate error.
pub fn run(context: &Context<'_>, done: &mut dyn FnMut(Check)) -> Result<()> {
    if context.selects(KERNEL) {
        let kernel = build::checked_kernel(context.places)?;
        let linked = linked(&kernel)?;
        done(Check::of(KERNEL, if linked.is_empty() { Ok(()) } else { Err(report(&linked, &referrers_of(&kernel)?)) }));
    }
    if context.selects(SEEDED) {
        done(Check::of(SEEDED, seeded(context)?));
    }
    Ok(())
}

/// Returns the members of `ENDS` that an executable contains.
fn linked(kernel: &Path) -> Result<BTreeSet<String>> {
    let bytes = fs::read(kernel).doing(|| format!("cannot read {}", kernel.display()))?;
    let file = object::File::parse(&*bytes).doing(|| format!("{} is no kernel", kernel.display()))?;
    let defined: Vec<String> =
        file.symbols().filter(|s| s.is_definition()).filter_map(|s| s.name().ok().map(plain)).collect();
    // An executable without symbols would always pass.
    if !defined.iter().any(|name| name.contains("quire_heap")) {
        return Err(Failure::usage(format!("{} has no symbols", kernel.display())));
    }
    Ok(defined.into_iter().filter(|name| is_end(name)).collect())
}

fn report(linked: &BTreeSet<String>, referrers: &BTreeSet<String>) -> String {
    let list = |all: &BTreeSet<String>| all.iter().map(|name| format!("\n  {name}")).collect::<String>();
    format!("linked:{}\nreferred to by:{}", list(linked), list(referrers))
}

/// Demangles a name and removes its hash.
fn plain(name: &str) -> String {
    format!("{:#}", rustc_demangle::demangle(name))
}

fn is_end(name: &str) -> bool {
    ENDS.iter().any(|end| name.contains(end))
}

/// Returns the functions, in the libraries beside `kernel`, that refer to a member of `ENDS`. Functions of `alloc`
/// itself are left out.
fn referrers_of(kernel: &Path) -> Result<BTreeSet<String>> {
    let libraries = kernel.with_file_name("deps");
    let entries = fs::read_dir(&libraries).doing(|| format!("cannot read {}", libraries.display()))?;
    let mut all = BTreeSet::new();
    for path in entries.filter_map(|e| Some(e.ok()?.path())) {
        if path.extension().is_some_and(|e| e == "rlib") {
            all.extend(referrers(&path)?);
        }
    }
    Ok(all)
}

/// Returns the functions of a library that refer to a member of `ENDS`.
fn referrers(library: &Path) -> Result<BTreeSet<String>> {
    let doing = || format!("cannot read {}", library.display());
    let bytes = fs::read(library).doing(doing)?;
    let archive = ArchiveFile::parse(&*bytes).doing(doing)?;
    let mut all = BTreeSet::new();
    for member in archive.members() {
        let member = member.doing(doing)?;
        // The archive also contains metadata, which does not parse as an object.
        if let Ok(file) = object::File::parse(member.data(&*bytes).doing(doing)?) {
            collect(&file, &mut all);
        }
    }
    Ok(all)
}

fn collect(file: &object::File<'_>, all: &mut BTreeSet<String>) {
    let name = |symbol: object::SymbolIndex| file.symbol_by_index(symbol).ok()?.name().ok().map(plain);
    for section in file.sections() {
        let refers = section.relocations().any(|(_, relocation)| match relocation.target() {
            RelocationTarget::Symbol(symbol) => name(symbol).is_some_and(|name| is_end(&name)),
            _ => false,
        });
        if refers {
            // Each function has its own section, whose name contains the function's name.
            let section = section.name().unwrap_or_default();
            let function = section.strip_prefix(".text.").unwrap_or(section);
            all.insert(plain(function.strip_prefix("unlikely.").unwrap_or(function)));
        }
    }
}

/// Tests the check on several small libraries, some of which allocate infallibly.
fn seeded(context: &Context<'_>) -> Result<std::result::Result<(), String>> {
    const HEAD: &str = "#![no_std]\nextern crate alloc;\nuse alloc::{collections::BTreeMap, sync::Arc, vec::Vec};\n";
    let cases = [
        ("arc", "pub fn made(n: u32) -> Arc<u32> { Arc::new(n) }", true),
        ("push", "pub fn made(v: &mut Vec<u32>) { v.push(1) }", true),
        ("map", "pub fn made(m: &mut BTreeMap<u32, u32>) { m.insert(1, 2); }", true),
        ("reserve", "pub fn made(v: &mut Vec<u32>) -> bool { v.try_reserve(1).is_ok() }", false),
    ];
    let folder = tempfile::tempdir().doing(|| "cannot make a directory".to_string())?;
    for (name, code, found) in cases {
        let source = folder.path().join(format!("{name}.rs"));
        fs::write(&source, format!("{HEAD}{code}")).doing(|| format!("cannot write {}", source.display()))?;
        let library = compile(context, &source)?;
        let referrers = referrers(&library)?;
        if found == referrers.is_empty() {
            return Ok(Err(format!("{name}: {}", report(&BTreeSet::new(), &referrers))));
        }
    }
    Ok(Ok(()))
}

/// Compiles a file as the kernel's crates are compiled.
fn compile(context: &Context<'_>, source: &Path) -> Result<PathBuf> {
    let library = source.with_extension("rlib");
    let mut command: Command = Toolchain::for_kernel(context.places)?.rustc();
    command.args(["--crate-type", "rlib", "--edition", "2024", "-Copt-level=3", "-Cpanic=abort", "-Awarnings"]);
    command.args(["--target", KERNEL_TARGET, "-o"]).arg(&library).arg(source);
    let out = command.output().doing(|| "cannot run rustc".to_string())?;
    if !out.status.success() {
        return Err(Failure::usage(String::from_utf8_lossy(&out.stderr).into_owned()));
    }
    Ok(library)
}
