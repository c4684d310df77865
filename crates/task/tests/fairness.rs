//! CPU time is divided between users, and between a user's threads by their nice weights.
#![cfg(not(any(loom, shuttle)))]
#![allow(clippy::undocumented_unsafe_blocks)] // all memory is the test's own
mod stepped;

use quire_task::{ThreadRef, User};
use stepped::{Does, Stepped};

const MS: u64 = 1_000_000;

fn ran(threads: &[ThreadRef<Stepped>]) -> u64 {
    threads.iter().map(|thread| thread.payload().ran.get()).sum()
}

fn hogs(
    machine: &Stepped,
    user: Option<&'static User<Stepped>>,
    count: usize,
    on: impl Fn(usize) -> usize,
) -> Vec<ThreadRef<Stepped>> {
    (0..count).map(|i| machine.spawn(on(i), user, 0, Does::Runs)).collect()
}

/// Checks that `got` differs from `due` by at most `per_mille` thousandths of `due` plus `slack` nanoseconds.
#[track_caller]
fn close(got: u64, due: u64, per_mille: u64, slack: u64) {
    assert!(got.abs_diff(due) <= due * per_mille / 1000 + slack, "{got} ns are not {due} ns");
}

#[test]
fn users_get_equal_shares_despite_different_thread_counts() {
    for counts in [&[1, 1][..], &[1, 1000], &[3000, 1], &[1, 10, 100, 1000], &[1; 100], &[7; 300]] {
        let machine = Stepped::new(1);
        let users: Vec<_> = counts.iter().map(|count| hogs(machine, Some(machine.user()), *count, |_| 0)).collect();
        let time = 8000 * MS;
        machine.run(time);
        let due = time / counts.len() as u64;
        for threads in &users {
            // The tolerance is more than one turn and one stretch.
            close(ran(threads), due, 1, 6 * MS);
        }
        assert_eq!(users.iter().map(|u| ran(u)).sum::<u64>(), time, "the CPU never idles");
    }
}

#[test]
fn users_with_threads_everywhere_share_64_cpus_equally() {
    let machine = Stepped::new(64);
    let few = hogs(machine, Some(machine.user()), 64, |i| i);
    let many = hogs(machine, Some(machine.user()), 4096, |i| i % 64);
    let root = hogs(machine, None, 128, |i| i % 64);
    let time = 1000 * MS;
    machine.run(time);
    for threads in [&few, &many, &root] {
        close(ran(threads), 64 * time / 3, 1, 64 * 6 * MS);
    }
}

#[test]
fn no_thread_starves_among_thousands() {
    let machine = Stepped::new(1);
    let one = hogs(machine, Some(machine.user()), 1, |_| 0);
    let many = hogs(machine, Some(machine.user()), 2000, |_| 0);
    machine.run(3 * 2000 * 8 * MS);
    let least = many.iter().map(|t| t.payload().ran.get()).min().unwrap();
    let most = many.iter().map(|t| t.payload().ran.get()).max().unwrap();
    assert!(least >= 8 * MS && most <= 16 * MS, "{least} to {most} ns after three rounds");
    close(ran(&one), ran(&many), 1, 6 * MS);
}

#[test]
fn threads_of_a_user_get_cpu_time_by_their_nice_weights() {
    for nices in [&[0, 1][..], &[-20, 19], &[-5, 0, 5, 10], &[19, 18], &[-20, -20, -19], &[0; 50]] {
        let machine = Stepped::new(1);
        let user = machine.user();
        let other = hogs(machine, Some(machine.user()), 20, |_| 0);
        let threads: Vec<_> = nices.iter().map(|nice| machine.spawn(0, Some(user), *nice, Does::Runs)).collect();
        let weight = |nice: i8| 1.25f64.powi(-i32::from(nice));
        let all: f64 = nices.iter().copied().map(weight).sum();
        // The time for at least thirty rounds, in each of which every thread gets one turn.
        let time = (60.0 * 4e6 * all) as u64 + 4000 * MS;
        machine.run(time);
        for (thread, nice) in threads.iter().zip(nices) {
            let due = time as f64 / 2.0 * weight(*nice) / all;
            // The table of weights is rounded, as Linux's table is. The error is 2 % for small weights.
            close(thread.payload().ran.get(), due as u64, 40, (4e6 * weight(*nice)) as u64 + 2 * MS);
        }
        close(ran(&other), time / 2, 1, 6 * MS);
    }
}

#[test]
fn a_sleepy_user_runs_at_once_beside_thousands_of_threads() {
    for (cpus, threads) in [(1, 1), (1, 3000), (4, 3000), (64, 640)] {
        let machine = Stepped::new(cpus);
        let _bomb = hogs(machine, Some(machine.user()), threads.max(cpus), |i| i % cpus);
        let sleeper = machine.spawn(0, None, 0, Does::Sleeps { after: MS / 2, sleep: 20 * MS });
        machine.run(4000 * MS);
        let script = sleeper.payload();
        assert!(script.latest.get() <= MS / 10, "{} ns late with {threads} threads", script.latest.get());
        // The thread runs for 0.5 ms of every 20.5 ms.
        close(script.ran.get(), 4000 * MS * 5 / 205, 20, MS);
    }
}

#[test]
fn a_user_gets_no_credit_for_sleep() {
    let machine = Stepped::new(1);
    let busy = hogs(machine, Some(machine.user()), 3, |_| 0);
    machine.run(100_000 * MS);
    let (before, late) = (ran(&busy), hogs(machine, Some(machine.user()), 1, |_| 0));
    machine.run(100 * MS);
    close(ran(&late), 50 * MS, 1, 6 * MS);
    close(ran(&busy) - before, 50 * MS, 1, 6 * MS);
}

#[test]
fn a_user_alone_has_the_whole_cpu_without_extra_switches() {
    let alone = Stepped::new(1);
    let threads = hogs(alone, Some(alone.user()), 10, |_| 0);
    let time = 4000 * MS;
    alone.run(time);
    assert_eq!(ran(&threads), time);
    // Each thread runs for a whole turn, so there is one switch for each 4 ms.
    assert!(alone.switches() <= time / (4 * MS) + 10, "{} switches", alone.switches());
    let root = Stepped::new(1);
    let threads = hogs(root, None, 10, |_| 0);
    root.run(time);
    assert_eq!((ran(&threads), root.switches()), (time, alone.switches()));
}

#[test]
fn competing_users_switch_at_most_once_per_stretch() {
    let machine = Stepped::new(1);
    let _users: Vec<_> = (0..50).map(|_| hogs(machine, Some(machine.user()), 20, |_| 0)).collect();
    let time = 4000 * MS;
    machine.run(time);
    assert!(machine.switches() <= time / MS + 60, "{} switches in {time} ns", machine.switches());
}

#[test]
fn threads_that_migrate_take_no_virtual_time_along() {
    let machine = Stepped::new(2);
    let (wanderers, settled) = (machine.user(), machine.user());
    let fixed: Vec<_> = (0..2).map(|cpu| hogs(machine, Some(settled), 4, |_| cpu)).collect();
    let wander = hogs(machine, Some(wanderers), 2, |_| 0);
    let all = quire_sync::cpuset::CpuMask::first(2);
    let time = 4000 * MS;
    let round = 25 * MS;
    for i in 0..time / round {
        let to = quire_sync::cpuset::CpuMask::only(i as usize % 2);
        for thread in &wander {
            machine.restrict(thread, &to);
        }
        machine.run(round);
    }
    wander.iter().for_each(|thread| machine.restrict(thread, &all));
    // The migrating threads are all on one CPU at a time, and get half of that CPU. At each migration they gain at most
    // the credit of a user that slept.
    let (theirs, others) = (ran(&wander), fixed.iter().map(|f| ran(f)).sum::<u64>());
    assert_eq!(theirs + others, 2 * time);
    assert!(theirs >= time * 40 / 100 && theirs <= time * 66 / 100, "{theirs} of {time} ns");
}
