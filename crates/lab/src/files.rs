//! The file systems of the benchmarks: corewalk's tmpfs in this process, the dentry caches of older
//! kernels over that tmpfs, and the host kernel's tmpfs.
//!
//! The module `baseline` measures only lookups in maps of names. This module has all operations on
//! names: open a directory, walk, stat, list, make, link, rename and remove. Each thread is a user
//! ([`Files::user`]) with its own open files and directories.
//!
//! The benchmarks compare these variants:
//! - `corewalk`: `corewalk::Vfs` over `corewalk::tmpfs`, called as a library. Paths start at its
//!   root.
//! - `linux`: system calls on the host's tmpfs. Paths start at a descriptor, as for `openat`.
//! - `before-dcache-lock`, `before-global-lock`: the dentry caches of Linux 2.4 and 3.8 over
//!   corewalk's tmpfs. Paths start at its root.
//!
//! # The same for all variants
//! - All variants do the same operations on the same names, with paths of equal lengths.
//! - `stat` returns a copy of all attributes that the file system knows.
//! - A listing first copies the names into the caller's buffer, as a server does.
//!
//! # Differences between the variants
//! - The `before` variants check no permission.
//! - `linux` makes at least one system call per operation, and several per listing. Their cost is
//!   part of its results.
//!
//! # Limits
//! There are no operations on file content, since the benchmarks compare only names.
//!
//! Source: path_resolution(7) and the man pages of the calls.

mod before;
mod host;
mod ours;

pub(crate) use before::BeforeFiles;
pub(crate) use host::Host;

use anyhow::{Context as _, ensure};
use corewalk::{Attr, FileKind};

use crate::corpus::{Corpus, ROOT};

/// A file system, empty at first.
pub(crate) trait Files: Send + Sync {
    /// One thread's way to it.
    type User<'a>: User
    where
        Self: 'a;

    /// Returns the name of this variant in the result rows.
    fn variant(&self) -> &'static str;

    /// Returns the file operations of the calling thread.
    fn user(&self) -> Self::User<'_>;
}

/// The file operations of one thread, with absolute paths. A failed operation returns None or
/// false.
pub(crate) trait User {
    /// A directory or a file that is held open.
    type Node;

    /// Opens the directory that `path` leads to.
    fn open_dir(&self, path: &[u8]) -> Option<Self::Node>;

    /// Makes a directory or an empty regular file. Fails if the name exists.
    fn make(&self, dir: &Self::Node, name: &[u8], kind: FileKind) -> Option<()>;

    /// Makes an empty regular file.
    fn create(&self, dir: &Self::Node, name: &[u8]) -> bool {
        self.make(dir, name, FileKind::Regular).is_some()
    }

    /// Removes the name of a file.
    fn unlink(&self, dir: &Self::Node, name: &[u8]) -> bool;

    /// Makes a hard link `other` to the file `name` in the same directory.
    fn link(&self, _dir: &Self::Node, _name: &[u8], _other: &[u8]) -> bool {
        false
    }

    /// Sets the permission bits of a file.
    fn chmod(&self, _dir: &Self::Node, _name: &[u8], _mode: u32) -> bool {
        false
    }

    /// Renames a file. There must be no file with the name `to`.
    fn rename(&self, from: (&Self::Node, &[u8]), to: (&Self::Node, &[u8])) -> bool;

    /// Returns the inode number of the file at `path`.
    fn resolve(&self, path: &[u8]) -> Option<u64> {
        self.stat(path).map(|attr| attr.ino)
    }

    /// Returns the attributes of the file at `path`.
    fn stat(&self, path: &[u8]) -> Option<Attr>;

    /// Returns the attributes of `name` in `dir`.
    fn stat_at(&self, dir: &Self::Node, name: &[u8]) -> Option<Attr>;

    /// Opens the file at `path` for reading, and closes it.
    fn open_close(&self, path: &[u8]) -> bool;

    /// Puts the names in `dir` into `list`, in any order, without `.` and `..`.
    fn list(&self, dir: &Self::Node, list: &mut List) -> bool;

    /// Opens the file that `path` leads to.
    fn hold(&self, path: &[u8]) -> Option<Self::Node>;

    /// Returns the path of a file that is held open.
    fn path_of(&self, file: &Self::Node) -> Option<Vec<u8>>;
}

/// A list of names with their types. All names are in one buffer.
#[derive(Default)]
pub(crate) struct List {
    bytes: Vec<u8>,
    ends: Vec<(usize, bool)>,
}

impl List {
    /// Removes all names, and keeps the buffer.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    /// Appends a name.
    #[inline]
    pub(crate) fn push(&mut self, name: &[u8], kind: FileKind) {
        self.bytes.extend_from_slice(name);
        self.ends.push((self.bytes.len(), kind == FileKind::Directory));
    }

    /// Returns the names, each with a flag that is true for a directory.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&[u8], bool)> {
        let mut start = 0;
        self.ends.iter().map(move |&(end, is_directory)| {
            let name = &self.bytes[start..end];
            start = end;
            (name, is_directory)
        })
    }
}

/// Makes all directories and files of `corpus` in `files`.
///
/// # Errors
/// An error if a directory or file cannot be made.
pub(crate) fn fill<F: Files>(files: &F, corpus: &Corpus) -> anyhow::Result<()> {
    let (variant, user) = (files.variant(), files.user());
    for parent in corpus.inodes().filter(|&ino| corpus.is_directory(ino)) {
        let path = corpus.path(parent);
        let dir = user.open_dir(&path);
        let dir = dir.with_context(|| format!("{variant}: no {}", path.escape_ascii()))?;
        for child in corpus.children(parent) {
            let name = corpus.name(child);
            let made = user.make(&dir, name, corpus.kind(child));
            made.with_context(|| format!("{variant}: {} was not made", name.escape_ascii()))?;
        }
    }
    ensure!(user.resolve(&corpus.path(ROOT)).is_some(), "{variant} has no root");
    Ok(())
}

/// Makes the missing directories of a path, and opens the last one.
///
/// # Errors
/// An error if a directory cannot be made.
pub(crate) fn make_path<U: User>(user: &U, path: &str) -> anyhow::Result<U::Node> {
    let mut dir = user.open_dir(b"/").context("there is no root")?;
    let mut below = String::new();
    for name in path.split('/').filter(|name| !name.is_empty()) {
        below = format!("{below}/{name}");
        // If the directory exists, this call fails, which does no harm.
        let _ = user.make(&dir, name.as_bytes(), FileKind::Directory);
        dir = user.open_dir(below.as_bytes()).with_context(|| format!("{below} was not made"))?;
    }
    Ok(dir)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::before::Design;
    use crate::ours::Ours;

    /// Makes the same calls in every file system, and checks that the answers are the same.
    fn check<F: Files>(files: &F) {
        let (variant, user) = (files.variant(), files.user());
        let root = user.open_dir(b"/").expect("there is a root");
        let make_dir = |name| user.make(&root, name, FileKind::Directory).is_some();
        assert!(make_dir(b"a") && make_dir(b"b"), "{variant}");
        let (a, b) = (user.open_dir(b"/a").unwrap(), user.open_dir(b"/b").unwrap());
        assert!(user.create(&a, b"one") && !user.create(&a, b"one"), "{variant}");
        let one = user.stat(b"/a/one").expect(variant);
        assert!(!one.is_dir() && one.size == 0, "{variant}: {one:?}");
        assert_eq!(user.stat_at(&a, b"one"), Some(one), "{variant}");
        assert_eq!(user.resolve(b"/a/one"), Some(one.ino), "{variant}");
        assert!(user.stat(b"/a").is_some_and(|a| a.is_dir()), "{variant}");
        assert!(user.open_close(b"/a/one") && !user.open_close(b"/a/two"), "{variant}");
        let held = user.hold(b"/a/one").expect(variant);
        assert_eq!(user.path_of(&held).as_deref(), Some(&b"/a/one"[..]), "{variant}");
        assert!(user.rename((&a, b"one"), (&b, b"two")), "{variant}");
        assert!(!user.rename((&a, b"one"), (&b, b"three")), "{variant}");
        assert_eq!(user.path_of(&held).as_deref(), Some(&b"/b/two"[..]), "{variant}");
        assert_eq!(user.resolve(b"/a/one"), None, "{variant}");
        assert_eq!(user.resolve(b"/b/two"), Some(one.ino), "{variant}");
        assert_eq!(user.stat_at(&b, b"one"), None, "{variant}");
        let mut list = List::default();
        for (path, expected) in [
            (&b"/"[..], vec![(&b"a"[..], true), (b"b", true)]),
            (b"/a", vec![]),
            (b"/b", vec![(b"two", false)]),
        ] {
            assert!(user.list(&user.open_dir(path).unwrap(), &mut list), "{variant}");
            let mut names: Vec<_> = list.iter().collect();
            names.sort_unstable();
            assert_eq!(names, expected, "{variant}");
        }
        assert!(user.unlink(&b, b"two"), "{variant}");
        assert_eq!(user.stat(b"/b/two"), None, "{variant}");
    }

    /// Checks the operations, such as hard links, that the designs in the module `before` lack.
    fn check_links<F: Files>(files: &F) {
        let (variant, user) = (files.variant(), files.user());
        let root = user.open_dir(b"/").expect("there is a root");
        assert!(user.create(&root, b"one") && user.chmod(&root, b"one", 0o600), "{variant}");
        let one = user.stat(b"/one").expect(variant);
        assert_eq!(one.mode & 0o777, 0o600, "{variant}");
        assert!(user.link(&root, b"one", b"again"), "{variant}");
        assert_eq!(user.resolve(b"/again"), Some(one.ino), "{variant}");
        assert!(user.unlink(&root, b"again") && !user.unlink(&root, b"again"), "{variant}");
    }

    #[test]
    fn every_file_system_answers_alike() {
        check(&Ours::on_tmpfs().unwrap());
        check(&Host::new("alike").unwrap());
        check(&BeforeFiles::new(Design::DcacheLock, 100).unwrap());
        check(&BeforeFiles::new(Design::GlobalLock, 100).unwrap());
        check_links(&Ours::on_tmpfs().unwrap());
        check_links(&Host::new("links").unwrap());
    }

    /// Fills a file system with the tree of names `corpus`, and compares every entry and every
    /// listing with it.
    fn check_tree<F: Files>(files: &F, corpus: &Corpus) {
        fill(files, corpus).unwrap();
        let (variant, user) = (files.variant(), files.user());
        let mut list = List::default();
        for ino in corpus.inodes() {
            let path = corpus.path(ino);
            let status = user.stat(&path).expect(variant);
            assert_eq!(status.is_dir(), corpus.is_directory(ino), "{variant}");
            if status.is_dir() {
                assert!(user.list(&user.open_dir(&path).unwrap(), &mut list), "{variant}");
                let mut names: Vec<_> = list.iter().collect();
                names.sort_unstable();
                let expected: Vec<_> = corpus
                    .children(ino)
                    .map(|child| (corpus.name(child), corpus.is_directory(child)))
                    .collect();
                assert_eq!(names, expected, "{variant}");
            }
        }
    }

    #[test]
    fn every_file_system_holds_the_whole_tree() {
        let corpus = Corpus::collect(1500);
        check_tree(&Ours::on_tmpfs().unwrap(), &corpus);
        check_tree(&Host::new("tree").unwrap(), &corpus);
        check_tree(&BeforeFiles::new(Design::DcacheLock, 1500).unwrap(), &corpus);
        check_tree(&BeforeFiles::new(Design::GlobalLock, 1500).unwrap(), &corpus);
    }
}
