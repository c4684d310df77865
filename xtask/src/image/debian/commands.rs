//! Commands of scripts that make files and directories, as changes of the tree.

use std::{collections::HashMap, path::PathBuf};

use super::actions::{Action, Bits, Make, Owner};

/// The options of a command with their values, and its other words.
pub type Arguments<'a> = (HashMap<&'a str, &'a str>, Vec<&'a str>);

/// Separates the options of a command from its other words.
pub fn arguments<'a>(name: &str, words: &[&'a str]) -> Arguments<'a> {
    let with_value: &[&str] = match name {
        "ucf" => &["--sum-file", "--state-dir", "--src-dir", "-s"],
        "install" => &["-o", "--owner", "-g", "--group", "-m", "--mode", "-S"],
        "mkdir" => &["-m", "--mode"],
        "chown" => &["--from", "--reference"],
        _ => &[],
    };
    let (mut options, mut names) = (HashMap::new(), Vec::new());
    let mut rest = words.iter().copied();
    while let Some(word) = rest.next() {
        match word.split_once('=') {
            Some((option, value)) if word.starts_with("--") => drop(options.insert(option, value)),
            _ if with_value.contains(&word) => drop(options.insert(word, rest.next().unwrap_or_default())),
            // `-m755`
            _ if word.is_char_boundary(2.min(word.len()))
                && word.starts_with('-')
                && !word.starts_with("--")
                && word.len() > 2
                && with_value.contains(&&word[..2]) =>
            {
                options.insert(&word[..2], &word[2..]);
            }
            _ if word.starts_with('-') && word.len() > 1 => drop(options.insert(word, "")),
            _ => names.push(word),
        }
    }
    (options, names)
}

/// A copy of the file `from`, unless `to` exists.
pub fn copy(from: &str, to: &str) -> Option<Action> {
    (is_path(from) && is_path(to)).then(|| Action::of(to, Make::Copy(from.into())))
}

/// The changes that a command makes.
pub fn actions(name: &str, options: &HashMap<&str, &str>, names: &[&str]) -> Vec<Action> {
    let has = |letter: char, long: &str| {
        options.keys().any(|o| *o == long || o.starts_with('-') && !o.starts_with("--") && o.contains(letter))
    };
    let value = |short: &str, long: &str| options.get(short).or(options.get(long)).copied();
    let bits = |text: &str| u32::from_str_radix(text, 8).ok().filter(|b| *b <= 0o7777).map(Bits::of);
    let paths = |names: &[&str]| names.iter().copied().filter(|n| is_path(n)).map(PathBuf::from).collect::<Vec<_>>();
    let each = |names: &[&str], make: &Make, bits: Option<Bits>, owner: &Owner| -> Vec<Action> {
        let one = |path| Action { path, make: make.clone(), bits, owner: owner.clone() };
        paths(names).into_iter().map(one).collect()
    };
    match (name, names) {
        ("mkdir", _) => each(names, &Make::Directory, value("-m", "--mode").and_then(bits), &Owner::default()),
        ("install", _) => {
            let owner = Owner::of(value("-o", "--owner").unwrap_or("0"), value("-g", "--group").unwrap_or("0"));
            let bits = bits(value("-m", "--mode").unwrap_or("755"));
            match names {
                _ if options.keys().any(|o| *o == "-d" || *o == "--directory") => {
                    each(names, &Make::Directory, bits, &owner)
                }
                ["/dev/null", to] => each(&[to], &Make::File(Vec::new(), false), bits, &owner),
                [from, to] if is_path(from) => each(&[to], &Make::Copy((*from).into()), bits, &owner),
                _ => Vec::new(),
            }
        }
        ("chown", [owner, names @ ..]) => {
            let (user, group) = owner.split_once([':', '.']).unwrap_or((owner, ""));
            each(names, &Make::Nothing(has('R', "--recursive")), None, &Owner::of(user, group))
        }
        ("dpkg-statoverride", [user, group, mode, path]) if has('\0', "--add") => {
            each(&[path], &Make::Nothing(false), bits(mode), &Owner::of(user, group))
        }
        // Both branches of a condition are read, so links that choose a setting in a directory of settings would
        // contradict each other.
        ("ln", [to, from]) if has('s', "--symbolic") && is_path(from) => {
            let from = PathBuf::from(from);
            let parent = from.parent().map(|p| p.to_string_lossy().into_owned()).unwrap_or_default();
            let chosen = parent.ends_with("-enabled") || to.starts_with("/etc/ssl/");
            if chosen { vec![Action::of(from, Make::Link((*to).into(), false))] } else { vec![] }
        }
        _ => Vec::new(),
    }
}

/// Whether a word is an absolute path that needs no directory above.
fn is_path(word: &str) -> bool {
    word.len() > 1
        && word.starts_with('/')
        && !word.contains(['(', ')', '{', '}'])
        && !word.split('/').any(|part| part == "..")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> Vec<Action> {
        let words: Vec<&str> = line.split(' ').collect();
        let (options, names) = arguments(words[0], &words[1..]);
        actions(words[0], &options, &names)
    }

    #[test]
    fn debians_lines_become_changes() {
        let exim = &of("install -d -oDebian-exim -gadm -m2750 /var/log/exim4 /run/exim4")[..];
        assert_eq!((exim.len(), &exim[0].make), (2, &Make::Directory));
        assert_eq!((exim[1].bits, &exim[1].owner), (Some(Bits::of(0o2750)), &Owner::of("Debian-exim", "adm")));
        let log = &of("install -o root -g adm -m 0640 -Z /dev/null /var/log/monit.log")[0];
        assert_eq!((&log.make, log.bits), (&Make::File(vec![], false), Some(Bits::of(0o640))));
        let made = of("mkdir -p -m 0755 /run/a relative /run/../etc")[..].to_vec();
        assert_eq!((made.len(), made[0].bits), (1, Some(Bits::of(0o755))));
        let owned = &of("chown -R mysql: /var/lib/mysql")[0];
        assert_eq!((&owned.make, &owned.owner), (&Make::Nothing(true), &Owner::of("mysql", "")));
        let set = &of("dpkg-statoverride --update --quiet --add root crontab 2755 /usr/bin/crontab")[0];
        assert_eq!((set.bits, &set.owner), (Some(Bits::of(0o2755)), &Owner::of("root", "crontab")));
        assert!(of("dpkg-statoverride --remove /usr/sbin/x").is_empty() && of("chown").is_empty());
        assert_eq!(of("ln -s /etc/nginx/sites-available/default /etc/nginx/sites-enabled/default").len(), 1);
        assert!(of("ln -s /etc/fonts/conf.avail/a.conf /etc/fonts/conf.d/a.conf").is_empty());
    }

    proptest::proptest! {
        /// Any words are read or left out, and each path is absolute.
        #[test]
        fn any_words_are_read(
                line in "(install|mkdir|chown|ln|cp|ucf|dpkg-statoverride)( [-a-z0-9=/.\u{e9}]{0,6}){0,6}",
            ) {
            proptest::prop_assert!(of(&line).iter().all(|a| a.path.is_absolute()));
        }
    }
}
