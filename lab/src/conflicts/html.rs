//! The matrix as a self-contained page: no script, no other file, light and dark.

use super::model::State;
use super::operation::ALL;
use super::report::{Counts, last_line};
use super::verdict::{Judged, Verdict};
use std::collections::BTreeSet;
use std::fmt::Write as _;

/// Also of the page that shows the guest's matrix (`xtask/src/conflicts/guest/page.rs`).
const STYLE: &str = include_str!("page.css");

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

/// The labels of lines that a case shares without a rate.
fn labels(judged: &Judged) -> String {
    let often = judged.shared.iter().filter(|s| s.expected.is_none_or(|e| e.every.is_none()));
    let names: BTreeSet<&str> = often.map(|s| s.line.label.as_str()).collect();
    names.into_iter().map(|n| if n.is_empty() { "?" } else { n }).collect::<Vec<_>>().join(" ")
}

/// The tooltip of a cell.
fn told(judged: &Judged) -> String {
    let mut text = format!("{} + {}", judged.case.a.name, judged.case.b.name);
    for shared in &judged.shared {
        let reason = shared.expected.map_or("not listed", |e| e.reason);
        let (label, by, rounds) = (&shared.line.label, &shared.line.by, shared.seen.rounds);
        let _ = write!(text, "\n{label}, written by {by}, in {rounds} rounds: {reason}");
    }
    for gone in &judged.gone {
        let _ = write!(text, "\n{} is listed but not shared any more", gone.labels.join(" or "));
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

/// The shared lines, and the reasons.
fn reasons(out: &mut String, all: &[Judged]) {
    let mut rows: BTreeSet<(String, String, &str)> = BTreeSet::new();
    for shared in all.iter().flat_map(|j| &j.shared) {
        let Some(e) = shared.expected else { continue };
        let often = e.every.map_or("always".to_owned(), |n| format!("at most once in {n} operations"));
        rows.insert((shared.line.label.clone(), often, e.reason));
    }
    out.push_str("<h2>Shared lines and reasons</h2><table class=reasons><tbody>");
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
        "<p class=faint>Two CPUs each perform an operation. Where no program can observe the order of the two, they \
         should share no cache line that either writes. Every access of both is recorded. A cell names the shared \
         lines.</p>",
    );
    let _ = write!(
        out,
        "<p class=key><span style=\"background:var(--free)\">{} share no line</span><span \
         style=\"background:var(--rate)\">{} share lines only at stated rates</span><span \
         style=\"background:var(--listed)\">{} are as listed</span><span style=\"background:var(--wrong)\">{} differ \
         from the list</span><span class=faint>empty: do not commute</span></p>\n",
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
