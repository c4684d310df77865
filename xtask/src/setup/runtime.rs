//! Finds libFuzzer. Debian's rustc is built with one version of LLVM. Debian has libFuzzer in the package of that
//! version's runtime libraries.

use std::path::{Path, PathBuf};

use crate::failure::{Failure, Result};

/// The LLVM versions for which the library is searched, the newest first.
const VERSIONS: std::ops::Range<u32> = 14..40;

/// The path of the library of LLVM version `major`, if it exists.
fn of_version(major: u32) -> Option<PathBuf> {
    let path = format!("/usr/lib/llvm-{major}/lib/clang/{major}/lib/linux/libclang_rt.fuzzer-x86_64.a");
    Some(PathBuf::from(path)).filter(|p| p.exists())
}

/// The way to link libFuzzer into a program: variables for the build script of its crate, and flags for further
/// libraries.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LibFuzzer {
    /// The environment variables of the build.
    pub variables: Vec<(&'static str, String)>,
    /// The flags for rustc.
    pub flags: Vec<String>,
}

/// Finds an installed library. If there is none, the crate compiles its own copy, which needs a C++ compiler.
pub fn libfuzzer() -> Result<LibFuzzer> {
    let ready = VERSIONS.rev().find_map(of_version);
    let runtime = Path::new("/usr/lib/x86_64-linux-gnu/libstdc++.so.6");
    if let Some(library) = ready.filter(|_| runtime.exists()) {
        return Ok(LibFuzzer {
            variables: vec![
                ("CUSTOM_LIBFUZZER_PATH", library.display().to_string()),
                ("CUSTOM_LIBFUZZER_STD_CXX", "none".to_owned()),
            ],
            flags: vec![format!("-Clink-arg={}", runtime.display())],
        });
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    if std::env::split_paths(&path).any(|p| p.join("c++").exists()) {
        return Ok(LibFuzzer::default());
    }
    Err(Failure::usage("libFuzzer is missing: ./quire setup installs libclang-rt-22-dev; or install a C++ compiler"))
}
