//! Checks comments that argue for an `unsafe` block. Such a comment must make a claim that could be wrong: a fact of
//! the code, or a contract.

/// A comment with fewer characters cannot argue.
const LEAST: usize = 25;
/// Words by which a comment refers to another comment instead of arguing. They are refused, because the other comment
/// may change, and because no two `unsafe` blocks need exactly the same argument.
const ELSEWHERE: [&str; 5] = ["as above", "as below", "as it says", "likewise", "same"];

/// Returns the comments of a file that argue too little, each with its place.
pub fn judge(path: &str, text: &str) -> Vec<String> {
    let lines: Vec<&str> = text.lines().map(str::trim_start).collect();
    let mut wrong = Vec::new();
    for (n, line) in lines.iter().enumerate() {
        let Some(first) = line.strip_prefix("// SAFETY:") else { continue };
        let goes_on = |line: &&&str| line.starts_with("// ") && !line.starts_with("// SAFETY:");
        let more = lines[n + 1..].iter().take_while(goes_on).map(|line| line.trim_start_matches('/'));
        let said = std::iter::once(first).chain(more).flat_map(str::split_whitespace).collect::<Vec<_>>().join(" ");
        if said.chars().count() < LEAST {
            wrong.push(format!("{path}:{}: `{said}` is too short to be an argument", n + 1));
        } else if let Some(words) = ELSEWHERE.iter().find(|words| has_words(&said, words)) {
            wrong.push(format!("{path}:{}: `{words}` refers to another argument; state the fact itself", n + 1));
        }
    }
    wrong
}

/// Whether the text contains `words` as whole words.
fn has_words(text: &str, words: &str) -> bool {
    let text = text.to_lowercase();
    let inside = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
    text.match_indices(words)
        .any(|(at, _)| !inside(text[..at].chars().next_back()) && !inside(text[at + words.len()..].chars().next()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(comment: &str) -> usize {
        judge("crates/a/src/b.rs", &format!("fn f() {{\n    {comment}\n    unsafe {{ g() }}\n}}\n")).len()
    }

    #[test]
    fn an_argument_that_names_a_fact_is_one_over_several_lines_too() {
        assert_eq!(judged("// SAFETY: the node was made by `new` and is freed once."), 0);
        assert_eq!(judged("// SAFETY: the node was\n    // made by `new`, and is freed once."), 0);
    }

    #[test]
    fn an_argument_that_is_short_or_elsewhere_is_found() {
        assert_eq!(judged("// SAFETY: not null."), 1);
        assert_eq!(judged("// SAFETY: as above, and the list is locked by the caller."), 1);
        assert_eq!(judged("// SAFETY: Likewise for the second node of the pair of nodes."), 1);
        assert_eq!(judged("// SAFETY: the same block, whose lock is held by the caller."), 1);
        assert_eq!(judged("// SAFETY: the block is samesized with the one that is locked."), 0);
    }

    #[test]
    fn its_place_is_reported() {
        assert!(judge("crates/a/src/b.rs", "\n// SAFETY: ours.\n")[0].starts_with("crates/a/src/b.rs:2: "));
    }
}
