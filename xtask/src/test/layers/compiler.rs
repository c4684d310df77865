//! Finds which modules use which others, as the compiler knows it: calls and types of a build without any inlining.
//!
//! Calls are the relocations of a function's section, so a re-export or an `impl` in another folder cannot hide them.
//! The debug information gives the file of each function, and the types of its parameters, results and locals.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet, HashMap},
    fs,
    path::{Path, PathBuf},
    process::Stdio,
};

use gimli::{
    DW_AT_abstract_origin, DW_AT_decl_file, DW_AT_linkage_name, DW_AT_low_pc, DW_AT_name, DW_AT_specification,
};
use gimli::{DW_AT_type, EndianSlice, LittleEndian};
use object::{Object, ObjectSection, ObjectSymbol, RelocationTarget, SymbolKind, read::archive::ArchiveFile};

use super::modules::Module;
use crate::{
    failure::{Doing, Failure, Result},
    places::Places,
    setup::toolchain::{KERNEL_TARGET, Toolchain},
};

/// One use: the using module, the used module, and the items.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Use {
    /// The module of the caller, or of the function or type that holds a value of the used type.
    pub from: Module,
    /// The module of the callee, or of the used type.
    pub to: Module,
    /// A description of the two items, for the report.
    pub what: String,
}

/// The profile of this kernel build, without inlining and with complete debug information.
const PROFILE: &str = "structure";

/// Builds the kernel's crates. Returns their objects: the libraries, and the object of the kernel itself.
pub fn build(places: &Places) -> Result<Vec<PathBuf>> {
    let target = places.target.join("kernel");
    let out = Toolchain::for_kernel(places)?
        .cargo(places, "rustc")
        .args(["--profile", PROFILE, "--locked", "-p", "quire-kernel", "--bin", "quire-kernel"])
        .args(["--target", KERNEL_TARGET, "--color", "never", "--target-dir"])
        .arg(&target)
        // One codegen unit is used, because with several the objects would have several names.
        .args(["--", "--emit=obj", "-Ccodegen-units=1"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .output()
        .doing(|| "cannot run cargo".to_string())?;
    if !out.status.success() {
        eprint!("{}", String::from_utf8_lossy(&out.stderr));
        return Err(Failure::usage("the kernel did not build: see above"));
    }
    newest(&target.join(KERNEL_TARGET).join(PROFILE).join("deps"))
}

/// Returns the newest library of each of our crates, and the newest object of the kernel.
fn newest(deps: &Path) -> Result<Vec<PathBuf>> {
    let doing = || format!("cannot read {}", deps.display());
    let mut found: BTreeMap<String, (std::time::SystemTime, PathBuf)> = BTreeMap::new();
    for entry in fs::read_dir(deps).doing(doing)? {
        let path = entry.doing(doing)?.path();
        let Some(name) = path.file_name().and_then(|n| n.to_str()) else { continue };
        let ours = name.starts_with("libquire_") && name.ends_with(".rlib")
            || name.starts_with("quire_kernel-") && name.ends_with(".o");
        let Some((stem, _)) = name.rsplit_once('-').filter(|_| ours) else { continue };
        let written = path.metadata().and_then(|m| m.modified()).doing(doing)?;
        let newer = found.get(stem).is_none_or(|(old, _)| *old < written);
        if newer {
            found.insert(stem.to_owned(), (written, path));
        }
    }
    Ok(found.into_values().map(|(_, path)| path).collect())
}

/// Returns the uses that `objects` contain, each once.
pub fn uses(objects: &[PathBuf]) -> Result<BTreeSet<Use>> {
    let mut program = Program::default();
    for path in objects {
        let doing = || format!("cannot read {}", path.display());
        let bytes = fs::read(path).doing(doing)?;
        if path.extension().is_some_and(|e| e == "rlib") {
            let archive = ArchiveFile::parse(&*bytes).doing(doing)?;
            for member in archive.members() {
                let data = member.doing(doing)?.data(&*bytes).doing(doing)?;
                // The archive also contains metadata, which does not parse as an object.
                if let Ok(file) = object::File::parse(data) {
                    program.read(&file)?;
                }
            }
        } else {
            program.read(&object::File::parse(&*bytes).doing(doing)?)?;
        }
    }
    Ok(program.uses())
}

/// A function of the program.
#[derive(Debug, Clone)]
struct Function {
    module: Module,
    /// The modules of its type arguments. The function may call methods of these modules, because its caller has chosen
    /// the types.
    passed: BTreeSet<Module>,
}

/// The bytes that were read so far from the objects.
#[derive(Default)]
struct Program {
    /// The functions, by linkage name.
    functions: HashMap<String, Function>,
    /// The calls: linkage names of caller and callee.
    calls: BTreeSet<(String, String)>,
    types: BTreeSet<Use>,
}

impl Program {
    fn uses(self) -> BTreeSet<Use> {
        let mut all = self.types;
        for (caller, callee) in &self.calls {
            let (Some(from), Some(to)) = (self.functions.get(caller), self.functions.get(callee)) else { continue };
            let passed = is_closure(callee) || from.passed.contains(&to.module) && is_method_of_trait(callee);
            if from.module == to.module || passed {
                continue;
            }
            let what = format!("{} calls {}", plain(caller), plain(callee));
            all.insert(Use { from: from.module.clone(), to: to.module.clone(), what });
        }
        all
    }

    fn read(&mut self, file: &object::File<'_>) -> Result<()> {
        self.calls.extend(calls(file));
        let sections = gimli::DwarfSections::load(|id| Ok::<_, Failure>(relocated(file, id.name())))?;
        let dwarf = sections.borrow(|section| EndianSlice::new(section, LittleEndian));
        let mut units = dwarf.units();
        while let Some(header) = units.next().doing(about)? {
            let unit = dwarf.unit(header).doing(about)?;
            Unit::read(&dwarf, &unit)?.add_to(self);
        }
        Ok(())
    }
}

/// Returns the linkage names of callers and callees of an object in which each function has its own section.
pub fn calls(file: &object::File<'_>) -> BTreeSet<(String, String)> {
    let mut owners = HashMap::new();
    for symbol in file.symbols().filter(|s| s.kind() == SymbolKind::Text && s.is_definition()) {
        if let (Some(section), Ok(name)) = (symbol.section_index(), symbol.name()) {
            owners.insert(section, name.to_owned());
        }
    }
    let mut calls = BTreeSet::new();
    for section in file.sections() {
        let Some(caller) = owners.get(&section.index()) else { continue };
        for (_, relocation) in section.relocations() {
            let RelocationTarget::Symbol(symbol) = relocation.target() else { continue };
            let Ok(symbol) = file.symbol_by_index(symbol) else { continue };
            let callee = match symbol.kind() {
                // A relocation may name a function of the same object by its section.
                SymbolKind::Section => symbol.section_index().and_then(|s| owners.get(&s)).map(String::as_str),
                _ => symbol.name().ok(),
            };
            if let Some(callee) = callee.filter(|c| !c.is_empty() && c != caller) {
                calls.insert((caller.clone(), callee.to_owned()));
            }
        }
    }
    calls
}

fn about() -> String {
    "the kernel's debug information".to_string()
}

/// Returns a section with its relocations applied, as a linker at address zero would do. Debug sections of objects need
/// this, because they keep their values in relocations.
fn relocated(file: &object::File<'_>, name: &str) -> Cow<'static, [u8]> {
    let Some(section) = file.section_by_name(name) else { return Cow::Borrowed(&[]) };
    let Ok(data) = section.uncompressed_data() else { return Cow::Borrowed(&[]) };
    let mut data = data.into_owned();
    for (at, relocation) in section.relocations() {
        let RelocationTarget::Symbol(symbol) = relocation.target() else { continue };
        let symbol = file.symbol_by_index(symbol).ok();
        // Only offsets into other debug sections are needed, not addresses of code.
        let base = symbol.filter(|s| s.kind() == SymbolKind::Section).map_or(0, |s| s.address());
        let value = base.wrapping_add_signed(relocation.addend()).to_le_bytes();
        let (at, size) = (at as usize, usize::from(relocation.size() / 8));
        if let (Some(to), Some(value)) = (data.get_mut(at..at + size), value.get(..size)) {
            to.copy_from_slice(value);
        }
    }
    Cow::Owned(data)
}

type Bytes<'a> = EndianSlice<'a, LittleEndian>;

/// An entry of the debug information, with the fields that this module needs.
#[derive(Debug, Clone)]
struct Entry {
    tag: gimli::DwTag,
    parent: usize,
    name: String,
    linkage: Option<String>,
    file: Option<u64>,
    type_at: Option<usize>,
    /// The entry that has more attributes of the same function.
    of: Option<usize>,
    has_code: bool,
}

/// A unit of the debug information. Links between entries are indices into `entries`.
struct Unit {
    entries: Vec<Entry>,
    /// The module of each source file.
    files: HashMap<u64, Module>,
}

impl Unit {
    fn read<'a>(dwarf: &gimli::Dwarf<Bytes<'a>>, unit: &gimli::Unit<Bytes<'a>>) -> Result<Self> {
        let text = |value: gimli::AttributeValue<Bytes<'a>>| {
            dwarf.attr_string(unit, value).map(|s| s.to_string_lossy().into_owned()).unwrap_or_default()
        };
        let mut files = HashMap::new();
        if let Some(program) = &unit.line_program {
            let header = program.header();
            for index in 0..=header.file_names().len() as u64 {
                let Some(file) = header.file(index) else { continue };
                let mut path = file.directory(header).map(text).unwrap_or_default();
                path.push('/');
                path.push_str(&text(file.path_name()));
                if let Some(module) = Module::of_file(&path) {
                    files.insert(index, module);
                }
            }
        }
        let mut entries: Vec<Entry> = Vec::new();
        let mut at: HashMap<usize, usize> = HashMap::new();
        let mut path: Vec<usize> = Vec::new();
        let mut cursor = unit.entries();
        while let Some(die) = cursor.next_dfs().doing(about)? {
            path.truncate(usize::try_from(die.depth()).unwrap_or_default());
            let here = |value| match value {
                gimli::AttributeValue::UnitRef(offset) => Some(offset.0),
                _ => None,
            };
            let link = |name| die.attr_value(name).and_then(here);
            entries.push(Entry {
                tag: die.tag(),
                parent: path.last().copied().unwrap_or(usize::MAX),
                name: die.attr_value(DW_AT_name).map(text).unwrap_or_default(),
                linkage: die.attr_value(DW_AT_linkage_name).map(text),
                file: die.attr_value(DW_AT_decl_file).and_then(|v| match v {
                    gimli::AttributeValue::FileIndex(index) => Some(index),
                    _ => None,
                }),
                type_at: link(DW_AT_type),
                of: link(DW_AT_specification).or(link(DW_AT_abstract_origin)),
                has_code: die.attr_value(DW_AT_low_pc).is_some(),
            });
            at.insert(die.offset().0, entries.len() - 1);
            path.push(entries.len() - 1);
        }
        // Replaces offsets by indices. An entry outside of the unit is not from our crates.
        for entry in &mut entries {
            entry.type_at = entry.type_at.and_then(|offset| at.get(&offset).copied());
            entry.of = entry.of.and_then(|offset| at.get(&offset).copied());
        }
        Ok(Self { entries, files })
    }

    /// Returns the entry with the name and the file of a function.
    fn declared(&self, entry: usize) -> usize {
        let mut at = entry;
        // The chain is at most: a definition, its abstract instance, its declaration.
        for _ in 0..3 {
            match self.entries[at].of {
                Some(next) => at = next,
                None => break,
            }
        }
        at
    }

    /// Returns the module in which a type is defined, from its namespaces.
    fn module_of_type(&self, entry: usize) -> Option<Module> {
        let mut names = Vec::new();
        let mut at = self.entries[entry].parent;
        while let Some(outer) = self.entries.get(at) {
            if outer.tag == gimli::DW_TAG_namespace {
                names.push(outer.name.as_str());
            }
            at = outer.parent;
        }
        names.reverse();
        Module::of_path(&names)
    }

    /// Returns the modules of all types inside a type: behind pointers, in arrays, as type arguments.
    fn modules(&self, entry: Option<usize>, children: &HashMap<usize, Vec<usize>>, depth: usize) -> BTreeSet<Module> {
        let mut all = BTreeSet::new();
        let Some(at) = entry.filter(|_| depth < 8) else { return all };
        let tag = self.entries[at].tag;
        if matches!(tag, gimli::DW_TAG_structure_type | gimli::DW_TAG_union_type | gimli::DW_TAG_enumeration_type) {
            all.extend(self.module_of_type(at));
            for child in children.get(&at).into_iter().flatten() {
                if self.entries[*child].tag == gimli::DW_TAG_template_type_parameter {
                    all.extend(self.modules(self.entries[*child].type_at, children, depth + 1));
                }
            }
        } else {
            all.extend(self.modules(self.entries[at].type_at, children, depth + 1));
        }
        all
    }

    /// Adds the functions, calls and types of this unit.
    fn add_to(&self, program: &mut Program) {
        let mut children: HashMap<usize, Vec<usize>> = HashMap::new();
        for (at, entry) in self.entries.iter().enumerate() {
            children.entry(entry.parent).or_default().push(at);
        }
        for at in 0..self.entries.len() {
            match self.entries[at].tag {
                gimli::DW_TAG_subprogram => self.add_function(at, &children, program),
                gimli::DW_TAG_structure_type | gimli::DW_TAG_union_type => self.add_type(at, &children, program),
                _ => {}
            }
        }
    }

    fn passed(&self, at: usize, children: &HashMap<usize, Vec<usize>>) -> BTreeSet<Module> {
        let of = [at, self.declared(at)];
        let own = of.iter().flat_map(|at| children.get(at).into_iter().flatten());
        own.filter(|child| self.entries[**child].tag == gimli::DW_TAG_template_type_parameter)
            .flat_map(|child| self.modules(self.entries[*child].type_at, children, 0))
            .collect()
    }

    /// Returns the module of a function, from its file. A closure that a macro made has the macro's file. So the module
    /// of a closure is that of the function around it.
    fn module_of_function(&self, at: usize) -> Option<Module> {
        let entry = &self.entries[at];
        if entry.name.starts_with("{closure") {
            let path = self.module_of_type(at)?;
            let around = self.files.values().filter(|m| m.krate == path.krate && path.path.starts_with(&m.path));
            return around.max_by_key(|m| m.path.len()).cloned();
        }
        entry.file.and_then(|file| self.files.get(&file)).cloned()
    }

    fn add_function(&self, at: usize, children: &HashMap<usize, Vec<usize>>, program: &mut Program) {
        let declared = &self.entries[self.declared(at)];
        let Some(module) = self.module_of_function(self.declared(at)) else { return };
        let passed = self.passed(at, children);
        let name = declared.linkage.clone().or_else(|| self.entries[at].linkage.clone());
        if self.entries[at].has_code {
            let mut inside = vec![at];
            while let Some(scope) = inside.pop() {
                for &child in children.get(&scope).into_iter().flatten() {
                    let entry = &self.entries[child];
                    match entry.tag {
                        gimli::DW_TAG_lexical_block => inside.push(child),
                        gimli::DW_TAG_inlined_subroutine => {
                            self.add_inlined(child, &module, &passed, &declared.name, program)
                        }
                        gimli::DW_TAG_formal_parameter | gimli::DW_TAG_variable => {
                            self.add_types(entry.type_at, &module, &passed, &declared.name, children, program);
                        }
                        _ => {}
                    }
                }
            }
            self.add_types(declared.type_at, &module, &passed, &declared.name, children, program);
        }
        if let Some(name) = name {
            // Only the instance with code has the function's type arguments.
            let known = program.functions.entry(name).or_insert_with(|| Function { module, passed: BTreeSet::new() });
            known.passed.extend(passed);
        }
    }

    fn add_inlined(&self, at: usize, from: &Module, passed: &BTreeSet<Module>, caller: &str, program: &mut Program) {
        let callee = &self.entries[self.declared(at)];
        let Some(to) = callee.file.and_then(|file| self.files.get(&file)) else { return };
        if to != from && !passed.contains(to) {
            let what = format!("{from}::{caller} inlines {to}::{}", callee.name);
            program.types.insert(Use { from: from.clone(), to: to.clone(), what });
        }
    }

    fn add_types(
        &self,
        type_at: Option<usize>,
        from: &Module,
        passed: &BTreeSet<Module>,
        user: &str,
        children: &HashMap<usize, Vec<usize>>,
        program: &mut Program,
    ) {
        // A type argument from a folder may bring further types of that folder into a generic function, through the
        // argument's traits. The caller has chosen the argument, so these types do not count as uses.
        let given = |to: &Module| passed.iter().any(|p| p.krate == to.krate && p.path.first() == to.path.first());
        for to in self.modules(type_at, children, 0) {
            if to != *from && !given(&to) {
                let what = format!("{from}::{user} has a value of a type of {to}");
                program.types.insert(Use { from: from.clone(), to, what });
            }
        }
    }

    fn add_type(&self, at: usize, children: &HashMap<usize, Vec<usize>>, program: &mut Program) {
        let Some(module) = self.module_of_type(at) else { return };
        let passed = self.passed(at, children);
        let name = self.entries[at].name.split('<').next().unwrap_or_default();
        if name.starts_with('{') {
            return;
        }
        for &child in children.get(&at).into_iter().flatten() {
            if self.entries[child].tag == gimli::DW_TAG_member {
                self.add_types(self.entries[child].type_at, &module, &passed, name, children, program);
            }
        }
    }
}

/// Whether the callee is a closure. A caller in another module has received the closure as an argument, so the call is
/// not counted as a use.
fn is_closure(callee: &str) -> bool {
    plain(callee).contains("{{closure}}")
}

/// Whether the callee is a method of a trait. A generic function calls the methods of its type arguments, which its
/// caller has chosen.
fn is_method_of_trait(callee: &str) -> bool {
    let name = plain(callee);
    name.starts_with('<') && name.contains(" as ")
}

/// Demangles a name and removes its hash.
pub fn plain(name: &str) -> String {
    format!("{:#}", rustc_demangle::demangle(name))
}
