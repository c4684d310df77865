//! `./quire test layers --graph`: shows which rooms of a crate (folders or files in a fixed order) use which others.
//! The command prints a table of counts and writes pictures.

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

use super::{
    compiler::Use,
    rooms::{Edges, Plan, largest_cycle},
    source::Source,
};
use crate::failure::{Doing, Result};

/// Prints a crate's table and writes its picture.
pub fn show(plan: &Plan, source: &Source, uses: &BTreeSet<Use>, folder: &Path) -> Result<()> {
    let edges = plan.edges(uses);
    print!("{}", table(plan, source, &edges, uses));
    fs::create_dir_all(folder).doing(|| format!("cannot make {}", folder.display()))?;
    let path: PathBuf = folder.join(format!("{}.svg", plan.krate));
    fs::write(&path, picture(plan, source, &edges)).doing(|| format!("cannot write {}", path.display()))?;
    let list = path.with_extension("txt");
    fs::write(&list, every(plan, &edges)).doing(|| format!("cannot write {}", list.display()))?;
    println!("picture: {}, each use: {}\n", path.display(), list.display());
    Ok(())
}

/// Returns the table of rooms, the highest first. The row of a room says how often it uses each other room. Counts left
/// of the diagonal are for higher rooms.
fn table(plan: &Plan, source: &Source, edges: &Edges<'_>, uses: &BTreeSet<Use>) -> String {
    let lines = plan.lines(source);
    let rooms: Vec<&str> = plan.rooms.iter().copied().rev().collect();
    let wide = rooms.iter().map(|r| r.len()).max().unwrap_or(0).max(4);
    let mut text = format!("{}\n  {:wide$}  lines", plan.krate, "room");
    for number in 1..=rooms.len() {
        let _ = write!(text, "{number:5}");
    }
    for (row, from) in rooms.iter().enumerate() {
        let _ = write!(text, "\n{:2}{from:wide$} {:6}", row + 1, lines.get(from).copied().unwrap_or(0));
        for to in &rooms {
            match edges.get(&(*from, *to)).map(Vec::len) {
                Some(count) => write!(text, "{count:5}"),
                None => write!(text, "{:>5}", if from == to { "-" } else { "." }),
            }
            .unwrap_or_default();
        }
    }
    let inside = |(from, to): &&(&str, &str)| rooms.contains(from) && rooms.contains(to);
    let pairs: Vec<_> = edges.keys().filter(inside).collect();
    let up = pairs.iter().filter(|(from, to)| plan.is_up(from, to)).count();
    let rooms_cycle = largest_cycle(&pairs.iter().map(|(f, t)| ((*f).to_owned(), (*t).to_owned())).collect());
    let own = uses.iter().filter(|u| u.from.krate == plan.krate && u.to.krate == plan.krate);
    let modules_cycle =
        largest_cycle(&own.map(|u| (source.known(&u.from), source.known(&u.to))).filter(|(f, t)| f != t).collect());
    let _ = write!(text, "\n{} pairs of rooms point down, {up} up", pairs.len() - up);
    let _ = write!(text, "; largest cycle: {} of {} rooms", rooms_cycle.len(), rooms.len());
    if !rooms_cycle.is_empty() {
        let _ = write!(text, " ({})", rooms_cycle.join(", "));
    }
    let _ = writeln!(text, ", {} of {} modules", modules_cycle.len(), source.modules.len());
    text
}

/// Returns a list of all uses, by pairs of rooms. Pairs in which a room uses a higher room come first.
fn every(plan: &Plan, edges: &Edges<'_>) -> String {
    let mut text = String::new();
    for up in [true, false] {
        for ((from, to), what) in edges.iter().filter(|((from, to), _)| plan.is_up(from, to) == up) {
            let _ = writeln!(text, "{from} {} {to}: {}", if up { "UP TO" } else { "to" }, what.len());
            text.extend(what.iter().map(|one| format!("    {one}\n")));
        }
    }
    text
}

/// Draws the rooms as a column, the highest at the top. An arc on the right means that a room uses a lower room. A red
/// arc on the left means that a room uses a higher room.
fn picture(plan: &Plan, source: &Source, edges: &Edges<'_>) -> String {
    const STEP: usize = 34;
    let rooms: Vec<&str> = plan.rooms.iter().copied().rev().collect();
    let lines = plan.lines(source);
    let reach = 30 + rooms.len() * 11;
    let (width, height) = (2 * reach + 200, rooms.len() * STEP + 20);
    let middle = |room: &str| rooms.iter().position(|r| *r == room).map(|i| 10 + i * STEP + STEP / 2);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" \
            font-size=\"12\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"#fff\"/>\n"
    );
    for ((from, to), what) in edges {
        let (Some(a), Some(b)) = (middle(from), middle(to)) else { continue };
        let thick = 1.0 + (what.len() as f64).log2() / 2.0;
        let bend = 20 + a.abs_diff(b) / STEP * 11;
        let (x, out, colour) = if plan.is_up(from, to) {
            (reach, reach - bend, "#c0392b")
        } else {
            (reach + 200, reach + 200 + bend, "#7f8c8d")
        };
        let _ = writeln!(
            svg,
            "<path d=\"M{x} {a} C{out} {a} {out} {b} {x} {b}\" fill=\"none\" stroke=\"{colour}\" \
                stroke-width=\"{thick:.1}\" \
             stroke-opacity=\"0.55\"><title>{from} to {to}: {}</title></path>",
            what.len()
        );
    }
    for room in &rooms {
        let Some(y) = middle(room) else { continue };
        let _ = writeln!(
            svg,
            "<rect x=\"{reach}\" y=\"{}\" width=\"200\" height=\"26\" rx=\"4\" fill=\"#ecf0f1\" stroke=\"#95a5a6\"/>\
             <text x=\"{}\" y=\"{}\">{room}</text><text x=\"{}\" y=\"{}\" text-anchor=\"end\" \
                 fill=\"#7f8c8d\">{}</text>",
            y - 13,
            reach + 10,
            y + 4,
            reach + 190,
            y + 4,
            lines.get(room).copied().unwrap_or(0)
        );
    }
    svg.push_str("</svg>\n");
    svg
}
