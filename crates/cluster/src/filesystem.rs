//! The back end: the methods of [`FileSystem`], on top of `meta.rs` and `data.rs`.
//!
//! The FUSE server runs with `Options::shared`, because other mounts may change the files. So it
//! asks this back end for each name and attribute that the kernel asks for. The cached directories
//! answer most of these requests. Each answer says how long the kernel may keep it.
//!
//! # Inodes without a name
//! An inode may lose its last name while it is still in use. Then it stays in the database as an
//! *orphan* of the session, until the server calls `forget` for it. A mount purges up to 256
//! orphans at a time. If a mount has died, another mount purges its orphans ten minutes later.

mod attributes;
mod names;

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use corewalk::acl::Acl;
use corewalk::{
    AclKind, Attr, ClientCache, DirEntry, DirSink, Errno, Fallocate, FileKind, FileLock,
    FileSystem, Leases, Make, Name, Node, OpenFlags, Opened, RenameMode, SetAttr, StatFs, Ttl,
    XattrMode, errno_of,
};
use corewalk_base::{Mutex, ShardedCounter};
use tokio::runtime::Runtime;

use crate::connection::{Database, DatabaseError};
use crate::data::{DiskCache, Files};
use crate::directory::{Cache, Listed};
use crate::intents;
use crate::limits::Usage;
use crate::locks::Locks;
use crate::meta::{Known, Meta};
use crate::node::Inode;
use crate::objects::Objects;
use crate::options::{ClusterOptions, Place, Url};
use crate::session::{Caches, Holder, Refusal, Session, keep_alive};

const ROOT: u64 = 1;
/// Mask of the access mode in the open flags. The access mode is 0 if the file is open for reading
/// only.
const O_ACCMODE: u32 = 3;
const BLOCK_BYTES: u64 = 4096;
/// The free blocks (1 PiB) and free inodes that statfs(2) reports without a limit.
const UNLIMITED_BLOCKS: u64 = 1 << 38;
/// How long the end of a mount waits for a database that does not answer.
const END_LIMIT: Duration = Duration::from_secs(10);
const PURGE_COUNT: usize = 256;
const OBJECTS_COUNT: i32 = 64;
const COLLECT_ROUNDS: u32 = 64;
/// Unused objects stay for this time, so that readers that still know them can finish.
const OBJECT_AGE: Duration = Duration::from_secs(60);
/// How many calls of `maintain` there are between two searches for unused objects and for orphans
/// of dead mounts. `maintain` is called once a second.
const COLLECT_EVERY: u32 = 30;

const STATFS: &str = "SELECT * FROM cw_statfs(true)";
const READLINK: &str = "SELECT cw_readlink($1)";
const PURGE: &str = "SELECT * FROM cw_purge($1, $2, $3, $4)";
const REAP: &str = "SELECT cw_reap($1)";
const DEAD_OBJECTS: &str = "SELECT cw_dead_objects($1, $2)";
const FORGET_OBJECTS: &str = "SELECT cw_forget_objects($1)";

/// A mounted cluster file system.
///
/// # Examples
/// ```no_run
/// use corewalk_cluster::{ClusterFs, ClusterOptions, Url};
///
/// let url = Url::parse("pg://me@db.example.org/files")?;
/// let fs = ClusterFs::open(&url, &ClusterOptions::default())?;
/// fs.close()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ClusterFs {
    /// The UUID of the file system.
    id: String,
    pub(crate) meta: Arc<Meta>,
    pub(crate) data: Files,
    objects: Objects,
    pub(crate) nameless: Mutex<Nameless>,
    ticks: Mutex<u32>,
    has_locks: bool,
    /// The runtime of the mount. It is the last field, because everything that uses it must be
    /// dropped first.
    _runtime: Runtime,
}

#[derive(Debug, Default)]
pub(crate) struct Nameless {
    pub(crate) used: HashSet<u64>,
    forgotten: Vec<i64>,
}

/// The reason why a file system cannot be opened.
#[derive(Debug)]
#[non_exhaustive]
pub enum OpenError {
    /// The database cannot be reached, or reports an error.
    Database(DatabaseError),
    /// There is no file system in the database.
    NoFileSystem,
    /// The file system already has the maximum number of mounts. The value describes one of these
    /// mounts.
    Busy(Holder),
    /// The `data=` of the URL differs from the one that the database has stored. The value is the
    /// stored one.
    OtherData(String),
    /// The database has stored a `data=` that this program does not support. The value is that
    /// text.
    UnknownData(String),
    /// The identity of the file system is no UUID.
    UnknownIdentity(String),
    /// The database has another version of the tables than this program expects.
    Version(i32),
    /// The object store cannot be opened or listed.
    Objects(std::io::Error),
    /// The directory of the cache on disk cannot be used.
    CacheDirectory(std::io::Error),
    /// The runtime cannot be started.
    Runtime(std::io::Error),
}

impl ClusterFs {
    /// Opens the file system at `url` and begins a session.
    ///
    /// # Errors
    /// The reason why the file system cannot be opened.
    pub fn open(url: &Url, options: &ClusterOptions) -> Result<ClusterFs, OpenError> {
        let runtime = new_runtime().map_err(OpenError::Runtime)?;
        let database = Database::new(
            runtime.handle().clone(),
            url.address.clone(),
            options.connections,
            options.unreachable,
        );
        let database = Arc::new(database.map_err(OpenError::Runtime)?);
        let cache = Arc::new(Cache::new(options));
        let caches: Arc<dyn Caches> = cache.clone();
        let opened = Session::open(database, Arc::downgrade(&caches), options.lease, options.flaws);
        let (session, stored) = opened.map_err(|refusal| match refusal {
            Refusal::Database(error) => OpenError::Database(error),
            Refusal::NoFormat | Refusal::OtherFileSystem => OpenError::NoFileSystem,
            Refusal::Version(version) => OpenError::Version(version),
            Refusal::Busy(holder) => OpenError::Busy(holder),
        })?;
        let session = Arc::new(session);
        // Keep the session alive from now on, because the next steps may take longer than a lease.
        // For example, a large cache on disk has many files to list.
        runtime.spawn(keep_alive(Arc::downgrade(&session), options.lease));
        let unknown = || OpenError::UnknownData(stored.data.clone());
        let place = match (Place::parse(&stored.data).map_err(|_| unknown()), url.data()) {
            (Ok(place), Some(given)) if *given != place => {
                Err(OpenError::OtherData(stored.data.clone()))
            }
            (place, _) => place,
        };
        let objects = place.and_then(|place| {
            let place = place.of_file_system(&stored.id);
            let place = place.ok_or_else(|| OpenError::UnknownIdentity(stored.id.clone()))?;
            let objects = Objects::open(&place, &options.settings).map_err(OpenError::Objects)?;
            let open = |folder| DiskCache::open(folder, &stored.id, options.disk_cache_bytes);
            let disk = options.disk_cache.as_deref().map(open).transpose();
            Ok((objects, disk.map_err(OpenError::CacheDirectory)?))
        });
        let (objects, disk) = objects.inspect_err(|_| {
            // An error is ignored, because a session that is not renewed ends after its lease time.
            let _ = session.end();
        })?;
        runtime.spawn(intents::listen(Arc::downgrade(&session), options.flaws));
        let meta = Arc::new(Meta { session, cache, locks: Locks::default() });
        let fs = ClusterFs {
            id: stored.id,
            data: Files::new(meta.clone(), objects.clone(), disk),
            meta,
            objects,
            nameless: Mutex::default(),
            ticks: Mutex::new(0),
            has_locks: !options.local_locks,
            _runtime: runtime,
        };
        if let Err(errno) = fs.reap() {
            log::warn!("files without a name that a dead mount has left stay: {errno}");
        }
        Ok(fs)
    }

    /// Flushes the dirty bytes of all files, and ends the session. Later changes fail.
    ///
    /// # Errors
    /// The first error of a write.
    pub fn close(&self) -> Result<(), Errno> {
        self.meta.session.database.end_after(END_LIMIT);
        let flushed = self.data.flush_old(|ino| self.is_nameless(ino), true);
        let purged = {
            let mut nameless = self.nameless.lock();
            let used: Vec<u64> = nameless.used.drain().collect();
            nameless.forgotten.extend(used.iter().map(|ino| *ino as i64));
            drop(nameless);
            self.purge()
        };
        flushed.and(purged).and(self.meta.session.end())
    }

    /// Returns the identity of the file system, which no other file system has: a UUID.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns how many bytes programs have written that are only in the memory of this mount,
    /// because they are not flushed yet.
    pub fn dirty_bytes(&self) -> u64 {
        self.data.dirty_bytes.sum().max(0) as u64
    }

    /// Returns the attributes for the kernel, with the size and the time of writes that are not
    /// flushed yet.
    pub(crate) fn attr(&self, known: Known, is_name_cached: bool) -> Attr {
        self.data.seen(self.meta.with_ttl(known, is_name_cached), known.inode.version)
    }

    pub(crate) fn attr_after(&self, inode: Inode, is_name_cached: bool) -> Attr {
        let is_live = !self.meta.session.left().is_zero();
        let current = is_live.then(|| self.meta.cache.inode(inode.attr.ino)).flatten();
        let known = match current {
            Some(inode) => Known { inode, is_current: true },
            None => Known { inode, is_current: false },
        };
        self.attr(known, is_name_cached)
    }

    /// Returns true if the periodic flush must not write a file, because the file has no name or
    /// its locks are lost.
    fn is_kept(&self, ino: u64) -> bool {
        self.is_nameless(ino) || self.meta.has_lost_locks(ino)
    }

    pub(crate) fn is_nameless(&self, ino: u64) -> bool {
        self.nameless.lock().used.contains(&ino)
    }

    /// Makes a call that may reach a limit of the file system. If it does, purges the orphans that
    /// the server has forgotten, and asks the database how much is used now. Then makes the call
    /// once more.
    fn with_room<T>(&self, call: impl Fn() -> Result<T, Errno>) -> Result<T, Errno> {
        match call() {
            Err(Errno::NOSPC) if self.meta.session.room.is_limited() => {
                self.purge()?;
                self.meta.session.room.learn(self.usage()?);
                call()
            }
            done => done,
        }
    }

    fn usage(&self) -> Result<Usage, Errno> {
        let reply = self.meta.session.database.query(STATFS, &[])?;
        reply.rows.first().map(Usage::of).ok_or(Errno::IO)
    }

    /// Removes orphans from the database after the server has called `forget` for them.
    fn purge(&self) -> Result<(), Errno> {
        loop {
            let batch: Vec<i64> = {
                let mut nameless = self.nameless.lock();
                let keep = nameless.forgotten.len().saturating_sub(PURGE_COUNT);
                nameless.forgotten.split_off(keep)
            };
            if batch.is_empty() {
                return Ok(());
            }
            if let Err(errno) = self.meta.session.change(None, PURGE, &[&batch]) {
                self.nameless.lock().forgotten.extend(batch);
                return Err(errno);
            }
        }
    }

    fn reap(&self) -> Result<(), Errno> {
        loop {
            let reply = self.meta.session.database.query(REAP, &[&(PURGE_COUNT as i32)])?;
            let batch: Vec<i64> = reply.rows.first().ok_or(Errno::IO)?.get(0);
            if batch.is_empty() {
                return Ok(());
            }
            self.meta.session.change(None, PURGE, &[&batch])?;
        }
    }

    fn collect_objects(&self) -> Result<(), Errno> {
        let database = &self.meta.session.database;
        let age = OBJECT_AGE.as_secs_f64();
        for _ in 0..COLLECT_ROUNDS {
            let reply = database.query(DEAD_OBJECTS, &[&age, &OBJECTS_COUNT])?;
            let keys: Vec<String> = reply.rows.first().ok_or(Errno::IO)?.get(0);
            if keys.is_empty() {
                break;
            }
            let delete = keys.iter().map(|key| self.objects.delete(key));
            database.block_on(futures_util::future::try_join_all(delete)).map_err(errno_of)?;
            database.query(FORGET_OBJECTS, &[&keys])?;
        }
        Ok(())
    }
}

pub(crate) fn new_runtime() -> std::io::Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("corewalk-cluster")
        .enable_all()
        .build()
}

impl FileSystem for ClusterFs {
    fn root(&self) -> Result<Attr, Errno> {
        Ok(self.attr(self.meta.inode(ROOT)?, true))
    }

    fn lookup(&self, dir: Node<'_>, name: Name<'_>) -> Result<Attr, Errno> {
        let (known, is_name_cached) = self.meta.lookup(dir.ino(), name.as_bytes())?;
        let attr = self.attr(known, is_name_cached);
        let entry = self.meta.name_ttl(dir.ino(), name.as_bytes(), Some(attr.ino));
        Ok(attr.with_ttl(Ttl { entry: Some(entry), ..attr.ttl }))
    }

    fn by_number(&self, ino: u64, generation: Option<u64>) -> Result<Attr, Errno> {
        let known = self.meta.inode(ino)?;
        if known.inode.attr.nlink == 0 || generation.is_some_and(|generation| generation != 0) {
            return Err(Errno::STALE);
        }
        Ok(self.attr(known, true))
    }

    fn parent(&self, dir: Node<'_>) -> Result<u64, Errno> {
        let inode = self.meta.inode(dir.ino())?.inode;
        if inode.attr.nlink == 0 { Err(Errno::STALE) } else { Ok(inode.home) }
    }

    fn getattr(&self, node: Node<'_>) -> Result<Attr, Errno> {
        let known = self.meta.inode(node.ino())?;
        let attr = self.attr(known, false);
        Ok(attr.with_ttl(Ttl { attr: Some(self.meta.attributes_ttl(known)), ..attr.ttl }))
    }

    fn setattr(&self, node: Node<'_>, set: &SetAttr) -> Result<Attr, Errno> {
        self.with_room(|| self.set_attributes(node, set))
    }

    fn make(&self, dir: Node<'_>, name: Name<'_>, what: &Make<'_>) -> Result<Attr, Errno> {
        self.with_room(|| self.make_inode(dir.ino(), Some(name), what))
    }

    fn remove(&self, dir: Node<'_>, name: Name<'_>, node: Node<'_>) -> Result<(), Errno> {
        self.remove_name(dir.ino(), name, node.ino())
    }

    fn rename(
        &self,
        from: (Node<'_>, Name<'_>),
        to: (Node<'_>, Name<'_>),
        mode: RenameMode,
    ) -> Result<(), Errno> {
        self.rename_name((from.0.ino(), from.1), (to.0.ino(), to.1), mode)
    }

    fn readdir(&self, dir: Node<'_>, cookie: u64, sink: &mut DirSink<'_>) -> Result<(), Errno> {
        let mut report = |name: &[u8], cookie: u64, inode: &Inode, is_current, is_cached| {
            let attr = self.attr(Known { inode: *inode, is_current }, is_cached);
            match Name::new(name) {
                Ok(name) => sink(DirEntry::from_attr(name, attr, cookie)),
                // Skip a name in the database that Linux does not allow.
                Err(_) => ControlFlow::Continue(()),
            }
        };
        let mut cookie = cookie;
        while !self.meta.session.left().is_zero() {
            let mut from_cache = |name: &[u8], cookie, inode: &Inode, is_current| {
                report(name, cookie, inode, is_current, true)
            };
            match self.meta.cache.list(dir.ino(), cookie, &mut from_cache) {
                Listed::End => return Ok(()),
                Listed::More(last) => cookie = last,
                Listed::Unknown => break,
            }
        }
        let (page, is_cached) = self.meta.list(dir.ino(), cookie)?;
        for (name, cookie, inode) in &page.names {
            let is_current = is_cached && inode.cover() == dir.ino();
            if report(name, *cookie, inode, is_current, is_cached).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn read(&self, node: Node<'_>, offset: u64, buf: &mut [u8]) -> Result<usize, Errno> {
        self.meta.check_locks(node.ino(), node.handle())?;
        self.data.read(node.ino(), offset, buf)
    }

    fn write(&self, node: Node<'_>, offset: u64, bytes: &[u8]) -> Result<usize, Errno> {
        self.with_room(|| self.data.write((node.ino(), node.handle()), Some(offset), bytes))
    }

    fn append(&self, node: Node<'_>, _: u64, bytes: &[u8]) -> Result<usize, Errno> {
        self.with_room(|| self.data.write((node.ino(), node.handle()), None, bytes))
    }

    fn link(&self, node: Node<'_>, dir: Node<'_>, name: Name<'_>) -> Result<Attr, Errno> {
        self.add_name(node.ino(), dir.ino(), name)
    }

    fn readlink(&self, node: Node<'_>) -> Result<Vec<u8>, Errno> {
        let reply = self.meta.session.database.query(READLINK, &[&(node.ino() as i64)])?;
        let target: Option<Vec<u8>> = reply.rows.first().ok_or(Errno::STALE)?.get(0);
        target.ok_or(Errno::STALE)
    }

    fn tmpfile(&self, dir: Node<'_>, what: &Make<'_>) -> Result<Attr, Errno> {
        match FileKind::from_mode(what.mode) {
            Some(FileKind::Regular) => self.with_room(|| self.make_inode(dir.ino(), None, what)),
            _ => Err(Errno::INVAL),
        }
    }

    /// Opens a file with a handle of its own. The server uses the handle to end the locks of this
    /// open file.
    fn open(&self, node: Node<'_>, access: u32) -> Result<Opened, Errno> {
        if node.kind() != FileKind::Regular {
            return Ok(Opened::default());
        }
        let handle = self.data.open(node.ino(), access & O_ACCMODE != 0);
        let keeps = self.meta.cache.note_open(node.ino());
        let flags = if keeps { OpenFlags::KEEP_CACHE } else { OpenFlags::empty() };
        Ok(Opened::new(handle).with_flags(flags))
    }

    fn has_open_state(&self) -> bool {
        true
    }

    /// After close(2), other mounts must be able to read the bytes. So they are flushed here.
    fn flush(&self, node: Node<'_>) -> Result<(), Errno> {
        self.meta.check_locks(node.ino(), node.handle())?;
        // No other mount can open a file without a name.
        if self.is_nameless(node.ino()) {
            Ok(())
        } else {
            self.data.flush(node.ino(), writer(node))
        }
    }

    fn release(&self, node: Node<'_>) {
        if node.kind() != FileKind::Regular || node.handle() == 0 {
            return;
        }
        // The program may have written through a memory mapping after the last flush.
        if let Err(errno) = self.flush(node) {
            log::error!("inode {}: bytes were not written when it was closed: {errno}", node.ino());
        }
        self.data.close(node.ino());
    }

    fn fsync_waits(&self) -> bool {
        true
    }

    fn fsync(&self, node: Node<'_>, _: bool) -> Result<(), Errno> {
        self.meta.check_locks(node.ino(), node.handle())?;
        self.data.flush(node.ino(), writer(node))
    }

    fn statfs(&self) -> Result<StatFs, Errno> {
        let usage = self.usage()?;
        let bytes = usage.bytes.saturating_add(self.meta.session.room.uncounted());
        // More may be used than a new limit allows. df(1) computes the used space as the total
        // minus the free space. So the total must not be smaller than the used space.
        let total = |used: u64, max: Option<u64>| match max {
            Some(max) => max.max(used),
            None => used.saturating_add(UNLIMITED_BLOCKS),
        };
        let used = bytes.div_ceil(BLOCK_BYTES);
        let blocks = total(used, usage.max_bytes.map(|max| max / BLOCK_BYTES));
        let files = total(usage.inodes, usage.max_inodes);
        Ok(StatFs::default()
            .with_bsize(BLOCK_BYTES as u32)
            .with_blocks(blocks)
            .with_bfree(blocks - used)
            .with_bavail(blocks - used)
            .with_files(files)
            .with_ffree(files - usage.inodes))
    }

    fn fallocate(
        &self,
        node: Node<'_>,
        offset: u64,
        len: u64,
        how: Fallocate,
    ) -> Result<(), Errno> {
        self.with_room(|| self.allocate((node.ino(), node.handle()), offset, len, how))
    }

    fn getxattr(&self, node: Node<'_>, name: &[u8]) -> Result<Vec<u8>, Errno> {
        self.xattr(node, name)
    }

    fn setxattr(
        &self,
        node: Node<'_>,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<(), Errno> {
        self.set_xattr(node, name, Some(value), mode)
    }

    fn listxattr(&self, node: Node<'_>) -> Result<Vec<u8>, Errno> {
        self.list_xattrs(node.ino())
    }

    fn removexattr(&self, node: Node<'_>, name: &[u8]) -> Result<(), Errno> {
        self.set_xattr(node, name, None, XattrMode::Set)
    }

    fn get_acl(&self, node: Node<'_>, kind: AclKind) -> Result<Option<Acl>, Errno> {
        self.acl(node.ino(), kind)
    }

    fn set_acl(
        &self,
        node: Node<'_>,
        kind: AclKind,
        acl: Option<&Acl>,
        mode: Option<u32>,
    ) -> Result<(), Errno> {
        self.change_acl(node, kind, acl, mode)
    }

    fn has_locks(&self) -> bool {
        self.has_locks
    }

    fn get_lock(&self, node: Node<'_>, lock: &FileLock) -> Result<Option<FileLock>, Errno> {
        self.find_lock(node.ino(), lock)
    }

    fn set_lock(&self, node: Node<'_>, lock: &FileLock) -> Result<(), Errno> {
        self.change_lock(node, lock)
    }

    fn unlock_owner(&self, node: Node<'_>, owner: u64, is_flock: bool) -> Result<(), Errno> {
        self.drop_locks(node, owner, is_flock)
    }

    fn forget(&self, ino: u64, _: u64) {
        let is_full = {
            let mut nameless = self.nameless.lock();
            if !nameless.used.remove(&ino) {
                return;
            }
            nameless.forgotten.push(ino as i64);
            nameless.forgotten.len() >= PURGE_COUNT
        };
        self.data.discard(ino);
        self.meta.cache.remove(ino);
        if is_full && let Err(errno) = self.purge() {
            log::warn!("files without a name stay until the next mount: {errno}");
        }
    }

    fn maintain(&self) {
        let flushed = self.data.flush_old(|ino| self.is_kept(ino), false);
        let mut done = vec![
            ("the flush of written bytes", flushed),
            ("the end of removed files", self.purge()),
            ("the unlocking of files", self.repeat_unlocks(None)),
        ];
        let is_turn = {
            let mut ticks = self.ticks.lock();
            *ticks = ticks.wrapping_add(1);
            ticks.is_multiple_of(COLLECT_EVERY)
        };
        if is_turn {
            done.push(("the end of files that dead mounts have left", self.reap()));
            done.push(("the deletion of unused objects", self.collect_objects()));
        }
        // Do not warn at the end of the mount. It cancels the calls that are under way, and then
        // does the first two steps itself.
        let is_ending = self.meta.session.database.is_ending();
        // All steps have run, even if some failed.
        for (what, result) in done {
            if let Err(errno) = result
                && !is_ending
            {
                log::warn!("{what} is put off: {errno}");
            }
        }
    }

    fn leases(&self) -> Option<&dyn Leases> {
        Some(self)
    }

    fn counters(&self, sink: &mut dyn FnMut(&'static str, u64)) {
        let counters = &self.meta.session.database.counters;
        sink("cluster_statements", counters.statements.sum().max(0) as u64);
        sink("cluster_connections_opened", counters.connections.sum().max(0) as u64);
        let session = &self.meta.session;
        let count = |counter: &ShardedCounter| counter.sum().max(0) as u64;
        sink("cluster_sessions", session.sessions());
        sink("cluster_leases", self.meta.cache.leases() as u64);
        sink("cluster_intents_seen", count(&session.post.intents));
        sink("cluster_acknowledgements", count(&session.post.acknowledgements));
        sink("cluster_waits", count(&session.post.waits));
        let (names, attributes) = self.meta.cache.expiries();
        sink("cluster_name_expiries", names);
        sink("cluster_attribute_expiries", attributes);
        sink("cluster_cached_entries", self.meta.cache.len() as u64);
        sink("cluster_dirty_bytes", self.dirty_bytes());
        let disk = self.data.disk.as_ref();
        sink("cluster_disk_hits", disk.map_or(0, |disk| count(&disk.hits)));
        sink("cluster_disk_misses", disk.map_or(0, |disk| count(&disk.misses)));
        sink("cluster_disk_bytes", disk.map_or(0, |disk| disk.bytes()));
    }
}

impl Leases for ClusterFs {
    fn attach(&self, client: Arc<dyn ClientCache>) {
        self.meta.cache.attach(client);
    }

    fn absent_ttl(&self, dir: u64, name: Name<'_>) -> Duration {
        self.meta.name_ttl(dir, name.as_bytes(), None)
    }

    fn name_was_late(&self) {
        self.meta.cache.expire_late_name();
    }
}

impl Drop for ClusterFs {
    fn drop(&mut self) {
        // End the session now. Otherwise changes of other mounts would wait until its lease time is
        // over.
        if !self.meta.session.left().is_zero()
            && let Err(errno) = self.close()
        {
            log::error!("the end of the mount: {errno}");
        }
    }
}

impl std::fmt::Debug for ClusterFs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClusterFs").field("session", &self.meta.session).finish_non_exhaustive()
    }
}

/// Returns the handle of an open file, or None if the file is open for reading only.
pub(crate) fn writer(node: Node<'_>) -> Option<u64> {
    Some(node.handle()).filter(|handle| *handle == 0 || handle & 1 == 1)
}

impl std::fmt::Display for OpenError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            OpenError::Database(error) => error.fmt(f),
            OpenError::NoFileSystem => {
                f.write_str("there is no file system in this database; make one with corewalk mkfs")
            }
            OpenError::Busy(Holder { host, pid, since }) => write!(
                f,
                "it has too many mounts already; one is on {host}, pid {pid}, since {since}"
            ),
            OpenError::OtherData(stored) => write!(f, "its data is in {stored}"),
            OpenError::UnknownData(stored) => {
                write!(f, "its data is in {stored}, which this version does not support")
            }
            OpenError::UnknownIdentity(id) => write!(f, "its identity is {id}, which is no UUID"),
            OpenError::Version(version) => {
                write!(f, "it has version {version}, which this program does not support")
            }
            OpenError::Objects(error) => write!(f, "its objects cannot be used: {error}"),
            OpenError::CacheDirectory(error) => {
                write!(f, "the directory of its cache cannot be used: {error}")
            }
            OpenError::Runtime(error) => write!(f, "cannot start threads: {error}"),
        }
    }
}

impl std::error::Error for OpenError {}
