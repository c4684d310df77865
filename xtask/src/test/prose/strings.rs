//! Finds prose in the string literals of Rust: messages, help texts and reports. Code, formats and tests are left out.

use ra_ap_rustc_lexer::{FrontmatterAllowed, LiteralKind, TokenKind, tokenize};

use super::text::Block;

/// A literal with fewer words is a label and not prose.
const LEAST_WORDS: usize = 5;
/// Macros whose strings are assembly.
const ASSEMBLY: [&str; 3] = ["asm", "global_asm", "naked_asm"];
/// Texts that contain one of these are in another language: shell, C, JSON or Rust.
const CODE: [&str; 10] = ["/dev/null", "$(", "#include", "&&", "|| ", "; do", "\":", "==", "fn ", ">&2"];
/// The least percentage of plain words in prose.
const PLAIN: usize = 70;

/// Whether the strings of a file are read. Strings of tests are not read, because only developers see them.
pub fn is_read(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    let is_test = name == "tests.rs" || name.ends_with("_tests.rs") || name.starts_with("test_");
    name.ends_with(".rs") && !is_test && !path.split('/').any(|part| part == "tests")
}

/// Returns the blocks of prose in the literals of a source, without its tests.
pub fn strings(source: &str) -> Vec<Block> {
    let tokens = Tokens::new(source);
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(token) = tokens.0.get(at) {
        if let Some(after) = tokens.skipped(at) {
            at = after;
            continue;
        }
        if let TokenKind::Literal { kind: LiteralKind::Str { .. } | LiteralKind::RawStr { .. }, .. } = token.kind
            && let Ok(literal) = syn::parse_str::<syn::LitStr>(token.text)
        {
            found.extend(blocks(&literal.value()).into_iter().map(|text| Block { line: token.line, text }));
        }
        at += 1;
    }
    found
}

/// Returns the prose of a literal's value: paragraphs, columns and items of lists.
fn blocks(value: &str) -> Vec<String> {
    let text = plain_text(value);
    if words(&text).count() < LEAST_WORDS {
        return Vec::new();
    }
    let mut found = vec![String::new()];
    for line in text.lines() {
        let is_apart = line.trim().is_empty() || line.starts_with([' ', '\t', '|', '#', '-']);
        if is_apart {
            found.push(String::new());
        }
        for (n, column) in line.trim().replace('\t', "  ").split("  ").enumerate() {
            if n > 0 {
                found.push(String::new());
            }
            if let Some(last) = found.last_mut() {
                last.push(' ');
                last.push_str(column.trim());
            }
        }
        if is_apart || line.trim_end().ends_with(':') {
            found.push(String::new());
        }
    }
    found.into_iter().map(|block| block.trim().to_owned()).filter(|block| is_prose(block)).collect()
}

/// Returns the text with each formatted value, and each code between backquotes, as one word. HTML tags end paragraphs.
fn plain_text(value: &str) -> String {
    let mut out = String::new();
    let mut rest = value;
    while let Some(c) = rest.chars().next() {
        let inner = &rest[c.len_utf8()..];
        let (instead, taken) = match c {
            '{' | '}' if inner.starts_with(c) => (None, 2),
            '{' => (Some("`code`"), span(rest, '}')),
            '`' => (Some("`code`"), span(rest, '`')),
            '<' if inner.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/') => (Some("\n\n"), span(rest, '>')),
            _ => (None, c.len_utf8()),
        };
        match instead {
            Some(instead) if taken > 1 => out.push_str(instead),
            _ => out.push(c),
        }
        rest = &rest[taken..];
    }
    out
}

/// Returns the length in bytes of the span at the start of `text`, or 1 if the span does not end on its line.
fn span(text: &str, end: char) -> usize {
    let line = text.lines().next().unwrap_or_default();
    line[1..].find(end).map_or(1, |at| at + 2)
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split_whitespace().filter(|word| word.contains(char::is_alphabetic))
}

fn is_prose(block: &str) -> bool {
    let is_plain = |word: &&str| {
        let bare = word.trim_matches(|c: char| !c.is_alphanumeric() && c != '`');
        *word == "`code`" || bare == "`code`" || bare.chars().all(|c| c.is_alphanumeric() || "'-,.".contains(c))
    };
    let all = block.split_whitespace().count();
    let plain = block.split_whitespace().filter(is_plain).count();
    !CODE.iter().any(|part| block.contains(part)) && words(block).next().is_some() && plain * 100 >= all * PLAIN
}

/// A token that is neither blank nor a comment.
#[derive(Debug)]
struct Token<'s> {
    kind: TokenKind,
    text: &'s str,
    line: usize,
}

struct Tokens<'s>(Vec<Token<'s>>);

impl<'s> Tokens<'s> {
    fn new(source: &'s str) -> Self {
        let (mut at, mut line, mut all) = (0, 1, Vec::new());
        for token in tokenize(source, FrontmatterAllowed::No) {
            let text = &source[at..at + token.len as usize];
            let is_blank = matches!(
                token.kind,
                TokenKind::Whitespace | TokenKind::LineComment { .. } | TokenKind::BlockComment { .. }
            );
            if !is_blank {
                all.push(Token { kind: token.kind, text, line });
            }
            line += text.matches('\n').count();
            at += text.len();
        }
        Self(all)
    }

    fn text(&self, at: usize) -> &'s str {
        self.0.get(at).map_or("", |token| token.text)
    }

    /// If a test or assembly begins at token `at`, returns the index at which reading continues.
    fn skipped(&self, at: usize) -> Option<usize> {
        if ASSEMBLY.contains(&self.text(at)) && self.text(at + 1) == "!" {
            return Some(self.closed(at + 2));
        }
        if self.text(at) != "#" || self.text(at + 1) != "[" {
            return None;
        }
        let end = self.closed(at + 1);
        let is_test = match self.text(at + 2) {
            "test" | "should_panic" => true,
            "cfg" => (at..end).any(|n| self.text(n) == "test" && self.text(n - 2) != "not"),
            _ => false,
        };
        is_test.then(|| self.item_end(end))
    }

    /// Returns the index after the group that begins at token `at`.
    fn closed(&self, at: usize) -> usize {
        let mut depth = 0_usize;
        for n in at..self.0.len() {
            match self.text(n) {
                "(" | "[" | "{" => depth += 1,
                ")" | "]" | "}" => depth = depth.saturating_sub(1),
                _ => {}
            }
            if depth == 0 {
                return n + 1;
            }
        }
        self.0.len()
    }

    /// Returns the index after the item that begins at token `at`: a function, a module or a field.
    fn item_end(&self, at: usize) -> usize {
        let mut n = at;
        while n < self.0.len() {
            match self.text(n) {
                "{" => return self.closed(n),
                ";" | "," => return n + 1,
                "}" => return n,
                "(" | "[" => n = self.closed(n),
                _ => n += 1,
            }
        }
        n
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(source: &str) -> Vec<String> {
        strings(source).into_iter().map(|block| block.text).collect()
    }

    #[test]
    fn literals_of_all_forms_are_read_with_their_values() {
        assert_eq!(
            found(r#"f("The \"file\" has\ttwo\nlong lines of text.")"#),
            ["The \"file\" has", "two long lines of text."]
        );
        assert_eq!(found("f(r#\"A raw \"text\" has no escapes.\"#)"), ["A raw \"text\" has no escapes."]);
        assert_eq!(
            found("f(\"One sentence goes on \\\n      in the next line.\")"),
            ["One sentence goes on in the next line."]
        );
        assert_eq!(
            found("f(\"cannot read {path:?} of {}: `a b` {{x}} is missing\")"),
            ["cannot read `code` of `code`: `code` {x} is missing"]
        );
        assert_eq!(strings("\n\nf(\"The third line has it.\")")[0].line, 3);
    }

    #[test]
    fn paragraphs_columns_and_tags_are_apart() {
        assert_eq!(
            found("f(\"Two lines of\none paragraph.\n\nExamples:\n  ./quire test    all checks\")"),
            ["Two lines of one paragraph.", "Examples:", "./quire test", "all checks"]
        );
        assert_eq!(found("f(\"<p class=a>A cell names the lines.</p>\")"), ["A cell names the lines."]);
    }

    #[test]
    fn labels_code_and_tests_are_left_out() {
        for source in [
            "f(\"four words are few\")",
            "f(b\"bytes are no text for users\")",
            "// \"a comment is no string at all\"",
            "f(\"for i in 1 2 3; do dd if=a of=b; done\")",
            "f(\"console=ttyS0 oops=panic panic=-1 rdinit=/init audit=0\")",
            "global_asm!(\"push the old stack pointer here\");",
            "#[cfg(test)] mod tests { fn f() { g(\"only a developer reads this text\"); } }",
            "#[cfg(all(test, loom))] use a::b; #[test] fn f(a: [u8; 2]) { g(\"a test has this long text\") }",
        ] {
            assert!(found(source).is_empty(), "{source}: {:?}", found(source));
        }
        let after = "#[cfg(test)] mod a; #[cfg(not(test))] fn f() { g(\"this text is in no test\") }";
        assert_eq!(found(after), ["this text is in no test"]);
    }

    #[test]
    fn files_of_tests_are_not_read() {
        assert!(is_read("xtask/src/test/mod.rs") && is_read("crates/vm/src/models.rs"));
        for path in
            ["crates/vm/src/tests.rs", "lab/tests/a.rs", "crates/fs/src/test_host.rs", "docs/a.md", "programs/a.c"]
        {
            assert!(!is_read(path), "{path}");
        }
    }
}
