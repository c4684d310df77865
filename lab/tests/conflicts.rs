//! Tests that the conflict matrix agrees with its list, and that hot paths which are broken on purpose are found. To
//! run them: `RUSTFLAGS="--cfg recording --cfg mutants" cargo test -p quire-lab --test conflicts`.
#![cfg(all(recording, mutants))]

use quire_lab::conflicts::model::State;
use quire_lab::conflicts::report::{Counts, text};
use quire_lab::conflicts::scale::WORKLOADS;
use quire_lab::conflicts::verdict::{Judged, Verdict, unmet};
use quire_lab::conflicts::{Case, cases, run};
use quire_vm::mutant::{Mutant, set_mutant};
use std::path::Path;
use std::sync::{PoisonError, RwLock};

/// The lock of the mutant, a step of the core that a test switches off for the whole process. A test without a mutant
/// holds this lock shared, and a test with a mutant exclusively.
static MUTANTS: RwLock<()> = RwLock::new(());

fn judged(cases: &[Case]) -> Vec<Judged> {
    run(cases, &|| ()).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn commuting_operations_share_only_the_listed_lines() {
    let _none = MUTANTS.read().unwrap_or_else(PoisonError::into_inner);
    let (_, cases) = cases();
    assert!(cases.len() >= 300, "{} cases", cases.len());
    let all = judged(&cases);
    assert!(all.iter().all(|j| j.verdict != Verdict::Wrong), "{}", text(&all));
    assert!(unmet(&all).is_empty(), "rates that nobody meets: {:?}", unmet(&all));
    let counts = Counts::of(&all);
    assert!((counts.free + counts.amortised) * 100 >= counts.all() * 98, "{counts:?}");
}

#[test]
fn the_model_says_which_operations_commute() {
    let (pairs, cases) = cases();
    let commute = |a: &str, b: &str, state| {
        cases.iter().any(|c| c.state == state && [(a, b), (b, a)].contains(&(c.a.name, c.b.name)))
    };
    assert!(pairs > cases.len());
    // A child inherits the earlier stores of its parent, so the order of fork and store matters.
    assert!(!commute("fork", "zero-fill", State::Threads) && commute("fork", "zero-fill", State::Apart));
    assert!(commute("fork", "read-fault", State::Threads));
    // Each call returns the new end of the heap, so the order matters.
    assert!(!commute("brk", "brk", State::Threads) && commute("brk", "brk", State::Parent));
    // The specification leaves open which address or number a call gets, so the order does not matter.
    assert!(commute("mmap", "mmap", State::Threads) && commute("pid-alloc", "pid-alloc", State::Threads));
    // In one process, `exit` also ends the thread that wakes. A wake-up after `exit` has no effect, so the order
    // matters.
    assert!(!commute("exit", "futex-wake", State::Threads) && commute("exit", "futex-wake", State::Apart));
}

/// The unlisted lines that two operations share in a state while `mutant` is on: their labels and accesses.
fn shared(a: &str, b: &str, state: State, mutant: Option<Mutant>) -> Vec<(String, String)> {
    let case = cases().1.into_iter().find(|c| (c.a.name, c.b.name, c.state) == (a, b, state));
    // SAFETY: the test expects the effect of the mutant.
    unsafe { set_mutant(mutant) };
    let all = run(&[case.expect("the two commute")], &|| ());
    // SAFETY: the test expects the effect of the mutant.
    unsafe { set_mutant(None) };
    let all = all.unwrap_or_else(|e| panic!("{e}"));
    let unlisted = all[0].shared.iter().filter(|s| s.expected.is_none());
    unlisted.map(|s| (s.line.label.clone(), s.seen.told.clone())).collect()
}

#[test]
fn a_line_that_does_not_scale_is_found_with_label_and_source() {
    let _alone = MUTANTS.write().unwrap_or_else(PoisonError::into_inner);
    for (a, b, state, mutant, label, file, says) in [
        (
            "zero-fill",
            "zero-fill",
            State::Threads,
            Mutant::CountsFaults,
            "vm",
            "vm/src/fault/mod.rs:",
            "check_updates.fetch_add(",
        ),
        (
            "read-fault",
            "read-fault",
            State::File,
            Mutant::CountsReferences,
            "object",
            "vm/src/object/references.rs:",
            ".compare_exchange_weak(",
        ),
        ("page-free", "page-free", State::Apart, Mutant::FreesToDepot, "frame-depot", "vm/src/phys/frames", "depot"),
    ] {
        assert_eq!(shared(a, b, state, None), []);
        let found = shared(a, b, state, Some(mutant));
        let named = found.iter().filter(|(l, _)| l == label).any(|(_, told)| {
            let sites = told.split_whitespace().filter(|word| word.contains(file));
            sites.filter_map(source).any(|line| line.contains(says))
        });
        assert!(named, "{mutant:?} is not found by {label}, {file} and {says}: {found:?}");
    }
}

/// The text of the source line at `FILE:LINE`.
fn source(site: &str) -> Option<String> {
    let (file, line) = site.rsplit_once(':')?;
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(file)).ok()?;
    text.lines().nth(line.parse::<usize>().ok()?.checked_sub(1)?).map(str::to_owned)
}

#[test]
fn a_second_run_counts_the_same_lines() {
    let _none = MUTANTS.read().unwrap_or_else(PoisonError::into_inner);
    let some: Vec<Case> = cases().1.into_iter().step_by(83).collect();
    let told = || -> Vec<Vec<(String, u32)>> {
        let lines = |j: &Judged| j.shared.iter().map(|s| (format!("{:?}", s.line), s.seen.rounds)).collect();
        judged(&some).iter().map(lines).collect()
    };
    assert_eq!(told(), told());
    for workload in WORKLOADS.iter().filter(|w| w.held.is_some()) {
        let [one, other] = [(); 2].map(|()| (workload.moves)(4).unwrap_or_else(|e| panic!("{}: {e}", workload.name)));
        assert_eq!((one.lines, &one.by), (other.lines, &other.by), "{}", workload.name);
    }
}

#[test]
fn operations_move_as_few_lines_on_many_cpus_as_on_two() {
    let _none = MUTANTS.read().unwrap_or_else(PoisonError::into_inner);
    let mut more = Vec::new();
    let cpus: &[usize] = if std::env::var_os("QUIRE_SOAK").is_some() { &[2, 16, 64, 256] } else { &[2, 16, 64] };
    for workload in WORKLOADS {
        let Some(most) = workload.held else { continue };
        for &cpus in cpus {
            let moves = (workload.moves)(cpus).unwrap_or_else(|e| panic!("{}: {e}", workload.name));
            println!("{} with {cpus} CPUs: {} lines, {:?}", workload.name, moves.lines, moves.by);
            if moves.lines > most {
                more.push((workload.name, cpus, moves));
            }
        }
    }
    assert!(more.is_empty(), "{more:#?}");
}
