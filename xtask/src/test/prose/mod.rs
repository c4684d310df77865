//! Checks that prose can be understood at the first reading. Sentences must be short, actors must have names, and words
//! must be the field's.
//!
//! The checks read the documents of the root and of `docs/`, all line comments, and the string literals of Rust.
//! `./quire test prose --table` prints a row for each file.

mod sentence;
mod strings;
mod text;

use std::{fmt::Write as _, fs, path::Path};

use comfy_table::{CellAlignment, Table, presets::NOTHING};

use self::{
    sentence::{LONG, Sentence},
    text::Block,
};
use super::{Context, docs, verdict::Check};
use crate::{
    failure::{Doing, Failure, Result},
    places::Places,
};

const DOCUMENTS: &str = "prose/documents have short sentences";
const COMMENTS: &str = "prose/comments have short sentences";
const STRINGS: &str = "prose/strings have short sentences";
const ACTORS: &str = "prose/actors have names";
const WORDS: &str = "prose/words are the field's";
const ALLOWED: &str = "prose/exceptions are few, have reasons and are used";
/// The sentences that may have no actor. The head of the file describes its format.
const LIST: &str = include_str!("allowed");
/// The most sentences in that list.
const MOST_ALLOWED: usize = 20;
/// Generated lists of signatures.
const GENERATED: [&str; 1] = ["docs/api.md"];
/// The folders with comments and strings.
const FOLDERS: [&str; 8] = ["crates", "lab", "fuzz", "plugin", "examples", "programs", "xtask", "tests"];

/// The checks' names.
pub fn names(_: &Context<'_>) -> Result<Vec<String>> {
    Ok([DOCUMENTS, COMMENTS, STRINGS, ACTORS, WORDS, ALLOWED].map(str::to_owned).to_vec())
}

/// The kind of text that the check reads in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The whole document.
    Document,
    /// The comments of a source.
    Source,
    /// The strings of a source.
    Strings,
}

impl Kind {
    /// The most long sentences, in per cent.
    fn limit(self) -> usize {
        match self {
            Self::Document | Self::Strings => 3,
            Self::Source => 5,
        }
    }
}

/// A file's sentences, each with its line.
#[derive(Debug)]
struct Read {
    path: String,
    kind: Kind,
    sentences: Vec<(usize, Sentence)>,
}

impl Read {
    fn new(path: String, kind: Kind, blocks: &[Block]) -> Self {
        let of = |block: &Block| sentence::split(&block.text).into_iter().map(|s| (block.line, s)).collect::<Vec<_>>();
        Self { path, kind, sentences: blocks.iter().flat_map(of).collect() }
    }

    fn long(&self) -> usize {
        self.sentences.iter().filter(|(_, s)| s.is_long()).count()
    }

    /// Whether too many sentences are long. One long sentence is allowed even in a short file.
    fn is_over(&self) -> bool {
        self.long() > 1 && self.long() * 100 > self.sentences.len() * self.kind.limit()
    }
}

/// Runs the selected checks.
pub fn run(context: &Context<'_>, done: &mut dyn FnMut(Check)) -> Result<()> {
    if ![DOCUMENTS, COMMENTS, STRINGS, ACTORS, WORDS, ALLOWED].iter().any(|name| context.selects(name)) {
        return Ok(());
    }
    let files = read(&context.places.root)?;
    let allowed = allowed(LIST)?;
    let over = |kind| files.iter().filter(move |f| f.kind == kind && f.is_over()).map(long).collect();
    let named: [(&str, Vec<String>); 6] = [
        (DOCUMENTS, over(Kind::Document)),
        (COMMENTS, over(Kind::Source)),
        (STRINGS, over(Kind::Strings)),
        (ACTORS, vague(&files, &allowed)),
        (WORDS, private(&files)),
        (ALLOWED, stale(&files, &allowed)),
    ];
    for (name, wrong) in named {
        if context.selects(name) {
            done(if wrong.is_empty() { Check::passed(name) } else { Check::failed(name, wrong.join("\n")) });
        }
    }
    Ok(())
}

/// Prints a row for each file: `./quire test prose --table`.
pub fn show(places: &Places) -> Result<()> {
    let files = read(&places.root)?;
    let allowed = allowed(LIST)?;
    let mut table = Table::new();
    table.load_style(NOTHING);
    table.set_header(["file", "sentences", "longest", "over 25 words", "%", "no actor"]);
    let mut row = |path: &str, files: &[&Read]| {
        let all: Vec<&Sentence> = files.iter().flat_map(|f| f.sentences.iter().map(|(_, s)| s)).collect();
        let long = all.iter().filter(|s| s.is_long()).count();
        let vague = all.iter().filter(|s| s.vague().is_some() && !allowed.iter().any(|a| a.stands_for(s))).count();
        let longest = all.iter().map(|s| s.words).max().unwrap_or(0);
        let share = format!("{:.1}", 100.0 * long as f64 / all.len().max(1) as f64);
        table.add_row([
            path,
            &all.len().to_string(),
            &longest.to_string(),
            &long.to_string(),
            &share,
            &vague.to_string(),
        ]);
    };
    for file in files.iter().filter(|f| !f.sentences.is_empty()) {
        match file.kind {
            Kind::Strings => row(&format!("{}, strings", file.path), &[file]),
            Kind::Document | Kind::Source => row(&file.path, &[file]),
        }
    }
    for (name, kind) in
        [("all documents", Kind::Document), ("all comments", Kind::Source), ("all strings", Kind::Strings)]
    {
        row(name, &files.iter().filter(|f| f.kind == kind).collect::<Vec<_>>());
    }
    (1..6).filter_map(|n| table.column_mut(n).map(|c| c.set_cell_alignment(CellAlignment::Right))).for_each(drop);
    println!("{table}");
    Ok(())
}

/// Returns a report of the long sentences of a file that has too many.
fn long(file: &Read) -> String {
    let (long, all, limit) = (file.long(), file.sentences.len(), file.kind.limit());
    let mut said = format!("{}: {long} of {all} sentences have more than {LONG} words, {limit} % may", file.path);
    for (line, s) in file.sentences.iter().filter(|(_, s)| s.is_long()) {
        let _ = write!(said, "\n  {}:{line}: {} words: {}", file.path, s.words, s.text);
    }
    said
}

/// Returns the sentences that name no actor, except the allowed ones.
fn vague(files: &[Read], allowed: &[Allowed]) -> Vec<String> {
    let all = files.iter().flat_map(|f| f.sentences.iter().map(move |(line, s)| (f, line, s)));
    let of = |(f, line, s): (&Read, &usize, &Sentence)| Some((f.path.clone(), *line, s.vague()?, s.text.clone()));
    all.filter(|(_, _, s)| !allowed.iter().any(|a| a.stands_for(s)))
        .filter_map(of)
        .map(|(path, line, words, text)| format!("{path}:{line}: `{words}` names no actor: {text}"))
        .collect()
}

/// Returns the sentences with a private word.
fn private(files: &[Read]) -> Vec<String> {
    let all = files.iter().flat_map(|f| f.sentences.iter().map(move |(line, s)| (f, line, s)));
    let of = |(f, line, s): (&Read, &usize, &Sentence)| {
        let (word, better) = s.private()?;
        Some(format!("{}:{line}: for `{word}` say {better}: {}", f.path, s.text))
    };
    all.filter_map(of).collect()
}

/// A sentence without an actor that may stay.
#[derive(Debug, PartialEq, Eq)]
struct Allowed {
    words: String,
    reason: String,
}

impl Allowed {
    fn stands_for(&self, sentence: &Sentence) -> bool {
        sentence.text.contains(&self.words)
    }
}

/// Reads the list of allowed sentences: `words of the sentence | reason`.
fn allowed(text: &str) -> Result<Vec<Allowed>> {
    let lines = text.lines().filter(|l| !l.is_empty() && !l.starts_with('#'));
    let one = |line: &str| {
        let (words, reason) =
            line.split_once(" | ").filter(|(words, reason)| !words.is_empty() && !reason.is_empty())?;
        Some(Allowed { words: words.to_owned(), reason: reason.to_owned() })
    };
    lines
        .map(|line| {
            one(line).ok_or_else(|| Failure::usage(format_args!("{line:?} does not have the form `words | reason`")))
        })
        .collect()
}

/// Returns the exceptions that match no sentence, and an error if there are too many exceptions.
fn stale(files: &[Read], allowed: &[Allowed]) -> Vec<String> {
    let all: Vec<&Sentence> = files.iter().flat_map(|f| f.sentences.iter().map(|(_, s)| s)).collect();
    let used = |a: &&Allowed| all.iter().any(|s| a.stands_for(s) && s.vague().is_some());
    let gone = allowed.iter().filter(|a| !used(a)).map(|a| format!("no sentence has the words {:?}", a.words));
    let many = (allowed.len() > MOST_ALLOWED).then(|| format!("{} exceptions; {MOST_ALLOWED} may be", allowed.len()));
    gone.chain(many).collect()
}

/// Reads all documents and all sources below `root`.
fn read(root: &Path) -> Result<Vec<Read>> {
    let mut found = Vec::new();
    for folder in [root.to_path_buf(), root.join("docs"), root.join("docs/design")] {
        for entry in fs::read_dir(&folder).doing(|| format!("cannot read {}", folder.display()))? {
            let path = entry.doing(|| folder.display().to_string())?.path();
            let name = path.strip_prefix(root).unwrap_or(&path).display().to_string();
            if path.extension().is_some_and(|e| e == "md") && !GENERATED.contains(&name.as_str()) {
                let text = fs::read_to_string(&path).doing(|| format!("cannot read {name}"))?;
                found.push(Read::new(name, Kind::Document, &text::document(&text, 1)));
            }
        }
    }
    let there: Vec<&str> = FOLDERS.into_iter().filter(|f| root.join(f).is_dir()).collect();
    for (path, source) in docs::files_below(root, &there, &["rs", "c", "h"])? {
        if strings::is_read(&path) {
            found.push(Read::new(path.clone(), Kind::Strings, &strings::strings(&source)));
        }
        found.push(Read::new(path, Kind::Source, &text::comments(&source)));
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(text: &str) -> Read {
        Read::new("a.rs".into(), Kind::Source, &text::comments(text))
    }

    #[test]
    fn a_file_with_too_many_long_sentences_is_found() {
        let short = "// A reader waits for the writer.\n\n".repeat(20);
        let long = format!("// A reader {}waits.\n\n", "really ".repeat(30));
        assert!(!source(&short).is_over());
        assert!(!source(&format!("{short}{long}")).is_over(), "one may be long");
        let over = source(&format!("{short}{long}{long}"));
        assert!(over.is_over());
        assert!(super::long(&over).starts_with("a.rs: 2 of 22 sentences"));
    }

    #[test]
    fn a_string_without_an_actor_is_found() {
        let of = |text: &str| [Read::new("a.rs".into(), Kind::Strings, &strings::strings(text))];
        let found = vague(&of("fn f() { say(\"cannot read {path}: somebody \\\n    removed it\"); }"), &[]);
        assert_eq!(found, ["a.rs:1: `somebody` names no actor: cannot read `code`: somebody removed it"]);
        assert!(vague(&of("fn f() { say(\"cannot read {path}: another process removed it\"); }"), &[]).is_empty());
    }

    #[test]
    fn a_private_word_is_found_outside_code() {
        let file = [source("// The writer tells all readers.\n\n// A call of `tell` wakes the reader.\n")];
        assert_eq!(
            private(&file),
            ["a.rs:1: for `tells` say reports, notifies, returns: The writer tells all readers."]
        );
    }

    #[test]
    fn an_exception_covers_its_sentence_and_is_named_when_unused() {
        let file = [source("// A lock is held by whoever faults.\n")];
        let list = allowed("# head\nwhoever faults | a quotation\n").unwrap();
        assert_eq!(vague(&file, &[]).len(), 1);
        assert!(vague(&file, &list).is_empty() && stale(&file, &list).is_empty());
        assert_eq!(stale(&[], &list).len(), 1);
        assert!(allowed("no reason").is_err());
    }
}
