//! `./quire counts`: the kernel's instructions for each operation, compared with recorded values, with another commit's
//! kernel, or with Linux. The test stage `counts` compares them with `lab/counts.toml` ([`kept`]).

pub mod guest;
pub mod kept;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use comfy_table::{CellAlignment, Table, presets};

use crate::{
    bench,
    boot::{Kernel, On},
    build, cli,
    failure::{Doing, Failure, Result},
    places::Places,
    progress::Step,
    setup::toolchain,
};
use guest::Row;

/// The sections of `lab/counts.toml`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Section {
    /// The kernel's instructions for operations of one program.
    Kernel,
    /// The kernel's instructions for requests to server programs.
    Servers,
    /// Cache lines, locks and allocations of the memory core's operations on the hosted machine.
    Hosted,
}

impl Section {
    /// All sections of the file.
    pub const ALL: [Section; 3] = [Section::Kernel, Section::Servers, Section::Hosted];

    /// The section's name in the file.
    pub fn name(self) -> &'static str {
        match self {
            Section::Kernel => "kernel",
            Section::Servers => "servers",
            Section::Hosted => "hosted",
        }
    }

    /// Counts the rows whose names contain one of `words`, or all rows. With `lenient`, operations that the kernel does
    /// not have are left out.
    pub fn count(self, places: &Places, kernel: &Kernel, words: &[String], lenient: bool) -> Result<Vec<Row>> {
        let mut rows = match self {
            Section::Kernel => guest::operations(places, kernel, words, lenient)?,
            Section::Servers => guest::servers(places, kernel)?,
            Section::Hosted => bench::counts(places)?,
        };
        rows.retain(|(name, _)| words.is_empty() || words.iter().any(|word| selects(word, name)));
        Ok(rows)
    }
}

/// Whether `word` selects the row `name`, as the guest's program does it: `=NAME` selects exactly that name.
fn selects(word: &str, name: &str) -> bool {
    word.strip_prefix('=').map_or_else(|| name.contains(word), |exact| exact == name)
}

/// Prints the tables, and stores the values if the options say so.
pub fn command(places: &Places, options: &cli::Counts) -> Result<u8> {
    let kernel = Kernel::ready(places, On::Quire)?;
    let beside = match (&options.against, options.linux) {
        (Some(commit), _) => Some((commit.clone(), Kernel::with(places, On::Quire, || at_commit(places, commit))?)),
        (None, true) => {
            let linux = Kernel::ready(places, On::Linux)?;
            Some((linux.name.clone(), linux))
        }
        (None, false) => None,
    };
    let sections = if options.all { &Section::ALL[..] } else { &Section::ALL[..1] };
    let mut found = false;
    for section in sections {
        let step = Step::new(format!("counting: {}", section.name()));
        let ours = section.count(places, &kernel, &options.names, false)?;
        let (name, theirs) = match &beside {
            // The section `Hosted` is skipped, because the hosted machine runs no kernel.
            Some(_) if *section == Section::Hosted => continue,
            Some((name, other)) => (name.as_str(), section.count(places, other, &options.names, true)?),
            None => ("kept", kept::read(places)?.rows(*section).clone().into_iter().collect()),
        };
        drop(step);
        if ours.is_empty() {
            continue;
        }
        found = true;
        println!("{}", table(*section, name, &ours, &theirs));
        if options.keep {
            keep(places, *section, &ours, options.names.is_empty() && options.all)?;
        }
    }
    if found { Ok(0) } else { Err(Failure::usage("no operation has a name with these words")) }
}

/// Writes rows of a section to `lab/counts.toml`. All rows of the file must come from one compiler.
fn keep(places: &Places, section: Section, rows: &[Row], all: bool) -> Result<()> {
    let path = kept::path(places);
    let text = fs::read_to_string(&path).doing(|| format!("cannot read {}", path.display()))?;
    let (compiler, before) = (toolchain::compiler(places)?, kept::read(places)?.compiler);
    if compiler != before && !all {
        return Err(Failure::usage(format_args!("the values are of {before}: keep all rows of {compiler} at once")));
    }
    let new = kept::replace(&text, &compiler, section.name(), rows)?;
    fs::write(&path, new).doing(|| format!("cannot write {}", path.display()))
}

/// The table of both sides, with the ratio of Quire's value to the other side's value.
fn table(section: Section, name: &str, ours: &[Row], theirs: &[Row]) -> Table {
    let theirs: BTreeMap<&str, f64> = theirs.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN).set_header([section.name(), "Quire", name, "ratio"]);
    for column in 1..4 {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let mut ratios = Vec::new();
    for (name, value) in ours {
        let other = theirs.get(name.as_str());
        let ratio = other.filter(|other| **other > 0.0).map(|other| value / other);
        ratios.extend(ratio);
        table.add_row([
            name.clone(),
            format!("{value:.1}"),
            other.map_or("-".to_owned(), |other| format!("{other:.1}")),
            ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.3}")),
        ]);
    }
    if let Some(median) = quire_results::statistics::median(&ratios) {
        table.add_row(["median of the ratios".to_owned(), String::new(), String::new(), format!("{median:.3}")]);
    }
    table
}

/// Builds the kernel of another commit from a copy of its tree below `target/counts`. Returns the kernel's path.
fn at_commit(places: &Places, commit: &str) -> Result<PathBuf> {
    let hash = git(places, &["rev-parse", "--verify", "--quiet", &format!("{commit}^{{commit}}")])
        .map_err(|_| Failure::usage(format_args!("{commit} names no commit of this repository")))?;
    let home = places.target.join("counts");
    let _lock = places.lock("counts")?;
    let kernel = home.join(format!("kernel-{hash}"));
    if kernel.is_file() {
        return Ok(kernel);
    }
    let tree = home.join("tree");
    let about = || format!("cannot make {}", tree.display());
    if tree.exists() {
        fs::remove_dir_all(&tree).doing(about)?;
    }
    fs::create_dir_all(&tree).doing(about)?;
    unpack(places, &hash, &tree)?;
    // The build directory is kept, so that only the files that differ between commits are compiled again.
    let there = Places { root: tree.clone(), target: home.join("target"), ..places.clone() };
    fs::copy(build::compiled(&there)?, &kernel).doing(|| format!("cannot keep {}", kernel.display()))?;
    fs::remove_dir_all(&tree).doing(about)?;
    Ok(kernel)
}

/// Writes the tree of a commit into an empty directory.
fn unpack(places: &Places, hash: &str, to: &Path) -> Result<()> {
    let about = || format!("cannot unpack {hash}");
    let mut archive = Command::new("git")
        .args(["archive", "--format=tar", hash])
        .current_dir(&places.root)
        .stdout(Stdio::piped())
        .spawn()
        .doing(about)?;
    let tar = archive.stdout.take().map(Stdio::from).unwrap_or_else(Stdio::null);
    // The files get the current time. With the commit's time, an earlier build of a later commit would count as up to
    // date.
    let unpacked = Command::new("tar").arg("-xm").current_dir(to).stdin(tar).status().doing(about)?;
    let archived = archive.wait().doing(about)?;
    if archived.success() && unpacked.success() {
        return Ok(());
    }
    Err(Failure::machine(format_args!("{}: git ended with {archived}, tar with {unpacked}", about())))
}

/// The output of a git command.
fn git(places: &Places, words: &[&str]) -> Result<String> {
    let out = Command::new("git")
        .args(words)
        .current_dir(&places.root)
        .output()
        .doing(|| format!("cannot run git {}", words.join(" ")))?;
    if !out.status.success() {
        return Err(Failure::machine(format_args!("git {} ended with {}", words.join(" "), out.status)));
    }
    Ok(String::from_utf8_lossy(&out.stdout).trim().to_owned())
}
