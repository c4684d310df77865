//! Checks by the compiler's tools: format, lints for the host's crates and for the kernel, documentation, dependencies.

use std::process::{Command, Stdio};

use super::{Context, verdict::Check};
use crate::{
    failure::{Doing, Result},
    setup::toolchain::{KERNEL_TARGET, Toolchain},
};

/// Turns warnings into errors.
const DENY: [&str; 3] = ["--", "-D", "warnings"];
/// Also lints the code of the mutants, which leaves out steps of protocols in tests. Only our own crates have them.
const DENY_MUTANTS: [&str; 5] = ["--", "-D", "warnings", "--cfg", "mutants"];

/// The names of the two checks of formats.
pub fn format_names(_: &Context<'_>) -> Result<Vec<String>> {
    Ok(vec!["format/rustfmt".to_owned(), "format/entry script".to_owned()])
}

/// Runs `cargo fmt --check`, and checks the syntax of the entry script.
pub fn format(context: &Context<'_>, done: &mut dyn FnMut(Check)) -> Result<()> {
    let mut rustfmt = plain(context, "fmt");
    rustfmt.args(["--all", "--check"]);
    tool(context, "format/rustfmt", rustfmt, done)?;
    let mut shell = Command::new("sh");
    shell.args(["-n", "quire"]).current_dir(&context.places.root);
    tool(context, "format/entry script", shell, done)
}

const KERNEL: &str = "lint/clippy for the kernel";
/// Lints the code that only the traced kernel has.
const TRACED: &str = "lint/clippy for the kernel, traced";

/// The lints' names.
pub fn names(_: &Context<'_>) -> Result<Vec<String>> {
    Ok(["lint/clippy", KERNEL, TRACED, "lint/rustdoc"].map(str::to_owned).to_vec())
}

/// Runs clippy for the host's crates, for the kernel, and for the traced kernel, and rustdoc. Each treats warnings as
/// errors.
pub fn run(context: &Context<'_>, done: &mut dyn FnMut(Check)) -> Result<()> {
    let target = &context.places.target;
    let mut hosted = plain(context, "clippy");
    hosted.args(["--locked", "--workspace", "--all-targets", "--target-dir"]).arg(target).args(DENY_MUTANTS);
    tool(context, "lint/clippy", hosted, done)?;
    for (name, features) in [(KERNEL, &[][..]), (TRACED, &["--features", "trace"])] {
        if context.selects(name) {
            let toolchain = Toolchain::for_kernel(context.places)?;
            let mut kernel = toolchain.cargo(context.places, "clippy");
            kernel.args(["--locked", "--release", "-p", "quire-kernel", "--target", KERNEL_TARGET]).args(features);
            kernel.arg("--target-dir").arg(target.join("kernel")).args(DENY);
            tool(context, name, kernel, done)?;
        }
    }
    let mut rustdoc = plain(context, "doc");
    rustdoc.args(["--locked", "--workspace", "--no-deps", "--document-private-items", "--target-dir"]).arg(target);
    rustdoc.env("RUSTDOCFLAGS", "-D warnings -A rustdoc::private-intra-doc-links");
    tool(context, "lint/rustdoc", rustdoc, done)
}

/// The name of the only check of dependencies.
pub fn dependency_names(_: &Context<'_>) -> Result<Vec<String>> {
    Ok(vec![DEPENDENCIES.to_owned()])
}

const DEPENDENCIES: &str = "dependencies/cargo deny";

/// Checks licences and sources of all dependencies. cargo-deny is compiled once into the cache. A machine that cannot
/// get it skips the check, by a named exception.
pub fn dependencies(context: &Context<'_>, done: &mut dyn FnMut(Check)) -> Result<()> {
    if !context.selects(DEPENDENCIES) {
        return Ok(());
    }
    let home = context.places.cache.join("tools");
    let program = home.join("bin/cargo-deny");
    if !program.exists() {
        let _lock = context.places.lock("tools")?;
        let mut install = plain(context, "install");
        install.args(["cargo-deny", "--locked", "--debug", "--root"]).arg(&home).arg("--target-dir");
        install.arg(home.join("target")).env_remove("RUSTFLAGS");
        let log = context.log("cargo-deny-install")?;
        let status = install.stdout(Stdio::null()).stderr(log).status().doing(|| "cannot run cargo".to_string())?;
        let _ = std::fs::remove_dir_all(home.join("target"));
        if !status.success() || !program.exists() {
            let why = format!(
                "cargo-deny cannot be installed here; see {}",
                context.log_path("cargo-deny-install").display()
            );
            done(Check::skipped(DEPENDENCIES, why, true));
            return Ok(());
        }
    }
    // Advisories are not checked, because their repository is not reachable everywhere. Licences and sources need no
    // network.
    let mut deny = Command::new(program);
    deny.args(["--color", "never", "check", "licenses", "bans", "sources"]).current_dir(&context.places.root);
    tool(context, DEPENDENCIES, deny, done)
}

/// Returns a cargo command for this host.
pub(super) fn plain(context: &Context<'_>, subcommand: &str) -> Command {
    let mut command = Command::new("cargo");
    command.arg(subcommand).current_dir(&context.places.root).env("CARGO_TERM_COLOR", "never");
    command
}

/// Runs one tool. Its exit status decides the check, and its output is the log.
pub(super) fn tool(context: &Context<'_>, name: &str, command: Command, done: &mut dyn FnMut(Check)) -> Result<()> {
    if !context.selects(name) {
        return Ok(());
    }
    tool_of(context, name, command, done)
}

/// Runs the tool as [`tool`] does, even if the check is not selected, because another check needs the tool's output.
pub(super) fn tool_of(
    context: &Context<'_>,
    name: &str,
    mut command: Command,
    done: &mut dyn FnMut(Check),
) -> Result<()> {
    let log = context.log(name)?;
    let about = || format!("cannot run {name}");
    let output = log.try_clone().doing(about)?;
    let status = command.stdin(Stdio::null()).stdout(output).stderr(log).status().doing(about)?;
    if status.success() {
        done(Check::passed(name));
        return Ok(());
    }
    let path = context.log_path(name);
    let text = std::fs::read_to_string(&path).unwrap_or_default();
    let lines: Vec<&str> = text
        .lines()
        .filter(|l| l.starts_with("error") || l.starts_with("Diff in") || l.trim_start().starts_with("-->"))
        .take(10)
        .collect();
    let missing = text.contains("is not installed") || text.contains("no such command");
    if missing {
        done(Check::skipped(name, "the tool is not installed: ./quire setup", false));
    } else {
        done(Check::failed(name, format!("{}\nlog: {}", lines.join("\n"), path.display())));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::docs;
    use crate::places::Places;

    /// This test is needed, because rustfmt does not shorten strings, comments and tables, and does not read C.
    #[test]
    fn no_line_is_longer_than_120_columns() {
        let root = Places::find().root;
        let files = docs::files_below(&root, &["xtask", "plugin", "programs", "examples"], &["rs", "c", "h"]).unwrap();
        assert!(files.len() > 200, "{}", files.len());
        let long = files.iter().flat_map(|(name, text)| {
            let lines = text.lines().enumerate().filter(|(_, line)| line.chars().count() > 120);
            lines.map(move |(n, _)| format!("{name}:{}", n + 1))
        });
        assert_eq!(long.collect::<Vec<_>>(), [""; 0]);
    }
}
