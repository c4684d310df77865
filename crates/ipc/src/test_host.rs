//! A host for tests. Each thread counts as a CPU and as a process. The clock stands still, and charges are counted.

use crate::{Caller, Host};
use quire_sync::PerCpu;
use quire_sync::epoch::{Domain, Slot};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

/// The most threads of all tests at the same time.
const THREADS: usize = 256;

/// The number of charged bytes, and its limit.
pub struct Account(AtomicU64, AtomicU64);

/// The host for tests.
#[derive(Clone)]
pub struct TestHost(Arc<Account>);

/// A charge of some bytes.
pub struct TestCharge(Arc<Account>, u64);

impl Drop for TestCharge {
    fn drop(&mut self) {
        self.0.0.fetch_sub(self.1, Ordering::Relaxed);
    }
}

impl TestHost {
    pub fn new() -> Self {
        TestHost(Arc::new(Account(AtomicU64::new(0), AtomicU64::new(u64::MAX))))
    }

    /// The number of charged bytes.
    pub fn charged(&self) -> u64 {
        self.0.0.load(Ordering::Relaxed)
    }

    /// Sets the limit on charged bytes to `most`.
    pub fn limit(&self, most: u64) {
        self.0.1.store(most, Ordering::Relaxed);
    }
}

/// The number of a thread. Another thread may get it after this thread has ended.
struct Number(usize);

static FREE: Mutex<Vec<usize>> = Mutex::new(Vec::new());
static NEXT: AtomicUsize = AtomicUsize::new(0);

impl Number {
    fn new() -> Self {
        let free = FREE.lock().unwrap().pop();
        let number = free.unwrap_or_else(|| NEXT.fetch_add(1, Ordering::Relaxed));
        assert!(number < THREADS);
        Number(number)
    }
}

impl Drop for Number {
    fn drop(&mut self) {
        FREE.lock().unwrap().push(self.0);
    }
}

std::thread_local! {
    static NUMBER: Number = Number::new();
}

fn number() -> usize {
    NUMBER.with(|number| number.0)
}

impl Host for TestHost {
    type Charge = TestCharge;

    fn epoch(&self) -> &'static Domain {
        static EPOCH: OnceLock<Domain> = OnceLock::new();
        quire_sync::hooks::threads::set_cpu(number());
        EPOCH.get_or_init(|| Domain::new(PerCpu::leaked(THREADS, |_| Slot::new())))
    }

    fn seconds(&self) -> i64 {
        1000
    }

    fn pid(&self) -> u32 {
        number() as u32 + 1
    }

    fn charge(&self, bytes: u64) -> Option<TestCharge> {
        let most = self.0.1.load(Ordering::Relaxed);
        let more = |n: u64| n.checked_add(bytes).filter(|n| *n <= most);
        self.0.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(TestCharge(self.0.clone(), bytes))
    }

    fn charge_queue(&self, bytes: u64) -> Option<TestCharge> {
        self.charge(bytes)
    }

    fn charge_locked(&self, bytes: u64) -> Option<TestCharge> {
        self.charge(bytes)
    }
}

/// A caller without privileges.
pub const ME: Caller<'static> = Caller {
    user: 7,
    group: 7,
    in_group: &|group| group == 7,
    ignores_modes: false,
    administers: false,
    locks: false,
    exceeds: false,
};
