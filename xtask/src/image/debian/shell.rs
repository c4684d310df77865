//! The words of a shell script's commands. Nothing is evaluated.

use std::{iter::Peekable, str::Chars};

/// Stands for a `$` between single quotes, which is no variable.
pub const DOLLAR: char = '\u{f8ff}';

/// The words of each command, in order. Quotes and the texts of here-documents are removed, and `$` stays.
pub fn commands(text: &str) -> Vec<Vec<String>> {
    let mut all = Vec::new();
    let mut words: Vec<String> = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut ends = Vec::new();
    let mut letters = text.chars().peekable();
    while let Some(c) = letters.next() {
        match (quote, c) {
            (Some(q), c) if c == q => quote = None,
            (Some('\''), '$') => word.get_or_insert_default().push(DOLLAR),
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
            (None, '<') if letters.peek() == Some(&'<') => {
                letters.next();
                ends.extend(end_of_document(&mut letters));
            }
            (None, ';' | '\n' | '&' | '|') => {
                words.extend(word.take());
                if !words.is_empty() {
                    all.push(std::mem::take(&mut words));
                }
                if c == '\n' {
                    ends.drain(..).for_each(|end| skip_document(&mut letters, &end));
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

/// The line that ends a here-document, read behind `<<`. `None` for `<<<`, which has no document.
fn end_of_document(letters: &mut Peekable<Chars<'_>>) -> Option<String> {
    if letters.next_if_eq(&'<').is_some() {
        return None;
    }
    letters.next_if_eq(&'-');
    while letters.next_if(|c| *c == ' ' || *c == '\t').is_some() {}
    let mut end = String::new();
    while let Some(c) = letters.next_if(|c| !c.is_whitespace() && !";&|<>()".contains(*c)) {
        // A quoted end has the same effect here, because no variable of the document is of interest.
        if !"'\"\\".contains(c) {
            end.push(c);
        }
    }
    (!end.is_empty()).then_some(end)
}

/// Skips the lines of a here-document, and the line that ends it.
fn skip_document(letters: &mut Peekable<Chars<'_>>, end: &str) {
    while letters.peek().is_some() {
        let line: String = letters.by_ref().take_while(|c| *c != '\n').collect();
        if line.trim_start_matches('\t') == end {
            break;
        }
    }
}

/// The command without leading words of the shell's grammar, such as `if` or `then`, and without settings of variables
/// for this command alone.
pub fn skip_words(mut command: &[String]) -> &[String] {
    while let Some((first, rest)) = command.split_first() {
        let shell = matches!(first.as_str(), "if" | "then" | "else" | "elif" | "do" | "!" | "{" | "(" | "while")
            // A pattern of `case`.
            || first.ends_with(')') && !first.contains('(')
            || !rest.is_empty() && is_setting(first) && !rest[0].starts_with('-');
        if !shell {
            break;
        }
        command = rest;
    }
    command
}

/// Whether a word sets a variable.
fn is_setting(word: &str) -> bool {
    word.split_once('=').is_some_and(|(name, value)| is_name(name) && !is_temporary(value))
}

/// Whether a value is the name of a new temporary file.
pub fn is_temporary(value: &str) -> bool {
    ["$(mktemp", "`mktemp"].iter().any(|made| value.starts_with(made))
}

/// Whether a text is the name of a variable.
pub fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// The number of commands before the `done` that ends a loop.
pub fn end_of_loop(commands: &[Vec<String>]) -> usize {
    end(commands, |word| matches!(word, "for" | "until"), "done")
}

/// The number of commands before the `}` that ends a function.
pub fn end_of_function(commands: &[Vec<String>]) -> usize {
    let mut depth = 0_usize;
    for (at, command) in commands.iter().enumerate() {
        depth += command.iter().filter(|word| *word == "{").count();
        if command.first().is_some_and(|word| word == "}") {
            depth = depth.saturating_sub(1);
            if depth == 0 {
                return at;
            }
        }
    }
    commands.len()
}

fn end(commands: &[Vec<String>], begins: impl Fn(&str) -> bool, ends: &str) -> usize {
    let mut depth = 1;
    for (at, command) in commands.iter().enumerate() {
        match skip_words(command).first() {
            Some(word) if begins(word) => depth += 1,
            Some(word) if word == ends => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at;
        }
    }
    commands.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        commands(text).iter().map(|c| c.join(" ")).collect()
    }

    #[test]
    fn commands_end_at_lines_and_continue_behind_backslashes() {
        assert_eq!(words("a b \\\n\t  'c d' # e\nf;g|h && i\\\n"), ["a b c d", "f", "g", "h", "i"]);
    }

    #[test]
    fn a_here_document_is_no_command() {
        let text = "cat <<EOF >x\nit's adduser --system no\nEOF\nb\ncat <<-'END'; c\n\tdon't\n\tEND\nd <<<e\nf";
        assert_eq!(words(text), ["cat >x", "b", "cat", "c", "d e", "f"]);
        assert_eq!(words("a <<E\nnever ends"), ["a"]);
    }

    #[test]
    fn leading_words_are_skipped() {
        let skipped = |text: &str| skip_words(&commands(text)[0]).join(" ");
        assert_eq!(skipped("if ! LC_ALL=C adduser x"), "adduser x");
        assert_eq!(skipped("configure) a"), "a");
        assert_eq!((skipped("a=b"), skipped("f() {")), ("a=b".into(), "f() {".into()));
    }

    proptest::proptest! {
        /// Any text is read to its end, and no word has a line end outside of quotes.
        #[test]
        fn any_script_is_read(text in "[ab'\"\\\\<$#;&|(){}\n \t-]{0,60}") {
            let all = commands(&text);
            proptest::prop_assert!(all.iter().all(|c| !c.is_empty()));
            let words = all.iter().flatten().map(|w| w.chars().count()).sum::<usize>();
            proptest::prop_assert!(words <= text.len());
        }
    }
}
