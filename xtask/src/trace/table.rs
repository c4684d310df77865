//! The tables for the terminal: the number and the duration of events, and the most expensive places in the code.

use std::{collections::BTreeMap, fmt::Write as _};

use serde::Serialize;

use super::timeline::{Item, Sort, Timeline};

/// The text of a time in microseconds.
fn us(ns: u64) -> String {
    format!("{}.{}", ns / 1000, ns % 1000 / 100)
}

/// The smallest of the sorted lengths that is not below `percent` of all lengths.
fn quantile(sorted: &[u64], percent: usize) -> u64 {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().unwrap_or(0)
}

/// The events of one kind.
#[derive(Debug, Serialize)]
pub struct Kind {
    sort: &'static str,
    name: String,
    count: u64,
    /// The three times are 0 for kinds of events without a duration.
    total_ns: u64,
    median_ns: u64,
    p99_ns: u64,
}

/// The events of one name that one place in the code caused.
#[derive(Debug, Serialize)]
pub struct Cause {
    name: String,
    site: String,
    count: u64,
    total_ns: u64,
}

/// The sums over the whole trace.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    faults: u64,
    system_calls: u64,
    shootdowns: u64,
    /// The number of CPUs that received a request, summed over all shootdowns.
    cpus_asked: u64,
    shootdowns_ns: u64,
    /// The number of answers to shootdowns. Each answer is an interrupt.
    answers: u64,
}

/// All figures of a trace.
#[derive(Debug, Serialize)]
pub struct Tables {
    totals: Totals,
    kinds: Vec<Kind>,
    sites: Vec<Cause>,
}

impl Tables {
    /// Computes the figures, with at most `top` places in the code.
    pub fn of(timeline: &Timeline, top: usize) -> Self {
        let shown = || timeline.items.iter().filter(|i| i.sort != Sort::Run);
        // System calls are left out of the places, because a program may wait in a call for another program or for the
        // clock.
        let sites = sites(shown().filter(|i| i.sort != Sort::Call), top);
        Self { totals: Totals::of(shown()), kinds: kinds(shown()), sites }
    }

    /// The tables for the terminal.
    pub fn print(&self) -> String {
        let Totals { faults, system_calls, shootdowns, cpus_asked, shootdowns_ns, answers } = &self.totals;
        let mut text = format!(
            "{system_calls} system calls, {faults} faults, {shootdowns} shootdowns of {cpus_asked} CPUs in all \
             ({} us, {answers} answers)\n\n{:>9} {:>13} {:>11} {:>11}  what\n",
            us(*shootdowns_ns),
            "count",
            "total us",
            "median us",
            "p99 us"
        );
        for Kind { sort, name, count, total_ns, median_ns, p99_ns } in &self.kinds {
            let call = if *sort == Sort::Call.name() { "call " } else { "" };
            let [total, median, p99] =
                [total_ns, median_ns, p99_ns].map(|ns| if *ns == 0 { String::new() } else { us(*ns) });
            let _ = writeln!(text, "{count:>9} {total:>13} {median:>11} {p99:>11}  {call}{name}");
        }
        let _ = writeln!(text, "\nthe costliest sites\n{:>13} {:>9}  {:24} site", "total us", "count", "what");
        for Cause { name, site, count, total_ns } in &self.sites {
            let site = if site.is_empty() { "?" } else { site };
            let _ = writeln!(text, "{:>13} {count:>9}  {name:24} {site}", us(*total_ns));
        }
        text
    }
}

impl Totals {
    fn of<'i>(items: impl Iterator<Item = &'i Item>) -> Self {
        let mut totals = Self::default();
        for item in items {
            match (item.sort, item.name.as_str()) {
                (Sort::Call, _) => totals.system_calls += 1,
                (Sort::Fault, name) if name.starts_with("fault: ") => totals.faults += 1,
                (Sort::Shootdown, "shootdown") => {
                    totals.shootdowns += 1;
                    let asked = item.figures.iter().find(|(name, _)| *name == "CPUs");
                    totals.cpus_asked += asked.and_then(|(_, n)| n.parse::<u64>().ok()).unwrap_or(0);
                    totals.shootdowns_ns = totals.shootdowns_ns.saturating_add(item.length.unwrap_or(0));
                }
                (Sort::Shootdown, _) => totals.answers += 1,
                _ => {}
            }
        }
        totals
    }
}

fn kinds<'i>(items: impl Iterator<Item = &'i Item>) -> Vec<Kind> {
    let mut kinds: BTreeMap<(Sort, &str), (u64, Vec<u64>)> = BTreeMap::new();
    for item in items {
        let (count, lengths) = kinds.entry((item.sort, item.name.as_str())).or_default();
        *count += 1;
        lengths.extend(item.length);
    }
    let kind = |((sort, name), (count, mut lengths)): ((Sort, &str), (u64, Vec<u64>))| {
        lengths.sort_unstable();
        Kind {
            sort: sort.name(),
            name: name.to_owned(),
            count,
            total_ns: lengths.iter().fold(0, |sum, n| n.saturating_add(sum)),
            median_ns: quantile(&lengths, 50),
            p99_ns: quantile(&lengths, 99),
        }
    };
    kinds.into_iter().map(kind).collect()
}

fn sites<'i>(items: impl Iterator<Item = &'i Item>, top: usize) -> Vec<Cause> {
    let mut sites: BTreeMap<(&str, &str), (u64, u64)> = BTreeMap::new();
    for item in items {
        if let Some(length) = item.length {
            let (total, count) = sites.entry((item.name.as_str(), item.site.as_str())).or_default();
            *total = total.saturating_add(length);
            *count += 1;
        }
    }
    let cause = |((name, site), (total_ns, count)): ((&str, &str), (u64, u64))| Cause {
        name: name.to_owned(),
        site: site.to_owned(),
        count,
        total_ns,
    };
    let mut causes: Vec<_> = sites.into_iter().map(cause).collect();
    causes.sort_by_key(|cause| std::cmp::Reverse(cause.total_ns));
    causes.truncate(top);
    causes
}

#[cfg(test)]
mod tests {
    use super::super::timeline::Track;
    use super::*;

    fn item(sort: Sort, name: &str, length: Option<u64>, site: &str) -> Item {
        let (track, name, site) = (Track::Thread(1), name.to_owned(), site.to_owned());
        Item { track, sort, name, start: 0, length, cpu: 0, figures: vec![], site }
    }

    #[test]
    fn quantiles_are_lengths_that_occurred() {
        let all: Vec<u64> = (1..=200).collect();
        assert_eq!((quantile(&all, 50), quantile(&all, 99), quantile(&[5], 99), quantile(&[], 50)), (100, 198, 5, 0));
    }

    #[test]
    fn the_dearest_sites_come_first_and_calls_are_none() {
        let fault = |ns, site| item(Sort::Fault, "fault: copy", Some(ns), site);
        let items = vec![
            fault(1_000, "a"),
            fault(2_000, "b"),
            fault(3_500, "b"),
            item(Sort::Call, "wait4", Some(9_000_000), "c"),
            item(Sort::Fault, "fault around", None, "d"),
        ];
        let text = Tables::of(&Timeline { cpus: 1, items, ..Timeline::default() }, 1).print();
        let lines: Vec<_> = text.lines().map(|l| l.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert!(lines.contains(&"3 6.5 2.0 3.5 fault: copy".to_owned()), "{text}");
        assert!(lines.contains(&"1 fault around".to_owned()), "{text}");
        assert_eq!(lines.last().unwrap(), "5.5 2 fault: copy b");
        assert!(!lines.iter().any(|l| l.ends_with(" c") || l.ends_with(" a")), "{text}");
    }

    #[test]
    fn totals_count_shootdowns_and_the_cpus_that_they_ask() {
        let shootdown = |cpus: &str, ns| Item {
            figures: vec![("CPUs", cpus.to_owned())],
            ..item(Sort::Shootdown, "shootdown", Some(ns), "a")
        };
        let items = [
            shootdown("1", 1_000),
            shootdown("3", 500),
            item(Sort::Shootdown, "shootdown answered", Some(10), ""),
            item(Sort::Fault, "fault: copy", Some(10), ""),
            item(Sort::Fault, "fault around", None, ""),
            item(Sort::Call, "mmap", Some(10), ""),
        ];
        let totals =
            Totals { faults: 1, system_calls: 1, shootdowns: 2, cpus_asked: 4, shootdowns_ns: 1_500, answers: 1 };
        assert_eq!(Totals::of(items.iter()), totals);
    }
}
