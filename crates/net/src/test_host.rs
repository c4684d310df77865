//! A host for tests. A file is a socket, a number, or a holder of another file.

use crate::{Credentials, Host, Socket};
use quire_fs::Stream;
use quire_heap::Arc;
use std::boxed::Box;
use std::cell::RefCell;
use std::sync::atomic::{AtomicU32, Ordering};

/// The host for tests.
#[derive(Clone)]
pub struct TestHost;

/// A file that messages carry.
#[derive(Clone)]
pub enum TestFile {
    /// A socket, in an open file.
    Socket(Arc<Opened>),
    /// Another file.
    Number(Arc<u32>),
    /// A file that keeps another file open.
    Holder(Arc<Holder>),
}

/// A file that keeps another file open, and calls a function when it is dropped.
pub struct Holder {
    pub _kept: Option<TestFile>,
    pub on_drop: fn(),
}

impl Drop for Holder {
    fn drop(&mut self) {
        (self.on_drop)();
    }
}

/// A function that a test supplies.
type OnCount = Box<dyn Fn(&TestFile)>;

std::thread_local! {
    /// Called when this thread, as the collector, reads the number of references to a file.
    pub static ON_COUNT: RefCell<Option<OnCount>> = const { RefCell::new(None) };
}

/// An open file.
pub struct Opened(pub Arc<Socket<TestHost>>);

impl Host for TestHost {
    type File = TestFile;
    type Node = Arc<u32>;
    type Charge = Arc<u32>;

    fn stream_of(file: &TestFile) -> Option<&dyn Stream> {
        match file {
            TestFile::Socket(open) => Some(&*open.0),
            TestFile::Number(_) | TestFile::Holder(_) => None,
        }
    }

    fn references(file: &TestFile) -> usize {
        ON_COUNT.with_borrow(|call| call.iter().for_each(|call| call(file)));
        match file {
            TestFile::Holder(holder) => Arc::strong_count(holder),
            TestFile::Socket(open) => Arc::strong_count(open),
            TestFile::Number(number) => Arc::strong_count(number),
        }
    }

    fn caller(&self) -> Credentials {
        Credentials { pid: 7, uid: 8, gid: 9 }
    }

    fn random(&self) -> u32 {
        static NEXT: AtomicU32 = AtomicU32::new(12345);
        NEXT.fetch_add(7919, Ordering::Relaxed)
    }
}
