//! Tests of watches and extended attributes, in a tree of the test host.

use crate::test_host::{TestHost, write_file};
use crate::vfs::rename::Rename;
use crate::xattr::Before;
use crate::{Create, Final, FsError, Happening, Io, Limits, OpenFlags, SliceSource, Vfs, Watch, Watcher};
use quire_heap::{Arc, Vec as HeapVec, refusal, unsize};
use std::string::String;
use std::sync::Mutex;
use std::vec::Vec;

/// A watcher that records its events.
#[derive(Default)]
struct Recorder(Mutex<Vec<(i32, Happening, String)>>);

impl Recorder {
    fn take(&self) -> Vec<(i32, Happening, String)> {
        core::mem::take(&mut self.0.lock().unwrap())
    }
}

impl Watcher for Recorder {
    fn happened(&self, watch: &Watch, what: Happening, _cookie: u32, name: &[u8]) {
        self.0.lock().unwrap().push((watch.id, what, String::from_utf8(name.to_vec()).unwrap()));
    }
    fn ended(&self, watch: &Watch) {
        self.0.lock().unwrap().push((watch.id, Happening::empty(), String::new()));
    }
}

fn tree() -> Arc<Vfs<TestHost>> {
    TestHost.be_cpu();
    let vfs = Vfs::new(TestHost, Limits { inodes: Some(20), pages: Some(100) }).unwrap();
    write_file(&vfs, "/f", b"contents").unwrap();
    vfs
}

fn recorder() -> (Arc<Recorder>, Arc<dyn Watcher>) {
    let recorder = Arc::try_new(Recorder::default()).unwrap();
    (recorder.clone(), unsize!(recorder))
}

fn events(list: &[(i32, Happening, &str)]) -> Vec<(i32, Happening, String)> {
    list.iter().map(|(id, what, name)| (*id, *what, String::from(*name))).collect()
}

#[test]
fn watchers_of_a_file_and_of_its_directory_are_notified() {
    let vfs = tree();
    let (recorder, watcher) = recorder();
    let file = vfs.find(&vfs.view(), vfs.root(), b"/f", true).unwrap().counted();
    file.inode.watch(&watcher, 1, Happening::MODIFY | Happening::DELETE_SELF).unwrap();
    let of_root = vfs.root().inode.watch(&watcher, 2, Happening::EVENTS).unwrap();
    assert!(vfs.root().inode.watch_of(&watcher).is_some_and(|watch| Arc::ptr_eq(&watch, &of_root)));
    let open = vfs.open(&vfs.view(), vfs.root(), b"/f", OpenFlags::WRITE, 0, &Io::NOW).unwrap();
    open.write(&Io::NOW, &mut SliceSource::new(b"x")).unwrap();
    drop(open);
    let modify = Happening::MODIFY;
    let expected = [(2, Happening::OPEN, "f"), (2, modify, "f"), (1, modify, ""), (2, Happening::CLOSE_WRITE, "f")];
    assert_eq!(recorder.take(), events(&expected));
    let to = |path: &[u8]| vfs.walk(&vfs.view(), vfs.root(), path, Final::Name).unwrap();
    vfs.rename(&vfs.view(), &to(b"/f"), &to(b"/g"), Rename::Replace).unwrap();
    vfs.make(&vfs.view(), &to(b"/d"), Create::Directory, 0o755).unwrap();
    vfs.unlink(&vfs.view(), &to(b"/g")).unwrap();
    drop(file);
    let expected = [
        (2, Happening::MOVED_FROM, "f"),
        (2, Happening::MOVED_TO, "g"),
        (2, Happening::CREATE | Happening::DIRECTORY, "d"),
        (2, Happening::DELETE, "g"),
        (1, Happening::DELETE_SELF, ""),
        (1, Happening::empty(), ""),
    ];
    assert_eq!(recorder.take(), events(&expected));
    assert!(of_root.end() && !of_root.end());
    vfs.rmdir(&vfs.view(), &to(b"/d")).unwrap();
    assert_eq!(recorder.take(), []);
    assert!(!vfs.root().inode.system().is_watched());
}

#[test]
fn a_watch_for_one_event_ends_with_it() {
    let vfs = tree();
    let (recorder, watcher) = recorder();
    vfs.root().inode.watch(&watcher, 1, Happening::OPEN | Happening::ONCE).unwrap();
    for _ in 0..2 {
        vfs.open(&vfs.view(), vfs.root(), b"/f", OpenFlags::READ, 0, &Io::NOW).unwrap();
    }
    assert_eq!(recorder.take(), events(&[(1, Happening::OPEN, "f"), (1, Happening::empty(), "")]));
}

#[test]
fn without_memory_there_is_no_watch() {
    for n in 1.. {
        let vfs = tree();
        let (_, watcher) = recorder();
        let root = &vfs.root().inode;
        let (made, requests) = refusal::at(n, || root.watch(&watcher, 1, Happening::OPEN).is_ok());
        assert_eq!((root.system().is_watched(), root.watch_of(&watcher).is_some()), (made, made));
        assert_eq!(made, requests < n);
        if made {
            assert!(n > 4, "{n}");
            return;
        }
    }
}

#[test]
fn attributes_are_charged_to_the_inodes_of_their_file_system() {
    let vfs = tree();
    let inode = &vfs.root().inode;
    let free = || inode.system().space().inodes.free;
    let before = free();
    let value = |len: usize| HeapVec::try_from_iter(core::iter::repeat_n(1u8, len)).unwrap();
    inode.set_xattr(b"user.a", value(10), Before::Either).unwrap();
    inode.set_xattr(b"user.b", value(3000), Before::Absent).unwrap();
    assert_eq!(before - free(), 1 + 4);
    assert_eq!(inode.set_xattr(b"user.a", value(1), Before::Absent), Err(FsError::Exists));
    assert_eq!(inode.set_xattr(b"user.c", value(1), Before::Present), Err(FsError::NoData));
    assert_eq!(inode.set_xattr(b"user.c", value(60_000), Before::Either), Err(FsError::NoSpace));
    inode.set_xattr(b"user.b", value(1), Before::Present).unwrap();
    assert_eq!((before - free(), inode.xattr(b"user.b").unwrap().value.len()), (2, 1));
    inode.remove_xattr(b"user.a").unwrap();
    inode.remove_xattr(b"user.b").unwrap();
    assert_eq!((inode.remove_xattr(b"user.b"), free()), (Err(FsError::NoData), before));
    assert!(inode.xattrs().is_none());
}
