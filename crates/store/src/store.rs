//! The store: what it is made of, how it is mounted and left.
//!
//! What a mount finds out, and when it changes something, is in `mount`. Inodes without links that a crash left are freed.
//!
//! One thread commits every few seconds, while there is something to commit.

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
use crate::content::{BLOCK_BYTES, Site};
use crate::database::{Database, Snapshot};
use crate::hash::Secret;
use crate::inode::{Inode, State, now};
use crate::journal::{Devices, Journal, View};
use crate::late::Late;
use crate::log::Log;
use crate::mount::{HeldDatabase, Mount};
use crate::place::{OpenError, Place};
use crate::record::{FORMAT_VERSION, InodeRecord, Key, Kind, NUMBER_MAX, SuperRecord};
use crate::share::{MbcacheIndex, ShareIndex};
use crate::table::Table;
use crate::xattr;

/// The number of the root directory.
pub(crate) const ROOT_INO: u64 = 1;
/// How often the thread that commits looks how large the running transaction is.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Bytes that the cache of attribute blocks may take.
const INDEX_BYTES: u64 = 4 << 20;

/// How a store is mounted.
#[derive(Clone)]
pub struct StoreOptions {
    /// The most bytes of file data and extended attributes, rounded up to blocks of 4096 bytes; None for
    /// as much as the host has (`size=`).
    pub size_bytes: Option<u64>,
    /// The most inodes, with the root directory; None for any number (`nr_inodes=`).
    pub inodes_max: Option<u64>,
    /// How long what is not synced may be volatile; None for until it is synced (`commit=`).
    pub commit_every: Option<Duration>,
    /// Bytes of records from which on a transaction is committed before its time; at twice as many,
    /// operations wait for that.
    pub transaction_bytes: u64,
    /// Bytes of the log, which takes small transactions that are synced; less than 8192 for none.
    pub log_bytes: u64,
    /// Bytes of memory for the pages of the database.
    pub cache_bytes: usize,
    /// The permission bits of the root directory of a store that is made.
    pub root_mode: u32,
    /// The owner of the root directory of a store that is made.
    pub root_uid: u32,
    /// The group of the root directory of a store that is made.
    pub root_gid: u32,
    /// What finds equal sets of attributes; None for `corewalk-mbcache` with a budget of 4 MiB.
    pub share: Option<Arc<dyn ShareIndex>>,
    /// When reading sets the time of the last access (`relatime`, `noatime`, `strictatime`, `nodiratime`).
    pub atime: AtimePolicy,
    /// Whether a change of a directory is durable when its call returns (`dirsync`).
    pub is_dirsync: bool,
    /// Whether a store is made where there is none (`create`, `no_create`).
    pub is_made: bool,
    /// Whether nothing can be changed (`ro`): changes are `EROFS`, no store is made either, and
    /// what a crash left without links stays. The log is put into the database all the same, as ext4 does. Where
    /// the directory is on a file system that is mounted read-only, that happens in memory.
    pub is_read_only: bool,
    /// Whether sets of attributes of files that are changed again and again are shared when they are committed;
    /// if not, each is shared at once.
    pub is_sharing_late: bool,
}

impl Default for StoreOptions {
    /// Returns no limits, a commit every 5 seconds as in ext4, transactions of 32 MiB, a log of 16 MiB,
    /// 64 MiB of cache, a root directory of user 0 with mode 755, sets that are shared late, `relatime`, changes
    /// allowed, and a store that is made.
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
    /// Returns whether a store is made where there is none.
    fn may_make(&self) -> bool {
        self.is_made && !self.is_read_only
    }
}

/// What a store holds and has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreStats {
    /// Commits since it was mounted, of the log and of the database.
    pub commits: u64,
    /// Those of the log.
    pub logged_commits: u64,
    /// Bytes that those wrote.
    pub logged_bytes: u64,
    /// Transactions that the database took since a write or a sync of the log failed.
    pub log_failures: u64,
    /// Calls that wanted something durable, and found it in a commit of another one.
    pub shared_commits: u64,
    /// Records that commits of the database wrote.
    pub records: u64,
    /// Syncs of the host, for commits and for bytes of files.
    pub syncs: u64,
    /// Operations that waited for a commit, since they made records faster than the host takes them.
    pub waits: u64,
    /// Inodes, with the root directory.
    pub inodes: u64,
    /// Blocks of 4096 bytes that are taken, by files and attributes.
    pub blocks: u64,
    /// Blocks of extended attributes.
    pub xattr_blocks: u64,
    /// Inodes that use one, in all.
    pub xattr_users: u64,
    /// Inodes whose sets are shared at the next commit, and may take a block each until then.
    pub xattr_waiting: u64,
    /// Blocks of 4096 bytes that there would be more if every inode had its own; 0 for none.
    pub xattr_saved_blocks: u64,
    /// Bytes of records that are not committed, about.
    pub running_bytes: u64,
    /// Bytes of records that are in the log and not in the database, about.
    pub logged_running_bytes: u64,
    /// Bytes that the log may have; 0 if the host had no room for it, or failed, when the store was mounted.
    pub log_bytes: u64,
    /// True if the room for commits on a full host is there.
    pub has_reserve: bool,
    /// True if nothing can be changed: it is mounted so, or a commit has failed.
    pub is_read_only: bool,
}

impl StoreStats {
    /// Returns each count with its name, in a fixed order; what is true is 1.
    ///
    /// # Examples
    /// ```
    /// let fields = corewalk_store::StoreStats::default().fields();
    /// assert_eq!(fields[0], ("store_inodes", 0));
    /// ```
    #[must_use]
    pub fn fields(&self) -> [(&'static str, u64); 19] {
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
            ("store_has_reserve", u64::from(self.has_reserve)),
            ("store_is_read_only", u64::from(self.is_read_only)),
        ]
    }
}

/// A file system in a directory of the host. See the crate's text.
pub struct Store {
    pub(crate) table: Arc<Table>,
    pub(crate) blocks: Arc<Blocks>,
    pub(crate) space: Arc<Budget>,
    pub(crate) late: Arc<Late>,
    pub(crate) inodes: Budget,
    pub(crate) secret: Secret,
    pub(crate) journal: Arc<Journal>,
    next_ino: AtomicU64,
    flusher: Option<thread::JoinHandle<()>>,
    /// Where the devices are, if that is a directory; it is locked as long as this lives.
    pub(crate) place: Option<Place>,
    pub(crate) atime: AtimePolicy,
    pub(crate) is_dirsync: bool,
}

impl Store {
    /// Mounts the store in the directory `path`, or makes one there if it is empty or does not exist.
    ///
    /// # Errors
    /// See [`OpenError`]; [`OpenError::Missing`] if there is none and it is to be read only, or not to be made.
    ///
    /// # Examples
    /// ```
    /// use corewalk_store::{OpenError, Store, StoreOptions};
    ///
    /// # let dir = std::env::temp_dir().join(format!("store-doc1-{}", std::process::id()));
    /// let options = StoreOptions { size_bytes: Some(1 << 30), ..StoreOptions::default() };
    /// let store = Store::open(&dir, &options)?;
    /// assert!(matches!(Store::open(&dir, &options), Err(OpenError::Busy)));
    /// # drop(store);
    /// # std::fs::remove_dir_all(&dir)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn open(path: &std::path::Path, options: &StoreOptions) -> Result<Store, OpenError> {
        let place = match options.may_make() {
            false if options.is_read_only => Place::open_unchanged(path)?,
            false => Place::open(path)?,
            true => Place::open_or_make(path, |meta| {
                let database = Database::open(&meta, options.cache_bytes)?;
                format(&database, options)
            })?,
        };
        let devices = place.devices()?;
        // A place is made with a superblock.
        let database = HeldDatabase::open(&devices, options.cache_bytes)?;
        let mount = Mount::look(devices, database)?;
        let mut store = Store::open_with(mount, options, |devices| place.make_lost(devices))?;
        store.place = Some(place);
        Ok(store)
    }

    /// Mounts the store on `devices`, or makes one there if they are empty.
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
    ///     let file = std::fs::File::options().read(true).write(true).create_new(true).open(dir.join(name))?;
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
        let database = HeldDatabase::open(&devices, options.cache_bytes)?;
        if !database.has_store()? {
            // An empty database above the blocks, or the log, of a store that had another one.
            if !devices.data.is_empty()? || !devices.log.is_empty()? {
                return Err(OpenError::Damaged);
            }
            drop(format(database.release()?, options)?);
        }
        Store::open_with(Mount::look(devices, database)?, options, Ok)
    }

    /// Mounts what was looked at; `make` makes what is lost of its devices.
    fn open_with(
        mount: Mount,
        options: &StoreOptions,
        make: impl FnOnce(Devices) -> std::io::Result<Devices>,
    ) -> Result<Store, OpenError> {
        let share = match &options.share {
            Some(share) => share.clone(),
            None => {
                let budget = MbcacheOptions { budget_bytes: INDEX_BYTES, ..Default::default() };
                Arc::new(MbcacheIndex::new(budget)?)
            }
        };
        // Nothing was changed until here.
        let (database, devices, superblock, found) = mount.settle(make)?;
        // Without the reserve nothing can grow, without a log only fsync is slower.
        let has_reserve = devices.take_reserve() || {
            let _ = devices.log.set_len(0);
            devices.take_reserve()
        };
        // What the log gave up is left to the commits that make room.
        let log_bytes = if has_reserve { options.log_bytes } else { 0 };
        let log = Log::new(devices.log.clone(), superblock, log_bytes);
        let secret = Secret::new(superblock.seed);
        let allocator = Allocator::new(found.runs);
        let memory = (options.cache_bytes, options.transaction_bytes.saturating_mul(2));
        let log_bytes = log.capacity();
        let mut journal = Journal::new(database, devices, memory, log, allocator)?;
        if options.is_read_only {
            journal.refuse_changes();
        }
        let journal = Arc::new(journal);
        let size_blocks = options.size_bytes.map(|bytes| bytes.div_ceil(BLOCK_BYTES));
        let table = Arc::new(Table::new());
        let blocks = Arc::new(Blocks::new(share, secret.clone(), found.xattrs));
        let space = Arc::new(Budget::new(size_blocks, found.blocks));
        let parts = (table.clone(), blocks.clone(), space.clone());
        let mut store = Store {
            late: Arc::new(Late::new(options.is_sharing_late, journal.clone(), parts)),
            table,
            blocks,
            space,
            inodes: Budget::new(options.inodes_max, found.inodes),
            secret,
            journal,
            next_ino: AtomicU64::new(found.last_ino + 1),
            flusher: None,
            place: None,
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
                commit_in_time((&journal, &late), &poked, every, bytes_max);
            }));
        }
        Ok(store)
    }

    /// Makes everything durable that happened before this call.
    ///
    /// # Errors
    /// `EIO` if a commit failed, now or ever.
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
    /// // The log has taken it, or the database.
    /// assert!(store.stats().commits > 0);
    /// # drop(store);
    /// # std::fs::remove_dir_all(&dir)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn sync(&self) -> Result<(), Errno> {
        self.late.share();
        self.journal.commit_running()
    }

    /// Shares the sets of attributes that wait for the next commit, without one. [`ShareIndex`] has an example.
    pub fn share_xattrs(&self) {
        self.late.share();
    }

    /// Returns what the store holds and has done. [`Store::sync`] has an example.
    pub fn stats(&self) -> StoreStats {
        let (xattr_blocks, xattr_users) = self.blocks.counts();
        let mut stats = StoreStats {
            inodes: self.inodes.used(),
            blocks: self.space.used(),
            xattr_blocks,
            xattr_users,
            xattr_waiting: self.late.len(),
            // Nearly all sets of attributes fit into one.
            xattr_saved_blocks: xattr_users.saturating_sub(xattr_blocks),
            ..StoreStats::default()
        };
        self.journal.add_stats(&mut stats);
        stats
    }

    /// Returns a number that no inode has. `ENOSPC` if there is none that a mount would take.
    pub(crate) fn draw_ino(&self) -> Result<u64, Errno> {
        // ORDERING: Relaxed. Only the numbers must differ.
        let ino = self.next_ino.fetch_add(1, Ordering::Relaxed);
        if ino <= NUMBER_MAX { Ok(ino) } else { Err(Errno::NOSPC) }
    }

    /// Does `change`, and once more if the budget of blocks had no room for it while sets of attributes waited to be
    /// shared: that makes no inode, and no room of the host. Nothing may be held, nor a pass.
    pub(crate) fn with_room<R>(&self, change: impl Fn() -> Result<R, Errno>) -> Result<R, Errno> {
        // Who shares now may have given the room back after the refusal, and be done by the second look.
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

    /// Returns what a change of the inode `ino` is made with.
    pub(crate) fn site<'a>(&'a self, ino: u64, view: &'a View) -> Site<'a> {
        Site { ino, journal: &self.journal, view, space: &self.space }
    }

    /// Returns the inode of `node`, in memory or not. No pass may be held.
    pub(crate) fn inode(&self, node: Node<'_>) -> Result<Arc<Inode>, Errno> {
        match self.table.find(node.ino()) {
            Some(inode) => Ok(inode),
            None => self.table.get(node.ino(), &self.journal.look()),
        }
    }

    /// Returns the attributes of an inode as one set, empty if there are none.
    pub(crate) fn set_of(&self, state: &State, view: &View) -> Result<Arc<[u8]>, Errno> {
        match (&state.block, state.record.xattr) {
            (_, 0) => Ok(Arc::default()),
            (Some(block), _) => Ok(block.content().clone()),
            (None, id) => Ok(self.blocks.get(id, view)?.content().clone()),
        }
    }

    /// Gets the block of attributes of an inode into memory, if it has one. `EIO` if it cannot be read.
    pub(crate) fn load_block(&self, state: &mut State, view: &View) -> Result<(), Errno> {
        if state.block.is_none() && state.record.xattr != 0 {
            state.block = Some(self.blocks.get(state.record.xattr, view)?);
        }
        Ok(())
    }

    /// Gives the inode `ino`, which the caller saves, another set of attributes.
    ///
    /// # Errors
    /// `ENOSPC`, `EIO`, with nothing changed.
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
            (None, false) => Some(self.blocks.share(set, view, &self.space)?),
            (Some(old), true) => {
                self.blocks.release(&old, view, &self.space);
                None
            }
            (Some(own), false) if **own.content() == *set => Some(own),
            (Some(mut own), false) => {
                let done = self.blocks.replace(&mut own, set, when, view, &self.space);
                // The inode keeps what it had if that failed.
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

    /// Frees an inode without links, or lets go of the memory of another one.
    pub(crate) fn forget_inode(&self, ino: u64) {
        let Some(inode) = self.table.find(ino).or_else(|| self.orphan(ino)) else { return };
        if inode.state.read().record.nlink > 0 {
            return self.table.release(inode);
        }
        // If it cannot be done now it is done when the store is mounted again.
        let Ok(view) = self.journal.change() else { return };
        let view = &*view;
        let mut content = inode.content.write();
        let mut state = inode.state.write();
        if state.is_dead || state.record.nlink > 0 {
            return;
        }
        let is_file = inode.kind == FileKind::Regular;
        // All that can fail comes first, and changes nothing.
        let is_loaded = !is_file || content.load(ino, view).is_ok();
        if !is_loaded || self.load_block(&mut state, view).is_err() {
            return;
        }
        let is_discarded = !is_file || content.discard(self.site(ino, view)).is_ok();
        if !is_discarded || self.change_set(ino, &mut state, &[], view).is_err() {
            // Half of it must not become durable.
            return self.journal.abort();
        }
        state.is_dead = true;
        view.remove(Key::of(Kind::Inode, ino));
        view.remove(Key::of(Kind::Orphan, ino));
        self.inodes.give_back(1);
        drop(state);
        self.table.remove(ino);
    }

    /// Returns an inode that a crash left without links.
    fn orphan(&self, ino: u64) -> Option<Arc<Inode>> {
        let view = self.journal.look();
        view.get(&Key::of(Kind::Orphan, ino)).ok()??;
        self.table.get(ino, &view).ok()
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.journal.set_poke(None);
        if let Some(flusher) = self.flusher.take() {
            // It ends also if it panicked.
            let _ = flusher.join();
        }
        self.late.share();
        // Who needs to know whether that worked has called `sync`.
        let _ = self.journal.checkpoint();
        self.journal.end();
    }
}

impl From<Errno> for OpenError {
    fn from(errno: Errno) -> OpenError {
        OpenError::Io(std::io::Error::from(errno))
    }
}

/// Commits `every` so often while there is something to commit, and earlier if that is much.
fn commit_in_time(
    (journal, late): (&Journal, &Late),
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
        // Those who ask whether it worked call `sync` or fsync, which say so. What the log takes after this
        // is known to `forget_poke`.
        let _ = journal.checkpoint();
        journal.forget_poke();
        // What came after the sets were shared and before the gate was closed.
        if late.len() > 0 {
            journal.poke();
        }
    }
}

/// Makes an empty store, and returns it.
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
