//! The sources of Lua, a C project that guests build. They are Debian's source package, unpacked into the cache.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use super::apt::Apt;
use crate::{
    failure::{Doing, Failure, Result},
    places::Places,
    progress::Step,
};

/// The name of Debian's source package.
const PACKAGE: &str = "lua5.4";

/// The directory of apt's lists, which exists until the package is fetched.
const LISTS: &str = "apt-sources";

/// Returns the directory with Lua's `Makefile` and C files, and fetches it first if it does not exist. `$QUIRE_LUA`
/// names another directory.
pub fn ensure(places: &Places) -> Result<PathBuf> {
    if let Some(given) = std::env::var_os("QUIRE_LUA").map(PathBuf::from) {
        let about = || format!("QUIRE_LUA={}", given.display());
        fs::metadata(given.join("Makefile")).doing(about)?;
        fs::metadata(given.join("lua.c")).doing(about)?;
        return Ok(given);
    }
    let home = places.cache.join("lua");
    if home.join("Makefile").exists() {
        return Ok(home);
    }
    let _lock = places.lock("lua")?;
    if home.join("Makefile").exists() {
        return Ok(home);
    }
    if !Path::new("/usr/bin/apt-get").exists() {
        return Err(Failure::usage(
            "Lua's sources are fetched with apt, which this machine lacks; name the directory with lua.c in $QUIRE_LUA",
        ));
    }
    let step = Step::new("fetching the sources of Lua (once, 10 MB)");
    let apt = Apt::private(places, LISTS, |mirror, suite, by| format!("deb-src {by} {mirror} {suite} main\n"))
        .ok_or_else(|| {
            Failure::usage("Debian's list of source packages cannot be fetched; run apt-get update, or set $QUIRE_LUA")
        })?;
    let work = places.cache.join("lua-fetch");
    let _ = fs::remove_dir_all(&work);
    fs::create_dir_all(&work).doing(|| format!("cannot make {}", work.display()))?;
    step.doing(PACKAGE);
    let log = fs::File::create(work.join("log")).doing(|| format!("cannot write {}", work.display()))?;
    let run = |command: &mut Command| {
        let err = log.try_clone().map_or_else(|_| Stdio::null(), Stdio::from);
        let ran = command.current_dir(&work).stdin(Stdio::null()).stdout(Stdio::null()).stderr(err).status();
        match ran.is_ok_and(|s| s.success()) {
            true => Ok(()),
            false => Err(Failure::usage(format_args!(
                "fetching {PACKAGE} failed; see {}, or set $QUIRE_LUA",
                work.join("log").display()
            ))),
        }
    };
    run(apt.command("apt-get").args(["-q", "source", "--download-only", PACKAGE]))?;
    let archive = original(&work).ok_or_else(|| Failure::usage("the source package holds no archive of sources"))?;
    run(Command::new("tar").arg("-xf").arg(&archive).arg("--strip-components=1"))?;
    fs::rename(work.join("src"), &home).doing(|| format!("cannot keep {}", home.display()))?;
    let _ = fs::remove_dir_all(&work);
    let _ = fs::remove_dir_all(places.cache.join(LISTS));
    Ok(home)
}

/// The path of the original archive of Lua's authors.
fn original(work: &Path) -> Option<PathBuf> {
    let files = fs::read_dir(work).ok()?;
    files.filter_map(|f| Some(f.ok()?.path())).find(|p| {
        // The archive's signature, whose name ends with `.asc`, is skipped.
        p.to_string_lossy().contains(".orig.tar.") && p.extension().is_none_or(|e| e != "asc")
    })
}
