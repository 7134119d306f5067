//! Temporary directories, and functions that make calls through a `Vfs` by path.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use corewalk::attr::mode::{S_IFDIR, S_IFLNK, S_IFREG};
use corewalk::{
    Cred, Errno, FileKind, FsStruct, InodeRef, Make, Name, Removal, RenameMode, Vfs, VfsOptions,
    WalkFlags,
};
use corewalk_base::primitives::atomic::{AtomicU64, Ordering};
use corewalk_hostfs::{HostFs, HostFsOptions};

pub(crate) struct TempDir(PathBuf);

impl TempDir {
    pub(crate) fn new() -> TempDir {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        // ORDERING: Relaxed. The numbers only have to differ, which the atomic addition ensures.
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("corewalk-hostfs-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        TempDir(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

pub(crate) fn over(root: &Path) -> Arc<Vfs> {
    with_options(root, HostFsOptions::default())
}

pub(crate) fn with_options(root: &Path, options: HostFsOptions) -> Arc<Vfs> {
    let fs = HostFs::new(root, options).unwrap();
    let cache = VfsOptions::default().with_hash_seed(1).with_entries_max(1 << 20);
    Vfs::new(Arc::new(fs), cache).unwrap()
}

pub(crate) fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

pub(crate) fn at(vfs: &Vfs) -> FsStruct<'_> {
    FsStruct { root: vfs.root_path(), cwd: vfs.root_path() }
}

pub(crate) fn walk<'v>(vfs: &'v Vfs, path: &str) -> Result<InodeRef<'v>, Errno> {
    Ok(vfs.walk(&Cred::root(), &at(vfs), path.as_bytes(), WalkFlags::empty())?.inode())
}

fn parent<'v, 'p>(vfs: &'v Vfs, path: &'p str) -> Result<(InodeRef<'v>, Name<'p>), Errno> {
    let path = path.trim_end_matches('/');
    let (dir, last) = path.rsplit_once('/').unwrap_or((".", path));
    let dir = vfs.walk(&Cred::root(), &at(vfs), dir.as_bytes(), WalkFlags::FOLLOW)?.inode();
    match dir.kind() {
        FileKind::Directory => Ok((dir, name(last))),
        _ => Err(Errno::NOTDIR),
    }
}

pub(crate) fn make<'v>(vfs: &'v Vfs, path: &str) -> Result<InodeRef<'v>, Errno> {
    let mode = if path.ends_with('/') { S_IFDIR | 0o755 } else { S_IFREG | 0o644 };
    let (dir, last) = parent(vfs, path)?;
    vfs.make(&Cred::root(), &dir, last, Make::new(mode, 0, 0)).map(|(made, _)| made)
}

pub(crate) fn symlink(vfs: &Vfs, path: &str, target: &str) -> Result<(), Errno> {
    let (dir, last) = parent(vfs, path)?;
    let what = Make::new(S_IFLNK | 0o777, 0, 0).with_target(target.as_bytes());
    vfs.make(&Cred::root(), &dir, last, what).map(drop)
}

pub(crate) fn remove(vfs: &Vfs, path: &str, removal: Removal) -> Result<(), Errno> {
    let (dir, last) = parent(vfs, path)?;
    vfs.remove(&Cred::root(), &dir, last, removal)
}

pub(crate) fn rename(vfs: &Vfs, from: &str, to: &str, mode: RenameMode) -> Result<(), Errno> {
    let ((a, from), (b, to)) = (parent(vfs, from)?, parent(vfs, to)?);
    vfs.rename(&Cred::root(), (&a, from), (&b, to), mode)
}

pub(crate) fn link(vfs: &Vfs, from: &str, to: &str) -> Result<(), Errno> {
    let file = walk(vfs, from)?;
    let (dir, last) = parent(vfs, to)?;
    vfs.link(&Cred::root(), &file, &dir, last).map(drop)
}

pub(crate) fn list(vfs: &Vfs, path: &str, reply: usize) -> Result<Vec<String>, Errno> {
    let dir = walk(vfs, path)?;
    let (mut names, mut at) = (Vec::new(), Some(0));
    while let Some(cookie) = at.take() {
        let mut taken = 0;
        let mut last = cookie;
        vfs.readdir(&dir, cookie, &mut |entry| {
            if taken == reply {
                at = Some(last);
                return std::ops::ControlFlow::Break(());
            }
            (taken, last) = (taken + 1, entry.cookie);
            names.push(String::from_utf8_lossy(entry.name.as_bytes()).into_owned());
            std::ops::ControlFlow::Continue(())
        })?;
    }
    names.sort_unstable();
    Ok(names)
}
