//! A kernel for tests: objects are maps of pages, the clock stands still.

use crate::host::{FileObject, Host, MemoryCount, Origin, PAGE_SIZE, Timestamp};
use crate::transfer::{Sink, SliceSink, SliceSource, Source};
use crate::{FsError, Io, OpenFlags, Vfs};
use alloc::sync::Arc;
use quire_sync::PerCpu;
use quire_sync::epoch::{Domain, Slot};
use quire_vm::object::WriteErrors;
use std::boxed::Box;
use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};
use std::vec::Vec;

/// The kernel.
#[derive(Clone, Default)]
pub struct TestHost;

#[derive(Default)]
struct Pages {
    size: u64,
    pages: BTreeMap<u64, Box<[u8; PAGE_SIZE]>>,
}

/// A file's pages.
#[derive(Clone, Default)]
pub struct TestObject(Arc<Mutex<Pages>>, Arc<TestDisk>);

/// Where the file is kept: nothing is written to it, but it may fail.
#[derive(Default)]
pub struct TestDisk {
    /// Every write fails.
    pub fails: AtomicBool,
    errors: WriteErrors,
}

impl TestObject {
    /// Where the file is kept.
    pub fn disk(&self) -> &TestDisk {
        &self.1
    }
}

/// A page of its own.
pub struct TestPage(Box<[u8; PAGE_SIZE]>);
impl Deref for TestPage {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0[..]
    }
}
impl DerefMut for TestPage {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.0[..]
    }
}

impl Host for TestHost {
    type Object = TestObject;
    type Page = TestPage;
    fn object(&self, _origin: Arc<Origin<Self>>) -> Result<TestObject, FsError> {
        Ok(TestObject::default())
    }
    fn page(&self) -> Option<TestPage> {
        Some(TestPage(Box::new([0xa5; PAGE_SIZE])))
    }
    /// One for all, in which each thread is a CPU.
    fn epoch(&self) -> &'static Domain {
        const THREADS: usize = 1024;
        static EPOCH: OnceLock<Domain> = OnceLock::new();
        static LAST: AtomicUsize = AtomicUsize::new(0);
        std::thread_local! {
            static CPU: usize = LAST.fetch_add(1, Ordering::Relaxed);
        }
        quire_sync::hooks::threads::set_cpu(CPU.with(|cpu| *cpu));
        EPOCH.get_or_init(|| Domain::new(PerCpu::leaked(THREADS, |_| Slot::new())))
    }
    fn realtime(&self) -> Timestamp {
        Timestamp { seconds: 1_000_000, nanos: 5 }
    }
    fn random(&self, into: &mut [u8]) {
        into.fill(4);
    }
    fn memory(&self) -> MemoryCount {
        MemoryCount { total: 1000, free: 500 }
    }
}

const PAGE: u64 = PAGE_SIZE as u64;

impl FileObject for TestObject {
    fn size(&self) -> u64 {
        self.0.lock().unwrap().size
    }
    fn set_size(&self, bytes: u64) -> Result<(), FsError> {
        let mut p = self.0.lock().unwrap();
        p.size = bytes;
        p.pages.retain(|i, _| i * PAGE < bytes);
        if let Some(last) = p.pages.get_mut(&(bytes / PAGE)) {
            last[(bytes % PAGE) as usize..].fill(0);
        }
        Ok(())
    }
    fn read(&self, offset: u64, sink: &mut dyn Sink) -> Result<usize, FsError> {
        let p = self.0.lock().unwrap();
        let mut at = offset;
        while at < p.size && sink.room() > 0 {
            let from = (at % PAGE) as usize;
            let n = (PAGE_SIZE - from).min((p.size - at) as usize).min(sink.room());
            let zeroes = [0; PAGE_SIZE];
            let page = p.pages.get(&(at / PAGE)).map_or(&zeroes, |b| &**b);
            at += sink.put(&page[from..from + n])? as u64;
        }
        Ok((at - offset) as usize)
    }
    fn write(&self, offset: u64, source: &mut dyn Source) -> Result<usize, FsError> {
        let mut p = self.0.lock().unwrap();
        let mut at = offset;
        while source.left() > 0 {
            let from = (at % PAGE) as usize;
            let n = (PAGE_SIZE - from).min(source.left());
            let page = p.pages.entry(at / PAGE).or_insert_with(|| Box::new([0; PAGE_SIZE]));
            at += source.take(&mut page[from..from + n])? as u64;
        }
        p.size = p.size.max(at);
        Ok((at - offset) as usize)
    }
    fn resident(&self) -> u64 {
        self.0.lock().unwrap().pages.len() as u64
    }
    fn discard(&self, first: u64, end: u64) {
        self.0.lock().unwrap().pages.retain(|i, _| !(first..end).contains(i));
    }
    fn write_back(&self, _first: u64, _end: u64) {
        if self.1.fails.load(Ordering::Relaxed) {
            self.1.errors.raise();
        }
    }
    fn write_errors(&self) -> &WriteErrors {
        &self.1.errors
    }
    fn allocate(&self, first: u64, end: u64) -> Result<(), FsError> {
        let mut p = self.0.lock().unwrap();
        for i in first..end {
            p.pages.entry(i).or_insert_with(|| Box::new([0; PAGE_SIZE]));
        }
        Ok(())
    }
}

/// All bytes of a file.
pub fn read_file(vfs: &Vfs<TestHost>, path: &str) -> Result<Vec<u8>, FsError> {
    let file = vfs.open(&vfs.view(), vfs.root(), path.as_bytes(), OpenFlags::READ, 0, &Io::NOW)?;
    let mut out = Vec::new();
    loop {
        let mut chunk = [0; 777];
        let mut sink = SliceSink::new(&mut chunk);
        let n = file.read(&Io::NOW, &mut sink)?;
        if n == 0 {
            return Ok(out);
        }
        out.extend(&chunk[..n]);
    }
}

/// Makes a file with these bytes.
pub fn write_file(vfs: &Vfs<TestHost>, path: &str, bytes: &[u8]) -> Result<(), FsError> {
    let flags = OpenFlags::WRITE | OpenFlags::CREATE | OpenFlags::TRUNCATE;
    let file = vfs.open(&vfs.view(), vfs.root(), path.as_bytes(), flags, 0o644, &Io::NOW)?;
    file.write(&Io::NOW, &mut SliceSource::new(bytes))?;
    Ok(())
}
