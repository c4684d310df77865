//! A host for tests: file objects are maps of pages, and the clock stands still.

use crate::host::{FileObject, Host, Origin, PAGE_SIZE};
use crate::pipe::DEFAULT;
use crate::stream::transfer::{Sink, SliceSink, SliceSource, Source};
use crate::tree::attr::Timestamp;
use crate::{FsError, Io, OpenFlags, Vfs};
use quire_heap::{Arc, Box, Map, SpareEntry};
use quire_sync::epoch::{Domain, Slot};
use quire_sync::{PerCpu, Quota};
use quire_vm::error::PagerError;
use quire_vm::object::WriteErrors;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};
use std::vec::Vec;

std::thread_local! {
    /// The number of files that the thread has open, and its limit.
    pub static FILES: core::cell::Cell<(i64, i64)> = const { core::cell::Cell::new((0, i64::MAX)) };
}

/// Counts how often calls have checked their condition and found it false. A call is listed as a waiter before this
/// check, so a later change wakes it.
#[derive(Default)]
pub struct Looks(AtomicUsize);

impl Looks {
    /// The function by which a call asks for signals after each check. There is never a signal.
    pub fn ask(&self) -> impl Fn() -> bool {
        || {
            self.0.fetch_add(1, Ordering::SeqCst);
            false
        }
    }

    /// Waits until there were `count` checks.
    pub fn until(&self, count: usize) {
        while self.0.load(Ordering::SeqCst) < count {
            std::thread::yield_now();
        }
    }
}

/// The host of the tests.
#[derive(Clone, Default)]
pub struct TestHost;

#[derive(Default)]
struct Pages {
    size: u64,
    pages: Map<u64, Box<[u8; PAGE_SIZE]>>,
    quota: Option<&'static Quota>,
}

impl Pages {
    /// Charges the pages that a change adds to `before`, or returns the charge of removed pages.
    fn settle(&self, before: usize) {
        let now = self.pages.len();
        if let Some(quota) = self.quota.filter(|_| now < before) {
            quota.put((before - now) as u64);
        }
    }

    /// Page `i`. Makes the page if it is missing and there is room.
    fn make(&mut self, i: u64) -> Result<&mut [u8; PAGE_SIZE], FsError> {
        if !self.pages.contains_key(&i) {
            let (memory, page) = (SpareEntry::try_new()?, Box::try_new([0; PAGE_SIZE])?);
            if self.quota.is_some_and(|quota| !quota.take(1)) {
                return Err(FsError::NoSpace);
            }
            self.pages.insert(memory, i, page);
        }
        Ok(self.pages.get_mut(&i).expect("it is there"))
    }

    /// Drops the pages whose numbers `gone` selects.
    fn discard(&mut self, gone: impl Fn(u64) -> bool) {
        let before = self.pages.len();
        loop {
            let Some(i) = self.pages.keys().copied().find(|i| gone(*i)) else { break };
            self.pages.remove(&i);
        }
        self.settle(before);
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        let before = core::mem::take(&mut self.pages).len();
        self.settle(before);
    }
}

/// The most concurrent threads of a test, each of which is a CPU. Fuzzers have one thread, and make many file systems.
const THREADS: usize = if cfg!(test) { 64 } else { 2 };

/// CPU numbers that no thread uses.
static UNUSED: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// A thread's CPU, as long as it lives.
struct Cpu(usize);

impl Cpu {
    fn new() -> Cpu {
        static LAST: AtomicUsize = AtomicUsize::new(0);
        let again = UNUSED.lock().unwrap().pop();
        let cpu = again.unwrap_or_else(|| LAST.fetch_add(1, Ordering::Relaxed));
        assert!(cpu < THREADS, "more threads than CPUs");
        Cpu(cpu)
    }
}

impl Drop for Cpu {
    fn drop(&mut self) {
        UNUSED.lock().unwrap().push(self.0);
    }
}

/// A file's pages.
#[derive(Clone)]
pub struct TestObject(Arc<Mutex<Pages>>, Arc<TestDisk>);

/// The storage of a file. It stores nothing, but its writes can fail.
#[derive(Default)]
pub struct TestDisk {
    /// Whether every write fails.
    pub fails: AtomicBool,
    /// The time of the last store through a mapping.
    pub stored: Mutex<Option<Timestamp>>,
    errors: WriteErrors,
}

impl TestHost {
    /// Makes the calling thread a separate CPU.
    pub fn be_cpu(&self) {
        std::thread_local! {
            static CPU: Cpu = Cpu::new();
        }
        quire_sync::hooks::threads::set_cpu(CPU.with(|cpu| cpu.0));
    }
}

impl TestObject {
    /// The file's storage.
    pub fn disk(&self) -> &TestDisk {
        &self.1
    }
}

/// A separately allocated page.
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

/// The number of pages that a user may still have in pipes.
pub type Purse = std::sync::Arc<AtomicUsize>;

std::thread_local! {
    /// The purse of the thread's user; without one there is no limit.
    static PURSE: std::cell::RefCell<Option<Purse>> = const { std::cell::RefCell::new(None) };
}

/// The pages of a pipe, taken out of a purse.
pub struct TestCharge {
    purse: Option<Purse>,
    pages: usize,
}

impl Drop for TestCharge {
    fn drop(&mut self) {
        if let Some(purse) = &self.purse {
            purse.fetch_add(self.pages, Ordering::SeqCst);
        }
    }
}

impl TestHost {
    /// Charges the calling thread's pipes to `purse` from now on.
    pub fn pay_from(&self, purse: Option<Purse>) {
        PURSE.with(|own| *own.borrow_mut() = purse);
    }
}

impl Host for TestHost {
    type Object = TestObject;
    type Page = TestPage;
    type LockCharge = ();
    type PipeCharge = TestCharge;
    type Attached = ();
    fn lease_deadline(&self) -> u64 {
        quire_sync::hooks::now() + 50_000_000
    }
    fn charge_locks(&self, _n: usize) -> Option<()> {
        Some(())
    }
    fn object(&self, _origin: Arc<Origin<Self>>, quota: Option<&'static Quota>) -> Result<TestObject, FsError> {
        let pages = Mutex::new(Pages { size: 0, pages: Map::new(), quota });
        Ok(TestObject(Arc::try_new(pages)?, Arc::try_new(TestDisk::default())?))
    }
    fn page(&self) -> Option<TestPage> {
        Box::try_new([0xa5; PAGE_SIZE]).ok().map(TestPage)
    }
    fn file_opened(&self) -> bool {
        let (open, most) = FILES.get();
        let may = open < most;
        FILES.set((open.wrapping_add(i64::from(may)), most));
        may
    }
    fn file_closed(&self) {
        let (open, most) = FILES.get();
        FILES.set((open.wrapping_sub(1), most));
    }
    fn charge_pipe(&self) -> Option<(usize, TestCharge)> {
        let mut charge = TestCharge { purse: PURSE.with(|purse| purse.borrow().clone()), pages: 0 };
        [DEFAULT, 2].into_iter().find(|pages| self.recharge_pipe(&mut charge, *pages)).map(|pages| (pages, charge))
    }
    fn recharge_pipe(&self, charge: &mut TestCharge, pages: usize) -> bool {
        let Some(purse) = &charge.purse else { return true };
        let left = |left: usize| (left + charge.pages).checked_sub(pages);
        let done = purse.fetch_update(Ordering::SeqCst, Ordering::SeqCst, left).is_ok();
        if done {
            charge.pages = pages;
        }
        done
    }
    /// All file systems share one domain, in which each thread is a CPU.
    fn epoch(&self) -> &'static Domain {
        static EPOCH: OnceLock<Domain> = OnceLock::new();
        self.be_cpu();
        EPOCH.get_or_init(|| Domain::new(PerCpu::leaked(THREADS, |_| Slot::new())))
    }
    fn realtime(&self) -> Timestamp {
        Timestamp { seconds: 1_000_000, nanos: 5 }
    }
    fn random(&self, into: &mut [u8]) {
        into.fill(4);
    }
    fn cpus(&self) -> usize {
        self.be_cpu();
        THREADS
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
        p.discard(|i| i * PAGE >= bytes);
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
            let page = match p.make(at / PAGE) {
                Err(_) if at > offset => break,
                page => page?,
            };
            at += source.take(&mut page[from..from + n])? as u64;
        }
        p.size = p.size.max(at);
        Ok((at - offset) as usize)
    }
    fn resident(&self) -> u64 {
        self.0.lock().unwrap().pages.len() as u64
    }
    fn next_data(&self, page: u64) -> Option<u64> {
        self.0.lock().unwrap().pages.keys().copied().find(|at| *at >= page)
    }
    fn next_hole(&self, page: u64) -> u64 {
        let pages = &self.0.lock().unwrap().pages;
        (page..).find(|at| !pages.contains_key(at)).unwrap_or(u64::MAX)
    }
    fn discard(&self, first: u64, end: u64) {
        let mut p = self.0.lock().unwrap();
        p.discard(|i| (first..end).contains(&i));
    }
    fn write_back(&self, _first: u64, _end: u64) {
        if self.1.fails.load(Ordering::Relaxed) {
            self.1.errors.raise(PagerError::Failed);
        }
    }
    fn stored(&self) -> Option<Timestamp> {
        *self.1.stored.lock().unwrap()
    }
    fn forget_stores(&self, until: Timestamp) {
        self.1.stored.lock().unwrap().take_if(|at| *at <= until);
    }
    fn write_errors(&self) -> &WriteErrors {
        &self.1.errors
    }
    fn allocate(&self, first: u64, end: u64) -> Result<(), FsError> {
        let mut p = self.0.lock().unwrap();
        let made = quire_heap::Vec::try_from_iter((first..end).filter(|i| !p.pages.contains_key(i)))?;
        for i in &made {
            if let Err(e) = p.make(*i).map(drop) {
                p.discard(|i| made.contains(&i));
                return Err(e);
            }
        }
        Ok(())
    }
    fn zero(&self, from: u64, to: u64) -> Result<(), FsError> {
        let mut p = self.0.lock().unwrap();
        let mut at = from;
        while at < to {
            let n = (PAGE - at % PAGE).min(to - at);
            if let Some(page) = p.pages.get_mut(&(at / PAGE)) {
                page[(at % PAGE) as usize..][..n as usize].fill(0);
            }
            at += n;
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
