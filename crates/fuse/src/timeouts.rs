//! How long the kernel may use the entries and attributes of an answer.

use std::time::Duration;

use corewalk::{Attr, Ttl};

use crate::options::Permissions;
use crate::server::Server;

/// How long the kernel may use an entry (a name with its inode) and its attributes without asking
/// again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Timeouts {
    pub(crate) entry: Duration,
    pub(crate) attr: Duration,
    /// True if the back end may set timeouts of its own. False if the server checks permissions:
    /// then the kernel must not cache, even if the back end allows it.
    can_be_set: bool,
}

impl Timeouts {
    /// Returns the timeouts of the options.
    pub(crate) fn of(server: &Server) -> Timeouts {
        let options = server.options();
        let can_be_set = options.permissions == Permissions::Kernel;
        Timeouts { entry: options.entry_timeout, attr: options.attr_timeout, can_be_set }
    }

    /// Returns timeouts that all have the same value.
    #[cfg(test)]
    pub(crate) fn fixed(timeout: Duration) -> Timeouts {
        Timeouts { entry: timeout, attr: timeout, can_be_set: false }
    }

    /// Returns the timeouts for an answer that contains `attr`. If the back end has set timeouts in
    /// `attr`, and may do so, they replace those of the options.
    pub(crate) fn set_by(self, attr: &Attr) -> Timeouts {
        let Ttl { entry, attr } = if self.can_be_set { attr.ttl } else { Ttl::default() };
        Timeouts { entry: entry.unwrap_or(self.entry), attr: attr.unwrap_or(self.attr), ..self }
    }

    /// Returns the shorter one of the entry timeout and the attribute timeout. Some answers of
    /// fuser have only one timeout for an entry and its attributes, and the shorter one is safe for
    /// both.
    pub(crate) fn shorter(self) -> Duration {
        self.entry.min(self.attr)
    }
}
