use crate::test_host::script::{Task, run};
use linux_raw_sys::general::*;
use quire_linux_state::Errno;
use quire_linux_state::signal::Signal;

const MILLISECOND: u64 = 1_000_000;
/// The time for which a thread runs. Each turn of its loop is a call, so the time is short.
const SPAN: u64 = 100 * MILLISECOND;
/// The period of the timers.
const PERIOD: u64 = 4 * MILLISECOND;
const ITIMER_PROF: u64 = 2;

fn tid(task: &mut Task) -> u64 {
    task.call(__NR_gettid, []).unwrap()
}

/// Makes calls until `nanos` nanoseconds have passed.
fn spin(task: &mut Task, nanos: u64) {
    let end = task.now() + nanos;
    while task.now() < end {
        task.call(__NR_sched_yield, []).unwrap();
    }
}

/// Sets a handler of SIGPROF that counts its runs on the first thread and on others, in two words at `counts`.
fn count_by_thread(task: &mut Task, counts: u64) {
    let first = tid(task);
    let handler = task.handler(move |task| {
        let word = counts + if tid(task) == first { 0 } else { 8 };
        let before: u64 = task.get(word);
        task.set(word, before + 1);
    });
    task.act(Signal::PROF, handler, SA_RESTART, 0).unwrap();
}

/// Sets the interval timer on CPU time to expire once in a period.
fn often(task: &mut Task) {
    let time = task.put([0, PERIOD / 1000, 0, PERIOD / 1000]);
    task.call(__NR_setitimer, [ITIMER_PROF, time, 0]).unwrap();
}

/// Makes a POSIX timer on the CPU time of the process that sends SIGPROF once in a period.
fn posix_timer(task: &mut Task) {
    let event = task.put([0, u64::from(Signal::PROF.number()), 0, 0, 0, 0, 0, 0]);
    let id = task.room(4);
    task.call(__NR_timer_create, [CLOCK_PROCESS_CPUTIME_ID.into(), event, id]).unwrap();
    let id = u64::from(task.get::<u32>(id));
    let time = task.put([0, PERIOD, 0, PERIOD]);
    task.call(__NR_timer_settime, [id, 0, time, 0]).unwrap();
}

#[test]
fn timers_on_cpu_time_signal_the_thread_that_runs() {
    type Begin = fn(&mut Task);
    for (kind, begin) in [("ITIMER_PROF", often as Begin), ("timer_create", posix_timer)] {
        run(move |task| {
            let counts = task.put([0u64; 2]);
            count_by_thread(task, counts);
            begin(task);
            task.thread(|task| spin(task, 2 * SPAN)).unwrap();
            assert_eq!(task.sleep(SPAN), Ok(0), "{kind}: no signal ends the sleep");
            let [sleeping, running] = task.get::<[u64; 2]>(counts);
            assert!(sleeping == 0 && running > 5, "{kind}: {sleeping} and {running}");
        });
    }
}

#[test]
fn timers_on_cpu_time_signal_all_threads_that_run() {
    run(|task| {
        let counts = task.put([0u64; 2]);
        count_by_thread(task, counts);
        often(task);
        task.thread(|task| spin(task, SPAN)).unwrap();
        spin(task, SPAN);
        let [first, other] = task.get::<[u64; 2]>(counts);
        assert!(first > 5 && other > 5, "{first} and {other}");
        // A running thread that blocks the signal leaves it to a sleeping one.
        task.set(counts, [0u64; 2]);
        let blocks = |task: &mut Task| {
            task.mask(1 << (Signal::PROF.number() - 1));
            spin(task, SPAN);
        };
        task.thread(blocks).unwrap();
        assert_eq!(task.sleep(SPAN), Err(Errno::EINTR));
        assert!(task.get::<[u64; 2]>(counts)[0] > 0);
    });
}

#[test]
fn kernel_memory_of_watches_and_timers_counts_for_its_process() {
    const TIMERS: u64 = 100;
    run(|task| {
        let empty = task.held();
        let event = task.put([0, u64::from(SIGEV_NONE) << 32, 0, 0, 0, 0, 0, 0]);
        let id = task.room(4);
        for _ in 0..TIMERS {
            task.call(__NR_timer_create, [CLOCK_MONOTONIC.into(), event, id]).unwrap();
        }
        let timers = task.held();
        assert!(timers >= empty + TIMERS * 64 && timers < empty + TIMERS * 1024, "{empty}, {timers}");
        let last = task.get::<u32>(id);
        task.call(__NR_timer_delete, [last.into()]).unwrap();
        assert!(task.held() < timers);
        // Files of timers in a set of epoll.
        let before = task.held();
        let set = task.call(__NR_epoll_create1, [0]).unwrap();
        let files: Vec<u64> =
            (0..TIMERS).map(|_| task.call(__NR_timerfd_create, [CLOCK_MONOTONIC.into(), 0]).unwrap()).collect();
        let opened = task.held();
        assert!(opened >= before + TIMERS * 128, "{before}, {opened}");
        let event = task.put([0u32; 3]);
        for file in &files {
            task.call(__NR_epoll_ctl, [set, EPOLL_CTL_ADD.into(), *file, event]).unwrap();
        }
        let watched = task.held();
        assert!(watched >= opened + TIMERS * 64, "{opened}, {watched}");
        for file in files {
            task.call(__NR_close, [file]).unwrap();
        }
        task.call(__NR_close, [set]).unwrap();
        assert_eq!(task.held(), before);
        // Watches of inotify, and events that no thread reads.
        let notifier = task.call(__NR_inotify_init1, [0]).unwrap();
        for n in 0..20 {
            let path = task.text(&format!("/tmp/watched{n}"));
            task.call(__NR_mkdir, [path, 0o755]).unwrap();
            task.call(__NR_inotify_add_watch, [notifier, path, IN_ALL_EVENTS.into()]).unwrap();
        }
        let quiet = task.held();
        assert!(quiet >= before + 20 * 64, "{before}, {quiet}");
        for n in 0..20 {
            task.file(&format!("/tmp/watched{n}/file"), 0o644, b"");
        }
        assert!(task.held() >= quiet + 20 * 32, "{quiet}, {}", task.held());
    });
}
