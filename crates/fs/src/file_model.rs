//! Tests of open files against a model, and of the rules of opening them.

use crate::host::PAGE_SIZE;
use crate::stream::transfer::{SliceSink, SliceSource};
use crate::test_host::{TestHost, read_file, write_file};
use crate::tree::attr::NewAttr;
use crate::tree::inode::generated::{Entry, Generated, GeneratedDirectory, GeneratedFile, GeneratedLink, Text};
use crate::{
    Create, Dentry, FileCredentials, FileKind, Final, FsError, Host, Io, Limits, OpenFile, OpenFlags, Places,
    StartDirectory, Vfs, Whence,
};
use core::fmt::Write;
use proptest::prelude::*;
use quire_heap::{Arc, try_format, unsize};
use std::vec::Vec;

type Tree = Arc<Vfs<TestHost>>;
const RW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

fn tree() -> Tree {
    Vfs::new(TestHost, Limits { inodes: Some(1000), pages: Some(1 << 20) }).unwrap()
}
fn open(vfs: &Tree, path: &str, flags: OpenFlags) -> Result<Arc<OpenFile<TestHost>>, FsError> {
    vfs.open(&vfs.view(), vfs.root(), path.as_bytes(), flags, 0o644, &Io::NOW)
}
fn read(f: &OpenFile<TestHost>, n: usize) -> Result<Vec<u8>, FsError> {
    let mut b = std::vec![0; n];
    let n = f.read(&Io::NOW, &mut SliceSink::new(&mut b))?;
    b.truncate(n);
    Ok(b)
}
fn write(f: &OpenFile<TestHost>, b: &[u8]) -> Result<usize, FsError> {
    f.write(&Io::NOW, &mut SliceSource::new(b))
}
fn path(vfs: &Tree, dentry: &Arc<Dentry<TestHost>>) -> (Vec<u8>, bool) {
    let (path, exists) = Dentry::path(dentry, vfs.root()).unwrap();
    (path.to_vec(), exists)
}
fn mkdir(vfs: &Tree, path: &str) {
    let found = vfs.walk(&vfs.view(), vfs.root(), path.as_bytes(), Final::Name).unwrap();
    vfs.make(&vfs.view(), &found, Create::Directory, 0o755).unwrap();
}
fn symlink(vfs: &Tree, path: &str, target: &str) {
    let found = vfs.walk(&vfs.view(), vfs.root(), path.as_bytes(), Final::Name).unwrap();
    vfs.make(&vfs.view(), &found, Create::Symlink(target.as_bytes()), 0).unwrap();
}

#[derive(Clone, Debug)]
enum Op {
    Write(Vec<u8>),
    WriteAt(u64, Vec<u8>, Option<bool>),
    Read(usize),
    Seek(i64, u8),
    Truncate(u64),
    Punch(u64, u64),
    Allocate(u64, u64, bool),
}

fn op() -> impl Strategy<Value = Op> {
    let bytes = || prop::collection::vec(any::<u8>(), 0..6000);
    prop_oneof![
        bytes().prop_map(Op::Write),
        (0u64..20_000, bytes(), any::<Option<bool>>()).prop_map(|(a, b, c)| Op::WriteAt(a, b, c)),
        (0usize..9000).prop_map(Op::Read),
        (-3000i64..12_000, 0u8..5).prop_map(|(a, b)| Op::Seek(a, b)),
        (0u64..20_000).prop_map(Op::Truncate),
        (0u64..20_000, 1u64..12_000).prop_map(|(a, b)| Op::Punch(a, b)),
        (0u64..20_000, 1u64..12_000, any::<bool>()).prop_map(|(a, b, c)| Op::Allocate(a, b, c)),
    ]
}

proptest! {
    #[test]
    fn a_file_is_an_array_of_bytes_with_a_position(ops in prop::collection::vec(op(), 1..40), append in any::<bool>()) {
        let vfs = tree();
        let mut flags = RW | OpenFlags::CREATE;
        flags.set(OpenFlags::APPEND, append);
        let f = open(&vfs, "/f", flags).unwrap();
        let (mut model, mut at) = (Vec::<u8>::new(), 0usize);
        // The pages that are not holes.
        let mut data = std::collections::BTreeSet::<u64>::new();
        let pages = |from: u64, end: u64| from / PAGE_SIZE as u64..end.div_ceil(PAGE_SIZE as u64);
        let put = |model: &mut Vec<u8>, at: usize, b: &[u8], append: bool| {
            if b.is_empty() {
                return at;
            }
            let at = if append { model.len() } else { at };
            model.resize(model.len().max(at + b.len()), 0);
            model[at..at + b.len()].copy_from_slice(b);
            at + b.len()
        };
        for op in ops {
            match op {
                Op::Write(b) => {
                    prop_assert_eq!(write(&f, &b), Ok(b.len()));
                    at = put(&mut model, at, &b, append);
                    data.extend(pages((at - b.len()) as u64, at as u64).filter(|_| !b.is_empty()));
                }
                Op::WriteAt(to, b, appends) => {
                    let io = Io { appends, ..Io::NOW };
                    prop_assert_eq!(f.write_at(&io, to, &mut SliceSource::new(&b)), Ok(b.len()));
                    let end = put(&mut model, to as usize, &b, appends.unwrap_or(append)) as u64;
                    data.extend(pages(end - (b.len() as u64).min(end), end).filter(|_| !b.is_empty()));
                }
                Op::Read(n) => {
                    let from = at.min(model.len());
                    let want = &model[from..(from + n).min(model.len())];
                    prop_assert_eq!(read(&f, n).unwrap(), want);
                    at += want.len();
                }
                Op::Seek(to, whence) => {
                    let (base, w) = match whence {
                        0 => (0, Whence::Start),
                        1 => (at as i64, Whence::Current),
                        2 => (model.len() as i64, Whence::End),
                        3 => (0, Whence::Data),
                        _ => (0, Whence::Hole),
                    };
                    let size = model.len() as i64;
                    let want = match base + to {
                        t if t < 0 && whence < 3 => Err(FsError::Invalid),
                        t if whence >= 3 && (t < 0 || t >= size) => Err(FsError::NoDevice),
                        t if whence >= 3 => {
                            let (t, size, page) = (t as u64, size as u64, PAGE_SIZE as u64);
                            let found = if whence == 3 {
                                data.range(t / page..).next().copied().filter(|at| at * page < size)
                            } else {
                                (t / page..).find(|at| !data.contains(at))
                            };
                            found.map(|at| t.max(at * page).min(size)).ok_or(FsError::NoDevice)
                        }
                        t => Ok(t as u64),
                    };
                    prop_assert_eq!(f.seek(to, w), want);
                    at = want.map_or(at, |w| w as usize);
                }
                Op::Truncate(n) => {
                    f.truncate(&Io::WAIT, n).unwrap();
                    model.resize(n as usize, 0);
                    data.retain(|at| at * (PAGE_SIZE as u64) < n);
                }
                Op::Punch(from, len) => {
                    f.punch(&Io::WAIT, from, len).unwrap();
                    let end = ((from + len) as usize).min(model.len());
                    model[(from as usize).min(end)..end].fill(0);
                    let whole = from.div_ceil(PAGE_SIZE as u64)..end as u64 / PAGE_SIZE as u64;
                    data.retain(|at| !whole.contains(at));
                }
                Op::Allocate(from, len, keep) => {
                    f.allocate(&Io::WAIT, from, len, keep).unwrap();
                    let size = model.len() as u64;
                    data.extend(pages(from, from + len).filter(|at| !keep || at * (PAGE_SIZE as u64) < size));
                    if !keep {
                        model.resize(model.len().max((from + len) as usize), 0);
                    }
                }
            }
            prop_assert_eq!(f.dentry.inode.status().size, model.len() as u64);
        }
        prop_assert!(read_file(&vfs, "/f").unwrap() == model);
    }
}

#[test]
fn opening_obeys_its_flags() {
    let vfs = tree();
    assert_eq!(open(&vfs, "/f", OpenFlags::READ).err(), Some(FsError::NotFound));
    let excl = OpenFlags::WRITE | OpenFlags::CREATE | OpenFlags::EXCLUSIVE;
    write(&open(&vfs, "/f", excl).unwrap(), b"data").unwrap();
    assert_eq!(open(&vfs, "/f", excl).err(), Some(FsError::Exists));
    symlink(&vfs, "/l", "f");
    symlink(&vfs, "/dangling", "new");
    assert_eq!(open(&vfs, "/l", excl).err(), Some(FsError::Exists));
    assert_eq!(open(&vfs, "/l", OpenFlags::READ | OpenFlags::NOFOLLOW).err(), Some(FsError::Loop));
    assert!(open(&vfs, "/l", OpenFlags::PATH | OpenFlags::NOFOLLOW).is_ok());
    assert!(open(&vfs, "/dangling", OpenFlags::WRITE | OpenFlags::CREATE).is_ok(), "created at the target of the link");
    assert!(read_file(&vfs, "/new").is_ok());
    assert_eq!(open(&vfs, "/f", OpenFlags::READ | OpenFlags::DIRECTORY).err(), Some(FsError::NotDirectory));
    assert_eq!(open(&vfs, "/f/", OpenFlags::READ).err(), Some(FsError::NotDirectory));
    assert_eq!(open(&vfs, "/g/", OpenFlags::WRITE | OpenFlags::CREATE).err(), Some(FsError::IsDirectory));
    assert_eq!(open(&vfs, "/", OpenFlags::WRITE).err(), Some(FsError::IsDirectory));
    let r = open(&vfs, "/f", OpenFlags::READ).unwrap();
    assert_eq!(write(&r, b"x"), Err(FsError::BadFile));
    open(&vfs, "/f", OpenFlags::WRITE | OpenFlags::TRUNCATE).unwrap();
    assert_eq!(read(&r, 10).unwrap(), b"");
}

#[test]
fn a_file_lives_as_long_as_it_is_open() {
    let vfs = tree();
    write_file(&vfs, "/f", b"still here").unwrap();
    let f = open(&vfs, "/f", RW).unwrap();
    vfs.unlink(&vfs.view(), &vfs.walk(&vfs.view(), vfs.root(), b"/f", Final::Name).unwrap()).unwrap();
    assert_eq!(read(&f, 99).unwrap(), b"still here");
    assert_eq!(f.dentry.inode.attr().links, 0);
    assert_eq!(path(&vfs, &f.dentry), (b"/f".to_vec(), false));
    drop(f);
    assert_eq!(vfs.root().inode.system().inodes(), 1);
}

#[test]
fn circular_links_end_and_dot_dot_stays_below_the_root() {
    let vfs = tree();
    symlink(&vfs, "/a", "b");
    symlink(&vfs, "/b", "a");
    assert_eq!(open(&vfs, "/a", OpenFlags::READ).err(), Some(FsError::Loop));
    mkdir(&vfs, "/d");
    mkdir(&vfs, "/d/e");
    write_file(&vfs, "/d/secret", b"s").unwrap();
    let mut view = vfs.view();
    let jail = StartDirectory::Counted(vfs.find(&view, vfs.root(), b"/d/e", true).unwrap().counted());
    view.places = Arc::try_new(Places { cwd: jail.clone(), root: jail }).unwrap();
    assert!(vfs.find(&view, view.cwd(), b"../../secret", true).is_err());
    assert!(Arc::ptr_eq(&vfs.find(&view, view.cwd(), b"..", true).unwrap(), view.root()));
    let long = [b"x".as_slice(); 1].concat().repeat(256);
    assert_eq!(vfs.find(&view, view.cwd(), &long, true).err(), Some(FsError::NameTooLong));
    assert_eq!(vfs.find(&view, view.cwd(), &b"./".repeat(2048), true).err(), Some(FsError::NameTooLong));
    assert!(vfs.find(&view, view.cwd(), &b"./".repeat(2047), true).is_ok());
}

#[test]
fn a_listing_goes_on_while_entries_go() {
    let vfs = tree();
    for i in 0..100 {
        write_file(&vfs, &std::format!("/{i}"), b"").unwrap();
    }
    let dir = open(&vfs, "/", OpenFlags::READ).unwrap();
    let mut seen = Vec::new();
    loop {
        let mut batch = Vec::new();
        dir.list(&mut |e| {
            if batch.len() < 7 {
                batch.push(e.name.to_vec());
            }
            batch.len() < 7
        })
        .unwrap();
        // The last offered entry was refused, and is listed again.
        if batch.len() == 7 {
            batch.pop();
        }
        if batch.is_empty() {
            break;
        }
        for name in batch.iter().filter(|n| !n.starts_with(b".")) {
            vfs.unlink(&vfs.view(), &vfs.walk(&vfs.view(), vfs.root(), name, Final::Name).unwrap()).unwrap();
        }
        seen.extend(batch);
    }
    assert_eq!(seen.len(), 102);
    assert_eq!(vfs.root().inode.system().inodes(), 1);
}

#[test]
fn inodes_run_out_as_an_error_and_come_back() {
    let vfs = Vfs::new(TestHost, Limits { inodes: Some(3), pages: Some(1 << 20) }).unwrap();
    write_file(&vfs, "/a", b"").unwrap();
    write_file(&vfs, "/b", b"").unwrap();
    assert_eq!(write_file(&vfs, "/c", b""), Err(FsError::NoSpace));
    vfs.unlink(&vfs.view(), &vfs.walk(&vfs.view(), vfs.root(), b"/a", Final::Name).unwrap()).unwrap();
    assert_eq!(write_file(&vfs, "/c", b""), Ok(()));
}

#[test]
fn further_names_count_as_inodes_do() {
    let vfs = Vfs::new(TestHost, Limits { inodes: Some(4), pages: Some(9) }).unwrap();
    let view = vfs.view();
    let at = |name: &[u8]| vfs.walk(&view, vfs.root(), name, Final::Name).unwrap();
    let link = |from: &[u8], to: &[u8]| vfs.link(&view, &vfs.find(&view, vfs.root(), from, true).unwrap(), &at(to));
    let taken = || vfs.root().inode.system().inodes();
    write_file(&vfs, "/a", b"").unwrap();
    link(b"/a", b"/b").unwrap();
    link(b"/b", b"/c").unwrap();
    assert_eq!((link(b"/a", b"/d"), write_file(&vfs, "/d", b"")), (Err(FsError::NoSpace), Err(FsError::NoSpace)));
    assert_eq!((link(b"/a", b"/b"), taken()), (Err(FsError::Exists), 4), "a refused link takes no inode");
    vfs.unlink(&view, &at(b"/a")).unwrap();
    write_file(&vfs, "/x", b"").unwrap();
    vfs.rename(&view, &at(b"/x"), &at(b"/c"), crate::vfs::rename::Rename::Replace).unwrap();
    vfs.host().epoch().drain();
    assert_eq!(taken(), 3, "/b, and /c that was /x");
    vfs.unlink(&view, &at(b"/b")).unwrap();
    vfs.unlink(&view, &at(b"/c")).unwrap();
    vfs.host().epoch().drain();
    assert_eq!(taken(), 1);
}

#[test]
fn a_system_with_all_its_files_open_opens_and_makes_no_more() {
    use crate::test_host::FILES;
    let vfs = tree();
    let before = FILES.get().0;
    FILES.set((before, before + 2));
    let first = open(&vfs, "/f", RW | OpenFlags::CREATE).unwrap();
    let both = vfs.pipe(&FileCredentials::ROOT, OpenFlags::empty());
    assert_eq!(
        (both.err(), FILES.get().0),
        (Some(FsError::TooManyFiles), before + 1),
        "the first end of the pipe was not freed"
    );
    let second = vfs.memory_file(&FileCredentials::ROOT, b"m", RW, crate::Seals::SEAL).unwrap();
    assert_eq!(open(&vfs, "/new", RW | OpenFlags::CREATE).err(), Some(FsError::TooManyFiles));
    assert_eq!(open(&vfs, "/new", RW).err(), Some(FsError::NotFound), "no file was made");
    drop(first);
    let stream = crate::stream::event::Event::new(0, false).unwrap();
    let third =
        vfs.nameless_stream(&FileCredentials::ROOT, "[eventfd]", quire_heap::unsize!(stream), RW, false).unwrap();
    drop((second, third));
    assert_eq!(FILES.get().0, before);
}

#[test]
fn contents_take_and_return_the_stated_room() {
    let vfs = Vfs::new(TestHost, Limits { inodes: Some(9), pages: Some(2) }).unwrap();
    let file = open(&vfs, "/f", RW | OpenFlags::CREATE).unwrap();
    let free = || vfs.space(&vfs.root().inode).pages.free;
    assert_eq!(write(&file, &[1; 3 * PAGE_SIZE]), Ok(2 * PAGE_SIZE));
    assert_eq!((write(&file, b"x"), free()), (Err(FsError::NoSpace), 0));
    file.punch(&Io::NOW, 1, 2 * PAGE_SIZE as u64 - 2).unwrap();
    assert_eq!(free(), 0, "no whole page was freed");
    file.punch(&Io::NOW, 1, 2 * PAGE_SIZE as u64 - 1).unwrap();
    assert_eq!(free(), 1);
    file.punch(&Io::NOW, PAGE_SIZE as u64 + 5, 7).unwrap();
    assert_eq!(free(), 1, "zeroing a part of a hole takes nothing");
    let memory = vfs.memory_file(&FileCredentials::ROOT, b"m", RW, crate::Seals::SEAL).unwrap();
    assert_eq!((write(&memory, &[1; 5 * PAGE_SIZE]), free()), (Ok(5 * PAGE_SIZE), 1));
    assert_eq!(file.allocate(&Io::NOW, 0, 3 * PAGE_SIZE as u64, false), Err(FsError::NoSpace));
    assert_eq!((free(), file.seek(0, Whence::End)), (1, Ok(2 * PAGE_SIZE as u64)));
    file.allocate(&Io::NOW, 0, 2 * PAGE_SIZE as u64, false).unwrap();
    assert_eq!(free(), 0);
    file.truncate(&Io::NOW, 0).unwrap();
    file.truncate(&Io::NOW, 1 << 40).unwrap();
    assert_eq!(free(), 2);
    write(&file, b"x").unwrap();
    vfs.unlink(&vfs.view(), &vfs.walk(&vfs.view(), vfs.root(), b"/f", Final::Name).unwrap()).unwrap();
    assert_eq!(free(), 1, "an open file keeps its pages");
    drop(file);
    vfs.host().epoch().drain();
    assert_eq!(free(), 2);
}

#[test]
fn content_from_before_the_limit_does_not_count() {
    let vfs = Vfs::new(TestHost, Limits::UNSET).unwrap();
    write_file(&vfs, "/boot", &[1; 5 * PAGE_SIZE]).unwrap();
    assert_eq!(vfs.space(&vfs.root().inode).pages.total, 0, "no limit");
    vfs.set_room(Limits { pages: Some(1), inodes: Some(1) });
    let space = vfs.space(&vfs.root().inode);
    assert_eq!(((space.pages.total, space.pages.free), (space.inodes.total, space.inodes.free)), ((6, 1), (3, 1)));
    let file = open(&vfs, "/f", RW | OpenFlags::CREATE).unwrap();
    assert_eq!(write(&file, &[1; 2 * PAGE_SIZE]), Ok(PAGE_SIZE));
    assert_eq!(open(&vfs, "/g", RW | OpenFlags::CREATE).err(), Some(FsError::NoSpace));
}

#[test]
fn permission_bits_hold_for_all_users_but_root() {
    let vfs = tree();
    write_file(&vfs, "/f", b"x").unwrap();
    let mut view = vfs.view();
    view.credentials = FileCredentials { uid: 7, gid: 8, ..FileCredentials::default() };
    let try_open = |flags| vfs.open(&view, vfs.root(), b"/f", flags, 0, &Io::NOW).err();
    assert_eq!(try_open(OpenFlags::READ), None);
    assert_eq!(try_open(OpenFlags::WRITE), Some(FsError::Denied));
    let inode = &vfs.find(&view, vfs.root(), b"/f", true).unwrap().inode;
    assert_eq!(vfs.set_mode(&view.credentials, inode, 0o777), Err(FsError::NotPermitted));
    vfs.set_mode(&FileCredentials::ROOT, inode, 0o600).unwrap();
    assert_eq!(try_open(OpenFlags::READ), Some(FsError::Denied));
    vfs.set_owner(&FileCredentials::ROOT, inode, Some(7), None).unwrap();
    assert_eq!(try_open(RW), None);
    let found = vfs.walk(&view, vfs.root(), b"/new", Final::Name).unwrap();
    assert_eq!(vfs.make(&view, &found, Create::File, 0o644).err(), Some(FsError::Denied));
}

/// A directory of generated files whose names are numbers.
pub(crate) struct Numbers;
struct Number(u64);
struct ToFile(Arc<Dentry<TestHost>>);

impl GeneratedDirectory<TestHost> for Numbers {
    fn lookup(&self, name: &[u8]) -> Result<Option<Entry<TestHost>>, FsError> {
        let number = core::str::from_utf8(name).ok().and_then(|name| name.parse::<u64>().ok());
        let Some(n) = number.filter(|n| *n < 5) else { return Ok(None) };
        let node = Generated::File(unsize!(Arc::try_new(Number(n))?));
        Ok(Some(Entry { number: 100 + n, attr: NewAttr { mode: 0o444, uid: 0, gid: 0 }, node }))
    }
    fn list(&self, after: u64, each: &mut dyn FnMut(u64, &[u8], FileKind, u64) -> bool) -> Result<(), FsError> {
        for n in after..5 {
            if !each(n + 1, &try_format(format_args!("{n}"))?, FileKind::Regular, 100 + n) {
                break;
            }
        }
        Ok(())
    }
}
impl GeneratedFile for Number {
    fn text(&self, out: &mut Text) -> Result<(), FsError> {
        for i in 0..3000 {
            writeln!(out, "{} {i}", self.0).map_err(quire_heap::OutOfMemory::from)?;
        }
        Ok(())
    }
}
impl GeneratedLink<TestHost> for ToFile {
    fn target(&self) -> Result<quire_heap::Vec<u8>, FsError> {
        Ok(quire_heap::Vec::try_copy(b"nowhere")?)
    }
    fn jump(&self) -> Option<Result<Arc<Dentry<TestHost>>, FsError>> {
        Some(Ok(self.0.clone()))
    }
}

#[test]
fn generated_files_are_listed_looked_up_and_read_in_pieces() {
    let vfs = tree();
    vfs.mount_generated(b"/proc", "proc", unsize!(Arc::try_new(Numbers).unwrap())).unwrap();
    let text = read_file(&vfs, "/proc/3").unwrap();
    assert_eq!(text.split(|b| *b == b'\n').nth(2999), Some(&b"3 2999"[..]));
    assert_eq!(open(&vfs, "/proc/9", OpenFlags::READ).err(), Some(FsError::NotFound));
    assert_eq!(write_file(&vfs, "/proc/x", b""), Err(FsError::NotFound));
    let dir = open(&vfs, "/proc", OpenFlags::READ).unwrap();
    let mut names = Vec::new();
    dir.list(&mut |e| {
        names.push(e.name.to_vec());
        true
    })
    .unwrap();
    assert_eq!(names, [&b"."[..], b"..", b"0", b"1", b"2", b"3", b"4"]);
    let four = vfs.find(&vfs.view(), vfs.root(), b"/proc/4", true).unwrap();
    assert_eq!(path(&vfs, &four), (b"/proc/4".to_vec(), true));
    let up = vfs.find(&vfs.view(), vfs.root(), b"/proc/..", true).unwrap();
    assert!(Arc::ptr_eq(&up, vfs.root()));
    let found = vfs.walk(&vfs.view(), vfs.root(), b"/proc", Final::Follow).unwrap();
    assert_eq!(vfs.rmdir(&vfs.view(), &found), Err(FsError::Busy));
}

#[test]
fn a_deep_tree_that_was_removed_is_let_go_without_recursion() {
    let vfs = Vfs::new(TestHost, Limits { inodes: Some(100_000), pages: Some(1 << 20) }).unwrap();
    let view = vfs.view();
    let mut chain = std::vec![vfs.root().clone()];
    for _ in 0..50_000 {
        let here = chain.last().unwrap().clone();
        let found = vfs.walk(&view, &here, b"d", Final::Name).unwrap();
        chain.push(vfs.make(&view, &found, Create::Directory, 0o755).unwrap());
    }
    let deepest = chain.last().unwrap().clone();
    for parent in chain.iter().rev().skip(1) {
        vfs.rmdir(&view, &vfs.walk(&view, parent, b"d", Final::Name).unwrap()).unwrap();
    }
    drop(chain);
    let last = move || {
        TestHost.be_cpu();
        drop(deepest);
    };
    std::thread::Builder::new().stack_size(64 << 10).spawn(last).unwrap().join().unwrap();
    // A removed directory exists until no lookup can use it any more.
    vfs.host().epoch().drain();
    assert_eq!(vfs.root().inode.system().inodes(), 1);
}

#[test]
fn memory_devices_read_and_write_as_on_linux() {
    let vfs = tree();
    vfs.mount_devices().unwrap();
    let zero = open(&vfs, "/dev/zero", RW).unwrap();
    assert_eq!(read(&zero, 5000).unwrap(), [0; 5000]);
    assert_eq!(write(&zero, &[1; 99]), Ok(99));
    assert_eq!(read(&open(&vfs, "/dev/null", RW).unwrap(), 9).unwrap(), b"");
    assert_eq!(write(&open(&vfs, "/dev/full", RW).unwrap(), b"x"), Err(FsError::NoSpace));
    assert_eq!(read(&open(&vfs, "/dev/urandom", RW).unwrap(), 300).unwrap(), [4; 300]);
    assert_eq!(open(&vfs, "/dev/tty", RW).err(), Some(FsError::NoDevice));
    let (r, w) = vfs.pipe(&FileCredentials::ROOT, OpenFlags::empty()).unwrap();
    assert_eq!(w.seek(0, Whence::Start), Err(FsError::NotSeekable));
    write(&w, b"through").unwrap();
    // As through `/proc/self/fd/0`: the pipe is opened again.
    vfs.mount_memory(b"/m", "tmpfs", Limits { inodes: Some(10), pages: Some(3) }, 0o755).unwrap();
    let again = vfs.open_dentry(r.dentry.clone(), OpenFlags::READ, &Io::NOW).unwrap();
    assert_eq!(read(&again, 99).unwrap(), b"through");
    let link = ToFile(r.dentry.clone());
    assert!(link.jump().is_some());
}

#[test]
fn a_pipe_without_a_name_is_reopened_without_waiting() {
    let vfs = tree();
    // With `Io::WAIT`, an open would not return if it waited for an end that never comes.
    let reopen = |file: &OpenFile<TestHost>, flags| vfs.open_dentry(file.dentry.clone(), flags, &Io::WAIT);
    let (r, w) = vfs.pipe(&FileCredentials::ROOT, OpenFlags::empty()).unwrap();
    write(&w, b"left").unwrap();
    drop(w);
    let again = reopen(&r, OpenFlags::READ).unwrap();
    assert_eq!(read(&again, 99).unwrap(), b"left");
    assert_eq!(read(&again, 99).unwrap(), b"", "no writer is left, so a read returns the end and does not wait");
    let calm = reopen(&r, OpenFlags::READ | OpenFlags::NONBLOCK).unwrap();
    assert_eq!(read(&calm, 99).unwrap(), b"", "the same as for the first reader, because a writer has opened the FIFO");
    assert!(calm.ready().contains(crate::Ready::HANGUP));
    // A writer that opens again ends the hangup.
    let w = reopen(&r, OpenFlags::WRITE).unwrap();
    assert!(!calm.ready().contains(crate::Ready::HANGUP));
    assert_eq!(read(&calm, 99), Err(FsError::WouldBlock));
    write(&w, b"more").unwrap();
    assert_eq!(read(&again, 99).unwrap(), b"more");
    drop((r, again, calm));
    // The reader has closed: a writer opens without waiting in either mode, and meets a broken pipe.
    for flags in [OpenFlags::WRITE, OpenFlags::WRITE | OpenFlags::NONBLOCK] {
        assert_eq!(write(&reopen(&w, flags).unwrap(), b"x"), Err(FsError::BrokenPipe));
    }
    let both = reopen(&w, RW).unwrap();
    write(&both, b"own").unwrap();
    assert_eq!(read(&both, 99).unwrap(), b"own");
}

#[test]
fn a_file_without_a_name_belongs_to_its_maker() {
    let vfs = tree();
    let maker = FileCredentials { uid: 7, gid: 8, ..FileCredentials::default() };
    let (r, w) = vfs.pipe(&maker, OpenFlags::empty()).unwrap();
    let memory = vfs.memory_file(&maker, b"m", RW, crate::Seals::SEAL).unwrap();
    for file in [&r, &w, &memory] {
        let attr = file.dentry.inode.attr();
        assert_eq!((attr.uid, attr.gid), (7, 8));
    }
    let view = |uid| crate::View {
        credentials: FileCredentials { uid, gid: uid, ..FileCredentials::default() },
        ..vfs.view()
    };
    assert!(view(7).credentials.may(&r.dentry.inode, crate::vfs::credentials::Want::READ).is_ok());
    assert!(view(9).credentials.may(&r.dentry.inode, crate::vfs::credentials::Want::READ).is_err());
}

#[test]
fn a_write_that_failed_is_reported_once_to_each_open_file() {
    let vfs = tree();
    write_file(&vfs, "/f", b"data").unwrap();
    let (a, b) = (open(&vfs, "/f", RW).unwrap(), open(&vfs, "/f", OpenFlags::READ).unwrap());
    let fails = |yes| a.regular().unwrap().object.disk().fails.store(yes, std::sync::atomic::Ordering::Relaxed);
    let sync = |f: &OpenFile<TestHost>| {
        f.write_back(0, u64::MAX);
        f.write_error()
    };
    assert_eq!(sync(&a), Ok(()));
    fails(true);
    assert_eq!((sync(&a), sync(&a)), (Err(FsError::Io), Err(FsError::Io)), "each write fails");
    fails(false);
    assert_eq!((sync(&a), sync(&b), sync(&b)), (Ok(()), Err(FsError::Io), Ok(())));
    assert_eq!(sync(&open(&vfs, "/f", RW).unwrap()), Ok(()), "a later open file gets only later errors");
}

#[test]
fn a_writer_keeps_to_its_limit() {
    let vfs = tree();
    let file = vfs.memory_file(&FileCredentials::ROOT, b"m", RW, crate::Seals::SEAL).unwrap();
    let io = Io { most: 100, ..Io::NOW };
    let write = |at, len| file.write_at(&io, at, &mut crate::SliceSource::new(&[1; 200][..len]));
    assert_eq!(write(90, 50), Ok(10));
    for at in [100, 150] {
        assert_eq!(write(at, 1), Err(FsError::OverLimit));
        assert_eq!(write(at, 0), Ok(0));
    }
    let over = Err(FsError::OverLimit);
    assert_eq!(file.truncate(&io, 101), over);
    assert_eq!(file.allocate(&io, 0, 101, true), over);
    // A file that is already larger than the limit keeps its size, and may be made smaller.
    file.truncate(&Io::NOW, 300).unwrap();
    file.allocate(&io, 0, 200, false).unwrap();
    file.truncate(&io, 200).unwrap();
    file.punch(&io, 150, 100).unwrap();
    assert_eq!(write(150, 1), Err(FsError::OverLimit));
    file.truncate(&io, 0).unwrap();
    assert_eq!(write(0, 200), Ok(100));
}
