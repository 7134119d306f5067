//! Leases: a client keeps the answers of a back end for a time, and the back end can revoke them
//! earlier.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::Errno;
use crate::name::Name;

/// A back end that decides how long a client keeps each answer, and that revokes answers before
/// another machine changes the files.
///
/// An answer says in [`Attr::ttl`](crate::Attr::ttl) how long the client may keep the name and the
/// attributes. Three rules follow from the kernel's FUSE client, which is the client of a mount:
/// - Only the answer to [`getattr`](crate::FileSystem::getattr) may let the client keep attributes.
///   The other answers may contain a node that the kernel does not know yet, and the kernel ignores
///   the expiry of such a node.
/// - Only the answers to [`lookup`](crate::FileSystem::lookup) and [`Leases::absent_ttl`] may let
///   the client keep a name. The back end may expire names while an older answer is still on its
///   way to the kernel. For a lookup, the kernel detects this and does not keep the name. For a
///   listing, it would keep the old names.
/// - A back end must remember which answers a client may keep, to be able to revoke them.
///
/// # Examples
/// A back end that lets its client keep each answer for 10 s:
/// ```
/// # use std::{sync::{Arc, OnceLock}, time::Duration};
/// # use corewalk::{ClientCache, Errno, Leases, Name};
/// #[derive(Default)]
/// struct Leased(OnceLock<Arc<dyn ClientCache>>);
///
/// impl Leases for Leased {
///     fn attach(&self, client: Arc<dyn ClientCache>) {
///         let _ = self.0.set(client);
///     }
///     fn absent_ttl(&self, _dir: u64, _name: Name<'_>) -> Duration {
///         // `lookup` puts the same time into `Attr::ttl`.
///         let can_expire = self.0.get().is_some_and(|client| client.can_expire_names());
///         if can_expire { Duration::from_secs(10) } else { Duration::ZERO }
///     }
///     fn name_was_late(&self) {
///         let _ = self.0.get().map(|client| client.expire_names());
///     }
/// }
///
/// # impl Leased {
/// /// Called before another machine changes an inode or its names. After an error, that machine
/// /// waits for 10 s.
/// fn before_change(&self, ino: u64) -> Result<(), Errno> {
///     let Some(client) = self.0.get() else { return Ok(()) };
///     client.expire_names().and_then(|()| client.expire_attributes(ino))
/// }
/// # }
/// # #[derive(Debug)]
/// # struct Client;
/// # impl ClientCache for Client {
/// #     fn expire_names(&self) -> Result<(), Errno> { Ok(()) }
/// #     fn can_expire_names(&self) -> bool { true }
/// #     fn expire_attributes(&self, _: u64) -> Result<(), Errno> { Ok(()) }
/// # }
/// # let (leased, name) = (Leased::default(), Name::new(b"f")?);
/// # assert!(leased.absent_ttl(1, name).is_zero());
/// # leased.attach(Arc::new(Client));
/// # assert!(!leased.absent_ttl(1, name).is_zero());
/// # leased.before_change(2)?;
/// # Ok::<(), Errno>(())
/// ```
pub trait Leases: Send + Sync {
    /// Gives the back end a handle to the cache of its client, with which it can make the client
    /// drop an answer. A server calls this method once. A server over io_uring or fuser does not
    /// call it, because there an answer may reach the client late. Such a back end cannot revoke
    /// answers.
    fn attach(&self, client: Arc<dyn ClientCache>);

    /// Returns how long the client may remember that the directory with the inode number `dir` has
    /// no `name`. Called after a `lookup` of the back end has failed with `ENOENT`. Zero if the
    /// client must ask again.
    fn absent_ttl(&self, dir: u64, name: Name<'_>) -> Duration;

    /// Tells the back end that an answer about a name reached the client late. The client counts
    /// the time of the name from then on, so it may use the name for longer than the back end
    /// assumes. The back end should expire the names.
    fn name_was_late(&self);
}

/// The cache of a client. The methods never wait until the client's requests are answered. So a
/// back end may call them while it serves a request, or on a thread of its own.
pub trait ClientCache: Send + Sync + fmt::Debug {
    /// Makes the client look up each name again before it uses it, absent names too.
    ///
    /// # Errors
    /// `EBUSY` while [`ClientCache::can_expire_names`] returns false. Then the client uses the
    /// names until their timeouts end. `EINVAL` if the client does not support this call; `ENODEV`
    /// if there is no client any more.
    fn expire_names(&self) -> Result<(), Errno>;

    /// Returns false while the client cannot drop names. Meanwhile a back end should not let the
    /// client keep names from its answers. A mount returns false while another file system is
    /// mounted on one of its directories, because the kernel would detach that file system.
    fn can_expire_names(&self) -> bool;

    /// Makes the client ask for the attributes of an inode again before it uses them. Its ACLs
    /// count as attributes. It is no error if the client does not know the inode.
    ///
    /// # Errors
    /// `ENODEV` if there is no client any more.
    fn expire_attributes(&self, ino: u64) -> Result<(), Errno>;
}
