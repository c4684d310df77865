//! Files that the scripts of common packages make on every machine. This module makes them, because no package script
//! runs.
//!
//! - `libpam-runtime`: the four common files of `/etc/pam.d`, with the plain Unix module;
//! - `ca-certificates`: all certificates in one file;
//! - `base-files`: root's shell files and `/var` of a fresh machine;
//! - the machine's id, and the empty records of logins;
//! - `ssl-cert`: the certificate of snake oil, which several servers name in their configuration;
//! - the host's name, the order of the name service, and the loader's cache, which is left out.

use std::{
    fs,
    process::{Command, Stdio},
};

use super::{super::tree::Tree, accounts::Accounts};
use crate::{failure::Result, places::Places};

/// The id of each guest. It is always this one, so that two runs are equal.
pub const MACHINE: &str = "717569726500000000000000000000a1";

/// The files in which programs keep logins, and their permission bits. The group `utmp` writes them.
const RECORDS: [(&str, u32); 4] =
    [("/run/utmp", 0o664), ("/var/log/wtmp", 0o664), ("/var/log/btmp", 0o660), ("/var/log/lastlog", 0o664)];

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
    for file in ["/etc/machine-id", "/var/lib/dbus/machine-id"] {
        // An empty file is as good as none: systemd fills it at the first start.
        if tree.read(file).is_none_or(|id| id.is_empty()) {
            tree.remove(file);
            tree.file(file, 0o444, format!("{MACHINE}\n"))?;
        }
    }
    Ok(())
}

/// Adds the empty records of logins, where nothing has made them.
pub fn records(tree: &mut Tree, accounts: &Accounts) -> Result<()> {
    let group = accounts.group_number("utmp").unwrap_or(0);
    for (name, bits) in RECORDS {
        if !tree.has(name) {
            tree.file(name, bits, "")?;
            tree.own(name, 0, group);
        }
    }
    Ok(())
}

/// The package's template, and the places of the certificate and of its key.
const SNAKE_OIL: [&str; 3] = [
    "/usr/share/ssl-cert/ssleay.cnf",
    "/etc/ssl/certs/ssl-cert-snakeoil.pem",
    "/etc/ssl/private/ssl-cert-snakeoil.key",
];

/// Adds the certificate that the host signs itself, and its key, where the package `ssl-cert` is in the tree. The
/// host's openssl makes both once, into the cache. A host without openssl makes none, and servers with TLS then say so.
pub fn certificate(tree: &mut Tree, places: &Places, accounts: &Accounts) -> Result<()> {
    let [template, certificate, key] = SNAKE_OIL;
    if !tree.has(template) || tree.has(certificate) {
        return Ok(());
    }
    let kept = places.cache.join("debian/snakeoil.pem");
    if !kept.exists() {
        let part = kept.with_extension(format!("part-{}", std::process::id()));
        let made = Command::new("openssl")
            .args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "3650", "-subj", "/CN=quire"])
            .args([
                "-addext",
                "subjectAltName=DNS:quire,DNS:localhost",
                "-keyout",
                "/dev/stdout",
                "-out",
                "/dev/stdout",
            ])
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .output();
        // The rename is the last step, so a kept file is whole.
        let Ok(made) = made.map(|made| made.stdout) else { return Ok(()) };
        if sections(&String::from_utf8_lossy(&made)).is_none()
            || fs::write(&part, made).and_then(|()| fs::rename(&part, &kept)).is_err()
        {
            return Ok(());
        }
    }
    let both = fs::read_to_string(&kept).unwrap_or_default();
    let Some((secret, public)) = sections(&both) else { return Ok(()) };
    tree.file(certificate, 0o644, public)?;
    tree.file(key, 0o640, secret)?;
    tree.own(key, 0, accounts.group_number("ssl-cert").unwrap_or(0));
    Ok(())
}

/// The private key and the certificate in the output of openssl.
fn sections(text: &str) -> Option<(String, String)> {
    let section = |name: &str| {
        let (begin, end) = (format!("-----BEGIN {name}-----"), format!("-----END {name}-----"));
        let from = text.find(&begin)?;
        let to = from + text[from..].find(&end)? + end.len();
        Some(format!("{}\n", &text[from..to]))
    };
    Some((section("PRIVATE KEY")?, section("CERTIFICATE")?))
}

#[cfg(test)]
mod tests {
    use super::{super::accounts::Account, *};

    #[test]
    fn a_key_and_its_certificate_are_separated() {
        let text = "-----BEGIN PRIVATE KEY-----\na\n-----END PRIVATE KEY-----\n-----BEGIN CERTIFICATE-----\nb\n\
                    -----END CERTIFICATE-----\n";
        let (secret, public) = sections(text).unwrap();
        assert_eq!(secret, "-----BEGIN PRIVATE KEY-----\na\n-----END PRIVATE KEY-----\n");
        assert_eq!(public, "-----BEGIN CERTIFICATE-----\nb\n-----END CERTIFICATE-----\n");
        for wrong in ["", "-----BEGIN PRIVATE KEY-----", &text[..60], &text[20..]] {
            assert_eq!(sections(wrong), None);
        }
    }

    #[test]
    fn every_root_has_an_id_and_records_of_logins() {
        let mut tree = Tree::default();
        tree.file("/etc/machine-id", 0o644, "").unwrap();
        tree.file("/var/log/wtmp", 0o600, "kept").unwrap();
        let mut accounts = Accounts::default();
        accounts.add(Account::Group("utmp".into(), Some(43)));
        install(&mut tree).unwrap();
        records(&mut tree, &accounts).unwrap();
        let id = String::from_utf8(tree.read("/etc/machine-id").unwrap()).unwrap();
        assert!(id.trim_end().len() == 32 && id.trim_end().bytes().all(|b| b.is_ascii_hexdigit()));
        assert_eq!((tree.mode("/var/log/btmp"), tree.owner("/var/log/btmp")), (Some(0o660), Some((0, 43))));
        assert_eq!(tree.read("/var/log/wtmp").as_deref(), Some(&b"kept"[..]));
        assert!(tree.has("/run/utmp") && tree.has("/var/log/lastlog"));
    }
}
