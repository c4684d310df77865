//! Checks that code which the model checkers may run uses the atomics of `quire-sync`. The checkers replace these
//! atomics. They cannot see an atomic of `core`, so a protocol that uses one could not have a model.

/// The crates whose code may be part of a model.
const CRATES: [&str; 9] = ["vm", "task", "lookup", "fs", "net", "ipc", "linux-state", "linux", "procfs"];
/// Files whose atomics the checkers need not see, and why.
const EXCEPTIONS: [(&str, &str); 2] = [
    ("crates/vm/src/machine/bytes.rs", "bytes that programs store into meanwhile race by intent"),
    ("crates/vm/src/mutant.rs", "the switches of the mutants are no part of a protocol"),
];
/// Parts of the paths of tests. Tests may use any atomics, because their threads are the host's.
const TESTS: [&str; 9] = [
    "tests.rs",
    "/tests/",
    "models.rs",
    "/models/",
    "/test_host",
    "/testing.rs",
    "/refusals.rs",
    "_model.rs",
    "_tests.rs",
];
/// The paths of the other atomics.
const FOREIGN: [&str; 2] = ["core::sync::atomic", "std::sync::atomic"];

/// Returns the lines of a file that name the atomics of `core` or `std`, each with its place.
pub fn judge(path: &str, text: &str) -> Vec<String> {
    let ours = CRATES.iter().any(|krate| path.starts_with(&format!("crates/{krate}/src/")));
    if !ours || TESTS.iter().any(|part| path.contains(part)) || EXCEPTIONS.iter().any(|(file, _)| *file == path) {
        return Vec::new();
    }
    let code = text.split("\nmod tests {").next().unwrap_or(text);
    let names = |line: &str| {
        let code = line.split("//").next().unwrap_or(line);
        FOREIGN.iter().any(|foreign| code.contains(foreign))
    };
    let lines = code.lines().enumerate().filter(|(_, line)| names(line));
    lines.map(|(n, _)| format!("{path}:{}: use `quire_sync::atomic`, which models replace", n + 1)).collect()
}

/// Returns the exceptions whose file is gone, or no longer uses the atomics of `core` or `std`.
pub fn stale(sources: &[(String, String)]) -> Vec<String> {
    let used = |file: &str| sources.iter().any(|(path, text)| path == file && FOREIGN.iter().any(|f| text.contains(f)));
    EXCEPTIONS.iter().filter(|(file, _)| !used(file)).map(|(file, _)| format!("{file} needs no exception")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(path: &str, text: &str) -> usize {
        judge(path, text).len()
    }

    #[test]
    fn an_atomic_of_core_in_modelled_code_is_found() {
        for foreign in ["use core::sync::atomic::Ordering;\n", "fn f(a: &std::sync::atomic::AtomicU8) {}\n"] {
            assert_eq!(judged("crates/linux/src/a.rs", foreign), 1);
            assert_eq!(judged("crates/kernel/src/a.rs", foreign), 0);
        }
        assert_eq!(judged("crates/linux/src/a.rs", "use quire_sync::atomic::Ordering;\n"), 0);
        assert_eq!(judged("crates/linux/src/a.rs", "// as core::sync::atomic does\n"), 0);
    }

    #[test]
    fn tests_and_exceptions_may_have_their_own() {
        let text = "use core::sync::atomic::Ordering;\n";
        for path in ["fs/src/a/tests.rs", "linux/src/test_host/a.rs", "task/src/models/a.rs", "vm/src/machine/bytes.rs"]
        {
            assert_eq!(judged(&format!("crates/{path}"), text), 0, "{path}");
        }
        assert_eq!(
            judged("crates/vm/src/a.rs", &format!("fn f() {{}}\n#[cfg(test)]\nmod tests {{\n    {text}}}\n")),
            0
        );
    }

    #[test]
    fn an_exception_without_a_need_is_found() {
        assert_eq!(stale(&[]).len(), EXCEPTIONS.len());
        let there = EXCEPTIONS.map(|(file, _)| (file.to_owned(), "core::sync::atomic".to_owned()));
        assert!(stale(&there).is_empty());
    }
}
