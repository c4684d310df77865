//! The help texts as files below `xtask/help`. The script `./quire` prints these files on a machine that has no
//! compiler yet, so that help needs no installation. `./quire help-pages` writes them. Shell completions and manual
//! pages are generated from the same descriptions.

use std::{collections::BTreeMap, fs};

use clap::{Command, CommandFactory};

use crate::{
    cli::{self, Cli},
    failure::{Doing, Failure, Result},
    lab,
    places::Places,
};

/// The width of the texts in columns.
const WIDTH: usize = 100;

/// Writes the help texts. The texts of commands that no longer exist are removed.
pub fn command(places: &Places) -> Result<u8> {
    let folder = places.root.join("xtask/help");
    let cannot = || format!("cannot write {}", folder.display());
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).doing(cannot)?;
    for (name, text) in pages(places)? {
        fs::write(folder.join(name), text).doing(cannot)?;
    }
    Ok(0)
}

/// The texts by file name: one of the whole tool, one for each command, and the list of the lab's experiments.
fn pages(places: &Places) -> Result<BTreeMap<String, String>> {
    let mut whole = Cli::command().term_width(WIDTH);
    whole.build();
    let mut pages =
        BTreeMap::from([("quire.txt".to_owned(), text(&mut whole)), ("lab-list.txt".to_owned(), lab::listed(places)?)]);
    for command in whole.get_subcommands_mut().filter(|c| !c.is_hide_set() && c.get_name() != "help") {
        pages.insert(format!("{}.txt", command.get_name()), text(command));
    }
    Ok(pages)
}

/// `./quire completion`: prints a script for the shell.
pub fn completion(options: &cli::Completion) -> Result<u8> {
    let mut script = Vec::new();
    clap_complete::generate(options.shell, &mut named(), NAME, &mut script);
    print!("{}", String::from_utf8_lossy(&script));
    Ok(0)
}

/// `./quire man`: prints a manual page in roff.
pub fn man(options: &cli::Man) -> Result<u8> {
    print!("{}", String::from_utf8_lossy(&manual(options.command.as_deref())?));
    Ok(0)
}

/// The manual page of the whole tool, or of one command.
fn manual(command: Option<&str>) -> Result<Vec<u8>> {
    let mut whole = named();
    whole.build();
    let page = match command {
        None => whole,
        Some(name) => {
            let found = whole.get_subcommands().find(|c| c.get_name() == name && !c.is_hide_set());
            let none =
                || Failure::usage(format_args!("there is no command '{name}'; ./quire --help lists the commands"));
            found.ok_or_else(none)?.clone()
        }
    };
    let mut roff = Vec::new();
    clap_mangen::Man::new(page).render(&mut roff).doing(|| "cannot make the page".to_string())?;
    Ok(roff)
}

/// The tool's name without a path, for shells and manual pages.
const NAME: &str = "quire";

fn named() -> Command {
    Cli::command().name(NAME).bin_name(NAME)
}

fn text(command: &mut Command) -> String {
    let text = command.render_long_help().to_string();
    text.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_shell_completes_each_command() {
        use clap::ValueEnum as _;
        for shell in clap_complete::Shell::value_variants() {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut named(), NAME, &mut script);
            let script = String::from_utf8(script).unwrap();
            for word in ["compare", "memory", "trace", "doctor"] {
                assert!(script.contains(word), "{shell}: {word}");
            }
        }
    }

    #[test]
    fn manual_pages_have_the_commands_and_their_options() {
        let page = |command| String::from_utf8(manual(command).unwrap()).unwrap();
        assert!(page(None).contains(".TH quire 1") && page(None).contains("quire\\-compare"));
        assert!(page(Some("run")).contains("\\-\\-copy\\-out"), "{}", page(Some("run")));
        for name in ["fly", "help-pages"] {
            assert_eq!(manual(Some(name)).unwrap_err().status, 2, "{name}");
        }
    }

    #[test]
    fn the_kept_help_texts_are_those_of_the_commands() {
        let places = Places::find();
        let folder = places.root.join("xtask/help");
        let kept: BTreeMap<String, String> = fs::read_dir(&folder)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .map(|path| (path.file_name().unwrap().to_string_lossy().into_owned(), fs::read_to_string(path).unwrap()))
            .collect();
        for (name, text) in pages(&places).unwrap() {
            assert_eq!(kept.get(&name), Some(&text), "./quire help-pages writes xtask/help/{name}");
        }
        assert_eq!(kept.len(), pages(&places).unwrap().len(), "./quire help-pages removes files of lost commands");
    }
}
