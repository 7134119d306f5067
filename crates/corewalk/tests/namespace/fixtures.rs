//! Namespaces for the tests, and short helper functions.

use std::sync::Arc;

use corewalk::attr::mode::{S_IFDIR, S_IFLNK, S_IFREG};
use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
use corewalk::{
    Cred, Errno, FileSystem, FsStruct, InodeRef, Make, Name, Removal, RenameMode, Vfs, VfsOptions,
    WalkFlags,
};

pub(crate) fn new() -> Arc<Vfs> {
    over(Tmpfs::new(TmpfsOptions::default()))
}

pub(crate) fn over(fs: impl FileSystem) -> Arc<Vfs> {
    let options = VfsOptions::default().with_hash_seed(1).with_entries_max(1 << 22);
    Vfs::new(Arc::new(fs), options).unwrap()
}

pub(crate) fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

pub(crate) fn at(vfs: &Vfs) -> FsStruct<'_> {
    FsStruct { root: vfs.root_path(), cwd: vfs.root_path() }
}

/// Makes each entry of `paths`. An entry that ends in `/` is a directory. An entry `a -> b` is a
/// symbolic link `a` to `b`. Any other entry is a file.
pub(crate) fn tree(vfs: &Vfs, paths: &[&str]) {
    let at = at(vfs);
    for path in paths {
        let (path, mut what) = match path.split_once(" -> ") {
            Some((path, target)) => {
                let target = target.as_bytes();
                (path, Make::new(S_IFLNK | 0o777, 0, 0).with_target(target))
            }
            None if path.ends_with('/') => (*path, Make::new(S_IFDIR | 0o755, 0, 0)),
            None => (*path, Make::new(S_IFREG | 0o644, 0, 0)),
        };
        what.uid = 0;
        let (dir, last) =
            vfs.walk_parent(&Cred::root(), &at, path.as_bytes(), WalkFlags::empty()).unwrap();
        vfs.make(&Cred::root(), &dir.inode(), last, what).unwrap();
    }
}

pub(crate) fn walk<'v>(vfs: &'v Vfs, path: &str) -> Result<InodeRef<'v>, Errno> {
    Ok(vfs.walk(&Cred::root(), &at(vfs), path.as_bytes(), WalkFlags::FOLLOW)?.inode())
}

pub(crate) fn rename(vfs: &Vfs, from: &str, to: &str, mode: RenameMode) -> Result<(), Errno> {
    let at = at(vfs);
    let root = Cred::root();
    let (a, from) = vfs.walk_parent(&root, &at, from.as_bytes(), WalkFlags::empty())?;
    let (b, to) = vfs.walk_parent(&root, &at, to.as_bytes(), WalkFlags::empty())?;
    vfs.rename(&root, (&a.inode(), from), (&b.inode(), to), mode)
}

pub(crate) fn remove(vfs: &Vfs, path: &str, removal: Removal) -> Result<(), Errno> {
    let at = at(vfs);
    let root = Cred::root();
    let (dir, last) = vfs.walk_parent(&root, &at, path.as_bytes(), WalkFlags::empty())?;
    vfs.remove(&root, &dir.inode(), last, removal)
}
