//! Results of checks, and the line that ends a run.

/// The result of a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The check passed.
    Passed,
    /// The check failed, for this reason.
    Failed(String),
    /// The check could not run on this machine. The field has the reason.
    Skipped(Skip),
}

/// Why a check was skipped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skip {
    /// The reason in a few words.
    pub why: String,
    /// Whether continuous integration may skip the check too, because it has no hardware virtualisation or lacks a
    /// tool.
    pub excepted: bool,
}

/// A check with its result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    /// The full name, by which FILTER selects.
    pub name: String,
    /// The result.
    pub outcome: Outcome,
}

impl Check {
    /// Returns a check that passed.
    pub fn passed(name: impl Into<String>) -> Self {
        Self { name: name.into(), outcome: Outcome::Passed }
    }

    /// Returns a check that failed.
    pub fn failed(name: impl Into<String>, why: impl Into<String>) -> Self {
        Self { name: name.into(), outcome: Outcome::Failed(why.into()) }
    }

    /// Returns a check that was skipped.
    pub fn skipped(name: impl Into<String>, why: impl Into<String>, excepted: bool) -> Self {
        Self { name: name.into(), outcome: Outcome::Skipped(Skip { why: why.into(), excepted }) }
    }

    /// Returns a check that passed if `result` is `Ok`, and otherwise failed.
    pub fn of<T, E: std::fmt::Display>(name: impl Into<String>, result: Result<T, E>) -> Self {
        match result {
            Ok(_) => Self::passed(name),
            Err(e) => Self::failed(name, e.to_string()),
        }
    }

    /// Returns the result for continuous integration: a check that was skipped without an exception has failed.
    pub fn strict(self) -> Self {
        match self.outcome {
            Outcome::Skipped(Skip { why, excepted: false }) => {
                Self::failed(self.name, format!("skipped ({why}); with CI=true a skipped check fails"))
            }
            _ => self,
        }
    }
}

/// Returns the last line of a run, with the numbers of passed, failed and skipped checks.
pub fn summary(checks: &[Check]) -> String {
    let count = |f: fn(&Outcome) -> bool| checks.iter().filter(|c| f(&c.outcome)).count();
    format!(
        "{} passed, {} failed, {} skipped",
        count(|o| matches!(o, Outcome::Passed)),
        count(|o| matches!(o, Outcome::Failed(_))),
        count(|o| matches!(o, Outcome::Skipped(_)))
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_counts() {
        let checks =
            [Check::passed("a"), Check::passed("b"), Check::failed("c", "x"), Check::skipped("d", "no kvm", true)];
        assert_eq!(summary(&checks), "2 passed, 1 failed, 1 skipped");
    }

    #[test]
    fn in_a_full_run_a_skip_fails_unless_it_is_excepted() {
        assert!(matches!(Check::skipped("a", "later", false).strict().outcome, Outcome::Failed(_)));
        assert!(matches!(Check::skipped("a", "no kvm", true).strict().outcome, Outcome::Skipped(_)));
        assert_eq!(Check::passed("a").strict(), Check::passed("a"));
    }
}
