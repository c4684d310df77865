//! Progress of long steps, always on standard error: a spinner or a bar on a terminal, plain lines otherwise.

use std::{
    io::{IsTerminal, stderr},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use signal_hook::{consts::SIGINT, iterator::Signals, low_level::emulate_default_handler};

/// A step that may take long. It is announced only after a moment, because most builds have nothing to do, and their
/// messages should not mix with a program's standard error.
pub struct Step {
    bar: Option<ProgressBar>,
    name: String,
    start: Instant,
    over: Arc<AtomicBool>,
    /// The newest detail, for the lines that are printed without a terminal.
    detail: Arc<Mutex<String>>,
}

/// A step that ends within this time is not shown.
const BLINK: Duration = Duration::from_millis(400);

impl Step {
    /// Starts a step called `name`, for instance "building the kernel".
    pub fn new(name: impl Into<String>) -> Self {
        Self::sized(name, "")
    }

    /// Starts a step as `new` does. The announcement also has the expected duration `size`, for instance "some 2 min
    /// the first time".
    pub fn sized(name: impl Into<String>, size: &str) -> Self {
        let name = name.into();
        let announced = if size.is_empty() { name.clone() } else { format!("{name} ({size})") };
        let bar = stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden()).with_message(announced.clone());
            if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} [{elapsed}]") {
                bar.set_style(style);
            }
            let shown = bar.clone();
            std::thread::spawn(move || {
                std::thread::sleep(BLINK);
                if !shown.is_finished() {
                    shown.set_draw_target(ProgressDrawTarget::stderr());
                    shown.enable_steady_tick(Duration::from_millis(120));
                }
            });
            bar
        });
        let over = Arc::new(AtomicBool::new(false));
        let detail = Arc::<Mutex<String>>::default();
        if bar.is_none() {
            let (name, over, detail) = (name.clone(), Arc::clone(&over), Arc::clone(&detail));
            std::thread::spawn(move || {
                let start = Instant::now();
                std::thread::sleep(SHORT);
                if !over.load(Ordering::Relaxed) {
                    eprintln!("quire: {announced} ...");
                }
                let mut reported = SHORT;
                while !over.load(Ordering::Relaxed) {
                    std::thread::sleep(SHORT);
                    if start.elapsed() >= reported + PULSE && !over.load(Ordering::Relaxed) {
                        reported = start.elapsed();
                        let detail = detail.lock().unwrap_or_else(PoisonError::into_inner);
                        let detail = if detail.is_empty() { String::new() } else { format!(": {detail}") };
                        eprintln!("quire: {name}, {} s{detail}", reported.as_secs());
                    }
                }
            });
        }
        Self { bar, name, start: Instant::now(), over, detail }
    }

    /// Reports what the step does at the moment.
    pub fn doing(&self, detail: &str) {
        detail.clone_into(&mut self.detail.lock().unwrap_or_else(PoisonError::into_inner));
        if let Some(bar) = &self.bar {
            bar.set_message(format!("{}: {detail}", self.name));
        }
    }
}

/// A description, for the user, of the work that an interrupt does not lose.
static KEPT: Mutex<String> = Mutex::new(String::new());

/// Replaces the description of the work that an interrupt does not lose.
pub fn keeps(what: impl Into<String>) {
    *KEPT.lock().unwrap_or_else(PoisonError::into_inner) = what.into();
}

/// From now on, Ctrl-C ends this process with one line that names the work that is kept. If this process was started
/// with interrupts ignored, they stay ignored.
pub fn explain_interrupts() {
    keeps("finished builds and fetched files are kept, and the same command continues from there");
    if ignores(SIGINT) {
        return;
    }
    let Ok(mut signals) = Signals::new([SIGINT]) else { return };
    std::thread::spawn(move || {
        if signals.forever().next().is_some() {
            eprintln!("quire: interrupted; {}", KEPT.lock().unwrap_or_else(PoisonError::into_inner));
            let _ = emulate_default_handler(SIGINT);
        }
    });
}

/// Whether this process was started with that signal ignored, as a shell's background jobs are.
fn ignores(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

/// Without a terminal, a step prints what it does once it has taken this time.
const SHORT: Duration = Duration::from_millis(1500);

/// Without a terminal, a long step prints once in each such period that it continues.
const PULSE: Duration = Duration::from_secs(20);

/// Without a terminal, a step that took longer than this prints its time at its end.
const LONG: Duration = Duration::from_secs(5);

/// The progress of many jobs of known duration, one after the other: how many are done, and about how long the rest
/// takes.
pub struct Countdown {
    bar: Option<ProgressBar>,
    name: String,
    /// The expected seconds of the jobs that are left, in reverse order.
    left: Vec<f64>,
    all: usize,
    /// Sums over the finished jobs: the expected seconds (`expected`), and the real seconds (`taken`).
    expected: f64,
    taken: f64,
    began: Instant,
    reported: Instant,
}

/// Without a terminal, the time between two lines.
const LINE: Duration = Duration::from_secs(30);

impl Countdown {
    /// Begins a list of jobs. `jobs` has the expected seconds of each.
    pub fn new(name: &str, mut jobs: Vec<f64>) -> Self {
        jobs.reverse();
        let bar = stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(jobs.len() as u64);
            if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}") {
                bar.set_style(style);
            }
            bar
        });
        if bar.is_none() && !jobs.is_empty() {
            eprintln!("quire: {name}: {} rounds, {}", jobs.len(), duration(jobs.iter().sum()));
        }
        let now = Instant::now();
        Self {
            bar,
            name: name.to_owned(),
            all: jobs.len(),
            left: jobs,
            expected: 0.0,
            taken: 0.0,
            began: now,
            reported: now,
        }
    }

    /// Reports that the next job begins.
    pub fn doing(&mut self, detail: &str) {
        self.began = Instant::now();
        let left = self.time_left();
        match &self.bar {
            Some(bar) => bar.set_message(format!("{left} left: {detail}")),
            None if self.reported.elapsed() >= LINE => {
                self.reported = Instant::now();
                eprintln!("quire: {}: {} of {}, {left} left", self.name, self.all - self.left.len(), self.all);
            }
            None => {}
        }
    }

    /// Reports that the job is done.
    pub fn done(&mut self) {
        self.expected += self.left.pop().unwrap_or(0.0);
        self.taken += self.began.elapsed().as_secs_f64();
        self.bar.iter().for_each(|b| b.inc(1));
    }

    /// Reports that the next job is skipped.
    pub fn skip(&mut self) {
        self.left.pop();
        self.bar.iter().for_each(|b| b.inc(1));
    }

    /// The expected time of the remaining jobs, scaled by the ratio of real to expected seconds so far.
    fn time_left(&self) -> String {
        let pace = if self.expected > 0.0 { self.taken / self.expected } else { 1.0 };
        let seconds = self.left.iter().sum::<f64>() * pace;
        duration(seconds)
    }
}

fn duration(seconds: f64) -> String {
    if seconds < 90.0 { format!("about {seconds:.0} s") } else { format!("about {:.0} min", seconds / 60.0) }
}

impl Drop for Countdown {
    fn drop(&mut self) {
        self.bar.iter().for_each(|b| b.finish_and_clear());
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        let took = self.start.elapsed();
        match &self.bar {
            Some(bar) => bar.finish_and_clear(),
            None if took > LONG => {
                eprintln!("quire: {} took {:.1} s", self.name, took.as_secs_f32());
            }
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_remaining_time_follows_the_measured_times() {
        let mut countdown = Countdown::new("x", vec![10.0, 10.0, 100.0]);
        assert_eq!(countdown.time_left(), "about 2 min");
        countdown.doing("first");
        countdown.done();
        countdown.taken = 5.0;
        assert_eq!(countdown.time_left(), "about 55 s");
        countdown.skip();
        assert_eq!(countdown.time_left(), "about 50 s");
    }
}
