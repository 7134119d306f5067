//! Leases: a client keeps the answers of a back end for a time, and the back end can take them back
//! earlier.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::Errno;
use crate::name::Name;

/// A back end that decides how long a client keeps each answer, and that takes answers back before
/// another machine changes the files.
///
/// The times of names and attributes are in [`Attr::ttl`](crate::Attr::ttl). Three rules follow
/// from the kernel's FUSE client, which is the client of a mount:
/// - Only the answer to [`getattr`](crate::FileSystem::getattr) may have a time for attributes. The
///   other answers may bring a node that the kernel does not know yet, and the kernel ignores the
///   expiry of such a node.
/// - Only the answers to [`lookup`](crate::FileSystem::lookup) and [`Leases::absent_ttl`] may have
///   a time for a name. An expiry may overtake an answer on the way to the kernel. The kernel
///   notices that for a lookup, but would cache the names of an overtaken listing.
/// - A back end must remember which answers it has given out, to be able to take them back.
pub trait Leases: Send + Sync {
    /// Gives the back end the way to the cache of its client. A server calls this once, and only if
    /// it passes each answer to the client without delay. Without this call, the back end cannot
    /// make the client drop an answer.
    fn attach(&self, client: Arc<dyn ClientCache>);

    /// Returns how long the client may remember that the directory with the inode number `dir` has
    /// no `name`. Called after a `lookup` of the back end has failed with `ENOENT`. Zero if the
    /// client must ask again.
    fn absent_ttl(&self, dir: u64, name: Name<'_>) -> Duration;

    /// Tells the back end that an answer with a time for a name reached the client late. The client
    /// counts the time from then on, so it may use the name for longer than the back end assumes.
    /// The back end should expire the names.
    fn name_was_late(&self);
}

/// The cache of a client. A back end expires its entries while it serves a request, or on a thread
/// of its own. So no method waits until the client's requests are answered.
pub trait ClientCache: Send + Sync + fmt::Debug {
    /// Makes the client look up each name again before it uses it, absent names too.
    ///
    /// # Errors
    /// `EBUSY` while [`ClientCache::can_expire_names`] returns false. Then the client uses the
    /// names until their timeouts end. `EINVAL` if the client does not support this call; `ENODEV`
    /// if there is no client any more.
    fn expire_names(&self) -> Result<(), Errno>;

    /// Returns false while the client cannot drop names. Meanwhile a back end should give no time
    /// to the names in its answers. A mount returns false while another file system is mounted on
    /// one of its directories, because the kernel would detach that file system.
    fn can_expire_names(&self) -> bool;

    /// Makes the client ask for the attributes of an inode again before it uses them. Its ACLs
    /// count as attributes. It is no error if the client does not know the inode.
    ///
    /// # Errors
    /// `ENODEV` if there is no client any more.
    fn expire_attributes(&self, ino: u64) -> Result<(), Errno>;
}
