//! How long the kernel may use the entries and attributes of an answer.

use std::time::{Duration, Instant};

use corewalk::{Attr, Ttl};

use crate::leases::LATE;
use crate::options::{Options, Permissions};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Timeouts {
    pub(crate) entry: Duration,
    pub(crate) attr: Duration,
    /// True if the back end may set timeouts. False if the server checks permissions: the kernel
    /// must then cache nothing.
    can_be_set: bool,
}

impl Timeouts {
    pub(crate) fn of(options: &Options) -> Timeouts {
        let can_be_set = options.permissions == Permissions::Kernel;
        Timeouts { entry: options.entry_timeout, attr: options.attr_timeout, can_be_set }
    }

    #[cfg(test)]
    pub(crate) fn fixed(timeout: Duration) -> Timeouts {
        Timeouts { entry: timeout, attr: timeout, can_be_set: false }
    }

    /// Returns the timeouts for an answer with `attr`. Timeouts that the back end has set in `attr`
    /// replace those of the options, if the back end may set timeouts.
    pub(crate) fn set_by(self, attr: &Attr) -> Timeouts {
        let Ttl { entry, attr } = if self.can_be_set { attr.ttl } else { Ttl::default() };
        Timeouts { entry: entry.unwrap_or(self.entry), attr: attr.unwrap_or(self.attr), ..self }
    }

    pub(crate) fn since(self, arrival: Option<Instant>) -> Timeouts {
        let Some(age) = arrival.map(|arrival| arrival.elapsed()) else { return self };
        match age > LATE {
            true => self.without_any(),
            false => self.after(age),
        }
    }

    pub(crate) fn of_absent(self, ttl: Option<Duration>, default: Duration) -> Timeouts {
        let ttl = if self.can_be_set { ttl } else { None };
        Timeouts { entry: ttl.unwrap_or(default), ..self }
    }

    pub(crate) fn after(self, age: Duration) -> Timeouts {
        let [entry, attr] = [self.entry, self.attr].map(|timeout| timeout.saturating_sub(age));
        Timeouts { entry, attr, ..self }
    }

    pub(crate) fn without_any(self) -> Timeouts {
        Timeouts { entry: Duration::ZERO, attr: Duration::ZERO, ..self }
    }

    pub(crate) fn without_attributes(self) -> Timeouts {
        Timeouts { attr: Duration::ZERO, ..self }
    }

    /// Returns the shorter one of the two timeouts. Some answers of fuser have only one timeout for
    /// an entry and its attributes. The shorter one is safe for both.
    pub(crate) fn shorter(self) -> Duration {
        self.entry.min(self.attr)
    }
}
