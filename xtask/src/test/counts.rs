//! The costs of operations: instructions of the kernel in a guest, and counts of the memory core on the hosted machine.
//! No row may be higher than its value in `lab/counts.toml` ([`crate::counts`]).

use super::{Context, verdict::Check};
use crate::{
    boot::{Kernel, On},
    counts::{Section, kept},
    failure::Result,
    setup::toolchain,
};

fn name(section: Section, row: &str) -> String {
    format!("counts/{}/{row}", section.name())
}

/// The checks' names: one for each row.
pub fn names(context: &Context<'_>) -> Result<Vec<String>> {
    let kept = kept::read(context.places)?;
    Ok(Section::ALL
        .into_iter()
        .flat_map(|section| kept.rows(section).keys().map(move |row| name(section, row)))
        .collect())
}

/// Measures each section of which a row is selected.
pub fn run(context: &Context<'_>, done: &mut dyn FnMut(Check)) -> Result<()> {
    if context.names_another("counts") {
        return Ok(());
    }
    let kept = kept::read(context.places)?;
    for section in Section::ALL {
        let values = kept.rows(section);
        if !values.keys().any(|row| context.selects(&name(section, row))) {
            continue;
        }
        // Another compiler makes another kernel. The values for it must be kept by a separate commit.
        let compiler = toolchain::compiler(context.places)?;
        if section != Section::Hosted && compiler != kept.compiler {
            let why = format!("the values are of {}, and this kernel is by {compiler}", kept.compiler);
            done(Check::skipped(name(section, "all rows"), why, false));
            continue;
        }
        if section == Section::Hosted {
            super::cargo::build_lab(context)?;
        }
        let kernel = Kernel::with(context.places, On::Quire, || context.kernel())?;
        let found = section.count(context.places, &kernel, &[], false)?;
        for row in values.keys().filter(|row| !found.iter().any(|(name, _)| name == *row)) {
            done(Check::failed(name(section, row), "was not counted; take its row out of lab/counts.toml"));
        }
        for (row, value) in &found {
            let name = name(section, row);
            if context.selects(&name) {
                done(Check::of(name, kept::complaint(values.get(row).copied(), *value).map_or(Ok(()), Err)));
            }
        }
    }
    Ok(())
}
