//! A place in the namespace: a mount and a dentry, held.

use std::fmt;

use crate::Errno;
use crate::dpath::{PathKind, Trail};
use crate::mount::MountRef;
use crate::vfs::{InodeRef, Vfs};

/// A counted place in a namespace, such as a root, a working directory or an open file.
///
/// Analogous to Linux's `struct path`.
#[doc(alias = "struct path")]
pub struct PathRef<'v> {
    pub(crate) vfs: &'v Vfs,
    pub(crate) mount: MountRef,
    pub(crate) dentry: u32,
    /// Held on its own: the dentry loses it when the name is removed.
    pub(crate) inode: InodeRef<'v>,
}

impl<'v> PathRef<'v> {
    /// Returns the inode.
    pub fn inode(&self) -> InodeRef<'v> {
        self.inode.clone()
    }

    /// Returns the path from `root`, as it was at one instant, and what kind of path it is: `/` and
    /// [`PathKind::Linked`] for `root` itself, `/a/b` below it.
    pub fn path_from(&self, root: &PathRef<'_>) -> (Vec<u8>, PathKind) {
        let dcache = &self.vfs.dcache;
        let mut trails = vec![];
        let (mut mount, mut dentry) = (&*self.mount, self.dentry);
        let is_outside = loop {
            let stop = if mount.id == root.mount.id { root.dentry } else { mount.root };
            let mut trail = Trail::new();
            trail.collect(dcache, dentry, stop);
            let top = trail.top;
            trails.push(trail);
            if mount.id == root.mount.id && top == root.dentry {
                break false;
            }
            match &mount.point {
                Some((parent, point)) if top == mount.root => (mount, dentry) = (parent, *point),
                _ => break true,
            }
        };
        // Mounts are joined trail by trail: one snapshot over all of them would need the same
        // check again; a rename in another mount in between moves that part only.
        let mut out = Vec::new();
        for trail in trails.iter().rev() {
            trail.append_to(&mut out);
        }
        if out.is_empty() {
            out.push(b'/');
        }
        let kind = match trails[0].kind {
            PathKind::Linked if is_outside => PathKind::Unreachable,
            kind => kind,
        };
        (out, kind)
    }

    /// Returns the text that d_path gives: the path from `root`, with ` (deleted)` behind it for an
    /// unlinked one.
    ///
    /// A path that is not below `root` is shown from the top of what it hangs on and looks like any
    /// other: Linux 6.18 reads `/tmp/out/a` behind `/proc/self/fd/3` in a process whose root is
    /// `/tmp/jail`, and `/a/b` for a working directory in a tmpfs that was unmounted lazily.
    /// (`prepend_path` tells the two apart by what it returns; only getcwd(2) shows it.) Use
    /// [`PathRef::path_from`] to know.
    pub fn d_path(&self, root: &PathRef<'_>) -> Vec<u8> {
        let (mut path, kind) = self.path_from(root);
        if kind == PathKind::Unlinked {
            path.extend_from_slice(b" (deleted)");
        }
        path
    }

    /// Returns the text that getcwd(2) gives for this working directory.
    ///
    /// # Errors
    /// `ENOENT` if it has been removed.
    pub fn getcwd(&self, root: &PathRef<'_>) -> Result<Vec<u8>, Errno> {
        let (path, kind) = self.path_from(root);
        match kind {
            PathKind::Linked => Ok(path),
            PathKind::Unlinked => Err(Errno::NOENT),
            PathKind::Unreachable => Ok([b"(unreachable)", &path[..]].concat()),
        }
    }

    /// Returns a weak name of the place: the slot of the dentry and its generation.
    pub fn id(&self) -> (u32, u32) {
        (self.dentry, self.vfs.dcache.dentries.cold(self.dentry).generation())
    }
}

impl Clone for PathRef<'_> {
    fn clone(&self) -> Self {
        self.vfs.dcache.dentries.lockref(self.dentry).get();
        PathRef {
            vfs: self.vfs,
            mount: self.mount.clone(),
            dentry: self.dentry,
            inode: self.inode.clone(),
        }
    }
}

impl Drop for PathRef<'_> {
    fn drop(&mut self) {
        self.vfs.dcache.put(self.dentry);
    }
}

impl fmt::Debug for PathRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let root = self.vfs.root_path();
        let path = self.d_path(&root);
        write!(f, "PathRef({})", path.escape_ascii())
    }
}

impl Vfs {
    /// Returns the root of the namespace.
    pub fn root_path(&self) -> PathRef<'_> {
        let mount = MountRef::get(self.mounts.root_mount()).expect("the root stays mounted");
        self.dcache.dentries.lockref(mount.root).get();
        PathRef { vfs: self, dentry: mount.root, mount, inode: self.root() }
    }
}
