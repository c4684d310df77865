//! The tables on the terminal: how often each event occurred and how long it took, and which code was expensive.

use std::{collections::BTreeMap, fmt::Write as _};

use super::timeline::{Item, Sort, Timeline};

/// Nanoseconds as microseconds.
fn us(ns: u64) -> String {
    format!("{}.{}", ns / 1000, ns % 1000 / 100)
}

/// In a sorted list of lengths: the least that `percent` of all do not exceed.
fn quantile(sorted: &[u64], percent: usize) -> u64 {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().unwrap_or(0)
}

/// Both tables, the second with `top` rows at most.
pub fn print(timeline: &Timeline, top: usize) -> String {
    let shown = || timeline.items.iter().filter(|i| i.sort != Sort::Run);
    let mut text = kinds(shown());
    // A program's waits for another program, or for the clock, are its own business.
    text.push_str(&sites(shown().filter(|i| i.sort != Sort::Call), top));
    text
}

fn kinds<'i>(items: impl Iterator<Item = &'i Item>) -> String {
    let mut kinds: BTreeMap<(Sort, &str), (u64, Vec<u64>)> = BTreeMap::new();
    for item in items {
        let (count, lengths) = kinds.entry((item.sort, item.name.as_str())).or_default();
        *count += 1;
        lengths.extend(item.length);
    }
    let mut text = format!("{:>9} {:>13} {:>11} {:>11}  what\n", "count", "total us", "median us", "p99 us");
    for ((sort, name), (count, mut lengths)) in kinds {
        lengths.sort_unstable();
        let total = lengths.iter().fold(0, |sum, n| n.saturating_add(sum));
        let (total, median, p99) = match lengths.is_empty() {
            true => Default::default(),
            false => (us(total), us(quantile(&lengths, 50)), us(quantile(&lengths, 99))),
        };
        let name = if sort == Sort::Call { format!("call {name}") } else { name.to_owned() };
        let _ = writeln!(text, "{count:>9} {total:>13} {median:>11} {p99:>11}  {name}");
    }
    text
}

fn sites<'i>(items: impl Iterator<Item = &'i Item>, top: usize) -> String {
    let mut sites: BTreeMap<(&str, &str), (u64, u64)> = BTreeMap::new();
    for item in items {
        if let Some(length) = item.length {
            let (total, count) = sites.entry((item.name.as_str(), item.site.as_str())).or_default();
            *total = total.saturating_add(length);
            *count += 1;
        }
    }
    let mut rows: Vec<_> = sites.into_iter().collect();
    rows.sort_by_key(|(_, (total, _))| std::cmp::Reverse(*total));
    let mut text = format!("\nthe costliest sites\n{:>13} {:>9}  {:24} site\n", "total us", "count", "what");
    for ((name, site), (total, count)) in rows.into_iter().take(top) {
        let _ = writeln!(text, "{:>13} {count:>9}  {name:24} {}", us(total), if site.is_empty() { "?" } else { site });
    }
    text
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
        let text = print(&Timeline { cpus: 1, items, ..Timeline::default() }, 1);
        let lines: Vec<_> = text.lines().map(|l| l.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert!(lines.contains(&"3 6.5 2.0 3.5 fault: copy".to_owned()), "{text}");
        assert!(lines.contains(&"1 fault around".to_owned()), "{text}");
        assert_eq!(lines.last().unwrap(), "5.5 2 fault: copy b");
        assert!(!lines.iter().any(|l| l.ends_with(" c") || l.ends_with(" a")), "{text}");
    }
}
