//! Reading directories.
//!
//! In a listing, `.` and `..` come first, with the cookies 1 and 2. The server adds 2 to each
//! cookie of the back end, so that no two entries have the same cookie (guarantee A.1 of `server`).
//!
//! A listing with attributes (`readdirplus`) looks each name up through the cache, so that later
//! lookups hit:
//! - If the back end reports attributes with an entry ([`corewalk::Listing`]), the cache and the
//!   kernel get them.
//! - The back end may hold locks while it lists. So the server first collects a batch of names and
//!   then looks them up.
//! - If a lookup fails, for example because another file system is mounted on the name, the name is
//!   listed without attributes. A program that needs them makes the kernel look the name up, and
//!   gets the error.
//!
//! For each answer to the kernel, the server calls the back end's `readdir` once, and collects as
//! many names as fit into the kernel's buffer. The protocol does not tell the size of that buffer,
//! so the server estimates it from earlier answers.

use std::cell::{Cell, RefCell};
use std::ops::ControlFlow;
use std::time::Duration;

use corewalk::{Attr, Cred, DirEntry, Errno, FileKind, InodeRef, Listing};

use super::{EntryOut, Server};

/// The number that the server adds to each cookie of the back end, because the cookies 1 and 2 are
/// those of `.` and `..`.
const COOKIE_SHIFT: u64 = 2;
/// The largest cookie of a back end. With [`COOKIE_SHIFT`] added, a cookie must fit `loff_t`.
const COOKIE_MAX: u64 = i64::MAX as u64 - COOKIE_SHIFT;
/// The inode number of an entry whose number is unknown, as in libfuse (`FUSE_UNKNOWN_INO`). Many
/// programs skip an entry with the number 0.
const UNKNOWN_INO: u64 = 0xffff_ffff;
/// Size in bytes of a `struct fuse_direntplus` without its name. Entry and name together are padded
/// to a multiple of 8 bytes.
const ENTRY_BYTES: usize = 152;
/// Limits in bytes for the expected size of an answer. The kernel's smallest buffer for a listing
/// has 4096 bytes, and the C library uses 32768 bytes.
const ANSWER_BYTES: std::ops::RangeInclusive<usize> = 4096..=32768;

/// One entry of a directory.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Dirent<'a> {
    /// The name. It may be `.` or `..`.
    pub name: &'a [u8],
    /// The node number of the entry. In a listing with attributes it is 0 if the lookup of the name
    /// has failed. Then the server counts no lookup for the entry.
    pub node: u64,
    /// The file type.
    pub kind: FileKind,
    /// The cookie with which a listing continues after this entry.
    pub cookie: u64,
}

#[derive(Debug)]
struct Names {
    answer_bytes: usize,
    bytes: Vec<u8>,
    ends: Vec<(usize, ListedEntry)>,
}

#[derive(Clone, Copy, Debug)]
struct ListedEntry {
    ino: u64,
    kind: FileKind,
    cookie: u64,
    attr: Option<Attr>,
}

impl Server {
    /// Passes a page of the entries of `node` after `cookie` to `sink`. The page ends when the back
    /// end ends it, or when `sink` breaks at an entry. The entry at which `sink` breaks counts as
    /// not taken. A page without entries means the end of the directory.
    ///
    /// # Errors
    /// `ENOTDIR` if `node` is no directory; `ESTALE` if the kernel does not hold `node`;
    /// `EOVERFLOW` for a cookie above 2^63 - 3; the errors of the back end. If an error comes after
    /// an entry was taken, this call succeeds. The next call, which starts after the last taken
    /// entry, returns the error.
    ///
    /// # Examples
    /// ```
    /// # use std::sync::Arc;
    /// # use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
    /// # use corewalk_fuse::{Caller, NewFile, Options, Server};
    /// # use std::ops::ControlFlow;
    /// # let fs = Arc::new(Tmpfs::new(TmpfsOptions::default()));
    /// # let server = Server::new(fs, Options::exclusive())?;
    /// # let caller = Caller { uid: 0, gid: 0, pid: 0 };
    /// let _file = server.make(caller, 1, b"f", &NewFile::new(0o100_644))?;
    /// let mut names = vec![];
    /// server.readdir(1, 0, 0, &mut |entry| {
    ///     names.push(entry.name.to_vec());
    ///     ControlFlow::Continue(())
    /// })?;
    /// assert_eq!(names, [&b"."[..], b"..", b"f"]);
    /// # Ok::<(), corewalk::Errno>(())
    /// ```
    pub fn readdir(
        &self,
        node: u64,
        handle: u64,
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
                let read =
                    self.vfs.readdir_through(&dir, handle, unshifted(cookie), &mut |entry| {
                        let node = self.listed(entry.ino);
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

    /// Lists like [`Server::readdir`], but with attributes. Counts one lookup for each entry that
    /// `sink` has taken, except `.` and `..` (guarantee A.2 of `server`). The kernel ignores the
    /// attributes of `.` and `..`, so they have only a number and a type.
    ///
    /// # Errors
    /// The errors of [`Server::readdir`].
    pub fn readdirplus(
        &self,
        node: u64,
        handle: u64,
        cookie: u64,
        sink: &mut dyn FnMut(Dirent<'_>, &Attr) -> ControlFlow<()>,
    ) -> Result<(), Errno> {
        let dir = self.inode(node)?;
        let taken_bytes = Cell::new(0);
        let mut take = |entry: Dirent<'_>, attr: &Attr| {
            let bytes = bytes_of(entry.name);
            sink(entry, attr)?;
            taken_bytes.set(taken_bytes.get() + bytes);
            ControlFlow::Continue(())
        };
        let dots = self.dots(&dir, node, cookie, &mut |entry| {
            take(entry, &Attr::new(entry.node, entry.kind.to_mode()))
        });
        if dots.is_break() {
            return Ok(());
        }
        let mut names = Names::borrow();
        let mut cookie = unshifted(cookie);
        let result = loop {
            // The cache accepts an entry from a listing only if the directory has not changed since
            // the listing began.
            let listing = self.vfs.listing(&dir).through(handle);
            let reported = self.report(&listing, &dir, cookie, &mut names, &mut take);
            match names.ends.last() {
                // All names of this page were removed meanwhile. An empty answer would mean the end
                // of the directory, so read the next page.
                Some(&(_, last))
                    if reported == Ok(ControlFlow::Continue(())) && taken_bytes.get() == 0 =>
                {
                    cookie = last.cookie;
                }
                _ => break reported,
            }
        };
        if result == Ok(ControlFlow::Break(())) {
            let least = *ANSWER_BYTES.start();
            names.answer_bytes = taken_bytes.get().next_multiple_of(least).max(least);
        }
        names.give_back();
        if taken_bytes.get() > 0 { Ok(()) } else { result.map(drop) }
    }

    fn report(
        &self,
        listing: &Listing<'_>,
        dir: &InodeRef<'_>,
        cookie: u64,
        names: &mut Names,
        sink: &mut dyn FnMut(Dirent<'_>, &Attr) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, Errno> {
        names.collect(listing, cookie)?;
        for (name, listed) in names.iter() {
            if self.report_one((dir, listing), name, listed, sink)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn report_one(
        &self,
        from: (&InodeRef<'_>, &Listing<'_>),
        name: &[u8],
        listed: ListedEntry,
        sink: &mut dyn FnMut(Dirent<'_>, &Attr) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, Errno> {
        let cookie = shifted(listed.cookie)?;
        // Report an entry with a timeout of zero without attributes. With attributes, the kernel
        // would also drop the entry that it has cached before.
        let has_no_time = listed.attr.is_some_and(|attr| attr.ttl.entry == Some(Duration::ZERO));
        let entry = match self.has_leases() && has_no_time {
            true => None,
            false => match self.entry_of(from, name, listed) {
                Ok(entry) => Some(entry),
                // Leave out a name that was removed after it was collected.
                Err(Errno::NOENT) => return Ok(ControlFlow::Continue(())),
                Err(_) => None,
            },
        };
        let Some(EntryOut { node, attr, .. }) = entry else {
            let attr = Attr::new(self.listed(listed.ino), listed.kind.to_mode());
            return Ok(sink(Dirent { name, node: 0, kind: listed.kind, cookie }, &attr));
        };
        let untaken = Untaken { server: self, node };
        let taken = sink(Dirent { name, node, kind: attr.kind(), cookie }, &attr);
        if taken.is_continue() {
            std::mem::forget(untaken);
        }
        Ok(taken)
    }

    fn entry_of(
        &self,
        (dir, listing): (&InodeRef<'_>, &Listing<'_>),
        name: &[u8],
        listed: ListedEntry,
    ) -> Result<EntryOut, Errno> {
        let name = self.name(name)?;
        let found = match listed.attr.and_then(|attr| listing.enter(name, &attr)) {
            Some(found) => found,
            // A process that may read a directory may see all its names, so this lookup checks no
            // permission.
            None => self.look_up(&Cred::root(), dir, name)?,
        };
        let attr = found.attr()?;
        self.hand_out(found.inode, attr)
    }

    fn listed(&self, ino: u64) -> u64 {
        if ino == 0 { UNKNOWN_INO } else { self.translate(ino) }
    }

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
            let parent = self.vfs.parent_ino(dir).map_or(node, |ino| self.translate(ino));
            sink(Dirent { name: b"..", node: parent, kind, cookie: 2 })?;
        }
        ControlFlow::Continue(())
    }
}

/// A counted lookup of an entry that may not reach the kernel. Dropping the value takes the lookup
/// back, even after a panic.
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

fn bytes_of(name: &[u8]) -> usize {
    (ENTRY_BYTES + name.len()).next_multiple_of(8)
}

fn shifted(cookie: u64) -> Result<u64, Errno> {
    if cookie > COOKIE_MAX { Err(Errno::OVERFLOW) } else { Ok(cookie + COOKIE_SHIFT) }
}

fn unshifted(cookie: u64) -> u64 {
    cookie.saturating_sub(COOKIE_SHIFT)
}

thread_local! {
    /// The memory for the collected names of a listing. Each thread reuses its own memory for all
    /// requests.
    static NAMES: RefCell<Names> = RefCell::default();
}

impl Default for Names {
    fn default() -> Names {
        Names { answer_bytes: *ANSWER_BYTES.end(), bytes: Vec::new(), ends: Vec::new() }
    }
}

impl Names {
    fn borrow() -> Names {
        NAMES.take()
    }

    fn give_back(self) {
        NAMES.set(self);
    }

    fn collect(&mut self, listing: &Listing<'_>, cookie: u64) -> Result<(), Errno> {
        self.bytes.clear();
        self.ends.clear();
        let mut used = if cookie == 0 { bytes_of(b".") + bytes_of(b"..") } else { 0 };
        let mut is_full = false;
        listing.read(cookie, &mut |entry: DirEntry<'_>| {
            let DirEntry { name, ino, kind, cookie, attr, .. } = entry;
            used += bytes_of(name.as_bytes());
            if used > self.answer_bytes {
                is_full = true;
                return ControlFlow::Break(());
            }
            self.bytes.extend_from_slice(name.as_bytes());
            self.ends.push((self.bytes.len(), ListedEntry { ino, kind, cookie, attr }));
            ControlFlow::Continue(())
        })?;
        if is_full {
            // The kernel's buffer for listings may be larger than expected, so expect a larger
            // answer next time.
            self.answer_bytes = (2 * self.answer_bytes).min(*ANSWER_BYTES.end());
        }
        Ok(())
    }

    fn iter(&self) -> impl Iterator<Item = (&[u8], ListedEntry)> {
        let mut start = 0;
        self.ends.iter().map(move |&(end, listed)| {
            let name = &self.bytes[start..end];
            start = end;
            (name, listed)
        })
    }
}
