//! The result of a suite.

use std::fmt;

/// The outcome of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// All answers were right.
    Passed,
    /// The check found an error: a wrong answer, a panic, or a call that did not end. The text says
    /// which.
    Failed(String),
    /// The back end lacks a feature, or the suite leaves the check out. The text gives the reason.
    Skipped(String),
}

/// The outcomes of the checks of a suite.
///
/// [`Display`](fmt::Display) prints one line per check, failed checks first.
///
/// # Examples
/// ```
/// use std::sync::Arc;
/// use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
/// use corewalk_conformance::{Outcome, Suite};
///
/// let new = || Arc::new(Tmpfs::new(TmpfsOptions::default())) as Arc<dyn corewalk::FileSystem>;
/// let report = Suite::new(new).only("statfs").run();
/// assert_eq!(report.outcome("statfs"), Some(&Outcome::Passed));
/// assert_eq!(report.failed().count(), 0);
/// println!("{report}");
/// ```
#[derive(Clone, Debug)]
#[must_use = "a report is judged by `assert` or by its outcomes"]
pub struct Report {
    seed: u64,
    outcomes: Vec<(&'static str, Outcome, String)>,
}

impl Report {
    pub(crate) fn new(seed: u64) -> Report {
        Report { seed, outcomes: Vec::new() }
    }

    pub(crate) fn add(&mut self, check: &'static str, outcome: Outcome, note: String) {
        self.outcomes.push((check, outcome, note));
    }

    /// Returns the name and the outcome of each check, in the order in which they ran.
    pub fn outcomes(&self) -> impl Iterator<Item = (&'static str, &Outcome)> {
        self.outcomes.iter().map(|(check, outcome, _)| (*check, outcome))
    }

    /// Returns the outcome of the check with this name, or None if the suite has no such check.
    pub fn outcome(&self, check: &str) -> Option<&Outcome> {
        self.outcomes().find(|(name, _)| *name == check).map(|(_, outcome)| outcome)
    }

    /// Returns the names of the checks that failed.
    pub fn failed(&self) -> impl Iterator<Item = &'static str> {
        let failed = |(_, outcome): &(_, &Outcome)| matches!(outcome, Outcome::Failed(_));
        self.outcomes().filter(failed).map(|(check, _)| check)
    }

    /// Asserts that no check failed and that at least one check passed.
    ///
    /// # Panics
    /// If a check failed, or all checks were skipped. The message is the whole report.
    pub fn assert(&self) {
        let passed = self.outcomes().filter(|(_, outcome)| **outcome == Outcome::Passed).count();
        assert!(self.failed().next().is_none() && passed > 0, "{self}");
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [mut passed, mut failed, mut skipped] = [const { Vec::new() }; 3];
        for (check, outcome, note) in &self.outcomes {
            match outcome {
                Outcome::Passed if note.is_empty() => passed.push(format!("passed   {check}")),
                Outcome::Passed => passed.push(format!("passed   {check}: {note}")),
                Outcome::Failed(why) => failed.push(format!("FAILED   {check}: {why}")),
                Outcome::Skipped(why) => skipped.push(format!("skipped  {check}: {why}")),
            }
        }
        writeln!(
            f,
            "{} checks: {} passed, {} failed, {} skipped; seed {:#x}",
            self.outcomes.len(),
            passed.len(),
            failed.len(),
            skipped.len(),
            self.seed,
        )?;
        let lines = [failed, skipped, passed].concat();
        write!(f, "{}", lines.join("\n"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(outcomes: &[Outcome]) -> Report {
        let mut report = Report::new(7);
        outcomes
            .iter()
            .zip(["a", "b"])
            .for_each(|(it, name)| report.add(name, it.clone(), String::new()));
        report
    }

    #[test]
    fn printed_report_has_failures_first_and_the_seed() {
        let report = of(&[Outcome::Passed, Outcome::Failed("why".to_owned())]);
        let text = report.to_string();
        assert!(text.contains("1 passed, 1 failed, 0 skipped; seed 0x7"));
        assert!(text.ends_with("\nFAILED   b: why\npassed   a"), "{text}");
        assert_eq!(report.failed().collect::<Vec<_>>(), ["b"]);
    }

    #[test]
    fn report_with_a_skip_is_accepted() {
        of(&[Outcome::Skipped("why".to_owned()), Outcome::Passed]).assert();
    }

    #[test]
    #[should_panic(expected = "FAILED   a: why")]
    fn report_with_a_failure_is_not_accepted() {
        of(&[Outcome::Failed("why".to_owned()), Outcome::Passed]).assert();
    }

    #[test]
    #[should_panic(expected = "0 passed")]
    fn report_in_which_nothing_passed_is_not_accepted() {
        of(&[Outcome::Skipped("why".to_owned())]).assert();
    }
}
