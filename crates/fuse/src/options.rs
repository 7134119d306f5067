//! The options of a server. They tell which features it uses, and for how long the kernel may cache
//! its answers.
//!
//! For how long the kernel may cache names, attributes and pages depends on which programs change
//! the files:
//! - [`Options::exclusive`] is for a back end that is changed only through this mount. The kernel
//!   keeps names and attributes for a day, and keeps pages when a file is opened. If the back end
//!   needs no open requests, the kernel sends none.
//! - [`Options::shared`] is for every other back end. The kernel keeps names and attributes for a
//!   second, and drops pages when a file is opened.
//!
//! # Permission checks
//! With [`Permissions::Kernel`], the default, the kernel checks permissions and ACLs, and the
//! server checks nothing. With [`Permissions::Server`], the server checks each request against the
//! credentials of the caller. The kernel must then not cache answers, since it would give the
//! answer for one user to all others. So [`Options::check`] refuses `Permissions::Server` together
//! with a timeout above 0.
//!
//! # Why writes are not collected by default
//! With [`WriteCache::Back`] the kernel collects small writes and changes of times, which is fast.
//! But if the back end has no free space, write(2) succeeds, and only fsync(2) reports the error.
//!
//! Source: fuse(8) for the timeouts; Linux `fs/fuse/inode.c` for the effect of the flags.

use std::time::Duration;

use corewalk::VfsOptions;

/// The longest write request that fits the buffers of fuser, in bytes.
const WRITE_BYTES_MAX: u32 = 16 << 20;
/// The lowest limit of a write request that the FUSE protocol allows, in bytes.
const WRITE_BYTES_MIN: u32 = 4096;

/// The options of a [`Server`](crate::Server) or an [`AsyncServer`](crate::AsyncServer).
///
/// # Examples
/// ```
/// use corewalk_fuse::{Conflict, Options, WriteCache};
///
/// let options = Options::exclusive().with_write_cache(WriteCache::Back);
/// assert_eq!(options.check(), Ok(()));
/// let options = options.with_server_permissions().with_write_cache(WriteCache::Back);
/// assert_eq!(options.check(), Err(Conflict::CachedWrites));
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// Tells whether other programs change the files too.
    pub ownership: Ownership,
    /// Tells whether the kernel or the server checks permissions.
    pub permissions: Permissions,
    /// Tells whether the kernel collects writes.
    pub write_cache: WriteCache,
    /// Tells whether a listing of a directory contains attributes.
    pub readdirplus: ReaddirPlus,
    /// The time for which the kernel may use a name without looking it up again. The back end may
    /// set another time in [`corewalk::Attr::ttl`].
    pub entry_timeout: Duration,
    /// The time for which the kernel may use attributes without asking again. The back end may set
    /// another time in [`corewalk::Attr::ttl`].
    pub attr_timeout: Duration,
    /// The time for which the kernel may remember that a name does not exist. If the time is zero,
    /// the kernel does not remember missing names.
    pub negative_timeout: Duration,
    /// The longest write request, in bytes: 4096 to 16 MiB.
    pub write_bytes_max: u32,
    /// Maximum number of background requests (read-ahead, writeback, release) that the kernel sends
    /// before it waits for an answer.
    pub background_max: u16,
    /// Maximum number of futures that an [`AsyncServer`](crate::AsyncServer) runs at the same time,
    /// one for each request. Further requests wait in a queue. The queue holds at most one request
    /// of each client thread, and the kernel's background requests. A future that waits for the
    /// answer of the back end to another request does not count. The number must be at least 1. A
    /// [`Server`](crate::Server) ignores this option.
    pub requests_max: usize,
    /// Tells whether statx(2) shows the creation time of a file. The default is false, because the
    /// kernel does not get this time with the other attributes. If true, the kernel sends one more
    /// request for each file whose creation time a program asks for. Rust's `std::fs::metadata`
    /// always asks for it.
    pub birth_times: bool,
    /// Tells whether the kernel itself reads and writes those files of the back end whose content
    /// is in a file of the host. The method
    /// [`FileSystem::backing_file`](corewalk::FileSystem::backing_file) returns such files. The
    /// default is true. The option has an effect only if root mounts, the kernel is Linux 6.9 or
    /// newer and checks permissions, and there is no write-back cache.
    pub passthrough: bool,
    /// The options of the namespace and its cache.
    pub vfs: VfsOptions,
}

/// Tells which programs change the files of a back end.
///
/// # Examples
/// ```
/// use corewalk_fuse::{Options, Ownership};
///
/// assert_eq!(Options::shared().ownership, Ownership::Shared);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ownership {
    /// Only programs that use this mount.
    Exclusive,
    /// Other programs too.
    Shared,
}

/// Tells whether the kernel or the server checks permissions.
///
/// # Examples
/// ```
/// use corewalk_fuse::{Options, Permissions};
///
/// let options = Options::shared().with_server_permissions();
/// assert_eq!(options.permissions, Permissions::Server);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Permissions {
    /// The kernel checks permissions (`default_permissions`, `FUSE_POSIX_ACL`).
    Kernel,
    /// The server checks permissions against the credentials of the caller.
    Server,
}

/// Tells whether the kernel collects writes before it sends them.
///
/// # Examples
/// ```
/// use corewalk_fuse::{Options, WriteCache};
///
/// let options = Options::exclusive().with_write_cache(WriteCache::Back);
/// assert_eq!(options.check(), Ok(()));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WriteCache {
    /// The kernel sends each write immediately.
    Through,
    /// The kernel collects writes, and decides when it sends them (`FUSE_WRITEBACK_CACHE`).
    Back,
}

/// Tells whether a listing of a directory contains attributes.
///
/// # Examples
/// ```
/// use corewalk_fuse::{Options, ReaddirPlus};
///
/// let options = Options::exclusive().with_readdirplus(ReaddirPlus::Always);
/// assert_eq!(options.readdirplus, ReaddirPlus::Always);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReaddirPlus {
    /// Never: a listing contains names and types only.
    Never,
    /// The kernel requests attributes in a listing if it expects that the program reads them. If
    /// the entry timeout is zero, the kernel never requests attributes in a listing.
    Auto,
    /// Always.
    Always,
}

/// Two options that contradict each other, or a value out of range.
///
/// # Examples
/// ```
/// use corewalk_fuse::{Conflict, Options, WriteCache};
///
/// let options = Options::shared().with_server_permissions();
/// let options = options.with_write_cache(WriteCache::Back);
/// assert_eq!(options.check(), Err(Conflict::CachedWrites));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Conflict {
    /// The options combine permission checks by the server with a timeout that is not 0. The kernel
    /// would then answer from its cache without a permission check.
    CachedNames,
    /// The options combine permission checks by the server with the write-back cache of the kernel.
    /// The requests that write back cached data do not name the user. So the server could not check
    /// the user's permission.
    CachedWrites,
    /// The option `write_bytes_max` is below 4096 bytes or above 16 MiB.
    WriteSize,
    /// The options demand that the server checks permissions, but an
    /// [`AsyncServer`](crate::AsyncServer) cannot check them.
    AsyncPermissions,
    /// The options demand the write-back cache of the kernel, but an
    /// [`AsyncServer`](crate::AsyncServer) does not support it.
    AsyncWriteCache,
    /// The option `requests_max` is 0, so an [`AsyncServer`](crate::AsyncServer) would run no
    /// request.
    NoRequests,
}

impl Options {
    corewalk_base::setters! {
        with_ownership: ownership = Ownership;
        with_permissions: permissions = Permissions;
        with_write_cache: write_cache = WriteCache;
        with_readdirplus: readdirplus = ReaddirPlus;
        with_entry_timeout: entry_timeout = Duration;
        with_attr_timeout: attr_timeout = Duration;
        with_negative_timeout: negative_timeout = Duration;
        with_write_bytes_max: write_bytes_max = u32;
        with_background_max: background_max = u16;
        with_requests_max: requests_max = usize;
        with_birth_times: birth_times = bool;
        with_passthrough: passthrough = bool;
        with_vfs: vfs = VfsOptions;
    }

    /// Returns options for a back end that is changed only through this mount.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use corewalk_fuse::Options;
    ///
    /// // No program makes files behind the mount, so the kernel may also remember missing names.
    /// let options = Options::exclusive();
    /// assert_eq!(options.negative_timeout, Duration::from_secs(86400));
    /// assert_eq!(options.entry_timeout, options.negative_timeout);
    /// ```
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

    /// Returns options for a back end that other programs change too.
    ///
    /// The kernel keeps names for a second, and does not remember missing names. The server asks
    /// the back end for each name that it looks up ([`corewalk::Vfs::lookup_fresh`]). Before it
    /// changes a name, it compares the cached name with the back end
    /// ([`corewalk::Vfs::revalidate`]).
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use corewalk_fuse::Options;
    ///
    /// let options = Options::shared();
    /// assert_eq!(options.entry_timeout, Duration::from_secs(1));
    /// // With timeouts of zero, the kernel asks for names and attributes at each use.
    /// let options = options.with_entry_timeout(Duration::ZERO).with_attr_timeout(Duration::ZERO);
    /// assert_eq!(options.check(), Ok(()));
    /// ```
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
            requests_max: 1024,
            birth_times: false,
            passthrough: true,
            vfs: VfsOptions::default(),
        }
    }

    /// Changes these options so that the server checks permissions, and returns them. In the result
    /// all timeouts are 0, and the kernel collects no writes.
    ///
    /// # Examples
    /// ```
    /// use corewalk_fuse::{Conflict, Options, Permissions};
    ///
    /// let options = Options::exclusive();
    /// let cached = options.clone().with_permissions(Permissions::Server);
    /// assert_eq!(cached.check(), Err(Conflict::CachedNames));
    /// let options = options.with_server_permissions();
    /// assert_eq!((options.check(), options.permissions), (Ok(()), Permissions::Server));
    /// ```
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

    /// Checks that the options do not contradict each other.
    ///
    /// # Errors
    /// The first [`Conflict`] that this method finds.
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

    /// Checks that an [`AsyncServer`](crate::AsyncServer) can use these options.
    ///
    /// # Errors
    /// The errors of [`Options::check`], and a [`Conflict`] for an option that needs a feature
    /// which an `AsyncServer` lacks.
    ///
    /// # Examples
    /// ```
    /// use corewalk_fuse::{Conflict, Options};
    ///
    /// let options = Options::exclusive().with_requests_max(0);
    /// assert_eq!(options.check(), Ok(()));
    /// assert_eq!(options.check_async(), Err(Conflict::NoRequests));
    /// ```
    pub fn check_async(&self) -> Result<(), Conflict> {
        self.check()?;
        match () {
            () if self.permissions == Permissions::Server => Err(Conflict::AsyncPermissions),
            () if self.write_cache == WriteCache::Back => Err(Conflict::AsyncWriteCache),
            () if self.requests_max == 0 => Err(Conflict::NoRequests),
            () => Ok(()),
        }
    }
}

impl Default for Options {
    fn default() -> Options {
        Options::shared()
    }
}

impl std::fmt::Display for Conflict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Conflict::CachedNames => "timeouts must be 0 where the server checks permissions",
            Conflict::CachedWrites => {
                "the write cache must be off where the server checks permissions"
            }
            Conflict::WriteSize => "the longest write must be 4096 to 16777216 bytes",
            Conflict::AsyncPermissions => "an asynchronous server checks no permissions",
            Conflict::AsyncWriteCache => "an asynchronous server supports no write cache",
            Conflict::NoRequests => "an asynchronous server must run at least one request",
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

    #[test]
    fn options_that_only_an_asynchronous_server_lacks_are_refused_for_it() {
        let options = Options::exclusive;
        for (options, conflict) in [
            (options().with_server_permissions(), Conflict::AsyncPermissions),
            (options().with_write_cache(WriteCache::Back), Conflict::AsyncWriteCache),
            (options().with_requests_max(0), Conflict::NoRequests),
        ] {
            assert_eq!((options.check(), options.check_async()), (Ok(()), Err(conflict)));
        }
        let wrong = options().with_write_bytes_max(0);
        assert_eq!(wrong.check_async(), Err(Conflict::WriteSize));
        assert_eq!(options().check_async(), Ok(()));
    }
}
