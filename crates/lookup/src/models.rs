//! Models of the tables. `RUSTFLAGS="--cfg loom"` and `"--cfg shuttle"` run them.

use crate::{Names, Slots};
use quire_sync::atomic::{AtomicBool, Ordering};
use quire_sync::epoch::{Domain, Slot};
use quire_sync::explore::{Arc, thread};
use quire_sync::hooks::threads::set_cpu;
use quire_sync::{PerCpu, Rank, protocol};

/// A thread looks a number up while another thread stores a new value under it, or removes its value.
fn lookup_against_change(replaced: bool) {
    let domain = Arc::new(Domain::new(PerCpu::leaked(2, |_| Slot::new())));
    let table = Arc::new(Slots::new(Rank::FILE));
    table.insert(quire_heap::Arc::try_new(1).unwrap(), false, 0, 1, &domain).unwrap();
    table.share().unwrap();
    let (d, t) = (domain.clone(), table.clone());
    let reader = thread::spawn(move || {
        set_cpu(1);
        // SAFETY: `share` was called before the thread began.
        unsafe { t.get(0, &d) }.map(|value| *value)
    });
    set_cpu(0);
    if replaced {
        drop(table.replace(quire_heap::Arc::try_new(2).unwrap(), false, 0, &domain).unwrap());
    } else {
        drop(table.remove(0, &domain).unwrap());
    }
    let found = reader.join().unwrap();
    assert!(found != Some(2) || replaced);
    assert!(found.is_some() || !replaced, "a number with a value is not found");
}

protocol! {
    a_lookup_finds_the_entry_or_its_replacement = || lookup_against_change(true), Some(2);
    SlotReadOnce: "a number with a value is not found";
    SlotValueFreed: "the memory of a value is freed during a lookup";
}
protocol! {
    a_lookup_finds_the_entry_or_its_removal = || lookup_against_change(false), Some(2);
    SlotValueFreed: "the memory of a value is freed during a lookup";
}

struct Named {
    number: usize,
    alive: Arc<AtomicBool>,
}
impl Drop for Named {
    fn drop(&mut self) {
        self.alive.store(false, Ordering::SeqCst);
    }
}

/// A thread looks a name up while another thread gives it a new value, and adds a second name, which makes the table
/// longer.
fn name_against_change(stays: bool) {
    let domain = Arc::new(Domain::new(PerCpu::leaked(2, |_| Slot::new())));
    let names = Arc::new(Names::new(Rank::FILE));
    let alive = [(); 2].map(|()| Arc::new(AtomicBool::new(true)));
    let value = |number: usize| quire_heap::Arc::try_new(Named { number, alive: alive[number].clone() }).unwrap();
    let name = |name: &str| quire_heap::Arc::<[u8]>::try_copy(name.as_bytes()).unwrap();
    names.put(names.spare().unwrap(), name("a"), value(0), stays, &mut domain.pile());
    let (d, n, all) = (domain.clone(), names.clone(), alive.clone());
    let reader = thread::spawn(move || {
        set_cpu(1);
        let pin = d.pin();
        let found = n.get(b"a", &pin).map(|found| all[found.number].load(Ordering::SeqCst));
        drop(pin);
        found
    });
    set_cpu(0);
    let second = quire_heap::Arc::try_new(Named { number: 1, alive: Arc::new(AtomicBool::new(true)) }).unwrap();
    names.put(names.spare().unwrap(), name("b"), second, stays, &mut domain.pile());
    drop(names.put(names.spare().unwrap(), name("a"), value(1), stays, &mut domain.pile()));
    let found = reader.join().unwrap();
    assert!(found.is_some(), "a name that is there all the time is not found");
    assert_eq!(found, Some(true), "a value is freed under its reader");
}

protocol! {
    a_name_that_stays_is_used_without_being_counted = || name_against_change(true), Some(2);
    NameValueFreed: "a value is freed under its reader";
}
protocol! {
    a_name_that_is_there_all_the_time_is_found = || name_against_change(false), Some(2);
    NameReadOnce: "a name that is there all the time is not found";
    NameValueFreed: "the memory of a value is freed during a lookup";
}

/// Two CPUs have looked a value up alternately, and both hold it. One of them looks it up again while another thread
/// removes its name.
fn hold_against_close() {
    let domain = Arc::new(Domain::new(PerCpu::leaked(2, |_| Slot::new())));
    let names = Arc::new(Names::new(Rank::FILE));
    let alive = Arc::new(AtomicBool::new(true));
    let value = quire_heap::Arc::try_new(Named { number: 0, alive: alive.clone() }).unwrap();
    set_cpu(0);
    names.put(names.spare().unwrap(), quire_heap::Arc::try_copy(b"a").unwrap(), value, false, &mut domain.pile());
    for cpu in [1, 0] {
        set_cpu(cpu);
        drop(names.get(b"a", &domain.pin()));
    }
    let held = names.get(b"a", &domain.pin()).unwrap().held();
    let (d, n, all) = (domain.clone(), names.clone(), alive.clone());
    let other = thread::spawn(move || {
        set_cpu(1);
        let found = n.get(b"a", &d.pin()).map(|found| found.held());
        drop(held);
        assert!(found.is_none() || all.load(Ordering::SeqCst), "a value is freed under a hold");
    });
    set_cpu(0);
    drop(names.take(b"a", &mut domain.pile()));
    other.join().unwrap();
    assert!(!alive.load(Ordering::SeqCst), "a value without a hold is never freed");
}

protocol! {
    a_closed_crowd_gives_its_value_up_with_the_last_hold = hold_against_close, Some(2);
    // The value is freed too early, or never.
    HoldOfClosed: "hold";
    LetGoUncounted: "a value without a hold is never freed";
}
