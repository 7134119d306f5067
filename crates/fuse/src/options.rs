//! What a server promises the kernel, and what it asks of it.
//!
//! The kernel may cache what it is told; how long is right depends on who else changes the files.
//! [`Options::exclusive`] is for a back end that is changed through this mount alone: the kernel
//! keeps what it knows for a day, does not ask before it opens a file, and keeps pages over opens.
//! [`Options::shared`] is for everything else: a second of trust, and open files are looked at anew.
//!
//! # Who checks permissions
//! Normally the kernel does, ACLs included ([`Permissions::Kernel`]); requests then carry an owner
//! for new files and nothing else is checked again. With [`Permissions::Server`] the server checks
//! each request against the credentials of the caller. The kernel must not cache then, since what
//! it has in its cache it hands to anybody: [`Options::check`] refuses timeouts with it.
//!
//! # Why writes go through
//! With [`WriteCache::Back`] the kernel collects small writes and times. It is fast, but a full
//! store is reported at fsync or never, where write(2) should have failed; so it has to be asked
//! for.
//!
//! Source: fuse(8) for the timeouts; Linux `fs/fuse/inode.c` for what follows from the flags.

use std::time::Duration;

use corewalk::VfsOptions;

/// The longest write that fits the buffers of the transport.
const WRITE_BYTES_MAX: u32 = 16 << 20;
/// The shortest that the protocol allows.
const WRITE_BYTES_MIN: u32 = 4096;

/// How a [`Server`](crate::Server) deals with the kernel.
#[derive(Clone, Debug)]
pub struct Options {
    /// Who changes the files.
    pub ownership: Ownership,
    /// Who checks permissions.
    pub permissions: Permissions,
    /// Whether the kernel collects writes.
    pub write_cache: WriteCache,
    /// Whether the kernel gets attributes with the names of a directory.
    pub readdirplus: ReaddirPlus,
    /// How long the kernel may use what a name refers to.
    pub entry_timeout: Duration,
    /// How long the kernel may use attributes.
    pub attr_timeout: Duration,
    /// How long the kernel may use that a name does not exist. Zero: it is not told.
    pub negative_timeout: Duration,
    /// The longest write request, in bytes.
    pub write_bytes_max: u32,
    /// Requests that may run in the background (read-ahead, writeback, release).
    pub background_max: u16,
    /// The cache of names.
    pub vfs: VfsOptions,
}

/// Who changes the files of a back end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ownership {
    /// This mount alone.
    Exclusive,
    /// Others too.
    Shared,
}

/// Who checks permissions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permissions {
    /// The kernel (`default_permissions`, `FUSE_POSIX_ACL`).
    Kernel,
    /// The server, against the credentials of the caller.
    Server,
}

/// Whether the kernel collects writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteCache {
    /// Each write is a request.
    Through,
    /// The kernel writes back when it likes (`FUSE_WRITEBACK_CACHE`).
    Back,
}

/// Whether the kernel gets attributes with the names of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReaddirPlus {
    /// Never: names and types only.
    Never,
    /// When the kernel sees that attributes are asked for anyway, and may use a name for a while.
    Auto,
    /// Always.
    Always,
}

/// Options that do not go together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Conflict {
    /// The server is to check permissions, but the kernel would answer from its cache.
    CachedNames,
    /// The server is to check permissions, but the kernel would write back in nobody's name.
    CachedWrites,
    /// The longest write is shorter than 4096 bytes or longer than 16 MiB.
    WriteSize,
}

impl Options {
    /// Returns what suits a back end that is changed through this mount alone.
    pub fn exclusive() -> Options {
        let day = Duration::from_secs(86400);
        Options {
            ownership: Ownership::Exclusive,
            entry_timeout: day,
            attr_timeout: day,
            negative_timeout: day,
            ..Options::shared()
        }
    }

    /// Returns what suits a back end that others change too. The kernel keeps names for a second and misses not at all, and
    /// what the server has cached of a name is held against the back end before each use ([`corewalk::Vfs::revalidate`]).
    pub fn shared() -> Options {
        Options {
            ownership: Ownership::Shared,
            permissions: Permissions::Kernel,
            write_cache: WriteCache::Through,
            readdirplus: ReaddirPlus::Auto,
            entry_timeout: Duration::from_secs(1),
            attr_timeout: Duration::from_secs(1),
            negative_timeout: Duration::ZERO,
            write_bytes_max: 1 << 20,
            background_max: 64,
            vfs: VfsOptions::default(),
        }
    }

    /// Returns these options with permissions checked by the server, and without the caching that
    /// this forbids.
    #[must_use]
    pub fn with_server_permissions(self) -> Options {
        Options {
            permissions: Permissions::Server,
            write_cache: WriteCache::Through,
            entry_timeout: Duration::ZERO,
            attr_timeout: Duration::ZERO,
            negative_timeout: Duration::ZERO,
            ..self
        }
    }

    /// Returns whether the options go together.
    ///
    /// # Errors
    /// The [`Conflict`].
    pub fn check(&self) -> Result<(), Conflict> {
        let timeouts = [self.entry_timeout, self.attr_timeout, self.negative_timeout];
        if self.permissions == Permissions::Server {
            if timeouts.iter().any(|timeout| !timeout.is_zero()) {
                return Err(Conflict::CachedNames);
            }
            if self.write_cache == WriteCache::Back {
                return Err(Conflict::CachedWrites);
            }
        }
        if !(WRITE_BYTES_MIN..=WRITE_BYTES_MAX).contains(&self.write_bytes_max) {
            return Err(Conflict::WriteSize);
        }
        Ok(())
    }
}

impl Default for Options {
    /// Returns [`Options::shared`], which is right for any back end.
    fn default() -> Options {
        Options::shared()
    }
}

impl std::fmt::Display for Conflict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Conflict::CachedNames => "timeouts must be 0 where the server checks permissions",
            Conflict::CachedWrites => "no writeback cache where the server checks permissions",
            Conflict::WriteSize => "the longest write must have 4096 to 16777216 bytes",
        })
    }
}

impl std::error::Error for Conflict {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_with_server_permissions_are_refused() {
        let options = Options { permissions: Permissions::Server, ..Options::exclusive() };
        assert_eq!(options.check(), Err(Conflict::CachedNames));
        assert_eq!(options.with_server_permissions().check(), Ok(()));
    }

    #[test]
    fn write_cache_with_server_permissions_is_refused() {
        let options = Options::exclusive().with_server_permissions();
        let options = Options { write_cache: WriteCache::Back, ..options };
        assert_eq!(options.check(), Err(Conflict::CachedWrites));
    }

    #[test]
    fn write_size_out_of_range_is_refused() {
        for write_bytes_max in [0, WRITE_BYTES_MIN - 1, WRITE_BYTES_MAX + 1] {
            let options = Options { write_bytes_max, ..Options::shared() };
            assert_eq!(options.check(), Err(Conflict::WriteSize));
        }
    }
}
