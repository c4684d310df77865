//! The commands of scripts that add users and groups.

use std::collections::HashMap;

use super::accounts::Account;

/// Splits words into options with their values and words that are no options.
fn split<'a>(words: &[&'a str], with_value: &[&str]) -> (HashMap<&'a str, &'a str>, Vec<&'a str>) {
    let (mut options, mut names) = (HashMap::new(), Vec::new());
    let mut rest = words.iter().take_while(|w| !w.starts_with(['>', '<']) && !w.starts_with("2>"));
    while let Some(word) = rest.next() {
        match word.split_once('=') {
            Some((option, value)) if word.starts_with("--") => drop(options.insert(option, value)),
            _ if with_value.contains(word) => drop(options.insert(word, rest.next().copied().unwrap_or_default())),
            _ if word.starts_with('-') => drop(options.insert(word, "")),
            _ => names.push(*word),
        }
    }
    (options, names)
}

/// `addgroup` and `groupadd`: a group, or a user who joins one.
pub fn group(words: &[&str]) -> Option<Account> {
    let (options, names) = split(words, &["--gid", "-g", "--conf", "-K"]);
    let number = options.get("--gid").or(options.get("-g")).and_then(|n| n.parse().ok());
    match names[..] {
        [user, group] => Some(Account::Member(user.to_owned(), group.to_owned())),
        [name] => Some(Account::Group(name.to_owned(), number)),
        _ => None,
    }
}

/// Options of commands for accounts that have a value.
pub const VALUES: [&str; 24] = [
    "--home",
    "--shell",
    "--gecos",
    "--comment",
    "--uid",
    "--ingroup",
    "--gid",
    "--home-dir",
    "--conf",
    "--groups",
    "--firstuid",
    "--lastuid",
    "--firstgid",
    "--lastgid",
    "--expiredate",
    "--inactive",
    "--password",
    "--key",
    "-g",
    "-d",
    "-s",
    "-c",
    "-u",
    "-G",
];

/// `usermod -a -G GROUP USER` and `gpasswd -a USER GROUP`: a user joins a group.
pub fn joins(words: &[&str]) -> Option<Account> {
    let (options, names) = split(words, &["-G", "-aG", "--groups", "-a", "--add"]);
    if let ([group], Some(user)) = (&names[..], options.get("-a").or(options.get("--add")).filter(|u| !u.is_empty()))
        && !user.starts_with('-')
    {
        return Some(Account::Member((*user).to_owned(), (*group).to_owned()));
    }
    // `-a` of usermod has no value, so the next option was taken for one.
    let at = words.iter().position(|w| ["-G", "-aG", "--groups"].contains(w))?;
    let [group, user] = words.get(at + 1..at + 3)? else { return None };
    let plain = !group.contains(',') && !user.starts_with('-');
    plain.then(|| Account::Member((*user).to_owned(), (*group).to_owned()))
}

/// `adduser` and `useradd`: a system user, or a user who joins a group.
pub fn user(words: &[&str], useradd: bool) -> Option<Account> {
    let (options, names) = split(words, &VALUES);
    let text = |names: &[&str]| names.iter().find_map(|n| options.get(n)).map(|v| (*v).to_owned());
    let has = |name: &str| options.contains_key(name);
    match names[..] {
        [user, group] => Some(Account::Member(user.to_owned(), group.to_owned())),
        [name] if has("--system") || has("-r") || useradd => Some(Account::User {
            name: name.to_owned(),
            number: text(&["--uid", "-u"]).and_then(|n| n.parse().ok()),
            group: text(&["--ingroup", "--gid", "-g"]),
            own_group: has("--group") || useradd,
            home: text(&["--home", "--home-dir", "-d"]).map(Into::into),
            make_home: !useradd && !has("--no-create-home") && (has("--home")),
            shell: text(&["--shell", "-s"]),
        }),
        [name] if has("--group") => Some(Account::Group(name.to_owned(), None)),
        _ => None,
    }
}
