//! The tables of `sysusers.d` and `tmpfiles.d`, in which packages list their users, directories and files. systemd
//! reads them at each start. No systemd runs in the guest, so they are read here.

use std::{
    collections::{BTreeMap, HashSet},
    path::PathBuf,
};

use super::{
    super::tree::Tree,
    accounts::Account,
    actions::{Action, BLOCK, Bits, CHARACTER, FIFO, Make, Owner},
};

/// The directories with tables. A file of an earlier directory replaces files of its name in later ones.
const PLACES: [&str; 3] = ["/etc", "/run", "/usr/lib"];
/// systemd removes this file when the machine has started, and a machine without systemd has always started.
const STARTING: &str = "/run/nologin";
/// The guest's name, as in `/etc/hostname`.
const HOST: &str = "quire";

/// The text of all tables in directories of that name, in the order of the files' names.
fn texts(tree: &Tree, directory: &str) -> Vec<String> {
    let mut files = BTreeMap::new();
    for place in PLACES {
        for file in tree.below(format!("{place}/{directory}")) {
            if file.extension().is_some_and(|e| e == "conf")
                && let (Some(name), Some(bytes)) = (file.file_name(), tree.read(&file))
            {
                files.entry(name.to_owned()).or_insert_with(|| String::from_utf8_lossy(&bytes).into_owned());
            }
        }
    }
    files.into_values().collect()
}

/// The accounts of the tree's tables.
pub fn accounts(tree: &Tree) -> Vec<Account> {
    texts(tree, "sysusers.d").iter().flat_map(|text| text.lines()).filter_map(account).collect()
}

/// The changes of the tree's tables: first those of single paths, a directory before its content, then those of
/// patterns. As in systemd, the first line of a path counts.
pub fn actions(tree: &Tree, machine: &str) -> Vec<Action> {
    let texts = texts(tree, "tmpfiles.d");
    let all = texts.iter().flat_map(|text| text.lines()).filter_map(|line| action(line, machine));
    let (patterns, mut single): (Vec<_>, Vec<_>) = all.partition(|a| matches!(a.make, Make::Nothing(_)));
    let mut seen = HashSet::new();
    single.retain(|action| seen.insert(action.path.clone()) && action.path.as_os_str() != STARTING);
    single.sort_by(|a, b| a.path.cmp(&b.path));
    single.extend(patterns);
    single
}

/// A line of `sysusers.d`: `TYPE NAME ID GECOS HOME SHELL`.
fn account(line: &str) -> Option<Account> {
    let (fields, _) = fields(line, 6)?;
    let expanded: Vec<Option<String>> = fields.iter().map(|f| expand(f, "")).collect();
    // A missing field is as good as `-`.
    let field = |at: usize| expanded.get(at).and_then(Clone::clone).filter(|f| f != "-" && !f.is_empty());
    let name = field(1);
    // Modifiers of the type, such as `!` for an account that is locked, change nothing here.
    match fields.first()?.get(..1)? {
        "u" => {
            // The number may be a path, whose owner then has that number. No such path is in a fresh root.
            let id = field(2).filter(|id| !id.starts_with('/'));
            let (user, group) = match id.as_deref().and_then(|id| id.split_once(':')) {
                Some((user, group)) => (Some(user.to_owned()), Some(group.to_owned())),
                None => (id, None),
            };
            Some(Account::User {
                name: name?,
                number: user.and_then(|n| number(&n)),
                group,
                own_group: true,
                home: Some(field(4).unwrap_or_else(|| "/".to_owned()).into()),
                make_home: false,
                shell: field(5),
            })
        }
        "g" => Some(Account::Group(name?, field(2).and_then(|n| number(&n)))),
        "m" => Some(Account::Member(name?, field(2)?)),
        "r" => {
            let range = field(2)?;
            let (low, high) = range.split_once('-').unwrap_or((&range, &range));
            let (low, high) = (number(low)?, number(high)?);
            (low <= high).then_some(Account::Range(low, high))
        }
        _ => None,
    }
}

/// The number of an account. The highest number stands for no account.
fn number(text: &str) -> Option<u32> {
    text.parse().ok().filter(|n| *n != u32::MAX)
}

/// A line of `tmpfiles.d`: `TYPE PATH MODE USER GROUP AGE ARGUMENT`. `machine` is the machine's id.
fn action(line: &str, machine: &str) -> Option<Action> {
    let (fields, argument) = fields(line, 6)?;
    let field = |at: usize| fields.get(at).map(String::as_str).filter(|f| *f != "-" && !f.is_empty());
    let mut kind = fields.first()?.chars();
    let letter = kind.next()?;
    let more = kind.as_str();
    // An argument that is a credential's name, or in base64, has no text here.
    if more.contains(['^', '~']) {
        return None;
    }
    let plus = more.contains('+');
    let path = PathBuf::from(expand(field(1)?, machine)?);
    if !path.is_absolute() || path.components().any(|c| matches!(c, std::path::Component::ParentDir)) {
        return None;
    }
    let argument = argument.trim();
    let argument = (!argument.is_empty() && argument != "-").then_some(argument);
    let text = || expand(argument.unwrap_or_default(), machine);
    // Without an argument, links and copies are of the file that the system was delivered with.
    let origin = || match argument {
        Some(_) => text().map(PathBuf::from),
        None => Some(PathBuf::from(format!("/usr/share/factory{}", path.display()))),
    };
    let make = match letter {
        'd' | 'D' | 'v' | 'q' | 'Q' => Make::Directory,
        'f' => Make::File(unescape(&text()?), plus),
        'F' => Make::File(unescape(&text()?), true),
        'p' => Make::Special(FIFO, 0),
        'c' => Make::Special(CHARACTER, device(argument?)?),
        'b' => Make::Special(BLOCK, device(argument?)?),
        'L' => Make::Link(origin()?, plus),
        'C' => Make::Copy(origin()?),
        'e' | 'z' | 'm' => Make::Nothing(false),
        'Z' => Make::Nothing(true),
        // The others remove and protect old files, write to the kernel's files, or set attributes, which tmpfs lacks.
        _ => return None,
    };
    let bits = match field(2) {
        Some(text) => Some(bits(text)?),
        None => match make {
            Make::Directory => Some(Bits::of(0o755)),
            Make::File(..) | Make::Special(..) => Some(Bits::of(0o644)),
            _ => None,
        },
    };
    let (user, user_new) = owner(field(3));
    let (group, group_new) = owner(field(4));
    let mut owner = Owner { user, group, only_new: (user_new, group_new) };
    if matches!(make, Make::Directory | Make::File(..) | Make::Special(..)) {
        owner.user.get_or_insert_with(|| "0".to_owned());
        owner.group.get_or_insert_with(|| "0".to_owned());
    }
    Some(Action { path, make, bits, owner })
}

/// The name of an owner, and whether only a new node gets it.
fn owner(field: Option<&str>) -> (Option<String>, bool) {
    match field.map(|f| f.strip_prefix(':').map_or((f, false), |name| (name, true))) {
        Some((name, new)) => (Some(name.to_owned()), new),
        None => (None, false),
    }
}

/// Permission bits: octal digits behind `~` (masked) and `:` (only of a new node).
fn bits(text: &str) -> Option<Bits> {
    let digits = text.trim_start_matches(['~', ':']);
    let flags = &text[..text.len() - digits.len()];
    let bits = u32::from_str_radix(digits, 8).ok().filter(|b| *b <= 0o7777)?;
    Some(Bits { bits, masked: flags.contains('~'), only_new: flags.contains(':') })
}

/// The number of a device from `MAJOR:MINOR`.
fn device(text: &str) -> Option<u64> {
    let (major, minor) = text.split_once(':')?;
    Some(rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?))
}

/// The first `count` fields of a line, without their quotes, and the rest of the line. `None` for a comment or an empty
/// line, and for a quote without an end.
fn fields(line: &str, count: usize) -> Option<(Vec<String>, &str)> {
    let mut rest = line.trim_start();
    if rest.is_empty() || rest.starts_with(['#', ';']) {
        return None;
    }
    let mut all = Vec::new();
    while all.len() < count && !rest.is_empty() {
        let (field, after) = field(rest)?;
        all.push(field);
        rest = after.trim_start();
    }
    Some((all, rest))
}

/// The first field of a text, and the text behind it.
fn field(text: &str) -> Option<(String, &str)> {
    let mut out = String::new();
    let mut quote = None;
    let mut letters = text.char_indices();
    while let Some((at, c)) = letters.next() {
        match (quote, c) {
            (Some(q), c) if c == q => quote = None,
            (_, '\\') => {
                // The escapes of the whole field are replaced at once, so an escape stays as it is.
                out.push(c);
                out.push(letters.next()?.1);
            }
            (Some(_), c) => out.push(c),
            (None, '\'' | '"') => quote = Some(c),
            (None, c) if c.is_whitespace() => {
                return Some((String::from_utf8_lossy(&unescape(&out)).into(), &text[at..]));
            }
            (None, c) => out.push(c),
        }
    }
    quote.is_none().then(|| (String::from_utf8_lossy(&unescape(&out)).into(), ""))
}

/// Replaces the escapes of C. An unknown one stays as it is.
fn unescape(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        out.extend(&rest.as_bytes()[..at]);
        let after = &rest[at + 1..];
        let number = |from: usize, len: usize, radix: u32| {
            let digits = after.get(from..from + len)?;
            u8::from_str_radix(digits, radix).ok().map(|byte| (byte, from + len))
        };
        let found = match after.bytes().next() {
            Some(b'n') => Some((b'\n', 1)),
            Some(b't') => Some((b'\t', 1)),
            Some(b'r') => Some((b'\r', 1)),
            Some(b's') => Some((b' ', 1)),
            Some(letter @ (b'\\' | b'"' | b'\'')) => Some((letter, 1)),
            Some(b'x') => number(1, 2, 16),
            Some(b'0'..=b'7') => number(0, 3, 8),
            _ => None,
        };
        let (byte, used) = found.unwrap_or((b'\\', 0));
        out.push(byte);
        rest = &after[used..];
    }
    out.extend(rest.bytes());
    out
}

/// Replaces the specifiers, such as `%t` for `/run`. `None` if one is unknown before the machine has started, as the id
/// of its boot is (`%b`).
pub fn expand(text: &str, machine: &str) -> Option<String> {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('%') {
        out.push_str(&rest[..at]);
        out.push_str(match rest[at + 1..].chars().next()? {
            '%' => "%",
            'a' => "x86-64",
            'C' => "/var/cache",
            'g' | 'u' => "root",
            'G' | 'U' => "0",
            'h' => "/root",
            'H' | 'l' | 'q' => HOST,
            'L' => "/var/log",
            'm' if !machine.is_empty() => machine,
            'o' => "debian",
            'S' => "/var/lib",
            't' => "/run",
            'T' => "/tmp",
            'V' => "/var/tmp",
            _ => return None,
        });
        // Each known specifier is one byte long.
        rest = &rest[at + 2..];
    }
    out.push_str(rest);
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::{super::accounts::Accounts, *};
    use proptest::prelude::*;

    const ID: &str = "0123456789abcdef0123456789abcdef";

    fn user(name: &str, number: Option<u32>, group: Option<&str>, home: &str, shell: Option<&str>) -> Option<Account> {
        Some(Account::User {
            name: name.into(),
            number,
            group: group.map(Into::into),
            own_group: true,
            home: Some(home.into()),
            make_home: false,
            shell: shell.map(Into::into),
        })
    }

    #[test]
    fn accounts_are_read_as_debian_writes_them() {
        let nologin = Some("/usr/sbin/nologin");
        for (line, expected) in [
            ("u messagebus - \"System Message Bus\"", user("messagebus", None, None, "/", None)),
            (
                "u sync       4:65534 - /bin                 /bin/sync",
                user("sync", Some(4), Some("65534"), "/bin", Some("/bin/sync")),
            ),
            (
                "u man        6:12    - /var/cache/man       /usr/sbin/nologin",
                user("man", Some(6), Some("12"), "/var/cache/man", nologin),
            ),
            ("u! _x 7 'a b' %S/x", user("_x", Some(7), None, "/var/lib/x", None)),
            ("u by-path /usr/bin/x", user("by-path", None, None, "/", None)),
            ("g systemd-journal - -", Some(Account::Group("systemd-journal".into(), None))),
            ("g adm        4     -", Some(Account::Group("adm".into(), Some(4)))),
            ("m authd input", Some(Account::Member("authd".into(), "input".into()))),
            ("r - 500-900", Some(Account::Range(500, 900))),
            ("r - 901", Some(Account::Range(901, 901))),
        ] {
            assert_eq!(account(line), expected, "{line}");
        }
        for line in ["", "# u a", "u", "m a", "r - 9-5", "r - x", "x a", "u 'a", "u %b", "g -"] {
            assert_eq!(account(line), None, "{line}");
        }
    }

    #[test]
    fn numbers_come_from_the_range_of_a_table() {
        let mut accounts = Accounts::default();
        ["u before", "r - 500-501", "u a", "u b", "u c", "u fixed 77"]
            .into_iter()
            .filter_map(account)
            .for_each(|a| accounts.add(a));
        let numbers = ["before", "a", "b", "c", "fixed"].map(|name| accounts.user_number(name));
        assert_eq!(numbers, [100, 501, 500, 101, 77].map(Some));
        assert_eq!(accounts.group_number("fixed"), Some(77));
    }

    #[test]
    fn lines_of_debian_become_changes() {
        let of = |line: &str| action(line, ID).unwrap();
        let line = of("    d /run/php              0755 www-data www-data -   -");
        assert_eq!((line.path, line.make, line.bits), ("/run/php".into(), Make::Directory, Some(Bits::of(0o755))));
        assert_eq!(line.owner, Owner::of("www-data", "www-data"));
        let line = of("f+! /run/utmp 0664 root utmp -");
        assert_eq!((line.make, line.bits), (Make::File(vec![], true), Some(Bits::of(0o664))));
        let line = of("f /etc/x%% - - - - a %H\\n\\x41");
        assert_eq!((line.path, line.make), ("/etc/x%".into(), Make::File(b"a quire\nA".to_vec(), false)));
        assert_eq!(
            of("L+ /etc/mtab   -    -    -    -  ../proc/self/mounts").make,
            Make::Link("../proc/self/mounts".into(), true)
        );
        assert_eq!(of("C /etc/nsswitch.conf").make, Make::Copy("/usr/share/factory/etc/nsswitch.conf".into()));
        let line = of("Z /run/log/journal/%m ~2750 root systemd-journal - -");
        assert_eq!((line.path, line.make), (format!("/run/log/journal/{ID}").into(), Make::Nothing(true)));
        assert_eq!(line.bits, Some(Bits { masked: true, ..Bits::of(0o2750) }));
        let line = of("d- /root :0700 root :root -");
        assert!(line.bits.unwrap().only_new && line.owner.only_new == (false, true));
        assert_eq!(of("c /run/n 0666 - - - 1:3").make, Make::Special(CHARACTER, 0x103));
        for line in [
            "x /tmp/systemd-private-%b-*",
            "d /run/%b",
            "r! /etc/passwd.lock",
            "a+ /run/log/journal    - - - - d:group::r-x",
            "f^ /etc/hosts - - - - network.hosts",
            "d relative",
            "d /a/../b",
            "d /a 99999",
            "d /a 0x1",
            "c /run/n - - - - 1",
            "d",
            "#d /a",
            "d '/a",
            "L /a - - - - %",
        ] {
            assert_eq!(action(line, ID), None, "{line}");
        }
    }

    #[test]
    fn the_first_line_of_a_path_counts_and_the_system_has_started() {
        let mut tree = Tree::default();
        let mut table = |at: &str, text: &str| tree.file(at, 0o644, text).unwrap();
        table("/usr/lib/tmpfiles.d/b.conf", "d /run/a/b 0700\nz /run/a 0710\nd /run/a 0755\nf+! /run/nologin 0644\n");
        table("/usr/lib/tmpfiles.d/a.conf", "d /run/a 0750\n");
        table("/usr/lib/tmpfiles.d/c.conf", "d /run/c\n");
        table("/etc/tmpfiles.d/c.conf", "# nothing\n");
        table("/usr/lib/tmpfiles.d/not-a-table", "d /run/d\n");
        let all = actions(&tree, ID);
        let shown: Vec<_> = all.iter().map(|a| (a.path.to_str().unwrap(), a.bits.unwrap().bits)).collect();
        assert_eq!(shown, [("/run/a", 0o750), ("/run/a/b", 0o700), ("/run/a", 0o710)]);
    }

    proptest! {
        /// Any line is read or left out, and no account breaks the lines of `/etc/passwd`.
        #[test]
        fn any_line_is_read_or_left_out(
            kind in "[ugmrdDefFLCpcbzZx][+!^~-]{0,2}",
            words in proptest::collection::vec("[%a-zA-Z0-9/.:'\"\\\\~*?\\[\u{e9}\n-]{1,8}", 0..8),
        ) {
            let line = format!("{kind} {}", words.join(" "));
            let change = action(&line, ID);
            prop_assert!(change.as_ref().is_none_or(|a| a.path.is_absolute()));
            let mut tree = Tree::default();
            let mut accounts = Accounts::default();
            account(&line).into_iter().for_each(|a| accounts.add(a));
            // The function itself asserts that each line has seven fields.
            accounts.install(&mut tree).unwrap();
            super::super::actions::apply(&mut tree, &accounts, change.as_slice());
        }

        /// A plain field survives quotes, and its escapes are those of C.
        #[test]
        fn a_quoted_field_is_itself(text in "[a-z /%-]{1,12}", byte in 0u8..128) {
            let (line, escaped) = (format!("d \"{text}\" -"), format!("\\x{byte:02x}\\{byte:03o}"));
            prop_assert_eq!(&fields(&line, 3).unwrap().0[1], &text);
            prop_assert_eq!(unescape(&escaped), [byte, byte]);
        }
    }
}
