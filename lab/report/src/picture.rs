//! A picture for a document. One panel shows the cache lines that a fault moves, the other the faults per second, both
//! by number of CPUs. The picture needs no style sheet, and is readable on light and dark backgrounds.

use std::fmt::Write as _;

use quire_results::{Parameter, Place, Run, Side};

use crate::{escape::Escaped, number, plot::axis::Axis};

/// The designs: the CSS class, and the name in the picture.
const SIDES: [(Side, &str, &str); 4] = [
    (Side::After, "after", "backing per mapping"),
    (Side::Before, "before", "record per page"),
    (Side::Ours, "ours", "Quire"),
    (Side::Limit, "limit", "limit, zeroing alone"),
];

const STYLE: &str = "text{font:13px system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif;fill:#1d1f23}\
.title{font-weight:600;font-size:14px}.tick{fill:#5d626b;font-size:12px}.grid{stroke:#dedbd3}.axis{stroke:#5d626b}\
path{fill:none}.ours{--c:#0a66c2}.before{--c:#767b84}.after{--c:#00795a}.limit{--c:#a8468c}\
.line{stroke:var(--c);stroke-width:2.2}.limit .line{stroke-dasharray:5 4}circle{fill:var(--c)}text.name{fill:var(--c);font-weight:600}\
@media(prefers-color-scheme:dark){text{fill:#e8e8e4}.tick{fill:#a2a7b0}.grid{stroke:#343942}.axis{stroke:#a2a7b0}\
.ours{--c:#58a9ff}.before{--c:#9aa1ac}.after{--c:#3ecb9c}.limit{--c:#e693cd}}";

const SIZE: (f64, f64) = (960.0, 330.0);

/// The points of one design.
struct Curve {
    class: &'static str,
    name: &'static str,
    points: Vec<(f64, f64)>,
}

/// The position of a panel: its left edge and its width.
struct Frame {
    left: f64,
    width: f64,
}

const TOP: f64 = 52.0;
const BOTTOM: f64 = 272.0;

/// The picture of a run that measured zero-fill faults. `None` for other runs.
pub fn faults(run: &Run) -> Option<String> {
    let lines = curves(run, Place::Recording, "lines", 2.0);
    let rates = curves(run, Place::Hosted, "rate", 1.0);
    if lines.is_empty() || rates.is_empty() {
        return None;
    }
    let (width, height) = SIZE;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" role=\"img\" aria-labelledby=\"t d\">\
         <title id=\"t\">Zero-fill faults: cache lines moved, and rate</title>\
         <desc id=\"d\">{}</desc><style>{STYLE}</style>",
        Escaped(&told(&lines, &rates))
    );
    panel(
        &mut out,
        &Frame { left: 62.0, width: 240.0 },
        &lines,
        "Cache lines moved for a zero-fill fault",
        ("CPUs (log scale)", "lines a fault (log scale)"),
        true,
    );
    panel(
        &mut out,
        &Frame { left: 562.0, width: 180.0 },
        &rates,
        "Zero-fill faults of all CPUs together",
        (&format!("CPUs of {}", run.machine.processor.replace("(R)", "")), "faults a second"),
        false,
    );
    let from = format!(
        "./quire lab zero-fill --full, up to {} virtual CPUs; run of {}, threads of one process. Left: less is better. Right: more is better.",
        lines.iter().flat_map(|c| &c.points).map(|p| p.0).fold(0.0, f64::max),
        run.began.get(..10).unwrap_or(&run.began)
    );
    let _ = write!(out, "<text class=\"tick\" x=\"8\" y=\"{}\">{}</text></svg>", height - 8.0, Escaped(&from));
    Some(out + "\n")
}

/// The curves of a measure: medians by number of CPUs, for threads of one process.
fn curves(run: &Run, place: Place, measure: &str, least: f64) -> Vec<Curve> {
    let cases = || run.experiments.iter().filter(|e| e.name == "zero-fill").flat_map(|e| &e.cases);
    let of = |(side, class, name): (Side, &'static str, &'static str)| {
        let mut points: Vec<(f64, f64)> = cases()
            .filter(|c| c.side == side && c.place == place)
            .filter(|c| c.parameters.get("what") == Some(&Parameter::from("threads")))
            .filter_map(|c| match c.parameters.get("cpus") {
                Some(Parameter::Number(cpus)) if *cpus >= least => {
                    Some((*cpus, c.measures.get(measure)?.interval()?.middle))
                }
                _ => None,
            })
            .collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        Curve { class, name, points }
    };
    SIDES.map(of).into_iter().filter(|c| !c.points.is_empty()).collect()
}

fn panel(out: &mut String, frame: &Frame, curves: &[Curve], title: &str, (across, up): (&str, &str), log: bool) {
    let all = || curves.iter().flat_map(|c| &c.points);
    let x = if log {
        Axis::new(all().map(|p| p.0), true, 6).at(all().map(|p| p.0).collect(), 10)
    } else {
        Axis::across(all().map(|p| p.0), false, 6).at(all().map(|p| p.0).collect(), 10)
    };
    let y = Axis::new(all().map(|p| p.1), log, 4);
    let right = frame.left + frame.width;
    let at_x = |v: f64| frame.left + x.place(v) * frame.width;
    let at_y = |v: f64| BOTTOM - y.place(v) * (BOTTOM - TOP);
    let _ = write!(
        out,
        "<text class=\"title\" x=\"{}\" y=\"20\">{}</text><text class=\"tick\" x=\"{}\" y=\"39\">{}</text>",
        frame.left - 54.0,
        Escaped(title),
        frame.left - 54.0,
        Escaped(up)
    );
    for &tick in y.ticks() {
        let class = if tick == y.floor() { "axis" } else { "grid" };
        let v = at_y(tick);
        let _ = write!(
            out,
            "<path class=\"{class}\" d=\"M{:.1},{v:.1}H{right:.1}\"/><text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            frame.left,
            frame.left - 6.0,
            v + 4.0,
            Escaped(&number::short(tick))
        );
    }
    let _ = write!(out, "<path class=\"axis\" d=\"M{:.1},{BOTTOM}H{right:.1}\"/>", frame.left);
    for &tick in x.ticks() {
        let _ = write!(
            out,
            "<text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            at_x(tick),
            BOTTOM + 16.0,
            Escaped(&number::short(tick))
        );
    }
    let _ = write!(
        out,
        "<text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
        frame.left + frame.width / 2.0,
        BOTTOM + 33.0,
        Escaped(across)
    );
    // The names are at the ends of their curves, at least one line apart.
    let mut ends: Vec<(f64, usize)> =
        curves.iter().enumerate().filter_map(|(i, c)| Some((at_y(c.points.last()?.1), i))).collect();
    ends.sort_by(|a, b| a.0.total_cmp(&b.0));
    for i in 1..ends.len() {
        ends[i].0 = ends[i].0.max(ends[i - 1].0 + 16.0);
    }
    for (name_y, i) in ends {
        let curve = &curves[i];
        let _ = write!(out, "<g class=\"{}\"><path class=\"line\" d=\"", curve.class);
        for (n, (a, b)) in curve.points.iter().enumerate() {
            let _ = write!(out, "{}{:.1},{:.1}", if n == 0 { "M" } else { "L" }, at_x(*a), at_y(*b));
        }
        out.push_str("\"/>");
        for (a, b) in &curve.points {
            let _ = write!(out, "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\"/>", at_x(*a), at_y(*b));
        }
        let last = curve.points.last().map_or(0.0, |p| p.1);
        let _ = write!(
            out,
            "<text class=\"name\" x=\"{:.1}\" y=\"{:.1}\">{}: {}</text></g>",
            right + 8.0,
            name_y + 4.0,
            Escaped(curve.name),
            Escaped(&number::short(last))
        );
    }
}

/// The picture's description for screen readers.
fn told(lines: &[Curve], rates: &[Curve]) -> String {
    let of = |curves: &[Curve], unit: &str| {
        let last = |c: &Curve| {
            let (cpus, value) = c.points.last().copied()?;
            Some(format!("{}: {} {unit} with {cpus} CPUs", c.name, number::short(value)))
        };
        curves.iter().filter_map(last).collect::<Vec<_>>().join("; ")
    };
    format!("{}. {}.", of(lines, "lines a fault"), of(rates, "faults a second"))
}
