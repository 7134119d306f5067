//! A table of inode numbers and names, for a server that stores and finds its files itself.
//!
//! Each server whose files have no inode numbers keeps a table: inode numbers, the names of each
//! directory, and the lookups that its kernel holds. An [`InodeTable`] is such a table. It checks
//! no permissions, does no I/O and starts no threads. The server makes a change in its storage
//! first, and then tells the table.
//!
//! # How to use it
//! - The server lists a directory from its storage, because the table may lack a name that exists.
//! - The table never reuses an inode number. So the generation in each reply to a kernel is 0.
//! - A node whose last name was removed has no path. So a server that finds files by path keeps the
//!   last path, or an open descriptor, in the node's user data. The server stores it before it
//!   calls `removed`, `renamed` (for the replaced file), or `entered` with another file at the same
//!   name.
//! - A path may change while the server uses it. A server that finds files by path therefore holds
//!   a lock of its own for reading during each call, and for writing during a rename. Or it
//!   implements [`PathFileSystem`](crate::PathFileSystem), which needs no such lock.
//! - Each entry in a reply to readdirplus is one lookup, except `.` and `..`. If an entry does not
//!   fit into the reply, the server forgets its lookup.
//!
//! # How it works
//! An `InodeTable` is a [`Vfs`] over a file system that accepts each change (`no_backing`). So
//! lookups take no lock, a rename appears at one instant, and memory is bounded.
//!
//! # Limits
//! The table does not notice changes of the storage. If two threads of a server change one name,
//! the server must tell the table in the order of the changes. A kernel sends one change of a name
//! at a time. An entry that neither the server nor a client holds may be evicted.
//!
//! Source: libfuse `lib/fuse.c` (the node table); easy_fuser's mapper; document 001.

mod no_backing;
mod node;

use std::fmt;
use std::sync::Arc;

use corewalk_base::primitives::atomic::{AtomicU64, Ordering};
use corewalk_base::primitives::thread;

use crate::Errno;
use crate::attr::{Attr, FileKind};
use crate::cred::Cred;
use crate::fs::{Make, RenameMode};
use crate::name::Name;
use crate::vfs::{EntryId, InodeRef, Pinned, Pressure, Removal, Stats, Vfs, VfsOptions};
use no_backing::{NoBacking, ROOT_INO};
pub use node::{OwnedTableNode, TableNode};

/// Number of attempts of [`InodeTable::moved`] to add a name that other threads change.
const MOVE_TRIES: u32 = 16;

/// A table of inodes and their names, with user data `T` for each inode.
///
/// # Examples
/// ```
/// use corewalk::{FileKind, InodeTable, Name, VfsOptions};
///
/// let table = InodeTable::new("the root", VfsOptions::default())?;
/// let (root, name) = (table.root(), Name::new(b"etc")?);
/// // The server has looked `etc` up in its storage, and replies to its kernel with the number.
/// let etc = table.entered(&root, name, FileKind::Directory, "user data")?.into_lookups();
/// assert_eq!(table.path(etc)?, b"/etc");
/// assert_eq!(*table.get(etc)?.data(), "user data");
/// // The server has renamed it.
/// table.renamed((&root, name), (&root, Name::new(b"conf")?))?;
/// assert_eq!(table.path(etc)?, b"/conf");
/// // The kernel forgets it.
/// assert!(table.forget(etc, 1));
/// # Ok::<(), corewalk::Errno>(())
/// ```
pub struct InodeTable<T> {
    vfs: Arc<Vfs>,
    data: Arc<NoBacking<T>>,
    cred: Cred,
    /// The last inode number. Numbers are not reused.
    last_ino: AtomicU64,
}

impl<T: Send + Sync + 'static> InodeTable<T> {
    /// Returns a table with a root directory, whose inode number is 1.
    ///
    /// # Errors
    /// `ENOMEM` if the table cannot reserve its address space.
    ///
    /// # Examples
    /// ```
    /// # use corewalk::{InodeTable, VfsOptions};
    /// let table = InodeTable::new("root", VfsOptions::default().with_cache_bytes(16 << 20))?;
    /// let (root, stats) = (table.root(), table.stats());
    /// assert_eq!((root.ino(), root.path()?, *root.data()), (1, b"/".to_vec(), "root"));
    /// assert_eq!((stats.entries, stats.budget_bytes), (1, 16 << 20));
    /// # Ok::<(), corewalk::Errno>(())
    /// ```
    pub fn new(root: T, options: VfsOptions) -> Result<InodeTable<T>, Errno> {
        let data = Arc::new(NoBacking::new(root));
        let vfs = Vfs::new(Arc::new(Arc::clone(&data)), options)?;
        Ok(InodeTable { vfs, data, cred: Cred::root(), last_ino: AtomicU64::new(ROOT_INO) })
    }

    /// Enters a name that the server has found or made in its storage, and returns its node. If the
    /// table has the name with the same kind of file, returns that node and drops `data`. It
    /// replaces a node of another kind, because the storage must have changed.
    ///
    /// # Errors
    /// `ENOTDIR` if `parent` is not a directory; `ENOENT` if it was removed; `ENOMEM`; `ENFILE` at
    /// more than 2^27 references to the node.
    ///
    /// # Examples
    /// ```
    /// # use corewalk::{Errno, FileKind, InodeTable, Name, VfsOptions};
    /// # let (table, name) = (InodeTable::new(0, VfsOptions::default())?, Name::new(b"n")?);
    /// let enter = |kind, data| table.entered(&table.root(), name, kind, data);
    /// let file = enter(FileKind::Regular, 1)?;
    /// // The second lookup finds the same file. The third one finds a directory at the name.
    /// let (again, dir) = (enter(FileKind::Regular, 2)?, enter(FileKind::Directory, 3)?);
    /// assert_eq!((again.ino(), *again.data()), (file.ino(), 1));
    /// assert_eq!((dir.path()?, file.path()), (b"/n".to_vec(), Err(Errno::NOENT)));
    /// # Ok::<(), corewalk::Errno>(())
    /// ```
    pub fn entered(
        &self,
        parent: &TableNode<'_, T>,
        name: Name<'_>,
        kind: FileKind,
        data: T,
    ) -> Result<TableNode<'_, T>, Errno> {
        self.entered_if(parent, name, kind, data, |_| true)
    }

    /// Enters a name like [`InodeTable::entered`], for a storage that changes without the server.
    /// `is_same` gets the user data of the node that has the name. If it returns false, the name
    /// belongs to another file now, and a new node replaces the old one. After mkdir(2) the server
    /// passes `|_| false`, because the directory is new.
    ///
    /// # Errors
    /// The errors of [`InodeTable::entered`].
    ///
    /// # Examples
    /// ```
    /// use corewalk::{FileKind, InodeTable, Name, VfsOptions};
    ///
    /// // The user data is the number of the file in the storage.
    /// let table = InodeTable::new(2, VfsOptions::default())?;
    /// let (root, name) = (table.root(), Name::new(b"f")?);
    /// let found = |id: u64| {
    ///     table.entered_if(&root, name, FileKind::Regular, id, move |known| *known == id)
    /// };
    /// let first = found(11)?;
    /// assert_eq!(found(11)?.ino(), first.ino());
    /// // Another program has renamed a file with the number 12 over the name.
    /// assert_ne!(found(12)?.ino(), first.ino());
    /// # Ok::<(), corewalk::Errno>(())
    /// ```
    pub fn entered_if(
        &self,
        parent: &TableNode<'_, T>,
        name: Name<'_>,
        kind: FileKind,
        data: T,
        is_same: impl Fn(&T) -> bool,
    ) -> Result<TableNode<'_, T>, Errno> {
        // ORDERING: Relaxed. Only the value matters: each number is given once.
        let ino = self.last_ino.fetch_add(1, Ordering::Relaxed) + 1;
        // N.1: insert the data before the number enters the cache.
        self.data.insert(ino, data);
        let entered = loop {
            let what = Make::new(kind.to_mode(), 0, 0).with_rdev(ino);
            match self.vfs.make(&self.cred, &parent.inode, name, what) {
                Ok((inode, _)) => return Ok(self.node(inode)),
                Err(Errno::EXIST) => {}
                Err(error) => break Err(error),
            }
            match self.child_of(&parent.inode, name.as_bytes()) {
                Ok(node) if node.kind() == kind && is_same(&node.data()) => break Ok(node),
                Ok(old) => match self.replaced(parent, name, &old) {
                    // Another thread may have replaced or removed the name meanwhile.
                    Ok(()) | Err(Errno::NOENT) => {}
                    Err(error) => break Err(error),
                },
                // Another thread has removed the name meanwhile.
                Err(Errno::NOENT) => {}
                Err(error) => break Err(error),
            }
        };
        self.data.remove(ino);
        entered
    }

    /// Gives `node` another name, which the server has linked in its storage.
    ///
    /// # Errors
    /// `ENOTDIR` and `ENOENT` as in [`InodeTable::entered`]; `EPERM` for a directory; `ENOMEM`.
    ///
    /// # Examples
    /// ```
    /// use corewalk::{FileKind, InodeTable, Name, VfsOptions};
    ///
    /// let table = InodeTable::new((), VfsOptions::default())?;
    /// let (root, first) = (table.root(), Name::new(b"first")?);
    /// let file = table.entered(&root, first, FileKind::Regular, ())?;
    /// table.linked(&file, &root, Name::new(b"second")?)?;
    /// // The file keeps its other name.
    /// table.removed(&root, first)?;
    /// assert_eq!(file.path()?, b"/second");
    /// # Ok::<(), corewalk::Errno>(())
    /// ```
    pub fn linked(
        &self,
        node: &TableNode<'_, T>,
        parent: &TableNode<'_, T>,
        name: Name<'_>,
    ) -> Result<(), Errno> {
        loop {
            match self.vfs.link(&self.cred, &node.inode, &parent.inode, name) {
                // The storage has replaced the name meanwhile.
                Err(Errno::EXIST) => self.removed(parent, name)?,
                linked => return linked.map(drop),
            }
        }
    }

    /// Enters a name at which the server has found `node`, which the table knows by another name or
    /// by none. A directory moves with everything below it. But if its old name was invalidated,
    /// the table drops the names below it. Any other file keeps its old names.
    ///
    /// Meant for a server whose storage other programs also change. After such a program has moved
    /// or linked a file, a lookup in the storage finds a known file at a new name.
    ///
    /// # Errors
    /// `ENOTDIR` and `ENOENT` as in [`InodeTable::entered`]; `ELOOP` if `node` is a directory above
    /// `parent`; `ENOMEM`; `EAGAIN` if other threads change the name again and again.
    ///
    /// # Examples
    /// ```
    /// use corewalk::{FileKind, InodeTable, Name, VfsOptions};
    ///
    /// let table = InodeTable::new((), VfsOptions::default())?;
    /// let root = table.root();
    /// let dir = table.entered(&root, Name::new(b"old")?, FileKind::Directory, ())?;
    /// // A lookup of `new` has returned the number of the directory.
    /// table.moved(&dir, &root, Name::new(b"new")?)?;
    /// assert_eq!(dir.path()?, b"/new");
    /// assert!(table.child(root.ino(), b"old").is_err());
    /// # Ok::<(), corewalk::Errno>(())
    /// ```
    pub fn moved(
        &self,
        node: &TableNode<'_, T>,
        parent: &TableNode<'_, T>,
        name: Name<'_>,
    ) -> Result<(), Errno> {
        for _ in 0..MOVE_TRIES {
            match self.child_of(&parent.inode, name.as_bytes()) {
                Ok(child) if child.inode.slot == node.inode.slot => return Ok(()),
                Ok(old) => match self.replaced(parent, name, &old) {
                    // Another thread may have replaced or removed the name meanwhile.
                    Ok(()) | Err(Errno::NOENT) => {}
                    Err(error) => return Err(error),
                },
                Err(_) => {}
            }
            if self.is_above(node, parent)? {
                return Err(Errno::LOOP);
            }
            // The lookup below finds the node in the back end. It then moves the node's dentry, as
            // if another program had moved the directory.
            let attr = Attr::new(node.ino(), node.kind().to_mode());
            let _found = self.data.find(parent.ino(), name, attr);
            self.vfs.invalidate(&parent.inode, name)?;
            match self.vfs.lookup(&self.cred, &parent.inode, name) {
                // Another thread changes the old name of this directory, or has entered the name at
                // the same time (`ENOENT`). Try again.
                Ok(_) | Err(Errno::NOENT) => thread::yield_now(),
                Err(error) => return Err(error),
            }
        }
        Err(Errno::AGAIN)
    }

    /// Removes a name that the server has removed from its storage, if the table has it. Users of
    /// the node keep it, with its data.
    ///
    /// # Errors
    /// `ENOTDIR` if `parent` is not a directory. `ENOENT` if `parent` was removed while other
    /// threads changed the name.
    ///
    /// # Examples
    /// ```
    /// use corewalk::{Errno, FileKind, InodeTable, Name, VfsOptions};
    ///
    /// let table = InodeTable::new((), VfsOptions::default())?;
    /// let (root, name) = (table.root(), Name::new(b"f")?);
    /// let file = table.entered(&root, name, FileKind::Regular, ())?;
    /// table.removed(&root, name)?;
    /// // A client that has the file open still uses its number. The number has no path.
    /// assert!(table.get(file.ino()).is_ok());
    /// assert_eq!(file.path(), Err(Errno::NOENT));
    /// # Ok::<(), corewalk::Errno>(())
    /// ```
    pub fn removed(&self, parent: &TableNode<'_, T>, name: Name<'_>) -> Result<(), Errno> {
        for removal in [Removal::Unlink, Removal::Rmdir, Removal::Unlink] {
            match self.vfs.remove(&self.cred, &parent.inode, name, removal) {
                Ok(()) | Err(Errno::NOENT) => return Ok(()),
                // The kind may change between two attempts.
                Err(Errno::ISDIR | Errno::NOTDIR) if parent.is_directory() => {}
                Err(error) => return Err(error),
            }
        }
        self.invalidated(parent, name)
    }

    /// Moves a name that the server has renamed in its storage, and replaces the target name. A
    /// directory moves with everything below it. If the table does not have the old name, the call
    /// only drops the target name.
    ///
    /// # Errors
    /// `ENOTDIR` if a parent is not a directory, `ENOENT` if it was removed; `EINVAL` if a
    /// directory would move below itself; `ENOMEM`. `EISDIR`, `ENOTDIR` or `ENOTEMPTY` if another
    /// thread enters a file of another kind at the target name meanwhile.
    ///
    /// # Examples
    /// ```
    /// # use corewalk::{Errno, FileKind, InodeTable, Name, VfsOptions};
    /// # let table = InodeTable::new((), VfsOptions::default())?;
    /// let (root, draft, text) = (table.root(), Name::new(b"draft")?, Name::new(b"text")?);
    /// let enter = |name| table.entered(&root, name, FileKind::Regular, ());
    /// let (new, old) = (enter(draft)?, enter(text)?);
    /// // The storage has renamed `draft` to `text`.
    /// table.renamed((&root, draft), (&root, text))?;
    /// assert_eq!((new.path()?, old.path()), (b"/text".to_vec(), Err(Errno::NOENT)));
    /// # Ok::<(), corewalk::Errno>(())
    /// ```
    pub fn renamed(
        &self,
        from: (&TableNode<'_, T>, Name<'_>),
        to: (&TableNode<'_, T>, Name<'_>),
    ) -> Result<(), Errno> {
        if self.child_of(&from.0.inode, from.1.as_bytes()).is_err() {
            return self.removed(to.0, to.1);
        }
        let rename = || {
            let (old, new) = ((&from.0.inode, from.1), (&to.0.inode, to.1));
            self.vfs.rename(&self.cred, old, new, RenameMode::Replace)
        };
        match rename() {
            // The storage has already made the rename. So the table's entry at the target name,
            // whose kind or children forbid the rename, is out of date. Remove it and try again.
            Err(Errno::ISDIR | Errno::NOTDIR | Errno::NOTEMPTY)
                if from.0.is_directory() && to.0.is_directory() =>
            {
                self.removed(to.0, to.1)?;
                rename()
            }
            // Another thread has invalidated the old name meanwhile.
            Err(Errno::NOENT) if self.child_of(&from.0.inode, from.1.as_bytes()).is_err() => {
                self.removed(to.0, to.1)
            }
            renamed => renamed,
        }
    }

    /// Exchanges two names that the server has exchanged in its storage. If the table has only one
    /// of the two names, its node moves to the other name.
    ///
    /// # Errors
    /// The errors of [`InodeTable::renamed`].
    ///
    /// # Examples
    /// ```
    /// use corewalk::{FileKind, InodeTable, Name, VfsOptions};
    ///
    /// let table = InodeTable::new((), VfsOptions::default())?;
    /// let (root, a, b) = (table.root(), Name::new(b"a")?, Name::new(b"b")?);
    /// let file = table.entered(&root, a, FileKind::Regular, ())?;
    /// let dir = table.entered(&root, b, FileKind::Directory, ())?;
    /// table.exchanged((&root, a), (&root, b))?;
    /// assert_eq!((file.path()?, dir.path()?), (b"/b".to_vec(), b"/a".to_vec()));
    /// # Ok::<(), corewalk::Errno>(())
    /// ```
    pub fn exchanged(
        &self,
        a: (&TableNode<'_, T>, Name<'_>),
        b: (&TableNode<'_, T>, Name<'_>),
    ) -> Result<(), Errno> {
        let has =
            |at: (&TableNode<'_, T>, Name<'_>)| self.child_of(&at.0.inode, at.1.as_bytes()).is_ok();
        match (has(a), has(b)) {
            (true, true) => {
                let (old, new) = ((&a.0.inode, a.1), (&b.0.inode, b.1));
                match self.vfs.rename(&self.cred, old, new, RenameMode::Exchange) {
                    // Another thread has invalidated one of the names meanwhile.
                    Err(Errno::NOENT) if !has(a) || !has(b) => self.exchanged(a, b),
                    exchanged => exchanged,
                }
            }
            (true, false) => self.renamed(a, b),
            (false, true) => self.renamed(b, a),
            (false, false) => Ok(()),
        }
    }

    /// Drops a name, because the storage may have changed it. The next [`InodeTable::entered`]
    /// makes a new node, unless another name keeps the old one. If the storage still has the same
    /// file there, and the old node may be in use, call [`InodeTable::moved`] instead. Otherwise
    /// the old node keeps its old path.
    ///
    /// # Errors
    /// `ENOTDIR` if `parent` is not a directory; `ENOENT` if it was removed.
    ///
    /// # Examples
    /// ```
    /// use corewalk::{FileKind, InodeTable, Name, VfsOptions};
    ///
    /// let table = InodeTable::new((), VfsOptions::default())?;
    /// let (root, name) = (table.root(), Name::new(b"f")?);
    /// let before = table.entered(&root, name, FileKind::Regular, ())?.ino();
    /// table.invalidated(&root, name)?;
    /// let after = table.entered(&root, name, FileKind::Regular, ())?.ino();
    /// assert_ne!(before, after);
    /// # Ok::<(), corewalk::Errno>(())
    /// ```
    pub fn invalidated(&self, parent: &TableNode<'_, T>, name: Name<'_>) -> Result<(), Errno> {
        self.vfs.invalidate(&parent.inode, name)
    }
}

impl<T> InodeTable<T> {
    fn is_above(&self, node: &TableNode<'_, T>, dir: &TableNode<'_, T>) -> Result<bool, Errno> {
        if !node.is_directory() {
            return Ok(false);
        }
        let mut at = dir.clone();
        loop {
            if at.ino() == node.ino() {
                return Ok(true);
            }
            let parent = self.vfs.parent_ino(&at.inode)?;
            if parent == at.ino() {
                return Ok(false);
            }
            at = self.get(parent)?;
        }
    }

    fn replaced(
        &self,
        parent: &TableNode<'_, T>,
        name: Name<'_>,
        old: &TableNode<'_, T>,
    ) -> Result<(), Errno> {
        let removal = if old.is_directory() { Removal::Rmdir } else { Removal::Unlink };
        let is_old = |inode| inode == old.inode.slot;
        self.vfs.remove_if(&self.cred, &parent.inode, name, removal, is_old)
    }

    #[inline]
    fn node<'t>(&'t self, inode: InodeRef<'t>) -> TableNode<'t, T> {
        TableNode { table: self, inode }
    }

    /// Returns the root directory. [`InodeTable::new`] has an example.
    ///
    /// # Panics
    /// Panics at more than 2^27 references to the root directory.
    pub fn root(&self) -> TableNode<'_, T> {
        self.node(self.vfs.root())
    }

    /// Returns the node with this number.
    ///
    /// # Errors
    /// `ESTALE` if the table does not have the node; `ENFILE` at more than 2^27 references to the
    /// node.
    pub fn get(&self, ino: u64) -> Result<TableNode<'_, T>, Errno> {
        Ok(self.node(self.vfs.inode(ino)?))
    }

    /// Returns the node of `name` in the directory with the number `parent`. The call takes no lock
    /// if the table has the name.
    ///
    /// # Errors
    /// `ESTALE` if the table does not have `parent`; `ENOTDIR`; `ENOENT` if the table does not have
    /// the name; `ENFILE` at more than 2^27 references to the node; the errors of [`Name::new`].
    ///
    /// # Examples
    /// A server looks a name up in its storage only if the table does not have it:
    /// ```
    /// # use corewalk::{Errno, FileKind, InodeTable, Name, VfsOptions};
    /// # let table = InodeTable::new((), VfsOptions::default())?;
    /// let lookup = |parent: u64, name: &[u8]| match table.child(parent, name) {
    ///     Ok(known) => Ok(known.into_lookups()),
    ///     Err(Errno::NOENT) => {
    ///         let (dir, name) = (table.get(parent)?, Name::new(name)?);
    ///         // Look `name` up in the storage here.
    ///         Ok(table.entered(&dir, name, FileKind::Regular, ())?.into_lookups())
    ///     }
    ///     Err(error) => Err(error),
    /// };
    /// let root = table.root().ino();
    /// assert_eq!(lookup(root, b"f")?, lookup(root, b"f")?);
    /// # Ok::<(), Errno>(())
    /// ```
    #[inline]
    pub fn child(&self, parent: u64, name: &[u8]) -> Result<TableNode<'_, T>, Errno> {
        match self.vfs.child_by_ino(parent, name) {
            Some(inode) => Ok(self.node(inode)),
            None => self.child_slow(parent, name),
        }
    }

    #[cold]
    #[inline(never)]
    fn child_slow(&self, parent: u64, name: &[u8]) -> Result<TableNode<'_, T>, Errno> {
        self.child_of(&self.vfs.inode(parent)?, name)
    }

    fn child_of(&self, parent: &InodeRef<'_>, name: &[u8]) -> Result<TableNode<'_, T>, Errno> {
        self.vfs.cached_child(parent, Name::new(name)?).map(|inode| self.node(inode))
    }

    /// Returns a path of the node with this number from the root. All names on it exist at one
    /// instant.
    ///
    /// # Errors
    /// `ESTALE` if the table does not have the node; `ENOENT` if it has no name any more.
    pub fn path(&self, ino: u64) -> Result<Vec<u8>, Errno> {
        self.vfs.path_of_ino(ino)
    }

    /// Drops `n` lookups that [`TableNode::into_lookups`] gave out. If the node has fewer, drops
    /// none and returns false.
    pub fn forget(&self, ino: u64, n: u64) -> bool {
        self.vfs.forget(ino, n)
    }

    /// Drops all lookups of a node, and returns their number. A server calls this method when its
    /// only client has gone.
    ///
    /// # Examples
    /// ```
    /// # use corewalk::{FileKind, InodeTable, Name, VfsOptions};
    /// # let table = InodeTable::new((), VfsOptions::default())?;
    /// let file = table.entered(&table.root(), Name::new(b"f")?, FileKind::Regular, ())?;
    /// // Two replies to the client contain the file. Then the client goes.
    /// let (ino, _) = (file.clone().into_lookups(), file.into_lookups());
    /// assert_eq!((table.forget_all(ino), table.forget_all(ino)), (2, 0));
    /// # Ok::<(), corewalk::Errno>(())
    /// ```
    pub fn forget_all(&self, ino: u64) -> u64 {
        self.vfs.forget_all(ino)
    }

    /// Sets the callback for memory pressure. A table over its budget passes to the callback each
    /// entry that only the client's lookups keep. A FUSE server then asks its kernel to forget the
    /// entry. The callback can be set once.
    ///
    /// # Errors
    /// `EBUSY` if it is already set.
    ///
    /// # Examples
    /// ```
    /// # use std::sync::mpsc::{Sender, channel};
    /// # use corewalk::{FileKind, InodeTable, Name, Pressure, VfsOptions};
    /// struct Ask(Sender<(u64, Vec<u8>)>);
    ///
    /// impl Pressure for Ask {
    ///     fn please_forget(&self, parent: u64, name: Name<'_>) {
    ///         let _ = self.0.send((parent, name.as_bytes().to_vec()));
    ///     }
    /// }
    ///
    /// let table = InodeTable::new((), VfsOptions::default().with_cache_bytes(0))?;
    /// let (root, (sender, asked)) = (table.root(), channel());
    /// table.set_pressure(Box::new(Ask(sender)))?;
    /// for name in (0..200).map(|i| format!("file {i}")) {
    ///     let name = Name::new(name.as_bytes())?;
    ///     table.entered(&root, name, FileKind::Regular, ())?.into_lookups();
    /// }
    /// // Another thread of the server asks its kernel to forget this entry.
    /// let (parent, name) = asked.try_recv()?;
    /// assert!(table.child(parent, &name)?.path()?.starts_with(b"/file "));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_pressure(&self, pressure: Box<dyn Pressure>) -> Result<(), Errno> {
        self.vfs.set_pressure(pressure)
    }

    /// Evicts unused entries, as [`Vfs::reclaim`] does. Passes to `pinned` each entry that only the
    /// client's lookups keep.
    ///
    /// # Examples
    /// ```
    /// # use corewalk::{FileKind, InodeTable, Name, VfsOptions};
    /// # let table = InodeTable::new((), VfsOptions::default())?;
    /// # let name = Name::new(b"f")?;
    /// let held = table.entered(&table.root(), name, FileKind::Regular, ())?.into_lookups();
    /// let mut pinned = vec![];
    /// // The first call spares an entry that was used lately, so call twice.
    /// for _ in 0..2 {
    ///     table.reclaim(10, &mut |entry| pinned.push((entry.entry, entry.ino)));
    /// }
    /// assert_eq!(pinned[0].1, held);
    /// // The server asks its kernel to forget the file, and gets the `forget`.
    /// assert!(table.forget(held, 1));
    /// assert_eq!(table.evict(pinned[0].0), 1);
    /// # Ok::<(), corewalk::Errno>(())
    /// ```
    pub fn reclaim(&self, want: u64, pinned: &mut dyn FnMut(Pinned<'_>)) -> u64 {
        self.vfs.reclaim(want, pinned)
    }

    /// Evicts an entry that [`InodeTable::reclaim`] reported, as [`Vfs::evict`] does.
    /// [`InodeTable::reclaim`] has an example.
    pub fn evict(&self, entry: EntryId) -> u64 {
        self.vfs.evict(entry)
    }

    /// Returns the cache that the table uses.
    #[doc(hidden)]
    pub fn cache(&self) -> &Vfs {
        &self.vfs
    }

    /// Returns the statistics of the table. [`InodeTable::new`] has an example.
    pub fn stats(&self) -> Stats {
        self.vfs.stats()
    }
}

impl<T> fmt::Debug for InodeTable<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InodeTable").field("stats", &self.stats()).finish()
    }
}

#[cfg(all(test, not(any(corewalk_loom, corewalk_shuttle))))]
mod tests;
