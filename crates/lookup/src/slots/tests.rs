//! Tests of tables of values: numbers, marks, growth and copies, on one CPU and on several.

use super::*;
use quire_sync::epoch::Slot;
use quire_sync::hooks::threads::set_cpu;
use quire_sync::per_cpu::PerCpu;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering as Order};

fn domain(cpus: usize) -> Domain {
    // The thread that makes the domain is the first CPU.
    quire_sync::hooks::threads::set_cpu(0);
    Domain::new(PerCpu::leaked(cpus, |_| Slot::new()))
}

/// A deterministic random generator, so that tests can be repeated.
fn next(state: &mut u64) -> usize {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) as usize
}

#[test]
fn a_table_is_a_map_from_numbers_to_values() {
    let domain = domain(1);
    for shared in [false, true] {
        let (mut table, mut model, mut reserved) = (Slots::new(Rank::FILE), BTreeMap::new(), BTreeMap::new());
        if shared {
            table.share().unwrap();
        }
        let mut state = 7;
        for step in 0..20_000 {
            let (op, n) = (next(&mut state) % 11, next(&mut state) % 300);
            match op {
                0..3 => {
                    let (from, limit) = (n / 2, 200 + n % 60);
                    let free = (from..).find(|n| !model.contains_key(n) && !reserved.contains_key(n)).unwrap();
                    let got = table.insert(Arc::try_new(step).unwrap(), step % 3 == 0, from, limit, &domain);
                    if free < limit {
                        assert_eq!(got, Ok(free));
                        model.insert(free, (step, step % 3 == 0));
                    } else {
                        assert_eq!(got, Err(NoNumber::Limit));
                    }
                }
                3 if reserved.contains_key(&n) => {
                    let got = table.replace(Arc::try_new(step).unwrap(), false, n, &domain);
                    assert_eq!(got.map(|v| v.map(|v| *v)), Err(NoNumber::Reserved));
                }
                3 => {
                    let before = table.replace(Arc::try_new(step).unwrap(), step % 2 == 0, n, &domain).unwrap();
                    assert_eq!(before.map(|v| *v), model.insert(n, (step, step % 2 == 0)).map(|m| m.0));
                }
                4 | 5 => assert_eq!(table.remove(n, &domain).map(|v| *v), model.remove(&n).map(|m| m.0)),
                6 => assert_eq!(table.mark(n, true).is_some(), {
                    model.entry(n).and_modify(|m| m.1 = true);
                    model.contains_key(&n)
                }),
                7 if step % 100 == 0 => {
                    let (last, marked) = (n + 40, n % 2 == 0);
                    let (mut got, mut want) = (std::vec::Vec::new(), std::vec::Vec::new());
                    table.remove_range(n, last, marked, &domain, |v| got.push(*v));
                    model.retain(|&at, m| {
                        let goes = n <= at && at <= last && (!marked || m.1);
                        want.extend(goes.then_some(m.0));
                        !goes
                    });
                    assert_eq!(got, want);
                }
                8 if step % 50 == 0 => {
                    table.mark_range(n, n + 3);
                    model.range_mut(n..=n + 3).for_each(|(_, m)| m.1 = true);
                    table = table.fork(Rank::FILE).unwrap();
                    // Reserved numbers are free in the copy.
                    reserved.clear();
                    if shared {
                        table.share().unwrap();
                    }
                }
                9 => {
                    let (limit, mark) = (200 + n % 60, step % 2 == 0);
                    let free = (n / 2..).find(|n| !model.contains_key(n) && !reserved.contains_key(n)).unwrap();
                    let got = table.reserve(mark, n / 2, limit, &domain);
                    if free < limit {
                        assert_eq!(got, Ok(free));
                        reserved.insert(free, mark);
                    } else {
                        assert_eq!(got, Err(NoNumber::Limit));
                    }
                }
                10 => {
                    // Reserved numbers are filled in even steps, and given back in odd steps.
                    if let Some((n, mark)) = reserved.pop_first() {
                        if step % 2 == 0 {
                            table.fill_reserved(n, Arc::try_new(step).unwrap());
                            model.insert(n, (step, mark));
                        } else {
                            table.give_back(n);
                        }
                    }
                }
                _ => {}
            }
            // SAFETY: no other thread has the table.
            let got = unsafe { table.get(n, &domain) };
            assert_eq!(got.map(|v| *v), model.get(&n).map(|m| m.0));
            assert_eq!(table.peek(n).map(|v| *v), model.get(&n).map(|m| m.0));
            assert_eq!(table.marked(n), model.get(&n).map(|m| m.1));
        }
        let mut all = Vec::try_with_capacity(1000).unwrap();
        table.list(0, &mut all);
        let all: std::vec::Vec<_> = all.iter().map(|(n, v)| (*n, **v)).collect();
        assert_eq!(all, model.iter().map(|(n, m)| (*n, m.0)).collect::<std::vec::Vec<_>>());
    }
}

#[test]
fn each_number_has_a_slot_of_its_own_and_none_beyond_the_end_has_one() {
    for order in 0..8 {
        let array = Array::<u8>::new(1 << order).unwrap();
        let lines = array.lines();
        let slots =
            (0..lines.len()).map(|n| (ptr::from_ref(lines.at(n).unwrap()).addr(), n)).collect::<BTreeMap<_, _>>();
        assert_eq!(slots.len(), lines.len());
        assert!([lines.len(), lines.len() + 1, usize::MAX].into_iter().all(|n| lines.at(n).is_none()));
    }
}

#[test]
fn neighbours_lie_on_different_lines() {
    let table = Slots::<u8>::new(Rank::FILE);
    table.share().unwrap();
    let changes = table.changes.lock();
    let array = table.array(&changes).unwrap();
    let line = |n: usize| ptr::from_ref(array.at(n).unwrap()).addr() / 64;
    for n in 0..array.len() {
        for m in n + 1..array.len().min(n + SPREAD) {
            assert_ne!(line(n), line(m), "{n} and {m}");
        }
    }
}

static ALIVE: AtomicUsize = AtomicUsize::new(0);
struct Value(usize);
impl Value {
    fn new(n: usize) -> Arc<Self> {
        ALIVE.fetch_add(1, Order::SeqCst);
        Arc::try_new(Value(n)).unwrap()
    }
}
impl Drop for Value {
    fn drop(&mut self) {
        self.0 = usize::MAX;
        ALIVE.fetch_sub(1, Order::SeqCst);
    }
}

#[test]
fn threads_find_present_values_during_changes() {
    const ROUNDS: usize = if cfg!(miri) { 200 } else { 20_000 };
    let (domain, table) = (domain(3), Slots::new(Rank::FILE));
    table.share().unwrap();
    for n in 0..4 {
        table.insert(Value::new(n), false, n, 1 << 20, &domain).unwrap();
    }
    std::thread::scope(|s| {
        for cpu in 1..3 {
            let (domain, table) = (&domain, &table);
            s.spawn(move || {
                set_cpu(cpu);
                for i in 0..ROUNDS {
                    // SAFETY: `share` was called before the threads began.
                    let (always, sometimes) = unsafe { (table.get(i % 2, domain), table.get(2 + i % 2, domain)) };
                    assert_eq!(always.unwrap().0 % 10, i % 2);
                    assert!(sometimes.is_none_or(|v| v.0 % 10 == 2 + i % 2));
                }
            });
        }
        set_cpu(0);
        for i in 0..ROUNDS {
            drop(table.replace(Value::new(i * 10 + i % 2), false, i % 2, &domain).unwrap().unwrap());
            drop(table.remove(2 + i % 2, &domain).unwrap());
            assert_eq!(table.insert(Value::new(i * 10 + 2 + i % 2), false, 2, 4, &domain), Ok(2 + i % 2));
            if i % (ROUNDS / 8) == 0 {
                // The table grows.
                drop(table.replace(Value::new(0), false, 200 << (i / (ROUNDS / 8)), &domain).unwrap());
            }
        }
    });
    drop(table);
    assert_eq!(ALIVE.load(Order::SeqCst), 0);
}
