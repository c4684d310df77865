//! `--copy-out GUEST[:HOST]`: files that come back from the guest at its end, in a cpio archive.
//!
//! The archive comes from the guest, so it is not trusted. A member may only be written into a directory that the
//! archive itself has created.

use std::{
    collections::BTreeSet,
    ffi::{OsStr, OsString},
    fs::{self, File},
    io::{self, BufReader, Read, Seek as _},
    os::unix::{
        ffi::OsStrExt as _,
        fs::{OpenOptionsExt as _, PermissionsExt as _},
    },
    path::{Component, Path, PathBuf},
    time::{Duration, SystemTime},
};

use cpio::newc;

use crate::failure::{Failure, Result};

/// The value of one `--copy-out`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopyOut {
    /// The absolute path in the guest.
    pub guest: PathBuf,
    /// The path on the host.
    pub host: PathBuf,
}

impl CopyOut {
    /// Parses the option's value. Without HOST, the copy keeps its name and is written to the current directory.
    pub fn parse(text: &OsStr, cwd: &Path) -> Result<Self> {
        let colon = text.as_bytes().iter().position(|b| *b == b':');
        let (guest, host) = match colon.map(|at| text.as_bytes().split_at(at)) {
            Some((guest, host)) => (OsStr::from_bytes(guest), PathBuf::from(OsStr::from_bytes(&host[1..]))),
            None => (text, PathBuf::new()),
        };
        let guest = cwd.join(guest);
        let into = host.as_os_str().is_empty() || host.as_os_str().as_bytes().ends_with(b"/") || host.is_dir();
        let name = guest.file_name().map(OsStr::to_owned);
        let host = match (into, name) {
            (false, _) => host,
            (true, Some(name)) => host.join(name),
            (true, None) => {
                let shown = guest.display();
                return Err(Failure::usage(format_args!("--copy-out {shown}: say where, as GUEST:HOST")));
            }
        };
        Ok(Self { guest, host })
    }
}

/// Writes the archive's members to their places. The first component of a member's name is the number of its
/// `--copy-out`. The user owns all files. Devices and sockets are left out.
pub fn unpack(archive: Option<File>, wanted: &[CopyOut]) -> Result<()> {
    let mut found = BTreeSet::new();
    if let Some(mut file) = archive {
        file.rewind()
            .and_then(|()| take_all(BufReader::with_capacity(1 << 20, file), wanted, &mut found))
            .map_err(|e| Failure::machine(format_args!("the results are not whole: {e}")))?;
    }
    match wanted.iter().enumerate().find(|(i, _)| !found.contains(i)) {
        Some((_, missing)) => {
            Err(Failure::machine(format_args!("--copy-out {}: no such file in the guest", missing.guest.display())))
        }
        None => Ok(()),
    }
}

fn take_all(mut input: impl Read, wanted: &[CopyOut], found: &mut BTreeSet<usize>) -> io::Result<()> {
    let mut directories: BTreeSet<PathBuf> = BTreeSet::new();
    // The modes and times of directories are set last, because entries must be created in them before.
    let mut late: Vec<(PathBuf, u32, SystemTime)> = Vec::new();
    loop {
        let mut member = newc::Reader::new(input)?;
        let entry = member.entry();
        if entry.is_trailer() {
            break;
        }
        let name = OsString::from(entry.name());
        let (mode, time) = (entry.mode(), SystemTime::UNIX_EPOCH + Duration::from_secs(entry.mtime().into()));
        let (number, rest) = split(Path::new(&name))?;
        let Some(to) = wanted.get(number) else { return Err(io::Error::other("an unknown member")) };
        let at = if rest.as_os_str().is_empty() { to.host.clone() } else { to.host.join(&rest) };
        if !rest.as_os_str().is_empty() && !at.parent().is_some_and(|up| directories.contains(up)) {
            return Err(io::Error::other(format!("{} lies in no directory of the archive", at.display())));
        }
        let about = |e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", at.display()));
        match mode >> 12 {
            0o4 => {
                match fs::create_dir(&at) {
                    Err(e) if e.kind() == io::ErrorKind::AlreadyExists && real_directory(&at) => {}
                    other => other.map_err(about)?,
                }
                directories.insert(at.clone());
                late.push((at.clone(), mode & 0o777, time));
            }
            0o10 => {
                remove_file(&at).map_err(about)?;
                let mut options = fs::OpenOptions::new();
                let mut file = options.write(true).create_new(true).mode(0o600).open(&at).map_err(about)?;
                io::copy(&mut member, &mut file).map_err(about)?;
                file.set_permissions(fs::Permissions::from_mode(mode & 0o777)).map_err(about)?;
                file.set_modified(time).map_err(about)?;
            }
            0o12 => {
                let mut target = Vec::new();
                member.read_to_end(&mut target)?;
                remove_file(&at).map_err(about)?;
                std::os::unix::fs::symlink(OsStr::from_bytes(&target), &at).map_err(about)?;
            }
            _ => {}
        }
        found.insert(number);
        input = member.finish()?;
    }
    for (at, mode, time) in late.into_iter().rev() {
        fs::set_permissions(&at, fs::Permissions::from_mode(mode))?;
        File::open(&at)
            .and_then(|d| d.set_modified(time))
            .or_else(|e| if mode & 0o400 == 0 { Ok(()) } else { Err(e) })?;
    }
    Ok(())
}

/// Whether `at` is itself a directory, and not a link to one.
fn real_directory(at: &Path) -> bool {
    fs::symlink_metadata(at).is_ok_and(|m| m.is_dir())
}

/// Removes the file or link at `at`, so that another file can be written there. A missing file is no error.
fn remove_file(at: &Path) -> io::Result<()> {
    match fs::remove_file(at) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

/// Splits a member's name into the number of its `--copy-out` and the rest.
fn split(name: &Path) -> io::Result<(usize, PathBuf)> {
    let bad = || io::Error::other(format!("bad name {}", name.display()));
    let mut parts = name.components();
    let first = parts.next().and_then(|c| c.as_os_str().to_str()?.parse().ok()).ok_or_else(bad)?;
    let rest = parts.as_path();
    if !rest.components().all(|c| matches!(c, Component::Normal(_))) {
        return Err(bad());
    }
    Ok((first, rest.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    fn archive(members: &[(&str, u32, &str)]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        for (name, mode, text) in members {
            let mut writer =
                newc::Builder::new(name).mode(*mode).mtime(1_000_000_000).write(&mut file, text.len() as u32);
            writer.write_all(text.as_bytes()).unwrap();
            writer.finish().unwrap();
        }
        newc::trailer(&mut file).unwrap();
        file
    }

    fn outs(dir: &Path) -> Vec<CopyOut> {
        ["a", "b"].map(|n| CopyOut { guest: format!("/{n}").into(), host: dir.join(n) }).to_vec()
    }

    #[test]
    fn members_come_to_their_places() {
        let dir = tempfile::tempdir().unwrap();
        let wanted = outs(dir.path());
        let members = [
            ("0", 0o040_750, ""),
            ("0/d", 0o040_500, ""),
            ("0/d/f", 0o100_640, "text"),
            ("0/l", 0o120_777, "d/f"),
            ("1", 0o104_755, "program"),
        ];
        for _ in 0..2 {
            unpack(Some(archive(&members)), &wanted).unwrap();
            assert_eq!(fs::read_to_string(dir.path().join("a/l")).unwrap(), "text");
            let program = fs::metadata(dir.path().join("b")).unwrap();
            assert_eq!(program.permissions().mode() & 0o7777, 0o755, "no set-id bits");
            assert_eq!(program.modified().unwrap(), SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000));
            fs::set_permissions(dir.path().join("a/d"), fs::Permissions::from_mode(0o700)).unwrap();
        }
        assert!(unpack(Some(archive(&members[..4])), &wanted).unwrap_err().message.contains("/b"), "one is missing");
        assert!(unpack(None, &wanted).is_err());
    }

    #[test]
    fn hostile_archives_write_nothing_elsewhere() {
        let dir = tempfile::tempdir().unwrap();
        let wanted = outs(dir.path());
        let elsewhere = tempfile::tempdir().unwrap();
        let way = elsewhere.path().to_str().unwrap();
        for members in [
            vec![("0/../../x", 0o100_644, "x")],
            vec![("0", 0o120_777, way), ("0/x", 0o100_644, "x")],
            vec![("0", 0o040_755, ""), ("0/l", 0o120_777, way), ("0/l/x", 0o100_644, "x")],
            vec![("7", 0o100_644, "x")],
            vec![("x", 0o100_644, "x")],
            vec![("0/missing/x", 0o100_644, "x")],
        ] {
            assert!(unpack(Some(archive(&members)), &wanted).is_err(), "{members:?}");
            let _ = fs::remove_file(dir.path().join("a"));
            let _ = fs::remove_dir_all(dir.path().join("a"));
        }
        assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_place_is_found_for_each() {
        let parse = |text: &str| CopyOut::parse(OsStr::new(text), Path::new("/w")).map(|c| (c.guest, c.host));
        assert_eq!(parse("/out/log").unwrap(), ("/out/log".into(), "log".into()));
        assert_eq!(parse("log:here/").unwrap(), ("/w/log".into(), "here/log".into()));
        assert_eq!(parse("log:name").unwrap(), ("/w/log".into(), "name".into()));
        assert_eq!(parse("/").unwrap_err().status, 2);
    }
}
