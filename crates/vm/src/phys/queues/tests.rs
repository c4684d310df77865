use super::*;
use crate::phys::Config;
use crate::phys::frames::{Fill, For};
use crate::testing::{Boot, TestMachine, boot_with};
use crate::vm::Vm;
use proptest::prelude::*;
use std::collections::HashMap;

fn system(frames: u64, parts: usize, cpus: usize) -> Boot {
    boot_with(frames, cpus, Config { reserve: Some(4), queue_parts: Some(parts), ..Config::default() })
}

/// A new page of an object that has no index.
fn page(vm: &'static Vm<TestMachine>) -> &'static Page {
    let pfn = vm.alloc_frame(Fill::Any, For::User).unwrap().into_pfn();
    let page = vm.page(pfn);
    vm.assume_page(page, 64, pfn.0, State::VALID);
    vm.enqueue_new(page);
    page
}

fn pages(vm: &'static Vm<TestMachine>, n: usize) -> Vec<&'static Page> {
    let pages = (0..n).map(|_| page(vm)).collect();
    vm.drain_queue_batches();
    pages
}

fn place(page: &Page) -> QueuePlace {
    QueuePlace::of(page.state())
}

/// Takes all pages out of `queue`, and returns them.
fn take_all(vm: &'static Vm<TestMachine>, queue: Queue) -> Vec<&'static Page> {
    let mut all = Vec::new();
    vm.queues().parts(queue).for_each(|part| {
        part.take(usize::MAX, &mut |p| all.push(p));
    });
    all
}

#[test]
fn the_number_of_parts_follows_the_cpus_and_the_memory() {
    assert_eq!(Queues::scale(1, 1 << 20), 256);
    assert_eq!(Queues::scale(16, 1 << 20), 256);
    assert_eq!(Queues::scale(17, 1 << 20), 512);
    assert_eq!(Queues::scale(64, 1 << 20), 1024);
    assert_eq!(Queues::scale(256, 1 << 24), MAX_PARTS);
    assert_eq!(Queues::scale(4, 1024), 32);
    assert_eq!(Queues::scale(1, 8), 1);
    let m = system(4096, 100_000, 1);
    assert_eq!(m.vm.queues().parts_count(), MAX_PARTS);
    assert_eq!(size_of::<CachePadded<Part>>(), 128, "a part has a line of its own");
}

#[test]
fn the_iterator_shows_each_part_with_pages_once() {
    for parts in [1, 3, 4, 16, 64, 256, 1024] {
        for cpus in [1, 3, 40] {
            let m = system(8192, parts, cpus);
            assert!(m.vm.queues().is_empty(Queue::Active));
            let made = pages(m.vm, 700);
            let mut seen: Vec<usize> = m.vm.queues().parts(Queue::Active).map(|p| p.number()).collect();
            assert_eq!(m.vm.queues().parts(Queue::Active).map(|p| p.len()).sum::<usize>(), made.len());
            assert!(seen.len() == 3.min(parts / cpus).max(1), "three batches go to three parts of the CPU's window");
            seen.sort();
            seen.dedup();
            assert_eq!(seen.len(), m.vm.queues().parts_from(Queue::Active, 77).count());
            assert_eq!(m.vm.queues().len(Queue::Active), 700);
            assert_eq!(m.vm.queues().check(true), Ok(()));
        }
    }
}

#[test]
fn a_part_gives_its_first_pages_and_they_are_in_no_queue() {
    let m = system(2048, 1, 1);
    let made = pages(m.vm, 10);
    let part = m.vm.queues().parts(Queue::Active).next().unwrap();
    let mut taken = Vec::new();
    assert_eq!(part.take(4, &mut |p| taken.push(p)), 4);
    assert!(taken.iter().zip(&made).all(|(a, b)| core::ptr::eq(*a, *b)));
    assert!(taken.iter().all(|p| place(p) == QueuePlace::Isolated));
    assert_eq!(part.len(), 6);
    assert_eq!(m.vm.queues().put_all(taken[..2].iter().copied(), Queue::Inactive), 2);
    m.vm.put_in_queue(taken[2], Queue::Laundry);
    m.vm.put_in_queue(taken[3], Queue::Active);
    assert_eq!(m.vm.queues().batched(), 2);
    m.vm.drain_own_queue_batch();
    assert_eq!(Queue::ALL.map(|q| m.vm.queues().len(q)), [7, 2, 1]);
    assert!(m.vm.queues().requeue(made[4]));
    let order = take_all(m.vm, Queue::Active);
    assert!(core::ptr::eq(order[0], made[5]) && core::ptr::eq(order[6], made[4]) && core::ptr::eq(order[5], made[3]));
    assert_eq!(m.vm.queues().check(true), Ok(()));
}

#[test]
fn a_page_that_goes_while_it_is_isolated_is_not_put_back() {
    let m = system(2048, 4, 1);
    let made = pages(m.vm, 3);
    assert!(m.vm.queues().isolate(made[1]));
    assert!(!m.vm.queues().isolate(made[1]), "another thread has isolated it");
    m.vm.release_page(made[1]);
    assert!(!m.vm.queues().isolate(made[1]));
    m.vm.put_in_queue(made[1], Queue::Laundry);
    assert_eq!(m.vm.queues().put_all([made[1]], Queue::Laundry), 0);
    m.vm.drain_queue_batches();
    assert_eq!(Queue::ALL.map(|q| m.vm.queues().len(q)), [2, 0, 0]);
    assert_eq!(m.vm.queues().check(true), Ok(()));
}

#[test]
fn the_check_finds_each_kind_of_damage() {
    let m = system(2048, 1, 1);
    let made = pages(m.vm, 5);
    let queues = m.vm.queues();
    let pfn = |i: usize| m.vm.pfn_of_page(made[i]);
    assert_eq!(queues.check(true), Ok(()));

    made[2].set_prev(Some(pfn(4)));
    assert_eq!(queues.check(false), Err(QueueError::Links(pfn(2))));
    made[2].set_prev(Some(pfn(1)));

    let part = queues.part(Queue::Active, 0);
    part.len.store(4, Ordering::Relaxed);
    assert_eq!(queues.check(false), Err(QueueError::Length(Queue::Active, 0)));
    part.len.store(0, Ordering::Relaxed);
    assert_eq!(queues.check(false), Err(QueueError::Length(Queue::Active, 0)), "though the iterator would skip it");
    part.len.store(5, Ordering::Relaxed);

    assert!(change(made[3], QueuePlace::Listed(Queue::Active, 0), QueuePlace::Isolated));
    assert_eq!(queues.check(false), Err(QueueError::Place(pfn(3))));
    assert!(change(made[3], QueuePlace::Isolated, QueuePlace::Listed(Queue::Active, 0)));

    let stranger = page(m.vm);
    m.vm.drain_queue_batches();
    assert!(queues.isolate(stranger));
    assert!(change(stranger, QueuePlace::Isolated, QueuePlace::Listed(Queue::Laundry, 0)));
    assert_eq!(queues.check(false), Ok(()));
    assert_eq!(queues.check(true), Err(QueueError::Lost(m.vm.pfn_of_page(stranger))));
    assert!(change(stranger, QueuePlace::Listed(Queue::Laundry, 0), QueuePlace::Isolated));
    assert_eq!(queues.check(true), Ok(()));
}

#[derive(Clone, Copy, Debug)]
enum Step {
    New,
    Drain,
    Take(usize, Queue),
    Put(usize, Queue),
    PutAll(Queue),
    Isolate(usize),
    Move(usize, Queue),
    Requeue(usize),
    Release(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let queue = prop::sample::select(Queue::ALL.to_vec());
    let step = prop_oneof![
        4 => Just(Step::New),
        1 => Just(Step::Drain),
        2 => (1..6usize, queue.clone()).prop_map(|(n, q)| Step::Take(n, q)),
        2 => (any::<usize>(), queue.clone()).prop_map(|(n, q)| Step::Put(n, q)),
        1 => queue.clone().prop_map(Step::PutAll),
        1 => any::<usize>().prop_map(Step::Isolate),
        1 => (any::<usize>(), queue).prop_map(|(n, q)| Step::Move(n, q)),
        1 => any::<usize>().prop_map(Step::Requeue),
        2 => any::<usize>().prop_map(Step::Release),
    ];
    prop::collection::vec(step, 0..250)
}

/// The expected place of each page: its queue, or `None` if it is isolated.
type Model = HashMap<u64, Option<Queue>>;

fn follow(m: &Boot, steps: &[Step]) {
    let (vm, queues) = (m.vm, m.vm.queues());
    let mut alive: Vec<&'static Page> = Vec::new();
    let mut model = Model::new();
    let key = |p: &Page| vm.pfn_of_page(p).0;
    for step in steps {
        let any = |n: usize| (!alive.is_empty()).then(|| alive[n % alive.len()]);
        match *step {
            Step::New => {
                let new = page(vm);
                alive.push(new);
                model.insert(key(new), Some(Queue::Active));
            }
            Step::Drain => {
                vm.drain_queue_batches();
                let settled = Queue::ALL.map(|q| model.values().filter(|p| **p == Some(q)).count() as u64);
                assert_eq!(Queue::ALL.map(|q| queues.len(q)), settled);
            }
            Step::Take(n, queue) => {
                for part in queues.parts(queue) {
                    let had = part.len();
                    let took = part.take(n, &mut |p| assert_eq!(model.insert(key(p), None), Some(Some(queue))));
                    assert_eq!(took, had.min(n));
                }
            }
            Step::Put(n, queue) => {
                let Some(p) = any(n) else { continue };
                queues.put(p, queue);
                let at = model.get_mut(&key(p)).unwrap();
                *at = at.or(Some(queue));
            }
            Step::PutAll(queue) => {
                let isolated: Vec<_> = alive.iter().copied().filter(|p| model[&key(p)].is_none()).collect();
                assert_eq!(queues.put_all(isolated.iter().copied(), queue), isolated.len());
                isolated.iter().for_each(|p| *model.get_mut(&key(p)).unwrap() = Some(queue));
            }
            Step::Isolate(n) => {
                let Some(p) = any(n) else { continue };
                assert_eq!(queues.isolate(p), model.insert(key(p), None).unwrap().is_some());
            }
            Step::Move(n, queue) => {
                let Some(p) = any(n) else { continue };
                let at = model.get_mut(&key(p)).unwrap();
                assert_eq!(queues.move_to(p, queue), at.is_some());
                *at = at.map(|_| queue);
            }
            Step::Requeue(n) => {
                let Some(p) = any(n) else { continue };
                assert_eq!(queues.requeue(p), matches!(place(p), QueuePlace::Listed(..)));
            }
            Step::Release(n) => {
                let Some(p) = any(n) else { continue };
                alive.retain(|a| !core::ptr::eq(*a, p));
                model.remove(&key(p));
                vm.release_page(p);
            }
        }
        assert_eq!(queues.check(true), Ok(()));
        for p in &alive {
            let says = match place(p) {
                QueuePlace::Nowhere => panic!("a page with an identity is nowhere"),
                QueuePlace::Isolated => None,
                QueuePlace::Batched(q) | QueuePlace::Listed(q, _) => Some(q),
            };
            assert_eq!(says, model[&key(p)]);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn pages_are_where_a_simple_model_says(steps in steps(), parts in 1..9usize) {
        follow(&system(1024, parts, 2), &steps);
    }
}

#[test]
fn pages_that_four_cpus_move_are_each_listed_once() {
    let m = system(8192, 4, 4);
    let vm = m.vm;
    std::thread::scope(|s| {
        for cpu in 0..4 {
            s.spawn(move || {
                quire_sync::hooks::threads::set_cpu(cpu);
                let mut mine = Vec::new();
                for round in 0..3000usize {
                    mine.push(page(vm));
                    let p: &Page = mine[round * 7 % mine.len()];
                    match (round + cpu) % 5 {
                        0 => drop(vm.queues().move_to(p, Queue::ALL[round % 3])),
                        1 => {
                            let mut taken = Vec::new();
                            for queue in Queue::ALL {
                                for part in vm.queues().parts_from(queue, round) {
                                    part.take(3, &mut |p| taken.push(p));
                                }
                            }
                            vm.queues().put_all(taken, Queue::ALL[round % 3]);
                        }
                        2 => drop(vm.queues().requeue(p)),
                        3 => vm.drain_queue_batches(),
                        _ => vm.queues().check(false).unwrap(),
                    }
                    if mine.len() > 500 {
                        mine.drain(..300).for_each(|p| vm.release_page(p));
                    }
                }
                mine.into_iter().for_each(|p| vm.release_page(p));
            });
        }
    });
    vm.drain_queue_batches();
    assert_eq!(Queue::ALL.map(|q| vm.queues().len(q)), [0; 3]);
    assert_eq!(vm.queues().check(true), Ok(()));
    let lost = vm
        .described()
        .find(|page| page.kind() == crate::phys::page::FrameKind::Object)
        .map(|page| vm.pfn_of_page(page));
    assert_eq!(lost, None, "a page is left");
}
