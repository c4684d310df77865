//! The text of figures: three significant digits, and a prefix that keeps the text short.

use quire_results::statistics::Interval;

/// The space between a number and its prefix or unit. A browser does not break a line at this space.
const THIN: char = '\u{202f}';

/// The text of a value of this unit: `1.23 M`, `456 µs`. The text includes the unit of times and sizes, because the
/// unit depends on the value. The text leaves out other units.
pub fn value(value: f64, unit: &str) -> String {
    if !value.is_finite() {
        return short(value);
    }
    let (head, tail) = match unit.split_once('/') {
        Some((head, tail)) => (head, Some(tail)),
        None => (unit, None),
    };
    let per = |text: String| match tail {
        Some(tail) => format!("{text}/{tail}"),
        None => text,
    };
    if let Some(seconds) = seconds(head) {
        per(prefixed(value * seconds, &[(1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")]))
    } else if let Some(bytes) = bytes(head) {
        let prefixes = [(TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB"), (1.0, "B")];
        per(prefixed(value * bytes, &prefixes))
    } else {
        short(value)
    }
}

/// Whether the text of [`value`] includes the unit.
pub fn tells_unit(unit: &str) -> bool {
    let head = unit.split_once('/').map_or(unit, |(head, _)| head);
    seconds(head).is_some() || bytes(head).is_some()
}

/// A number without a unit, with three digits: `0.0123`, `12.3`, `1.23 k`, `4.56 G`.
pub fn short(value: f64) -> String {
    if value.is_nan() {
        return "no number".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "∞" } else { "−∞" }.to_owned();
    }
    let size = value.abs();
    if size != 0.0 && !(1e-4..1e15).contains(&size) {
        return format!("{value:.2e}").replace('-', "−");
    }
    // The limits include rounding: 999.9 is shown as 1 k, not as 1000.
    match size {
        s if s < 999.5 => digits(value),
        s if s < 999.5e3 => format!("{}{THIN}k", digits(value / 1e3)),
        s if s < 999.5e6 => format!("{}{THIN}M", digits(value / 1e6)),
        s if s < 999.5e9 => format!("{}{THIN}G", digits(value / 1e9)),
        _ => format!("{}{THIN}T", digits(value / 1e12)),
    }
}

/// The texts of a value and of its interval. The text of the interval is `None` for one sample, and empty for an
/// interval of one point.
pub fn interval(of: &Interval, show: impl Fn(f64) -> String) -> (String, Option<String>) {
    let middle = show(of.middle);
    let spread = if !of.low.is_finite() || !of.high.is_finite() {
        None
    } else if of.low == of.high {
        Some(String::new())
    } else {
        Some(format!("{}–{}", show(of.low), show(of.high)))
    };
    (middle, spread)
}

/// The text of a ratio.
pub fn times(quotient: f64) -> String {
    format!("{}×", short(quotient))
}

const KIB: f64 = 1024.0;
const MIB: f64 = KIB * 1024.0;
const GIB: f64 = MIB * 1024.0;
const TIB: f64 = GIB * 1024.0;

fn seconds(unit: &str) -> Option<f64> {
    match unit {
        "s" | "seconds" => Some(1.0),
        "ms" => Some(1e-3),
        "us" | "µs" => Some(1e-6),
        "ns" => Some(1e-9),
        _ => None,
    }
}

fn bytes(unit: &str) -> Option<f64> {
    match unit {
        "B" | "bytes" => Some(1.0),
        "KiB" => Some(KIB),
        "MiB" => Some(MIB),
        "GiB" => Some(GIB),
        _ => None,
    }
}

/// The number with the largest prefix for which the shown number is at least 1. If no prefix is that small, the last
/// prefix is used.
fn prefixed(value: f64, prefixes: &[(f64, &str)]) -> String {
    let fits = |(factor, _): &&(f64, &str)| value.abs() >= *factor * 0.9995;
    let least = prefixes.last().copied().unwrap_or((1.0, ""));
    let (factor, name) = match value {
        0.0 => least,
        _ => prefixes.iter().find(fits).copied().unwrap_or(least),
    };
    format!("{}{THIN}{name}", short(value / factor))
}

/// Three significant digits, without zeros at the end of a fraction.
fn digits(value: f64) -> String {
    let size = value.abs();
    let places = match size {
        s if s >= 99.95 || s == 0.0 => 0,
        s if s >= 9.995 => 1,
        s if s >= 0.9995 => 2,
        s => 2 + (-s.log10()).ceil() as usize,
    };
    let text = format!("{value:.places$}");
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    let text = if text == "-0" { "0" } else { text };
    text.replace('-', "−")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(text: &str) -> String {
        text.replace(THIN, " ")
    }

    #[test]
    fn numbers_have_three_digits_and_a_prefix() {
        let cases = [
            (0.0, "0"),
            (1.0, "1"),
            (1.0 / 3.0, "0.333"),
            (0.0123, "0.0123"),
            (12.34, "12.3"),
            (-12.34, "−12.3"),
            (999.9, "1 k"),
            (1234.0, "1.23 k"),
            (4.5678e6, "4.57 M"),
            (2e9, "2 G"),
            (3e13, "30 T"),
            (1e-7, "1.00e−7"),
            (f64::INFINITY, "∞"),
            (f64::NAN, "no number"),
        ];
        for (value, expected) in cases {
            assert_eq!(plain(&short(value)), expected, "{value}");
        }
    }

    #[test]
    fn times_and_bytes_change_their_unit_with_their_size() {
        let cases = [
            (1500.0, "ns", "1.5 µs"),
            (2.0, "s", "2 s"),
            (0.25, "ns", "0.25 ns"),
            (750.0, "ns/fault", "750 ns/fault"),
            (1536.0, "bytes", "1.5 KiB"),
            (64.0, "MiB", "64 MiB"),
            (0.0, "ms", "0 ns"),
            (12_000.0, "faults/s", "12 k"),
        ];
        for (v, unit, expected) in cases {
            assert_eq!(plain(&value(v, unit)), expected, "{v} {unit}");
        }
    }

    #[test]
    fn any_number_is_told() {
        for exponent in -330..310 {
            let v = 9.996 * 10f64.powi(exponent);
            for unit in ["ns", "KiB", "x/s", ""] {
                assert!(!value(v, unit).is_empty() && !value(-v, unit).is_empty());
            }
        }
    }
}
