//! Checks the contracts. ARCHITECTURE.md states them in one table. Each has one home in the code. Other code may only
//! rely on contracts of that table.

/// A contract's number, and its home: the file in the table, without `crates/` and `src/`.
pub type Row<'t> = (u32, &'t str);

/// Returns the rows of the table of contracts: `| C1 | text | `home` |`.
pub fn table(text: &str) -> Vec<Row<'_>> {
    let rows = text.lines().filter_map(|line| line.strip_prefix("| C")?.strip_suffix("` |"));
    let rows = rows.filter_map(|row| Some((row.split_once(" |")?.0.parse().ok()?, row.rsplit_once('`')?.1)));
    rows.collect()
}

/// Returns the lines that break a rule. A contract has one home, under the heading `# Contract Cn: `, in the file that
/// the table names. Other comments must not call themselves the contract, and must name only contracts of the table.
pub fn judge(table: &[Row<'_>], sources: &[(String, String)]) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut homes: Vec<(u32, &str)> = Vec::new();
    for (path, text) in sources {
        for (n, line) in text.lines().enumerate() {
            let Some((_, comment)) = line.split_once("//") else { continue };
            let place = format!("{path}:{}", n + 1);
            let heading = comment.trim_start_matches(['/', '!']).trim_start().strip_prefix("# Contract C");
            if let Some((number, _)) = heading.and_then(|h| h.split_once(": ")) {
                match number.parse() {
                    Ok(number) => homes.push((number, path)),
                    Err(_) => wrong.push(format!("{place}: no contract has the number {number}")),
                }
                continue;
            }
            if ["Contract C", "Contracts C", "contract C"].iter().any(|name| names_a_number(comment, name)) {
                wrong.push(format!(
                    "{place}: only a contract's home has the heading `Contract Cn`; write `relies on Cn`"
                ));
            }
            for number in mentioned(comment).filter(|number| table.iter().all(|(known, _)| known != number)) {
                wrong.push(format!("{place}: there is no contract C{number}"));
            }
        }
    }
    for (number, home) in table {
        let found: Vec<&str> = homes.iter().filter(|(n, _)| n == number).map(|(_, path)| *path).collect();
        match found[..] {
            [path] if path.replacen("crates/", "", 1).replacen("/src/", "/", 1) == *home => {}
            [path] => wrong.push(format!("the home of C{number} is {path}, but ARCHITECTURE.md names {home}")),
            [] => wrong.push(format!("C{number} has no home: no file has the heading `# Contract C{number}: `")),
            _ => wrong.push(format!("C{number} has several homes: {}", found.join(", "))),
        }
    }
    let strange = homes.iter().filter(|(number, _)| table.iter().all(|(known, _)| known != number));
    wrong.extend(strange.map(|(number, path)| format!("{path}: ARCHITECTURE.md has no contract C{number}")));
    wrong
}

/// Whether the comment contains `name` directly before a number.
fn names_a_number(comment: &str, name: &str) -> bool {
    comment.match_indices(name).any(|(at, _)| comment[at + name.len()..].starts_with(|c: char| c.is_ascii_digit()))
}

/// Returns the numbers of the contracts that a comment mentions by words like `C2`.
fn mentioned(comment: &str) -> impl Iterator<Item = u32> {
    let words = comment.split(|c: char| !c.is_alphanumeric() && c != '_');
    words.filter_map(|word| word.strip_prefix('C')?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str =
        "| | contract | where |\n| C1 | One. | `vm/phys/page.rs` |\n| C2 | Two (`x`). | `sync/rank.rs` |\n";

    fn judged(page: &str, rank: &str) -> Vec<String> {
        let file = |path: &str, text: &str| (path.to_owned(), text.to_owned());
        judge(&table(TABLE), &[file("crates/vm/src/phys/page.rs", page), file("crates/sync/src/rank.rs", rank)])
    }

    const PAGE: &str = "//! # Contract C1: identity\n";
    const RANK: &str = "//! # Contract C2: order\n";

    #[test]
    fn the_table_says_where_each_contract_is_at_home() {
        assert_eq!(table(TABLE), [(1, "vm/phys/page.rs"), (2, "sync/rank.rs")]);
    }

    #[test]
    fn a_contract_with_one_home_is_relied_on_elsewhere() {
        assert_eq!(judged(PAGE, &format!("{RANK}// Relies on C1.\nlet c7 = C7;\n")), Vec::<String>::new());
    }

    #[test]
    fn a_home_that_is_missing_or_twice_or_elsewhere_is_found() {
        assert_eq!(judged("", RANK).len(), 1);
        assert_eq!(judged(PAGE, &format!("{RANK}{PAGE}")).len(), 1);
        assert_eq!(judged(RANK, PAGE).len(), 2);
        assert_eq!(judged(PAGE, &format!("{RANK}//! # Contract C3: three\n")).len(), 1);
    }

    #[test]
    fn a_contract_that_is_not_there_cannot_be_relied_on() {
        assert_eq!(
            judged(PAGE, &format!("{RANK}// relies on C3\n")),
            ["crates/sync/src/rank.rs:2: there is no contract C3"]
        );
        assert_eq!(judged(PAGE, &format!("{RANK}// Contract C1: held.\n")).len(), 1);
    }
}
