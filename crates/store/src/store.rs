//! The store: mount, periodic commits, unmount.
//!
//! The module `mount` checks a store before anything is changed. Then the mount frees the inodes
//! without links that a crash has left.
//!
//! A background thread, the committer, commits every few seconds if anything has changed.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use corewalk::attr::mode;
use corewalk::{AtimePolicy, Errno, FileKind, Node};
use corewalk_base::Budget;
use corewalk_base::primitives::atomic::{AtomicU64, Ordering};
use corewalk_base::primitives::thread;
use corewalk_mbcache::MbcacheOptions;

use crate::alloc::Allocator;
use crate::blocks::Blocks;
use crate::content::{BLOCK_BYTES, FileTx};
use crate::database::{Database, Snapshot};
use crate::hash::Secret;
use crate::inode::{Inode, State, now};
use crate::inode_table::InodeTable;
use crate::journal::{Devices, Journal, View};
use crate::late::Late;
use crate::log::Log;
use crate::mount::{BufferedDatabase, Mount};
use crate::record::{FORMAT_VERSION, InodeRecord, Key, Kind, NUMBER_MAX, SuperRecord};
use crate::share::{MbcacheIndex, ShareIndex};
use crate::store_dir::{OpenError, StoreDir};
use crate::xattr;

pub(crate) const ROOT_INO: u64 = 1;
const LOOK_EVERY: Duration = Duration::from_millis(100);
const INDEX_BYTES: u64 = 4 << 20;

/// The options of a mount.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use corewalk_store::StoreOptions;
///
/// let every = Duration::from_secs(30);
/// let options = StoreOptions::default().with_size_bytes(1 << 30).with_commit_every(every);
/// assert!(options.is_made && !options.is_read_only);
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct StoreOptions {
    /// Maximum number of bytes of file data and extended attributes, rounded up to blocks of 4096
    /// bytes (`size=`). None means that only the free space of the host limits them.
    pub size_bytes: Option<u64>,
    /// Maximum number of inodes, including the root directory (`nr_inodes=`). None means no limit.
    pub inodes_max: Option<u64>,
    /// Interval of the periodic commits (`commit=`). None means that a transaction is committed
    /// only by a sync, when it becomes too large, or when the store is closed.
    pub commit_every: Option<Duration>,
    /// If the records of the running transaction take more bytes than this, a commit starts early.
    /// If they take more than twice as many, operations wait for it.
    pub transaction_bytes: u64,
    /// Length of the write-ahead log in bytes. Below 8192 bytes, the store has no log.
    pub log_bytes: u64,
    /// Memory for the page cache of the database, in bytes.
    pub cache_bytes: usize,
    /// The permission bits of the root directory of a new store.
    pub root_mode: u32,
    /// The owner of the root directory of a new store.
    pub root_uid: u32,
    /// The group of the root directory of a new store.
    pub root_gid: u32,
    /// The de-duplication index of attribute sets. None means `corewalk-mbcache` with a budget of 4
    /// MiB.
    pub share: Option<Arc<dyn ShareIndex>>,
    /// Which reads update the access time (`relatime`, `noatime`, `strictatime`, `nodiratime`).
    pub atime: AtimePolicy,
    /// True if a change of a directory must be durable when its call returns (`dirsync`).
    pub is_dirsync: bool,
    /// True if a mount makes a new store when there is none (`create`, `no_create`).
    pub is_made: bool,
    /// True for a read-only mount (`ro`). Changes fail with `EROFS`, no store is made, and inodes
    /// without links are not freed. As in ext4, the mount still replays the log. If the host's file
    /// system is read-only, it replays the log only in memory.
    pub is_read_only: bool,
    /// True if an inode whose attributes change often gets a private attribute block, which is
    /// de-duplicated at the next commit. If false, every change is de-duplicated immediately.
    pub is_sharing_late: bool,
}

impl Default for StoreOptions {
    /// By default, the size and the number of inodes are not limited, and a missing store is made.
    /// The root directory belongs to user 0 and has mode 755. The mount uses `relatime`.
    /// - A commit comes every 5 seconds, as in ext4. A transaction has up to 32 MiB, the log has 16
    ///   MiB, and the database has a cache of 64 MiB. De-duplication is deferred to the next
    ///   commit.
    fn default() -> StoreOptions {
        StoreOptions {
            size_bytes: None,
            inodes_max: None,
            commit_every: Some(Duration::from_secs(5)),
            transaction_bytes: 32 << 20,
            log_bytes: 16 << 20,
            cache_bytes: 64 << 20,
            root_mode: 0o755,
            root_uid: 0,
            root_gid: 0,
            share: None,
            atime: AtimePolicy::default(),
            is_dirsync: false,
            is_made: true,
            is_read_only: false,
            is_sharing_late: true,
        }
    }
}

impl StoreOptions {
    corewalk_base::setters! {
        with_size_bytes: size_bytes = impl Into<Option<u64>>;
        with_inodes_max: inodes_max = impl Into<Option<u64>>;
        with_commit_every: commit_every = impl Into<Option<Duration>>;
        with_transaction_bytes: transaction_bytes = u64;
        with_log_bytes: log_bytes = u64;
        with_cache_bytes: cache_bytes = usize;
        with_root_mode: root_mode = u32;
        with_root_uid: root_uid = u32;
        with_root_gid: root_gid = u32;
        with_share: share = Option<Arc<dyn ShareIndex>>;
        with_atime: atime = AtimePolicy;
        with_dirsync: is_dirsync = bool;
        with_made: is_made = bool;
        with_read_only: is_read_only = bool;
        with_sharing_late: is_sharing_late = bool;
    }

    fn may_make(&self) -> bool {
        self.is_made && !self.is_read_only
    }
}

/// Counters and sizes of a mounted store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreStats {
    /// Commits since the mount, to the log and to the database.
    pub commits: u64,
    /// Commits to the log.
    pub logged_commits: u64,
    /// Bytes that these commits wrote to the log.
    pub logged_bytes: u64,
    /// Number of transactions that went to the database because writing or syncing the log failed.
    pub log_failures: u64,
    /// Sync calls whose changes were committed by another thread.
    pub shared_commits: u64,
    /// Records written by commits to the database.
    pub records: u64,
    /// Syncs of the host's files, for commits and for file data.
    pub syncs: u64,
    /// Number of operations that waited for a commit because the running transaction was too large.
    pub waits: u64,
    /// Inodes, including the root directory.
    pub inodes: u64,
    /// Blocks of 4096 bytes in use by file data and attributes.
    pub blocks: u64,
    /// Attribute blocks.
    pub xattr_blocks: u64,
    /// Inodes that use an attribute block.
    pub xattr_users: u64,
    /// Number of inodes that wait for de-duplication at the next commit. Until then, each may have
    /// a private attribute block.
    pub xattr_waiting: u64,
    /// Blocks of 4096 bytes saved by the sharing of attribute blocks.
    pub xattr_saved_blocks: u64,
    /// Searches for an equal attribute set that found one.
    pub xattr_hits: u64,
    /// Searches for an equal attribute set that found none.
    pub xattr_misses: u64,
    /// Entries of the de-duplication index.
    pub xattr_entries: u64,
    /// Entries dropped from the de-duplication index to make room.
    pub xattr_reclaimed: u64,
    /// Estimated bytes of records in the running transaction.
    pub running_bytes: u64,
    /// Estimated bytes of records that are in the log but not in the database.
    pub logged_running_bytes: u64,
    /// Length of the log in bytes. It is 0 if the store has no log, for example because the host
    /// had no space for it.
    pub log_bytes: u64,
    /// True if the reserve, the space for commits on a full host, is allocated.
    pub has_reserve: bool,
    /// True if changes are refused because the mount is read-only or a commit has failed.
    pub is_read_only: bool,
}

impl StoreStats {
    /// Returns each counter with its name, in a fixed order. A boolean is 0 or 1.
    ///
    /// # Examples
    /// ```
    /// let stats = corewalk_store::StoreStats::default();
    /// assert_eq!(stats.fields().next(), Some(("store_inodes", 0)));
    /// ```
    pub fn fields(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
        [
            ("store_inodes", self.inodes),
            ("store_used_bytes", self.blocks.saturating_mul(BLOCK_BYTES)),
            ("store_commits", self.commits),
            ("store_logged_commits", self.logged_commits),
            ("store_logged_bytes", self.logged_bytes),
            ("store_log_failures", self.log_failures),
            ("store_log_bytes", self.log_bytes),
            ("store_shared_commits", self.shared_commits),
            ("store_records", self.records),
            ("store_syncs", self.syncs),
            ("store_running_bytes", self.running_bytes),
            ("store_log_held_bytes", self.logged_running_bytes),
            ("store_waits", self.waits),
            ("store_xattr_blocks", self.xattr_blocks),
            ("store_xattr_users", self.xattr_users),
            ("store_xattr_waiting", self.xattr_waiting),
            ("store_xattr_saved_bytes", self.xattr_saved_blocks.saturating_mul(BLOCK_BYTES)),
            ("store_xattr_hits", self.xattr_hits),
            ("store_xattr_misses", self.xattr_misses),
            ("store_xattr_entries", self.xattr_entries),
            ("store_xattr_reclaimed", self.xattr_reclaimed),
            ("store_has_reserve", u64::from(self.has_reserve)),
            ("store_is_read_only", u64::from(self.is_read_only)),
        ]
        .into_iter()
    }
}

/// A file system in a directory of the host. [The crate](crate) describes its guarantees.
pub struct Store {
    pub(crate) table: Arc<InodeTable>,
    pub(crate) blocks: Arc<Blocks>,
    pub(crate) space: Arc<Budget>,
    pub(crate) late: Arc<Late>,
    pub(crate) inodes: Budget,
    pub(crate) secret: Secret,
    pub(crate) journal: Arc<Journal>,
    next_ino: AtomicU64,
    flusher: Option<thread::JoinHandle<()>>,
    /// The locked directory; None for a store on [`Devices`].
    pub(crate) store_dir: Option<StoreDir>,
    pub(crate) atime: AtimePolicy,
    pub(crate) is_dirsync: bool,
}

impl Store {
    /// Mounts the store in the directory `path`. Makes a store if the directory is empty or does
    /// not exist.
    ///
    /// # Errors
    /// See [`OpenError`]. [`OpenError::Missing`] if there is no store and the options forbid making
    /// one.
    ///
    /// # Examples
    /// ```
    /// use corewalk_store::{OpenError, Store, StoreOptions};
    ///
    /// # let dir = std::env::temp_dir().join(format!("store-doc1-{}", std::process::id()));
    /// let options = StoreOptions::default().with_size_bytes(1 << 30);
    /// let store = Store::open(&dir, &options)?;
    /// assert!(matches!(Store::open(&dir, &options), Err(OpenError::Busy)));
    /// # drop(store);
    /// # std::fs::remove_dir_all(&dir)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn open(path: &std::path::Path, options: &StoreOptions) -> Result<Store, OpenError> {
        let store_dir = match options.may_make() {
            false if options.is_read_only => StoreDir::open_unchanged(path)?,
            false => StoreDir::open(path)?,
            true => StoreDir::open_or_make(path, |meta| {
                let database = Database::open(&meta, options.cache_bytes)?;
                format(&database, options)
            })?,
        };
        let devices = store_dir.devices()?;
        let database = BufferedDatabase::open(&devices, options.cache_bytes)?;
        let mount = Mount::look(devices, database)?;
        let mut store = Store::open_with(mount, options, |devices| store_dir.make_lost(devices))?;
        store.store_dir = Some(store_dir);
        Ok(store)
    }

    /// Mounts the store on `devices`. Makes a store if all devices are empty.
    ///
    /// # Errors
    /// See [`OpenError`]; [`OpenError::Missing`] as for [`Store::open`].
    ///
    /// # Examples
    /// ```
    /// use std::sync::Arc;
    /// use corewalk_store::{Device, Devices, FileDevice, Store, StoreOptions};
    ///
    /// # let dir = std::env::temp_dir().join(format!("store-doc2-{}", std::process::id()));
    /// std::fs::create_dir(&dir)?;
    /// let device = |name| -> std::io::Result<Arc<dyn Device>> {
    ///     let mut open = std::fs::File::options();
    ///     let file = open.read(true).write(true).create_new(true).open(dir.join(name))?;
    ///     Ok(Arc::new(FileDevice::new(file)?))
    /// };
    /// let (meta, data) = (device("a")?, device("b")?);
    /// let devices = Devices { meta, data, reserve: device("c")?, log: device("d")? };
    /// let store = Store::open_devices(devices, &StoreOptions::default())?;
    /// assert_eq!(store.stats().inodes, 1);
    /// # drop(store);
    /// # std::fs::remove_dir_all(&dir)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn open_devices(devices: Devices, options: &StoreOptions) -> Result<Store, OpenError> {
        if !options.may_make() && devices.meta.is_empty()? {
            return Err(OpenError::Missing);
        }
        let database = BufferedDatabase::open(&devices, options.cache_bytes)?;
        if !database.has_store()? {
            if !devices.data.is_empty()? || !devices.log.is_empty()? {
                return Err(OpenError::Damaged);
            }
            drop(format(database.release()?, options)?);
        }
        Store::open_with(Mount::look(devices, database)?, options, Ok)
    }

    /// `make` makes the missing files.
    fn open_with(
        mount: Mount,
        options: &StoreOptions,
        make: impl FnOnce(Devices) -> std::io::Result<Devices>,
    ) -> Result<Store, OpenError> {
        let share = match &options.share {
            Some(share) => share.clone(),
            None => {
                let budget = MbcacheOptions::default().with_budget_bytes(INDEX_BYTES);
                Arc::new(MbcacheIndex::new(budget)?)
            }
        };
        // From here on, the mount changes the store.
        let (database, devices, superblock, found) = mount.settle(make)?;
        let has_reserve = devices.take_reserve() || {
            let _ = devices.log.set_len(0);
            devices.take_reserve()
        };
        let log_bytes = if has_reserve { options.log_bytes } else { 0 };
        let log = Log::new(devices.log.clone(), superblock, log_bytes);
        let secret = Secret::new(superblock.seed);
        let allocator = Allocator::new(found.runs);
        let running_max = options.transaction_bytes.saturating_mul(2);
        let (log_bytes, cache_bytes) = (log.capacity(), options.cache_bytes);
        let mut journal =
            Journal::new(database, devices, cache_bytes, running_max, log, allocator)?;
        if options.is_read_only {
            journal.refuse_changes();
        }
        let journal = Arc::new(journal);
        let size_blocks = options.size_bytes.map(|bytes| bytes.div_ceil(BLOCK_BYTES));
        let table = Arc::new(InodeTable::new());
        let blocks = Arc::new(Blocks::new(share, secret.clone(), found.xattrs));
        let space = Arc::new(Budget::new(size_blocks, found.blocks));
        let late = Late::new(
            options.is_sharing_late,
            journal.clone(),
            table.clone(),
            blocks.clone(),
            space.clone(),
        );
        let mut store = Store {
            late: Arc::new(late),
            table,
            blocks,
            space,
            inodes: Budget::new(options.inodes_max, found.inodes),
            secret,
            journal,
            next_ino: AtomicU64::new(found.last_ino + 1),
            flusher: None,
            store_dir: None,
            atime: options.atime,
            is_dirsync: options.is_dirsync,
        };
        if options.is_read_only {
            return Ok(store);
        }
        if log_bytes > 0 {
            store.journal.begin_log()?;
        }
        for ino in found.orphans {
            store.forget_inode(ino);
        }
        if let Some(every) = options.commit_every {
            let (poke, poked) = channel();
            store.journal.set_poke(Some(poke));
            let (journal, late) = (store.journal.clone(), store.late.clone());
            let bytes_max = options.transaction_bytes;
            store.flusher = Some(thread::spawn(move || {
                commit_in_time(&journal, &late, &poked, every, bytes_max);
            }));
        }
        Ok(store)
    }

    /// Makes all earlier changes durable.
    ///
    /// # Errors
    /// `EIO` if this commit or an earlier one has failed.
    ///
    /// # Examples
    /// ```
    /// use corewalk::{FileKind, FileSystem, Make, Name, Node};
    /// use corewalk_store::{Store, StoreOptions};
    ///
    /// # let dir = std::env::temp_dir().join(format!("store-doc3-{}", std::process::id()));
    /// let store = Store::open(&dir, &StoreOptions::default())?;
    /// let root = Node::detached(store.root()?.ino, FileKind::Directory);
    /// store.make(root, Name::new(b"file")?, &Make::new(0o644, 0, 0))?;
    /// store.sync()?;
    /// // The transaction is in the log or in the database.
    /// assert!(store.stats().commits > 0);
    /// # drop(store);
    /// # std::fs::remove_dir_all(&dir)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn sync(&self) -> Result<(), Errno> {
        self.late.share();
        self.journal.commit_running()
    }

    /// De-duplicates the attribute sets that are queued for the next commit, without a commit.
    /// [`ShareIndex`] has an example.
    pub fn share_xattrs(&self) {
        self.late.share();
    }

    /// Returns the counters. [`Store::sync`] has an example.
    pub fn stats(&self) -> StoreStats {
        let mut stats = StoreStats {
            inodes: self.inodes.used(),
            blocks: self.space.used(),
            xattr_waiting: self.late.len(),
            ..StoreStats::default()
        };
        self.blocks.add_stats(&mut stats);
        self.journal.add_stats(&mut stats);
        stats
    }

    /// Returns a new inode number. `ENOSPC` once all numbers that a mount accepts are used.
    pub(crate) fn draw_ino(&self) -> Result<u64, Errno> {
        // ORDERING: Relaxed. The atomic addition alone gives different numbers to two threads.
        let ino = self.next_ino.fetch_add(1, Ordering::Relaxed);
        if ino <= NUMBER_MAX { Ok(ino) } else { Err(Errno::NOSPC) }
    }

    /// Calls `change`. If that fails for lack of space, frees private attribute blocks by
    /// de-duplication, and calls `change` again. The caller holds no lock and no handle of the
    /// journal.
    pub(crate) fn with_room<R>(&self, change: impl Fn() -> Result<R, Errno>) -> Result<R, Errno> {
        // Another thread may empty the de-duplication queue during `change`, which also frees
        // blocks. So read the length of the queue before.
        let (refusals, waited) = (self.space.refusals(), self.late.len());
        match change() {
            Err(Errno::NOSPC)
                if self.space.refusals() != refusals && waited.max(self.late.len()) > 0 =>
            {
                self.late.share();
                change()
            }
            done => done,
        }
    }

    pub(crate) fn file_tx<'a>(&'a self, ino: u64, view: &'a View) -> FileTx<'a> {
        FileTx { ino, journal: &self.journal, view, space: &self.space }
    }

    /// Returns the inode of `node`, and reads it if it is not in memory. The caller holds no handle
    /// of the journal.
    pub(crate) fn inode(&self, node: Node<'_>) -> Result<Arc<Inode>, Errno> {
        match self.table.find(node.ino()) {
            Some(inode) => Ok(inode),
            None => self.table.get(node.ino(), &self.journal.view()),
        }
    }

    pub(crate) fn set_of(&self, state: &State, view: &View) -> Result<Arc<[u8]>, Errno> {
        match (&state.block, state.record.xattr) {
            (_, 0) => Ok(Arc::default()),
            (Some(block), _) => Ok(block.content().clone()),
            (None, id) => Ok(self.blocks.get(id, view)?.content().clone()),
        }
    }

    pub(crate) fn load_block(&self, state: &mut State, view: &View) -> Result<(), Errno> {
        if state.block.is_none() && state.record.xattr != 0 {
            state.block = Some(self.blocks.get(state.record.xattr, view)?);
        }
        Ok(())
    }

    pub(crate) fn change_set(
        &self,
        ino: u64,
        state: &mut State,
        set: &[u8],
        view: &View,
    ) -> Result<(), Errno> {
        self.load_block(state, view)?;
        let when = self.late.when(state, set, view);
        let block = match (state.block.take(), set.is_empty()) {
            (None, true) => None,
            (None, false) => {
                let block = self.blocks.share(set, view, &self.space)?;
                state.changed_at = view.tid;
                Some(block)
            }
            (Some(old), true) => {
                self.blocks.release(&old, view, &self.space);
                None
            }
            (Some(own), false) if **own.content() == *set => Some(own),
            (Some(mut own), false) => {
                let done = self.blocks.replace(&mut own, set, when, view, &self.space);
                state.block = Some(own);
                done?;
                self.late.note(ino, state, view);
                state.block.take()
            }
        };
        state.record.xattr = block.as_ref().map_or(0, |block| block.id());
        state.record.has_acl =
            xattr::find(set, xattr::acl_name(corewalk::AclKind::Access)).is_some();
        state.block = block;
        Ok(())
    }

    /// Forgets an inode that clients no longer use. An inode without links is freed, and any other
    /// inode only leaves memory.
    pub(crate) fn forget_inode(&self, ino: u64) {
        let Some(inode) = self.table.find(ino).or_else(|| self.orphan(ino)) else { return };
        if inode.state.read().record.nlink > 0 {
            return self.table.release(inode);
        }
        // The orphan record stays, so the next mount frees the inode.
        let Ok(view) = self.journal.change() else { return };
        let view = &*view;
        let mut content = inode.content.write();
        let mut state = inode.state.write();
        if state.is_dead || state.record.nlink > 0 {
            return;
        }
        let is_file = inode.kind == FileKind::Regular;
        let is_loaded = !is_file || content.load(ino, view).is_ok();
        if !is_loaded || self.load_block(&mut state, view).is_err() {
            return;
        }
        let is_discarded = !is_file || content.discard(self.file_tx(ino, view)).is_ok();
        if !is_discarded || self.change_set(ino, &mut state, &[], view).is_err() {
            // The inode is only half freed, which must not become durable.
            return self.journal.abort();
        }
        state.is_dead = true;
        view.remove(Key::of(Kind::Inode, ino));
        view.remove(Key::of(Kind::Orphan, ino));
        self.inodes.give_back(1);
        drop(state);
        self.table.remove(ino);
    }

    /// Returns the inode `ino` if it has no links, for example because of a crash before it was
    /// freed. Otherwise returns None.
    fn orphan(&self, ino: u64) -> Option<Arc<Inode>> {
        let view = self.journal.view();
        view.get(&Key::of(Kind::Orphan, ino)).ok()??;
        self.table.get(ino, &view).ok()
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.journal.set_poke(None);
        if let Some(flusher) = self.flusher.take() {
            // `join` fails only if the committer has panicked.
            let _ = flusher.join();
        }
        self.late.share();
        // A caller that needs to know of an error calls `sync` before it drops the store.
        let _ = self.journal.checkpoint();
        self.journal.end();
    }
}

impl From<Errno> for OpenError {
    fn from(errno: Errno) -> OpenError {
        OpenError::Io(std::io::Error::from(errno))
    }
}

/// The loop of the committer. It commits when the time `every` has passed since a change, or
/// earlier if the running transaction exceeds `bytes_max`.
fn commit_in_time(
    journal: &Journal,
    late: &Late,
    poked: &Receiver<()>,
    every: Duration,
    bytes_max: u64,
) {
    while poked.recv().is_ok() {
        let begun = Instant::now();
        loop {
            let left = every.saturating_sub(begun.elapsed());
            match poked.recv_timeout(left.min(LOOK_EVERY)) {
                Err(RecvTimeoutError::Disconnected) => return,
                Ok(()) | Err(RecvTimeoutError::Timeout) => {}
            }
            if left.is_zero() || journal.running_bytes() > bytes_max {
                break;
            }
        }
        late.share();
        // Ignore an error, because `sync` and fsync report it. If another thread has put a
        // transaction into the log meanwhile, `forget_poke` wakes this thread again.
        let _ = journal.checkpoint();
        journal.forget_poke();
        // If another thread has queued an inode since the call of `share`, de-duplicate it in the
        // next round.
        if late.len() > 0 {
            journal.poke();
        }
    }
}

fn format(database: &Database, options: &StoreOptions) -> std::io::Result<Snapshot> {
    let now = now();
    let root = InodeRecord {
        mode: mode::S_IFDIR | options.root_mode & !mode::S_IFMT,
        nlink: 2,
        uid: options.root_uid,
        gid: options.root_gid,
        rdev: 0,
        size: 0,
        blocks: 0,
        xattr: 0,
        atime: now,
        mtime: now,
        ctime: now,
        btime: now,
        parent: 0,
        is_linkable: false,
        has_acl: false,
    };
    let mut inode = Vec::new();
    root.encode(&[], &mut inode);
    let seed = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), now.nanos);
    let superblock = SuperRecord { version: FORMAT_VERSION, seed, generation: 1, log_bytes: 0 };
    database.write(&[
        (Key::SUPER, Some(superblock.encode().into())),
        (Key::of(Kind::Inode, ROOT_INO), Some(inode.into())),
    ])
}
