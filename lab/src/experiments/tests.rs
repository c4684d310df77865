use super::*;
use std::collections::HashSet;

fn plan(scale: Scale) -> Plan {
    Plan { scale, cpus: vec![1, 2] }
}

#[test]
fn experiments_and_cases_have_names_of_their_own() {
    for scale in [Scale::Tiny, Scale::Quick, Scale::Full] {
        let all = experiments(&plan(scale));
        let names: HashSet<_> = all.iter().map(|e| &e.name).collect();
        assert_eq!(names.len(), all.len());
        for experiment in &all {
            let mut ids = HashSet::new();
            for case in &experiment.cases {
                assert!(ids.insert(case.id()), "{}: {} is there twice", experiment.name, case.id());
                assert!(!case.measures.is_empty() && case.measures.values().all(|m| m.samples.is_empty()));
                let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
                assert!(
                    case.measures.keys().chain(case.parameters.keys()).all(|n| n.chars().all(plain)),
                    "{}",
                    case.id()
                );
                assert!(
                    !case.parameters.values().any(|v| v.to_string().contains(char::is_whitespace)),
                    "{}",
                    case.id()
                );
            }
        }
    }
}

#[test]
fn texts_are_there_and_end_as_sentences_do() {
    for e in experiments(&plan(Scale::Quick)) {
        assert!(!e.title.is_empty() && e.about.ends_with('.'), "{}", e.name);
        assert!(!e.caveats.is_empty() && e.caveats.iter().all(|c| c.ends_with('.')), "{}", e.name);
        let texts = e.caveats.iter().chain([&e.about, &e.title]);
        texts.for_each(|t| assert!(!t.contains("  ") && !t.contains('\n'), "{}: {t}", e.name));
    }
}

/// The places of guests. The lab's experiments have no cases in these places, because `./quire lab` adds them.
const GUESTS: [Place; 2] = [Place::Guest, Place::GuestCounted];

#[test]
fn plots_and_claims_name_measured_values() {
    for scale in [Scale::Quick, Scale::Full] {
        for e in experiments(&plan(scale)) {
            for plot in e.plots.iter().filter(|p| !p.places.iter().all(|p| GUESTS.contains(p))) {
                let told = |c: &&Case| {
                    plot.places.contains(&c.place)
                        && plot.only.iter().all(|(k, v)| c.parameters.get(k) == Some(v))
                        && c.measures.contains_key(&plot.measure)
                };
                let cases: Vec<&Case> = e.cases.iter().filter(told).collect();
                assert!(!cases.is_empty(), "{}: {} shows nothing", e.name, plot.title);
                for name in [&plot.across].into_iter().chain(&plot.split) {
                    assert!(
                        cases.iter().any(|c| c.parameters.contains_key(name)),
                        "{}: {}: no {name}",
                        e.name,
                        plot.title
                    );
                }
                let number = |c: &&&Case| matches!(c.parameters.get(&plot.across), Some(Parameter::Number(_)));
                assert!(
                    plot.shape != Shape::Curves || cases.iter().filter(number).count() > 1,
                    "{}: {}",
                    e.name,
                    plot.title
                );
            }
            for claim in e.claims.iter().filter(|c| !GUESTS.contains(&c.place)) {
                let has = |side: Side| {
                    let fits = |c: &&Case| {
                        c.side == side
                            && c.place == claim.place
                            && claim.parameters.iter().all(|(k, v)| c.parameters.get(k) == Some(v))
                    };
                    let found: Vec<&Case> = e.cases.iter().filter(fits).collect();
                    assert!(found.len() <= 1, "{}: {} is of several cases", e.name, claim.headline);
                    found.iter().any(|c| c.measures.contains_key(&claim.measure))
                };
                assert!(has(Side::Ours) && has(Side::Before), "{}: {}", e.name, claim.headline);
                assert!(has(Side::After) || !claim.reproduces, "{}: {}", e.name, claim.headline);
            }
        }
    }
}

#[test]
fn an_unknown_experiment_is_refused_by_name() {
    let refused = |name: &str, side: &str, parameters: &[&str]| {
        let parameters: Vec<String> = parameters.iter().map(|p| (*p).to_owned()).collect();
        match find(name, side, Some("hosted"), &parameters, Scale::Quick) {
            Err(Failure::NoCase(what)) => what,
            other => panic!("{:?}", other.map(|r| r.parameters)),
        }
    };
    assert!(refused("nothing", "ours", &[]).contains("nothing"));
    assert!(refused("zero-fill", "ours", &["cpus"]).contains("KEY=VALUE"));
    assert!(refused("zero-fill", "ours", &["cpus=1", "cpus=2"]).contains("twice"));
    assert!(refused("zero-fill", "theirs", &["cpus=1", "what=threads"]).contains("theirs"));
    for cpus in ["0", "1.5", "-1", "1e9", "many", "NaN"] {
        refused("zero-fill", "ours", &[&format!("cpus={cpus}"), "what=threads"]);
    }
    refused("zero-fill", "ours", &["cpus=1", "what=threads", "more=1"]);
    let three = ["cpus=3".to_owned(), "what=threads".to_owned()];
    assert!(find("zero-fill", "ours", Some("hosted"), &three, Scale::Quick).is_ok());
}

#[test]
fn a_case_is_found_by_its_command() {
    for scale in [Scale::Tiny, Scale::Quick, Scale::Full] {
        for case in experiments(&plan(scale)).iter().flat_map(|e| &e.cases) {
            let words: Vec<&str> = case.command.split(' ').collect();
            let parameters: Vec<String> =
                words[3..].iter().filter(|w| w.contains('=')).map(|w| (*w).to_owned()).collect();
            let found = find(words[1], words[2], Some(case.place.name()), &parameters, scale).unwrap();
            assert_eq!((found.side, found.place, &found.parameters), (case.side, case.place, &case.parameters));
        }
    }
}
