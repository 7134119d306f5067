//! Reads and changes of metadata. A read tries the cached directories before the database.
//!
//! A reader first checks that the session has lease time left, and only then looks into the cache
//! (guarantee K.1 in `lib.rs`). On a miss it reads a page of the directory from the database, and
//! caches the page. It reads only the needed name or inode if the directory is cached in part, or
//! if a change of the directory is under way.

use std::sync::Arc;
use std::time::Duration;

use corewalk::{Attr, Errno, Ttl};
use corewalk_base::primitives::thread;
use tokio_postgres::Row;

use crate::connection::Param;
use crate::directory::{Begun, Cache, Change, Entry, Found, Listing, Xattrs};
use crate::locks::Locks;
use crate::node::{HAS_ACCESS_ACL, HAS_DEFAULT_ACL, HAS_XATTRS, Inode};
use crate::session::{Session, boot_time};

pub(crate) const PAGE: i32 = 2000;
const SMALL_PAGE: i32 = 256;

const FILL: &str = "SELECT * FROM cw_fill($1, $2, $3, $4, $5)";
const LOOKUP: &str = "SELECT * FROM cw_lookup($1, $2, $3)";
const GETATTR: &str = "SELECT * FROM cw_getattr($1)";
const XATTRS: &str = "SELECT * FROM cw_xattrs($1)";

/// Errors after which the database is certainly unchanged, so that the cache may stay as it is.
const UNCHANGED: [Errno; 5] =
    [Errno::NOTEMPTY, Errno::INVAL, Errno::NODATA, Errno::NOTDIR, Errno::ISDIR];

const NOT_CACHED: i32 = -6;
const DEAD: i32 = -2;
/// A result code of the database: the session has not registered since the last crash.
const RESTARTED: i32 = -3;

#[derive(Debug)]
pub(crate) struct Meta {
    pub(crate) session: Arc<Session>,
    pub(crate) cache: Arc<Cache>,
    pub(crate) locks: Locks,
}

/// An inode, and whether caches may keep its attributes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    pub(crate) inode: Inode,
    pub(crate) is_current: bool,
}

#[derive(Debug)]
pub(crate) struct Changed {
    /// Marks the moment before the change was sent.
    pub(crate) begun: Begun,
    inodes: Vec<Inode>,
}

impl Changed {
    /// Returns a changed inode. Fails with `EIO` if the database did not return it.
    pub(crate) fn inode(&self, ino: u64) -> Result<Inode, Errno> {
        self.find(ino).ok_or(Errno::IO)
    }

    pub(crate) fn find(&self, ino: u64) -> Option<Inode> {
        self.inodes.iter().find(|inode| inode.attr.ino == ino).copied()
    }
}

pub(crate) struct Page {
    /// The directory, and then the inode if the caller asked for one.
    heads: Vec<Inode>,
    pub(crate) names: Vec<Listing>,
    /// True if there are no names after the page.
    pub(crate) at_end: bool,
    may_be_cached: bool,
}

impl Meta {
    /// Returns the inode of a name, and whether this mount has cached the name. Only then the
    /// kernel may cache the name too.
    pub(crate) fn lookup(&self, dir: u64, name: &[u8]) -> Result<(Known, bool), Errno> {
        let mut was_filled = false;
        loop {
            let found = match self.session.left().is_zero() {
                true => Found::Ask,
                false => self.cache.lookup(dir, name),
            };
            match found {
                Found::Inode(inode, is_current) => return Ok((Known { inode, is_current }, true)),
                Found::Absent => return Err(Errno::NOENT),
                Found::Ask => return self.ask_name(dir, name),
                Found::Fill => {}
            }
            if !self.cache.begin_fill(dir) {
                continue;
            }
            let ticket = self.cache.ticket();
            let filled = self.page(dir, 0, 0, PAGE).map(|page| {
                let is_cached = page.may_be_cached
                    && self.cache.fill(ticket, dir, &page.heads, 0, &page.names, page.at_end);
                (page, is_cached)
            });
            self.cache.end_fill(dir);
            let (page, is_cached) = filled?;
            // In a very small cache, the fill of another thread may drop the new page at once. So
            // look for the name in the second page itself.
            if is_cached && !std::mem::replace(&mut was_filled, true) {
                continue;
            }
            match page.names.iter().find(|(found, ..)| **found == *name) {
                Some((.., inode)) => {
                    return Ok((Known { inode: *inode, is_current: false }, false));
                }
                None if page.at_end => return Err(Errno::NOENT),
                None => return self.ask_name(dir, name),
            }
        }
    }

    fn ask_name(&self, dir: u64, name: &[u8]) -> Result<(Known, bool), Errno> {
        let ticket = self.cache.ticket();
        let rows = self.rows(LOOKUP, &[&(dir as i64), &name])?;
        let head = rows.first().and_then(Inode::of).ok_or(Errno::STALE)?;
        let found = rows.get(1).and_then(|row| {
            Inode::of(row).map(|inode| (row.get::<_, i64>("cookie") as u64, inode))
        });
        let code: i32 = rows[0].get("code");
        if code != NOT_CACHED && !self.session.left().is_zero() {
            self.cache.fill_name(ticket, head, name, found);
            if let Found::Inode(inode, is_current) = self.cache.lookup(dir, name)
                && found.is_some_and(|(_, found)| found.attr.ino == inode.attr.ino)
            {
                return Ok((Known { inode, is_current }, true));
            }
        }
        let (_, inode) = found.ok_or(Errno::NOENT)?;
        Ok((Known { inode, is_current: false }, false))
    }

    /// Returns an inode.
    ///
    /// # Errors
    /// `ESTALE` if there is no such inode.
    pub(crate) fn inode(&self, ino: u64) -> Result<Known, Errno> {
        let is_live = !self.session.left().is_zero();
        if let Some(inode) = is_live.then(|| self.cache.inode(ino)).flatten() {
            return Ok(Known { inode, is_current: true });
        }
        if !is_live || self.cache.is_changing(ino) {
            let rows = self.session.database.query(GETATTR, &[&(ino as i64)])?.rows;
            let inode = rows.first().and_then(Inode::of).ok_or(Errno::STALE)?;
            return Ok(Known { inode, is_current: false });
        }
        let ticket = self.cache.ticket();
        let page = self.page(0, ino, 0, PAGE)?;
        let (dir, inode) = match page.heads.as_slice() {
            [dir, inode] => (dir.attr.ino, *inode),
            // If an inode has lost its last name, its home directory may be gone. Then the database
            // returns only the inode.
            [inode] if inode.attr.ino == ino => {
                return Ok(Known { inode: *inode, is_current: false });
            }
            _ => return Err(Errno::STALE),
        };
        let is_cached = page.may_be_cached
            && self.cache.fill(ticket, dir, &page.heads, 0, &page.names, page.at_end);
        // Another mount may have moved the inode to a new home directory before `cw_fill` locked
        // `dir`. Then its attributes are not covered by the lease.
        Ok(Known { inode, is_current: is_cached && inode.cover() == dir })
    }

    pub(crate) fn list(&self, dir: u64, after: u64) -> Result<(Page, bool), Errno> {
        let may_cache = !self.session.left().is_zero() && !self.cache.is_changing(dir);
        let ticket = self.cache.ticket();
        let page = self.page(dir, 0, after, if may_cache { PAGE } else { SMALL_PAGE })?;
        if page.heads.is_empty() {
            return Err(Errno::STALE);
        }
        let is_cached = may_cache
            && page.may_be_cached
            && self.cache.fill(ticket, dir, &page.heads, after, &page.names, page.at_end);
        Ok((page, is_cached))
    }

    fn page(&self, dir: u64, ino: u64, after: u64, limit: i32) -> Result<Page, Errno> {
        let (dir, ino, after) = (dir as i64, ino as i64, after as i64);
        let rows = self.rows(FILL, &[&dir, &ino, &after, &limit])?;
        let mut page =
            Page { heads: Vec::new(), names: Vec::new(), at_end: false, may_be_cached: true };
        for row in &rows {
            let Some(inode) = Inode::of(row) else { continue };
            match row.get::<_, Option<&[u8]>>("name") {
                Some(name) => {
                    page.names.push((name.into(), row.get::<_, i64>("cookie") as u64, inode));
                }
                None => {
                    page.may_be_cached &= row.get::<_, i32>("code") != NOT_CACHED;
                    page.heads.push(inode);
                }
            }
        }
        page.at_end = page.names.len() < limit as usize;
        Ok(page)
    }

    /// Runs a read under the session, and returns its rows. If the database does not accept the
    /// session, renews or replaces the session, and repeats the read.
    fn rows(&self, sql: &'static str, params: &[Param<'_>]) -> Result<Vec<Row>, Errno> {
        self.session.close_unanswered()?;
        loop {
            let id = self.session.id();
            let mut all: Vec<Param<'_>> = vec![&id];
            all.extend_from_slice(params);
            let rows = self.session.database.query(sql, &all)?.rows;
            match rows.first().map(|row| row.get::<_, i32>("code")) {
                Some(DEAD) => self.session.reopen_now(id)?,
                Some(RESTARTED) => self.session.renew_now()?,
                _ => return Ok(rows),
            }
        }
    }

    /// Returns the extended attributes and ACLs of an inode.
    pub(crate) fn xattrs(&self, ino: u64) -> Result<Xattrs, Errno> {
        let known = self.inode(ino)?;
        if known.inode.flags & (HAS_XATTRS | HAS_ACCESS_ACL | HAS_DEFAULT_ACL) == 0 {
            return Ok(Xattrs::default());
        }
        if known.is_current
            && let Some(xattrs) = self.cache.xattrs(ino)
        {
            return Ok(xattrs);
        }
        let rows = self.session.database.query(XATTRS, &[&(ino as i64)])?.rows;
        let xattrs: Xattrs = Arc::new(rows.iter().map(|row| (row.get(0), row.get(1))).collect());
        if known.is_current {
            self.cache.keep_xattrs(ino, known.inode.version, &xattrs);
        }
        Ok(xattrs)
    }

    /// Makes a change, and updates the cache. If the change makes a name, the database gives the
    /// name a position in its directory. `names` gets this position, and returns the new states of
    /// the changed names.
    pub(crate) fn change<'a>(
        &self,
        change: &Change<'a>,
        sql: &'static str,
        params: &[Param<'_>],
        names: impl FnOnce(u64) -> Vec<(u64, &'a [u8], Option<Entry>)>,
    ) -> Result<Changed, Errno> {
        let begun = self.cache.begin(change);
        let may_have_answers = self.cache.gives_times || self.session.was_alone();
        if may_have_answers && self.session.kernel_time().is_zero() {
            let end = self.cache.expire_changed(change);
            thread::sleep(end.saturating_sub(boot_time()));
        }
        // A file lock protects contents and attributes, but not names. So only a change without
        // names is bound to the session of the lock.
        let bound = match change.names.is_empty() {
            true => self.locks.session_of(&change.inos),
            false => None,
        };
        match self.session.change(bound, sql, params) {
            Ok(rows) => {
                let cookie = rows.first().map_or(0, |row| row.get::<_, i64>(1)) as u64;
                let inodes: Vec<Inode> = rows.iter().filter_map(Inode::of).collect();
                self.cache.end(change, begun, &names(cookie), &inodes);
                Ok(Changed { begun, inodes })
            }
            Err(errno) => {
                self.cache.end_failed(change, UNCHANGED.contains(&errno));
                Err(errno)
            }
        }
    }

    pub(crate) fn cover(&self, ino: u64) -> Vec<u64> {
        self.cache.inode(ino).map(|inode| inode.cover()).into_iter().collect()
    }

    pub(crate) fn with_ttl(&self, known: Known, is_name_cached: bool) -> Attr {
        let left = self.session.kernel_time();
        if is_name_cached && !left.is_zero() {
            self.cache.give_names_alone(boot_time() + left);
        }
        let time = |is_cached: bool| Some(if is_cached { left } else { Duration::ZERO });
        let ttl = Ttl { entry: time(is_name_cached), attr: time(known.is_current) };
        known.inode.attr.with_ttl(ttl)
    }

    /// Returns how long the kernel may keep a name, and records that (guarantee K.7 in `lib.rs`).
    /// `found` is the inode, or None for an absent name.
    pub(crate) fn name_ttl(&self, dir: u64, name: &[u8], found: Option<u64>) -> Duration {
        let alone = self.session.kernel_time();
        let left = if alone.is_zero() { self.session.left() } else { alone };
        let end = boot_time() + left;
        let is_given = self.cache.give_name((dir, name), found, end, !alone.is_zero());
        if is_given { left } else { Duration::ZERO }
    }

    /// Returns how long the kernel may keep the attributes of an inode, and records that (guarantee
    /// K.7 in `lib.rs`).
    pub(crate) fn attributes_ttl(&self, known: Known) -> Duration {
        let alone = self.session.kernel_time();
        let is_given = known.is_current
            && (!alone.is_zero()
                || self.cache.give_attributes(known.inode.attr.ino, known.inode.version));
        match is_given {
            true if alone.is_zero() => self.session.left(),
            true => alone,
            false => Duration::ZERO,
        }
    }
}
