//! Tests in which each operation is repeated, and each time another one of its allocations fails. The operation must
//! return an error and leave the tree unchanged. It must succeed when no allocation fails.

use crate::cpio::{self, Problem};
use crate::device::driver::Driver;
use crate::device::port::Shared;
use crate::file::lock::{Owner, Record, RecordLocks};
use crate::file_model::Numbers;
use crate::host::{FileObject, PAGE_SIZE};
use crate::pipe::Pipe;
use crate::stream::transfer::{SliceSink, SliceSource};
use crate::test_host::{TestHost, write_file};
use crate::tree::attr::DeviceNumber;
use crate::vfs::rename::Rename;
use crate::{
    Create, Dentry, FileCredentials, FileKind, Final, FoundPath, FsError, Host, Inode, Io, Limits, Listener, OpenFile,
    OpenFlags, Readiness, Stream, Vfs, event,
};
use quire_heap::{Arc, refusal, unsize};
use std::string::String;
use std::vec::Vec;

type Tree = Arc<Vfs<TestHost>>;
/// The open files that an operation made.
type Made = [Option<Arc<OpenFile<TestHost>>>; 2];
const NOTHING: Made = [None, None];
const RW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

/// Runs an operation once before refusals, because the lock-order checker allocates when it sees a new order.
fn warm_up(does: impl FnOnce()) {
    TestHost.be_cpu();
    does();
}

fn tree() -> Tree {
    let vfs = Vfs::new(TestHost, Limits { inodes: Some(100), pages: Some(100) }).unwrap();
    for path in ["/d", "/d/full", "/d/full/inner", "/e", "/proc"] {
        make(&vfs, path, Create::Directory).unwrap();
    }
    write_file(&vfs, "/f", b"contents").unwrap();
    write_file(&vfs, "/d/g", b"others").unwrap();
    make(&vfs, "/l", Create::Symlink(b"/d/full/../g")).unwrap();
    make(&vfs, "/fifo", Create::Fifo).unwrap();
    make(&vfs, "/null", Create::CharDevice(DeviceNumber { major: 1, minor: 3 })).unwrap();
    vfs.mount_generated(b"/proc", "proc", unsize!(Arc::try_new(Numbers).unwrap())).unwrap();
    vfs.mount_devices().unwrap();
    vfs
}
fn found(vfs: &Tree, path: &str) -> Result<FoundPath<TestHost>, FsError> {
    vfs.walk(&vfs.view(), vfs.root(), path.as_bytes(), Final::Name)
}
fn make(vfs: &Tree, path: &str, content: Create<'_>) -> Result<Made, FsError> {
    vfs.make(&vfs.view(), &found(vfs, path)?, content, 0o755).map(|_| NOTHING)
}
fn rename(vfs: &Tree, from: &str, to: &str, how: Rename) -> Result<Made, FsError> {
    vfs.rename(&vfs.view(), &found(vfs, from)?, &found(vfs, to)?, how).map(|()| NOTHING)
}
fn open(vfs: &Tree, path: &str, flags: OpenFlags) -> Result<Made, FsError> {
    let io = Io { nonblock: true, ..Io::NOW };
    Ok([Some(vfs.open(&vfs.view(), vfs.root(), path.as_bytes(), flags, 0o644, &io)?), None])
}
fn find(vfs: &Tree, path: &str) -> Result<Arc<Dentry<TestHost>>, FsError> {
    Ok(vfs.find(&vfs.view(), vfs.root(), path.as_bytes(), false)?.counted())
}

/// Reads a directory or a file to its end, and drops the data.
fn read(vfs: &Tree, path: &str) -> Result<Made, FsError> {
    let [file, _] = open(vfs, path, OpenFlags::READ)?;
    let file = file.unwrap();
    if file.dentry.inode.is_directory() {
        file.list(&mut |_| true)?;
    } else {
        let mut bytes = [0; 512];
        while file.read(&Io::NOW, &mut SliceSink::new(&mut bytes))? > 0 {}
    }
    Ok(NOTHING)
}

/// The visible state of a tree, and its counts.
#[derive(PartialEq, Debug)]
struct Seen {
    names: Vec<(String, FileKind, u64, [usize; 2], u32, u64)>,
    inodes: u64,
    pages: u64,
    mounts: usize,
}

fn list(vfs: &Tree, path: &str, seen: &mut Seen) {
    let dentry = find(vfs, path).unwrap();
    let counts = [Arc::strong_count(&dentry), Arc::strong_count(&dentry.inode)];
    let status = dentry.inode.status();
    let path = path.trim_end_matches('/');
    seen.names.push((path.into(), status.kind, status.ident.number, counts, status.attr.links, status.size));
    drop(dentry);
    if status.kind == FileKind::Directory {
        let [dir, _] = open(vfs, if path.is_empty() { "/" } else { path }, OpenFlags::READ).unwrap();
        let mut names = Vec::new();
        dir.unwrap()
            .list(&mut |entry| {
                names.push(String::from_utf8(entry.name.to_vec()).unwrap());
                true
            })
            .unwrap();
        names.iter().filter(|n| *n != "." && *n != "..").for_each(|n| list(vfs, &std::format!("{path}/{n}"), seen));
    }
}

fn look(vfs: &Tree) -> Seen {
    vfs.host().epoch().drain();
    let space = vfs.space(&vfs.root().inode);
    let mut seen = Seen { names: Vec::new(), inodes: space.inodes.free, pages: space.pages.free, mounts: 0 };
    vfs.mounts(|_, _| seen.mounts += 1).unwrap();
    list(vfs, "/", &mut seen);
    seen
}

/// Refuses each allocation of `does` in turn. Returns the number of allocations.
fn refuse_each(name: &str, vfs: &Tree, does: impl Fn(&Tree) -> Result<Made, FsError>) -> u64 {
    let before = look(vfs);
    for n in 1.. {
        let (result, made) = refusal::at(n, || does(vfs));
        if made < n {
            let _made = result.unwrap_or_else(|e| panic!("{name}: {e}, although no allocation is refused"));
            look(vfs);
            return n - 1;
        }
        assert_eq!(result.err(), Some(FsError::OutOfMemory), "{name}, allocation {n}");
        assert_eq!(look(vfs), before, "{name}, allocation {n}");
    }
    unreachable!()
}

#[test]
fn a_call_without_memory_leaves_the_tree_as_it_was() {
    type Operation = (&'static str, fn(&Tree) -> Result<Made, FsError>);
    let operations: &[Operation] = &[
        ("create", |t| make(t, "/d/new", Create::File)),
        ("mkdir", |t| make(t, "/d/new", Create::Directory)),
        ("the first name of a directory", |t| make(t, "/e/new", Create::File)),
        ("symlink", |t| make(t, "/d/new", Create::Symlink(b"target"))),
        ("mkfifo", |t| make(t, "/d/new", Create::Fifo)),
        ("mknod", |t| make(t, "/d/new", Create::CharDevice(DeviceNumber { major: 1, minor: 3 }))),
        ("link", |t| t.link(&t.view(), &find(t, "/f")?, &found(t, "/d/new")?).map(|()| NOTHING)),
        ("rename", |t| rename(t, "/f", "/h", Rename::Replace)),
        ("rename to another directory", |t| rename(t, "/f", "/e/f", Rename::NoReplace)),
        ("rename over a file", |t| rename(t, "/f", "/d/g", Rename::Replace)),
        ("rename over a directory", |t| rename(t, "/e", "/d/full/inner", Rename::Replace)),
        ("exchange", |t| rename(t, "/f", "/d/full", Rename::Exchange)),
        ("open", |t| open(t, "/f", RW)),
        ("open a directory", |t| open(t, "/d", OpenFlags::READ)),
        ("open behind a link", |t| open(t, "/l", OpenFlags::READ)),
        ("open as a path", |t| open(t, "/l", OpenFlags::PATH | OpenFlags::NOFOLLOW)),
        ("open and truncate", |t| open(t, "/f", RW | OpenFlags::TRUNCATE)),
        ("open a fifo", |t| open(t, "/fifo", OpenFlags::READ)),
        ("open a device", |t| open(t, "/null", RW)),
        ("open a generated file", |t| open(t, "/proc/3", OpenFlags::READ)),
        ("open and create", |t| open(t, "/d/new", RW | OpenFlags::CREATE)),
        ("only open and create", |t| {
            open(t, "/d/new", RW | OpenFlags::CREATE | OpenFlags::EXCLUSIVE | OpenFlags::TRUNCATE)
        }),
        ("open an existing file with O_CREAT", |t| open(t, "/f", RW | OpenFlags::CREATE)),
        ("open without a name", |t| open(t, "/d", RW | OpenFlags::NAMELESS)),
        ("pipe", |t| t.pipe(&FileCredentials::ROOT, OpenFlags::empty()).map(|(r, w)| [Some(r), Some(w)])),
        ("memory file", |t| {
            Ok([Some(t.memory_file(&FileCredentials::ROOT, b"name", RW, crate::Seals::empty())?), None])
        }),
        ("event", |t| {
            let event: Arc<dyn Stream> = unsize!(event::Event::new(0, false)?);
            Ok([Some(t.nameless_stream(&FileCredentials::ROOT, "[eventfd]", event, RW, false)?), None])
        }),
        ("list", |t| read(t, "/d")),
        ("list a generated directory", |t| read(t, "/proc")),
        ("read a generated file", |t| read(t, "/proc/4")),
        ("read", |t| read(t, "/f")),
        ("read a link", |t| {
            let link = find(t, "/l")?;
            t.link_target(&link).map(|_| NOTHING)
        }),
        ("path", |t| Dentry::path(&find(t, "/d/full/inner")?, t.root()).map(|_| NOTHING)),
        ("path of the root", |t| Dentry::path(t.root(), t.root()).map(|_| NOTHING)),
        ("write", |t| {
            let [file, _] = open(t, "/f", OpenFlags::WRITE)?;
            file.unwrap().write_at(&Io::NOW, PAGE_SIZE as u64, &mut SliceSource::new(b"more")).map(|_| NOTHING)
        }),
        ("allocate", |t| {
            let [file, _] = open(t, "/f", OpenFlags::WRITE)?;
            file.unwrap().allocate(&Io::NOW, 0, 3 * PAGE_SIZE as u64, false).map(|()| NOTHING)
        }),
        ("mount", |t| t.mount_memory(b"/e", "tmpfs", Limits::UNSET, 0o755).map(|_| NOTHING)),
        ("mount on a new directory", |t| t.mount_memory(b"/new", "tmpfs", Limits::UNSET, 0o755).map(|_| NOTHING)),
        ("add a device", |t| {
            let stream = Pipe::open_now(&Pipe::new(TestHost)?, true, true)?;
            let driver: Arc<dyn Driver> = unsize!(Arc::try_new(Shared(stream))?);
            t.add_device(b"new", DeviceNumber { major: 9, minor: 9 }, 0o600, driver).map(|()| NOTHING)
        }),
    ];
    for (name, does) in operations {
        warm_up(|| drop(does(&tree()).unwrap()));
        let made = refuse_each(name, &tree(), does);
        assert!(made > 0, "{name}");
    }
}

#[test]
fn a_driver_is_not_kept_where_its_node_cannot_be_made() {
    warm_up(|| drop(make(&tree(), "/x", Create::Fifo).unwrap()));
    let vfs = tree();
    let number = DeviceNumber { major: 9, minor: 9 };
    make(&vfs, "/node", Create::CharDevice(number)).unwrap();
    let stream = Pipe::open_now(&Pipe::new(TestHost).unwrap(), true, true).unwrap();
    let driver: Arc<dyn Driver> = unsize!(Arc::try_new(Shared(stream)).unwrap());
    refuse_each("add a device", &vfs, |t| {
        let added = t.add_device(b"new", number, 0o600, driver.clone());
        assert!(added.is_ok() || Arc::strong_count(&driver) == 1);
        added.map(|()| NOTHING)
    });
    assert!(open(&vfs, "/node", RW).is_ok());
}

#[test]
fn removals_and_releases_need_no_memory() {
    // The first round records the orders of the locks, for which the lock-order checker allocates.
    for round in 0..2 {
        let vfs = tree();
        let view = vfs.view();
        let [file, _] = open(&vfs, "/f", RW).unwrap();
        let file = file.unwrap();
        file.dentry.inode.locks.lock_whole(file.lock_owner(), true, &Io::NOW).unwrap();
        // The locks of each pipe have an order of their own.
        drop(open(&vfs, "/fifo", RW).unwrap());
        let pipe = open(&vfs, "/fifo", RW).unwrap();
        let (unlinked, removed) = (found(&vfs, "/f").unwrap(), found(&vfs, "/d/full/inner").unwrap());
        let allocations = refusal::allocations(|| {
            vfs.unlink(&view, &unlinked).unwrap();
            vfs.rmdir(&view, &removed).unwrap();
            drop((file, pipe, unlinked, removed));
            vfs.host().epoch().drain();
        });
        assert!(round == 0 || allocations == 0, "{allocations}");
        assert!(find(&vfs, "/f").is_err() && find(&vfs, "/d/full/inner").is_err());
    }
}

#[test]
fn an_archive_that_is_refused_memory_is_an_error() {
    let mut archive = Vec::new();
    cpio::tests::add(&mut archive, "bin/sh", 0o100755, 3, 2, b"\x7fELF and more");
    cpio::tests::add(&mut archive, "bin/busybox", 0o100755, 3, 2, b"");
    cpio::tests::add(&mut archive, "lib64", 0o120777, 4, 1, b"lib");
    cpio::tests::add(&mut archive, "fifo", 0o10644, 6, 1, b"");
    cpio::tests::add(&mut archive, "TRAILER!!!", 0, 0, 1, b"");
    let tree = || Vfs::new(TestHost, Limits::UNSET).unwrap();
    warm_up(|| assert!(tree().unpack(&mut &archive[..]).is_ok()));
    for n in 1.. {
        let vfs = tree();
        let (done, made) = refusal::at(n, || vfs.unpack(&mut &archive[..]));
        if made < n {
            assert_eq!(done.unwrap().members, 4);
            return;
        }
        assert_eq!(done.map(|_| ()).map_err(|e| e.problem), Err(Problem::File(FsError::OutOfMemory)), "allocation {n}");
        look(&vfs);
    }
}

#[test]
fn a_tree_that_is_refused_memory_is_an_error() {
    warm_up(|| drop(tree()));
    let made = refusal::refused_each(false, |_| match Vfs::new(TestHost, Limits::UNSET) {
        Ok(_) => true,
        Err(e) => {
            assert_eq!(e, FsError::OutOfMemory);
            false
        }
    });
    assert!(made > 10);
    // An inode that was not made is not counted.
    let vfs = tree();
    let system = vfs.root().inode.system();
    let attr = crate::tree::attr::NewAttr { mode: 0, uid: 0, gid: 0 };
    let before = system.inodes();
    refusal::refused_each(false, |_| {
        let inode =
            Inode::new(vfs.host(), system, attr, |ident| Inode::regular(vfs.host(), system, ident, crate::Seals::SEAL));
        assert_eq!(system.inodes(), before + u64::from(inode.is_ok()));
        inode.is_ok_and(|inode| inode.file().is_some_and(|file| file.object.size() == 0))
    });
    assert_eq!(system.inodes(), before);
}

#[test]
fn locks_that_are_refused_memory_stay_as_they_were() {
    let locks = RecordLocks::new();
    let owner = |id| Owner::Process { id, pid: 1 };
    let record = |id, start, end| Record { start, end, exclusive: true, owner: owner(id) };
    let lock = |id, start, end| locks.lock(record(id, start, end), &Io::NOW);
    warm_up(|| {
        lock(1, 0, 10).unwrap();
        locks.release_process(1);
    });
    let locks = RecordLocks::new();
    let lock = |id, start, end| locks.lock(record(id, start, end), &Io::NOW);
    assert_eq!(refusal::at(1, || lock(1, 0, 10)), (Err(FsError::OutOfMemory), 1));
    assert_eq!(locks.test(&record(2, 0, 100)), None);
    // The smallest vector has room for four ranges: three ranges here, and one more from a split.
    (0..3).for_each(|at| lock(1, 20 * at, 20 * at + 10).unwrap());
    locks.unlock(owner(1), 45, 46).unwrap();
    assert_eq!(refusal::at(1, || locks.unlock(owner(1), 3, 4)), (Err(FsError::OutOfMemory), 1));
    assert_eq!(locks.test(&record(2, 3, 4)), Some(record(1, 0, 10)));
    // An unlock without a split allocates nothing.
    assert_eq!(refusal::at(1, || locks.unlock(owner(1), 0, 4)), (Ok(()), 0));
    assert_eq!((locks.test(&record(2, 3, 4)), locks.test(&record(2, 4, 5))), (None, Some(record(1, 4, 10))));
    assert_eq!(refusal::at(1, || locks.release_process(1)).1, 0);
    assert_eq!(locks.test(&record(2, 0, 100)), None);
}

#[test]
fn a_listener_that_is_refused_memory_does_not_listen() {
    struct Counts(std::sync::atomic::AtomicUsize);
    impl Listener for Counts {
        fn changed(&self) {
            self.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        }
    }
    let readiness = Readiness::new();
    let counts = Arc::try_new(Counts(Default::default())).unwrap();
    let listener: Arc<dyn Listener> = unsize!(counts.clone());
    let heard = || counts.0.load(std::sync::atomic::Ordering::SeqCst);
    let refused = refusal::refused_each(false, |_| {
        let listens = readiness.listen(&listener).is_ok();
        let before = heard();
        readiness.notify();
        assert_eq!(heard() - before, usize::from(listens));
        listens
    });
    assert_eq!(refused, 2);
    assert_eq!(refusal::at(1, || readiness.unlisten(&listener)).1, 0);
    assert_eq!(Arc::strong_count(&counts), 2);
}

#[test]
fn a_listener_stops_from_its_own_call_without_memory() {
    struct Stops(Arc<Readiness>, std::sync::Mutex<Option<Arc<dyn Listener>>>);
    impl Listener for Stops {
        fn changed(&self) {
            if let Some(listener) = self.1.lock().unwrap().take() {
                self.0.unlisten(&listener);
            }
        }
    }
    let readiness = Arc::try_new(Readiness::new()).unwrap();
    let stops = Arc::try_new(Stops(readiness.clone(), std::sync::Mutex::new(None))).unwrap();
    let listener: Arc<dyn Listener> = unsize!(stops.clone());
    *stops.1.lock().unwrap() = Some(listener.clone());
    readiness.listen(&listener).unwrap();
    drop(listener);
    // The notifying thread reads the list while it calls the listener.
    assert_eq!(refusal::at(1, || readiness.notify()), (false, 0));
    assert_eq!(Arc::strong_count(&stops), 1, "the list keeps a listener that has stopped");
}
