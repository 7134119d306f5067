//! The nodes of an [`InodeTable`], which are references to its inodes.
//!
//! A [`TableNode`] borrows its table. An [`OwnedTableNode`] keeps the table alive, so a task or
//! another thread can keep it.

use std::fmt;
use std::sync::Arc;

use super::InodeTable;
use crate::Errno;
use crate::attr::FileKind;
use crate::slot::InodeSlot;
use crate::vfs::InodeRef;

/// An inode of a table, with a counted reference. As long as the reference is held, the inode keeps
/// its number and its data.
///
/// # Examples
/// ```
/// use corewalk::{FileKind, InodeTable, Name, VfsOptions};
///
/// let table = InodeTable::new("root", VfsOptions::default())?;
/// let node = table.entered(&table.root(), Name::new(b"d")?, FileKind::Directory, "data")?;
/// assert_eq!((node.kind(), *node.data()), (FileKind::Directory, "data"));
/// assert_eq!((node.path()?, node.parent_ino()?), (b"/d".to_vec(), table.root().ino()));
/// # Ok::<(), corewalk::Errno>(())
/// ```
pub struct TableNode<'t, T> {
    pub(super) table: &'t InodeTable<T>,
    pub(super) inode: InodeRef<'t>,
}

/// A [`TableNode`] that keeps its table alive. [`InodeTable::owned`] makes it.
///
/// # Examples
/// ```
/// use std::sync::Arc;
/// use corewalk::{FileKind, InodeTable, Name, VfsOptions};
///
/// let table = Arc::new(InodeTable::new((), VfsOptions::default())?);
/// let node = table.entered(&table.root(), Name::new(b"f")?, FileKind::Regular, ())?;
/// let owned = table.owned(node);
/// let path = move || owned.table().path(owned.get().ino());
/// assert_eq!(std::thread::spawn(path).join().unwrap()?, b"/f");
/// # Ok::<(), corewalk::Errno>(())
/// ```
pub struct OwnedTableNode<T> {
    table: Arc<InodeTable<T>>,
    slot: InodeSlot,
}

impl<T> InodeTable<T> {
    /// Turns a node into an [`OwnedTableNode`], which a task or another thread can keep.
    ///
    /// # Panics
    /// Panics if the node is of another table.
    ///
    /// # Examples
    /// ```
    /// use std::sync::Arc;
    /// use corewalk::{FileKind, InodeTable, Name, VfsOptions};
    ///
    /// let table = Arc::new(InodeTable::new((), VfsOptions::default())?);
    /// let node = table.entered(&table.root(), Name::new(b"f")?, FileKind::Regular, ())?;
    /// let owned = table.owned(node);
    /// let path = std::thread::spawn(move || owned.get().path()).join().unwrap();
    /// assert_eq!(path?, b"/f");
    /// # Ok::<(), corewalk::Errno>(())
    /// ```
    pub fn owned(self: &Arc<Self>, node: TableNode<'_, T>) -> OwnedTableNode<T> {
        assert!(std::ptr::eq(&**self, node.table), "a node of another table");
        let slot = node.inode.slot;
        // The `OwnedTableNode` keeps the reference of `node`, so `node` must not drop it.
        std::mem::forget(node);
        OwnedTableNode { table: Arc::clone(self), slot }
    }
}

impl<T> OwnedTableNode<T> {
    /// Returns the node.
    pub fn get(&self) -> TableNode<'_, T> {
        let vfs = &*self.table.vfs;
        vfs.dcache.inodes.lockref(self.slot).get();
        self.table.node(InodeRef { vfs, slot: self.slot })
    }

    /// Returns the table.
    pub fn table(&self) -> &Arc<InodeTable<T>> {
        &self.table
    }
}

impl<T> Clone for OwnedTableNode<T> {
    fn clone(&self) -> Self {
        self.table.owned(self.get())
    }
}

impl<T> Drop for OwnedTableNode<T> {
    fn drop(&mut self) {
        drop(InodeRef { vfs: &self.table.vfs, slot: self.slot });
    }
}

impl<T> fmt::Debug for OwnedTableNode<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}

impl<T> TableNode<'_, T> {
    /// Returns the inode number.
    pub fn ino(&self) -> u64 {
        self.inode.ino()
    }

    /// Returns the kind of file.
    pub fn kind(&self) -> FileKind {
        self.inode.kind()
    }

    pub(super) fn is_directory(&self) -> bool {
        self.kind() == FileKind::Directory
    }

    /// Returns the data that the program has stored with the inode.
    pub fn data(&self) -> Arc<T> {
        self.table.data.data(self.ino())
    }

    /// Returns a path of the node from the root. All names on the path existed at one instant
    /// during this call.
    ///
    /// # Errors
    /// `ENOENT` if the node has no name any more.
    pub fn path(&self) -> Result<Vec<u8>, Errno> {
        self.inode.path()
    }

    /// Returns the inode number of the parent directory, for the entry `..` of a listing. The root
    /// is its own parent.
    ///
    /// # Errors
    /// `ENOTDIR` if the node is not a directory; `ENOENT` if it was removed.
    ///
    /// # Examples
    /// ```
    /// use corewalk::{FileKind, InodeTable, Name, VfsOptions};
    ///
    /// let table = InodeTable::new((), VfsOptions::default())?;
    /// let dir = table.entered(&table.root(), Name::new(b"d")?, FileKind::Directory, ())?;
    /// assert_eq!(dir.parent_ino()?, table.root().ino());
    /// # Ok::<(), corewalk::Errno>(())
    /// ```
    pub fn parent_ino(&self) -> Result<u64, Errno> {
        self.table.vfs.parent_ino(&self.inode)
    }

    /// Turns this reference into one client lookup, and returns the inode number. The client lookup
    /// ends with [`InodeTable::forget`]. [`InodeTable::forget_all`] has an example.
    #[inline]
    pub fn into_lookups(self) -> u64 {
        self.inode.into_lookups()
    }
}

impl<T> Clone for TableNode<'_, T> {
    fn clone(&self) -> Self {
        TableNode { table: self.table, inode: self.inode.clone() }
    }
}

impl<T> fmt::Debug for TableNode<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inode.fmt(f)
    }
}
