//! The patterns for paths in `tmpfiles.d`: `*`, `?` and `[...]`, each within one part of a path.

use std::path::{Path, PathBuf};

use super::super::tree::Tree;

/// The nodes of the tree that fit a path with patterns. A path without patterns is itself, if it exists.
pub fn matches(tree: &Tree, pattern: &Path) -> Vec<PathBuf> {
    let plain = |part: &Path| !part.to_string_lossy().contains(['*', '?', '[']);
    if plain(pattern) {
        return if tree.has(pattern) { vec![pattern.to_owned()] } else { Vec::new() };
    }
    // The directory above the first part with a pattern has all nodes that may fit.
    let Some(base) = pattern.ancestors().find(|up| plain(up)) else { return Vec::new() };
    let Some(base_real) = tree.real(base) else { return Vec::new() };
    let Ok(rest) = pattern.strip_prefix(base) else { return Vec::new() };
    let parts: Vec<_> = rest.components().map(|c| c.as_os_str().to_string_lossy().into_owned()).collect();
    let nodes = tree.below(base);
    let fitting = nodes.into_iter().filter(|node| {
        let Ok(inside) = node.strip_prefix(&base_real) else { return false };
        let names: Vec<_> = inside.components().map(|c| c.as_os_str().to_string_lossy().into_owned()).collect();
        names.len() == parts.len() && names.iter().zip(&parts).all(|(name, part)| fits(part, name))
    });
    fitting.collect()
}

/// Whether a name fits a pattern. A name that begins with a dot needs a dot in the pattern.
fn fits(pattern: &str, name: &str) -> bool {
    if name.starts_with('.') && !pattern.starts_with('.') {
        return false;
    }
    let (pattern, name): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
    let (mut p, mut n) = (0, 0);
    // The last star, and the first letter of the name after those that the star stands for.
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        if pattern.get(p) == Some(&'*') {
            star = Some((p, n));
            p += 1;
        } else if let Some(next) = one(&pattern, p, name[n]) {
            (p, n) = (next, n + 1);
        } else if let Some((at, from)) = star {
            star = Some((at, from + 1));
            (p, n) = (at + 1, from + 1);
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

/// The place in the pattern after the letter or the set at `at`, if it fits `letter`.
fn one(pattern: &[char], at: usize, letter: char) -> Option<usize> {
    match *pattern.get(at)? {
        '?' => Some(at + 1),
        '[' => {
            let inverse = matches!(pattern.get(at + 1), Some('!' | '^'));
            let first = at + 1 + usize::from(inverse);
            // A bracket at the set's start belongs to the set.
            let end = (first + 1..pattern.len()).find(|i| pattern[*i] == ']');
            let Some(end) = end else { return (letter == '[').then_some(at + 1) };
            let set = &pattern[first..end];
            let mut found = false;
            let mut i = 0;
            while i < set.len() {
                if i + 2 < set.len() && set[i + 1] == '-' {
                    found |= (set[i]..=set[i + 2]).contains(&letter);
                    i += 3;
                } else {
                    found |= set[i] == letter;
                    i += 1;
                }
            }
            (found != inverse).then_some(end + 1)
        }
        plain => (plain == letter).then_some(at + 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_fit_within_a_part() {
        for (pattern, name) in [
            ("*", "a"),
            ("a*c", "abbc"),
            ("*.log", "x.log"),
            ("?b", "ab"),
            ("[0-9]*", "7x"),
            ("[!a]", "b"),
            ("[]]", "]"),
        ] {
            assert!(fits(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [("*", ".a"), ("a*c", "ab"), ("?", ""), ("[0-9]", "x"), ("[!a]", "a"), ("[", "a")] {
            assert!(!fits(pattern, name), "{pattern} {name}");
        }
    }

    #[test]
    fn nodes_are_found_by_their_parts() {
        let mut tree = Tree::default();
        for file in ["/var/log/a.log", "/var/log/b.txt", "/var/log/deep/c.log", "/run/x"] {
            tree.file(file, 0o644, "").unwrap();
        }
        tree.link("/logs", "/var/log").unwrap();
        let found = |pattern: &str| matches(&tree, Path::new(pattern));
        assert_eq!(found("/var/log/*.log"), [PathBuf::from("/var/log/a.log")]);
        assert_eq!(found("/var/log/*/*.log"), [PathBuf::from("/var/log/deep/c.log")]);
        assert_eq!(found("/logs/*.txt"), [PathBuf::from("/var/log/b.txt")]);
        assert_eq!(found("/run/x"), [PathBuf::from("/run/x")]);
        assert!(found("/run/y").is_empty() && found("/none/*").is_empty() && found("*").is_empty());
    }

    proptest::proptest! {
        /// A pattern of stars takes each name, and each name without special letters takes itself.
        #[test]
        fn any_pattern_ends(pattern in "[a\\[\\]*?!^-]{0,12}", name in "[ab\\]-]{0,12}") {
            let _any = fits(&pattern, &name);
            let letters = format!("*{}*", "?".repeat(name.len()));
            proptest::prop_assert!(fits("*", &name) && fits(&letters, &name));
        }
    }
}
