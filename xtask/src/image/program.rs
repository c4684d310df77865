//! What the user's words mean: which program, from the host or from the guest's root, and what has to come along.

use std::{
    env,
    ffi::{OsStr, OsString},
    fs,
    os::unix::{ffi::OsStrExt, fs::PermissionsExt},
    path::{Path, PathBuf},
};

use super::{
    libraries::{self, SearchPath},
    root,
    tree::Tree,
};
use crate::failure::{Doing, Failure, Result};

/// Puts `word` into the tree, if it is not there, and returns the absolute path by which the guest runs it.
///
/// A name with a slash is a file of the host if there is one, else one of the guest; a plain name is looked up in the
/// guest's root first, then along the host's `PATH`.
pub fn install(tree: &mut Tree, word: &OsStr) -> Result<OsString> {
    if word.is_empty() {
        return Err(Failure::no_program("the program's name is empty"));
    }
    let shown = word.to_string_lossy().into_owned();
    if word.as_bytes().contains(&b'/') {
        let host = Path::new(word);
        if host.exists() {
            return install_host(tree, host);
        }
        if tree.has(&shown) {
            return Ok(word.to_owned());
        }
        return Err(Failure::no_program(format_args!("{shown}: no such file here or in the guest")));
    }
    for directory in root::PATH.split(':') {
        let candidate = format!("{directory}/{shown}");
        if tree.has(&candidate) {
            return Ok(candidate.into());
        }
    }
    match on_path(word) {
        Some(host) => install_host(tree, &host),
        None => Err(Failure::no_program(format_args!(
            "{shown}: no such program in the guest or on PATH; for a file of yours write its path, like ./{shown}"
        ))),
    }
}

/// The program of this machine that a shell would run by this name.
pub fn on_path(name: &OsStr) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path)
        .map(|d| d.join(name))
        .find(|p| fs::metadata(p).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0))
}

/// Copies a program of the host with all it needs, under its absolute path.
pub fn install_host(tree: &mut Tree, host: &Path) -> Result<OsString> {
    install_deep(tree, host, 0)
}

/// The same; so many scripts have named the next one as their interpreter.
fn install_deep(tree: &mut Tree, host: &Path, depth: u32) -> Result<OsString> {
    let shown = host.display();
    let meta = fs::metadata(host).map_err(|e| Failure::no_program(format_args!("{shown}: {e}")))?;
    if meta.is_dir() {
        return Err(Failure::cannot_run(format_args!("{shown}: is a directory")));
    }
    if meta.permissions().mode() & 0o111 == 0 {
        return Err(Failure::cannot_run(format_args!("{shown}: not executable; chmod +x it")));
    }
    let bytes = fs::read(host).map_err(|e| Failure::cannot_run(format_args!("{shown}: {e}")))?;
    let path = std::path::absolute(host).doing(|| format!("{shown}"))?;
    let Some(at) = path.to_str().map(str::to_owned) else {
        return Err(Failure::cannot_run(format_args!("{shown}: its path is not UTF-8")));
    };
    if let Some(interpreter) = script_interpreter(&bytes) {
        if depth > 4 {
            return Err(Failure::cannot_run(format_args!("{shown}: too many interpreters in a row")));
        }
        if !tree.has(&interpreter) {
            install_deep(tree, Path::new(&interpreter), depth + 1)?;
        }
    } else {
        let cannot = |e: libraries::ElfError| Failure::cannot_run(format_args!("{shown}: {e}"));
        libraries::needs(&bytes).map_err(cannot)?;
        let libraries = libraries::closure(host, &SearchPath::of_host()).map_err(cannot)?;
        if !libraries.is_empty() && Path::new("/etc/ld.so.cache").exists() {
            tree.host_file("/etc/ld.so.cache", Path::new("/etc/ld.so.cache"))?;
        }
        for (name, file) in libraries {
            tree.host_file(&name, &file)?;
        }
    }
    tree.host_file(&at, host)?;
    Ok(at.into())
}

/// The interpreter of a `#!` line.
fn script_interpreter(bytes: &[u8]) -> Option<String> {
    let line = bytes.strip_prefix(b"#!")?.split(|b| *b == b'\n').next()?;
    let line = std::str::from_utf8(line).ok()?.trim();
    line.split_ascii_whitespace().next().map(str::to_owned)
}

/// One `--copy HOST[:GUEST]`. Without GUEST the copy keeps its name and goes to where the program starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Copy {
    /// The file or directory here.
    pub host: PathBuf,
    /// Its absolute path there.
    pub guest: String,
}

impl Copy {
    /// Reads the option's value. A host path that itself holds a colon wins if it exists.
    pub fn parse(text: &OsStr, cwd: &str) -> Result<Self> {
        let whole = Path::new(text);
        let (host, guest) = match text.to_str().and_then(|t| t.rsplit_once(':')) {
            Some((host, guest)) if !whole.exists() => (PathBuf::from(host), Some(guest.to_owned())),
            _ => (whole.to_owned(), None),
        };
        if !host.exists() {
            return Err(Failure::usage(format_args!("--copy {}: no such file", host.display())));
        }
        let guest = match guest {
            Some(path) if path.starts_with('/') => path,
            Some(path) => format!("{}/{path}", cwd.trim_end_matches('/')),
            None => {
                let name = host.canonicalize().ok().and_then(|p| p.file_name().map(OsStr::to_owned));
                let Some(name) = name.as_deref().and_then(OsStr::to_str) else {
                    return Err(Failure::usage(format_args!("--copy {}: say where, as HOST:GUEST", host.display())));
                };
                format!("{}/{name}", cwd.trim_end_matches('/'))
            }
        };
        Ok(Self { host, guest })
    }
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
        assert_eq!(install(&mut tree, OsStr::new("sort")).unwrap(), "/usr/bin/sort");
        let host = install(&mut tree, OsStr::new("cat")).unwrap();
        assert!(tree.has(host.to_str().unwrap()), "found on the host's PATH and copied");
        assert!(tree.has("/lib64/ld-linux-x86-64.so.2"));
    }

    #[test]
    fn what_cannot_run_is_told_apart_as_a_shell_does() {
        let mut tree = small_tree();
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("text");
        fs::write(&file, "plain text").unwrap();
        let mut status = |word: &OsStr| install(&mut tree, word).unwrap_err().status;
        assert_eq!(status(OsStr::new("no-such-program-anywhere")), 127);
        assert_eq!(status(OsStr::new("./no/such/file")), 127);
        assert_eq!(status(OsStr::new("")), 127);
        assert_eq!(status(file.as_os_str()), 126, "not executable");
        assert_eq!(status(dir.path().as_os_str()), 126, "a directory");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(status(file.as_os_str()), 126, "no ELF file");
    }

    #[test]
    fn a_script_comes_with_its_interpreter() {
        let mut tree = small_tree();
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("script");
        fs::write(&file, "#! /bin/sh -e\necho\n").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        let at = install(&mut tree, file.as_os_str()).unwrap();
        assert!(tree.has(at.to_str().unwrap()));
        assert_eq!(script_interpreter(b"#!/usr/bin/env python3\n").as_deref(), Some("/usr/bin/env"));
        assert_eq!(script_interpreter(b"\x7fELF"), None);
    }

    #[test]
    fn a_copy_goes_where_it_is_told_or_where_the_program_starts() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("data");
        fs::write(&file, "").unwrap();
        let text = file.to_str().unwrap();
        let guest = |t: &str| Copy::parse(OsStr::new(t), "/work").unwrap().guest;
        assert_eq!(guest(text), "/work/data");
        assert_eq!(guest(&format!("{text}:/x/y")), "/x/y");
        assert_eq!(guest(&format!("{text}:y")), "/work/y");
        assert_eq!(Copy::parse(OsStr::new("/no/such:/x"), "/").unwrap_err().status, 2);
    }
}
