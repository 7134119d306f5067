//! The variant `corewalk`: the library with its own tmpfs, in this process.
//!
//! A user keeps references to the inodes of its open directories, as a process keeps descriptors.
//! So an operation need not change their reference counts. The cache's budget is larger than any
//! tree, so no entry is evicted.
//!
//! Source: `corewalk::vfs`, `corewalk::tmpfs`.

use std::ops::ControlFlow;

use corewalk::{Attr, FileKind, FsStruct, InodeRef, May, Name, RenameMode, SetAttr};

use super::{Files, List, User};
use crate::ours::Ours;

/// A thread's root and working directory.
pub(crate) struct OurUser<'v> {
    ours: &'v Ours,
    at: FsStruct<'v>,
}

impl Files for Ours {
    type User<'a> = OurUser<'a>;

    fn variant(&self) -> &'static str {
        "corewalk"
    }

    fn user(&self) -> OurUser<'_> {
        OurUser { ours: self, at: self.fs_struct() }
    }
}

impl<'v> OurUser<'v> {
    fn lookup(&self, dir: &InodeRef<'_>, name: &[u8]) -> Option<InodeRef<'v>> {
        self.ours.vfs.lookup(&self.ours.cred, dir, Name::new(name).ok()?).ok()
    }
}

impl<'v> User for OurUser<'v> {
    type Node = InodeRef<'v>;

    fn open_dir(&self, path: &[u8]) -> Option<InodeRef<'v>> {
        self.hold(path).filter(|inode| inode.kind() == FileKind::Directory)
    }

    fn make(&self, dir: &InodeRef<'v>, name: &[u8], kind: FileKind) -> Option<()> {
        self.ours.make(dir, name, kind).map(drop)
    }

    fn unlink(&self, dir: &InodeRef<'v>, name: &[u8]) -> bool {
        self.ours.remove(dir, name)
    }

    fn link(&self, dir: &InodeRef<'v>, name: &[u8], other: &[u8]) -> bool {
        let (Some(inode), Ok(other)) = (self.lookup(dir, name), Name::new(other)) else {
            return false;
        };
        self.ours.vfs.link(&self.ours.cred, &inode, dir, other).is_ok()
    }

    fn chmod(&self, dir: &InodeRef<'v>, name: &[u8], mode: u32) -> bool {
        let Some(inode) = self.lookup(dir, name) else { return false };
        let set = SetAttr::default().with_mode(mode);
        self.ours.vfs.setattr(&self.ours.cred, &inode, &set).is_ok()
    }

    fn rename(&self, from: (&InodeRef<'v>, &[u8]), to: (&InodeRef<'v>, &[u8])) -> bool {
        self.ours.move_name(from, to, RenameMode::Replace)
    }

    fn resolve(&self, path: &[u8]) -> Option<u64> {
        self.ours.resolve(&self.at, path)
    }

    fn stat(&self, path: &[u8]) -> Option<Attr> {
        self.ours.vfs.getattr(&self.hold(path)?).ok()
    }

    fn stat_at(&self, dir: &InodeRef<'v>, name: &[u8]) -> Option<Attr> {
        self.ours.vfs.getattr(&self.lookup(dir, name)?).ok()
    }

    fn open_close(&self, path: &[u8]) -> bool {
        let (Some(inode), Ours { vfs, cred }) = (self.hold(path), self.ours) else { return false };
        let Ok(opened) = vfs.open(cred, &inode, 0, May::READ) else { return false };
        vfs.release(&inode, opened.handle);
        true
    }

    fn list(&self, dir: &InodeRef<'v>, list: &mut List) -> bool {
        list.clear();
        let listed = self.ours.vfs.readdir(dir, 0, &mut |entry| {
            list.push(entry.name.as_bytes(), entry.kind);
            ControlFlow::Continue(())
        });
        listed.is_ok()
    }

    fn hold(&self, path: &[u8]) -> Option<InodeRef<'v>> {
        self.ours.find(&self.at, path)
    }

    fn path_of(&self, file: &InodeRef<'v>) -> Option<Vec<u8>> {
        self.ours.vfs.path_of_ino(file.ino()).ok()
    }
}
