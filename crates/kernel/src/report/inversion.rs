//! A test of the lock-order checker: acquires two locks in both orders. A debug kernel must detect the inversion and
//! print both places.

use quire_sync::{Mutex, Rank, SpinLock};

static FILE: SpinLock<()> = SpinLock::new(Rank::FILE, ());
static QUEUE: SpinLock<()> = SpinLock::new(Rank::QUEUE, ());
static NAMES: Mutex<[u8; 3]> = Mutex::new([0; 3]);
static SIZES: Mutex<[u64; 5]> = Mutex::new([0; 5]);

/// Acquires two locks of the kind `spin` or `sleep` in one order and then in the other. The second order must cause a
/// panic with both backtraces.
pub fn show(kind: &[u8]) {
    match kind {
        b"spin" => {
            the_one_way(|| drop((FILE.lock(), QUEUE.lock())));
            the_other_way(|| drop((QUEUE.lock(), FILE.lock())));
        }
        b"sleep" => {
            the_one_way(|| drop((NAMES.lock(), SIZES.lock())));
            the_other_way(|| drop((SIZES.lock(), NAMES.lock())));
        }
        _ => {}
    }
}

#[inline(never)]
fn the_one_way(f: impl FnOnce()) {
    f();
    core::hint::black_box(());
}

#[inline(never)]
fn the_other_way(f: impl FnOnce()) {
    f();
    core::hint::black_box(());
}
