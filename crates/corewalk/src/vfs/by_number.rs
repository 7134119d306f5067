//! Inodes by number that the cache does not know: for clients that come back with a file handle.
//!
//! A client holds a file handle for as long as it likes, and the cache forgets the inode meanwhile. The back end
//! is then asked by number. A file that it returns has no name in the cache; a later lookup gives it one, as for
//! a file made without a name. A directory needs its place in the tree: for `..`, for renames, for paths. So the
//! back end is asked for the parent, and the parent of that, up to a directory that has a place. From there down
//! each directory is read for the name of the next one, and the name is looked up.
//!
//! # What it refuses
//! A directory that others move all the while it is looked for is `ESTALE` after [`TRIES_MAX`] looks.
//!
//! # Locks
//! None of its own. The lookups take the in-lookup locks of the names, one at a time.
//!
//! Source: open_by_handle_at(2); Linux `fs/exportfs/expfs.c` (`reconnect_path`, `get_name`).

use std::ops::ControlFlow;

use super::{InodeRef, Vfs};
use crate::Errno;
use crate::attr::FileKind;
use crate::cred::Cred;
use crate::name::Name;

/// How often a directory is looked for that others move meanwhile.
const TRIES_MAX: u32 = 16;

impl Vfs {
    /// Returns the inode of the root's file system with this number, from the cache or the back end; with a
    /// generation, that inode and no other one (trap P11). A directory has its place in the tree then.
    ///
    /// # Errors
    /// `ESTALE` if there is none any more, or the back end finds no inode by its number; `ENFILE`, `ENOMEM`;
    /// what else the back end says.
    ///
    /// # Examples
    /// ```
    /// use std::sync::Arc;
    /// use corewalk::{Cred, Errno, Make, Name, Vfs, VfsOptions, attr::mode, tmpfs::{Tmpfs, TmpfsOptions}};
    ///
    /// let vfs = Vfs::new(Arc::new(Tmpfs::new(TmpfsOptions::default())), VfsOptions::default())?;
    /// let (cred, root) = (Cred::root(), vfs.root());
    /// let (dir, _) = vfs.make(&cred, &root, Name::new(b"d")?, Make::new(mode::S_IFDIR | 0o755, 0, 0))?;
    /// let handle = (dir.ino(), dir.generation());
    /// drop(dir);
    /// vfs.prune();
    /// assert_eq!(vfs.inode(handle.0).err(), Some(Errno::STALE));
    /// assert_eq!(vfs.by_number(handle.0, Some(handle.1))?.path()?, b"/d");
    /// # Ok::<(), Errno>(())
    /// ```
    pub fn by_number(&self, ino: u64, generation: Option<u64>) -> Result<InodeRef<'_>, Errno> {
        let inode = self.loaded(ino, generation)?;
        if inode.kind() == FileKind::Directory {
            self.connect(&inode)?;
        }
        Ok(inode)
    }

    /// As [`Vfs::by_number`]; a directory may have no place.
    fn loaded(&self, ino: u64, generation: Option<u64>) -> Result<InodeRef<'_>, Errno> {
        let is_wanted = |inode: &InodeRef<'_>| generation.is_none_or(|it| it == inode.generation());
        match self.inode(ino) {
            Err(Errno::STALE) => {}
            found => {
                let found = found?;
                // The back end may have given the number to another inode since.
                if is_wanted(&found) {
                    return Ok(found);
                }
            }
        }
        let near = self.root().slot;
        let changes = self.dcache.inodes.changes();
        let attr = self.fs(near).by_number(ino, generation).map_err(stale)?;
        // An answer that is of no use is forgotten, as every inode that has entered the cache.
        let inode = self.enter(near, &attr, changes, None)?;
        match inode.ino() == ino && is_wanted(&inode) && attr.nlink > 0 {
            true => inode.unless_saturated(),
            false => Err(Errno::STALE),
        }
    }

    /// Gives a directory its place in the tree, if it has none.
    fn connect(&self, dir: &InodeRef<'_>) -> Result<(), Errno> {
        for _ in 0..TRIES_MAX {
            let mut above = vec![dir.clone()];
            while let Some(last) = above.last()
                && !self.has_place(last)
            {
                let parent = self.with_node(last.slot, |fs, dir| fs.parent(dir)).map_err(stale)?;
                // Moves in between may lead round in a circle.
                if above.iter().any(|seen| seen.ino() == parent) {
                    break;
                }
                above.push(self.loaded(parent, None)?);
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

    /// Returns true if a directory has a dentry.
    fn has_place(&self, dir: &InodeRef<'_>) -> bool {
        self.dir(dir.slot).is_ok()
    }

    /// Looks up the name that `child` has in the directory `parent`; false if it has none there.
    fn look_up_child(&self, parent: &InodeRef<'_>, child: &InodeRef<'_>) -> Result<bool, Errno> {
        let (mut name, ino) = (Vec::new(), child.ino());
        let read = self.readdir(parent, 0, &mut |entry| {
            if entry.ino != ino || entry.kind != FileKind::Directory {
                return ControlFlow::Continue(());
            }
            name.extend_from_slice(entry.name.as_bytes());
            ControlFlow::Break(())
        });
        let found = read.and_then(|()| self.lookup(&Cred::root(), parent, Name::new(&name)?));
        match found {
            Ok(found) => Ok(found.slot == child.slot),
            // It is elsewhere by now.
            Err(Errno::NOENT | Errno::STALE | Errno::NOTDIR) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// What is gone has no name to be missed.
fn stale(error: Errno) -> Errno {
    if error == Errno::NOENT { Errno::STALE } else { error }
}
