//! The files that a program of the host needs in a guest: its interpreter and its libraries. The search uses the order
//! of the dynamic linker (ld.so(8)): `DT_RPATH`, `LD_LIBRARY_PATH`, `DT_RUNPATH`, `/etc/ld.so.conf`, the built-in
//! directories.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    env,
    ffi::{OsStr, OsString},
    fs,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Path, PathBuf},
};

use object::{
    Endianness, FileKind,
    elf::{self, FileHeader64},
    read::elf::{FileHeader, ProgramHeader},
};

/// The reason why a file cannot run, or why it cannot run without further files.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ElfError {
    /// The file is not in ELF format.
    #[error("not an executable: the file is not in ELF format")]
    NotElf,
    /// The file is for another processor or another word size.
    #[error("built for {0}; Quire runs x86-64 programs")]
    Architecture(&'static str),
    /// The file is an object file or a core dump.
    #[error("an ELF file, but not a program")]
    NotAProgram,
    /// The file's headers refer to places outside the file, or are invalid.
    #[error("a damaged ELF file ({0})")]
    Damaged(String),
    /// A library is missing.
    #[error("needs the library {}, which is not on this machine; add it with --copy", .0.display())]
    NoLibrary(OsString),
    /// A file could not be read.
    #[error("cannot read {0}")]
    Unreadable(PathBuf),
}

/// The other files that an ELF file needs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Needs {
    /// The interpreter of `PT_INTERP`; `None` for a static program.
    pub interpreter: Option<PathBuf>,
    /// The libraries of `DT_NEEDED`.
    pub libraries: Vec<OsString>,
    /// The value of `DT_RPATH`, which is used only if there is no `DT_RUNPATH`.
    pub rpath: Option<OsString>,
    /// The value of `DT_RUNPATH`.
    pub runpath: Option<OsString>,
    /// The address of the first instruction, as linked.
    pub entry: u64,
}

/// Reads the needs of the ELF file in `bytes`. Returns an error for a file that cannot run on x86-64 Linux.
pub fn needs(bytes: &[u8]) -> Result<Needs, ElfError> {
    if !bytes.starts_with(b"\x7fELF") {
        return Err(ElfError::NotElf);
    }
    let damaged = |e: object::Error| ElfError::Damaged(e.to_string());
    if !matches!(FileKind::parse(bytes).map_err(damaged)?, FileKind::Elf64) {
        return Err(ElfError::Architecture("a 32-bit processor"));
    }
    let header = FileHeader64::<Endianness>::parse(bytes).map_err(damaged)?;
    let endian = header.endian().map_err(damaged)?;
    match header.e_machine(endian) {
        elf::EM_X86_64 => {}
        elf::EM_AARCH64 => return Err(ElfError::Architecture("aarch64")),
        elf::EM_RISCV => return Err(ElfError::Architecture("riscv64")),
        _ => return Err(ElfError::Architecture("another processor")),
    }
    if !matches!(header.e_type(endian), elf::ET_EXEC | elf::ET_DYN) {
        return Err(ElfError::NotAProgram);
    }
    let mut found = Needs { entry: header.e_entry(endian), ..Needs::default() };
    for segment in header.program_headers(endian, bytes).map_err(damaged)? {
        if let Some(name) = segment.interpreter(endian, bytes).map_err(damaged)? {
            found.interpreter = Some(OsStr::from_bytes(name).into());
        }
        let Some(entries) = segment.dynamic(endian, bytes).map_err(damaged)? else { continue };
        read_dynamic(bytes, header, endian, entries, &mut found)?;
    }
    Ok(found)
}

fn read_dynamic(
    bytes: &[u8],
    header: &FileHeader64<Endianness>,
    endian: Endianness,
    entries: &[elf::Dyn64<Endianness>],
    found: &mut Needs,
) -> Result<(), ElfError> {
    let value = |tag: elf::DynamicTag| entries.iter().find(|e| e.d_tag.get(endian) == tag).map(|e| e.d_val.get(endian));
    let Some(table) = value(elf::DT_STRTAB) else { return Ok(()) };
    let segments = header.program_headers(endian, bytes).map_err(|e| ElfError::Damaged(e.to_string()))?;
    // The string table's address is virtual. The segment that contains it gives the table's offset in the file.
    let strings = segments
        .iter()
        .filter(|s| s.p_type(endian) == elf::PT_LOAD)
        .find_map(|s| {
            let into = table.checked_sub(s.p_vaddr(endian))?;
            (into < s.p_filesz(endian)).then(|| s.p_offset(endian).checked_add(into))?
        })
        .and_then(|at| bytes.get(usize::try_from(at).ok()?..))
        .ok_or_else(|| ElfError::Damaged("its string table lies outside the file".into()))?;
    let text = |offset: u64| -> Result<OsString, ElfError> {
        usize::try_from(offset)
            .ok()
            .and_then(|o| strings.get(o..)?.split(|b| *b == 0).next())
            .map(|s| OsStr::from_bytes(s).to_owned())
            .ok_or_else(|| ElfError::Damaged("a name lies outside".into()))
    };
    for entry in entries {
        let (tag, val) = (entry.d_tag.get(endian), entry.d_val.get(endian));
        if tag == elf::DT_NEEDED {
            found.libraries.push(text(val)?);
        } else if tag == elf::DT_RPATH {
            found.rpath = Some(text(val)?);
        } else if tag == elf::DT_RUNPATH {
            found.runpath = Some(text(val)?);
        }
    }
    Ok(())
}

/// The directories in which the host's dynamic linker searches.
#[derive(Debug, Clone)]
pub struct SearchPath {
    /// The directories of `LD_LIBRARY_PATH`, searched before `DT_RUNPATH`.
    pub environment: Vec<PathBuf>,
    /// The configured and built-in directories, searched last.
    pub system: Vec<PathBuf>,
}

impl SearchPath {
    /// The search path of the host.
    pub fn of_host() -> Self {
        let environment = env::var_os("LD_LIBRARY_PATH").iter().flat_map(env::split_paths).collect();
        let mut system = Vec::new();
        read_conf(Path::new("/etc/ld.so.conf"), 0, &mut system);
        for built_in in
            ["/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64", "/lib", "/usr/lib"]
        {
            system.push(built_in.into());
        }
        Self { environment, system }
    }
}

/// Reads `ld.so.conf`, following `include` (with `*` in the last part of the name).
fn read_conf(path: &Path, depth: u32, out: &mut Vec<PathBuf>) {
    let Ok(text) = fs::read_to_string(path) else { return };
    for line in text.lines().map(|l| l.split('#').next().unwrap_or_default().trim()).filter(|l| !l.is_empty()) {
        match line.strip_prefix("include") {
            Some(pattern) if depth < 8 => {
                let pattern = path.parent().unwrap_or(Path::new("/")).join(pattern.trim());
                let suffix = pattern.file_name().unwrap_or_default().to_string_lossy().replace('*', "");
                let Some(Ok(entries)) = pattern.parent().map(fs::read_dir) else { continue };
                let mut files: Vec<_> = entries.filter_map(|e| e.ok().map(|e| e.path())).collect();
                files.retain(|f| f.to_string_lossy().ends_with(&suffix));
                files.sort();
                files.iter().for_each(|f| read_conf(f, depth + 1, out));
            }
            Some(_) => {}
            None => out.push(line.into()),
        }
    }
}

/// All files that `program` needs, by guest path, each with its host path. The program itself is not included.
pub fn closure(program: &Path, search: &SearchPath) -> Result<BTreeMap<PathBuf, PathBuf>, ElfError> {
    let mut found: BTreeMap<PathBuf, PathBuf> = BTreeMap::new();
    let mut by_name: BTreeSet<OsString> = BTreeSet::new();
    let mut queue = VecDeque::from([program.to_owned()]);
    while let Some(file) = queue.pop_front() {
        let bytes = fs::read(&file).map_err(|_| ElfError::Unreadable(file.clone()))?;
        let needs = needs(&bytes)?;
        if let Some(interpreter) = &needs.interpreter {
            found.insert(interpreter.clone(), interpreter.clone());
        }
        for name in &needs.libraries {
            if !by_name.insert(name.clone()) {
                continue;
            }
            let path = find(name, &file, &needs, search).ok_or_else(|| ElfError::NoLibrary(name.clone()))?;
            found.insert(path.clone(), path.clone());
            queue.push_back(path);
        }
    }
    Ok(found)
}

/// Finds the host's file for the library `name` that `wanter` needs. `None` if there is none.
fn find(name: &OsStr, wanter: &Path, needs: &Needs, search: &SearchPath) -> Option<PathBuf> {
    if name.as_bytes().contains(&b'/') {
        return Some(PathBuf::from(name)).filter(|p| p.exists());
    }
    let origin = wanter.canonicalize().ok().and_then(|p| p.parent().map(Path::to_owned)).unwrap_or_default();
    let expand = |list: &Option<OsString>| -> Vec<PathBuf> {
        let list = list.clone().unwrap_or_default().into_vec();
        let expanded = |d: &[u8]| {
            [&b"${ORIGIN}"[..], b"$ORIGIN"]
                .iter()
                .fold(d.to_vec(), |d, word| replace(&d, word, origin.as_os_str().as_bytes()))
        };
        let directories = list.split(|b| *b == b':').filter(|d| !d.is_empty());
        directories.map(|d| PathBuf::from(OsString::from_vec(expanded(d)))).collect()
    };
    let rpath = if needs.runpath.is_none() { expand(&needs.rpath) } else { Vec::new() };
    rpath
        .into_iter()
        .chain(search.environment.iter().cloned())
        .chain(expand(&needs.runpath))
        .chain(search.system.iter().cloned())
        .map(|d| d.join(name))
        // A library of that name for another architecture is skipped, as in ld.so.
        .find(|p| fs::read(p).is_ok_and(|bytes| self::needs(&bytes).is_ok()))
}

/// Replaces every occurrence of `what` in `text` by `by`.
fn replace(text: &[u8], what: &[u8], by: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.windows(what.len()).position(|w| w == what) {
        out.extend(&rest[..at]);
        out.extend(by);
        rest = &rest[at + what.len()..];
    }
    out.extend(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_replaced_wherever_they_stand() {
        assert_eq!(replace(b"$O/a:$O", b"$O", b"\xff"), b"\xff/a:\xff");
        assert_eq!(replace(b"plain", b"$O", b"x"), b"plain");
    }

    #[test]
    fn a_dynamic_program_brings_its_interpreter_and_libraries() {
        let own = env::current_exe().unwrap();
        let found = closure(&own, &SearchPath::of_host()).unwrap();
        assert!(found.keys().any(|k| k.to_string_lossy().contains("ld-linux")), "{found:?}");
        assert!(found.keys().any(|k| k.to_string_lossy().contains("libc.so")), "{found:?}");
        assert!(found.values().all(|p| p.exists()));
    }

    #[test]
    fn a_script_is_no_elf_file() {
        assert_eq!(needs(b"#!/bin/sh\n"), Err(ElfError::NotElf));
        assert_eq!(needs(b""), Err(ElfError::NotElf));
    }

    #[test]
    fn another_architecture_is_named() {
        let mut bytes = fs::read(env::current_exe().unwrap()).unwrap();
        bytes[18..20].copy_from_slice(&183u16.to_le_bytes());
        assert_eq!(needs(&bytes), Err(ElfError::Architecture("aarch64")));
        bytes[4] = 1;
        assert!(matches!(needs(&bytes), Err(ElfError::Architecture(_) | ElfError::Damaged(_))));
    }

    #[test]
    fn a_truncated_or_scrambled_file_is_an_error_and_no_panic() {
        let whole = fs::read(env::current_exe().unwrap()).unwrap();
        for keep in [4, 5, 16, 20, 63, 64, 65, 100, 200, 600] {
            assert!(needs(&whole[..keep]).is_err(), "{keep} bytes");
        }
        for at in 4..1024 {
            let mut bytes = whole[..whole.len().min(1 << 20)].to_vec();
            bytes[at] ^= 0xff;
            let _ = needs(&bytes);
        }
    }

    #[test]
    fn a_library_that_is_nowhere_is_named() {
        let search = SearchPath { environment: vec![], system: vec!["/nowhere".into()] };
        let own = env::current_exe().unwrap();
        assert!(matches!(closure(&own, &search), Err(ElfError::NoLibrary(_))));
    }
}
