//! Reading directories.
//!
//! `.` and `..` come first, with the cookies 1 and 2; a back end's cookie is shifted by 2, so that
//! no two meet (A.1). With attributes ("readdirplus") each name is looked up through the cache, which
//! then has it for the lookups that follow. The names of one answer are taken from the back end
//! first and looked up afterwards, since it may hold locks while it reports them. A name that cannot be looked up (another
//! file system is mounted on it, its file cannot be read) is there all the same: it is reported without attributes, and
//! who wants those asks for it, and is told why.

use std::cell::RefCell;
use std::ops::ControlFlow;

use corewalk::{Attr, Cred, DirEntry, Errno, FileKind, InodeRef, Timespec};

use super::{Entry, Server};

/// How far the cookies of a back end are shifted.
const COOKIE_SHIFT: u64 = 2;
/// The largest that fits `loff_t` after the shift.
const COOKIE_MAX: u64 = i64::MAX as u64 - COOKIE_SHIFT;
/// How many names are collected first, about what fits the smallest answer with attributes (4096
/// bytes, at least 160 each), and at most.
const BATCH_NAMES: std::ops::RangeInclusive<usize> = 26..=208;

/// One name of a directory.
#[derive(Clone, Copy, Debug)]
pub struct Dirent<'a> {
    /// The name, `.` and `..` included.
    pub name: &'a [u8],
    /// Its node number; with attributes 0 for what could not be looked up, which counts no lookup.
    pub node: u64,
    /// Its file type.
    pub kind: FileKind,
    /// Where to go on behind it.
    pub cookie: u64,
}

/// Names of a directory, copied.
#[derive(Debug, Default)]
struct Names {
    bytes: Vec<u8>,
    /// For each what the back end says of it, and where it ends in `bytes`.
    ends: Vec<(usize, Told)>,
}

/// What a back end says of a name.
#[derive(Clone, Copy, Debug)]
struct Told {
    ino: u64,
    kind: FileKind,
    cookie: u64,
}

impl Server {
    /// Reports the names in `node` behind `cookie` until the end or until `sink` breaks, which
    /// means that it did not take the entry.
    ///
    /// # Errors
    /// `ENOTDIR`; `ESTALE`; `EOVERFLOW` for a cookie above 2^63 - 3; what the back end says. None if
    /// something was reported before: the next call, which begins there, fails.
    pub fn readdir(
        &self,
        node: u64,
        cookie: u64,
        sink: &mut dyn FnMut(Dirent<'_>) -> ControlFlow<()>,
    ) -> Result<(), Errno> {
        let dir = self.inode(node)?;
        let mut taken = 0_usize;
        let mut take = |entry: Dirent<'_>| {
            sink(entry)?;
            taken += 1;
            ControlFlow::Continue(())
        };
        let result = match self.dots(&dir, node, cookie, &mut take) {
            ControlFlow::Break(()) => Ok(()),
            ControlFlow::Continue(()) => {
                let mut shift = Ok(());
                let read = self.vfs.readdir(&dir, unshifted(cookie), &mut |entry| {
                    let node = self.translate(entry.ino);
                    match shifted(entry.cookie) {
                        Ok(cookie) => {
                            let name = entry.name.as_bytes();
                            take(Dirent { name, node, kind: entry.kind, cookie })
                        }
                        Err(error) => {
                            shift = Err(error);
                            ControlFlow::Break(())
                        }
                    }
                });
                read.and(shift)
            }
        };
        if taken > 0 { Ok(()) } else { result }
    }

    /// Reports names with attributes. Each entry but `.` and `..` counts one lookup once `sink` has
    /// taken it (A.2).
    ///
    /// # Errors
    /// As [`Server::readdir`].
    pub fn readdirplus(
        &self,
        node: u64,
        cookie: u64,
        sink: &mut dyn FnMut(Dirent<'_>, &Attr) -> ControlFlow<()>,
    ) -> Result<(), Errno> {
        let dir = self.inode(node)?;
        let mut taken = 0_usize;
        if cookie < COOKIE_SHIFT {
            // The kernel uses no attributes of these two.
            let attr = self.vfs.getattr(&dir)?;
            let dots = self.dots(&dir, node, cookie, &mut |entry| {
                sink(entry, &Attr { ino: entry.node, ..attr })?;
                taken += 1;
                ControlFlow::Continue(())
            });
            if dots.is_break() {
                return Ok(());
            }
        }
        let mut names = Names::borrow();
        let result = self.report(&dir, unshifted(cookie), &mut names, &mut |entry, attr| {
            sink(entry, attr)?;
            taken += 1;
            ControlFlow::Continue(())
        });
        names.give_back();
        if taken > 0 { Ok(()) } else { result }
    }

    /// Collects names behind the back end's `cookie`, looks them up and reports them, batch by
    /// batch.
    fn report(
        &self,
        dir: &InodeRef<'_>,
        mut cookie: u64,
        names: &mut Names,
        sink: &mut dyn FnMut(Dirent<'_>, &Attr) -> ControlFlow<()>,
    ) -> Result<(), Errno> {
        let mut count_max = *BATCH_NAMES.start();
        loop {
            names.collect(self, dir, cookie, count_max)?;
            for (name, told) in names.iter() {
                if self.report_one(dir, name, told, sink)?.is_break() {
                    return Ok(());
                }
            }
            match names.ends.last() {
                Some(&(_, last)) if names.ends.len() == count_max => cookie = last.cookie,
                _ => return Ok(()),
            }
            count_max = (count_max * 2).min(*BATCH_NAMES.end());
        }
    }

    fn report_one(
        &self,
        dir: &InodeRef<'_>,
        name: &[u8],
        told: Told,
        sink: &mut dyn FnMut(Dirent<'_>, &Attr) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, Errno> {
        let cookie = shifted(told.cookie)?;
        let Entry { node, attr, .. } = match self.look_up(dir, name) {
            Ok(entry) => entry,
            // Removed since it was collected.
            Err(Errno::NOENT) => return Ok(ControlFlow::Continue(())),
            Err(_) => {
                let attr = Attr { ino: self.translate(told.ino), ..unknown(told.kind) };
                return Ok(sink(Dirent { name, node: 0, kind: told.kind, cookie }, &attr));
            }
        };
        let untaken = Untaken { server: self, node };
        let taken = sink(Dirent { name, node, kind: attr.kind(), cookie }, &attr);
        if taken.is_continue() {
            std::mem::forget(untaken);
        }
        Ok(taken)
    }

    /// Looks up a name that was collected.
    fn look_up(&self, dir: &InodeRef<'_>, name: &[u8]) -> Result<Entry, Errno> {
        let name = self.fresh(dir, self.name(name)?)?;
        // Who may read a directory may see what is in it.
        let inode = self.vfs.lookup(&Cred::root(), dir, name)?;
        let attr = self.vfs.getattr(&inode)?;
        self.hand_out(inode, attr)
    }

    /// Reports `.` and `..` as far as they are behind `cookie`.
    fn dots(
        &self,
        dir: &InodeRef<'_>,
        node: u64,
        cookie: u64,
        sink: &mut dyn FnMut(Dirent<'_>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let kind = FileKind::Directory;
        if cookie < 1 {
            sink(Dirent { name: b".", node, kind, cookie: 1 })?;
        }
        if cookie < 2 {
            // A directory that has been removed has no parent any more.
            let parent = self.vfs.parent_ino(dir).map_or(node, |ino| self.translate(ino));
            sink(Dirent { name: b"..", node: parent, kind, cookie: 2 })?;
        }
        ControlFlow::Continue(())
    }
}

/// An entry that has been counted and not taken yet: the count is given back, also if the sink
/// panics.
struct Untaken<'a> {
    server: &'a Server,
    node: u64,
}

impl Drop for Untaken<'_> {
    fn drop(&mut self) {
        let server = self.server;
        if server.vfs.forget(server.translate(self.node), 1) {
            server.tallies.lookups.add(-1);
        }
    }
}

/// Returns attributes that say nothing but the kind of a file.
fn unknown(kind: FileKind) -> Attr {
    let never = Timespec::default();
    Attr {
        ino: 0,
        generation: 0,
        mode: kind.to_mode(),
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        size: 0,
        blocks: 0,
        blksize: 0,
        atime: never,
        mtime: never,
        ctime: never,
        btime: never,
        has_acl: false,
    }
}

/// Returns what the kernel gets for a back end's cookie; `EOVERFLOW` if it has no room for it.
fn shifted(cookie: u64) -> Result<u64, Errno> {
    if cookie > COOKIE_MAX { Err(Errno::OVERFLOW) } else { Ok(cookie + COOKIE_SHIFT) }
}

/// Returns the back end's cookie, 0 for what stands before its first entry.
fn unshifted(cookie: u64) -> u64 {
    cookie.saturating_sub(COOKIE_SHIFT)
}

thread_local! {
    /// Room for names, kept from one request to the next.
    static NAMES: RefCell<Names> = RefCell::default();
}

impl Names {
    fn borrow() -> Names {
        NAMES.take()
    }

    fn give_back(self) {
        NAMES.set(self);
    }

    fn collect(
        &mut self,
        server: &Server,
        dir: &InodeRef<'_>,
        cookie: u64,
        count_max: usize,
    ) -> Result<(), Errno> {
        self.bytes.clear();
        self.ends.clear();
        server.vfs.readdir(dir, cookie, &mut |entry: DirEntry<'_>| {
            if self.ends.len() >= count_max {
                return ControlFlow::Break(());
            }
            self.bytes.extend_from_slice(entry.name.as_bytes());
            let told = Told { ino: entry.ino, kind: entry.kind, cookie: entry.cookie };
            self.ends.push((self.bytes.len(), told));
            ControlFlow::Continue(())
        })
    }

    fn iter(&self) -> impl Iterator<Item = (&[u8], Told)> {
        let mut start = 0;
        self.ends.iter().map(move |&(end, told)| {
            let name = &self.bytes[start..end];
            start = end;
            (name, told)
        })
    }
}
