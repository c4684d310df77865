//! Runs with one step of a protocol left out. The random test must detect each omission. Compiled with `--cfg mutants`,
//! as `./quire test` builds the unit tests.

use quire_vm::mutant::{Mutant, set_mutant};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Each step that is left out, with the configuration that fails soonest without it.
const FOUND_BY: &[(Mutant, &str)] = &[
    (Mutant::NoBusyCheck, "faults_against_discards"),
    (Mutant::NoStaleCheck, "four_cpus_read_their_own_stores"),
    (Mutant::NoFrontCheck, "copies_with_dropped_leaves"),
    (Mutant::NoSourceCheck, "copies_from_pages_that_other_cpus_discard"),
    (Mutant::NoUnflushedCheck, "leaves_that_are_gone_and_not_flushed"),
    (Mutant::NoEndCheck, "faults_beyond_an_end_that_moves"),
];

/// The exit status of a run that detects the mutant.
const NOTICED: i32 = 3;

/// Returns the step that `QUIRE_MUTANT` names.
pub fn from_environment() -> Option<Mutant> {
    let name = std::env::var("QUIRE_MUTANT").ok()?;
    let found = FOUND_BY.iter().map(|(m, _)| *m).find(|m| format!("{m:?}") == name);
    Some(found.unwrap_or_else(|| panic!("{name} is no step that can be left out here")))
}

/// Leaves the step `mutant` out from now on; `None`: no step. The first panic ends the process, because later panics in
/// other threads mean nothing.
pub fn switch_on(mutant: Option<Mutant>) {
    // SAFETY: the test expects the failure that the omission causes.
    unsafe { set_mutant(mutant) };
    if mutant.is_some() {
        let say = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            say(info);
            std::process::exit(NOTICED);
        }));
    }
}

/// The number of operations of each CPU in one attempt.
const STEPS: u64 = 20_000;
/// The most attempts. A missing step must be detected in two of five attempts, but on a loaded machine in fewer.
const ATTEMPTS: u64 = 64;
/// The time limit of an attempt, longer than a run takes. A run that hangs counts as detected too.
const LIMIT: Duration = Duration::from_secs(60);

/// Runs the test of that name with the step left out until it fails. Returns the number of attempts, or `None` if all
/// passed.
fn attempts(mutant: Mutant, name: &str) -> Option<u64> {
    let program = std::env::current_exe().expect("this program has a file");
    (1..=ATTEMPTS).find(|attempt| {
        let mut child = Command::new(&program)
            .args(["--exact", &format!("x86_64::{name}")])
            .env("QUIRE_MUTANT", format!("{mutant:?}"))
            .env("QUIRE_SEED", (attempt * 7919).to_string())
            .env("QUIRE_STEPS", STEPS.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the test program runs");
        let start = Instant::now();
        loop {
            if let Some(status) = child.try_wait().expect("a child") {
                // The process was ended by the first panic after the switch, or by a signal. Any other failure is
                // another error.
                let noticed = matches!(status.code(), Some(NOTICED) | None);
                assert!(noticed || status.success(), "{name} cannot be run with {mutant:?}: {status}");
                return noticed;
            }
            if start.elapsed() > LIMIT {
                child.kill().and_then(|()| child.wait()).expect("it ends");
                return true;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    })
}

#[test]
fn every_step_that_is_left_out_is_noticed() {
    for (mutant, name) in FOUND_BY {
        let start = Instant::now();
        let found = attempts(*mutant, name);
        println!("{mutant:?}: {found:?} attempts of {name}, {:?}", start.elapsed());
        assert!(found.is_some(), "{mutant:?} is not noticed by {name} in {ATTEMPTS} times {STEPS} operations a CPU");
    }
}
