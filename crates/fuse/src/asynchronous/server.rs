//! The server: its cache, and the requests that the cache answers.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::channel;

use corewalk::attr::mode;
use corewalk::{Attr, Errno, FileKind, InodeTable, Name, TableNode, Vfs};

use super::flights::{Flight, Flights};
use super::identities::Known;
use super::listing::Listings;
use super::node::{Inode, Shared, Table};
use super::requests::AsyncDispatcher;
use super::under_way::UnderWay;
use super::{AsyncFileSystem, AsyncNode, Spawn};
use crate::adapter::Adapter;
use crate::lock_owners::LockOwners;
use crate::mount::{EndSignals, Mount, MountError, MountOptions, mount_server};
use crate::notify::Notifier;
use crate::options::{Options, Ownership};
use crate::server::ROOT_NODE;
use crate::service::{Dispatch, Service};
use crate::timeouts::Timeouts;
use crate::transport::{NoRings, Transport};
use crate::wire::{Features, Init, Message};

/// Mounts `fs` on the directory `path`, and serves it like [`serve`](crate::serve). The futures of
/// `fs` run where `spawn` runs them.
///
/// The call blocks its thread until the mount has ended, so a program calls it from a thread that
/// runs no futures.
///
/// # Errors
/// The errors of [`serve`](crate::serve), and those of [`Mount::serve_async`].
/// [`MountError::Options`] for the conflicts that [`Options::check_async`] finds.
///
/// # Examples
/// ```no_run
/// use std::{path::Path, sync::Arc};
/// use corewalk_fuse::{AsyncFileSystem, MountOptions, Options, serve_async};
///
/// fn run(fs: impl AsyncFileSystem) -> Result<(), Box<dyn std::error::Error>> {
///     let runtime = tokio::runtime::Runtime::new()?;
///     let handle = runtime.handle().clone();
///     let spawn = move |future| drop(handle.spawn(future));
///     let (options, mount) = (Options::shared(), MountOptions::default());
///     Ok(serve_async(Arc::new(fs), Path::new("/mnt"), options, &mount, spawn)?)
/// }
/// ```
pub fn serve_async<F: AsyncFileSystem>(
    fs: Arc<F>,
    path: &Path,
    options: Options,
    mount: &MountOptions,
    spawn: impl Spawn,
) -> Result<(), MountError> {
    let signals = EndSignals::watch()?;
    options.check_async().map_err(MountError::Options)?;
    let server = AsyncServer::new(fs, options, spawn).map_err(MountError::FileSystem)?;
    Mount::serve_async(Arc::new(server), path, mount)?.wait_or_unmount(signals)
}

/// A server of an asynchronous file system.
///
/// [`Mount::serve_async`] mounts this server.
///
/// - With [`Options::exclusive`], the server answers lookups and requests for attributes from its
///   cache.
/// - With [`Options::shared`], it calls the back end whenever the kernel asks.
/// - Requests for one name that wait at the same time share one answer of the back end. No request
///   gets an answer that is older than itself.
/// - The server also uses the three timeouts, `readdirplus`, `write_bytes_max`, `background_max`,
///   `requests_max` and `vfs`. It ignores `birth_times` and `passthrough`.
///
/// # Examples
/// ```
/// # use bytes::Bytes;
/// # use corewalk::{Attr, Errno, Name};
/// # use corewalk_fuse::{AsyncFileSystem, AsyncNode, OwnedDirEntry};
/// # struct Empty;
/// # impl AsyncFileSystem for Empty {
/// #     async fn root(&self) -> Result<Attr, Errno> {
/// #         Ok(Attr::dir(1))
/// #     }
/// #     async fn lookup(&self, _: &AsyncNode, _: Name<'_>) -> Result<Attr, Errno> {
/// #         Err(Errno::NOENT)
/// #     }
/// #     async fn getattr(&self, _: &AsyncNode) -> Result<Attr, Errno> {
/// #         Ok(Attr::dir(1))
/// #     }
/// #     async fn readdir(&self, _: &AsyncNode, _: u64) -> Result<Vec<OwnedDirEntry>, Errno> {
/// #         Ok(Vec::new())
/// #     }
/// #     async fn read(&self, _: &AsyncNode, _: u64, _: u32) -> Result<Bytes, Errno> {
/// #         Ok(Bytes::new())
/// #     }
/// # }
/// use std::sync::Arc;
/// use corewalk_fuse::{AsyncServer, Options, Ownership};
///
/// let runtime = tokio::runtime::Runtime::new()?;
/// let handle = runtime.handle().clone();
/// let spawn = move |future| drop(handle.spawn(future));
/// // `Empty` is an `AsyncFileSystem`. Its `root` runs on the runtime now.
/// let server = AsyncServer::new(Arc::new(Empty), Options::shared(), spawn)?;
/// assert_eq!((server.options().ownership, server.under_way()), (Ownership::Shared, 0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct AsyncServer<F> {
    pub(super) fs: Arc<F>,
    pub(super) table: Arc<Table>,
    pub(super) shared: Arc<Shared>,
    pub(super) options: Options,
    pub(super) timeouts: Timeouts,
    pub(super) flights: Flights<Key, Fetched>,
    pub(super) listings: Listings,
    pub(super) under_way: Arc<UnderWay>,
    pub(super) lock_owners: LockOwners,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Key {
    /// Locked by renames that move a directory to another parent. The order of the variants is the
    /// order of locking, so this key is the first one.
    Topology,
    Name(u64, Box<[u8]>),
    Attributes(u64),
    SetAttributes(u64),
}

pub(super) type Fetched = Result<(Attr, u64), Errno>;

#[derive(Debug)]
pub(super) struct Found {
    pub(super) node: AsyncNode,
    pub(super) attr: Attr,
    /// False if the attributes may have changed during the call of the back end. Then the kernel
    /// must not cache them.
    pub(super) is_current: bool,
    /// False if the name may have changed during the call of the back end. Then the kernel must not
    /// cache it.
    pub(super) is_entry_current: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entering {
    Found,
    Made,
}

impl<F: AsyncFileSystem> AsyncServer<F> {
    /// Returns a server of `fs`. Its futures run where `spawn` runs them. The function waits until
    /// `fs` has returned the root directory. So do not call it on the only thread of the runtime.
    /// [`AsyncServer`] has an example.
    ///
    /// # Errors
    /// `EINVAL` for options that [conflict](Options::check_async); `ENOTDIR` if the root is not a
    /// directory; the errors of [`AsyncFileSystem::root`]; `EIO` if the runtime drops its future;
    /// `ENOMEM`.
    pub fn new(fs: Arc<F>, options: Options, spawn: impl Spawn) -> Result<AsyncServer<F>, Errno> {
        options.check_async().map_err(|_| Errno::INVAL)?;
        let (sender, receiver) = channel();
        let asked = Arc::clone(&fs);
        spawn.spawn(Box::pin(async move {
            let _ = sender.send(asked.root().await);
        }));
        let root = receiver.recv().map_err(|_| Errno::IO)??;
        if !root.is_dir() {
            return Err(Errno::NOTDIR);
        }
        let shared = Shared::new(Arc::clone(&fs));
        let inode = Inode::new(&shared, &root, &Known::None);
        let table = Arc::new(InodeTable::new(inode, options.vfs.clone())?);
        let server = AsyncServer {
            fs,
            table,
            shared,
            timeouts: Timeouts::of(&options),
            flights: Flights::new(),
            listings: Listings::default(),
            under_way: UnderWay::new(options.requests_max, Box::new(spawn)),
            lock_owners: LockOwners::default(),
            options,
        };
        let root = server.node(ROOT_NODE)?;
        let _ = root.inode().index();
        drop(root);
        Ok(server)
    }

    /// Returns the options.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Returns the number of requests that wait for the back end.
    pub fn under_way(&self) -> usize {
        self.under_way.len()
    }

    pub(super) fn is_exclusive(&self) -> bool {
        self.options.ownership == Ownership::Exclusive
    }

    pub(super) fn node(&self, number: u64) -> Result<AsyncNode, Errno> {
        let node = self.table.get(number)?;
        Ok(AsyncNode::new(self.table.owned(node)))
    }

    /// Makes the answers of all calls under way old. The caller then drops the names and attributes
    /// that the table has, also those that have entered it just before.
    fn invalidate_calls(&self) {
        self.flights.invalidate_all();
        self.shared.report();
    }

    /// Invalidates the attributes of an inode, and the names that are being entered in it.
    fn invalidate_node(&self, number: u64) {
        if let Ok(node) = self.node(number) {
            node.inode().invalidate_attributes();
            node.invalidate_name(|| ());
        }
    }

    pub(super) fn file(&self, message: &Message<'_>) -> Result<AsyncNode, Errno> {
        self.other(message, message.header.node)
    }

    pub(super) fn other(&self, message: &Message<'_>, number: u64) -> Result<AsyncNode, Errno> {
        Ok(self.node(number)?.with_caller(message.header.caller))
    }

    pub(super) fn has_open_state(&self) -> bool {
        self.fs.has_open_state() || self.fs.has_locks()
    }

    /// Programs see the inode number of the back end. The kernel sees generation 0, because the
    /// table never uses a number again.
    pub(super) fn shown(node: &AsyncNode, attr: &Attr) -> Attr {
        attr.with_ino(node.ino()).with_generation(0)
    }

    pub(super) fn timeouts(&self, attr: &Attr, is_current: bool) -> Timeouts {
        let timeouts = self.timeouts.set_by(attr);
        if is_current { timeouts } else { timeouts.without_attributes() }
    }

    pub(super) async fn lock(&self, key: Key) -> Flight<'_, Key, Fetched> {
        self.under_way.wait_for(self.flights.lock(key)).await
    }

    /// Returns `None` if other programs may change files, because a cached answer may then be old.
    pub(super) fn cached_child(&self, dir: u64, name: &[u8]) -> Option<Found> {
        if !self.is_exclusive() {
            return None;
        }
        let node = AsyncNode::new(self.table.owned(self.table.child(dir, name).ok()?));
        let attr = node.cached()?;
        Some(Found { node, attr, is_current: true, is_entry_current: true })
    }

    pub(super) fn enter(
        &self,
        dir: &AsyncNode,
        name: Name<'_>,
        attr: &Attr,
        entering: Entering,
    ) -> Result<AsyncNode, Errno> {
        let dir = dir.table_node().get();
        let is_same =
            |known: &Inode| known.is(attr) && (entering == Entering::Found || attr.ino != 0);
        if let Ok(node) = self.table.child(dir.ino(), name.as_bytes()) {
            if node.kind() == attr.kind() && is_same(&node.data()) {
                return Ok(AsyncNode::new(self.table.owned(node)));
            }
            if node.kind() == FileKind::Directory {
                // Another machine may have renamed the directory. Removing it from the table would
                // make files in it unusable, so only invalidate its name.
                self.table.invalidated(&dir, name)?;
            }
        }
        // The table may have this file under another name, or under none. The reasons are a hard
        // link, a directory that another machine has moved, or an invalidated name.
        let known = self.shared.identities.find((attr.ino, attr.generation));
        if let Known::Inode(known) = &known
            && let Some(node) = self.usable(known, attr)
        {
            self.moved(&node, &dir, name);
            return Ok(node);
        }
        if attr.ino == 0
            && attr.kind() == FileKind::Directory
            && entering == Entering::Found
            && let Some(node) = self.hidden_directory(&dir, name, attr)
        {
            self.moved(&node, &dir, name);
            return Ok(node);
        }
        let inode = Inode::new(&self.shared, attr, &known);
        let node = self.table.entered_if(&dir, name, attr.kind(), inode, is_same)?;
        let node = AsyncNode::new(self.table.owned(node));
        let mut other = node.inode().index();
        while let Some(inode) = other {
            if let Some(first) = self.usable(&inode, attr) {
                self.moved(&first, &dir, name);
                return Ok(first);
            }
            other = node.inode().replace(&inode);
        }
        Ok(node)
    }

    /// Without inode numbers, only the name tells that a directory is the one that was invalidated.
    /// A second node of it would have no files, and a rename could make a loop.
    fn hidden_directory(
        &self,
        dir: &TableNode<'_, Inode>,
        name: Name<'_>,
        attr: &Attr,
    ) -> Option<AsyncNode> {
        let vfs = self.table.cache();
        let known = vfs.directories_at(&vfs.inode(dir.ino()).ok()?, name).ok()?;
        let mut nodes = known.iter().filter_map(|known| self.node(known.ino()).ok());
        nodes.find(|node| node.inode().is(attr))
    }

    pub(super) fn moved(&self, node: &AsyncNode, dir: &TableNode<'_, Inode>, name: Name<'_>) {
        if let Err(error) = self.table.moved(&node.table_node().get(), dir, name) {
            log::debug!("a name is not cached: {error}");
        }
    }

    fn usable(&self, inode: &Inode, attr: &Attr) -> Option<AsyncNode> {
        self.node(inode.number()).ok().filter(|node| node.kind() == attr.kind())
    }

    /// In a directory with set-group-ID, a file gets the group of the directory, and a directory
    /// also gets the bit.
    pub(super) async fn inherited(
        &self,
        dir: &AsyncNode,
        gid: u32,
        mode: u32,
    ) -> Result<(u32, u32), Errno> {
        let cached = if self.is_exclusive() { dir.cached() } else { None };
        let attr = match cached {
            Some(attr) => attr,
            None => self.attributes(dir).await?.0,
        };
        Ok(match attr.mode & mode::S_ISGID {
            0 => (gid, mode),
            _ if mode & mode::S_IFMT == mode::S_IFDIR => (attr.gid, mode | mode::S_ISGID),
            _ => (attr.gid, mode),
        })
    }
}

impl<F: AsyncFileSystem> Mount<AsyncServer<F>> {
    /// Mounts the file system of `server` on the directory `path`.
    ///
    /// # Errors
    /// The errors of [`Mount::serve`]. [`MountError::System`] with `EOPNOTSUPP` for
    /// [`Transport::Fuser`].
    ///
    /// # Examples
    /// ```no_run
    /// use std::{path::Path, sync::Arc};
    /// use corewalk_fuse::{AsyncFileSystem, AsyncServer, Mount, MountOptions, Options};
    ///
    /// fn run(fs: impl AsyncFileSystem) -> Result<(), Box<dyn std::error::Error>> {
    ///     let runtime = tokio::runtime::Runtime::new()?;
    ///     let handle = runtime.handle().clone();
    ///     let spawn = move |future| drop(handle.spawn(future));
    ///     let server = Arc::new(AsyncServer::new(Arc::new(fs), Options::exclusive(), spawn)?);
    ///     let mount = Mount::serve_async(server, Path::new("/mnt"), &MountOptions::default())?;
    ///     println!("{} requests wait", mount.server().under_way());
    ///     Ok(mount.wait()?)
    /// }
    /// ```
    pub fn serve_async(
        server: Arc<AsyncServer<F>>,
        path: &Path,
        mount: &MountOptions,
    ) -> Result<Mount<AsyncServer<F>>, MountError> {
        mount_server(server, path, mount)
    }
}

impl<F: AsyncFileSystem> Service for AsyncServer<F> {
    fn options(&self) -> &Options {
        &self.options
    }

    fn vfs(&self) -> &Vfs {
        self.table.cache()
    }

    fn translate(&self, number: u64) -> u64 {
        number
    }

    fn waits(&self) -> bool {
        // Over io_uring, each request under way would keep one of the few entries of a ring.
        true
    }

    fn has_locks(&self) -> bool {
        self.fs.has_locks()
    }

    fn features(&self, offered: Features) -> Features {
        Features::choose_async(&self.options, self.fs.has_locks(), offered)
    }

    fn invalidate_name(
        &self,
        parent: u64,
        name: Name<'_>,
        dropped: &mut dyn FnMut(u64, FileKind),
    ) -> Result<(), Errno> {
        let dir = self.node(parent)?;
        // From now on no older answer enters the table. The names that it has are dropped below,
        // without the lock of the directory, since `invalidate_node` locks the inodes.
        let key = Key::Name(parent, name.as_bytes().into());
        dir.invalidate_name(|| self.flights.invalidate(&key));
        let vfs = self.table.cache();
        let dir = vfs.inode(dir.number())?;
        let mut has_directory = !vfs.directories_at(&dir, name)?.is_empty();
        if has_directory {
            self.invalidate_calls();
        }
        vfs.invalidate_tree(&dir, name, &mut |number, kind| {
            // A lookup may have moved a directory to this name after the look above.
            if kind == FileKind::Directory && !std::mem::replace(&mut has_directory, true) {
                self.invalidate_calls();
            }
            self.invalidate_node(number);
            dropped(number, kind);
        })
    }

    fn resolve(&self, path: &mut dyn Iterator<Item = Name<'_>>) -> Result<u64, Errno> {
        let mut node = ROOT_NODE;
        for name in path {
            node = self.table.child(node, name.as_bytes())?.ino();
        }
        Ok(node)
    }

    fn nodes_of(&self, ino: u64) -> Vec<u64> {
        let mut numbers = self.shared.identities.numbers(ino);
        // The index lacks files without an inode number of the back end.
        if !numbers.contains(&ino) && self.node(ino).is_ok_and(|node| node.ino() == ino) {
            numbers.push(ino);
        }
        numbers
    }

    fn invalidate_all(&self, directory: &mut dyn FnMut(u64)) {
        self.invalidate_calls();
        self.table.cache().invalidate_all(&mut |number, kind| {
            self.invalidate_node(number);
            if kind == FileKind::Directory {
                directory(number);
            }
        });
    }

    fn invalidate_attributes(&self, node: u64) -> Result<(), Errno> {
        self.node(node)?.inode().invalidate_attributes();
        Ok(())
    }

    fn set_transport(&self, _: Transport, _: Option<&NoRings>) {
        // [`Mount::transport`] tells the transport.
    }

    fn set_notifier(&self, notifier: Notifier) {
        self.under_way.stale().set_notifier(notifier);
    }

    fn dispatcher(self: Arc<Self>, init: &Init) -> Arc<dyn Dispatch> {
        Arc::new(AsyncDispatcher::new(self, init))
    }

    fn adapter(self: Arc<Self>) -> Option<Adapter> {
        None
    }
}

impl<F> fmt::Debug for AsyncServer<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncServer")
            .field("options", &self.options)
            .field("table", &self.table)
            .field("under_way", &self.under_way.len())
            .finish_non_exhaustive()
    }
}
