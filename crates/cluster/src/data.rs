//! The contents of files: inline bytes, slices of objects, and bytes that are not written yet.
//!
//! Contents of at most 16 KiB lie inline in the row of the inode. A larger file consists of slices:
//! ranges of the file whose bytes are in objects. The inline bytes are the lowest layer. Slices lie
//! over them, and the dirty bytes of this mount lie over both.
//!
//! A write goes into a buffer in memory, which is flushed (`flush.rs`) by fsync(2), by close(2) and
//! after some seconds. A write that finds the buffer full flushes it first. If that flush fails,
//! the write fails and changes nothing. So the buffer stays bounded while the database or the store
//! is away.
//!
//! # State of a file
//! A [`File`] exists for each file that is open or has dirty bytes. Its contents are loaded at the
//! first read or write. `File::view` holds the size and the modification time that stat(2) reports.
//! It has its own lock, because a flush locks `File::content` until all bytes are written.
//!
//! # Locks
//! Locks are taken in this order: `Files::files`, `File::content`, `File::newest`, `File::view`. No
//! thread locks the contents of two files. A thread that has locked `File::content` may wait for
//! the database and the object store.

mod dirty;
mod disk_cache;
mod flush;
mod objects_cache;
mod pieces;

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use corewalk::{Attr, Errno, Timespec};
use corewalk_base::ShardedCounter;
use corewalk_base::primitives::atomic::{AtomicU64, Ordering};
use corewalk_base::{Mutex, MutexGuard};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};

use crate::meta::Meta;
use crate::node::Inode;
use crate::objects::Objects;
use dirty::{Dirty, OBJECT_BYTES};
pub(crate) use disk_cache::DiskCache;
use objects_cache::ObjectsCache;
use pieces::{Pieces, Source};

/// The longest contents that lie in the database.
const INLINE_MAX: u64 = 16 << 10;
/// The most dirty bytes of a file: four objects.
const FILE_DIRTY_MAX: usize = 16 << 20;
/// Maximum number of separate ranges of dirty bytes of a file. Each range becomes an object.
const EXTENTS_MAX: usize = 1024;
/// The most dirty bytes of all files together. A write that finds more first flushes files.
const ALL_DIRTY_MAX: i64 = 128 << 20;
/// How long bytes may stay dirty before the periodic flush writes them.
const DIRTY_AGE: Duration = Duration::from_secs(5);
/// The length of a chunk of a file. No slice crosses a border of chunks.
const CHUNK_BYTES: u64 = 64 << 20;
/// The largest size of a file: 1 PiB, the space that statfs(2) reports as free.
pub(crate) const SIZE_MAX: u64 = 1 << 50;
/// The most objects that are read ahead for a sequential reader.
const AHEAD_OBJECTS: u64 = 4;
/// How many objects a call reads or writes at the same time.
const REQUESTS_MAX: usize = 16;
/// The memory for objects that were read, in bytes.
const CACHE_BYTES: usize = 64 << 20;

const CONTENT: &str = "SELECT * FROM cw_content($1)";

/// The contents of the files of a mount.
pub(crate) struct Files {
    meta: Arc<Meta>,
    objects: Objects,
    cache: ObjectsCache,
    pub(crate) disk: Option<Arc<DiskCache>>,
    files: Mutex<HashMap<u64, OpenFile>>,
    next_object: Mutex<u64>,
    /// Numbers the open files. A handle consists of this number and one more bit ([`Files::open`]).
    opens: AtomicU64,
    /// The keys of objects whose flush failed. No file will use these objects, so the next flush
    /// deletes their records in the database.
    failed: Mutex<Vec<String>>,
    pub(crate) dirty_bytes: ShardedCounter,
}

/// A file with the number of handles and calls that use it.
struct OpenFile {
    file: Arc<File>,
    users: usize,
}

/// A file that is open or has dirty bytes.
#[derive(Debug, Default)]
pub(crate) struct File {
    ino: u64,
    content: Mutex<Content>,
    /// The size ([`Content::end`]) and the modification time of unflushed changes, for stat(2).
    /// None if all changes are flushed.
    view: Mutex<Option<(u64, Timespec)>>,
    /// The newest version of the inode whose attributes were given to the kernel. Reads must not
    /// return older contents.
    ///
    /// The kernel drops its cached pages of a file when it sees a new modification time. If it then
    /// read older contents, it would keep them under the new time.
    newest: Mutex<i64>,
}

/// The contents of a file, as far as they are known.
#[derive(Debug, Default)]
pub(crate) struct Content {
    /// The session that has loaded the contents, or 0 if the contents are not loaded.
    loaded_by: i64,
    /// True if another mount may have changed the contents since they were loaded.
    is_old: bool,
    /// The value of `node.contents` in the database for these contents. Each change of the contents
    /// raises it.
    number: i64,
    /// A value of `node.version` in the database at which the inode had these contents.
    version: i64,
    size: u64,
    /// The least size that unflushed changes give the file, or 0. `size` is no replacement, because
    /// another mount may have truncated the file since `size` was loaded.
    end: u64,
    inline: Bytes,
    slices: Pieces,
    dirty: Dirty,
    /// How many bytes of `size` the database does not count yet for the limits (`limits.rs`).
    uncounted: u64,
    /// True if a change of the size or of the modification time is not flushed yet.
    is_changed: bool,
    /// When the oldest dirty bytes were written.
    since: Option<Instant>,
    /// The range that the current sequential reader has read. The reader is expected to go on at
    /// its end.
    run: Range<u64>,
    mtime: Timespec,
    /// The error of discarded dirty bytes, until fsync(2) or close(2) reports it. The number is the
    /// first handle that was opened after the loss, and so does not report it.
    lost: Option<(Errno, u64)>,
}

/// Keeps a [`File`] in use. When the last use is dropped, a [`File`] without dirty bytes is dropped
/// too.
pub(crate) struct InUse<'a> {
    data: &'a Files,
    pub(crate) file: Arc<File>,
}

impl Files {
    /// Returns the layer that reads and writes file contents. It uses `meta` for metadata,
    /// `objects` for objects, and `disk` to cache them.
    pub(crate) fn new(meta: Arc<Meta>, objects: Objects, disk: Option<DiskCache>) -> Files {
        let disk = disk.map(Arc::new);
        Files {
            meta,
            cache: ObjectsCache::new(objects.clone(), disk.clone(), CACHE_BYTES),
            disk,
            objects,
            files: Mutex::default(),
            next_object: Mutex::new(0),
            opens: AtomicU64::new(1),
            failed: Mutex::default(),
            dirty_bytes: ShardedCounter::new(),
        }
    }

    pub(crate) fn file(&self, ino: u64) -> InUse<'_> {
        let mut files = self.files.lock();
        let open = files.entry(ino).or_insert_with(|| OpenFile {
            file: Arc::new(File { ino, ..File::default() }),
            users: 0,
        });
        open.users += 1;
        InUse { data: self, file: open.file.clone() }
    }

    /// Returns the [`File`] of an inode and marks it as used, or None if the inode has no [`File`].
    pub(crate) fn known_file(&self, ino: u64) -> Option<InUse<'_>> {
        let mut files = self.files.lock();
        let open = files.get_mut(&ino)?;
        open.users += 1;
        Some(InUse { data: self, file: open.file.clone() })
    }

    /// Opens a file, which stays in use until [`Files::close`]. Returns a new handle, whose lowest
    /// bit is set if the file is open for writing. The contents are loaded again at the next use,
    /// since another mount may have changed them.
    pub(crate) fn open(&self, ino: u64, is_writer: bool) -> u64 {
        let used = self.file(ino);
        let mut content = used.file.content.lock();
        self.settle(&used.file, &mut content);
        // ORDERING: Relaxed. The lock of the contents already orders the opens of one file.
        let handle = self.opens.fetch_add(1, Ordering::Relaxed) << 1 | u64::from(is_writer);
        content.is_old = true;
        drop(content);
        std::mem::forget(used);
        handle
    }

    /// Ends one use of a file, which [`Files::open`] or an [`InUse`] has begun.
    pub(crate) fn close(&self, ino: u64) {
        let mut files = self.files.lock();
        if let Entry::Occupied(mut open) = files.entry(ino) {
            open.get_mut().users = open.get().users.saturating_sub(1);
            // Dirty bytes of a file that is not open any more are flushed by `flush_old`.
            if open.get().users == 0 && open.get().file.view.lock().is_none() {
                open.remove();
            }
        }
    }

    /// Flushes a file, and makes its next use load the contents again. Called after a lock was
    /// taken, since other mounts may have written under that lock.
    pub(crate) fn refresh(&self, ino: u64) -> Result<(), Errno> {
        let Some(used) = self.known_file(ino) else { return Ok(()) };
        let mut content = used.file.content.lock();
        self.flush_content(&used.file, &mut content)?;
        content.is_old = true;
        Ok(())
    }

    /// Discards the dirty bytes of a file if the locks that protect these bytes are lost. The next
    /// [`Files::flush`] of a writer reports the loss.
    pub(crate) fn revert(&self, ino: u64) {
        let Some(used) = self.known_file(ino) else { return };
        self.settle(&used.file, &mut used.file.content.lock());
    }

    /// Makes a file whose locks are lost usable again for handles that are opened from now on.
    /// Discards its dirty bytes, because they may have been written under these locks.
    fn settle(&self, file: &File, content: &mut Content) {
        let is_lost = self.meta.locks.settle(file.ino, self.next_handle(), self.meta.session.id());
        if is_lost && content.is_changed {
            self.give_up(file, content, Errno::IO);
        }
    }

    /// Returns a number above the handles of all open files. The caller has locked the contents of
    /// a file, so that each later open of this file gets this handle or a higher one.
    fn next_handle(&self) -> u64 {
        // ORDERING: Relaxed. See `open`.
        self.opens.load(Ordering::Relaxed) << 1
    }

    /// Drops the dirty bytes of a file that is gone.
    pub(crate) fn discard(&self, ino: u64) {
        let open = self.files.lock().remove(&ino);
        if let Some(open) = open {
            let mut content = open.file.content.lock();
            self.dirty_bytes.add(-(content.dirty.bytes() as i64));
            self.meta.session.room.release(content.uncounted);
            // A concurrent flush may still have this `File`. With empty contents, it does not
            // subtract the bytes from `dirty_bytes` a second time.
            *content = Content::default();
            *open.file.view.lock() = None;
        }
    }

    /// Returns `attr` for the kernel, with the size and the time of writes that are not flushed.
    /// `attr` belongs to `version` of the inode.
    pub(crate) fn seen(&self, attr: Attr, version: i64) -> Attr {
        let files = self.files.lock();
        let Some(file) = files.get(&attr.ino).map(|open| &open.file) else { return attr };
        let mut newest = file.newest.lock();
        *newest = version.max(*newest);
        let view = *file.view.lock();
        let Some((end, mtime)) = view else { return attr };
        let size = attr.size.max(end);
        attr.with_mtime(mtime)
            .with_ctime(mtime.max(attr.ctime))
            .with_size(size)
            .with_blocks(size.div_ceil(512))
    }

    /// Reads a file at `offset`, and returns the number of bytes. The number is smaller than
    /// `buf.len()` only at the end of the file.
    pub(crate) fn read(&self, ino: u64, offset: u64, buf: &mut [u8]) -> Result<usize, Errno> {
        let used = self.file(ino);
        let mut is_retry = false;
        loop {
            let mut content = self.loaded(&used.file)?;
            let len = content.size.saturating_sub(offset).min(buf.len() as u64) as usize;
            let buf = &mut buf[..len];
            let range = offset..offset + len as u64;
            buf.fill(0);
            let inline = content.inline.get(offset as usize..).unwrap_or_default();
            let inline = &inline[..inline.len().min(len)];
            buf[..inline.len()].copy_from_slice(inline);
            let is_sequential = content.run.end == offset;
            content.run.start = if is_sequential { content.run.start } else { offset };
            content.run.end = range.end;
            let pieces = content.slices.in_range(range.clone());
            let ahead = if is_sequential { content.ahead() } else { Vec::new() };
            let fetched = self.fetch(&pieces, offset, buf, is_sequential);
            match fetched {
                // Another mount may have replaced the object. The slices of the file are loaded
                // again, once.
                Err(Errno::NOENT) if !is_retry => {
                    (content.is_old, is_retry) = (true, true);
                    continue;
                }
                Err(Errno::NOENT) => return Err(Errno::IO),
                done => done?,
            }
            content.dirty.read(offset, buf);
            for (key, object_len) in ahead {
                self.cache.read_ahead(self.meta.session.database.handle(), key, object_len);
            }
            return Ok(len);
        }
    }

    /// Reads pieces of a file into `buf`, whose first byte is the byte `offset` of the file.
    fn fetch(
        &self,
        pieces: &[(Range<u64>, Source)],
        offset: u64,
        buf: &mut [u8],
        is_sequential: bool,
    ) -> Result<(), Errno> {
        let read = pieces.iter().map(|(range, source)| async move {
            let Source::Object(key, at, object_len) = source else {
                return Ok((range.clone(), None));
            };
            let wanted = *at..at + (range.end - range.start);
            let bytes = self.patiently("reading an object", || async {
                match is_sequential {
                    true => self.cache.get(key, *object_len, wanted.clone()).await,
                    false => self.cache.get_range(key, wanted.clone()).await,
                }
            });
            Ok((range.clone(), Some(bytes.await?)))
        });
        let parts: Vec<_> = match pieces.is_empty() {
            true => Vec::new(),
            false => {
                let read = stream::iter(read).buffered(REQUESTS_MAX).try_collect();
                self.meta.session.database.block_on(read)?
            }
        };
        for (range, bytes) in parts {
            let part = &mut buf[(range.start - offset) as usize..(range.end - offset) as usize];
            match bytes {
                Some(bytes) => part.copy_from_slice(&bytes),
                None => part.fill(0),
            }
        }
        Ok(())
    }

    /// Writes at `offset`, or at the end of the file if `offset` is None. `handle` is the handle of
    /// the open file.
    ///
    /// # Errors
    /// `EFBIG` if `offset` is not below [`SIZE_MAX`]; `ENOSPC` if a limit of the file system is
    /// reached; `EIO` if locks are lost; the errors of a flush, if dirty bytes must be flushed
    /// first. A call that fails writes nothing.
    pub(crate) fn write(
        &self,
        (ino, handle): (u64, u64),
        offset: Option<u64>,
        bytes: &[u8],
    ) -> Result<usize, Errno> {
        self.make_room()?;
        let used = self.file(ino);
        let mut content = self.loaded(&used.file)?;
        self.meta.check_locks(ino, handle)?;
        let offset = offset.unwrap_or(content.size);
        let room = SIZE_MAX.saturating_sub(offset).min(bytes.len() as u64) as usize;
        if room == 0 && !bytes.is_empty() {
            return Err(Errno::FBIG);
        }
        self.add_dirty(&used.file, &mut content, offset, &bytes[..room])?;
        Ok(room)
    }

    /// Flushes files until all of them together have at most [`ALL_DIRTY_MAX`] dirty bytes. The
    /// caller has no lock.
    fn make_room(&self) -> Result<(), Errno> {
        if self.dirty_bytes.sum() <= ALL_DIRTY_MAX {
            return Ok(());
        }
        let mut failed = Ok(());
        for ino in self.dirty_files() {
            let Some(used) = self.known_file(ino) else { continue };
            let done = self.flush_content(&used.file, &mut used.file.content.lock());
            if self.dirty_bytes.sum() <= ALL_DIRTY_MAX {
                return Ok(());
            }
            // `ESTALE` means that the flush has discarded bytes of another file. The users of that
            // file get the error, and this write succeeds.
            let done =
                done.or_else(|errno| if errno == Errno::STALE { Ok(()) } else { Err(errno) });
            failed = failed.and(done);
        }
        failed
    }

    /// Adds dirty bytes. If the buffer of the file is full, flushes it first.
    fn add_dirty(
        &self,
        file: &File,
        content: &mut Content,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), Errno> {
        let dirty = &content.dirty;
        if !dirty.is_empty()
            && (dirty.bytes() + bytes.len() > FILE_DIRTY_MAX || dirty.extents() >= EXTENTS_MAX)
        {
            self.flush_content(file, content)?;
        }
        let end = offset + bytes.len() as u64;
        self.take_room(content, end)?;
        let before = content.dirty.bytes();
        content.dirty.write(offset, bytes);
        self.dirty_bytes.add(content.dirty.bytes() as i64 - before as i64);
        note_change(file, content, end);
        Ok(())
    }

    /// Reserves the bytes that a file needs to be at least `end` bytes long. So a later flush
    /// cannot exceed a limit of the file system.
    fn take_room(&self, content: &mut Content, end: u64) -> Result<(), Errno> {
        let more = end.saturating_sub(content.size);
        if more == 0 {
            return Ok(());
        }
        self.meta.session.room.take_uncounted(more)?;
        content.uncounted += more;
        Ok(())
    }

    /// Changes the size of a file by `change`, which returns the changed inode. Dirty bytes before
    /// the new end are not flushed. So a truncation succeeds even if the store is full.
    pub(crate) fn resize(
        &self,
        ino: u64,
        size: u64,
        change: impl FnOnce() -> Result<Inode, Errno>,
    ) -> Result<Inode, Errno> {
        // Mark the file as used even if it is not open. Otherwise a concurrent open could load the
        // contents from before the change, and keep them.
        let used = self.file(ino);
        let mut content = used.file.content.lock();
        let done = change();
        let Ok(inode) = done else {
            // The database may have made the change although the call failed.
            content.is_old |= !content.is_changed;
            return done;
        };
        // If the version has grown by more than 1, another mount may have changed the contents.
        if content.version + 1 == inode.version {
            (content.number, content.version) = (inode.version, inode.version);
        }
        content.slices.cut(size);
        let keep = content.inline.len().min(size as usize);
        content.inline.truncate(keep);
        // The database now counts all bytes up to the new end.
        let uncounted = std::mem::take(&mut content.uncounted);
        let beyond = content.end.saturating_sub(size).min(uncounted);
        self.meta.session.room.release(beyond);
        self.meta.session.room.count(uncounted - beyond);
        (content.size, content.mtime) = (size, inode.attr.mtime);
        content.end = content.end.min(size);
        let before = content.dirty.bytes();
        content.dirty.cut(size);
        self.dirty_bytes.add(content.dirty.bytes() as i64 - before as i64);
        if content.dirty.is_empty() {
            (content.is_changed, content.end, content.since) = (false, 0, None);
        }
        let view = (content.end, content.mtime);
        *used.file.view.lock() = content.is_changed.then_some(view);
        Ok(inode)
    }

    /// Zeroes a range of a file, without going beyond the end of the file.
    pub(crate) fn zero(
        &self,
        (ino, handle): (u64, u64),
        offset: u64,
        len: u64,
    ) -> Result<(), Errno> {
        let used = self.file(ino);
        let mut content = self.loaded(&used.file)?;
        self.meta.check_locks(ino, handle)?;
        let end = offset.saturating_add(len).min(content.size);
        if offset >= end {
            return Ok(());
        }
        if content.size <= INLINE_MAX || end - offset <= INLINE_MAX {
            let zeros = vec![0; (end - offset) as usize];
            return self.add_dirty(&used.file, &mut content, offset, &zeros);
        }
        self.flush_content(&used.file, &mut content)?;
        content.mtime = Timespec::now();
        let slices = content.covered(offset..end).into_iter().map(|range| (range, None));
        self.commit(&used.file, &mut content, None, slices.collect())
    }

    /// Makes a file at least `size` bytes long.
    pub(crate) fn grow(&self, (ino, handle): (u64, u64), size: u64) -> Result<(), Errno> {
        let used = self.file(ino);
        let mut content = self.loaded(&used.file)?;
        self.meta.check_locks(ino, handle)?;
        if content.size < size {
            self.take_room(&mut content, size)?;
            note_change(&used.file, &mut content, size);
        }
        Ok(())
    }

    /// Locks the contents of a file, and loads them if they are not known.
    fn loaded<'f>(&self, file: &'f File) -> Result<MutexGuard<'f, Content>, Errno> {
        let mut content = file.content.lock();
        let session = self.meta.session.id();
        let is_old = content.is_old || content.version < *file.newest.lock();
        if content.loaded_by == session && !is_old {
            return Ok(content);
        }
        // Keep contents with unflushed changes that an ended session has loaded. The next flush
        // then finds out whether another mount has changed the file since that session ended.
        if content.loaded_by != session && content.is_changed {
            return Ok(content);
        }
        // A new file is empty, so the database need not be asked.
        let known = self.meta.cache.inode(file.ino);
        let is_live = !self.meta.session.left().is_zero();
        let is_new = known.is_some_and(|inode| inode.attr.size == 0 && inode.version == 1);
        if is_live && is_new && !content.is_changed {
            (content.loaded_by, content.number, content.version) = (session, 1, 1);
            content.is_old = false;
            return Ok(content);
        }
        self.load(file, &mut content)?;
        Ok(content)
    }

    /// Loads the contents below the dirty bytes.
    fn load(&self, file: &File, content: &mut Content) -> Result<(), Errno> {
        let session = self.meta.session.id();
        let rows = self.meta.session.database.query(CONTENT, &[&(file.ino as i64)])?.rows;
        let head = rows.first().ok_or(Errno::STALE)?;
        // If the session may have ended, another mount may have written the file meanwhile. So keep
        // the old `loaded_by` and `number`. With them, the database refuses dirty bytes that are
        // older than the file.
        let is_sure = self.meta.session.id() == session && !self.meta.session.left().is_zero();
        if content.is_changed && (content.loaded_by != session || !is_sure) {
            return Ok(());
        }
        (content.number, content.version) = (head.get("contents"), head.get("version"));
        content.size = content.end.max(head.get::<_, i64>("size") as u64);
        let inline: Option<&[u8]> = head.get("inline");
        content.inline = Bytes::copy_from_slice(inline.unwrap_or_default());
        content.slices = Pieces::default();
        for row in &rows[1..] {
            let (pos, len) = (row.get::<_, i64>("pos") as u64, row.get::<_, i64>("len") as u64);
            let object: Option<&str> = row.get("object");
            let source = object.map_or(Source::Zeros, |key| Source::Object(key.into(), 0, len));
            content.slices.add(pos..pos + len, source);
        }
        (content.loaded_by, content.is_old) = (session, false);
        if content.is_changed {
            // Set a new modification time. The kernel then drops its cached pages, which may be
            // older.
            note_change(file, content, 0);
        }
        Ok(())
    }
}

/// Notes a change of the contents that makes the file at least `end` bytes long.
fn note_change(file: &File, content: &mut Content, end: u64) {
    content.end = content.end.max(end);
    content.size = content.size.max(end);
    content.mtime = Timespec::now();
    content.is_changed = true;
    content.since.get_or_insert_with(Instant::now);
    *file.view.lock() = Some((content.end, content.mtime));
}

impl Content {
    /// Returns the objects that the sequential reader needs next, each with its length. A reader
    /// that has read more than one object gets several, because the store may be far away.
    fn ahead(&self) -> Vec<(Arc<str>, u64)> {
        let is_long = self.run.end - self.run.start > OBJECT_BYTES;
        let count = if is_long { AHEAD_OBJECTS } else { 1 };
        let next = self.run.end.next_multiple_of(OBJECT_BYTES);
        let sources = (0..count).map(|step| self.slices.next(next + step * OBJECT_BYTES));
        let objects = sources.flatten().filter_map(|source| match source {
            Source::Object(key, _, len) => Some((key.clone(), *len)),
            Source::Zeros => None,
        });
        objects.collect()
    }

    /// Returns the parts of a range that may contain other bytes than zeros. All such bytes of a
    /// chunk are in one part, because no slice crosses a border of chunks.
    fn covered(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let inline = range.start..range.end.min(self.inline.len() as u64);
        let pieces = self.slices.in_range(range).into_iter();
        let pieces = pieces.filter(|(_, source)| *source != Source::Zeros).map(|(part, _)| part);
        let mut parts: BTreeMap<u64, Range<u64>> = BTreeMap::new();
        for part in pieces.chain([inline]).filter(|part| !part.is_empty()) {
            let known = parts.entry(part.start / CHUNK_BYTES).or_insert(part.clone());
            *known = known.start.min(part.start)..known.end.max(part.end);
        }
        parts.into_values().collect()
    }
}

impl Drop for InUse<'_> {
    fn drop(&mut self) {
        self.data.close(self.file.ino);
    }
}

impl std::fmt::Debug for Files {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Files")
            .field("dirty_bytes", &self.dirty_bytes.sum())
            .finish_non_exhaustive()
    }
}
