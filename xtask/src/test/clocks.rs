//! Checks that tests judge by counts and states, and do not sleep. The host's clock continues while the host suspends a
//! thread, so times are not reliable.

/// Words that use the host's clock, or sleep by it.
const CLOCK: [&str; 4] = ["thread::sleep", "Instant", "park_timeout", "recv_timeout"];

/// The files whose tests may use the clock, each with its reason.
const EXCEPTIONS: [(&str, &str); 7] = [
    (
        "crates/hosted/tests/machine/changes.rs",
        "a cost for each entry that no counted event shows is compared with a quadratic one",
    ),
    ("crates/hosted/tests/machine/idle.rs", "the memory core counts a second of the clock that all threads share"),
    ("crates/hosted/tests/random/memory.rs", "a pause widens the window of a race, and nothing is judged by it"),
    ("crates/hosted/tests/random/mutants.rs", "a child process that hangs is killed"),
    ("crates/net/src/tests/files.rs", "a collector goes on where the other thread waits for it and cannot say so"),
    ("lab/src/harness.rs", "the harness measures time itself"),
    ("lab/report/tests/page/browser.rs", "a browser that does not end is killed"),
];

/// Returns the uses of the clock in tests of these files, each with its place. Also returns exceptions whose file has
/// no such use.
pub fn judge(sources: &[(String, String)]) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut excepted = [false; EXCEPTIONS.len()];
    for (path, text) in sources {
        let found = uses(path, text);
        match EXCEPTIONS.iter().position(|(file, _)| file == path) {
            Some(at) => excepted[at] = !found.is_empty(),
            None => wrong.extend(found),
        }
    }
    let idle = EXCEPTIONS.iter().zip(excepted).filter(|(_, used)| !used);
    wrong.extend(idle.map(|((file, _), _)| format!("{file}: its exception in xtask/src/test/clocks.rs has no use")));
    wrong
}

/// Returns the uses of the clock in the tests of a file.
fn uses(path: &str, text: &str) -> Vec<String> {
    let whole = path.contains("/tests/") || path.ends_with("tests.rs") || path.ends_with("test_host.rs");
    // `Some` inside a module of tests: the module's indentation.
    let mut inside = whole.then_some(usize::MAX);
    let mut announced = false;
    let mut found = Vec::new();
    for (n, line) in text.lines().enumerate() {
        let code = line.trim_start();
        let indent = line.len() - code.len();
        if inside.is_none() {
            let begins = announced && code.starts_with("mod ") && code.ends_with('{');
            announced = code.starts_with("#[cfg(") && has_word(code, "test") || announced && code.starts_with("#[");
            inside = begins.then_some(indent);
        } else if inside == Some(indent) && code == "}" {
            inside = None;
        } else if !code.starts_with("//")
            && let Some(word) = CLOCK.iter().find(|word| has_word(code, word))
        {
            found.push(format!(
                "{path}:{}: a test uses `{word}`; wait for a state or a listed waiter, and judge by counts",
                n + 1
            ));
        }
    }
    found
}

/// Whether `code` contains `word` as a whole word.
fn has_word(code: &str, word: &str) -> bool {
    let inside = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    let is_whole =
        |at: usize| !inside(code[..at].chars().next_back()) && !inside(code[at + word.len()..].chars().next());
    code.match_indices(word).any(|(at, _)| is_whole(at))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> usize {
        uses(path, text).len()
    }

    #[test]
    fn a_clock_in_a_test_is_found_wherever_tests_stand() {
        let call = "fn f() {\n    std::thread::sleep(SHORT);\n}\n";
        assert_eq!(found("crates/a/src/b.rs", call), 0);
        assert_eq!(found("crates/a/tests/b.rs", call), 1);
        assert_eq!(found("crates/a/src/b/tests.rs", call), 1);
        assert_eq!(found("crates/a/src/order_tests.rs", call), 1);
        assert_eq!(found("crates/a/src/b.rs", &format!("#[cfg(test)]\nmod tests {{\n{call}\n}}\n")), 1);
        let all = "#[cfg(all(test, not(any(loom, shuttle))))]\n#[allow(dead_code)]\nmod tests {\n    use \
            std::time::Instant;\n}\n";
        assert_eq!(found("crates/a/src/b.rs", all), 1);
        let after = "#[cfg(test)]\nmod tests {\n    fn g() {\n    }\n}\n\nfn h() {\n    Instant::now();\n}\n";
        assert_eq!(found("crates/a/src/b.rs", after), 0);
        assert_eq!(found("crates/a/src/b.rs", "#[cfg(test)]\nmod tests;\nuse std::time::Instant;\n"), 0);
    }

    #[test]
    fn comments_and_other_words_are_no_clock() {
        assert_eq!(found("crates/a/tests/b.rs", "// Instant\nlet Instantly = 1;\nInstants::new();\n"), 0);
        assert!(uses("crates/a/tests/b.rs", "\nInstant::now();")[0].starts_with("crates/a/tests/b.rs:2: "));
    }

    #[test]
    fn an_exception_is_used() {
        let file =
            |(path, _): &(&str, &str)| (path.to_string(), "#[cfg(test)]\nmod tests {\n    Instant\n}\n".to_owned());
        let mut sources: Vec<_> = EXCEPTIONS.iter().map(file).collect();
        assert!(judge(&sources).is_empty());
        sources.pop();
        assert_eq!(judge(&sources).len(), 1);
    }
}
