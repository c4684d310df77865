//! Finds the owner of a line of kernel memory, and the code that accessed the line.

use std::{borrow::Cow, cell::RefCell, collections::HashMap, fs, path::Path};

use object::{Object, ObjectSection, ObjectSymbol, SymbolKind};

use super::records::Line;
use crate::failure::{Doing, Failure, Result};

type Reader = gimli::EndianArcSlice<gimli::RunTimeEndian>;

/// The address of the kernel's image (`layout.rs` of the kernel). Statics have addresses above it.
const IMAGE: u64 = 0xffff_ffff_8000_0000;
/// The address range of the kernel's map, which contains the stacks.
const MAP: std::ops::Range<u64> = 0xffff_c000_0000_0000..0xffff_c800_0000_0000;
const PAGE: u64 = 4096;

/// The beginnings of the names of functions that only work on behalf of their callers. A label names the caller of such
/// a function instead, if the caller is known.
const CARRIERS: [&str; 9] = [
    "core::",
    "alloc::",
    "quire_heap::",
    "intrusive_collections::",
    "quire_sync::",
    "hashbrown::",
    "smallvec::",
    "compiler_builtins::",
    "quire_kernel::memory::bytes::",
];

/// A range of frames, and their use in the words of the kernel.
#[derive(Debug, PartialEq, Eq)]
struct Frames {
    first: u64,
    count: u64,
    used: String,
}

/// The kernel's debug information, and the uses of its memory.
pub struct Sites {
    dwarf: addr2line::Context<Reader>,
    /// Statics by address: address, size, name.
    statics: Vec<(u64, u64, String)>,
    /// Functions by address, for assembly, which has no debug information.
    symbols: Vec<(u64, String)>,
    frames: Vec<Frames>,
    functions: RefCell<HashMap<u64, String>>,
}

impl Sites {
    /// Reads the kernel's ELF file, and the lines `frames FIRST COUNT USE` in the program's output.
    pub fn read(kernel: &Path, program: &str) -> Result<Self> {
        let about = || format!("cannot read {}", kernel.display());
        let bytes = fs::read(kernel).doing(about)?;
        let file = object::File::parse(&*bytes).doing(about)?;
        let section = |id: gimli::SectionId| -> std::result::Result<Reader, object::Error> {
            let data = match file.section_by_name(id.name()) {
                Some(section) => section.uncompressed_data()?,
                None => Cow::Borrowed(&[][..]),
            };
            Ok(Reader::new(data.as_ref().into(), gimli::RunTimeEndian::Little))
        };
        let dwarf = gimli::Dwarf::load(section).doing(about)?;
        let dwarf = addr2line::Context::from_dwarf(dwarf).doing(about)?;
        let mut statics: Vec<(u64, u64, String)> = file
            .symbols()
            .filter(|s| s.kind() == SymbolKind::Data && s.address() >= IMAGE)
            .filter_map(|s| Some((s.address(), s.size(), format!("{:#}", rustc_demangle::demangle(s.name().ok()?)))))
            .collect();
        statics.sort_unstable();
        let mut symbols: Vec<(u64, String)> = file
            .symbols()
            .filter(|s| s.kind() != SymbolKind::Data && s.address() >= IMAGE)
            .filter_map(|s| Some((s.address(), plain(&format!("{:#}", rustc_demangle::demangle(s.name().ok()?))))))
            .filter(|(_, name)| !name.is_empty())
            .collect();
        symbols.sort_unstable();
        let frames: Option<Vec<Frames>> =
            program.lines().filter_map(|l| l.strip_prefix("frames ")).map(frames).collect();
        let frames = frames.filter(|f| !f.is_empty());
        let frames =
            frames.ok_or_else(|| Failure::machine("the kernel's image has no record of the kinds of frames"))?;
        Ok(Self { dwarf, statics, symbols, frames, functions: RefCell::default() })
    }

    /// The label of a shared line: the line's owner, and the function that stored into it. The list of expected
    /// conflicts uses these labels.
    pub fn label(&self, line: &Line) -> String {
        format!("{}, {}", self.owner(line), self.function(line.writer.pc))
    }

    /// A description of a shared line: its label, the addresses, and the access by the other CPU.
    pub fn describe(&self, line: &Line) -> String {
        format!(
            "CPU {} stores at {:#x} in {}; the other one comes from {} (line {:#x}, {})",
            line.by,
            line.writer.at,
            self.stack(line.writer.pc),
            self.stack(line.toucher.pc),
            line.physical,
            self.owner(line)
        )
    }

    fn owner(&self, line: &Line) -> String {
        let at = line.writer.at;
        if at >= IMAGE {
            let last = self.statics.partition_point(|(start, ..)| *start <= at);
            let found = self.statics[..last].iter().rev().take(4).find(|(start, size, _)| at < start + size);
            return found.map_or("static".to_owned(), |(.., name)| format!("static {name}"));
        }
        if MAP.contains(&at) {
            return "stack".to_owned();
        }
        let frame = line.physical / PAGE;
        let last = self.frames.partition_point(|f| f.first <= frame);
        let found = self.frames[..last].last().filter(|f| frame < f.first + f.count);
        let Some(found) = found else { return "free memory".to_owned() };
        match found.used.split(' ').collect::<Vec<_>>()[..] {
            // The function in the label identifies a heap object. The object's size is left out of the label, because
            // the size changes with every new field.
            ["slab", label, _] => {
                label.split_once('-').map_or(label, |(kind, _)| if kind == "heap" { kind } else { label }).to_owned()
            }
            _ => found.used.clone(),
        }
    }

    /// The innermost function at `pc` that does not only work on behalf of its callers.
    fn function(&self, pc: u64) -> String {
        if let Some(known) = self.functions.borrow().get(&pc) {
            return known.clone();
        }
        let frames = self.frames_of(pc);
        let found = frames.iter().find(|f| !CARRIERS.iter().any(|c| f.starts_with(c))).or(frames.last());
        let name = found.cloned().unwrap_or_else(|| format!("{pc:#x}"));
        self.functions.borrow_mut().insert(pc, name.clone());
        name
    }

    fn stack(&self, pc: u64) -> String {
        let frames = self.frames_of(pc);
        if frames.is_empty() { format!("{pc:#x}") } else { frames.join(" < ") }
    }

    /// The functions at `pc`, innermost first. There are several if calls were inlined.
    fn frames_of(&self, pc: u64) -> Vec<String> {
        let mut names = Vec::new();
        if let Ok(mut frames) = self.dwarf.find_frames(pc).skip_all_loads() {
            while let Ok(Some(frame)) = frames.next() {
                if let Some(name) = frame.function.as_ref().and_then(|f| f.demangle().ok()) {
                    names.push(plain(&name));
                }
            }
        }
        if names.is_empty() {
            let last = self.symbols.partition_point(|(at, _)| *at <= pc);
            names.extend(self.symbols[..last].last().map(|(_, name)| name.clone()));
        }
        names
    }
}

fn frames(line: &str) -> Option<Frames> {
    let (first, rest) = line.split_once(' ')?;
    let (count, used) = rest.split_once(' ')?;
    let hex = |word| u64::from_str_radix(word, 16).ok();
    Some(Frames { first: hex(first)?, count: hex(count)?, used: used.to_owned() })
}

/// The path of a function, without type parameters, without its trait, and without the compiler's hash.
pub fn plain(name: &str) -> String {
    let mut out = String::new();
    let mut rest = name;
    // `<Type as Trait>::function`
    if let Some(inner) = rest.strip_prefix('<')
        && let Some(end) = closing(inner)
    {
        let kind = inner[..end].split(" as ").next().unwrap_or_default();
        out = plain(kind);
        rest = &inner[end + 1..];
    }
    let mut depth = 0u32;
    for c in rest.chars() {
        match c {
            '<' => depth += 1,
            '>' => depth = depth.saturating_sub(1),
            c if depth == 0 => out.push(c),
            _ => {}
        }
    }
    let out = out.replace("::::", "::");
    let out = out.trim_end_matches("::");
    match out.rsplit_once("::h") {
        Some((path, hash)) if hash.len() == 16 && hash.bytes().all(|b| b.is_ascii_hexdigit()) => path.to_owned(),
        _ => out.to_owned(),
    }
}

/// The position of the bracket that closes a bracket opened just before `text`.
fn closing(text: &str) -> Option<usize> {
    let mut depth = 1;
    for (at, c) in text.char_indices() {
        match c {
            '<' => depth += 1,
            // The `>` of an arrow in a function's type is no closing bracket.
            '>' if !text[..at].ends_with('-') => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(at);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_lose_their_parameters_and_hashes() {
        for (name, wanted) in [
            (
                "<quire_task::scheduler::Scheduler<quire_kernel::machine::Machine>>::enqueue",
                "quire_task::scheduler::Scheduler::enqueue",
            ),
            ("<A<B> as C<D>>::f::<E>", "A::f"),
            ("quire_vm::fault::<impl quire_vm::vm::Vm<M>>::fault", "quire_vm::fault::fault"),
            ("a::b::h0123456789abcdef", "a::b"),
        ] {
            assert_eq!(plain(name), wanted);
        }
    }

    #[test]
    fn runs_of_frames_are_read() {
        let run = frames("1f 8 slab heap-768 768").unwrap();
        assert_eq!((run.first, run.count, run.used.as_str()), (31, 8, "slab heap-768 768"));
        assert!(frames("zz 8 table").is_none() && frames("12").is_none());
    }
}
