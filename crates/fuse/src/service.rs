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

/// Sends the body of the answer, or an error.
pub(crate) type Reply = Box<dyn FnOnce(Result<&[u8], Errno>) + Send>;

pub(crate) trait Service: fmt::Debug + Send + Sync + 'static {
    fn options(&self) -> &Options;

    fn vfs(&self) -> &Vfs;

    /// The translation swaps 1 with the inode number of the root, so it works in both directions.
    fn translate(&self, number: u64) -> u64;

    fn waits(&self) -> bool;

    fn has_locks(&self) -> bool;

    fn features(&self, offered: Features) -> Features;

    /// An asynchronous server looks only into its cache.
    ///
    /// # Errors
    /// `ENOENT`; `ENOTDIR`; the errors of the back end.
    fn resolve(&self, path: &mut dyn Iterator<Item = Name<'_>>) -> Result<u64, Errno>;

    fn nodes_of(&self, ino: u64) -> Vec<u64>;

    /// Also invalidates everything below the name. Calls `dropped` with the node number and the
    /// kind of each inode of the name and below it.
    fn invalidate_name(
        &self,
        parent: u64,
        name: Name<'_>,
        dropped: &mut dyn FnMut(u64, FileKind),
    ) -> Result<(), Errno>;

    /// Calls `directory` with the node number of each cached directory.
    fn invalidate_all(&self, directory: &mut dyn FnMut(u64));

    fn invalidate_attributes(&self, node: u64) -> Result<(), Errno>;

    fn set_transport(&self, transport: Transport, why: Option<&NoRings>);

    fn set_notifier(&self, notifier: Notifier);

    fn dispatcher(self: Arc<Self>, init: &Init) -> Arc<dyn Dispatch>;

    /// Returns `None` if this kind of server does not support fuser.
    fn adapter(self: Arc<Self>) -> Option<Adapter>;
}

pub(crate) trait Dispatch: Send + Sync + fmt::Debug {
    fn payload_bytes(&self) -> usize;

    fn features(&self) -> Features;

    fn serve(&self, message: &Message<'_>, buffer: &mut [u8]) -> Outcome;

    /// True if [`Dispatch::delivered`] must be called.
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
