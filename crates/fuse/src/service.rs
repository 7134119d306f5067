//! The two interfaces between a server and the rest of the crate.
//!
//! [`Service`] has the methods that the mount, the shrinker thread and the notifications call.
//! [`Dispatch`] has the methods by which a transport serves the requests of one connection.
//! [`Server`](crate::Server) and [`AsyncServer`](crate::AsyncServer) implement both.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use corewalk::{Errno, FileKind, Name, Vfs};

use crate::adapter::Adapter;
use crate::notify::Notifier;
use crate::options::Options;
use crate::transport::{NoRings, Transport};
use crate::wire::{Features, Init, Message, OwnedMessage};

/// Sends the answer to a request: a body or an error.
pub(crate) type Reply = Box<dyn FnOnce(Result<&[u8], Errno>) + Send>;

pub(crate) trait Service: fmt::Debug + Send + Sync + 'static {
    fn options(&self) -> &Options;

    fn vfs(&self) -> &Vfs;

    /// Translates an inode number of the back end into a node number, or back. The translation
    /// swaps 1 with the inode number of the root, so it works in both directions.
    fn translate(&self, number: u64) -> u64;

    fn waits(&self) -> bool;

    fn has_locks(&self) -> bool;

    fn features(&self, offered: Features) -> Features;

    /// Returns the node number of the file that the names in `path` lead to from the root. An
    /// asynchronous server looks only into its cache.
    ///
    /// # Errors
    /// `ENOENT`; `ENOTDIR`; the errors of the back end.
    fn resolve(&self, path: &mut dyn Iterator<Item = Name<'_>>) -> Result<u64, Errno>;

    fn nodes_of(&self, ino: u64) -> Vec<u64>;

    /// Drops the name `name` in `parent` from the cache, and everything below it. Calls `dropped`
    /// with the node number and the kind of each inode of the name and below it.
    fn invalidate_name(
        &self,
        parent: u64,
        name: Name<'_>,
        dropped: &mut dyn FnMut(u64, FileKind),
    ) -> Result<(), Errno>;

    /// Drops all names from the cache. Calls `directory` with the node number of each cached
    /// directory.
    fn invalidate_all(&self, directory: &mut dyn FnMut(u64));

    fn invalidate_attributes(&self, node: u64) -> Result<(), Errno>;

    fn set_transport(&self, transport: Transport, why: Option<&NoRings>);

    fn set_notifier(&self, notifier: Notifier);

    fn dispatcher(self: Arc<Self>, init: &Init) -> Arc<dyn Dispatch>;

    /// Returns the adapter for fuser, or `None` if this server does not support fuser.
    fn adapter(self: Arc<Self>) -> Option<Adapter>;
}

pub(crate) trait Dispatch: Send + Sync + fmt::Debug {
    fn payload_bytes(&self) -> usize;

    fn features(&self) -> Features;

    fn serve(&self, message: &Message<'_>, buffer: &mut [u8]) -> Outcome;

    /// Returns true if the transport must call [`Dispatch::delivered`] after it has sent an answer.
    fn checks_delivery(&self) -> bool {
        false
    }

    fn delivered(&self, _message: &Message<'_>, _body: &[u8], _begun: Instant) {}

    /// Serves a request for which `serve` has returned [`Outcome::Later`], without waiting for the
    /// answer. Any thread may pass the answer to `reply`.
    fn serve_later(&self, message: OwnedMessage, reply: Reply);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Answer(Result<usize, Errno>),
    Silent,
    Later,
}
