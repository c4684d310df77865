//! The files that a guest needs to build a C project: the host's compiler with its parts, make, and the files that they
//! open.

use std::{
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use super::{program, tree::Tree};
use crate::failure::{Doing, Failure, Result};

/// The path of the sources in the guest.
pub const SOURCES: &str = "/usr/src/lua";

/// The programs that the compiler runs. If the compiler has no such program of its own, the program on `PATH` is used.
const PARTS: [&str; 7] = ["cc1", "collect2", "lto-wrapper", "as", "ld", "ar", "ranlib"];

/// Files that are linked into programs.
const LINKED: [&str; 11] = [
    "Scrt1.o",
    "crti.o",
    "crtn.o",
    "crtbeginS.o",
    "crtendS.o",
    "libgcc.a",
    "libgcc_s.so",
    "libgcc_s.so.1",
    "libc.so",
    "libm.so",
    "liblto_plugin.so",
];

/// Adds the compiler, make, and the C project in `sources` to the tree, with all headers that the project includes.
pub fn install(tree: &mut Tree, sources: &Path) -> Result<()> {
    let gcc = Compiler { path: on_path("gcc")? };
    let installed = program::install_host(tree, &gcc.path)?;
    tree.link("/usr/bin/cc", installed)?;
    program::install_host(tree, &on_path("make")?)?;
    for part in PARTS {
        let path = gcc.asked(&format!("-print-prog-name={part}"))?;
        program::install_host(tree, &if path.is_absolute() { path } else { on_path(part)? })?;
    }
    for name in LINKED {
        let path = gcc.asked(&format!("-print-file-name={name}"))?;
        if !path.is_absolute() {
            return Err(Failure::usage(format_args!("gcc does not find {name}; run ./quire setup")));
        }
        install_linked(tree, &path)?;
    }
    for header in gcc.headers(sources)? {
        tree.host_file(&header, &header)?;
    }
    tree.host_tree(SOURCES, sources)
}

/// Adds a file for the linker. If the file is a linker script, the files that it names are added too.
fn install_linked(tree: &mut Tree, path: &Path) -> Result<()> {
    let about = || format!("cannot read {}", path.display());
    tree.host_file(path, path)?;
    let bytes = fs::read(path).doing(about)?;
    if bytes.starts_with(b"\x7fELF") || bytes.starts_with(b"!<arch>") {
        return Ok(());
    }
    for named in named(&String::from_utf8_lossy(&bytes)) {
        tree.host_file(named, Path::new(named))?;
    }
    Ok(())
}

/// The files that a linker script names by absolute paths.
fn named(script: &str) -> impl Iterator<Item = &str> {
    let mut rest = script;
    std::iter::from_fn(move || {
        loop {
            rest = rest.trim_start();
            if let Some(comment) = rest.strip_prefix("/*") {
                rest = comment.split_once("*/").map_or("", |(_, after)| after);
                continue;
            }
            let (word, after) = rest.split_at(rest.find(char::is_whitespace).unwrap_or(rest.len()));
            rest = after;
            match word {
                "" => return None,
                word if word.starts_with('/') => return Some(word),
                _ => {}
            }
        }
    })
}

fn on_path(name: &str) -> Result<PathBuf> {
    program::on_path(OsStr::new(name))
        .ok_or_else(|| Failure::usage(format_args!("{name} is not on this machine; run ./quire setup")))
}

/// The gcc of the host.
struct Compiler {
    path: PathBuf,
}

impl Compiler {
    fn run(&self, set: impl FnOnce(&mut Command) -> &mut Command) -> Result<String> {
        let mut command = Command::new(&self.path);
        set(command.stdin(Stdio::null()).env("LC_ALL", "C"));
        let out = command.output().doing(|| format!("cannot run {}", self.path.display()))?;
        match out.status.success() {
            true => Ok(String::from_utf8_lossy(&out.stdout).into_owned()),
            false => Err(Failure::usage(format_args!(
                "{} failed: {}",
                self.path.display(),
                String::from_utf8_lossy(&out.stderr).trim()
            ))),
        }
    }

    /// Runs gcc with the option `question`, and returns the path that it prints.
    fn asked(&self, question: &str) -> Result<PathBuf> {
        let text = self.run(|gcc| gcc.arg(question))?;
        Ok(PathBuf::from(text.trim_end()))
    }

    /// The headers of the host that the sources include.
    fn headers(&self, sources: &Path) -> Result<Vec<PathBuf>> {
        let about = || format!("cannot read {}", sources.display());
        let mut files = Vec::new();
        for entry in fs::read_dir(sources).doing(about)? {
            let path = entry.doing(about)?.path();
            if path.extension().is_some_and(|e| e == "c") {
                files.push(path);
            }
        }
        let rules =
            self.run(|gcc| gcc.current_dir(sources).args(["-std=gnu99", "-DLUA_USE_POSIX", "-M"]).args(files))?;
        let mut found: Vec<PathBuf> = rules
            .split_whitespace()
            .filter(|word| word.starts_with('/') && !Path::new(word).starts_with(sources))
            .map(PathBuf::from)
            .collect();
        found.sort();
        found.dedup();
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_of_the_linkers_names_files() {
        let script = "/* GNU ld script /not/this */\nOUTPUT_FORMAT(elf64-x86-64)\nGROUP ( /lib/libc.so.6 \
            /usr/lib/libc_nonshared.a  \
                      AS_NEEDED ( /lib64/ld-linux-x86-64.so.2 ) -lgcc )\n";
        let found: Vec<&str> = named(script).collect();
        assert_eq!(found, ["/lib/libc.so.6", "/usr/lib/libc_nonshared.a", "/lib64/ld-linux-x86-64.so.2"]);
        assert_eq!(named("/* unfinished").count(), 0);
    }

    #[test]
    fn the_compiler_has_its_parts_and_the_included_headers() {
        let project = tempfile::tempdir().unwrap();
        fs::write(project.path().join("own.h"), "").unwrap();
        fs::write(project.path().join("a.c"), "#include <stdio.h>\n#include \"own.h\"\n").unwrap();
        let mut tree = Tree::default();
        install(&mut tree, project.path()).unwrap();
        for name in ["/usr/include/stdio.h", "/usr/src/lua/a.c", "/usr/src/lua/own.h", "/usr/bin/cc"] {
            assert!(tree.has(name), "{name}");
        }
        let gcc = Compiler { path: on_path("gcc").unwrap() };
        for part in ["-print-prog-name=cc1", "-print-file-name=libc.so"] {
            let at = gcc.asked(part).unwrap();
            assert!(tree.has(at.to_str().unwrap()), "{}", at.display());
        }
        assert!(!tree.has("/usr/include/pthread.h"));
    }
}
