//! Files that the scripts of common packages make on every machine. This module makes them, because no package script
//! runs.
//!
//! - `libpam-runtime`: the four common files of `/etc/pam.d`, with the plain Unix module;
//! - `ca-certificates`: all certificates in one file;
//! - `base-files`: root's shell files and `/var` of a fresh machine;
//! - the host's name, the order of the name service, and the loader's cache, which is left out.

use super::super::tree::Tree;
use crate::failure::Result;

/// A file of `/etc/pam.d`, and its lines.
const PAM: &[(&str, &str)] = &[
    ("common-auth", "auth required pam_unix.so nullok\n"),
    ("common-account", "account required pam_unix.so\n"),
    ("common-password", "password required pam_unix.so obscure yescrypt\n"),
    ("common-session", "session required pam_unix.so\n"),
    ("common-session-noninteractive", "session required pam_unix.so\n"),
];

/// The directory where `ca-certificates` has the certificates, and the file in which libraries look for them.
const CERTIFICATES: (&str, &str) = ("/usr/share/ca-certificates", "/etc/ssl/certs/ca-certificates.crt");

/// Adds each of these files if the package whose script makes the file is in the tree.
pub fn install(tree: &mut Tree) -> Result<()> {
    if tree.has("/usr/share/pam/common-auth") {
        for (name, text) in PAM {
            tree.file(format!("/etc/pam.d/{name}"), 0o644, *text)?;
        }
    }
    let (from, to) = CERTIFICATES;
    let all: Vec<u8> = tree
        .below(from)
        .iter()
        .filter(|name| name.extension().is_some_and(|e| e == "crt"))
        .filter_map(|name| tree.read(name))
        .flatten()
        .collect();
    if !all.is_empty() {
        tree.file(to, 0o644, all)?;
    }
    tree.directory("/run/lock", 0o1777)?;
    for (from, to) in [("/var/run", "/run"), ("/var/lock", "/run/lock")] {
        tree.link(from, to)?;
    }
    for name in [".bashrc", ".profile"] {
        let text = tree.read(format!("/usr/share/base-files/dot{name}"));
        if let Some(text) = text {
            tree.file(format!("/root/{name}"), 0o644, text)?;
        }
    }
    for name in ["profile", "nsswitch.conf"] {
        let text = tree.read(format!("/usr/share/base-files/{name}")).filter(|_| !tree.has(format!("/etc/{name}")));
        if let Some(text) = text {
            tree.file(format!("/etc/{name}"), 0o644, text)?;
        }
    }
    Ok(())
}
