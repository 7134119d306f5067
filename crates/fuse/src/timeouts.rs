//! How long the kernel may use the entries and attributes of an answer.

use std::time::{Duration, Instant};

use corewalk::{Attr, Ttl};

use crate::leases::LATE;
use crate::options::{Options, Permissions};

/// How long the kernel may use an entry (a name with its inode) and its attributes without asking
/// again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Timeouts {
    pub(crate) entry: Duration,
    pub(crate) attr: Duration,
    /// True if the answer of the back end may replace these timeouts. False if the server checks
    /// permissions, because the kernel must then cache nothing.
    can_be_set: bool,
}

impl Timeouts {
    /// Returns the timeouts of the options.
    pub(crate) fn of(options: &Options) -> Timeouts {
        let can_be_set = options.permissions == Permissions::Kernel;
        Timeouts { entry: options.entry_timeout, attr: options.attr_timeout, can_be_set }
    }

    /// Returns timeouts that all have the same value.
    #[cfg(test)]
    pub(crate) fn fixed(timeout: Duration) -> Timeouts {
        Timeouts { entry: timeout, attr: timeout, can_be_set: false }
    }

    /// Returns the timeouts for an answer that contains `attr`. Timeouts that the back end has set
    /// in `attr` replace those of the options, if the back end may set timeouts.
    pub(crate) fn set_by(self, attr: &Attr) -> Timeouts {
        let Ttl { entry, attr } = if self.can_be_set { attr.ttl } else { Ttl::default() };
        Timeouts { entry: entry.unwrap_or(self.entry), attr: attr.unwrap_or(self.attr), ..self }
    }

    /// Returns the timeouts, shortened by the time since the request arrived at `arrival`. They are
    /// 0 if the answer is late. If `arrival` is None, they stay as they are.
    pub(crate) fn since(self, arrival: Option<Instant>) -> Timeouts {
        let Some(age) = arrival.map(|arrival| arrival.elapsed()) else { return self };
        match age > LATE {
            true => Timeouts { entry: Duration::ZERO, attr: Duration::ZERO, ..self },
            false => self.after(age),
        }
    }

    /// Returns the timeouts for the answer that a name does not exist. `ttl` is the time that the
    /// back end has set for the answer, and `default` is that of the options.
    pub(crate) fn of_absent(self, ttl: Option<Duration>, default: Duration) -> Timeouts {
        let ttl = if self.can_be_set { ttl } else { None };
        Timeouts { entry: ttl.unwrap_or(default), ..self }
    }

    /// Returns the timeouts of an answer that is `age` old.
    pub(crate) fn after(self, age: Duration) -> Timeouts {
        let [entry, attr] = [self.entry, self.attr].map(|timeout| timeout.saturating_sub(age));
        Timeouts { entry, attr, ..self }
    }

    /// Returns timeouts with which the kernel does not cache the attributes.
    pub(crate) fn without_attributes(self) -> Timeouts {
        Timeouts { attr: Duration::ZERO, ..self }
    }

    /// Returns the shorter one of the entry timeout and the attribute timeout. Some answers of
    /// fuser have only one timeout for an entry and its attributes, and the shorter one is safe for
    /// both.
    pub(crate) fn shorter(self) -> Duration {
        self.entry.min(self.attr)
    }
}
