//! The two interfaces between a server and the rest of the crate.
//!
//! [`Service`] has the methods that the mount, the shrinker thread and the notifications call.
//! [`Dispatch`] has the methods by which a transport serves the requests of one connection.
//! [`Server`](crate::Server) and [`AsyncServer`](crate::AsyncServer) implement both.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use corewalk::{Errno, Name, Vfs};

use crate::adapter::Adapter;
use crate::notify::Notifier;
use crate::options::Options;
use crate::transport::{NoRings, Transport};
use crate::wire::{Features, Init, Message, OwnedMessage};

/// A function that sends the answer to one request: the body of the answer, or an error.
pub(crate) type Reply = Box<dyn FnOnce(Result<&[u8], Errno>) + Send>;

/// A server of one file system.
pub(crate) trait Service: fmt::Debug + Send + Sync + 'static {
    /// Returns the options.
    fn options(&self) -> &Options;

    /// Returns the cache of names and inodes.
    fn vfs(&self) -> &Vfs;

    /// Translates a node number to an inode number of the cache, or an inode number to a node
    /// number.
    fn translate(&self, number: u64) -> u64;

    /// Returns true if a request may block the thread that has read it for a long time.
    fn waits(&self) -> bool;

    /// Returns true if requests may wait for locks of files.
    fn has_locks(&self) -> bool;

    /// Returns the features that the server wants, out of those that the kernel offers.
    fn features(&self, offered: Features) -> Features;

    /// Returns the node number of the file at `path`, relative to the root. An asynchronous server
    /// looks only into its cache.
    ///
    /// # Errors
    /// `ENOENT`; `ENOTDIR`; the errors of the back end.
    fn resolve(&self, path: &mut dyn Iterator<Item = Name<'_>>) -> Result<u64, Errno>;

    fn nodes_of(&self, ino: u64) -> Vec<u64>;

    /// Drops `name` in the directory with the node number `parent` from the cache.
    ///
    /// # Errors
    /// `ESTALE` if the cache does not have the directory; `ENOTDIR` if the inode is no directory.
    fn invalidate_name(&self, parent: u64, name: Name<'_>) -> Result<(), Errno>;

    /// Drops all names and attributes from the cache. Calls `directory` with the node number of
    /// each cached directory.
    fn invalidate_all(&self, directory: &mut dyn FnMut(u64));

    /// Drops the attributes of the inode with the node number `node` from the cache.
    ///
    /// # Errors
    /// `ESTALE` if the cache does not have the inode.
    fn invalidate_attributes(&self, node: u64) -> Result<(), Errno>;

    /// Notes the transport of the mount. `why` says why a better transport is not used.
    fn set_transport(&self, transport: Transport, why: Option<&NoRings>);

    /// Sets the notifier, with which the server makes the kernel drop cached answers. The notifier
    /// can be set only once.
    fn set_notifier(&self, notifier: Notifier);

    /// Returns a dispatcher for a connection that `init` has opened.
    fn dispatcher(self: Arc<Self>, init: &Init) -> Arc<dyn Dispatch>;

    /// Returns the adapter by which the crate fuser calls this server. Returns `None` if this kind
    /// of server does not support fuser.
    fn adapter(self: Arc<Self>) -> Option<Adapter>;
}

/// Serves the requests of one connection.
pub(crate) trait Dispatch: Send + Sync + fmt::Debug {
    /// Returns the length in bytes of the longest data of a request or an answer.
    fn payload_bytes(&self) -> usize;

    /// Returns the features of the connection, which decide how messages are read.
    fn features(&self) -> Features;

    /// Serves a request. The body of the answer is written into `buffer`.
    fn serve(&self, message: &Message<'_>, buffer: &mut [u8]) -> Outcome;

    /// Returns true if [`Dispatch::delivered`] must be called.
    fn checks_delivery(&self) -> bool {
        false
    }

    /// Called when the answer of `serve` was written. `begun` is the instant at which the request
    /// arrived.
    fn delivered(&self, _message: &Message<'_>, _body: &[u8], _begun: Instant) {}

    /// Begins to serve a request for which `serve` has returned [`Outcome::Later`], and returns
    /// without waiting for the answer. Later any thread may pass the answer to `reply`.
    fn serve_later(&self, message: OwnedMessage, reply: Reply);
}

/// The result of serving a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The request has an answer: the length of the body that was written to the buffer, or an
    /// error.
    Answer(Result<usize, Errno>),
    /// The request gets no answer.
    Silent,
    /// The request has to be served by [`Dispatch::serve_later`].
    Later,
}
