//! Blocks of prose in a document or in a source's comments, without code.

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};
use ra_ap_rustc_lexer::{FrontmatterAllowed, TokenKind, tokenize};

/// A paragraph, an item of a list or a cell of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// The line of the file in which it begins, from 1.
    pub line: usize,
    /// The words. Code between backquotes is one word. File names and numbers in a table's cell are left out.
    pub text: String,
}

/// Returns a table's cell without its numbers and file names.
fn cell(text: &str) -> String {
    let is_name = |word: &&str| !word.contains(|c: char| c.is_ascii_digit() || c == '/') && !word.contains(".rs");
    text.split_whitespace().filter(is_name).collect::<Vec<_>>().join(" ")
}

/// Returns the blocks of a Markdown text whose first line is line `first` of its file. Headings and code give no
/// blocks.
pub fn document(text: &str, first: usize) -> Vec<Block> {
    let mut found: Vec<Block> = Vec::new();
    let mut open = String::new();
    let mut begin = None;
    let mut silent = 0_usize;
    for (event, range) in Parser::new_ext(text, Options::ENABLE_TABLES | Options::ENABLE_FOOTNOTES).into_offset_iter() {
        let ends = match &event {
            Event::Start(Tag::Heading { .. } | Tag::CodeBlock(_) | Tag::HtmlBlock) => {
                silent += 1;
                true
            }
            Event::End(TagEnd::Heading(_) | TagEnd::CodeBlock | TagEnd::HtmlBlock) => {
                silent = silent.saturating_sub(1);
                open.clear();
                true
            }
            Event::Start(Tag::Paragraph | Tag::Item | Tag::TableCell | Tag::List(_))
            | Event::End(TagEnd::Paragraph | TagEnd::Item | TagEnd::TableCell) => true,
            Event::Text(words) if silent == 0 => {
                open.push_str(words);
                false
            }
            Event::Code(_) if silent == 0 => {
                open.push_str("`code`");
                false
            }
            Event::SoftBreak | Event::HardBreak => {
                open.push(' ');
                false
            }
            _ => false,
        };
        if ends {
            if !open.trim().is_empty() {
                let line = first + text[..begin.unwrap_or(range.start)].matches('\n').count();
                let is_cell = matches!(event, Event::End(TagEnd::TableCell));
                found.push(Block { line, text: if is_cell { cell(&open) } else { open.clone() } });
            }
            open.clear();
            begin = None;
        } else if !open.is_empty() && begin.is_none() {
            begin = Some(range.start);
        }
    }
    if !open.trim().is_empty() {
        found.push(Block { line: first + text[..begin.unwrap_or(0)].matches('\n').count(), text: open });
    }
    found
}

/// Returns the blocks of the comments of a source in Rust or C. Consecutive comment lines are one text.
pub fn comments(source: &str) -> Vec<Block> {
    let mut texts: Vec<(usize, &str, String)> = Vec::new();
    // `next` is the line on which a comment would continue the last one.
    let (mut at, mut line, mut next) = (0, 1, 0);
    for token in tokenize(source, FrontmatterAllowed::No) {
        let text = &source[at..at + token.len as usize];
        if let TokenKind::LineComment { .. } = token.kind {
            let marker = ["//!", "///", "//"].into_iter().find(|m| text.starts_with(m)).unwrap_or("//");
            let words = text[marker.len()..].strip_prefix(' ').unwrap_or(&text[marker.len()..]);
            // A comment after code is a separate text.
            let alone = source[..at].rsplit('\n').next().is_none_or(|before| before.trim().is_empty());
            match texts.last_mut() {
                Some((_, last, whole)) if alone && *last == marker && next == line => {
                    whole.push('\n');
                    whole.push_str(words);
                }
                _ => texts.push((line, marker, words.to_owned())),
            }
            next = if alone { line + 1 } else { 0 };
        }
        line += text.matches('\n').count();
        at += token.len as usize;
    }
    texts.iter().flat_map(|(line, _, text)| document(text.strip_prefix("SAFETY: ").unwrap_or(text), *line)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(found: Vec<Block>) -> Vec<(usize, String)> {
        found.into_iter().map(|b| (b.line, b.text)).collect()
    }

    #[test]
    fn a_document_has_paragraphs_items_and_cells() {
        let text = "# Title\n\nOne `a b`\ntwo.\n\n```\ncode\n```\n- first\n- second\n\n| a | b |\n|---|---|\n| c | \
            d/e.rs 4 |\n";
        let expected =
            [(3, "One `code` two."), (9, "first"), (10, "second"), (12, "a"), (12, "b"), (14, "c"), (14, "")];
        assert_eq!(blocks(document(text, 1)), expected.map(|(n, t)| (n, t.to_owned())));
    }

    #[test]
    fn comments_are_joined_where_they_go_on() {
        let source = "//! Head\n//! goes on.\n\nfn f() {\n    // SAFETY: one\n    // two.\n    g(\"// no\"); // \
            behind\n    // next\n}\n";
        let expected = [(1, "Head goes on."), (5, "one two."), (7, "behind"), (8, "next")];
        assert_eq!(blocks(comments(source)), expected.map(|(n, t)| (n, t.to_owned())));
    }
}
