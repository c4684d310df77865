//! The users and alternatives that the packages' maintainer scripts create, read from the text of the scripts.
//!
//! The parser evaluates variables with a fixed value, and loops over fixed words. It reads both branches of a
//! condition. It leaves out a command with a part that it cannot evaluate.

use std::collections::{BTreeMap, HashMap};

use super::{super::tree::Tree, accounts::Account};
use crate::failure::Result;

/// The most commands that the loops of one script may expand to.
const MOST_COMMANDS: usize = 4096;

/// The accounts and alternatives that a script creates.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Wishes {
    /// The users and groups.
    pub accounts: Vec<Account>,
    /// The alternatives of `update-alternatives`.
    pub alternatives: Vec<Alternative>,
}

/// One possible target of a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alternative {
    /// The name of the link.
    pub link: String,
    /// The target of the link.
    pub path: String,
    /// The priority. The alternative with the highest priority is linked.
    pub priority: i64,
    /// Further links that change together with this one, with their targets.
    pub slaves: Vec<(String, String)>,
}

/// Reads the accounts and alternatives of one script.
pub fn read(text: &str) -> Wishes {
    let mut reader = Reader::default();
    let commands = commands(text);
    reader.run(&commands);
    reader.wishes
}

/// Adds the links of the alternatives to the tree, each to the existing target of the highest priority. A link does not
/// replace a program that is in the tree already.
pub fn link(tree: &mut Tree, all: Vec<Alternative>) -> Result<()> {
    let mut best: BTreeMap<String, Alternative> = BTreeMap::new();
    for one in all.into_iter().filter(|a| tree.has(&a.path)) {
        match best.get(&one.link) {
            Some(there) if there.priority >= one.priority => {}
            _ => drop(best.insert(one.link.clone(), one)),
        }
    }
    for one in best.into_values() {
        for (link, path) in one.slaves.into_iter().chain([(one.link, one.path)]) {
            if tree.has(&path) {
                tree.alias(&link, &path)?;
            }
        }
    }
    Ok(())
}

/// The words of each command, in order. Quotes are removed, and `$` stays.
fn commands(text: &str) -> Vec<Vec<String>> {
    let mut all = Vec::new();
    let mut words: Vec<String> = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut letters = text.chars().peekable();
    while let Some(c) = letters.next() {
        match (quote, c) {
            (Some(q), c) if c == q => quote = None,
            (Some('\''), c) => word.get_or_insert_default().push(c),
            (_, '\\') => match letters.next() {
                Some('\n') | None => {}
                Some(next) => word.get_or_insert_default().push(next),
            },
            (Some(_), c) => word.get_or_insert_default().push(c),
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, '#') if word.is_none() => {
                while letters.peek().is_some_and(|c| *c != '\n') {
                    letters.next();
                }
            }
            (None, ';' | '\n' | '&' | '|') => {
                words.extend(word.take());
                if !words.is_empty() {
                    all.push(std::mem::take(&mut words));
                }
            }
            (None, c) if c.is_whitespace() => words.extend(word.take()),
            (None, c) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    if !words.is_empty() {
        all.push(words);
    }
    all
}

#[derive(Default)]
struct Reader {
    variables: HashMap<String, String>,
    wishes: Wishes,
    done: usize,
}

impl Reader {
    fn run(&mut self, commands: &[Vec<String>]) {
        let mut at = 0;
        while let Some(command) = commands.get(at).filter(|_| self.done < MOST_COMMANDS) {
            at += 1;
            self.done += 1;
            let command = skip_words(command);
            let Some(first) = command.first() else { continue };
            if first == "for" && command.get(2).is_some_and(|w| w == "in") {
                let end = end_of_loop(&commands[at..]);
                let body = &commands[at..at + end];
                let words: Vec<String> = command[3..]
                    .iter()
                    .filter_map(|w| self.expand(w))
                    .flat_map(|w| w.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
                    .collect();
                for word in words {
                    self.variables.insert(command[1].clone(), word);
                    self.run(body);
                }
                self.variables.remove(&command[1]);
                at += end;
                continue;
            }
            self.obey(command);
        }
    }

    fn obey(&mut self, command: &[String]) {
        if let [only] = command
            && let Some((name, value)) = only.split_once('=')
            && !name.is_empty()
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        {
            // A second value would depend on the branch, so the first value stays.
            if let Some(value) = self.expand(value) {
                self.variables.entry(name.to_owned()).or_insert(value);
            }
            return;
        }
        let Some(name) = command.first().map(|c| c.rsplit('/').next().unwrap_or_default()) else { return };
        if !matches!(name, "adduser" | "addgroup" | "useradd" | "groupadd" | "update-alternatives") {
            return;
        }
        // A word that is one unknown variable, such as `$quiet`, is left out, because it is an option that changes no
        // user and no alternative.
        let words = command[1..].iter().filter(|w| !self.unknown(w)).map(|w| self.expand(w));
        let Some(words) = words.collect::<Option<Vec<String>>>() else { return };
        let words: Vec<&str> = words.iter().map(String::as_str).filter(|w| !w.is_empty()).collect();
        match name {
            "update-alternatives" => self.wishes.alternatives.extend(alternative(&words)),
            "addgroup" | "groupadd" => self.wishes.accounts.extend(group(&words)),
            _ => self.wishes.accounts.extend(user(&words, name == "useradd")),
        }
    }

    /// Whether the word is one variable without a known value.
    fn unknown(&self, word: &str) -> bool {
        word.strip_prefix('$').is_some_and(|name| {
            name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') && !self.variables.contains_key(name)
        })
    }

    /// The word with its variables replaced by their values; `None` if a value is unknown.
    fn expand(&self, word: &str) -> Option<String> {
        let mut out = String::new();
        let mut rest = word;
        while let Some(at) = rest.find(['$', '`']) {
            out.push_str(&rest[..at]);
            let after = rest[at..].strip_prefix('$')?;
            let (name, left) = match after.strip_prefix('{') {
                Some(inner) => inner.split_once('}')?,
                None => {
                    let end = after.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(after.len());
                    after.split_at(end)
                }
            };
            out.push_str(self.variables.get(name)?);
            rest = left;
        }
        out.push_str(rest);
        Some(out)
    }
}

/// The command without leading words of the shell's grammar, such as `if` or `then`.
fn skip_words(mut command: &[String]) -> &[String] {
    while let Some((first, rest)) = command.split_first() {
        let shell = matches!(first.as_str(), "if" | "then" | "else" | "elif" | "do" | "!" | "{" | "(" | "while")
            || first.ends_with(')');
        if !shell {
            break;
        }
        command = rest;
    }
    command
}

/// The number of commands before the `done` that ends a loop.
fn end_of_loop(commands: &[Vec<String>]) -> usize {
    let mut depth = 1;
    for (at, command) in commands.iter().enumerate() {
        let command = skip_words(command);
        match command.first().map(String::as_str) {
            Some("for" | "until") => depth += 1,
            Some("done") => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at;
        }
    }
    commands.len()
}

fn alternative(words: &[&str]) -> Option<Alternative> {
    let at = words.iter().position(|w| *w == "--install")?;
    let [link, _, path, priority] = words.get(at + 1..at + 5)? else { return None };
    let mut found = Alternative {
        link: (*link).to_owned(),
        path: (*path).to_owned(),
        priority: priority.parse().ok()?,
        slaves: Vec::new(),
    };
    for (at, _) in words.iter().enumerate().filter(|(_, w)| **w == "--slave") {
        if let Some([link, _, path]) = words.get(at + 1..at + 4) {
            found.slaves.push(((*link).to_owned(), (*path).to_owned()));
        }
    }
    Some(found)
}

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

fn group(words: &[&str]) -> Option<Account> {
    let (options, names) = split(words, &["--gid", "-g", "--conf", "-K"]);
    let number = options.get("--gid").or(options.get("-g")).and_then(|n| n.parse().ok());
    Some(Account::Group((*names.first()?).to_owned(), number))
}

fn user(words: &[&str], useradd: bool) -> Option<Account> {
    const VALUES: &[&str] = &[
        "--home",
        "--shell",
        "--gecos",
        "--comment",
        "--uid",
        "--ingroup",
        "--gid",
        "--home-dir",
        "--conf",
        "-g",
        "-d",
        "-s",
        "-c",
        "-u",
    ];
    let (options, names) = split(words, VALUES);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_read_with_its_options() {
        let text = "[ \"$X\" ] && quiet=\"--quiet\" # no\nUSER='postgres'\nif ! getent passwd $USER >/dev/null; then\n\
                    \tadduser --system $quiet $other --home /var/lib/postgresql --no-create-home \\\n\
                    \t  --shell /bin/bash --group --gecos \"PostgreSQL administrator\" ${USER}\nfi\n\
                    adduser $quiet postgres ssl-cert || true\naddgroup --system --gid 77 g\nadduser $(whoami) x\n";
        let wishes = read(text);
        assert_eq!(
            wishes.accounts,
            [
                Account::User {
                    name: "postgres".into(),
                    number: None,
                    group: None,
                    own_group: true,
                    home: Some("/var/lib/postgresql".into()),
                    make_home: false,
                    shell: Some("/bin/bash".into()),
                },
                Account::Member("postgres".into(), "ssl-cert".into()),
                Account::Group("g".into(), Some(77)),
            ]
        );
    }

    #[test]
    fn alternatives_are_read_from_loops_and_the_highest_wins() {
        let text = "base=/usr/lib/jvm/j\ntools='java keytool'\nfor i in $tools; do\n if [ -e x ]; then slave=y; fi\n\
                    update-alternatives --install /usr/bin/$i $i $base/bin/$i 17 $slave1\ndone\n\
                    update-alternatives --quiet --install /usr/bin/awk awk /usr/bin/mawk 5 --slave /usr/bin/nawk nawk \
                    /usr/bin/mawk\n\
                    update-alternatives --install /usr/bin/java java /usr/bin/other 3\n\
                    update-alternatives --install /usr/bin/gone gone /usr/bin/missing 9\n";
        let wishes = read(text);
        assert_eq!(wishes.alternatives.len(), 5);
        let mut tree = Tree::default();
        for file in ["/usr/lib/jvm/j/bin/java", "/usr/lib/jvm/j/bin/keytool", "/usr/bin/mawk", "/usr/bin/other"] {
            tree.file(file, 0o755, file).unwrap();
        }
        link(&mut tree, wishes.alternatives).unwrap();
        let found = |at: &str| tree.read(at).map(|b| String::from_utf8(b).unwrap());
        assert_eq!(found("/usr/bin/java").as_deref(), Some("/usr/lib/jvm/j/bin/java"));
        assert_eq!(found("/usr/bin/nawk").as_deref(), Some("/usr/bin/mawk"));
        assert!(tree.has("/usr/bin/keytool") && !tree.has("/usr/bin/gone"));
    }

    #[test]
    fn hostile_scripts_end() {
        let nested = "for a in 1 2 3 4 5 6 7 8 9; do ".repeat(9) + "adduser --system x\n" + &"done\n".repeat(9);
        assert!(read(&nested).accounts.len() <= MOST_COMMANDS);
        for text in [
            "for",
            "for x in",
            "'",
            "\"",
            "\\",
            "$",
            "adduser ${",
            "adduser $",
            "update-alternatives --install a",
            "done",
        ] {
            assert_eq!(read(text), Wishes::default(), "{text}");
        }
    }
}
