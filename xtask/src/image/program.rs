//! The meaning of the user's command line: which program is meant, and which other files it needs. The program comes
//! from the host or from the guest's root file system.

use std::{
    env,
    ffi::{OsStr, OsString},
    fs,
    io::Read as _,
    os::unix::{
        ffi::OsStrExt,
        fs::{MetadataExt, PermissionsExt},
    },
    path::{Path, PathBuf},
};

use super::{
    libraries::{self, ElfError, SearchPath},
    root,
    tree::Tree,
};
use crate::failure::{Doing, Failure, Result};

/// The system in which an absolute path is looked up first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum First {
    /// The host.
    Host,
    /// The guest, because the user gave it a root file system.
    Guest,
}

/// Adds the program `word` to the tree, unless it is there already. Returns the absolute path by which the guest runs
/// it.
///
/// A name with a slash is a file of the host if that exists, and otherwise a file of the guest. With [`First::Guest`],
/// an absolute name is looked up in the guest first. A plain name is searched in the guest's root first, then along the
/// host's `PATH`.
pub fn install(tree: &mut Tree, word: &OsStr, first: First) -> Result<OsString> {
    if word.is_empty() {
        return Err(Failure::no_program("the program's name is empty"));
    }
    let shown = word.display();
    if word.as_bytes().contains(&b'/') {
        let host = Path::new(word);
        if first == First::Guest && host.is_absolute() && tree.has(word) {
            return Ok(word.to_owned());
        }
        if host.exists() {
            return install_host(tree, host);
        }
        if tree.has(word) {
            return Ok(word.to_owned());
        }
        return Err(Failure::no_program(format_args!("{shown}: no such file here or in the guest")));
    }
    for directory in root::PATH.split(':') {
        let candidate = Path::new(directory).join(word);
        if tree.has(&candidate) {
            return Ok(candidate.into());
        }
    }
    match on_path(word) {
        Some(host) => install_host(tree, &host),
        None => Err(Failure::no_program(format_args!(
            "{shown}: no such program in the guest or on PATH; for a file of this machine write its path, like \
             ./{shown}"
        ))),
    }
}

/// The host's program that a shell would run by this name; `None` if there is none.
pub fn on_path(name: &OsStr) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path)
        .map(|d| d.join(name))
        .find(|p| fs::metadata(p).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0))
}

/// The version manager, such as `pyenv`, to which this program belongs as a shim; `None` if the program is no shim. A
/// shim searches for the real program in files of the host, which a guest does not have.
pub fn shim_of(program: &Path) -> Option<String> {
    let (name, folder) = (program.file_name()?, program.parent()?);
    if folder.ends_with("shims") {
        let manager = folder.parent()?.file_name()?.to_string_lossy().into_owned();
        return Some(manager.trim_start_matches('.').to_owned());
    }
    // Other managers link all names to one program.
    let real = program.canonicalize().ok()?;
    let real = real.file_name().filter(|real| *real != name)?.to_str()?;
    let managers = [("rustup", "rustup"), ("volta-shim", "volta"), ("mise", "mise"), ("asdf", "asdf")];
    managers.iter().find(|(link, _)| *link == real).map(|(_, manager)| (*manager).to_owned())
}

fn shim_sentence(program: &Path, manager: &str) -> String {
    let name = program.file_name().unwrap_or_default().display();
    format!(
        "{} is a shim of {manager}, which searches for {name} on this machine; give the path of {name} itself, or use \
         --packages",
        program.display()
    )
}

/// Copies a program of the host, with all files that it needs, to its absolute path in the tree. Links on the way to
/// the program stay links, and the file itself is added at their target.
pub fn install_host(tree: &mut Tree, host: &Path) -> Result<OsString> {
    install_deep(tree, host, 0)
}

/// Installs a program as [`install_host`] does. `depth` is the number of scripts before this program, each of which
/// names the next one as its interpreter.
fn install_deep(tree: &mut Tree, host: &Path, depth: u32) -> Result<OsString> {
    let shown = host.display();
    let meta = fs::metadata(host).map_err(|e| Failure::no_program(format_args!("{shown}: {e}")))?;
    if meta.is_dir() {
        return Err(Failure::cannot_run(format_args!("{shown}: is a directory")));
    }
    if meta.permissions().mode() & 0o111 == 0 {
        return Err(Failure::cannot_run(format_args!("{shown}: not executable; run chmod +x on it")));
    }
    if let Some(manager) = shim_of(host) {
        return Err(Failure::cannot_run(shim_sentence(host, &manager)));
    }
    let bytes = fs::read(host).map_err(|e| Failure::cannot_run(format_args!("{shown}: {e}")))?;
    let path = std::path::absolute(host).doing(|| format!("{shown}"))?;
    let interpreters = script_interpreters(&bytes);
    if interpreters.is_empty() {
        let cannot = |e: ElfError| Failure::cannot_run(format_args!("{shown}: {e}"));
        libraries::needs(&bytes).map_err(cannot)?;
        install_libraries(tree, host, Path::new("/"), &SearchPath::of_host(), true).map_err(cannot)??;
    } else {
        install_interpreters(tree, &interpreters, depth)
            .map_err(|e| if depth > DEEPEST { Failure::cannot_run(format_args!("{shown}: {e}")) } else { e })?;
    }
    let real = tree.host_links(&path)?;
    tree.host_file(&real, &real)?;
    Ok(path.into())
}

/// The most scripts in a row, each the interpreter of the one before.
const DEEPEST: u32 = 4;

fn install_interpreters(tree: &mut Tree, interpreters: &[PathBuf], depth: u32) -> Result<()> {
    if depth > DEEPEST {
        return Err(Failure::cannot_run("too many interpreters in a row"));
    }
    for interpreter in interpreters {
        // If the guest's root has the program in a package, the guest's `env` will find it there.
        let in_guest = |name| root::PATH.split(':').any(|directory| tree.has(Path::new(directory).join(name)));
        if shim_of(interpreter).is_some() && interpreter.file_name().is_some_and(in_guest) {
            continue;
        }
        if !tree.has(interpreter) {
            install_deep(tree, interpreter, depth + 1)?;
        }
    }
    Ok(())
}

/// Adds the interpreter and the libraries of an ELF file of the host to the tree. Libraries inside the directory `with`
/// are left out, because the caller copies that directory. With `over` they replace files of the same name.
fn install_libraries(
    tree: &mut Tree,
    host: &Path,
    with: &Path,
    search: &SearchPath,
    over: bool,
) -> Result<Result<()>, ElfError> {
    let libraries = libraries::closure(host, search)?;
    let inside = |file: &Path| with != Path::new("/") && file.canonicalize().is_ok_and(|f| f.starts_with(with));
    let mut install = || {
        let cache = Path::new("/etc/ld.so.cache");
        if !libraries.is_empty() && cache.exists() && !tree.has(cache) {
            tree.host_file(cache, cache)?;
        }
        for (name, file) in &libraries {
            if !inside(file) && (over || !tree.has(name)) {
                tree.host_file(name, file)?;
            }
        }
        Ok(())
    };
    Ok(install())
}

/// The interpreter of a `#!` line. If that is `env`, also the program that `env` searches along the host's `PATH`.
fn script_interpreters(bytes: &[u8]) -> Vec<PathBuf> {
    let Some(line) = bytes.strip_prefix(b"#!").and_then(|rest| rest.split(|b| *b == b'\n').next()) else {
        return Vec::new();
    };
    let mut words = line.split(|b| b.is_ascii_whitespace()).filter(|w| !w.is_empty()).map(OsStr::from_bytes);
    let Some(first) = words.next() else { return Vec::new() };
    let mut found = vec![PathBuf::from(first)];
    if found[0].file_name() == Some(OsStr::new("env")) {
        let program = words.find(|w| !w.as_bytes().starts_with(b"-") && !w.as_bytes().contains(&b'='));
        found.extend(program.and_then(on_path));
    }
    found
}

/// The value of one `--copy HOST[:GUEST]`. Without GUEST, the copy keeps its name and is added to the directory in
/// which the program starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Copy {
    /// The file or directory on the host.
    pub host: PathBuf,
    /// Its absolute path in the guest.
    pub guest: PathBuf,
    /// Whether GUEST is a directory to which the file is added.
    into: bool,
}

impl Copy {
    /// Parses the option's value. If the whole value is an existing host path, its colon separates nothing.
    pub fn parse(text: &OsStr, cwd: &Path) -> Result<Self> {
        let whole = Path::new(text);
        let colon = text.as_bytes().iter().rposition(|b| *b == b':').filter(|_| !whole.exists());
        let (host, guest) = match colon.map(|at| text.as_bytes().split_at(at)) {
            Some((host, guest)) => (PathBuf::from(OsStr::from_bytes(host)), Some(OsStr::from_bytes(&guest[1..]))),
            None => (whole.to_owned(), None),
        };
        if !host.exists() {
            return Err(Failure::usage(format_args!("--copy {}: no such file", host.display())));
        }
        let into = guest.is_some_and(|g| g.as_bytes().ends_with(b"/"));
        let copy = Self { host, guest: cwd.join(guest.unwrap_or_default()), into };
        if guest.is_some() { Ok(copy) } else { Ok(Self { guest: cwd.join(copy.name()?), ..copy }) }
    }

    fn name(&self) -> Result<OsString> {
        let name = self.host.canonicalize().ok().and_then(|p| p.file_name().map(OsStr::to_owned));
        name.ok_or_else(|| Failure::usage(format_args!("--copy {}: say where, as HOST:GUEST", self.host.display())))
    }

    /// Adds the copy to the tree. A program's interpreter and libraries are added too, and so are those of the programs
    /// and libraries in a directory. Files that the tree has already are not replaced.
    pub fn install(&self, tree: &mut Tree) -> Result<()> {
        let one = self.host.is_file();
        let at = if one && (self.into || tree.has_directory(&self.guest)) {
            self.guest.join(self.host.file_name().unwrap_or_default())
        } else {
            self.guest.clone()
        };
        tree.host_tree(&at, &self.host)?;
        let with = self.host.canonicalize().doing(|| format!("cannot read {}", self.host.display()))?;
        let search = SearchPath::of_host();
        for file in tree.host_files(&at) {
            let Some(start) = start(&file) else { continue };
            if one
                && !script_interpreters(&start).is_empty()
                && fs::metadata(&file).is_ok_and(|m| m.mode() & 0o111 != 0)
            {
                let mut interpreters = script_interpreters(&start);
                interpreters.retain(|interpreter| match shim_of(interpreter) {
                    Some(manager) => {
                        eprintln!("quire: --copy {}: {}", self.host.display(), shim_sentence(interpreter, &manager));
                        false
                    }
                    None => true,
                });
                install_interpreters(tree, &interpreters, 0)?;
            }
            if !start.starts_with(b"\x7fELF") {
                continue;
            }
            match install_libraries(tree, &file, &with, &search, false) {
                Ok(installed) => installed?,
                // A file is copied unchanged if it is for another machine, or if its libraries are not on the host.
                Err(e @ ElfError::NoLibrary(_)) if one => {
                    eprintln!("quire: --copy {}: {e}", self.host.display());
                }
                Err(_) => {}
            }
        }
        Ok(())
    }
}

/// The first 256 bytes of a file; `None` if the file cannot be read.
fn start(file: &Path) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    fs::File::open(file).ok()?.take(256).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small_tree() -> Tree {
        let mut tree = Tree::default();
        tree.file("/usr/bin/sort", 0o755, "").unwrap();
        tree.file("/bin/sh", 0o755, "").unwrap();
        tree
    }

    #[test]
    fn a_plain_name_is_the_guests_before_the_hosts() {
        let mut tree = small_tree();
        assert_eq!(install(&mut tree, OsStr::new("sort"), First::Host).unwrap(), "/usr/bin/sort");
        let host = install(&mut tree, OsStr::new("cat"), First::Host).unwrap();
        assert!(tree.has(&host), "found on the host's PATH and copied");
        assert!(tree.has("/lib64/ld-linux-x86-64.so.2"));
    }

    #[test]
    fn with_a_root_of_its_own_the_guest_comes_first() {
        let mut tree = small_tree();
        tree.file("/bin/cat", 0o755, "").unwrap();
        assert_eq!(install(&mut tree, OsStr::new("/bin/cat"), First::Guest).unwrap(), "/bin/cat");
        assert!(!tree.has("/lib64/ld-linux-x86-64.so.2"));
        assert_eq!(install(&mut tree, OsStr::new("/bin/ls"), First::Guest).unwrap(), "/bin/ls", "only here");
        assert!(tree.has("/lib64/ld-linux-x86-64.so.2"));
    }

    #[test]
    fn a_program_that_cannot_run_has_the_status_of_a_shell() {
        let mut tree = small_tree();
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("text");
        fs::write(&file, "plain text").unwrap();
        let mut status = |word: &OsStr| install(&mut tree, word, First::Host).unwrap_err().status;
        assert_eq!(status(OsStr::new("no-such-program-anywhere")), 127);
        assert_eq!(status(OsStr::new("./no/such/file")), 127);
        assert_eq!(status(OsStr::new("")), 127);
        assert_eq!(status(file.as_os_str()), 126, "not executable");
        assert_eq!(status(dir.path().as_os_str()), 126, "a directory");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(status(file.as_os_str()), 126, "not an ELF file");
    }

    #[test]
    fn a_shim_of_a_version_manager_is_refused_by_name() {
        let (mut tree, dir) = (small_tree(), tempfile::tempdir().unwrap());
        let shims = dir.path().join(".pyenv/shims");
        fs::create_dir_all(&shims).unwrap();
        let python = shims.join("python3");
        fs::write(&python, "#!/bin/sh\nexec pyenv exec python3\n").unwrap();
        fs::set_permissions(&python, fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(shim_of(&python).as_deref(), Some("pyenv"));
        let refused = install(&mut tree, python.as_os_str(), First::Host).unwrap_err();
        assert_eq!(refused.status, 126);
        assert!(refused.message.contains("shim of pyenv") && refused.message.contains("--packages"), "{refused}");
        let (rustup, cargo) = (dir.path().join("rustup"), dir.path().join("cargo"));
        fs::write(&rustup, "").unwrap();
        std::os::unix::fs::symlink(&rustup, &cargo).unwrap();
        assert_eq!((shim_of(&cargo).as_deref(), shim_of(&rustup)), (Some("rustup"), None));
        assert_eq!(shim_of(Path::new("/bin/sh")), None);
        // `env` finds the program in the guest, once the guest has it.
        assert!(install_interpreters(&mut tree, std::slice::from_ref(&python), 0).is_err());
        tree.file("/usr/bin/python3", 0o755, "").unwrap();
        install_interpreters(&mut tree, &[python], 0).unwrap();
    }

    #[test]
    fn a_script_comes_with_its_interpreter() {
        let mut tree = small_tree();
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("script");
        fs::write(&file, "#! /bin/sh -e\necho\n").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        let at = install(&mut tree, file.as_os_str(), First::Host).unwrap();
        assert!(tree.has(&at));
        assert_eq!(script_interpreters(b"#!/bin/sh -e\n"), [Path::new("/bin/sh")]);
        let found = script_interpreters(b"#!/usr/bin/env -S A=b cat -u\n");
        assert_eq!(found, [Path::new("/usr/bin/env").to_owned(), on_path(OsStr::new("cat")).unwrap()]);
        assert!(script_interpreters(b"\x7fELF").is_empty() && script_interpreters(b"#!\n").is_empty());
    }

    #[test]
    fn a_copy_goes_to_the_named_place_or_where_the_program_starts() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("data");
        fs::write(&file, "").unwrap();
        let text = file.to_str().unwrap();
        let copied = |t: &str| {
            let mut tree = Tree::default();
            tree.directory("/there", 0o755).unwrap();
            Copy::parse(OsStr::new(t), Path::new("/work")).unwrap().install(&mut tree).unwrap();
            ["/work/data", "/x/y", "/work/y", "/x/data", "/there/data"].map(|at| tree.has(at)).iter().position(|is| *is)
        };
        assert_eq!(copied(text), Some(0));
        assert_eq!(copied(&format!("{text}:/x/y")), Some(1));
        assert_eq!(copied(&format!("{text}:y")), Some(2));
        assert_eq!(copied(&format!("{text}:/x/")), Some(3));
        assert_eq!(copied(&format!("{text}:/there")), Some(4));
        assert_eq!(Copy::parse(OsStr::new("/no/such:/x"), Path::new("/")).unwrap_err().status, 2);
    }

    #[test]
    fn copied_programs_bring_libraries_and_scripts_interpreters() {
        let dir = tempfile::tempdir().unwrap();
        let raw = dir.path().join(OsStr::from_bytes(b"prog\xff"));
        fs::copy(env::current_exe().unwrap(), &raw).unwrap();
        let script = dir.path().join("script");
        fs::write(&script, "#! /bin/cat\n").unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        for (host, brought) in [
            (&raw, "/lib64/ld-linux-x86-64.so.2"),
            (&script, "/bin/cat"),
            (&dir.path().into(), "/lib64/ld-linux-x86-64.so.2"),
        ] {
            let mut tree = Tree::default();
            Copy::parse(host.as_os_str(), Path::new("/")).unwrap().install(&mut tree).unwrap();
            assert!(tree.has(brought), "{}", host.display());
            // A file of an earlier copy stays when a later copy adds libraries of the same name.
            let mut tree = Tree::default();
            tree.file(brought, 0o755, "own").unwrap();
            Copy::parse(host.as_os_str(), Path::new("/")).unwrap().install(&mut tree).unwrap();
            assert_eq!(tree.host_path(brought), None);
        }
    }

    #[test]
    fn a_program_lies_where_its_links_lead() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        fs::create_dir_all(root.join("home/bin")).unwrap();
        fs::copy(env::current_exe().unwrap(), root.join("home/bin/prog")).unwrap();
        std::os::unix::fs::symlink("home/bin/prog", root.join("prog")).unwrap();
        let mut tree = small_tree();
        let at = install(&mut tree, root.join("prog").as_os_str(), First::Host).unwrap();
        assert_eq!(at, root.join("prog"), "called as it was named");
        assert_eq!(tree.host_files(root.join("home")), [root.join("home/bin/prog")]);
        assert_eq!(tree.host_path(&at), Some(root.join("home/bin/prog")));
    }
}
