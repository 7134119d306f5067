//! Resolves a path beneath the root directory, even while other programs change the tree.
//!
//! A path from the dentry cache contains no `.`, no `..` and no symbolic link. The open is refused
//! if a component on the host is a symbolic link, leads up, or leads to another file system. The
//! last component is opened: a directory for reading, or any file with `O_PATH`.
//!
//! openat2(2) makes these checks in the kernel. Without openat2(2) (before Linux 5.6, or behind a
//! filter of system calls), each component is opened with `O_NOFOLLOW` from the directory before
//! it. These opens do not notice the root of another mount.
//!
//! A path longer than `PIECE_MAX` is resolved in pieces. Between two pieces, another program may
//! move the directory that was reached, even out of the root. So the caller checks the inode number
//! of the file.
//!
//! Source: openat2(2). CVE-2015-2925 shows the effect of a rename on `..`.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use corewalk::Errno;
use rustix::fs::{Mode, OFlags, ResolveFlags, openat, openat2};

/// Maximum length in bytes of a path for one openat2(2) call; a longer path is resolved in pieces.
const PIECE_MAX: usize = 4000;
/// Maximum number of retries of openat2(2), which fails with `EAGAIN` if a concurrent rename
/// disturbs it.
const AGAIN_MAX: u32 = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resolver {
    Openat2,
    Components,
}

impl Resolver {
    pub(crate) fn detect(root: BorrowedFd<'_>) -> Resolver {
        match beneath(root, b".", OFlags::PATH | OFlags::DIRECTORY) {
            Ok(_) => Resolver::Openat2,
            Err(_) => Resolver::Components,
        }
    }

    /// Opens `path` (`/` or `/a/b`) from `root`. `how` is `O_PATH`, or `O_DIRECTORY` to read a
    /// directory.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR` and `EACCES` as in open(2); `ELOOP` for a symbolic link before the last
    /// component; `EXDEV` if the path leads to another file system.
    pub(crate) fn open(
        self,
        root: BorrowedFd<'_>,
        path: &[u8],
        how: OFlags,
    ) -> Result<OwnedFd, Errno> {
        let piece_max = if self == Resolver::Openat2 { PIECE_MAX } else { 0 };
        let mut at: Option<OwnedFd> = None;
        let mut rest = path.strip_prefix(b"/").unwrap_or(path);
        loop {
            let dir = at.as_ref().map_or(root, |fd| fd.as_fd());
            let (piece, tail) = split_piece(rest, piece_max);
            let piece = if piece.is_empty() { b"." } else { piece };
            let is_last = tail.is_empty();
            let flags = if is_last { how } else { OFlags::PATH | OFlags::DIRECTORY };
            let next = match self {
                Resolver::Openat2 => beneath(dir, piece, flags)?,
                Resolver::Components => openat(dir, piece, flags | no_follow(), Mode::empty())?,
            };
            if is_last {
                return Ok(next);
            }
            (at, rest) = (Some(next), tail);
        }
    }
}

pub(crate) fn no_follow() -> OFlags {
    OFlags::NOFOLLOW | OFlags::CLOEXEC
}

fn beneath(dir: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    let how = ResolveFlags::BENEATH
        | ResolveFlags::NO_MAGICLINKS
        | ResolveFlags::NO_SYMLINKS
        | ResolveFlags::NO_XDEV;
    let flags = flags | no_follow();
    let mut result = openat2(dir, path, flags, Mode::empty(), how);
    for _ in 0..AGAIN_MAX {
        if result.as_ref().err() != Some(&Errno::AGAIN) {
            break;
        }
        result = openat2(dir, path, flags, Mode::empty(), how);
    }
    result
}

fn split_piece(path: &[u8], max: usize) -> (&[u8], &[u8]) {
    if path.len() <= max {
        return (path, b"");
    }
    let is_slash = |b: &u8| *b == b'/';
    let end = match path[..max].iter().rposition(is_slash) {
        Some(end) => end,
        None => path.iter().position(is_slash).unwrap_or(path.len()),
    };
    (&path[..end], path.get(end + 1..).unwrap_or(b""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_is_split_where_a_component_ends() {
        assert_eq!(split_piece(b"a/b/c", 5), (&b"a/b/c"[..], &b""[..]));
        assert_eq!(split_piece(b"a/b/c", 4), (&b"a/b"[..], &b"c"[..]));
        assert_eq!(split_piece(b"a/b/c", 2), (&b"a"[..], &b"b/c"[..]));
        assert_eq!(split_piece(b"long/b", 2), (&b"long"[..], &b"b"[..]));
        assert_eq!(split_piece(b"long", 0), (&b"long"[..], &b""[..]));
        assert_eq!(split_piece(b"", 0), (&b""[..], &b""[..]));
    }

    #[test]
    fn both_resolvers_find_the_same_files_and_follow_no_link() {
        let root = std::env::temp_dir().join(format!("corewalk-beneath-{}", std::process::id()));
        std::fs::create_dir_all(root.join("a/b")).unwrap();
        let _ = std::os::unix::fs::symlink("/etc", root.join("a/out"));
        let fd = std::fs::File::open(&root).unwrap();
        for resolver in [Resolver::Openat2, Resolver::Components] {
            let open = |path: &[u8]| resolver.open(fd.as_fd(), path, OFlags::PATH);
            let open_directory = |path: &[u8]| resolver.open(fd.as_fd(), path, OFlags::DIRECTORY);
            assert!(open(b"/").is_ok() && open(b"/a/b").is_ok());
            assert!(open_directory(b"/").is_ok() && open_directory(b"/a/b").is_ok());
            assert_eq!(open_directory(b"/a/out").err(), Some(Errno::NOTDIR));
            assert!(open(b"/a/out").is_ok(), "the link itself is opened");
            let through = open(b"/a/out/passwd").err();
            assert!([Some(Errno::LOOP), Some(Errno::NOTDIR)].contains(&through), "{through:?}");
            assert_eq!(open(b"/a/none").err(), Some(Errno::NOENT));
        }
        std::fs::remove_dir_all(&root).unwrap();
    }
}
