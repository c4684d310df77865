//! The help texts as files, below `xtask/help`. The script `./quire` prints them on a machine that has no compiler yet,
//! so nothing is installed for a question. `./quire help-pages` writes them.

use std::{collections::BTreeMap, fs};

use clap::{Command, CommandFactory};

use crate::{
    cli::Cli,
    failure::{Doing, Result},
    lab,
    places::Places,
};

/// Columns of the kept texts.
const WIDTH: usize = 100;

/// Writes the texts, and removes those of commands that are gone.
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

/// The file names and texts: one of the whole, one of each command, and the list of the lab's experiments.
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

fn text(command: &mut Command) -> String {
    let text = command.render_long_help().to_string();
    text.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

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
