//! Tests of the page in a browser: clicks work, each plot has its series, there are no errors, and the page fits. The
//! page of arbitrary results is tested too: it is well-formed, and no text of the results becomes markup.

mod any;
mod browser;
mod fixture;

use browser::Browser;
use quire_report::{Beside, flame_page, matrix_page, render, render_beside};
use quire_results::{Better, Parameter, Results, Side, conflicts::Conflicts, profile::Profile};
use serde_json::json;
use std::path::{Path, PathBuf};

fn page() -> String {
    render_beside(&fixture::results(1), &fixture::beside()).unwrap()
}

/// A page with the newest kept matrix and profile.
fn with_kept() -> String {
    let newest = |end| kept(&[end]).into_iter().max().unwrap();
    let beside = Beside {
        kept: Results::merge([]),
        conflicts: Some(Conflicts::read(&newest("-conflicts.json")).unwrap()),
        profile: Some(Profile::read(&newest("-profile.json")).unwrap()),
    };
    render_beside(&fixture::results(1), &beside).unwrap()
}

fn two_machines() -> String {
    render(&Results::merge([fixture::results(1), fixture::results(2)])).unwrap()
}

/// A script for the browser. It returns the distinct series of each panel: experiment, plot, place, and sides.
const SERIES: &str = "[...document.querySelectorAll('.experiment')].flatMap(e => [...e.querySelectorAll('figure')].flatMap(f =>
    [...f.querySelectorAll('.panel')].map(p => [e.dataset.experiment, f.querySelector('h4').textContent, p.querySelector('.badge').textContent,
        [...new Set([...p.querySelectorAll('[data-series]')].map(s => s.dataset.side || s.dataset.series))].sort().join(' ')])))";

#[test]
fn each_plot_has_its_series_and_nothing_is_an_error() {
    every_plot_of(fixture::results(1));
}

/// The kept files whose names end with one of `ends`.
fn kept(ends: &[&str]) -> Vec<PathBuf> {
    let runs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../runs");
    let files = std::fs::read_dir(runs).unwrap().map(|f| f.unwrap().path());
    files.filter(|f| ends.iter().any(|end| f.to_string_lossy().ends_with(end))).collect()
}

#[test]
fn each_plot_of_the_kept_runs_has_its_series() {
    let runs = kept(&["-quick.json", "-full.json"]);
    assert!(!runs.is_empty(), "a run is kept");
    for run in runs {
        every_plot_of(Results::read(&run).unwrap());
    }
}

#[test]
fn each_kept_matrix_and_profile_has_its_part_of_the_page() {
    for (end, missing) in [("-conflicts.json", "No matrix is kept."), ("-profile.json", "No profile is kept.")] {
        for file in kept(&[end]) {
            let mut beside = Beside { kept: Results::merge([]), conflicts: None, profile: None };
            match end {
                "-conflicts.json" => beside.conflicts = Some(Conflicts::read(&file).unwrap()),
                _ => beside.profile = Some(Profile::read(&file).unwrap()),
            }
            let page = render_beside(&fixture::results(1), &beside).unwrap();
            any::check(&page);
            assert!(!page.contains(missing), "{}", file.display());
            let alone = match (&beside.conflicts, &beside.profile) {
                (Some(matrix), _) => matrix_page("a < b", matrix),
                (_, profile) => flame_page("a < b", profile.as_ref().unwrap()),
            };
            let alone = alone.unwrap();
            any::check(&alone);
            assert!(alone.contains("<h1>a &lt; b</h1>"), "{}", file.display());
            assert!(alone.contains("class=\"matrix shared\"") || alone.contains("class=\"flame\""));
        }
    }
}

fn every_plot_of(results: Results) {
    let mut expected = Vec::new();
    for experiment in &results.runs[0].experiments {
        for plot in &experiment.plots {
            for place in &plot.places {
                let fits = |c: &&quire_results::Case| {
                    c.place == *place
                        && c.measures.contains_key(&plot.measure)
                        && plot.only.iter().all(|(k, v): (&String, &Parameter)| c.parameters.get(k) == Some(v))
                };
                let across = |c: &&quire_results::Case| {
                    plot.shape != quire_results::Shape::Curves || c.parameters.contains_key(&plot.across)
                };
                let some = experiment.cases.iter().filter(fits).any(|c| across(&c));
                let drawn = |c: &&quire_results::Case| fits(c) && (!some || across(c) || c.side == Side::Limit);
                let mut sides: Vec<&str> = experiment.cases.iter().filter(drawn).map(|c| c.side.name()).collect();
                if plot.shape == quire_results::Shape::Matrix {
                    sides = vec![Side::Ours.name()];
                }
                sides.sort();
                sides.dedup();
                if !sides.is_empty() {
                    expected.push(json!([experiment.name, plot.title, place.name(), sides.join(" ")]));
                }
            }
        }
    }
    let mut browser = Browser::start();
    browser.open(&render(&results).unwrap());
    assert_eq!(browser.value(SERIES), json!(expected));
    let empty = "[...document.querySelectorAll('.series')].filter(s => s.getBBox().width * s.getBBox().height === 0).map(s => s.dataset.series)";
    assert_eq!(browser.value(empty), json!([]), "a series that shows nothing");
    let over = "[...document.querySelectorAll('svg.plot')].filter(p => [...p.querySelectorAll('polyline.axis')].map(a => a.getBBox()).filter(a => a.height === 0)
        .some(a => [...p.querySelectorAll('.tick[text-anchor=middle]')].some(t => t.getBBox().y < a.y))).length";
    assert_eq!(browser.value(over), json!(0), "numbers of the horizontal axis stand below its line");
    let counted = "[...document.querySelectorAll('.panel')].filter(p => p.dataset.expected != new Set([...p.querySelectorAll('[data-series]')].map(s => s.dataset.series)).size).length";
    assert_eq!(browser.value(counted), json!(0));
    assert_eq!(browser.complaints(), [""; 0]);
}

#[test]
fn clicked_elements_respond() {
    let mut browser = Browser::start();
    browser.look(1280, "light");
    browser.open(&page());
    let count = |b: &mut Browser, selector: &str| {
        b.value(&format!("document.querySelectorAll('{selector}').length")).as_u64().unwrap()
    };
    for i in 0..count(&mut browser, ".key") {
        let key = format!("document.querySelectorAll('.key')[{i}]");
        let hidden = format!(
            "(k => [...k.closest('figure').querySelectorAll('.series')].filter(s => \
            ('side' in k.dataset ? s.dataset.side === k.dataset.side : s.dataset.name === k.dataset.name)) \
            .map(s => getComputedStyle(s).display === 'none'))({key})"
        );
        browser.click(&key);
        let after = browser.value(&hidden);
        assert!(after.as_array().is_some_and(|a| !a.is_empty() && a.iter().all(|h| *h == json!(true))), "{i}: {after}");
        browser.click(&key);
        let again = browser.value(&hidden);
        assert!(again.as_array().is_some_and(|a| a.iter().all(|h| *h == json!(false))), "{i}: {again}");
    }
    for i in 0..count(&mut browser, "summary") {
        let summary = format!("document.querySelectorAll('summary')[{i}]");
        let open = format!("{summary}.parentNode.open");
        let before = browser.value(&open);
        browser.click(&summary);
        assert_ne!(browser.value(&open), before, "{i}");
    }
    // The button closes only the sections that it opened. In this test it has opened all tables.
    for open in [true, false] {
        browser.click("document.getElementById('unfold')");
        assert_eq!(
            browser
                .value(&format!("[...document.querySelectorAll('.experiment details')].every(d => d.open === {open})")),
            json!(true)
        );
    }
    let paper = "getComputedStyle(document.body).backgroundColor";
    let mut seen = Vec::new();
    for _ in 0..3 {
        browser.click("document.getElementById('theme')");
        seen.push(browser.value(paper));
    }
    assert!(seen[0] != seen[1] && seen[0] == seen[2], "light, dark, and the system's: {seen:?}");
    let links = "[...document.querySelectorAll('a[href^=\"#\"]')].filter(a => !document.getElementById(a.getAttribute('href').slice(1))).length";
    assert_eq!(browser.value(links), json!(0), "a link that leads nowhere");
    assert_eq!(browser.complaints(), [""; 0]);
}

#[test]
fn it_fits_any_window_and_both_themes() {
    let mut browser = Browser::start();
    for (page, name) in [(with_kept(), "one"), (two_machines(), "two")] {
        for width in [360, 800, 1280] {
            for scheme in ["light", "dark"] {
                browser.look(width, scheme);
                browser.open(&page);
                browser.shoot(&format!("{name}-{width}-{scheme}"));
                for open in ["", "document.getElementById('unfold').click();"] {
                    let wide = browser.value(&format!("{open} document.documentElement.scrollWidth"));
                    assert!(wide.as_u64().unwrap() <= u64::from(width), "{wide} on {width}");
                }
                assert_eq!(browser.value(CONTRAST), json!([]), "text that is hard to read, {scheme}");
                assert_eq!(browser.complaints(), [""; 0]);
            }
        }
    }
}

/// A script for the browser. It returns texts whose colour is too close to their background (WCAG 2, 1.4.3: a ratio of
/// 4.5).
const CONTRAST: &str = "(() => {
    const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
    const rgb = (color, under) => {
        canvas.fillStyle = `rgb(${under.join(' ')})`; canvas.fillRect(0, 0, 1, 1);
        canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1);
        return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
    };
    const light = c => { const [r, g, b] = c.map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
    const below = e => { const chain = []; for (; e; e = e.parentElement) chain.unshift(getComputedStyle(e).backgroundColor); return chain.reduce((under, c) => rgb(c, under), [255, 255, 255]); };
    const bad = new Set();
    const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    for (let node; node = walk.nextNode();) {
        const e = node.parentElement;
        if (!node.data.trim() || ['SCRIPT', 'STYLE', 'title', 'desc', 'OPTION'].includes(e.tagName) || !e.getClientRects().length) continue;
        const style = getComputedStyle(e), ground = below(e);
        const [a, b] = [light(rgb(e instanceof SVGElement ? style.fill : style.color, ground)), light(ground)].sort((a, b) => b - a);
        if ((a + 0.05) / (b + 0.05) < 4.45) bad.add(e.tagName + '.' + (e.className.baseVal ?? e.className) + ' ' + ((a + 0.05) / (b + 0.05)).toFixed(2));
    }
    return [...bad];
})()";

#[test]
fn it_prints_and_is_whole_without_scripts() {
    let mut browser = Browser::start();
    browser.look(1280, "dark");
    browser.call("Emulation.setScriptExecutionDisabled", json!({"value": true}));
    browser.open(&page());
    let shown = "[...document.querySelectorAll('.series')].every(s => getComputedStyle(s).display !== 'none') \
        && [...document.querySelectorAll('.scripted')].every(s => getComputedStyle(s).display === 'none')";
    assert_eq!(browser.value(shown), json!(true));
    browser.click("document.querySelector('summary')");
    assert_eq!(browser.value("document.querySelector('details').open"), json!(true));
    browser.open(&page());
    let folded = "[...document.querySelectorAll('.more tr, .gone-of li, .machine-of dd, summary:not(.each-of > summary)')].filter(e => !e.checkVisibility()).length";
    assert_ne!(browser.value(folded), json!(0), "on the screen they are folded");
    browser.call("Emulation.setEmulatedMedia", json!({"media": "print"}));
    assert_eq!(browser.value(folded), json!(0), "what is behind or missing is on paper");
    browser.call("Emulation.setEmulatedMedia", json!({"media": ""}));
    let paper = browser.print();
    assert!(paper.starts_with(b"%PDF-"));
    if let Some(directory) = std::env::var_os("QUIRE_SHOTS") {
        std::fs::write(std::path::Path::new(&directory).join("print.pdf"), &paper).unwrap();
        std::fs::write(std::path::Path::new(&directory).join("two.html"), two_machines()).unwrap();
        std::fs::write(std::path::Path::new(&directory).join("one.html"), page()).unwrap();
    }
    // Scripts are enabled again, because `complaints` waits for an animation frame.
    browser.call("Emulation.setScriptExecutionDisabled", json!({"value": false}));
    assert_eq!(browser.complaints(), [""; 0]);
}

#[test]
fn sections_opened_for_print_close_again() {
    let mut browser = Browser::start();
    browser.open(&page());
    let open = "[...document.querySelectorAll('details')].map(d => d.open)";
    browser.value("document.querySelector('.gone-of').open = true; document.querySelector('.figures-of').open = true");
    let before = browser.value(open);
    browser.value("dispatchEvent(new Event('beforeprint'))");
    let folded = "document.querySelectorAll('.more:not([open]), .machine-of:not([open]), .gone-of:not([open])').length";
    assert_eq!(browser.value(folded), json!(0));
    browser.value("dispatchEvent(new Event('afterprint'))");
    assert_eq!(browser.value(open), before);
    assert_eq!(browser.complaints(), [""; 0]);
}

/// A script for the browser. It returns a run's numbers of operations that are ahead, equal and behind, from the page's
/// headline and from the table below.
const FRONT: &str = "(() => {
    const shown = e => e.getClientRects().length > 0, those = (selector, from) => [...from.querySelectorAll(selector)];
    const heads = those('.front .head', document).filter(shown).map(h => h.textContent.match(/\\d+/g).map(Number));
    for (const d of document.querySelectorAll('.operations-of')) d.open = true;
    const tables = those('.front-of', document).filter(shown).map(f => {
        const rows = those('tr[data-verdict]', f.querySelector('.operations-of'));
        return ['ahead', 'none', 'behind'].map(v => rows.filter(r => r.dataset.verdict === v).length);
    });
    const names = those('.front-of', document).filter(shown).map(f => those('.operations-of', f)[0]).flatMap(d => those('tbody th a', d).map(a => a.textContent));
    return {heads, tables, twice: names.length - new Set(names).size};
})()";

#[test]
fn the_headline_counts_each_operation_once() {
    let mut browser = Browser::start();
    browser.open(&page());
    let front = browser.value(FRONT);
    assert_eq!((&front["heads"], &front["twice"]), (&front["tables"], &json!(0)), "{front}");
    let sum: u64 = front["heads"][0].as_array().unwrap().iter().filter_map(|n| n.as_u64()).sum();
    assert!(sum > 5, "{front}");
}

#[test]
fn one_machine_of_several_can_be_looked_at_alone() {
    let mut browser = Browser::start();
    browser.open(&two_machines());
    let shown = |b: &mut Browser| {
        b.value("[0, 1].map(i => [...document.querySelectorAll(`[data-run=\"${i}\"]`)].filter(e => e.getClientRects().length).length > 0)")
    };
    assert_eq!(shown(&mut browser), json!([true, true]));
    for (choice, expected) in [("1", [false, true]), ("0", [true, false]), ("", [true, true])] {
        browser.value(&format!("machine.value = '{choice}'; machine.dispatchEvent(new Event('change'))"));
        assert_eq!(shown(&mut browser), json!(expected), "{choice}");
        let front = browser.value(FRONT);
        assert_eq!(front["heads"], front["tables"], "{choice}");
        let machines = expected.iter().filter(|e| **e).count();
        assert_eq!(front["heads"].as_array().map(Vec::len), Some(machines));
    }
    assert_eq!(browser.complaints(), [""; 0]);
}

#[test]
fn two_runs_of_one_machine_lead_with_their_difference() {
    let mut browser = Browser::start();
    browser.open(&render(&Results::merge([fixture::results(1), fixture::results(1)])).unwrap());
    let first = "document.querySelector('h1').textContent";
    assert!(browser.value(first).as_str().is_some_and(|h| h.contains("counted figures better")));
    let before =
        "(document.getElementById('against').compareDocumentPosition(document.getElementById('results')) & 4) !== 0";
    assert_eq!(browser.value(before), json!(true));
    browser.open(&two_machines());
    assert!(browser.value(first).as_str().is_some_and(|h| h.starts_with("Against Linux: ahead")));
}

#[test]
fn each_further_machine_is_set_against_the_first() {
    let mut browser = Browser::start();
    browser.open(&page());
    assert_eq!(
        browser.value("document.getElementById('against')"),
        json!(null),
        "of one run there is nothing to compare"
    );
    let (one, mut other) = (fixture::results(1), fixture::results(1));
    for case in other.runs[0].experiments.iter_mut().flat_map(|e| &mut e.cases) {
        let ours = case.side == Side::Ours;
        for measure in case.measures.values_mut() {
            let by = match (measure.better, ours) {
                (Better::More, true) => 3.0,
                (Better::More, false) => 2.0,
                (Better::Less, true) => 1.0 / 3.0,
                (Better::Less, false) => 0.5,
            };
            measure.samples.iter_mut().for_each(|s| *s *= by);
        }
    }
    browser.open(&render(&Results::merge([one.clone(), other.clone()])).unwrap());
    let cells = browser.value(
        "[...new Set([...document.querySelectorAll('#against table:first-of-type tbody tr')].slice(0, 9).map(r => [...r.cells].slice(2).map(c => c.textContent).join(' ')))]",
    );
    let cells: Vec<String> = serde_json::from_value(cells).unwrap();
    assert!(cells.iter().all(|c| c.replace('–', "3×").starts_with("3×") && c.ends_with(['×', '–'])), "{cells:?}");
    assert!(cells.contains(&"3× 2×".to_owned()), "ours by three, the others by two: {cells:?}");
    assert_eq!(browser.value("document.querySelectorAll('#against span.behind').length"), json!(0));
    other.runs[0].mode = quire_results::Mode::Full;
    browser.open(&render(&Results::merge([one, other])).unwrap());
    assert_eq!(browser.value("document.querySelectorAll('#against table').length"), json!(0));
    assert_eq!(browser.value("document.querySelectorAll('#against .note').length"), json!(1));
    assert_eq!(browser.complaints(), [""; 0]);
}

#[test]
fn the_page_may_load_and_run_nothing_else() {
    let mut browser = Browser::start();
    browser.open(&page());
    let tried = browser.value(
        "(async () => { const s = document.createElement('script'); s.textContent = 'window.ran = 1'; document.body.append(s); \
         let loaded; try { await fetch('http://127.0.0.1:9/'); loaded = 'yes'; } catch { loaded = 'no'; } \
         const policy = document.querySelector('meta[http-equiv]').content.includes(\"default-src 'none'\"); \
         return [window.ran === 1, loaded, policy]; })()",
    );
    assert_eq!(tried, json!([false, "no", true]));
    let refused = browser.complaints();
    assert!(refused.iter().any(|c| c.contains("Content Security Policy")), "{refused:?}");
}
