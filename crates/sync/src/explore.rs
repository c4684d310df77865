//! One entry for both model checkers: [`model`] runs a closure under every schedule (loom) or many random ones (shuttle).
//!
//! loom explores all interleavings and weak memory, up to a bound on preemptions, but was seen to miss schedules; shuttle
//! is sequentially consistent, but explores schedules freely. Every model therefore runs under both; a mutant says which of
//! the two has to find it.

#[cfg(loom)]
pub use loom::thread;
#[cfg(shuttle)]
pub use shuttle::thread;

/// The checkers' reference count.
#[cfg(loom)]
pub use loom::sync::Arc;
/// The checkers' reference count.
#[cfg(shuttle)]
pub use shuttle::sync::Arc;

/// Runs `f` under the checker that this build was made for. `preemptions` bounds loom's search (`None`: unbounded).
///
/// shuttle's schedules come from a fixed seed: what one run finds, every run of the same code finds.
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
        schedules(0, &std::sync::Arc::new(f));
    }
}

/// Runs `f`, from which a step was left out, until the checker fails: the mutant's test expects that panic.
///
/// loom's search is complete within its bound already. shuttle's is a matter of chance, so it goes on for twenty times as
/// many schedules as [`model`] takes before it gives up and returns.
pub fn refute(preemptions: Option<usize>, f: impl Fn() + Send + Sync + 'static) {
    #[cfg(loom)]
    model(preemptions, f);
    #[cfg(shuttle)]
    {
        let _loom_only = preemptions;
        let f = std::sync::Arc::new(f);
        for round in 0..20 {
            schedules(round, &f);
        }
    }
}

/// 2,000 schedules at random and 1,000 with few changes of priority.
#[cfg(shuttle)]
fn schedules(round: u64, f: &std::sync::Arc<impl Fn() + Send + Sync + 'static>) {
    use shuttle::scheduler::{PctScheduler, RandomScheduler};
    let (f, g) = (f.clone(), f.clone());
    // Its threads' own stacks, of 32 KiB, are too small for an operation that has another one inside.
    let mut config = shuttle::Config::new();
    config.stack_size = 512 * 1024;
    let random = RandomScheduler::new_from_seed(round, 2_000);
    shuttle::Runner::new(random, config.clone()).run(move || f());
    let pct = PctScheduler::new_from_seed(round, 3, 1_000);
    shuttle::Runner::new(pct, config).run(move || g());
}
