//! Draws what a run of Quire's lab found: one page of HTML that needs no network and nothing beside it.
//!
//! [`render`] takes [`Results`], of one machine or of several, and gives the page. Everything of the results that is text is
//! escaped, and the page's own policy forbids it to load or run anything but what the page came with.
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

/// The same with a history of the runs that are kept beside.
pub fn render_beside(results: &Results, kept: &Results) -> Result<String, minijinja::Error> {
    page::render(results, kept)
}

/// A case for people: `Quire, hosted, 2 CPUs, zero-fill faults by processes`.
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
