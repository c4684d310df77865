//! The matrix as a page that stands by itself: no script, no other file, light and dark.

use super::model::State;
use super::operation::ALL;
use super::report::{Counts, last_line};
use super::verdict::{Judged, Verdict};
use std::collections::BTreeSet;
use std::fmt::Write as _;

const STYLE: &str = "
:root { color-scheme: light dark; --ink: #1c2128; --faint: #6b7480; --paper: #fdfdfc; --line: #dfe3e8;
  --free: #cfe9d3; --rate: #e6edbf; --listed: #f8dcae; --wrong: #f3b4ae; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e7ea; --faint: #98a1ac; --paper: #15181c; --line: #2d333a;
    --free: #1f4a2b; --rate: #4a4e1f; --listed: #63440f; --wrong: #7a2620; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 92rem;
  margin: 2.5rem auto; padding: 0 1.5rem; }
h1 { font-size: 1.6rem; margin: 0 0 .3rem; } h2 { font-size: 1.1rem; margin: 2.4rem 0 .6rem; }
p { max-width: 48rem; } .faint { color: var(--faint); }
.matrix { overflow-x: auto; }
table { border-collapse: separate; border-spacing: 2px; font-size: 12px; }
th { font-weight: 500; text-align: right; padding: 0 .5rem 0 0; white-space: nowrap; }
thead th { vertical-align: bottom; padding: 0 0 .4rem; writing-mode: vertical-rl; transform: rotate(180deg); text-align: left; }
td { width: 1.7rem; min-width: 1.7rem; height: 1.5rem; border-radius: 3px; text-align: center; padding: 0 2px; }
td.free { background: var(--free); } td.rate { background: var(--rate); }
td.listed { background: var(--listed); } td.wrong { background: var(--wrong); }
td.listed, td.wrong { font-size: 10px; line-height: 1.15; }
td.none { border: 1px solid var(--line); }
.key span { display: inline-block; padding: .1rem .6rem; margin: 0 .5rem .3rem 0; border-radius: 3px; }
.reasons td, .reasons th { width: auto; text-align: left; padding: .25rem .8rem .25rem 0; vertical-align: top;
  border-bottom: 1px solid var(--line); border-radius: 0; font-size: 13px; white-space: normal; }
code { font: 12px ui-monospace, monospace; }
";

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn class(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Free => "free",
        Verdict::Amortised => "rate",
        Verdict::Listed => "listed",
        Verdict::Wrong => "wrong",
    }
}

/// The labels of what a case shares as often as not.
fn labels(judged: &Judged) -> String {
    let often = judged.shared.iter().filter(|s| s.expected.is_none_or(|e| e.every.is_none()));
    let names: BTreeSet<&str> = often.map(|s| s.line.label.as_str()).collect();
    names.into_iter().map(|n| if n.is_empty() { "?" } else { n }).collect::<Vec<_>>().join(" ")
}

/// What a pointer over a cell shows.
fn told(judged: &Judged) -> String {
    let mut text = format!("{} + {}", judged.case.a.name, judged.case.b.name);
    for shared in &judged.shared {
        let reason = shared.expected.map_or("not listed", |e| e.reason);
        let (label, by, rounds) = (&shared.line.label, &shared.line.by, shared.seen.rounds);
        let _ = write!(text, "\n{label}, written by {by}, in {rounds} rounds: {reason}");
    }
    for gone in &judged.gone {
        let _ = write!(text, "\n{} is listed and not shared any more", gone.labels.join(" or "));
    }
    escaped(&text)
}

fn matrix(out: &mut String, all: &[Judged], state: State) {
    let shown: Vec<_> =
        ALL.iter().filter(|o| all.iter().any(|j| j.case.a.name == o.name || j.case.b.name == o.name)).collect();
    let _ = write!(out, "<h2>{}</h2><div class=matrix><table><thead><tr><td></td>", escaped(state.about()));
    for o in &shown {
        let _ = write!(out, "<th title=\"{}\">{}</th>", escaped(o.about), o.name);
    }
    out.push_str("</tr></thead><tbody>");
    for row in &shown {
        let _ = write!(out, "<tr><th title=\"{}\">{}</th>", escaped(row.about), row.name);
        for column in &shown {
            let found = all.iter().find(|j| {
                let (a, b) = (j.case.a.name, j.case.b.name);
                j.case.state == state && ((a, b) == (row.name, column.name) || (b, a) == (row.name, column.name))
            });
            let _ = match found {
                Some(j) => {
                    write!(out, "<td class={} title=\"{}\">{}</td>", class(j.verdict), told(j), escaped(&labels(j)))
                }
                None => write!(out, "<td class=none title=\"do not commute\"></td>"),
            };
        }
        out.push_str("</tr>");
    }
    out.push_str("</tbody></table></div>\n");
}

/// What is shared, and why.
fn reasons(out: &mut String, all: &[Judged]) {
    let mut rows: BTreeSet<(String, String, &str)> = BTreeSet::new();
    for shared in all.iter().flat_map(|j| &j.shared) {
        let Some(e) = shared.expected else { continue };
        let often = e.every.map_or("always".to_owned(), |n| format!("at most once in {n} operations"));
        rows.insert((shared.line.label.clone(), often, e.reason));
    }
    out.push_str("<h2>What is shared, and why</h2><table class=reasons><tbody>");
    for (label, often, reason) in rows {
        let _ = write!(
            out,
            "<tr><th><code>{}</code></th><td>{often}</td><td>{}</td></tr>",
            escaped(&label),
            escaped(reason)
        );
    }
    out.push_str("</tbody></table>\n");
}

/// The page.
pub fn page(all: &[Judged]) -> String {
    let counts = Counts::of(all);
    let mut out = String::from("<!doctype html><html lang=en><meta charset=utf-8>");
    out.push_str(
        "<meta name=viewport content=\"width=device-width, initial-scale=1\"><title>Quire: conflict matrix</title>",
    );
    let _ = write!(out, "<style>{STYLE}</style><h1>{}</h1>", escaped(&last_line(counts)));
    out.push_str(
        "<p class=faint>Two CPUs each do an operation. Where the order of the two cannot be observed, they should share no \
         cache line that one of them writes. Every access of both is recorded; a cell says what was shared.</p>",
    );
    let _ = write!(
        out,
        "<p class=key><span style=\"background:var(--free)\">{} share nothing</span><span style=\"background:var(--rate)\">{} \
         only at stated rates</span><span style=\"background:var(--listed)\">{} share what is listed</span><span \
         style=\"background:var(--wrong)\">{} are not as listed</span><span class=faint>empty: do not commute</span></p>\n",
        counts.free, counts.amortised, counts.listed, counts.wrong
    );
    for state in State::ALL {
        if all.iter().any(|j| j.case.state == state) {
            matrix(&mut out, all, state);
        }
    }
    reasons(&mut out, all);
    out.push_str("</html>\n");
    out
}
