//! The scheduler on a machine in virtual time.
#![cfg(not(any(loom, shuttle)))]
#![allow(clippy::undocumented_unsafe_blocks)] // all memory is the test's own
mod stepped;

use quire_sync::cpuset::CpuMask;
use quire_task::{Irq, Machine, ThreadRef};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use stepped::{Does, POLL, Stepped};

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
/// The turn (time slice) of a thread at nice 0, in nanoseconds.
const TURN: u64 = 4 * MS;
/// How long a busy thread runs before a woken thread preempts it, in nanoseconds.
const STRETCH: u64 = MS;
/// How late a deadline may be served, in nanoseconds: a tick of the timer wheel.
const TICK: u64 = 1 << 14;

fn hogs(machine: &Stepped, count: usize, on: impl Fn(usize) -> usize) -> Vec<ThreadRef<Stepped>> {
    (0..count).map(|i| machine.spawn(on(i), None, 0, Does::Runs)).collect()
}

fn ran(threads: &[ThreadRef<Stepped>]) -> u64 {
    threads.iter().map(|thread| thread.payload().ran.get()).sum()
}

fn pair(a: usize, b: usize) -> CpuMask {
    let mut mask = CpuMask::only(a);
    mask.insert(b);
    mask
}

#[test]
fn every_thread_runs_exits_and_is_reaped_off_its_own_stack() {
    for seed in 0..8 {
        let machine = Stepped::seeded(4, seed);
        let ran = Arc::new(AtomicUsize::new(0));
        for i in 0..200 {
            let ran = ran.clone();
            machine.start(&format!("t{i}"), move || {
                machine.poll();
                ran.fetch_add(1, SeqCst);
            });
        }
        machine.finish();
        assert_eq!((ran.load(SeqCst), machine.reaped()), (200, [200, 200]));
        assert_eq!(machine.scheduler().threads(), 0);
    }
}

#[test]
fn pairs_that_park_and_unpark_each_other_never_lose_a_wake_up() {
    for (cpus, seed) in [1, 2, 4].into_iter().flat_map(|cpus| (0..20).map(move |seed| (cpus, seed))) {
        let machine = Stepped::seeded(cpus, seed);
        let turns: Vec<_> = (0..4).map(|_| Arc::new(AtomicU64::new(0))).collect();
        for (pair, turn) in turns.iter().enumerate() {
            let partner: Arc<[Mutex<Option<ThreadRef<Stepped>>>; 2]> = Arc::default();
            for side in 0..2u64 {
                let (turn, table) = (turn.clone(), partner.clone());
                let t = machine.start(&format!("pair{pair}.{side}"), move || {
                    let s = machine.scheduler();
                    let partner = || table[1 - side as usize].lock().unwrap().clone();
                    machine.until(|| partner().is_some());
                    let partner = partner().unwrap();
                    for round in 0..40u64 {
                        while turn.load(SeqCst) != round * 2 + side {
                            machine.poll();
                            s.park(None);
                        }
                        turn.fetch_add(1, SeqCst);
                        machine.poll();
                        s.unpark(&partner);
                    }
                });
                *partner[side as usize].lock().unwrap() = Some(t);
            }
        }
        machine.finish();
        assert!(turns.iter().all(|turn| turn.load(SeqCst) == 80));
    }
}

#[test]
fn a_token_given_before_the_park_makes_it_return_at_once() {
    let machine = Stepped::new(1);
    machine.start("t", move || {
        let s = machine.scheduler();
        s.unpark(&s.current());
        s.unpark(&s.current());
        let before = machine.time();
        s.park(None);
        assert_eq!(machine.time(), before, "the token makes it return at once");
        let deadline = before + 3 * MS;
        s.park(Some(deadline));
        assert!((deadline..=deadline + TICK).contains(&machine.time()), "two wake-ups leave one token");
    });
    machine.finish();
}

#[test]
fn a_park_with_a_deadline_ends_then_and_not_before() {
    let machine = Stepped::new(2);
    let late: Arc<Mutex<Vec<u64>>> = Arc::default();
    for i in 1..40u64 {
        let late = late.clone();
        machine.start(&format!("sleeper{i}"), move || {
            for _ in 0..5 {
                let deadline = machine.time() + i * 100 * US;
                machine.scheduler().park(Some(deadline));
                late.lock().unwrap().push(machine.time().checked_sub(deadline).expect("it slept until its deadline"));
                machine.poll();
            }
        });
    }
    machine.finish();
    let late = late.lock().unwrap();
    // A thread may wait for a poll of each of the others.
    assert!(late.len() == 5 * 39 && late.iter().all(|late| *late <= TICK + 39 * POLL), "{late:?}");
}

#[test]
fn busy_threads_share_a_cpu_fairly_and_are_preempted() {
    for count in [1, 2, 3, 100] {
        let machine = Stepped::new(1);
        let threads = hogs(machine, count, |_| 0);
        let time = 100 * count as u64 * TURN;
        machine.run(time);
        assert_eq!(ran(&threads), time, "the CPU never idles");
        for thread in &threads {
            let (had, preempted) = (thread.payload().ran.get(), thread.switches().1);
            assert!(had.abs_diff(100 * TURN) <= TURN, "{had} ns for one of {count} threads");
            assert!(preempted >= 99 || count == 1, "preempted {preempted} times among {count} threads");
            // The time since a thread's last dispatch is added to its times at its next switch.
            let times = machine.scheduler().times(thread);
            assert!(times.user_ns == 0 && (had - times.system_ns <= TURN || count == 1), "{times:?} of {had} ns");
        }
    }
}

#[test]
fn a_thread_that_mostly_sleeps_runs_soon_among_busy_ones() {
    let machine = Stepped::new(1);
    let _hogs = hogs(machine, 8, |_| 0);
    let late = Arc::new(Mutex::new(Vec::new()));
    let late2 = late.clone();
    machine.start("sleeper", move || {
        for _ in 0..30 {
            let deadline = machine.time() + 2 * MS;
            machine.scheduler().park(Some(deadline));
            late2.lock().unwrap().push(machine.time() - deadline);
        }
    });
    machine.finish();
    let late = late.lock().unwrap();
    // The sleeper waits for one stretch, not for eight turns of four milliseconds.
    assert!(late.len() == 30 && late.iter().all(|late| *late <= STRETCH + TICK), "{late:?}");
}

#[test]
fn idle_cpus_steal_threads_that_wait_on_other_cpus() {
    for seed in 0..20 {
        let machine = Stepped::seeded(4, seed);
        let threads = hogs(machine, 16, |_| 0);
        machine.run(400 * MS);
        let homes: BTreeSet<_> = threads.iter().filter(|t| t.is_running()).map(|t| t.home()).collect();
        assert_eq!(homes, (0..4).collect(), "with seed {seed}, a CPU idles");
        // CPUs idle only during the delays of the interrupts that wake three of them.
        assert!(ran(&threads) >= 4 * 400 * MS - 3 * 10 * US, "with seed {seed}, CPUs idled");
    }
}

#[test]
fn an_idle_cpu_finds_allowed_threads_behind_crowded_cpus() {
    for seed in 0..20 {
        let machine = Stepped::seeded(6, seed);
        let mut four = CpuMask::first(5);
        four.remove(0);
        let bound = hogs(machine, 12, |i| 1 + i % 4);
        bound.iter().for_each(|thread| machine.restrict(thread, &four));
        machine.run(10 * TURN);
        assert!(bound.iter().all(|t| four.contains(t.home())), "with seed {seed}, a thread runs where it may not");
        // CPU 5 runs one of these threads. CPU 0 must find another one behind threads that may not run on CPU 0.
        let free = hogs(machine, 3, |_| 5);
        machine.run(10 * TURN);
        let running: Vec<_> = free.iter().filter(|t| t.is_running()).map(|t| t.home()).collect();
        assert!(running.contains(&0) && running.contains(&5), "with seed {seed}, a CPU idles: {running:?}");
        assert!(ran(&free) >= 2 * 10 * TURN - 10 * US, "with seed {seed}, a CPU idled while threads waited");
    }
}

#[test]
fn a_thread_moved_off_its_cpu_leaves_at_a_stretch_end_too() {
    let machine = Stepped::new(2);
    let flags: Arc<[AtomicBool; 3]> = Arc::default();
    let me: Arc<Mutex<Option<ThreadRef<Stepped>>>> = Arc::default();
    let (stays, seen) = (me.clone(), flags.clone());
    let thread = machine.start_at(Some(0), "stays", move || {
        let s = machine.scheduler();
        // From the next turn on, this thread's turns have 355 milliseconds.
        s.current().set_nice(-20);
        s.set_affinity(&s.current(), &CpuMask::only(0));
        s.yield_now();
        let [there, masked, done] = &*flags;
        let seen = seen.clone();
        // While the new thread waits on this CPU, the running thread has a stretch. Then the other CPU takes it.
        machine.start_at(Some(0), "moves", move || {
            let [there, masked, done] = &*seen;
            while quire_sync::current_cpu() != 1 {
                machine.poll();
            }
            there.store(true, SeqCst);
            while !masked.load(SeqCst) {
                machine.poll();
            }
            let stays = stays.lock().unwrap().clone().unwrap();
            assert!(machine.scheduler().set_affinity(&stays, &CpuMask::only(1)));
            done.store(true, SeqCst);
        });
        while !there.load(SeqCst) {
            machine.poll();
        }
        let expired = machine.expired(0);
        let was = machine.mask();
        assert_eq!(was, Irq::On);
        masked.store(true, SeqCst);
        while !done.load(SeqCst) {
            machine.poll();
        }
        machine.poll();
        assert_eq!(quire_sync::current_cpu(), 0, "interrupts are masked");
        // The other CPU's interrupt is delivered now. Preemption is still off when the timer's interrupt comes.
        machine.keep_cpu(true);
        machine.restore(was);
        machine.spin(400 * MS);
        assert_eq!(quire_sync::current_cpu(), 0);
        assert!(machine.expired(0) > expired, "the stretch has no end");
        machine.keep_cpu(false);
        machine.poll();
        assert_eq!(quire_sync::current_cpu(), 1);
    });
    *me.lock().unwrap() = Some(thread);
    machine.finish();
}

#[test]
fn a_thread_woken_from_another_cpu_waits_at_most_a_stretch() {
    for seed in 0..20 {
        let machine = Stepped::seeded(2, seed);
        let woken = Arc::new(AtomicU64::new(0));
        let late = Arc::new(Mutex::new(Vec::new()));
        for _ in 0..2 {
            let hog = machine.spawn(0, None, -20, Does::Runs);
            machine.restrict(&hog, &CpuMask::only(0));
        }
        let (since, late2) = (woken.clone(), late.clone());
        let sleeper = machine.start_at(Some(0), "sleeper", move || {
            let s = machine.scheduler();
            s.set_affinity(&s.current(), &CpuMask::only(0));
            for _ in 0..15 {
                s.park(None);
                late2.lock().unwrap().push(machine.time() - since.load(SeqCst));
            }
        });
        let woken2 = late.clone();
        machine.start_at(Some(1), "waker", move || {
            let s = machine.scheduler();
            s.set_affinity(&s.current(), &CpuMask::only(1));
            // The sleeper first runs after the turns of the busy threads.
            while sleeper.is_runnable() {
                machine.spin(MS);
            }
            for round in 0..15 {
                // This time is not a multiple of a turn, which has 355 milliseconds.
                machine.spin(453 * MS);
                assert_eq!(woken2.lock().unwrap().len(), round);
                woken.store(machine.time(), SeqCst);
                s.unpark(&sleeper);
            }
        });
        machine.finish();
        let late = late.lock().unwrap();
        assert!(late.len() == 15 && late.iter().all(|late| *late <= STRETCH + 10 * US), "with seed {seed}: {late:?}");
    }
}

#[test]
fn a_busy_thread_never_keeps_two_cpus_and_idle_cpus_halt() {
    let machine = Stepped::new(4);
    let (switches, halts) = (machine.switches(), || (0..4).map(|cpu| machine.halts(cpu)).sum::<u64>());
    let hog = machine.spawn(2, None, 0, Does::Runs);
    let before = (halts(), machine.interrupts());
    machine.run(50 * MS);
    assert_eq!((ran(&[hog]), machine.switches() - switches), (50 * MS, 1));
    assert_eq!((halts(), machine.interrupts()), before, "idle CPUs must halt, not spin");
}

#[test]
fn user_and_system_time_are_cut_at_the_boundaries() {
    let machine = Stepped::new(2);
    let start = machine.time();
    let t = machine.start("t", move || {
        let s = machine.scheduler();
        for _ in 0..10 {
            s.current().leave_kernel(machine.ticks());
            machine.spin(2000 * US);
            s.current().enter_kernel(machine.ticks());
            machine.spin(1000 * US);
            s.park(Some(machine.time() + 1000 * US));
        }
    });
    machine.finish();
    machine.run(MS);
    let times = machine.scheduler().times(&t);
    assert_eq!((times.user_ns, times.system_ns), (20 * MS, 10 * MS + POLL));
    let cpus: Vec<_> = (0..2).map(|c| machine.scheduler().cpu_times(c)).collect();
    let sum = |f: fn(&quire_task::CpuTimes) -> u64| cpus.iter().map(f).sum::<u64>();
    assert_eq!((sum(|c| c.user_ns), sum(|c| c.system_ns)), (times.user_ns, times.system_ns));
    assert_eq!(sum(|c| c.idle_ns), 2 * (machine.time() - start) - times.user_ns - times.system_ns);
}

#[test]
fn a_high_nice_value_gets_the_smaller_share() {
    let machine = Stepped::new(1);
    let [low, high] = [0, 5].map(|nice| machine.spawn(0, None, nice, Does::Runs));
    machine.run(4000 * MS);
    let [low, high] = [low, high].map(|t| t.payload().ran.get());
    assert_eq!(low + high, 4000 * MS);
    // By Linux's table of weights the ratio is 1024 to 335.
    let due = 4000 * MS * 1024 / (1024 + 335);
    assert!(low.abs_diff(due) <= due / 50 + TURN, "{low} ns are not {due} ns");
}

#[test]
fn threads_run_on_allowed_cpus_and_idle_cpus_skip_others() {
    for seed in 0..20 {
        let machine = Stepped::seeded(4, seed);
        let before = machine.halts(3);
        for i in 0..12usize {
            machine.start(&format!("t{i}"), move || {
                let s = machine.scheduler();
                let allowed = if i % 3 == 2 { pair(1, 2) } else { CpuMask::only(i % 2) };
                assert!(s.set_affinity(&s.current(), &allowed));
                let settled = machine.halts(3);
                for round in 0..40 {
                    machine.spin(300 * US);
                    assert!(allowed.contains(quire_sync::current_cpu()), "thread {i} is on the wrong CPU");
                    match round % 3 {
                        0 => s.yield_now(),
                        1 => s.park(Some(machine.time() + 50 * US)),
                        _ => {}
                    }
                }
                // A few halts are allowed, because other threads may still begin on CPU 3.
                let halts = machine.halts(3) - settled;
                assert!(halts <= 12, "an idle CPU without allowed threads must halt, not spin: {halts}");
            });
        }
        machine.finish();
        assert!(machine.halts(3) - before <= 24, "with seed {seed}: {} halts", machine.halts(3));
    }
}

#[test]
fn a_running_and_a_waiting_thread_are_moved_by_another() {
    for seed in 0..20 {
        let machine = Stepped::seeded(3, seed);
        let stop = Arc::new(AtomicBool::new(false));
        let at: Arc<[AtomicUsize; 2]> = Arc::new([AtomicUsize::new(9), AtomicUsize::new(9)]);
        let hogs: Vec<_> = (0..2)
            .map(|i| {
                let (at, stop) = (at.clone(), stop.clone());
                machine.start_at(Some(0), &format!("hog{i}"), move || {
                    let s = machine.scheduler();
                    s.set_affinity(&s.current(), &CpuMask::only(0));
                    while !stop.load(SeqCst) {
                        machine.spin(100 * US);
                        at[i].store(quire_sync::current_cpu(), SeqCst);
                    }
                })
            })
            .collect();
        machine.start_at(Some(2), "mover", move || {
            let s = machine.scheduler();
            s.set_affinity(&s.current(), &CpuMask::only(2));
            // A running thread leaves its CPU at once. A waiting thread moves when the CPU takes it off the queue.
            let wait = |i: usize, cpu: usize| {
                let limit = machine.time() + TURN + MS;
                while at[i].load(SeqCst) != cpu {
                    machine.spin(50 * US);
                    assert!(machine.time() < limit, "hog {i} is on {} instead of {cpu}", at[i].load(SeqCst));
                }
            };
            wait(0, 0);
            wait(1, 0);
            for round in 0..20 {
                // In each round one of the two threads runs and the other one waits.
                s.set_affinity(&hogs[round % 2], &CpuMask::only(1));
                wait(round % 2, 1);
                s.set_affinity(&hogs[round % 2], &CpuMask::only(0));
                wait(round % 2, 0);
            }
            assert!(!s.set_affinity(&hogs[0], &CpuMask::only(77)), "there is no such CPU");
            stop.store(true, SeqCst);
        });
        machine.finish();
    }
}

#[test]
fn a_thread_wakes_on_one_of_its_changed_allowed_cpus() {
    for seed in 0..20 {
        let machine = Stepped::seeded(3, seed);
        let seen = Arc::new(Mutex::new(Vec::new()));
        let to = seen.clone();
        let sleeper = machine.start_at(Some(0), "sleeper", move || {
            for _ in 0..3 {
                machine.scheduler().park(None);
                to.lock().unwrap().push(quire_sync::current_cpu());
            }
        });
        machine.start_at(Some(1), "waker", move || {
            let s = machine.scheduler();
            for (round, cpu) in [2, 1, 0].into_iter().enumerate() {
                while sleeper.is_runnable() {
                    machine.poll();
                }
                assert!(s.set_affinity(&sleeper, &CpuMask::only(cpu)));
                s.unpark(&sleeper);
                machine.until(|| seen.lock().unwrap().len() > round);
                assert_eq!(seen.lock().unwrap()[round], cpu);
            }
        });
        machine.finish();
    }
}
