//! corewalk as a library: a namespace over its own tmpfs, in this process.
//!
//! A user keeps references to the inodes of its open directories, as a process keeps descriptors.
//! So an operation in a directory need not change the directory's reference count. No entry is
//! evicted while a table runs, because the budget is larger than any tree.
//!
//! Source: `corewalk::vfs`, `corewalk::tmpfs`.

use std::ops::ControlFlow;
use std::sync::Arc;

use corewalk::attr::mode;
use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
use corewalk::{
    Attr, Cred, FileKind, FsStruct, InodeRef, Make, May, Name, Removal, RenameMode, SetAttr, Vfs,
    VfsOptions, WalkFlags,
};

use super::{Files, List, Status, User};

/// Bytes of cache: more than the largest tree takes.
const CACHE_BYTES: u64 = 4 << 30;
/// Entries there is room for.
const ENTRIES_MAX: u32 = 1 << 22;

/// A namespace with a tmpfs.
pub(crate) struct Ours {
    vfs: Arc<Vfs>,
}

/// A thread's credentials, root and working directory.
pub(crate) struct OurUser<'v> {
    vfs: &'v Vfs,
    cred: Cred,
    at: FsStruct<'v>,
}

impl Ours {
    /// Returns an empty file system.
    ///
    /// # Errors
    /// An error if the process cannot get the address space for it.
    pub(crate) fn new() -> anyhow::Result<Ours> {
        let tmpfs = Arc::new(Tmpfs::new(TmpfsOptions::default()));
        let options =
            VfsOptions::default().with_cache_bytes(CACHE_BYTES).with_entries_max(ENTRIES_MAX);
        Ok(Ours { vfs: Vfs::new(tmpfs, options)? })
    }
}

impl Files for Ours {
    type User<'a> = OurUser<'a>;

    fn variant(&self) -> &'static str {
        "corewalk"
    }

    fn user(&self) -> OurUser<'_> {
        let root = self.vfs.root_path();
        let at = FsStruct { cwd: root.clone(), root };
        OurUser { vfs: &self.vfs, cred: Cred::prechecked(0, 0), at }
    }
}

impl<'v> OurUser<'v> {
    fn find(&self, path: &[u8]) -> Option<InodeRef<'v>> {
        let found = self.vfs.walk(&self.cred, &self.at, path, WalkFlags::empty()).ok()?;
        Some(found.inode())
    }

    fn make(&self, dir: &InodeRef<'_>, name: &[u8], mode: u32) -> bool {
        let Ok(name) = Name::new(name) else { return false };
        self.vfs.make(&self.cred, dir, name, Make::new(mode, 0, 0)).is_ok()
    }
}

impl<'v> User for OurUser<'v> {
    type Dir = InodeRef<'v>;
    type File = InodeRef<'v>;

    fn open_dir(&self, path: &[u8]) -> Option<InodeRef<'v>> {
        self.find(path).filter(|inode| inode.kind() == FileKind::Directory)
    }

    fn make_dir(&self, dir: &InodeRef<'v>, name: &[u8]) -> bool {
        self.make(dir, name, mode::S_IFDIR | 0o755)
    }

    fn create(&self, dir: &InodeRef<'v>, name: &[u8]) -> bool {
        self.make(dir, name, mode::S_IFREG | 0o644)
    }

    fn unlink(&self, dir: &InodeRef<'v>, name: &[u8]) -> bool {
        let Ok(name) = Name::new(name) else { return false };
        self.vfs.remove(&self.cred, dir, name, Removal::Unlink).is_ok()
    }

    fn link(&self, dir: &InodeRef<'v>, name: &[u8], other: &[u8]) -> bool {
        let (Ok(name), Ok(other)) = (Name::new(name), Name::new(other)) else { return false };
        let Ok(inode) = self.vfs.lookup(&self.cred, dir, name) else { return false };
        self.vfs.link(&self.cred, &inode, dir, other).is_ok()
    }

    fn chmod(&self, dir: &InodeRef<'v>, name: &[u8], mode: u32) -> bool {
        let Ok(name) = Name::new(name) else { return false };
        let Ok(inode) = self.vfs.lookup(&self.cred, dir, name) else { return false };
        let set = SetAttr::default().with_mode(mode);
        self.vfs.setattr(&self.cred, &inode, &set).is_ok()
    }

    fn rename(&self, from: (&InodeRef<'v>, &[u8]), to: (&InodeRef<'v>, &[u8])) -> bool {
        let (Ok(old), Ok(new)) = (Name::new(from.1), Name::new(to.1)) else { return false };
        self.vfs.rename(&self.cred, (from.0, old), (to.0, new), RenameMode::Replace).is_ok()
    }

    fn resolve(&self, path: &[u8]) -> Option<u64> {
        let found = self.vfs.resolve_path(&self.cred, &self.at, path, WalkFlags::empty());
        found.ok().map(|found| found.ino)
    }

    fn stat(&self, path: &[u8]) -> Option<Status> {
        let inode = self.find(path)?;
        self.vfs.getattr(&inode).ok().map(|attr| status(&attr))
    }

    fn stat_at(&self, dir: &InodeRef<'v>, name: &[u8]) -> Option<Status> {
        let inode = self.vfs.lookup(&self.cred, dir, Name::new(name).ok()?).ok()?;
        self.vfs.getattr(&inode).ok().map(|attr| status(&attr))
    }

    fn open_close(&self, path: &[u8]) -> bool {
        let Some(inode) = self.find(path) else { return false };
        let Ok(handle) = self.vfs.open(&self.cred, &inode, 0, May::READ) else { return false };
        self.vfs.release(&inode, handle);
        true
    }

    fn list(&self, dir: &InodeRef<'v>, list: &mut List) -> bool {
        list.clear();
        let listed = self.vfs.readdir(dir, 0, &mut |entry| {
            list.push(entry.name.as_bytes(), entry.kind);
            ControlFlow::Continue(())
        });
        listed.is_ok()
    }

    fn hold(&self, path: &[u8]) -> Option<InodeRef<'v>> {
        self.find(path)
    }

    fn path_of(&self, file: &InodeRef<'v>) -> Option<Vec<u8>> {
        self.vfs.path_of_ino(file.ino()).ok()
    }
}

fn status(attr: &Attr) -> Status {
    Status { ino: attr.ino, mode: attr.mode, size: attr.size }
}
