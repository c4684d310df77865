//! One interface to both model checkers. [`model`] runs a closure under every schedule (loom) or many random schedules
//! (shuttle). [`protocol!`](crate::protocol!) declares a model and the mutants under which it must fail.
//!
//! loom explores all interleavings and weak memory, up to a bound on preemptions, but was seen to miss schedules.
//! Shuttle is sequentially consistent, but explores schedules freely. Every model therefore runs under both.
//! Both must find each mutant, unless `#[cfg(loom)]` or `#[cfg(shuttle)]` at the mutant names a single checker.

#[cfg(loom)]
pub use loom::thread;
#[cfg(shuttle)]
pub use shuttle::thread;

/// The reference count by which a model's threads share values. It is the standard library's `Arc`, because the count
/// is not part of any protocol. The checkers' own type cannot be dropped while a deadlock is reported.
pub use std::sync::Arc;

/// Stops one thread of a model until another thread unparks it. An `unpark` before the `park` is kept.
///
/// loom's own `park` loses an `unpark` that arrives while its thread yields.
pub struct Parker {
    #[cfg(loom)]
    permitted: loom::sync::Notify,
    #[cfg(shuttle)]
    permitted: (shuttle::sync::Mutex<bool>, shuttle::sync::Condvar),
}

#[cfg(loom)]
#[allow(clippy::new_without_default)] // made where a thread first sleeps, never as a part of something
impl Parker {
    /// A parker without a kept `unpark`.
    pub fn new() -> Self {
        Parker { permitted: loom::sync::Notify::new() }
    }
    /// Stops the caller until it is unparked, and consumes that `unpark`. May return once without an `unpark`.
    pub fn park(&self) {
        self.permitted.wait();
    }
    /// Unparks the thread, now or at its next `park`.
    pub fn unpark(&self) {
        self.permitted.notify();
    }
}

#[cfg(shuttle)]
#[allow(clippy::new_without_default)] // as above
impl Parker {
    /// A parker without a kept `unpark`.
    pub fn new() -> Self {
        Parker { permitted: (shuttle::sync::Mutex::new(false), shuttle::sync::Condvar::new()) }
    }
    /// Stops the caller until it is unparked, and consumes that `unpark`.
    pub fn park(&self) {
        let mut permitted = self.permitted.0.lock().unwrap();
        while !*permitted {
            permitted = self.permitted.1.wait(permitted).unwrap();
        }
        *permitted = false;
    }
    /// Unparks the thread, now or at its next `park`.
    pub fn unpark(&self) {
        *self.permitted.0.lock().unwrap() = true;
        self.permitted.1.notify_one();
    }
}

/// Declares a protocol: a sentence, its model, the bound on preemptions, and the steps without which the model fails.
/// Each step names a part of the failure's message, or nothing if any message will do.
///
/// ```ignore
/// protocol! {
///     a_removed_page_has_no_mapping = enter_against_remove, Some(4);
///     NoBusyCheck: "a removed page is mapped";
///     #[cfg(loom)]
///     NoFenceBeforeScan: "a removed page is mapped";
/// }
/// ```
///
/// Each line becomes a test: `a_removed_page_has_no_mapping::holds`, `...::without::NoBusyCheck`. A step without
/// `#[cfg]` must be found by both checkers. A missing fence can be found by loom alone, because shuttle runs all
/// operations in one order. The crate needs a `mutant` module, made by [`mutants!`](crate::mutants!). The table of
/// docs/models.md is made from the tests' names.
#[macro_export]
macro_rules! protocol {
    (
        $(#[$attribute:meta])*
        $sentence:ident = $model:expr, $preemptions:expr;
        $($(#[$checker:meta])* $mutant:ident $(: $says:tt)?;)*
    ) => {
        $(#[$attribute])*
        mod $sentence {
            use super::*;

            #[test]
            fn holds() {
                crate::mutant::set_mutant(None);
                $crate::explore::model($preemptions, $model);
            }

            #[allow(non_snake_case, unused_imports)]
            mod without {
                use super::*;
                $(
                    $(#[$checker])*
                    #[test]
                    #[should_panic $((expected = $says))?]
                    fn $mutant() {
                        crate::mutant::set_mutant(Some(crate::mutant::Mutant::$mutant));
                        $crate::explore::refute($preemptions, $model);
                    }
                )*
            }
        }
    };
}

/// Runs `f` under the checker that this build was made for. `preemptions` bounds loom's search (`None`: unbounded).
///
/// shuttle's schedules come from a fixed seed, so every run of the same code finds the same failures. With
/// `SHUTTLE_SCHEDULE` only the given schedule, printed by a failure, is run again. loom reads its settings
/// (`LOOM_CHECKPOINT_FILE`, `LOOM_LOG`) from the environment too.
pub fn model(preemptions: Option<usize>, f: impl Fn() + Send + Sync + 'static) {
    #[cfg(loom)]
    {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = preemptions;
        builder.max_branches = 100_000;
        builder.check(f);
    }
    #[cfg(shuttle)]
    {
        let _loom_only = preemptions;
        let f = std::sync::Arc::new(f);
        match std::env::var("SHUTTLE_SCHEDULE") {
            Ok(schedule) => replay(&schedule, &f),
            Err(_) => schedules(0, &f),
        }
    }
}

/// Runs `f`, with one step left out, until the checker fails. The mutant's test expects that panic.
///
/// loom's search is complete within its bound. Shuttle's search is random, so it runs up to twenty times as many
/// schedules as [`model`] before it returns.
pub fn refute(preemptions: Option<usize>, f: impl Fn() + Send + Sync + 'static) {
    #[cfg(loom)]
    model(preemptions, f);
    #[cfg(shuttle)]
    {
        let _loom_only = preemptions;
        let f = std::sync::Arc::new(f);
        if let Ok(schedule) = std::env::var("SHUTTLE_SCHEDULE") {
            return replay(&schedule, &f);
        }
        for round in 0..20 {
            schedules(round, &f);
        }
    }
}

#[cfg(shuttle)]
fn settings() -> shuttle::Config {
    // Shuttle's default stacks of 32 KiB are too small for nested operations.
    let mut config = shuttle::Config::new();
    config.stack_size = 512 * 1024;
    config
}

/// Runs 2,000 random schedules. Then runs 1,000 schedules of the PCT scheduler, which changes priorities seldom.
#[cfg(shuttle)]
fn schedules(round: u64, f: &std::sync::Arc<impl Fn() + Send + Sync + 'static>) {
    use shuttle::scheduler::{PctScheduler, RandomScheduler};
    let (f, g) = (f.clone(), f.clone());
    let random = RandomScheduler::new_from_seed(round, 2_000);
    shuttle::Runner::new(random, settings()).run(move || f());
    let pct = PctScheduler::new_from_seed(round, 3, 1_000);
    shuttle::Runner::new(pct, settings()).run(move || g());
}

/// Runs the single schedule that a failure has printed.
#[cfg(shuttle)]
fn replay(schedule: &str, f: &std::sync::Arc<impl Fn() + Send + Sync + 'static>) {
    let f = f.clone();
    let scheduler = shuttle::scheduler::ReplayScheduler::new_from_encoded(schedule);
    shuttle::Runner::new(scheduler, settings()).run(move || f());
}
