//! Listing a directory.
//!
//! A back end may report entries with their attributes. A server that needs the attributes makes a
//! [`Listing`], which caches the reported entries without another call of the back end. The
//! `Listing` refuses an entry that may be older than a change of its name (`dcache::listings`). The
//! server then looks the name up.

use std::ops::ControlFlow;

use super::held::{Dir, FoundName};
use super::names::Cached;
use super::numbers::UNNUMBERED;
use super::{InodeRef, LookedUp, Vfs};
use crate::Errno;
use crate::attr::{Attr, FileKind};
use crate::dcache::ListingMark;
use crate::dentry::ParentKey;
use crate::fs::{DirEntry, DirSink, FileSystem, Node};
use crate::name::Name;
use crate::slot::InodeSlot;

/// A listing of a directory. The entries that it reports with attributes can be entered in the
/// cache.
///
/// # Examples
/// ```
/// use std::ops::ControlFlow;
/// use std::sync::Arc;
/// use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
/// use corewalk::{Cred, Make, Name, Vfs, VfsOptions};
///
/// let vfs = Vfs::new(Arc::new(Tmpfs::new(TmpfsOptions::default())), VfsOptions::default())?;
/// let (cred, root) = (Cred::root(), vfs.root());
/// vfs.make(&cred, &root, Name::new(b"file")?, Make::new(0o644, 0, 0))?;
/// let listing = vfs.listing(&root);
/// let mut entries = vec![];
/// listing.read(0, &mut |entry| {
///     entries.push((entry.name.as_bytes().to_vec(), entry.attr));
///     ControlFlow::Continue(())
/// })?;
/// for (name, attr) in entries {
///     let name = Name::new(&name)?;
///     let found = match attr.and_then(|attr| listing.enter(name, &attr)) {
///         Some(found) => found,
///         None => vfs.lookup_by_ino(&cred, root.ino(), name.as_bytes())?,
///     };
///     assert_eq!(found.attr()?.mode & 0o777, 0o644);
/// }
/// # Ok::<(), corewalk::Errno>(())
/// ```
pub struct Listing<'v> {
    directory: &'v InodeRef<'v>,
    handle: u64,
    changes: i64,
    /// The references and marks that the listing holds. None for a removed directory, which has no
    /// entries.
    held: Option<Held<'v>>,
}

struct Held<'v> {
    // `mark` is dropped before `dir`: it refers to the directory's slot, which may be reused after
    // `dir` drops its reference.
    mark: ListingMark<'v>,
    key: ParentKey,
    dir: Dir<'v>,
}

impl Vfs {
    /// Reports a page of the entries of a directory behind `cookie`, without `.` and `..`. Cookie 0
    /// is the start. The page ends when `sink` returns `Break`, or earlier if the back end ends it.
    /// A page without entries is the end of the directory.
    ///
    /// The caller has opened the directory for reading. `sink` must not call this namespace: during
    /// the call, the path of the directory may be locked, and renames wait for that lock.
    ///
    /// # Errors
    /// `ENOTDIR`; the errors of the back end.
    ///
    /// # Examples
    /// ```
    /// # use std::sync::Arc;
    /// # use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
    /// # use corewalk::{Cred, Errno, Make, Name, Vfs, VfsOptions};
    /// use std::ops::ControlFlow;
    ///
    /// # let vfs = Vfs::new(Arc::new(Tmpfs::new(TmpfsOptions::default())), VfsOptions::default())?;
    /// # let (cred, root) = (Cred::root(), vfs.root());
    /// for name in [b"a", b"b"] {
    ///     vfs.make(&cred, &root, Name::new(name)?, Make::new(0o644, 0, 0))?;
    /// }
    /// // Read pages of one entry each.
    /// let (mut names, mut cookie, mut page) = (vec![], 0, 0);
    /// while page == names.len() {
    ///     vfs.readdir(&root, cookie, &mut |entry| {
    ///         if names.len() > page {
    ///             return ControlFlow::Break(());
    ///         }
    ///         cookie = entry.cookie;
    ///         names.push(entry.name.as_bytes().to_vec());
    ///         ControlFlow::Continue(())
    ///     })?;
    ///     page += 1;
    /// }
    /// names.sort();
    /// assert_eq!(names, [b"a", b"b"]);
    /// # Ok::<(), Errno>(())
    /// ```
    pub fn readdir(
        &self,
        dir: &InodeRef<'_>,
        cookie: u64,
        sink: &mut DirSink<'_>,
    ) -> Result<(), Errno> {
        self.readdir_through(dir, 0, cookie, sink)
    }

    /// Reports a page of entries, as [`Vfs::readdir`] does, through the handle of an [open
    /// directory](Vfs::opendir).
    ///
    /// # Errors
    /// The errors of [`Vfs::readdir`].
    pub fn readdir_through(
        &self,
        dir: &InodeRef<'_>,
        handle: u64,
        cookie: u64,
        sink: &mut DirSink<'_>,
    ) -> Result<(), Errno> {
        if dir.kind() != FileKind::Directory {
            return Err(Errno::NOTDIR);
        }
        let paths = self.superblock(dir.slot).paths.as_ref();
        let is_hidden = |name: &[u8]| paths.is_some_and(|paths| paths.is_hidden_name(name));
        let mut cookie = cookie;
        loop {
            // Hidden names (of unlinked open files) are not shown. A page of only such names would
            // look like the end of the directory, so continue with the next page.
            let (mut is_shown, mut last) = (false, cookie);
            let mut shown = |entry: DirEntry<'_>| {
                last = entry.cookie;
                if is_hidden(entry.name.as_bytes()) {
                    return ControlFlow::Continue(());
                }
                is_shown = true;
                match entry.ino {
                    UNNUMBERED => sink(entry.with_ino(self.cached_number(dir, entry.name))),
                    _ => sink(entry),
                }
            };
            // A removed directory gives `ENOENT`, not `ESTALE`, so call `with_node`.
            self.awaiting_removal(&[dir.slot], || {
                let list = |fs: &dyn FileSystem, node: Node<'_>| {
                    fs.readdir(node.with_handle(handle), cookie, &mut shown)
                };
                self.with_node(dir.slot, list)
            })?;
            if is_shown || last == cookie {
                return Ok(());
            }
            cookie = last;
        }
    }

    /// Begins a listing of `dir`. Its entries can be entered in the cache, unless a name in `dir`
    /// changes after this call.
    pub fn listing<'v>(&'v self, dir: &'v InodeRef<'v>) -> Listing<'v> {
        let changes = self.dcache.inodes.changes();
        let held = self.dir(dir.slot).ok().map(|dir| {
            // Register the listing before reading the directory's key. Every later invalidation of
            // the directory changes that key. So `enter` notices it, and does not cache an outdated
            // entry.
            let mark = self.dcache.listings.begin(dir.now.slot);
            Held { mark, key: dir.key(), dir }
        });
        Listing { directory: dir, handle: 0, changes, held }
    }
}

impl<'v> Listing<'v> {
    /// Returns this listing. It will pass the handle of an [open directory](Vfs::opendir) to the
    /// back end.
    #[must_use]
    pub fn through(self, handle: u64) -> Listing<'v> {
        Listing { handle, ..self }
    }

    /// Reports a page of entries, as [`Vfs::readdir`] does.
    ///
    /// # Errors
    /// The errors of [`Vfs::readdir`].
    pub fn read(&self, cookie: u64, sink: &mut DirSink<'_>) -> Result<(), Errno> {
        self.directory.vfs.readdir_through(self.directory, self.handle, cookie, sink)
    }

    /// Returns the inode of an entry that this listing has reported with the attributes `attr`, and
    /// enters the name and the inode in the cache. If the entry may be out of date, or the cache
    /// has no space, returns None, and the caller looks the name up.
    pub fn enter(&self, name: Name<'_>, attr: &Attr) -> Option<LookedUp<'_>> {
        let (vfs, Held { mark, key, dir }) = (self.directory.vfs, self.held.as_ref()?);
        let lookup_key = vfs.dcache.lookup_key(name);
        let in_lookup =
            vfs.dcache.in_lookup.lock(vfs.dcache.in_lookup_key(dir.now.slot, &lookup_key));
        if !mark.is_unchanged() || dir.key() != *key {
            return None;
        }
        let attr = vfs.numbered(dir, &lookup_key, *attr);
        let found = match vfs.cached(dir, &lookup_key) {
            Cached::Known(found) => found.filter(|found| self.is_inode(found.inode, &attr))?,
            Cached::Unknown if self.is_known_otherwise(&attr) => return None,
            Cached::Unknown => {
                let inode = vfs.enter(dir.now.inode, &attr, self.changes, None).ok()?;
                let dentry = vfs.attach(dir, *key, &lookup_key, &inode, &in_lookup);
                FoundName::new(inode, dentry)
            }
        };
        // Take the reference before releasing the in-lookup lock. Otherwise a removal of the name
        // could free the inode.
        let inode = found.into_inode();
        drop(in_lookup);
        Some(vfs.looked_up(inode.unless_saturated().ok()?, &attr, self.changes))
    }

    fn is_inode(&self, inode: InodeSlot, attr: &Attr) -> bool {
        let inodes = &self.directory.vfs.dcache.inodes;
        let superblock = inodes.superblock(self.directory.slot);
        inodes.is(inode, superblock, attr.ino) && inodes.generation(inode) == attr.generation
    }

    /// Returns true if the cache contradicts `attr`: it has the number with another generation, or
    /// the directory under another name. Only a lookup in the back end tells whether the cache or
    /// `attr` is current.
    fn is_known_otherwise(&self, attr: &Attr) -> bool {
        let inodes = &self.directory.vfs.dcache.inodes;
        let superblock = inodes.superblock(self.directory.slot);
        let known = inodes.peek(superblock, attr.ino, |_| ());
        known.is_some_and(|slot| {
            inodes.generation(slot) != attr.generation
                || (attr.is_dir() && !inodes.alias(slot).is_none())
        })
    }
}
