//! Draws the results of a run of Quire's lab: one page of HTML that needs no network and no other file.
//!
//! [`render`] takes [`Results`], of one machine or of several, and returns the page. All text of the results is
//! escaped. The page's own policy forbids it to load or run anything that the page does not contain.
#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod change;
mod escape;
mod front;
mod history;
mod number;
mod page;
mod picture;
mod plot;
mod summary;
mod table;
mod words;

use quire_results::{Case, Results};

pub use picture::faults;

/// The page. It fails only if a template does, which would be a bug of ours.
pub fn render(results: &Results) -> Result<String, minijinja::Error> {
    page::render(results, &Results::merge([]))
}

/// The page with a history of the kept runs.
pub fn render_beside(results: &Results, kept: &Results) -> Result<String, minijinja::Error> {
    page::render(results, kept)
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
