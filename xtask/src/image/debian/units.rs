//! The directories that systemd makes before it starts a service. No systemd runs in the guest, and a server started by
//! hand needs them too. They stand in the service's unit: as settings such as `RuntimeDirectory=`, and as commands of
//! `ExecStartPre=`.

use std::collections::HashMap;

use super::{
    super::tree::Tree,
    actions::{Action, Bits, Make, Owner},
    commands, shell, tables,
};

/// The settings that name directories, with the place of the directories.
const KINDS: [(&str, &str); 5] = [
    ("RuntimeDirectory", "/run"),
    ("StateDirectory", "/var/lib"),
    ("CacheDirectory", "/var/cache"),
    ("LogsDirectory", "/var/log"),
    ("ConfigurationDirectory", "/etc"),
];

/// The changes that the tree's units ask for.
pub fn actions(tree: &Tree) -> Vec<Action> {
    let units = tree.below("/usr/lib/systemd/system").into_iter().filter(|unit| {
        let name = unit.file_name().unwrap_or_default().to_string_lossy().into_owned();
        // A unit with an `@` is for services that get a name later. A link is a further name of a unit.
        name.ends_with(".service") && !name.contains('@') && tree.target(unit).is_none()
    });
    let texts: Vec<String> =
        units.filter_map(|unit| Some(String::from_utf8_lossy(&tree.read(unit)?).into_owned())).collect();
    texts.iter().flat_map(|text| of_unit(text)).collect()
}

/// The changes that one unit asks for.
fn of_unit(text: &str) -> Vec<Action> {
    let text = text.replace("\\\n", " ");
    let mut section = "";
    let mut settings: HashMap<&str, &str> = HashMap::new();
    let mut before = Vec::new();
    for line in text.lines().map(str::trim) {
        if line.starts_with('[') {
            section = line;
        } else if let ("[Service]", Some((name, value))) = (section, line.split_once('=')) {
            match name.trim() {
                "ExecStartPre" => before.push(value.trim()),
                name => drop(settings.insert(name, value.trim())),
            }
        }
    }
    let owner = Owner::of(
        settings.get("User").copied().unwrap_or("root"),
        settings.get("Group").or(settings.get("User")).copied().unwrap_or("root"),
    );
    let mut all = Vec::new();
    for (kind, place) in KINDS {
        let bits = settings.get(&*format!("{kind}Mode")).map_or(Some(0o755), |text| u32::from_str_radix(text, 8).ok());
        // A name behind a colon is that of a link.
        let names = settings.get(kind).copied().unwrap_or_default().split_whitespace();
        for name in names.filter_map(|name| tables::expand(name.split(':').next()?, "")) {
            if !name.starts_with('/') && !name.split('/').any(|part| part == "..") {
                let bits = bits.filter(|bits| *bits <= 0o7777).map(Bits::of);
                // Configurations belong to root.
                let owner = if place == "/etc" { Owner::of("root", "root") } else { owner.clone() };
                all.push(Action { path: format!("{place}/{name}").into(), make: Make::Directory, bits, owner });
            }
        }
    }
    for line in before.iter().filter_map(|line| tables::expand(line.trim_start_matches(['-', '@', '+', '!', ':']), ""))
    {
        for command in shell::commands(&line) {
            let Some((first, words)) = command.split_first() else { continue };
            if words.iter().any(|word| word.contains('$')) {
                continue;
            }
            let name = first.rsplit('/').next().unwrap_or_default();
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let (options, names) = commands::arguments(name, &words);
            all.extend(commands::actions(name, &options, &names));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debians_units_name_their_directories() {
        // From openssh-server, mosquitto and tor of Debian 12.
        let sshd =
            of_unit("[Unit]\nRuntimeDirectory=no\n[Service]\nRuntimeDirectory=sshd\nRuntimeDirectoryMode=0750\n");
        assert_eq!((sshd.len(), sshd[0].path.to_str(), sshd[0].bits), (1, Some("/run/sshd"), Some(Bits::of(0o750))));
        let text = "[Service]\nUser=someone\nLogsDirectory=a b/c ../bad\nStateDirectory=x:link\n\
                    ExecStartPre=-/bin/mkdir -m 740 \\\n  -p /run/mosquitto\n\
                    ExecStartPre=/bin/chown mosquitto /run/mosquitto\n\
                    ExecStartPre=/usr/bin/install -Z -m 02755 -o debian-tor -g debian-tor -d /run/tor\n\
                    ExecStartPre=/bin/mkdir /run/%i /run/$NAME\nExecStartPre=/usr/sbin/sshd -t\n";
        let all = of_unit(text);
        let paths: Vec<_> = all.iter().map(|a| a.path.to_str().unwrap()).collect();
        assert_eq!(paths, ["/var/lib/x", "/var/log/a", "/var/log/b/c", "/run/mosquitto", "/run/mosquitto", "/run/tor"]);
        assert_eq!(all[0].owner, Owner::of("someone", "someone"));
        assert_eq!((all[5].bits, &all[5].owner), (Some(Bits::of(0o2755)), &Owner::of("debian-tor", "debian-tor")));
    }

    proptest::proptest! {
        /// Any unit is read, and its directories are absolute.
        #[test]
        fn any_unit_is_read(
            lines in proptest::collection::vec(
                "(\\[Service\\]|(StateDirectory|User|ExecStartPre)=[-a-z/:%$. \\\\]{0,20})",
                0..12,
            ),
        ) {
            proptest::prop_assert!(of_unit(&lines.join("\n")).iter().all(|a| a.path.is_absolute()));
        }
    }
}
