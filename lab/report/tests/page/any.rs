//! Tests of the page for arbitrary results: the page is well-formed, and no text of the results becomes markup.

use std::collections::BTreeMap;

use proptest::{collection::btree_map, collection::vec, prelude::*};
use quire_report::{Beside, render, render_beside};
use quire_results::{
    Better, Case, Claim, Experiment, Kind, Machine, Measure, Mode, Parameter, Place, Plot, Reading, Results, Run,
    Shape, Side, Source, VERSION,
    conflicts::{Conflicts, Sharing},
    profile::Profile,
};

/// The elements that the page consists of. Any other element could only come from the results.
const OURS: &str = "html head meta title link style body a header div svg path span label select option button h1 h2 h3 h4 h5 i p dl dt dd \
    main section ol li strong small b rect details summary aside table thead tbody tr th td article nav code figure figcaption g desc \
    text polyline polygon circle ul footer script";

/// Checks a page. Returns its text and its attributes.
pub fn check(page: &str) -> String {
    // The XML parser does not accept the document type of HTML.
    let page = page.replace("<!DOCTYPE html>", "");
    let document = roxmltree::Document::parse(page.trim()).unwrap_or_else(|e| panic!("{e}"));
    let mut text = String::new();
    for node in document.descendants().filter(|n| n.is_element()) {
        let name = node.tag_name().name();
        assert!(OURS.split_whitespace().any(|o| o == name), "<{name}> is none of ours");
        for attribute in node.attributes() {
            assert!(!attribute.name().starts_with("on"), "{}", attribute.name());
            text += attribute.value();
        }
        let href = node.attribute("href").unwrap_or("#");
        assert!(href.starts_with('#') || href == "data:,", "{href}");
    }
    for node in document.descendants().filter(|n| n.is_text()) {
        text += node.text().unwrap_or_default();
    }
    let mut ids: Vec<&str> = document.descendants().filter_map(|n| n.attribute("id")).collect();
    let all = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), all, "an id twice");
    text
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-z]{1,6}",
        Just("<script>alert(1)</script>".to_owned()),
        Just("\"><img src=x onerror=alert(1)>".to_owned()),
        Just("' onload='x".to_owned()),
        Just("</style></title><x-bad>&amp;&lt;{{ 7 }}{% raw %}".to_owned()),
        any::<String>(),
        Just(String::new()),
    ]
}

fn number() -> impl Strategy<Value = f64> {
    prop_oneof![
        any::<f64>(),
        (0u32..300).prop_map(f64::from),
        Just(0.0),
        Just(f64::NAN),
        Just(f64::INFINITY),
        Just(f64::MAX),
        Just(5e-324),
    ]
}

fn parameter() -> impl Strategy<Value = Parameter> {
    prop_oneof![number().prop_map(Parameter::Number), text().prop_map(Parameter::Text)]
}

fn one_of<T: Clone + std::fmt::Debug + 'static>(all: &'static [T]) -> impl Strategy<Value = T> {
    proptest::sample::select(all)
}

const SIDES: [Side; 7] =
    [Side::Before, Side::After, Side::Ours, Side::Linux, Side::LinuxLarge, Side::Plain, Side::Limit];
const PLACES: [Place; 5] = [Place::Hosted, Place::Recording, Place::Cachegrind, Place::Guest, Place::GuestCounted];

/// A name that is mostly `a` or `b`, so that cases, plots and claims often have the same name.
fn name() -> impl Strategy<Value = String> {
    prop_oneof![4 => one_of(&["a", "b"]).prop_map(str::to_owned), 1 => text()]
}

fn parameters() -> impl Strategy<Value = BTreeMap<String, Parameter>> {
    btree_map(name(), prop_oneof![3 => (1u32..4).prop_map(Parameter::from), 1 => parameter()], 0..3)
}

prop_compose! {
    fn measure()(unit in prop_oneof![text(), one_of(&["ns", "bytes", "x/s"]).prop_map(str::to_owned)], count in any::<bool>(),
        more in any::<bool>(), samples in vec(number(), 0..6)) -> Measure {
        Measure {
            unit,
            kind: if count { Kind::Count } else { Kind::Time },
            better: if more { Better::More } else { Better::Less },
            samples,
        }
    }
}

prop_compose! {
    fn case()(side in one_of(&SIDES), place in one_of(&PLACES[..2]), parameters in parameters(), command in text(),
        measures in btree_map(name(), measure(), 0..3), trouble in proptest::option::of(text())) -> Case {
        Case { side, place, parameters, command, measures, trouble }
    }
}

prop_compose! {
    fn reading()(measure in name(), place in one_of(&PLACES[..2]), parameters in parameters()) -> Reading {
        Reading { measure, place, parameters }
    }
}

prop_compose! {
    fn claim()(headline in text(), measure in name(), parameters in parameters(), least in number(), reproduces in any::<bool>(),
        linux in proptest::option::of(reading())) -> Claim {
        Claim { headline, measure, place: Place::Hosted, parameters, least, reproduces, linux }
    }
}

prop_compose! {
    fn plot()(title in text(), shape in one_of(&[Shape::Curves, Shape::Bars, Shape::Distribution, Shape::Matrix]),
        places in vec(one_of(&PLACES), 0..3), only in btree_map(name(), (1u32..3).prop_map(Parameter::from), 0..2), measure in name(),
        across in name(), split in proptest::option::of(name()), log_across in any::<bool>(), log_up in any::<bool>()) -> Plot {
        Plot { title, shape, places, only, measure, across, split, log_across, log_up }
    }
}

prop_compose! {
    fn experiment()(name in name(), source in one_of(&[Source::S0, Source::S4, Source::All]), title in text(), about in text(),
        caveats in vec(text(), 0..3), command in text(), claims in vec(claim(), 0..3), plots in vec(plot(), 0..4),
        cases in vec(case(), 0..12)) -> Experiment {
        Experiment { name, source, title, about, caveats, command, seconds: 1.0, claims, plots, cases }
    }
}

prop_compose! {
    fn run()(processor in text(), system in text(), emulator in text(), versions in btree_map(text(), text(), 0..3), began in text(),
        seconds in number(), full in any::<bool>(), remark in proptest::option::of(text()), experiments in vec(experiment(), 0..3)) -> Run {
        Run {
            complete: true,
            remark,
            machine: Machine { processor, cpus: 2, memory_mib: u64::MAX, system, emulator, versions },
            began,
            seconds,
            mode: if full { Mode::Full } else { Mode::Quick },
            seed: 1,
            experiments,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_results_have_a_page_and_none_of_their_text_is_markup(runs in vec(run(), 0..3)) {
        check(&render(&Results { schema: VERSION, runs }).unwrap());
    }
}

#[test]
fn no_runs_have_a_page_that_says_so() {
    let text = check(&render(&Results { schema: VERSION, runs: Vec::new() }).unwrap());
    assert!(text.contains("There are no runs") && text.contains("Nothing was compared"));
}

#[test]
fn the_page_of_the_fixture_has_all_experiments_and_troubles() {
    let text = check(&render(&super::fixture::results(1)).unwrap());
    let results = super::fixture::results(1);
    for experiment in &results.runs[0].experiments {
        assert!(text.contains(&experiment.about) && text.contains(&experiment.command), "{}", experiment.name);
        for trouble in experiment.cases.iter().filter_map(|c| c.trouble.as_ref()) {
            assert!(text.contains(trouble), "{trouble}");
        }
    }
}

#[test]
fn hundreds_of_series_are_all_drawn() {
    let mut results = super::fixture::results(1);
    let experiment = &mut results.runs[0].experiments[0];
    experiment.plots.truncate(1);
    let plot = &mut experiment.plots[0];
    (plot.split, plot.log_up) = (Some("what".to_owned()), false);
    let template = experiment.cases.iter().find(|c| c.measures.contains_key("transfers")).unwrap().clone();
    for i in 0..300 {
        let mut case = template.clone();
        case.parameters.insert("what".to_owned(), format!("series {i}").as_str().into());
        experiment.cases.push(case);
    }
    let page = render(&results).unwrap();
    assert!((0..300).all(|i| page.contains(&format!("data-series=\"{} series {i}\"", template.side.name()))));
    check(&page);
}

#[test]
fn one_sample_is_told_to_have_no_interval() {
    let mut results = super::fixture::results(1);
    results.runs[0].experiments.retain(|e| e.name == "processes");
    let page = render(&results).unwrap();
    assert!(page.contains("one sample"));
}

#[test]
fn a_runs_remark_stands_with_its_machine() {
    let of = |seed| check(&render(&super::fixture::results(seed)).unwrap());
    let remark = super::fixture::results(2).runs.remove(0).remark.unwrap();
    assert!(of(2).contains(&remark) && !of(1).contains("Remark"));
}

#[test]
fn linuxs_figure_stands_beside_its_reading() {
    let text = check(&render(&super::fixture::results(1)).unwrap());
    assert!(text.contains("processes: instructions, guest-counted"));
    assert!(text.contains("no counterpart in a guest"), "of claims that no guest does anything like");
}

#[test]
fn the_page_says_how_sure_its_verdicts_are() {
    let mut results = super::fixture::results(1);
    for measure in
        results.runs[0].experiments.iter_mut().flat_map(|e| &mut e.cases).flat_map(|c| c.measures.values_mut())
    {
        measure.samples = vec![1.0, 2.0, 3.0];
    }
    let text = check(&render(&results).unwrap());
    assert!(text.contains("1–3, range of 3") && !text.contains("95 % interval of"), "three samples are no 95 %");
    let comparisons = results.runs[0].experiments.iter().flat_map(|e| e.comparisons());
    let timed = comparisons.filter(|c| c.ours.measures[c.measure].kind == Kind::Time).count();
    let chance = (timed as f64 / 10.0).round();
    assert!(timed > 20 && text.contains(&format!("the {timed} timed comparisons here equal, {chance} verdicts")));
    assert!(text.contains("widened by hand, to 2\u{a0}% on either side at least, and to 5\u{a0}%"));
    for measure in
        results.runs[0].experiments.iter_mut().flat_map(|e| &mut e.cases).flat_map(|c| c.measures.values_mut())
    {
        measure.samples = (0..15).map(f64::from).collect();
    }
    assert!(check(&render(&results).unwrap()).contains(", 95 % interval of 15"));
}

#[test]
fn the_picture_of_a_document_is_whole_and_of_other_runs_there_is_none() {
    let mut results = super::fixture::results(1);
    for case in results.runs[0].experiments[0].cases.iter_mut() {
        if let Some(measure) = case.measures.remove("transfers") {
            case.measures.insert("lines".to_owned(), measure);
        }
    }
    let picture = quire_report::faults(&results.runs[0]).unwrap();
    let document = roxmltree::Document::parse(picture.trim()).unwrap();
    let names: Vec<&str> =
        document.descendants().filter(|n| n.attribute("class") == Some("name")).filter_map(|n| n.text()).collect();
    assert!(names.iter().filter(|n| n.starts_with("Quire: ")).count() == 2, "{names:?}");
    assert!(!picture.contains("NaN"));
    results.runs[0].experiments.remove(0);
    assert_eq!(quire_report::faults(&results.runs[0]), None);
}

#[test]
fn kept_runs_have_a_history_in_which_each_stands_once() {
    let (shown, mut other) = (super::fixture::results(1), super::fixture::results(2));
    other.runs[0].began = "2026-11-23T00:00:00Z".to_owned();
    other.runs[0].machine.versions.insert("Quire".to_owned(), "abcdef0".to_owned());
    let kept = Results::merge([shown.clone(), other]);
    let beside = Beside { kept, conflicts: None, profile: None };
    let page = render_beside(&shown, &beside).unwrap();
    check(&page);
    assert_eq!((page.matches("<code>beb3ca2").count(), page.matches("<code>abcdef0").count()), (1, 1));
    assert!(!render(&shown).unwrap().contains("id=\"history\""), "one run is no history");
}

#[test]
fn the_matrix_has_a_number_in_each_cell_a_legend_and_reasons() {
    let results = super::fixture::results(1);
    let page = render_beside(&results, &super::fixture::beside()).unwrap();
    let document = page.replace("<!DOCTYPE html>", "");
    let document = roxmltree::Document::parse(document.trim()).unwrap();
    let section = document.descendants().find(|n| n.attribute("id") == Some("conflicts")).unwrap();
    let cells = |class: &str| -> Vec<String> {
        let cells = section.descendants().filter(|n| n.has_tag_name("td") && n.attribute("class") == Some(class));
        cells.map(|n| n.text().unwrap_or_default().to_owned()).collect()
    };
    // A pair of two operations appears twice in the matrix of its state, and twice in the matrix of all states.
    let times = |text: &str, n: usize| vec![text.to_owned(); n];
    assert_eq!(cells("share-listed"), times("3", 4));
    assert_eq!((cells("share-amortised"), cells("share-wrong")), (times("~1", 4), times("!2", 2)));
    assert_eq!((cells("share-free"), cells("share-none").len()), (times("0", 2), 6));
    let text = check(&page);
    for part in [
        " pairs share no line",
        "share lines for a stated reason",
        "A fork copies <the> map",
        "at most once in 12 operations",
        "memory without an owner",
    ] {
        assert!(text.contains(part), "{part}");
    }
    assert!(page.contains("commit <code>cafe</code>") && page.contains("<b>2 of 4</b>"));
}

#[test]
fn the_flame_graph_has_its_bars_and_functions() {
    let page = render_beside(&super::fixture::results(1), &super::fixture::beside()).unwrap();
    let text = check(&page);
    assert!(text.contains("quire_vm::fault<'a>\n90 instructions, 90.0 %"), "the function with its callees");
    assert!(page.contains("<b>10</b> instructions an operation") && text.contains("vm::zero"));
    assert_eq!(page.matches("class=\"call in-quire_vm\"").count(), 2);
}

#[test]
fn without_kept_files_the_page_names_their_commands() {
    let text = check(&render(&super::fixture::results(1)).unwrap());
    assert!(text.contains("No matrix is kept.") && text.contains("No profile is kept."));
    let mut beside = super::fixture::beside();
    let empty = Conflicts { operations: Vec::new(), cases: Vec::new(), machine: None, ..beside.conflicts.unwrap() };
    beside.conflicts = Some(empty);
    beside.profile = Some(Profile { stacks: Vec::new(), functions: Vec::new(), ..beside.profile.unwrap() });
    check(&render_beside(&super::fixture::results(1), &beside).unwrap());
}

#[test]
fn a_verdict_of_the_file_has_a_place_in_the_legend() {
    let page = render_beside(&super::fixture::results(1), &super::fixture::beside()).unwrap();
    for verdict in [Sharing::Free, Sharing::Amortised, Sharing::Listed, Sharing::Wrong] {
        let class = format!("<li><span class=\"share-{}\"", format!("{verdict:?}").to_lowercase());
        assert_eq!(page.matches(&class).count(), 1, "{class}");
    }
}
