//! The methods of a [`Server`] that the mount and the transports call.

use std::sync::Arc;

use corewalk::{Cred, Errno, FileKind, Name, Vfs};

use super::Server;
use crate::adapter::Adapter;
use crate::dispatch::Dispatcher;
use crate::notify::Notifier;
use crate::options::Options;
use crate::service::{Dispatch, Service};
use crate::transport::{NoRings, Transport};
use crate::wire::{Features, Init};

impl Service for Server {
    fn options(&self) -> &Options {
        &self.options
    }

    fn vfs(&self) -> &Vfs {
        &self.vfs
    }

    fn translate(&self, number: u64) -> u64 {
        Server::translate(self, number)
    }

    fn waits(&self) -> bool {
        self.waits
    }

    fn has_locks(&self) -> bool {
        self.has_locks
    }

    fn features(&self, offered: Features) -> Features {
        Features::choose_own(self, offered)
    }

    fn resolve(&self, path: &mut dyn Iterator<Item = Name<'_>>) -> Result<u64, Errno> {
        let (mut inode, cred) = (self.vfs.root(), Cred::root());
        for name in path {
            inode = self.vfs.lookup(&cred, &inode, name)?;
        }
        Ok(self.translate(inode.ino()))
    }

    fn nodes_of(&self, ino: u64) -> Vec<u64> {
        vec![self.translate(ino)]
    }

    fn invalidate_name(
        &self,
        parent: u64,
        name: Name<'_>,
        dropped: &mut dyn FnMut(u64, FileKind),
    ) -> Result<(), Errno> {
        let dir = self.vfs.inode(self.translate(parent))?;
        let mut has_directory = false;
        let mut before = |ino, kind| {
            has_directory |= kind == FileKind::Directory;
            dropped(self.translate(ino), kind);
        };
        let invalidated = self.vfs.invalidate_tree(&dir, name, &mut before);
        if has_directory {
            self.count_report();
        }
        invalidated
    }

    fn invalidate_all(&self, directory: &mut dyn FnMut(u64)) {
        self.vfs.invalidate_all(&mut |ino, kind| {
            if kind == FileKind::Directory {
                directory(self.translate(ino));
            }
        });
        self.count_report();
    }

    fn invalidate_attributes(&self, node: u64) -> Result<(), Errno> {
        self.vfs.invalidate_attributes(&self.vfs.inode(self.translate(node))?);
        Ok(())
    }

    fn set_transport(&self, transport: Transport, why: Option<&NoRings>) {
        let text = match why {
            Some(why) => format!("{}: {why}", transport.name()),
            None => transport.name().to_owned(),
        };
        let is_first = self.transport.set(text.into()).is_ok();
        debug_assert!(is_first, "a server is mounted once");
        if transport == Transport::Device
            && let Some(notifier) = self.notifier.get()
        {
            self.attach_client(notifier.clone());
        }
    }

    fn set_notifier(&self, notifier: Notifier) {
        let is_first = self.notifier.set(notifier).is_ok();
        debug_assert!(is_first, "a server is mounted once");
    }

    fn dispatcher(self: Arc<Self>, init: &Init) -> Arc<dyn Dispatch> {
        Arc::new(Dispatcher::new(self, init))
    }

    fn adapter(self: Arc<Self>) -> Option<Adapter> {
        // Refuse fuser if the back end manages locks: fuser does not tell locks of fcntl(2) and of
        // flock(2) apart.
        (!self.has_locks).then(|| Adapter::with_server(self))
    }
}
