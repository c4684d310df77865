//! Tests of the tree against a model. Random operations on a real tree and on a map of paths must give the same results
//! and trees.

use crate::test_host::{TestHost, read_file, write_file};
use crate::vfs::rename::Rename;
use crate::{Create, Dentry, FileKind, Final, FsError, Host, Io, Limits, OpenFlags, Vfs};
use proptest::prelude::*;
use quire_heap::Arc;
use std::collections::BTreeMap;
use std::format;
use std::string::{String, ToString};
use std::vec::Vec;

#[derive(Clone, Debug)]
enum Op {
    Write(String, u8),
    Mkdir(String),
    Link(String, String),
    Unlink(String),
    Rmdir(String),
    Rename(String, String, u8),
}

fn path() -> impl Strategy<Value = String> {
    prop::collection::vec(0usize..3, 1..4)
        .prop_map(|parts| parts.iter().map(|p| format!("/{}", ["a", "b", "c"][*p])).collect())
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        (path(), any::<u8>()).prop_map(|(p, b)| Op::Write(p, b)),
        path().prop_map(Op::Mkdir),
        path().prop_map(Op::Mkdir),
        (path(), path()).prop_map(|(a, b)| Op::Link(a, b)),
        path().prop_map(Op::Unlink),
        path().prop_map(Op::Rmdir),
        (path(), path(), 0u8..3).prop_map(|(a, b, how)| Op::Rename(a, b, how)),
    ]
}

/// The model: the file of each path, where `None` is a directory and `Some(id)` a file.
#[derive(Default)]
struct Model {
    names: BTreeMap<String, Option<usize>>,
    files: Vec<u8>,
}

impl Model {
    fn get(&self, p: &str) -> Option<Option<usize>> {
        if p.is_empty() { Some(None) } else { self.names.get(p).copied() }
    }
    /// Whether all parents of `p` are directories.
    fn way(&self, p: &str) -> Result<(), FsError> {
        let mut at = String::new();
        let parts: Vec<&str> = p[1..].split('/').collect();
        for part in &parts[..parts.len() - 1] {
            at = format!("{at}/{part}");
            match self.get(&at) {
                None => return Err(FsError::NotFound),
                Some(Some(_)) => return Err(FsError::NotDirectory),
                Some(None) => {}
            }
        }
        Ok(())
    }
    fn has_below(&self, p: &str) -> bool {
        self.names.keys().any(|k| k.starts_with(&format!("{p}/")))
    }
    fn apply(&mut self, op: &Op) -> Result<(), FsError> {
        match op {
            Op::Write(p, b) => {
                self.way(p)?;
                let id = match self.get(p) {
                    Some(None) => return Err(FsError::IsDirectory),
                    Some(Some(id)) => id,
                    None => {
                        self.files.push(0);
                        self.names.insert(p.clone(), Some(self.files.len() - 1));
                        self.files.len() - 1
                    }
                };
                self.files[id] = *b;
            }
            Op::Mkdir(p) => {
                self.way(p)?;
                if self.get(p).is_some() {
                    return Err(FsError::Exists);
                }
                self.names.insert(p.clone(), None);
            }
            Op::Link(a, b) => {
                self.way(a)?;
                let from = self.get(a).ok_or(FsError::NotFound)?;
                self.way(b)?;
                if self.get(b).is_some() {
                    return Err(FsError::Exists);
                }
                self.names.insert(b.clone(), Some(from.ok_or(FsError::NotPermitted)?));
            }
            Op::Unlink(p) => {
                self.way(p)?;
                self.get(p).ok_or(FsError::NotFound)?.ok_or(FsError::IsDirectory)?;
                self.names.remove(p);
            }
            Op::Rmdir(p) => {
                self.way(p)?;
                if self.get(p).ok_or(FsError::NotFound)?.is_some() {
                    return Err(FsError::NotDirectory);
                }
                if self.has_below(p) {
                    return Err(FsError::NotEmpty);
                }
                self.names.remove(p);
            }
            Op::Rename(a, b, how) => {
                self.way(a)?;
                self.way(b)?;
                let from = self.get(a).ok_or(FsError::NotFound)?;
                let there = self.get(b);
                match (there, how) {
                    (Some(_), 1) => return Err(FsError::Exists),
                    (None, 2) => return Err(FsError::NotFound),
                    _ => {}
                }
                if from.is_none() && b.starts_with(&format!("{a}/")) {
                    return Err(FsError::Invalid);
                }
                if a == b || (there.is_some() && there == Some(from) && from.is_some()) {
                    return Ok(());
                }
                if *how == 2 {
                    if there == Some(None) && a.starts_with(&format!("{b}/")) {
                        return Err(FsError::Invalid);
                    }
                    let (x, y) = (self.take_tree(a), self.take_tree(b));
                    self.put_tree(b, x);
                    self.put_tree(a, y);
                    return Ok(());
                }
                if there == Some(None) && a.starts_with(&format!("{b}/")) {
                    return Err(FsError::NotEmpty);
                }
                match (from, there) {
                    (None, Some(Some(_))) => return Err(FsError::NotDirectory),
                    (Some(_), Some(None)) => return Err(FsError::IsDirectory),
                    (None, Some(None)) if self.has_below(b) => return Err(FsError::NotEmpty),
                    _ => {}
                }
                self.names.remove(b);
                let tree = self.take_tree(a);
                self.put_tree(b, tree);
            }
        }
        Ok(())
    }
    fn take_tree(&mut self, p: &str) -> Vec<(String, Option<usize>)> {
        let below = format!("{p}/");
        let keys: Vec<String> = self.names.keys().filter(|k| *k == p || k.starts_with(&below)).cloned().collect();
        keys.iter().filter_map(|k| Some((k[p.len()..].to_string(), self.names.remove(k)?))).collect()
    }
    fn put_tree(&mut self, p: &str, tree: Vec<(String, Option<usize>)>) {
        for (rest, id) in tree {
            self.names.insert(format!("{p}{rest}"), id);
        }
    }
}

type Tree = Arc<Vfs<TestHost>>;

fn apply(vfs: &Tree, op: &Op) -> Result<(), FsError> {
    let view = vfs.view();
    let walk = |p: &str| vfs.walk(&view, vfs.root(), p.as_bytes(), Final::Name);
    match op {
        Op::Write(p, b) => write_file(vfs, p, &[*b; 3]),
        Op::Mkdir(p) => vfs.make(&view, &walk(p)?, Create::Directory, 0o755).map(drop),
        Op::Link(a, b) => {
            let old = vfs.find(&view, vfs.root(), a.as_bytes(), false)?;
            vfs.link(&view, &old, &walk(b)?)
        }
        Op::Unlink(p) => vfs.unlink(&view, &walk(p)?),
        Op::Rmdir(p) => vfs.rmdir(&view, &walk(p)?),
        Op::Rename(a, b, how) => {
            let how = [Rename::Replace, Rename::NoReplace, Rename::Exchange][usize::from(*how)];
            vfs.rename(&view, &walk(a)?, &walk(b)?, how)
        }
    }
}

/// Collects every path of the tree with its file, and checks the inodes' numbers.
fn paths(vfs: &Tree, at: &str, out: &mut BTreeMap<String, Option<u64>>) -> usize {
    let dir = vfs
        .open(&vfs.view(), vfs.root(), if at.is_empty() { b"/" } else { at.as_bytes() }, OpenFlags::READ, 0, &Io::NOW)
        .unwrap();
    let mut entries = Vec::new();
    dir.list(&mut |e| {
        entries.push((String::from_utf8(e.name.to_vec()).unwrap(), e.kind, e.number));
        true
    })
    .unwrap();
    assert_eq!((entries[0].0.as_str(), entries[1].0.as_str()), (".", ".."));
    let mut directories = 0;
    for (name, kind, number) in entries.drain(2..) {
        let path = format!("{at}/{name}");
        if kind == FileKind::Directory {
            directories += 1;
            out.insert(path.clone(), None);
            paths(vfs, &path, out);
        } else {
            out.insert(path, Some(number));
        }
    }
    assert_eq!(dir.dentry.inode.attr().links as usize, 2 + directories, "links of {at}");
    let (path, exists) = Dentry::path(&dir.dentry, vfs.root()).expect("memory");
    assert_eq!((&path[..], exists), (if at.is_empty() { &b"/"[..] } else { at.as_bytes() }, true));
    directories
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn the_tree_agrees_with_a_map_of_paths(ops in prop::collection::vec(op(), 1..80)) {
        let vfs = Vfs::new(TestHost, Limits { inodes: Some(10_000), pages: Some(1 << 20) }).unwrap();
        let mut model = Model::default();
        for op in &ops {
            let (real, expected) = (apply(&vfs, op), model.apply(op));
            prop_assert_eq!(real, expected, "{:?}", op);
        }
        let mut real = BTreeMap::new();
        paths(&vfs, "", &mut real);
        prop_assert!(real.keys().eq(model.names.keys()));
        for (path, file) in &model.names {
            if let Some(id) = file {
                let names = model.names.values().filter(|w| **w == Some(*id)).count();
                let dentry = vfs.find(&vfs.view(), vfs.root(), path.as_bytes(), true).unwrap();
                prop_assert_eq!(dentry.inode.attr().links as usize, names);
                prop_assert_eq!(read_file(&vfs, path).unwrap(), [model.files[*id]; 3]);
            }
        }
        // Inodes that lost all names are gone. The remaining inodes are the root, and one for each directory and name
        // of a file.
        vfs.host().epoch().drain();
        prop_assert_eq!(vfs.root().inode.system().inodes() as usize, 1 + model.names.len());
    }

    #[test]
    fn any_path_is_walked_without_harm(
        path in "[ab./]{0,40}",
        links in prop::collection::vec("[ab./]{1,12}", 3),
    ) {
        let vfs = Vfs::new(TestHost, Limits { inodes: Some(100), pages: Some(1 << 20) }).unwrap();
        let view = vfs.view();
        for (name, target) in ["/a", "/b", "/ab"].iter().zip(&links) {
            let found = vfs.walk(&view, vfs.root(), name.as_bytes(), Final::Name).unwrap();
            vfs.make(&view, &found, Create::Symlink(target.as_bytes()), 0).unwrap();
        }
        match vfs.walk(&view, vfs.root(), path.as_bytes(), Final::Follow) {
            Ok(found) => prop_assert!(found.parent.inode.is_directory()),
            Err(e) => prop_assert!(matches!(e, FsError::NotFound | FsError::Loop | FsError::NotDirectory)),
        }
    }
}

#[test]
fn concurrent_directory_moves_neither_deadlock_nor_lose_files() {
    let vfs = Vfs::new(TestHost, Limits { inodes: Some(10_000), pages: Some(1 << 20) }).unwrap();
    for d in ["/p", "/p/q", "/r"] {
        apply(&vfs, &Op::Mkdir(d.into())).unwrap();
    }
    let places = ["/p", "/p/q", "/r", ""];
    std::thread::scope(|s| {
        for t in 0..4usize {
            let vfs = &vfs;
            s.spawn(move || {
                let (file, dir) = (format!("f{t}"), format!("d{t}"));
                let mut at = 0;
                write_file(vfs, &format!("/p/{file}"), b"x").unwrap();
                apply(vfs, &Op::Mkdir(format!("/p/{dir}"))).unwrap();
                for i in 0..2_000 {
                    let to = (at + 1 + (i + t) % 3) % 4;
                    for name in [&file, &dir] {
                        let op = Op::Rename(format!("{}/{name}", places[at]), format!("{}/{name}", places[to]), 0);
                        apply(vfs, &op).unwrap();
                    }
                    // This disturbs other threads: a neighbouring directory is made and removed.
                    apply(vfs, &Op::Mkdir(format!("{}/x{t}", places[at]))).unwrap();
                    apply(vfs, &Op::Rmdir(format!("{}/x{t}", places[at]))).unwrap();
                    at = to;
                }
            });
        }
    });
    let mut all = BTreeMap::new();
    paths(&vfs, "", &mut all);
    assert_eq!(all.len(), 3 + 8);
}
