//! Checks that the README's commands run, and print the output that the README shows.
//!
//! A block of the kind `console` has lines `$ COMMAND`, each followed by its output. A line `...` stands for any number
//! of lines.

use std::{
    fs,
    process::{Command, Stdio},
};

use super::{Context, verdict::Check};
use crate::failure::{Doing, Result};

/// A command and its output.
#[derive(Debug, PartialEq, Eq)]
struct Example {
    command: String,
    output: Vec<String>,
}

fn load(context: &Context<'_>) -> Result<Vec<Example>> {
    let path = context.places.root.join("README.md");
    Ok(parse(&fs::read_to_string(&path).doing(|| format!("cannot read {}", path.display()))?))
}

/// The checks' names: one for each command.
pub fn names(context: &Context<'_>) -> Result<Vec<String>> {
    Ok(load(context)?.iter().map(|e| format!("readme/{}", e.command)).collect())
}

/// Runs the commands one by one, in the repository's root.
pub fn run(context: &Context<'_>, done: &mut dyn FnMut(Check)) -> Result<()> {
    for example in load(context)? {
        let name = format!("readme/{}", example.command);
        if !context.selects(&name) {
            continue;
        }
        // The README shows `./quire test`. This command is running now, so it is not run again.
        if example.command == "./quire test" {
            done(Check::passed(name));
            continue;
        }
        let mut shell = Command::new("sh");
        shell.args(["-c", &example.command]).current_dir(&context.places.root).stdin(Stdio::null());
        shell.env("QUIRE_KERNEL", context.kernel()?);
        let out = shell.output().doing(|| "cannot run sh".to_string())?;
        let said = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
        done(if !out.status.success() {
            Check::failed(name, format!("{}: {said}", out.status))
        } else if !matches(&example.output, &said.lines().collect::<Vec<_>>()) {
            Check::failed(name, format!("it printed:\n{said}"))
        } else {
            Check::passed(name)
        });
    }
    Ok(())
}

fn parse(text: &str) -> Vec<Example> {
    let mut found: Vec<Example> = Vec::new();
    let mut inside = false;
    let mut open = false;
    for line in text.lines() {
        if line.starts_with("```") {
            inside = !inside && line == "```console";
            open = false;
        } else if let (true, Some(command)) = (inside, line.strip_prefix("$ ")) {
            found.push(Example { command: command.to_owned(), output: Vec::new() });
            open = true;
        } else if let (true, true, Some(last)) = (inside, open, found.last_mut()) {
            last.output.push(line.to_owned());
        }
    }
    found
}

/// Whether the lines match. An expected line `...` stands for any number of lines.
fn matches(expected: &[String], got: &[&str]) -> bool {
    match expected.split_first() {
        None => got.is_empty(),
        Some((first, rest)) if first.trim() == "..." => (0..=got.len()).any(|skip| matches(rest, &got[skip..])),
        Some((first, rest)) => got.split_first().is_some_and(|(g, more)| g == first && matches(rest, more)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_and_their_output_are_found() {
        let text = "# T\n```console\n$ a b\nout\n\n$ c\n```\ntext\n```sh\n$ not this\n```\n";
        let command = |c: &str, o: &[&str]| Example {
            command: c.to_owned(),
            output: o.iter().map(|s| (*s).to_owned()).collect(),
        };
        assert_eq!(parse(text), [command("a b", &["out", ""]), command("c", &[])]);
    }

    #[test]
    fn dots_stand_for_any_lines() {
        let expected = |l: &[&str]| l.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>();
        assert!(matches(&expected(&["a", "...", "z"]), &["a", "b", "c", "z"]));
        assert!(matches(&expected(&["..."]), &[]));
        assert!(!matches(&expected(&["a"]), &["a", "b"]));
        assert!(!matches(&expected(&["a", "...", "z"]), &["a", "b"]));
    }
}
