//! Models of the primitives themselves, run by `RUSTFLAGS="--cfg loom"` and `"--cfg shuttle"`.

mod limited_counter;

use crate::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::epoch::{Domain, Retired, Slot};
use crate::explore::{Arc, thread};
use crate::hooks::park;
use crate::hooks::threads::set_cpu;
use crate::{Listing, Mutex, PerCpu, Rank, Sequenced, SpinLock, WaitQueue, protocol};

/// Two threads add to a guarded value, each by a load and a store.
fn spin_lock() {
    // The value is an atomic, so that loom sees which store each load reads. The lock has to order these accesses.
    let lock = Arc::new(SpinLock::new(Rank::of_test(1), AtomicUsize::new(0)));
    let add = |lock: &SpinLock<AtomicUsize>, n: usize, tries: bool| {
        let held = if tries { lock.try_lock() } else { Some(lock.lock()) };
        let Some(guarded) = held else { return 0 };
        guarded.store(guarded.load(Ordering::Relaxed) + n, Ordering::Relaxed);
        n
    };
    let other = lock.clone();
    let t = thread::spawn(move || add(&other, 1, true));
    let mine = add(&lock, 2, false);
    let theirs = t.join().unwrap();
    let end = lock.lock().load(Ordering::Relaxed);
    assert_eq!(end, mine + theirs, "an update was lost");
}

protocol! {
    a_spin_lock_admits_one_holder_and_publishes_its_stores = spin_lock, Some(3);
    LockNotAtomic: "an update was lost";
    #[cfg(loom)]
    UnlockRelaxed: "an update was lost";
}

#[repr(C)]
struct RetiredNode {
    header: Retired,
    freed: Arc<AtomicBool>,
}

unsafe fn free(node: *mut Retired) {
    // SAFETY: the header is the node's first field, and the domain gives each node up once.
    let node = unsafe { Box::from_raw(node.cast::<RetiredNode>()) };
    node.freed.store(true, Ordering::SeqCst);
}

/// A reader reads a value that a writer unlinks and retires. At the end, without readers, the value is freed.
fn reader_against_retire(nested: bool) {
    let domain = Arc::new(Domain::new(PerCpu::leaked(2, |_| Slot::new())));
    let freed = Arc::new(AtomicBool::new(false));
    // 1 means reachable, 0 unlinked.
    let shared = Arc::new(AtomicUsize::new(1));
    let (d, s, f) = (domain.clone(), shared.clone(), freed.clone());
    let reader = thread::spawn(move || {
        set_cpu(1);
        let pin = d.pin();
        if nested {
            drop(d.pin());
        }
        let unharmed = s.load(Ordering::Acquire) == 0 || !f.load(Ordering::SeqCst);
        drop(pin);
        unharmed
    });
    set_cpu(0);
    let node = Box::into_raw(Box::new(RetiredNode { header: Retired::new(), freed: freed.clone() }));
    shared.store(0, Ordering::Release);
    // SAFETY: unreachable for new readers since the store above; retired once.
    unsafe { domain.retire(node.cast(), free) };
    domain.collect();
    domain.collect();
    assert!(reader.join().unwrap(), "freed under a reader");
    domain.collect();
    domain.collect();
    domain.collect();
    assert!(freed.load(Ordering::SeqCst), "an object without readers is not freed");
}

protocol! {
    nothing_is_freed_while_a_reader_that_reached_it_is_pinned = || reader_against_retire(false), Some(2);
    AdvancePastReaders: "freed under a reader";
    FreedTooSoon: "freed under a reader";
    PassedInAnyEpoch: "freed under a reader";
    #[cfg(loom)]
    PinNoFence: "freed under a reader";
    #[cfg(loom)]
    AdvanceNoFence: "freed under a reader";
}
protocol! {
    a_pin_inside_another_leaves_that_one_as_it_is = || reader_against_retire(true), Some(2);
    NestedPinEnds: "freed under a reader";
}

/// Two CPUs make the steps of an advance, and each continues where the other ended. Meanwhile a third CPU reads a value
/// that the first CPU retires.
fn reader_against_steps() {
    let domain = Arc::new(Domain::new(PerCpu::leaked(3, |_| Slot::new())));
    let (freed, shared) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(1)));
    let (d, s, f) = (domain.clone(), shared.clone(), freed.clone());
    let reader = thread::spawn(move || {
        set_cpu(2);
        let pin = d.pin();
        let unharmed = s.load(Ordering::Acquire) == 0 || !f.load(Ordering::SeqCst);
        drop(pin);
        unharmed
    });
    let d = domain.clone();
    let other = thread::spawn(move || {
        set_cpu(1);
        d.step();
        d.step();
    });
    set_cpu(0);
    let node = Box::into_raw(Box::new(RetiredNode { header: Retired::new(), freed: freed.clone() }));
    shared.store(0, Ordering::Release);
    // SAFETY: unreachable for new readers since the store above; retired once.
    unsafe { domain.retire(node.cast(), free) };
    domain.step();
    domain.step();
    domain.step();
    assert!(reader.join().unwrap(), "freed under a reader");
    other.join().unwrap();
    // No reader holds the epoch back now, so any CPU finishes the begun steps.
    let all = 2 * 2 + 1;
    for _ in 0..all {
        domain.step();
    }
    domain.collect();
    assert!(freed.load(Ordering::SeqCst), "an object without readers is not freed");
}

protocol! {
    cpus_that_step_in_turn_advance_past_no_reader = reader_against_steps, Some(2);
    AdvancePastReaders: "freed under a reader";
    PassedInAnyEpoch: "freed under a reader";
    #[cfg(loom)]
    PinNoFence: "freed under a reader";
    #[cfg(loom)]
    AdvanceNoFence: "freed under a reader";
}

#[repr(C)]
struct Counted(Retired, Arc<AtomicUsize>);

unsafe fn count(node: *mut Retired) {
    // SAFETY: the header is the node's first field, and the domain gives each node up once.
    let node = unsafe { Box::from_raw(node.cast::<Counted>()) };
    node.1.fetch_sub(1, Ordering::SeqCst);
}

/// A writer retires values again and again while a reader is pinned. The reader unpins in the end.
fn stall_against_retire() {
    const MOST: usize = 1;
    const ROUNDS: usize = 5;
    let domain = Domain::new(PerCpu::leaked(2, |_| Slot::new())).pushing_back_after(MOST as u32);
    let domain = Arc::new(domain);
    let d = domain.clone();
    let reader = thread::spawn(move || {
        set_cpu(1);
        drop(d.pin());
    });
    set_cpu(0);
    let waiting = Arc::new(AtomicUsize::new(0));
    for _ in 0..ROUNDS {
        domain.push_back();
        waiting.fetch_add(1, Ordering::SeqCst);
        let node = Box::into_raw(Box::new(Counted(Retired::new(), waiting.clone())));
        // SAFETY: no other thread has it; retired once.
        unsafe { domain.retire(node.cast(), count) };
        assert!(waiting.load(Ordering::SeqCst) <= 3 * MOST, "more retired objects wait than the limit");
    }
    reader.join().unwrap();
    domain.drain();
    assert_eq!(waiting.load(Ordering::SeqCst), 0, "an object without readers is not freed");
}

protocol! {
    a_writer_waits_for_readers_before_too_much_waits_for_them = stall_against_retire, Some(3);
    NoPushBack: "more retired objects wait than the limit";
}

/// A writer drains the domain while a reader pins, unpins, and pins again. The drain waits for existing pins, not for
/// new pins.
fn drain_against_readers() {
    let domain = Arc::new(Domain::new(PerCpu::leaked(2, |_| Slot::new())));
    let freed = Arc::new(AtomicBool::new(false));
    let d = domain.clone();
    let reader = thread::spawn(move || {
        set_cpu(1);
        drop(d.pin());
        drop(d.pin());
    });
    set_cpu(0);
    let node = Box::into_raw(Box::new(RetiredNode { header: Retired::new(), freed: freed.clone() }));
    // SAFETY: no other thread has it; retired once.
    unsafe { domain.retire(node.cast(), free) };
    domain.drain();
    assert!(freed.load(Ordering::SeqCst), "a drain leaves something");
    reader.join().unwrap();
}

protocol! {
    a_drain_waits_for_readers_and_frees_everything = drain_against_readers, Some(2);
    DrainAdvancesNothing: "a drain leaves something";
}

/// A writer drains the domain while another CPU frees values that the writer has retired.
fn drain_against_collector() {
    let domain = Arc::new(Domain::new(PerCpu::leaked(2, |_| Slot::new())));
    let freed = Arc::new(AtomicBool::new(false));
    set_cpu(0);
    let node = Box::into_raw(Box::new(RetiredNode { header: Retired::new(), freed: freed.clone() }));
    // SAFETY: no other thread has it; retired once.
    unsafe { domain.retire(node.cast(), free) };
    let d = domain.clone();
    let collector = thread::spawn(move || {
        set_cpu(1);
        d.collect_everywhere();
    });
    domain.drain();
    assert!(freed.load(Ordering::SeqCst), "a drain leaves something");
    collector.join().unwrap();
}

protocol! {
    a_drain_waits_for_other_cpus_that_free = drain_against_collector, Some(2);
    DrainTrustsEmptyBags: "a drain leaves something";
}

/// A thread sleeps until a flag is set.
fn wait_against_wake() {
    let queue = Arc::new(WaitQueue::new());
    let flag = Arc::new(AtomicBool::new(false));
    let (q, f) = (queue.clone(), flag.clone());
    let waiter = thread::spawn(move || q.wait(|| f.load(Ordering::Acquire)));
    flag.store(true, Ordering::Release);
    queue.wake_all();
    waiter.join().unwrap();
}

protocol! {
    a_wake_up_between_the_look_and_the_sleep_is_not_lost = wait_against_wake, Some(3);
    LookBeforeListed: "deadlock";
    #[cfg(loom)]
    WaitNoFence: "deadlock";
    #[cfg(loom)]
    WakeNoFence: "deadlock";
}

/// A thread waits for a flag. The thread is listed when it makes its second check. If this check does not find the flag
/// set, it sleeps until another flag is set.
fn wake_against_sleeping_look() {
    let queues = Arc::new([WaitQueue::new(), WaitQueue::new()]);
    let flags = Arc::new([AtomicBool::new(false), AtomicBool::new(false)]);
    let (q, f) = (queues.clone(), flags.clone());
    let waiter = thread::spawn(move || {
        let mut looks = 0;
        q[0].wait(|| {
            looks += 1;
            let found = f[0].load(Ordering::Acquire);
            if !found && looks == 2 {
                q[1].wait(|| f[1].load(Ordering::Acquire));
            }
            found
        });
    });
    for (flag, queue) in flags.iter().zip(queues.iter()) {
        flag.store(true, Ordering::Release);
        queue.wake_all();
    }
    waiter.join().unwrap();
}

/// A thread that waits for a flag is listed, and its call returns. Before it sleeps, it waits for a lock that another
/// thread holds. Then it sleeps, and checks the flag again.
fn wake_against_leaving_thread() {
    let queues = Arc::new([WaitQueue::new(), WaitQueue::new()]);
    let flags = Arc::new([AtomicBool::new(false), AtomicBool::new(false)]);
    let (q, f) = (queues.clone(), flags.clone());
    let waiter = thread::spawn(move || {
        // SAFETY: the listing stays in place, and ends before the queues.
        let me = unsafe { Listing::new() };
        while me.wait(&q[0], None, || false, || f[0].load(Ordering::Acquire).then_some(())).is_none() {
            q[1].wait(|| f[1].load(Ordering::Acquire));
            me.renew_token();
            park(None);
            me.unlist();
        }
    });
    for (flag, queue) in flags.iter().zip(queues.iter()) {
        flag.store(true, Ordering::Release);
        queue.wake_all();
    }
    waiter.join().unwrap();
}

protocol! {
    a_wake_up_of_a_thread_that_leaves_its_call_is_not_lost = wake_against_leaving_thread, Some(2);
    TokenNotRenewed: "deadlock";
}

/// A listing ends without a sleep, so a later wake-up finds no thread.
fn wake_against_unlisting() {
    let queue = Arc::new(WaitQueue::new());
    // SAFETY: the listing stays in place, and is dropped before the queue.
    let me = Arc::new(unsafe { Listing::new() });
    let (q, w) = (queue.clone(), me.clone());
    let waiter = thread::spawn(move || {
        let listed = w.wait(&q, None, || false, || None::<()>).is_none();
        w.unlist();
        listed
    });
    queue.wake_all();
    assert!(waiter.join().unwrap(), "a wait without a value lists its thread");
    assert_eq!(queue.wake_all(), 0, "a thread stays listed");
    drop(me);
}

protocol! {
    a_listing_that_ended_is_off_the_queue = wake_against_unlisting, Some(3);
    ListingStays: "a thread stays listed";
}

protocol! {
    a_wake_up_during_a_look_that_sleeps_is_not_lost = wake_against_sleeping_look, Some(2);
    TokenUsedUp: "deadlock";
}

/// One of two waiters times out while the only wake-up arrives.
fn wake_against_timeout() {
    let queue = Arc::new(WaitQueue::new());
    let tokens = Arc::new(AtomicUsize::new(0));
    let wait = |deadline| {
        let (queue, tokens) = (queue.clone(), tokens.clone());
        let take = move || tokens.compare_exchange(1, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok().then_some(());
        thread::spawn(move || queue.wait_until(deadline, || false, take))
    };
    // The first waiter's deadline has passed before it begins.
    let (hasty, patient) = (wait(Some(0)), wait(None));
    tokens.fetch_add(1, Ordering::AcqRel);
    queue.wake_one();
    if hasty.join().unwrap().is_ok() {
        tokens.fetch_add(1, Ordering::AcqRel);
        queue.wake_one();
    }
    assert_eq!(patient.join().unwrap(), Ok(()));
}

protocol! {
    a_wake_up_of_a_waiter_that_gives_up_goes_to_the_next = wake_against_timeout, Some(2);
    WakeNotPassedOn: "deadlock";
}

/// Two threads wait for two events. The second wake-up may choose a thread that found its event before it slept.
fn wake_against_success() {
    let queue = Arc::new(WaitQueue::new());
    let tokens = Arc::new(AtomicUsize::new(0));
    let wait = || {
        let (queue, tokens) = (queue.clone(), tokens.clone());
        let take = move || {
            let mut have = tokens.load(Ordering::Acquire);
            while have != 0 {
                match tokens.compare_exchange(have, have - 1, Ordering::AcqRel, Ordering::Acquire) {
                    Ok(_) => return Some(()),
                    Err(now) => have = now,
                }
            }
            None
        };
        thread::spawn(move || queue.wait_until(None, || false, take))
    };
    let waiters = [wait(), wait()];
    for _ in 0..2 {
        tokens.fetch_add(1, Ordering::AcqRel);
        queue.wake_one();
    }
    for waiter in waiters {
        assert_eq!(waiter.join().unwrap(), Ok(()));
    }
}

protocol! {
    a_wake_up_of_a_waiter_that_needs_none_goes_to_the_next = wake_against_success, Some(2);
    WakeKept: "deadlock";
}

fn mutex() {
    let m = Arc::new(Mutex::new(0usize));
    let other = m.clone();
    let t = thread::spawn(move || *other.lock() += 1);
    *m.lock() += 1;
    t.join().unwrap();
    assert_eq!(*m.lock(), 2);
}

protocol! {
    a_mutex_admits_one_holder_and_the_next_is_woken = mutex, Some(2);
    UnlockWithoutWakeUp: "deadlock";
}

/// One thread changes two words that are always equal, while another thread reads them.
fn read_against_write() {
    let words = Arc::new(Sequenced::new(Rank::of_test(1), [0, 0]));
    let reader = words.clone();
    let t = thread::spawn(move || reader.read());
    words.update(|all| *all = [1, 1]);
    let [first, second] = t.join().unwrap();
    assert_eq!(first, second, "a mixture was read");
    assert_eq!(words.read(), [1, 1], "an old value was read");
}

protocol! {
    words_that_change_together_are_read_together = read_against_write, Some(3);
    NoSecondCount: "a mixture was read";
    WriteUncounted: "a mixture was read";
    #[cfg(loom)]
    ReadNoFence: "a mixture was read";
    #[cfg(loom)]
    WriteNoFence: "a mixture was read";
}
