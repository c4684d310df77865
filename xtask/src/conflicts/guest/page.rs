//! The matrix as a self-contained page, of the same design as the memory core's (`lab/src/conflicts/html.rs`).

use std::{collections::BTreeSet, fmt::Write as _};

use super::verdict::{Counts, Expected, Judged, Verdict, reason, shares};

const STYLE: &str = include_str!("../../../../lab/src/conflicts/page.css");

/// The states by the program's names, and the actors in each.
const STATES: [(&str, &str); 5] = [
    ("threads", "threads of one process"),
    ("apart", "processes that share nothing"),
    ("file", "processes that share a file"),
    ("region", "a process and its child, on one shared region"),
    ("family", "a process and its child"),
];

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

/// The owners of the lines that count against a case.
fn owners(judged: &Judged<'_>) -> String {
    let names: BTreeSet<&str> = judged.steady().map(|label| label.split_once(", ").map_or(label, |(o, _)| o)).collect();
    names.into_iter().collect::<Vec<_>>().join(" ")
}

/// The text that a pointer over a cell shows.
fn told(judged: &Judged<'_>, expected: &[Expected]) -> String {
    let [a, b] = &judged.case.operations;
    let mut text = format!("{a} + {b}");
    for (label, rounds) in &judged.shared {
        let of = judged.case.rounds.len();
        let why = match reason(expected, label) {
            Some(e) => format!(": {}", e.reason),
            None if judged.steady().any(|steady| steady == label) => ": not listed".to_owned(),
            None => String::new(),
        };
        let _ = write!(text, "\n{label}, in {rounds} of {of} rounds{why}");
    }
    escaped(&text)
}

fn matrix(out: &mut String, all: &[Judged<'_>], (state, about): (&str, &str), expected: &[Expected]) {
    let here: Vec<&Judged<'_>> = all.iter().filter(|j| j.case.state == state).collect();
    if here.is_empty() {
        return;
    }
    // The program lists pairs by their first operation. It begins with an operation's pair with itself, if that is a
    // case.
    let mut operations: Vec<&str> = Vec::new();
    for name in here.iter().map(|j| &j.case.operations[0]).chain(here.iter().map(|j| &j.case.operations[1])) {
        if !operations.contains(&name.as_str()) {
            operations.push(name);
        }
    }
    let _ = write!(out, "<h2>{}</h2><div class=matrix><table><thead><tr><td></td>", escaped(about));
    operations.iter().for_each(|name| _ = write!(out, "<th>{}</th>", escaped(name)));
    out.push_str("</tr></thead><tbody>");
    for row in &operations {
        let _ = write!(out, "<tr><th>{}</th>", escaped(row));
        for column in &operations {
            let found = here.iter().find(|j| {
                let [a, b] = &j.case.operations;
                (a == row && b == column) || (a == column && b == row)
            });
            let _ = match found {
                Some(j) => write!(
                    out,
                    "<td class={} title=\"{}\">{}</td>",
                    class(j.verdict),
                    told(j, expected),
                    escaped(&owners(j))
                ),
                None => write!(out, "<td class=none title=\"not tested: programs can observe the order\"></td>"),
            };
        }
        out.push_str("</tr>");
    }
    out.push_str("</tbody></table></div>\n");
}

/// The shared lines, how often they are shared, and why.
fn reasons(out: &mut String, all: &[Judged<'_>], expected: &[Expected]) {
    out.push_str("<h2>Shared lines and reasons</h2><div class=matrix><table class=reasons><tbody>");
    for (label, share) in shares(all) {
        let cases = all.iter().filter(|j| j.steady().any(|steady| steady == label)).count();
        let often = match cases {
            0 => format!("in {} of {} rounds", share.rounds, share.of),
            1 => "1 case".to_owned(),
            n => format!("{n} cases"),
        };
        let why = match reason(expected, label) {
            Some(Expected { every: Some(every), reason, .. }) => format!("{reason} (at most in one round of {every})"),
            Some(e) => e.reason.clone(),
            None if cases == 0 => "seldom".to_owned(),
            None => "not listed".to_owned(),
        };
        let _ =
            write!(out, "<tr><th><code>{}</code></th><td>{often}</td><td>{}</td></tr>", escaped(label), escaped(&why));
    }
    out.push_str("</tbody></table></div>\n");
}

/// The page.
pub fn page(all: &[Judged<'_>], expected: &[Expected]) -> String {
    let counts = Counts::of(all);
    let mut out = String::from("<!doctype html><html lang=en><meta charset=utf-8>");
    out.push_str(
        "<meta name=viewport content=\"width=device-width, initial-scale=1\"><title>Quire: the kernel's conflict matrix</title>",
    );
    let _ = write!(out, "<style>{STYLE}</style><h1>{}</h1>", escaped(&counts.last_line()));
    out.push_str(
        "<p class=faint>Two processors of a guest each execute a system call or a fault. Where no program can observe \
         the order of the two, they should share no line of the kernel's memory that either writes. A cell names the \
         shared lines. Hold the pointer over it to see the code that wrote them.</p>",
    );
    let _ = writeln!(
        out,
        "<p class=key><span style=\"background:var(--free)\">{} share no line</span><span \
         style=\"background:var(--rate)\">{} share lines only at stated rates</span><span \
         style=\"background:var(--listed)\">{} are as listed</span><span style=\"background:var(--wrong)\">{} differ \
         from the list</span><span class=faint>empty: programs can observe the order</span></p>",
        counts.free, counts.amortised, counts.listed, counts.wrong
    );
    STATES.iter().for_each(|state| matrix(&mut out, all, *state, expected));
    reasons(&mut out, all, expected);
    out.push_str("</html>\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conflicts::guest::{records::Case, verdict};

    #[test]
    fn a_cell_names_the_shared_lines_and_the_reason() {
        let case = |a: &str, b: &str| Case {
            state: "apart".into(),
            operations: [a.into(), b.into()],
            rounds: vec![vec![]; 3],
        };
        let cases = [case("open", "open"), case("open", "<stat>")];
        let expected = verdict::list("heap, a::* | a count\n").unwrap();
        let judged = |case, shared: &[(&str, usize)], verdict| Judged {
            case,
            shared: shared.iter().map(|(l, n)| ((*l).to_owned(), *n)).collect(),
            verdict,
        };
        let all = [
            judged(&cases[0], &[("heap, a::b", 3), ("space, c", 1)], Verdict::Listed),
            judged(&cases[1], &[], Verdict::Free),
        ];
        let page = page(&all, &expected);
        let wanted = [
            "<h1>1 of 2 cases conflict-free</h1>",
            "<h2>processes that share nothing</h2>",
            "<th>&lt;stat&gt;</th>",
            "<td class=listed title=\"open + open\nheap, a::b, in 3 of 3 rounds: a count\nspace, c, in 1 of 3 rounds\">heap</td>",
            "<td class=none title=\"not tested: programs can observe the order\"></td>",
            "<tr><th><code>heap, a::b</code></th><td>1 case</td><td>a count</td></tr>",
            "<tr><th><code>space, c</code></th><td>in 1 of 6 rounds</td><td>seldom</td></tr>",
        ];
        for wanted in wanted {
            assert!(page.contains(wanted), "{wanted} in {page}");
        }
        assert!(!page.contains("threads of one process"));
    }
}
