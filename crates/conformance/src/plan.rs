//! The plan of a run: which checks run, with which settings, and for how long.
//!
//! Each check runs on a thread of its own, so that the run can report a check that never ends, and
//! go on. It does not end the thread of such a check. The panic of a check ends its thread, and the
//! report has the message.

use std::any::Any;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, SystemTime};

use corewalk_base::primitives::thread;

use crate::answer::{Checked, Stop};
use crate::report::{Outcome, Report};

const OPERATIONS: u64 = 20_000;
/// The default number of threads of the storm. The storm has five roles: the publisher has two
/// threads, each other role has one.
const THREADS: usize = 6;
const TIME_LIMIT: Duration = Duration::from_secs(600);

#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) operations: u64,
    pub(crate) threads: usize,
    pub(crate) seed: u64,
}

impl Settings {
    pub(crate) fn rng(&self, stream: u64) -> fastrand::Rng {
        fastrand::Rng::with_seed(self.seed ^ stream.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }
}

#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) settings: Settings,
    pub(crate) time_limit: Duration,
    pub(crate) only: Vec<String>,
    pub(crate) except: Vec<(String, String)>,
}

impl Plan {
    pub(crate) fn new() -> Plan {
        let time = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        let seed = time.as_nanos() as u64;
        Plan {
            settings: Settings { operations: OPERATIONS, threads: THREADS, seed },
            time_limit: TIME_LIMIT,
            only: Vec::new(),
            except: Vec::new(),
        }
    }

    /// Returns the parts of `check` that the run is limited to. If there are none, the whole check
    /// runs.
    pub(crate) fn only_parts(&self, check: &str) -> Vec<String> {
        self.only.iter().filter_map(|name| part(name, check)).map(str::to_owned).collect()
    }

    pub(crate) fn except_parts(&self, check: &str) -> Vec<(String, String)> {
        let part =
            |(name, why): &(String, String)| Some((part(name, check)?.to_owned(), why.clone()));
        self.except.iter().filter_map(part).collect()
    }

    /// Runs the selected checks of `all`, and reports their outcomes. `run` runs the check of the
    /// given name. Only checks in `with_parts` may be named with a part: `CHECK:PART`.
    ///
    /// # Panics
    /// If `only` or `except` names a check that does not exist, or `run` panics.
    pub(crate) fn run(
        &self,
        all: impl Iterator<Item = &'static str> + Clone,
        with_parts: &[&str],
        mut run: impl FnMut(&'static str) -> (Outcome, String),
    ) -> Report {
        for name in self.only.iter().chain(self.except.iter().map(|(name, _)| name)) {
            let check = name.split_once(':').map_or(&**name, |(check, _)| check);
            let is_known = all.clone().any(|known| known == check)
                && (check == name || with_parts.contains(&check));
            assert!(is_known, "there is no check {name:?}");
        }
        let mut report = Report::new(self.settings.seed);
        for check in all {
            let is_named = |name: &String| name == check || part(name, check).is_some();
            if !self.only.is_empty() && !self.only.iter().any(is_named) {
                continue;
            }
            let left_out = self.except.iter().find(|(name, _)| name == check);
            let (outcome, note) = match left_out {
                Some((_, why)) => (Outcome::Skipped(why.clone()), String::new()),
                None => run(check),
            };
            report.add(check, outcome, note);
        }
        report
    }
}

fn part<'n>(name: &'n str, check: &str) -> Option<&'n str> {
    name.strip_prefix(check)?.strip_prefix(':')
}

pub(crate) fn run_within(
    limit: Duration,
    name: &str,
    check: impl FnOnce() -> Checked<String> + Send + 'static,
) -> (Outcome, String) {
    let (sender, ended) = channel::<()>();
    let work = move || {
        // The sender is dropped at the end of the check, even by a panic. That tells the receiver
        // that the check has ended.
        let _sender = sender;
        check()
    };
    let failed = |why| (Outcome::Failed(why), String::new());
    let running = match thread::Builder::new().name(name.to_owned()).spawn(work) {
        Ok(running) => running,
        Err(error) => return failed(format!("no thread for the check: {error}")),
    };
    if ended.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
        return failed(format!("the check did not end within {limit:?}"));
    }
    match running.join() {
        Ok(Ok(note)) => (Outcome::Passed, note),
        Ok(Err(Stop::Failed(why))) => failed(why),
        Ok(Err(Stop::Skipped(why))) => (Outcome::Skipped(why), String::new()),
        Err(payload) => failed(format!("a panic: {}", message(&*payload))),
    }
}

pub(crate) fn message(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<&str>().copied();
    text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

/// Defines the settings that `Suite` and `Mounted` have in common.
macro_rules! plan_setters {
    () => {
        /// Sets the approximate number of calls that the check `storm` makes. The default is
        /// 20,000.
        #[must_use]
        pub fn with_operations(mut self, operations: u64) -> Self {
            self.plan.settings.operations = operations;
            self
        }

        /// Sets the number of threads of the check `storm`, 6 by default and at least 5.
        #[must_use]
        pub fn with_threads(mut self, threads: usize) -> Self {
            self.plan.settings.threads = threads;
            self
        }

        /// Sets the seed of all random choices. The default is made from the time. The report of a
        /// run has the seed.
        #[must_use]
        pub fn with_seed(mut self, seed: u64) -> Self {
            self.plan.settings.seed = seed;
            self
        }

        /// Sets how long a check may take, 10 minutes by default.
        #[must_use]
        pub fn with_time_limit(mut self, limit: std::time::Duration) -> Self {
            self.plan.time_limit = limit;
            self
        }

        /// Runs only the check with this name. Each further call adds another check.
        #[must_use]
        pub fn only(mut self, check: &str) -> Self {
            self.plan.only.push(check.to_owned());
            self
        }

        /// Leaves the check with this name out. The report then says that the check was skipped,
        /// and why.
        #[must_use]
        pub fn except(mut self, check: &str, why: &str) -> Self {
            self.plan.except.push((check.to_owned(), why.to_owned()));
            self
        }
    };
}
pub(crate) use plan_setters;
