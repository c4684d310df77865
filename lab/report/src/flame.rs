//! A flame graph: each call stack is a pile of bars, with the outermost function at the bottom (Gregg, *The Flame
//! Graph*, CACM 59(6), 2016). A bar's width is the number of instructions in its function and its callees.

use std::collections::{BTreeMap, BTreeSet};

use quire_results::profile::Profile;
use serde::Serialize;

use crate::number;

/// The height of a bar, in pixels.
const HEIGHT: usize = 18;
/// The least width of a bar that is drawn on the page, as a share of the whole.
pub const LEAST: f64 = 0.002;
/// The least width of a bar on a page that has only the flame graph. It is not zero, because a million bars make a file
/// that no browser opens.
pub const LEAST_ALONE: f64 = 0.0002;
/// The least width, in percent of the whole, of a bar with a text. The page's script has the same number.
const NARROW: f64 = 2.5;
/// The least width, in percent, of a bar with a text in a narrow window.
const SLIM: f64 = 9.0;
/// The number of rows in the table of functions.
const TOP: usize = 10;

/// A function at its position in the stacks.
#[derive(Debug)]
struct Bar<'f> {
    /// The function.
    name: &'f str,
    /// The number of callers below the bar.
    depth: usize,
    /// The sum of the counts to the left of the bar.
    from: u64,
    /// The count of the function with its callees.
    count: u64,
}

/// Converts stacks (outermost function first) into bars. Adjacent bars of the same function are joined.
fn bars<'f>(stacks: &BTreeMap<Vec<&'f str>, u64>) -> Vec<Bar<'f>> {
    let mut bars: Vec<Bar<'f>> = Vec::new();
    // The indices of the bars of the previous stack.
    let mut open: Vec<usize> = Vec::new();
    let mut from: u64 = 0;
    for (stack, count) in stacks {
        let common = open.iter().zip(stack).take_while(|(bar, name)| bars[**bar].name == **name).count();
        open.truncate(common);
        for (depth, name) in stack.iter().enumerate().skip(common) {
            open.push(bars.len());
            bars.push(Bar { name, depth, from, count: 0 });
        }
        for bar in &open {
            bars[*bar].count = bars[*bar].count.saturating_add(*count);
        }
        from = from.saturating_add(*count);
    }
    bars
}

/// The crate of a function. It is also found in a name such as `<quire_vm::A as quire_sync::B>::c`.
fn crate_of(name: &str) -> &str {
    let path = name.trim_start_matches(['<', '&', '*', '[', '(']);
    let end = path.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(path.len());
    if path[end..].starts_with("::") { &path[..end] } else { "" }
}

/// The name without the prefix that all crates of Quire have.
fn short(name: &str) -> &str {
    name.strip_prefix("quire_").unwrap_or(name)
}

/// The hues of the crates, far from each other. The page's style sheet repeats these numbers.
const HUES: &[(&str, u32)] = &[
    ("quire_kernel", 10),
    ("quire_linux_state", 30),
    ("quire_linux", 45),
    ("quire_procfs", 60),
    ("quire_drivers", 80),
    ("quire_vm", 130),
    ("quire_pmap", 170),
    ("quire_pmap_x86_64", 190),
    ("quire_task", 215),
    ("quire_hosted", 240),
    ("quire_sync", 275),
    ("quire_fs", 320),
];

/// The data of the graph, for the page.
#[derive(Debug, Serialize)]
pub struct View {
    operation: String,
    command: String,
    ended: String,
    commit: String,
    machine: String,
    place: &'static str,
    total: String,
    each: Option<String>,
    height: usize,
    bars: Vec<Drawn>,
    legend: Vec<Key>,
    functions: Vec<Function>,
}

/// A bar of the picture: horizontal values in percent of the width, vertical values in pixels.
#[derive(Debug, Serialize)]
struct Drawn {
    class: String,
    x: String,
    width: String,
    y: usize,
    height: usize,
    name: String,
    title: String,
}

/// A crate in the legend.
#[derive(Debug, Serialize)]
struct Key {
    class: String,
    name: String,
}

/// A function in the table.
#[derive(Debug, Serialize)]
struct Function {
    name: String,
    own: String,
    below: String,
}

fn class(name: &str) -> String {
    let known = HUES.iter().find(|(known, _)| *known == crate_of(name));
    format!("in-{}", known.map_or("others", |(name, _)| name))
}

/// The CSS classes of a bar that is too narrow for a text.
fn without_text(percent: f64) -> &'static str {
    match percent {
        p if p < NARROW => " slim narrow",
        p if p < SLIM => " slim",
        _ => "",
    }
}

/// The view of a profile. Bars narrower than the share `least` are left out.
pub fn of(profile: &Profile, least: f64) -> View {
    let stacks = profile.named();
    let sum = stacks.values().fold(0u64, |sum, n| sum.saturating_add(*n));
    let total = sum.max(1);
    let percent = |n: u64| 100.0 * n as f64 / total as f64;
    let mut bars = bars(&stacks);
    bars.retain(|b| b.count as f64 >= least * total as f64);
    let levels = bars.iter().map(|b| b.depth + 1).max().unwrap_or(0);
    let height = levels * HEIGHT;
    let drawn = |b: &Bar<'_>| Drawn {
        class: class(b.name) + without_text(percent(b.count)),
        x: format!("{:.3}", percent(b.from)),
        width: format!("{:.3}", percent(b.count)),
        y: height - (b.depth + 1) * HEIGHT,
        height: HEIGHT - 1,
        name: short(b.name).to_owned(),
        title: format!("{}\n{} instructions, {:.1} %", b.name, b.count, percent(b.count)),
    };
    let classes: BTreeSet<String> = bars.iter().map(|b| class(b.name)).collect();
    let names = HUES.iter().map(|(name, _)| *name).chain(["others"]);
    let keys = names.map(|name| Key { class: format!("in-{name}"), name: short(name).to_owned() });
    View {
        operation: profile.operation.clone(),
        command: profile.command.clone(),
        ended: profile.ended.get(..10).unwrap_or(&profile.ended).to_owned(),
        commit: profile.machine.versions.get("Quire").cloned().unwrap_or_else(|| "unknown".to_owned()),
        machine: profile.machine.processor.clone(),
        place: profile.place.name(),
        total: number::short(sum as f64),
        each: profile.count.filter(|n| *n > 0).map(|n| number::short(sum as f64 / n as f64)),
        height,
        bars: bars.iter().map(drawn).collect(),
        legend: keys.filter(|k| classes.contains(&k.class)).collect(),
        functions: functions(&stacks, percent),
    }
}

/// The functions that execute the most instructions themselves.
fn functions(stacks: &BTreeMap<Vec<&str>, u64>, percent: impl Fn(u64) -> f64) -> Vec<Function> {
    let mut all: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for (stack, count) in stacks {
        if let Some(last) = stack.last() {
            let (own, _) = all.entry(last).or_default();
            *own = own.saturating_add(*count);
        }
        for name in stack.iter().collect::<BTreeSet<_>>() {
            let (_, below) = all.entry(name).or_default();
            *below = below.saturating_add(*count);
        }
    }
    let mut all: Vec<_> = all.into_iter().filter(|(_, (own, _))| *own > 0).collect();
    all.sort_by_key(|(_, (own, _))| std::cmp::Reverse(*own));
    let row = |(name, (own, below)): (&str, (u64, u64))| Function {
        name: short(name).to_owned(),
        own: format!("{:.1} %", percent(own)),
        below: format!("{:.1} %", percent(below)),
    };
    all.into_iter().take(TOP).map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_as_wide_as_its_instructions_and_those_above_it() {
        let of: [(&[&str], u64); 5] =
            [(&["a"], 10), (&["a", "b"], 30), (&["a", "b", "c"], 20), (&["a", "c"], 5), (&["d"], 35)];
        let all = of.iter().map(|(stack, n)| (stack.to_vec(), *n)).collect();
        let found: Vec<_> = bars(&all).iter().map(|b| (b.name, b.depth, b.from, b.count)).collect();
        assert_eq!(found, [("a", 0, 0, 65), ("b", 1, 10, 50), ("c", 2, 40, 20), ("c", 1, 60, 5), ("d", 0, 65, 35)]);
    }

    #[test]
    fn a_function_belongs_to_the_crate_of_its_type() {
        let name = "<quire_vm::map::Map<\"M\"> as core::ops::Drop>::drop & more";
        assert_eq!([crate_of(name), crate_of("trap_entry"), crate_of("memcpy")], ["quire_vm", "", ""]);
    }
}
