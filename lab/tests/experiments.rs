//! Tests that every planned case runs as a driver will run it, at a tiny scale: as a process that prints exactly its
//! figures.

use quire_results::{Experiment, Place};
use std::collections::BTreeMap;
use std::process::{Command, Output};

fn lab(arguments: &str) -> Output {
    let words = arguments.split(' ');
    Command::new(env!("CARGO_BIN_EXE_quire-lab")).args(words).output().unwrap_or_else(|e| panic!("{arguments}: {e}"))
}

fn planned() -> Vec<Experiment> {
    let out = lab("experiments --mode tiny --cpus 1,2");
    assert!(out.status.success());
    serde_json::from_slice(&out.stdout).unwrap()
}

/// Whether this build runs cases of that place. Cases under cachegrind run only if valgrind is installed.
fn runs(place: Place) -> bool {
    match place {
        Place::Recording => cfg!(recording),
        Place::Hosted => !cfg!(recording),
        Place::Cachegrind => !cfg!(recording) && Command::new("valgrind").arg("--version").output().is_ok(),
        Place::Guest | Place::GuestCounted => false,
    }
}

#[test]
fn every_case_gives_exactly_its_measures() {
    let mut ran = 0;
    for experiment in planned() {
        for case in experiment.cases.iter().filter(|c| runs(c.place)) {
            let out = lab(&case.command);
            let told = String::from_utf8_lossy(&out.stderr);
            assert!(out.status.success(), "{}: {told}", case.command);
            let text = String::from_utf8(out.stdout).unwrap();
            let mut given = BTreeMap::new();
            for line in text.lines() {
                let mut words = line.splitn(3, ' ');
                let (Some(name), Some(value), Some(unit)) = (words.next(), words.next(), words.next()) else {
                    panic!("{}: {line}", case.command);
                };
                let value: f64 = value.parse().unwrap();
                assert!(value.is_finite() && value >= 0.0, "{}: {line}", case.command);
                given.insert(name.to_owned(), unit.to_owned());
            }
            let units: BTreeMap<_, _> = case.measures.iter().map(|(n, m)| (n.clone(), m.unit.clone())).collect();
            assert_eq!(given, units, "{}", case.command);
            ran += 1;
        }
    }
    assert!(ran > 10, "{ran} cases");
}

#[test]
fn an_absent_case_or_a_case_of_the_other_build_is_an_error() {
    let out = lab("case zero-fill ours cpus=1 what=nothing");
    assert_eq!((out.status.code(), out.stdout.len()), (Some(2), 0));
    assert!(String::from_utf8_lossy(&out.stderr).starts_with("quire-lab: zero-fill has no case ours"));
    let other = if cfg!(recording) { Place::Hosted } else { Place::Recording };
    let experiments = planned();
    let case = experiments.iter().flat_map(|e| &e.cases).find(|c| c.place == other).unwrap();
    let out = lab(&format!("{} --place {}", case.command, other.name()));
    assert_eq!((out.status.code(), out.stdout.len()), (Some(1), 0));
    assert!(String::from_utf8_lossy(&out.stderr).contains("build"));
}

#[test]
fn the_kept_texts_are_those_of_the_experiments() {
    let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("experiments.json");
    let text =
        |e: &Experiment| serde_json::json!({"name": e.name, "source": e.source, "title": e.title, "about": e.about});
    let texts: Vec<_> = planned().iter().map(text).collect();
    let texts = serde_json::to_string_pretty(&texts).unwrap() + "\n";
    if std::env::var_os("QUIRE_WRITE").is_some() {
        std::fs::write(&file, &texts).unwrap();
    }
    let kept = std::fs::read_to_string(&file).unwrap_or_default();
    assert_eq!(kept, texts, "QUIRE_WRITE=1 cargo test -p quire-lab --test experiments writes it anew");
}
