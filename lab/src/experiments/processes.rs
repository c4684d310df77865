//! The experiment about very many processes: timers, run queues, and the search for space for kernel stacks.

use super::threads::timed;
use super::{Figure, Plan, Round, Scale, Study, claim, log, number, plot};
use crate::Failure;
use crate::bench::find_space::{Window, come_and_go, fill};
use crate::map::AddressMap;
use crate::map::hinted::Hinted;
use crate::map::linear::Linear;
use crate::map::ours::Ours;
use crate::map::workload::Random;
use crate::run_queue::{Production, Sorted};
use crate::timers::{Ring, Timers, Wheel};
use quire_results::{Place, Shape, Side, Source};
use quire_sync::{Rank, SpinLock};
use quire_vm::map::FAN_OUT;

const TIME: [Figure; 1] = [Figure::time("time", "ns/op")];
const SECOND: u64 = 1_000_000_000;

/// The experiment.
pub const STUDY: Study = Study {
    name: "processes",
    source: Source::S3,
    title: "Very many processes",
    about: "Sleep arms the given number of timers, for a second to a minute. Time passes, and each timer that fires is \
        armed again. The same number of timers is cancelled and armed again, like timeouts. Before is a ring of 1,024 \
        lists under one lock. In queue, a thread joins a run queue of the given length. Before is a list in the order \
        of priorities, searched first at its end and then from its head. One thread in eight has a higher priority, \
        both of the queued and of the joining threads. In stacks, kernel stacks and buffers are freed and new ones \
        take the lowest hole. Before scans a list, and after has hints by size and alignment.",
    caveats: &[
        "Designs of the time of before had a lock for each CPU where they could. The experiment measures one CPU only, \
         so locks make no difference here.",
        "Production's join is the whole spawn: interrupts are masked, the start is counted, and requests of other CPUs \
         are served. The join of the lists is a lock and the list. On all sides the threads lie side by side in memory \
         and join in that order.",
        "Production does not search by priority. It keeps threads with remaining time in their turn apart from the \
         others.",
        "Hints do not help production's tree. The variant hints=on shows the tree behind hints.",
        "Futexes, creation and killing are measured only in the guest.",
    ],
    claims: || {
        vec![
            claim(
                "DragonFly BSD 5.0: run queues and the search for room without O(n), for 400,000 processes",
                "time",
                Place::Hosted,
                &[("n", number(10_000u32)), ("what", "queue".into())],
                2.0,
                true,
            ),
            claim(
                "DragonFly BSD 5.0: 400,000 live processes, each waking from a timed sleep",
                "time",
                Place::Hosted,
                &[("n", number(100_000u32)), ("what", "sleep".into())],
                1.1,
                false,
            ),
        ]
    },
    plots: || {
        let of = |what: &str| [("what", what.into())];
        let curves =
            |title: &str, what: &str| log(plot(title, Shape::Curves, &[Place::Hosted], "time", "n", &of(what)));
        vec![
            curves("A timed sleep, by timers armed", "sleep"),
            curves("Joining a run queue, by its length", "queue"),
            curves("A stack goes and another comes, by stacks", "stacks"),
        ]
    },
    cases,
};

fn cases(plan: &Plan) -> Vec<Round> {
    let scale = plan.scale;
    let mut all = Vec::new();
    let timers: &[usize] = scale.of(&[100, 200], &[1_000, 10_000, 100_000], &[1_000, 10_000, 100_000, 400_000]);
    for &n in timers {
        let at = || [("n", number(n)), ("what", "sleep".into())];
        all.push(Round::new(Side::Before, Place::Hosted, at(), &TIME, move || Ok([sleep(Ring::new(n), n, scale)])));
        all.push(Round::new(Side::Ours, Place::Hosted, at(), &TIME, move || Ok([sleep(Wheel::new(n), n, scale)])));
    }
    let lengths: &[usize] = scale.of(&[100, 200], &[100, 1_000, 10_000], &[100, 1_000, 10_000, 100_000]);
    for &n in lengths {
        let at = || [("n", number(n)), ("what", "queue".into())];
        for (side, both_ends) in [(Side::Before, false), (Side::After, true)] {
            all.push(Round::new(side, Place::Hosted, at(), &TIME, move || Ok([sorted(n, both_ends)])));
        }
        all.push(Round::new(Side::Ours, Place::Hosted, at(), &TIME, move || production(n).map(|t| [t])));
    }
    let stacks: &[usize] = scale.of(&[100, 200], &[1_000, 10_000, 100_000], &[1_000, 10_000, 100_000]);
    for &n in stacks {
        let at = |hints: &'static str| [("hints", hints.into()), ("n", number(n)), ("what", "stacks".into())];
        let mut add = |side, hints, work: fn(usize, Scale) -> f64| {
            all.push(Round::new(side, Place::Hosted, at(hints), &TIME, move || Ok([work(n, scale)])));
        };
        add(Side::Before, "off", |n, scale| room(Linear::without_hints(), n, scale));
        add(Side::After, "on", |n, scale| room(Linear::new(), n, scale));
        add(Side::Ours, "off", |n, scale| room(Ours::<FAN_OUT>::new(), n, scale));
        add(Side::Ours, "on", |n, scale| room(Hinted::<FAN_OUT>::new(), n, scale));
    }
    all
}

/// The mean nanoseconds of a sleep. Half of the sleeps end when their timer fires. The others end earlier, by a
/// wake-up.
fn sleep(mut timers: impl Timers, n: usize, scale: Scale) -> f64 {
    let mut random = Random(7);
    let mut later = move |now: u64| now + SECOND + random.below(59 * SECOND);
    (0..n as u32).for_each(|timer| timers.arm(timer, later(0)));
    // A step is long enough that timers fire in it even if there are few. The first ten seconds are the warm-up.
    let step = (60 * SECOND / n as u64).clamp(SECOND / 1000, SECOND / 10);
    let (mut now, mut which, mut done) = (0, Random(8), 0u64);
    let mut run = |until: u64| {
        let mut fired = 0u64;
        while now < until {
            now += step;
            timers.advance(now, &mut |_| {
                fired += 1;
                Some(later(now))
            });
            while done < fired {
                let timer = which.below(n as u64) as u32;
                timers.cancel(timer);
                timers.arm(timer, later(now));
                done += 1;
            }
        }
        (fired, std::mem::take(&mut done))
    };
    run(10 * SECOND);
    let ((fired, woken), seconds) = timed(|| run(scale.of(20, 40, 200) * SECOND));
    seconds * 1e9 / (fired + woken).max(1) as f64
}

/// The number of threads that are queued while the time is measured.
const COME: usize = 2000;

/// The nanoseconds to queue a thread while `n` threads wait. One thread in eight has a higher priority. The list has a
/// lock, because other CPUs also add threads to a run queue.
fn sorted(n: usize, both_ends: bool) -> f64 {
    let list = SpinLock::new(Rank::RUN_QUEUE, Sorted::new(n + COME, both_ends));
    let priority = |thread: u32| if thread.is_multiple_of(8) { 1 } else { 2 };
    (0..n as u32).for_each(|thread| list.lock().push(thread, priority(thread)));
    let ((), seconds) =
        timed(|| (n as u32..(n + COME) as u32).for_each(|thread| list.lock().push(thread, priority(thread))));
    seconds * 1e9 / COME as f64
}

/// The nanoseconds to queue a thread in production's queue while `n` threads wait.
fn production(n: usize) -> Result<f64, Failure> {
    let mut queue = Production::new(n + COME);
    (0..n).for_each(|_| queue.push());
    let ((), seconds) = timed(|| (0..COME).for_each(|_| queue.push()));
    match queue.len() == n + COME {
        true => Ok(seconds * 1e9 / COME as f64),
        false => Err(Failure::Wrong(format!("{} threads are queued", queue.len()))),
    }
}

/// The nanoseconds to unmap one range and map another.
fn room<M: AddressMap>(mut map: M, n: usize, scale: Scale) -> f64 {
    let window = Window::of(n);
    let mut places = fill(&mut map, n);
    let mut operations = scale.of(20, 200, 1000);
    loop {
        let ((), seconds) = timed(|| come_and_go(&mut map, &mut places, window, operations, |_, _| ()));
        if seconds > scale.of(0.0, 0.03, 0.3) {
            return seconds * 1e9 / operations as f64;
        }
        operations *= 4;
    }
}
