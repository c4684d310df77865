use std::{ffi::OsStr, os::unix::fs::PermissionsExt};

use cpio::newc;

use super::*;

struct Seen {
    name: String,
    mode: u32,
    bytes: Vec<u8>,
    header: [u32; 4],
}

/// The members as an independent reader finds them. The header's numbers are inode, owner, links and time.
fn members(tree: &Tree, first: &str) -> Vec<Seen> {
    let mut archive = Vec::new();
    tree.write(&mut archive, first).unwrap();
    let mut rest = archive.as_slice();
    let mut found = Vec::new();
    loop {
        let mut reader = newc::Reader::new(rest).unwrap();
        let e = reader.entry();
        if e.is_trailer() {
            return found;
        }
        let header = [e.ino(), e.uid(), e.nlink(), e.mtime()];
        let (name, mode) = (e.name().to_owned(), e.mode());
        let mut bytes = Vec::new();
        io::Read::read_to_end(&mut reader, &mut bytes).unwrap();
        found.push(Seen { name, mode, bytes, header });
        rest = reader.finish().unwrap();
    }
}

fn link_of(tree: &Tree, at: &str) -> Option<PathBuf> {
    match &tree.nodes.get(Path::new(at))?.kind {
        NodeKind::Link(to) => Some(to.clone()),
        _ => None,
    }
}

#[test]
fn the_archive_has_parents_before_children_in_order() {
    let mut tree = Tree::default();
    tree.file("/a/b/c", 0o755, "text").unwrap();
    tree.file("/z", 0o600, "first").unwrap();
    tree.link("/a/l", "b/c").unwrap();
    let expected = [
        ("z", 0o100_600, "first"),
        ("a", 0o040_755, ""),
        ("a/b", 0o040_755, ""),
        ("a/b/c", 0o100_755, "text"),
        ("a/l", 0o120_777, "b/c"),
    ];
    let got = members(&tree, "/z");
    let got: Vec<_> = got.iter().map(|m| (m.name.as_str(), m.mode, str::from_utf8(&m.bytes).unwrap())).collect();
    assert_eq!(got, expected);
}

#[test]
fn names_are_cleaned_and_follow_links_wherever_they_lie() {
    let mut tree = Tree::default();
    tree.link("/bin", "usr/bin").unwrap();
    tree.file("/bin/../bin/./x", 0o755, "").unwrap();
    assert!(tree.has("/usr/bin/x") && tree.has("/bin/x"));
    assert!(!tree.has("/bin/y"));
    tree.host_file("/bin/real", Path::new("/dev/null")).unwrap();
    tree.link("/bin/name", "real").unwrap();
    assert_eq!(tree.host_path("/bin/name"), Some("/dev/null".into()));
    assert_eq!(tree.host_path("/bin"), None);
    tree.link("/opt/current", "versions/2").unwrap();
    tree.file("/opt/current/lib/f", 0o644, "").unwrap();
    assert!(tree.nodes.contains_key(Path::new("/opt/versions/2/lib/f")));
    tree.link("/round/a", "b").unwrap();
    tree.link("/round/b", "a").unwrap();
    assert!(!tree.has("/round/a") && tree.file("/round/a/f", 0o644, "").is_err());
    assert!(tree.file("relative", 0o644, "").is_err());
    assert!(tree.file("/nul\0", 0o644, "").is_err());
}

#[test]
fn an_existing_file_is_replaced_merged_or_named() {
    let mut tree = Tree::default();
    tree.link("/bin", "usr/bin").unwrap();
    tree.file("/bin/tool", 0o755, "").unwrap();
    tree.alias("/bin/applet", "tool").unwrap();
    tree.alias("/bin/tool", "elsewhere").unwrap();
    assert!(link_of(&tree, "/usr/bin/tool").is_none(), "an alias takes no name away");
    tree.link("/bin/applet", "/etc/alternatives/applet").unwrap();
    assert_eq!(link_of(&tree, "/usr/bin/applet"), Some("/etc/alternatives/applet".into()), "a copied link wins");
    tree.file("/bin/applet", 0o755, "own").unwrap();
    assert!(link_of(&tree, "/usr/bin/applet").is_none() && !tree.has("/etc/alternatives/applet"), "as does a file");
    // When a directory becomes a link, its content moves to the target. A file that the target has already stays.
    tree.file("/usr/sbin/daemon", 0o755, "").unwrap();
    tree.file("/usr/sbin/tool", 0o700, "").unwrap();
    tree.link("/usr/sbin", "bin").unwrap();
    assert!(tree.has("/usr/bin/daemon") && tree.has("/usr/sbin/daemon"));
    assert_eq!(tree.get(Path::new("/usr/bin/tool")).unwrap().meta.mode, 0o755);
    for wrong in [tree.file("/usr", 0o644, ""), tree.file("/bin/tool/f", 0o644, ""), tree.link("/usr", "usr/bin")] {
        assert_eq!(wrong.unwrap_err().status, 2);
    }
    assert!(tree.directory("/bin/tool", 0o755).is_err());
    tree.directory("/tmp", 0o1777).unwrap();
    tree.directory("/tmp", 0o755).unwrap();
    assert_eq!(tree.get(Path::new("/tmp")).unwrap().meta.mode, 0o1777, "one that is there keeps its permissions");
}

#[test]
fn a_host_directory_is_copied_with_links_owners_and_times() {
    let host = tempfile::tempdir().unwrap();
    let at = |name: &str| host.path().join(name);
    fs::create_dir(at("sub")).unwrap();
    fs::write(at("sub/file"), "x").unwrap();
    fs::set_permissions(at("sub/file"), fs::Permissions::from_mode(0o640)).unwrap();
    fs::hard_link(at("sub/file"), at("other")).unwrap();
    std::os::unix::fs::symlink("sub/file", at("link")).unwrap();
    let raw = OsStr::from_bytes(b"\xff name");
    fs::write(host.path().join(raw), "raw").unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, at("fifo"), rustix::fs::Mode::RUSR).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
    let time = std::time::UNIX_EPOCH + std::time::Duration::new(1_000_000_007, 123_456_789);
    fs::File::open(at("sub")).unwrap().set_modified(time).unwrap();
    fs::File::options().write(true).open(at("other")).unwrap().set_modified(time).unwrap();

    let mut tree = Tree::default();
    tree.alias("/d/link", "/bin/busybox").unwrap();
    tree.host_tree("/d", host.path()).unwrap();
    assert_eq!(link_of(&tree, "/d/link"), Some("sub/file".into()));
    assert!(tree.nodes.contains_key(&Path::new("/d").join(raw)));
    assert_eq!(tree.nodes[Path::new("/d/fifo")].kind, NodeKind::Special(0o010_000, 0));
    assert_eq!(tree.nodes[Path::new("/d/socket")].kind, NodeKind::Special(0o140_000, 0));
    assert_eq!(tree.nodes[Path::new("/d/other")].meta.nanos, 123_456_789);
    tree.nodes.remove(&Path::new("/d").join(raw)); // the reader below takes names for UTF-8
    let all = members(&tree, "");
    let one = |name: &str| all.iter().find(|m| m.name == name).unwrap();
    let owner = fs::metadata(at("other")).unwrap().uid();
    let (file, other) = (one("d/sub/file"), one("d/other"));
    assert_eq!(file.header, other.header, "one inode with two names");
    assert_eq!(file.header[1..], [owner, 2, 1_000_000_007]);
    assert_eq!((other.bytes.as_slice(), file.bytes.as_slice(), file.mode), (&b"x"[..], &b""[..], 0o100_640));
    assert_eq!(one("d/sub").header[3], 1_000_000_007);
    assert!(tree.host_tree("/e", Path::new("/no/such/file")).is_err());
    // The member of a file with one name has the link count 1.
    let mut tree = Tree::default();
    tree.host_file("/alone", &at("other")).unwrap();
    assert_eq!(members(&tree, "")[0].header[2], 1);
}

#[test]
fn the_links_on_the_way_to_a_program_come_along() {
    let host = tempfile::tempdir().unwrap();
    let root = host.path().canonicalize().unwrap();
    fs::create_dir_all(root.join("lib/v2/bin")).unwrap();
    fs::write(root.join("lib/v2/bin/prog"), "").unwrap();
    std::os::unix::fs::symlink("v2", root.join("lib/current")).unwrap();
    std::os::unix::fs::symlink(root.join("lib/current/bin/prog"), root.join("prog")).unwrap();
    let mut tree = Tree::default();
    let real = tree.host_links(&root.join("lib/../prog")).unwrap();
    assert_eq!(real, root.join("lib/v2/bin/prog"));
    tree.host_file(&real, &real).unwrap();
    assert_eq!(tree.host_path(root.join("prog")), Some(real.clone()));
    assert_eq!(link_of(&tree, root.join("lib/current").to_str().unwrap()), Some("v2".into()));
    std::os::unix::fs::symlink("loop", root.join("loop")).unwrap();
    assert!(tree.host_links(&root.join("loop")).is_err());
    assert!(tree.host_links(&root.join("nothing")).is_err());
}
