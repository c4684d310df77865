//! Sentences: where they end, how many words they have, and which words name no actor.

/// The most words of a sentence that does not count as long.
pub const LONG: usize = 25;
/// Blocks with fewer words are labels, such as a table's cell, and not sentences.
const LABEL: usize = 4;
/// `What a check found.` may be a name. In a statement with more words than this, `what` or `who` at the start hides
/// the subject.
const NAME: usize = 8;
/// Words whose full stop does not end a sentence.
const ABBREVIATIONS: [&str; 9] = ["e.g.", "i.e.", "vs.", "cf.", "vol.", "sec.", "no.", "fig.", "etc."];
/// Words that name no actor.
const VAGUE: [&str; 12] = [
    "whoever",
    "whomever",
    "whom",
    "whosoever",
    "nobody",
    "somebody",
    "someone",
    "everybody",
    "everyone",
    "anybody",
    "anyone",
    "whichever",
];
/// Pairs of words that name no actor.
const VAGUE_PAIRS: [(&str, &str); 5] =
    [("one", "that"), ("one", "who"), ("that", "which"), ("what", "is"), ("what", "are")];

/// Words with a private sense in this project, and the field's words for them.
const PRIVATE: [(&str, &str); 12] = [
    ("tell", "report, notify, return"),
    ("tells", "reports, notifies, returns"),
    ("told", "reported, notified, returned"),
    ("telling", "reporting, notifying, returning"),
    ("untold", "unreported"),
    ("headcount", "limited counter"),
    ("stain", "mark dirty"),
    ("stains", "marks dirty"),
    ("stained", "marked dirty"),
    ("deaf", "shut down for receiving"),
    ("unborn", "new"),
    ("faint", "weak"),
];

/// A sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sentence {
    /// The words, with one space between them. Code counts as one word.
    pub text: String,
    /// The number of words.
    pub words: usize,
}

impl Sentence {
    /// Whether the sentence is too long for one reading.
    pub fn is_long(&self) -> bool {
        self.words > LONG
    }

    fn bare_words(&self) -> Vec<String> {
        self.text.split_whitespace().map(bare).filter(|w| !w.is_empty()).collect()
    }

    /// Returns the first private word in the sentence, and the field's words for it.
    pub fn private(&self) -> Option<(&'static str, &'static str)> {
        self.bare_words().iter().find_map(|word| PRIVATE.into_iter().find(|(private, _)| private == word))
    }

    /// Returns the first word, or pair of words, that stands in place of an actor's name.
    pub fn vague(&self) -> Option<String> {
        let words = self.bare_words();
        if let Some(word) = words.iter().find(|word| VAGUE.contains(&word.as_str())) {
            return Some(word.clone());
        }
        let asks = self.text.trim_end_matches(['"', ')', '*']).ends_with('?');
        if !asks && self.words > NAME && words.first().is_some_and(|first| first == "who" || first == "what") {
            return words.first().map(|first| format!("{first} ..."));
        }
        let pairs = words.windows(2).filter(|_| !asks);
        let found = pairs.map(|pair| (pair[0].as_str(), pair[1].as_str())).find(|pair| VAGUE_PAIRS.contains(pair));
        found.map(|(first, second)| format!("{first} {second}"))
    }
}

/// Returns a word without its punctuation, in small letters. Code becomes a backquote.
fn bare(word: &str) -> String {
    if word.contains('`') {
        return "`".into();
    }
    word.trim_matches(|c: char| !c.is_alphanumeric()).to_lowercase()
}

/// Returns the sentences of a block: of a paragraph, an item of a list, or a cell of a table.
pub fn split(block: &str) -> Vec<Sentence> {
    let mut found = Vec::new();
    let mut current: Vec<&str> = Vec::new();
    let words: Vec<&str> = block.split_whitespace().collect();
    for (n, word) in words.iter().enumerate() {
        current.push(word);
        if words.get(n + 1).is_none_or(|next| ends(word) && begins(next)) {
            found.extend(sentence(&current));
            current.clear();
        }
    }
    found
}

/// Whether a sentence may end with this word.
fn ends(word: &str) -> bool {
    let inner = word.trim_end_matches(['"', '\'', ')', ']', '*', '_']);
    inner.ends_with(['.', '?', '!']) && !ABBREVIATIONS.contains(&inner.trim_start_matches('(').to_lowercase().as_str())
}

/// Whether a sentence may begin with this word.
fn begins(word: &str) -> bool {
    word.trim_start_matches(['"', '\'', '(', '[', '*', '_']).chars().next().is_none_or(|c| !c.is_lowercase())
}

fn sentence(words: &[&str]) -> Option<Sentence> {
    let count = words.iter().filter(|word| word.chars().any(char::is_alphanumeric)).count();
    (count >= LABEL).then(|| Sentence { text: words.join(" "), words: count })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(block: &str) -> Vec<usize> {
        split(block).iter().map(|s| s.words).collect()
    }

    fn vague(text: &str) -> Option<String> {
        split(text).first().and_then(Sentence::vague)
    }

    #[test]
    fn full_stops_end_sentences_and_semicolons_do_not() {
        assert_eq!(
            counts("A page has a frame. Its owner (see `x`.) frees it! Does a reader wait? Yes, it does wait."),
            [5, 6, 4, 4]
        );
        assert_eq!(counts("A page has one frame; its owner frees it: no reader waits for that."), [14]);
        assert_eq!(counts("It takes 4.5 ms, e.g. Linux takes 5 ms, and so does vm.rs in the core."), [16]);
    }

    #[test]
    fn labels_are_no_sentences() {
        assert!(split("zero-fill fault").is_empty() && split("").is_empty());
        assert_eq!(split("One statement a sentence").len(), 1);
    }

    #[test]
    fn long_ones_have_more_than_25_words() {
        let words = |n: usize| split(&vec!["word"; n].join(" "))[0].is_long();
        assert!(!words(25) && words(26));
    }

    #[test]
    fn words_without_an_actor_are_found() {
        assert_eq!(vague("A lock is held by whoever faults."), Some("whoever".into()));
        assert_eq!(vague("Who takes a frame from a magazine compares nothing."), Some("who ...".into()));
        assert_eq!(vague("A stale one that idles stays there."), Some("one that".into()));
        assert_eq!(vague("This says what is there now."), Some("what is".into()));
        assert_eq!(vague("What is a page of the core?"), None);
        assert_eq!(vague("What a check found."), None);
        assert_eq!(vague("The reader who waits names `whoever` it wants."), None);
    }
}
