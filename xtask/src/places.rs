//! The directories: the repository, the cache, the build output; and the lock that separates two invocations.

use std::{
    env, fs,
    fs::File,
    path::{Path, PathBuf},
};

use crate::failure::{Doing, Result};

/// The directories that everything else derives its paths from.
#[derive(Debug, Clone)]
pub struct Places {
    /// The repository.
    pub root: PathBuf,
    /// Things that are fetched or made once and kept: sysroots, Debian's kernel, probes. `$QUIRE_CACHE` moves it.
    pub cache: PathBuf,
    /// The build output. `$CARGO_TARGET_DIR` moves it.
    pub target: PathBuf,
}

impl Places {
    /// Finds them: the entry script names the repository; `cargo run -p xtask` works too.
    pub fn find() -> Self {
        let root = env::var_os("QUIRE_ROOT").map(PathBuf::from).unwrap_or_else(|| {
            let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
            manifest.parent().unwrap_or(manifest).to_owned()
        });
        let cache = env::var_os("QUIRE_CACHE").map(PathBuf::from).unwrap_or_else(|| root.join(".cache"));
        let target = env::var_os("CARGO_TARGET_DIR").map(PathBuf::from).unwrap_or_else(|| root.join("target"));
        Self { root, cache: absolute(cache), target: absolute(target) }
    }

    /// Holds the lock `name` for this process until the guard is dropped; waits for another process that holds it. The
    /// kernel releases it when the process ends, in any way.
    pub fn lock(&self, name: &str) -> Result<Lock> {
        fs::create_dir_all(&self.cache).doing(|| format!("cannot make {}", self.cache.display()))?;
        let path = self.cache.join(format!("{name}.lock"));
        let file = File::create(&path).doing(|| format!("cannot make {}", path.display()))?;
        file.lock().doing(|| format!("cannot lock {}", path.display()))?;
        Ok(Lock { _file: file })
    }
}

/// Held as long as it lives.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

fn absolute(path: PathBuf) -> PathBuf {
    std::path::absolute(&path).unwrap_or(path)
}
