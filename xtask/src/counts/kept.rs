//! The values that the counts had when they were last kept: `lab/counts.toml`. A row that rises needs a new value with
//! its reason beside it.

use std::{collections::BTreeMap, fs, path::PathBuf};

use crate::{
    failure::{Doing, Failure, Result},
    places::Places,
};

use super::{Section, guest::Row};

/// A row fails above so much more than its value.
const MOST_RISE: f64 = 0.02;
/// A row that fell by more asks for its new value.
const MOST_FALL: f64 = 0.05;

/// Half of the last digit of a small value in the file.
const RESOLUTION: f64 = 0.00005;

/// The file's values.
#[derive(Debug, Clone, PartialEq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kept {
    /// The compiler that built the kernel.
    pub compiler: String,
    /// Instructions of the kernel for one execution, by operation.
    #[serde(default)]
    pub kernel: BTreeMap<String, f64>,
    /// The same of server programs.
    #[serde(default)]
    pub servers: BTreeMap<String, f64>,
    /// Counts of the memory core on the hosted machine.
    #[serde(default)]
    pub hosted: BTreeMap<String, f64>,
}

impl Kept {
    /// The rows of a section.
    pub fn rows(&self, section: Section) -> &BTreeMap<String, f64> {
        match section {
            Section::Kernel => &self.kernel,
            Section::Servers => &self.servers,
            Section::Hosted => &self.hosted,
        }
    }
}

/// The file.
pub fn path(places: &Places) -> PathBuf {
    places.root.join("lab/counts.toml")
}

/// Reads the file.
pub fn read(places: &Places) -> Result<Kept> {
    let path = path(places);
    let text = fs::read_to_string(&path).doing(|| format!("cannot read {}", path.display()))?;
    toml::from_str(&text).map_err(|e| Failure::usage(format_args!("{}: {e}", path.display())))
}

/// How a row stands against its kept value.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    /// Within the bounds.
    Holds,
    /// More than the bound above its value.
    Rose(f64),
    /// So much lower that a rise back would not be noticed.
    Fell(f64),
    /// The file has no such row.
    New,
}

/// Judges a measured value.
pub fn judge(kept: Option<f64>, found: f64) -> Verdict {
    match kept {
        None => Verdict::New,
        Some(kept) if found > kept * (1.0 + MOST_RISE) + RESOLUTION => Verdict::Rose(kept),
        Some(kept) if found < kept * (1.0 - MOST_FALL) - RESOLUTION => Verdict::Fell(kept),
        Some(_) => Verdict::Holds,
    }
}

/// The complaint about a row, if there is one.
pub fn complaint(kept: Option<f64>, found: f64) -> Option<String> {
    let change = |kept: f64| (found / kept - 1.0) * 100.0;
    match judge(kept, found) {
        Verdict::Holds => None,
        Verdict::Rose(kept) => Some(format!(
            "rose from {kept:.2} to {found:.2} ({:+.1} %). Lower it, or edit its row of lab/counts.toml and give the \
             reason beside it",
            change(kept)
        )),
        Verdict::Fell(kept) => Some(format!(
            "fell from {kept:.2} to {found:.2} ({:+.1} %). Keep the new value: ./quire counts --keep",
            change(kept)
        )),
        Verdict::New => Some(format!("is {found:.2}, and lab/counts.toml has no such row: ./quire counts --keep")),
    }
}

/// Writes the rows of a section, and keeps all other text: the reasons behind values, and the order of rows.
pub fn replace(text: &str, section: &str, rows: &[Row]) -> String {
    let mut left: Vec<&Row> = rows.iter().collect();
    let mut out: Vec<String> = Vec::new();
    let mut inside = false;
    let head = format!("[{section}]");
    let mut found = false;
    let line_of = |(name, value): &Row, tail: &str| match *value < 10.0 {
        true => format!("{name} = {value:.4}{tail}"),
        false => format!("{name} = {value:.2}{tail}"),
    };
    for line in text.lines() {
        if line.starts_with('[') {
            if inside {
                add(&mut out, left.drain(..).map(|row| line_of(row, "")));
            }
            inside = line.trim_end() == head;
            found |= inside;
        }
        let name = line.split(['=', ' ']).next().unwrap_or_default();
        match left.iter().position(|row| inside && row.0 == name) {
            Some(at) => {
                let tail = line.find('#').map_or(String::new(), |at| format!(" {}", &line[at..]));
                out.push(line_of(left.remove(at), &tail));
            }
            None => out.push(line.to_owned()),
        }
    }
    if !found {
        add(&mut out, [String::new(), head].into_iter());
    }
    add(&mut out, left.into_iter().map(|row| line_of(row, "")));
    out.join("\n") + "\n"
}

/// Adds lines before the empty lines at the end.
fn add(out: &mut Vec<String>, lines: impl Iterator<Item = String>) {
    let at = out.iter().rposition(|line| !line.is_empty()).map_or(0, |last| last + 1);
    let gap = out.split_off(at);
    out.extend(lines);
    out.extend(gap);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_may_vary_by_two_percent_and_fall_by_five() {
        assert_eq!(judge(Some(1000.0), 1020.0), Verdict::Holds);
        assert_eq!(judge(Some(1000.0), 1021.0), Verdict::Rose(1000.0));
        assert_eq!(judge(Some(1000.0), 951.0), Verdict::Holds);
        assert_eq!(judge(Some(1000.0), 949.0), Verdict::Fell(1000.0));
        assert_eq!(judge(Some(0.0), 0.0), Verdict::Holds);
        assert_eq!(judge(Some(0.0), 0.01), Verdict::Rose(0.0));
        assert_eq!(judge(None, 5.0), Verdict::New);
    }

    #[test]
    fn new_values_keep_reasons_and_order() {
        let text = "# head\ncompiler = \"c\"\n\n[kernel]\nb = 1.00 # it pays for x\na = 2.00\n\n[hosted]\na = 7.00\n";
        let rows = [("a".to_owned(), 3.0), ("b".to_owned(), 4.5), ("c".to_owned(), 50.0)];
        let new = replace(text, "kernel", &rows);
        assert_eq!(
            new,
            "# head\ncompiler = \"c\"\n\n[kernel]\nb = 4.5000 # it pays for x\na = 3.0000\nc = 50.00\n\n[hosted]\na = 7.00\n"
        );
        let more = replace(&new, "servers", &[("redis".to_owned(), 1.0)]);
        let kept: Kept = toml::from_str(&more).unwrap();
        assert_eq!((kept.kernel["c"], kept.servers["redis"], kept.hosted["a"]), (50.0, 1.0, 7.0));
    }
}
