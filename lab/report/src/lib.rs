//! Draws the results of the lab as one page of HTML, which needs no network and no other file.
//!
//! [`render`] takes [`Results`] of one machine or of several machines, and returns the page. All text of the results is
//! escaped. The page's content policy forbids the browser to load or run anything that the page does not contain.
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
    /// The runs for the history.
    pub kept: Results,
    /// The conflict matrix.
    pub conflicts: Option<Conflicts>,
    /// The stacks of one operation.
    pub profile: Option<Profile>,
}

/// Renders the page. It fails only if a template fails, which would be an error in this crate.
pub fn render(results: &Results) -> Result<String, minijinja::Error> {
    page::render(results, &Beside { kept: Results::merge([]), conflicts: None, profile: None })
}

/// Renders the page with a history of the kept runs, the conflict matrix and a flame graph.
pub fn render_beside(results: &Results, beside: &Beside) -> Result<String, minijinja::Error> {
    page::render(results, beside)
}

/// Renders a page that has only a conflict matrix.
pub fn matrix_page(title: &str, matrix: &Conflicts) -> Result<String, minijinja::Error> {
    page::alone(title, Some(matrix), None)
}

/// Renders a page that has only a flame graph.
pub fn flame_page(title: &str, profile: &Profile) -> Result<String, minijinja::Error> {
    page::alone(title, None, Some(profile))
}

/// The readable name of a case: `Quire, hosted, 2 CPUs, zero-fill faults by processes`.
fn case_name(experiment: &str, case: &Case) -> String {
    let mut name = format!("{}, {}", case.side.title(), case.place.name());
    let parameters = parameters(experiment, case);
    if !parameters.is_empty() {
        name += &format!(", {parameters}");
    }
    name
}

/// The parameters of a case in words.
fn parameters(experiment: &str, case: &Case) -> String {
    let shown = |(name, value): (&String, &quire_results::Parameter)| words::parameter(experiment, name, value);
    case.parameters.iter().map(shown).collect::<Vec<_>>().join(", ")
}
