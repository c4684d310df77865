//! The root file system of every guest: busybox under all its names, and the few files that programs expect.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use super::{libraries, tree::Tree};
use crate::failure::{Doing, Failure, Result};

/// The guest's search path.
pub const PATH: &str = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin";

/// The guest's shell.
pub const SHELL: &str = "/bin/sh";

const FILES: &[(&str, &str)] = &[
    ("/etc/passwd", "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"),
    ("/etc/group", "root:x:0:\ntty:x:5:\nnogroup:x:65534:\n"),
    ("/etc/hostname", "quire\n"),
    ("/etc/hosts", "127.0.0.1 localhost quire\n"),
    ("/etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files\n"),
    ("/etc/os-release", "NAME=Quire\nID=quire\nPRETTY_NAME=\"Quire\"\n"),
    ("/etc/profile", "export PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin\nPS1='quire:$PWD# '\n"),
    ("/etc/shells", "/bin/sh\n"),
];

/// The path of the host's static busybox: `$QUIRE_BUSYBOX`, or else the one of the Debian package.
pub fn busybox() -> Result<PathBuf> {
    let given = std::env::var_os("QUIRE_BUSYBOX").map(PathBuf::from);
    let places = given.iter().cloned().chain(["/usr/bin/busybox", "/bin/busybox"].map(PathBuf::from));
    for path in places {
        if let Ok(bytes) = fs::read(&path)
            && libraries::needs(&bytes).is_ok_and(|needs| needs.interpreter.is_none())
        {
            return Ok(path);
        }
    }
    Err(Failure::usage("no static busybox: install busybox-static (./quire setup), or name one in $QUIRE_BUSYBOX"))
}

/// The names of `busybox`'s applets, as paths without the leading slash.
pub fn applets(busybox: &Path) -> Result<Vec<String>> {
    let out =
        Command::new(busybox).arg("--list-full").output().doing(|| format!("cannot run {}", busybox.display()))?;
    let text = String::from_utf8(out.stdout).doing(|| "busybox --list-full".to_string())?;
    Ok(text.lines().filter(|l| !l.is_empty()).map(str::to_owned).collect())
}

/// A tree with the files of every guest.
pub fn tree() -> Result<Tree> {
    let mut tree = Tree::default();
    skeleton(&mut tree)?;
    fill(&mut tree)?;
    Ok(tree)
}

/// Adds the links and directories that every root file system has.
pub fn skeleton(tree: &mut Tree) -> Result<()> {
    for (from, to) in [("/bin", "usr/bin"), ("/sbin", "usr/sbin"), ("/lib", "usr/lib"), ("/lib64", "usr/lib64")] {
        tree.link(from, to)?;
    }
    for directory in ["/usr/lib", "/usr/lib64", "/usr/local/bin", "/run", "/home", "/var/log"] {
        tree.directory(directory, 0o755)?;
    }
    tree.directory("/root", 0o700)?;
    mounted(tree)?;
    tree.directory("/var/tmp", 0o1777)
}

/// Adds the directories that every program needs, if the tree does not have them.
pub fn mounted(tree: &mut Tree) -> Result<()> {
    for directory in ["/dev", "/proc", "/sys"] {
        tree.directory(directory, 0o755)?;
    }
    tree.directory("/tmp", 0o1777)
}

/// Adds busybox under all its names, and the files that programs expect. Files that the tree has already are not
/// replaced.
pub fn fill(tree: &mut Tree) -> Result<()> {
    let busybox = busybox()?;
    for (name, text) in FILES {
        if !tree.has(name) {
            tree.file(name, 0o644, *text)?;
        }
    }
    tree.host_file("/bin/busybox", &busybox)?;
    for applet in applets(&busybox)? {
        tree.alias(format!("/{applet}"), "/bin/busybox")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_has_a_shell_and_the_usual_directories() {
        let tree = tree().unwrap();
        for name in ["/bin/sh", "/bin/busybox", "/usr/bin/sort", "/etc/passwd", "/tmp", "/dev", "/proc"] {
            assert!(tree.has(name), "{name}");
        }
    }
}
