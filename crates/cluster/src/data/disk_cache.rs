//! A cache of objects in a directory of this machine. It is asked for objects that the cache in
//! memory does not have.
//!
//! The cache keeps objects of at least 64 KiB that were read whole, even after the mount has ended.
//! An object is immutable, and its key is never used again, so a copy never becomes stale.
//!
//! The limit of the cache applies to the disk blocks and the inodes of its files. Smaller objects
//! are not kept, because many of them would use up the inodes of the disk, and much memory for
//! their keys.
//!
//! # Files
//! Each object is one file, which is named by the key of the object, with `-` for `/`. The file is
//! written under a temporary name and then renamed. It is not synced, so it may have wrong bytes
//! after a power cut. So each read checks the head and the blocks that it uses. A damaged file is
//! removed, and the object is read from the store.
//!
//! | bytes | contents |
//! |---|---|
//! | 8 | checksum of the key and the rest of the head |
//! | 8 | length of the object |
//! | 8 for each block | checksum of the block, which has 64 KiB or is the last one |
//! | the rest | the object |
//!
//! # Errors of the disk
//! A full disk makes the cache smaller until the next mount. Any other failure of a write turns the
//! cache off until then. A file that cannot be read is removed. Of the errors of the disk, only the
//! first one is logged, but each damaged file is logged. No error reaches a reader.
//!
//! # Locks
//! One mutex protects the list of files, and is not held while a file is used. Each file system has
//! a folder of its own in the directory. A mount locks this folder with flock(2), so that no second
//! mount uses it.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Write as _};
use std::ops::Range;
use std::os::unix::fs::{
    DirBuilderExt as _, FileExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _,
};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use corewalk_base::primitives::thread;
use corewalk_base::{Mutex, ShardedCounter};
use crc_fast::{CrcAlgorithm, checksum};

/// The bytes that one checksum covers.
const BLOCK_BYTES: u64 = 64 << 10;
/// The length of the shortest object that is kept.
const OBJECT_MIN: u64 = 64 << 10;
/// The size of a block on most file systems. The disk space of a file is a multiple of it.
const DISK_BLOCK_BYTES: u64 = 4096;
/// The estimated disk space for the inode and the name of a file, in bytes.
const ENTRY_BYTES: u64 = 512;
/// The bytes of the head before the checksums of the blocks.
const HEAD_BYTES: u64 = 16;
/// The most objects that wait to be written to the disk. If there are more, further objects are not
/// kept in the cache, because they would fill the memory.
const WRITES_MAX: usize = 16;
/// How long a new mount waits for the folder. umount(8) returns before the old mount has ended.
const BUSY_LIMIT: Duration = Duration::from_secs(3);
const BUSY_PAUSE: Duration = Duration::from_millis(20);
const LOCK: &str = "lock";
/// The start of the names of files that are being written. No key begins with it.
const TEMPORARY: &str = "tmp-";

pub(crate) struct DiskCache {
    folder: PathBuf,
    state: Mutex<State>,
    pub(crate) hits: ShardedCounter,
    pub(crate) misses: ShardedCounter,
    /// The open lock file of the folder. While it is open, no other mount uses the folder.
    _lock: File,
}

#[derive(Default)]
struct State {
    files: HashMap<Arc<str>, Kept>,
    /// The keys of the files, the least recently used one first.
    order: BTreeMap<u64, Arc<str>>,
    /// The space on disk of all files, with those that are being written.
    bytes: u64,
    limit: u64,
    clock: u64,
    /// The number of objects that wait to be written to the disk.
    writes: usize,
    has_warned: bool,
}

#[derive(Clone, Copy)]
struct Kept {
    /// The space on disk.
    bytes: u64,
    used_at: u64,
}

impl DiskCache {
    /// Opens the cache of the file system `id` in the directory `folder`, which is made if it does
    /// not exist. Files beyond `limit` bytes are removed. The caller has checked that `id` is a
    /// plain name.
    ///
    /// # Errors
    /// `ResourceBusy` if another mount uses it; `PermissionDenied` if it belongs to another user;
    /// the errors of mkdir(2) and open(2).
    pub(crate) fn open(folder: &Path, id: &str, limit: u64) -> io::Result<DiskCache> {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        let folder = folder.join(id);
        match DirBuilder::new().mode(0o700).create(&folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        // Refuse a folder of another user, since that user could put false contents there.
        let found = fs::symlink_metadata(&folder)?;
        if !found.is_dir() || found.uid() != rustix::process::geteuid().as_raw() {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        fs::set_permissions(&folder, Permissions::from_mode(0o700))?;
        let lock = lock(&folder)?;
        let (mut state, mut found) = (State { limit, ..State::default() }, Vec::new());
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            let (Ok(name), stat) = (entry.file_name().into_string(), entry.metadata()?) else {
                continue;
            };
            if name.starts_with(TEMPORARY) {
                let _ = fs::remove_file(entry.path());
            } else if name != LOCK {
                found.push((stat.modified()?, name.replace('-', "/"), disk_bytes(stat.len())));
            }
        }
        found.sort_unstable();
        for (_, key, bytes) in found {
            state.bytes += bytes;
            state.insert(key.into(), bytes);
        }
        let old = state.evict(0);
        let (hits, misses) = (ShardedCounter::new(), ShardedCounter::new());
        let cache = DiskCache { folder, state: Mutex::new(state), hits, misses, _lock: lock };
        cache.remove_files(&old);
        Ok(cache)
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.state.lock().bytes
    }

    /// Returns true if the cache has an object, and marks the object as the most recently used one.
    /// If not, counts a miss.
    pub(crate) fn has(&self, key: &Arc<str>) -> bool {
        let mut state = self.state.lock();
        let known = state.files.get(key).copied();
        match known {
            Some(kept) => {
                state.order.remove(&kept.used_at);
                state.insert(key.clone(), kept.bytes);
            }
            None => self.misses.add(1),
        }
        known.is_some()
    }

    /// Returns a range of an object, or None if the cache does not have it. Waits for the disk.
    pub(crate) fn read(&self, key: &Arc<str>, range: Range<u64>) -> Option<Bytes> {
        let error = match self.read_file(key, range) {
            Ok(bytes) => {
                self.hits.add(1);
                return Some(bytes);
            }
            Err(error) => error,
        };
        self.misses.add(1);
        match error.kind() {
            io::ErrorKind::NotFound => {}
            io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => {
                log::warn!("{}: removed, because it is damaged", self.path(key).display());
            }
            _ => self.warn(&mut self.state.lock(), &error),
        }
        self.state.lock().forget(key);
        self.remove_files(std::slice::from_ref(key));
        None
    }

    fn read_file(&self, key: &str, range: Range<u64>) -> io::Result<Bytes> {
        let file = File::open(self.path(key))?;
        let mut head = vec![0; HEAD_BYTES as usize];
        file.read_exact_at(&mut head, 0)?;
        let len = number(&head[8..]);
        if file_bytes(len) != Some(file.metadata()?.len()) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        head.resize((file_bytes(len).unwrap_or(0) - len) as usize, 0);
        file.read_exact_at(&mut head[HEAD_BYTES as usize..], HEAD_BYTES)?;
        if number(&head) != head_checksum(key, &head) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        // The object is too short for the slice that names it, so it is read from the store. A
        // slice may be shorter than its object, but never longer.
        if range.end > len {
            return Err(io::ErrorKind::NotFound.into());
        }
        let first = range.start / BLOCK_BYTES;
        let start = first * BLOCK_BYTES;
        let mut bytes =
            vec![0; (range.end.next_multiple_of(BLOCK_BYTES).min(len) - start) as usize];
        file.read_exact_at(&mut bytes, head.len() as u64 + start)?;
        let sums = head[HEAD_BYTES as usize..].chunks(8).skip(first as usize).map(number);
        let mut blocks = bytes.chunks(BLOCK_BYTES as usize).zip(sums);
        if !blocks.all(|(block, sum)| checksum(CrcAlgorithm::Crc64Nvme, block) == sum) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        // The next mount orders the files by their modification time. An error is ignored: a file
        // that is still in use may then be evicted too early.
        let _ = file.set_modified(SystemTime::now());
        Ok(Bytes::from(bytes).slice((range.start - start) as usize..(range.end - start) as usize))
    }

    /// Returns true if an object with `len` bytes may be kept. The caller must then call
    /// [`DiskCache::store`].
    pub(crate) fn begin_store(&self, len: u64) -> bool {
        let mut state = self.state.lock();
        let may_store = len >= OBJECT_MIN && state.writes < WRITES_MAX && state.limit > 0;
        state.writes += usize::from(may_store);
        may_store
    }

    /// Writes an object to the disk, after [`DiskCache::begin_store`] has returned true. Waits for
    /// the disk.
    pub(crate) fn store(&self, key: &Arc<str>, object: &Bytes) {
        let done = self.try_store(key, object);
        let mut state = self.state.lock();
        state.writes -= 1;
        let Err(error) = done else { return };
        self.warn(&mut state, &error);
        state.limit = match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                state.bytes.saturating_sub(object.len() as u64).min(state.limit)
            }
            _ => 0,
        };
        let old = state.evict(0);
        drop(state);
        self.remove_files(&old);
    }

    fn try_store(&self, key: &Arc<str>, object: &Bytes) -> io::Result<()> {
        let Some(bytes) = file_bytes(object.len() as u64).map(disk_bytes) else { return Ok(()) };
        let (old, number) = {
            let mut state = self.state.lock();
            if bytes > state.limit || state.files.contains_key(key) {
                return Ok(());
            }
            let old = state.evict(bytes);
            state.bytes += bytes;
            state.clock += 1;
            (old, state.clock)
        };
        self.remove_files(&old);
        let temporary = self.folder.join(format!("{TEMPORARY}{number}"));
        let written = write_file(&temporary, key, object)
            .and_then(|()| fs::rename(&temporary, self.path(key)));
        let mut state = self.state.lock();
        if written.is_ok() && !state.files.contains_key(key) {
            state.insert(key.clone(), bytes);
        } else {
            state.bytes -= bytes;
        }
        drop(state);
        written.inspect_err(|_| {
            let _ = fs::remove_file(&temporary);
        })
    }

    fn path(&self, key: &str) -> PathBuf {
        self.folder.join(key.replace('/', "-"))
    }

    fn remove_files(&self, keys: &[Arc<str>]) {
        for key in keys {
            // The next mount tries again.
            let _ = fs::remove_file(self.path(key));
        }
    }

    fn warn(&self, state: &mut State, error: &io::Error) {
        if !std::mem::replace(&mut state.has_warned, true) {
            let folder = self.folder.display();
            log::warn!("{folder}: {error}; less is cached there, or nothing");
        }
    }
}

impl State {
    /// Adds a file as the most recently used one. `self.bytes` includes the file's `bytes` already.
    fn insert(&mut self, key: Arc<str>, bytes: u64) {
        self.clock += 1;
        self.order.insert(self.clock, key.clone());
        self.files.insert(key, Kept { bytes, used_at: self.clock });
    }

    fn forget(&mut self, key: &str) {
        if let Some(kept) = self.files.remove(key) {
            self.order.remove(&kept.used_at);
            self.bytes -= kept.bytes;
        }
    }

    /// Forgets the least recently used files, until `bytes` more fit into the limit. Returns the
    /// keys of these files, which the caller must remove from the disk.
    fn evict(&mut self, bytes: u64) -> Vec<Arc<str>> {
        let mut old = Vec::new();
        while self.bytes + bytes > self.limit
            && let Some((_, key)) = self.order.pop_first()
        {
            self.forget(&key);
            old.push(key);
        }
        old
    }
}

impl std::fmt::Debug for DiskCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DiskCache").field("folder", &self.folder).finish_non_exhaustive()
    }
}

/// Takes the lock of a folder.
fn lock(folder: &Path) -> io::Result<File> {
    let lock = new_file().create(true).open(folder.join(LOCK))?;
    let begin = Instant::now();
    loop {
        match lock.try_lock() {
            Ok(()) => return Ok(lock),
            Err(TryLockError::Error(error)) => return Err(error),
            Err(TryLockError::WouldBlock) if begin.elapsed() < BUSY_LIMIT => {
                thread::sleep(BUSY_PAUSE);
            }
            Err(TryLockError::WouldBlock) => {
                let why = "another mount of this file system uses it";
                return Err(io::Error::new(io::ErrorKind::ResourceBusy, why));
            }
        }
    }
}

/// Returns the length of the file that keeps an object with `len` bytes. None if the sum overflows,
/// which a damaged file may cause.
fn file_bytes(len: u64) -> Option<u64> {
    len.checked_add(HEAD_BYTES + len.div_ceil(BLOCK_BYTES) * 8)
}

/// Returns the space on disk of a file with `len` bytes.
fn disk_bytes(len: u64) -> u64 {
    len.next_multiple_of(DISK_BLOCK_BYTES) + ENTRY_BYTES
}

fn head_checksum(key: &str, head: &[u8]) -> u64 {
    checksum(CrcAlgorithm::Crc64Nvme, &[key.as_bytes(), &head[8..]].concat())
}

/// Returns the first 8 bytes as a number, lowest byte first.
fn number(bytes: &[u8]) -> u64 {
    bytes.iter().take(8).rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

fn new_file() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).mode(0o600);
    options
}

fn write_file(path: &Path, key: &str, object: &[u8]) -> io::Result<()> {
    let mut head = vec![0; 8];
    head.extend_from_slice(&(object.len() as u64).to_le_bytes());
    for block in object.chunks(BLOCK_BYTES as usize) {
        head.extend_from_slice(&checksum(CrcAlgorithm::Crc64Nvme, block).to_le_bytes());
    }
    let sum = head_checksum(key, &head);
    head[..8].copy_from_slice(&sum.to_le_bytes());
    let mut file = new_file().create(true).truncate(true).open(path)?;
    file.write_all(&head)?;
    file.write_all(object)
}
