//! Telling the kernel to drop what it has cached.
//!
//! Two reasons: somebody else has changed the files ([`KernelCache`]), or our own cache is over its
//! budget by entries that are only kept because the kernel holds them ([`Asker`]).
//!
//! # Never on a request's thread
//! To drop a name the kernel takes the lock of its directory, which whoever waits for a request in
//! that directory holds: a thread that serves requests would wait for itself. So the wishes of the
//! cache go to a thread of their own, through a queue that drops what does not fit; the cache will
//! ask again.
//!
//! # Directories are left alone
//! The kernel unhashes a name that it is told to drop even if it is in use. For a file that has no
//! effect, but the working directory of a process would lose its path. So files are asked for, and
//! directories follow when the kernel itself is short of memory.
//!
//! Source: Linux `fuse_reverse_inval_entry` and `d_invalidate`.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use corewalk::{Cred, Errno, FileKind, Name, Pressure};
use corewalk_sync::primitives::thread;
use fuser::{INodeNo, Notifier};

use crate::server::Server;

/// Wishes that may wait to be passed on.
const WISHES_MAX: usize = 4096;

/// What the kernel has cached of a mount.
///
/// Its methods are for changes that were not made through the mount: they drop what corewalk has
/// cached, then what the kernel has. They wait for the kernel, so they must not be called by a
/// [`FileSystem`](corewalk::FileSystem) while it serves a request.
#[derive(Clone, Debug)]
pub struct KernelCache {
    server: Arc<Server>,
    notifier: Notifier,
}

/// A wish of the cache.
enum Wish {
    /// Forget this name.
    Forget(u64, Box<[u8]>),
    /// End the thread.
    Stop,
}

/// The side of the queue that the cache knows.
struct Asker(SyncSender<Wish>);

/// The thread that asks, ended when this is dropped.
#[derive(Debug)]
pub(crate) struct Asking {
    queue: SyncSender<Wish>,
    thread: Option<thread::JoinHandle<()>>,
}

impl KernelCache {
    pub(crate) fn new(server: Arc<Server>, notifier: Notifier) -> KernelCache {
        KernelCache { server, notifier }
    }

    /// Drops what is known of `name` in the directory with inode number `parent`.
    ///
    /// # Errors
    /// What the kernel says, `ENOTDIR` among it; that it knows nothing is no error.
    pub fn invalidate_entry(&self, parent: u64, name: Name<'_>) -> Result<(), Errno> {
        match self.server.vfs().inode(parent) {
            Ok(dir) => match self.server.vfs().invalidate(&dir, name) {
                // Removed: there are no names in it.
                Err(Errno::NOENT) => {}
                result => result?,
            },
            // Not in use: the kernel has no name in it.
            Err(Errno::STALE) => return Ok(()),
            Err(error) => return Err(error),
        }
        let node = INodeNo(self.server.translate(parent));
        let name = OsStr::from_bytes(name.as_bytes());
        self.notifier.inval_entry(node, name).map_err(errno)
    }

    /// Drops the attributes and the content of the inode with number `ino`.
    ///
    /// # Errors
    /// What the kernel says; that it knows nothing is no error.
    pub fn invalidate_inode(&self, ino: u64) -> Result<(), Errno> {
        let node = INodeNo(self.server.translate(ino));
        self.notifier.inval_inode(node, 0, 0).map_err(errno)
    }

    /// Asks the kernel to forget a file; directories are left alone.
    fn ask_to_forget(&self, parent: u64, name: &[u8]) {
        let vfs = self.server.vfs();
        let (Ok(dir), Ok(checked)) = (vfs.inode(parent), Name::new(name)) else { return };
        let kind = vfs.lookup(&Cred::root(), &dir, checked).map(|inode| inode.kind());
        drop(dir);
        if kind.is_ok_and(|kind| kind != FileKind::Directory) {
            let node = INodeNo(self.server.translate(parent));
            if let Err(error) = self.notifier.inval_entry(node, OsStr::from_bytes(name)) {
                log::debug!("the kernel was asked to forget a name: {error}");
            }
        }
    }
}

impl Asking {
    /// Starts the thread, and has the cache of the server ask it.
    pub(crate) fn start(cache: KernelCache) -> Asking {
        let (queue, wishes) = sync_channel(WISHES_MAX);
        let asker = Box::new(Asker(queue.clone()));
        if cache.server.vfs().set_pressure(asker).is_err() {
            log::debug!("somebody else hears that the cache needs room");
        }
        let thread = thread::spawn(move || serve(&wishes, &cache));
        Asking { queue, thread: Some(thread) }
    }
}

fn serve(wishes: &Receiver<Wish>, cache: &KernelCache) {
    while let Ok(Wish::Forget(parent, name)) = wishes.recv() {
        cache.ask_to_forget(parent, &name);
    }
}

fn errno(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

impl Pressure for Asker {
    fn please_forget(&self, parent: u64, name: Name<'_>) {
        // A queue that is full or gone loses the wish; the cache asks again.
        let _ = self.0.try_send(Wish::Forget(parent, name.as_bytes().into()));
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        // Waits for room, which the thread makes.
        let _ = self.queue.send(Wish::Stop);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("the thread that asks the kernel to forget panicked");
        }
    }
}
