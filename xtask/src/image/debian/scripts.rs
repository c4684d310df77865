//! The users, alternatives and files that the packages' maintainer scripts create, read from the text of the scripts.
//!
//! The parser evaluates variables with a fixed value, loops over fixed words, and calls of functions. It reads both
//! branches of a condition. It leaves out a command with a part that it cannot evaluate.

use std::collections::{BTreeMap, HashMap};

use super::{
    super::tree::Tree,
    accounts::Account,
    actions::{Action, Make},
    commands,
    parts::{self, Part},
    shell, useradd,
};
use crate::failure::Result;

/// The most commands that the loops of one script may expand to.
const MOST_COMMANDS: usize = 4096;
/// The longest value of a variable, in bytes. A longer one counts as unknown.
const LONGEST: usize = 64 << 10;
/// The beginning of the names that stand for temporary files.
const TEMPORARY: &str = "/temporary-file-of-a-script/";
/// The commands that are read.
const KNOWN: [&str; 22] = [
    "cd",
    "adduser",
    "addgroup",
    "useradd",
    "groupadd",
    "usermod",
    "gpasswd",
    "update-alternatives",
    "a2enmod",
    "a2enconf",
    "a2ensite",
    "apache2_invoke",
    "apache2_switch_mpm",
    "php_invoke",
    "phpenmod",
    "ucf",
    "cp",
    "install",
    "mkdir",
    "chown",
    "dpkg-statoverride",
    "ln",
];

/// The accounts, alternatives and files that a script creates.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Wishes {
    /// The users and groups.
    pub accounts: Vec<Account>,
    /// The alternatives of `update-alternatives`.
    pub alternatives: Vec<Alternative>,
    /// The modules and sites of a server that the script enables.
    pub parts: Vec<Part>,
    /// The changes of files, in order.
    pub files: Vec<Action>,
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

/// Reads the wishes of one script.
pub fn read(text: &str) -> Wishes {
    let mut reader = Reader::default();
    reader.run(&shell::commands(text));
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

/// The most levels of loops and functions that are followed.
const DEEPEST: usize = 12;
/// Commands that run the command behind them.
const WRAPPERS: [&str; 5] = ["in_sysroot", "env", "exec", "eval", "command"];
/// Commands that come before a setting.
const DECLARING: [&str; 4] = ["local", "export", "readonly", "declare"];

#[derive(Default)]
struct Reader {
    variables: HashMap<String, String>,
    /// The words of the call of the function that is being followed.
    arguments: Option<Vec<String>>,
    functions: HashMap<String, Vec<Vec<String>>>,
    /// The working directory, if it is known.
    directory: Option<String>,
    /// The files that were copied to a temporary file, by the name that stands for it.
    temporary: HashMap<String, String>,
    wishes: Wishes,
    done: usize,
    depth: usize,
}

impl Reader {
    fn run(&mut self, commands: &[Vec<String>]) {
        if self.depth == DEEPEST {
            return;
        }
        self.depth += 1;
        let mut at = 0;
        while let Some(command) = commands.get(at).filter(|_| self.done < MOST_COMMANDS) {
            at += 1;
            self.done += 1;
            let command = shell::skip_words(command);
            let Some(first) = command.first() else { continue };
            if first == "for" && command.get(2).is_some_and(|w| w == "in") {
                let end = shell::end_of_loop(&commands[at..]);
                let body = &commands[at..at + end];
                let words: Vec<String> = command[3..]
                    .iter()
                    .filter_map(|w| self.expand(w))
                    .flat_map(|w| w.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
                    .collect();
                // Each round begins with the variables from before the loop.
                let outside = self.variables.clone();
                for word in words {
                    self.variables.clone_from(&outside);
                    self.variables.insert(command[1].clone(), word);
                    self.run(body);
                }
                self.variables.remove(&command[1]);
                at += end;
                continue;
            }
            let named = first.strip_suffix("()").or((command.get(1).is_some_and(|w| w == "()")).then_some(first));
            if let Some(name) = named.filter(|name| !name.is_empty()) {
                // The body is read now, as every command is, and again for each call with its words.
                let end = shell::end_of_function(&commands[at - 1..]);
                let body = commands.get(at..at - 1 + end).unwrap_or_default();
                self.functions.insert(name.to_owned(), body.to_vec());
                let rest = command.iter().position(|w| w == "{").map_or(&command[..0], |brace| &command[brace + 1..]);
                self.obey(shell::skip_words(rest));
                continue;
            }
            self.obey(command);
        }
        self.depth -= 1;
    }

    fn obey(&mut self, command: &[String]) {
        let mut command = command;
        while let [first, rest @ ..] = command
            && (WRAPPERS.contains(&first.as_str()) || DECLARING.contains(&first.as_str()))
        {
            command = rest;
        }
        if let [first, rest @ ..] = command
            && let Some((name, value)) = first.split_once('=')
            && shell::is_name(name)
            && (rest.is_empty() || shell::is_temporary(value))
        {
            self.set(name, value);
            return;
        }
        let Some(first) = command.first() else { return };
        if let Some(body) = self.functions.get(first).cloned() {
            self.call(&body, &command[1..]);
            return;
        }
        let name = first.rsplit('/').next().unwrap_or_default();
        if let ("echo", [text, arrow, path]) = (name, &command[1..])
            && arrow == ">"
            && let (Some(text), Some(path)) = (self.expand(text), self.expand(path))
            && ["/etc/", "/usr/share/"].iter().any(|place| path.starts_with(place))
        {
            self.wishes.files.push(Action::of(path, Make::File(format!("{text}\n").into_bytes(), false)));
            return;
        }
        if !KNOWN.contains(&name) {
            return;
        }
        // A word that is one unknown variable, such as `$quiet`, is left out, because it is an option that changes no
        // user and no alternative. If it is the value of an option, the option is left out with it.
        let mut words: Vec<String> = Vec::new();
        for word in &command[1..] {
            if self.unknown(word) {
                words.pop_if(|last| useradd::VALUES.contains(&last.as_str()));
                continue;
            }
            let Some(word) = self.expand(word) else { return };
            if word.starts_with(['>', '<']) || word.starts_with("2>") || word.starts_with("1>") {
                break;
            }
            if !word.is_empty() {
                words.push(word);
            }
        }
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        match name {
            "update-alternatives" => self.wishes.alternatives.extend(alternative(&words)),
            "addgroup" | "groupadd" => self.wishes.accounts.extend(useradd::group(&words)),
            "adduser" | "useradd" => self.wishes.accounts.extend(useradd::user(&words, name == "useradd")),
            "usermod" | "gpasswd" => self.wishes.accounts.extend(useradd::joins(&words)),
            "a2enmod" | "a2enconf" | "a2ensite" | "apache2_invoke" | "apache2_switch_mpm" | "php_invoke"
            | "phpenmod" => {
                self.wishes.parts.extend(parts::wishes(name, &words));
            }
            "cd" => self.directory = words.first().filter(|to| to.starts_with('/')).map(|to| (*to).to_owned()),
            _ => self.files(name, &words),
        }
    }

    /// A command that makes or changes files.
    fn files(&mut self, name: &str, words: &[&str]) {
        let (options, mut names) = commands::arguments(name, words);
        let places: Vec<String> = names.iter().map(|n| self.place(n)).collect();
        if ["cp", "ucf", "mkdir", "install"].contains(&name) {
            names = places.iter().map(String::as_str).collect();
        } else if let ("chown", [owner, _, ..]) = (name, &names[..]) {
            names = std::iter::once(*owner).chain(places[1..].iter().map(String::as_str)).collect();
        }
        if let ("cp" | "ucf", [from, to]) = (name, &names[..]) {
            let from = self.temporary.get(*from).map_or(*from, String::as_str).to_owned();
            if to.starts_with(TEMPORARY) {
                self.temporary.insert((*to).to_owned(), from);
            } else if !from.starts_with(TEMPORARY)
                && !["--purge", "-p"].iter().any(|o| name == "ucf" && options.contains_key(o))
            {
                self.wishes.files.extend(commands::copy(&from, to));
            }
            return;
        }
        self.wishes.files.extend(commands::actions(name, &options, &names));
    }

    /// A path, which may begin in the working directory.
    fn place(&self, path: &str) -> String {
        match &self.directory {
            Some(directory) if !path.starts_with(['/', '-', '$']) => format!("{directory}/{path}"),
            _ => path.to_owned(),
        }
    }

    /// Follows a function's body with the words of a call.
    fn call(&mut self, body: &[Vec<String>], words: &[String]) {
        let words = words.iter().map(|w| self.expand(w).unwrap_or_default()).collect();
        let outside = (self.variables.clone(), self.arguments.replace(words));
        self.run(body);
        (self.variables, self.arguments) = outside;
    }

    fn set(&mut self, name: &str, value: &str) {
        let value = match shell::is_temporary(value) {
            // The name stands for a file that is not made.
            true => Some(format!("{TEMPORARY}{name}")),
            false => self.expand(value),
        };
        // A second value would depend on the branch, so the first value stays. An empty one is a beginning. A call of a
        // function sets the function's own variables.
        if let Some(value) = value
            && (self.arguments.is_some() || self.variables.get(name).is_none_or(String::is_empty))
        {
            self.variables.insert(name.to_owned(), value);
        }
    }

    /// Whether the word is one variable without a known value.
    fn unknown(&self, word: &str) -> bool {
        let name = word.strip_prefix('$').map(|n| n.strip_prefix('{').and_then(|n| n.strip_suffix('}')).unwrap_or(n));
        name.is_some_and(|name| {
            name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') && self.value(name).is_none()
        })
    }

    /// The value of a variable, or of a word of the call.
    fn value(&self, name: &str) -> Option<String> {
        if let Ok(number) = name.parse::<usize>() {
            return self.arguments.as_ref()?.get(number.checked_sub(1)?).cloned();
        }
        match name {
            "@" | "*" => Some(self.arguments.as_ref()?.join(" ")),
            // The root is not prepared from outside.
            "DPKG_ROOT" => Some(String::new()),
            _ => self.variables.get(name).cloned(),
        }
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
                None if after.starts_with(['@', '*']) => after.split_at(1),
                None => {
                    let end = after.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(after.len());
                    after.split_at(end)
                }
            };
            // `${NAME:-VALUE}` and its relatives have a value for an unset variable.
            let (name, usual) = match name.find([':', '-', '=']) {
                Some(end) => (&name[..end], Some(name[end..].trim_start_matches(':'))),
                None => (name, None),
            };
            let value = self.value(name).filter(|value| usual.is_none() || !value.is_empty());
            let usual = usual.and_then(|usual| usual.strip_prefix(['-', '=']));
            match (value, usual) {
                (Some(value), _) => out.push_str(&value),
                // A default with variables of its own would need another reading.
                (None, Some(usual)) if !usual.contains('$') => out.push_str(usual),
                _ => return None,
            }
            if out.len() > LONGEST {
                return None;
            }
            rest = left;
        }
        out.push_str(rest);
        Some(out.replace(shell::DOLLAR, "$"))
    }
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

    fn user(name: &str, group: Option<&str>, home: &str, shell: Option<&str>) -> Account {
        Account::User {
            name: name.into(),
            number: None,
            group: group.map(Into::into),
            own_group: group.is_none(),
            home: Some(home.into()),
            make_home: false,
            shell: shell.map(Into::into),
        }
    }

    #[test]
    fn accounts_over_several_lines_and_behind_functions_are_read() {
        // From memcached, dbus and varnish of Debian 12. An apostrophe in a text must not hide what follows.
        let text = "cat <<EOF\nit's a text: adduser --system no\nEOF\n\
                    GROUP=\"memcache\"\nDATADIR=\"/nonexistent\"\ncase \"$1\" in\nconfigure)\n\
                    \tif ! getent passwd $USER >/dev/null ; then\n\
                    \t  adduser \\\n\t    --system \\\n\t    --disabled-login \\\n\
                    \t    --ingroup $GROUP \\\n\t    --home $DATADIR \\\n\t    --no-create-home \\\n\
                    \t    --gecos \"Memcached\" \\\n\t    --shell /bin/false \\\n\t    memcache  >/dev/null\n\
                    \tfi\n;;\nesac\n\
                    in_sysroot () {\n  if [ -z \"${DPKG_ROOT:-}\" ]; then\n    \"$@\"\n  fi\n}\n\
                    MESSAGEUSER=messagebus\nin_sysroot adduser --system \\\n  --quiet \\\n  --home /nonexistent \\\n\
                    \x20 --no-create-home \\\n  --group \"$MESSAGEUSER\"\n\
                    add() {\n  local who=\"$1\"\n\
                    \x20 adduser --system --home \"${2:-/srv/$who}\" --no-create-home --ingroup nogroup \"$who\"\n}\n\
                    add vcache /nonexistent\nadd other /run/other\n\
                    useradd -r -M -d /run/u -s /bin/sh -G a,b u\nusermod -a -G ssl-cert u\n\
                    gpasswd -a u tty >/dev/null\n\
                    addgroup u adm\nadduser --system --no-create-home --home $nowhere lost\n";
        let expected = [
            user("memcache", Some("memcache"), "/nonexistent", Some("/bin/false")),
            user("messagebus", None, "/nonexistent", None),
            user("vcache", Some("nogroup"), "/nonexistent", None),
            user("other", Some("nogroup"), "/run/other", None),
            user("u", None, "/run/u", Some("/bin/sh")),
            Account::Member("u".into(), "ssl-cert".into()),
            Account::Member("u".into(), "tty".into()),
            Account::Member("u".into(), "adm".into()),
            Account::User {
                name: "lost".into(),
                number: None,
                group: None,
                own_group: false,
                home: None,
                make_home: false,
                shell: None,
            },
        ];
        assert_eq!(read(text).accounts, expected);
    }

    #[test]
    fn configurations_are_copied_also_by_way_of_a_temporary_file() {
        // From php8.2-common, openssh-server and dovecot-core of Debian 12.
        let text = "new_config=\ncleanup() {\n  if [ \"$new_config\" ]; then\n    rm -f \"$new_config\"\n  fi\n}\n\
                    create_sshdconfig() {\n  new_config=\"$(mktemp)\"\n\
                    \x20 cp -aZ /usr/share/openssh/sshd_config \"$new_config\"\n\
                    \x20 sed -i 's/^#*PermitRootLogin .*/PermitRootLogin yes/' \\\n    \"$new_config\"\n\
                    \x20 ucf --three-way --debconf-ok \\\n    --sum-file /usr/share/openssh/sshd_config.md5sum \\\n\
                    \x20   \"$new_config\" /etc/ssh/sshd_config\n  ucfr openssh-server /etc/ssh/sshd_config\n}\n\
                    inidir=/etc/php/8.2/mods-available\nfor dsoname in calendar \\\n  pdo; do\n\
                    \x20 inifile=${dsoname}.ini\n\
                    \x20 ucf /usr/share/php8.2-common/common/${inifile} ${inidir}/${inifile}\n\
                    \x20 php_invoke enmod 8.2 ALL ${dsoname}\ndone\n\
                    cd /etc/postfix\n[ -f master.cf ] || cp /usr/share/postfix/master.cf.dist master.cf\ncd $unknown\n\
                    echo 'protocols = $protocols imap' > /usr/share/dovecot/protocols.d/imapd.protocol\n\
                    cp relative other\nOTHER=$(mktemp -t x)\nucf $OTHER /etc/unknown\nucf --purge /etc/a /etc/b\n\
                    dpkg-statoverride --quiet --update --add root root 0700 /etc/dovecot/private\n";
        let wishes = read(text);
        let copies: Vec<_> = wishes
            .files
            .iter()
            .filter_map(|a| match &a.make {
                Make::Copy(from) => Some((from.to_str().unwrap(), a.path.to_str().unwrap())),
                _ => None,
            })
            .collect();
        let php = "/usr/share/php8.2-common/common";
        assert_eq!(
            copies,
            [
                ("/usr/share/openssh/sshd_config", "/etc/ssh/sshd_config"),
                (&*format!("{php}/calendar.ini"), "/etc/php/8.2/mods-available/calendar.ini"),
                (&*format!("{php}/pdo.ini"), "/etc/php/8.2/mods-available/pdo.ini"),
                ("/usr/share/postfix/master.cf.dist", "/etc/postfix/master.cf"),
            ]
        );
        let written = wishes.files.iter().find(|a| a.path.ends_with("imapd.protocol")).map(|a| &a.make);
        assert_eq!(written, Some(&Make::File(b"protocols = $protocols imap\n".to_vec(), false)));
        assert_eq!(wishes.files.len(), copies.len() + 2);
        assert_eq!(wishes.parts.len(), 2);
    }

    proptest::proptest! {
        /// Any script is read to its end: pieces of scripts in any order.
        #[test]
        fn any_script_ends(pieces in proptest::collection::vec(0usize..PIECES.len(), 0..40)) {
            let text: String = pieces.iter().map(|at| PIECES[*at]).collect();
            let wishes = read(&text);
            proptest::prop_assert!(wishes.accounts.len() + wishes.files.len() <= 2 * MOST_COMMANDS);
        }
    }

    const PIECES: [&str; 24] = [
        "for x in a b $y; do\n",
        "done\n",
        "f() {\n",
        "}\n",
        "f $x \"$@\" ${1:-z}\n",
        "adduser --system $x\n",
        "if a; then\n",
        "fi\n",
        "x=$(mktemp)\n",
        "y=\"$x\"\n",
        "'",
        "\"",
        "\\\n",
        "cat <<E\n",
        "E\n",
        "$",
        "${",
        "`",
        "mkdir -p /$x/$1\n",
        "ucf $x /etc/$y\n",
        " ",
        "#",
        "useradd -G",
        "chown a:b /*\n",
    ];

    #[test]
    fn hostile_scripts_end() {
        let deep = "f() {\nf a\nf b\nmkdir /x\n}\nf c\n";
        assert!(read(deep).files.len() <= MOST_COMMANDS);
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
