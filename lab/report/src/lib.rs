//! Draws the results of a run of Quire's lab: one page of HTML that needs no network and no other file.
//!
//! [`render`] takes [`Results`], of one machine or of several, and returns the page. All text of the results is
//! escaped. The page's own policy forbids it to load or run anything that the page does not contain.
#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod change;
mod conflicts;
mod escape;
mod flame;
mod front;
mod history;
mod number;
mod page;
mod picture;
mod plot;
mod summary;
mod table;
mod words;

use quire_results::{Case, Results, conflicts::Conflicts, profile::Profile};

pub use picture::faults;

/// The kept files that the page shows beside the results.
#[derive(Debug, Clone)]
pub struct Beside {
    /// Runs of the history.
    pub kept: Results,
    /// The conflict matrix.
    pub conflicts: Option<Conflicts>,
    /// The stacks of one operation.
    pub profile: Option<Profile>,
}

/// The page. It fails only if a template does, which would be a bug of ours.
pub fn render(results: &Results) -> Result<String, minijinja::Error> {
    page::render(results, &Beside { kept: Results::merge([]), conflicts: None, profile: None })
}

/// The page with a history of the kept runs, the conflict matrix and a flame graph.
pub fn render_beside(results: &Results, beside: &Beside) -> Result<String, minijinja::Error> {
    page::render(results, beside)
}

/// A page with a conflict matrix alone.
pub fn matrix_page(title: &str, matrix: &Conflicts) -> Result<String, minijinja::Error> {
    page::alone(title, Some(matrix), None)
}

/// A page with a flame graph alone.
pub fn flame_page(title: &str, profile: &Profile) -> Result<String, minijinja::Error> {
    page::alone(title, None, Some(profile))
}

/// A case's name for people: `Quire, hosted, 2 CPUs, zero-fill faults by processes`.
fn case_name(experiment: &str, case: &Case) -> String {
    let mut name = format!("{}, {}", case.side.title(), case.place.name());
    let parameters = parameters(experiment, case);
    if !parameters.is_empty() {
        name += &format!(", {parameters}");
    }
    name
}

/// Its parameters in words.
fn parameters(experiment: &str, case: &Case) -> String {
    let shown = |(name, value): (&String, &quire_results::Parameter)| words::parameter(experiment, name, value);
    case.parameters.iter().map(shown).collect::<Vec<_>>().join(", ")
}
