//! Checks that a run can be repeated by its seed: with one CPU the whole run, with several the operations of each CPU.

use crate::{EVERYTHING, MUCH, Outcome, PLAN, Plan, paging, run_with};
use quire_hosted::X86_64;
use quire_vm::paging::memory_store::FaultPlan;

const SEED: u64 = 20_261_122;

fn twice(plan: Plan, steps: usize) -> [Outcome; 2] {
    [(); 2].map(|()| run_with::<X86_64>(plan, SEED, steps))
}

#[test]
fn with_one_cpu_a_seed_decides_every_result_and_every_count() {
    let bad = FaultPlan { delay: 2, window: 4, fail_reads: 60, fail_writes: 9, ..paging::PROMPT };
    let plans = [
        (Plan { frames: 8192, mix: &EVERYTHING, ..PLAN }, 6_000),
        (Plan { frames: 8192, starve: 37, ..PLAN }, 6_000),
        // With these few steps memory becomes less short than in the overcommitted runs of `main`.
        (Plan { frames: paging::frames(1), steps: usize::MAX, swap: Some(bad), mix: &MUCH, ..PLAN }, 5_000),
    ];
    for (plan, steps) in plans {
        let [first, second] = twice(plan, steps);
        assert_eq!(first, second);
        let other = run_with::<X86_64>(plan, SEED + 1, steps);
        assert_ne!(first.histories, other.histories, "another seed is another run");
    }
}

#[test]
fn with_several_cpus_a_seed_decides_the_operations_of_each() {
    let [first, second] = twice(Plan { cpus: 3, ..PLAN }, 3_000);
    let asked = |o: &Outcome| o.histories.iter().map(|h| h.asked.get()).collect::<Vec<_>>();
    assert_eq!(asked(&first), asked(&second));
    let other = run_with::<X86_64>(Plan { cpus: 3, ..PLAN }, SEED + 1, 3_000);
    assert!(asked(&first).iter().zip(asked(&other)).all(|(a, b)| *a != b), "another seed gives other operations");
}
