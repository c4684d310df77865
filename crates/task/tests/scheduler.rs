//! The scheduler on a simulated machine.
#![cfg(not(any(loom, shuttle)))]
#![allow(clippy::undocumented_unsafe_blocks)] // all memory is the test's own
mod simulated;

use quire_sync::cpuset::CpuMask;
use quire_task::ThreadRef;
use simulated::{Sim, fair_once};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

#[test]
fn every_thread_runs_exits_and_is_reaped_off_its_own_stack() {
    let sim = Sim::new(4);
    let ran = Arc::new(AtomicUsize::new(0));
    for i in 0..200 {
        let ran = ran.clone();
        sim.spawn(&format!("t{i}"), move || {
            sim.poll();
            ran.fetch_add(1, SeqCst);
        });
    }
    sim.finish();
    assert_eq!(ran.load(SeqCst), 200);
}

#[test]
fn pairs_that_park_and_unpark_each_other_never_lose_a_wake_up() {
    for cpus in [1, 2, 4] {
        let sim = Sim::new(cpus);
        for pair in 0..4 {
            let turn = Arc::new(AtomicU64::new(0));
            let partner: Arc<[Mutex<Option<ThreadRef<Sim>>>; 2]> = Arc::new([Mutex::new(None), Mutex::new(None)]);
            for side in 0..2u64 {
                let (turn, table) = (turn.clone(), partner.clone());
                let t = sim.spawn(&format!("pair{pair}.{side}"), move || {
                    let s = sim.scheduler();
                    let partner = loop {
                        if let Some(p) = table[1 - side as usize].lock().unwrap().clone() {
                            break p;
                        }
                        s.yield_now();
                    };
                    for round in 0..500u64 {
                        while turn.load(SeqCst) != round * 2 + side {
                            s.park(None);
                        }
                        turn.fetch_add(1, SeqCst);
                        s.unpark(&partner);
                    }
                });
                *partner[side as usize].lock().unwrap() = Some(t);
            }
        }
        sim.finish();
    }
}

#[test]
fn a_token_given_before_the_park_makes_it_return_at_once() {
    let sim = Sim::new(1);
    sim.spawn("t", move || {
        let s = sim.scheduler();
        s.unpark(&s.current());
        s.unpark(&s.current());
        s.park(None);
        let before = Instant::now();
        let deadline = quire_task::Machine::now(sim) + 3_000_000;
        s.park(Some(deadline));
        assert!(before.elapsed() >= Duration::from_millis(3), "two wake-ups leave one token");
    });
    sim.finish();
}

#[test]
fn a_park_with_a_deadline_ends_then_and_not_before() {
    let sim = Sim::new(2);
    for i in 1..40u64 {
        sim.spawn(&format!("sleeper{i}"), move || {
            let mut parks = 0;
            for _ in 0..5 {
                let deadline = quire_task::Machine::now(sim) + i * 100_000;
                while quire_task::Machine::now(sim) < deadline {
                    sim.scheduler().park(Some(deadline));
                    parks += 1;
                }
            }
            // On a busy host a deadline may be over before the park, so the thread need not sleep each time.
            assert!(parks <= 5, "it slept, it did not spin: {parks} parks");
        });
    }
    sim.finish();
}

#[test]
fn busy_threads_share_a_cpu_fairly_and_are_preempted() {
    // The simulated CPU shares a real one with other tests: only gross unfairness shows.
    fair_once(
        || times_and_preemptions_of_hogs(3),
        |hogs| {
            let times = || hogs.iter().map(|(time, _)| *time);
            hogs.iter().all(|(_, preempted)| *preempted > 0) && times().max().unwrap() / 3 < times().min().unwrap()
        },
    );
}

/// CPU times of busy threads on one CPU, in nanoseconds, and how often each was preempted.
fn times_and_preemptions_of_hogs(hogs: usize) -> Vec<(u64, u64)> {
    let sim = Sim::new(1);
    let stop = Arc::new(AtomicBool::new(false));
    let measured = Arc::new(Mutex::new(Vec::new()));
    for i in 0..hogs {
        let (stop, measured) = (stop.clone(), measured.clone());
        sim.spawn(&format!("hog{i}"), move || {
            while !stop.load(SeqCst) {
                sim.poll();
            }
            let s = sim.scheduler();
            let me = s.current();
            measured.lock().unwrap().push((s.times(&me).system_ns, me.switches().1));
        });
    }
    std::thread::sleep(Duration::from_millis(400));
    stop.store(true, SeqCst);
    sim.finish();
    measured.lock().unwrap().clone()
}

/// A thread's wait among busy threads, measured by their work. So it does not depend on how often the host suspends them.
struct Wait {
    /// When the thread should run, on the simulated clock; `u64::MAX` while it need not.
    since: AtomicU64,
    /// Nanoseconds for which busy threads have executed since then.
    work: AtomicU64,
}

impl Wait {
    fn new() -> Arc<Wait> {
        Arc::new(Wait { since: AtomicU64::new(u64::MAX), work: AtomicU64::new(0) })
    }

    /// The thread should run at `time`.
    fn begin(&self, time: u64) {
        self.since.store(time, SeqCst);
    }

    /// The thread runs: the work of others during its wait. `None` if it need not run.
    fn end(&self) -> Option<Duration> {
        let waited = self.since.swap(u64::MAX, SeqCst) != u64::MAX;
        waited.then(|| Duration::from_nanos(self.work.swap(0, SeqCst)))
    }

    /// Executes until `stop`, as a busy thread.
    fn work(&self, sim: &Sim, stop: &AtomicBool) {
        let mut last = Instant::now();
        while !stop.load(SeqCst) {
            sim.poll();
            // Between two instructions that are so far apart, the thread was suspended.
            let worked = last.elapsed().min(Duration::from_micros(50));
            last = Instant::now();
            if self.since.load(SeqCst) <= quire_task::Machine::now(sim) {
                self.work.fetch_add(worked.as_nanos() as u64, SeqCst);
            }
        }
    }
}

#[test]
fn a_thread_that_mostly_sleeps_runs_soon_among_busy_ones() {
    let sim = Sim::new(1);
    let (stop, wait) = (Arc::new(AtomicBool::new(false)), Wait::new());
    for i in 0..8 {
        let (stop, wait) = (stop.clone(), wait.clone());
        sim.spawn(&format!("hog{i}"), move || wait.work(sim, &stop));
    }
    let late = Arc::new(Mutex::new(Vec::new()));
    let late2 = late.clone();
    sim.spawn("sleeper", move || {
        for _ in 0..30 {
            let deadline = quire_task::Machine::now(sim) + 2_000_000;
            wait.begin(deadline);
            while quire_task::Machine::now(sim) < deadline {
                sim.scheduler().park(Some(deadline));
            }
            late2.lock().unwrap().extend(wait.end());
        }
        stop.store(true, SeqCst);
    });
    sim.finish();
    let mut late = late.lock().unwrap().clone();
    late.sort();
    // Behind eight turns of four milliseconds it would be 32; it waits for one stretch.
    assert!(late[late.len() / 2] < Duration::from_millis(8), "{late:?}");
}

#[test]
fn idle_cpus_steal_threads_that_wait_on_other_cpus() {
    let sim = Sim::new(4);
    let seen: Arc<Mutex<std::collections::BTreeSet<usize>>> = Arc::default();
    let limit = Instant::now() + Duration::from_secs(20);
    for i in 0..16 {
        let seen = seen.clone();
        sim.spawn_at(Some(0), &format!("t{i}"), move || {
            while Instant::now() < limit && seen.lock().unwrap().len() < 4 {
                sim.spin(Duration::from_millis(1));
                seen.lock().unwrap().insert(quire_sync::current_cpu());
            }
        });
    }
    sim.finish();
    assert_eq!(seen.lock().unwrap().len(), 4);
}

#[test]
fn an_idle_cpu_finds_allowed_threads_behind_crowded_cpus() {
    let sim = Sim::new(6);
    let (bound, free) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(3)));
    let seen = Arc::new(AtomicBool::new(false));
    let mut four = CpuMask::first(5);
    four.remove(0);
    for i in 0..12 {
        let (bound, free) = (bound.clone(), free.clone());
        sim.spawn_at(Some(1 + i % 4), &format!("bound{i}"), move || {
            let s = sim.scheduler();
            s.set_affinity(&s.current(), &four);
            bound.fetch_add(1, SeqCst);
            while free.load(SeqCst) != 0 {
                sim.poll();
            }
        });
    }
    while bound.load(SeqCst) < 12 {
        std::thread::sleep(Duration::from_millis(1));
    }
    let limit = Instant::now() + Duration::from_secs(10);
    for i in 0..3 {
        let (free, seen) = (free.clone(), seen.clone());
        sim.spawn_at(Some(5), &format!("free{i}"), move || {
            while !seen.load(SeqCst) && Instant::now() < limit {
                sim.poll();
                seen.fetch_or(quire_sync::current_cpu() == 0, SeqCst);
            }
            free.fetch_sub(1, SeqCst);
        });
    }
    sim.finish();
    assert!(seen.load(SeqCst), "a CPU idles while threads that may run on it wait");
}

#[test]
fn a_thread_told_to_leave_its_cpu_leaves_at_a_stretch_end_too() {
    use quire_task::Machine;
    let sim = Sim::new(2);
    let (there, masked, told) =
        (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let wait = |flag: &AtomicBool| while !flag.load(SeqCst) {};
    let me: Arc<Mutex<Option<ThreadRef<Sim>>>> = Arc::default();
    let stays = me.clone();
    let thread = sim.spawn_at(Some(0), "stays", move || {
        let s = sim.scheduler();
        // Turns of 40 milliseconds, from the next one on.
        s.current().set_nice(-20);
        s.set_affinity(&s.current(), &CpuMask::only(0));
        s.yield_now();
        let (there2, masked2, told2) = (there.clone(), masked.clone(), told.clone());
        // It waits here, so a stretch begins; then the other CPU takes it.
        sim.spawn_at(Some(0), "moves", move || {
            while quire_sync::current_cpu() != 1 {
                sim.poll();
            }
            there2.store(true, SeqCst);
            wait(&masked2);
            let stays = loop {
                if let Some(stays) = stays.lock().unwrap().clone() {
                    break stays;
                }
            };
            assert!(sim.scheduler().set_affinity(&stays, &CpuMask::only(1)));
            told2.store(true, SeqCst);
        });
        while !there.load(SeqCst) {
            sim.poll();
        }
        let was = sim.mask();
        masked.store(true, SeqCst);
        wait(&told);
        sim.restore(was);
        // The interrupt has come, and preemption is still off when the next one does.
        let end = Instant::now() + Duration::from_millis(60);
        while Instant::now() < end {}
        let was = sim.mask();
        sim.restore(was);
        sim.poll();
        assert_eq!(quire_sync::current_cpu(), 1);
    });
    *me.lock().unwrap() = Some(thread);
    sim.finish();
}

#[test]
fn a_thread_woken_from_another_cpu_waits_at_most_a_stretch() {
    let sim = Sim::new(2);
    let (stop, wait) = (Arc::new(AtomicBool::new(false)), Wait::new());
    let late = Arc::new(Mutex::new(Vec::new()));
    for i in 0..2 {
        let (stop, wait) = (stop.clone(), wait.clone());
        sim.spawn_at(Some(0), &format!("hog{i}"), move || {
            let s = sim.scheduler();
            s.current().set_nice(-20);
            s.set_affinity(&s.current(), &CpuMask::only(0));
            wait.work(sim, &stop);
        });
    }
    let (wait2, late2) = (wait.clone(), late.clone());
    let sleeper = sim.spawn_at(Some(0), "sleeper", move || {
        let s = sim.scheduler();
        s.set_affinity(&s.current(), &CpuMask::only(0));
        while late2.lock().unwrap().len() < 15 {
            s.park(None);
            late2.lock().unwrap().extend(wait2.end());
        }
    });
    let late3 = late.clone();
    sim.spawn_at(Some(1), "waker", move || {
        let s = sim.scheduler();
        s.set_affinity(&s.current(), &CpuMask::only(1));
        while late3.lock().unwrap().len() < 15 {
            // Out of step with the turns.
            sim.spin(Duration::from_millis(53));
            wait.begin(quire_task::Machine::now(sim));
            s.unpark(&sleeper);
        }
        stop.store(true, SeqCst);
    });
    sim.finish();
    let mut late = late.lock().unwrap().clone();
    late.sort();
    // A turn is 40 milliseconds. A suspension of the waker adds to some of the waits.
    assert!(late[late.len() / 2] < Duration::from_millis(6), "{late:?}");
}

#[test]
fn a_busy_thread_never_keeps_two_cpus_and_idle_cpus_halt() {
    let sim = Sim::new(4);
    sim.spawn_at(Some(2), "hog", move || sim.spin(Duration::from_millis(50)));
    sim.finish();
    let halts: u64 = (0..4).map(|c| sim.halts(c)).sum();
    assert!(halts < 100, "idle CPUs must halt, not spin: {halts} halts");
}

#[test]
fn user_and_system_time_are_cut_at_the_boundaries() {
    let sim = Sim::new(2);
    let t = sim.spawn("t", move || {
        let s = sim.scheduler();
        let now = || quire_task::Machine::ticks(sim);
        for _ in 0..10 {
            s.current().leave_kernel(now());
            let user = Instant::now();
            while user.elapsed() < Duration::from_micros(2000) {}
            s.current().enter_kernel(now());
            sim.spin(Duration::from_micros(1000));
            s.park(Some(quire_task::Machine::now(sim) + 1_000_000));
        }
    });
    sim.finish();
    let times = sim.scheduler().times(&t);
    assert!(times.user_ns >= 20_000_000, "{times:?}");
    assert!(times.system_ns >= 10_000_000, "{times:?}");
    let cpus: Vec<_> = (0..2).map(|c| sim.scheduler().cpu_times(c)).collect();
    let user: u64 = cpus.iter().map(|c| c.user_ns).sum();
    let lost = user.abs_diff(times.user_ns);
    assert!(lost < 1_000_000, "threads' and CPUs' times differ by {lost} ns");
    assert!(cpus.iter().all(|c| c.idle_ns > 0));
}

#[test]
fn a_high_nice_value_gets_the_smaller_share() {
    fair_once(|| times_by_nice([0, 5]), |[low, high]| *low > high * 3 / 2);
}

/// CPU times of two busy threads on one CPU, in nanoseconds.
fn times_by_nice(nice_values: [i8; 2]) -> [u64; 2] {
    let sim = Sim::new(1);
    let stop = Arc::new(AtomicBool::new(false));
    let used: Arc<[AtomicU64; 2]> = Arc::default();
    for (i, nice) in nice_values.into_iter().enumerate() {
        let (stop, used) = (stop.clone(), used.clone());
        sim.spawn("hog", move || {
            let s = sim.scheduler();
            s.current().set_nice(nice);
            while !stop.load(SeqCst) {
                sim.poll();
            }
            used[i].store(s.times(&s.current()).system_ns, SeqCst);
        });
    }
    std::thread::sleep(Duration::from_millis(300));
    stop.store(true, SeqCst);
    sim.finish();
    [0, 1].map(|i| used[i].load(SeqCst))
}

#[test]
fn threads_run_on_allowed_cpus_and_idle_cpus_skip_others() {
    let sim = Sim::new(4);
    let wrong = Arc::new(AtomicUsize::new(0));
    for i in 0..12usize {
        let wrong = wrong.clone();
        sim.spawn(&format!("t{i}"), move || {
            let s = sim.scheduler();
            let allowed = if i % 3 == 2 { pair(1, 2) } else { CpuMask::only(i % 2) };
            assert!(s.set_affinity(&s.current(), &allowed));
            for round in 0..40 {
                sim.spin(Duration::from_micros(300));
                if !allowed.contains(quire_sync::current_cpu()) {
                    wrong.fetch_add(1, SeqCst);
                }
                match round % 3 {
                    0 => s.yield_now(),
                    1 => s.park(Some(quire_task::Machine::now(sim) + 50_000)),
                    _ => {}
                }
            }
        });
    }
    sim.finish();
    assert_eq!(wrong.load(SeqCst), 0);
    assert!(sim.halts(3) < 1000, "an idle CPU without allowed threads must halt, not spin: {}", sim.halts(3));
}

#[test]
fn a_running_and_a_waiting_thread_are_moved_by_another() {
    let sim = Sim::new(3);
    let (at, stop) = (Arc::new([AtomicUsize::new(9), AtomicUsize::new(9)]), Arc::new(AtomicBool::new(false)));
    let hogs: Vec<_> = (0..2)
        .map(|i| {
            let (at, stop) = (at.clone(), stop.clone());
            sim.spawn_at(Some(0), &format!("hog{i}"), move || {
                let s = sim.scheduler();
                s.set_affinity(&s.current(), &CpuMask::only(0));
                while !stop.load(SeqCst) {
                    sim.poll();
                    at[i].store(quire_sync::current_cpu(), SeqCst);
                }
            })
        })
        .collect();
    sim.spawn_at(Some(2), "mover", move || {
        let s = sim.scheduler();
        s.set_affinity(&s.current(), &CpuMask::only(2));
        let wait = |i: usize, cpu: usize| {
            let limit = Instant::now() + Duration::from_secs(20);
            while at[i].load(SeqCst) != cpu {
                sim.poll();
                assert!(Instant::now() < limit, "hog {i} is on {} instead of {cpu}", at[i].load(SeqCst));
            }
        };
        wait(0, 0);
        wait(1, 0);
        for round in 0..20 {
            // One of the two runs, the other one waits.
            s.set_affinity(&hogs[round % 2], &CpuMask::only(1));
            wait(round % 2, 1);
            s.set_affinity(&hogs[round % 2], &CpuMask::only(0));
            wait(round % 2, 0);
        }
        assert!(!s.set_affinity(&hogs[0], &CpuMask::only(77)), "there is no such CPU");
        stop.store(true, SeqCst);
    });
    sim.finish();
}

#[test]
fn a_thread_wakes_on_one_of_its_changed_allowed_cpus() {
    let sim = Sim::new(3);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let to = seen.clone();
    let sleeper = sim.spawn_at(Some(0), "sleeper", move || {
        let s = sim.scheduler();
        for _ in 0..3 {
            let before = to.lock().unwrap().len();
            while to.lock().unwrap().len() == before {
                s.park(None);
                to.lock().unwrap().push(quire_sync::current_cpu());
            }
        }
    });
    sim.spawn_at(Some(1), "waker", move || {
        let s = sim.scheduler();
        for (round, cpu) in [2, 1, 0].into_iter().enumerate() {
            while sleeper.is_running() {
                sim.poll();
            }
            s.set_affinity(&sleeper, &CpuMask::only(cpu));
            s.unpark(&sleeper);
            while seen.lock().unwrap().len() == round {
                s.yield_now();
                sim.poll();
            }
            assert_eq!(seen.lock().unwrap()[round], cpu);
        }
    });
    sim.finish();
}

fn pair(a: usize, b: usize) -> CpuMask {
    let mut mask = CpuMask::only(a);
    mask.insert(b);
    mask
}
