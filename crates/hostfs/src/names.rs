//! Operations on names: lookup, creation, link, removal and rename.
//!
//! - A new file is created with permissions for its owner only. Then it gets its owner, its ACLs
//!   and its mode. If one of these steps fails, the file is removed again.
//! - Programs on the host can see the file between these steps. Calls through the dentry cache
//!   cannot, because the creation holds the in-lookup lock of the name.
//!
//! A new file without an ACL that belongs to the server's own user and group gets its final mode
//! immediately. The mode is checked afterwards, because the host may have changed it.
//!
//! Before an inode loses its last name, a descriptor of the inode is kept. So calls can use the
//! inode until the cache forgets it.
//!
//! Another program may replace a file just before it is removed. So a removal first checks the
//! inode number of the file, which notices most replacements.
//!
//! A rename first uses `RENAME_NOREPLACE`. If that fails because the new name exists, it keeps a
//! descriptor of the file with that name, and then replaces the file.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use corewalk::attr::mode::S_IFMT;
use corewalk::{AclKind, Atime, Attr, Errno, FileKind, Make, Name, Node, RenameMode, Timespec};
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, Statx, linkat, mkdirat, mknodat, openat,
    renameat_with, symlinkat, unlinkat,
};

use crate::attributes::{chmod, chown, time};
use crate::beneath::no_follow;
use crate::descriptors::SharedFd;
use crate::files::access_of;
use crate::hostfs::{HostFs, magic};

impl HostFs {
    pub(crate) fn lookup_name(&self, dir: Node<'_>, name: Name<'_>) -> Result<Attr, Errno> {
        let dir = self.at(dir)?;
        let (status, generation) = self.status_and_generation(dir.as_fd(), name.as_bytes())?;
        let has_acl = self.has_acl(&status, || self.name_has_acl(dir.as_fd(), name))?;
        Ok(self.attr(&status, has_acl).with_generation(generation))
    }

    pub(crate) fn make_name(
        &self,
        dir: Node<'_>,
        name: Name<'_>,
        what: &Make<'_>,
    ) -> Result<Attr, Errno> {
        let dir = self.at(dir)?;
        let kind = FileKind::from_mode(what.mode).ok_or(Errno::INVAL)?;
        let mode = self.first_mode(what);
        if what.open.is_some() && kind == FileKind::Regular {
            // Check the limit of open files before the file is created. Then a failed call leaves
            // no file behind, as with open(2).
            self.check_open_limit()?;
        }
        let flags =
            if self.atime.others == Atime::Never { OFlags::NOATIME } else { OFlags::empty() };
        let opened = self.retry_full(|| create(dir.as_fd(), name, kind, mode, flags, what))?;
        let opened = match opened {
            Some(fd) => Ok(fd),
            None => self.retry_full(|| open_made(dir.as_fd(), name, kind)),
        };
        let made = opened.and_then(|fd| {
            let attr = self.finish_new_file(fd.as_fd(), kind, what)?;
            Ok((fd, attr))
        });
        match made {
            Ok((fd, attr)) => {
                match what.open {
                    Some(flags) if kind == FileKind::Regular => {
                        self.descriptors.keep_fresh(attr.ino, access_of(flags), fd);
                    }
                    _ => self.descriptors.keep(attr.ino, Arc::new(fd)),
                }
                Ok(attr)
            }
            Err(error) => {
                let flags = match kind {
                    FileKind::Directory => AtFlags::REMOVEDIR,
                    _ => AtFlags::empty(),
                };
                let _ = unlinkat(&dir, name.as_bytes(), flags);
                Err(error)
            }
        }
    }

    pub(crate) fn make_nameless(&self, dir: Node<'_>, what: &Make<'_>) -> Result<Attr, Errno> {
        let dir = self.at(dir)?;
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let file = self.retry_full(|| openat(&dir, c".", flags, Mode::from_raw_mode(0o600)))?;
        let attr = self.finish_new_file(file.as_fd(), FileKind::Regular, what)?;
        self.descriptors.keep_orphan(attr.ino, Arc::new(file));
        Ok(attr)
    }

    fn first_mode(&self, what: &Make<'_>) -> Mode {
        let has_acl = what.access_acl.is_some() || what.default_acl.is_some();
        let is_ours = (what.uid, what.gid) == self.owner && !has_acl;
        Mode::from_raw_mode(what.mode & if is_ours { 0o7777 } else { 0o700 })
    }

    fn finish_new_file(
        &self,
        fd: BorrowedFd<'_>,
        kind: FileKind,
        what: &Make<'_>,
    ) -> Result<Attr, Errno> {
        let mut status = self.status(fd, b"")?;
        self.generations.note_birth(status.stx_ino, time(&status.stx_btime));
        let is_owned = (status.stx_uid, status.stx_gid) == (what.uid, what.gid);
        if !is_owned {
            chown(fd, Some(what.uid), Some(what.gid))?;
        }
        let mut is_done = is_owned;
        if kind != FileKind::Symlink {
            if let Some(acl) = &what.default_acl {
                self.set_acl_of(fd, AclKind::Default, Some(acl), None)?;
            }
            if let Some(acl) = &what.access_acl {
                self.set_acl_of(fd, AclKind::Access, Some(acl), None)?;
            }
            is_done &= what.default_acl.is_none() && what.access_acl.is_none();
            is_done &= (u32::from(status.stx_mode) ^ what.mode) & !S_IFMT == 0;
            if !is_done {
                chmod(fd, what.mode & !S_IFMT)?;
            }
        }
        if !is_done {
            status = self.status(fd, b"")?;
        }
        let generation = self.generation(fd, b"", &status)?.ok_or(Errno::STALE)?;
        Ok(self.attr(&status, what.access_acl.is_some()).with_generation(generation))
    }

    pub(crate) fn link_name(
        &self,
        node: Node<'_>,
        dir: Node<'_>,
        name: Name<'_>,
    ) -> Result<Attr, Errno> {
        let (file, dir) = (self.at(node)?, self.at(dir)?);
        let path = magic(file.as_fd());
        linkat(CWD, path, &dir, name.as_bytes(), AtFlags::SYMLINK_FOLLOW)?;
        self.descriptors.adopt_orphan(node.ino());
        self.attr_of(file.as_fd())
    }

    pub(crate) fn remove_name(
        &self,
        dir: Node<'_>,
        name: Name<'_>,
        node: Node<'_>,
    ) -> Result<(), Errno> {
        let dir = self.at(dir)?;
        let (status, fd) = match self.descriptors.get(node.ino()) {
            Some(fd) => (self.status(dir.as_fd(), name.as_bytes())?, Some(fd)),
            None => self.open_before_removal(dir.as_fd(), name)?,
        };
        if status.stx_ino != node.ino() {
            return Err(Errno::STALE);
        }
        let is_dir = node.kind() == FileKind::Directory;
        let flags = if is_dir { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        let last = self.keep_before_removal(&status, fd);
        let done = unlinkat(&dir, name.as_bytes(), flags);
        self.settle_removal(&status, last, &done);
        done
    }

    pub(crate) fn rename_name(
        &self,
        (from_dir, from): (Node<'_>, Name<'_>),
        (to_dir, to): (Node<'_>, Name<'_>),
        mode: RenameMode,
    ) -> Result<(), Errno> {
        let (old_dir, new_dir) = (self.at(from_dir)?, self.at(to_dir)?);
        let flags = match mode {
            RenameMode::Replace | RenameMode::NoReplace => RenameFlags::NOREPLACE,
            RenameMode::Exchange => RenameFlags::EXCHANGE,
        };
        let rename =
            |flags| renameat_with(&old_dir, from.as_bytes(), &new_dir, to.as_bytes(), flags);
        match rename(flags) {
            // The new name exists (`EEXIST`), or the host does not know `RENAME_NOREPLACE`
            // (`EINVAL`, `ENOSYS`). So repeat the rename without flags.
            Err(Errno::EXIST | Errno::INVAL | Errno::NOSYS) if mode == RenameMode::Replace => {}
            done => return done,
        }
        let replaced = self.open_before_removal(new_dir.as_fd(), to).ok();
        let replaced = replaced.map(|(status, fd)| (self.keep_before_removal(&status, fd), status));
        let done = rename(RenameFlags::empty());
        if let Some((last, status)) = replaced {
            self.settle_removal(&status, last, &done);
        }
        done
    }

    fn open_before_removal(
        &self,
        dir: BorrowedFd<'_>,
        name: Name<'_>,
    ) -> Result<(Statx, Option<SharedFd>), Errno> {
        match self.retry_full(|| open_path(dir, name)) {
            Ok(fd) => Ok((self.status(fd.as_fd(), b"")?, Some(Arc::new(fd)))),
            Err(Errno::NFILE) => Ok((self.status(dir, name.as_bytes())?, None)),
            Err(error) => Err(error),
        }
    }

    /// Keeps a descriptor of a file that is about to lose its last name. Does nothing if the file
    /// has other names.
    fn keep_before_removal(&self, status: &Statx, fd: Option<SharedFd>) -> Last {
        let is_dir = u32::from(status.stx_mode) & S_IFMT == corewalk::attr::mode::S_IFDIR;
        if status.stx_nlink > 1 && !is_dir {
            return Last::No;
        }
        if let Some(fd) = fd {
            self.descriptors.keep_orphan(status.stx_ino, fd);
        }
        Last::Yes
    }

    fn settle_removal(&self, status: &Statx, last: Last, done: &Result<(), Errno>) {
        match (last, done) {
            (Last::No, _) => {}
            (Last::Yes, Ok(())) => {
                let birth = time(&status.stx_btime);
                self.generations.note_death(status.stx_ino, birth, Timespec::now());
            }
            (Last::Yes, Err(_)) => self.descriptors.adopt_orphan(status.stx_ino),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Last {
    Yes,
    No,
}

fn open_path(dir: BorrowedFd<'_>, name: Name<'_>) -> Result<OwnedFd, Errno> {
    openat(dir, name.as_bytes(), OFlags::PATH | no_follow(), Mode::empty())
}

/// Opens a file that was just created: a directory for reading if its mode permits that, and any
/// other file with `O_PATH`.
fn open_made(dir: BorrowedFd<'_>, name: Name<'_>, kind: FileKind) -> Result<OwnedFd, Errno> {
    if kind == FileKind::Directory {
        let flags = OFlags::DIRECTORY | no_follow();
        match openat(dir, name.as_bytes(), flags, Mode::empty()) {
            Err(Errno::ACCESS) => {}
            opened => return opened,
        }
    }
    open_path(dir, name)
}

fn create(
    dir: BorrowedFd<'_>,
    name: Name<'_>,
    kind: FileKind,
    mode: Mode,
    flags: OFlags,
    what: &Make<'_>,
) -> Result<Option<OwnedFd>, Errno> {
    let name = name.as_bytes();
    let node = |kind, device| mknodat(dir, name, kind, mode, device);
    match kind {
        FileKind::Regular => {
            let access = what.open.map_or(OFlags::RDONLY, access_of);
            let flags = flags | OFlags::CREATE | OFlags::EXCL | OFlags::NONBLOCK | no_follow();
            return openat(dir, name, flags | access, mode).map(Some);
        }
        FileKind::Directory => mkdirat(dir, name, mode),
        FileKind::Symlink => symlinkat(what.target, dir, name),
        FileKind::Fifo => node(FileType::Fifo, 0),
        FileKind::Socket => node(FileType::Socket, 0),
        FileKind::CharDevice => node(FileType::CharacterDevice, what.rdev),
        FileKind::BlockDevice => node(FileType::BlockDevice, what.rdev),
    }
    .map(|()| None)
}
