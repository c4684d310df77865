//! Finds a compiler that can instrument programs, the sanitizer library for them, and a linker that can link both.
//!
//! The toolchains of rustup contain LLVM's sanitizer libraries. Debian has them in the package of LLVM's runtime
//! libraries, and only LLVM's linker accepts them. ThreadSanitizer must see all synchronisation, also that of the
//! standard library. Therefore the standard library is compiled again from its source.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use crate::failure::{Failure, Result};

/// The target is named explicitly, so that build scripts and macros are not instrumented.
pub const HOST: &str = "x86_64-unknown-linux-gnu";

/// The sanitizers that the tests use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sanitizer {
    /// ThreadSanitizer, which finds accesses without an order between them.
    Thread,
    /// AddressSanitizer, which finds accesses outside of allocated memory.
    Address,
}

impl Sanitizer {
    /// The sanitizer's name in rustc's options.
    pub fn name(self) -> &'static str {
        match self {
            Sanitizer::Thread => "thread",
            Sanitizer::Address => "address",
        }
    }

    fn short(self) -> &'static str {
        match self {
            Sanitizer::Thread => "tsan",
            Sanitizer::Address => "asan",
        }
    }
}

/// The tools and flags that build instrumented programs.
#[derive(Debug, Clone)]
pub struct Instrumenting {
    cargo: PathBuf,
    rustc: PathBuf,
    flags: Vec<String>,
    build_std: bool,
}

impl Instrumenting {
    /// The command `cargo SUBCOMMAND`, to which the caller adds arguments.
    pub fn cargo(&self, subcommand: &str, more_flags: &str) -> Command {
        let mut command = Command::new(&self.cargo);
        command.arg(subcommand).args(["--target", HOST]).env("RUSTC", &self.rustc).env_remove("RUSTUP_TOOLCHAIN");
        // Instrumentation is an unstable option, which this variable allows in a stable compiler.
        command.env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", format!("{} {more_flags}", self.flags.join(" ")));
        if self.build_std {
            command.arg("-Zbuild-std");
        }
        command
    }
}

/// A compiler, with the data that it reports about itself.
struct Rust {
    rustc: PathBuf,
    sysroot: PathBuf,
    llvm: u32,
}

impl Rust {
    fn at(rustc: &Path) -> Option<Rust> {
        let ask = |what: &[&str]| {
            let out = Command::new(rustc).args(what).env("RUSTUP_AUTO_INSTALL", "0").output().ok()?;
            out.status.success().then(|| String::from_utf8_lossy(&out.stdout).trim().to_owned())
        };
        let sysroot = PathBuf::from(ask(&["--print", "sysroot"])?);
        // A path of rustup's shim is replaced by the compiler behind it, whose cargo has the same version.
        let own = sysroot.join("bin/rustc");
        let rustc = if own.exists() { own } else { rustc.to_owned() };
        Some(Rust { rustc, sysroot, llvm: llvm_of(&ask(&["-vV"])?)? })
    }

    fn has_source(&self) -> bool {
        self.sysroot.join("lib/rustlib/src/rust/library/std/src/lib.rs").exists()
    }

    /// Whether the toolchain has its own runtime library for the sanitizer, which it links by itself.
    fn has_runtime(&self, sanitizer: Sanitizer) -> bool {
        let libraries = self.sysroot.join("lib/rustlib").join(HOST).join("lib");
        let end = format!("_rt.{}.a", sanitizer.short());
        let files = std::fs::read_dir(libraries).into_iter().flatten().flatten();
        files.into_iter().any(|f| f.file_name().to_string_lossy().ends_with(&end))
    }

    /// The linker arguments for LLVM's runtime library and LLVM's linker. The error names the missing files.
    fn with_clangs(&self, sanitizer: Sanitizer) -> std::result::Result<Vec<String>, String> {
        let llvm = PathBuf::from(format!("/usr/lib/llvm-{}", self.llvm));
        let libraries = llvm.join(format!("lib/clang/{}/lib/linux", self.llvm));
        let name = sanitizer.short();
        let mut parts = vec![libraries.join(format!("libclang_rt.{name}-x86_64.a"))];
        if sanitizer == Sanitizer::Address {
            parts.push(libraries.join("libclang_rt.asan_static-x86_64.a"));
        }
        if let Some(missing) = parts.iter().find(|p| !p.exists()) {
            return Err(format!("{} (Debian: libclang-rt-{}-dev)", missing.display(), self.llvm));
        }
        if !llvm.join("bin/ld.lld").exists() {
            return Err(format!("{} (Debian: lld-{})", llvm.join("bin/ld.lld").display(), self.llvm));
        }
        let parts: Vec<_> = parts.iter().map(|p| p.display().to_string()).collect();
        let mut flags = vec![
            "-Zexternal-clangrt".to_owned(),
            format!("-Clink-arg=-B{}", llvm.join("bin").display()),
            "-Clink-arg=-fuse-ld=lld".to_owned(),
            format!("-Clink-arg=-Wl,--whole-archive,{},--no-whole-archive", parts.join(",")),
        ];
        flags.extend(["m", "rt", "dl", "resolv"].map(|l| format!("-Clink-arg=-l{l}")));
        Ok(flags)
    }

    fn instrumenting(&self, sanitizer: Sanitizer) -> std::result::Result<Instrumenting, String> {
        let build_std = sanitizer == Sanitizer::Thread;
        if build_std && !self.has_source() {
            return Err("its library's source (Debian: rust-web-src; rustup: rustup component add rust-src)".into());
        }
        let mut flags = vec![format!("-Zsanitizer={}", sanitizer.name())];
        if !build_std {
            flags.push("-Cunsafe-allow-abi-mismatch=sanitizer".into());
        }
        if !self.has_runtime(sanitizer) {
            flags.extend(self.with_clangs(sanitizer)?);
        }
        Ok(Instrumenting { cargo: self.rustc.with_file_name("cargo"), rustc: self.rustc.clone(), flags, build_std })
    }
}

/// The major version of LLVM in the output of `rustc -vV`.
fn llvm_of(version: &str) -> Option<u32> {
    version.lines().find_map(|l| l.strip_prefix("LLVM version: ")?.split('.').next()?.parse().ok())
}

/// Finds a toolchain that can instrument. The error names what each installed toolchain lacks.
pub fn find(sanitizer: Sanitizer) -> Result<Instrumenting> {
    let mut misses = Vec::new();
    for rustc in ["rustc", "/usr/bin/rustc"] {
        let Some(rust) = Rust::at(Path::new(rustc)) else {
            misses.push(format!("{rustc} is not there"));
            continue;
        };
        match rust.instrumenting(sanitizer) {
            Ok(found) => return Ok(found),
            Err(missing) => misses.push(format!("{} misses {missing}", rust.rustc.display())),
        }
    }
    Err(Failure::usage(format_args!(
        "no Rust toolchain here can instrument for the {} sanitizer: {}; ./quire setup installs Debian's packages",
        sanitizer.name(),
        misses.join("; ")
    )))
}

/// The program that adds function names to the reports: LLVM's, or else the one of binutils.
pub fn symbolizer() -> Option<PathBuf> {
    let llvm = (14..40).rev().map(|n| PathBuf::from(format!("/usr/lib/llvm-{n}/bin/llvm-symbolizer")));
    llvm.chain(["/usr/bin/addr2line".into()]).find(|p| p.exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_llvm_of_a_compiler_is_read() {
        assert_eq!(llvm_of("rustc 1.96.0\nhost: x86_64\nrelease: 1.96.0\nLLVM version: 22.1.8\n"), Some(22));
        assert_eq!(llvm_of("rustc 1.96.0\n"), None);
    }
}
