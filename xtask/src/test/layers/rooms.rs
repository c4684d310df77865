//! The rooms of each crate: folders and files below `src`, in an order from the bottom to the top. A room may use only
//! rooms below it.

use std::collections::{BTreeMap, BTreeSet};

use super::{compiler::Use, modules::Module, source::Source};

/// A crate's rooms in their order, and the pairs of rooms that may break the order.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// The crate's folder below `crates/`.
    pub krate: &'static str,
    /// The rooms from the bottom to the top. The root file is above them all.
    pub rooms: &'static [&'static str],
    /// The allowed breaches of the order: a room, the higher room that it uses, and why.
    pub exceptions: &'static [(&'static str, &'static str, &'static str)],
    /// Pairs (room, higher room that it uses) that break the order and should be removed. This list may only become
    /// shorter.
    pub debts: &'static [(&'static str, &'static str)],
    /// The most exceptions that this crate may have.
    pub limit: usize,
}

/// No room may have more than a quarter of a crate's lines, unless the crate has fewer lines than this.
const SMALL: usize = 5_000;

/// The name that stands for a crate's root file.
const ROOT: &str = "root";

/// For each pair (room, other room that it uses): a description of each use, with the using and the used item.
pub type Edges<'a> = BTreeMap<(&'a str, &'a str), Vec<&'a str>>;

impl Plan {
    /// Returns the innermost room that contains a module.
    pub fn room(&self, module: &Module) -> Option<&'static str> {
        if module.path.is_empty() {
            return Some(ROOT);
        }
        self.rooms.iter().copied().filter(|room| module.is_in(room)).max_by_key(|room| room.len())
    }

    /// Returns a room's position, counted from the bottom.
    fn height(&self, room: &str) -> usize {
        self.rooms.iter().position(|r| *r == room).unwrap_or(self.rooms.len())
    }

    /// Whether a use of `to` by `from` breaks the order, because `to` is the higher room.
    pub fn is_up(&self, from: &str, to: &str) -> bool {
        self.height(from) < self.height(to)
    }

    /// Returns all uses between two different rooms.
    pub fn edges<'a>(&self, uses: &'a BTreeSet<Use>) -> Edges<'a> {
        let mut edges = Edges::new();
        for one in uses.iter().filter(|u| u.from.krate == self.krate && u.to.krate == self.krate) {
            if let (Some(from), Some(to)) = (self.room(&one.from), self.room(&one.to))
                && from != to
            {
                edges.entry((from, to)).or_default().push(&one.what);
            }
        }
        edges
    }

    /// Returns the number of lines of each room.
    pub fn lines(&self, source: &Source) -> BTreeMap<&'static str, usize> {
        let mut lines = BTreeMap::new();
        for (module, own) in &source.modules {
            *lines.entry(self.room(module).unwrap_or("?")).or_default() += own;
        }
        lines
    }

    /// Returns the broken rules, one line for each.
    pub fn judge(&self, source: &Source, uses: &BTreeSet<Use>) -> Vec<String> {
        let mut wrong = Vec::new();
        for module in source.modules.keys().filter(|m| self.room(m).is_none()) {
            wrong.push(format!("{module} has no room; add it to a room in xtask/src/test/layers/plans.rs"));
        }
        for room in self.rooms.iter().filter(|room| !source.modules.keys().any(|m| m.is_in(room))) {
            wrong.push(format!("the room {room} has no module"));
        }
        let edges = self.edges(uses);
        let excepted = self.exceptions.iter().map(|(from, to, _)| (*from, *to));
        let known: BTreeSet<_> = excepted.chain(self.debts.iter().copied()).collect();
        for ((from, to), what) in &edges {
            if self.is_up(from, to) && !known.contains(&(*from, *to)) {
                let few = what.iter().take(3).map(|w| format!("\n    {w}")).collect::<String>();
                wrong.push(format!("{from} uses {to}, which is above it ({} uses):{few}", what.len()));
            }
        }
        for (from, to) in known {
            if !self.is_up(from, to) || !edges.contains_key(&(from, to)) {
                wrong.push(format!("{from} does not use {to} any more; remove the exception"));
            }
        }
        if self.exceptions.len() > self.limit {
            wrong.push(format!("{} exceptions, {} are allowed", self.exceptions.len(), self.limit));
        }
        let all: usize = source.modules.values().sum();
        for (room, lines) in self.lines(source) {
            if all >= SMALL && lines * 4 > all {
                wrong.push(format!("{room} has {lines} of {all} lines: more than a quarter"));
            }
        }
        wrong
    }
}

/// Returns the largest set of nodes in which each node reaches every other one.
pub fn largest_cycle<N: Ord + Clone>(edges: &BTreeSet<(N, N)>) -> Vec<N> {
    let mut after: BTreeMap<&N, Vec<&N>> = BTreeMap::new();
    let mut before: BTreeMap<&N, Vec<&N>> = BTreeMap::new();
    for (from, to) in edges {
        after.entry(from).or_default().push(to);
        before.entry(to).or_default().push(from);
    }
    let reached = |start: &N, along: &BTreeMap<&N, Vec<&N>>| {
        let mut seen = BTreeSet::new();
        let mut open: Vec<N> = vec![start.clone()];
        while let Some(node) = open.pop() {
            for &next in along.get(&node).into_iter().flatten() {
                if seen.insert(next.clone()) {
                    open.push(next.clone());
                }
            }
        }
        seen
    };
    let mut done: BTreeSet<N> = BTreeSet::new();
    let mut largest = Vec::new();
    for start in after.keys() {
        if done.contains(*start) {
            continue;
        }
        let cycle: Vec<N> = reached(start, &after).intersection(&reached(start, &before)).cloned().collect();
        done.extend(cycle.iter().cloned());
        if cycle.len() > largest.len() {
            largest = cycle;
        }
    }
    largest
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAN: Plan =
        Plan { krate: "vm", rooms: &["low", "mid", "mid/in", "high"], exceptions: &[], debts: &[], limit: 1 };

    fn module(path: &str) -> Module {
        let path = path.split('/').filter(|s| !s.is_empty()).map(str::to_owned).collect();
        Module { krate: "vm".to_owned(), path }
    }

    fn judged(plan: Plan, uses: &[(&str, &str)]) -> Vec<String> {
        let source = Source {
            modules: ["", "low", "mid", "mid/in", "high/part"].iter().map(|m| (module(m), 10)).collect(),
            uses: BTreeSet::new(),
        };
        let uses =
            uses.iter().map(|(f, t)| Use { from: module(f), to: module(t), what: format!("{f} to {t}") }).collect();
        plan.judge(&source, &uses)
    }

    #[test]
    fn a_use_that_points_up_is_found_and_one_down_is_not() {
        assert_eq!(judged(PLAN, &[("high/part", "low"), ("mid/in", "mid"), ("", "high/part")]), [""; 0]);
        assert!(judged(PLAN, &[("low", "high/part")])[0].starts_with("low uses high, which is above it (1 uses)"));
        assert_eq!(judged(PLAN, &[("mid", "mid/in")]).len(), 1);
        assert_eq!(judged(PLAN, &[("mid", "")]).len(), 1);
    }

    #[test]
    fn an_exception_holds_while_it_is_needed() {
        let plan = Plan { exceptions: &[("low", "high", "why")], ..PLAN };
        assert_eq!(judged(plan, &[("low", "high/part")]), [""; 0]);
        assert_eq!(judged(plan, &[]).len(), 1);
        assert_eq!(judged(Plan { limit: 0, ..plan }, &[("low", "high/part")]).len(), 1);
        let plan = Plan { debts: &[("low", "high")], ..PLAN };
        assert_eq!(judged(plan, &[("low", "high/part")]), [""; 0]);
        assert_eq!(judged(plan, &[]).len(), 1);
    }

    #[test]
    fn each_module_has_a_room_and_each_room_a_module() {
        assert_eq!(judged(Plan { rooms: &["low", "mid", "high", "gone"], ..PLAN }, &[]).len(), 1);
        assert!(judged(Plan { rooms: &["low", "mid", "mid/in"], ..PLAN }, &[])[0].contains("high::part has no room"));
    }

    #[test]
    fn no_room_of_a_large_crate_is_most_of_it() {
        let lines = |low| Source {
            modules: [("low", low), ("mid", 2000), ("mid/in", 2000), ("high", 2000)]
                .map(|(m, n)| (module(m), n))
                .into(),
            uses: BTreeSet::new(),
        };
        assert_eq!(PLAN.judge(&lines(2000), &BTreeSet::new()), [""; 0]);
        assert_eq!(PLAN.judge(&lines(2100), &BTreeSet::new()), ["low has 2100 of 8100 lines: more than a quarter"]);
    }

    #[test]
    fn the_largest_cycle_is_the_one_with_most_nodes() {
        let edges = [(1, 2), (2, 1), (3, 4), (4, 5), (5, 3), (2, 3)].into();
        assert_eq!(largest_cycle(&edges), [3, 4, 5]);
        assert_eq!(largest_cycle(&[(1, 2), (2, 3)].into()), [0; 0]);
    }
}
