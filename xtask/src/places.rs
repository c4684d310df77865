//! The directories of the repository, of the cache and of the build results, and a lock between two invocations.

use std::{
    env, fs,
    fs::{File, TryLockError},
    path::{Path, PathBuf},
};

use crate::{
    failure::{Doing, Result},
    progress::Step,
};

/// The directories from which all other paths derive.
#[derive(Debug, Clone)]
pub struct Places {
    /// The root of the repository.
    pub root: PathBuf,
    /// The files that are fetched or made once and kept: sysroots, Debian's kernel, probes. `$QUIRE_CACHE` names
    /// another directory.
    pub cache: PathBuf,
    /// The build results. `$CARGO_TARGET_DIR` names another directory.
    pub target: PathBuf,
}

impl Places {
    /// Finds the directories. The entry script passes the repository's path in `$QUIRE_ROOT`, and `cargo run -p xtask`
    /// works too.
    pub fn find() -> Self {
        let root = env::var_os("QUIRE_ROOT").map(PathBuf::from).unwrap_or_else(|| {
            let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
            manifest.parent().unwrap_or(manifest).to_owned()
        });
        let cache = env::var_os("QUIRE_CACHE").map(PathBuf::from).unwrap_or_else(|| root.join(".cache"));
        let target = env::var_os("CARGO_TARGET_DIR").map(PathBuf::from).unwrap_or_else(|| root.join("target"));
        Self { root, cache: absolute(cache), target: absolute(target) }
    }

    /// Waits until no other process holds the lock `name`, then holds it until the guard is dropped. The operating
    /// system releases the lock when the process ends in any way.
    pub fn lock(&self, name: &str) -> Result<Lock> {
        fs::create_dir_all(&self.cache).doing(|| format!("cannot make {}", self.cache.display()))?;
        let path = self.cache.join(format!("{name}.lock"));
        let file = File::create(&path).doing(|| format!("cannot make {}", path.display()))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let _step = Step::new(format!("waiting for another ./quire, which holds {}", path.display()));
                file.lock().doing(|| format!("cannot lock {}", path.display()))?;
            }
            Err(TryLockError::Error(e)) => return Err(e).doing(|| format!("cannot lock {}", path.display())),
        }
        Ok(Lock { _file: file })
    }
}

/// A held lock. Dropping it releases the lock.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

fn absolute(path: PathBuf) -> PathBuf {
    std::path::absolute(&path).unwrap_or(path)
}
