//! The suite for back ends that a program calls directly.

use std::sync::Arc;

use corewalk::FileSystem;

use crate::bench::Bench;
use crate::checks::{ALL, Check};
use crate::plan::{Plan, plan_setters, run_within};
use crate::report::Report;

/// A test suite for one back end.
///
/// # Examples
/// ```
/// use std::sync::Arc;
/// use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
/// use corewalk_conformance::Suite;
///
/// Suite::new(|| Arc::new(Tmpfs::new(TmpfsOptions::default())))
///     .with_operations(5_000)
///     .except("xattrs", "the client never asks for attributes")
///     .run()
///     .assert();
/// ```
pub struct Suite<'a> {
    make: Box<dyn FnMut() -> Arc<dyn FileSystem> + 'a>,
    plan: Plan,
    owner: (u32, u32),
}

impl<'a> Suite<'a> {
    /// Returns the suite for the back ends that `make` returns. Each call of `make` must return a
    /// fresh back end, which no other check uses, and which has no files unless it is read-only.
    pub fn new(make: impl FnMut() -> Arc<dyn FileSystem> + 'a) -> Suite<'a> {
        Suite { make: Box::new(make), plan: Plan::new(), owner: (0, 0) }
    }

    /// Returns the name and the description of each check, in the order in which the checks run.
    ///
    /// # Examples
    /// ```
    /// assert!(corewalk_conformance::Suite::checks().any(|(name, _)| name == "storm"));
    /// ```
    pub fn checks() -> impl Iterator<Item = (&'static str, &'static str)> {
        ALL.iter().map(|check| (check.name, check.about))
    }

    plan_setters!();

    /// Sets the owner of the files that the checks make, root by default. A back end of an ordinary
    /// user may be able to make files only for that user.
    #[must_use]
    pub fn with_owner(mut self, uid: u32, gid: u32) -> Suite<'a> {
        self.owner = (uid, gid);
        self
    }

    /// Runs the checks, one after the other, and returns their outcomes.
    ///
    /// # Panics
    /// If `only` or `except` names a check that does not exist, or the function that makes back
    /// ends panics.
    pub fn run(mut self) -> Report {
        let (make, owner, plan) = (&mut self.make, self.owner, &self.plan);
        plan.run(ALL.iter().map(|check| check.name), &[], |name| {
            let check = ALL.iter().find(|check| check.name == name);
            let check: &'static Check = check.expect("the plan runs the checks of this list");
            let (fs, settings) = (make(), plan.settings);
            run_within(plan.time_limit, name, move || {
                (check.run)(&Bench::new(fs, settings, owner)?).map(|()| String::new())
            })
        })
    }
}

impl std::fmt::Debug for Suite<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Suite").field("plan", &self.plan).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Mounted;

    #[test]
    fn readme_has_each_check_with_its_sentence() {
        let readme = include_str!("../README.md");
        for (name, about) in Suite::checks().chain(Mounted::checks()) {
            assert!(readme.contains(&format!("\n| `{name}` | {about} |\n")), "{name}");
        }
        assert_eq!(readme.matches("\n| `").count(), ALL.len() + Mounted::checks().count());
    }

    #[test]
    fn names_of_checks_are_unique() {
        let mut names: Vec<&str> = Suite::checks().map(|(name, _)| name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ALL.len());
    }
}
