//! Opening by file handle: finds an inode by number, even if the cache does not have it.
//!
//! A client may hold a file handle longer than the cache keeps the inode. Then the namespace asks
//! the back end for the inode with that number. Such a file has no name in the cache until a later
//! lookup adds it.
//!
//! A directory must be connected to the tree, for `..`, renames and paths. So the back end is asked
//! for the parent, its parent, and so on, up to a directory that has a dentry. From there down,
//! each directory is read to find the name of the next one, which is then looked up.
//!
//! # Limits
//! If other clients move a directory during each of [`TRIES_MAX`] attempts, the result is `ESTALE`.
//!
//! # Locks
//! This module has no locks. Its lookups take the in-lookup locks of the names, one at a time.
//!
//! Source: open_by_handle_at(2); Linux `fs/exportfs/expfs.c` (`reconnect_path`, `get_name`).

use std::ops::ControlFlow;

use super::{InodeRef, LookedUp, Vfs};
use crate::Errno;
use crate::attr::FileKind;
use crate::cred::Cred;
use crate::name::Name;

/// Maximum number of attempts to connect a directory, given by number, to the tree. An attempt
/// fails if other clients move one of its parents meanwhile.
const TRIES_MAX: u32 = 16;

impl Vfs {
    /// Returns the inode with this number in the root file system, from the cache or the back end.
    /// If the inode has another generation than `generation`, it is another file, and the call
    /// fails. Connects a directory to the tree.
    ///
    /// # Errors
    /// `ESTALE` if the inode does not exist any more, or the back end has no lookup by number;
    /// `ENFILE`, `ENOMEM`; the errors of the back end.
    ///
    /// # Examples
    /// ```
    /// use std::sync::Arc;
    /// use corewalk::attr::mode;
    /// use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
    /// use corewalk::{Cred, Errno, Make, Name, Vfs, VfsOptions};
    ///
    /// let vfs = Vfs::new(Arc::new(Tmpfs::new(TmpfsOptions::default())), VfsOptions::default())?;
    /// let (cred, root) = (Cred::root(), vfs.root());
    /// let make = Make::new(mode::S_IFDIR | 0o755, 0, 0);
    /// let (dir, _) = vfs.make(&cred, &root, Name::new(b"d")?, make)?;
    /// let handle = (dir.ino(), dir.generation());
    /// drop(dir);
    /// vfs.prune();
    /// assert_eq!(vfs.inode(handle.0).err(), Some(Errno::STALE));
    /// assert_eq!(vfs.by_number(handle.0, Some(handle.1))?.inode.path()?, b"/d");
    /// # Ok::<(), Errno>(())
    /// ```
    pub fn by_number(&self, ino: u64, generation: Option<u64>) -> Result<LookedUp<'_>, Errno> {
        let found = self.loaded(ino, generation)?;
        if found.inode.kind() == FileKind::Directory {
            self.connect(&found.inode)?;
        }
        Ok(found)
    }

    /// Returns a path of the inode with this number from the root of its file system. All names on
    /// the path exist at one instant. The call writes no shared memory if no name on the path
    /// changes meanwhile.
    ///
    /// # Errors
    /// `ESTALE` if no inode with this number is in use; `ENOENT` if the inode has no name any more.
    pub fn path_of_ino(&self, ino: u64) -> Result<Vec<u8>, Errno> {
        match crate::dpath::path_of_ino(&self.dcache, ino) {
            Some(path) => Ok(path),
            None => self.inode(ino)?.path(),
        }
    }

    /// Like [`Vfs::by_number`], but does not connect a directory.
    fn loaded(&self, ino: u64, generation: Option<u64>) -> Result<LookedUp<'_>, Errno> {
        let is_wanted = |inode: &InodeRef<'_>| generation.is_none_or(|it| it == inode.generation());
        match self.inode(ino) {
            Err(Errno::STALE) => {}
            found => {
                let found = found?;
                // Compare the generation: the back end may have reused the inode number since the
                // client got it.
                if is_wanted(&found) {
                    return Ok(LookedUp { inode: found, attr: None });
                }
            }
        }
        let near = self.root().slot;
        let changes = self.dcache.inodes.changes();
        let attr = self.fs(near).by_number(ino, generation).map_err(stale)?;
        // Cache the inode even if it is not the wanted one. The back end may keep state for it
        // until the cache calls `forget`.
        let inode = self.enter(near, &attr, changes, None)?;
        match inode.ino() == ino && is_wanted(&inode) && attr.nlink > 0 {
            true => Ok(self.looked_up(inode.unless_saturated()?, &attr, changes)),
            false => Err(Errno::STALE),
        }
    }

    fn connect(&self, dir: &InodeRef<'_>) -> Result<(), Errno> {
        for _ in 0..TRIES_MAX {
            let mut above = vec![dir.clone()];
            while let Some(last) = above.last()
                && !self.has_place(last)
            {
                let parent = self.with_node(last.slot, |fs, dir| fs.parent(dir)).map_err(stale)?;
                // Concurrent moves may make the chain of parents a circle.
                if above.iter().any(|seen| seen.ino() == parent) {
                    break;
                }
                above.push(self.loaded(parent, None)?.inode);
            }
            while let Some(parent) = above.pop()
                && let Some(child) = above.last()
                && self.look_up_child(&parent, child)?
            {}
            if self.has_place(dir) {
                return Ok(());
            }
        }
        Err(Errno::STALE)
    }

    fn has_place(&self, dir: &InodeRef<'_>) -> bool {
        self.dir(dir.slot).is_ok()
    }

    /// Looks up the name of `child` in `parent`, which adds the name to the cache. Returns false if
    /// `child` is not in `parent`.
    fn look_up_child(&self, parent: &InodeRef<'_>, child: &InodeRef<'_>) -> Result<bool, Errno> {
        let name = self.name_of_child(parent, child);
        let found = name.and_then(|name| self.lookup(&Cred::root(), parent, Name::new(&name)?));
        match found {
            Ok(found) => Ok(found.slot == child.slot),
            // The child was moved or removed meanwhile.
            Err(Errno::NOENT | Errno::STALE | Errno::NOTDIR) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn name_of_child(&self, parent: &InodeRef<'_>, child: &InodeRef<'_>) -> Result<Vec<u8>, Errno> {
        let (mut name, mut cookie, ino) = (Vec::new(), 0, child.ino());
        loop {
            let page = cookie;
            self.readdir(parent, page, &mut |entry| {
                cookie = entry.cookie;
                if entry.ino != ino || entry.kind != FileKind::Directory {
                    return ControlFlow::Continue(());
                }
                name.extend_from_slice(entry.name.as_bytes());
                ControlFlow::Break(())
            })?;
            if !name.is_empty() {
                return Ok(name);
            }
            if cookie == page {
                return Err(Errno::NOENT);
            }
        }
    }
}

/// Turns `ENOENT` into `ESTALE`, because a lookup by number has no name that could be missing.
fn stale(error: Errno) -> Errno {
    if error == Errno::NOENT { Errno::STALE } else { error }
}
