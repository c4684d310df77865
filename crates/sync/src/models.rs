//! Models of the primitives themselves, run by `RUSTFLAGS="--cfg loom"` and `"--cfg shuttle"`.

use crate::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::epoch::{Domain, Retired, Slot};
use crate::explore::{Arc, model, thread};
use crate::hooks::threads::set_cpu;
use crate::{Mutex, PerCpu, Rank, SpinLock, WaitQueue};
use std::ptr::NonNull;

#[test]
fn a_spin_lock_admits_one_holder_and_publishes_what_it_guards() {
    model(Some(3), || {
        let lock = Arc::new(SpinLock::new(Rank(1), 0usize));
        let other = lock.clone();
        let t = thread::spawn(move || {
            if let Some(mut g) = other.try_lock() {
                *g += 1;
            }
        });
        if let Some(mut g) = lock.try_lock() {
            *g += 2;
        }
        t.join().unwrap();
        let end = *lock.lock();
        assert!((1..=3).contains(&end), "an update was lost: {end}");
    });
}

fn per_cpu<T>(n: usize, init: impl FnMut(usize) -> T) -> PerCpu<T> {
    let layout = std::alloc::Layout::from_size_align(PerCpu::<T>::bytes(n), 128).unwrap();
    // SAFETY: a fresh allocation of the size and alignment that `PerCpu` asks for; leaked with the model's iteration.
    unsafe { PerCpu::new(NonNull::new(std::alloc::alloc(layout)).unwrap(), n, init) }
}

#[repr(C)]
struct Node {
    header: Retired,
    freed: Arc<AtomicBool>,
}

unsafe fn free(node: *mut Retired) {
    // SAFETY: the header is the node's first field, and the domain gives each node up once.
    let node = unsafe { Box::from_raw(node.cast::<Node>()) };
    node.freed.store(true, Ordering::SeqCst);
}

#[test]
fn nothing_is_freed_while_a_reader_that_reached_it_is_pinned() {
    model(Some(2), || {
        let domain = Arc::new(Domain::new(per_cpu(2, |_| Slot::new())));
        let freed = Arc::new(AtomicBool::new(false));
        // 1: reachable.
        let shared = Arc::new(AtomicUsize::new(1));
        let (d, s, f) = (domain.clone(), shared.clone(), freed.clone());
        let reader = thread::spawn(move || {
            set_cpu(1);
            let pin = d.pin();
            if s.load(Ordering::Acquire) == 1 {
                assert!(!f.load(Ordering::SeqCst), "freed under a reader");
            }
            drop(pin);
        });
        set_cpu(0);
        let node = Box::into_raw(Box::new(Node { header: Retired::new(), freed: freed.clone() }));
        shared.store(0, Ordering::Release);
        // SAFETY: unreachable for new readers since the store above; retired once.
        unsafe { domain.retire(node.cast(), free) };
        domain.collect();
        domain.collect();
        reader.join().unwrap();
        domain.collect();
        domain.collect();
        domain.collect();
        assert!(freed.load(Ordering::SeqCst), "what no reader holds is freed");
    });
}

#[test]
fn a_wake_up_between_the_look_and_the_sleep_is_not_lost() {
    model(Some(2), || {
        let queue = Arc::new(WaitQueue::new());
        let flag = Arc::new(AtomicBool::new(false));
        let (q, f) = (queue.clone(), flag.clone());
        let waiter = thread::spawn(move || q.wait(|| f.load(Ordering::Acquire)));
        flag.store(true, Ordering::Release);
        queue.wake_all();
        waiter.join().unwrap();
    });
}

#[test]
fn a_mutex_admits_one_holder() {
    model(Some(2), || {
        let m = Arc::new(Mutex::new(0usize));
        let other = m.clone();
        let t = thread::spawn(move || *other.lock() += 1);
        *m.lock() += 1;
        t.join().unwrap();
        assert_eq!(*m.lock(), 2);
    });
}
