//! The table of both sides: medians, their ratio, and the interval of the ratio.

use comfy_table::{CellAlignment, Table, presets};
use quire_results::statistics::{Interval, SURE, median, ratio};
use serde::Serialize;

/// The values of one figure in the runs of both sides.
#[derive(Debug, Default, Clone, PartialEq, Serialize)]
pub struct Row {
    /// The name of the figure.
    pub name: String,
    /// The figure's unit.
    pub unit: String,
    /// Quire's values, in the order of the runs.
    pub quire: Vec<f64>,
    /// Linux's values, in the order of the runs.
    pub linux: Vec<f64>,
}

impl Row {
    /// Whether any value is not zero.
    pub fn says_something(&self) -> bool {
        self.quire.iter().chain(&self.linux).any(|v| *v != 0.0)
    }
}

/// The rows as a table. The head of the first column is `first`.
pub fn table(first: &str, rows: &[Row]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN).set_header([
        first,
        "Quire",
        "Linux",
        "Quire / Linux",
        &sureness(rows),
        "unit",
    ]);
    for column in 1..5 {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    for row in rows {
        let quotient = ratio(&row.quire, &row.linux);
        table.add_row([
            row.name.clone(),
            figure(median(&row.quire)),
            figure(median(&row.linux)),
            quotient.map_or("-".into(), |q| format!("{:.2}", q.middle)),
            spread(quotient),
            row.unit.clone(),
        ]);
    }
    table
}

/// The headline of the column of intervals. With few runs an interval is only a range, because an interval with 95 %
/// confidence needs more runs.
fn sureness(rows: &[Row]) -> String {
    let runs = rows.iter().map(|r| r.quire.len().min(r.linux.len())).filter(|n| *n > 0).min();
    match runs {
        None | Some(1) => "interval".to_owned(),
        Some(n @ 2..=3) => format!("range of {n} runs"),
        // This interval is somewhat smaller than the range, and less certain than an interval of more runs.
        Some(n) if n < SURE => format!("interval of {n} runs"),
        Some(_) => "95 % interval".to_owned(),
    }
}

/// The interval of the ratio. `none` means that there may be no difference, and `-` that one run gives no interval.
fn spread(quotient: Option<Interval>) -> String {
    match quotient {
        Some(q) if !q.high.is_finite() => "-".into(),
        Some(q) if q.low == 1.0 && q.high == 1.0 => "equal".into(),
        Some(q) if q.holds(1.0) => "none".into(),
        Some(q) => format!("{:.2} to {:.2}", q.low, q.high),
        None => "-".into(),
    }
}

/// A number with about four significant digits. Whole numbers are exact.
fn figure(value: Option<f64>) -> String {
    match value {
        None => "-".into(),
        Some(v) if v.abs() >= 1000.0 || v.fract() == 0.0 => format!("{v:.0}"),
        Some(v) if v.abs() >= 10.0 => format!("{v:.1}"),
        Some(v) => format!("{v:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, quire: &[f64], linux: &[f64]) -> Row {
        Row { name: name.into(), unit: "ns".into(), quire: quire.to_vec(), linux: linux.to_vec() }
    }

    fn cells(row: Row) -> Vec<String> {
        let text = table("name", &[row]).to_string();
        text.lines().last().unwrap().split('|').map(|cell| cell.trim().to_owned()).collect()
    }

    #[test]
    fn the_table_holds_both_sides_their_ratio_and_where_it_lies() {
        let far = cells(row("fault", &[50.0, 52.0, 51.0], &[200.0, 204.0, 199.0]));
        assert_eq!(far[1..5], ["fault", "51", "200", "0.26"]);
        assert!(far[5].starts_with("0.2") && far[5].contains(" to "), "{far:?}");
        assert_eq!(cells(row("odd", &[1.0], &[]))[2..6], ["1", "-", "-", "-"]);
        assert_eq!(cells(row("once", &[1.0], &[2.0]))[2..6], ["1", "2", "0.50", "-"]);
    }

    #[test]
    fn no_confidence_is_printed_for_few_runs() {
        let head = |runs: usize| {
            let values: Vec<f64> = (0..runs).map(|n| n as f64).collect();
            let rows = [row("a", &values, &values), row("of one side", &values, &[])];
            table("name", &rows).to_string().lines().next().unwrap().to_owned()
        };
        assert!(head(3).contains("range of 3 runs") && !head(3).contains('%'));
        assert!(head(5).contains("interval of 5 runs") && !head(5).contains('%'));
        assert!(head(9).contains("95 % interval"));
        assert!(!head(1).contains("range"));
    }

    #[test]
    fn where_the_ratio_may_be_one_there_is_no_difference() {
        assert_eq!(cells(row("near", &[10.0, 12.0, 11.0], &[11.0, 10.0, 12.0]))[5], "none");
        assert_eq!(cells(row("same", &[7.0, 7.0], &[7.0, 7.0]))[5], "equal");
    }
}
