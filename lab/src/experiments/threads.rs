//! Threads that act as CPUs and begin at the same time, and the time of the slowest.

use crate::Failure;
use crate::memory::Memory;
use std::sync::{Barrier, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Lets each of `cpus` threads prepare, wait for the others, and do its work. Returns the longest time of the work.
pub(super) fn at_once<P>(
    cpus: usize,
    prepare: impl Fn(usize) -> Result<P, Failure> + Sync,
    work: impl Fn(usize, &mut P) -> Result<(), Failure> + Sync,
) -> Result<Duration, Failure> {
    let barrier = Barrier::new(cpus);
    std::thread::scope(|s| {
        let threads: Vec<_> = (0..cpus)
            .map(|cpu| {
                let (prepare, work, barrier) = (&prepare, &work, &barrier);
                s.spawn(move || {
                    let prepared = prepare(cpu);
                    // A thread that failed also waits at the barrier, because the others wait for it.
                    barrier.wait();
                    let mut prepared = prepared?;
                    let start = Instant::now();
                    work(cpu, &mut prepared)?;
                    Ok(start.elapsed())
                })
            })
            .collect();
        let mut times =
            threads.into_iter().map(|t| t.join().unwrap_or_else(|_| Err(Failure::Wrong("a CPU failed".into()))));
        times.try_fold(Duration::ZERO, |longest, t| Ok(longest.max(t?)))
    })
}

/// As [`at_once`], but each thread acts as a CPU of the machine. It becomes a CPU before `prepare`, and stays one until
/// `work` has returned.
pub(super) fn on_cpus<M: Memory, P>(
    memory: M,
    cpus: usize,
    prepare: impl Fn(usize, &M::Cpu) -> Result<P, Failure> + Sync,
    work: impl Fn(usize, &mut P) -> Result<(), Failure> + Sync,
) -> Result<Duration, Failure> {
    // The prepared value is dropped while the thread is still a CPU, because fields are dropped in order.
    struct As<P, C> {
        prepared: P,
        _cpu: C,
    }
    at_once(
        cpus,
        |cpu| {
            let attached = memory.attach(cpu);
            Ok(As { prepared: prepare(cpu, &attached)?, _cpu: attached })
        },
        |cpu, p| work(cpu, &mut p.prepared),
    )
}

/// The operations per second of all CPUs together. Each CPU repeats `operation` for `seconds`, after a few repetitions
/// that are not counted.
pub(super) fn rate<M: Memory, P>(
    memory: M,
    cpus: usize,
    seconds: f64,
    prepare: impl Fn(usize) -> Result<P, Failure> + Sync,
    operation: impl Fn(usize, &mut P) -> Result<(), Failure> + Sync,
) -> Result<f64, Failure> {
    const WARM: usize = 3;
    let rates = Mutex::new(0.0);
    let warm = |cpu, _: &M::Cpu| {
        let mut prepared = prepare(cpu)?;
        (0..WARM).try_for_each(|_| operation(cpu, &mut prepared)).map(|()| prepared)
    };
    on_cpus(memory, cpus, warm, |cpu, prepared| {
        let (start, mut done) = (Instant::now(), 0);
        let took = loop {
            operation(cpu, prepared)?;
            done += 1;
            let took = start.elapsed().as_secs_f64();
            if took >= seconds {
                break took;
            }
        };
        *rates.lock().unwrap_or_else(PoisonError::into_inner) += f64::from(done) / took;
        Ok(())
    })?;
    Ok(rates.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// Calls `f`. Returns its result and its time in seconds.
pub(super) fn timed<R>(f: impl FnOnce() -> R) -> (R, f64) {
    let start = Instant::now();
    let done = f();
    (done, start.elapsed().as_secs_f64())
}
