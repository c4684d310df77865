//! Progress of long steps: a spinner or bar on a terminal, plain lines elsewhere. All of it on standard error.

use std::{
    io::{IsTerminal, stderr},
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// One step that takes long enough to be told about. Says nothing if it ends within a blink.
pub struct Step {
    bar: Option<ProgressBar>,
    name: String,
    start: Instant,
}

/// What is over sooner than this is not shown.
const BLINK: Duration = Duration::from_millis(400);

impl Step {
    /// Starts a step called `name`, for instance "building the kernel".
    pub fn new(name: impl Into<String>) -> Self {
        let name = name.into();
        let bar = stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden()).with_message(name.clone());
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
        Self { bar, name, start: Instant::now() }
    }

    /// What it is doing right now.
    pub fn doing(&self, detail: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(format!("{}: {detail}", self.name));
        }
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        let took = self.start.elapsed();
        match &self.bar {
            Some(bar) => bar.finish_and_clear(),
            None if took > Duration::from_millis(1500) => {
                eprintln!("quire: {} took {:.1} s", self.name, took.as_secs_f32());
            }
            None => {}
        }
    }
}
