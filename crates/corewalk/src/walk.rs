//! The path walk: from a pathname to a file or directory.
//!
//! A walk starts in **rcu-walk** mode. It looks up each component without a lock, a reference or a
//! store, and adds each dentry with its sequence to a read set. At the end it validates the read
//! set. If no dentry has changed, all names existed at one instant. (Linux's rcu-walk does not
//! promise that for a whole path.)
//!
//! A walk may have to block, at a name that is not cached, a symbolic link, or unknown permissions.
//! It then takes a reference on the current dentry, and afterwards continues in rcu-walk mode.
//!
//! A walk whose validation fails repeatedly becomes a **ref-walk**. It holds a reference at each
//! step and needs no validation, so it always ends. Both modes make the same decisions, but a
//! ref-walk looks up the components one after the other, not all at one instant. On Linux, both
//! modes do so.
//!
//! # Confined walks
//! With [`WalkFlags::BENEATH`] or [`WalkFlags::IN_ROOT`] the result of a walk is below the walk's
//! root at the instant of the answer. This holds even if directories are moved out of that root
//! during the walk (trap T20 in `traps.md`).
//!
//! The read set of a confined walk also includes the directories between the result and the root. A
//! ref-walk checks them under `topology`, held shared, so that none of them moves.
//!
//! Source: path_resolution(7), openat2(2), Linux path-lookup.rst.

mod fast_path;
mod step;

use std::borrow::Cow;
use std::sync::Arc;

use bitflags::bitflags;

use crate::Errno;
use crate::cred::Cred;
use crate::dentry::Flags;
use crate::mount::{Mount, MountRef};
use crate::name::{Name, PATH_MAX};
use crate::path::PathRef;
use crate::read_set::{Growth, ReadSet};
use crate::slot::DentrySlot;
use crate::vfs::{DentryAndInode, Vfs};

/// The maximum number of symbolic links that one walk follows. If a path has more, the walk fails
/// with `ELOOP`, as on Linux.
pub const SYMLINKS_MAX: u32 = 40;
/// The maximum number of passes in rcu-walk. Then the walk becomes a ref-walk.
const RCU_PASSES: u32 = 16;

bitflags! {
    /// The flags of a walk. The names are those of openat2(2).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct WalkFlags: u32 {
        /// Follow a symbolic link in the last component.
        const FOLLOW = 1;
        /// The last component must be a directory (`O_DIRECTORY`).
        const DIRECTORY = 1 << 1;
        /// Fail with `EXDEV` if the path leads out of the directory at which it starts
        /// (`RESOLVE_BENEATH`).
        const BENEATH = 1 << 2;
        /// Treat the directory at which the path starts as the root (`RESOLVE_IN_ROOT`).
        const IN_ROOT = 1 << 3;
        /// Fail with `ELOOP` at any symbolic link (`RESOLVE_NO_SYMLINKS`).
        const NO_SYMLINKS = 1 << 4;
        /// Fail with `ELOOP` at a magic link (`RESOLVE_NO_MAGICLINKS`). No effect, because a
        /// namespace has no magic links.
        const NO_MAGICLINKS = 1 << 5;
        /// Fail with `EXDEV` at a mount point, up or down (`RESOLVE_NO_XDEV`).
        const NO_XDEV = 1 << 6;
        /// Fail with `EAGAIN` instead of asking a back end (`RESOLVE_CACHED`).
        const CACHED = 1 << 7;
    }
}

/// The root directory and the working directory of a caller, at which its paths start.
///
/// # Examples
/// ```
/// # use std::sync::Arc;
/// # use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
/// # use corewalk::{Cred, FsStruct, Make, Name, WalkFlags, Vfs, VfsOptions};
/// # let fs = Arc::new(Tmpfs::new(TmpfsOptions::default()));
/// # let vfs = Vfs::new(fs, VfsOptions::default())?;
/// let (cred, root) = (Cred::root(), vfs.root_path());
/// vfs.make(&cred, &root.inode(), Name::new(b"home")?, Make::new(0o040_755, 0, 0))?;
/// let mut process = FsStruct { cwd: root.clone(), root };
/// process.cwd = vfs.walk(&cred, &process, b"home", WalkFlags::DIRECTORY)?;
/// assert_eq!(process.cwd.getcwd(&process.root)?, b"/home");
/// # Ok::<(), corewalk::Errno>(())
/// ```
#[doc(alias = "fs_struct")]
#[derive(Clone, Debug)]
pub struct FsStruct<'v> {
    /// The directory at which absolute paths start. `..` does not lead above it.
    pub root: PathRef<'v>,
    /// The directory at which relative paths start.
    pub cwd: PathRef<'v>,
}

/// The file or directory to which a walk has led, without a reference on it. It can be compared
/// with the result of a later walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Resolved {
    /// The inode number.
    pub ino: u64,
    /// The slot and the sequence of the dentry. If they are equal after two walks, the dentry has
    /// not changed in between.
    pub dentry: (u32, u64),
}

#[derive(Debug)]
pub(crate) enum Stop {
    /// A dentry changed while the walk read it, so the walk must begin again.
    Retry,
    Fail(Errno),
}

impl From<Errno> for Stop {
    fn from(error: Errno) -> Stop {
        Stop::Fail(error)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Rcu,
    Ref,
}

/// The state of a walk: its position, its flags, and the dentries that it has passed.
///
/// Analogous to Linux's `struct nameidata`.
pub(crate) struct Walk<'v, 'a> {
    pub(crate) vfs: &'v Vfs,
    pub(crate) cred: &'a Cred,
    pub(crate) flags: WalkFlags,
    pub(crate) root: &'a PathRef<'v>,
    pub(crate) mode: Mode,
    /// The mount in which the walk is. The walk takes a counted reference on it only after it has
    /// crossed a mount point, because counting writes shared memory.
    pub(crate) mount: Cow<'a, Arc<Mount>>,
    pub(crate) dentry: DentrySlot,
    pub(crate) seen: crate::dentry::Snapshot,
    pub(crate) hold: Option<DentryAndInode<'v>>,
    /// The dentries that the walk has passed, with their sequences. The walk borrows this read set,
    /// because a read set is large and a `Walk` is moved.
    read_set: &'a mut ReadSet,
    pub(crate) links: u32,
}

impl Vfs {
    /// Returns the file or directory to which `path` leads.
    ///
    /// # Errors
    /// - `ENOENT` (also for an empty path), `ENOTDIR`, `EACCES`.
    /// - `ELOOP` for more than 40 symbolic links, or one that the flags forbid.
    /// - `ENAMETOOLONG` for a component over 255 bytes, or a path of 4096 bytes and more.
    /// - `EXDEV` for a path that leaves the directory or the mount to which the flags confine it.
    /// - `EAGAIN` with the flag [`WalkFlags::CACHED`], if the walk would have to ask the back end.
    /// - The errors of the back end.
    ///
    /// # Examples
    /// ```
    /// # use std::sync::Arc;
    /// # use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
    /// # use corewalk::{Cred, Errno, FsStruct, Make, Name, WalkFlags, Vfs, VfsOptions};
    /// # let fs = Arc::new(Tmpfs::new(TmpfsOptions::default()));
    /// # let vfs = Vfs::new(fs, VfsOptions::default())?;
    /// let (cred, root) = (Cred::root(), vfs.root_path());
    /// let link = Make::new(0o120_777, 0, 0).with_target(b"/");
    /// vfs.make(&cred, &root.inode(), Name::new(b"link")?, link)?;
    /// let at = FsStruct { cwd: root.clone(), root };
    /// let followed = vfs.walk(&cred, &at, b"link", WalkFlags::FOLLOW)?;
    /// assert_eq!(followed.id(), at.root.id());
    /// let confined = vfs.walk(&cred, &at, b"link", WalkFlags::FOLLOW | WalkFlags::BENEATH);
    /// assert_eq!(confined.err(), Some(Errno::XDEV));
    /// # Ok::<(), corewalk::Errno>(())
    /// ```
    pub fn walk<'v>(
        &'v self,
        cred: &Cred,
        at: &FsStruct<'v>,
        path: &[u8],
        flags: WalkFlags,
    ) -> Result<PathRef<'v>, Errno> {
        self.passes(cred, at, path, flags, |walk| walk.end_in_path())
    }

    /// Returns the file or directory to which `path` leads, without a reference on it. A fully
    /// cached walk writes no shared memory. Fails like [`Vfs::walk`].
    ///
    /// # Examples
    /// ```
    /// # use std::sync::Arc;
    /// # use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
    /// # use corewalk::{Cred, FsStruct, WalkFlags, Vfs, VfsOptions};
    /// # let fs = Arc::new(Tmpfs::new(TmpfsOptions::default()));
    /// # let vfs = Vfs::new(fs, VfsOptions::default())?;
    /// let (cred, root) = (Cred::root(), vfs.root_path());
    /// let at = FsStruct { cwd: root.clone(), root };
    /// let found = vfs.resolve_path(&cred, &at, b"/.", WalkFlags::empty())?;
    /// assert_eq!(found.ino, at.root.inode().ino());
    /// # Ok::<(), corewalk::Errno>(())
    /// ```
    pub fn resolve_path(
        &self,
        cred: &Cred,
        at: &FsStruct<'_>,
        path: &[u8],
        flags: WalkFlags,
    ) -> Result<Resolved, Errno> {
        self.passes(cred, at, path, flags, |walk| walk.end_resolved())
    }

    /// Splits `path` at its last component, for operations that make, remove or rename a name.
    /// Returns the directory of the last component, and the component without a final `/`.
    ///
    /// # Errors
    /// The errors of [`Vfs::walk`]. `EINVAL` if the last component is `.`, and `EBUSY` for `..` or
    /// the root, as in rmdir(2) and rename(2).
    ///
    /// # Examples
    /// ```
    /// # use std::sync::Arc;
    /// # use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
    /// # use corewalk::{Cred, FsStruct, Make, WalkFlags, Vfs, VfsOptions};
    /// # let fs = Arc::new(Tmpfs::new(TmpfsOptions::default()));
    /// # let vfs = Vfs::new(fs, VfsOptions::default())?;
    /// let (cred, root) = (Cred::root(), vfs.root_path());
    /// let at = FsStruct { cwd: root.clone(), root };
    /// let (dir, name) = vfs.walk_parent(&cred, &at, b"/new/", WalkFlags::empty())?;
    /// vfs.make(&cred, &dir.inode(), name, Make::new(0o040_755, 0, 0))?;
    /// assert!(vfs.walk(&cred, &at, b"/new", WalkFlags::empty()).is_ok());
    /// # Ok::<(), corewalk::Errno>(())
    /// ```
    pub fn walk_parent<'v, 'p>(
        &'v self,
        cred: &Cred,
        at: &FsStruct<'v>,
        path: &'p [u8],
        flags: WalkFlags,
    ) -> Result<(PathRef<'v>, Name<'p>), Errno> {
        check_length(path)?;
        let end = path.iter().rposition(|&b| b != b'/').map_or(0, |last| last + 1);
        let trimmed = &path[..end];
        let start = trimmed.iter().rposition(|&b| b == b'/').map_or(0, |slash| slash + 1);
        let last = match &trimmed[start..] {
            b"" | b".." => return Err(Errno::BUSY),
            b"." => return Err(Errno::INVAL),
            last => Name::new(last)?,
        };
        let parent = if start == 0 { b"." } else { &trimmed[..start] };
        let flags = (flags | WalkFlags::FOLLOW | WalkFlags::DIRECTORY) - WalkFlags::CACHED;
        Ok((self.walk(cred, at, parent, flags)?, last))
    }

    fn passes<'v, R>(
        &'v self,
        cred: &Cred,
        at: &FsStruct<'v>,
        path: &[u8],
        flags: WalkFlags,
        finish: impl Fn(&mut Walk<'v, '_>) -> Result<R, Stop>,
    ) -> Result<R, Errno> {
        check_length(path)?;
        let confined = flags.intersects(WalkFlags::BENEATH | WalkFlags::IN_ROOT);
        let root = if confined { &at.cwd } else { &at.root };
        let start = match path {
            [b'/', ..] if flags.contains(WalkFlags::BENEATH) => return Err(Errno::XDEV),
            [b'/', ..] => root,
            _ => &at.cwd,
        };
        let mut read_set = ReadSet::new(Growth::Allowed);
        for pass in 0.. {
            read_set.clear();
            let mode = if pass < RCU_PASSES { Mode::Rcu } else { Mode::Ref };
            if pass > 0 {
                self.dcache.counters.retries.add(1);
            }
            if pass == RCU_PASSES {
                self.dcache.counters.fallbacks.add(1);
            }
            let mut walk = Walk::new(self, cred, flags, root, start, mode, &mut read_set);
            match walk.follow(path).and_then(|()| finish(&mut walk)) {
                Ok(found) => return Ok(found),
                Err(Stop::Fail(error)) => return Err(error),
                Err(Stop::Retry) => {}
            }
        }
        unreachable!("ref-walk ends")
    }
}

impl<'v, 'a> Walk<'v, 'a> {
    fn new(
        vfs: &'v Vfs,
        cred: &'a Cred,
        flags: WalkFlags,
        root: &'a PathRef<'v>,
        start: &'a PathRef<'v>,
        mode: Mode,
        read_set: &'a mut ReadSet,
    ) -> Walk<'v, 'a> {
        let mut seen = vfs.dcache.dentries.snapshot(start.dentry);
        if seen.body.is_negative() {
            // A walk may start in a removed directory, whose dentry is negative. So take the inode
            // from `start`, which holds a reference on it.
            seen.body = seen.body.with_inode(start.inode.slot);
        }
        Walk {
            vfs,
            cred,
            flags,
            root,
            mode,
            mount: Cow::Borrowed(&start.mount),
            dentry: start.dentry,
            seen,
            hold: None,
            read_set,
            links: 0,
        }
    }

    fn follow(&mut self, path: &[u8]) -> Result<(), Stop> {
        self.record();
        let must_be_directory = path.ends_with(b"/") || self.flags.contains(WalkFlags::DIRECTORY);
        // For each symbolic link that the walk is following, the rest of the path after the link.
        // The outermost link is first.
        let mut rest: Vec<Vec<u8>> = Vec::new();
        let mut path = path;
        let mut link: Vec<u8>;
        loop {
            path = self.fast_path(path);
            let (component, tail) = split(path);
            if component.is_empty() {
                let Some(outer) = rest.pop() else { break };
                link = outer;
                path = &link;
                continue;
            }
            path = tail;
            let is_last = rest.is_empty() && tail.iter().all(|&byte| byte == b'/');
            let follows = !is_last || must_be_directory || self.flags.contains(WalkFlags::FOLLOW);
            if let Some(target) = self.step(component, follows)? {
                if !tail.is_empty() {
                    rest.push(tail.to_vec());
                }
                link = target;
                path = &link;
            }
        }
        // A missing name must fail with `ENOENT`, not with `ENOTDIR`. The caller checks for it.
        let is_there = !self.seen.body.is_negative();
        if must_be_directory && is_there && !self.seen.body.is_directory() {
            return Err(self.validated(Errno::NOTDIR));
        }
        Ok(())
    }

    fn end_in_path(&mut self) -> Result<PathRef<'v>, Stop> {
        if self.seen.body.is_negative() {
            return Err(self.validated(Errno::NOENT));
        }
        self.legitimize()?;
        let mount = MountRef::get(&self.mount).ok_or(Stop::Retry)?;
        self.stay_below_root()?;
        let DentryAndInode { dentry, inode } =
            self.hold.take().expect("legitimize takes references");
        let inode = inode.unless_saturated()?;
        Ok(PathRef { vfs: self.vfs, mount, dentry: dentry.into_slot(), inode })
    }

    fn end_resolved(&mut self) -> Result<Resolved, Stop> {
        if self.seen.body.is_negative() {
            return Err(self.validated(Errno::NOENT));
        }
        let dcache = &self.vfs.dcache;
        let ino = if self.seen.body.is_directory() {
            dcache.dentries.directory_words(self.dentry).ino
        } else {
            dcache.inodes.ino(self.seen.body.inode())
        };
        let dentry = (self.dentry.get(), self.seen.seq.0);
        let _mount = match self.mode {
            // An unmount changes the dentry of the mount point, which is in the read set. So the
            // validation below also shows that nothing was unmounted.
            Mode::Rcu => None,
            Mode::Ref => Some(MountRef::get(&self.mount).ok_or(Stop::Retry)?),
        };
        self.stay_below_root()?;
        self.validate()?;
        Ok(Resolved { ino, dentry })
    }

    /// Returns `error` if the read set is still valid. Otherwise the error may be wrong, so returns
    /// [`Stop::Retry`], and the walk begins again.
    pub(crate) fn validated(&self, error: Errno) -> Stop {
        match self.validate() {
            Ok(()) => Stop::Fail(error),
            Err(stop) => stop,
        }
    }

    pub(crate) fn validate(&self) -> Result<(), Stop> {
        let dentries = &self.vfs.dcache.dentries;
        match self.read_set.is_unchanged(dentries) {
            true => Ok(()),
            false => Err(Stop::Retry),
        }
    }

    #[inline]
    pub(crate) fn record(&mut self) {
        if self.mode == Mode::Rcu {
            self.read_set.push(self.dentry, self.seen.seq);
        }
    }

    /// Takes a reference on the current dentry, so that the walk may leave rcu-walk mode and block.
    /// Keeps the read set, so the validation at the end still covers the whole path.
    #[doc(alias = "try_to_unlazy")]
    pub(crate) fn legitimize(&mut self) -> Result<(), Stop> {
        if self.hold.is_some() {
            return self.validate();
        }
        self.hold = Some(self.vfs.hold(self.dentry, self.seen).ok_or(Stop::Retry)?);
        self.validate()
    }

    fn stay_below_root(&mut self) -> Result<(), Stop> {
        if !self.flags.intersects(WalkFlags::BENEATH | WalkFlags::IN_ROOT) {
            return Ok(());
        }
        let vfs = self.vfs;
        let _still = (self.mode == Mode::Ref).then(|| vfs.dcache.topology.read_shared());
        let (mut mount, mut at) = (&*self.mount, self.dentry);
        loop {
            if mount.id == self.root.mount.id && at == self.root.dentry {
                return self.validate();
            }
            if at == mount.root {
                match &mount.point {
                    Some((parent, point)) => (mount, at) = (parent, *point),
                    None => return Err(self.validated(Errno::XDEV)),
                }
                continue;
            }
            let seen = vfs.dcache.dentries.snapshot(at);
            if self.mode == Mode::Rcu {
                self.read_set.push(at, seen.seq);
            }
            let parent = seen.key.parent();
            if parent == at || parent.is_none() || !seen.body.flags().intersects(Flags::HASHED) {
                return Err(self.validated(Errno::XDEV));
            }
            at = parent;
        }
    }
}

#[inline]
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    let mut path = path;
    while let [b'/', rest @ ..] = path {
        path = rest;
    }
    path.split_at(path.iter().position(|&byte| byte == b'/').unwrap_or(path.len()))
}

fn check_length(path: &[u8]) -> Result<(), Errno> {
    match path.len() {
        0 => Err(Errno::NOENT),
        PATH_MAX.. => Err(Errno::NAMETOOLONG),
        _ => Ok(()),
    }
}
