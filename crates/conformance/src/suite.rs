//! The entry point: which checks run, and with which settings.
//!
//! Each check runs on a thread of its own. So the suite notices a check that never ends, reports
//! it, and goes on. The suite does not end the thread of such a check, and does not drop its back
//! end. A check that panics ends its thread, and the suite reports the message of the panic.

use std::any::Any;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, SystemTime};

use corewalk::FileSystem;
use corewalk_base::primitives::thread;

use crate::answer::{Checked, Stop};
use crate::bench::{Bench, Settings};
use crate::checks::{ALL, Check};
use crate::report::{Outcome, Report};

/// The calls of the check `storm`, unless [`Suite::with_operations`] sets another number.
const OPERATIONS: u64 = 20_000;
/// The default number of threads of the check `storm`. Each of its five roles, such as writer and
/// reader, has one thread. The sixth thread is a second publisher.
const THREADS: usize = 6;
/// The default time limit of one check. Even with a back end on a slow disk, no check takes that
/// long.
const TIME_LIMIT: Duration = Duration::from_secs(600);

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
    settings: Settings,
    time_limit: Duration,
    only: Vec<String>,
    except: Vec<(String, String)>,
}

impl<'a> Suite<'a> {
    /// Returns the suite for the back ends that `make` returns. Each call of `make` must return a
    /// fresh back end, which no other check uses. Only a read-only back end may already have files.
    pub fn new(make: impl FnMut() -> Arc<dyn FileSystem> + 'a) -> Suite<'a> {
        let time = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        let settings = Settings {
            operations: OPERATIONS,
            threads: THREADS,
            seed: time.as_nanos() as u64,
            owner: (0, 0),
        };
        Suite {
            make: Box::new(make),
            settings,
            time_limit: TIME_LIMIT,
            only: Vec::new(),
            except: Vec::new(),
        }
    }

    /// Returns the name of each check with a sentence that describes it, in the order in which the
    /// checks run.
    ///
    /// # Examples
    /// ```
    /// assert!(corewalk_conformance::Suite::checks().any(|(name, _)| name == "storm"));
    /// ```
    pub fn checks() -> impl Iterator<Item = (&'static str, &'static str)> {
        ALL.iter().map(|check| (check.name, check.about))
    }

    /// Sets the approximate number of calls that the check `storm` makes. The default is 20,000.
    #[must_use]
    pub fn with_operations(mut self, operations: u64) -> Suite<'a> {
        self.settings.operations = operations;
        self
    }

    /// Sets the number of threads of the check `storm`, 6 by default and at least 5.
    #[must_use]
    pub fn with_threads(mut self, threads: usize) -> Suite<'a> {
        self.settings.threads = threads;
        self
    }

    /// Sets the seed of all random choices. The default is made from the time. The report of a run
    /// has the seed.
    #[must_use]
    pub fn with_seed(mut self, seed: u64) -> Suite<'a> {
        self.settings.seed = seed;
        self
    }

    /// Sets the owner of the files that the checks make, root by default. A back end that stores
    /// files as an ordinary user can make files only for that user.
    #[must_use]
    pub fn with_owner(mut self, uid: u32, gid: u32) -> Suite<'a> {
        self.settings.owner = (uid, gid);
        self
    }

    /// Sets how long a check may take, 10 minutes by default.
    #[must_use]
    pub fn with_time_limit(mut self, limit: Duration) -> Suite<'a> {
        self.time_limit = limit;
        self
    }

    /// Runs only the check with this name. Further calls of this method add further checks.
    #[must_use]
    pub fn only(mut self, check: &str) -> Suite<'a> {
        self.only.push(check.to_owned());
        self
    }

    /// Leaves the check with this name out. The report then says that the check was skipped, and
    /// why.
    #[must_use]
    pub fn except(mut self, check: &str, why: &str) -> Suite<'a> {
        self.except.push((check.to_owned(), why.to_owned()));
        self
    }

    /// Runs the checks, one after the other, and returns their outcomes.
    ///
    /// # Panics
    /// If `only` or `except` names a check that does not exist, or the function that makes back
    /// ends panics.
    pub fn run(mut self) -> Report {
        for name in self.only.iter().chain(self.except.iter().map(|(name, _)| name)) {
            assert!(ALL.iter().any(|check| check.name == name), "there is no check {name:?}");
        }
        let mut report = Report::new(self.settings.seed);
        for check in &ALL {
            if !self.only.is_empty() && !self.only.iter().any(|name| name == check.name) {
                continue;
            }
            let left_out = self.except.iter().find(|(name, _)| name == check.name);
            let outcome = match left_out {
                Some((_, why)) => Outcome::Skipped(why.clone()),
                None => self.run_one(check),
            };
            report.add(check.name, outcome);
        }
        report
    }

    fn run_one(&mut self, check: &'static Check) -> Outcome {
        let (fs, settings) = ((self.make)(), self.settings);
        let (sender, ended) = channel::<()>();
        let work = move || -> Checked {
            // The closure owns the sender of a channel. When it ends, even by a panic, the sender
            // is dropped. Then the receiver gets an error, which tells the suite that the check has
            // ended.
            let _sender = sender;
            (check.run)(&Bench::new(fs, settings)?)
        };
        let builder = thread::Builder::new().name(check.name.to_owned());
        let running = match builder.spawn(work) {
            Ok(running) => running,
            Err(error) => return Outcome::Failed(format!("no thread for the check: {error}")),
        };
        if ended.recv_timeout(self.time_limit) == Err(RecvTimeoutError::Timeout) {
            return Outcome::Failed(format!("the check did not end within {:?}", self.time_limit));
        }
        match running.join() {
            Ok(Ok(())) => Outcome::Passed,
            Ok(Err(Stop::Failed(why))) => Outcome::Failed(why),
            Ok(Err(Stop::Skipped(why))) => Outcome::Skipped(why),
            Err(payload) => Outcome::Failed(format!("a panic: {}", message(&*payload))),
        }
    }
}

impl std::fmt::Debug for Suite<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Suite").field("settings", &self.settings).finish_non_exhaustive()
    }
}

/// Returns the message of a panic.
pub(crate) fn message(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<&str>().copied();
    text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readme_has_each_check_with_its_sentence() {
        let readme = include_str!("../README.md");
        for (name, about) in Suite::checks() {
            assert!(readme.contains(&format!("\n| `{name}` | {about} |\n")), "{name}");
        }
        assert_eq!(readme.matches("\n| `").count(), ALL.len());
    }

    #[test]
    fn names_of_checks_are_unique() {
        let mut names: Vec<&str> = Suite::checks().map(|(name, _)| name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ALL.len());
    }
}
