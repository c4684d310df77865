//! The recorded values of the counts: `lab/counts.toml`. If a row rises, its value in the file must be changed, with
//! the reason in a comment.

use std::{collections::BTreeMap, fs, path::PathBuf};

use toml_edit::{DocumentMut, Item, Value};

use crate::{
    failure::{Doing, Failure, Result},
    places::Places,
};

use super::{Section, guest::Row};

/// The relative rise above the recorded value from which a row fails.
const MOST_RISE: f64 = 0.02;
/// The relative fall below the recorded value from which a row needs a new value.
const MOST_FALL: f64 = 0.05;

/// Half of the last digit of a small value in the file.
const RESOLUTION: f64 = 0.00005;

/// The content of the file.
#[derive(Debug, Clone, PartialEq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kept {
    /// The compiler that built the kernel.
    pub compiler: String,
    /// The kernel's instructions for one execution of an operation, by the operation's name.
    #[serde(default)]
    pub kernel: BTreeMap<String, f64>,
    /// The kernel's instructions for requests to server programs, by name.
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

/// The path of the file.
pub fn path(places: &Places) -> PathBuf {
    places.root.join("lab/counts.toml")
}

/// Reads the file.
pub fn read(places: &Places) -> Result<Kept> {
    let path = path(places);
    let text = fs::read_to_string(&path).doing(|| format!("cannot read {}", path.display()))?;
    toml::from_str(&text).map_err(|e| Failure::usage(format_args!("{}: {e}", path.display())))
}

/// The result of a comparison of a measured value with the recorded one.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    /// The measured value is within the bounds.
    Holds,
    /// The measured value is too far above the recorded value. The field is the recorded value.
    Rose(f64),
    /// The measured value is so far below the recorded value that a later rise would not be noticed. The field is the
    /// recorded value.
    Fell(f64),
    /// The file does not have the row.
    New,
}

/// Compares a measured value with the recorded one.
pub fn judge(kept: Option<f64>, found: f64) -> Verdict {
    match kept {
        None => Verdict::New,
        Some(kept) if found > kept * (1.0 + MOST_RISE) + RESOLUTION => Verdict::Rose(kept),
        Some(kept) if found < kept * (1.0 - MOST_FALL) - RESOLUTION => Verdict::Fell(kept),
        Some(_) => Verdict::Holds,
    }
}

/// The error message for a row; `None` if its value is within the bounds.
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

/// The text of the file with new values in a section. All other text stays unchanged: the reasons in comments, and the
/// order of rows.
pub fn replace(text: &str, compiler: &str, section: &str, rows: &[Row]) -> Result<String> {
    let mut file: DocumentMut = text.parse().map_err(|e| Failure::usage(format_args!("lab/counts.toml: {e}")))?;
    file["compiler"] = toml_edit::value(compiler);
    let section = file.entry(section).or_insert_with(toml_edit::table);
    for (name, found) in rows {
        let row = &mut section[name.as_str()];
        let reason = row.as_value().map(|value| value.decor().clone());
        let digits = if *found < 10.0 { 1e4 } else { 1e2 };
        let mut value = Value::from((found * digits).round() / digits);
        if let Some(reason) = reason {
            *value.decor_mut() = reason;
        }
        *row = Item::Value(value);
    }
    Ok(file.to_string())
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
        let rows = [("a".to_owned(), 3.0), ("b".to_owned(), 4.123_456), ("c".to_owned(), 50.129)];
        let new = replace(text, "d", "kernel", &rows).unwrap();
        assert_eq!(
            new,
            "# head\ncompiler = \"d\"\n\n[kernel]\nb = 4.1235 # it pays for x\na = 3.0\nc = 50.13\n\n[hosted]\na = \
                7.00\n"
        );
        let more = replace(&new, "d", "servers", &[("redis".to_owned(), 1.0)]).unwrap();
        let kept: Kept = toml::from_str(&more).unwrap();
        assert_eq!((kept.kernel["c"], kept.servers["redis"], kept.hosted["a"]), (50.13, 1.0, 7.0));
        assert!(replace("no table", "d", "kernel", &rows).is_err());
    }
}
