//! Draws what a run of Quire's lab found: one page of HTML that needs no network and nothing beside it.
//!
//! [`render`] takes [`Results`], of one machine or of several, and gives the page. Everything of the results that is text is
//! escaped, and the page's own policy forbids it to load or run anything but what the page came with.
#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod behind;
mod change;
mod escape;
mod number;
mod page;
mod plot;
mod summary;
mod table;

use quire_results::{Case, Results};

/// The page. It fails only if a template does, which would be a bug of ours.
pub fn render(results: &Results) -> Result<String, minijinja::Error> {
    page::render(results)
}

/// A case for people: `Quire, hosted, cpus 2, what threads`.
fn case_name(case: &Case) -> String {
    let mut name = format!("{}, {}", case.side.title(), case.place.name());
    let parameters = parameters(case);
    if !parameters.is_empty() {
        name += &format!(", {parameters}");
    }
    name
}

/// Its parameters.
fn parameters(case: &Case) -> String {
    let shown = |(name, value): (&String, &quire_results::Parameter)| match value {
        quire_results::Parameter::Number(n) => format!("{name} {}", number::short(*n)),
        quire_results::Parameter::Text(t) => format!("{name} {t}"),
    };
    case.parameters.iter().map(shown).collect::<Vec<_>>().join(", ")
}
